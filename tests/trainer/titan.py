"""titan - torchtitan's CheckpointManager, or a stand-in where there is none:
what it makes of a state, and which calls of torch's it makes with that, by which
names. stand_in() puts it where torchtitan has it.

Imports torch: for the processes of the trainer only.
"""
import enum
import sys
import types

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageWriter
from torch.distributed.checkpoint._consolidate_hf_safetensors import \
    consolidate_safetensors_files_on_every_rank
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

PLACE = "torchtitan.components.checkpointer.dcp"


class AsyncMode(str, enum.Enum):
    DISABLED = "disabled"
    ASYNC = "async"
    ASYNC_WITH_PINNED_MEM = "async_with_pinned_mem"


class DefaultStager:
    """torch's wants an accelerator for what is asked of it here."""

    def __init__(self, *options):
        pass

    def close(self):
        pass


class Config:
    def __init__(self, **options):
        self.__dict__.update(options)


class CheckpointManager:
    Config = Config

    def __init__(self, config, *, model_parts, states, sd_adapter, base_folder,
                 **others):
        self.folder = f"{base_folder}/{config.folder}"
        self.config, self.model, self.states = config, model_parts[0], states
        self.others = {"optimizer": others["optimizers"],
                       "dataloader": others["dataloader"],
                       "lr_scheduler": others["lr_schedulers"]}
        self.sd_adapter = sd_adapter
        self.mode = AsyncMode(config.async_mode)
        self.pg = None if self.mode == AsyncMode.DISABLED else \
            dist.new_group(backend="gloo")
        self.stager = self.staged = self.saved = None

    def dcp_save(self, state, checkpoint_id, async_mode, to_hf=False):
        module = sys.modules[PLACE]  # its names, as they are now
        writer = mapping = None
        if to_hf:
            state = self.sd_adapter.to_hf(state)
            mapping = self.sd_adapter.fqn_to_index_mapping
            writer = module.HuggingFaceStorageWriter(
                path=f"{checkpoint_id}/sharded" if mapping else checkpoint_id,
                save_distributed=True, fqn_to_index_mapping=mapping,
                enable_consolidation=not mapping)
        given = {"storage_writer": writer,
                 "checkpoint_id": None if to_hf else checkpoint_id}
        if async_mode == AsyncMode.DISABLED:
            saved = module.dcp.save(state, **given)
        elif async_mode == AsyncMode.ASYNC:
            saved = module.dcp.async_save(state, process_group=self.pg, **given)
        else:
            saved = module.dcp.async_save(
                state, process_group=self.pg, async_stager=self.stager,
                async_checkpointer_type=AsyncCheckpointerType.PROCESS, **given)
        if mapping:
            module.consolidate_safetensors_files_on_every_rank(
                input_dir=f"{checkpoint_id}/sharded", output_dir=checkpoint_id,
                fqn_to_index_mapping=mapping, num_threads=5)
        return saved

    def dcp_load(self, state, checkpoint_id, from_hf):
        module = sys.modules[PLACE]
        if from_hf:
            stored = self.sd_adapter.to_hf(state)
            module.dcp.load(stored, storage_reader=self.sd_adapter
                            .get_hf_storage_reader(checkpoint_id, False))
            state = self.sd_adapter.from_hf(stored)
        else:
            module.dcp.load(state, checkpoint_id=checkpoint_id)
        self.model.load_state_dict(state, strict=False)

    def _state(self):
        return {**self.model.state_dict(), **self.others, **self.states}

    @torch.no_grad()
    def save(self, step, last_step=False):
        self.maybe_wait_for_saving()
        path = f"{self.folder}/step-{step}"
        if last_step:
            self.dcp_save(self.model.state_dict(), path, AsyncMode.DISABLED,
                          self.config.last_save_in_hf)
            return
        if self.mode == AsyncMode.ASYNC_WITH_PINNED_MEM:
            self.stager = self.stager or sys.modules[PLACE].DefaultStager()
        saved = self.dcp_save(self._state(), path, self.mode)
        if self.mode == AsyncMode.ASYNC_WITH_PINNED_MEM:
            self.staged, self.saved = \
                saved.staging_completion, saved.upload_completion
        else:
            self.saved = saved if self.mode == AsyncMode.ASYNC else None

    @torch.no_grad()
    def load(self, step=-1):
        if step == -1:
            self.dcp_load(self.model.state_dict(),
                          self.config.initial_load_path, True)
        else:
            self.dcp_load(self._state(), f"{self.folder}/step-{step}", False)

    def maybe_wait_for_staging(self):
        if self.staged:
            self.staged.result()

    def maybe_wait_for_saving(self):
        if self.saved:
            self.saved.result()

    def close(self):
        pass


def stand_in():
    name = ""
    for part in PLACE.split("."):
        name += part if not name else f".{part}"
        module = sys.modules[name] = types.ModuleType(name)
        module.__path__ = []
    module.__dict__.update(
        dcp=dcp, HuggingFaceStorageWriter=HuggingFaceStorageWriter,
        consolidate_safetensors_files_on_every_rank=
        consolidate_safetensors_files_on_every_rank,
        CheckpointManager=CheckpointManager, DefaultStager=DefaultStager)
    sys.modules["torchtitan"].__version__ = "0.3.0"


def manager_module():
    """torchtitan's, if it is there."""
    try:
        import torchtitan.components.checkpointer.dcp as module
        module.DefaultStager = DefaultStager
    except ModuleNotFoundError as e:
        if e.name != "torchtitan":
            raise
        stand_in()
        module = sys.modules[PLACE]
    print(f"# {module.CheckpointManager.__module__}", flush=True)
    return module
