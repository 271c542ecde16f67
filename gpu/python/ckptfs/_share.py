"""Which rank reads what of a checkpoint, and how the others get it.

Of the ranks that want a piece one reads it and passes it on, in rounds that
bound what is under way. All learn of a failure before anything is passed on,
so that nobody waits for what does not come.
"""
import collections
import os

import torch
import torch.distributed as dist

_ROUND = 256 << 20  # bytes that a rank gives, and that it takes, in one round
_ALIGN = 64  # of a piece in a buffer, so that its tensor is aligned as well


class Piece:
    """What is planned: one stored piece, for the ranks of one group."""

    def __init__(self, index, info, group, wanted, source):
        self.index = index  # a MetadataIndex
        self.file, self.bytes = info.relative_path, info.length
        self.group = group  # ranks that pass on to each other
        self.wanted = wanted  # those of them that want it
        self.source = source  # the rank that wrote the file; None: unknown


def by_writer(pieces, world):
    """Who wrote a file reads it; what nobody of the group wrote, the one with
    the least to read of those that want it."""
    load, readers = [0] * world, {}
    for number, piece in enumerate(pieces):
        if piece.source in piece.group:
            readers[number] = piece.source
            load[piece.source] += piece.bytes
    rest = [n for n in range(len(pieces)) if n not in readers]
    for number in sorted(rest, key=lambda n: -pieces[n].bytes):
        readers[number] = min(pieces[number].wanted, key=lambda r: load[r])
        load[readers[number]] += pieces[number].bytes
    return [readers[number] for number in range(len(pieces))]


def writer_rank(path):
    """None: not known, or there is no such file, which whoever is to read it
    will say."""
    try:
        return int(os.getxattr(path, "user.ckptfs.writer_rank"))
    except OSError:
        return None


def wanted_pieces(plans, storage_data, groups, folder):
    """By index and group, of what all ranks' plans want."""
    wanted, sources = {}, {}
    for rank, plan in enumerate(plans):
        for item in plan.items:
            wanted.setdefault(item.storage_index, set()).add(rank)
    pieces = []
    for index, ranks in wanted.items():
        info = storage_data[index]
        if info.relative_path not in sources:
            sources[info.relative_path] = writer_rank(
                os.path.join(folder, info.relative_path))
        for group in groups:
            among = sorted(ranks.intersection(group))
            if among:
                pieces.append(Piece(index, info, group, among,
                                    sources[info.relative_path]))
    return pieces


def rounds_of(pieces, readers, world):
    """For each rank the rounds: ([(to, index)] it gives, [(from, index)] it
    takes). What its only reader wants alone is in none."""
    waiting = [collections.deque() for _ in range(world)]
    for piece, reader in zip(pieces, readers):
        if piece.wanted != [reader]:
            waiting[reader].append(piece)
    rounds = [[] for _ in range(world)]
    while any(waiting):
        gives, takes = ([[] for _ in range(world)] for _ in range(2))
        given, taken = [0] * world, [0] * world
        for reader, queue in enumerate(waiting):
            while queue and _fits(queue[0], given[reader], taken):
                piece = queue.popleft()
                for rank in piece.wanted:
                    gives[reader].append((rank, piece.index))
                    takes[rank].append((reader, piece.index))
                    given[reader] += piece.bytes
                    taken[rank] += piece.bytes
        for rank in range(world):
            # One behind the other, as they lie in the buffers.
            rounds[rank].append((sorted(gives[rank], key=lambda g: g[0]),
                                 sorted(takes[rank], key=lambda t: t[0])))
    return rounds


def _fits(piece, given, taken):
    """One alone always does."""
    size = piece.bytes
    return (not given or given + size * len(piece.wanted) <= _ROUND) and all(
        not taken[rank] or taken[rank] + size <= _ROUND
        for rank in piece.wanted)


def _slots(passed, length, world):
    """[(index, where in the buffer)], and how much of it is each rank's."""
    slots, split, at = [], [0] * world, 0
    for rank, index in passed:
        slots.append((index, at))
        size = -(-length(index) // _ALIGN) * _ALIGN
        split[rank] += size
        at += size
    return slots, split


def agree(error, group):
    """Raise on all ranks what one of them has met."""
    errors = [None] * dist.get_world_size(group)
    dist.all_gather_object(errors, error and
                           f"rank {dist.get_rank(group)}: {error}", group)
    for said in errors:
        if said:
            raise RuntimeError(said)


def exchange(one_round, length, read, take, group):
    """read(index, room) fills a tensor of bytes; take(index, bytes) gets one.
    Collective; what take() raises has to wait for agree()."""
    gives, takes = one_round
    world, error, first = dist.get_world_size(group), None, {}
    slots, sent = _slots(gives, length, world)
    out = torch.empty(sum(sent), dtype=torch.uint8)
    try:
        for index, at in slots:
            room = out[at:at + length(index)]
            if index in first:
                room.copy_(first[index])
            else:
                read(index, room)
                first[index] = room
    except Exception as e:  # pylint: disable=broad-except
        error = e
    agree(error, group)
    slots, received = _slots(takes, length, world)
    # NCCL passes on what is on a device only.
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    got = torch.empty(sum(received), dtype=torch.uint8, device=device)
    dist.all_to_all_single(got, out.to(device), received, sent, group)
    got = got.cpu()
    for index, at in slots:
        take(index, got[at:at + length(index)])
