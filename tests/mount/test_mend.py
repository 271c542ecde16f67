"""Of two copies of the same bytes one is damaged, or in a sector that cannot
be read: a scrub mends it, so does an open with verify=open, and so does a read
that failed, for the next one. The bad sector is lossyfs's: tests/crash."""
import errno
import json
import os
import sys

import ckptest as ck
from ckptest import MIB, data, get, put, same
from images import flip

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "../crash"))
import lossy  # noqa: E402

SIZE = 5 * MIB + 321
BLOCK = 4096
VALUE = data(SIZE, "twice")


def images(m):
    """The images' paths, oldest first."""
    found = [os.path.join(folder, name)
             for folder, _, names in os.walk(os.path.join(m.store, "images"))
             for name in names]
    return sorted(p for p in found if os.path.getsize(p) == SIZE)


def two_copies(m):
    m.options = "dedup_copies=2"
    m.start()
    for name in ("first", "second", "third"):
        put(m.path(name), VALUE, sync=True)
    m.unmount()
    assert len(images(m)) == 2, images(m)


@ck.mounted(start=False)
def a_scrub_mends_what_has_another_copy(m):
    two_copies(m)
    flip(images(m)[0], 3 * MIB)
    flip(images(m)[1], SIZE - 1)
    m.expected.append(".*")
    assert "--read-only is of --scrub" in m.fsck("--read-only", code=2)
    said = m.fsck("--scrub", "--read-only", code=1)
    assert "2 problems" in said and "restore from another copy" in said, said
    assert "no problem" in m.fsck(), "without --scrub nobody reads the bytes"
    found = json.loads(m.fsck("--scrub", "--json"))
    assert found["ok"] and found["mended_chunks"] == 2, found
    assert found["damaged_chunks"] == 0, found
    assert {n["code"] for n in found["notes"]} == {"mended"}, found
    assert "first" in json.dumps(found) and "second" in json.dumps(found)
    said = m.ctl("scrub", m.store)
    assert "no problem" in said and "mended" not in said, said
    m.start()
    for name in ("first", "second", "third"):
        same(get(m.path(name)), VALUE, name)


@ck.mounted(start=False)
def a_scrub_mends_only_from_what_is_whole(m):
    two_copies(m)
    for path in images(m):
        flip(path, 3 * MIB)
    m.expected.append(".*")
    said = m.fsck("--scrub", code=1)
    assert "2 problems" in said and "mended" not in said, said
    flip(images(m)[1], 3 * MIB)  # it is right again
    said = m.ctl("scrub", m.store)
    assert "no problem" in said and "1 mended" in said, said
    assert "are mended from another copy; files: /" in said, said


# As below: of what is read through the daemon.
@ck.mounted(start=False, modes=("off",))
def a_read_without_a_whole_copy_names_its_file(m):
    def then(disk):
        at = 2 * MIB + 77
        spoil(m, disk, at)
        flip(images(m)[1], at + 5000)  # of the same chunk
        m.start()
        for name in ("first", "second"):  # one of them has that image
            ck.until("its file is named", lambda: reads(m.path(name), at) or
                     f"/{name}: bytes " in m.log_text())
        assert "no other copy is whole" in m.log_text(), m.log_text()
        m.unmount()
        flip(images(m)[1], at + 5000)  # it is right again
        assert "unreadable, and are mended" in m.fsck("--scrub")
        m.start()
    on_a_bad_disk(m, then)


@ck.mounted(start=False)
def verify_open_mends_before_the_open_returns(m):
    two_copies(m)
    flip(images(m)[0], 3 * MIB)
    m.start("verify=open")
    m.expected.append(".*")
    for name in ("first", "second", "third"):
        same(get(m.path(name)), VALUE, name)
    assert "mended (from another copy" in m.log_text(), m.log_text()
    m.unmount()
    said = m.ctl("scrub", m.store)
    assert "no problem" in said and "mended" not in said, said


def spoil(m, disk, at):
    """A sector of one image is bad from now on."""
    path = images(m)[0]
    fd = os.open(path, os.O_RDONLY)
    try:
        disk.tell("spoil", os.fstat(fd).st_ino, at // BLOCK)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        ck.fails(errno.EIO, os.pread, fd, BLOCK, at // BLOCK * BLOCK)
    finally:
        os.close(fd)


def on_a_bad_disk(m, then):
    if lossy.missing():
        raise ck.Skip(lossy.missing())
    # Not below m.base: who stops a mount unmounts all that is there.
    with lossy.Lossy(m.base + "-disk") as disk:
        m.store = disk.path("store")
        os.mkdir(m.store)
        try:
            two_copies(m)
            then(disk)
            m.unmount()
            said = m.fsck("--scrub")
            assert "mended" not in said, said
        finally:
            m.stop()
            m.store = os.path.join(m.base, "store")
    m.expected.append(".*")


@ck.mounted(start=False, modes=("auto",))
def a_scrub_mends_a_bad_sector(m):
    def then(disk):
        for at in (0, 2 * MIB + 77, SIZE - 1):
            spoil(m, disk, at)
            assert "cannot be read" in m.fsck("--scrub", "--read-only", code=1)
            assert "unreadable, and are mended" in m.fsck("--scrub")
        m.start()
        for name in ("first", "second", "third"):
            same(get(m.path(name)), VALUE, name)
    on_a_bad_disk(m, then)


@ck.mounted(start=False, modes=("auto",))
def verify_open_mends_a_bad_sector(m):
    def then(disk):
        spoil(m, disk, 2 * MIB + 77)
        m.start("verify=open")
        for name in ("first", "second"):  # one of them has that image
            same(get(m.path(name)), VALUE, name)
        assert "1 part of it was damaged" in m.log_text(), m.log_text()
    on_a_bad_disk(m, then)


def reads(path, at):
    """Whether ten bytes there can be read; they are the right ones then."""
    fd = os.open(path, os.O_RDONLY)
    try:
        got = os.pread(fd, 10, at)
    except OSError as e:
        assert e.errno == errno.EIO, e
        return False
    finally:
        os.close(fd)
    assert got == VALUE[at:at + 10]
    return True


# What the kernel reads by itself in passthrough the daemon does not see.
@ck.mounted(start=False, modes=("off",))
def a_read_that_failed_mends_for_the_next_one(m):
    def then(disk):
        at = 2 * MIB + 77
        spoil(m, disk, at)
        m.start()
        for name in ("first", "second"):  # one of them has that image
            ck.until(f"{name} can be read", lambda: reads(m.path(name), at))
        ck.until("it says so",
                 lambda: "mended (from another copy" in m.log_text())
        for name in ("first", "second", "third"):
            same(get(m.path(name)), VALUE, name)
    on_a_bad_disk(m, then)


if __name__ == "__main__":
    ck.main()
