"""How what is wanted of stored pieces gets into the state: from a file, many
tensors by one call of the library, or from another rank.

A tensor whose bytes lie in the file as its type and shape make them goes
straight to where it is wanted, when that is one piece of memory; any other
goes by room on the host. A planner that has a commit_tensor() of its own may
lend room that it uses for the next tensor too, and gets each back before it is
asked for another.
"""
import ctypes
import io

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import LoadItemType

from ._distcp import Archive
from ._ranges import Ranges, device_of
from ._tensors import has_memory

# They say more than their bytes do.
_QUANTIZED = (torch.quint8, torch.qint8, torch.qint32, torch.quint4x2,
              torch.quint2x4)
# Of tensors that are not read in place, so much at a time.
_ROOM_BYTES = 256 << 20


class Piece:
    """What one read item wants of one file."""

    def __init__(self, item, info, known):
        self.item, self.offset, self.length = item, info.offset, info.length
        self.known = known  # (dtype, shape) of the stored tensor; None: objects

    @property
    def is_object(self):
        return self.item.type == LoadItemType.BYTE_IO


def lends(planner):
    """Whether what it resolves may be room that it wants back."""
    return getattr(type(planner), "commit_tensor", None) is not \
        DefaultLoadPlanner.commit_tensor


def _load(archive):
    """Of another torch, or not laid out densely: it says itself what it is."""
    return torch.load(io.BytesIO(archive), map_location="cpu",
                      weights_only=True)


def _take(piece, target, stored):
    """What is wanted of the stored tensor; None: the target has it."""
    if stored is None:
        return
    for dim, (at, size) in enumerate(zip(piece.item.storage_offsets,
                                         piece.item.lengths)):
        if size != stored.size(dim):  # not all that is stored knows it
            stored = stored.narrow(dim, at, size)
    if stored.size() != target.size():
        raise ValueError(
            f"{piece.item.storage_index.fqn} is "
            f"{list(stored.size())}, not {list(target.size())}")
    target.copy_(stored)


def _fits(piece, target):
    """The target's bytes are some of the stored tensor's, one after the other:
    how many come before them. None: they are not."""
    if not piece.known or piece.known[0] != target.dtype or \
            not has_memory(torch, target) or not target.is_contiguous() or \
            device_of(torch, target) is None:
        return None
    lengths = tuple(piece.item.lengths)
    if lengths != tuple(target.shape):
        return None
    skipped, stride, whole = 0, target.element_size(), True
    for at, length, size in zip(reversed(tuple(piece.item.storage_offsets)),
                                reversed(lengths), reversed(piece.known[1])):
        if not whole and length != 1:
            return None  # what is before it lies between
        skipped += at * stride
        stride *= size
        whole = whole and length == size
    return skipped


def _made_of(known, length):
    """The archive that this type and shape make, if it can be in so many
    bytes."""
    made = known and known[0] not in _QUANTIZED and Archive.known(*known)
    return made if made and made.offset + made.bytes <= length else None


class Archives(Ranges):
    """A .distcp file."""

    is_mapped = False

    def laid_out(self, places):
        """Of each (offset, length, known) the archive that its type and shape
        make; None: it is another, and says itself what it holds."""
        made = [_made_of(known, length) for _, length, known in places]
        heads = iter(self.get([(offset, len(one.head)) for one, (offset, *_) in
                               zip(made, places) if one]))
        return [one if one and next(heads) == one.head else None
                for one in made]

    def stored(self, piece):
        return _load(_whole(self, piece))


# --- From a file -------------------------------------------------------------

def read_file(file, pieces, planner, in_turn):
    """Whatever lies in the file. in_turn: each tensor is committed before the
    next one is resolved."""
    batch, room = [], 0
    for piece in sorted(pieces, key=lambda p: p.offset):
        if piece.is_object:
            planner.load_bytes(piece.item, io.BytesIO(_whole(file, piece)))
            continue
        target = planner.resolve_tensor(piece.item).detach()
        batch.append((piece, target))
        room += piece.length if _fits(piece, target) is None else 0
        if in_turn or room > _ROOM_BYTES:
            _read_tensors(file, batch, planner)
            batch, room = [], 0
    _read_tensors(file, batch, planner)


def _whole(file, piece):
    return file.get([(piece.offset, piece.length)])[0]


def _read_tensors(file, batch, planner):
    """Into the targets, or by way of room for the stored tensor."""
    stored, wanted = [], []
    made = file.laid_out([(piece.offset, piece.length, piece.known)
                          for piece, _ in batch])
    for one, (piece, target) in zip(made, batch):
        skipped = _fits(piece, target)
        if not one or (skipped is None and file.is_mapped):
            stored.append(file.stored(piece))
            continue
        room = target if skipped is not None else torch.empty(
            piece.known[1], dtype=piece.known[0],
            pin_memory=target.device.type == "cuda")
        stored.append(None if room is target else room)
        size = room.numel() * room.element_size()
        wanted.append((piece.offset + one.offset + (skipped or 0), size,
                       room.data_ptr() if size else None,
                       device_of(torch, room)))
    _read(file, wanted)
    for (piece, target), tensor in zip(batch, stored):
        _take(piece, target, tensor)
        planner.commit_tensor(piece.item, target)


def _read(file, wanted):
    # What kernels that are enqueued still do to a target comes before.
    for device in {device for *_, device in wanted if device >= 0}:
        torch.cuda.current_stream(device).synchronize()
    file.read(wanted)


# --- From another rank -------------------------------------------------------

def _raw(room):
    room = room.cpu()
    return ctypes.string_at(room.data_ptr(), len(room))


class Passed:
    """What ranks pass on to each other, for _share.exchange(): the bytes of a
    tensor, from the memory of one state to that of another, or an archive as it
    is, by room on the host."""

    def __init__(self, stored, opened, wanted, planner, in_turn):
        self._stored = stored  # index -> where it lies, and its `known`
        self._opened = opened  # name -> the file
        self._wanted = wanted  # index -> pieces; what was taken is gone
        self._planner, self._in_turn = planner, in_turn
        self._targets = {}  # piece -> what was resolved for it
        self._placed = {}  # index -> the piece whose target is its room

    def read(self, indices, device):
        """{index: (whether it is an archive as it is, its bytes)}."""
        by_file, held = {}, {}
        for index in indices:
            place, known = self._stored(index)
            by_file.setdefault(place.relative_path, []).append(
                (index, (place.offset, place.length, known)))
        for name, ones in by_file.items():
            file, wanted = self._opened(name), []
            made = file.laid_out([place for _, place in ones])
            for one, (index, (offset, *_)) in zip(made, ones):
                room = self.room(index, not one, device)
                held[index] = not one, room
                wanted.append((offset + (one.offset if one else 0), len(room),
                               room.data_ptr() if len(room) else None,
                               device_of(torch, room)))
            _read(file, wanted)
        return held

    def room(self, index, is_archive, device):
        """Where its bytes may go: where they are wanted, if that is there."""
        place, known = self._stored(index)
        if is_archive:
            return torch.empty(place.length, dtype=torch.uint8, device=device)
        for piece, target in self.resolve(index):
            if _fits(piece, target) is not None and \
                    tuple(target.shape) == known[1] and \
                    target.device == device:
                self._placed[index] = piece
                return target.reshape(-1).view(torch.uint8)
        return torch.empty(Archive.known(*known).bytes, dtype=torch.uint8,
                           device=device)

    def resolve(self, index):
        """(piece, target) of each that wants it; none from a planner that
        lends, which gets each tensor before it resolves the next."""
        return [] if self._in_turn else [
            (piece, self._target(piece)) for piece in
            self._wanted.get(index, ()) if not piece.is_object]

    def _target(self, piece):
        if piece not in self._targets:
            self._targets[piece] = \
                self._planner.resolve_tensor(piece.item).detach()
        return self._targets[piece]

    def take(self, index, is_archive, room):
        """It is there."""
        stored, placed = None, self._placed.pop(index, None)
        for piece in self._wanted.pop(index):
            if piece.is_object:
                self._planner.load_bytes(piece.item, io.BytesIO(_raw(room)))
                continue
            if stored is None:
                stored = _load(_raw(room)) if is_archive else \
                    room.view(piece.known[0]).reshape(piece.known[1])
            target = self._target(piece)
            _take(piece, target, None if piece is placed else stored)
            self._planner.commit_tensor(piece.item, target)
            del self._targets[piece]
