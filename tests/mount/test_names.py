"""Names: as long, as odd and as deep as the kernel lets them be."""
import errno
import os

import ckptest as ck
from ckptest import fails, get, put

ODD = [b"n" * 255, "\u00e4\u6587\U0001f600".encode(), b"\xff\xfe", b" ", b"-rf",
       b"...", b"new\nline", b"tab\t", b"back\\slash", b"%s%n", b"*?[]",
       bytes(b for b in range(1, 128) if b != ord("/")),
       bytes(range(128, 256)), b".hidden", b"a\x7fb", b"e\xcc\x81",
       "\u00e9".encode(), b"A", b"a"]


@ck.posix
def names_are_bytes_and_come_back_as_they_are(fs):
    root = os.fsencode(fs.dir)
    os.mkdir(os.path.join(root, b"dirs"))
    for name in ODD:
        put(os.path.join(root, name), name)
        os.mkdir(os.path.join(root, b"dirs", name))
    for stage in fs.stages():
        assert sorted(os.listdir(root)) == sorted(ODD + [b"dirs"]), stage
        assert sorted(os.listdir(os.path.join(root, b"dirs"))) == sorted(ODD)
        for name in ODD:
            assert get(os.path.join(root, name)) == name, (stage, name)
    for name in ODD:
        os.rename(os.path.join(root, name), os.path.join(root, b"x"))
        os.unlink(os.path.join(root, b"x"))
        os.rmdir(os.path.join(root, b"dirs", name))


@ck.posix
def a_name_of_256_bytes_is_too_long(fs):
    long = fs.path("n" * 256)
    put(fs.path("f"), b"")
    fails(errno.ENAMETOOLONG, os.stat, long)
    fails(errno.ENAMETOOLONG, os.open, long, os.O_CREAT | os.O_WRONLY)
    fails(errno.ENAMETOOLONG, os.mkdir, long)
    fails(errno.ENAMETOOLONG, os.symlink, "x", long)
    fails(errno.ENAMETOOLONG, os.mkfifo, long)
    fails(errno.ENAMETOOLONG, os.unlink, long)
    fails(errno.ENAMETOOLONG, os.rename, fs.path("f"), long)
    fails(errno.ENAMETOOLONG, os.link, fs.path("f"), long)
    assert os.listdir(fs.dir) == ["f"]


@ck.posix
def directories_nest_deeper_than_a_path_is_long(fs):
    depth, name = 120, "d" * 100
    fd = os.open(fs.dir, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    leaf = os.open("leaf", os.O_CREAT | os.O_WRONLY, dir_fd=fd)
    os.write(leaf, b"deep down")
    os.close(leaf)
    os.close(fd)
    for stage in fs.stages():
        fd = os.open(fs.dir, os.O_RDONLY)
        for _ in range(depth):
            below = os.open(name, os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = below
        leaf = os.open("leaf", os.O_RDONLY, dir_fd=fd)
        assert os.read(leaf, 99) == b"deep down", stage
        os.close(leaf)
        os.close(fd)
    ck.sh(ck.tool("rm"), "-r", fs.path(name))


if __name__ == "__main__":
    ck.main()
