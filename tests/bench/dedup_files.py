"""Writes the files whose sharing run.sh counts: dedup_files.py KIND N PATH.

shard N    what torch DCP writes (one torch archive for each tensor, one after
           the other): 16 MiB of tensors that every N has, at other offsets
replica N  64 MiB, the same for every N
frozen N   64 MiB, of which nine tenths are the same for every N
moved N    64 MiB in no known format, the same for every N, behind 1275 * N bytes
"""

import io
import sys

import torch

MIB = 1 << 20


def noise(seed, size_bytes):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(
        0, 256, (size_bytes,), dtype=torch.uint8, generator=generator
    )


def shard(number):
    # A short tensor of its own moves everything that follows.
    tensors = [noise(100 + number, 1000 + 777 * number)]
    tensors += [noise(seed, 2 * MIB) for seed in range(8)]
    parts = []
    for tensor in tensors:
        buffer = io.BytesIO()
        torch.save(tensor, buffer)
        parts.append(buffer.getvalue())
    return b"".join(parts)


def whole(seeds, size_bytes):
    buffer = io.BytesIO()
    each = size_bytes // len(seeds)
    torch.save({f"p{i}": noise(s, each) for i, s in enumerate(seeds)}, buffer)
    return buffer.getvalue()


def main():
    kind, number, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if kind == "shard":
        content = shard(number)
    elif kind == "replica":
        content = whole(list(range(1000, 1016)), 64 * MIB)
    elif kind == "frozen":
        content = whole(list(range(2000, 2009)) + [3000 + number], 64 * MIB)
    elif kind == "moved":
        content = bytes(range(1, 256)) * 5 * number
        content += noise(4000, 64 * MIB).numpy().tobytes()
    else:
        sys.exit(f"dedup_files.py: no kind '{kind}'")
    with open(path, "wb") as file:
        file.write(content)


if __name__ == "__main__":
    main()
