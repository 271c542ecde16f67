"""What a tensor is: torch's and numpy's, on any device, as the library wants
them described. Neither is imported before a tensor of its kind is met.
"""
import ctypes
import errno
import operator
import sys

from . import _library as c
from ._errors import also

# safetensors' dtype -> torch's; numpy's are named alike where it has them.
TORCH_NAMES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16",
    "I16": "int16", "U32": "uint32", "I32": "int32", "U64": "uint64",
    "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32",
    "F64": "float64", "C64": "complex64", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
    "F4": "float4_e2m1fn_x2",
}


def _module(name):
    """torch or numpy, if somebody has imported it: else there is no tensor."""
    return sys.modules.get(name)


def is_rocm(torch):
    """Its devices are called cuda as well; their tensors go by the host."""
    return getattr(torch.version, "hip", None) is not None


def local(tensor):
    """What this process has of it: a DTensor's own shard, as FSDP2 and tensor
    parallelism have them in their state dicts; else the tensor itself."""
    if hasattr(tensor, "to_local") and hasattr(tensor, "device_mesh"):
        tensor = tensor.to_local()
        if hasattr(tensor, "wait"):  # a collective that is under way
            tensor = tensor.wait()
    return tensor


def has_memory(torch, tensor):
    """Whether its elements lie in memory as its type and shape say: not those
    of a subclass that is made of other tensors, as float8 and NF4 ones are, nor
    of what is quantized, sparse or nested."""
    if tensor.layout != torch.strided or tensor.is_quantized or \
            tensor.is_nested:
        return False
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return True
    try:
        return bool(tensor.data_ptr()) or not tensor.numel()
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return False


_torch_dtypes = {}  # torch.dtype -> safetensors' name, and back
_numpy_names = {}  # numpy.dtype -> safetensors' name


def torch_table(torch):
    if not _torch_dtypes:
        for ours, theirs in TORCH_NAMES.items():
            dtype = getattr(torch, theirs, None)  # older ones lack some
            if dtype is not None:
                _torch_dtypes[dtype] = ours.encode()
                _torch_dtypes[ours] = dtype
    return _torch_dtypes


def numpy_dtype(np, ours):
    """numpy's of this name; None: there is none. ml_dtypes' too, where somebody
    has imported it, as jax does."""
    try:
        return np.dtype(TORCH_NAMES[ours])
    except (KeyError, TypeError):
        return None


def _numpy_name(np, dtype):
    if not _numpy_names:
        for ours, theirs in TORCH_NAMES.items():
            if hasattr(np, theirs) or theirs == "bool":
                _numpy_names[np.dtype(theirs)] = ours.encode()
    # ml_dtypes' bfloat16 and float8_* have the names that torch gives them.
    return _numpy_names.get(dtype) or next(
        (ours.encode() for ours, theirs in TORCH_NAMES.items()
         if theirs == dtype.name and ours != "F4"), None)


_shape_types = [ctypes.c_uint64 * n for n in range(c.RANK_MAX + 1)]
_stride_types = [ctypes.c_int64 * n for n in range(c.RANK_MAX + 1)]


# One element's bits; also the order in which safetensors has types in a file.
BITS = {name: bits for bits, names in (
    (8, "BOOL"), (4, "F4"),
    (8, "U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ"),
    (16, "I16 U16 F16 BF16"), (32, "I32 U32 F32"), (64, "C64 F64 I64 U64"))
    for name in names.split()}


class TensorSpec:
    """A tensor of the host by its address, as safetensors.TensorSpec: whoever
    makes one keeps the memory until it is saved."""

    __slots__ = "_what",

    def __init__(self, *, dtype, shape, data_ptr, data_len):
        ours = next((ours for ours, theirs in TORCH_NAMES.items()
                     if theirs == dtype), None)
        if ours is None:
            raise also(ValueError)(
                f"Unknown dtype {dtype!r}: safetensors has " +
                ", ".join(TORCH_NAMES.values()))
        shape = [operator.index(n) for n in shape]
        if ours == "F4":  # two elements are one of torch's
            shape[-1:] = [n * 2 for n in shape[-1:]]
        self._what = (ours, shape, operator.index(data_ptr),
                      operator.index(data_len))

    @classmethod
    def of(cls, *what):
        """Of (dtype, shape, data_ptr, data_len) as the file has them."""
        made = cls.__new__(cls)
        made._what = what
        return made

    dtype = property(lambda self: self._what[0])
    shape = property(lambda self: list(self._what[1]))
    data_ptr = property(lambda self: self._what[2])
    data_len = property(lambda self: self._what[3])

    def __repr__(self):
        return (f"TensorSpec(dtype={self.dtype!r}, shape={self.shape}, "
                f"data_ptr={self.data_ptr}, data_len={self.data_len})")


class Adder:
    """Adds tensors to one save, with one call of the library for each."""

    def __init__(self, lib, save):
        self.lib, self.save = lib, save
        self.one = c.Tensor()
        self.pointer = ctypes.byref(self.one)
        self.streams = {}  # ordinal -> CUstream
        self.keep = []  # what the data pointers lead to

    def add(self, name, tensor):
        torch, np = _module("torch"), _module("numpy")
        if torch is not None and isinstance(tensor, torch.Tensor):
            self._torch(torch, name, local(tensor))
        elif np is not None and isinstance(tensor, np.ndarray):
            self._numpy(np, name, tensor)
        elif isinstance(tensor, TensorSpec):
            self.one.device, self.one.stream = c.HOST, None
            self._add(name, tensor.dtype.encode(), tensor.shape, None,
                      tensor.data_ptr, tensor)
        else:
            raise ValueError(f"Key `{name}` is invalid, expected a torch or "
                             f"numpy tensor but received {type(tensor)}")

    def place(self, name, data, offset):
        """Bytes or a torch tensor, of whatever type, at this offset."""
        one = self.one
        one.device, one.stream = c.HOST, None
        if isinstance(data, (bytes, bytearray)):
            size = len(data)
            keep = (ctypes.c_char * size).from_buffer_copy(data)
            address = ctypes.addressof(keep)
        else:
            keep = self._where(sys.modules["torch"], name,
                               local(data).contiguous())
            size, address = keep.numel() * keep.element_size(), keep.data_ptr()
        self._describe(name, b"U8", (size,), None, address, keep)
        self._check(self.lib.ckpt_place(self.save, self.pointer, offset))

    def _where(self, torch, name, t):
        """Notes device and stream; returns t, on the host if the library does
        not know its device."""
        if t.is_conj():
            t = t.resolve_conj()
        if t.is_neg():
            t = t.resolve_neg()
        one, kind = self.one, t.device.type
        one.device, one.stream = c.HOST, None
        if kind == "cuda" and not is_rocm(torch):
            index = t.device.index
            if index not in self.streams:
                with torch.cuda.device(index):
                    if torch.cuda.is_current_stream_capturing():
                        raise OSError(errno.EBUSY, "the stream of the tensors "
                                      "is captured for a graph")
                self.streams[index] = \
                    torch.cuda.current_stream(index).cuda_stream
            one.device, one.stream = index, self.streams[index]
        elif kind == "meta":
            raise NotImplementedError(  # as torch's copy of it would
                f"Key `{name}`: Cannot copy out of meta tensor: it has no data")
        elif kind != "cpu":
            t = t.detach().cpu()
        return t

    def _torch(self, torch, name, t):
        dtype = torch_table(torch).get(t.dtype)
        if dtype is None:
            raise also(ValueError)(
                f"Key `{name}`: safetensors has no {t.dtype}")
        if t.layout != torch.strided:
            raise ValueError(
                f"You are trying to save a sparse tensor: `{name}` which "
                "safetensors does not support. Make it dense with "
                "`.to_dense()` before")
        if t.device.type != "meta" and not has_memory(torch, t):
            raise ValueError(
                f"Key `{name}` is a {type(t).__module__}.{type(t).__qualname__}"
                ", which is no plain tensor: save what it is made of, or the "
                "tensor that it stands for (.dequantize())")
        t = self._where(torch, name, t)
        shape, stride = t.shape, None
        if not t.is_contiguous():
            stride = t.stride()
            if t.device.type == "cuda":  # a kernel, not a copy for each element
                try:
                    t, stride = t.contiguous(), None
                except torch.cuda.OutOfMemoryError:
                    pass
        if dtype == b"F4":  # two elements are one of torch's
            if stride is not None:
                t, stride = t.contiguous(), None
            if not shape:
                raise ValueError(f"Key `{name}`: a scalar of {t.dtype}")
            shape = (*shape[:-1], shape[-1] * 2)
        self._add(name, dtype, shape, stride, t.data_ptr(), t)

    def _numpy(self, np, name, a):
        dtype = _numpy_name(np, a.dtype.newbyteorder("="))
        if dtype is None:
            raise also(ValueError)(
                f"Key `{name}`: safetensors has no {a.dtype}")
        # In the order of this machine, which is that of the file.
        a = np.asarray(a, dtype=a.dtype.newbyteorder("="))
        if not a.flags.c_contiguous:
            a = a.copy(order="C")
        self.one.device, self.one.stream = c.HOST, None
        self._add(name, dtype, a.shape, None, a.ctypes.data, a)

    def _describe(self, name, dtype, shape, stride, data, keep):
        if not isinstance(name, str):
            raise TypeError(f"the name of a tensor is a {type(name)}, not a "
                            "str")
        rank = len(shape)
        if rank > c.RANK_MAX:
            raise ValueError(f"Key `{name}` has {rank} dimensions, at most "
                             f"{c.RANK_MAX} are possible")
        if not data and 0 not in shape:
            raise ValueError(f"Key `{name}` has no memory that could be read")
        one = self.one
        one.name, one.dtype, one.rank = text(name, "name"), dtype, rank
        one.shape = _shape_types[rank](*shape)
        one.stride = _stride_types[rank](*stride) if stride else None
        one.data = data or None
        self.keep.append(keep)

    def _add(self, *description):
        self._describe(*description)
        self._check(self.lib.ckpt_add(self.save, self.pointer))

    @staticmethod
    def _check(rc):
        if rc < 0:
            failed = c.error(rc, of_format=True)
            if rc in (-errno.EINVAL, -errno.EEXIST):
                raise also(ValueError)(failed.strerror)
            raise failed


def text(s, what):
    encoded = s.encode()
    if b"\0" in encoded:
        raise ValueError(f"a NUL in the {what} {s!r}")
    return encoded


def check_metadata(metadata):
    """As safetensors does it."""
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise TypeError(f"argument 'metadata': '{type(metadata).__name__}' "
                        "object is not an instance of 'dict'")
    for one in (*metadata, *metadata.values()):
        if not isinstance(one, str):
            raise TypeError(f"argument 'metadata': '{type(one).__name__}' "
                            "object is not an instance of 'str'")
    return metadata
