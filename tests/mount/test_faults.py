"""The disk under the database fails while it is mounted: calls that change
something are told, the daemon goes on and can be read, and once the disk works
so does everything else. tests/fault/faults.h says how it is made to fail."""
import errno
import itertools
import mmap
import os
import struct

import ckptest as ck
from ckptest import KIB, data, fails, get, put, same

LOG, FILES, WRITE, CALLS = 1, 7, 8, 56
ALL = 0xffffffff


class Faults:
    """What the next daemon of this mount calls is answered as set() says."""

    def __init__(self, m):
        path = os.path.join(m.base, "faults")
        with open(path, "wb+") as f:
            f.truncate(mmap.PAGESIZE)
            self.map = mmap.mmap(f.fileno(), mmap.PAGESIZE)
        asan = os.environ.get("ASAN_OPTIONS", "")
        m.environ = {
            "CKPTFS_FAULTS": path,
            "LD_PRELOAD": os.path.join(ck.BUILD, "tests/fault/libfaults.so"),
            "ASAN_OPTIONS": asan + ":verify_asan_link_order=0"}

    def set(self, what, error=0, count=0):
        self.map[:4] = bytes(4)
        self.map[4:28] = struct.pack("6I", error, 0, count, 0, 0, 0)
        self.map[:4] = struct.pack("I", what)

    @property
    def failed(self):
        return struct.unpack("7I", self.map[:28])[6]


def works(fn, *args):
    try:
        fn(*args)
        return True
    except OSError as e:
        assert e.errno in (errno.EIO, errno.ENOSPC), e
        return False


def errors_in_a_row(m, what):
    """Two of each kind, and then the disk works again."""
    faults = Faults(m)
    names = itertools.count()
    m.start()
    m.expected.append("database|inode .* cannot be deleted")
    put(m.path("before"), data(100 * KIB))
    m.flush()
    for error in (errno.EIO, errno.EDQUOT, errno.ENOSPC):
        faults.set(what, error, 2)
        # What is written is opened anew at the first, and fails again then.
        ck.until("both have failed, and it goes on",
                 lambda: works(os.mkdir, m.path(f"d{next(names)}")) and
                 faults.failed == 2)
        put(m.path("f"), data(KIB, error), sync=True)
        m.flush()  # its close, too: what fails would be told at the next open
        same(get(m.path("f")), data(KIB, error), "synced")
        same(get(m.path("before")), data(100 * KIB), "before")
    faults.set(0)
    assert m.status()["database"] == "fine", m.status()["database"]
    m.power_cut()
    m.start()
    same(get(m.path("f")), data(KIB, errno.ENOSPC), "the last one")
    m.unmount()
    m.fsck("--scrub")


@ck.mounted(modes=("auto",), start=False)
def two_errors_of_the_log_in_a_row_are_no_end(m):
    errors_in_a_row(m, LOG | WRITE)


@ck.mounted(modes=("auto",), start=False)
def two_errors_of_any_file_in_a_row_are_no_end(m):
    errors_in_a_row(m, FILES | WRITE)


@ck.mounted(modes=("auto",), start=False)
def a_disk_that_takes_nothing_can_be_read(m):
    faults = Faults(m)
    m.start()
    m.expected.append("database|inode .* cannot be deleted")
    put(m.path("before"), data(100 * KIB))
    m.flush()
    for error in (errno.EIO, errno.ENOSPC):
        faults.set(FILES | CALLS, error, ALL)
        fails(error, os.mkdir, m.path("refused"))
        fails(error, os.unlink, m.path("before"))
        assert os.listdir(m.mnt) == ["before"], os.listdir(m.mnt)
        same(get(m.path("before")), data(100 * KIB), "before")
        assert m.status()["database"] == ("failing" if error == errno.EIO
                                          else "fine")
        faults.set(0)
        ck.until("a change works again",
                 lambda: works(os.mkdir, m.path("taken")))
        os.rmdir(m.path("taken"))
    m.remount()
    same(get(m.path("before")), data(100 * KIB), "remounted")


if __name__ == "__main__":
    ck.main()
