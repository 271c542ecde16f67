"""What engines do with versions of weights: views of one where it lies, pinned;
verl's checkpoint engine, vLLM's weight transfer and checkpoint-engine's buffers,
by the packages themselves where they are installed (engine_stubs.py)."""
import asyncio
import ctypes
import gc
import os
import pickle
import signal
import types

# Before trainer brings the folder of mount tests, which has one of that name.
from test_weights import same, state
import engine_stubs  # pylint: disable=wrong-import-order
import test_weights_shards as shards  # pylint: disable=wrong-import-order
import trainer  # pylint: disable=wrong-import-order
from trainer import ck, raises  # pylint: disable=wrong-import-order

FAKE = os.path.join(ck.BUILD, "tests/gpu/libfake_cuda.so")
ACTORS, ROLLOUTS, STEPS = 2, 2, 3


def child(call):
    """How a child of fork ended that did this; torch's threads it has not."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        try:
            call()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1]


# --- views ---

def views(folder):
    """The file's own memory, pinned, until the last of them is gone."""
    import ckptfs
    cu = ctypes.CDLL(FAKE)
    cu.fake_cuda_pinned_bytes.restype = ctypes.c_uint64
    path, want = f"{folder}/v1", state(1)
    ckptfs.weights.publish(want, path, **shards.options(folder))
    size, before = os.stat(path).st_size, ckptfs.counters()["host_bytes"]
    version = ckptfs.weights.open_version(path)
    got = version.views()
    assert cu.fake_cuda_pinned_bytes() == size
    assert ckptfs.counters()["pinned_bytes"] == size
    assert ckptfs.counters()["host_bytes"] == before, "it was copied"
    same(got, want)
    again = version.views(pin=False)
    assert again["w"].data_ptr() == got["w"].data_ptr()
    (memory, tensors), = version.memory()
    assert sum(one.nbytes for one in want.values()) == memory.nbytes
    for name, dtype, shape, at in tensors:
        tensor = memory[at:at + want[name].nbytes].view(dtype).reshape(shape)
        same({name: tensor}, {name: want[name]})
    # Nobody can write there, and a child of fork may read.
    at, bytes_of = got["w"].data_ptr(), want["w"].numpy().tobytes()
    status = child(lambda: ctypes.memset(at, 0, 1))
    assert os.WTERMSIG(status) == signal.SIGSEGV, status
    assert child(lambda: os._exit(
        ctypes.string_at(at, len(bytes_of)) != bytes_of)) == 0
    assert child(lambda: (got.clear(), version.close())) == 0
    # They are what they were, whatever becomes of the file and its name.
    ckptfs.weights.publish(state(2), path, **shards.options(folder))
    os.unlink(path)
    version.close()
    raises(ValueError, version.views, says="is closed")
    same(got, want)
    assert cu.fake_cuda_pinned_bytes() == size
    del again, memory, tensors, tensor
    kept = got.pop("mask")
    got.clear()
    gc.collect()
    assert cu.fake_cuda_pinned_bytes() == size
    same({"mask": kept}, {"mask": want["mask"]})
    del kept
    assert cu.fake_cuda_pinned_bytes() == 0
    assert ckptfs.counters()["pinned_bytes"] == 0
    # The other way round, and of several files.
    for whole in (ckptfs.weights.publish, ckptfs.weights.publish_shards):
        whole(want, f"{folder}/{whole.__name__}", **shards.options(folder))
        with ckptfs.weights.open_version(f"{folder}/{whole.__name__}") as one:
            same(one.views(), want)
            assert cu.fake_cuda_pinned_bytes() > 0
        assert cu.fake_cuda_pinned_bytes() == 0
    # The program may end while some are held.
    views.held = ckptfs.weights.open_version(f"{folder}/publish").views()


def no_views(folder):
    import torch
    import ckptfs
    path = f"{folder}/v1"
    ckptfs.weights.publish(state(1), path, **shards.options(folder))
    with ckptfs.weights.open_version(path) as version:
        raises(OSError, version.views, says=path, code=19)  # ENODEV
        raises(OSError, version.memory, code=19)
        same(version.views(pin=False), state(1))
    with ckptfs.weights.open_version(path, dtype=torch.float16) as version:
        raises(ValueError, version.views, pin=False, says="`w` has no view")


def buffers(folder):
    """checkpoint-engine's, of the same memory."""
    import torch
    real = engine_stubs.need("checkpoint_engine.data_types",
                             engine_stubs.checkpoint_engine)
    print("real" if real else "stub")
    import ckptfs
    from ckptfs.checkpoint_engine import memory_buffers
    path, want = f"{folder}/v1", state(1)
    ckptfs.weights.publish(want, path, **shards.options(folder))
    with ckptfs.weights.open_version(path) as version:
        raises(OSError, memory_buffers, version, code=19)
        one, = memory_buffers(version, pin=False)
        assert one.buffer.data_ptr() == \
            version.memory(pin=False)[0][0].data_ptr()
    # As ParameterServer makes buckets of it.
    assert one.size == one.buffer.nbytes and not one.manually_pinned
    at, got = 0, {}
    for meta in one.metas:
        piece = one.buffer[at:at + meta.shape.numel() * meta.dtype.itemsize]
        got[meta.name] = piece.view(meta.dtype).view(meta.shape)
        at += meta.aligned_size
    assert at == one.size
    assert isinstance(one.metas[0].shape, torch.Size)
    same(got, want)


# --- verl ---

def verl_worker(folder, meet, role, rank):
    """What verl's CheckpointEngineManager has each worker do."""
    import torch
    import torch.distributed as dist
    real = engine_stubs.need("verl.checkpoint_engine.base", engine_stubs.verl)
    print("real" if real else "stub")
    from verl.checkpoint_engine.base import CheckpointEngineRegistry
    import ckptfs.verl  # noqa: F401, which verl's custom_backend_module does
    rank, is_actor = int(rank), role == "actor"
    number = rank if is_actor else ACTORS + rank
    if is_actor:
        dist.init_process_group("gloo", init_method=f"file://{meet}",
                                rank=rank, world_size=ACTORS)
    store = dist.FileStore(f"{meet}.store", ACTORS + ROLLOUTS)

    def tell_all(what, says):
        store.set(f"{what}.{number}", pickle.dumps(says))
        return [pickle.loads(store.get(f"{what}.{one}"))
                for one in range(ACTORS + ROLLOUTS)]
    kind = CheckpointEngineRegistry.get("ckptfs")
    engine = CheckpointEngineRegistry.new(
        "ckptfs", bucket_size=4000, folder=f"{folder}/w",
        rollout_dtype="bfloat16", **({"is_master": rank == 0} if is_actor
                                     else {}))
    taken = []

    def weights(step):
        for name, tensor in state(step).items():
            taken.append(name)
            yield name, tensor.to_sparse() if step > STEPS and rank == 1 and \
                name == "half" else tensor

    async def received(step):
        return [one async for one in
                engine.receive_weights(global_steps=step)]
    for step in range(1, STEPS + 2):
        said = tell_all(f"{step}.prepare", engine.prepare())
        topology = kind.build_topology(ACTORS, ROLLOUTS, said)
        given = topology[0 if is_actor else 1]
        assert all(len(v) == (ACTORS if is_actor else ROLLOUTS)
                   for v in given.values())
        engine.init_process_group(**{k: v[rank] for k, v in given.items()})
        if step > STEPS:  # one rank fails: all know, and nobody waits
            if is_actor:
                raises(ValueError if rank == 1 else RuntimeError, asyncio.run,
                       engine.send_weights(weights(step)), says="sparse")
                assert len(taken) == step * len(state(1)), "others would hang"
            else:
                raises(FileNotFoundError, asyncio.run, received(step),
                       says="gave it up")
            break
        if is_actor:
            asyncio.run(engine.send_weights(weights(step), global_steps=step))
            raises(RuntimeError, asyncio.run, received(step), says="actor has")
        else:
            want = {k: t.bfloat16() if t.is_floating_point() else t
                    for k, t in state(step).items()}
            same(dict(asyncio.run(received(step))), want)
            raises(RuntimeError, asyncio.run,
                   engine.send_weights(weights(step)), says="rollout has")
        tell_all(f"{step}.done", None)
        engine.finalize()
        tell_all(f"{step}.finalized", None)
        name, = os.listdir(f"{folder}/w")
        assert name == said[0]["name"], name
        assert ckptfs.weights.load(f"{folder}/w/{name}")["half"].dtype == \
            torch.bfloat16
        tell_all(f"{step}.looked", None)
    raises(ValueError, kind.build_topology, 1, 1, [None, None], says="master")
    raises(FileNotFoundError, engine.init_process_group, rank=0, actors=1,
           version={"name": "verl-1", "token": 1}, says="share")
    for wrong in ({"rollout_dtype": "bf16"}, {"keep": 0}):
        raises(ValueError, kind, 1, folder, says=next(iter(wrong)) if "keep" in
               wrong else "bf16", **wrong)
    if is_actor:
        shards.leave()


# --- vLLM ---

def served():
    """A model as a worker of vLLM has it: what it is given it may keep until a
    layer of it is whole."""
    import torch

    class Served(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(13, 7), torch.nn.Linear(7, 3))
            self.given = []

        def load_weights(self, weights):
            weights = list(weights)
            self.given.append(weights)
            params = dict(self.named_parameters())
            for name, one in weights:
                param = params[name]
                getattr(param, "weight_loader", lambda param, one:
                        param.data.copy_(one))(param, one)
    return Served()


def vllm_ranks(folder, rank, world, meet):
    """A trainer's ranks, and a worker in the process of the first."""
    import torch
    from torch.distributed.fsdp import fully_shard
    real = engine_stubs.need("vllm.distributed.weight_transfer.factory",
                             engine_stubs.vllm)
    print("real" if real else "stub")
    from vllm.distributed.weight_transfer import base, factory
    from vllm.model_executor.model_loader import reload
    import ckptfs.vllm
    ckptfs.vllm.register()  # once more: plugins are loaded again
    mesh = shards.join(rank, world, meet)
    if real and not torch.accelerator.is_available():
        torch.accelerator.synchronize = lambda: None
    for name, tensor in shards.sharded(1, mesh).items():
        if hasattr(tensor, "device_mesh"):
            check_place(base, name, tensor, int(rank))
    torch.manual_seed(1)
    model = served()
    want = {k: t.clone() for k, t in model.state_dict().items()}
    fully_shard(model)
    worker = served()
    if real:
        reload.record_metadata_for_reloading(worker)
    engine = factory.WeightTransferEngineFactory.create_engine(
        types.SimpleNamespace(backend="ckptfs"),
        types.SimpleNamespace(parallel_config=None, model_config=None),
        torch.device("cpu"), worker)
    client = types.SimpleNamespace(
        init_weight_transfer_engine=lambda info: engine.init_transfer_engine(
            engine.parse_init_info(info)),
        start_weight_update=engine.start_weight_update,
        update_weights=engine.update_weights,
        finish_weight_update=engine.finish_weight_update)

    class Whole(base.ModuleSource):
        iter_local = base.WeightSource.iter_local
    raises(RuntimeError, engine.receive_weights, None, says="comes first")
    raises(ValueError, engine.parse_update_info, {"path": 1})
    raises(FileNotFoundError, client.init_weight_transfer_engine,
           {"folder": f"{folder}/none"}, says="share")
    for number, source in enumerate((base.ModuleSource(model), Whole(model))):
        where = f"{folder}/{number}"
        init = ckptfs.vllm.TrainerInit(rank=int(rank), folder=where,
                                       bucket_bytes=100)
        sender = factory.WeightTransferTrainerFactory.trainer_init(
            init, client=client, source=source)
        for scale in (1, 2):
            with torch.no_grad():
                for param in model.parameters():
                    param.mul_(scale)
            want = {k: t * scale for k, t in want.items()}
            worker.given.clear()
            sender.send_weights()
            if rank == "0":
                same({k: t.detach() for k, t in worker.named_parameters()},
                     want)
                assert len(worker.given) > 1, "one bucket"
                same(dict(one for some in worker.given for one in some), want)
                name, = os.listdir(where)
                assert name.startswith("vllm-"), name
                parts = {one[:10] for one in os.listdir(f"{where}/{name}")}
                assert parts == {"manifest.s", "part-00000", "part-00001"}
    if not real and rank == "0":
        assert reload.told == ["start", "finish"] * 4
    raises(ValueError, factory.WeightTransferTrainerFactory.trainer_init, init,
           client=client, says="WeightSource")
    engine.shutdown()
    shards.leave()


def check_place(base, name, tensor, rank):
    """What is told of the metadata is what torch has."""
    from torch.distributed.tensor import Shard
    from ckptfs._pieces import shard_of
    from ckptfs.vllm import place_of
    meta = base.ParamMeta(
        name, tensor.dtype, tuple(tensor.shape),
        owners=tuple(tensor.device_mesh.mesh.flatten().tolist()),
        mesh_shape=tuple(tensor.device_mesh.mesh.shape),
        placements=tuple(base.Shard(one.dim) if isinstance(one, Shard) else
                         base.Replicate() for one in tensor.placements))
    shape, at, own = shard_of(tensor)
    assert meta.shape == shape
    place = place_of(meta, rank)
    assert place[1] == tuple(own.shape), (name, place, own.shape)
    assert not own.numel() or place[0] == at, (name, place, at)


# --- the tests ---

PROGRAMS = {f.__name__: f for f in (
    views, no_views, buffers, verl_worker, vllm_ranks)}


def run(name, *argv):
    trainer.finish(trainer.start(__file__, name, *argv))


def tests():
    @ck.posix
    def views_are_the_file_pinned_until_the_last_is_gone(fs):
        trainer.finish(trainer.start_new(__file__, "views", fs.dir,
                                         CKPT_CUDA_LIBRARY=FAKE))
        run("no_views", fs.dir)

    @ck.posix
    def checkpoint_engine_gets_the_memory_itself(fs):
        run("buffers", fs.dir)

    @ck.posix
    def verl_sends_versions_to_its_rollouts(fs):
        meet = fs.mnt.rstrip("/") + ".verl"
        trainer.finish(*(trainer.start(
            __file__, "verl_worker", fs.dir, meet, role, rank,
            MASTER_ADDR="127.0.0.1")
            for role, count in (("actor", ACTORS), ("rollout", ROLLOUTS))
            for rank in range(count)))
        for left in (meet, f"{meet}.store"):
            if os.path.exists(left):
                os.unlink(left)

    @ck.posix
    def vllm_loads_versions_of_a_trainers_shards(fs):
        shards.trainer.ranks(__file__, "vllm_ranks", fs.dir, 2,
                             fs.mnt.rstrip("/") + ".vllm",
                             MASTER_ADDR="127.0.0.1")


if __name__ == "__main__":
    trainer.main(PROGRAMS, tests)
