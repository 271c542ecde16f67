"""rig - the daemon under test, for tests that take the power from its disk.

Every wait is bounded: a daemon that hangs is killed, which wakes whoever
waits for it in the kernel. judge() starts one on what a cut has left, and
says what is wrong with it.
"""
import os
import select
import signal
import subprocess
import sys
import threading
import time

import workload
from history import look
from lossy import BUILD, MNT_DETACH, umount

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../mount"))

from ckptest import own_mounts  # noqa: E402, F401 - for those who have a rig

CKPTFS = os.environ.get("CKPTFS", os.path.join(BUILD, "fuse/ckptfs"))
CKPTCTL = os.environ.get("CKPTCTL", os.path.join(BUILD, "fuse/ckptctl"))
STEP_BOUND = 240  # seconds for anything a daemon is asked to do
SHOWN_MAX = 20  # violations printed in full


class Hung(Exception):
    pass


class NoMount(Exception):
    """The daemon did not come up; its own words are in the message."""


class Guard:
    """Bounds a block: when its time is over the daemon is killed, which
    wakes everybody who waits for it in the kernel."""

    def __init__(self, daemon, what, bound=STEP_BOUND):
        self.daemon, self.what, self.hit = daemon, what, False
        self.timer = threading.Timer(bound, self.strike)

    def strike(self):
        self.hit = True
        self.daemon.shoot()

    def __enter__(self):
        self.timer.start()
        return self

    def __exit__(self, kind, e, _tb):
        self.timer.cancel()
        self.timer.join()
        if self.hit:
            raise Hung(f"{self.what} did not return within "
                       f"{self.timer.interval:.0f} s") from e


class Daemon:
    """stage: the directory of stage=, or None: a tmpfs of its own."""

    def __init__(self, store, mount, stage, options, log, preload=None):
        self.store, self.mount = store, mount
        self.options = ",".join(filter(None, (
            f"stage={stage}" if stage else "", options)))
        self.log, self.process, self.preload = log, None, preload

    def argv(self):
        options = ["-o", self.options] if self.options else []
        return [CKPTFS, "-f", *options, self.store, self.mount]

    def environment(self):
        return {**os.environ, "LD_PRELOAD": self.preload} \
            if self.preload else None

    def mounted(self):
        with open("/proc/self/mountinfo") as f:
            return any(line.split()[4] == self.mount for line in f)

    def start(self):
        with open(self.log, "ab") as log, open("/proc/self/mountinfo") as info:
            self.said_from = log.tell()
            # a session of its own: shoot() gets its children too
            self.process = subprocess.Popen(
                self.argv(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, env=self.environment())
            ended = os.pidfd_open(self.process.pid)
            poll = select.poll()
            poll.register(info, select.POLLPRI)
            poll.register(ended, select.POLLIN)
            try:
                deadline = time.monotonic() + STEP_BOUND
                while not self.mounted() and self.process.poll() is None:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        self.kill()
                        raise Hung(f"no mount within {STEP_BOUND} s: "
                                   f"{self.said()}")
                    poll.poll(left * 1000)
            finally:
                os.close(ended)
        if not self.mounted():
            code = self.process.wait()
            self.process = None
            raise NoMount(f"exit {code}: {self.said()}")
        with Guard(self, "statvfs of the new mount"):
            os.statvfs(self.mount)

    def said(self):
        with open(self.log, "rb") as f:
            f.seek(self.said_from)
            return f.read().decode(errors="replace").strip()[-2000:]

    def said_lately(self):
        """The last words of all daemons of this run."""
        with open(self.log, "rb") as f:
            return f.read().decode(errors="replace")[-4000:]

    def shoot(self):
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def kill(self):
        """As kill -9 does it; the mount goes with it."""
        self.shoot()
        if self.process:
            self.process.wait(STEP_BOUND)
            self.process = None
        while self.mounted():
            umount(self.mount, MNT_DETACH)

    def stop(self):
        """A clean unmount; everything is durable when it returns."""
        umount(self.mount)
        try:
            code = self.process.wait(STEP_BOUND)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Hung("the daemon did not end after its unmount") from None
        self.process = None
        if code != 0:
            raise NoMount(f"exit {code} after its unmount: {self.said()}")

    def fsck(self):
        return subprocess.run(
            [CKPTCTL, "fsck", self.store, "--scrub"], timeout=STEP_BOUND,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True)

    def flush(self):
        subprocess.run([CKPTCTL, "flush", self.mount], timeout=STEP_BOUND,
                       check=True, stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL)


def use(mount):
    """A store that came through a cut takes new files."""
    path = os.path.join(mount, "new after the cut")
    content = workload.data(100_000, "new")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        os.write(fd, content)
        os.fsync(fd)
        same = os.pread(fd, len(content) + 1, 0) == content
    finally:
        os.close(fd)
    os.unlink(path)
    return [] if same else [("torn", "a new file reads wrong")]


def checked(daemon, when):
    """What fsck says, of a store that is not mounted."""
    fsck = daemon.fsck()
    if fsck.returncode == 0:
        return []
    return [("fsck", f"{when}: exit {fsck.returncode}: "
             f"{fsck.stdout.strip()[-1000:]}")]


def judge(daemon, history, k, *, new=True, before=False, mounts=1):
    """Start a daemon on what is there and look. Leaves it unmounted. new:
    write a new file, too; before: the store is fine before it is mounted,
    too; mounts: how often it is mounted and looked at."""
    d, out = daemon, []
    try:
        if before:
            out += checked(d, "before the mount")
        for n in range(mounts):
            d.start()
            with Guard(d, "reading everything"):
                found = look(d.mount)
            out += history.violations(found, k)
            if new and n == mounts - 1:
                with Guard(d, "a new file"):
                    out += use(d.mount)
            d.stop()
        out += checked(d, "after it")
    except (OSError, Hung, NoMount, subprocess.SubprocessError) as e:
        out.append(("dead", f"{type(e).__name__}: {e}"))
    d.kill()
    return out


def progress(text):
    if sys.stdout.isatty():
        print(f"\r\033[K{text}", end="", flush=True)


class Report:
    def __init__(self):
        self.cuts = self.bad = 0
        self.kinds = {}

    def add(self, title, violations):
        self.cuts += 1
        if not violations:
            return
        self.bad += 1
        for kind, _ in violations:
            self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if self.bad <= SHOWN_MAX:
            progress("")
            print(f"VIOLATION {title}")
            for kind, sentence in violations:
                print(f"    {kind}: {sentence}")
            sys.stdout.flush()
