"""Names: as long, as odd and as deep as the kernel lets them be."""
import ctypes
import errno
import os

import ckptest as ck
from ckptest import fails, get, put, same

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


class Handle(ctypes.Structure):
    """struct file_handle, with room for any."""
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int),
                ("data", ctypes.c_ubyte * 128)]


def handle_of(path):
    handle, mount = Handle(bytes=128), ctypes.c_int()
    if ck.libc.name_to_handle_at(ck.AT_FDCWD, path.encode(),
                                 ctypes.byref(handle), ctypes.byref(mount), 0):
        raise OSError(ctypes.get_errno(), path)
    return handle


def open_handle(root, handle, flags=os.O_RDONLY):
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    fd = ck.libc.open_by_handle_at(at, ctypes.byref(handle), flags)
    code = ctypes.get_errno()
    os.close(at)
    if fd < 0:
        raise OSError(code, "open_by_handle_at")
    return fd


@ck.mounted()
def a_handle_leads_to_its_file_when_nobody_remembers_it(m):
    """As an NFS client has it, across restarts of its server."""
    os.makedirs(m.path("d/e"))
    put(m.path("d/e/f"), b"content")
    put(m.path("gone"), b"x")
    handles = {name: handle_of(m.path(name))
               for name in ("d", "d/e", "d/e/f", "gone")}
    inodes = {name: os.stat(m.path(name)).st_ino for name in handles}
    os.unlink(m.path("gone"))
    os.rename(m.path("d/e/f"), m.path("d/renamed"))
    m.remount()
    fails(errno.ESTALE, open_handle, m.mnt, handles.pop("gone"))
    for name, handle in handles.items():
        fd = open_handle(m.mnt, handle)
        assert os.fstat(fd).st_ino == inodes[name], name
        os.close(fd)
    fd = open_handle(m.mnt, handles["d/e/f"])
    same(os.read(fd, 100), b"content")
    os.close(fd)
    fd = open_handle(m.mnt, handles["d/e"])
    assert os.stat("..", dir_fd=fd).st_ino == inodes["d"]
    assert os.readlink(f"/proc/self/fd/{fd}") == m.path("d/e")
    os.close(fd)
    os.unlink(m.path("d/renamed"))
    fails(errno.ESTALE, open_handle, m.mnt, handles["d/e/f"])


if __name__ == "__main__":
    ck.main()
