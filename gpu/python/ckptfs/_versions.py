"""A version of weights that is open. It stays what it was, whatever happens to
its name. This one is a file; _folder.py has those of several.
"""
import ctypes
import errno
import math
import os

from . import _library as c
from ._loading import File, _torch
from ._pieces import box_of, fill, shard_of


class _Lent:
    """The memory of an open file while tensors lie in it; the last of them
    closes it."""

    _file = None

    def __init__(self, lib, file, path):
        size = ctypes.c_uint64()
        base = lib.ckpt_file_map(file, ctypes.byref(size))
        if not base:
            raise OSError(errno.EOPNOTSUPP, "it cannot be mapped",
                          os.fsdecode(path))
        self.memory = (ctypes.c_uint8 * size.value).from_address(base)
        self._lib, self._file = lib, file
        c.process().lent.add(self)

    def __del__(self):
        if self._file is not None:
            self._lib.ckpt_file_close(self._file)


def _lend(torch, lib, file, path):
    """All of the file, as bytes, which keep it open from here on."""
    lent = _Lent(lib, file, path)
    room = lent.memory
    del lent.memory
    room.keeps = lent
    return torch.frombuffer(room, dtype=torch.uint8)


class Version(File):
    """An open version: a File, with what engines do with it. Its tensors have
    memory of their own: a trainer's next versions want the file's.

    dtype: what floating-point tensors are given as, and that load_into() casts
    to the types of its targets. None: all are as they were published."""

    _maps = False
    _lent = None  # what the tensors of views() keep

    def __init__(self, path, device="cpu", dtype=None):
        super().__init__(path, "pt", device)
        self._dtype = check_dtype(dtype)

    @property
    def name(self):
        return os.path.basename(os.fsdecode(self.path))

    def pin(self):
        """Pin its memory, so that devices copy from there and nothing is
        copied on the host; for who loads it more than once, as the time that
        it takes is that of a load or more. False: there is no device, or the
        driver cannot; loading works all the same."""
        with self._lock:
            return self._lib.ckpt_file_pin(self._opened()) == 0

    def views(self, pin=True):
        """All tensors, by name, where the file itself has them: host memory
        that every reader of the version shares, pinned for all devices, and
        nothing copied. Nobody may write there (SIGSEGV). OSError: it cannot be
        mapped, or pinned (ENODEV: there is no device); pin=False: no matter.

        The views hold the version: it stays open, pinned and where it is until
        close() was called and the last of them is gone, whichever comes last. A
        child of fork may read what it has of them; to it they are not pinned.
        """
        torch = _torch()
        with self._lock:
            self._lend(torch, pin)
            return {name: self._view(torch, name, entry)
                    for name, entry in self._entries.items()}

    def memory(self, pin=True):
        """The same for who registers memory: of each file all that is in it, as
        one tensor of bytes, and [(name, type, shape, where it begins)] in their
        order. They lie there without a gap."""
        torch = _torch()
        with self._lock:
            self._lend(torch, pin)
            entries = self._entries
            first = min((e.offset for e in entries.values()), default=0)
            end = max((e.offset + e.bytes for e in entries.values()),
                      default=0)
            return [(self._lent[first:end],
                     [(name, *self._torch_shape(torch, entry),
                       entry.offset - first)
                      for name, entry in entries.items()])]

    def _lend(self, torch, pin):
        self._opened()
        if pin:
            c.check(self._lib.ckpt_file_pin(self._file), self.path)
        if self._lent is None:
            self._lent = _lend(torch, self._lib, self._file, self.path)

    def _view(self, torch, name, entry):
        dtype, shape = self._torch_shape(torch, entry)
        if not entry.bytes:
            return torch.empty(shape, dtype=dtype)
        if self._given(torch, entry)[0] != dtype or \
                entry.offset % dtype.itemsize:
            raise ValueError(
                f"{os.fsdecode(self.path)}: `{name}` has no view: it lies "
                f"there as {dtype}, at {entry.offset}; load it")
        return self._lent[entry.offset:entry.offset + entry.bytes].view(
            dtype).reshape(shape)

    def close(self):
        with self._lock:
            lent, self._lent = self._lent, None
            if lent is not None:  # the last view closes it
                self._file = None
        super().close()

    _close = close

    def _given(self, torch, entry):
        """The type and shape that a tensor is given with."""
        dtype, shape = self._torch_shape(torch, entry)
        return (self._dtype if self._dtype is not None and
                dtype.is_floating_point else dtype), shape

    def _pieces(self, name):
        """(file, entry, where in the tensor it begins) of each."""
        entry = self._entry(name)
        return [(self, entry, (0,) * entry.rank)]

    def _is_made(self, torch, name):
        """It is not in one piece in one file, as it is given."""
        entry = self._entry(name)
        return self._given(torch, entry)[0] != \
            self._torch_shape(torch, entry)[0] or len(self._pieces(name)) != 1

    def _fill(self, torch, jobs):
        """Tensors that are there, with what begins at these places of whole
        ones: (name, tensor, place). The lock is held."""
        fill(torch, [(piece, out, at) for name, out, at in jobs
                     for piece in self._pieces(name)])

    def get_tensors(self, names=None):
        torch = _torch()
        with self._lock:
            self._opened()
            names = list(self._entries if names is None else names)
            made = {name for name in names if self._is_made(torch, name)}
            found = super().get_tensors(
                [name for name in names if name not in made])
            place, _, to = self._place(torch, self._device)
            for name in made:
                dtype, shape = self._given(torch, self._entries[name])
                found[name] = torch.empty(shape, dtype=dtype, device=place)
            self._fill(torch, [(name, found[name], (0,) * found[name].ndim)
                               for name in made])
        return {name: found[name].to(to) if to is not None and name in made
                else found[name] for name in names}

    def _slice(self, name, index):
        torch = _torch()
        with self._lock:
            if not self._is_made(torch, name):
                return super()._slice(name, index)
            dtype, shape = self._given(torch, self._entry(name))
            box = box_of(index, shape)
            if box is None:
                return self.get_tensor(name)[index]
            place, _, to = self._place(torch, self._device)
            part = torch.empty(box[1], dtype=dtype, device=place)
            self._fill(torch, [(name, part, box[0])])
        return part if to is None else part.to(to)

    def load_into(self, tensors, strict=True):
        """Read into the memory of these tensors, by name: File.load_into(). A
        DTensor gets the shard of this process, however the version is sharded.
        strict: a tensor that only one side has is a ValueError."""
        if strict:
            theirs = set(self.keys())
            missing, more = sorted(theirs - set(tensors)), \
                sorted(set(tensors) - theirs)
            if missing or more:
                raise ValueError(
                    f"{os.fsdecode(self.path)}: only in the file: "
                    f"{missing[:9] or 'none'}, and only given: "
                    f"{more[:9] or 'none'}")
        else:
            tensors = {k: t for k, t in tensors.items() if k in self}
        super().load_into(tensors)

    def _load_into(self, torch, tensors):
        jobs, plain = [], {}
        for name, tensor in tensors.items():
            entry, shard = self._entry(name), shard_of(tensor)
            own = (tensor if shard is None else shard[2]).detach()
            dtype, shape = self._torch_shape(torch, entry)
            begin, fits = (0,) * own.ndim, tuple(own.shape) == shape
            if not fits and shard is not None and shard[0] == shape:
                begin, fits = shard[1], True
            cast = self._dtype is not None and own.dtype.is_floating_point \
                and dtype.is_floating_point
            made = tuple(own.shape) != shape or own.dtype != dtype or \
                len(self._pieces(name)) != 1
            if fits and made and (cast or own.dtype == dtype):
                jobs.append((name, own, begin))
            else:  # in one piece; or it says what does not fit
                plain[name] = tensor
        super()._load_into(torch, plain)
        self._fill(torch, jobs)

    def buckets(self, bucket_bytes=512 << 20, device=None, reuse=True):
        """All tensors, as lists of (name, tensor) that fit in bucket_bytes of
        memory, which is allocated once: each list is valid until the next is
        taken. A larger tensor makes the memory as large. reuse=False: each list
        has memory of its own, for a taker that keeps some for later.

        for bucket in version.buckets():
            model.load_weights(bucket)      # vLLM, sglang
        """
        if not isinstance(bucket_bytes, int) or bucket_bytes < 0:
            raise ValueError(f"bucket_bytes={bucket_bytes!r}: give a number "
                             "of bytes")
        torch = _torch()
        with self._lock:
            self._opened()
            names = list(self._entries)
            kinds = [self._given(torch, e) for e in self._entries.values()]
            sizes = [math.prod(shape) * dtype.itemsize
                     for dtype, shape in kinds]
            rooms, room_bytes = _pack(sizes, bucket_bytes)
        where, ordinal, to = self._place(
            torch, self._device if device is None else device)
        room = None
        for of_bucket in rooms:
            if room is None or not reuse:
                room = torch.empty(
                    room_bytes if reuse else sum(
                        _aligned(sizes[index]) for index, _ in of_bucket),
                    dtype=torch.uint8, device=where)
            made = []
            if ordinal != c.HOST:  # who had the last one may use it yet
                torch.cuda.current_stream(where).synchronize()
            for index, offset in of_bucket:
                dtype, shape = kinds[index]
                made.append((names[index], room[
                    offset:offset + sizes[index]].view(dtype).reshape(shape)))
            with self._lock:
                self._opened()
                self._fill(torch, [(name, view, (0,) * view.ndim)
                                   for name, view in made])
            yield made if to is None else \
                [(name, view.to(to)) for name, view in made]


def check_dtype(dtype):
    if dtype is not None and not getattr(dtype, "is_floating_point", False):
        raise ValueError(f"dtype={dtype!r}: give a floating-point type of "
                         "torch's")
    return dtype


def _aligned(size):
    return -(-size // c.BUCKET_ALIGN) * c.BUCKET_ALIGN


def _pack(sizes, bucket_bytes):
    """By ckpt_pack_buckets(): lists of (index, offset), and how much room the
    largest needs."""
    count = len(sizes)
    buckets, order = (c.Bucket * (count + 1))(), (ctypes.c_size_t * count)()
    used, room = ctypes.c_size_t(), ctypes.c_uint64()
    c.check(c.lib().ckpt_pack_buckets(
        (ctypes.c_uint64 * count)(*sizes), count, (ctypes.c_uint * 1)(0), 1,
        bucket_bytes, buckets, order, ctypes.byref(used), ctypes.byref(room)))
    packed, most = [], 0
    for bucket in buckets[:used.value]:
        offset, items = 0, []
        for index in order[bucket.first:bucket.first + bucket.count]:
            items.append((index, offset))
            offset += _aligned(sizes[index])
        packed.append(items)
        most = max(most, bucket.bytes)
    return packed, most
