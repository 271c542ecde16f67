"""Loading: an open safetensors file, its tensors and slices of them."""
import ctypes
import importlib
import os

from . import _library as c
from ._errors import also
from ._tensors import has_memory, is_rocm, local, numpy_dtype, torch_table

_TORCH = ("pt", "torch", "pytorch")
# What makes another framework's own of numpy's arrays; None: nothing does.
_OF_NUMPY = {"np": None, "numpy": None,
             **dict.fromkeys(("flax", "jax"), ("jax.numpy", "array")),
             **dict.fromkeys(("tf", "tensorflow"),
                             ("tensorflow", "convert_to_tensor")),
             "mlx": ("mlx.core", "array")}

_HUGE = 2 << 20  # bytes
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MADV_HUGEPAGE = 14


def _prefer_huge_pages(data, size):
    """For memory that is written next, for the first time: touching it in
    pages of 4 KiB takes twice as long as reading a file (3.6 GB/s instead of
    8.5, two threads)."""
    if size >= 2 * _HUGE and _madvise is not None:
        first = (data + _PAGE - 1) // _PAGE * _PAGE
        # A hint: where it is refused all else works.
        _madvise(first, (data + size - first) // _PAGE * _PAGE,
                 _MADV_HUGEPAGE)


_madvise = getattr(ctypes.CDLL(None), "madvise", None)
if _madvise is not None:
    _madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


_munmap = ctypes.CDLL(None).munmap
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class _Mapping:
    """Given back when the last tensor that lies in it is gone."""

    def __init__(self, address, size):
        self._all = address, size

    def __del__(self, munmap=_munmap):
        munmap(*self._all)


class Slice:
    """A tensor of a file that is read when it is indexed, and no more of it
    than that takes. A torch tensor of the host lies where get_tensor()'s does:
    nothing is copied."""

    def __init__(self, file, name):
        self._file, self._name = file, name
        self._entry = file._entry(name)

    def get_shape(self):
        return list(self._entry.shape[:self._entry.rank])

    def get_dtype(self):
        return self._entry.dtype.decode()

    def __getitem__(self, index):
        return self._file._slice(self._name, index)


class File(c.OpenFile):
    """An open safetensors file. It keeps its version: the name may be
    replaced or deleted meanwhile. So do torch tensors of the host that it
    gives: their memory is the file's, until they are written to."""

    _maps = True  # else tensors have memory of their own at once

    def __init__(self, path, framework="pt", device="cpu"):
        self._numpy = framework not in _TORCH
        self._device = _check_device(device, framework)
        self._convert = self._numpy and _converter(framework)
        super().__init__(path, "ckpt_file_open")
        self._private = None  # all of it, mapped for tensors
        # By offset, as the library has them; they are gone after a close.
        self._entries = {}
        count = self._lib.ckpt_file_count(self._file)
        if count:
            first = self._lib.ckpt_file_entry(self._file, 0)
            self._entries = {first[i].name.decode(): first[i]
                             for i in range(count)}

    def _entry(self, name):
        self._opened()
        try:
            return self._entries[name]
        except KeyError:
            raise also(KeyError)(f"{os.fsdecode(self.path)} does not contain "
                                 f"tensor {name}") from None

    def __len__(self):
        return len(self._entries)

    def __contains__(self, name):
        return name in self._entries

    def close(self):
        super().close()
        self._private = None  # the tensors that lie there keep it

    _close = close

    def keys(self):
        """The names, sorted."""
        self._opened()
        return sorted(self._entries)

    def offset_keys(self):
        """The names, in the order of the tensors in the file."""
        self._opened()
        return list(self._entries)

    def metadata(self):
        """The file's strings; None: it has none."""
        key, value = ctypes.c_char_p(), ctypes.c_char_p()
        found = []
        with self._lock:
            while self._lib.ckpt_file_metadata(
                    self._opened(), len(found), ctypes.byref(key),
                    ctypes.byref(value)) == 0:
                found.append((key.value.decode(), value.value.decode()))
        return dict(found) or None

    def get_tensor(self, name):
        """One tensor. KeyError: there is none."""
        return self.get_tensors([name])[name]

    def get_slice(self, name):
        """f.get_slice(name)[2:4, :8] reads that part. KeyError: there is no
        such tensor."""
        return Slice(self, name)

    def get_tensors(self, names=None):
        """Those tensors, or all: one call is faster than one for each."""
        with self._lock:
            self._opened()  # and stays so: what an entry says is the file's
            names = list(self._entries if names is None else names)
            wanted = {name: self._entry(name) for name in names}
            make, device, to = self._numpy_maker() if self._numpy else \
                self._torch_maker(self._device)
            if device == c.HOST and self._maps and not self._numpy:
                made = self._in_place(_torch(), wanted)
                wanted = {name: wanted[name] for name in wanted.keys() - made}
            else:
                made = {}
            made.update({name: make(entry) for name, entry in wanted.items()})
            self._read([(wanted[name], tensor.ctypes.data if self._numpy else
                         tensor.data_ptr(), device)
                        for name, tensor in made.items() if name in wanted],
                       fresh=True)
        return {name: to(made[name]) if to else made[name] for name in names}

    def _in_place(self, torch, wanted):
        """Those that can be where the file is mapped; the lock is held."""
        memory, size = ctypes.c_void_p(), ctypes.c_uint64()
        if self._private is None:
            if self._lib.ckpt_file_map_private(
                    self._file, ctypes.byref(memory), ctypes.byref(size)) < 0:
                return {}
            self._private = \
                (ctypes.c_uint8 * size.value).from_address(memory.value)
            self._private.keeps = _Mapping(memory.value, size.value)
        room, made = self._private, {}
        for name, entry in wanted.items():
            dtype, shape = self._torch_shape(torch, entry)
            offset, size = entry.offset, entry.bytes
            if size == 0 or offset + size > len(room) or \
                    offset % dtype.itemsize:
                continue
            # A storage of its own, for who asks which tensors share theirs.
            made[name] = torch.frombuffer(
                room, dtype=dtype, count=size // dtype.itemsize,
                offset=offset).view(shape)
        return made

    def load_into(self, tensors):
        """Read into the memory of these torch tensors, by name: on any
        device, and of a DTensor into the shard of this process. Nothing is
        allocated. ValueError: type or shape differ from the file's."""
        with self._lock:
            self._opened()
            self._load_into(_torch(), tensors)

    def _load_into(self, torch, tensors):
        targets, late = [], []
        for name, tensor in tensors.items():
            entry, own = self._entry(name), local(tensor).detach()
            dtype, shape = self._torch_shape(torch, entry)
            if (own.dtype, tuple(own.shape)) != (dtype, shape):
                raise ValueError(
                    f"Key `{name}` is {own.dtype} {list(own.shape)}, and in "
                    f"{os.fsdecode(self.path)} {dtype} {list(shape)}")
            room, device = own, c.HOST
            if own.device.type == "cuda" and not is_rocm(torch):
                device = own.device.index
            elif own.device.type != "cpu":
                room = torch.empty(shape, dtype=dtype, device="cpu")
            if not has_memory(torch, room) or not room.is_contiguous():
                room = torch.empty(shape, dtype=dtype, device=own.device)
            if room is not own:
                late.append((own, room))
            if device != c.HOST:
                torch.cuda.current_stream(device).synchronize()
            targets.append((entry, room.data_ptr(), device))
        self._read(targets, fresh=False)
        for own, room in late:
            own.copy_(room)

    def _read(self, wanted, fresh):
        """(entry, address, device) each; the lock is held."""
        targets = (c.Target * len(wanted))()
        for target, (entry, data, device) in zip(targets, wanted):
            target.entry = c.EntryPointer(entry)
            target.data, target.device = data, device
            if fresh and device == c.HOST:
                _prefer_huge_pages(data, entry.bytes)
        c.check(self._lib.ckpt_file_read(self._file, targets, len(targets)),
                self.path)

    def _slice(self, name, index):
        with self._lock:
            entry, own = self._entry(name), self._maps and not self._numpy
            whole = self._in_place(_torch(), {name: entry}).get(name) \
                if own else self._mapped(entry)
            try:
                if whole is None:
                    return self.get_tensor(name)[index]
                part = whole[index]
            except IndexError as e:
                raise also(IndexError)(f"`{name}`: {e}") from None
            if self._numpy:
                part = part.copy()
                return self._convert(part) if self._convert else part
            if _torch().device(self._device).type != "cpu":
                return part.contiguous().to(self._device)
            return part if own else part.clone(
                memory_format=_torch().contiguous_format)

    def _mapped(self, entry):
        """The tensor where the file is mapped; None: that cannot be done. The
        lock is held."""
        size = ctypes.c_uint64()
        base = self._lib.ckpt_file_map(self._file, ctypes.byref(size))
        if not base or entry.bytes == 0 or \
                entry.offset + entry.bytes > size.value:
            return None
        memory = (ctypes.c_uint8 * entry.bytes).from_address(
            base + entry.offset)
        if self._numpy:
            import numpy as np
            return np.frombuffer(memory, np.uint8).view(
                self._numpy_type(np, entry)).reshape(entry.shape[:entry.rank])
        torch = _torch()
        dtype, shape = self._torch_shape(torch, entry)
        if (base + entry.offset) % dtype.itemsize:
            return None
        return torch.frombuffer(memory, dtype=torch.uint8).view(
            dtype).reshape(shape)

    # What makes room for an entry, where that is, and where it goes then.

    def _numpy_type(self, np, entry):
        dtype = numpy_dtype(np, entry.dtype.decode())
        if dtype is None:
            raise TypeError(f"{os.fsdecode(self.path)}: numpy has no "
                            f"{entry.dtype.decode()}")
        return dtype

    def _numpy_maker(self):
        import numpy as np

        def make(entry):
            return np.empty(entry.shape[:entry.rank],
                            dtype=self._numpy_type(np, entry))
        return make, c.HOST, self._convert

    def _torch_shape(self, torch, entry):
        ours = entry.dtype.decode()
        dtype = torch_table(torch).get(ours)
        if dtype is None:
            raise TypeError(f"{os.fsdecode(self.path)}: this torch has no "
                            f"{ours}")
        shape = entry.shape[:entry.rank]
        if ours == "F4":  # two elements are one of torch's
            shape[-1:] = [shape[-1] // 2]
        return dtype, tuple(shape)

    def _place(self, torch, device):
        """Where torch makes room for what goes to the device, where that is to
        the library, and where it goes then (None: it is there)."""
        device = torch.device("cuda", device) \
            if isinstance(device, int) else torch.device(device)
        if device.type == "cpu":
            return device, c.HOST, None
        if device.type != "cuda" or is_rocm(torch):
            return torch.device("cpu"), c.HOST, device
        if device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        # torch may give memory again that kernels which it has enqueued
        # still use; what the library writes does not wait for those.
        torch.cuda.current_stream(device).synchronize()
        return device, device.index, None

    def _torch_maker(self, device):
        torch = _torch()
        device, where, to = self._place(torch, device)

        def make(entry):
            dtype, shape = self._torch_shape(torch, entry)
            return torch.empty(shape, dtype=dtype, device=device)
        return make, where, to and (lambda tensor: tensor.to(to))


def knows(framework):
    return framework in (*_TORCH, *_OF_NUMPY)


def _check_device(device, framework):
    """What is said of the arguments alone."""
    if not knows(framework):
        raise also(ValueError)(f"framework {framework!r} is invalid: give one "
                               f"of {', '.join((*_TORCH, *_OF_NUMPY))}")
    if device is None or isinstance(device, str) and device == "cpu":
        return "cpu"
    if framework not in _TORCH:
        raise also(ValueError)(f"device {device!r} is for torch, not for "
                               f"framework {framework!r}")
    try:
        _torch().device(device)
    except (RuntimeError, TypeError, ValueError) as e:
        raise also(ValueError)(f"device {device!r} is invalid: {e}") from None
    return device


def _converter(framework):
    """Of an array that nobody else needs; None: it is what is wanted."""
    where = _OF_NUMPY[framework]
    return where and getattr(importlib.import_module(where[0]), where[1])


def _torch():
    import torch
    return torch


def open_file(filename, framework="pt", device="cpu", *, backend="mmap"):
    """Open a safetensors file: like safetensors.safe_open(), whose backends
    are taken and mean nothing: the library knows what is fastest."""
    if backend not in ("mmap", "pread"):
        raise also(ValueError)(f"backend {backend!r} is invalid: give 'mmap' "
                               "or 'pread'")
    return File(filename, framework, device)


def load_file(filename, device="cpu", *, backend="mmap", framework="pt"):
    """All tensors of a safetensors file: like safetensors.torch.load_file().

    On the host their memory is the file's, as safetensors' is: nothing is
    copied, what is written to them is theirs alone, and they stay as they are
    when the name is replaced or deleted. device may be anything that torch
    takes; a number is a CUDA device. framework="np" gives numpy arrays, which
    own their memory.
    """
    with open_file(filename, framework, device, backend=backend) as f:
        return f.get_tensors()


def load_into(tensors, filename):
    """Read a safetensors file into tensors that are there: File.load_into().
    A model's own state dict, FSDP2's among them, is loaded without a copy."""
    with open_file(filename) as f:
        f.load_into(tensors)
