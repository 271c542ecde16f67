"""The C library of gpu/ as a test calls it: ctypes, and memory of a device
that is none (tests/gpu/fake_cuda.c)."""
import contextlib
import ctypes as c
import os

BUILD = os.environ.get("CKPTFS_BUILD", os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "../../build"))
LIBRARY = os.path.join(BUILD, "gpu/libckpt_gpu.so.0")
FAKE = os.path.join(BUILD, "tests/gpu/libfake_cuda.so")

PLAIN, NO_GPU, SKIP_UNCHANGED, SEGMENT_ONLY = 1, 2, 4, 8
HOST, ANY = -1, -2


class Options(c.Structure):
    _fields_ = [("flags", c.c_uint), ("copy_threads", c.c_uint),
                ("buffer_bytes", c.c_uint64)]


class Counters(c.Structure):
    _fields_ = [(name, c.c_uint64) for name in (
        "saves", "d2h_bytes", "h2d_bytes", "host_bytes", "skipped_bytes",
        "segments_new", "segments_reused", "pinned_bytes", "pin_failures",
        "plain_saves", "primed_again", "released", "buffered_bytes")]


class Tensor(c.Structure):
    _fields_ = [("name", c.c_char_p), ("dtype", c.c_char_p),
                ("shape", c.POINTER(c.c_uint64)), ("rank", c.c_uint),
                ("stride", c.POINTER(c.c_int64)), ("data", c.c_void_p),
                ("device", c.c_int), ("stream", c.c_void_p)]


class Entry(c.Structure):
    _fields_ = [("name", c.c_char_p), ("dtype", c.c_char_p),
                ("shape", c.POINTER(c.c_uint64)), ("rank", c.c_uint),
                ("offset", c.c_uint64), ("bytes", c.c_uint64)]


class Target(c.Structure):
    _fields_ = [("entry", c.POINTER(Entry)), ("data", c.c_void_p),
                ("device", c.c_int)]


_lib = None


def lib():
    global _lib
    if _lib is None:
        _lib = c.CDLL(LIBRARY)
        _lib.ckpt_last_error.restype = c.c_char_p
        _lib.ckpt_gpu_state.restype = c.c_char_p
        _lib.ckpt_plain_reason.restype = c.c_char_p
        _lib.ckpt_file_entry.restype = c.POINTER(Entry)
        _lib.ckpt_file_find.restype = c.POINTER(Entry)
        _lib.ckpt_file_count.restype = c.c_size_t
        for name in ("ckpt_close", "ckpt_save_free", "ckpt_file_close"):
            getattr(_lib, name).restype = None
    return _lib


def check(rc):
    if rc < 0:
        raise OSError(-rc, lib().ckpt_last_error().decode())
    return rc


class Memory:
    """Host memory with these bytes."""
    device = HOST

    def __init__(self, content):
        self.buffer = c.create_string_buffer(bytes(content), len(content))
        self.address = c.addressof(self.buffer)
        self.size = len(content)

    def set(self, content, at=0):
        c.memmove(self.address + at, bytes(content), len(content))

    def get(self):
        return c.string_at(self.address, self.size)


class Fake:
    """The fake driver, once for each process."""

    def __init__(self, **environment):
        os.environ["CKPT_CUDA_LIBRARY"] = FAKE
        os.environ.update({f"FAKE_CUDA_{k}": str(v)
                           for k, v in environment.items()})
        self.cu = c.CDLL(FAKE)
        for name in ("d2h_copies", "d2h_bytes", "h2d_bytes", "pinned_bytes", "syncs"):
            getattr(self.cu, "fake_cuda_" + name).restype = c.c_uint64
        self.cu.cuInit(0)

    def memory(self, device, content):
        return DeviceMemory(self, device, content)

    def __getattr__(self, name):
        return getattr(self.cu, "fake_cuda_" + name)()


class DeviceMemory(Memory):
    """Of a device; the fake one's is reachable, so that a test can set it."""

    def __init__(self, fake, device, content):
        context, address = c.c_void_p(), c.c_void_p()
        cu = fake.cu
        assert cu.cuDevicePrimaryCtxRetain(c.byref(context), device) == 0
        assert cu.cuCtxPushCurrent_v2(context) == 0
        size = c.c_size_t(max(1, len(content)))
        assert cu.cuMemAlloc_v2(c.byref(address), size) == 0
        cu.cuCtxPopCurrent_v2(c.byref(context))
        self.device, self.address = device, address.value
        self.size = len(content)
        self.set(content)


class Ckpt:
    def __init__(self, flags=NO_GPU, threads=2, buffer_bytes=0):
        self.c = c.c_void_p()
        check(lib().ckpt_open(c.byref(Options(flags, threads, buffer_bytes)),
                              c.byref(self.c)))

    def counters(self):
        k = Counters()
        lib().ckpt_get_counters(self.c, c.byref(k))
        return k

    def begin(self, path, flags=None):
        s = c.c_void_p()
        if flags is None:
            check(lib().ckpt_begin(self.c, os.fsencode(path), c.byref(s)))
        else:
            check(lib().ckpt_begin_with(self.c, os.fsencode(path), flags,
                                        c.byref(s)))
        return Save(s)

    def save(self, path, tensors, metadata=None, wait=False):
        """tensors: {name: Memory}; all of them bytes."""
        with contextlib.closing(self.begin(path)) as s:
            for key, value in (metadata or {}).items():
                s.metadata(key, value)
            for name, memory in tensors.items():
                s.add(name, memory)
            s.commit()
            if wait:
                s.wait()

    def load(self, path, device=HOST, fake=None):
        f = c.c_void_p()
        check(lib().ckpt_file_open(self.c, os.fsencode(path), c.byref(f)))
        try:
            found, targets = {}, []
            for i in range(lib().ckpt_file_count(f)):
                e = lib().ckpt_file_entry(f, c.c_size_t(i))
                blank = bytes(e.contents.bytes)
                m = Memory(blank) if device == HOST else \
                    fake.memory(device, blank)
                found[e.contents.name.decode()] = m
                targets.append(Target(e, m.address, device))
            array = (Target * len(targets))(*targets)
            check(lib().ckpt_file_read(f, array, c.c_size_t(len(targets))))
            return {name: m.get() for name, m in found.items()}
        finally:
            lib().ckpt_file_close(f)

    def close(self):
        lib().ckpt_close(self.c)


class Save:
    def __init__(self, s):
        self.s = s
        self.kept = []  # borrowed by the library

    def add(self, name, memory, dtype="U8", shape=None, stride=None,
            device=None, address=None, stream=None, offset=None):
        self.kept.append(memory)
        shape = [memory.size] if shape is None else shape
        t = Tensor(name.encode(), dtype.encode(),
                   (c.c_uint64 * max(1, len(shape)))(*shape), len(shape),
                   (c.c_int64 * len(stride))(*stride) if stride else None,
                   memory.address if address is None else address,
                   memory.device if device is None else device, stream)
        if offset is None:
            check(lib().ckpt_add(self.s, c.byref(t)))
        else:
            check(lib().ckpt_place(self.s, c.byref(t), c.c_uint64(offset)))

    def metadata(self, key, value):
        check(lib().ckpt_metadata(self.s, key.encode(), value.encode()))

    def start(self):
        check(lib().ckpt_start(self.s))

    def commit(self):
        check(lib().ckpt_commit(self.s))

    def wait(self):
        check(lib().ckpt_wait(self.s))

    def plain_reason(self):
        return lib().ckpt_plain_reason(self.s)

    def close(self):
        lib().ckpt_save_free(self.s)
