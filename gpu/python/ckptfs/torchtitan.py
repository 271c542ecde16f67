"""ckptfs.torchtitan - torchtitan's checkpoints through memory of the mount.

    import ckptfs.torchtitan
    ckptfs.torchtitan.install()

before the first save is all: torchtitan's CheckpointManager, which takes no
storage writer, saves and loads from there on as before, and the bytes take the
short way.

What lies there is what torchtitan would have written, and is read without this
module. What differs, by checkpoint.async_mode:

    disabled                dcp.save() by a Writer
    async                   returns when the devices have copied into the files,
                            not when they have copied to memory on the way there
    async_with_pinned_mem   the same while the next step runs: torchtitan waits
                            for it before the optimizer's. Nothing is pinned but
                            what the files are made of, and no other process
                            is needed to write it: torchtitan's stager is unused

With last_save_in_hf the safetensors files, sharded and consolidated, are an
HFWriter's, and initial_load_in_hf reads by an HFReader. Quantized weights and
what goes to object stores (gs://, s3://) are left to torchtitan, and so is its
manager for torch_checkpointing.

Made for torchtitan 0.2 and 0.3. In one whose CheckpointManager saves in another
way nothing is changed, and a warning says so, once.
"""
import importlib
import warnings

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import (
    HuggingFaceStorageReader, HuggingFaceStorageWriter)
from torch.distributed.checkpoint._consolidate_hf_safetensors import \
    consolidate_safetensors_files_on_every_rank
from torch.distributed.checkpoint.state_dict_saver import \
    AsyncCheckpointerType

from . import _library
from .dcp import HFReader, HFWriter, Reader, Stager, Writer, consolidate

__all__ = ["install", "uninstall"]

# Where CheckpointManager is: of 0.3, and of 0.2.
_MODULES = ("torchtitan.components.checkpointer.dcp",
            "torchtitan.components.checkpoint")


def _is_ours(storage, checkpoint_id):
    """Whether torch would write files there, or read them."""
    return storage is None and checkpoint_id is not None and \
        Writer.validate_checkpoint_id(checkpoint_id)


class _Checkpoints:
    """torch.distributed.checkpoint, as CheckpointManager calls it."""

    def __getattr__(self, name):
        return getattr(dcp, name)

    @staticmethod
    def save(state_dict, *, storage_writer=None, checkpoint_id=None, **options):
        if _is_ours(storage_writer, checkpoint_id):
            storage_writer = Writer(checkpoint_id)
        return dcp.save(state_dict, storage_writer=storage_writer,
                        checkpoint_id=checkpoint_id, **options)

    @staticmethod
    def async_save(state_dict, *, storage_writer=None, checkpoint_id=None,
                   async_stager=None, **options):
        if not _is_ours(storage_writer, checkpoint_id):
            if async_stager is not None:
                options["async_stager"] = async_stager
            return dcp.async_save(state_dict, storage_writer=storage_writer,
                                  checkpoint_id=checkpoint_id, **options)
        options["async_checkpointer_type"] = AsyncCheckpointerType.THREAD
        saved = dcp.async_save(
            state_dict, storage_writer=Writer(checkpoint_id),
            checkpoint_id=checkpoint_id, async_stager=Stager(), **options)
        if async_stager is not None:
            return saved
        # Who gives no stager changes the state when this returns.
        saved.staging_completion.result()
        return saved.upload_completion

    @staticmethod
    def load(state_dict, *, storage_reader=None, checkpoint_id=None, **options):
        if _is_ours(storage_reader, checkpoint_id):
            storage_reader = Reader(checkpoint_id)
        elif type(storage_reader) is HuggingFaceStorageReader:
            storage_reader = HFReader(storage_reader.path)
        dcp.load(state_dict, storage_reader=storage_reader,
                 checkpoint_id=checkpoint_id, **options)


# What CheckpointManager finds by these names, and what it is to find.
_NAMES = {
    "dcp": (dcp, _Checkpoints()),
    "HuggingFaceStorageWriter": (HuggingFaceStorageWriter, HFWriter),
    "consolidate_safetensors_files_on_every_rank": (
        consolidate_safetensors_files_on_every_rank, consolidate),
}
_installed = None  # the module in which they are replaced
_warned = False


def _found():
    """The module, if it saves as we know it."""
    for name in _MODULES:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as e:
            if not name.startswith(e.name):
                raise
            continue
        manager = getattr(module, "CheckpointManager", None)
        if all(getattr(module, one, None) is theirs
               for one, (theirs, _) in _NAMES.items()) and \
                all(hasattr(manager, one) for one in ("dcp_save", "dcp_load")):
            return module
    return None


def install():
    """From here on all checkpoints of torchtitan's CheckpointManager in this
    process are saved and loaded through the mount, where they are in one;
    elsewhere they are ordinary files. Call it on every rank.

    ImportError: there is no torchtitan. OSError: there is no libckpt_gpu.
    """
    global _installed, _warned
    uninstall()
    _library.lib()
    torchtitan = importlib.import_module("torchtitan")
    module = _found()
    if module is None:
        if not _warned:
            _warned = True
            warnings.warn(
                "ckptfs.torchtitan does not know the CheckpointManager of "
                f"torchtitan {getattr(torchtitan, '__version__', '?')}: it "
                "saves and loads as before")
        return
    for name, (_, ours) in _NAMES.items():
        setattr(module, name, ours)
    _installed = module


def uninstall():
    """torchtitan as it was."""
    global _installed
    for name, (theirs, _) in _NAMES.items() if _installed else ():
        setattr(_installed, name, theirs)
    _installed = None
