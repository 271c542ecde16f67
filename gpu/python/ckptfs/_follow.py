"""Which version is the newest: a folder is looked at when something has happened
in it.
"""
import ctypes
import errno
import os
import select
import time

from ._folder import age, is_name, open_any
from ._versions import check_dtype

_IN_ATTRIB, _IN_CLOSE_WRITE, _IN_MOVED_TO = 0x4, 0x8, 0x80
_IN_ONLYDIR = 0x1000000
# A version appears by a request to the mount, of which the kernel tells
# nobody: its publisher touches the folder (IN_ATTRIB). Other programs' files
# appear by a close or a rename.
_EVENTS = _IN_ATTRIB | _IN_CLOSE_WRITE | _IN_MOVED_TO | _IN_ONLYDIR
# What a follower lives through: the folder, or the mount, is not there now.
_AWAY = (errno.ENOENT, errno.ENOTCONN, errno.ESTALE, errno.ECONNABORTED)


class _Watch:
    """Tells when something may have happened in a folder, by inotify(7)."""

    _libc = ctypes.CDLL(None, use_errno=True)

    def __init__(self):
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        if self._fd >= 0:  # else time alone tells
            self._poll.register(self._fd, select.POLLIN)

    def begin(self, folder):
        """What happens there from now on is told. Once more changes nothing,
        but the folder may be another by now."""
        if self._fd >= 0:
            self._libc.inotify_add_watch(self._fd, os.fsencode(folder),
                                         _EVENTS)

    def wait(self, seconds):
        self._poll.poll(max(0, seconds) * 1000)
        try:
            while self._fd >= 0 and os.read(self._fd, 1 << 16):
                pass
        except BlockingIOError:
            pass

    def close(self):
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._poll.unregister(fd)
            os.close(fd)


class Follower:
    """The versions of a folder, the newest first and each once: what is
    replaced before it was looked at is left out. News is what was not there, or
    not so, at the last look, so that a trainer that goes on from an earlier
    step, or whose clock went back, is followed; of several the newest is what
    was changed last.

    Names that begin with a dot or end in .tmp are none, nor is a file that is
    no safetensors file (yet), or a folder that is not whole. A folder of
    versions, or a mount, that is not there is waited for.
    """

    def __init__(self, folder, device="cpu", poll_seconds=1.0, dtype=None):
        self.folder = os.fsdecode(folder)
        self._device, self._poll_seconds = device, poll_seconds
        self._dtype = check_dtype(dtype)
        # What was there when a version was returned last: path to key.
        self._seen = {}
        self._watch = _Watch()
        self._closed = False

    def close(self):
        """Iteration ends, in other threads within poll_seconds."""
        self._closed = True

    def __del__(self):
        self._watch.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.close()

    def __iter__(self):
        return self

    def __next__(self):
        version = self.next()
        if version is None:
            raise StopIteration
        return version

    def next(self, timeout=None):
        """The newest version, when there is one that was not returned yet; it
        is the caller's to close. None: not within so many seconds (0: now), or
        the follower is closed."""
        end = None if timeout is None else time.monotonic() + timeout
        while not self._closed:
            try:
                self._watch.begin(self.folder)  # before it is looked at
                version, changed = self._look()
            except OSError as e:
                if e.errno not in _AWAY:
                    raise
                version, changed = None, False
            left = self._poll_seconds if end is None else \
                min(self._poll_seconds, end - time.monotonic())
            if version is not None or left <= 0:
                return version
            if not changed:
                self._watch.wait(left)
        self._watch.close()
        return None

    def _look(self):
        """The newest version that is news, or None; and whether one changed
        while it was looked at, of which nothing may tell any more."""
        changed = False
        with os.scandir(self.folder) as names:
            paths = [one.path for one in names if is_name(one.name)]
        found = {path: key for path in paths if (key := age(path))}
        news = ((key, path) for path, key in found.items()
                if self._seen.get(path) != key)
        for key, path in sorted(news, reverse=True):
            try:
                version = open_any(path, self._device, self._dtype)
            except OSError as e:  # removed meanwhile, or no version (yet)
                if e.errno in (errno.ENOENT, errno.EBADMSG):
                    del found[path]
                    continue
                raise
            if age(path) in (key, None):  # else it is another one by now
                self._seen = found
                return version, False
            changed = True
            del found[path]
            version.close()
        return None, changed


def wait_for(path, seconds):
    """Until the folder, which is there, is a version. FileNotFoundError: it is
    gone, as its publisher gave up; TimeoutError."""
    watch, end = _Watch(), time.monotonic() + seconds
    try:
        while True:
            watch.begin(os.path.dirname(path) or ".")
            left = end - time.monotonic()
            if age(path) is not None:
                return
            if not os.path.isdir(path):
                raise FileNotFoundError(errno.ENOENT, "its publisher gave it "
                                        "up", path)
            if left <= 0:
                raise TimeoutError(errno.ETIMEDOUT, "it is not published "
                                   f"within {seconds} s", path)
            watch.wait(min(1.0, left))
    finally:
        watch.close()
