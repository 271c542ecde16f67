"""torch.distributed.checkpoint with four gloo ranks: sharded, replicated and
frozen tensors, two steps, an overwrite in place and an asynchronous save;
loaded by four ranks, by two, and by one without a process group. And what two
of them are told when the daemon dies while they save."""
import errno
import os
import signal

import trainer
from trainer import ck

RANKS = 4
STEPS = (10, 20)


def join(rank, world, store):
    import torch.distributed as dist
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{store}",
                            rank=int(rank), world_size=int(world))


def full(step):
    """The state as one rank would hold it all; "frozen" is in every step."""
    import torch
    g = torch.Generator().manual_seed(step)
    f = torch.Generator().manual_seed(0)
    return {
        "sharded": torch.randn(1022, 515, generator=g),
        "bf16": torch.randn(400, 33, generator=g).to(torch.bfloat16),
        "frozen.sharded": torch.randn(2048, 512, generator=f),
        "replicated": torch.randn(300, 100, generator=g),
        "frozen.replicated": torch.randn(512, 512, generator=f),
        "step": torch.tensor(step),
        "extra": {"lr": 1e-4, "name": "odd \u00e4", "list": [1, 2, step]},
    }


def sharded(step, empty=False):
    """What this rank passes to DCP: row shards where the name says so."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    out = {}
    for name, value in full(step).items():
        if isinstance(value, torch.Tensor):
            value = torch.zeros_like(value) if empty else value
            if "sharded" in name or name == "bf16":
                value = distribute_tensor(value, mesh, [Shard(0)])
        elif empty:
            value = {"lr": 0.0, "name": "", "list": [0, 0, 0]}
        out[name] = value
    return out


def save(folder, rank, world, store):
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    join(rank, world, store)
    for step in STEPS:
        dcp.save(sharded(step), checkpoint_id=f"{folder}/step_{step}")
        # what each rank keeps for itself: replicas, but of the step
        torch.save({k: v for k, v in full(step).items() if "replic" in k},
                   f"{folder}/step_{step}/replica_{rank}.pt")
    for step in (99, 30):  # the second overwrites the first in place
        dcp.save(sharded(step), storage_writer=dcp.FileSystemWriter(
            f"{folder}/again", overwrite=True, thread_count=2))
    dcp.async_save(sharded(40), checkpoint_id=f"{folder}/async").result()
    if rank == "0":
        with open(f"{folder}/latest", "w", encoding="utf-8") as f:
            f.write(f"step_{STEPS[-1]}")
    dist.barrier()
    dist.destroy_process_group()


def check(folder, rank, world, store):
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    join(rank, world, store)
    for name, step in checkpoints():
        got = sharded(step, empty=True)
        dcp.load(got, checkpoint_id=f"{folder}/{name}")
        compare({k: v.to_local() if hasattr(v, "to_local") else v
                 for k, v in got.items()},
                {k: v.to_local() if hasattr(v, "to_local") else v
                 for k, v in sharded(step).items()}, name)
    dist.barrier()
    dist.destroy_process_group()


def check_alone(folder):
    """One process reads all shards into whole tensors."""
    import torch
    import torch.distributed.checkpoint as dcp
    for name, step in checkpoints():
        got = {k: torch.zeros_like(v) if isinstance(v, torch.Tensor) else
               {"lr": 0.0, "name": "", "list": [0, 0, 0]}
               for k, v in full(step).items()}
        dcp.load(got, checkpoint_id=f"{folder}/{name}", no_dist=True)
        compare(got, full(step), name)
    for step in STEPS:
        for rank in range(RANKS):
            got = torch.load(f"{folder}/step_{step}/replica_{rank}.pt")
            compare(got, {k: v for k, v in full(step).items()
                          if "replic" in k}, f"replica {rank}")


def outlive(folder, rank, world, store, daemon):
    """The daemon goes when all have planned and nobody has written."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    join(rank, world, store)

    class Writer(dcp.FileSystemWriter):
        def write_data(self, plan, planner):
            dist.barrier()
            if rank == "0":
                os.killpg(int(daemon), signal.SIGKILL)
            return super().write_data(plan, planner)

    try:
        try:
            dcp.save(sharded(50), storage_writer=Writer(f"{folder}/dead"))
        except Exception as e:  # it is none: gpu/FRAMEWORKS.md
            raise AssertionError(f"{type(e).__name__} was raised") from e
    except dcp.api.CheckpointException as e:
        met = {of: why.errno for of, (why, _) in e.failures.items()}
    else:
        raise AssertionError("the save said that it worked")
    # It is dead, or died while a call waited.
    assert sorted(met) == list(range(int(world))), met
    assert set(met.values()) <= {errno.ENOTCONN, errno.ECONNABORTED}, met
    dist.destroy_process_group()


def checkpoints():
    return [*((f"step_{s}", s) for s in STEPS), ("again", 30), ("async", 40)]


def compare(got, want, what):
    import torch
    assert sorted(got) == sorted(want), (what, sorted(got))
    for key, w in want.items():
        same = torch.equal(got[key], w) if isinstance(w, torch.Tensor) \
            else got[key] == w
        assert same, f"{what} {key}: {got[key]} instead of {w}"


def tests():
    @ck.posix
    def every_shard_is_loaded_as_it_was_saved(fs):
        store = fs.mnt.rstrip("/") + ".gloo"  # where the ranks meet
        trainer.ranks(__file__, "save", fs.dir, RANKS, store)
        readers = {"staged": 0, "durable": 2, "remounted": RANKS,
                   "plain": RANKS}
        for stage in fs.stages():
            trainer.ranks(__file__, "check", fs.dir, readers[stage], store)
            trainer.finish(trainer.start(__file__, "alone", fs.dir))
        assert ".metadata" in os.listdir(fs.path("step_10"))
        if not fs.plain:
            frozen = 2048 * 512 * 4 + 512 * 512 * 4
            s = fs.status()
            # frozen: five saves, one copy; replicas: four ranks and DCP's own
            assert s["shared_bytes"] > 4 * frozen, s

    @ck.mounted()
    def who_outlives_the_daemon_is_told_what_each_rank_has_met(m):
        store = m.mnt.rstrip("/") + ".gloo"
        trainer.finish(*(
            trainer.start(__file__, "outlive", m.dir, rank, 2, store,
                          m.proc.pid)
            for rank in range(2)))
        m.kill()


if __name__ == "__main__":
    trainer.main({"save": save, "check": check, "alone": check_alone,
                  "outlive": outlive}, tests)
