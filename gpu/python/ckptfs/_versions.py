"""What a version of weights is, and how it is read: a safetensors file, or a
folder of several. It stays what it was while it is open, whatever happens to
its name.
"""
import ctypes
import errno
import json
import os
import re
import stat
import threading

from . import _library as c
from ._loading import File, _torch


class Version(File):
    """An open version: a File, with what engines do with it. Its tensors have
    memory of their own: a trainer's next versions want the file's."""

    _maps = False

    def __init__(self, path, device="cpu"):
        super().__init__(path, "pt", device)

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

    def load_into(self, tensors, strict=True):
        """Read into the memory of these tensors, by name: File.load_into().
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

    def buckets(self, bucket_bytes=512 << 20, device=None):
        """All tensors, as lists of (name, tensor) that fit in bucket_bytes of
        memory, which is allocated once: each list is valid until the next is
        taken. A larger tensor makes the memory as large.

        for bucket in version.buckets():
            model.load_weights(bucket)      # vLLM, sglang
        """
        if not isinstance(bucket_bytes, int) or bucket_bytes < 0:
            raise ValueError(f"bucket_bytes={bucket_bytes!r}: give a number "
                             "of bytes")
        with self._lock:
            self._opened()
            entries = list(self._entries.values())
            rooms, room_bytes = _pack([e.bytes for e in entries], bucket_bytes)
        torch = _torch()
        where, ordinal, to = self._place(
            torch, self._device if device is None else device)
        room = torch.empty(room_bytes, dtype=torch.uint8, device=where)
        for of_bucket in rooms:
            made, targets = [], []
            if ordinal != c.HOST:  # who had the last one may use it yet
                torch.cuda.current_stream(where).synchronize()
            with self._lock:
                self._opened()
                for index, offset in of_bucket:
                    entry = entries[index]
                    dtype, shape = self._torch_shape(torch, entry)
                    view = room[offset:offset + entry.bytes].view(dtype) \
                        .reshape(shape)
                    targets.append((entry, view.data_ptr(), ordinal))
                    made.append((entry.name.decode(), view))
                self._read(targets, fresh=False)
            yield made if to is None else \
                [(name, view.to(to)) for name, view in made]


_ONE, _INDEX = "model.safetensors", "model.safetensors.index.json"


class _Folder(Version):
    """Of several files: each tensor is one file's, which keeps its version."""

    def __init__(self, path, device="cpu"):
        self._lib, self._lock = c.lib(), threading.RLock()
        self.path, self._numpy, self._device = path, False, device
        self._parts = {}  # by the file's name
        while not self._parts:
            self._entries = {}
            which = os.stat(path).st_ino
            try:
                self._open_parts()
            finally:
                if os.stat(path).st_ino != which:  # replaced meanwhile
                    self.close()
        c.process().open.add(self)

    def _open_parts(self):
        try:
            with open(os.path.join(self.path, _INDEX), encoding="utf-8") as f:
                files = json.load(f)["weight_map"]
        except FileNotFoundError:
            if not os.path.exists(os.path.join(self.path, _ONE)):
                raise
            files = None
        except (ValueError, KeyError, TypeError) as e:
            raise self._broken(f"{_INDEX} is none: {e!r}") from None
        try:
            for file in sorted(set(files.values())) if files else [_ONE]:
                if not isinstance(file, str) or os.path.basename(file) != file:
                    raise self._broken(f"{_INDEX} names {file!r}")
                self._parts[file] = Version(os.path.join(self.path, file),
                                            self._device)
            for name in files or self._parts[_ONE].keys():
                file = files[name] if files else _ONE
                if name not in self._parts[file]:
                    raise self._broken(f"{file} has no `{name}`")
                self._entries[name] = self._parts[file]._entries[name]
        except BaseException:
            self.close()
            raise
        self._files = files or dict.fromkeys(self._entries, _ONE)

    def _broken(self, why):
        return OSError(errno.EBADMSG, why, os.fsdecode(self.path))

    def _opened(self):
        if not self._parts:
            raise ValueError(f"{os.fsdecode(self.path)} is closed")

    def _part(self, entry):
        return self._parts[self._files[entry.name.decode()]]

    def _read(self, wanted, fresh):
        by_part = {}
        for one in wanted:
            by_part.setdefault(self._part(one[0]), []).append(one)
        for part, ones in by_part.items():
            with part._lock:
                part._read(ones, fresh)

    def _mapped(self, entry):
        part = self._part(entry)
        with part._lock:
            return part._mapped(entry)

    def metadata(self):
        found = {}
        with self._lock:
            self._opened()
            for part in self._parts.values():
                found.update(part.metadata() or {})
        return found or None

    def pin(self):
        with self._lock:
            self._opened()
            return all([part.pin() for part in self._parts.values()])

    def close(self):
        with self._lock:
            parts, self._parts = self._parts, {}
            for part in parts.values():
                part.close()

    _close = close


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
            offset += -(-sizes[index] // c.BUCKET_ALIGN) * c.BUCKET_ALIGN
        packed.append(items)
        most = max(most, bucket.bytes)
    return packed, most


def open_any(path, device="cpu"):
    return (_Folder if os.path.isdir(path) else Version)(path, device)


def age(path):
    """What sorts versions by age: the time of the last change, or, within one
    tick of the clock, the numbers in the name. None: it is no version any
    more."""
    try:
        found = os.stat(path)
        which = found.st_ino, 0
        if stat.S_ISDIR(found.st_mode):
            index = os.path.join(path, _INDEX)
            found = os.stat(index if os.path.exists(index) else
                            os.path.join(path, _ONE))
            which = which[0], found.st_ino
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    parts = re.split(r"(\d+)", os.path.basename(path))
    parts[1::2] = map(int, parts[1::2])
    return found.st_mtime_ns, parts, which
