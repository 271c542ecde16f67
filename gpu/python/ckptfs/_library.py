"""The C library, as ctypes sees it, and what one process has of it: a handle
that is opened when it is needed first, and closed when the program ends.

There is one handle for all saves and loads of a process, so that all share the
segments; what differs from save to save are its flags (ckpt_begin_with()).
"""
import atexit
import contextlib
import ctypes
import errno
import glob
import os
import sys
import threading
import time
import weakref

from ._errors import also

PLAIN, NO_GPU, SKIP_UNCHANGED, SEGMENT_ONLY = 1, 2, 4, 8  # enum ckpt_flags
HOST = -1  # CKPT_DEVICE_HOST
RANK_MAX = 64
_NAME = "libckpt_gpu.so.0"


class Tensor(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_char_p),
                ("shape", ctypes.POINTER(ctypes.c_uint64)),
                ("rank", ctypes.c_uint),
                ("stride", ctypes.POINTER(ctypes.c_int64)),
                ("data", ctypes.c_void_p), ("device", ctypes.c_int),
                ("stream", ctypes.c_void_p)]


class Options(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint), ("copy_threads", ctypes.c_uint),
                ("buffer_bytes", ctypes.c_uint64)]


class Entry(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_char_p),
                ("shape", ctypes.POINTER(ctypes.c_uint64)),
                ("rank", ctypes.c_uint), ("offset", ctypes.c_uint64),
                ("bytes", ctypes.c_uint64)]


EntryPointer = ctypes.POINTER(Entry)


class Target(ctypes.Structure):
    _fields_ = [("entry", EntryPointer), ("data", ctypes.c_void_p),
                ("device", ctypes.c_int)]


class Range(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint64), ("bytes", ctypes.c_uint64),
                ("data", ctypes.c_void_p), ("device", ctypes.c_int)]


BUCKET_ALIGN = 256


class Bucket(ctypes.Structure):
    _fields_ = [("rank", ctypes.c_uint), ("bytes", ctypes.c_uint64),
                ("first", ctypes.c_size_t), ("count", ctypes.c_size_t)]


class StashType(ctypes.Structure):
    _fields_ = [("element_bytes", ctypes.c_uint32),
                ("row_elements", ctypes.c_uint32),
                ("device_rows", ctypes.c_uint64),
                ("host_rows", ctypes.c_uint64)]


class StashOptions(ctypes.Structure):
    _fields_ = [("device", ctypes.c_int), ("page_rows", ctypes.c_uint32),
                ("types", ctypes.POINTER(StashType)),
                ("type_count", ctypes.c_size_t)]


class StashState(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64 * 2)
                for name in ("head", "tail", "capacity")] + \
        [("overflow", ctypes.c_uint32), ("host_spill", ctypes.c_uint32)]


class Counters(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in (
        "saves", "d2h_bytes", "h2d_bytes", "host_bytes", "skipped_bytes",
        "segments_new", "segments_reused", "pinned_bytes", "pin_failures",
        "plain_saves", "primed_again", "released",
        "buffered_bytes")]


_SIGNATURES = {
    "ckpt_open": (ctypes.c_int, "pp"), "ckpt_close": (None, "p"),
    "ckpt_last_error": (ctypes.c_char_p, ""),
    "ckpt_gpu_state": (ctypes.c_char_p, "p"),
    "ckpt_get_counters": (None, "pp"),
    "ckpt_begin_with": (ctypes.c_int, "psup"),
    "ckpt_metadata": (ctypes.c_int, "pss"), "ckpt_add": (ctypes.c_int, "pp"),
    "ckpt_place": (ctypes.c_int, "ppo"),
    "ckpt_start": (ctypes.c_int, "p"),
    "ckpt_is_committed": (ctypes.c_int, "p"),
    "ckpt_plain_reason": (ctypes.c_char_p, "p"),
    "ckpt_commit": (ctypes.c_int, "p"), "ckpt_wait": (ctypes.c_int, "p"),
    "ckpt_save_free": (None, "p"),
    "ckpt_file_open": (ctypes.c_int, "psp"), "ckpt_file_close": (None, "p"),
    "ckpt_file_open_any": (ctypes.c_int, "psp"),
    "ckpt_file_count": (ctypes.c_size_t, "p"),
    "ckpt_file_entry": (EntryPointer, "pz"),
    "ckpt_file_find": (EntryPointer, "ps"),
    "ckpt_file_metadata": (ctypes.c_int, "pzpp"),
    "ckpt_file_map": (ctypes.c_void_p, "pp"),
    "ckpt_file_map_private": (ctypes.c_int, "ppp"),
    "ckpt_file_pin": (ctypes.c_int, "p"),
    "ckpt_file_read": (ctypes.c_int, "ppz"),
    "ckpt_file_read_ranges": (ctypes.c_int, "ppz"),
    "ckpt_pack_buckets": (ctypes.c_int, "pzpzopppp"),
    "ckpt_stash_new": (ctypes.c_int, "ppp"), "ckpt_stash_free": (None, "p"),
    "ckpt_stash_item_new": (ctypes.c_int, "puuop"),
    "ckpt_stash_item_free": (None, "p"),
    "ckpt_stash_pack": (ctypes.c_int, "pppp"),
    "ckpt_stash_unpack": (ctypes.c_int, "ppp"),
    "ckpt_stash_reset": (ctypes.c_int, "pp"),
    "ckpt_stash_get_state": (ctypes.c_int, "puupp"),
    "ckpt_stash_overflowed": (ctypes.c_int, "ppp"),
}
_KINDS = {"p": ctypes.c_void_p, "s": ctypes.c_char_p, "z": ctypes.c_size_t,
          "u": ctypes.c_uint, "o": ctypes.c_uint64}


def _places(name, folder):
    here = os.path.dirname(os.path.abspath(__file__))
    yield os.path.join(here, name)  # a wheel's
    yield os.path.join(here, "../../../build", folder, name)
    # PREFIX/share/ckptfs/python/ckptfs, and Debian's lib/x86_64-linux-gnu.
    prefix = os.path.join(here, "../../../..")
    for lib in ("lib", "lib64"):
        yield os.path.join(prefix, lib, name)
    yield from glob.glob(os.path.join(prefix, "lib/*-linux-gnu", name))


def _load_library(name, places, signatures):
    path = next(filter(os.path.exists, places), name)
    library = ctypes.CDLL(path)  # its calls give the GIL back
    for call, (result, arguments) in signatures.items():
        function = getattr(library, call, None)
        if function is None:
            raise ImportError(f"{path} has no {call}(): it is not the library "
                              "of this version of ckptfs", path=path)
        function.restype = result
        function.argtypes = [_KINDS[kind] for kind in arguments]
    return library


class Process:
    """What one process has; a child of fork gets a new one."""

    def __init__(self):
        self.pid = os.getpid()
        self.lock = threading.Lock()  # guards the next five
        self.handle = None  # struct ckpt *
        self.users = 0  # calls that make something of the handle
        self.unused = threading.Condition(self.lock)
        self.ended = False  # the program ends; its daemon threads still run
        self.warned = set()  # paths that a PlainSaveWarning was of
        # Saves that are not copied yet: perhaps nobody else holds them.
        self.copying = set()
        # Whatever has to be closed before the handle.
        self.open = weakref.WeakSet()
        # Memory of open files that somebody's tensors lie in, to the end.
        self.lent = weakref.WeakSet()


_library = None
_process = Process()
_options = {"copy_threads": 0, "buffer_bytes": 0, "flags": 0}


def _after_fork():
    # The parent's handle is not the child's to close: it is forgotten. Its
    # files are the child's as well, but not what a thread did to them.
    global _process
    for one in list(_process.open):
        if isinstance(one, OpenFile):
            one._lock = threading.RLock()
    _process = Process()


os.register_at_fork(after_in_child=_after_fork)


def process():
    return _process


def lib():
    global _library
    if _library is None:
        path = os.environ.get("CKPTFS_GPU_LIBRARY")
        if path:
            _library = _load_library(path, (), _SIGNATURES)
        else:
            _library = _load_library(_NAME, _places(_NAME, "gpu"), _SIGNATURES)
    return _library


def load_beside(name, folder, signatures):
    """Another library of ours: where the first one is, or is looked for;
    folder: of the build tree."""
    path, places = os.environ.get("CKPTFS_GPU_LIBRARY"), _places(name, folder)
    if path:
        home = os.path.dirname(os.path.abspath(path))
        places = (os.path.join(home, name),
                  os.path.join(home, "..", folder, name), *places)
    return _load_library(name, places, signatures)


def configure(*, copy_threads=None, buffer_bytes=None, gpu=None):
    """How this process copies, and its children.

    copy_threads: threads for what is in host memory; 0: up to 4.
    buffer_bytes: one pinned transfer buffer; 0: 32 MiB. Two are used to load
        to a device.
    gpu: False: no CUDA driver is looked for, all memory is the host's. By
        default it is opened for the first tensor on a device, or when the
        program has started it itself.

    RuntimeError: something was saved or loaded before.
    """
    if _process.handle is not None:
        raise RuntimeError("configure() comes before the first save or load")
    for name, value, limit in (("copy_threads", copy_threads, 64),
                               ("buffer_bytes", buffer_bytes, 1 << 40)):
        if value is None:
            continue
        if not isinstance(value, int) or not 0 <= value <= limit:
            raise ValueError(f"{name}={value!r}: give 0 to {limit}")
        _options[name] = value
    if gpu is not None:
        _options["flags"] = 0 if gpu else NO_GPU


def stay():
    """Daemon threads go no further when the program ends. Python stops them
    where they want to go on, and where that is in torch's C++ the program
    aborts; here they may stop. They hold none of our locks."""
    if _process.ended and \
            threading.current_thread() is not threading.main_thread():
        threading.Event().wait()


@contextlib.contextmanager
def handle():
    """The process's, which is not closed meanwhile. What is made of it is to
    be in process().open by then."""
    here = _process
    stay()
    with here.lock:
        if here.handle is None:
            opened = ctypes.c_void_p()
            check(lib().ckpt_open(ctypes.byref(Options(**_options)),
                                  ctypes.byref(opened)))
            here.handle = opened
        here.users += 1
    try:
        yield here.handle
    finally:
        with here.lock:
            here.users -= 1
            here.unused.notify_all()
        stay()


def error(rc, path=None, *, of_format=False):
    """The exception for a call of this thread that has just failed; of_format:
    safetensors would raise its SafetensorError."""
    sentence = lib().ckpt_last_error().decode("utf-8", "replace")
    kind = type(OSError(-rc, sentence))  # FileNotFoundError and the like
    if of_format:
        kind = also(kind)
    if path is None:
        return kind(-rc, sentence)
    return kind(-rc, sentence, os.fsdecode(path))


def check(rc, path=None, *, of_format=False):
    if rc < 0:
        raise error(rc, path, of_format=of_format)
    return rc


def encode_path(path):
    encoded = os.fsencode(path)  # TypeError: neither a path nor a string
    if b"\0" in encoded:
        raise ValueError("embedded null byte in the path")
    return encoded


class OpenFile:
    """A file that the library has open: it keeps its version, and one thread at
    a time calls the library for it. A child of fork has it as well."""

    _file = None  # of one whose opening failed

    def __init__(self, path, function):
        self._lib = lib()
        self._lock = threading.RLock()
        self.path = path
        opened = ctypes.c_void_p()
        encoded = encode_path(path)
        with handle() as ours:
            rc = getattr(self._lib, function)(ours, encoded,
                                              ctypes.byref(opened))
            check(rc, path, of_format=rc == -errno.EBADMSG)
            self._file = opened
            process().open.add(self)

    def _opened(self):
        if self._file is None:
            raise also(ValueError)(f"{os.fsdecode(self.path)} is closed")
        return self._file

    def close(self):
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                self._lib.ckpt_file_close(file)
        stay()

    _close = close

    def __del__(self):
        if self._file is not None:
            self.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.close()


_DAEMONS_SECONDS = 60  # that the end waits for what daemon threads are in


@atexit.register
def _finish():
    """Saves that were begun get their files; then everything is given back,
    but for what a daemon thread does not let go of."""
    here, end = _process, time.monotonic() + _DAEMONS_SECONDS
    with here.lock:
        here.ended = True
        free = here.unused.wait_for(lambda: here.users == 0, _DAEMONS_SECONDS)
    for save in list(here.copying):
        try:
            save.copied()
        except (OSError, ValueError, Warning) as e:
            print(f"ckptfs: {e}", file=sys.stderr)
    for one in list(here.open):
        if not one._lock.acquire(timeout=max(0, end - time.monotonic())):
            free = False
            continue
        try:
            one._close()
        finally:
            one._lock.release()
    if not free or here.lent:
        return
    with here.lock:
        opened, here.handle = here.handle, None
    if opened is not None:
        _library.ckpt_close(opened)


def counters():
    """What the library counted in this process, by name: see ckpt_gpu.h."""
    one = Counters()
    if _process.handle is not None:
        with handle() as ours:
            lib().ckpt_get_counters(ours, ctypes.byref(one))
    return {name: getattr(one, name) for name, _ in Counters._fields_}


def gpu_state():
    """"CUDA driver 13.0, 1 device", or why there is none. Asking opens it."""
    with handle() as ours:
        return lib().ckpt_gpu_state(ours).decode()
