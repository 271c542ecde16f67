#!/usr/bin/env python3
"""quickstart-cluster.py - the torch job that quickstart-cluster.sh runs; no
part of the product.

save STEP DIR...: a rank for each DIR, which is the same folder as that rank's
node sees it, saves its shard with torch's distributed checkpoint.
load STEP DIR...: as many ranks load that step and compare every value.
resume DIR...: load the newest step that can be loaded; its number is printed.

exit code: 0 fine; 1 a value differs, or something failed
"""

import argparse
import multiprocessing
import os
import signal
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

ROWS, WIDTH = 16 * 1024, 1024  # of each rank: 64 MiB


def shard(step, rank):
    generator = torch.Generator().manual_seed(step * 1000 + rank)
    return torch.randn(ROWS, WIDTH, generator=generator)


def state(local, step):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {
        "weights": DTensor.from_local(local, mesh, [Shard(0)]),
        "step": torch.tensor(step),
    }


def path_of(folder, step):
    return os.path.join(folder, f"step_{step}")


class Writer(dcp.FileSystemWriter):
    """Kills a process when all shards are closed, before .metadata is there."""

    def __init__(self, path, pid):
        super().__init__(path)
        self.pid = pid

    def finish(self, metadata, results):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
        super().finish(metadata, results)


def save(args, folder, rank):
    step, begin = args.step, time.monotonic()
    dcp.save(
        state(shard(step, rank), step),
        storage_writer=Writer(path_of(folder, step), args.kill),
    )
    if rank == 0:
        size = ROWS * WIDTH * 4 * dist.get_world_size()
        print(
            f"step {step}: {dist.get_world_size()} ranks saved {size / 1e9:.2f} GB "
            f"in {time.monotonic() - begin:.2f} s",
            flush=True,
        )


def load(args, folder, rank):
    load_step(args.step, folder, rank)


def load_step(step, folder, rank):
    got = state(torch.zeros(ROWS, WIDTH), 0)
    dcp.load(got, checkpoint_id=path_of(folder, step))
    if not torch.equal(got["weights"].to_local(), shard(step, rank)):
        raise ValueError(f"step {step}: a value differs")
    if int(got["step"]) != step:
        raise ValueError(f"step {step}: it says step {int(got['step'])}")
    if rank == 0:
        print(f"step {step}: loaded, every value is what was saved", flush=True)


def why(error):
    """The first rank's own error, of what DCP makes of them."""
    for failure in getattr(error, "failures", {}).values():
        return failure[0]
    return error


def resume(args, folder, rank):
    steps = sorted((int(n.split("_")[1]) for n in os.listdir(folder)), reverse=True)
    for step in steps:
        try:
            load_step(step, folder, rank)
            return
        except (OSError, dcp.api.CheckpointException) as e:
            if rank == 0:
                print(f"step {step}: not whole here: {why(e)}", flush=True)
    raise ValueError("no step can be loaded")


def rank_main(args, rank, meet):
    try:
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", init_method=f"file://{meet}", rank=rank, world_size=len(args.dirs)
        )
        work = {"save": save, "load": load, "resume": resume}[args.work]
        work(args, args.dirs[rank], rank)
        dist.barrier()
        dist.destroy_process_group()
    except Exception as e:
        print(f"quickstart: rank {rank}: {why(e)}", file=sys.stderr, flush=True)
        os._exit(1)


def main():
    parser = argparse.ArgumentParser(description="See the head of this file.")
    parser.add_argument("work", choices=["save", "load", "resume"])
    parser.add_argument("--step", type=int, default=0)
    parser.add_argument("--kill", type=int, metavar="PID", help="while saving")
    parser.add_argument("dirs", nargs="+", help="one for each rank")
    args = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as meeting:
        fork = multiprocessing.get_context("fork")
        ranks = [
            fork.Process(target=rank_main, args=(args, r, os.path.join(meeting, "all")))
            for r in range(len(args.dirs))
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        return int(any(process.exitcode for process in ranks))


if __name__ == "__main__":
    sys.exit(main())
