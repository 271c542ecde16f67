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
With --ckpt-fully-parallel-load each stored piece is read by one rank of all,
the one that has written it if it is there, and passed on to those that want it,
whatever the parallel sizes were: nobody reads what another rank can.

install(replicas=True) gives every tensor-parallel rank a copy of its own of
what all of them have (norms, biases of row-parallel layers, their optimizer
state): rank N's is called KEY.__tp_replica_N, rank 0's KEY, so that a load that
knows nothing of it finds all it needs. A mount keeps equal bytes once. With
--ckpt-fully-parallel-save and -load each rank then reads its own files only,
if it is the rank that it was, but for what all have in common, which Megatron
has in common.pt, or from 0.19 on in rank 0's file. What is not there under such
a name is read under KEY: checkpoints from before, and for more ranks than there
were. A strict load takes the copies for what they are, neither missing nor
unexpected; Megatron alone, without this module, calls them missing.

Plans that are kept would leave out what the state has more of than when they
were made: a strategy's (cached_metadata, --ckpt-assume-constant-structure), and
who writes what, which a FullyParallelSaveStrategyWrapper keeps, or Megatron in
a file (--ckpt-pg-tensors-cache-path). So at each save all ranks look whether
what is kept is of this state, and make it anew where it is not. A plan that
leaves something out all the same fails the save on all ranks, where the bytes
take the short way.

Made for the interfaces of megatron-core 0.16 to 0.19 and for the writers of
nvidia-resiliency-ext 0.4 to 0.6, of which install() takes an installed one as
well. A writer of another kind writes its files itself, and a warning says so,
once. Checkpoints that go to object stores (msc://) are left to Megatron.
"""
import collections
import contextlib
import contextvars
import copy
import functools
import inspect
import os
import queue
import warnings

import torch
import torch.distributed as dist
from megatron.core.dist_checkpointing import exchange_utils, serialization
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import (
    ShardedBase, ShardedObject, ShardedTensor, is_main_replica)
from megatron.core.dist_checkpointing.strategies import (
    filesystem_async, fully_parallel)
from megatron.core.dist_checkpointing.strategies import torch as torch_dist
from megatron.core.dist_checkpointing.utils import _sharded_tensor_shard_id

from . import _library
from ._distcp import lay_out
from .dcp import Reader, _without_rank

__all__ = ["install", "uninstall", "SaveStrategy", "LoadStrategy"]


@contextlib.contextmanager
def _set(variable, value):
    before = variable.set(value)
    try:
        yield
    finally:
        variable.reset(before)


# --- Saving: what FileSystemWriterAsync lets others run ----------------------

# What the save that is begun has of this rank's to write: how many shards, by
# the plan's names.
_writes = contextvars.ContextVar("ckptfs.megatron.writes",
                                 default=collections.Counter())


def _check_plan(writes, planned):
    left_out = writes - collections.Counter(planned)
    if left_out:
        raise RuntimeError(
            f"the plan of this save, which was kept from another state, leaves "
            f"out {left_out.total()} of this rank's entries: "
            f"{', '.join(sorted(left_out)[:3])}, ...")


def _fill(buckets, writes, segment_only):
    """Megatron's preload: what the tensors are copied by; buckets() says what
    they are. Returns [(path, write results)], or what went wrong: Megatron asks
    for that later, and then all ranks learn of it."""
    saves, filled = [], []
    try:
        planned = list(buckets())
        _check_plan(writes, (item.index.fqn for _, _, parts in planned
                             for part in parts for item, _ in part))
        for path, name, (objects, tensors) in planned:
            file = lay_out(name, [*objects, *tensors])
            saves.append(file.begin(path, segment_only=segment_only))
            filled.append((str(path), file.results))
        for save in saves:
            save.copied()
    except Exception as e:  # pylint: disable=broad-except
        return e
    finally:
        for save in saves:
            save._close()  # none of them reads a tensor any more
    return filled


def _given(buckets):
    """Those of a writer that makes them while it prepares."""
    return buckets


class _Held:
    """A tensor on its way through a preload, which copies what is_cuda."""

    is_cuda = False

    def __init__(self, tensor):
        self.tensor = tensor


def _is_resolved(preload):
    """Whether it is as nvidia-resiliency-ext 0.6 has it: a partial of a
    function that makes the buckets of (folder, (key, (hint, tensors that may be
    cached by that key, other tensors, objects, threads, storage plan))). None
    are the tensors that its process has cached."""
    try:
        _, (_, (_, *parts, _, _)) = preload.args[0]
        return len(parts) == 3 and all(
            part is None or len(part[0]) == len(part[1]) for part in parts)
    except (AttributeError, IndexError, TypeError, ValueError):
        return False


def _sort_out(preload):
    """The buckets that such a one makes, of the tensors themselves."""
    (folder, (key, (hint, cached, others, *more))), *options = preload.args
    held = [part and (part[0], [_Held(tensor) for tensor in part[1]])
            for part in (cached, others)]
    return [(path, name, (objects, [
        (item, one.tensor if isinstance(one, _Held) else one)
        for item, one in tensors]))
        for path, name, (objects, tensors) in preload.func(
            (folder, (key, (hint, *held, *more))), *options)]


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


_unknown = set()  # types of writers of which it has been said


def _functions(writer, asked, durable, segment_only):
    """In place of those that the writer would give."""
    save, preload, arguments = asked
    if not save:
        try:
            _check_plan(_writes.get(), ())
        except RuntimeError as e:
            # There is nothing to run: this is where Megatron asks for results.
            writer.results_queue = queue.SimpleQueue()
            writer.results_queue.put(e)
        return asked
    if getattr(writer, "use_msc", False):
        _leave(segment_only, "writes to an object store (msc://)")
        return asked
    if getattr(preload, "func", None) is _fill:
        buckets = preload.args[0]  # install() has been here
    elif getattr(writer, "write_buckets", None) is not None:
        buckets = functools.partial(_given, writer.write_buckets)
    elif _is_resolved(preload):
        buckets = functools.partial(_sort_out, preload)
    else:
        name = f"{type(writer).__module__}.{type(writer).__qualname__}"
        _leave(segment_only, f"does not know {name}")
        if type(writer) not in _unknown:
            _unknown.add(type(writer))
            warnings.warn(f"ckptfs.megatron does not know {name}: it writes "
                          "its files itself")
        return asked
    return (functools.partial(_settle, os.getpid(), durable),
            functools.partial(_fill, buckets, _writes.get(), segment_only),
            arguments)


def _leave(segment_only, why):
    """To Megatron, if that may be."""
    if segment_only:
        raise RuntimeError(f"segment_only=True, and ckptfs.megatron {why}")


# --- Saving: plans that are kept ---------------------------------------------

def _structure(sharded_state_dict):
    """What a plan is made of, of this rank's."""
    names = ("key", "replica_id", "dtype", "local_shape", "global_shape",
             "global_offset", "axis_fragmentations", "flattened_range")
    return [(type(one), *(getattr(one, name, None) for name in names))
            for one in nested_values(sharded_state_dict)
            if isinstance(one, ShardedBase)]


def _on_any(here, group=None):
    """Of all ranks of the group. Collective."""
    flag = torch.tensor([int(here)], device="cuda" if "nccl" in
                        dist.get_backend(group) else "cpu")
    dist.all_reduce(flag, dist.ReduceOp.MAX, group=group)
    return bool(flag.item())


def _plan_anew(strategy, sharded_state_dict):
    """Where the strategy has plans of another state than this one. What was
    read from a checkpoint is no such plan: Megatron compares it itself."""
    if not getattr(strategy, "use_cached_ckpt_structure", False):
        return
    caches = [cache for cache in (
        strategy, getattr(strategy, "_metadata_cache", None)) if cache]
    now = _structure(sharded_state_dict)
    before = strategy.__dict__.get("_ckptfs_structure")
    strategy._ckptfs_structure = now
    # Before the first save that we see: whether it has kept anything.
    if not _on_any(now != before if before is not None else any(
            cache.cached_central_plan is not None for cache in caches)):
        return
    for cache in caches:
        # All of it: of the metadata, which the first rank alone has, all ranks
        # have to know whether it is compared.
        cache.cached_central_plan = cache.cached_local_plan = None
        cache.cached_global_metadata = cache.loaded_all_plans = None
        cache.validated_cache_reuse = False


def _written(strategy, sharded_state_dict):
    """What this rank has to write of it, as _writes has it."""
    if not strategy.keep_only_main_replica:
        return collections.Counter()  # torch chooses one of those that have it
    return collections.Counter(
        one.unique_key if isinstance(one, ShardedObject) else one.key
        for one in nested_values(sharded_state_dict)
        if isinstance(one, (ShardedObject, ShardedTensor))
        and is_main_replica(one.replica_id))


def _begin_save(theirs, strategy, sharded_state_dict, *args, **options):
    """In place of a strategy's async_save, which save() calls as well."""
    _plan_anew(strategy, sharded_state_dict)
    with _set(_writes, _written(strategy, sharded_state_dict)):
        return theirs(strategy, sharded_state_dict, *args, **options)


# The wrapper that distributes, and is ours to look after; None: none does.
_wrapper = contextvars.ContextVar("ckptfs.megatron.wrapper", default=None)


def _distribute(theirs, wrapper, sharded_state_dict):
    """In place of FullyParallelSaveStrategyWrapper's."""
    is_ours = _installed or isinstance(wrapper.base_strategy, SaveStrategy)
    with _set(_wrapper, wrapper if is_ours else None):
        theirs(wrapper, sharded_state_dict)


class _Distribution:
    """Who of a group writes what. given: what Megatron had for that, of
    whatever state. used: that, or what was made in its place."""

    def __init__(self, given, used, group):
        self.given, self.used = given, used
        self._size, rank = dist.get_world_size(group), dist.get_rank(group)
        self._own = {shard for shard in used.shards_in_this_group
                     if used.main_rank_for_shard[shard] == rank}

    def fits(self, sharded_state_dict):
        """Whether a rank of this group writes each tensor of this rank's that
        somebody has to write, and this rank has what it is to write. Where
        that is so on all ranks of the group, nothing is left out."""
        mine = [(_sharded_tensor_shard_id(one), one.replica_id)
                for one in nested_values(sharded_state_dict)
                if isinstance(one, ShardedTensor)]
        known = self.used.shards_in_this_group
        return self._own.issubset(shard for shard, _ in mine) and all(
            shard in known and
            self.used.main_rank_for_shard[shard] < self._size
            for shard, replica in mine if is_main_replica(replica))


def _assign(theirs, sharded_state_dict, group, distribution):
    """In place of what gives each tensor to one rank, by the distribution:
    whoever has kept that, in the process or in a file."""
    wrapper = _wrapper.get()
    if wrapper is not None and distribution is not None:
        kept = wrapper.__dict__.get("_ckptfs_distribution")
        if kept is None or kept.given is not distribution:
            kept = _Distribution(distribution, distribution, group)
        if _on_any(not kept.fits(sharded_state_dict), group):
            used = exchange_utils.determine_main_replica_uniform_distribution(
                sharded_state_dict, group)
            kept = _Distribution(distribution, used, group)
        if wrapper.do_cache_distribution or kept.used is not distribution:
            wrapper._ckptfs_distribution = kept
        distribution = kept.used
    return theirs(sharded_state_dict, group, distribution)


class SaveStrategy(torch_dist.TorchDistSaveShardedStrategy):
    """For dist_checkpointing.save(..., sharded_strategy=SaveStrategy()), alone
    or in a FullyParallelSaveStrategyWrapper.

    durable: a save that is not asynchronous returns when the files would
        survive a power cut, as Megatron's does. By default it returns when
        they are there: the mount makes them durable in their order, and
        what is written later, as the tracker file is, after them.
    segment_only: the save fails, with ENOTTY outside of a mount and with ENOSPC
        or EOPNOTSUPP where that has no memory for the files. By default they are
        written without a segment there, and a PlainSaveWarning says so, once for
        a folder. .metadata, and common.pt where there is one, are Megatron's to
        write.
    options: TorchDistSaveShardedStrategy's.
    """

    def __init__(self, backend="torch_dist", version=1, *, durable=False,
                 segment_only=False, **options):
        super().__init__(backend, version, **options)
        _library.lib()  # whether it is there is better known now
        _patch_wrapper()
        self._ours = durable, segment_only

    def async_save(self, *args, **options):
        theirs = torch_dist.TorchDistSaveShardedStrategy.async_save
        if _installed:  # it begins as all do
            return theirs(self, *args, **options)
        return _begin_save(theirs, self, *args, **options)

    def _get_save_and_finalize_callbacks(self, writer, *others):
        theirs = writer.get_save_function_and_args
        writer.get_save_function_and_args = lambda: _functions(
            writer, theirs(), *self._ours)
        return super()._get_save_and_finalize_callbacks(writer, *others)


# --- Loading -----------------------------------------------------------------

_COMPARES = "validate_integrity_and_strict_load"
# Whether this load is to be by a Reader; install() says so of all. And whether
# what it reads is passed on.
_ours = contextvars.ContextVar("ckptfs.megatron", default=False)
_share = contextvars.ContextVar("ckptfs.megatron.share", default=False)
# And whether Megatron's planner lends rooms for what it loads.
_lends = contextvars.ContextVar("ckptfs.megatron.lends", default=False)


class LoadStrategy(torch_dist.TorchDistLoadShardedStrategy):
    """For dist_checkpointing.load(..., sharded_strategy=LoadStrategy()), alone
    or in a FullyParallelLoadStrategyWrapper.

    share: each stored piece is read by one rank, the one that has written it if
        it is there, and passed on to those that want it: what the wrapper is
        for, and what it does by itself after install().
    """

    def __init__(self, *, share=False):
        super().__init__()
        self._shares = share

    def load_sharded_metadata(self, *args, **options):
        """A strict load asks for it before it compares."""
        _patch(serialization, _COMPARES, _overlook_copies)
        return super().load_sharded_metadata(*args, **options)

    def load(self, *args, **options):
        _patch_loads()
        theirs = torch_dist.TorchDistLoadShardedStrategy.load
        with _set(_ours, True), _set(_share, self._shares or _share.get()):
            if _installed:  # it begins as all do
                return theirs(self, *args, **options)
            return _begin_load(theirs, self, *args, **options)


def _begin_load(theirs, strategy, sharded_state_dict, *args, **options):
    """In place of a strategy's load. Where there is Transformer Engine the
    planner lends a room for a quantized tensor, which is of a type of its own,
    and has it back before it lends the next one."""
    lends = torch_dist.HAVE_TE and any(
        type(getattr(one, "data", None)) not in (
            torch.Tensor, torch.nn.Parameter, type(None))
        for one in nested_values(sharded_state_dict)
        if isinstance(one, ShardedTensor))
    with _set(_lends, lends):
        return theirs(strategy, sharded_state_dict, *args, **options)


def _load_shared(theirs, wrapper, *args, **options):
    """In place of FullyParallelLoadStrategyWrapper's load, which gives every
    tensor that a rank wants to one rank, and that reads all that it is stored
    in: of what two ranks had saved in halves each reads half from the other's
    file. A Reader plans by what is stored."""
    base = wrapper.base_strategy
    if not isinstance(base, torch_dist.TorchDistLoadShardedStrategy) or \
            torch_dist.MultiStorageClientFeature.is_enabled():
        return theirs(wrapper, *args, **options)
    with _set(_share, True):
        loaded = base.load(*args, **options)
    wrapper.cached_global_metadata = getattr(
        base, "cached_global_metadata", None)
    return loaded


class _Together:
    """torch.distributed.checkpoint as Megatron's strategy is to see it. From
    0.18 on each rank plans its load alone (no_dist): who passes on what is for
    all ranks to plan, and one that fails has to tell those that wait for it."""

    def __init__(self, theirs):
        self._theirs = theirs

    def __getattr__(self, name):
        return getattr(self._theirs, name)

    def load(self, *args, no_dist=False, **options):
        return self._theirs.load(
            *args, no_dist=no_dist and not _share.get(), **options)


def _patch_loads():
    _patch(torch_dist, "_get_filesystem_reader", _reader)
    _replace(torch_dist, "checkpoint", _Together)


def _reader(theirs, checkpoint_dir, *args, **options):
    if not (_ours.get() or _installed) or \
            torch_dist.MultiStorageClientFeature.is_enabled():
        return theirs(checkpoint_dir, *args, **options)
    reader = Reader(checkpoint_dir, share=_share.get())
    reader._lends = _lends.get()
    return reader


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


def _go_on(theirs, *args, **options):
    return theirs(*args, **options)


def _with_copies(ours, theirs, strategy, sharded_state_dict, *args, **options):
    _own_copies(sharded_state_dict)
    return ours(theirs, strategy, sharded_state_dict, *args, **options)


def _overlook_copies(theirs, sharded_state_dict, *args, **options):
    """Before a strict load compares keys. The state has its own names until it
    is read, so nobody asks for the copies of the checkpoint, which are not
    missing for that; nor is one unexpected that is read under KEY."""
    call = inspect.signature(theirs).bind(sharded_state_dict, *args, **options)
    stored = call.arguments.get("ckpt_sharded_metadata")
    if stored is not None:
        asked = {one.key for ones in (nested_values(sharded_state_dict),
                                      *(call.arguments.get("global_metadata")
                                        or ())) for one in ones}
        call.arguments["ckpt_sharded_metadata"] = _as_asked(stored, asked)
    return theirs(*call.args, **call.kwargs)


def _as_asked(stored, asked):
    """What the checkpoint has, by keys that the state has."""
    by_key = {one.key: one for one in stored.values()}
    seen = {name: one for name, one in stored.items()
            if one.key in asked or _without_rank(one.key) == one.key
            or _without_rank(one.key) not in by_key}
    for key in asked - by_key.keys() if _installed else ():
        if _without_rank(key) in by_key:
            seen[key] = copy.copy(by_key[_without_rank(key)])
            seen[key].key = key
    return seen


# --- For everybody -----------------------------------------------------------

_installed = False
_patched = {}  # (object, name) -> what was there, and is there again
_lasting = {}  # likewise, beneath those, as long as the process


def _replace(where, name, make, patched=None):
    """By what make() makes of what was there, once."""
    patched = _patched if patched is None else patched
    if (where, name) not in patched:
        patched[where, name] = getattr(where, name)
        setattr(where, name, make(patched[where, name]))


def _patch(where, name, ours, patched=None):
    """ours gets what was there as its first argument."""
    def make(theirs):
        @functools.wraps(theirs)
        def call(*args, **options):
            return ours(theirs, *args, **options)
        return call
    _replace(where, name, make, patched)


def _patch_wrapper():
    """It distributes before it calls a strategy of ours, which outlives
    uninstall(). For other strategies it is as it was."""
    _patch(fully_parallel.FullyParallelSaveStrategyWrapper,
           "apply_saving_parallelization", _distribute, _lasting)
    _patch(fully_parallel,
           "distribute_main_replicas_with_precomputed_distribution", _assign,
           _lasting)


def _writers():
    yield filesystem_async.FileSystemWriterAsync
    try:
        from nvidia_resiliency_ext.checkpointing.async_ckpt import \
            filesystem_async as nvrx
    except ImportError:
        return
    yield nvrx.FileSystemWriterAsync


def _forget_cached():
    """Who preloads may have cached tensors for a writer, held as ours are or
    as theirs are: they are sent again."""
    for writer in _writers():
        forget = getattr(writer, "cleanup_tensor_caches", None)
        if forget:
            forget()


def install(*, replicas=False, durable=False, segment_only=False):
    """From here on all torch_dist checkpoints of this process are saved and
    loaded through the mount, where they are in one; elsewhere they are
    ordinary files. Call it on every rank, with the same arguments.

    replicas: each tensor-parallel rank has its own copy; see above.
    durable, segment_only: as in SaveStrategy.

    OSError: there is no libckpt_gpu.
    """
    global _installed
    uninstall()
    _library.lib()
    _patch_wrapper()
    for writer in _writers():
        _patch(writer, "get_save_function_and_args",
               lambda theirs, self: _functions(self, theirs(self), durable,
                                               segment_only))
    _patch_loads()
    _patch(serialization, _COMPARES, _overlook_copies)
    _patch(fully_parallel.FullyParallelLoadStrategyWrapper, "load",
           _load_shared)
    # The wrappers decide who reads and who writes what, so they are to see the
    # copies' names; without them the strategies are.
    for where, name, ours in (
            (fully_parallel.FullyParallelSaveStrategyWrapper,
             "apply_saving_parallelization", _go_on),
            (fully_parallel.FullyParallelLoadStrategyWrapper,
             "apply_loading_parallelization", _go_on),
            (torch_dist.TorchDistSaveShardedStrategy, "async_save",
             _begin_save),
            (torch_dist.TorchDistLoadShardedStrategy, "load", _begin_load)):
        _patch(where, name, functools.partial(_with_copies, ours)
               if replicas else ours)
    _installed = True


def uninstall():
    """Megatron as it was, but for wrappers of a SaveStrategy."""
    global _installed
    for (where, name), theirs in _patched.items():
        setattr(where, name, theirs)
    _patched.clear()
    _forget_cached()
    _installed = False
