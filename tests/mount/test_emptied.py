"""A file that somebody reads is opened with O_TRUNC: by its name, and by what
is not its name. Logs are emptied in place, as on any local file system; large
files keep what they were for their readers, and what fails changes nothing."""
import errno
import os
import select
import stat
import subprocess
import time

import ckptest as ck
from ckptest import KIB, MIB, USER, as_user, data, fails, get, put, same

EMPTY = os.O_WRONLY | os.O_TRUNC
O_PATH = getattr(os, "O_PATH", 0o10000000)
SIZES = (40 * KIB, 3 * MIB + 77)


class FileMount:
    """The file alone, mounted at another place, as containers have it."""

    def __init__(self, path, at):
        self.path = at
        open(at, "xb").close()
        ck.sh("mount", "--bind", path, at)

    def close(self):
        ck.sh("umount", self.path)
        os.unlink(self.path)


def aside(fs, name):
    """A path that is not on the file system that is tested."""
    base = os.path.dirname(fs.mnt)
    return os.path.join(base, name)


def ways(path, reader, mounted):
    """Paths that lead to the file, and are not its name."""
    handle = os.open(path, O_PATH)
    yield "its descriptor", f"/proc/self/fd/{reader}"
    yield "O_PATH", f"/proc/self/fd/{handle}"
    yield "a mount of it", mounted
    os.close(handle)


def rewrite(path, content, uid):
    def do():
        fd = os.open(path, EMPTY)
        ck.write_all(fd, content)
        os.close(fd)
    do() if uid is None else as_user(do, uid)


@ck.posix
def a_file_is_emptied_by_any_way_to_it(fs):
    for uid in (None, USER):
        os.makedirs(fs.path(f"{uid}"))
        paths = []
        for size in SIZES:
            paths.append(fs.path(f"{uid}", f"f{size}"))
            # No other file has these bytes: see what_cannot_be_emptied_...
            put(paths[-1], data(size, uid), mode=0o666)
            os.chmod(paths[-1], 0o666)
        for stage in fs.stages(*paths):
            for path, size in zip(paths, SIZES):
                mounted = FileMount(path, aside(fs, f"file_{uid}"))
                os.chmod(mounted.path, 0o666)
                reader = os.open(path, os.O_RDONLY)
                before = os.fstat(reader)
                for n, (way, to) in enumerate(
                        ways(path, reader, mounted.path)):
                    what = f"{uid} {stage} {size}, by {way}"
                    new = data(size // 2 + n, what)
                    assert len(os.pread(reader, 100, 0)) == 100, what
                    rewrite(to, new, uid)
                    assert os.stat(path).st_ino == before.st_ino, what
                    same(os.pread(reader, 2 * size, 0), new, what)
                    same(get(path), new, what + ", by name")
                    same(get(mounted.path), new, what + ", mounted")
                    os.fchmod(reader, 0o666 - n)
                    os.utime(reader, ns=(5, 7 + n))
                    found = os.stat(path)
                    assert stat.S_IMODE(found.st_mode) == 0o666 - n, what
                    assert found.st_mtime_ns == 7 + n, what
                    os.fchmod(reader, 0o666)
                os.close(reader)
                mounted.close()
                put(path, data(size, uid))


@ck.posix
def a_mounted_file_is_rewritten_after_its_reader_closed(fs):
    """As a container does that reads its configuration, and writes it."""
    for size in SIZES:
        path = fs.path(f"f{size}")
        put(path, data(size))
        fs.flush(path)
        mounted = FileMount(path, aside(fs, "config"))
        for n in range(50):
            if n % 10 == 0:
                fs.flush(path)
            with open(mounted.path, "rb") as f:
                f.read(10)
            new = data(size - n, n)
            put(mounted.path, new)
            same(get(path), new, f"{size} {n}")
            same(get(mounted.path), new, f"{size} {n}, mounted")
        mounted.close()


@ck.posix
def a_cut_by_any_way_is_seen_by_readers(fs):
    for size in SIZES:
        path = fs.path(f"f{size}")
        for stage in fs.stages(path) if os.path.exists(path) else ("new",):
            put(path, data(size))
            reader = os.open(path, os.O_RDONLY)
            os.pread(reader, 10, 0)
            os.truncate(f"/proc/self/fd/{reader}", 1000)
            same(os.pread(reader, size, 0), data(size)[:1000], stage)
            same(get(path), data(size)[:1000], stage)
            os.close(reader)


class Tail:
    """tail(1), whose lines are read as they come."""

    def __init__(self, flag, path):
        self.proc = subprocess.Popen(
            [ck.tool("tail"), "-n", "1", flag, path], stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL)
        self.seen = b""

    def sees(self, line, what):
        deadline = time.monotonic() + ck.WAIT_BOUND
        while line + b"\n" not in self.seen:
            left = deadline - time.monotonic()
            assert left > 0, f"{what}: {line} not in {self.seen[-200:]}"
            if select.select([self.proc.stdout], [], [], left)[0]:
                self.seen += os.read(self.proc.stdout.fileno(), 1 << 20)

    def close(self):
        self.proc.kill()
        self.proc.wait()
        self.proc.stdout.close()


@ck.posix
def who_follows_a_log_sees_the_next_job_write_it(fs):
    for size in SIZES:
        path = fs.path(f"log{size}")
        put(path, b"x" * size + b"\nlast of job 0\n")
        job = 0
        for stage in fs.stages(path):
            tails = [Tail(flag, path) for flag in ("-f", "-F")]
            for tail in tails:
                tail.sees(b"last of job %d" % job, stage)
            job += 1
            with open(path, "wb", buffering=0) as log:
                for n in range(6):
                    log.write(b"line %d of job %d\n" % (n, job))
                    for tail in tails:
                        tail.sees(b"line %d of job %d" % (n, job),
                                  f"{size} {stage} {tail.proc.args}")
                log.write(b"last of job %d\n" % job)
            for tail in tails:
                tail.close()


@ck.mounted("empty_in_place=1M")
def a_larger_file_moves_for_a_name_and_for_nothing_else(m):
    path, old = m.path("f"), data(2 * MIB, "old")
    for durable in (False, True):
        put(path, old)
        if durable:
            m.flush(path)
        reader, ino = os.open(path, os.O_RDONLY), os.stat(path).st_ino
        os.pread(reader, 10, 0)
        put(path, data(MIB, "new"))
        assert os.stat(path).st_ino != ino
        same(os.pread(reader, 3 * MIB, 0), old, "what he has, by name")
        # It has no name that could be looked up again.
        fails(errno.ESTALE, os.open, f"/proc/self/fd/{reader}", EMPTY)
        same(os.pread(reader, 3 * MIB, 0), old, "what he has still")
        os.close(reader)
        put(path, old)
        if durable:
            m.flush(path)
        reader, ino = os.open(path, os.O_RDONLY), os.stat(path).st_ino
        mounted = FileMount(path, aside(m, "mounted"))
        put(mounted.path, data(MIB, "new"))
        assert os.stat(path).st_ino == ino
        same(os.pread(reader, 3 * MIB, 0), data(MIB, "new"), "in place")
        mounted.close()
        os.close(reader)


@ck.mounted(modes=("auto",))
def what_cannot_be_emptied_is_left_as_it_was(m):
    """Two files have their bytes in one image, and both are read."""
    content = data(2 * MIB)
    for name in ("one", "two"):
        put(m.path(name), content)
        m.flush(m.path(name))
    m.remount()
    paths = [m.path("one"), m.path("two")]
    inodes = [os.stat(path).st_ino for path in paths]
    readers = [os.open(path, os.O_RDONLY) for path in paths]
    os.link(paths[1], m.path("linked"))
    for reader, path, ino in zip(readers, paths, inodes):
        by_fd = f"/proc/self/fd/{reader}"
        fails(errno.EBUSY, os.open, by_fd, EMPTY)
        fails(errno.EBUSY, os.truncate, by_fd, 10)
        assert os.stat(path).st_ino == ino
        os.fchmod(reader, 0o600)
        os.setxattr(reader, "user.who", b"me")
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert os.getxattr(path, "user.who") == b"me"
        same(get(path), content, path)
    put(paths[0], b"by name")
    same(os.pread(readers[0], 3 * MIB, 0), content, "what he has")
    same(get(paths[0]), b"by name")
    same(get(paths[1]), content)
    assert os.stat(m.path("linked")).st_ino == inodes[1]
    put(m.path("linked"), b"by another name")
    same(os.pread(readers[1], 3 * MIB, 0), content, "what he has")
    same(get(paths[1]), b"by another name", "by the first name")
    for reader in readers:
        os.close(reader)


@ck.mounted(start=False)
def a_log_is_emptied_on_a_full_disk(m):
    disk = ck.Disk(m.base, 256 * MIB)
    m.store = os.path.join(disk.path, "store")
    os.mkdir(m.store)
    m.start("stage_size=64M")
    path, old = m.path("log"), data(60 * MIB)
    put(path, old)
    m.settle()
    m.remount()
    reader = os.open(path, os.O_RDONLY)
    os.pread(reader, 10, 0)
    disk.fill(leave=50 * MIB)  # no room for a copy of it
    put(path, b"the next job\n")
    same(get(path), b"the next job\n", "by name")
    os.close(reader)
    m.remount()
    same(get(path), b"the next job\n", "after a remount")


if __name__ == "__main__":
    ck.main()
