"""Times what it costs to look at a step, against its drain.

Prints "structure LOOK DRAIN" for each round, in nanoseconds: LOOK is the
signature of a DCP checkpoint in a mount, with the check of .metadata against
the files, as it is done when the step is published; DRAIN is how long the step
took to become durable. The mount is one that looks at nothing by itself.
"""

import os
import shutil
import subprocess
import sys
import time
import warnings

import torch
import torch.distributed.checkpoint as dcp

TENSORS = 780   # of a tensor parallel rank of Llama-3-8B, with its optimizer


def main():
    mount, plain, ckptctl = sys.argv[1:4]
    rounds, size_bytes = int(sys.argv[4]), int(sys.argv[5])
    warnings.simplefilter("ignore")
    generator = torch.Generator().manual_seed(1)
    state = {f"layers.{i // 10}.{i % 10}.weight":
             torch.rand(size_bytes // TENSORS // 4, generator=generator)
             for i in range(TENSORS)}
    for step in range(rounds):
        for tensor in state.values():
            tensor[:: 1 << 8] += 1
        source = os.path.join(plain, f"dcp_{step}")
        target = os.path.join(mount, f"step_{step}")
        dcp.save(state, checkpoint_id=source, no_dist=True)
        os.sync()
        shutil.copytree(source, target)
        begin = time.monotonic_ns()
        subprocess.run([ckptctl, "flush", mount], check=True)
        drain = time.monotonic_ns() - begin
        begin = time.monotonic_ns()
        os.getxattr(target, "user.ckptfs.structure")
        look = time.monotonic_ns() - begin
        print("structure", look, drain, flush=True)
        shutil.rmtree(source)
        shutil.rmtree(target)


if __name__ == "__main__":
    main()
