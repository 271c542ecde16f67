"""lossy - start, steer and stop lossyfs from a test.

Every wait is bounded; a lossyfs that hangs is killed, which wakes whoever
waits for it in the kernel. Nothing here looks into what is tested.
"""
import ctypes
import os
import select
import subprocess

BUILD = os.environ.get("CKPTFS_BUILD", os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "../../build"))
LOSSYFS = os.environ.get("LOSSYFS", os.path.join(BUILD, "tests/crash/lossyfs"))
WAIT_BOUND = 240  # seconds for any one event
MNT_DETACH = 2
SKIP = 77

libc = ctypes.CDLL(None, use_errno=True)
libc.mount.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_ulong, ctypes.c_char_p]
libc.umount2.argtypes = [ctypes.c_char_p, ctypes.c_int]


def _checked(rc, path):
    if rc != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)


def umount(path, flags=0):
    _checked(libc.umount2(os.fsencode(path), flags), path)


def mount_tmpfs(path, options):
    _checked(libc.mount(b"tmpfs", os.fsencode(path), b"tmpfs", 0,
                        options.encode()), path)


def missing():
    """Why a test that needs lossyfs cannot run here, or None."""
    if os.geteuid() != 0:
        return "it needs root"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "it needs /dev/fuse"
    if not os.access(LOSSYFS, os.X_OK):
        return f"it needs {LOSSYFS}"
    return None


class Lossy:
    """A mounted lossyfs; its root is `root`. Use with `with`."""

    def __init__(self, root, *options):
        self.root = root
        os.makedirs(root, exist_ok=True)
        self.process = subprocess.Popen(
            [LOSSYFS, *options, root], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE)
        try:
            ready, _, _ = select.select([self.process.stdout], [], [],
                                        WAIT_BOUND)
            if not ready or self.process.stdout.readline() != b"ready\n":
                raise RuntimeError(f"lossyfs did not mount on {root}")
            self.control = os.open(f"{root}/.lossy/control", os.O_WRONLY)
            self.status = os.open(f"{root}/.lossy/state", os.O_RDONLY)
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        os.close(self.control)
        os.close(self.status)
        self.process.terminate()
        try:
            self.process.wait(WAIT_BOUND)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            umount(self.root, MNT_DETACH)
        self.process.stdout.close()
        if exc[0] is None and self.process.returncode != 0:
            raise RuntimeError(f"lossyfs ended {self.process.returncode}")

    def path(self, *names):
        return os.path.join(self.root, *names)

    def tell(self, *words):
        os.pwrite(self.control, " ".join(map(str, words)).encode(), 0)

    def state(self):
        """(operations done, power cut?, operations in the log, said)"""
        words = os.pread(self.status, 1024, 0).decode().split(None, 3)
        said = words[3].strip() if len(words) > 3 else ""
        return int(words[0]), words[1] == "1", int(words[2]), said

    def count(self):
        return self.state()[0]

    def say(self, n):
        """What the n-th operation of the log was."""
        self.tell("say", n)
        return self.state()[3]
