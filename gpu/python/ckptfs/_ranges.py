"""The bytes of any file, whatever is in it: read by the library into host
memory, and to devices by way of memory that is pinned."""
import ctypes
import os

from . import _library as c
from ._tensors import is_rocm


def device_of(torch, tensor):
    """Where its memory is to the library; None: where that does not reach."""
    if tensor.device.type == "cpu":
        return c.HOST
    if tensor.device.type == "cuda" and not is_rocm(torch):
        return tensor.device.index
    return None


class Ranges:
    """An open file. It keeps its version; one thread at a time."""

    def __init__(self, path):
        self.name = path
        self._file, self._lib = None, c.lib()
        opened = ctypes.c_void_p()
        c.check(self._lib.ckpt_file_open_any(
            c.handle(), c.encode_path(path), ctypes.byref(opened)), path)
        self._file, self._pid = opened, os.getpid()
        c.process().open.add(self)

    def read(self, wanted):
        """(offset, bytes, address, device) each; returns when all is there."""
        if self._file is None:
            raise ValueError(f"{os.fsdecode(self.name)} is closed")
        ranges = (c.Range * len(wanted))(*wanted)
        c.check(self._lib.ckpt_file_read_ranges(self._file, ranges,
                                                len(ranges)), self.name)

    def get(self, parts):
        """The bytes of each (offset, bytes)."""
        rooms = [ctypes.create_string_buffer(size) if size else b""
                 for _, size in parts]
        self.read([(at, size, ctypes.addressof(room) if size else None, c.HOST)
                   for (at, size), room in zip(parts, rooms)])
        return [room.raw if room else b"" for room in rooms]

    def close(self):
        file, self._file = self._file, None
        if file is not None and self._pid == os.getpid():
            self._lib.ckpt_file_close(file)

    _close = close

    def __del__(self):
        if self._file is not None:
            self.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.close()
