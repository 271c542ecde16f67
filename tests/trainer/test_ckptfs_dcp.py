"""ckptfs.dcp: what its Writer lays out in segments is a checkpoint of torch's
own, for torch's own readers; its Reader reads those and torch's; the tensors
may change once they are copied; and a save that fails on one rank ends on
all."""
import json
import os
import pickle
import sys

import test_dcp
import trainer
from trainer import ck

HERE = os.path.dirname(os.path.abspath(__file__))
os.environ.setdefault("CKPTFS_GPU_LIBRARY",
                      os.path.join(ck.BUILD, "gpu/libckpt_gpu.so.0"))
sys.path.insert(0, os.path.join(HERE, "../../gpu/python"))

RANKS, STEPS = 4, (10, 20, 30, 40)


def leave():
    import torch.distributed as dist
    dist.barrier()
    dist.destroy_process_group()


def step_of(step, empty=False):
    """The objects of a step grow, which moves no tensor."""
    state = test_dcp.sharded(step, empty)
    if not empty:
        state["extra"]["list"] = list(range(step))
    return state


def save(folder, rank, world, store):
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    import ckptfs
    from ckptfs.dcp import Writer
    test_dcp.join(rank, world, store)
    for step in STEPS:
        dcp.save(step_of(step), storage_writer=Writer(f"{folder}/step_{step}"))
    k = ckptfs.counters()
    if trainer.on_ckptfs(folder):
        assert k["segments_new"] <= 2 and k["plain_saves"] == 0, k
        assert k["saves"] == len(STEPS), k
    # Two files of each rank, over what is there; durable when it returns.
    for step in (99, 50):
        dcp.save(step_of(step), storage_writer=Writer(
            f"{folder}/again", thread_count=2, sync_files=True))
    dcp.save(step_of(50), checkpoint_id=f"{folder}/theirs")
    if rank == "0":
        alike(f"{folder}/again", f"{folder}/theirs")
    dist.barrier()
    leave()


def alike(ours, theirs):
    """.metadata says the same of both, but for files and places."""
    found = []
    for folder in (ours, theirs):
        with open(f"{folder}/.metadata", "rb") as f:
            found.append(pickle.load(f))
    a, b = found
    assert a.state_dict_metadata == b.state_dict_metadata
    assert set(a.storage_data) == set(b.storage_data)
    assert a.version == b.version


def check(folder, rank, world, store):
    import torch.distributed.checkpoint as dcp
    from ckptfs.dcp import Reader
    test_dcp.join(rank, world, store)
    for name, step in (*((f"step_{s}", s) for s in STEPS), ("again", 50),
                       ("theirs", 50)):
        for reader in (dcp.FileSystemReader, Reader):
            got, want = step_of(step, empty=True), step_of(step)
            dcp.load(got, storage_reader=reader(f"{folder}/{name}"))
            for state in (got, want):
                for key, value in state.items():
                    state[key] = value.to_local() \
                        if hasattr(value, "to_local") else value
            test_dcp.compare(got, want, f"{name} {reader}")
    leave()


def types(folder):
    """Tensors of every type and shape, and none that is in the file twice."""
    import torch
    import torch.distributed.checkpoint as dcp
    from ckptfs.dcp import Reader, Writer
    base = torch.arange(24.0).reshape(4, 6)
    state = {str(d): torch.randint(0, 2, (3, 5)).to(d) for d in (
        torch.bool, torch.uint8, torch.int64, torch.float16, torch.float64,
        torch.bfloat16, torch.complex64, torch.complex128,
        torch.float8_e4m3fn)}
    state.update(scalar=torch.tensor(3.5), empty=torch.empty(0, 3),
                 transposed=base.t(), view=base[1:3],
                 parameter=torch.nn.Parameter(base.clone()),
                 large=torch.randn(1 << 20), raw=b"bytes", text="x" * 5000)
    dcp.save(state, storage_writer=Writer(f"{folder}/types"), no_dist=True)
    dcp.save(state, checkpoint_id=f"{folder}/their types", no_dist=True)
    for name in ("types", "their types"):
        for reader in (dcp.FileSystemReader, Reader):
            got = {k: torch.zeros_like(v) if isinstance(v, torch.Tensor)
                   else None for k, v in state.items()}
            dcp.load(got, storage_reader=reader(f"{folder}/{name}"),
                     no_dist=True)
            for key, want in state.items():
                if isinstance(want, torch.Tensor):
                    assert got[key].dtype == want.dtype, key
                    got[key], want = (t.detach().view(torch.uint8)
                                      if "float8" in key else t.detach()
                                      for t in (got[key], want))
                    assert torch.equal(got[key], want), (name, reader, key)
                else:
                    assert got[key] == want, key
    # What lies where, without gaps: everything in the file is somebody's.
    with open(f"{folder}/types/.metadata", "rb") as f:
        places = sorted((s.offset, s.length) for s in
                        pickle.load(f).storage_data.values())
    at = 0
    for offset, length in places:
        assert offset == at, (offset, at)
        at += length
    assert at == os.path.getsize(f"{folder}/types/__0_0.distcp"), at


def wrapped(folder, rank, world, store):
    """What is made of other tensors, or says more than its bytes, is stored as
    torch stores it."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.testing._internal.two_tensor import TwoTensor
    import ckptfs
    from ckptfs.dcp import Reader, Writer
    test_dcp.join(rank, world, store)

    class Opaque(TwoTensor):
        """Without what torch.compile wants to know."""
        __tensor_flatten__ = None
    torch.serialization.add_safe_globals([TwoTensor, Opaque])
    globals()["Opaque"] = Opaque
    Opaque.__qualname__ = "Opaque"

    def state(seed):
        g = torch.Generator().manual_seed(seed)

        def new():
            return torch.randn(300, 7, generator=g)
        return {"two": TwoTensor(new(), new()), "opaque": Opaque(new(), new()),
                "plain": new(), "quantized": torch.quantize_per_tensor(
                    new(), 0.1, 3, torch.quint8),
                "parameter": torch.nn.Parameter(TwoTensor(new(), new()))}
    want = state(2)
    for name, writer in (("ours", Writer), ("torch's", dcp.FileSystemWriter)):
        path = f"{folder}/wrapped_{name}"
        for reader, options in ((dcp.FileSystemReader, {}), (Reader, {}),
                                (Reader, {"share": True})):
            if not options:
                dcp.save(state(1), storage_writer=writer(path))
                dcp.save(want, storage_writer=writer(path))
            got = state(3)
            dcp.load(got, storage_reader=reader(path, **options))
            for key, one in want.items():
                assert type(got[key]) is type(one), (path, key)
                for a, b in ((got[key].a, one.a), (got[key].b, one.b)) if \
                        isinstance(one, TwoTensor) else ((got[key], one),):
                    assert torch.equal(a, b), (path, reader, key)
    path = f"{folder}/wrapped.safetensors"
    for key in ("two", "opaque", "parameter"):
        for call in (lambda key=key: ckptfs.save_file({key: want[key]}, path,
                                                      plain=True),
                     lambda key=key: ckptfs.weights.publish(
                         {key: want[key]}, path, plain=True)):
            error = trainer.raises(ValueError, call, says=f"`{key}`")
            assert type(want[key]).__name__ in str(error), error
        assert not os.path.exists(path)
    leave()


def reading(folder):
    """What only Reader does: in place, names of replicas, and errors."""
    import torch
    import torch.distributed.checkpoint as dcp
    from ckptfs.dcp import Reader, Writer
    state = {"ln": torch.arange(5.0), "w": torch.randn(1000, 50)}
    for name, writer in (("ours", Writer), ("torch's", dcp.FileSystemWriter)):
        path = f"{folder}/{name}"
        dcp.save(state, storage_writer=writer(path), no_dist=True)
        got = {"ln.__tp_replica_3": torch.zeros(5), "w": torch.zeros(1000, 50)}
        where = got["w"].data_ptr()
        dcp.load(got, storage_reader=Reader(path), no_dist=True)
        assert torch.equal(got["ln.__tp_replica_3"], state["ln"])
        assert torch.equal(got["w"], state["w"])
        assert got["w"].data_ptr() == where
        other = {"w": torch.zeros(50, 1000).t(), "ln": torch.zeros(5).half()}
        dcp.load(other, storage_reader=Reader(path), no_dist=True)
        assert torch.equal(other["w"], state["w"])
        assert torch.equal(other["ln"], state["ln"].half())
        for wanted, says in (({"x": torch.zeros(5)}, "Missing key"),
                             ({"ln": torch.zeros(6)}, "Size mismatch")):
            fails(says, lambda: dcp.load(wanted, storage_reader=Reader(path),
                                         no_dist=True))
        os.truncate(f"{path}/__0_0.distcp", 1000)
        fails("the file has 1000", lambda: dcp.load(
            dict(got, w=torch.zeros(1000, 50)), storage_reader=Reader(path),
            no_dist=True))


def halves(folder):
    """What is wanted of a stored tensor is read, where it lies in one piece,
    and nothing beside it."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata, MetadataIndex)
    from torch.distributed.checkpoint.planner import (
        LoadItemType, LoadPlan, ReadItem)
    from ckptfs._ranges import Ranges
    from ckptfs.dcp import Reader, Writer
    state = {"w": torch.randn(1000, 20, 30)}
    dcp.save(state, storage_writer=Writer(f"{folder}/half"), no_dist=True)
    read, bytes_read = Ranges.read, []

    def counted(file, wanted):
        wanted = list(wanted)
        bytes_read.extend(one[1] for one in wanted)
        read(file, wanted)
    Ranges.read = counted
    for at, sizes, is_one in (
            ((500, 0, 0), (500, 20, 30), True), ((0, 0, 0), (1, 20, 30), True),
            ((7, 5, 0), (1, 10, 30), True), ((7, 5, 4), (1, 1, 9), True),
            ((999, 19, 29), (1, 1, 1), True), ((3, 0, 0), (2, 20, 29), False),
            ((3, 0, 0), (2, 19, 30), False), ((3, 1, 2), (1, 2, 3), False)):
        reader, target = Reader(f"{folder}/half"), torch.zeros(sizes)

        class Planner(dcp.DefaultLoadPlanner):
            def resolve_tensor(self, read_item):
                return target

            def commit_tensor(self, read_item, tensor):
                assert tensor.data_ptr() == target.data_ptr()
        metadata = reader.read_metadata()
        reader.set_up_storage_reader(metadata, True)
        none = torch.Size((0, 0, 0))
        reader.read_data(LoadPlan([ReadItem(
            LoadItemType.TENSOR, MetadataIndex("w", none), none,
            MetadataIndex("w", none), torch.Size(at), torch.Size(sizes))]),
            Planner()).wait()
        want = state["w"]
        for dim, (offset, size) in enumerate(zip(at, sizes)):
            want = want.narrow(dim, offset, size)
        assert torch.equal(target, want), (at, sizes)
        assert bytes_read[-1] == 4 * (want if is_one else
                                      state["w"]).numel(), (at, sizes)
    Ranges.read = read


def lend(share=False, folder=None, path=None):
    """A planner with one room for all tensors gets it back before it is asked
    for the next one."""
    import torch
    import torch.distributed.checkpoint as dcp
    from ckptfs.dcp import Reader
    room, got = torch.empty(100), {}

    class Planner(dcp.DefaultLoadPlanner):
        lent = None

        def resolve_tensor(self, read_item):
            assert self.lent is None, (self.lent, read_item)
            self.lent = read_item
            return room[:read_item.lengths.numel()].reshape(read_item.lengths)

        def commit_tensor(self, read_item, tensor):
            assert self.lent is read_item
            self.lent = None
            got[read_item.dest_index.fqn] = tensor.clone()
    want = {name: torch.arange(n, n + 7.0 * n).reshape(n, 7)
            for n in range(2, 9) for name in (f"a{n}", f"b{n}")}
    if path is None:
        from ckptfs.dcp import Writer
        path = f"{folder}/lent"
        dcp.save(want, storage_writer=Writer(path), no_dist=True)
    dcp.load({name: torch.zeros_like(one) for name, one in want.items()},
             storage_reader=Reader(path, share=share), planner=Planner(),
             no_dist=not share)
    assert sorted(got) == sorted(want), got
    assert all(torch.equal(got[name], one) for name, one in want.items())


def lending(folder):
    lend(folder=folder)


def planning(folder):
    """Who reads what is what `ckptctl plan` says of it."""
    import random
    import types
    from torch.distributed.checkpoint.metadata import MetadataIndex
    from ckptfs import _plan
    from ckptfs._share import Piece
    from planned import ask
    for seed in range(30):
        rng, world = random.Random(seed), 1 + seed % 7
        pieces = [Piece(
            MetadataIndex(f"w{number:03}"), types.SimpleNamespace(
                relative_path="f", length=rng.randrange(1 << 20)),
            range(world),
            sorted(rng.sample(range(world), rng.randint(1, world))),
            rng.choice([None, *range(world + 1)]))
            for number in range(rng.randrange(40))]
        for policy in ("per_shard", "pr3392", "greedy"):
            wanted = ask("-", "--policy", policy, text=json.dumps(
                {"num_ranks": world, "shards": [
                    {"id": one.index.fqn, "bytes": one.bytes,
                     "ranks": sorted({*one.wanted, *(
                         [one.source] if one.source in one.group else [])}),
                     "source": one.source if one.source in one.group else None}
                    for one in pieces]}))
            assert _plan.by(policy)(pieces, world) == \
                [wanted[one.index.fqn] for one in pieces], (seed, policy)
    # The same piece for two groups, and who wrote it in neither or in one.
    def piece(group, source):
        return Piece(MetadataIndex("w", (3, 0)), types.SimpleNamespace(
            relative_path="f", length=5), group, list(group), source)
    assert _plan.by("per_shard")(
        [piece((0, 1), 3), piece((2, 3), 3)], 4) == [0, 3]
    trainer.raises(ValueError, _plan.by, "fastest", says="'fastest'")
    trainer.raises(OSError, _plan.by("greedy"), [piece((), None)], 4,
                   says="w: no rank")


def passing(folder, rank, world, store):
    """What one reads for all costs nobody memory beside the state's own."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from ckptfs.dcp import Reader, Writer
    test_dcp.join(rank, world, store)

    def filled(name, seed):
        g = torch.Generator().manual_seed(seed)
        return torch.randn(12 << 20, generator=g) if name == "large" else \
            {"scalar": torch.tensor(seed), "empty": torch.empty(0, 3),
             "complex": torch.randn(5, 7, generator=g, dtype=torch.complex64),
             "mask": torch.randint(0, 2, (33,), generator=g).bool(),
             "float8": torch.randn(9, generator=g).to(torch.float8_e5m2),
             "text": "x" * seed}[name]
    names = ("large", "scalar", "empty", "complex", "mask", "float8", "text")
    want = {name: filled(name, 3) for name in names}
    for name, writer in (("ours", Writer), ("torch's", dcp.FileSystemWriter)):
        path = f"{folder}/passed_{name}"
        dcp.save(want, storage_writer=writer(path))
        got = {name: torch.zeros_like(one) if hasattr(one, "shape") else ""
               for name, one in want.items()}
        got["large"].fill_(1)  # it is the state's from here on
        before = memory(anew=True)
        dcp.load(got, storage_reader=Reader(path, share=True))
        grown = memory() - before
        size = want["large"].nbytes
        assert grown < size / 2, (rank, grown / size)
        print(f"# rank {rank}: {grown / size:.2f} of what all want", flush=True)
        for name, one in want.items():
            assert torch.equal(got[name].view(torch.uint8), one.view(
                torch.uint8)) if name == "float8" else torch.equal(
                    got[name], one) if name != "text" else got[name] == one
        # Of another type, in another order, and only a part of it.
        other = {"large": torch.zeros(12 << 20).half(),
                 "complex": torch.zeros(7, 5, dtype=torch.complex64).t()}
        dcp.load(other, storage_reader=Reader(path, share=True))
        assert torch.equal(other["large"], want["large"].half())
        assert torch.equal(other["complex"], want["complex"])
    if rank == "0":
        lend(folder=folder)
    dist.barrier()
    lend(share=True, path=f"{folder}/lent")
    leave()


def extended(folder, rank, world, store):
    """What an extension of torch's has transformed torch writes and reads, item
    by item, whatever is beside it."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint._extension import ExtensionRegistry
    from ckptfs.dcp import Reader, Writer
    from given import Zlib
    test_dcp.join(rank, world, store)
    registry = ExtensionRegistry()
    registry.register(Zlib)
    want = {"zeros": torch.zeros(1 << 18), "text": "x" * 9}

    class OneSided(Writer):
        """A writer of the first rank's alone extends."""
        def __init__(self, path):
            super().__init__(path, _extensions=[Zlib()] if rank == "0" else
                             None)
    for name, writer in (("all", lambda path: Writer(
            path, _extensions=[Zlib()])), ("one", OneSided)):
        path, mine = f"{folder}/extended_{name}", f"rank {rank}"
        state = dict(want, **{mine: torch.full((5,), 1.0 + int(rank))})
        dcp.save(state, storage_writer=writer(path))
        assert os.path.getsize(f"{path}/__0_0.distcp") < 1 << 18
        for reader, options in ((dcp.FileSystemReader, {}), (Reader, {}),
                                (Reader, {"share": True})):
            got = {"rank 1": torch.zeros(5)}
            if rank == "0":  # the other one wants nothing of these
                got.update({"rank 0": torch.zeros(5), "text": "",
                            "zeros": torch.ones(1 << 18)})
            dcp.load(got, storage_reader=reader(
                path, _extension_registry=registry, **options))
            assert (got["rank 1"] == 2).all(), (name, reader, got)
            if rank == "0":
                assert (got["rank 0"] == 1).all(), (name, reader, got)
                assert not got["zeros"].any() and got["text"] == want["text"]
        if rank == "0":
            fails("Unknown extension", lambda: dcp.load(
                {"zeros": torch.ones(1 << 18)}, storage_reader=Reader(path),
                no_dist=True))
        dist.barrier()
    leave()


def memory(anew=False):
    """The most that it has been, in bytes; anew: from what it is now."""
    if anew:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as f:
            f.write("5")
    with open("/proc/self/status", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f
                    if line.startswith("VmHWM")) << 10


def arguments(folder):
    """They are torch's, by place and by name."""
    import torch
    import torch.distributed.checkpoint as dcp
    import ckptfs._saving
    from ckptfs.dcp import Reader, Writer

    state = {"a": torch.arange(5.0), "b": torch.arange(7)}

    def save(path, *args, reader=Reader, **options):
        writer = Writer(path, *args, **options)
        dcp.save(state, storage_writer=writer, no_dist=True)
        got = {name: torch.zeros_like(one) for name, one in state.items()}
        dcp.load(got, storage_reader=reader(path), no_dist=True)
        assert all(torch.equal(got[name], one) for name, one in state.items())
        return writer
    path = f"{folder}/arguments"
    theirs = dcp.FileSystemWriter(path, True, True, 2, 10_000_000, True, False)
    ours = save(path, True, True, 2, 10_000_000, True, False)
    for name in ("single_file_per_rank", "sync_files", "thread_count",
                 "per_thread_copy_ahead", "overwrite"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert sorted(os.listdir(path)) == [".metadata", "__0_0.distcp",
                                        "__0_1.distcp"]
    assert save(path, True, True, 2, 10_000_000).overwrite
    fails("overwrite=False", lambda: save(path, overwrite=False))
    fails("nonsense", lambda: Writer(path, nonsense=1))
    # By default the mount orders what elsewhere is synced.
    waits, wait = [], ckptfs._saving.Save.wait
    ckptfs._saving.Save.wait = lambda save: (waits.append(save.path),
                                             wait(save))
    save(f"{folder}/default")
    assert len(waits) == (not trainer.on_ckptfs(folder)), waits
    save(f"{folder}/not_synced", sync_files=False)
    assert len(waits) == (not trainer.on_ckptfs(folder)), waits
    ckptfs._saving.Save.wait = wait


def fails(says, call):
    try:
        call()
    except BaseException as e:  # torch's is no Exception
        assert says in str(e), e
    else:
        raise AssertionError("nothing failed")


def asynchronous(folder, rank, world, store):
    """What is saved is what was there before copied()."""
    import torch
    import torch.distributed.checkpoint as dcp
    import ckptfs.dcp
    test_dcp.join(rank, world, store)
    weights = {"w": torch.zeros(1 << 18), "rank": torch.zeros(3)}
    for step in range(1, 5):
        saved = ckptfs.dcp.async_save(weights, f"{folder}/async_{step}")
        saved.copied()
        assert saved.is_copied()
        for t in weights.values():
            t += 1
        saved.result()
        got = {k: torch.ones_like(t) for k, t in weights.items()}
        dcp.load(got, checkpoint_id=f"{folder}/async_{step}")
        assert all((t == step - 1).all() for t in got.values()), step
    # torch's own, which copies to the host first
    dcp.async_save(weights, storage_writer=ckptfs.dcp.Writer(
        f"{folder}/async_torch")).result()
    torch_async(folder, weights, ckptfs.dcp.Stager())
    leave()


def torch_async(folder, weights, stager, **options):
    """torch's async_save(), which copies nothing before the Writer does."""
    import torch
    import torch.distributed.checkpoint as dcp
    from ckptfs.dcp import Writer
    for step in range(3):
        want = {k: t.clone() for k, t in weights.items()}
        saved = dcp.async_save(weights, async_stager=stager, **options,
                               storage_writer=Writer(f"{folder}/staged"))
        if hasattr(saved, "staging_completion"):
            saved.staging_completion.result()
            stager.synchronize_staging()
            saved, upload = None, saved.upload_completion
        else:
            upload = saved
        for t in weights.values():
            t += 1
        upload.result()
        got = {k: torch.zeros_like(t) for k, t in weights.items()}
        dcp.load(got, checkpoint_id=f"{folder}/staged")
        assert all(torch.equal(got[k], want[k]) for k in want), step


def processes(folder, rank, world, store):
    """In torch's checkpoint process, with either stager."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.staging import (
        DefaultStager, StagingOptions)
    from torch.distributed.checkpoint.state_dict_saver import \
        AsyncCheckpointerType
    import ckptfs.dcp
    from given import LateWriter
    test_dcp.join(rank, world, store)
    weights = {"w": torch.zeros(1 << 18), "rank": torch.zeros(3)}
    for stager in (ckptfs.dcp.Stager(), DefaultStager(StagingOptions(
            False, True, False, False))):
        torch_async(folder, weights, stager,
                    async_checkpointer_type=AsyncCheckpointerType.PROCESS)
        # Pickling moves what is shared. It was a copy.
        assert not weights["w"].is_shared()
    # They may change when they are copied, not only when all is over.
    gate = f"{folder}/gate"
    if rank == "0":
        os.mkfifo(gate)
    torch.distributed.barrier()
    saved = dcp.async_save(
        {"w": weights["w"], "list": [1]}, async_stager=ckptfs.dcp.Stager(),
        async_checkpointer_type=AsyncCheckpointerType.PROCESS,
        storage_writer=LateWriter(f"{folder}/late", gate))
    saved.staging_completion.result()
    assert not saved.upload_completion.done()
    before = weights["w"].clone()
    weights["w"] += 1
    torch.distributed.barrier()
    if rank == "0":
        with open(gate, "wb"):
            pass
    saved.upload_completion.result()
    got = {"w": torch.zeros(1 << 18)}
    dcp.load(got, checkpoint_id=f"{folder}/late")
    assert torch.equal(got["w"], before)
    assert ckptfs.counters()["saves"] == 0  # all were the other process's
    leave()


def streams(folder):
    """What a device copies waits for what its streams had when the save was
    asked for, and for nothing that they are given meanwhile."""
    import threading
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    import no_device
    import ckptfs.dcp
    test_dcp.join(0, 1, f"{folder}.gloo")
    no_device.stand_in()
    for save in (ckptfs.dcp.async_save, lambda state, path: dcp.async_save(
            state, storage_writer=ckptfs.dcp.Writer(path),
            async_stager=ckptfs.dcp.Stager())):
        weight = no_device.Tensor(torch.zeros(9))
        go_on = threading.Event()
        torch.cuda.current_stream(0).enqueue(lambda w=weight: w.held.add_(1))
        state = {"w": weight, "list": [1]}
        saved = save(state, f"{folder}/streams")
        # What comes later cannot end before the save does.
        torch.cuda.current_stream(0).enqueue(go_on.wait)
        torch.cuda.current_stream(0).enqueue(lambda w=weight: w.held.add_(7))
        state["list"].append(2)  # no tensor: it is the save's own
        getattr(saved, "staging_completion", saved).result()
        getattr(saved, "upload_completion", saved).result()
        go_on.set()
        torch.cuda.current_stream(0).synchronize()
        assert (weight.held == 8).all()
        got = {"w": torch.zeros(9), "list": [0]}
        dcp.load(got, checkpoint_id=f"{folder}/streams")
        assert (got["w"] == 1).all(), got
        assert got["list"] == [1]
    assert no_device.asked == {0}  # no context is made on another device
    dist.destroy_process_group()


def failing(folder, rank, world, store):
    """One rank cannot write: all learn of it, and nobody waits for ever."""
    import torch
    import torch.distributed.checkpoint as dcp
    import ckptfs.dcp
    test_dcp.join(rank, world, store)

    class Planner(dcp.DefaultSavePlanner):
        def create_local_plan(self):
            if rank == "1":
                raise RuntimeError("no plan today")
            return super().create_local_plan()
    saved = ckptfs.dcp.async_save({"w": torch.zeros(5)}, f"{folder}/failing",
                                  planner=Planner())
    for call in (saved.copied, saved.result, saved.copied):
        fails("no plan today", call)
    assert not os.path.exists(f"{folder}/failing/.metadata")
    leave()


def segments(folder, plain):
    """With segment_only nothing is written that no segment holds; without it
    a warning says so, once for a folder."""
    import warnings

    import torch
    import torch.distributed.checkpoint as dcp
    import ckptfs
    from ckptfs.dcp import Writer
    small = {name: torch.zeros(1000) for name in "ab"}
    large = {"w": torch.zeros(80 << 20, dtype=torch.uint8)}
    files = 0
    for state, path, says in (
            (large, f"{folder}/large", "No space left"),
            (small, f"{plain}/small", "not in a ckptfs mount")):
        fails(says, lambda: dcp.save(state, storage_writer=Writer(
            path, segment_only=True), no_dist=True))
        assert os.listdir(path) == [], os.listdir(path)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(2):
                dcp.save(state, storage_writer=Writer(path, thread_count=2),
                         no_dist=True)
        files += 2 * len(state)
        assert ckptfs.counters()["plain_saves"] == files, path
        assert len(os.listdir(path)) == len(state) + 1, os.listdir(path)
        said = [w for w in said if w.category is ckptfs.PlainSaveWarning]
        assert len(said) == 1 and says in str(said[0].message), said
        assert f"{path}/__0_" in str(said[0].message), said
    with warnings.catch_warnings():
        warnings.simplefilter("error", ckptfs.PlainSaveWarning)
        for only in (True, False):
            dcp.save(small, storage_writer=Writer(
                f"{folder}/small", segment_only=only), no_dist=True)
    assert ckptfs.counters()["plain_saves"] == files
    fails("torch writes the files", lambda: Writer(
        folder, segment_only=True, _extensions=[object()]))


PROGRAMS = {f.__name__: f for f in (
    save, check, types, wrapped, reading, halves, lending, planning, passing,
    arguments, segments, extended, asynchronous, processes, streams, failing)}


def ranks(program, fs, world):
    trainer.ranks(__file__, program, fs.dir, world,
                  fs.mnt.rstrip("/") + ".gloo", MASTER_ADDR="127.0.0.1")


def tests():
    @ck.mounted("stage_size=64M", modes=("auto",))
    def with_segment_only_a_save_fails_where_there_is_none(m):
        os.mkdir(m.path("step"))
        plain = os.path.join(m.base, "plain")
        trainer.finish(trainer.start(os.path.abspath(__file__), "segments",
                                     m.path("step"), plain))

    @ck.posix
    def torch_reads_what_was_laid_out_in_segments(fs):
        ranks("save", fs, RANKS)
        readers = {"staged": 1, "durable": 2, "remounted": RANKS, "plain": 2}
        for stage in fs.stages():
            ranks("check", fs, readers[stage])

    @ck.posix
    def tensors_of_all_types_lie_in_it_without_gaps(fs):
        trainer.finish(trainer.start(__file__, "types", fs.dir))

    @ck.posix
    def what_is_no_plain_tensor_is_stored_as_torch_does(fs):
        ranks("wrapped", fs, 2)

    @ck.mounted("structure=refuse", modes=("auto",))
    def a_mount_that_refuses_broken_steps_takes_it(m):
        trainer.finish(trainer.start(__file__, "types", m.mnt))
        m.flush()
        assert "no_archive" not in m.log_text(), m.log_text()

    @ck.posix
    def a_state_is_read_in_place_whatever_its_keys_are_called(fs):
        trainer.finish(trainer.start(__file__, "reading", fs.dir))

    @ck.posix
    def half_of_a_tensor_is_half_a_read(fs):
        trainer.finish(trainer.start(__file__, "halves", fs.dir))

    @ck.posix
    def a_planner_that_lends_one_room_gets_it_back(fs):
        trainer.finish(trainer.start(__file__, "lending", fs.dir))

    @ck.posix
    def who_reads_what_is_the_planners_answer(fs):
        trainer.finish(trainer.start(__file__, "planning", fs.dir))

    @ck.posix
    def what_all_want_costs_nobody_memory_of_its_own(fs):
        ranks("passing", fs, RANKS)

    @ck.posix
    def arguments_are_those_of_torch(fs):
        trainer.finish(trainer.start(__file__, "arguments", fs.dir))

    @ck.posix
    def what_an_extension_transforms_is_torchs(fs):
        ranks("extended", fs, 2)

    @ck.posix
    def a_state_may_change_once_it_is_copied(fs):
        ranks("asynchronous", fs, 2)

    @ck.posix
    def a_state_is_saved_by_another_process(fs):
        ranks("processes", fs, 2)

    @ck.posix
    def a_copy_does_not_queue_behind_what_comes_later(fs):
        trainer.finish(trainer.start(__file__, "streams", fs.dir))

    @ck.posix
    def a_save_that_fails_on_one_rank_ends_on_all(fs):
        ranks("failing", fs, 2)


if __name__ == "__main__":
    trainer.main(PROGRAMS, tests)
