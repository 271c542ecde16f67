"""safetensors files in memory: bytes to tensors, and back.

What is loaded is checked by the library, as a file is: it sees the bytes as one
that has no name. What is made has safetensors' own order and padding, bit by
bit. There is no mount in it, so nothing is shared and nothing becomes durable.
"""
import contextlib
import ctypes
import json
import os

from ._errors import also
from ._loading import File
from ._saving import check_tensors, save_file
from ._tensors import BITS, Adder, TensorSpec, check_metadata

_ORDER = {name: at for at, name in enumerate(BITS)}


class _Specs(Adder):
    """Adds to nothing: it notes where the tensors are, on the host."""

    def __init__(self):
        super().__init__(None, None)
        self.specs = {}

    def _where(self, torch, name, t):
        if t.device.type != "meta":
            t = t.detach().cpu()
        return super()._where(torch, name, t).contiguous()

    def _add(self, name, dtype, shape, stride, data, keep):
        self._describe(name, dtype, shape, stride, data, keep)
        self.specs[name] = TensorSpec.of(
            dtype.decode(), list(shape), data,
            _bits(dtype.decode(), shape) // 8)


def _bits(dtype, shape):
    bits = BITS[dtype]
    for n in shape:
        bits *= n
    return bits


def _checked(tensor_dict):
    """By name, each a TensorSpec of ours, whose length is that of its shape."""
    if not isinstance(tensor_dict, dict):
        raise TypeError(f"argument 'tensor_dict': '{type(tensor_dict).__name__}"
                        "' object is not an instance of 'dict'")
    checked = {}
    for name, spec in tensor_dict.items():
        if not isinstance(name, str):
            raise TypeError(f"the name of a tensor is a {type(name)}, not a "
                            "str")
        what = tuple(getattr(spec, of, None) for of in
                     ("dtype", "shape", "data_ptr", "data_len"))
        if what[0] not in BITS or not isinstance(what[3], int):
            raise TypeError(f"Key `{name}`: '{type(spec).__name__}' object is "
                            "not an instance of 'TensorSpec'")
        if _bits(*what[:2]) != what[3] * 8:
            raise also(ValueError)(
                f"Key `{name}`: {what[0]} of {list(what[1])} is not "
                f"{what[3]} bytes")
        checked[name] = TensorSpec.of(*what)
    return checked


def serialize(tensor_dict, metadata=None):
    """The bytes of a file with these, by name: each a TensorSpec, ours or
    safetensors'."""
    return _serialize(_checked(tensor_dict), metadata)


def _serialize(specs, metadata):
    metadata = check_metadata(metadata)
    specs = sorted(specs.items(),
                   key=lambda one: (-_ORDER[one[1].dtype], one[0]))
    header, end, parts = {}, 0, []
    if metadata:
        header["__metadata__"] = metadata
    for name, spec in specs:
        begin, end = end, end + spec.data_len
        header[name] = {"dtype": spec.dtype, "shape": spec.shape,
                        "data_offsets": [begin, end]}
        if spec.data_len:
            parts.append((ctypes.c_char * spec.data_len).from_address(
                spec.data_ptr))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":"))
    text = text.encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def serialize_file(tensor_dict, filename, metadata=None, **options):
    """The same as a file; options are those of save_file()."""
    save_file(_checked(tensor_dict), filename, metadata, **options)


def save(tensors, metadata=None):
    """The bytes of a safetensors file with these: arguments are those of
    save_file()."""
    check_tensors(tensors)
    noted = _Specs()
    for name, tensor in tensors.items():
        noted.add(name, tensor)
    return _serialize(noted.specs, metadata)


@contextlib.contextmanager
def _opened(data, count, framework="pt"):
    """A File of these bytes, of which the first `count` are filled in."""
    data = memoryview(data).cast("B")
    fd = os.memfd_create("ckptfs")
    path = f"/proc/self/fd/{fd}"
    try:
        with open(fd, "wb", buffering=0, closefd=False) as f:
            done = 0
            while done < min(count, len(data)):
                done += f.write(data[done:count])
        os.ftruncate(fd, len(data))
        try:
            file = File(path, framework)
        except OSError as e:
            raise also(OSError)(e.errno, e.strerror.replace(
                path, "the bytes that were given")) from None
    finally:
        os.close(fd)
    with file:
        yield file


def load(data, *, framework="pt"):
    """All tensors of a safetensors file that is in memory. They are copies."""
    with _opened(data, len(data), framework) as f:
        return f.get_tensors()


def deserialize(bytes):  # pylint: disable=redefined-builtin
    """The same without a framework: (name, {"shape", "dtype", "data"}) each,
    in the order of the file; data is a bytearray, a copy."""
    data = memoryview(bytes).cast("B")
    start = 8 + int.from_bytes(data[:8], "little")
    with _opened(data, start) as f:
        return [(name, {
            "shape": list(entry.shape[:entry.rank]),
            "dtype": entry.dtype.decode(),
            "data": bytearray(data[entry.offset:entry.offset + entry.bytes]),
        }) for name, entry in f._entries.items()]
