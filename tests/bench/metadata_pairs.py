"""Times inspecting a large .metadata, against torch's own reader of it.

Prints "metadata OURS OTHER KIB" for each round: all of `ckptctl inspect --json
--all` in nanoseconds, of a step of 100 GB in 300,000 chunks, which is also
checked against its files; FileSystemReader.read_metadata() in a process that
has torch loaded already; and what was resident in ckptctl at most. The files
are sparse, and have the right lengths. torch is in a process of its own: what a
program's parent has in memory counts as the program's until it is started.
"""

import os
import pickle
import subprocess
import sys
import time

CHUNKS = 300_000
RANKS = 64
STEP_BYTES = 100_000_000_000
ARCHIVE_BYTES = 1200    # what torch.save adds to a chunk


def make(folder):
    import torch
    from torch.distributed.checkpoint import metadata
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    tensors, storage = {}, {}
    ends = [0] * RANKS
    elements = STEP_BYTES // CHUNKS // 4
    for t in range(CHUNKS // RANKS + 1):
        name = f"model.layers.{t // 12}.{t % 12}.weight"
        chunks = []
        for rank in range(min(RANKS, CHUNKS - t * RANKS)):
            offset = torch.Size([rank * elements])
            chunks.append(metadata.ChunkStorageMetadata(
                offset, torch.Size([elements])))
            index = metadata.MetadataIndex(name, offset, rank)
            length = elements * 4 + ARCHIVE_BYTES
            storage[index] = _StorageInfo(f"__{rank}_0.distcp", ends[rank],
                                          length)
            ends[rank] += length
        tensors[name] = metadata.TensorStorageMetadata(
            metadata.TensorProperties(torch.float32),
            torch.Size([elements * len(chunks)]), chunks)
    with open(os.path.join(folder, ".metadata"), "wb") as file:
        pickle.dump(metadata.Metadata(tensors, {}, storage), file)
    for rank, end in enumerate(ends):
        path = os.path.join(folder, f"__{rank}_0.distcp")
        with open(path, "wb") as file:
            file.truncate(end)


def inspect(ckptctl, folder):
    begin = time.monotonic_ns()
    with subprocess.Popen([ckptctl, "inspect", "--json", "--all", folder],
                          stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"ckptctl inspect ended with {process.returncode}")
    return time.monotonic_ns() - begin, usage.ru_maxrss


def read(folder):
    from torch.distributed.checkpoint import FileSystemReader

    begin = time.monotonic_ns()
    found = FileSystemReader(folder).read_metadata()
    ns = time.monotonic_ns() - begin
    if len(found.storage_data) != CHUNKS:
        sys.exit("torch read another number of chunks")
    return ns


def serve(folder):
    make(folder)
    print("ready", flush=True)
    for _ in sys.stdin:
        print(read(folder), flush=True)


def main():
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
        return
    folder, ckptctl, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with subprocess.Popen([sys.executable, __file__, "serve", folder],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as torch:
        if torch.stdout.readline() != "ready\n":
            sys.exit("torch made no .metadata")
        for _ in range(rounds):
            ours, kib = inspect(ckptctl, folder)
            print("read", file=torch.stdin, flush=True)
            print("metadata", ours, int(torch.stdout.readline()), kib,
                  flush=True)
        torch.stdin.close()
        if torch.wait() != 0:
            sys.exit("torch failed")


if __name__ == "__main__":
    main()
