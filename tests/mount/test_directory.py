"""Directories: made, listed while they change, and removed."""
import ctypes
import errno
import os
import stat

import ckptest as ck
from ckptest import fails, libc, put

libc.opendir.restype = libc.fdopendir.restype = ctypes.c_void_p
libc.readdir.restype = ctypes.c_void_p
libc.readdir.argtypes = libc.closedir.argtypes = [ctypes.c_void_p]
libc.rewinddir.argtypes = libc.telldir.argtypes = [ctypes.c_void_p]
libc.telldir.restype = ctypes.c_long
libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]


class Dir:
    """readdir(3) with positions, which os.scandir hides."""

    def __init__(self, path):
        self.ptr = libc.opendir(os.fsencode(path))
        assert self.ptr, path

    def read(self):
        entry = libc.readdir(self.ptr)
        return os.fsdecode(ctypes.string_at(entry + 19)) if entry else None

    def rest(self):
        return list(iter(self.read, None))

    def tell(self):
        return libc.telldir(self.ptr)

    def seek(self, position):
        libc.seekdir(self.ptr, position)

    def rewind(self):
        libc.rewinddir(self.ptr)

    def close(self):
        libc.closedir(self.ptr)


@ck.posix
def ten_thousand_entries_are_listed_once_each(fs):
    names = {f"entry-{i:05d}" for i in range(10000)}
    os.mkdir(fs.path("big"))
    for name in names:
        os.mknod(fs.path("big", name))
    for stage in fs.stages():
        with os.scandir(fs.path("big")) as entries:
            listed = [(e.name, e.inode(), e.is_file(follow_symlinks=False))
                      for e in entries]
        assert len(listed) == 10000, (stage, len(listed))
        assert {name for name, _, _ in listed} == names, stage
        assert all(is_file for _, _, is_file in listed), stage
        for name, ino, _ in listed[::997]:
            assert os.stat(fs.path("big", name)).st_ino == ino, stage
    fails(errno.ENOTEMPTY, os.rmdir, fs.path("big"))
    for name in names:
        os.unlink(fs.path("big", name))
    os.rmdir(fs.path("big"))


@ck.posix
def entries_removed_while_reading_hide_no_others(fs):
    for i in range(3000):
        os.mknod(fs.path(f"e{i}"))
    seen = []
    d = Dir(fs.dir)
    while (name := d.read()) is not None:
        seen.append(name)
        if name not in (".", ".."):
            os.unlink(fs.path(name))  # as rm -r does
    d.close()
    assert sorted(seen)[2:] == sorted(f"e{i}" for i in range(3000))
    assert os.listdir(fs.dir) == []


@ck.posix
def entries_made_while_reading_double_no_others(fs):
    for i in range(1000):
        os.mknod(fs.path(f"old{i}"))
    d = Dir(fs.dir)
    seen = [d.read() for _ in range(100)]
    for i in range(1000):
        os.mknod(fs.path(f"new{i}"))
    os.rename(fs.path("new0"), fs.path("renamed"))
    seen += d.rest()
    old = sorted(n for n in seen if n.startswith("old"))
    assert old == sorted(f"old{i}" for i in range(1000)), len(old)
    assert len(seen) == len(set(seen))
    d.rewind()
    assert len(d.rest()) == 2002
    d.close()


@ck.posix
def seekdir_returns_to_where_telldir_was(fs):
    for i in range(500):
        os.mknod(fs.path(f"e{i}"))
    d = Dir(fs.dir)
    places, names = [], []
    while True:
        places.append(d.tell())
        name = d.read()
        if name is None:
            break
        names.append(name)
    for i in (499, 0, 250, 1, 333):
        d.seek(places[i])
        assert d.read() == names[i], i
        assert d.read() == names[i + 1], i
    d.close()


@ck.posix
def a_listing_shows_itself_its_parent_and_every_type(fs):
    os.mkdir(fs.path("d"))
    put(fs.path(".metadata"), b"dot files are listed too")
    os.symlink("x", fs.path("l"))
    os.mkfifo(fs.path("p"))
    d = Dir(fs.dir)
    assert sorted(d.rest()) == [".", "..", ".metadata", "d", "l", "p"]
    d.close()
    with os.scandir(fs.dir) as entries:
        types = {e.name: (e.is_dir(), e.is_symlink()) for e in entries}
    assert types["d"] == (True, False) and types["l"] == (False, True)
    assert os.path.samefile(fs.path("d", ".."), fs.dir)
    assert os.path.samefile(fs.path("d", "."), fs.path("d"))


@ck.posix
def directories_are_made_and_removed(fs):
    os.makedirs(fs.path("a", "b", "c"), mode=0o750)
    put(fs.path("a", "f"), b"")
    for code, fn, name in (
            (errno.EEXIST, os.mkdir, "a"), (errno.EEXIST, os.mkdir, "a/f"),
            (errno.ENOENT, os.mkdir, "no/x"),
            (errno.ENOTDIR, os.mkdir, "a/f/x"),
            (errno.ENOTEMPTY, os.rmdir, "a"), (errno.ENOENT, os.rmdir, "no"),
            (errno.ENOTDIR, os.rmdir, "a/f"),
            (errno.EINVAL, os.rmdir, "a/b/.")):
        fails(code, fn, fs.path(name))
    for stage in fs.stages():
        assert stat.S_IMODE(os.stat(fs.path("a/b/c")).st_mode) == 0o750, stage
        for name, links in ((".", 3), ("a", 3), ("a/b", 3), ("a/b/c", 2)):
            assert os.stat(fs.path(name)).st_nlink == links, (stage, name)
    os.rmdir(fs.path("a/b/c"))
    assert os.stat(fs.path("a/b")).st_nlink == 2
    os.rmdir(fs.path("a/b"))
    os.unlink(fs.path("a/f"))
    os.rmdir(fs.path("a"))
    fs.remount()
    assert os.listdir(fs.dir) == []


@ck.posix
def changes_touch_the_times_of_the_directory(fs):
    os.mkdir(fs.path("d"))
    changes = (lambda: put(fs.path("d/f"), b""),
               lambda: os.rename(fs.path("d/f"), fs.path("d/g")),
               lambda: os.link(fs.path("d/g"), fs.path("d/h")),
               lambda: os.unlink(fs.path("d/g")),
               lambda: os.mkdir(fs.path("d/x")),
               lambda: os.rmdir(fs.path("d/x")),
               lambda: os.symlink("a", fs.path("d/l")))
    for i, change in enumerate(changes):
        os.utime(fs.path("d"), ns=(10**18, 10**18))
        change()
        st = os.stat(fs.path("d"))
        assert st.st_mtime_ns > 10**18, i
        assert st.st_ctime_ns >= st.st_mtime_ns, i


@ck.posix
def a_removed_directory_that_is_open_stays_empty(fs):
    os.mkdir(fs.path("d"))
    fd = os.open(fs.path("d"), os.O_RDONLY | os.O_DIRECTORY)
    os.rmdir(fs.path("d"))
    assert os.listdir(fd) == []
    fails(errno.ENOENT, os.open, "x", os.O_CREAT | os.O_WRONLY, dir_fd=fd)
    os.close(fd)


if __name__ == "__main__":
    ck.main()
