#!/usr/bin/env python3
"""quickstart.py - the torch job that quickstart.sh runs; no part of the product.

save: RANKS processes train a small model and save it with torch.save after
each step, as step_1/rank_0.pt and so on. What is in a rank's file:

    embed       frozen: the same in all steps, another one on each rank
    trunk       replicated: the same on all ranks, another one in each step
    expert      the rank's own: different everywhere
    optimizers  of trunk (replicated too) and of expert (own)

A digest of every tensor goes to EXPECTED, outside of the mount.
load: as many processes load the files again and compare every tensor.

exit code: 0 fine; 1 a tensor differs or something failed
"""

import argparse
import ctypes
import hashlib
import json
import multiprocessing
import multiprocessing.connection
import os
import queue
import signal
import subprocess
import sys
import threading
import time

import torch

WIDTH = 1024
FROZEN_ROWS = 18 * 1024  # 72 MiB
TRUNK_ROWS = 4 * 1024  # 16 MiB, and as much momentum
EXPERT_ROWS = 2 * 1024  # 8 MiB, and twice that in moments
BATCH = 32


class Model(torch.nn.Module):
    def __init__(self, rank):
        super().__init__()
        torch.manual_seed(1000 + rank)
        self.embed = torch.nn.Embedding(FROZEN_ROWS, WIDTH)
        self.embed.weight.requires_grad_(False)
        self.expert = torch.nn.Linear(WIDTH, EXPERT_ROWS)
        torch.manual_seed(0)
        self.trunk = torch.nn.Linear(WIDTH, TRUNK_ROWS)


def train(model, optimizers, step, rank):
    """One step. The trunk sees the same batch on all ranks, as it would after
    gradients were averaged; the expert sees the rank's own tokens."""
    torch.manual_seed(step)
    shared = torch.randn(BATCH, WIDTH)
    torch.manual_seed(step * 1000 + rank)
    own = model.embed(torch.randint(FROZEN_ROWS, (BATCH,)))
    loss = model.trunk(shared).square().mean() + (model.expert(own) - 1).square().mean()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def digests(value, name=""):
    """name -> [dtype, shape, digest] of every tensor, and of other values."""
    if isinstance(value, torch.Tensor):
        value = value.detach().contiguous()
        size = value.numel() * value.element_size()
        data = (ctypes.c_char * size).from_address(value.data_ptr()) if size else b""
        digest = hashlib.blake2b(data, digest_size=16).hexdigest()
        return {name: [str(value.dtype), list(value.shape), digest]}
    if isinstance(value, (dict, list, tuple)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        found = {}
        for key, inner in items:
            found.update(digests(inner, f"{name}.{key}" if name else str(key)))
        return found
    return {name: [type(value).__name__, [], repr(value)]}


def file_of(args, step, rank):
    return os.path.join(args.dir, f"step_{step}", f"rank_{rank}.pt")


def save_rank(args, rank, turn, report):
    model = Model(rank)
    optimizers = [
        torch.optim.SGD(model.trunk.parameters(), lr=0.1, momentum=0.9),
        torch.optim.AdamW(model.expert.parameters(), lr=1e-3),
    ]
    expected = {}
    for step in range(1, args.steps + 1):
        train(model, optimizers, step, rank)
        state = {
            "step": step,
            "model": model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        }
        path = file_of(args, step, rank)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        turn.wait()
        start = time.monotonic()
        torch.save(state, path)
        report.put((start, time.monotonic(), os.path.getsize(path)))
        turn.wait()  # all have saved: the parent flushes
        turn.wait()
        expected[path] = digests(state)
    with open(os.path.join(args.expected, f"rank_{rank}.json"), "w") as f:
        json.dump(expected, f)


def load_rank(args, rank, turn, report):
    with open(os.path.join(args.expected, f"rank_{rank}.json")) as f:
        expected = json.load(f)
    loaded, size = {}, 0
    turn.wait()
    start = time.monotonic()
    for path in expected:
        loaded[path] = torch.load(path, map_location="cpu", weights_only=False)
        size += os.path.getsize(path)
    end = time.monotonic()
    tensors = 0
    for path, wanted in expected.items():
        found = digests(loaded[path])
        for name in sorted(wanted.keys() | found.keys()):
            if wanted.get(name) != found.get(name):
                raise ValueError(
                    f"{path}: {name} differs: saved {wanted.get(name)}, "
                    f"loaded {found.get(name)}"
                )
            tensors += wanted[name][0].startswith("torch.")
    report.put((start, end, size, tensors))


def rank_main(work, args, rank, turn, report):
    try:
        torch.set_num_threads(1)
        work(args, rank, turn, report)
    except threading.BrokenBarrierError:
        sys.exit(1)  # another rank has said why
    except Exception as e:
        print(f"quickstart: rank {rank}: {e}", file=sys.stderr, flush=True)
        sys.exit(1)


class Ranks:
    """The processes. turn is where they and this one wait for each other; it
    is broken when one of them fails or is killed."""

    def __init__(self, work, args):
        fork = multiprocessing.get_context("fork")
        self.turn = fork.Barrier(args.ranks + 1)
        self.report = fork.Queue()
        self.all = [
            fork.Process(
                target=rank_main, args=(work, args, r, self.turn, self.report), daemon=True
            )
            for r in range(args.ranks)
        ]
        for process in self.all:
            process.start()
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.watcher.start()

    def watch(self):
        left = {process.sentinel: process for process in self.all}
        while left:
            for sentinel in multiprocessing.connection.wait(list(left)):
                process = left.pop(sentinel)
                process.join()
                if process.exitcode != 0:
                    if process.exitcode < 0 and process.exitcode != -signal.SIGTERM:
                        print(
                            f"quickstart: {process.name} was killed by signal "
                            f"{-process.exitcode}",
                            file=sys.stderr,
                        )
                    self.turn.abort()

    def figures(self):
        """One report of each rank: seconds from the first start to the last
        end, and the rest summed up."""
        got = []
        while len(got) < len(self.all):
            try:
                got.append(self.report.get(timeout=1))
            except queue.Empty:
                if self.turn.broken:
                    raise threading.BrokenBarrierError from None
        seconds = max(g[1] for g in got) - min(g[0] for g in got)
        return seconds, [sum(column) for column in list(zip(*got))[2:]]

    def join(self):
        """Only the watcher may wait for the processes."""
        self.watcher.join()
        if self.turn.broken:
            raise threading.BrokenBarrierError


def rate(size, seconds):
    return f"{size / 1e9:.2f} GB in {seconds:.2f} s, {size / 1e9 / seconds:.2f} GB/s"


def save(args):
    ranks = Ranks(save_rank, args)
    for step in range(1, args.steps + 1):
        ranks.turn.wait()
        seconds, (size,) = ranks.figures()
        ranks.turn.wait()
        start = time.monotonic()
        subprocess.run([args.ckptctl, "flush", args.dir], check=True)
        durable = time.monotonic() - start
        print(
            f"step {step}: {args.ranks} ranks saved {rate(size, seconds)}; "
            f"durable {durable:.2f} s later",
            flush=True,
        )
        ranks.turn.wait()
    ranks.join()


def load(args):
    ranks = Ranks(load_rank, args)
    ranks.turn.wait()
    seconds, (size, tensors) = ranks.figures()
    ranks.join()
    print(f"load: {args.ranks} ranks loaded {rate(size, seconds)}")
    print(f"compare: all {tensors} tensors are what was saved")


def main():
    parser = argparse.ArgumentParser(description="See the head of this file.")
    parser.add_argument("work", choices=["save", "load"])
    parser.add_argument("dir", help="where the steps are, in the mount")
    parser.add_argument("expected", help="a directory for the digests, outside")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--ckptctl", default="ckptctl")
    args = parser.parse_args()
    try:
        (save if args.work == "save" else load)(args)
    except threading.BrokenBarrierError:
        return 1  # a rank has said why
    except subprocess.CalledProcessError:
        return 1  # so has ckptctl
    except OSError as e:
        print(f"quickstart: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
