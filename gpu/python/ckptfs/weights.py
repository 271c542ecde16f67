"""ckptfs.weights - weights go from a trainer to other processes: from the
trainers of reinforcement learning to the engines that generate (verl with vLLM
or sglang), to evaluators, to servers.

    ckptfs.weights.publish(state, "/ckpt/weights/v7")            # the trainer

    for version in ckptfs.weights.follow("/ckpt/weights"):        # an engine
        with version:
            version.load_into(model.state_dict())

A version is a safetensors file that appears whole: device memory is copied
once, into memory of the mount, and once from there to each reader's device. It
stays as it is while it is open, although the trainer publishes the next ones
and removes it. Nothing connects the two: any number may follow, start later,
or die. Between two mounts, or where there is none, plain=True does the same
through the files of an ordinary directory.

A folder is a version too, when an index lists its files, as transformers lays
out a large model (model.safetensors.index.json), or when it has the one file
model.safetensors. It has to appear whole: write it under a name that ends in
.tmp, and rename it.

A rank that has a part, the shards of DTensors, publishes it (.to_local()) as
versions of its own, in a folder of its own. Between processes on one device
torch's own IPC handles leave the copy through the host out; see gpu/README.md
for why they are not used here.
"""
import ctypes
import errno
import json
import os
import re
import select
import stat
import threading
import time

from . import _library as c
from ._loading import File, _torch
from ._saving import Save, _begin

_IN_ATTRIB, _IN_CLOSE_WRITE, _IN_MOVED_TO = 0x4, 0x8, 0x80
_IN_ONLYDIR = 0x1000000
# A version appears by a request to the mount, of which the kernel tells
# nobody: its publisher touches the folder (IN_ATTRIB). Other programs' files
# appear by a close or a rename.
_EVENTS = _IN_ATTRIB | _IN_CLOSE_WRITE | _IN_MOVED_TO | _IN_ONLYDIR
# What a follower lives through: the folder, or the mount, is not there now.
_AWAY = (errno.ENOENT, errno.ENOTCONN, errno.ESTALE, errno.ECONNABORTED)


class Publication(Save):
    """A Save whose followers are told when it is copied."""

    def copied(self):
        first = not self._copied
        super().copied()
        if first:
            folder = os.path.dirname(os.fsdecode(self.path)) or "."
            try:
                os.utime(folder)
            except OSError:
                pass  # they look by themselves, only later


def _check_whole(tensors):
    """A version is what all readers take for the whole."""
    for name, tensor in tensors.items():
        placements = getattr(tensor, "placements", None)
        if placements is None or not hasattr(tensor, "to_local"):
            continue
        own = list(tensor.to_local().shape)
        if own != list(tensor.shape) or \
                any(one.is_partial() for one in placements):
            raise ValueError(
                f"Key `{name}` is a DTensor of {list(tensor.shape)}, of which "
                f"this rank has {own} ({placements}): publish its "
                "full_tensor(), or its to_local() in a folder for each rank")


def publish(tensors, path, metadata=None, *, plain=False, skip_unchanged=False,
            segment_only=False):
    """Make `tensors` the version `path`, and tell who follows its folder.

    Arguments are those of ckptfs.save_file(). It returns when the version is
    there and the tensors may change; names may be used again, and versions
    removed, at any time. ValueError: of a DTensor this rank has a part alone.
    """
    _check_whole(tensors)
    begun = _begin(tensors, path, metadata,
                   (plain, skip_unchanged, segment_only), Publication)
    try:
        begun.copied()
    finally:
        begun._close()


def publish_async(tensors, path, metadata=None, *, plain=False,
                  skip_unchanged=False, segment_only=False):
    """The same in the background: returns a Save, whose copied() waits until
    the tensors may change, and tells the followers."""
    _check_whole(tensors)
    begun = _begin(tensors, path, metadata,
                   (plain, skip_unchanged, segment_only), Publication)
    begun._start()
    return begun


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


def _open(path, device):
    return (_Folder if os.path.isdir(path) else Version)(path, device)


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


def open_version(path, device="cpu"):
    """Open one version. OSError as ckptfs.open_file()."""
    return _open(path, device)


def load(path, into=None, device="cpu", strict=True):
    """One version: into the memory of the tensors `into`, or as new tensors on
    `device`."""
    with _open(path, device) as version:
        if into is None:
            return version.get_tensors()
        version.load_into(into, strict)
        return into


def _key(path):
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

    def __init__(self, folder, device="cpu", poll_seconds=1.0):
        self.folder = os.fsdecode(folder)
        self._device, self._poll_seconds = device, poll_seconds
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
            paths = [one.path for one in names
                     if not one.name.startswith(".") and
                     not one.name.endswith(".tmp")]
        found = {path: key for path in paths if (key := _key(path))}
        news = ((key, path) for path, key in found.items()
                if self._seen.get(path) != key)
        for key, path in sorted(news, reverse=True):
            try:
                version = _open(path, self._device)
            except OSError as e:  # removed meanwhile, or no version (yet)
                if e.errno in (errno.ENOENT, errno.EBADMSG):
                    del found[path]
                    continue
                raise
            if _key(path) in (key, None):  # else it is another one by now
                self._seen = found
                return version, False
            changed = True
            del found[path]
            version.close()
        return None, changed


def follow(folder, device="cpu", poll_seconds=1.0):
    """A Follower: `for version in follow(folder)` waits for the versions that
    appear there, from the newest of those that are there. device is where the
    versions' tensors go by default. poll_seconds: so often it looks although
    nothing was told; nothing tells of another node's files."""
    return Follower(folder, device, poll_seconds)
