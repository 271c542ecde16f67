"""Where the pieces of a tensor lie in it, and how what is wanted of them gets
to where it is wanted.

A piece is (file, entry, where in the whole tensor it begins). Of each piece
only the rows are read that are wanted. They go to the target at once where they
lie there as they do in the file; others, and those that are cast, go by room on
the same device.
"""
import math

from . import _library as c
from ._ranges import device_of
from ._tensors import has_memory

_ROOM_BYTES = 256 << 20  # of what is not read in place, so much at a time


def shard_of(tensor):
    """(shape of the whole, where this process's part of it begins, the part)
    of a DTensor; None: it is another tensor, which is a whole."""
    if not hasattr(tensor, "to_local") or not hasattr(tensor, "device_mesh"):
        return None
    own = tensor.to_local()
    if hasattr(own, "wait"):  # a collective that is under way
        own = own.wait()
    chunks = []
    if own.numel() and own.shape != tensor.shape:
        # The protocol by which torch.distributed.checkpoint asks for it.
        chunks = tensor.__create_chunk_list__()
    if len(chunks) > 1:
        raise ValueError(f"a DTensor of {list(tensor.shape)} has {len(chunks)} "
                         "shards in this process, and may have one")
    at = tuple(chunks[0].offsets) if chunks else (0,) * tensor.ndim
    return tuple(tensor.shape), at, own


def is_in(part, at, whole):
    """A box of these lengths, from there, lies in that one; all are lists."""
    return isinstance(at, list) and isinstance(whole, list) and \
        len(part) == len(at) == len(whole) and all(
            isinstance(a, int) and isinstance(w, int) and 0 <= a and
            a + p <= w for p, a, w in zip(part, at, whole))


def box_of(index, shape):
    """(where it begins, how much it is) of an index that is slices without
    steps; None: it is another one."""
    index = index if isinstance(index, tuple) else (index,)
    if len(index) > len(shape) or \
            not all(isinstance(one, slice) for one in index):
        return None
    ranges = [range(*one.indices(size)) for one, size in zip(index, shape)]
    if any(one.step != 1 for one in ranges):
        return None
    rest = shape[len(ranges):]
    return (tuple(one.start for one in ranges) + (0,) * len(rest),
            tuple(map(len, ranges)) + tuple(rest))


def _narrow(tensor, starts, lengths, first=0):
    for dim in range(first, len(starts)):
        tensor = tensor.narrow(dim, starts[dim], lengths[dim])
    return tensor


def _plan(torch, piece, out, origin):
    """((offset, bytes, address, device) to be read, the room for it, what of
    it goes where); None: nothing of the piece is wanted."""
    file, entry, at = piece
    dtype, shape = file._torch_shape(torch, entry)
    low = [max(a, o) for a, o in zip(at, origin)]
    size = [min(a + n, o + m) - begin for a, n, o, m, begin in
            zip(at, shape, origin, out.shape, low)]
    if not entry.bytes or any(n <= 0 for n in size):
        return None
    target = _narrow(out, [b - o for b, o in zip(low, origin)], size)
    inside = [b - a for b, a in zip(low, at)]
    rows = (size[0], *shape[1:]) if shape else ()
    row_bytes = entry.bytes // (shape[0] if shape else 1)
    room = target
    if tuple(size) != rows or target.dtype != dtype or \
            device_of(torch, target) is None or \
            not has_memory(torch, target) or not target.is_contiguous():
        room = torch.empty(rows, dtype=dtype, device=target.device if
                           device_of(torch, target) is not None else "cpu")
    read = (entry.offset + (inside[0] if shape else 0) * row_bytes,
            math.prod(rows[:1]) * row_bytes, room.data_ptr(),
            device_of(torch, room))
    return read, room, target, _narrow(room, inside, size, 1)


def fill(torch, jobs):
    """(piece, tensor, where in the whole tensor that begins) each: what the
    piece has of it is there afterwards. The pieces' files stay open."""
    reads, late, room_bytes = {}, [], 0
    for piece, out, origin in jobs:
        planned = _plan(torch, piece, out, origin)
        if planned is None:
            continue
        read, room, target, part = planned
        reads.setdefault(piece[0], []).append(read)
        if room is not target:
            late.append((target, part))
            room_bytes += read[1]
        if room_bytes >= _ROOM_BYTES:
            _read(torch, reads, late)
            reads, late, room_bytes = {}, [], 0
    _read(torch, reads, late)


def _read(torch, reads, late):
    # What kernels that are enqueued still do to the memory comes before.
    for device in {one[3] for ones in reads.values() for one in ones}:
        if device != c.HOST:
            torch.cuda.current_stream(device).synchronize()
    for file, ones in reads.items():
        ranges = (c.Range * len(ones))(*ones)
        with file._lock:
            c.check(file._lib.ckpt_file_read_ranges(
                file._opened(), ranges, len(ranges)), file.path)
    for target, part in late:
        target.copy_(part)
