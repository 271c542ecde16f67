"""ckptfs.verl - verl's weights go to its rollouts as versions.

    actor_rollout_ref.rollout.checkpoint_engine:
      backend: ckptfs
      custom_backend_module: ckptfs.verl
      engine_kwargs: {ckptfs: {folder: /ckpt/weights}}

is all: importing this module registers the backend. Each rank of the actor
writes every n-th tensor of those that it is given, bucket by bucket, and the
rollouts read all of them: no process group connects the two, so rollouts come
and go without one that is built anew. Actor and rollouts have to see one
folder: a mount of their node, or a directory that nodes share. It is for one
job, whose versions (verl-...) it keeps to the newest.

Others can follow the same folder (ckptfs.weights.follow()).

Made for the CheckpointEngine of verl 0.9.
"""
import asyncio
import os

import torch
from verl.checkpoint_engine.base import (
    CheckpointEngine, CheckpointEngineRegistry)

from ._folder import open_any
from ._follow import wait_for
from ._publishing import Stream, begin, new_name, prune
from ._together import Making, Ranks
from ._versions import check_dtype

_OPTIONS = (True, False, False)  # plain: the folder need not be in a mount
_PREFIX = "verl"


@CheckpointEngineRegistry.register("ckptfs")
class WeightsCheckpointEngine(CheckpointEngine):
    """verl makes it, with bucket_size and is_master; the rest is
    engine_kwargs.

    folder: of the versions.
    rollout_dtype: what floating-point tensors are published as ("bfloat16");
        None: as they are.
    keep: so many versions stay, for who follows or starts later.
    timeout_seconds: so long a rollout waits for the actor's version.
    """

    def __init__(self, bucket_size, folder, is_master=False,
                 rollout_dtype=None, keep=1, timeout_seconds=600):
        if isinstance(rollout_dtype, str):
            rollout_dtype = getattr(torch, rollout_dtype, rollout_dtype)
        if not isinstance(keep, int) or keep < 1:
            raise ValueError(f"keep={keep!r}: give a number of versions")
        self.bucket_size, self.folder = bucket_size, os.fspath(folder)
        self.is_master, self.keep = is_master, keep
        self.rollout_dtype = check_dtype(rollout_dtype)
        self.timeout_seconds = timeout_seconds
        self._rank = self._actors = self._path = self._token = None

    def prepare(self):
        """The master's: what the next version is called."""
        if not self.is_master:
            return None
        name = new_name(_PREFIX)
        return {"name": name, "token": begin(os.path.join(self.folder, name))}

    @classmethod
    def build_topology(cls, actor_wg_world_size, rollout_world_size, metadata):
        if not metadata or metadata[0] is None:
            raise ValueError("rank 0 of the actor is not the master: it did "
                             "not begin a version")

        def given(ranks):
            return {"rank": list(ranks),
                    "actors": [actor_wg_world_size] * len(ranks),
                    "version": [metadata[0]] * len(ranks)}
        everybody = actor_wg_world_size + rollout_world_size
        return (given(range(actor_wg_world_size)),
                given(range(actor_wg_world_size, everybody)))

    def init_process_group(self, rank, actors, version):
        """No group: who it is, and which version comes."""
        self._rank, self._actors = rank, actors
        self._path = os.path.join(self.folder, version["name"])
        self._token = version["token"]
        if not os.path.isdir(self._path):
            raise FileNotFoundError(
                f"{self._path}: the actor has made it, elsewhere: `folder` has "
                "to be one that all workers share")

    @torch.no_grad()
    async def send_weights(self, weights, global_steps=None):
        if self._rank >= self._actors:
            raise RuntimeError("a rollout has no weights to send")
        ranks = Ranks()
        if ranks.count != self._actors:
            raise RuntimeError(f"the actor has {self._actors} workers, and "
                               f"torch.distributed here {ranks.count}")
        making = Making(ranks, self._path, self._token, _OPTIONS)
        # To the end, whatever goes wrong here: making each tensor is
        # collective.
        stream = Stream(making.parts, self.bucket_size, self.rollout_dtype)
        index = 0
        async for name, tensor in _each(weights):
            if index % self._actors == self._rank:
                stream.put(name, tensor)
            index += 1
        stream.flush()
        making.finish(stream.error, None if global_steps is None else
                      {"global_steps": str(global_steps)})

    @torch.no_grad()
    async def receive_weights(self, global_steps=None):
        """(name, tensor) of all; they are the taker's."""
        if self._rank < self._actors:
            raise RuntimeError("the actor has no weights to receive")
        await asyncio.get_running_loop().run_in_executor(
            None, wait_for, self._path, self.timeout_seconds)
        with open_any(self._path, _device()) as version:
            # Takers collect them, in buckets of their own.
            for bucket in version.buckets(self.bucket_size, reuse=False):
                for one in bucket:
                    yield one

    def finalize(self):
        """All have it: older ones go."""
        if self.is_master:
            prune(self.folder, _PREFIX, self.keep)


def _device():
    return torch.accelerator.current_accelerator() \
        if torch.accelerator.is_available() else "cpu"


async def _each(weights):
    if hasattr(weights, "__aiter__"):
        async for one in weights:
            yield one
    else:
        for one in weights:
            yield one
