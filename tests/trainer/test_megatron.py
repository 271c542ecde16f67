"""Megatron's dist_checkpointing through ckptfs.megatron: a small GPT with two
tensor-parallel times two data-parallel ranks, with the oldest and the newest
megatron-core (megatrons.py). What it saves is what Megatron itself would have,
for its own readers; asynchronous saves hold what was there when they began;
another number of tensor-parallel ranks reads it; with a copy of each rank's own,
nobody opens another's file; and where one rank fails to load, all do.

What Megatron needs of a GPU is stood in for here (no_cuda), and nowhere else;
the protocol of nvidia-resiliency-ext 0.6, which no package index has, in
writers.py.
"""
import collections
import contextlib
import ctypes
import itertools
import os
import pickle
import pickletools
import shutil
import signal
import sys
import time
import traceback
import zlib

import kept_plans
import reruns
import megatrons
import trainer
from trainer import ck

HERE = os.path.dirname(os.path.abspath(__file__))
os.environ.setdefault("CKPTFS_GPU_LIBRARY",
                      os.path.join(ck.BUILD, "gpu/libckpt_gpu.so.0"))
sys.path.insert(0, os.path.join(HERE, "../../gpu/python"))

RANKS, TP = 4, 2


def no_cuda():
    """Megatron asks for "the current device" where it means any. The mode
    stays for as long as the process, as its caller keeps what it returns."""
    import torch
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.set_device = lambda device: None
    torch.cuda.device_count = lambda: 1
    torch.cuda.synchronize = lambda *device: None
    torch.Tensor.cuda = lambda self, *args, **options: self
    # Megatron hands on all that TensorProperties have, of torch 2.15 as well.
    empty = torch.empty
    torch.empty = lambda *args, strides=None, **options: empty(*args, **options)

    class OnTheHost(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            kwargs = dict(kwargs or {})
            if str(kwargs.get("device", "")).startswith("cuda"):
                kwargs["device"] = "cpu"
            return func(*args, **kwargs)
    mode = OnTheHost()
    mode.__enter__()
    return mode


if __name__ == "__mp_main__":  # Megatron's worker, spawned
    megatrons.use()
    MODE = no_cuda()


# --- what is saved ---

def parallel(tensor):
    from megatron.core import parallel_state
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=tensor)


def model(tensor):
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import \
        get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig
    config = TransformerConfig(
        num_layers=2, hidden_size=SIZE, num_attention_heads=4,
        use_cpu_initialization=True, tensor_model_parallel_size=tensor)
    return GPTModel(config, get_gpt_layer_local_spec(), vocab_size=8 * SIZE,
                    max_sequence_length=SIZE)


SIZE = int(os.environ.get("CKPTFS_TEST_HIDDEN", "64"))


def state(gpt, seed):
    """The model's and Adam's state, of random numbers that every rank can
    make: seed None are zeros, to load into."""
    import torch
    from megatron.core.dist_checkpointing.mapping import (
        ShardedObject, ShardedTensor)
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.optimizer import \
        make_sharded_optimizer_tensor
    from megatron.core import parallel_state
    weights = gpt.sharded_state_dict()
    out = {"model": weights, "optimizer": {
        what: {name: make_sharded_optimizer_tensor(
            sharded, torch.zeros_like(sharded.data), f"optimizer.state.{what}")
            for name, sharded in weights.items()
            if isinstance(sharded, ShardedTensor)}
        for what in ("exp_avg", "exp_avg_sq")}}
    for sharded in nested_values(out):
        if isinstance(sharded, ShardedTensor):
            fill(sharded, seed)
    tp = parallel_state.get_tensor_model_parallel_rank()
    dp = parallel_state.get_data_parallel_rank()
    if seed is not None:
        out["iteration"] = seed
    # As the extra state of a norm: the same for all, by tensor-parallel rank.
    out["extra"] = ShardedObject("norm._extra_state", {"seed": seed}, (1,),
                                 (0,), replica_id=(0, tp, dp))
    return out


def fill(sharded, seed):
    import torch
    with torch.no_grad():
        sharded.data.copy_(expected(sharded, seed))


def expected(sharded, seed):
    import torch
    if seed is None:
        return torch.zeros(sharded.data.shape)
    name = sharded.key.split(".__tp_replica_")[0]
    g = torch.Generator().manual_seed(zlib.crc32(name.encode()) + seed)
    whole = torch.randn(sharded.global_shape, generator=g)
    # Layers are stacked in dimensions that one of them does not have.
    sizes = (1,) * sharded.prepend_axis_num + tuple(sharded.data.shape)
    for dim, (at, size) in enumerate(zip(sharded.global_offset, sizes)):
        whole = whole.narrow(dim, at, size)
    return whole.reshape(sharded.data.shape)


def tensors(state_dict):
    """What it has of them by name, of the model and of the optimizer."""
    import torch
    from megatron.core.dist_checkpointing.mapping import ShardedTensor
    parts = {"model": state_dict["model"], **state_dict["optimizer"]}
    return {(part, name): one for part, ones in parts.items()
            for name, one in ones.items()
            if isinstance(one, (torch.Tensor, ShardedTensor))}


def load_and_check(path, gpt, seed, strategy, **options):
    import torch
    from megatron.core import dist_checkpointing
    sharded = state(gpt, None)
    wanted = {key: expected(one, seed)
              for key, one in tensors(sharded).items()}
    assert len(wanted) > 30, len(wanted)
    loaded = dist_checkpointing.load(sharded, path, strategy, **options)
    got = tensors(loaded)
    for key, want in wanted.items():
        assert torch.equal(got[key], want), (path, key)
    assert loaded["iteration"] == seed
    assert loaded["extra"] == {"seed": seed}, loaded["extra"]


# --- what a rank does ---

class Rank:
    def __init__(self, rank, world, meet):
        import logging
        import torch
        import torch.distributed as dist
        import test_dcp
        torch.set_num_threads(1)
        self.mode = no_cuda()
        test_dcp.join(rank, world, meet)
        logging.disable(logging.WARNING)
        self.rank, self.barrier = int(rank), dist.barrier
        import ckptfs
        import ckptfs.megatron
        self.ckptfs, self.ours = ckptfs, ckptfs.megatron

    def folder(self, path):
        if self.rank == 0:
            shutil.rmtree(path, ignore_errors=True)
            os.makedirs(path)
        self.barrier()
        return path

    def wrapped(self, fully):
        """Strategies as megatron.training makes them."""
        from megatron.core import parallel_state
        from megatron.core.dist_checkpointing import serialization
        from megatron.core.dist_checkpointing.strategies import \
            fully_parallel, torch as torch_dist
        save = serialization.get_default_save_sharded_strategy("torch_dist")
        load = torch_dist.TorchDistLoadShardedStrategy()
        if fully:
            group = parallel_state.get_data_parallel_group(
                with_context_parallel=True)
            save = fully_parallel.FullyParallelSaveStrategyWrapper(save, group)
            load = fully_parallel.FullyParallelLoadStrategyWrapper(load, group)
        return save, load

    def save(self, path, sharded, strategy=None, **options):
        from megatron.core import dist_checkpointing
        return dist_checkpointing.save(sharded, self.folder(path), strategy,
                                       **options)

    def load(self, path, gpt, seed, strategy=None, **options):
        load_and_check(path, gpt, seed, strategy, **options)
        self.barrier()

    def asynchronous(self, path, sharded, queue, strategy=None):
        import inspect
        from megatron.core import dist_checkpointing
        options = {"async_strategy": "mcore"} if "async_strategy" in \
            inspect.signature(dist_checkpointing.save).parameters else {}
        queue.schedule_async_request(self.save(
            path, sharded, strategy, async_sharded_save=True, **options))


def count_reads():
    """Bytes that this process reads with the Reader, by the file's name."""
    from ckptfs._ranges import Ranges
    read, counts = Ranges.read, {}

    def counted(file, wanted):
        wanted = list(wanted)
        read(file, wanted)
        name = os.path.basename(file.path)
        counts[name] = counts.get(name, 0) + sum(w[1] for w in wanted)
    Ranges.read = counted
    return counts


def job(folder, rank, world, meet):
    os.makedirs(folder, exist_ok=True)
    from megatron.core.dist_checkpointing.mapping import ShardedTensor
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.strategies.async_utils import \
        AsyncCallsQueue
    me = Rank(rank, world, meet)
    ours, on_mount = me.ours, trainer.on_ckptfs(folder)
    parallel(TP)
    gpt = model(TP)
    save, load = me.wrapped(False)

    me.save(f"{folder}/theirs", state(gpt, 1), save)
    me.save(f"{folder}/strategy", state(gpt, 1), ours.SaveStrategy())
    kept_plans.job(me, gpt, state, folder)
    assert not ours._installed
    ours.install()
    me.save(f"{folder}/ours", state(gpt, 1), save)
    me.load(f"{folder}/ours", gpt, 1, load)
    me.load(f"{folder}/theirs", gpt, 1, load)
    ours.uninstall()
    me.load(f"{folder}/ours", gpt, 1, load)
    me.load(f"{folder}/strategy", gpt, 1, load)
    me.load(f"{folder}/theirs", gpt, 1, ours.LoadStrategy())
    me.load(f"{folder}/strategy", gpt, 1, ours.LoadStrategy())
    lent_rooms(me, gpt, f"{folder}/strategy", 1)
    if me.rank == 0:
        alike(f"{folder}/ours", f"{folder}/theirs")
        alike(f"{folder}/strategy", f"{folder}/theirs")
    me.barrier()

    # Asynchronous, forked and with Megatron's worker: the state changes as
    # soon as the save has been scheduled.
    ours.install()
    for persistent in (False, True):
        queue = AsyncCallsQueue(persistent=persistent)
        for seed in (2, 3, 4):
            path = f"{folder}/async_{persistent}_{seed}"
            sharded = state(gpt, seed)
            me.asynchronous(path, sharded, queue)
            for one in nested_values(sharded):
                if isinstance(one, ShardedTensor):
                    one.data.detach().fill_(-1.0)
            queue.maybe_finalize_async_calls(blocking=True)
            me.load(path, gpt, seed)
        queue.close()

    kept_plans.job(me, gpt, state, folder)

    # One rank cannot write: all learn of it.
    queue = AsyncCallsQueue(persistent=False)
    me.asynchronous(f"{folder}/failing", state(gpt, 5), queue,
                    Failing() if me.rank == 1 else None)
    try:
        queue.maybe_finalize_async_calls(blocking=True)
    except BaseException as e:  # torch's is no Exception
        assert me.rank != 0 or "No such file" in str(e), e
    else:
        raise AssertionError("it did not fail")
    assert not os.path.exists(f"{folder}/failing/.metadata")

    # Own copies; each rank reads what it has written itself.
    ours.install(replicas=True)
    save, load = me.wrapped(True)
    for seed in (6, 7):
        me.save(f"{folder}/replicas", state(gpt, seed), save)
    counts = count_reads()
    me.load(f"{folder}/replicas", gpt, 7, load)
    own = {name for name in counts if name.startswith(f"__{me.rank}_")}
    assert own and set(counts) == own, (me.rank, counts)
    print(f"# rank {me.rank} read " + ", ".join(
        f"{counts[name]} bytes of {name}" for name in sorted(counts)),
        flush=True)
    one_cannot_load(me, gpt, f"{folder}/replicas", load)
    # Of one that has no copies, and by Megatron alone.
    me.load(f"{folder}/theirs", gpt, 1, load)
    strictly(me, gpt, folder, load)
    ours.uninstall()
    me.load(f"{folder}/replicas", gpt, 7, load)

    parallel(1)
    for install in (None, {}, {"replicas": True}):
        if install is not None:
            ours.install(**install)
        for name, seed in (("ours", 1), ("replicas", 7)):
            me.load(f"{folder}/{name}", model(1), seed)
            if install is not None:
                me.load(f"{folder}/{name}", model(1), seed, strict="raise_all")
        ours.uninstall()
    if on_mount:
        k = me.ckptfs.counters()
        assert k["plain_saves"] == 0 and k["segments_reused"] > 0, k
    me.barrier()
    if me.rank == 0:
        import torch
        import megatron.core
        print(f"# megatron-core {megatron.core.__version__}, torch "
              f"{torch.__version__}", flush=True)


def strictly(me, gpt, folder, load):
    """Copies are neither missing nor unexpected; what is, is said."""
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.core import CheckpointingException
    for name, seed in (("replicas", 7), ("theirs", 1)):
        for strategy in (load, me.ours.LoadStrategy()):
            me.load(f"{folder}/{name}", gpt, seed, strategy,
                    strict="raise_all")
            me.load(f"{folder}/{name}", gpt, seed, strategy,
                    strict="raise_unexpected")
    less = state(gpt, None)
    gone = next(iter(less["optimizer"]["exp_avg"].values())).key
    del less["optimizer"]["exp_avg"]
    _, missing, unexpected = dist_checkpointing.load(
        less, f"{folder}/replicas", load, strict="return_all")
    assert gone in missing and not unexpected, (missing, unexpected)
    assert not any("__tp_replica_" in key for key in missing), missing
    more = state(gpt, None)
    more["model"]["copy"] = more["extra"].__class__(
        "nowhere.__tp_replica_1", None, (1,), (0,), replica_id=(0, 0, 0))
    try:
        dist_checkpointing.load(more, f"{folder}/replicas", load,
                                validate_access_integrity=False,
                                strict="raise_unexpected")
    except CheckpointingException as e:
        assert "nowhere" in str(e), e
    else:
        raise AssertionError("it did not fail")
    me.barrier()


def one_cannot_load(me, gpt, path, strategy):
    """Nobody waits for what the others cannot plan without it."""
    import torch
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.mapping import ShardedTensor
    sharded = state(gpt, None)
    if me.rank == 1:
        sharded["more"] = ShardedTensor.from_rank_offsets(
            "nowhere", torch.zeros(3))
    try:
        dist_checkpointing.load(sharded, path, strategy,
                                validate_access_integrity=False)
    except BaseException as e:  # torch's is no Exception
        assert "nowhere" in str(e), e
    else:
        raise AssertionError("it did not fail")
    me.barrier()


def lent_rooms(me, gpt, path, seed):
    """As Megatron's planner with Transformer Engine lends for each quantized
    tensor: one at a time, and it has it back before the next one. Where there
    is none, all of a file are read at once."""
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.strategies import torch as torch_dist
    import torch
    planner, out, most = torch_dist.MCoreLoadPlanner, {}, [0]
    resolve, commit, te = (planner.resolve_tensor, planner.commit_tensor,
                           torch_dist.HAVE_TE)

    class Quantized(torch.Tensor):
        pass

    def lend(self, item):
        out[id(item)] = target = resolve(self, item)
        most[0] = max(most[0], len(out))
        return torch.empty(target.shape, dtype=target.dtype)

    def take_back(self, item, tensor):
        out.pop(id(item)).copy_(tensor)
        commit(self, item, tensor)
    planner.resolve_tensor, planner.commit_tensor = lend, take_back
    torch_dist.HAVE_TE = True
    for share in (False, True):
        for quantized in (True, False):
            sharded, most[0] = state(gpt, None), 0
            one = tensors(sharded)[sorted(tensors(sharded))[0]]
            if quantized:
                one.data = one.data.detach().as_subclass(Quantized)
            want = {key: expected(one, seed)
                    for key, one in tensors(sharded).items()}
            got = tensors(dist_checkpointing.load(
                sharded, path, me.ours.LoadStrategy(share=share)))
            for key, tensor in want.items():
                assert torch.equal(got[key], tensor), key
            assert not out and (most[0] == 1) == quantized, (share, most)
    planner.resolve_tensor, planner.commit_tensor = resolve, commit
    torch_dist.HAVE_TE = te
    me.barrier()


def Failing():
    """A strategy that saves where nothing can be."""
    import ckptfs.megatron as ours

    class Strategy(ours.SaveStrategy):
        def _get_save_and_finalize_callbacks(self, writer, *others):
            writer.write_buckets = [(f"{path}/nowhere/x", *more) for path,
                                    *more in writer.write_buckets]
            return super()._get_save_and_finalize_callbacks(writer, *others)
    return Strategy()


def alike(ours, theirs):
    """.metadata says the same of both, but for files and places; and needs
    nobody but torch and Megatron."""
    found = []
    for folder in (ours, theirs):
        with open(f"{folder}/.metadata", "rb") as f:
            raw = f.read()
        assert not any("ckptfs" in str(arg) for _, arg, _ in
                       pickletools.genops(raw))
        found.append(pickle.loads(raw))
    a, b = found
    assert a.state_dict_metadata == b.state_dict_metadata
    assert set(a.storage_data) == set(b.storage_data)


def measure(folder, rank, world, meet):
    """Seconds of a save and of a load, Megatron's own and ours by turns: the
    best of five."""
    from megatron.core import dist_checkpointing
    os.makedirs(folder, exist_ok=True)
    me = Rank(rank, world, meet)
    parallel(TP)
    gpt = model(TP)
    best = {}
    for number in range(5):
        for whose in ("Megatron's", "ours"):
            if whose == "ours":
                me.ours.install()
            path = me.folder(f"{folder}/{whose}_{number}")
            for what, call, seed in (("save", dist_checkpointing.save, 1),
                                     ("load", dist_checkpointing.load, None)):
                sharded = state(gpt, seed)
                me.barrier()
                begun = time.monotonic()
                call(sharded, path)
                me.barrier()
                took = time.monotonic() - begun
                best[what, whose] = min(best.get((what, whose), took), took)
            me.ours.uninstall()
    if me.rank == 0:
        size = sum(entry.stat().st_size for entry in os.scandir(path))
        for (what, whose), took in sorted(best.items()):
            print(f"# {what} of {size / 1e6:.0f} MB, {whose}: {took:.3f} s")


def newer(folder):
    """nvidia-resiliency-ext 0.6's writer, and one that nobody knows."""
    import torch
    import torch.distributed.checkpoint as dcp
    import warnings
    import writers
    megatrons.use()
    import ckptfs.megatron as ours
    mode = no_cuda()
    writers.stand_in()
    os.makedirs(folder, exist_ok=True)

    def state_of(seed):
        return {**{name: torch.Tensor.as_subclass(tensor, writers.OnDevice)
                   for name, tensor in trainer.state(seed).items()},
                "host": torch.randn(70, 30), "object": {"seed": seed}}

    def check(path, want):
        got = {name: torch.zeros(one.shape, dtype=one.dtype)
               if isinstance(one, torch.Tensor) else {"seed": 0}
               for name, one in want.items()}
        dcp.load(got, checkpoint_id=path, no_dist=True)
        for name, one in want.items():
            assert (torch.equal(got[name], one) if isinstance(
                one, torch.Tensor) else got[name] == one), (path, name)

    for cached in (False, True):
        for seed in (1, 2):
            writers.save(f"{folder}/theirs_{cached}_{seed}", state_of(seed),
                         cached)
    assert writers.copied, "the stand-in copies what is on a device"
    ours.install()
    device = {name: one for name, one in state_of(0).items()
              if isinstance(one, writers.OnDevice)}
    for hint, cached, shares, seed in itertools.product(
            (None, "e"), (False, True), (False, True), (1, 2, 3)):
        if seed == 1:  # what was sent is of the kind before
            writers.FileSystemWriterAsync.cleanup_tensor_caches()
        path = f"{folder}/ours_{hint}_{cached}_{shares}_{seed}"
        want = state_of(seed)
        for name, one in device.items():  # where the cache has them
            one.copy_(want[name])
        want.update(device)
        writers.copied.clear()
        writers.save(path, want, cached, hint, shares=shares)
        assert not writers.copied, writers.copied
        check(path, want)
        files = [f"{hint if hint and n < 2 else ''}__0_{n}.distcp"
                 for n in range(4)]
        assert sorted(os.listdir(path)) == sorted(
            [".metadata", *files]), os.listdir(path)
    try:
        writers.save(f"{folder}/nowhere", state_of(1), False, before=lambda:
                     os.rmdir(f"{folder}/nowhere"))
    except RuntimeError as e:
        assert "No such file" in str(e), e
    else:
        raise AssertionError("it did not fail")
    # What a plan is to have is looked for in what is made of it.
    names = collections.Counter(  # an object's are those of its parts
        "object.seed" if name == "object" else name for name in state_of(1))
    with ours._set(ours._writes, names):
        writers.save(f"{folder}/whole", want := state_of(1), False)
    check(f"{folder}/whole", want)
    with ours._set(ours._writes, names + collections.Counter(["more"])):
        trainer.raises(RuntimeError, lambda: writers.save(
            f"{folder}/less", state_of(1), False), says="leaves out 1 of")

    class OfAStrategy(writers.FileSystemWriterAsync):
        """SaveStrategy's, with options of its own, after install()."""

        def get_save_function_and_args(self):
            return ours._functions(self, super().get_save_function_and_args(),
                                   False, True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        writers.save(f"{folder}/strategy", want := state_of(2), False,
                     kind=OfAStrategy)
    check(f"{folder}/strategy", want)
    if trainer.on_ckptfs(folder):
        import ckptfs
        k = ckptfs.counters()
        assert k["plain_saves"] == 0 and k["segments_reused"] > 0, k
    ours.uninstall()
    want = state_of(4)
    writers.save(f"{folder}/after", want, True)
    check(f"{folder}/after", want)

    # It writes itself, and that is said once, unless it must not.
    writers.stand_in(writers.Unknown)
    ours.install(segment_only=True)
    trainer.raises(RuntimeError, lambda: writers.save(
        f"{folder}/refused", state_of(1), False, kind=writers.Unknown),
        says="does not know writers.Unknown")
    ours.install()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for seed in (1, 2):
            want = state_of(seed)
            writers.save(f"{folder}/unknown_{seed}", want, False,
                         kind=writers.Unknown)
            check(f"{folder}/unknown_{seed}", want)
    said = [str(one.message) for one in said if "ckptfs" in str(one.message)]
    assert len(said) == 1 and "writers.Unknown" in said[0], said
    mode.__exit__(None, None, None)


def forked(programs, program, folder, meet, count):
    """The ranks, forked from one process that has imported Megatron."""
    megatrons.use()
    import ckptfs.megatron  # noqa: F401 pylint: disable=unused-import
    import megatron.core.models.gpt.gpt_layer_specs  # noqa: F401
    pids = []
    for rank in range(int(count)):
        pids.append(os.fork())
        if not pids[-1]:
            os.setpgid(0, 0)  # with what Megatron starts for it
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            os.environ.update(RANK=str(rank), WORLD_SIZE=count,
                              LOCAL_RANK=str(rank))
            code = 1
            try:
                programs[program](folder, rank, int(count), meet)
                code = 0
            except BaseException:  # pylint: disable=broad-except
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                ended(code)
    failed = 0
    while pids:
        pid, status = os.wait()
        if pid not in pids:
            continue
        pids.remove(pid)
        if status and not failed:  # the others would wait for it
            failed = 1
            for other in (pid, *pids):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(other, signal.SIGKILL)
    sys.exit(failed)


def ended(code):
    """What a process does at its end, in one that began as a fork."""
    import atexit
    from multiprocessing import util
    util._exit_function()
    atexit._run_exitfuncs()
    os._exit(code)


PROGRAMS = {"job": job, "measure": measure, "newer": newer,
            "reruns": lambda folder, *of: reruns.job(Rank(*of), folder)}
PROGRAMS["forked"] = lambda *given: forked(PROGRAMS, *given)


def ranks(program, folder, meet, count=RANKS, script=__file__):
    try:
        said = trainer.finish(trainer.start(
            os.path.abspath(script), "forked", program, folder, meet, count),
            bound=900)
    finally:
        if os.path.exists(meet):
            os.unlink(meet)
    for line in "".join(said).splitlines():
        if line.startswith("#"):
            print(line, flush=True)


def tests():
    @ck.mounted(modes=("auto",))
    def megatron_saves_and_loads_as_before(m):
        ranks("job", m.path("job"), os.path.join(m.base, "meet"))

    @ck.mounted("structure=refuse", modes=("auto",))
    def a_rerun_without_the_state_of_all_ranks_is_refused(m):
        m.expected.append("not published")
        os.mkdir(m.path("run"))
        ranks("reruns", m.path("run"), os.path.join(m.base, "meet"), 2)

    @ck.mounted(modes=("auto",))
    def a_writer_that_makes_its_files_while_it_preloads(m):
        trainer.finish(trainer.start(os.path.abspath(__file__), "newer",
                                     m.path("newer")))

    if os.environ.get("CKPTFS_MEASURE"):
        @ck.mounted(modes=("auto",))
        def measured(m):
            ranks("measure", m.path("job"), os.path.join(m.base, "meet"))


def main(programs=None, register=tests):
    if len(sys.argv) < 2 and os.access(trainer.PYTHON, os.X_OK) and \
            not megatrons.there_is_one():
        print(f"SKIP: {megatrons.FOLDER} has no megatron-core: "
              "run tests/trainer/setup-venv.sh")
        sys.exit(77)
    trainer.main(programs or PROGRAMS, register)


if __name__ == "__main__":
    main()
