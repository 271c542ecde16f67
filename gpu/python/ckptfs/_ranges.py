"""The bytes of any file, whatever is in it: read by the library into host
memory, and to devices by way of memory that is pinned."""
import ctypes

from . import _library as c
from ._tensors import is_rocm


def device_of(torch, tensor):
    """Where its memory is to the library; None: where that does not reach."""
    if tensor.device.type == "cpu":
        return c.HOST
    if tensor.device.type == "cuda" and not is_rocm(torch):
        return tensor.device.index
    return None


class Ranges(c.OpenFile):
    """An open file, of whatever format."""

    def __init__(self, path):
        super().__init__(path, "ckpt_file_open_any")

    def read(self, wanted):
        """(offset, bytes, address, device) each; returns when all is there."""
        ranges = (c.Range * len(wanted))(*wanted)
        with self._lock:
            c.check(self._lib.ckpt_file_read_ranges(
                self._opened(), ranges, len(ranges)), self.path)

    def get(self, parts):
        """The bytes of each (offset, bytes)."""
        rooms = [ctypes.create_string_buffer(size) if size else b""
                 for _, size in parts]
        self.read([(at, size, ctypes.addressof(room) if size else None, c.HOST)
                   for (at, size), room in zip(parts, rooms)])
        return [room.raw if room else b"" for room in rooms]
