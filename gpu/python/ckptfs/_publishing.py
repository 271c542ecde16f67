"""How a version of weights appears: whole, and as the newest of its folder.

A version of several files is a folder. Its files get names that no version had
before, and are nobody's until a manifest names them, the last of all: whoever
dies before leaves no version, and the next one of that name takes away what he
left. Nothing is renamed, so in a mount nobody waits for the disk.
"""
import errno
import json
import math
import os
import shutil
import time

from ._folder import FILES, MANIFEST, SHARDS, age, is_name, parts_of
from ._pieces import shard_of
from ._saving import Save, _begin
from ._tensors import check_metadata


class Publication(Save):
    """A Save whose followers are told when it is copied."""

    def copied(self):
        first = not self._copied
        super().copied()
        if first:
            try:
                _announce(os.fsdecode(self.path))
            except OSError:
                pass  # they look by themselves, only later


def _announce(file):
    """Its time is after that of all others there, whatever clock they have
    theirs of: who begins to follow goes by it. Then the folder is touched."""
    version = os.path.dirname(file) if os.path.basename(file) == MANIFEST \
        else file
    folder, name = os.path.split(version)
    with os.scandir(folder or ".") as there:
        others = [age(one.path) for one in there
                  if one.name != name and is_name(one.name)]
    latest = max((key[0] for key in others if key), default=0)
    if latest > os.stat(file).st_mtime_ns:
        os.utime(file, ns=(latest + 1, latest + 1))
    os.utime(folder or ".")


def publish(tensors, path, metadata, options):
    begun = _begin(tensors, path, metadata, options, Publication)
    try:
        begun.copied()
    finally:
        begun._close()


def remove(path):
    """A folder is no version any more before anything of it is gone."""
    if not os.path.isdir(path):
        os.unlink(path)
        return
    for name in parts_of(path):
        os.unlink(os.path.join(path, name))
    shutil.rmtree(path)


# --- The files of a folder ---------------------------------------------------

class Parts:
    """What one process puts into a version."""

    def __init__(self, path, rank, token, options):
        self.path, self.names = path, []
        self._rank, self._token, self._options = rank, token, options

    def add(self, tensors, shards=None):
        """One more file. shards: of each tensor that is a part of one,
        {"shape": [...], "at": [...]}."""
        name = f"part-{self._rank:05}-{len(self.names):05}-{self._token}" \
            ".safetensors"
        save = _begin(tensors, os.path.join(self.path, name),
                      {SHARDS: json.dumps(shards)} if shards else None,
                      self._options)
        try:
            save.copied()
        finally:
            save._close()
        self.names.append(name)


def begin(path):
    """The folder, for the version that will be there. A token for its files."""
    os.makedirs(path, exist_ok=True)  # FileExistsError: it is one file
    return time.time_ns()


def commit(path, names, metadata, options):
    """The files are there: they are the version from now on. Those of the one
    before, and what was left by who died, are taken away."""
    publish({}, os.path.join(path, MANIFEST),
            {**check_metadata(metadata), FILES: json.dumps(names)}, options)
    try:
        _sweep(path, lambda name: name not in names)
    except OSError:
        pass  # the next one of that name does it


def give_up(path, token):
    """Of a version that will not be there."""
    _sweep(path, lambda name: name.endswith(f"-{token}.safetensors"))
    try:
        os.rmdir(path)
    except OSError:
        pass  # the version before is still there


def _sweep(path, is_old):
    for name in os.listdir(path):
        if name.startswith("part-") and is_old(name):
            os.unlink(os.path.join(path, name))


# --- Shards ------------------------------------------------------------------

def describe(tensors):
    """{name: (type, shape, place, lengths)} of what this rank has, and the
    tensors in its memory, by name. place None: it has nothing of that one."""
    said, own = {}, {}
    for name, tensor in tensors.items():
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


def publish_shards(tensors, path, metadata, group, options):
    """Collective over the group."""
    ranks, error, said, own, token = _Ranks(group), None, {}, {}, None
    try:
        check_metadata(metadata)
        said, own = describe(tensors)
        if ranks.rank == 0:
            token = begin(path)
    except Exception as e:  # pylint: disable=broad-except
        error = e
    try:
        all_said = ranks.agree(error, (token, said))
        names = plan([one for _, one in all_said])[ranks.rank]
        parts = Parts(path, ranks.rank, all_said[0][0], options)
        error = _try(_add, parts, names, said, own)
        files = [one for theirs in ranks.agree(error, parts.names)
                 for one in theirs]
        error = None
        if ranks.rank == 0:
            error = _try(commit, path, files, metadata, options)
            token = token if error else None  # it is there, and stays
        ranks.agree(error)
    except BaseException:
        if token is not None:
            give_up(path, token)
        raise


def _try(call, *args):
    """The error, for the others."""
    try:
        call(*args)
    except Exception as e:  # pylint: disable=broad-except
        return e
    return None


def _add(parts, names, said, own):
    if not os.path.isdir(parts.path):
        raise OSError(errno.ENOENT, "rank 0 has made it, elsewhere: the ranks "
                      "have to share the folder", parts.path)
    if names:
        parts.add({name: own[name] for name in names}, shards_of(said, names))


def publish_gathered(tensors, path, metadata, group, options):
    """The same, as one file, by rank 0."""
    ranks, whole = _Ranks(group), {}
    theirs = ranks.agree(None, sorted(tensors))
    missing = sorted({name for names in theirs for name in names} -
                     set(theirs[0]))
    if missing:
        raise ValueError(f"rank 0 has nothing of {missing[:9]}, and cannot "
                         "gather it: publish the shards")
    ranks.agree(_try(_gather, tensors, whole if ranks.rank == 0 else None))
    ranks.agree(_try(publish, whole, path, metadata, options)
                if ranks.rank == 0 else None)


def _gather(tensors, whole):
    """On all ranks in the same order; None: they are not kept."""
    for name in sorted(tensors):
        full = tensors[name]
        if hasattr(full, "full_tensor"):
            full = full.full_tensor()
        if whole is not None:
            whole[name] = full


class _Ranks:
    """Those of a group; without torch.distributed this process alone."""

    def __init__(self, group):
        import torch.distributed as dist
        self._group, self._is_one = group, not (
            dist.is_available() and dist.is_initialized())
        self.rank = 0 if self._is_one else dist.get_rank(group)
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
