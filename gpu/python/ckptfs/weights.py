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

A rank that has a part, the shards of DTensors, publishes it (.to_local()) as
versions of its own, in a folder of its own. Between processes on one device
torch's own IPC handles leave the copy through the host out; see gpu/README.md
for why they are not used here.
"""
import os

from ._follow import Follower
from ._saving import Save, _begin
from ._versions import Version, open_any  # noqa: F401


class Publication(Save):
    """A Save whose followers are told when it is copied."""

    def copied(self):
        first = not self._copied
        super().copied()
        if first:
            folder = os.path.dirname(os.fsdecode(self.path)) or "."
            try:
                os.utime(folder)
            except OSError:
                pass  # they look by themselves, only later


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
                f"this rank has {own} ({placements}): publish its "
                "full_tensor(), or its to_local() in a folder for each rank")


def publish(tensors, path, metadata=None, *, plain=False, skip_unchanged=False,
            segment_only=False):
    """Make `tensors` the version `path`, and tell who follows its folder.

    Arguments are those of ckptfs.save_file(). It returns when the version is
    there and the tensors may change; names may be used again, and versions
    removed, at any time. ValueError: of a DTensor this rank has a part alone.
    """
    _check_whole(tensors)
    begun = _begin(tensors, path, metadata,
                   (plain, skip_unchanged, segment_only), Publication)
    try:
        begun.copied()
    finally:
        begun._close()


def publish_async(tensors, path, metadata=None, *, plain=False,
                  skip_unchanged=False, segment_only=False):
    """The same in the background: returns a Save, whose copied() waits until
    the tensors may change, and tells the followers."""
    _check_whole(tensors)
    begun = _begin(tensors, path, metadata,
                   (plain, skip_unchanged, segment_only), Publication)
    begun._start()
    return begun


def open_version(path, device="cpu"):
    """Open one version. OSError as ckptfs.open_file()."""
    return open_any(path, device)


def load(path, into=None, device="cpu", strict=True):
    """One version: into the memory of the tensors `into`, or as new tensors on
    `device`."""
    with open_any(path, device) as version:
        if into is None:
            return version.get_tensors()
        version.load_into(into, strict)
        return into


def follow(folder, device="cpu", poll_seconds=1.0):
    """A Follower: `for version in follow(folder)` waits for the versions that
    appear there, from the newest of those that are there. device is where the
    versions' tensors go by default. poll_seconds: so often it looks although
    nothing was told; nothing tells of another node's files."""
    return Follower(folder, device, poll_seconds)
