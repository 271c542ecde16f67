"""Names that move: rename in all its forms, on files and directories."""
import errno
import os
import threading

import ckptest as ck
from ckptest import (KIB, MIB, RENAME_EXCHANGE, RENAME_NOREPLACE, data, fails,
                     get, put, renameat2, same)


@ck.posix
def rename_moves_a_file_with_its_content(fs):
    os.mkdir(fs.path("d"))
    for size in (0, 100, 200 * KIB):
        a, b, c = fs.path(f"a{size}"), fs.path(f"b{size}"), \
            fs.path("d", f"c{size}")
        put(a, data(size))
        ino = os.stat(a).st_ino
        os.rename(a, b)
        os.rename(b, c)
        fails(errno.ENOENT, os.stat, a)
        fails(errno.ENOENT, os.stat, b)
        assert os.stat(c).st_ino == ino
        for stage in fs.stages(c):
            same(get(c), data(size), f"{stage} {size}")
            assert not os.path.exists(a), stage


@ck.posix
def rename_replaces_a_file_and_its_reader_keeps_the_old(fs):
    for old_durable in (False, True):
        for size in (100, 200 * KIB):
            a, b = fs.path("a"), fs.path("b")
            put(b, data(size, "old"))
            if old_durable:
                fs.flush(b)
            reader = os.open(b, os.O_RDONLY)
            put(a, data(size, "new"))
            os.rename(a, b)
            same(get(b), data(size, "new"), "new")
            same(os.pread(reader, size + 1, 0), data(size, "old"), "reader")
            fs.flush(b)
            same(os.pread(reader, size + 1, 0), data(size, "old"), "reader 2")
            assert os.fstat(reader).st_nlink == 0
            os.close(reader)
            for stage in fs.stages(b):
                same(get(b), data(size, "new"), stage)
                assert os.listdir(fs.dir) == ["b"], stage


@ck.posix
def rename_of_an_open_file_keeps_its_handle(fs):
    a, b = fs.path("a"), fs.path("b")
    fd = os.open(a, os.O_RDWR | os.O_CREAT)
    os.write(fd, b"one ")
    os.rename(a, b)
    os.write(fd, b"two")
    assert os.pread(fd, 99, 0) == b"one two" == get(b)
    os.close(fd)
    for stage in fs.stages(b):
        assert get(b) == b"one two", stage


@ck.posix
def rename_onto_the_same_file_does_nothing(fs):
    put(fs.path("a"), b"x")
    os.link(fs.path("a"), fs.path("b"))
    os.rename(fs.path("a"), fs.path("a"))
    os.rename(fs.path("a"), fs.path("b"))
    assert sorted(os.listdir(fs.dir)) == ["a", "b"]
    assert os.stat(fs.path("a")).st_nlink == 2


@ck.posix
def rename_moves_directories_with_all_below(fs):
    os.makedirs(fs.path("step.tmp", "deep", "er"))
    os.mkdir(fs.path("other"))
    put(fs.path("step.tmp", "deep", "er", "f"), data(100 * KIB))
    put(fs.path("step.tmp", ".metadata"), b"meta")
    os.rename(fs.path("step.tmp"), fs.path("step"))
    os.rename(fs.path("step", "deep"), fs.path("other", "deep"))
    os.mkdir(fs.path("empty"))
    os.rename(fs.path("other"), fs.path("empty"))  # over an empty one
    for stage in fs.stages():
        assert sorted(os.listdir(fs.dir)) == ["empty", "step"], stage
        assert os.listdir(fs.path("step")) == [".metadata"], stage
        same(get(fs.path("empty", "deep", "er", "f")), data(100 * KIB), stage)
        assert os.stat(fs.dir).st_nlink == 4, stage
        assert os.stat(fs.path("empty")).st_nlink == 3, stage
        assert os.stat(fs.path("step")).st_nlink == 2, stage
        up = os.stat(fs.path("empty", "deep", ".."))
        assert up.st_ino == os.stat(fs.path("empty")).st_ino, stage


@ck.posix
def rename_fails_where_it_must(fs):
    for name in ("d/sub", "full/x", "empty"):
        os.makedirs(fs.path(name))
    put(fs.path("f"), b"f")
    for code, old, new in (
            (errno.ENOENT, "no", "x"), (errno.ENOENT, "f", "no/x"),
            (errno.ENOTEMPTY, "d", "full"), (errno.EINVAL, "d", "d/sub/x"),
            (errno.EINVAL, "d", "d/x"), (errno.EISDIR, "f", "empty"),
            (errno.ENOTDIR, "empty", "f"), (errno.ENOTDIR, "f", "f/x"),
            (errno.ENAMETOOLONG, "f", "n" * 256)):
        fails(code, os.rename, fs.path(old), fs.path(new))
    assert sorted(os.listdir(fs.dir)) == ["d", "empty", "f", "full"]


@ck.posix
def noreplace_never_replaces(fs):
    put(fs.path("a"), b"a")
    put(fs.path("b"), b"b")
    os.mkdir(fs.path("d"))
    for old, new in (("a", "b"), ("a", "d"), ("d", "a")):
        fails(errno.EEXIST, renameat2, fs.path(old), fs.path(new),
              RENAME_NOREPLACE)
    renameat2(fs.path("a"), fs.path("c"), RENAME_NOREPLACE)
    renameat2(fs.path("d"), fs.path("e"), RENAME_NOREPLACE)
    for stage in fs.stages(fs.path("c")):
        assert get(fs.path("b")) == b"b" and get(fs.path("c")) == b"a", stage
        assert sorted(os.listdir(fs.dir)) == ["b", "c", "e"], stage


@ck.posix
def exchange_swaps_whatever_the_two_are(fs):
    put(fs.path("a"), data(100 * KIB, "a"))
    put(fs.path("b"), b"b")
    os.makedirs(fs.path("d", "x"))
    os.makedirs(fs.path("e"))
    renameat2(fs.path("a"), fs.path("b"), RENAME_EXCHANGE)
    renameat2(fs.path("a"), fs.path("d", "x"), RENAME_EXCHANGE)
    renameat2(fs.path("d"), fs.path("e"), RENAME_EXCHANGE)
    for code, old, new, flags in (
            (errno.ENOENT, "b", "no", RENAME_EXCHANGE),
            (errno.EINVAL, "e", "e/x", RENAME_EXCHANGE),
            (errno.EINVAL, "b", "c", RENAME_EXCHANGE | RENAME_NOREPLACE)):
        fails(code, renameat2, fs.path(old), fs.path(new), flags)
    for stage in fs.stages(fs.path("b")):
        same(get(fs.path("b")), data(100 * KIB, "a"), stage)
        assert get(fs.path("e", "x")) == b"b", stage
        assert os.listdir(fs.path("a")) == [], stage
        assert os.listdir(fs.path("d")) == [], stage
        for name, links in (("a", 2), ("d", 2), ("e", 2), (".", 5)):
            assert os.stat(fs.path(name)).st_nlink == links, (stage, name)


@ck.posix
def a_reader_of_a_replaced_name_sees_one_version_whole(fs):
    """Durable versions are renamed over one name while others read it."""
    path, size = fs.path("latest"), MIB + 11
    versions = {data(size, i) for i in range(12)}
    put(path, data(size, 0))
    fs.flush(path)
    stop = threading.Event()
    bad = []

    def read():
        while not stop.is_set():
            if get(path) not in versions:
                bad.append("torn or mixed")
    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for i in range(1, 12):
        put(fs.path("tmp"), data(size, i))
        os.rename(fs.path("tmp"), path)
    stop.set()
    for reader in readers:
        reader.join()
    assert not bad, bad
    for stage in fs.stages(path):
        same(get(path), data(size, 11), stage)


@ck.posix
def the_metadata_dance_never_shows_half_a_file(fs):
    """DCP: write .metadata.tmp, fsync, unlink the old, rename. A reader that
    polls sees no file or a whole one."""
    path, size = fs.path(".metadata"), 70 * KIB
    versions = {data(size, i) for i in range(40)}

    def poll():
        seen = 0
        while not os.path.exists(fs.path("stop")):
            try:
                content = get(path)
            except FileNotFoundError:
                continue
            if content not in versions:
                raise OSError(errno.EIO, f"{len(content)} torn bytes")
            seen += 1
        return seen
    reader = ck.Child(poll)
    for i in range(40):
        put(path + ".tmp", data(size, i), sync=True)
        if i:
            os.unlink(path)
        os.rename(path + ".tmp", path)
    put(fs.path("stop"), b"")
    assert reader.result() > 0


if __name__ == "__main__":
    ck.main()
