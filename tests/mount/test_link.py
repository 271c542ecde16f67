"""Hard links, symbolic links, and files that are unlinked while open."""
import errno
import os

import ckptest as ck
from ckptest import KIB, MIB, data, fails, get, put, same


@ck.posix
def links_are_one_file_under_two_names(fs):
    for size in (50, 200 * KIB):
        for durable in (False, True):
            a, b = fs.path(f"a{size}{durable}"), fs.path(f"b{size}{durable}")
            put(a, data(size))
            if durable:
                fs.flush(a)
            os.link(a, b)
            with open(b, "ab") as f:
                f.write(b"tail")
            os.chmod(a, 0o600)
    for stage in fs.stages():
        for size in (50, 200 * KIB):
            for durable in (False, True):
                a, b = (fs.path(f"{x}{size}{durable}") for x in "ab")
                same(get(a), data(size) + b"tail", f"{stage} {size} {durable}")
                assert os.path.samestat(os.stat(a), os.stat(b)), stage
                assert os.stat(b).st_nlink == 2, stage
                assert os.stat(b).st_mode & 0o777 == 0o600, stage


@ck.posix
def a_link_keeps_the_file_when_the_first_name_goes(fs):
    a, b = fs.path("a"), fs.path("b")
    put(a, data(100 * KIB))
    os.link(a, b)
    before = os.stat(b).st_ctime_ns
    os.unlink(a)
    assert os.stat(b).st_ctime_ns >= before
    for stage in fs.stages(b):
        same(get(b), data(100 * KIB), stage)
        assert os.stat(b).st_nlink == 1, stage
        fails(errno.ENOENT, os.stat, a)


@ck.posix
def link_fails_where_it_must(fs):
    put(fs.path("a"), b"")
    put(fs.path("b"), b"")
    os.mkdir(fs.path("d"))
    for code, old, new in ((errno.EEXIST, "a", "b"), (errno.EPERM, "d", "x"),
                           (errno.ENOENT, "no", "x"), (errno.EEXIST, "a", "d"),
                           (errno.ENAMETOOLONG, "a", "n" * 256)):
        fails(code, os.link, fs.path(old), fs.path(new))


@ck.posix
def an_unlinked_file_lives_until_its_last_close(fs):
    for size in (100, 2 * MIB):
        for durable in (False, True):
            path = fs.path("f")
            put(path, data(size))
            if durable:
                fs.flush(path)
            fd = os.open(path, os.O_RDWR)
            os.unlink(path)
            fails(errno.ENOENT, os.stat, path)
            assert os.fstat(fd).st_nlink == 0
            os.pwrite(fd, b"after", size)
            os.fsync(fd)
            os.fchmod(fd, 0o640)
            os.ftruncate(fd, size + 3)
            put(path, b"another")  # the name is free at once
            same(os.pread(fd, size + 9, 0), data(size) + b"aft",
                 f"{size} {durable}")
            os.close(fd)
            assert get(path) == b"another"
            os.unlink(path)
    fs.flush()
    fs.remount()
    assert os.listdir(fs.dir) == []


@ck.posix
def unlink_fails_where_it_must(fs):
    os.mkdir(fs.path("d"))
    put(fs.path("f"), b"")
    fails(errno.EISDIR, os.unlink, fs.path("d"))
    fails(errno.ENOENT, os.unlink, fs.path("no"))
    fails(errno.ENOTDIR, os.unlink, fs.path("f/x"))
    fails(errno.ENOTDIR, os.rmdir, fs.path("f"))


@ck.posix
def symbolic_links_hold_any_target(fs):
    put(fs.path("f"), b"here")
    targets = {"rel": "f", "gone": "no/such", "abs": fs.path("f"),
               "long": "x/" * 2000, "utf8": "d\u00e4\u6587/\U0001f600"}
    for name, target in targets.items():
        os.symlink(target, fs.path(name))
    fails(errno.EEXIST, os.symlink, "x", fs.path("rel"))
    fails(errno.EINVAL, os.readlink, fs.path("f"))
    fails(errno.ENOENT, os.stat, fs.path("gone"))
    for stage in fs.stages():
        for name, target in targets.items():
            assert os.readlink(fs.path(name)) == target, (stage, name)
            st = os.lstat(fs.path(name))
            assert st.st_size == len(os.fsencode(target)), (stage, name)
            assert os.path.islink(fs.path(name)), (stage, name)
        assert get(fs.path("rel")) == b"here", stage
    os.unlink(fs.path("rel"))
    assert get(fs.path("f")) == b"here"
    os.symlink("loop", fs.path("loop"))
    fails(errno.ELOOP, os.open, fs.path("loop"), os.O_RDONLY)


if __name__ == "__main__":
    ck.main()
