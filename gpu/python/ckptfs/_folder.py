"""Versions that are folders of several files, and which of what lies in a
folder of versions is one.

    MANIFEST   names the files, and appears when all of them are there; each
               says (SHARDS, in its metadata) of which tensors it has a part
    _INDEX     names the files and what is in each, as transformers writes it
    _ONE       the only file
"""
import ctypes
import errno
import json
import math
import os
import re
import stat
import threading

from . import _library as c
from ._loading import _torch
from ._pieces import is_in
from ._versions import Version, check_dtype

MANIFEST = "manifest.safetensors"
# Keys of metadata; the values are JSON: file names, and of each tensor that is
# in parts {"shape": [...], "at": [...]}, by name.
FILES, SHARDS = "ckptfs.files", "ckptfs.shards"
_ONE, _INDEX = "model.safetensors", "model.safetensors.index.json"


class Folder(Version):
    """Of several files: each tensor is one file's, or has parts in several,
    and these keep their versions."""

    def __init__(self, path, device="cpu", dtype=None):
        self._lib, self._lock = c.lib(), threading.RLock()
        self.path, self._numpy, self._device = path, False, device
        self._dtype, self._is_open = check_dtype(dtype), False
        while not self._is_open:
            self._parts, self._said = {}, None  # by the file's name
            self._entries, self._made = {}, {}
            which = age(path)
            try:
                self._open_parts()
            except FileNotFoundError:
                if age(path) in (which, None):
                    raise
            if age(path) not in (which, None):  # replaced meanwhile
                self.close()
        c.process().open.add(self)

    def _open_parts(self):
        self._is_open = True
        try:
            if self._has(MANIFEST):
                self._by_manifest()
            elif self._has(_ONE) and not self._has(_INDEX):
                self._add_all(self._part(_ONE), {})
            else:
                self._by_index()
        except BaseException:
            self.close()
            raise

    def _part(self, file):
        if not isinstance(file, str) or os.path.basename(file) != file:
            raise self._broken(f"it names {file!r} as a file")
        if file not in self._parts:
            self._parts[file] = Version(os.path.join(self.path, file))
        return self._parts[file]

    def _has(self, file):
        return os.path.exists(os.path.join(self.path, file))

    def _by_index(self):
        with open(os.path.join(self.path, _INDEX), encoding="utf-8") as f:
            try:
                files = dict(json.load(f)["weight_map"])
            except (ValueError, KeyError, TypeError) as e:
                raise self._broken(f"{_INDEX} is none: {e!r}") from None
        for name, file in files.items():
            if name not in self._part(file):
                raise self._broken(f"{file} has no `{name}`")
            self._add(self._part(file), name)

    def _by_manifest(self):
        with Version(os.path.join(self.path, MANIFEST)) as manifest:
            self._said = manifest.metadata() or {}
        shards = {}
        for file in self._parsed(self._said.pop(FILES, None), list, MANIFEST):
            part = self._part(file)
            self._add_all(part, shards, self._parsed(
                (part.metadata() or {}).get(SHARDS, "{}"), dict, file))
        for name, pieces in shards.items():
            self._join(name, pieces)

    def _add_all(self, part, shards, said=()):
        for name in part.keys():
            if name in said:
                shards.setdefault(name, []).append((part, said[name]))
            else:
                self._add(part, name)

    def _parsed(self, said, kind, file):
        try:
            found = json.loads(said)
        except (ValueError, TypeError):
            found = None
        if not isinstance(found, kind):
            raise self._broken(f"{file} does not say what its tensors are: "
                               f"{said!r}")
        return found

    def _add(self, part, name):
        if name in self._entries:
            raise self._broken(f"`{name}` is in it twice")
        self._entries[name] = part._entries[name]
        self._made[name] = [(part, part._entries[name],
                             (0,) * part._entries[name].rank)]

    def _join(self, name, pieces):
        """A tensor of which each file has a part."""
        made, elements = [], 0
        try:
            shape = pieces[0][1]["shape"]
            for part, said in pieces:
                entry = part._entries[name]
                own = entry.shape[:entry.rank]
                if said["shape"] != shape or \
                        entry.dtype != pieces[0][0]._entries[name].dtype or \
                        not is_in(own, said["at"], shape):
                    raise self._broken(f"parts of `{name}` do not fit")
                elements += math.prod(own)
                made.append((part, entry, tuple(said["at"])))
        except (KeyError, TypeError) as e:
            raise self._broken(f"parts of `{name}`: {e!r}") from None
        if elements != math.prod(shape) or name in self._entries:
            raise self._broken(f"of `{name}`, {shape}, there are {elements} "
                               "elements")
        if len(made) == 1:
            self._add(part, name)
            return
        self._made[name] = made
        self._entries[name] = c.Entry(
            name.encode(), entry.dtype, (ctypes.c_uint64 * len(shape))(*shape),
            len(shape), 0, sum(one.bytes for _, one, _ in made))

    def _pieces(self, name):
        self._opened()
        return self._made[name]

    def _broken(self, why):
        return OSError(errno.EBADMSG, why, os.fsdecode(self.path))

    def _opened(self):
        if not self._is_open:
            raise ValueError(f"{os.fsdecode(self.path)} is closed")

    def _read(self, wanted, fresh):
        """Of tensors that one file has."""
        by_part = {}
        for one in wanted:
            part = self._made[one[0].name.decode()][0][0]
            by_part.setdefault(part, []).append(one)
        for part, ones in by_part.items():
            with part._lock:
                part._read(ones, fresh)

    def _mapped(self, entry):
        part = self._made[entry.name.decode()][0][0]
        with part._lock:
            return part._mapped(entry)

    def metadata(self):
        with self._lock:
            self._opened()
            found = dict(self._said or {})
            if self._said is None:
                for part in self._parts.values():
                    found.update(part.metadata() or {})
        return found or None

    def pin(self):
        with self._lock:
            self._opened()
            return all([part.pin() for part in self._parts.values()])

    def views(self, pin=True):
        torch = _torch()
        with self._lock:
            self._check_views(torch)
            theirs = {part: part.views(pin) for part in self._parts.values()}
            return {name: theirs[made[0][0]][name]
                    for name, made in self._made.items()}

    def memory(self, pin=True):
        with self._lock:
            self._check_views(_torch())
            return [one for part in self._parts.values()
                    for one in part.memory(pin)]

    def _check_views(self, torch):
        self._opened()
        for name, made in self._made.items():
            if len(made) != 1 or self._is_made(torch, name):
                raise ValueError(f"{os.fsdecode(self.path)}: `{name}` has no "
                                 "view: it is in parts, or is cast; load it")

    def close(self):
        with self._lock:
            self._is_open, parts, self._parts = False, self._parts, {}
            for part in parts.values():
                part.close()

    _close = close


def open_any(path, device="cpu", dtype=None):
    return (Folder if os.path.isdir(path) else Version)(path, device, dtype)


def _stat(path):
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_name(name):
    """A version may be called so."""
    return not name.startswith(".") and not name.endswith(".tmp")


def parts_of(path):
    """What makes a folder a version, if it is there."""
    return [name for name in (MANIFEST, _INDEX, _ONE)
            if _stat(os.path.join(path, name))]


def age(path):
    """What sorts versions by age: the time of the last change, or, within one
    tick of the clock, the numbers in the name. None: it is no version (any
    more)."""
    found = _stat(path)
    if found is None:
        return None
    which = found.st_ino, 0
    if stat.S_ISDIR(found.st_mode):
        found = next(filter(None, (_stat(os.path.join(path, name)) for name in
                                   (MANIFEST, _INDEX, _ONE))), None)
        if found is None:
            return None
        which = which[0], found.st_ino
    if not stat.S_ISREG(found.st_mode):
        return None
    parts = re.split(r"(\d+)", os.path.basename(path))
    parts[1::2] = map(int, parts[1::2])
    return found.st_mtime_ns, parts, which
