#!/usr/bin/env python3
"""stash.py - a layer of experts whose tokens vary, with a stash and without.

    stash.py [--steps N] [--tokens N] [--experts N]

The layer is one rank's: it has half of the experts. Each has a buffer with room
for all tokens, as all could choose it, and how many did only the device knows.
From half of the steps on the router is pulled towards one of them, which the
rings were not made for: that step is done twice. Both runs see the same
batches. At the end the gradients of all steps are compared bit by bit, and what
was held between forward and backward is told.
"""
import argparse
import hashlib
import os
import sys

import torch
import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "../python"))
import ckptfs.stash  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WIDTH, HIDDEN = 96, 320


class Experts(torch.nn.Module):
    """One expert of `experts` for each token, of which the first half is here;
    no host code asks how many tokens went where."""

    def __init__(self, experts, stash=None):
        super().__init__()
        self.router = torch.nn.Linear(WIDTH, experts)
        here = experts // 2
        self.gate, self.up = (
            torch.nn.Parameter(torch.randn(here, WIDTH, HIDDEN) * 0.05)
            for _ in range(2))
        self.down = torch.nn.Parameter(torch.randn(here, HIDDEN, WIDTH) * 0.05)
        self.stash = stash

    def expert(self, e, x):
        return (F.silu(x @ self.gate[e]) * (x @ self.up[e])) @ self.down[e]

    def rows(self, count, max_rows):
        return self.stash.rows(count, max_rows)

    def forward(self, x, pull):
        tokens = len(x)
        weights, chosen = (self.router(x) + pull).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for e in range(len(self.gate)):
            mine = chosen == e
            # A token's row in the buffer; the row behind it is for the others.
            row = torch.where(mine, mine.cumsum(0) - 1, tokens)
            buffer = x.new_zeros(tokens + 1, WIDTH).index_copy(0, row, x)
            with self.rows(mine.sum(), tokens):
                y = self.expert(e, buffer[:tokens])
            y = torch.cat([y, y.new_zeros(1, WIDTH)])
            out = out + y.index_select(0, row) * mine[:, None]
        return x + out * weights[:, None]


class Whole(Experts):
    """The same, keeping the buffers whole; it counts them."""
    held = 0

    def rows(self, count, max_rows):
        storages = {}

        def keep(t):
            if t.shape[:1] == (max_rows,):
                storages[t.untyped_storage().data_ptr()] = t.nbytes
                self.held = self.before + sum(storages.values())
            return t.detach()
        self.before = self.held
        return torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t)


def batches(steps, tokens, experts):
    made = torch.Generator().manual_seed(1)
    for step in range(steps):
        pull = torch.zeros(experts)
        if step >= steps // 2:
            pull[0] = 2.0
        yield (torch.randn(tokens, WIDTH, generator=made).to(DEVICE),
               pull.to(DEVICE))


def train(layer, args, run, forwarded):
    """A checksum of the gradients for each step."""
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    sums = []

    def step(x, pull):  # zeroes first: it may run twice
        optimizer.zero_grad()
        loss = layer(x, pull).square().mean()
        forwarded()
        loss.backward()

    for x, pull in batches(args.steps, args.tokens, args.experts):
        run(step, x, pull)
        total = hashlib.sha256()
        for one in layer.parameters():
            total.update(one.grad.cpu().numpy())
        sums.append(total.hexdigest())
        optimizer.step()
    return sums


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--experts", type=int, default=8)
    args = parser.parse_args()

    torch.manual_seed(0)
    whole = Whole(args.experts).to(DEVICE)
    stashed = Experts(args.experts).to(DEVICE)
    stashed.load_state_dict(whole.state_dict())
    stashed.stash = stash = ckptfs.stash.Stash(stashed, min_bytes=0)
    whole_bytes, used_bytes, ring_bytes, forwards = [], [], [], []

    def whole_forwarded():
        whole_bytes.append(whole.held)
        whole.held = 0

    def stash_forwarded():
        forwards.append(stash.padded_bytes)
        state = stash.state().values()
        used_bytes.append(sum(s["page_bytes"] * sum(s["used"])
                              for s in state))
        ring_bytes.append(sum(s["page_bytes"] * sum(s["pages"])
                              for s in state))

    want = train(whole, args, lambda f, *a: f(*a), whole_forwarded)
    got = train(stashed, args, stash.run, stash_forwarded)
    if got != want:
        sys.exit("stash: the gradients differ")
    print(f"stash: {args.steps} steps on {DEVICE}, {len(forwards)} forwards, "
          "gradients are those without it, bit by bit")
    print(f"stash: held between forward and backward: {max(whole_bytes)} "
          f"bytes without it, {max(used_bytes)} in pages of rings of "
          f"{max(ring_bytes)}")


if __name__ == "__main__":
    main()
