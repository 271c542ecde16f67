"""What is asked of a mount with options: what is written to DIR at once, what is
kept here, and who goes first."""
import errno
import fcntl
import os
import signal
import subprocess

import nodes
from nodes import KIB, MIB, ck, content, shared
from ckptest import get, put, same


def where(path):
    return os.getxattr(path, "user.ckptfs.shared").decode()


@shared(options="direct=*.log:run/events.*")
def what_is_direct_is_read_while_it_is_written(c):
    os.mkdir(c.a.path("run"))
    for name in ("x.log", "run/y.log", "run/events.1"):
        for version in (1, 2):  # the second one truncates it
            with open(c.a.path(name), "wb", buffering=0) as f:
                number = os.fstat(f.fileno()).st_ino
                f.write(b"begun %d" % version)
                same(get(c.b.path(name)), b"begun %d" % version, name)
                assert not c.is_pending(name)
                f.write(b", ended")
            same(get(c.b.path(name)), b"begun %d, ended" % version, name)
            assert os.stat(c.b.path(name)).st_ino == number
    for name in ("events.1", "run/x.log.tmp"):
        with open(c.a.path(name), "wb", buffering=0) as f:
            f.write(b"begun")
            assert c.is_pending(name)
    os.mknod(c.b.path("made.log"))
    assert not c.is_pending("made.log")
    c.settle()
    # It is what it is opened as that counts.
    os.rename(c.a.path("events.1"), c.a.path("run/events.2"))
    with open(c.a.path("run/events.2"), "wb", buffering=0) as f:
        f.write(b"anew")
        same(get(c.b.path("run/events.2")), b"anew", "a renamed file")


@shared(options="direct=*.log,debug_hold_drain,debug_stage=memory")
def what_is_synced_by_other_ways_than_fsync_is_durable_here(c):
    """The drain does nothing that it is not asked for."""
    os.mkdir(c.a.path("d"))
    path = c.a.path("d/synced")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_SYNC)
    os.write(fd, content("d/synced", 1, MIB))
    same(c.a.state(path), "durable", "O_SYNC")
    os.close(fd)
    put(c.a.path("d/closed"), content("d/closed", 1, MIB))
    put(c.a.path("d/tmp"), content("d/renamed", 1, MIB))
    os.rename(c.a.path("d/tmp"), c.a.path("d/renamed"))
    same(c.a.state(c.a.path("d/closed")), "staged", "close")
    folder = os.open(c.a.path("d"), os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    for name in ("closed", "renamed"):
        same(c.a.state(c.a.path("d", name)), "durable", name)
    for flags in (os.O_SYNC, os.O_DSYNC):
        fd = os.open(c.a.path("x.log"), os.O_RDWR | os.O_CREAT | flags)
        os.pwrite(fd, b"direct", 0)
        same(os.pread(fd, 10, 0), b"direct")
        same(get(c.b.path("x.log")), b"direct")
        os.close(fd)


@shared(options="local_keep=0")
def what_is_whole_is_not_kept_where_that_is_not_wanted(c):
    for n in range(3):
        put(c.a.path(f"f{n}"), content(f"f{n}", 1, MIB))
    with open(c.a.path("f1"), "rb") as f:
        ck.until("nothing is kept", lambda: where(c.a.path("f0")) == "plain" and
                 where(c.a.path("f2")) == "plain")
        same(f.read(), content("f1", 1, MIB), "who reads it goes on")
    ck.until("nor what was read", lambda: where(c.a.path("f1")) == "plain")
    for n in range(3):
        same(get(c.a.path(f"f{n}")), content(f"f{n}", 1, MIB), "from DIR")
    assert c.a.status()["shared_directory"]["kept"] == 0


@shared(options="local_keep=2M")
def what_was_read_last_is_kept(c):
    for n in range(2):
        put(c.a.path(f"f{n}"), content(f"f{n}", 1, MIB))
        c.a.ctl("flush", "--shared", c.a.mnt)
    get(c.a.path("f0"))
    put(c.a.path("f2"), content("f2", 1, MIB))
    ck.until("one is not kept", lambda: sorted(
        where(c.a.path(f"f{n}")) for n in range(3)) == ["kept"] * 2 + ["plain"])
    assert where(c.a.path("f1")) == "plain"


class Lease:
    """Whoever else opens the file, to read or to write, waits for its end."""

    def __init__(self, path):
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        self.fd = os.open(path, os.O_RDWR)
        fcntl.fcntl(self.fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.fd)


@shared(engines=("dir",))
def what_somebody_waits_for_overtakes(c):
    """One hangs in DIR, and what was closed after it waits for its turn: but
    what another node wants does not."""
    first = open(c.a.path("first"), "wb")
    first.write(b"x")
    with Lease(c.shared("first")):
        first.close()
        for n in range(3):
            put(c.a.path(f"f{n}"), content(f"f{n}", 1, KIB))
        put(c.a.path("latest"), b"x")
        same(get(c.b.path("f1")), content("f1", 1, KIB), "f1")
        assert c.is_pending("first") and c.is_pending("f0") and \
            c.is_pending("f2") and c.is_pending("latest")
    c.settle()


@shared(engines=("dir",))
def a_flush_says_what_it_waits_for(c):
    """What cannot be written to DIR is tried again until it can; whoever waits
    for it is told why, once, and that it goes on."""
    why = os.strerror(errno.EPERM)
    c.a.expected.append(why)
    with open(c.a.path("f"), "wb") as f:
        f.write(content("f", 1, MIB))
        ck.sh("chattr", "+i", c.shared("f"))
    with subprocess.Popen(
            [ck.CKPTCTL, "flush", "--shared", c.a.mnt], text=True,
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as flush:
        said = flush.stderr.readline()
        for what in (c.a.mnt, c.a.shared, why):
            assert what in said, said
        assert flush.poll() is None, "it does not wait"
        ck.sh("chattr", "-i", c.shared("f"))
        same(flush.stderr.read(), "", "what is said after that")
        same(flush.wait(), 0, "its exit code")
    same(get(c.shared("f")), content("f", 1, MIB), "f in DIR")


if __name__ == "__main__":
    nodes.main()
