#!/usr/bin/env python3
"""weights.py - a trainer's weights, followed by an engine in another process.

    weights.py trainer FOLDER [--versions N]
    weights.py engine FOLDER [--pin]
    weights.py FOLDER                           both, the engine as a child

The trainer publishes a version after each step and removes the one before. The
engine loads the newest, as often as there is one, into the weights that it
generates with; what it has open stays whole. Both count how often they copied
each byte: once from the trainer's device, once to the engine's.
"""
import argparse
import glob
import hashlib
import os
import subprocess
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "../python"))
import ckptfs  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def make_model(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(512, 2048), torch.nn.ReLU(),
        torch.nn.Linear(2048, 512)).to(DEVICE)


def bytes_of(tensors):
    return sum(t.numel() * t.element_size() for t in tensors.values())


def checksum(tensors):
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(name.encode())
        total.update(tensor.cpu().contiguous().reshape(-1)
                     .view(torch.uint8).numpy())
    return total.hexdigest()[:8]


def copies(counter, size):
    """Of each byte, as the library counted them in this process."""
    return ckptfs.counters()[counter] / size


def trainer(folder, versions):
    model = make_model(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    published, before = 0, None
    for version in range(1, versions + 1):
        batch = torch.randn(64, 512, device=DEVICE)
        torch.nn.functional.mse_loss(model(batch), batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        state = model.state_dict()
        path = os.path.join(folder, f"v{version}.safetensors")
        ckptfs.weights.publish(
            state, path, {"checksum": checksum(state),
                          "last": str(version == versions)},
            plain=True)  # the folder need not be in a mount
        published += bytes_of(state)
        if before is not None:
            os.unlink(before)  # who has it open keeps it
        before = path
    counter = "d2h_bytes" if DEVICE == "cuda" else "host_bytes"
    print(f"trainer: {versions} versions, {copies(counter, published):.2f} "
          f"copies of each byte from the device", flush=True)


def engine(folder, pin):
    state, loaded, count = make_model(1).state_dict(), 0, 0
    for version in ckptfs.weights.follow(folder):
        with version:
            if pin:
                version.pin()
            version.load_into(state)
            said = version.metadata()
        loaded += bytes_of(state)
        count += 1
        if checksum(state) != said["checksum"]:
            sys.exit(f"engine: {version.name} is not what was published")
        print(f"engine: generates with {version.name}, checksum "
              f"{said['checksum']}", flush=True)
        if said["last"] == "True":
            break
    on_device = DEVICE == "cuda"
    counter = "h2d_bytes" if on_device else "host_bytes"
    print(f"engine: {count} versions loaded, {copies(counter, loaded):.2f} "
          f"copies of each byte to the device, of these "
          f"{copies('buffered_bytes', loaded):.2f} through a buffer",
          flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("role", nargs="?", choices=("trainer", "engine"))
    parser.add_argument("folder")
    parser.add_argument("--versions", type=int, default=10)
    parser.add_argument("--pin", action="store_true",
                        help="the engine pins each version")
    args = parser.parse_args()
    if args.role == "engine":
        engine(args.folder, args.pin)
        return
    for left in glob.glob(os.path.join(args.folder, "v*.safetensors")):
        os.unlink(left)  # of a run before: its last version ends an engine
    child = args.role is None and subprocess.Popen(
        [sys.executable, os.path.abspath(__file__), "engine", args.folder,
         *(["--pin"] if args.pin else [])])
    trainer(args.folder, args.versions)
    if child:
        sys.exit(child.wait())


if __name__ == "__main__":
    main()
