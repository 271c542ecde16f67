#!/usr/bin/env python3
"""train.py - a training loop that can be killed at any time.

    train.py DIRECTORY [--steps N] [--every N] [--keep N]

Every N steps it saves ckpt_STEP.safetensors in the background: while the
bytes are copied the next gradient is computed, which only reads the weights.
It waits for the copy before it changes them, and for the file to be durable
before it deletes older ones. Started again it goes on from the newest file.
"""
import argparse
import hashlib
import os
import re
import sys
import time

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "../python"))
import ckptfs  # noqa: E402


class Checkpoints:
    """The files of one run, in one directory."""

    def __init__(self, folder, keep):
        self.folder, self.keep = folder, keep
        self.save = None  # the last one, until it is durable
        self.copying, self.step, self.stall = False, 0, 0.0

    def path(self, step):
        return os.path.join(self.folder, f"ckpt_{step}.safetensors")

    def steps(self):
        """Of all that are there, the newest first."""
        found = (re.fullmatch(r"ckpt_(\d+)\.safetensors", name)
                 for name in os.listdir(self.folder))
        return sorted((int(m[1]) for m in found if m), reverse=True)

    def load(self, device):
        """The newest that can be read; (0, None): there is none."""
        for step in self.steps():
            try:
                return step, ckptfs.load_file(self.path(step), device)
            except OSError as e:
                print(e, file=sys.stderr)
        return 0, None

    def begin(self, step, tensors):
        self.wait_durable()  # the one before
        start = time.perf_counter()
        self.save = ckptfs.save_file_async(
            tensors, self.path(step), {"format": "pt", "step": str(step)},
            plain=True)  # the directory need not be in a mount
        self.copying, self.step = True, step
        self.stall = time.perf_counter() - start

    def wait_copied(self):
        """The tensors may change when it returns."""
        if not self.copying:
            return
        start = time.perf_counter()
        self.save.copied()
        self.copying = False
        self.stall += time.perf_counter() - start
        print(f"step {self.step}: saved ckpt_{self.step}.safetensors "
              f"(stall {self.stall * 1e3:.1f} ms)", flush=True)

    def wait_durable(self):
        self.wait_copied()
        if self.save is not None:
            self.save.wait()
            self.save = None
            for step in self.steps()[self.keep:]:
                os.unlink(self.path(step))


def tensors_of(model, optimizer):
    """Everything that a step changes, under one name each."""
    out = {f"model.{k}": v for k, v in model.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        out.update({f"optimizer.{index}.{k}": v for k, v in state.items()})
    return out


def restore(tensors, model, optimizer):
    state = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition(".")
        if kind == "optimizer":
            index, _, key = rest.partition(".")
            state.setdefault(int(index), {})[key] = tensor
    model.load_state_dict({k[len("model."):]: v for k, v in tensors.items()
                           if k.startswith("model.")})
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def checksum(tensors):
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(name.encode())
        total.update(tensor.cpu().contiguous().reshape(-1)
                     .view(torch.uint8).numpy())
    return total.hexdigest()[:8]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--keep", type=int, default=2)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 2048), torch.nn.ReLU(),
        torch.nn.Linear(2048, 512)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    files = Checkpoints(args.directory, args.keep)
    done, tensors = files.load(device)
    if tensors is not None:
        restore(tensors, model, optimizer)
        print(f"step {done}: restored")

    for step in range(done + 1, args.steps + 1):
        torch.manual_seed(step)  # the same data, however often it stops
        batch = torch.randn(64, 512, device=device)
        loss = torch.nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        files.wait_copied()
        optimizer.step()
        if step % args.every == 0:
            files.begin(step, tensors_of(model, optimizer))
    files.wait_durable()
    print(f"step {max(done, args.steps)}: done, checksum "
          f"{checksum(tensors_of(model, optimizer))}")


if __name__ == "__main__":
    main()
