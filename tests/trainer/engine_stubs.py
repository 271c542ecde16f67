"""The protocols of verl, vLLM and checkpoint-engine for tests where these are
not installed: modules with the names, signatures and order of calls that theirs
have, as far as ckptfs.verl, ckptfs.vllm and ckptfs.checkpoint_engine meet them.
need() takes the real package where it is there.

    verl               0.9.1   verl/checkpoint_engine/base.py
    vllm               0.33.0  vllm/distributed/weight_transfer/{base,factory}.py,
                               vllm/v1/worker/gpu_worker.py (who calls it)
    checkpoint_engine  0.4.2   checkpoint_engine/data_types.py
"""
import abc
import dataclasses
import functools
import importlib
import sys
import types
import typing


def need(name, make):
    """Whether the real one is there; else the stub is, from now on."""
    try:
        importlib.import_module(name)
        return True
    except ImportError:
        for module in [one for one in sys.modules
                       if one.split(".")[0] == name.split(".")[0]]:
            del sys.modules[module]
        make()
        return False


def put(name, **contents):
    """A module, and the packages that it is in."""
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        path = ".".join(parts[:count])
        if path not in sys.modules:
            sys.modules[path] = types.ModuleType(path)
            sys.modules[path].__path__ = []
            if count > 1:
                setattr(sys.modules[".".join(parts[:count - 1])],
                        parts[count - 1], sys.modules[path])
    sys.modules[name].__dict__.update(contents)


# --- verl --------------------------------------------------------------------

def verl():
    class CheckpointEngineRegistry:
        _registry = {}

        def register(backend):  # pylint: disable=no-self-argument
            def wrapper(cls):
                CheckpointEngineRegistry._registry[backend] = cls
                return cls
            return wrapper

        @classmethod
        def get(cls, backend):
            if backend not in cls._registry:
                raise ValueError(f"Checkpoint engine {backend} not registered")
            return cls._registry[backend]

        @classmethod
        def new(cls, backend, *args, **kwargs):
            return cls.get(backend)(*args, **kwargs)

    class CheckpointEngine(abc.ABC):
        wire_format = "named_tensors"

        @abc.abstractmethod
        def prepare(self):
            raise NotImplementedError

        @classmethod
        @abc.abstractmethod
        def build_topology(cls, actor_wg_world_size, rollout_world_size,
                           metadata):
            raise NotImplementedError

        @abc.abstractmethod
        def init_process_group(self, **kwargs):
            raise NotImplementedError

        @abc.abstractmethod
        def finalize(self):
            raise NotImplementedError

        @abc.abstractmethod
        async def send_weights(self, weights, global_steps=None):
            raise NotImplementedError

        @abc.abstractmethod
        async def receive_weights(self, global_steps=None):
            raise NotImplementedError

    put("verl.checkpoint_engine.base", CheckpointEngine=CheckpointEngine,
        CheckpointEngineRegistry=CheckpointEngineRegistry)


# --- vLLM --------------------------------------------------------------------

def vllm():
    # pylint: disable=too-many-locals
    init, update = typing.TypeVar("init"), typing.TypeVar("update")

    @dataclasses.dataclass(frozen=True)
    class Replicate:
        pass

    @dataclasses.dataclass(frozen=True)
    class Shard:
        dim: int

    @dataclasses.dataclass(frozen=True)
    class ParamMeta:
        name: str
        dtype: object
        shape: tuple
        owners: tuple = dataclasses.field(default=None, kw_only=True)
        mesh_shape: tuple = dataclasses.field(default=None, kw_only=True)
        placements: tuple = dataclasses.field(default=None, kw_only=True)

    class WeightSource(abc.ABC):
        @property
        @abc.abstractmethod
        def metadata(self):
            raise NotImplementedError

        def owned_names(self, rank):
            return [m.name for m in self.metadata
                    if m.owners is None or rank in m.owners]

        def implements_iter_full(self):
            return type(self).iter_full is not WeightSource.iter_full

        def implements_iter_local(self):
            return type(self).iter_local is not WeightSource.iter_local

        def iter_full(self):
            raise NotImplementedError

        def iter_local(self):
            raise NotImplementedError

    class ModuleSource(WeightSource):
        def __init__(self, module):
            self._module = module

        @functools.cached_property
        def metadata(self):
            def place(one):
                if isinstance(one, theirs.Shard):
                    return Shard(one.dim)
                return Replicate()
            from torch.distributed import tensor as theirs
            made = []
            for name, p in self._module.named_parameters():
                layout = {}
                if hasattr(p, "device_mesh"):
                    layout = {
                        "owners": tuple(p.device_mesh.mesh.flatten().tolist()),
                        "mesh_shape": tuple(p.device_mesh.mesh.shape)}
                    placements = tuple(map(place, p.placements))
                    if not all(isinstance(o, Replicate) for o in placements):
                        layout["placements"] = placements
                made.append(ParamMeta(name, p.dtype, tuple(p.shape), **layout))
            return made

        def iter_full(self):
            for name, p in self._module.named_parameters():
                yield name, getattr(p, "full_tensor", lambda p=p: p)()

        def iter_local(self):
            for name, p in self._module.named_parameters():
                yield name, getattr(p, "to_local", lambda p=p: p)()

    @dataclasses.dataclass
    class WeightTransferInitInfo(abc.ABC):  # noqa: B024
        pass

    @dataclasses.dataclass
    class WeightTransferUpdateInfo(abc.ABC):  # noqa: B024
        pass

    @dataclasses.dataclass
    class TrainerInitInfo:
        backend: typing.ClassVar[str]
        rank: int = dataclasses.field(kw_only=True)

        def __init_subclass__(cls, **kwargs):
            super().__init_subclass__(**kwargs)
            if not getattr(cls, "backend", None):
                raise TypeError("it must set `backend`")

        @property
        def is_sender(self):
            return self.rank == 0

    class WeightTransferEngine(abc.ABC, typing.Generic[init, update]):
        supports_draft_weight_update = True
        defers_processing = False

        def __init__(self, config, vllm_config, device, model):
            self.config, self.vllm_config = config, vllm_config
            self.parallel_config = vllm_config.parallel_config
            self.model_config = vllm_config.model_config
            self.device, self.model = device, model
            self._default_model_config = self.model_config
            self._default_model = model

        def parse_init_info(self, init_dict):
            try:
                return self.init_info_cls(**init_dict)
            except TypeError as e:
                raise ValueError(f"Invalid init_info: {e}") from e

        def parse_update_info(self, update_dict):
            try:
                return self.update_info_cls(**update_dict)
            except TypeError as e:
                raise ValueError(f"Invalid update_info: {e}") from e

        @abc.abstractmethod
        def init_transfer_engine(self, init_info):
            raise NotImplementedError

        @abc.abstractmethod
        def start_weight_update(self):
            raise NotImplementedError

        @abc.abstractmethod
        def finish_weight_update(self):
            raise NotImplementedError

        def update_weights(self, update_info):
            self.receive_weights(self.parse_update_info(update_info))

        @abc.abstractmethod
        def receive_weights(self, update_info):
            raise NotImplementedError

        @abc.abstractmethod
        def shutdown(self):
            raise NotImplementedError

    class TrainerWeightTransferEngine(abc.ABC, typing.Generic[init]):
        def __init__(self, *, client, source=None, is_sender=True, rank=0):
            self.is_sender, self.rank = is_sender, rank
            self.client, self.source = client, source

        @classmethod
        @abc.abstractmethod
        def trainer_init(cls, init_info, *, client, source=None):
            raise NotImplementedError

        @abc.abstractmethod
        def send_weights(self):
            raise NotImplementedError

    class Factory:
        @classmethod
        def register_engine(cls, name, module_path_or_cls, class_name=None):
            if name in cls._registry:
                raise ValueError(f"{name} is already registered")
            cls._registry[name] = lambda: getattr(
                importlib.import_module(module_path_or_cls), class_name)

    class WeightTransferEngineFactory(Factory):
        _registry = {}

        @classmethod
        def create_engine(cls, config, vllm_config, device, model):
            return cls._registry[config.backend]()(config, vllm_config, device,
                                                   model)

    class WeightTransferTrainerFactory(Factory):
        _registry = {}

        @classmethod
        def trainer_init(cls, init_info, *, client, source=None):
            return cls._registry[init_info.backend]().trainer_init(
                init_info=init_info, client=client, source=source)

    told = []
    put("vllm.distributed.weight_transfer.base", ModuleSource=ModuleSource,
        ParamMeta=ParamMeta, Replicate=Replicate, Shard=Shard,
        TrainerInitInfo=TrainerInitInfo, WeightSource=WeightSource,
        TrainerWeightTransferEngine=TrainerWeightTransferEngine,
        WeightTransferEngine=WeightTransferEngine,
        WeightTransferInitInfo=WeightTransferInitInfo,
        WeightTransferUpdateInfo=WeightTransferUpdateInfo)
    put("vllm.distributed.weight_transfer.factory",
        WeightTransferEngineFactory=WeightTransferEngineFactory,
        WeightTransferTrainerFactory=WeightTransferTrainerFactory)
    put("vllm.model_executor.model_loader.reload", told=told,
        initialize_layerwise_reload=lambda model: told.append("start"),
        finalize_layerwise_reload=lambda model, config: told.append("finish"))


# --- checkpoint-engine -------------------------------------------------------

def checkpoint_engine():
    @dataclasses.dataclass
    class ParameterMeta:
        name: str
        dtype: object
        shape: object
        aligned_size: int

    @dataclasses.dataclass
    class MemoryBuffer:
        buffer: object
        size: int
        metas: list
        manually_pinned: bool = False

    put("checkpoint_engine.data_types", ParameterMeta=ParameterMeta,
        MemoryBuffer=MemoryBuffer)
