"""Times safetensors.torch.save_file on the mount and beside it, in turn.

Prints "OURS OTHER" for each round, in nanoseconds. The first save is made
durable before; what is timed are later ones, each into a folder of its own.
"""

import os
import shutil
import subprocess
import sys

import safetensors.torch
from torch_pairs import state, timed_both


def save_path(directory, step):
    path = os.path.join(directory, f"step_{step}")
    os.mkdir(path)
    return os.path.join(path, "model.safetensors")


def main():
    ours, other, ckptctl = sys.argv[1:4]
    rounds, size_bytes = int(sys.argv[4]), int(sys.argv[5])
    content = state(size_bytes)

    for step in range(1, rounds + 2):
        # Other bytes than before, or the step would be a copy of the last.
        for tensor in content.values():
            tensor[:: 1 << 10] += 1
        paths = [save_path(d, step) for d in (ours, other)]
        times = timed_both(step, size_bytes, *(
            (safetensors.torch.save_file, content, p) for p in paths))
        subprocess.run([ckptctl, "flush", ours], check=True)
        found = safetensors.torch.load_file(paths[0])
        for name, tensor in content.items():
            if not found[name].equal(tensor):
                sys.exit(f"'{name}' is not what was saved")
        if step > 1:
            print(*times, flush=True)
        for path in paths:
            shutil.rmtree(os.path.dirname(path))


if __name__ == "__main__":
    main()
