"""Opens that wait for another node's file: they have no thread of the daemon,
so however many there are, they keep nobody else waiting."""
import ctypes
import errno
import os
import signal
import sys
import threading

import nodes
from nodes import KIB, ck, content, shared
from ckptest import get, put, same

sys.path.insert(0, os.path.join(nodes.HERE, "../mount"))
# pylint: disable=wrong-import-position
from frozen import Caller, call, libc  # noqa: E402

FILES = 256  # descriptors of the daemon, which takes 16 threads then
OPENS = 60
OPENAT, CHMOD = "257", "90"


def held_by_a(c, name, raw):
    """Pending until the descriptor is closed."""
    for node in (c.a, c.b):
        node.files = FILES
        node.start()
    fd = os.open(c.a.path(name), os.O_WRONLY | os.O_CREAT)
    ck.write_all(fd, raw)
    return fd


def tried_again(c, name):
    """Another file of node a is there now, and pending, too: who waits for it
    on node b has looked once more when he asks for that. Its descriptor."""
    wanted = c.shared(".ckptfs/nodes/a/wanted")
    fd = os.open(c.a.path("other"), os.O_WRONLY | os.O_CREAT)
    os.write(fd, b"other")
    before = os.stat(wanted).st_mtime_ns
    os.rename(c.a.path("other"), c.a.path(name))
    ck.until("it is asked for",
             lambda: os.stat(wanted).st_mtime_ns != before)
    return fd


def opens(path, count, held):
    """So many at once, of one process; how long what each has read is, or its
    error, and what was read. It lets go of a descriptor that it was born
    with."""
    def one(said, i):
        try:
            said[i] = get(path)
        except OSError as e:
            said[i] = e.errno

    def run():
        os.close(held)
        said = [None] * count
        threads = [threading.Thread(target=one, args=(said, i))
                   for i in range(count)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return [s if isinstance(s, int) else len(s) for s in said], \
            {s for s in said if isinstance(s, bytes)}
    return run


def waits_in(pid, number, count):
    """So many of its threads are in this system call."""
    def is_so():
        found = 0
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/syscall",
                      encoding="ascii") as f:
                found += f.read().split()[0] == number
        return found == count
    ck.until("all calls wait", is_so)


def answered(what, fn, uid=None):
    caller = Caller(fn, uid)
    ck.until(f"{what} is answered", caller.is_over)
    return caller.result()


@shared(options=nodes.HELD, start=False)
def who_waits_for_a_file_has_no_thread(c):
    raw = content("f", 1, 70 * KIB)
    fd = held_by_a(c, "f", raw)
    put(c.b.path("known"), b"known")
    waiters = [Caller(opens(c.b.path("f"), OPENS, fd), uid)
               for uid in (None, ck.USER)]
    for w in waiters:
        waits_in(w.child.pid, OPENAT, OPENS)
    for uid in (None, ck.USER):
        for what, fn in (
                ("stat", lambda: os.stat(c.b.path("f"))),
                ("unknown", lambda: os.path.exists(c.b.path("unknown"))),
                ("list", lambda: os.listdir(c.b.mnt)),
                ("read", lambda: get(c.b.path("known")))):
            answered(what, fn, uid)
    for what, fn in (
            ("create", lambda: put(c.b.path("new"), b"new", sync=True)),
            ("rename", lambda: os.rename(c.b.path("new"),
                                         c.b.path("newer"))),
            ("status", c.b.status)):
        answered(what, fn)
    for w in waiters:
        assert not w.is_over()
    os.close(fd)
    for w in waiters:
        lengths, read = w.result()
        assert lengths == [len(raw)] * OPENS, lengths
        assert read == {raw}


@shared(options=nodes.HELD, start=False)
def what_waits_for_a_file_ends_with_a_signal_that_ends_programs(c):
    fd = held_by_a(c, "f", b"bytes")
    path = c.b.path("f")
    name = os.fsencode(path)
    # Python's own would call again.
    calls = ((OPENAT, lambda: call(libc.open, name, os.O_RDONLY)),
             (OPENAT, lambda: call(libc.open, name,
                                   os.O_WRONLY | os.O_CREAT, 0o600)),
             (CHMOD, lambda: call(libc.chmod, name, 0o600)))
    callers = [Caller(fn) for _, fn in calls]
    for caller, (number, _) in zip(callers, calls):
        waits_in(caller.child.pid, number, 1)
    for caller in callers:
        caller.nudge(2)  # of one that is caught it does not hear
    other = tried_again(c, "f")
    for caller in callers:
        assert not caller.is_over()
        caller.end()
        same(caller.result(), errno.EINTR)
    os.close(fd)
    killed = Caller(opens(path, 3, other))
    waits_in(killed.child.pid, OPENAT, 3)
    os.kill(killed.child.pid, signal.SIGKILL)
    ck.until("who is killed is gone", killed.is_over)
    os.close(other)
    same(get(path), b"other")


@shared(options="pending_wait=1", start=False)
def each_wait_ends_in_its_time_and_says_whose_file_it_is(c):
    fd = held_by_a(c, "f", b"bytes")
    said, _ = Caller(opens(c.b.path("f"), OPENS, fd)).result()
    same(said, [errno.EIO] * OPENS)
    name = os.fsencode(c.b.path("f"))
    same(call(libc.chmod, name, 0o600), errno.EBUSY)
    same(call(libc.truncate, name, ctypes.c_long(0)), errno.EBUSY)
    assert "node a has its bytes" in c.b.log_text()
    os.close(fd)
    c.settle()
    same(get(c.b.path("f")), b"bytes")


@shared(options=nodes.HELD, start=False, engines=("dir",))
def who_cannot_be_looked_at_waits_as_well(c):
    """The daemon has a /proc of its own, and the kernel no number for him."""
    ck.in_pid_namespace(c.b, own_proc=True)
    fd = held_by_a(c, "f", b"bytes")
    name = os.fsencode(c.b.path("f"))

    def open_it():
        os.close(fd)
        return call(libc.open, name, os.O_RDONLY)
    caller = Caller(open_it)
    waits_in(caller.child.pid, OPENAT, 1)
    other = tried_again(c, "f")
    os.close(fd)
    os.close(other)
    same(caller.result(), 0)


if __name__ == "__main__":
    nodes.main()
