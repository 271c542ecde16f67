"""The cluster file system hangs, is full, or over quota. Who writes to a node
goes on: write, close and fsync do not wait for it. Nothing is dropped, and all
of it gets there when it can.

No time is measured: what must not wait is called while the cluster is frozen,
and must come back before it is thawed.
"""
import errno
import os

import nodes
from nodes import CLUSTERS, FREE_S, MIB, ck, content, shared, whole
from ckptest import get, put

FILES = 8


def opened(node, count=FILES):
    return [os.open(node.path(f"f{n}"), os.O_WRONLY | os.O_CREAT, 0o644)
            for n in range(count)]


def write_and_close(fds, sync):
    for n, fd in enumerate(fds):
        ck.write_all(fd, content(f"f{n}", n, 4 * MIB))
        if sync:
            os.fsync(fd)
        os.close(fd)


def written_while_frozen(c, what, sync):
    put(c.a.path("before"), content("before", 1, MIB))
    c.settle()
    fds = opened(c.a)
    c.engine.freeze(what)
    nodes.within(FREE_S, f"write and close while {what} is frozen",
                 lambda: write_and_close(fds, sync))
    # Here, too: the test's own copies are what closes the files.
    closing = nodes.Background(lambda _: [os.close(fd) for fd in fds])
    closing.thread.join(FREE_S)
    assert not closing.thread.is_alive(), f"close waits for {what}"
    c.engine.thaw(what)
    c.settle()
    for n in range(FILES):
        for at in (c.shared(f"f{n}"), c.a.path(f"f{n}"), c.b.path(f"f{n}")):
            assert whole(get(at)) == (f"f{n}", n)


@shared()
def writes_and_closes_do_not_wait_for_bytes_that_hang(c):
    written_while_frozen(c, "data", sync=False)


@shared()
def an_fsync_does_not_wait_for_bytes_that_hang(c):
    written_while_frozen(c, "data", sync=True)


@shared(engines=CLUSTERS)
def writes_closes_and_fsync_do_not_wait_for_names_that_hang(c):
    written_while_frozen(c, "meta", sync=True)


@shared()
def status_answers_while_the_cluster_hangs(c):
    """It says what waits, and since when."""
    put(c.a.path("before"), content("before", 1, MIB))
    c.settle()
    fds = opened(c.a, 1)
    c.engine.freeze("data")
    nodes.within(FREE_S, "write", lambda: write_and_close(fds, True))
    nodes.within(FREE_S, "status", lambda: ck.sh(
        ck.CKPTCTL, "status", "--timeout", str(FREE_S // 2), c.a.mnt))
    c.engine.thaw("data")
    for fd in fds:
        os.close(fd)
    c.settle()


@shared(engines=CLUSTERS)
def a_file_can_be_made_while_bytes_hang(c):
    """Its name needs the server of names alone."""
    put(c.a.path("before"), content("before", 1, MIB))
    c.settle()
    c.engine.freeze("data")

    def work():
        for n in range(FILES):
            put(c.a.path(f"f{n}"), content(f"f{n}", n, MIB), sync=True)
            assert whole(get(c.a.path(f"f{n}"))) == (f"f{n}", n)
    nodes.within(FREE_S, "new files while bytes hang", work)
    c.engine.thaw("data")
    c.settle()
    for n in range(FILES):
        assert whole(get(c.b.path(f"f{n}"))) == (f"f{n}", n)


@shared()
def what_this_node_has_is_read_while_the_cluster_hangs(c):
    put(c.a.path("f"), content("f", 1, 8 * MIB))
    c.settle()
    fd = os.open(c.a.path("f"), os.O_RDONLY)
    c.engine.freeze("data")

    def read():
        with open(fd, "rb", buffering=0, closefd=False) as f:
            return whole(f.readall())
    assert nodes.within(FREE_S, "read", read) == ("f", 1)
    c.engine.thaw("data")
    os.close(fd)


@shared()
def a_daemon_is_killed_while_the_cluster_hangs(c):
    """Nothing is lost, and it can be started again before it is thawed or
    after: here, after."""
    fds = opened(c.a)
    c.engine.freeze("data")
    nodes.within(FREE_S, "write", lambda: write_and_close(fds, True))
    c.a.kill()
    for fd in fds:
        try:
            os.close(fd)
        except OSError as e:
            assert e.errno in (errno.ENOTCONN, errno.ECONNABORTED), e
    c.engine.thaw("data")
    c.a.start()
    c.settle()
    for n in range(FILES):
        assert whole(get(c.b.path(f"f{n}"))) == (f"f{n}", n)


def gets_there_when_there_is_room(c, codes, limit, lift):
    """What could not be uploaded is kept, and goes on by itself. The names are
    made before: they are the cluster's, and it may refuse them."""
    os.mkdir(c.a.path("d"))
    fds = [os.open(c.a.path("d", f"f{n}"), os.O_WRONLY | os.O_CREAT, 0o644)
           for n in range(6)]
    limit()
    c.a.expected += [os.strerror(code) for code in codes]
    for n, fd in enumerate(fds):
        ck.write_all(fd, content(f"f{n}", n, 8 * MIB))
        os.close(fd)
        assert whole(get(c.a.path("d", f"f{n}"))) == (f"f{n}", n)
    ck.until("an upload has failed", lambda: any(
        os.strerror(code) in c.a.log_text() for code in codes))
    assert c.pending("d"), "everything got there"
    lift()
    c.settle()
    for n in range(6):
        assert whole(get(c.shared("d", f"f{n}"))) == (f"f{n}", n)
        assert whole(get(c.b.path("d", f"f{n}"))) == (f"f{n}", n)
    errors = c.a.log_text().count("ERROR")
    assert errors < 100, f"{errors} errors in the log"


@shared()
def a_full_cluster_stops_nobody_and_gets_it_later(c):
    gets_there_when_there_is_room(c, (errno.ENOSPC,),
                                  lambda: c.engine.full(True),
                                  lambda: c.engine.full(False))


@shared(engines=CLUSTERS)
def a_quota_stops_nobody_and_what_it_kept_out_gets_there_later(c):
    folder = os.path.join(c.a.shared, "d")

    def quota(size):
        c.engine.call("quota", folder, str(size))
    gets_there_when_there_is_room(c, (errno.EDQUOT, errno.ENOSPC),
                                  lambda: quota(10 * MIB), lambda: quota(0))


if __name__ == "__main__":
    nodes.main()
