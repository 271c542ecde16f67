"""blockdisk - a disk that logs what is written to it, and its file system.

qemu-storage-daemon exports a file through FUSE and logs each request that
the kernel's loop device makes of it (blklogwrites). Nothing of the host has
to be told: no module, no device mapper.
"""
import errno
import os
import select
import shutil
import subprocess
import time

from blocklog import Log, copy_sparse
from lossy import MNT_DETACH, umount

STORAGE_DAEMON = os.environ.get("QEMU_STORAGE_DAEMON", "qemu-storage-daemon")
WAIT_BOUND = 240  # seconds for any one event
LOG_BYTES = 64 << 30  # sparse; what the log may grow to
# Nothing is written later by itself; a small journal goes round often.
MKFS = {
    "ext4": ["mkfs.ext4", "-q", "-F", "-m0", "-b4096", "-Jsize=8",
             "-Elazy_itable_init=0,lazy_journal_init=0"],
    "xfs": ["mkfs.xfs", "-q", "-f"],
}


def missing():
    """Why a test that needs such a disk cannot run here, or None."""
    if not shutil.which(STORAGE_DAEMON):
        return f"it needs {STORAGE_DAEMON}"
    if not os.path.exists("/dev/loop-control"):
        return "it needs loop devices"
    return None


def run(*argv):
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=WAIT_BOUND)
    if done.returncode != 0:
        raise OSError(errno.EIO, f"{' '.join(argv)}: {done.stdout.strip()}")
    return done.stdout


def make(path, size, kind):
    """A new file system in a file."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    os.ftruncate(fd, size)
    os.close(fd)
    run(*MKFS[kind], path)


def copy(src, dst):
    a = os.open(src, os.O_RDONLY)
    try:
        b = os.open(dst, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            copy_sparse(a, b)
        finally:
            os.close(b)
    finally:
        os.close(a)


def is_mounted(path):
    with open("/proc/self/mountinfo") as f:
        return any(line.split()[4] == path for line in f)


class Mounted:
    """The file system in a file, mounted on a directory. Each has a loop
    device of its own, which mount -o loop does not promise: where a process
    elsewhere has taken an earlier mount along into its own namespace, the
    kernel would show that one again."""

    def __init__(self, image, root, kind):
        self.root, self.repaired = root, False
        self.device = run("losetup", "--find", "--show", image).strip()
        try:
            self.mount(kind)
        except BaseException:
            run("losetup", "--detach", self.device)
            raise

    def mount(self, kind):
        argv = ["mount", "-t", kind, self.device, self.root]
        try:
            run(*argv)
        except OSError:
            if kind != "ext4":
                raise
            # what an administrator would do
            subprocess.run(["e2fsck", "-fy", self.device],
                           timeout=WAIT_BOUND, stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL)
            self.repaired = True
            run(*argv)

    def close(self):
        """Also of one whose daemon has just been killed."""
        deadline = time.monotonic() + WAIT_BOUND
        while True:
            try:
                umount(self.root)
                break
            except OSError as e:
                if e.errno != errno.EBUSY or time.monotonic() > deadline:
                    umount(self.root, MNT_DETACH)
                    raise
            time.sleep(0.01)
        run("losetup", "--detach", self.device)


class Recorder:
    """A file as a disk whose requests are logged; export is its path."""

    def __init__(self, scratch, image):
        self.log_path = os.path.join(scratch, "log")
        self.export = os.path.join(scratch, "export")
        for path, size in ((self.log_path, LOG_BYTES), (self.export, 0)):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            os.ftruncate(fd, size)
            os.close(fd)
        file = "driver=file,cache.no-flush=on,locking=off,discard=unmap,"
        with open("/proc/self/mountinfo") as info:
            self.process = subprocess.Popen(
                [STORAGE_DAEMON,
                 "--blockdev", f"{file}node-name=disk,filename={image}",
                 "--blockdev", f"{file}node-name=log,"
                 f"filename={self.log_path}",
                 "--blockdev", "driver=blklogwrites,node-name=logged,"
                 "file=disk,log=log,discard=unmap",
                 "--export", "type=fuse,id=export,node-name=logged,"
                 f"writable=on,mountpoint={self.export}"],
                stdin=subprocess.DEVNULL)
            poll = select.poll()
            poll.register(info, select.POLLPRI)
            deadline = time.monotonic() + WAIT_BOUND
            while not is_mounted(self.export):
                left = deadline - time.monotonic()
                if left <= 0 or self.process.poll() is not None:
                    self.process.kill()
                    self.process.wait()
                    raise RuntimeError(f"{STORAGE_DAEMON} did not start")
                poll.poll(min(left, 1) * 1000)
        self.log = Log(self.log_path)

    def stop(self):
        """The log is complete then."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(WAIT_BOUND)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if is_mounted(self.export):
            umount(self.export, MNT_DETACH)
        self.process = None

    def close(self):
        self.stop()
        self.log.close()
        os.unlink(self.log_path)
