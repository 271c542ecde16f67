"""Times ckptfs.save_file on the mount and safetensors.torch.save_file beside
it, in turn, with the same host tensors.

Prints "OURS OTHER" for each round, in nanoseconds. Both have saved the same
structure before, and what ours wrote is durable before the clock starts again;
other bytes are saved each time.
"""

import os
import subprocess
import sys

import safetensors.torch
from torch_pairs import state, timed_both

import ckptfs


def main():
    ours, other, ckptctl = sys.argv[1:4]
    rounds, size_bytes = int(sys.argv[4]), int(sys.argv[5])
    content = state(size_bytes)
    paths = [os.path.join(d, "model.safetensors") for d in (ours, other)]
    calls = [ckptfs.save_file, safetensors.torch.save_file]

    for step in range(rounds + 2):  # two, for there are two segments
        for tensor in content.values():
            tensor[:: 1 << 10] += 1
        # Ours as the second: its drain would run beside the other one.
        times = timed_both(0, size_bytes, *(
            (call, content, p) for call, p in zip(calls, paths)))
        subprocess.run([ckptctl, "flush", ours], check=True)
        if step >= 2:
            print(*times, flush=True)
    found = safetensors.torch.load_file(paths[0])
    for name, tensor in content.items():
        if not found[name].equal(tensor):
            sys.exit(f"'{name}' is not what was saved")


if __name__ == "__main__":
    main()
