"""ckptfs - save tensors into a ckptfs mount, and load them from it.

    import ckptfs

    ckptfs.save_file(model.state_dict(), "/ckpt/step_100.safetensors")
    state = ckptfs.load_file("/ckpt/step_100.safetensors", device="cuda:0")

save_file and load_file are called like those of safetensors.torch, and the
files are ordinary safetensors files. What differs: the bytes go from the
device straight into memory that the mount shares with this process, and the
mount makes that memory the file. save_file_async does it in the background:

    save = ckptfs.save_file_async(state, "/ckpt/step_200.safetensors")
    loss.backward()          # does not change the tensors
    save.copied()            # they may change from here on
    optimizer.step()
    ...
    save.wait()              # it would survive a power cut

One file, ctypes, nothing to compile. Neither torch nor numpy is imported
before a tensor of its kind is met. The library is $CKPTFS_GPU_LIBRARY, or
libckpt_gpu.so.0 beside this file, in the build tree or installed with it, or
where the loader finds it; it is loaded by the first call.

Errors: OSError(errno, sentence, path) when something could not be done, among
them EBADMSG for a file that is no safetensors file and ENOTTY for a path that
is not in a ckptfs mount (plain=True writes there all the same). ValueError and
TypeError for arguments that make no sense.
"""
import atexit
import collections.abc
import ctypes
import errno
import glob
import os
import sys
import threading
import weakref

__all__ = ["save_file", "save_file_async", "load_file", "open_file", "Save",
           "File", "counters", "gpu_state"]

_PLAIN, _SKIP_UNCHANGED = 1, 4  # enum ckpt_flags
_HOST = -1  # CKPT_DEVICE_HOST
_RANK_MAX = 64
_LIBRARY = "libckpt_gpu.so.0"

# safetensors' dtype -> torch's; numpy's are named alike where it has them.
_TORCH_NAMES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16",
    "I16": "int16", "U32": "uint32", "I32": "int32", "U64": "uint64",
    "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32",
    "F64": "float64", "C64": "complex64", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
    "F4": "float4_e2m1fn_x2",
}


# --- the library ---

class _Tensor(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_char_p),
                ("shape", ctypes.POINTER(ctypes.c_uint64)),
                ("rank", ctypes.c_uint),
                ("stride", ctypes.POINTER(ctypes.c_int64)),
                ("data", ctypes.c_void_p), ("device", ctypes.c_int),
                ("stream", ctypes.c_void_p)]


class _Options(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint), ("copy_threads", ctypes.c_uint),
                ("buffer_bytes", ctypes.c_uint64)]


class _Entry(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_char_p),
                ("shape", ctypes.POINTER(ctypes.c_uint64)),
                ("rank", ctypes.c_uint), ("offset", ctypes.c_uint64),
                ("bytes", ctypes.c_uint64)]


_EntryPointer = ctypes.POINTER(_Entry)


class _Target(ctypes.Structure):
    _fields_ = [("entry", _EntryPointer), ("data", ctypes.c_void_p),
                ("device", ctypes.c_int)]


class _Counters(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in (
        "saves", "d2h_bytes", "h2d_bytes", "host_bytes", "skipped_bytes",
        "segments_new", "segments_reused", "pinned_bytes", "pin_failures",
        "plain_saves", "primed_again", "released")]


_SIGNATURES = {
    "ckpt_open": (ctypes.c_int, "pp"), "ckpt_close": (None, "p"),
    "ckpt_last_error": (ctypes.c_char_p, ""),
    "ckpt_gpu_state": (ctypes.c_char_p, "p"),
    "ckpt_get_counters": (None, "pp"),
    "ckpt_begin": (ctypes.c_int, "psp"),
    "ckpt_metadata": (ctypes.c_int, "pss"), "ckpt_add": (ctypes.c_int, "pp"),
    "ckpt_start": (ctypes.c_int, "p"),
    "ckpt_is_committed": (ctypes.c_int, "p"),
    "ckpt_commit": (ctypes.c_int, "p"), "ckpt_wait": (ctypes.c_int, "p"),
    "ckpt_save_free": (None, "p"),
    "ckpt_file_open": (ctypes.c_int, "psp"), "ckpt_file_close": (None, "p"),
    "ckpt_file_count": (ctypes.c_size_t, "p"),
    "ckpt_file_entry": (_EntryPointer, "pz"),
    "ckpt_file_find": (_EntryPointer, "ps"),
    "ckpt_file_metadata": (ctypes.c_int, "pzpp"),
    "ckpt_file_read": (ctypes.c_int, "ppz"),
}
_KINDS = {"p": ctypes.c_void_p, "s": ctypes.c_char_p, "z": ctypes.c_size_t}


def _places():
    here = os.path.dirname(os.path.abspath(__file__))
    yield os.path.join(here, _LIBRARY)
    for up in ("../../build/gpu", "../lib"):
        yield os.path.join(here, up, _LIBRARY)
    # PREFIX/share/ckptfs/python, and Debian's PREFIX/lib/x86_64-linux-gnu.
    for lib in ("lib", "lib64"):
        yield os.path.join(here, "../../..", lib, _LIBRARY)
    yield from glob.glob(os.path.join(here, "../../../lib/*-linux-gnu",
                                      _LIBRARY))


def _load_library():
    path = os.environ.get("CKPTFS_GPU_LIBRARY")
    if not path:
        path = next(filter(os.path.exists, _places()), _LIBRARY)
    library = ctypes.CDLL(path)  # its calls give the GIL back
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = [_KINDS[kind] for kind in arguments]
    return library


class _Process:
    """What one process has; a child of fork gets a new one."""

    def __init__(self):
        self.pid = os.getpid()
        self.lock = threading.Lock()  # guards handles
        self.handles = {}  # flags -> struct ckpt *
        # Saves that are not copied yet: perhaps nobody else holds them.
        self.copying = set()
        # Whatever has to be closed before its handle.
        self.open = weakref.WeakSet()


_library = None
_process = _Process()


def _after_fork():
    # The parent's handles are not the child's to close: they are forgotten.
    global _process
    _process = _Process()


os.register_at_fork(after_in_child=_after_fork)


def _lib():
    global _library
    if _library is None:
        _library = _load_library()
    return _library


def _handle(flags=0):
    lib, here = _lib(), _process
    with here.lock:
        if flags not in here.handles:
            handle = ctypes.c_void_p()
            _check(lib.ckpt_open(ctypes.byref(_Options(flags=flags)),
                                 ctypes.byref(handle)))
            here.handles[flags] = handle
        return here.handles[flags]


def _error(rc, path=None):
    """The exception for a call of this thread that has just failed."""
    sentence = _lib().ckpt_last_error().decode("utf-8", "replace")
    if path is None:
        return OSError(-rc, sentence)
    return OSError(-rc, sentence, os.fsdecode(path))


def _check(rc, path=None):
    if rc < 0:
        raise _error(rc, path)
    return rc


def _encode_path(path):
    encoded = os.fsencode(path)  # TypeError: neither a path nor a string
    if b"\0" in encoded:
        raise ValueError("embedded null byte in the path")
    return encoded


@atexit.register
def _finish():
    """Saves that were begun get their files; then everything is given back."""
    here = _process
    for save in list(here.copying):
        try:
            save.copied()
        except OSError as e:
            print(f"ckptfs: {e}", file=sys.stderr)
    for one in list(here.open):
        one._close()
    with here.lock:
        handles, here.handles = here.handles, {}
    for handle in handles.values():
        _library.ckpt_close(handle)


# --- what a tensor is ---

def _module(name):
    """torch or numpy, if somebody has imported it: else there is no tensor."""
    return sys.modules.get(name)


def _is_rocm(torch):
    """Its devices are called cuda as well; their tensors go by the host."""
    return getattr(torch.version, "hip", None) is not None


_torch_dtypes = {}  # torch.dtype -> safetensors' name, and back
_names = {}  # numpy.dtype -> safetensors' name


def _torch_table(torch):
    if not _torch_dtypes:
        for ours, theirs in _TORCH_NAMES.items():
            dtype = getattr(torch, theirs, None)  # older ones lack some
            if dtype is not None:
                _torch_dtypes[dtype] = ours.encode()
                _torch_dtypes[ours] = dtype
    return _torch_dtypes


def _numpy_name(np, dtype):
    if not _names:
        for ours, theirs in _TORCH_NAMES.items():
            if hasattr(np, theirs) or theirs == "bool":
                _names[np.dtype(theirs)] = ours.encode()
    # ml_dtypes' bfloat16 and float8_* have the names that torch gives them.
    return _names.get(dtype) or next(
        (ours.encode() for ours, theirs in _TORCH_NAMES.items()
         if theirs == dtype.name and ours != "F4"), None)


_shape_types = [ctypes.c_uint64 * n for n in range(_RANK_MAX + 1)]
_stride_types = [ctypes.c_int64 * n for n in range(_RANK_MAX + 1)]


class _Adder:
    """Adds tensors to one save, with one call of the library for each."""

    def __init__(self, lib, save):
        self.lib, self.save = lib, save
        self.one = _Tensor()
        self.pointer = ctypes.byref(self.one)
        self.streams = {}  # ordinal -> CUstream
        self.keep = []  # what the data pointers lead to

    def add(self, name, tensor):
        torch, np = _module("torch"), _module("numpy")
        if torch is not None and isinstance(tensor, torch.Tensor):
            self._torch(torch, name, tensor)
        elif np is not None and isinstance(tensor, np.ndarray):
            self._numpy(np, name, tensor)
        else:
            raise ValueError(f"Key `{name}` is invalid, expected a torch or "
                             f"numpy tensor but received {type(tensor)}")

    def _torch(self, torch, name, t):
        dtype = _torch_table(torch).get(t.dtype)
        if dtype is None:
            raise ValueError(f"Key `{name}`: safetensors has no {t.dtype}")
        if t.layout != torch.strided:
            raise ValueError(
                f"You are trying to save a sparse tensor: `{name}` which "
                "safetensors does not support. Make it dense with "
                "`.to_dense()` before")
        if t.is_conj():
            t = t.resolve_conj()
        if t.is_neg():
            t = t.resolve_neg()
        one, kind = self.one, t.device.type
        one.device, one.stream = _HOST, None
        if kind == "cuda" and not _is_rocm(torch):
            index = t.device.index
            if index not in self.streams:
                self.streams[index] = \
                    torch.cuda.current_stream(index).cuda_stream
            one.device, one.stream = index, self.streams[index]
        elif kind == "meta":
            raise ValueError(f"Key `{name}` is on the meta device: it has no "
                             "data")
        elif kind != "cpu":
            t = t.detach().cpu()
        shape, stride = t.shape, None
        if not t.is_contiguous():
            stride = t.stride()
            if kind == "cuda":  # a kernel, not a copy for each element
                try:
                    t, stride = t.contiguous(), None
                except torch.cuda.OutOfMemoryError:
                    pass
        if dtype == b"F4":  # two elements are one of torch's
            if stride is not None:
                t, stride = t.contiguous(), None
            if not shape:
                raise ValueError(f"Key `{name}`: a scalar of {t.dtype}")
            shape = (*shape[:-1], shape[-1] * 2)
        self._add(name, dtype, shape, stride, t.data_ptr(), t)

    def _numpy(self, np, name, a):
        dtype = _numpy_name(np, a.dtype.newbyteorder("="))
        if dtype is None:
            raise ValueError(f"Key `{name}`: safetensors has no {a.dtype}")
        # In the order of this machine, which is that of the file.
        a = np.asarray(a, dtype=a.dtype.newbyteorder("="))
        if not a.flags.c_contiguous:
            a = a.copy(order="C")
        self.one.device, self.one.stream = _HOST, None
        self._add(name, dtype, a.shape, None, a.ctypes.data, a)

    def _add(self, name, dtype, shape, stride, data, keep):
        if not isinstance(name, str):
            raise TypeError(f"the name of a tensor is a {type(name)}, not a "
                            "str")
        rank = len(shape)
        if rank > _RANK_MAX:
            raise ValueError(f"Key `{name}` has {rank} dimensions, at most "
                             f"{_RANK_MAX} are possible")
        if not data and 0 not in shape:
            raise ValueError(f"Key `{name}` has no memory that could be read")
        one = self.one
        one.name, one.dtype, one.rank = _text(name, "name"), dtype, rank
        one.shape = _shape_types[rank](*shape)
        one.stride = _stride_types[rank](*stride) if stride else None
        one.data = data or None
        self.keep.append(keep)
        rc = self.lib.ckpt_add(self.save, self.pointer)
        if rc < 0:
            error = _error(rc)
            if rc in (-errno.EINVAL, -errno.EEXIST):
                raise ValueError(error.strerror)
            raise error


def _text(s, what):
    encoded = s.encode()
    if b"\0" in encoded:
        raise ValueError(f"a NUL in the {what} {s!r}")
    return encoded


def _check_metadata(metadata):
    """As safetensors does it."""
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise TypeError(f"argument 'metadata': '{type(metadata).__name__}' "
                        "object is not an instance of 'dict'")
    for text in (*metadata, *metadata.values()):
        if not isinstance(text, str):
            raise TypeError(f"argument 'metadata': '{type(text).__name__}' "
                            "object is not an instance of 'str'")
    return metadata


# --- memory ---

_HUGE = 2 << 20  # bytes
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MADV_HUGEPAGE = 14


def _prefer_huge_pages(data, size):
    """For memory that is written next, for the first time: touching it in
    pages of 4 KiB takes twice as long as reading a file (3.6 GB/s instead of
    8.5, two threads)."""
    if size >= 2 * _HUGE and _madvise is not None:
        first = (data + _PAGE - 1) // _PAGE * _PAGE
        # A hint: where it is refused all else works.
        _madvise(first, (data + size - first) // _PAGE * _PAGE,
                 _MADV_HUGEPAGE)


_madvise = getattr(ctypes.CDLL(None), "madvise", None)
if _madvise is not None:
    _madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


# --- saving ---

class Save:
    """A save that save_file_async() has begun.

    It holds its tensors until they are copied. One that nobody keeps is
    completed all the same, at the latest when the program ends; only its
    errors are lost. In a `with` block the tensors may change after its end.
    """

    def __init__(self, tensors, path, metadata, flags):
        self._save, self._pid = None, os.getpid()
        self.path = path
        encoded, metadata = _encode_path(path), _check_metadata(metadata)
        if not isinstance(tensors, collections.abc.Mapping):
            raise ValueError("Expected a dict of [str, tensor] but received "
                             f"{type(tensors)}")
        if "__metadata__" in tensors:
            raise ValueError("no tensor can be named `__metadata__`")
        self._lib = _lib()
        self._lock = threading.RLock()  # one thread at a time
        self._copied = False
        self._failed = None  # what copied() raised
        self._process = _process
        save = ctypes.c_void_p()
        _check(self._lib.ckpt_begin(_handle(flags), encoded,
                                    ctypes.byref(save)), path)
        self._save = save
        self._process.open.add(self)
        self._adder = _Adder(self._lib, save)
        try:
            for key, value in metadata.items():
                _check(self._lib.ckpt_metadata(
                    save, _text(key, "key"), _text(value, "value")), path)
            for name, tensor in tensors.items():
                self._adder.add(name, tensor)
        except BaseException:
            self._close()
            raise

    def _start(self):
        try:
            _check(self._lib.ckpt_start(self._save), self.path)
        except BaseException:
            self._close()
            raise
        self._process.copying.add(self)

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
            rc = self._lib.ckpt_commit(self._save)
            if rc < 0:
                self._failed = _error(rc, self.path)
                self._close()
                raise self._failed
            self._copied = True
            self._adder = None
            self._process.copying.discard(self)

    def wait(self):
        """Wait until the file is durable: it would survive a power cut."""
        self._check_process()
        with self._lock:
            self.copied()
            _check(self._lib.ckpt_wait(self._save), self.path)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.copied()


def _flags(plain, skip_unchanged):
    return (_PLAIN if plain else 0) | (_SKIP_UNCHANGED if skip_unchanged else 0)


def _reap():
    """Let go of the tensors of saves that are done and that nobody asked."""
    for save in list(_process.copying):
        try:
            if save.is_copied():
                save.copied()
        except OSError:
            pass  # it stays with the save, for whoever asks


def save_file(tensors, path, metadata=None, *, plain=False,
              skip_unchanged=False):
    """Save a dict of tensors as a safetensors file.

    tensors: names to torch tensors on any device, or numpy arrays. They need
        not be contiguous. Two that share memory are written twice, and are
        two when they are loaded (safetensors refuses them).
    metadata: a dict of strings, as load and safetensors show it.
    plain: write the file although `path` is not in a ckptfs mount.
    skip_unchanged: hash tensors on the device, and do not copy those whose
        bytes the mount's memory holds already from the save before.

    When it returns the file is there and complete, and the tensors may
    change. It becomes durable soon after, in the order of the saves, as with
    close(2) in a ckptfs mount; save_file_async(...).wait() waits for it.
    """
    _reap()
    save = Save(tensors, path, metadata, _flags(plain, skip_unchanged))
    try:
        save.copied()
    finally:
        save._close()


def save_file_async(tensors, path, metadata=None, *, plain=False,
                    skip_unchanged=False):
    """Begin to save; arguments are those of save_file(). Returns a Save.

    The tensors must not change before its copied() has returned.
    """
    _reap()
    save = Save(tensors, path, metadata, _flags(plain, skip_unchanged))
    save._start()
    return save


# --- loading ---

class File:
    """An open safetensors file. It keeps its version: the name may be
    replaced or deleted meanwhile."""

    def __init__(self, path, framework="pt", device="cpu"):
        self._file, self._pid = None, os.getpid()
        if framework not in ("pt", "torch", "np", "numpy"):
            raise ValueError(f"framework {framework!r}: give 'pt' or 'np'")
        self.path = path
        self._numpy = framework in ("np", "numpy")
        self._device = device
        self._lib = _lib()
        self._lock = threading.RLock()  # one thread at a time
        opened = ctypes.c_void_p()
        _check(self._lib.ckpt_file_open(_handle(), _encode_path(path),
                                        ctypes.byref(opened)), path)
        self._file = opened
        _process.open.add(self)
        # By offset, as the library has them; they are gone after a close.
        self._entries = {}
        count = self._lib.ckpt_file_count(opened)
        if count:
            first = self._lib.ckpt_file_entry(opened, 0)
            self._entries = {first[i].name.decode(): first[i]
                             for i in range(count)}

    def _opened(self):
        if self._file is None:
            raise ValueError(f"{os.fsdecode(self.path)} is closed")
        return self._file

    def close(self):
        if self._pid != os.getpid():
            return  # the parent's: nothing of it is ours to touch
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                self._lib.ckpt_file_close(file)

    _close = close

    def __del__(self):
        if self._file is not None:
            self.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.close()

    def __len__(self):
        return len(self._entries)

    def __contains__(self, name):
        return name in self._entries

    def keys(self):
        """The names, in the order of the tensors in the file."""
        return list(self._entries)

    def metadata(self):
        """The file's strings; None: it has none."""
        key, value = ctypes.c_char_p(), ctypes.c_char_p()
        found = []
        with self._lock:
            while self._lib.ckpt_file_metadata(
                    self._opened(), len(found), ctypes.byref(key),
                    ctypes.byref(value)) == 0:
                found.append((key.value.decode(), value.value.decode()))
        return dict(found) or None

    def get_tensor(self, name):
        """One tensor, with memory of its own. KeyError: there is none."""
        return self.get_tensors([name])[name]

    def get_tensors(self, names=None):
        """Those tensors, or all: one call is faster than one for each."""
        wanted = self._entries if names is None else \
            {name: self._entries[name] for name in names}
        with self._lock:
            file = self._opened()
            make, device, to = self._numpy_maker() if self._numpy else \
                self._torch_maker()
            made = {name: make(entry) for name, entry in wanted.items()}
            targets = (_Target * len(made))()
            for target, entry, tensor in zip(targets, wanted.values(),
                                             made.values()):
                target.entry = _EntryPointer(entry)
                target.data = data = tensor.ctypes.data if self._numpy else \
                    tensor.data_ptr()
                target.device = device
                if device == _HOST:
                    _prefer_huge_pages(data, entry.bytes)
            _check(self._lib.ckpt_file_read(file, targets, len(targets)),
                   self.path)
        if to is None:
            return made
        return {name: tensor.to(to) for name, tensor in made.items()}

    # What makes room for an entry, where that is, and where it goes then.

    def _numpy_maker(self):
        import numpy as np

        def make(entry):
            ours = entry.dtype.decode()
            theirs = _TORCH_NAMES.get(ours, "")
            if not hasattr(np, theirs) and theirs != "bool":
                raise TypeError(f"{os.fsdecode(self.path)}: numpy has no "
                                f"{ours}")
            return np.empty(entry.shape[:entry.rank], dtype=theirs)
        return make, _HOST, None

    def _torch_maker(self):
        import torch
        table = _torch_table(torch)
        device = torch.device("cuda", self._device) \
            if isinstance(self._device, int) else torch.device(self._device)
        where, to = _HOST, None
        if device.type == "cuda" and not _is_rocm(torch):
            if device.index is None:
                device = torch.device("cuda", torch.cuda.current_device())
            where = device.index
            # torch may give memory again that kernels which it has enqueued
            # still use; what the library writes does not wait for those.
            torch.cuda.current_stream(device).synchronize()
        elif device.type != "cpu":
            device, to = torch.device("cpu"), device

        def make(entry):
            ours = entry.dtype.decode()
            if ours not in table:
                raise TypeError(f"{os.fsdecode(self.path)}: this torch has no "
                                f"{ours}")
            shape = entry.shape[:entry.rank]
            if ours == "F4":  # two elements are one of torch's
                shape[-1:] = [shape[-1] // 2]
            return torch.empty(shape, dtype=table[ours], device=device)
        return make, where, to


def open_file(path, framework="pt", device="cpu"):
    """Open a safetensors file: like safetensors.safe_open()."""
    return File(path, framework, device)


def load_file(path, device="cpu", *, framework="pt"):
    """All tensors of a safetensors file: like safetensors.torch.load_file().

    Each owns its memory. device may be anything that torch takes; a number
    is a CUDA device. framework="np" gives numpy arrays.
    """
    with open_file(path, framework, device) as f:
        return f.get_tensors()


# --- what happened ---

def counters():
    """What the library counted in this process, by name: see ckpt_gpu.h."""
    total = dict.fromkeys((name for name, _ in _Counters._fields_), 0)
    with _process.lock:
        handles = list(_process.handles.values())
    for handle in handles:
        one = _Counters()
        _lib().ckpt_get_counters(handle, ctypes.byref(one))
        for name in total:
            total[name] += getattr(one, name)
    return total


def gpu_state():
    """"CUDA driver 13.0, 1 device", or why there is none."""
    return _lib().ckpt_gpu_state(_handle()).decode()
