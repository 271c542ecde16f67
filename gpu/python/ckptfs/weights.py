"""ckptfs.weights - weights go from a trainer to other processes: from the
trainers of reinforcement learning to the engines that generate (verl with vLLM
or sglang), to evaluators, to servers.

    ckptfs.weights.publish(state, "/ckpt/weights/v7")            # the trainer

    for version in ckptfs.weights.follow("/ckpt/weights"):        # an engine
        with version:
            version.load_into(model.state_dict())

A version is a safetensors file that appears whole: device memory is copied
once, into memory of the mount, and once from there to each reader's device. It
stays as it is while it is open, although the trainer publishes the next ones
and removes it. Nothing connects the two: any number may follow, start later,
or die. Between two mounts, or where there is none, plain=True does the same
through the files of an ordinary directory.

A folder is a version too, when an index lists its files, as transformers lays
out a large model (model.safetensors.index.json), or when it has the one file
model.safetensors. It has to appear whole: write it under a name that ends in
.tmp, and rename it.

Ranks that have shards (DTensors, of FSDP2 or tensor parallelism) publish them
together, each its own, without gathering them; engines load the whole tensors
from there, or the shards that they want themselves:

    ckptfs.weights.publish_shards(model.state_dict(), "/ckpt/weights/v7")

Between processes on one device torch's own IPC handles leave the copy through
the host out; see gpu/README.md for why they are not used here.
"""
import os

from ._folder import open_any
from ._follow import Follower
from ._publishing import Publication, publish as _publish, remove
from ._saving import _begin, _flags
from ._together import publish_gathered, publish_shards as _publish_shards
from ._versions import Version

__all__ = ["Follower", "Publication", "Version", "follow", "load",
           "open_version", "publish", "publish_async", "publish_shards",
           "remove"]


def _check_whole(tensors):
    """A version is what all readers take for the whole."""
    for name, tensor in tensors.items():
        placements = getattr(tensor, "placements", None)
        if placements is None or not hasattr(tensor, "to_local"):
            continue
        own = list(tensor.to_local().shape)
        if own != list(tensor.shape) or \
                any(one.is_partial() for one in placements):
            raise ValueError(
                f"Key `{name}` is a DTensor of {list(tensor.shape)}, of which "
                f"this rank has {own} ({placements}): call publish_shards() "
                "on all ranks, or publish its full_tensor()")


def publish(tensors, path, metadata=None, *, plain=False, skip_unchanged=False,
            segment_only=False):
    """Make `tensors` the version `path`, and tell who follows its folder.

    Arguments are those of ckptfs.save_file(). It returns when the version is
    there and the tensors may change; names may be used again, and versions
    removed, at any time. ValueError: of a DTensor this rank has a part alone.
    """
    _check_whole(tensors)
    _publish(tensors, path, metadata, (plain, skip_unchanged, segment_only))


def publish_async(tensors, path, metadata=None, *, plain=False,
                  skip_unchanged=False, segment_only=False):
    """The same in the background: returns a Save, whose copied() waits until
    the tensors may change, and tells the followers."""
    _check_whole(tensors)
    begun = _begin(tensors, path, metadata,
                   (plain, skip_unchanged, segment_only), Publication)
    begun._start()
    return begun


def publish_shards(tensors, path, metadata=None, *, group=None, gather=False,
                   plain=False, skip_unchanged=False, segment_only=False):
    """Make what the ranks of a group have one version, the folder `path`.

    All ranks call it: those of `group`, by default of all of torch.distributed,
    or one process without it. Each writes shards of its own DTensors, and of
    what several have (replicas, plain tensors, which are the same on all that
    have them) one writes it. The folder has to be the same for all. When it
    returns on a rank the version is there, and the tensors may change. If it
    raises on one it raises on all, and what the name meant before it still
    means; only if a rank dies when the version is there already the others may
    raise, and it stays.

    gather: rank 0 gathers the tensors and publishes one file, which every
        reader of safetensors knows; it needs the memory for all of it.
    Other arguments are those of publish(). ValueError: a shard is nobody's, or
    the ranks do not agree on a tensor's type or shape.
    """
    options = (plain, skip_unchanged, segment_only)
    _flags(*options)
    (publish_gathered if gather else _publish_shards)(
        tensors, os.fsdecode(path), metadata, group, options)


def open_version(path, device="cpu", dtype=None):
    """Open one version. OSError as ckptfs.open_file(). dtype: what its
    floating-point tensors are given as; load_into() then casts them to the
    types of its targets."""
    return open_any(path, device, dtype)


def load(path, into=None, device="cpu", strict=True, dtype=None):
    """One version: into the memory of the tensors `into`, or as new tensors on
    `device`. dtype: as for open_version()."""
    with open_any(path, device, dtype) as version:
        if into is None:
            return version.get_tensors()
        version.load_into(into, strict)
        return into


def follow(folder, device="cpu", poll_seconds=1.0, dtype=None):
    """A Follower: `for version in follow(folder)` waits for the versions that
    appear there, from the newest of those that are there. device and dtype are
    what the versions' tensors are given on and as: open_version(). poll_seconds:
    so often it looks although nothing was told; nothing tells of another node's
    files."""
    return Follower(folder, device, poll_seconds, dtype)
