"""A disk that does not answer, and programs that wait for it.

The images lie on a small disk of their own, which is frozen; the database does
not, so a name is given and taken without waiting, as on a disk that is slow."""
import contextlib
import ctypes
import fcntl
import os
import select
import signal

import ckptest as ck
from ckptest import MIB

FIFREEZE, FITHAW = 0xC0045877, 0xC0045878
STAGE = "debug_stage=memory,debug_hold_drain"
libc = ctypes.CDLL(None, use_errno=True)


def images_on_their_own_disk(m):
    """Started once without, so that there is a store."""
    m.start()
    m.unmount()
    disk = ck.Disk(m.base, 256 * MIB)
    images = os.path.join(m.store, "images")
    mode = os.stat(images).st_mode
    ck.sh("mount", "--bind", disk.path, images)
    os.chmod(images, mode & 0o7777)
    return disk


FROZEN_S_MAX = ck.TEST_BOUND  # longer, and whoever holds it has died
let_go = None  # what keeps it frozen: no child may have it


def keep_frozen(path, hold, say):
    os.setsid()
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, FIFREEZE, 0)
    except OSError:
        os.write(say, b"n")
        return
    try:
        os.write(say, b"y")
        select.select([hold], [], [], FROZEN_S_MAX)
    finally:
        fcntl.ioctl(fd, FITHAW, 0)


@contextlib.contextmanager
def frozen(disk):
    """By a process of its own, which thaws it when this one is gone, too."""
    global let_go
    hold, let_go = os.pipe()
    said, say = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        try:
            os.close(let_go)
            keep_frozen(disk.path, hold, say)
        finally:
            os._exit(0)
    os.close(say)
    os.close(hold)
    try:
        if os.read(said, 1) != b"y":
            ck.skip("no file system that can be frozen")
        yield
    finally:
        os.close(let_go)
        let_go = None
        os.waitpid(keeper, 0)
        os.close(said)


def call(fn, *args):
    """0, or its errno: Python itself would call again after EINTR."""
    return 0 if fn(*args) != -1 else ctypes.get_errno()


class Caller:
    """fn() in a process of its own, in which signals are caught."""

    def __init__(self, fn, uid=None):
        def body():
            if let_go is not None:
                os.close(let_go)
            return fn()
        before = {number: signal.signal(number, lambda *_: None)
                  for number in (signal.SIGINT, signal.SIGUSR1)}
        self.child = ck.Child(body, uid)
        for number, handler in before.items():
            signal.signal(number, handler)
        self.gone = os.pidfd_open(self.child.pid)

    def is_over(self):
        return select.select([self.gone], [], [], 0)[0] != []

    def stands(self):
        """It waits for a lock of the kernel: for the daemon it would sleep."""
        return task_state(self.child.pid) == "D"

    def nudge(self, times):
        """It gets one that it catches, and that ends no wait."""
        for _ in range(times):
            os.kill(self.child.pid, signal.SIGUSR1)
        ck.until("it has the signal", lambda: self.is_pending(signal.SIGUSR1))

    def is_pending(self, number):
        with open(f"/proc/{self.child.pid}/status", encoding="ascii") as f:
            sets = dict(line.split(":", 1) for line in f)
        return any(int(sets[key], 16) >> (number - 1) & 1
                   for key in ("SigPnd", "ShdPnd"))

    def end(self, number=signal.SIGINT):
        """A signal may come before the call: again, until it is over."""
        def over():
            if not self.is_over():
                os.kill(self.child.pid, number)
            return self.is_over()
        ck.until(f"it ends with signal {number}", over)

    def result(self):
        os.close(self.gone)
        return self.child.result()


def unmount(m):
    """m.unmount(), which wants nothing else to be mounted in the store."""
    ck.sh("umount", m.mnt)
    code = m.proc.wait(ck.WAIT_BOUND)
    m.proc = None
    assert code == 0, f"ckptfs exited {code}"


def task_state(task):
    """R, S, D ...; None: it is gone."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), \
            open(f"/proc/{task}/stat", encoding="ascii") as f:
        return f.read().rpartition(")")[2].split()[0]


def task_states(m):
    """Of each thread of the daemon."""
    folder = f"/proc/{m.proc.pid}/task"
    return [task_state(f"{m.proc.pid}/task/{t}") for t in os.listdir(folder)]


def stand_still(m):
    """A thread that has not heard of it yet would still answer."""
    os.killpg(m.proc.pid, signal.SIGSTOP)
    ck.until("it stands still", lambda: set(task_states(m)) <= {"T", "D"})
