"""What a .distcp file is: archives of torch.save() one behind the other, and
where in it the bytes of the tensors lie.

The archive around a tensor depends on its type and shape alone, so it is made
without the bytes, once. A file is laid out before a byte of it is copied, and
what .metadata says of it is known then. What is no plain tensor (a subclass
made of others, a quantized one) is pickled whole.
"""
import io
import os

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.serialization import skip_data

from ._saving import begin_placed
from ._tensors import has_memory, local

_ALIGN = 64  # of an archive in its file: its tensor is aligned to that as well
_SPARE = 4096  # objects may grow to a multiple of it before anything moves


def _up(n, unit):
    return -(-n // unit) * unit


def _longer(archive, more):
    """The end of a zip archive, longer by a comment of zeros. What is no
    archive's end stays as it is."""
    if archive[-22:-18] != b"PK\5\6" or archive[-2:] != b"\0\0":
        return archive
    return archive[:-2] + more.to_bytes(2, "little") + bytes(more)


class _Sink(io.RawIOBase):
    """What is written, and the gap that is left for a tensor's bytes."""

    def __init__(self):
        super().__init__()
        self.at = 0
        self.parts = [bytearray(), bytearray()]  # before and after the gap
        self.gap = None  # where it begins; its length

    def writable(self):
        return True

    def write(self, data):
        self.parts[self.gap is not None] += data
        self.at += len(data)
        return len(data)

    def seek(self, offset, whence=os.SEEK_SET):
        if whence != os.SEEK_CUR or offset < 0 or self.gap:
            raise io.UnsupportedOperation("one gap, forwards")
        self.gap = (self.at, offset)
        self.at += offset
        return self.at

    def tell(self):
        return self.at


class Archive:
    """What torch.save() writes before and after the bytes of a tensor."""

    made = {}  # (dtype, shape) -> Archive

    def __init__(self, dtype, shape):
        sink = _Sink()
        with skip_data():  # its memory is never touched
            torch.save(torch.empty(shape, dtype=dtype), sink)
        self.offset, self.bytes = sink.gap or (0, 0)
        head, tail = sink.parts if sink.gap else (b"", sink.parts[0])
        # No gap between archives: whatever is in the file has a name.
        self.length = _up(sink.at, _ALIGN)
        self.head = bytes(head)
        self.tail = _longer(bytes(tail), self.length - sink.at)

    @classmethod
    def known(cls, dtype, shape):
        if (dtype, shape) not in cls.made:
            cls.made[dtype, shape] = cls(dtype, shape)
        return cls.made[dtype, shape]


class File:
    """One .distcp file: what lies where, for the library and for .metadata."""

    def __init__(self, name):
        self.name = name
        self.end = 0
        self.pieces = []  # (name, bytes or tensor, offset)
        self.results = []

    def _note(self, item, offset, length):
        self.results.append(WriteResult(
            index=item.index, size_in_bytes=length,
            storage_data=_StorageInfo(self.name, offset, length)))

    def add_tensor(self, item, tensor):
        tensor = local(tensor).detach()
        if not has_memory(torch, tensor):
            self._add_saved(item, tensor)
            return
        tensor = tensor.contiguous()
        archive = Archive.known(tensor.dtype, tuple(tensor.shape))
        start, number = self.end, len(self.results)
        for what, data, offset in (
                ("head", archive.head, 0), ("data", tensor, archive.offset),
                ("tail", archive.tail, archive.offset + archive.bytes)):
            if what != "data" or archive.bytes:
                self.pieces.append((f"{number}.{what}", data, start + offset))
        self.end += archive.length
        self._note(item, start, archive.length)

    def _add_saved(self, item, tensor):
        """An archive of what is no plain tensor: torch knows how."""
        made = io.BytesIO()
        torch.save(tensor.cpu(), made)
        raw = _longer(made.getvalue(), -made.tell() % _ALIGN)
        self.pieces.append((f"{len(self.results)}.saved", raw, self.end))
        self._note(item, self.end, len(raw))
        self.end += len(raw)

    def add_objects(self, objects):
        """Behind the tensors, where those that grow move nothing."""
        if not objects:
            return
        packed = bytearray()
        for number, (item, data) in enumerate(objects, 1):
            raw, at = bytes(data.getbuffer()), len(packed)
            if number == len(objects):
                raw = _longer(raw, -(at + len(raw)) % _SPARE)
            self._note(item, self.end + at, len(raw))
            packed += raw
        packed += bytes(-len(packed) % _SPARE)
        self.pieces.append(("objects", bytes(packed), self.end))
        self.end += len(packed)

    def begin(self, path, *, skip_unchanged=False, segment_only=False):
        """A Save of it. Outside of a mount the file is written plainly, and
        where the mount has no memory through it; with segment_only neither."""
        return begin_placed(path, self.pieces, plain=not segment_only,
                            skip_unchanged=skip_unchanged,
                            segment_only=segment_only)


def lay_out(name, resolved):
    """The File of these (write item, tensor or BytesIO)."""
    file, objects = File(name), []
    for item, data in resolved:
        if item.type == WriteItemType.BYTE_IO:
            objects.append((item, data))
        else:
            file.add_tensor(item, data)
    file.add_objects(objects)
    return file
