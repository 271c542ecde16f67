"""Times torch.save and torch.load on the mount and beside it, in turn.

Prints one line for each pair: "save OURS OTHER" or "load OURS OTHER", in
nanoseconds. The first save of the series is made durable before; what is
timed are later ones.
"""

import mmap
import os
import shutil
import subprocess
import sys
import time

import torch

TENSORS = 24


def state(size_bytes):
    count = size_bytes // TENSORS // 4
    generator = torch.Generator().manual_seed(1)
    return {
        f"layers.{i}.weight": torch.rand(count, generator=generator)
        for i in range(TENSORS)
    }


def warm_up(size_bytes):
    """Touch as much memory as a save uses: a host may have taken it back.

    In huge pages, as both sides take it: who asks for those is not given what
    was touched in small ones.
    """
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # or it is a tmpfs's
    with mmap.mmap(-1, 2 * size_bytes, private) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1


def timed_both(step, size_bytes, ours, other):
    """The times of two (call, arguments...); each is first every other step."""
    sides = [ours, other]
    times = [0, 0]
    for i in (0, 1) if step % 2 else (1, 0):
        warm_up(size_bytes)
        times[i] = timed(*sides[i])
    return times


def timed(call, *arguments):
    begin = time.monotonic_ns()
    result = call(*arguments)
    end = time.monotonic_ns()
    del result
    return end - begin


def save_path(directory, step):
    path = os.path.join(directory, f"step_{step}")
    os.mkdir(path)
    return os.path.join(path, "model.pt")


def main():
    ours, other, ckptctl = sys.argv[1:4]
    rounds, size_bytes = int(sys.argv[4]), int(sys.argv[5])
    content = state(size_bytes)

    torch.save(content, save_path(ours, 1))
    subprocess.run([ckptctl, "flush", ours], check=True)
    for step in range(2, rounds + 2):
        # Other bytes than before, or the step would be a copy of the last.
        for tensor in content.values():
            tensor[:: 1 << 10] += 1
        paths = [save_path(ours, step), save_path(other, step)]
        print("save", *timed_both(step, size_bytes, *(
            (torch.save, content, p) for p in paths)))
        for path in paths:  # once, so that neither side's memory is new
            timed(torch.load, path)
        print("load", *timed_both(step, size_bytes, *(
            (torch.load, p) for p in paths)), flush=True)
        for path in paths:
            shutil.rmtree(os.path.dirname(path))


if __name__ == "__main__":
    main()
