"""Who has more calls wait for the disk than the daemon has threads takes
nobody's: what others ask for is answered, and a signal ends what waits."""
import errno
import os
import signal
import threading

import ckptest as ck
from ckptest import KIB, data, get, put, same
from frozen import (Caller, STAGE, call, frozen, images_on_their_own_disk,
                    libc, task_states, unmount)

FILES = 256  # descriptors of the daemon, which takes 16 threads then
CALLS = 40


def fsync_all(fds):
    """One call for each, all at once; what they said."""
    said = [None] * len(fds)

    def one(i):
        said[i] = call(libc.fsync, fds[i])
    threads = [threading.Thread(target=one, args=(i,))
               for i in range(len(fds))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return said


def fsync_one(fd, uid):
    """In its first thread, which signals go to."""
    return Caller(lambda: call(libc.fsync, fd), uid)


def written(m, count, uid, folder="many"):
    """So many files of his that are open and not durable."""
    folder = m.path(folder)
    os.makedirs(folder, exist_ok=True)
    fds = []
    for i in range(count):
        fds.append(os.open(f"{folder}/{i}", os.O_RDWR | os.O_CREAT))
        ck.write_all(fds[-1], data(64 * KIB, f"{uid} {i}"))
        os.chown(fds[-1], uid, uid)
    return fds


def all_wait(m, caller, count):
    """In the kernel: each of its threads but the first is in fsync(2)."""
    folder = f"/proc/{caller.child.pid}/task"

    def waits(task):
        with open(f"{folder}/{task}/syscall", encoding="ascii") as f:
            return f.read().split()[0] == "74"
    ck.until("all calls wait",
             lambda: sum(map(waits, os.listdir(folder))) == count)
    ck.until("a worker waits for the disk",
             lambda: "D" in task_states(m))


@ck.mounted(STAGE, modes=("auto",), start=False)
def more_calls_that_wait_than_threads_keep_nobody_else_waiting(m):
    disk = images_on_their_own_disk(m)
    m.files = FILES
    m.start()
    put(m.path("known"), b"known")
    his = written(m, CALLS, ck.USER)
    theirs = written(m, 1, ck.USER + 1, "theirs")
    with frozen(disk):
        taker = Caller(lambda: fsync_all(his), ck.USER)
        all_wait(m, taker, CALLS)
        others = (lambda: os.path.exists(m.path("unknown")),
                  lambda: put(m.path("new"), b"new"),
                  lambda: get(m.path("known")),
                  lambda: os.rename(m.path("known"), m.path("renamed")),
                  lambda: os.listdir(m.mnt), m.status)
        for other in others:
            caller = Caller(other)
            ck.until("root is answered", caller.is_over)
            caller.result()
        # Another user waits for the disk, and for nobody else's calls.
        waiting = fsync_one(theirs[0], ck.USER + 1)
        waiting.end()
        assert waiting.result() == errno.EINTR
        taker.child.kill()
    for fd in his + theirs:
        os.close(fd)
    unmount(m)
    m.start()
    same(get(m.path("new")), b"new")
    unmount(m)


@ck.mounted(STAGE, modes=("auto",), start=False)
def what_waits_beyond_ones_share_ends_with_a_signal_and_else_with_the_disk(m):
    disk = images_on_their_own_disk(m)
    m.files = FILES
    m.start()
    fds = written(m, CALLS + 3, ck.USER)
    with frozen(disk):
        taker = Caller(lambda: fsync_all(fds[3:]), ck.USER)
        all_wait(m, taker, CALLS)
        late = [fsync_one(fd, ck.USER) for fd in fds[:3]]
        for caller in late:
            all_wait(m, caller, 1)
        late[0].end()
        assert late[0].result() == errno.EINTR
        late[1].nudge(3)
        m.status()
        assert not late[1].is_over()
        late[1].end()
        assert late[1].result() == errno.EINTR
        late[2].nudge(1)
    assert taker.result() == [0] * CALLS
    assert late[2].result() == 0
    for fd in fds:
        os.close(fd)
    unmount(m)


@ck.mounted(STAGE, modes=("auto",), start=False)
def roots_waits_leave_threads_for_what_need_not_wait(m):
    disk = images_on_their_own_disk(m)
    m.files = FILES
    m.start()
    put(m.path("known"), b"known")
    fds = written(m, CALLS, 0)
    with frozen(disk):
        taker = Caller(lambda: fsync_all(fds))
        all_wait(m, taker, CALLS)
        for other in (lambda: os.path.exists(m.path("unknown")),
                      lambda: put(m.path("new"), b"new"),
                      lambda: get(m.path("known")), m.status):
            caller = Caller(other)
            ck.until("it is answered", caller.is_over)
            caller.result()
        taker.child.kill()
    for fd in fds:
        os.close(fd)
    unmount(m)


if __name__ == "__main__":
    ck.main()
