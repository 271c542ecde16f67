"""ckptfs.vllm - weights come to vLLM's workers as versions: a backend, "ckptfs",
of its weight transfer (vllm.distributed.weight_transfer).

    vllm serve MODEL --weight-transfer-config '{"backend": "ckptfs"}'

    import ckptfs.vllm                                      # the trainer
    trainer = WeightTransferTrainerFactory.trainer_init(
        ckptfs.vllm.TrainerInit(rank=rank, folder="/ckpt/weights"),
        client=HTTPVLLMWeightSyncClient(url), source=ModuleSource(model))
    trainer.send_weights()                                  # after each step

Where the package is installed by its wheel vLLM loads it as a plugin (the entry
point `ckptfs` of vllm.general_plugins), in each of its processes; elsewhere
they import this module, which registers both sides.

Each rank of the trainer publishes its own shards (iter_local() of the source,
nothing is gathered), or its part of the whole tensors, where a source has these
alone. Workers read the whole tensors, as their load_weights() wants them. All
have to see one folder, which is for one trainer: it keeps the newest of its
versions (vllm-...).

Made for the protocol of vLLM 0.33.
"""
import contextlib
import math
import os
from dataclasses import dataclass
from typing import ClassVar

from vllm.distributed.weight_transfer.base import (
    Shard, TrainerInitInfo, TrainerWeightTransferEngine, WeightTransferEngine,
    WeightTransferInitInfo, WeightTransferUpdateInfo)
from vllm.distributed.weight_transfer.factory import (
    WeightTransferEngineFactory, WeightTransferTrainerFactory)

from ._folder import open_any
from ._publishing import Stream, attempt, begin, new_name, prune
from ._together import Making, Ranks, publish_described

_OPTIONS = (True, False, False)  # plain: the folder need not be in a mount
_PREFIX = "vllm"


@dataclass
class InitInfo(WeightTransferInitInfo):
    folder: str
    bucket_bytes: int = 512 << 20


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    name: str  # of the version in the folder


class Engine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """A worker's side."""

    init_info_cls, update_info_cls = InitInfo, UpdateInfo
    _init = None

    def init_transfer_engine(self, init_info):
        if not os.path.isdir(init_info.folder):
            raise FileNotFoundError(
                f"{init_info.folder} is no folder here: the trainer and all "
                "workers have to share it")
        self._init = init_info

    def start_weight_update(self):
        from vllm.model_executor.model_loader.reload import (
            initialize_layerwise_reload)
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info):
        if self._init is None:
            raise RuntimeError("init_transfer_engine() comes first")
        path = os.path.join(self._init.folder, update_info.name)
        with open_any(path, self.device) as version, _parts_of_a_model():
            # A layer is loaded when it is whole: until then it keeps them.
            for bucket in version.buckets(self._init.bucket_bytes,
                                          reuse=False):
                self.model.load_weights(bucket)

    def finish_weight_update(self):
        from vllm.model_executor.model_loader.reload import (
            finalize_layerwise_reload)
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self):
        self._init = None


def _parts_of_a_model():
    """Each call of load_weights() has some of it."""
    try:
        from vllm.model_executor.model_loader.mtp_validation import (
            disable_mtp_completeness_check)
    except ImportError:
        return contextlib.nullcontext()
    return disable_mtp_completeness_check()


@dataclass
class TrainerInit(TrainerInitInfo):
    """folder: of the versions. keep: so many stay. bucket_bytes: what a worker
    reads at a time, and a rank gathers for one file."""

    backend: ClassVar[str] = "ckptfs"
    folder: str
    keep: int = 1
    bucket_bytes: int = 512 << 20


class TrainerEngine(TrainerWeightTransferEngine[TrainerInit]):
    init_info_cls = TrainerInit

    def __init__(self, init, *, client, source):
        super().__init__(client=client, source=source,
                         is_sender=init.is_sender, rank=init.rank)
        self._init = init

    @classmethod
    def trainer_init(cls, init_info, *, client, source=None):
        if source is None:
            raise ValueError("the backend ckptfs needs a WeightSource")
        if not (source.implements_iter_local() or source.implements_iter_full()):
            raise TypeError(f"{type(source).__name__} has neither iter_local() "
                            "nor iter_full()")
        if init_info.keep < 1:
            raise ValueError(f"keep={init_info.keep!r}: give a number of "
                             "versions")
        os.makedirs(init_info.folder, exist_ok=True)
        engine = cls(init_info, client=client, source=source)
        if engine.is_sender:
            client.init_weight_transfer_engine(
                {"folder": init_info.folder,
                 "bucket_bytes": init_info.bucket_bytes})
        return engine

    def send_weights(self):
        """Publish a version, and have the workers load it."""
        ranks, init = Ranks(), self._init
        if ranks.rank != self.rank:
            raise RuntimeError(f"rank {self.rank} was said to be this one, and "
                               f"torch.distributed says {ranks.rank}")
        name = ranks.agree(None, new_name(_PREFIX))[0]
        path = os.path.join(init.folder, name)
        if self.source.implements_iter_local():
            publish_described(ranks, path, self._describe, None, _OPTIONS)
        else:
            self._stream(ranks, path)
        if self.is_sender:
            self.client.start_weight_update()
            self.client.update_weights({"name": name})
            self.client.finish_weight_update()
            prune(init.folder, _PREFIX, init.keep)

    def _describe(self):
        """As _together.describe(), of what the source yields."""
        metas = {meta.name: meta for meta in self.source.metadata}
        said, own = {}, {}
        for name, part in self.source.iter_local():
            meta, part = metas[name], part.detach()
            at, lengths = place_of(meta, self.rank)
            if tuple(part.shape) != lengths:
                raise ValueError(f"Key `{name}`: the source yields "
                                 f"{list(part.shape)}, and its metadata says "
                                 f"{list(lengths)} for rank {self.rank}")
            if 0 in lengths and 0 not in meta.shape:
                at = None
            said[name] = (str(part.dtype), meta.shape, at, lengths,
                          part.dtype.itemsize)
            own[name] = part
        return said, own

    def _stream(self, ranks, path):
        """Whole tensors, as they come: of those who own one, one writes it."""
        token, error = None, None
        if ranks.rank == 0:
            try:
                token = begin(path)
            except OSError as e:
                error = e
        making = Making(ranks, path, ranks.agree(error, token)[0], _OPTIONS)
        stream = Stream(making.parts, self._init.bucket_bytes)
        stream.error = attempt(making.check)
        turn = {meta.name: (meta.owners or range(ranks.count), index)
                for index, meta in enumerate(self.source.metadata)}
        for name, tensor in self.source.iter_full():
            owners, index = turn[name]
            if owners[index % len(owners)] == self.rank:
                stream.put(name, tensor)
        stream.flush()
        making.finish(stream.error, None)


def place_of(meta, rank):
    """(where it begins, its lengths) of the part that a rank has by the
    metadata: each Shard splits as torch.chunk() does what those before left."""
    at, lengths = [0] * len(meta.shape), list(meta.shape)
    if meta.placements is None:
        return tuple(at), tuple(lengths)
    number = meta.owners.index(rank)
    for axis, placement in enumerate(meta.placements):
        below = math.prod(meta.mesh_shape[axis + 1:])
        where = number // below % meta.mesh_shape[axis]
        if isinstance(placement, Shard):
            dim, parts = placement.dim, meta.mesh_shape[axis]
            size = -(-lengths[dim] // parts)
            begins = min(where * size, lengths[dim])
            at[dim] += begins
            lengths[dim] = min(size, lengths[dim] - begins)
    return tuple(at), tuple(lengths)


def register():
    """Both sides, once: vLLM loads its plugins in every process, or more."""
    for factory, what in ((WeightTransferEngineFactory, "Engine"),
                          (WeightTransferTrainerFactory, "TrainerEngine")):
        try:
            factory.register_engine("ckptfs", __name__, what)
        except ValueError:
            pass  # it is


register()
