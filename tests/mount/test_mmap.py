"""Mapped files: torch.load(mmap=True) and safetensors read nothing else."""
import mmap
import os

import ckptest as ck
from ckptest import KIB, MIB, PAGE, BareMap, data, get, put, same


@ck.posix
def a_private_writable_map_reads_the_file_and_changes_nothing(fs):
    """MAP_PRIVATE and PROT_WRITE over the whole file, then close."""
    for size in (100, 100 * KIB, 3 * MIB + 77):
        put(fs.path(f"f{size}"), data(size))
    for stage in fs.stages():
        for size in (100, 100 * KIB, 3 * MIB + 77):
            path = fs.path(f"f{size}")
            fd = os.open(path, os.O_RDONLY)
            m = mmap.mmap(fd, size, mmap.MAP_PRIVATE,
                          mmap.PROT_READ | mmap.PROT_WRITE)
            os.close(fd)
            same(m[:], data(size), f"{stage} {size}")
            m[:10] = b"0123456789"
            same(get(path), data(size), f"{stage} {size} after a write")
            assert m[:10] == b"0123456789"
            m.close()


@ck.posix
def a_shared_map_writes_the_file(fs):
    path, size = fs.path("f"), 2 * MIB
    put(path, data(size))
    want = bytearray(data(size))
    for i, stage in enumerate(fs.stages(path)):
        with open(path, "r+b") as f:
            m = mmap.mmap(f.fileno(), size)
            at = 7 * PAGE * (i + 1) + 5
            m[at:at + 9000] = want[at:at + 9000] = data(9000, i)
            same(os.pread(f.fileno(), size, 0), bytes(want), stage + " read")
            m.flush()
            os.fsync(f.fileno())
            m.close()
        same(get(path), bytes(want), stage)


@ck.posix
def a_map_outlives_its_handle_and_its_name(fs):
    path, size = fs.path("f"), MIB + 5
    for durable in (False, True):
        put(path, data(size))
        if durable:
            fs.flush(path)
        with open(path, "r+b") as f:
            shared = mmap.mmap(f.fileno(), size)
            private = mmap.mmap(f.fileno(), size, mmap.MAP_PRIVATE)
        shared[size - 4:] = b"tail"
        assert get(path)[-4:] == b"tail"
        os.unlink(path)
        same(shared[:], data(size)[:-4] + b"tail", f"durable {durable}")
        same(private[:MIB], data(size)[:MIB], f"private, durable {durable}")
        shared[:4] = b"head"
        assert shared[:4] == b"head"
        shared.close()
        private.close()
    fs.flush()
    assert os.listdir(fs.dir) == []


@ck.posix
def what_a_closed_map_wrote_becomes_durable(fs):
    """The last write may come from a map after the last close()."""
    path, size = fs.path("f"), 256 * KIB
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(fd, size)
    m = mmap.mmap(fd, size)
    os.close(fd)
    m[:] = data(size)
    m.close()
    for stage in fs.stages(path):
        same(get(path), data(size), stage)


@ck.posix
def a_writable_map_that_joined_other_handles_becomes_durable(fs):
    """Others have the file open first, so the kernel maps what is behind it."""
    for size in (256 * KIB, 3 * MIB):
        for others in (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY | os.O_CREAT):
            path = fs.path(f"f{size}_{others}")
            if not others & os.O_CREAT:
                put(path, bytes(size))
            other = os.open(path, others)
            if others & os.O_CREAT:
                os.pwrite(other, bytes(size), 0)
            fd = os.open(path, os.O_RDWR)
            m = BareMap(fd, size)
            os.close(fd)
            os.close(other)
            fs.flush(path)
            m.write(0, data(size))
            fs.flush(path)
            m.write(7, b"last")
            m.close()
            want = data(size)[:7] + b"last" + data(size)[11:]
            for stage in fs.stages(path):
                same(get(path), want, f"{size} {others} {stage}")


@ck.posix
def maps_and_writes_see_each_other(fs):
    path, size = fs.path("f"), 64 * KIB
    put(path, bytes(size))
    for stage in fs.stages(path):
        with open(path, "r+b", buffering=0) as f:
            m = mmap.mmap(f.fileno(), size)
            for at in range(0, size, 5000):
                f.seek(at)
                f.write(b"%05d" % at)
                assert m[at:at + 5] == b"%05d" % at, (stage, at)
                m[at + 5:at + 9] = b"MMAP"
                assert os.pread(f.fileno(), 4, at + 5) == b"MMAP", (stage, at)
            m.close()


def extend_by_ftruncate(fd, size):
    os.ftruncate(fd, size + 1)


def extend_by_fallocate(fd, size):
    os.posix_fallocate(fd, size, 1)


def extend_by_pwrite(fd, size):
    os.pwrite(fd, b"\0", size)


EXTEND = (extend_by_ftruncate, extend_by_fallocate, extend_by_pwrite)


def look_behind_the_end(fs, stage, extend, synced):
    end, far = 5000, 3 * PAGE + 100
    want = data(end) + bytes(far + 1 - end)
    what = f"{stage} {extend.__name__} synced={synced}"
    path = fs.path(what)
    put(path, data(end))
    if stage != "staged":
        fs.flush(path)
    fd = os.open(path, os.O_RDWR)
    m = BareMap(fd, 4 * PAGE)
    m.write(10, data(end)[10:20])
    m.write(end, b"behind the end")
    if synced:
        os.fsync(fd)
    extend(fd, far)
    same(m.read(0, far + 1), want, what + " map")
    same(os.pread(fd, far + 1, 0), want, what + " read")
    m.write(end + 10, b"within")  # it is content from now on
    m.close()
    os.close(fd)
    same(get(path), want[:end + 10] + b"within" + want[end + 16:],
         what + " file")


@ck.posix
def what_a_map_has_behind_the_end_is_no_content_of_a_longer_file(fs):
    """The rest of the last page can be written to, and is nobody's."""
    for stage in fs.stages():
        for extend in EXTEND:
            for synced in (False, True):
                look_behind_the_end(fs, stage, extend, synced)


@ck.mounted(start=False)
def nor_is_it_when_the_file_is_staged_in_memory(m):
    """But a far write in passthrough is tmpfs' own."""
    m.start("debug_stage=memory", "debug_hold_drain")
    for extend in EXTEND if m.mode == "off" else EXTEND[:2]:
        look_behind_the_end(m, "staged", extend, False)


@ck.posix
def a_map_of_a_file_that_is_replaced_keeps_the_old(fs):
    path, size = fs.path("f"), 2 * MIB
    put(path, data(size, "old"))
    fs.flush(path)
    with open(path, "rb") as f:
        m = mmap.mmap(f.fileno(), size, mmap.MAP_PRIVATE, mmap.PROT_READ)
    put(fs.path("tmp"), data(size, "new"))
    os.rename(fs.path("tmp"), path)
    fs.flush()
    same(m[:], data(size, "old"), "map")
    m.close()
    same(get(path), data(size, "new"), "file")


if __name__ == "__main__":
    ck.main()
