"""Which rank reads what of a checkpoint, and how the others get it.

Of the ranks that want a piece one reads it and passes it on, in rounds that
bound what is under way. All learn of a failure before anything is passed on,
so that nobody waits for what does not come.
"""
import collections
import os

import torch
import torch.distributed as dist

_ROUND = 128 << 20  # bytes that a rank gives, and that it takes, in one round


class Piece:
    """What is planned: one stored piece, for the ranks of one group."""

    def __init__(self, index, info, group, wanted, source):
        self.index = index  # a MetadataIndex
        self.file, self.bytes = info.relative_path, info.length
        self.group = group  # ranks that pass on to each other
        self.wanted = wanted  # those of them that want it
        self.source = source  # the rank that wrote the file; None: unknown


def writer_rank(path):
    """None: not known, or there is no such file, which whoever is to read it
    will say."""
    try:
        return int(os.getxattr(path, "user.ckptfs.writer_rank"))
    except OSError:
        return None


def wanted_pieces(plans, storage_data, groups, folder):
    """By index and group, of what all ranks' plans want and no extension of
    torch's has to read."""
    wanted, sources = {}, {}
    for rank, plan in enumerate(plans):
        for item in plan.items:
            wanted.setdefault(item.storage_index, set()).add(rank)
    pieces = []
    for index, ranks in wanted.items():
        info = storage_data[index]
        if info.transform_descriptors:
            continue
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
                given[reader] += piece.bytes
                for rank in piece.wanted:
                    gives[reader].append((rank, piece.index))
                    takes[rank].append((reader, piece.index))
                    taken[rank] += piece.bytes
        for rank in range(world):
            # Between two ranks in the same order on both.
            rounds[rank].append((sorted(gives[rank], key=lambda g: g[0]),
                                 sorted(takes[rank], key=lambda t: t[0])))
    return rounds


def _fits(piece, given, taken):
    """One alone always does."""
    size = piece.bytes
    return (not given or given + size <= _ROUND) and all(
        not taken[rank] or taken[rank] + size <= _ROUND
        for rank in piece.wanted)


def agree(error, group, says=None):
    """What each rank says; raise on all ranks what one of them has met."""
    said = [None] * dist.get_world_size(group)
    dist.all_gather_object(said, (
        error and f"rank {dist.get_rank(group)}: {error}", says), group)
    for met, _ in said:
        if met:
            raise RuntimeError(met)
    return [one for _, one in said]


def exchange(one_round, passed, group):
    """passed.read() what this rank gives, from where it is to where the others
    have passed.room() for it; passed.take() it then. Collective; what take()
    raises is returned, and has to wait for agree()."""
    gives, takes = one_round
    me, error, held = dist.get_rank(group), None, {}
    # NCCL passes on what is on a device only.
    device = torch.device("cuda", torch.cuda.current_device()) \
        if dist.get_backend(group) == "nccl" else torch.device("cpu")
    try:
        held = passed.read(list(dict.fromkeys(index for _, index in gives)),
                           device)
        for _, index in takes:
            passed.resolve(index)
    except Exception as e:  # pylint: disable=broad-except
        error = e
    archives = agree(error, group, {index for index, (is_archive, _) in
                                    held.items() if is_archive})
    rooms = [held[index][1] if source == me else
             passed.room(index, index in archives[source], device)
             for source, index in takes]
    under_way = [dist.P2POp(dist.isend, held[index][1], group=group,
                            group_peer=to)
                 for to, index in gives if to != me and len(held[index][1])]
    under_way += [dist.P2POp(dist.irecv, room, group=group, group_peer=source)
                  for (source, _), room in zip(takes, rooms)
                  if source != me and len(room)]
    for work in dist.batch_isend_irecv(under_way) if under_way else ():
        work.wait()
    for (source, index), room in zip(takes, rooms):
        try:
            passed.take(index, index in archives[source], room)
        except Exception as e:  # pylint: disable=broad-except
            error = error or e
    return error
