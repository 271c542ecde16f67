"""What stat says: sizes, inode numbers, times, modes and owners, and that
none of it changes by itself when a file is drained or remounted."""
import errno
import fcntl
import os
import stat
import time

import ckptest as ck
from ckptest import KIB, MIB, PAGE, data, fails, get, put, same

CLOCK_REALTIME_COARSE = 5  # what the kernel stamps files with


def coarse():
    return time.clock_gettime_ns(CLOCK_REALTIME_COARSE)


@ck.posix
def stat_shows_size_type_and_block_size(fs):
    """A block size above 4096 makes Python's readers fetch 2.5 times the
    bytes; st_blocks of 0 makes tools take a file for one hole."""
    for size in (1, 5000, 33 * KIB, 2 * MIB + 1):
        put(fs.path(f"f{size}"), data(size), mode=0o640)
    for stage in fs.stages():
        for size in (1, 5000, 33 * KIB, 2 * MIB + 1):
            st = os.stat(fs.path(f"f{size}"))
            assert st.st_size == size, stage
            assert st.st_mode == stat.S_IFREG | 0o640, (stage, oct(st.st_mode))
            assert st.st_nlink == 1, stage
            assert st.st_blksize == 4096, (stage, st.st_blksize)
            assert 0 < st.st_blocks * 512 <= size * 1.1 + 2 * MIB, \
                (stage, size, st.st_blocks)
        assert os.stat(fs.dir).st_nlink == 2


@ck.posix
def inode_numbers_and_times_survive_drain_and_remount(fs):
    os.mkdir(fs.path("d"))
    os.symlink("x", fs.path("l"))
    os.mkfifo(fs.path("p"))
    put(fs.path("small"), b"x")
    put(fs.path("big"), data(MIB))
    names = sorted(os.listdir(fs.dir))

    def facts():
        return {n: (st.st_ino, st.st_mode, st.st_uid, st.st_mtime_ns,
                    st.st_nlink, st.st_size)
                for n in names for st in [os.lstat(fs.path(n))]}
    first = facts()
    assert len({f[0] for f in first.values()}) == len(names)
    for stage in fs.stages():
        assert facts() == first, stage


@ck.posix
def what_is_done_later_has_no_earlier_time(fs):
    """Whoever stamps it: the kernel a file that it writes, the daemon names."""
    def last(path, what="st_ctime_ns"):
        return lambda: getattr(os.stat(path), what)

    log = open(fs.path("log"), "wb", buffering=0)
    os.mkdir(fs.path("d"))
    put(fs.path("f"), b"x")
    fs.flush()
    ops = [
        (lambda n: log.write(b"x"), last(fs.path("log"), "st_mtime_ns")),
        (lambda n: put(fs.path("d", f"n{n}"), b"x"),
         last(fs.path("d"), "st_mtime_ns")),
        (lambda n: put(fs.path("f"), data(40 * KIB)),
         last(fs.path("f"), "st_mtime_ns")),
        (lambda n: os.chmod(fs.path("f"), 0o600 + n % 2), last(fs.path("f"))),
        (lambda n: os.utime(fs.path("f")), last(fs.path("f"), "st_mtime_ns")),
        (lambda n: os.setxattr(fs.path("d"), "user.n", b"%d" % n),
         last(fs.path("d"))),
        (lambda n: os.mkdir(fs.path(f"d{n}")), last(fs.dir, "st_mtime_ns")),
        (lambda n: os.utime(log.fileno()), last(fs.path("log"))),
        (lambda n: os.rename(fs.path("f"), fs.path("f")) or
         os.truncate(fs.path("f"), n), last(fs.path("f"), "st_mtime_ns")),
    ]
    before, what = 0, None
    for n in range(1500):
        do, when = ops[(5 * n + n // 9) % 9]
        do(n)
        now = when()
        assert now >= before, \
            f"{n}: {ops.index((do, when))} after {what}: {before - now} ns"
        before, what = now, ops.index((do, when))
    log.close()


@ck.posix
def writing_moves_the_time_and_reading_does_not(fs):
    for size in (10, 200 * KIB):
        path = fs.path(f"f{size}")
        before = coarse()
        put(path, data(size))
        first = os.stat(path).st_mtime_ns
        assert before <= first <= time.time_ns(), size
        for stage in fs.stages(path):
            os.utime(path, ns=(10**18, 10**18))
            get(path)
            assert os.stat(path).st_mtime_ns == 10**18, stage
            before = coarse()
            with open(path, "r+b", buffering=0) as f:
                f.write(b"y")
                now = os.fstat(f.fileno()).st_mtime_ns
                assert before <= now <= time.time_ns(), stage
            after = os.stat(path)
            assert after.st_mtime_ns >= now, stage
            assert after.st_ctime_ns >= before, stage
            before = coarse()
            os.truncate(path, size // 2)
            assert os.stat(path).st_mtime_ns >= before, stage


@ck.posix
def writing_the_same_bytes_again_moves_the_time_too(fs):
    for size in (0, 10, 200 * KIB):
        path = fs.path(f"f{size}")
        for flags in (os.O_TRUNC, 0):
            put(path, data(size), flags)
            fs.flush()
            os.utime(path, ns=(10**18, 10**18))
            before = coarse()
            put(path, data(size), flags)
            if size or flags:
                assert os.stat(path).st_mtime_ns >= before, (size, flags)
                fs.flush()
                assert os.stat(path).st_mtime_ns >= before, (size, flags)
        first = os.stat(path).st_mtime_ns
        fs.remount()
        assert os.stat(path).st_mtime_ns == first, size


@ck.posix
def a_time_that_was_set_is_not_when_it_was_set(fs):
    """tar takes a file for changed whose ctime is another one."""
    future = 3 * 10**18
    for size in (10, 200 * KIB):
        path = fs.path(f"f{size}")
        put(path, data(size))
        before = coarse()
        os.utime(path, ns=(future, future))
        first = os.stat(path)
        assert before <= first.st_ctime_ns < future, size
        for stage in fs.stages(path):
            st = os.stat(path)
            same((st.st_mtime_ns, st.st_ctime_ns),
                 (future, first.st_ctime_ns), f"{size} {stage}")


@ck.posix
def files_written_in_order_have_times_in_order(fs):
    """HF Trainer deletes the checkpoints with the oldest times."""
    names = [fs.path(f"checkpoint-{i}") for i in range(20)]
    for i, name in enumerate(names):
        os.mkdir(name)
        put(os.path.join(name, "f"), data(40 * KIB if i % 2 else 9, i))
    for stage in fs.stages():
        for at in ("", "f"):
            times = [os.stat(os.path.join(n, at)).st_mtime_ns for n in names]
            assert times == sorted(times), (stage, at)


@ck.posix
def times_that_were_set_stay(fs):
    """cp -a and rsync set the time before or after the last close."""
    when = 1234567890123456789
    for how in ("path", "open", "written", "durable"):
        for size in (10, 300 * KIB):
            path = fs.path(f"{how}{size}")
            fd = os.open(path, os.O_WRONLY | os.O_CREAT)
            os.write(fd, data(size))
            if how == "open":
                os.utime(fd, ns=(when, when))
            os.close(fd)
            if how == "durable":
                fs.flush(path)
            if how == "written":
                with open(path, "ab", buffering=0) as f:
                    f.write(b"more")
                    os.utime(path, ns=(when, when))
            elif how != "open":
                os.utime(path, ns=(when, when))
    os.mkdir(fs.path("d"))
    os.utime(fs.path("d"), ns=(when, when))
    os.symlink("x", fs.path("l"))
    os.utime(fs.path("l"), ns=(when, when), follow_symlinks=False)
    for stage in fs.stages():
        for name in os.listdir(fs.dir):
            assert os.lstat(fs.path(name)).st_mtime_ns == when, (stage, name)
    before = coarse()
    os.utime(fs.path("d"))
    assert os.stat(fs.path("d")).st_mtime_ns >= before


@ck.posix
def modes_and_owners_that_were_set_stay(fs):
    sets = (("f", 0o600, 12, 34), ("g", 0o4755, 0, 0), ("h", 0o000, 1000, 7),
            ("dir", 0o1777, 5, 6), ("i", 0o2644, 0, 99))
    for durable in (False, True):
        for name, mode, uid, gid in sets:
            path = fs.path(f"{name}{durable}")
            if name == "dir":
                os.mkdir(path)
            else:
                put(path, data(50 * KIB, name))
                if durable:
                    fs.flush(path)
            os.chown(path, uid, gid)
            os.chmod(path, mode)
    fd = os.open(fs.path("late"), os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(fd, b"x" * 40000)
    os.fchmod(fd, 0o444)
    os.fchown(fd, 3, 4)
    os.write(fd, b"y")
    os.close(fd)
    os.symlink("x", fs.path("l"))
    os.lchown(fs.path("l"), 8, 9)
    for stage in fs.stages():
        for durable in (False, True):
            for name, mode, uid, gid in sets:
                st = os.stat(fs.path(f"{name}{durable}"))
                assert stat.S_IMODE(st.st_mode) == mode, (stage, name)
                assert (st.st_uid, st.st_gid) == (uid, gid), (stage, name)
        st = os.stat(fs.path("late"))
        assert (stat.S_IMODE(st.st_mode), st.st_uid) == (0o444, 3), stage
        assert st.st_size == 40001, stage
        assert os.lstat(fs.path("l")).st_gid == 9, stage


@ck.posix
def one_half_of_chown_and_utimens_leaves_the_other(fs):
    path = fs.path("f")
    put(path, b"x")
    os.chown(path, 5, 6)
    os.chown(path, 7, -1)
    assert os.stat(path).st_gid == 6
    os.chown(path, -1, 8)
    assert os.stat(path).st_uid == 7
    ctime = os.stat(path).st_ctime_ns
    os.chmod(path, 0o611)
    assert os.stat(path).st_ctime_ns >= ctime


@ck.posix
def creation_honours_the_umask(fs):
    old = os.umask(0o027)
    try:
        put(fs.path("f"), b"", mode=0o666)
        os.mkdir(fs.path("d"), 0o777)
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(fs.path("f")).st_mode) == 0o640
    assert stat.S_IMODE(os.stat(fs.path("d")).st_mode) == 0o750


@ck.posix
def statfs_is_plausible(fs):
    before = os.statvfs(fs.dir)
    assert before.f_namemax == 255 and before.f_bsize >= 512
    assert before.f_blocks >= before.f_bfree >= before.f_bavail > 0
    assert before.f_frsize * before.f_blocks > 16 * MIB
    assert before.f_frsize in (512, 1024, PAGE, 65536), before.f_frsize


@ck.posix
def times_before_1970_keep_their_fraction(fs):
    put(fs.path("small"), data(100))
    put(fs.path("large"), data(5 * MIB))
    os.mkdir(fs.path("dir"))
    want = {}
    for n, name in enumerate(("small", "large", "dir")):
        want[name] = (-1500000000 - n, -86400 * 10**9 * 365 * 20 - 1 - n)
        os.utime(fs.path(name), ns=want[name])
    for stage in fs.stages():
        for name, times in want.items():
            s = os.stat(fs.path(name))
            assert (s.st_atime_ns, s.st_mtime_ns) == times, (stage, name, s)
    # A file that is opened again is staged again, with its time.
    os.close(os.open(fs.path("large"), os.O_RDWR))
    assert os.stat(fs.path("large")).st_mtime_ns == want["large"][1]


@ck.mounted()
def flags_of_files_can_be_asked_for_and_there_are_none(m):
    put(m.path("f"), data(100))
    os.mkdir(m.path("d"))
    get_flags, set_flags = 0x80086601, 0x40086602
    get_xattr, set_xattr = 0x801c581f, 0x401c5820
    for name in ("f", "d"):
        fd = os.open(m.path(name), os.O_RDONLY)
        for ask, change, size in ((get_flags, set_flags, 8),
                                  (get_xattr, set_xattr, 28)):
            raw = bytearray(b"\xff" * 4 + bytes(size - 4))
            fcntl.ioctl(fd, ask, raw)
            assert raw == bytes(size), (name, raw)
            fcntl.ioctl(fd, change, bytes(size))
            # Append-only, as chattr and xfs_io have it.
            flag = b"\x20\0\0\0" if size == 8 else b"\x10\0\0\0"
            fails(errno.EOPNOTSUPP, fcntl.ioctl, fd, change,
                  flag + bytes(size - 4))
        os.close(fd)


if __name__ == "__main__":
    ck.main()
