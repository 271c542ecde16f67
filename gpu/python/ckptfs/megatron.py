"""ckptfs.megatron - Megatron's torch_dist checkpoints through memory of the
mount.

    import ckptfs.megatron
    ckptfs.megatron.install()

before the first save is all: whoever uses megatron.core.dist_checkpointing
from there on, megatron.training and its arguments (--async-save,
--ckpt-fully-parallel-save, --use-persistent-ckpt-worker, ...) among them, saves
and loads as before, and the bytes take the short way. Or for one save or load:

    dist_checkpointing.save(state, path, SaveStrategy())
    state = dist_checkpointing.load(state, path, LoadStrategy())

What lies there is what Megatron would have written, and is read without this
module. What differs: Megatron's FileSystemWriterAsync copies the tensors to
the host, and processes or threads pickle that into files. Here what it calls
its preload lays the files out in segments and copies into them, once, in
whichever process Megatron preloads; what it does in the background afterwards
is waiting until they are durable. Loading reads into the tensors' own memory.

install(replicas=True) gives every tensor-parallel rank a copy of its own of
what all of them have (norms, biases of row-parallel layers, their optimizer
state): rank N's is called KEY.__tp_replica_N, rank 0's KEY, so that a load that
knows nothing of it finds all it needs. A mount keeps equal bytes once. With
--ckpt-fully-parallel-save and -load each rank then reads its own files only,
if it is the rank that it was. What is not there under such a name is read under
KEY: checkpoints from before, and for more ranks than there were.

Made for the interfaces of megatron-core 0.16 to 0.19 and for the writer of
nvidia-resiliency-ext 0.4, which are the same; of an installed
nvidia-resiliency-ext install() takes the writer as well. Checkpoints that go
to object stores (msc://) are left to Megatron.
"""
import contextvars
import functools
import os

from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedBase
from megatron.core.dist_checkpointing.strategies import (
    filesystem_async, fully_parallel)
from megatron.core.dist_checkpointing.strategies import torch as torch_dist

from . import _library
from ._distcp import lay_out
from .dcp import Reader

__all__ = ["install", "uninstall", "SaveStrategy", "LoadStrategy"]


# --- Saving: what FileSystemWriterAsync lets others run ----------------------

def _fill(buckets):
    """Megatron's preload: what the tensors are copied by. Returns
    [(path, write results)], or what went wrong: Megatron asks for that
    later, and then all ranks learn of it."""
    saves, filled = [], []
    try:
        for path, name, (objects, tensors) in buckets:
            file = lay_out(name, [*objects, *tensors])
            saves.append(file.begin(path))
            filled.append((str(path), file.results))
        for save in saves:
            save.copied()
    except Exception as e:  # pylint: disable=broad-except
        return e
    finally:
        for save in saves:
            save._close()  # none of them reads a tensor any more
    return filled


def _settle(trainer, durable, _rank, filled, results):
    """What Megatron runs after that, here or in a process of its own."""
    try:
        if isinstance(filled, Exception):
            raise filled
        if durable or os.getpid() != trainer:
            for path, _ in filled:
                _sync(path)
        answer = dict(enumerate(written for _, written in filled))
    except Exception as e:  # pylint: disable=broad-except
        answer = e
    results.put(answer)


def _sync(path):
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _functions(writer, asked, durable):
    """In place of those that the writer would give."""
    if not asked[0] or getattr(writer, "use_msc", False):
        return asked
    return (functools.partial(_settle, os.getpid(), durable),
            functools.partial(_fill, writer.write_buckets), asked[2])


class SaveStrategy(torch_dist.TorchDistSaveShardedStrategy):
    """For dist_checkpointing.save(..., sharded_strategy=SaveStrategy()), alone
    or in a FullyParallelSaveStrategyWrapper.

    durable: a save that is not asynchronous returns when the files would
        survive a power cut, as Megatron's does. By default it returns when
        they are there: the mount makes them durable in their order, and
        what is written later, as the tracker file is, after them.
    options: TorchDistSaveShardedStrategy's.
    """

    def __init__(self, backend="torch_dist", version=1, *, durable=False,
                 **options):
        super().__init__(backend, version, **options)
        _library.lib()  # whether it is there is better known now
        self._durable = durable

    def _get_save_and_finalize_callbacks(self, writer, *others):
        theirs = writer.get_save_function_and_args
        writer.get_save_function_and_args = lambda: _functions(
            writer, theirs(), self._durable)
        return super()._get_save_and_finalize_callbacks(writer, *others)


# --- Loading -----------------------------------------------------------------

# Whether this load is to be by a Reader; install() says so of all.
_ours = contextvars.ContextVar("ckptfs.megatron", default=False)


class LoadStrategy(torch_dist.TorchDistLoadShardedStrategy):
    """For dist_checkpointing.load(..., sharded_strategy=LoadStrategy()), alone
    or in a FullyParallelLoadStrategyWrapper."""

    def load(self, *args, **options):
        _patch(torch_dist, "_get_filesystem_reader", _reader)
        before = _ours.set(True)
        try:
            return super().load(*args, **options)
        finally:
            _ours.reset(before)


def _reader(theirs, checkpoint_dir, *args, **options):
    if not (_ours.get() or _installed) or \
            torch_dist.MultiStorageClientFeature.is_enabled():
        return theirs(checkpoint_dir, *args, **options)
    # A planner that knows one quantized tensor at a time gets them in turn.
    one = torch_dist.HAVE_TE and hasattr(torch_dist.MCoreLoadPlanner(),
                                         "_intermediate_read_item_and_target")
    return Reader(checkpoint_dir, 1 if one else 4)


# --- Copies of each rank -----------------------------------------------------

def _own_copies(sharded_state_dict):
    """Name what this tensor-parallel rank has a copy of. What Megatron gives
    to the ranks it gives by replica_id: which copy it is in the pipeline, of
    the tensor-parallel ranks, and of the data-parallel ones."""
    for sharded in nested_values(sharded_state_dict):
        replica = getattr(sharded, "replica_id", None)
        if isinstance(sharded, ShardedBase) and isinstance(replica, tuple) \
                and len(replica) == 3 and replica[1] > 0:
            sharded.key += f".__tp_replica_{replica[1]}"
            sharded.replica_id = (replica[0], 0, replica[2])


def _named_first(theirs, strategy, sharded_state_dict, *args, **options):
    _own_copies(sharded_state_dict)
    return theirs(strategy, sharded_state_dict, *args, **options)


# --- For everybody -----------------------------------------------------------

_installed = False
_patched = {}  # (object, name) -> what was there


def _patch(where, name, ours):
    """ours gets what was there as its first argument."""
    if (where, name) in _patched:
        return
    theirs = _patched[where, name] = getattr(where, name)

    @functools.wraps(theirs)
    def call(*args, **options):
        return ours(theirs, *args, **options)
    setattr(where, name, call)


def _writers():
    yield filesystem_async.FileSystemWriterAsync
    try:
        from nvidia_resiliency_ext.checkpointing.async_ckpt import \
            filesystem_async as nvrx
    except ImportError:
        return
    yield nvrx.FileSystemWriterAsync


def install(*, replicas=False, durable=False):
    """From here on all torch_dist checkpoints of this process are saved and
    loaded through the mount, where they are in one; elsewhere they are
    ordinary files. Call it on every rank, with the same arguments.

    replicas: each tensor-parallel rank has its own copy; see above.
    durable: as in SaveStrategy.

    OSError: there is no libckpt_gpu.
    """
    global _installed
    uninstall()
    _library.lib()
    for writer in _writers():
        _patch(writer, "get_save_function_and_args",
               lambda theirs, self: _functions(self, theirs(self), durable))
    _patch(torch_dist, "_get_filesystem_reader", _reader)
    if replicas:
        # The wrappers decide who reads and who writes what, so they are to
        # see the names; without them the strategies are.
        for where, name in (
                (fully_parallel.FullyParallelSaveStrategyWrapper,
                 "apply_saving_parallelization"),
                (fully_parallel.FullyParallelLoadStrategyWrapper,
                 "apply_loading_parallelization"),
                (torch_dist.TorchDistSaveShardedStrategy, "async_save"),
                (torch_dist.TorchDistLoadShardedStrategy, "load")):
            _patch(where, name, _named_first)
    _installed = True


def uninstall():
    """Megatron as it was."""
    global _installed
    for (where, name), theirs in _patched.items():
        setattr(where, name, theirs)
    _patched.clear()
    _installed = False
