"""How the ranks of a group make one version: each says what it has, all plan
alike who writes what of it, and the first of them commits it.
"""
import collections.abc
import errno
import math
import os

from ._pieces import shard_of
from ._publishing import Parts, attempt, begin, commit, give_up, publish
from ._tensors import check_metadata


class Ranks:
    """Those of a group; without torch.distributed this process alone."""

    def __init__(self, group=None):
        import torch.distributed as dist
        self._group, self._is_one = group, not (
            dist.is_available() and dist.is_initialized())
        self.rank = 0 if self._is_one else dist.get_rank(group)
        self.count = 1 if self._is_one else dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("this process is not in the group")

    def agree(self, error, says=None):
        """What each says; or all raise, who failed what he met himself."""
        if not self._is_one:
            from ._share import agree
            try:
                return agree(error, self._group, says)
            except RuntimeError:
                if error is None:
                    raise
        if error is not None:
            raise error
        return [says]


class Making:
    """A version in the making: rank 0 has begun it, all have its token."""

    def __init__(self, ranks, path, token, options):
        self._ranks, self._path, self._token = ranks, path, token
        self._options, self.parts = options, Parts(path, ranks.rank, token,
                                                   options)

    def check(self):
        if not os.path.isdir(self._path):
            raise OSError(errno.ENOENT, "rank 0 has made it, elsewhere: give "
                          "a folder that all share", self._path)

    def finish(self, error, metadata):
        """Collective. error: what this rank met on its way; None: its parts
        are there. If it raises there is no version."""
        ranks, mine = self._ranks, self._ranks.rank == 0
        try:
            files = [one for theirs in ranks.agree(error, self.parts.names)
                     for one in theirs]
            error = None
            if mine:
                error = attempt(commit, self._path, files, metadata,
                                self._options)
                mine = error is not None  # else it is there, and stays
            ranks.agree(error)
        except BaseException:
            if mine:
                give_up(self._path, self._token)
            raise


def publish_shards(tensors, path, metadata, group, options):
    """Collective over the group."""
    publish_described(Ranks(group), path, lambda: describe(tensors), metadata,
                      options)


def publish_described(ranks, path, describes, metadata, options):
    """The same of what describes() returns: see describe()."""
    error, said, own, token = None, {}, {}, None
    try:
        check_metadata(metadata)
        said, own = describes()
        if ranks.rank == 0:
            token = begin(path)
    except Exception as e:  # pylint: disable=broad-except
        error = e
    try:
        all_said = ranks.agree(error, (token, said))
        names = plan([one for _, one in all_said])[ranks.rank]
    except BaseException:
        if token is not None:
            give_up(path, token)
        raise
    making = Making(ranks, path, all_said[0][0], options)

    def add():
        making.check()
        if names:
            making.parts.add({name: own[name] for name in names},
                             shards_of(said, names))
    making.finish(attempt(add), metadata)


def describe(tensors):
    """{name: (type, shape, place, lengths)} of what this rank has, and the
    tensors in its memory, by name. place None: it has nothing of that one."""
    said, own = {}, {}
    if not isinstance(tensors, collections.abc.Mapping):
        raise ValueError("Expected a dict of [str, tensor] but received "
                         f"{type(tensors)}")
    for name, tensor in tensors.items():
        if not hasattr(tensor, "dtype"):
            raise ValueError(f"Key `{name}` is invalid, expected a torch or "
                             f"numpy tensor but received {type(tensor)}")
        placements = getattr(tensor, "placements", ())
        if any(one.is_partial() for one in placements):
            raise ValueError(f"Key `{name}` is a sum that is not made yet "
                             f"({placements}): redistribute() it before")
        shape, at, part = shard_of(tensor) or (
            tuple(tensor.shape), (0,) * tensor.ndim, tensor)
        if 0 in shape and tuple(part.shape) != shape:
            part, at = part.new_empty(shape), (0,) * len(shape)
        if "float4" in str(part.dtype) and tuple(part.shape) != shape:
            raise ValueError(f"Key `{name}`: shards of {part.dtype} are not "
                             "taken: publish with gather=True")
        there = 0 not in part.shape or 0 in shape
        said[name] = str(part.dtype), shape, at if there else None, \
            tuple(part.shape), part.dtype.itemsize
        own[name] = part
    return said, own


def plan(said):
    """Of what all ranks have, the names that each one writes: every shard
    once, and of those who have it, by who has least to write."""
    kinds, holders = {}, {}
    for rank, theirs in enumerate(said):
        for name, (dtype, shape, at, lengths, item_bytes) in theirs.items():
            if kinds.setdefault(name, (dtype, shape)) != (dtype, shape):
                raise ValueError(
                    f"Key `{name}` is {dtype} {list(shape)} on rank {rank}, "
                    f"and {kinds[name][0]} {list(kinds[name][1])} on another")
            if at is not None:
                holders.setdefault((name, at, lengths), (item_bytes, []))[
                    1].append(rank)
    wrote, load, elements = [[] for _ in said], [0] * len(said), {}
    for (name, _, lengths), (item_bytes, ranks) in sorted(holders.items()):
        rank = min(ranks, key=lambda r: load[r])
        load[rank] += item_bytes * math.prod(lengths)
        wrote[rank].append(name)
        elements[name] = elements.get(name, 0) + math.prod(lengths)
    for name, (_, shape) in kinds.items():
        if elements.get(name, -1) != math.prod(shape):
            raise ValueError(f"Key `{name}`, {list(shape)}: the ranks have "
                             f"{elements.get(name, 0)} of its elements")
    return wrote


def shards_of(said, names):
    """What Parts.add() wants to know of these."""
    return {name: {"shape": list(said[name][1]), "at": list(said[name][2])}
            for name in names if said[name][3] != said[name][1]}


def publish_gathered(tensors, path, metadata, group, options):
    """The same, as one file, by rank 0."""
    ranks, whole = Ranks(group), {}
    theirs = ranks.agree(None, sorted(tensors))
    missing = sorted({name for names in theirs for name in names} -
                     set(theirs[0]))
    if missing:
        raise ValueError(f"rank 0 has nothing of {missing[:9]}, and cannot "
                         "gather it: publish the shards")
    ranks.agree(attempt(_gather, tensors, whole if ranks.rank == 0 else None))
    ranks.agree(attempt(publish, whole, path, metadata, options)
                if ranks.rank == 0 else None)


def _gather(tensors, whole):
    """On all ranks in the same order; None: they are not kept."""
    for name in sorted(tensors):
        full = tensors[name]
        if hasattr(full, "full_tensor"):
            full = full.full_tensor()
        if whole is not None:
            whole[name] = full
