"""Stored once: what two files share costs nothing the second time, whatever
its place in them, and is read back from both."""
import ctypes
import io
import json
import mmap
import os
import struct
import threading
import zipfile

import ckptest as ck
from ckptest import KIB, MIB, data, get, native, put, same


def torch_zip(name, payload):
    """One tensor as torch.save lays it out: stored, aligned to 64 bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as z:
        for entry, content in (("data.pkl", b"\x80\x02" + name.encode() * 9),
                               ("byteorder", b"little"), ("data/0", payload),
                               ("version", b"3\n")):
            info = zipfile.ZipInfo(f"archive/{entry}")
            used = out.tell() + 30 + len(info.filename) + 4
            info.extra = struct.pack("<2sH", b"FB", -used % 64) + \
                b"Z" * (-used % 64)
            z.writestr(info, content)
    return out.getvalue()


def distcp(tensors):
    """A DCP file: one archive after the other, no padding between them."""
    return b"".join(torch_zip(n, payload) for n, payload in tensors)


def safetensors(tensors):
    header, at = {}, 0
    for name, payload in tensors:
        header[name] = {"dtype": "U8", "shape": [len(payload)],
                        "data_offsets": [at, at + len(payload)]}
        at += len(payload)
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw + \
        b"".join(payload for _, payload in tensors)


def npy(payload):
    head = b"{'descr': '|u1', 'fortran_order': False, 'shape': (%d,), }" \
        % len(payload)
    head += b" " * (-(len(head) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + payload


W, N, BIG = data(4 * MIB, "W"), data(16 * KIB, "N"), data(12 * MIB, "big")
PAIRS = {
    "distcp": (distcp([("f", bytes(28)), ("W", W), ("N", N), ("big", BIG)]),
               distcp([("f", bytes(range(250)) * 16), ("N", N), ("big", BIG),
                       ("W", W)])),
    "safetensors": (safetensors([("a", bytes(28)), ("W", W), ("N", N),
                                 ("big", BIG)]),
                    safetensors([("some other name", data(4004)), ("N", N),
                                 ("big", BIG), ("W", W)])),
    "npy": (npy(W + BIG), npy(W + BIG + N)),
}


def grown(m, what):
    """What a step adds: status's bytes, and the file system's own count."""
    m.flush()
    m.ctl("gc", m.mnt)  # waits for what is given back behind it
    before = m.status()["physical_bytes"], m.images_du()
    what()
    m.flush()
    m.ctl("gc", m.mnt)
    after = m.status()["physical_bytes"], m.images_du()
    assert abs((after[0] - before[0]) - (after[1] - before[1])) < MIB // 2, \
        f"status says {before[0]} -> {after[0]}, du {before[1]} -> {after[1]}"
    return max(after[0] - before[0], after[1] - before[1])


@ck.mounted()
def what_two_ranks_share_at_other_offsets_costs_nothing(m):
    for kind, (first, second) in PAIRS.items():
        a, b = m.path(f"a.{kind}"), m.path(f"b.{kind}")
        put(a, first)
        added = grown(m, lambda: put(b, second))
        assert added < 0.01 * 16 * MIB, (kind, added)
    assert m.status()["shared_bytes"] >= 5 * 16 * MIB - MIB
    assert native(m.path("a.distcp")) == 1
    for stage in m.stages():
        for kind, (first, second) in PAIRS.items():
            same(get(m.path(f"a.{kind}")), first, f"{stage} a.{kind}")
            same(get(m.path(f"b.{kind}")), second, f"{stage} b.{kind}")
    fd = os.open(m.path("b.distcp"), os.O_RDONLY)
    for at, size in ((0, 1), (4095, 3), (5 * MIB + 1, 9999), (3, 9 * MIB)):
        same(os.pread(fd, size, at), PAIRS["distcp"][1][at:at + size],
             f"assembled at {at}")
    os.close(fd)


@ck.mounted()
def two_replicas_cost_one(m):
    one = distcp([(f"t{i}", data(3 * MIB + i, i)) for i in range(5)])
    first = grown(m, lambda: put(m.path("r0.distcp"), one))
    assert len(one) <= first < len(one) * 1.05, (first, len(one))
    assert grown(m, lambda: put(m.path("r1.distcp"), one)) < 0.01 * len(one)
    assert native(m.path("r0.distcp")) == native(m.path("r1.distcp")) == 1

    def both():
        """Two ranks that close at the same moment."""
        content = data(16 * MIB, "both")
        fds = [os.open(m.path(f"s{i}"), os.O_WRONLY | os.O_CREAT, 0o644)
               for i in range(2)]
        for fd in fds:
            ck.write_all(fd, content)
        barrier = threading.Barrier(2)

        def close(fd):
            barrier.wait(ck.WAIT_BOUND)
            os.close(fd)
        threads = [threading.Thread(target=close, args=(fd,)) for fd in fds]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    added = grown(m, both)
    assert added < 1.05 * 16 * MIB, added
    for i in range(2):
        same(get(m.path(f"s{i}")), data(16 * MIB, "both"), f"s{i}")
        same(get(m.path(f"r{i}.distcp")), one, f"r{i}")


@ck.mounted("dedup_copies=2")
def so_many_ranks_store_a_copy_and_a_bad_sector_takes_one(m):
    one = distcp([(f"t{i}", data(3 * MIB + i, i)) for i in range(5)])
    paths = [m.path(f"r{rank}.distcp") for rank in range(4)]
    for rank, path in enumerate(paths):
        added = grown(m, lambda: put(path, one))  # pylint: disable=W0640
        if rank < 2:
            assert len(one) <= added < len(one) * 1.05, (rank, added)
        else:
            assert added < 0.01 * len(one), (rank, added)
        assert native(path) == 1, rank
    m.unmount()
    m.fsck("--scrub")
    bad = max(images(m), key=os.path.getsize)
    fd = os.open(bad, os.O_RDWR)
    os.pwrite(fd, b"bad sector", 4 * MIB)
    os.close(fd)
    said = m.ctl("fsck", "--scrub", "--read-only", m.store, code=1)
    lost = [n for n in range(4) if f"r{n}.distcp" in said]
    assert len(lost) == 2, said
    m.start("dedup_copies=2")
    for rank in set(range(4)) - set(lost):
        same(get(paths[rank]), one, f"r{rank}")
    m.unmount()
    m.fsck("--scrub")  # which mends it: test_mend.py
    m.start("dedup_copies=2")
    for rank, path in enumerate(paths):
        same(get(path), one, f"r{rank}")


def images(m):
    for folder, _, names in os.walk(os.path.join(m.store, "images")):
        for name in names:
            yield os.path.join(folder, name)


def forget(m):
    """Put all images out of the page cache."""
    for path in images(m):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def resident(m):
    """Bytes of images that are in the page cache, as mincore(2) has it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int,
                          ctypes.c_int, ctypes.c_int, ctypes.c_long]
    total = 0
    for path in images(m):
        size = os.path.getsize(path)
        if size == 0:
            continue
        fd = os.open(path, os.O_RDONLY)
        at = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        os.close(fd)
        pages = (ctypes.c_ubyte * ((size + 4095) // 4096))()
        assert libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(size),
                            pages) == 0, os.strerror(ctypes.get_errno())
        libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))
        total += 4096 * sum(p & 1 for p in pages)
    return total


@ck.mounted()
def what_one_rank_brought_into_memory_serves_the_others(m):
    replicas, own = data(16 * MIB, "replicas"), 3 * MIB
    files = [safetensors([("r", replicas), ("own", data(own, rank))])
             for rank in range(4)]
    paths = [m.path(f"rank_{rank}.safetensors") for rank in range(4)]
    for path, content in zip(paths, files):
        put(path, content)
    m.remount()
    forget(m)
    assert resident(m) < MIB, resident(m)
    # Whoever comes first reads the replicas; each other one its own bytes,
    # and the kernel a little ahead.
    seen = []
    for rank in (2, 0, 3, 1):
        same(get(paths[rank]), files[rank])
        seen.append(resident(m))
    assert seen[0] >= len(files[2]) - MIB, seen
    for before, now in zip(seen, seen[1:]):
        assert now <= before + own + 2 * MIB, seen
    assert len(replicas) + 4 * own - MIB <= seen[-1] <= \
        len(replicas) + 4 * own + 8 * MIB, seen


@ck.mounted()
def a_step_with_nine_of_ten_tensors_frozen_adds_a_tenth(m):
    def step(n):
        return safetensors([(f"layer.{i}", data(2 * MIB, n if i == 4 else i))
                            for i in range(10)])
    os.mkdir(m.path("step_100"))
    os.mkdir(m.path("step_200"))
    put(m.path("step_100", "m.safetensors"), step(100))
    added = grown(m, lambda: put(m.path("step_200", "m.safetensors"),
                                 step(200)))
    assert 2 * MIB <= added <= 0.12 * 20 * MIB, added
    for stage in m.stages():
        for n in (100, 200):
            same(get(m.path(f"step_{n}", "m.safetensors")), step(n), stage)


@ck.mounted()
def an_unchanged_overwrite_adds_nothing(m):
    content = PAIRS["distcp"][0]
    put(m.path("f"), content)
    assert grown(m, lambda: put(m.path("f"), content)) < MIB
    same(get(m.path("f")), content, "f")


@ck.mounted(modes=("auto",))
def sharing_too_little_keeps_a_file_native(m):
    """1 of 41 MiB shared is under dedup_min_saving's default of 3 %."""
    common = data(MIB, "common")
    put(m.path("a"), common + data(40 * MIB, "a"))
    m.flush()
    put(m.path("b"), common + data(40 * MIB, "b"))
    m.flush()
    assert native(m.path("b")) == 1
    m.remount("dedup_min_saving=0")
    added = grown(m, lambda: put(m.path("c"), common + data(40 * MIB, "c")))
    # But for the chunk at the seam.
    assert added <= 40 * MIB + 512 * KIB, added
    for name in "abc":
        same(get(m.path(name)), common + data(40 * MIB, name), name)


@ck.mounted()
def a_malformed_container_is_stored_all_the_same(m):
    """Headers that lie: lengths past the end, cut archives, deep JSON."""
    first = PAIRS["distcp"][0]
    odd = {
        "cut.distcp": first[:5 * MIB + 1],
        "lying.distcp": first[:18] + b"\xff" * 8 + first[26:2 * MIB],
        "huge.safetensors": b"\xff" * 8 + data(100 * KIB),
        "long.safetensors": struct.pack("<Q", 50) + b'{"a":' * 10 +
                            data(64 * KIB),
        "deep.safetensors": struct.pack("<Q", 40000) + b"[" * 40000 +
                            data(64 * KIB),
        "over.safetensors": safetensors([("a", data(MIB))])[:-500 * KIB],
        "short.npy": b"\x93NUMPY\x01\x00\xff\xff" + data(40 * KIB),
        "only the magic": b"PK\x03\x04" * 10000,
    }
    for name, content in odd.items():
        put(m.path(name), content)
    for stage in m.stages(*map(m.path, odd)):
        for name, content in odd.items():
            same(get(m.path(name)), content, f"{stage} {name}")


if __name__ == "__main__":
    ck.main()
