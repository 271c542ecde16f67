"""Saving: a Save is one file that is being made, of tensors by name
(safetensors) or of pieces that the caller has placed (any format)."""
import collections.abc
import ctypes
import errno
import os
import re
import threading
import warnings

from . import _library as c
from ._errors import also
from ._tensors import Adder, check_metadata, text


def is_mounted(path):
    """Whether it is, or will be, in a mount of ours."""
    path, found = os.path.realpath(path) + "/", ("", "")
    with open("/proc/self/mounts", "rb") as f:
        for line in f:
            _, at, kind = line.split(b" ")[:3]
            at = os.fsdecode(re.sub(rb"\\(\d{3})", lambda octal: bytes(
                [int(octal[1], 8)]), at)).rstrip("/") + "/"
            if len(at) >= len(found[0]) and path.startswith(at):
                found = at, kind
    return found[1] == b"fuse.ckptfs"


class PlainSaveWarning(RuntimeWarning):
    """A file was saved without a segment: whole, but at the disk's speed."""

    __module__ = "ckptfs"


class Save:
    """A save that save_file_async() has begun.

    It holds its tensors until they are copied. One that nobody keeps is
    completed all the same, at the latest when the program ends; only its
    errors are lost. In a `with` block the tensors may change after its end.
    """

    def __init__(self, path, flags, warn_of=None):
        """warn_of: the path that a PlainSaveWarning is of; None: this one."""
        self._save, self._pid = None, os.getpid()
        self.path = path
        self._warn_of = os.fsdecode(path if warn_of is None else warn_of)
        encoded = c.encode_path(path)
        self._lib = c.lib()
        self._lock = threading.RLock()  # one thread at a time
        self._copied = False
        self._failed = None  # what copied() raised
        self._process = c.process()
        save = ctypes.c_void_p()
        with c.handle() as ours:
            c.check(self._lib.ckpt_begin_with(ours, encoded, flags,
                                              ctypes.byref(save)),
                    path, of_format=True)
            self._save = save
            self._process.open.add(self)
        self._adder = Adder(self._lib, save)

    def _fill(self, tensors, metadata):
        """With the tensors of a safetensors file."""
        try:
            with self._lock:
                save = self._begun()
                for key, value in metadata.items():
                    c.check(self._lib.ckpt_metadata(
                        save, text(key, "key"), text(value, "value")),
                        self.path, of_format=True)
                for name, tensor in tensors.items():
                    self._adder.add(name, tensor)
        except BaseException:
            self._close()
            raise

    def _place(self, pieces):
        """With (name, bytes or torch tensor, offset) of any file."""
        try:
            with self._lock:
                self._begun()
                for piece in pieces:
                    self._adder.place(*piece)
        except BaseException:
            self._close()
            raise

    def _start(self):
        try:
            with self._lock:
                c.check(self._lib.ckpt_start(self._begun()), self.path,
                        of_format=True)
                self._process.copying.add(self)
        except BaseException:
            self._close()
            raise

    def _begun(self):
        """The lock is held."""
        if self._save is None:
            raise ValueError(f"the save of {os.fsdecode(self.path)} is over")
        return self._save

    def _close(self):
        if self._pid != os.getpid():
            return  # the parent's: nothing of it is ours to touch
        with self._lock:
            save, self._save = self._save, None
            if save is not None:
                self._lib.ckpt_save_free(save)  # waits for a copy
            self._adder = None
            self._process.copying.discard(self)

    def __del__(self):
        if self._save is not None:
            self._close()

    def _check_process(self):
        if self._pid != os.getpid():
            raise OSError(errno.ECHILD, "the save was begun by another "
                          "process, before a fork", os.fsdecode(self.path))

    def is_copied(self):
        """True: copied() would not wait. It may raise."""
        self._check_process()
        if not self._lock.acquire(blocking=False):
            return False  # another thread is in copied()
        try:
            return self._save is None or self._copied or \
                bool(self._lib.ckpt_is_committed(self._save))
        finally:
            self._lock.release()

    def copied(self):
        """Wait until the tensors may change; the file is there then."""
        self._check_process()
        with self._lock:
            if self._failed is not None:
                raise self._failed
            if self._copied:
                return
            rc = self._lib.ckpt_commit(self._begun())
            if rc < 0:
                self._failed = c.error(rc, self.path, of_format=True)
                self._close()
                raise self._failed
            self._copied = True
            self._adder = None
            self._process.copying.discard(self)
            self._is_there()
            self._warn_if_plain()

    def _is_there(self):
        """What else belongs to it, once."""

    def _warn_if_plain(self):
        """Once for a path in a process: it happens again with each save."""
        why = self._lib.ckpt_plain_reason(self._begun())
        if why is None:
            return
        with self._process.lock:
            if self._warn_of in self._process.warned:
                return
            self._process.warned.add(self._warn_of)
        warnings.warn(f"{why.decode('utf-8', 'replace')}. The file was "
                      "written without the mount's memory, which is slower",
                      PlainSaveWarning, stacklevel=3)

    def wait(self):
        """Wait until the file is durable: it would survive a power cut."""
        self._check_process()
        with self._lock:
            self.copied()
            c.check(self._lib.ckpt_wait(self._begun()), self.path,
                    of_format=True)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.copied()


def _flags(plain, skip_unchanged, segment_only):
    if plain and segment_only:
        raise ValueError("plain and segment_only exclude each other")
    return (c.PLAIN if plain else 0) | \
        (c.SKIP_UNCHANGED if skip_unchanged else 0) | \
        (c.SEGMENT_ONLY if segment_only else 0)


def _reap():
    """Let go of the tensors of saves that are done and that nobody asked."""
    for save in list(c.process().copying):
        try:
            if save.is_copied():
                save.copied()
        except OSError:
            pass  # it stays with the save, for whoever asks
        except PlainSaveWarning:
            pass  # an error here, and nobody asked for this save


def check_tensors(tensors):
    if not isinstance(tensors, collections.abc.Mapping):
        raise ValueError("Expected a dict of [str, tensor] but received "
                         f"{type(tensors)}")
    if "__metadata__" in tensors:
        raise also(ValueError)("no tensor can be named `__metadata__`")


def _begin(tensors, path, metadata, options, make=Save):
    metadata, flags = check_metadata(metadata), _flags(*options)
    check_tensors(tensors)
    _reap()
    save = make(path, flags)
    save._fill(tensors, metadata)
    return save


def begin_placed(path, pieces, *, plain=False, skip_unchanged=False,
                 segment_only=False):
    """A Save of a file of any format, that has begun: (name, bytes or torch
    tensor, offset) are its pieces, zeros lie between them. It is one of its
    folder's, which is what a warning is of."""
    _reap()
    save = Save(path, _flags(plain, skip_unchanged, segment_only),
                os.path.dirname(path))
    save._place(pieces)
    save._start()
    return save


def save_file(tensors, filename, metadata=None, *, plain=False,
              skip_unchanged=False, segment_only=False):
    """Save a dict of tensors as a safetensors file.

    tensors: names to torch tensors on any device, or numpy arrays. They need
        not be contiguous. Two that share memory are written twice, and are
        two when they are loaded (safetensors refuses them). Of a DTensor the
        shard of this process is saved.
    metadata: a dict of strings, as load and safetensors show it.
    plain: write the file although `filename` is not in a ckptfs mount.
    skip_unchanged: hash tensors on the device, and do not copy those whose
        bytes the mount's memory holds already from the save before.
    segment_only: fail with ENOSPC or EOPNOTSUPP when the mount has no memory
        for the file. By default, or outside of a mount with plain, the file is
        written all the same, slower: a PlainSaveWarning says so, once for a
        path in each process, and counters()["plain_saves"] counts it.

    When it returns the file is there and complete, and the tensors may
    change. It becomes durable soon after, in the order of the saves, as with
    close(2) in a ckptfs mount; save_file_async(...).wait() waits for it.
    """
    save = _begin(tensors, filename, metadata,
                  (plain, skip_unchanged, segment_only))
    try:
        save.copied()
    finally:
        save._close()
        c.stay()


def save_file_async(tensors, filename, metadata=None, *, plain=False,
                    skip_unchanged=False, segment_only=False):
    """Begin to save; arguments are those of save_file(). Returns a Save.

    The tensors must not change before its copied() has returned.
    """
    save = _begin(tensors, filename, metadata,
                  (plain, skip_unchanged, segment_only))
    save._start()
    return save
