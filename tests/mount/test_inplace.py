"""What is changed in place, other handles see, as on any local file system."""
import errno
import mmap
import os
import sqlite3
import subprocess

import ckptest as ck
from ckptest import Child, KIB, MIB, PAGE, data, get, put, same

SIZES = (100, 100 * KIB, 3 * MIB + 77)
O_PATH = getattr(os, "O_PATH", 0o10000000)


class Reader:
    """A handle for reading and a shared map of the whole file."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_RDONLY)
        self.size = os.fstat(self.fd).st_size
        self.ino = os.fstat(self.fd).st_ino
        self.map = mmap.mmap(self.fd, self.size, mmap.MAP_SHARED,
                             mmap.PROT_READ)
        self.map[:]  # all of it was read once

    def sees(self, want, path, what):
        same(os.pread(self.fd, len(want) + PAGE, 0), bytes(want), what)
        same(self.map[:min(self.size, len(want))],
             bytes(want[:self.size]), what + ", mapped")
        assert os.fstat(self.fd).st_size == len(want), what
        assert os.stat(path).st_ino == self.ino, what + ": another inode"
        same(get(path), bytes(want), what + ", a new handle")

    def close(self):
        self.map.close()
        os.close(self.fd)


@ck.posix
def a_reader_sees_what_is_written_in_place(fs):
    want = {size: bytearray(data(size)) for size in SIZES}
    for size in SIZES:
        put(fs.path(f"f{size}"), want[size])
    paths = [fs.path(f"f{size}") for size in SIZES]
    for stage in fs.stages(*paths):
        for size, path in zip(SIZES, paths):
            for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND):
                what = f"{stage} {size} {flags:o}"
                reader, now = Reader(path), want[size]
                reader.sees(now, path, what + " before")
                fd = os.open(path, flags)
                if flags & os.O_APPEND:
                    os.write(fd, b"appended")
                    now += b"appended"
                else:
                    at = len(now) // 2
                    os.pwrite(fd, b"in place", at)
                    now[at:at + 8] = b"in place"
                reader.sees(now, path, what + " written")
                os.close(fd)
                reader.sees(now, path, what + " closed")
                fs.flush(path)
                reader.sees(now, path, what + " durable")
                fd = os.open(path, flags)
                os.pwrite(fd, b"again", 3)
                if flags & os.O_APPEND:  # Linux appends all the same
                    now += b"again"
                else:
                    now[3:8] = b"again"
                reader.sees(now, path, what + " again")
                os.close(fd)
                reader.close()
                same(get(path), bytes(now), what)


@ck.posix
def a_map_that_outlived_its_handle_sees_what_is_written(fs):
    for size in SIZES[1:]:
        put(fs.path(f"f{size}"), data(size))
    for i, stage in enumerate(fs.stages()):
        for size in SIZES[1:]:
            path = fs.path(f"f{size}")
            fd = os.open(path, os.O_RDONLY)
            m = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
            os.close(fd)
            m[:]
            with open(path, "r+b", buffering=0) as f:
                f.seek(7 + 10 * i)
                f.write(b"%d" % i * 5)
            assert m[7 + 10 * i:12 + 10 * i] == b"%d" % i * 5, (stage, size)
            m.close()


@ck.posix
def a_shared_map_is_seen_by_readers(fs):
    for size in SIZES:
        put(fs.path(f"f{size}"), data(size))
    for i, stage in enumerate(fs.stages()):
        for size in SIZES:
            path = fs.path(f"f{size}")
            want = bytearray(get(path))
            reader = Reader(path)
            with open(path, "r+b") as f:
                m = mmap.mmap(f.fileno(), size)
                m[10 * i:10 * i + 5] = want[10 * i:10 * i + 5] = b"%d" % i * 5
                reader.sees(want, path, f"{stage} {size} mapped")
                m.close()
            reader.sees(want, path, f"{stage} {size} closed")
            reader.close()


@ck.posix
def truncate_and_punch_are_seen_by_readers(fs):
    content = data(3 * MIB)
    put(fs.path("f"), content)
    path = fs.path("f")
    for stage in fs.stages(path):
        fd = os.open(path, os.O_RDONLY)
        assert os.pread(fd, 10, 0) == content[:10]
        handle = os.open(path, O_PATH)
        os.truncate(path, 2 * MIB + 5)
        same(os.pread(fd, 4 * MIB, 0), content[:2 * MIB + 5], stage)
        os.truncate(path, 3 * MIB)
        now = content[:2 * MIB + 5] + bytes(MIB - 5)
        same(os.pread(fd, 4 * MIB, 0), now, stage + " extended")
        with open(path, "r+b") as f:
            ck.fallocate(f.fileno(), 3, 4 * PAGE, 8 * PAGE)
        now = now[:4 * PAGE] + bytes(8 * PAGE) + now[12 * PAGE:]
        same(os.pread(fd, 4 * MIB, 0), now, stage + " punched")
        assert os.fstat(handle).st_ino == os.stat(path).st_ino, stage
        os.close(handle)
        os.close(fd)
        put(path, content)


@ck.posix
def truncate_after_the_last_reader_keeps_the_inode(fs):
    """The release of a handle may come late: it counts as nobody."""
    path = fs.path("f")
    for durable in (False, True):
        for i in range(50):
            put(path, data(200 * KIB, i))
            if durable:
                fs.flush(path)
            handle = os.open(path, O_PATH)
            with open(path, "rb") as f:
                f.read(1)
            os.truncate(path, 100)
            assert os.fstat(handle).st_size == 100, (durable, i)
            assert os.fstat(handle).st_ino == os.stat(path).st_ino
            os.close(handle)


@ck.posix
def a_handle_has_no_name_once_the_file_is_deleted(fs):
    path = fs.path("f")
    for size in (10, 3 * MIB):
        put(path, data(size))
        fs.flush(path)
        fd = os.open(path, os.O_RDONLY)
        put(path, b"new")
        os.unlink(path)
        assert os.fstat(fd).st_nlink == 0, size
        os.close(fd)


@ck.posix
def tail_follows_a_log(fs):
    tail = ck.tool("tail")
    path = fs.path("log")
    put(path, b"x" * 100 * KIB + b"\n")
    fs.flush(path)
    with subprocess.Popen([tail, "-n", "1", "-s", "0.1", "-f", path],
                          stdout=subprocess.PIPE) as p:
        try:
            assert len(p.stdout.readline()) == 100 * KIB + 1
            for i in range(20):
                put(path, b"line %d\n" % i, flags=os.O_APPEND)
                assert p.stdout.readline() == b"line %d\n" % i
        finally:
            p.kill()


def sqlite(path, mode):
    """Two processes and one database: who reads holds off who commits."""
    a = sqlite3.connect(path, timeout=0, isolation_level=None)
    a.execute(f"pragma journal_mode={mode}")
    a.execute("create table if not exists t (n integer, pad text)")
    a.execute("delete from t")
    a.executemany("insert into t values (?, ?)",
                  [(i, "x" * 1000) for i in range(200)])

    def count():
        b = sqlite3.connect(path, timeout=0, isolation_level=None)
        return b.execute("select count(*) from t").fetchone()[0]
    assert Child(count).result() == 200
    reader = sqlite3.connect(path, timeout=0, isolation_level=None)
    reader.execute("begin")
    assert reader.execute("select count(*) from t").fetchone()[0] == 200

    def commit():
        b = sqlite3.connect(path, timeout=0, isolation_level=None)
        try:
            b.execute("insert into t values (1000, 'y')")
            return "committed"
        except sqlite3.OperationalError as e:
            return str(e)
    said = Child(commit).result()
    if mode == "wal":
        assert said == "committed", said
        assert reader.execute("select count(*) from t").fetchone()[0] == 200
        reader.execute("end")
    else:
        assert said == "database is locked", said
        reader.execute("end")
        assert Child(commit).result() == "committed"
    assert reader.execute("select count(*) from t").fetchone()[0] == 201
    assert a.execute("select count(*) from t").fetchone()[0] == 201
    assert a.execute("pragma integrity_check").fetchone()[0] == "ok"
    reader.close()
    a.close()


@ck.posix
def sqlite_sees_locks_and_rows_of_other_processes(fs):
    for mode in ("delete", "truncate", "wal"):
        path = fs.path(mode + ".db")
        for stage in fs.stages():
            sqlite(path, mode)


@ck.mounted()
def files_with_the_same_bytes_keep_theirs(m):
    """A change in place goes into no image that another file has."""
    a, b, old = m.path("a"), m.path("b"), data(3 * MIB)
    put(a, old)
    m.flush(a)
    put(b, old)
    m.flush()
    reader = os.open(a, os.O_RDONLY)
    assert os.pread(reader, 8, 0) == old[:8]
    with open(a, "r+b", buffering=0) as f:
        f.write(b"changed!")
    assert os.pread(reader, 8, 0) == b"changed!"
    same(get(b), old, "the other one, staged")
    m.flush()
    same(get(b), old, "the other one")
    same(get(a), b"changed!" + old[8:], "the changed one")
    os.close(reader)
    m.remount()
    same(get(b), old, "the other one, remounted")
    same(get(a), b"changed!" + old[8:], "the changed one, remounted")


@ck.mounted()
def a_power_cut_in_a_change_in_place_leaves_the_old_content(m):
    path, old = m.path("f"), data(3 * MIB)
    put(path, old)
    m.flush()
    m.remount()
    reader = os.open(path, os.O_RDONLY)
    assert os.pread(reader, 8, 0) == old[:8]
    fd = os.open(path, os.O_WRONLY)
    os.pwrite(fd, b"torn" * MIB, 0)
    m.power_cut()
    ck.fails(errno.ENOTCONN, os.close, fd)
    os.close(reader)
    m.start()
    same(get(path), old, "after the cut")


@ck.mounted()
def a_change_in_place_survives_the_daemon(m):
    path, old = m.path("f"), data(3 * MIB)
    put(path, old)
    m.flush()
    m.remount()
    reader = os.open(path, os.O_RDONLY)
    assert os.pread(reader, 8, 0) == old[:8]
    put(path, b"changed!", flags=0)
    m.kill()
    os.close(reader)
    m.start()
    same(get(path), b"changed!" + old[8:], "after the kill")
    m.flush()
    same(get(path), b"changed!" + old[8:], "durable")


@ck.mounted()
def its_old_bytes_are_given_back(m):
    path, size = m.path("f"), 8 * MIB
    put(path, data(size))
    m.flush()
    for i in range(4):
        reader = os.open(path, os.O_RDONLY)
        os.pread(reader, 8, 0)
        put(path, b"%08d" % i, flags=0)
        os.close(reader)
        m.flush()
    m.shrinks_by_gc(2 * size - 1, "four times the same size")


if __name__ == "__main__":
    ck.main()
