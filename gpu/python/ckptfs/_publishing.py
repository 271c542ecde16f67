"""How a version of weights appears: whole, and as the newest of its folder.

A version of several files is a folder. Its files get names that no version had
before, and are nobody's until a manifest names them, the last of all: whoever
dies before leaves no version, and the next one of that name takes away what he
left. Nothing is renamed, so in a mount nobody waits for the disk.
"""
import errno
import json
import os
import re
import shutil
import time

from ._folder import FILES, MANIFEST, SHARDS, age, is_name, parts_of
from ._saving import Save, _begin
from ._tensors import check_metadata


class Publication(Save):
    """A Save whose followers are told when it is copied."""

    def __init__(self, path, flags):
        super().__init__(path, flags, os.path.dirname(path))

    def _is_there(self):
        _announce(os.fsdecode(self.path))


class _Manifest(Publication):
    """What its parts are, of which all was said: it fails only if it is not
    there."""

    def _warn_if_plain(self):
        pass


def _announce(file):
    version = os.path.dirname(file) if os.path.basename(file) == MANIFEST \
        else file
    folder, name = os.path.split(version)
    # Without the one an older version may be taken for the newest; without the
    # other they look by themselves, only later.
    for call in (lambda: _be_latest(file, folder or ".", name),
                 lambda: os.utime(folder or ".")):
        try:
            call()
        except OSError:
            pass


def _be_latest(file, folder, name):
    """Its time is after that of all others there, whatever clock they have
    theirs of: who begins to follow goes by it."""
    with os.scandir(folder) as there:
        others = [age(one.path) for one in there
                  if one.name != name and is_name(one.name)]
    latest = max((key[0] for key in others if key), default=0)
    if latest > os.stat(file).st_mtime_ns:
        os.utime(file, ns=(latest + 1, latest + 1))


def publish(tensors, path, metadata, options, make=Publication):
    begun = _begin(tensors, path, metadata, options, make)
    try:
        begun.copied()
    finally:
        begun._close()


def remove(path):
    """A folder is no version any more before anything of it is gone."""
    if not os.path.isdir(path):
        os.unlink(path)
        return
    parts = parts_of(path)
    if not parts:  # perhaps of versions
        raise FileNotFoundError(errno.ENOENT, "the folder is no version",
                                os.fsdecode(path))
    for name in parts:
        os.unlink(os.path.join(path, name))
    shutil.rmtree(path)


def new_name(prefix):
    """For the next version of a job that does not name them itself."""
    return f"{prefix}-{time.time_ns()}"


def prune(folder, prefix, keep):
    """Of those that new_name() named all but the newest are removed."""
    own = [name for name in os.listdir(folder)
           if re.fullmatch(rf"{prefix}-\d+", name)]
    own.sort(key=lambda name: int(name[len(prefix) + 1:]))
    for name in own[:max(0, len(own) - keep)]:
        path = os.path.join(folder, name)
        if parts_of(path):
            remove(path)
        else:  # of who died
            shutil.rmtree(path)


# --- The files of a folder ---------------------------------------------------

class Parts:
    """What one process puts into a version."""

    def __init__(self, path, rank, token, options):
        self.path, self.names = path, []
        self._rank, self._token, self._options = rank, token, options

    def add(self, tensors, shards=None):
        """One more file. shards: of each tensor that is a part of one,
        {"shape": [...], "at": [...]}."""
        name = f"part-{self._rank:05}-{len(self.names):05}-{self._token}" \
            ".safetensors"
        save = _begin(tensors, os.path.join(self.path, name),
                      {SHARDS: json.dumps(shards)} if shards else None,
                      self._options)
        try:
            save.copied()
        finally:
            save._close()
        self.names.append(name)


class Stream:
    """Tensors that come one after the other, of which many go to one file. Who
    gives them may have to go on for others: what goes wrong is kept."""

    def __init__(self, parts, file_bytes, dtype=None):
        self._parts, self._file_bytes, self._dtype = parts, file_bytes, dtype
        self._held, self._bytes = {}, 0
        self.error = None

    def put(self, name, tensor):
        if self.error is None:
            self.error = attempt(self._put, name, tensor)

    def _put(self, name, tensor):
        if self._dtype is not None and tensor.is_floating_point():
            tensor = tensor.to(self._dtype)
        size = tensor.numel() * tensor.element_size()
        if self._held and self._bytes + size > self._file_bytes:
            self._flush()
        self._held[name] = tensor.detach()
        self._bytes += size

    def flush(self):
        if self.error is None:
            self.error = attempt(self._flush)

    def _flush(self):
        held, self._held, self._bytes = self._held, {}, 0
        if held:
            self._parts.add(held)


def attempt(call, *args):
    """The error, for the others."""
    try:
        call(*args)
    except Exception as e:  # pylint: disable=broad-except
        return e
    return None


def begin(path):
    """The folder, for the version that will be there. A token for its files."""
    os.makedirs(path, exist_ok=True)  # FileExistsError: it is one file
    return time.time_ns()


def commit(path, names, metadata, options):
    """The files are there: they are the version from now on. Those of the one
    before, and what was left by who died, are taken away."""
    publish({}, os.path.join(path, MANIFEST),
            {**check_metadata(metadata), FILES: json.dumps(names)}, options,
            _Manifest)
    try:
        _sweep(path, lambda name: name not in names)
    except OSError:
        pass  # the next one of that name does it


def give_up(path, token):
    """Of a version that will not be there."""
    _sweep(path, lambda name: name.endswith(f"-{token}.safetensors"))
    try:
        os.rmdir(path)
    except OSError:
        pass  # the version before is still there


def _sweep(path, is_old):
    for name in os.listdir(path):
        if name.startswith("part-") and is_old(name):
            os.unlink(os.path.join(path, name))
