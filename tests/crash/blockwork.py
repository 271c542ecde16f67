"""blockwork - what a seed makes people do to a mount, as one known history.

A run is some hundred calls by actors: files are written, rewritten, kept
open, appended to, linked, renamed, deleted, synced or not; steps are saved as
trainers do; the daemon is stopped and killed in between. Who reads finds what
was written last, at any time, or the run fails.
"""
import contextlib
import errno
import mmap
import os
import random
import threading
import time

from history import History
from workload import KIB, MIB, Work, Writer, data, safetensors

OPS = 160  # of one run
THREAD_OPS = 60
INTERVAL = 2  # seconds, of drain_interval= in slow settings
# What stays open may be made durable as it stands, once it is that old. The
# time is looked at around calls, so something is left for them.
AGE = 0.75 * INTERVAL
FREE_BOUND = 240  # seconds until the room of deleted files can be used
FULL = (errno.ENOSPC, errno.EDQUOT)


class SharedHistory(History):
    """Of several threads; they have no name in common. It knows who has a
    file open for writing, and how long."""

    def __init__(self, count):
        super().__init__(count)
        self.lock = threading.RLock()
        self.writers = []

    def __getstate__(self):
        return {**super().__getstate__(), "lock": None, "writers": []}

    def __setstate__(self, state):
        self.__dict__.update(state, lock=threading.RLock())

    def begin(self, what):
        with self.lock:
            step = super().begin(what)
            self.age(step)
            return step

    def end(self, step):
        with self.lock:
            self.age(step)
            super().end(step)

    def age(self, step):
        for writer in self.writers:
            writer.age(step)


def locked(name):
    call = getattr(History, name)

    def held(self, *args, **kwargs):
        with self.lock:
            return call(self, *args, **kwargs)
    return held


for _name in ("names", "under", "new_file", "set_version", "floor", "hurry",
              "fids", "put", "drop", "rename", "grow", "leave", "position"):
    setattr(SharedHistory, _name, locked(_name))


class BlockWriter(Writer):
    def __init__(self, work, path, flags):
        h = work.h
        entry = h.tree.get(path)
        old = None if entry is None else h.version[entry[1]]
        self.opened, self.aged, self.patched = time.monotonic(), False, False
        self.replaces = bool(flags & os.O_TRUNC) and old is not None
        super().__init__(work, path, flags)
        if old is not None and not self.replaces:
            h.leave(len(h.steps) - 1, self.fid)
        h.writers.append(self)

    def write(self, content, offset=None, piece=MIB):
        at = len(self.content) if offset is None else offset
        self.patched |= at < len(self.content)
        for i in range(0, len(content), piece):
            part = content[i:i + piece]
            wrote = os.write(self.fd, part) if self.append else \
                os.pwrite(self.fd, part, at + i)
            lacks = at + i - len(self.content)
            self.content.extend(bytes(max(0, lacks)))
            self.content[at + i:at + i + wrote] = part[:wrote]
            if wrote != len(part):
                raise OSError(errno.ENOSPC, "a short write", self.path)
        return self

    def resize(self, size):
        os.ftruncate(self.fd, size)
        self.patched = True
        del self.content[size:]
        self.content.extend(bytes(size - len(self.content)))
        return self

    def write_mapped(self, content, offset):
        """Into a mapping, which is gone again when this returns."""
        self.patched = True
        with mmap.mmap(self.fd, len(self.content)) as m:
            m[offset:offset + len(content)] = content
        self.content[offset:offset + len(content)] = content
        return self

    def sync(self, call=os.fsync):
        super().sync(call)
        # what is committed now is its own beginning
        self.replaces = self.aged = False
        return self

    def age(self, step):
        if self.aged or self.replaces or \
                time.monotonic() - self.opened < AGE:
            return
        self.aged = True
        h = self.work.h
        old = h.version[self.fid]
        sure = 0 if old is None else len(h.content[self.fid, old])
        h.grow(step, self.fid, None if self.patched else self.content, sure)

    def close(self):
        h = self.work.h
        h.writers.remove(self)
        closes = len(h.closes)
        super().close()
        if self.work.durable and len(h.closes) > closes:
            step = h.closes[-1].step
            h.floor(step, h.names(self.fid))
            h.hurry(step, {self.fid}, "synced")


class BlockWork(Work):
    def __init__(self, root, count, *, history=None, lane=None, slow=False,
                 threads=0, full=False, segments=False, gpu=False,
                 durable=False, restless=False):
        super().__init__(root, count)
        self.h = history or SharedHistory(count)
        self.lane, self.count = lane, count
        self.slow, self.threads, self.full = slow, threads, full
        self.segments, self.gpu, self.durable = segments, gpu, durable
        self.restless = restless
        self.library = None

    def open(self, path, flags=os.O_TRUNC):
        return BlockWriter(self, path, flags)

    def disconnect(self):
        super().disconnect()
        library, self.library = self.library, None
        if library:
            library.close()

    def truncate(self, path, size):
        super().truncate(path, size)
        self.h.leave(len(self.h.steps) - 1, self.h.tree[path][1])

    def save_tensors(self, path, tensors, wait):
        """Through the library, on host memory. What the file looks like is
        the library's to say, so it is read afterwards."""
        import ckptgpu
        if self.library is None:
            self.library = ckptgpu.Ckpt()
        h = self.h
        h.lines.setdefault(path, [(-1, None)])
        step = h.begin(f"save the tensors of {path}")
        self.library.save(self.at(path), {
            name: ckptgpu.Memory(content)
            for name, content in tensors.items()}, wait=wait)
        with open(self.at(path), "rb", buffering=0) as f:
            content = f.readall()
        for tensor in tensors.values():
            assert tensor in content, f"{path}: a tensor is not there"
        entry = h.tree.get(path)
        fid = entry[1] if entry else h.new_file(path)
        version = h.set_version(step, fid, content)
        h.add_close(step, fid, version, path, self.lane)
        if wait:
            h.floor(step, h.names(fid))
            h.hurry(step, {fid}, "synced")
        h.end(step)

    @contextlib.contextmanager
    def refusable(self):
        """A change of names that a full disk may refuse, which has not
        happened then."""
        h = self.h
        tree, deaths, renames = dict(h.tree), dict(h.deaths), len(h.renames)
        try:
            yield
        except OSError as e:
            if not self.full or e.errno not in FULL:
                raise
            paths = {p for p in (*tree, *h.tree)
                     if tree.get(p) != h.tree.get(p)}
            h.tree, h.deaths = tree, deaths
            del h.renames[renames:]
            step = h.begin("refused: the disk is full")
            h.note(step, *paths)
            h.end(step)
            raise


class Actor:
    """Calls below one directory of the mount, "" or one that ends in a
    slash. Nothing is renamed or deleted while it is open for writing here:
    a Writer does not know its new name."""

    def __init__(self, work, rng, top):
        self.w, self.rng, self.top = work, rng, top
        self.h = work.h
        self.open = []  # writers
        self.readers = []  # descriptors; nobody reads them any more
        self.number = 0
        self.shared = [data(size, f"{top} shared {size}")
                       for size in (MIB, 2 * MIB, 300 * KIB)]

    # --- what there is ---

    def fresh(self, kind):
        self.number += 1
        return f"{kind}_{self.number}"

    def dirs(self):
        return [self.top] + [p + "/" for p, e in self.h.tree.items()
                             if e == ("dir",) and self.mine(p)]

    def mine(self, path):
        return path.startswith(self.top) and path + "/" != self.top and \
            (self.top or not path.startswith("lane"))

    def busy(self):
        return {w.fid for w in self.open}

    def files(self):
        """Complete ones that nobody here writes."""
        busy = self.busy()
        return sorted(p for p, e in self.h.tree.items()
                      if e[0] == "file" and self.mine(p)
                      and e[1] not in busy
                      and self.h.version[e[1]] is not None)

    def file(self):
        files = self.files()
        return self.rng.choice(files) if files else None

    def name(self):
        """Of a file that may be there."""
        if self.rng.random() < 0.5 and self.files():
            return self.file()
        folder = self.rng.choice(sorted(self.dirs()))
        path = f"{folder}f{self.rng.randrange(12)}"
        entry = self.h.tree.get(path)
        return path if entry is None else \
            path if entry[0] == "file" and entry[1] not in self.busy() and \
            self.h.version[entry[1]] is not None else self.top + \
            self.fresh("more")

    def bytes(self):
        rng = self.rng
        self.number += 1
        unique = data(rng.choice((100, 9 * KIB, 33 * KIB, 70 * KIB,
                                  300 * KIB, MIB)) + rng.randrange(999),
                      f"{self.top} {self.number} {rng.random()}")
        how = rng.randrange(6)
        if how == 0:
            return unique + rng.choice(self.shared)
        if how == 1:
            return rng.choice(self.shared)
        if how == 2:
            return safetensors(*rng.sample(self.shared, 2), unique)
        return unique

    # --- what is done ---

    def put(self):
        w = self.w.open(self.name())
        try:
            w.write(self.bytes(), piece=self.rng.choice((MIB, 128 * KIB)))
            if self.rng.random() < 0.35:
                w.sync(self.rng.choice((os.fsync, os.fdatasync)))
        finally:
            w.close()

    def step(self):
        """A trainer's save of some ranks, published or not."""
        rng, w = self.rng, self.w
        name = self.top + self.fresh("step")
        published = rng.random() < 0.5
        folder = name + ".tmp" if published else name
        sync = rng.random() < 0.3
        with self.w.refusable():
            w.mkdir(folder)
        for rank in range(rng.randrange(1, 4)):
            self.put_whole(f"{folder}/rank_{rank}.safetensors",
                           safetensors(self.shared[rank % 3],
                                       data(200 * KIB, f"{name} {rank}")),
                           sync)
        self.put_whole(f"{folder}/meta.json", data(120, name), sync)
        if published:
            with self.w.refusable():
                w.rename(folder, name)
        tracker = f"{self.top}latest"
        if rng.random() < 0.5:
            self.put_whole(tracker, name.encode(), sync)
        else:
            self.put_whole(f"{tracker}.tmp", name.encode(), sync)
            with self.w.refusable():
                w.rename(f"{tracker}.tmp", tracker)

    def put_whole(self, path, content, sync):
        w = self.w.open(path)
        try:
            w.write(content)
            if sync:
                w.sync()
        finally:
            w.close()

    def begin(self):
        """A file that stays open for a while."""
        if len(self.open) < 4:
            w = self.w.open(self.name(), self.rng.choice(
                (os.O_TRUNC, os.O_TRUNC, os.O_APPEND)))
            self.open.append(w)
            w.write(self.bytes())

    def more(self):
        if self.open:
            w = self.rng.choice(self.open)
            w.write(self.bytes(), piece=self.rng.choice((MIB, 20000)))
            if self.rng.random() < 0.3:
                w.sync()

    def finish(self):
        if self.open:
            self.open.pop(self.rng.randrange(len(self.open))).close()

    def append(self):
        self.change(lambda w, size: w.write(data(7000, self.number)),
                    os.O_APPEND)

    def patch(self):
        self.change(lambda w, size: w.write(
            data(6000, self.number), self.rng.randrange(size + 1)))

    def change(self, how, flags=0):
        path = self.file()
        if path is None:
            return
        w = self.w.open(path, flags)
        try:
            self.number += 1
            how(w, len(w.content))
            if self.rng.random() < 0.3:
                w.sync()
        finally:
            w.close()

    def truncate(self):
        path = self.file()
        if path:
            self.w.truncate(path, self.rng.choice((0, 5000, 50000)))

    def map(self):
        """A change in place through a mapping."""
        path = self.file()
        content = path and self.h.content[self.h.tree[path][1],
                                          self.h.version[self.h.tree[path][1]]]
        if not content:
            return
        w = self.w.open(path, os.O_RDWR)
        try:
            self.number += 1
            at = self.rng.randrange(len(content))
            w.write_mapped(data(min(5000, len(content) - at), self.number),
                           at)
            if self.rng.random() < 0.3:
                w.sync()
        finally:
            w.close()

    def sized(self):
        """A save under a name that says nothing, of a size that is known,
        renamed when it is complete."""
        rng = self.rng
        content = safetensors(self.shared[rng.randrange(3)],
                              data(400 * KIB, self.fresh("sized")))
        name = self.top + self.fresh(".tmp")
        w = self.w.open(name, os.O_RDWR | os.O_EXCL)
        try:
            w.resize(len(content)).write(content, 0,
                                         rng.choice((100_000, MIB)))
            if rng.random() < 0.3:
                w.write_mapped(content[5000:90_000], 5000)
            if rng.random() < 0.3:
                w.sync()
        finally:
            w.close()
        with self.w.refusable():
            self.w.rename(name, f"{self.top}sized_{rng.randrange(4)}")

    def hold(self):
        """Somebody reads a file, and keeps it open."""
        path = self.file()
        if path:
            self.readers.append(os.open(self.w.at(path), os.O_RDONLY))
            os.pread(self.readers[-1], 10_000, 0)
        if len(self.readers) > 4:
            os.close(self.readers.pop(self.rng.randrange(4)))

    def sync(self):
        path = self.file()
        if path:
            self.w.sync(path)

    def read(self):
        path = self.file()
        if path is None:
            return
        fid = self.h.tree[path][1]
        with open(self.w.at(path), "rb", buffering=0) as f:
            got = f.readall()
        want = self.h.content[fid, self.h.version[fid]]
        assert got == want, f"{path} reads wrong: {len(got)} bytes, not " \
            f"{len(want)}"

    def rename(self):
        src = self.file()
        dst = self.name()
        if src and dst and self.h.tree.get(src) != self.h.tree.get(dst):
            exchange = dst in self.h.tree and self.rng.random() < 0.3
            with self.w.refusable():
                self.w.rename(src, dst, exchange)

    def rename_dir(self):
        steps = [d[:-1] for d in self.dirs() if "step_" in d]
        if steps:
            src = self.rng.choice(sorted(steps))
            if not self.busy() & self.h.fids(self.h.under(src)):
                with self.w.refusable():
                    self.w.rename(src, self.top + self.fresh("moved_step"))

    def link(self):
        src = self.file()
        if src:
            with self.w.refusable():
                self.w.link(src, self.top + self.fresh("link"))

    def symlink(self):
        with self.w.refusable():
            self.w.symlink("somewhere", self.top + self.fresh("soft"))

    def mkdir(self):
        with self.w.refusable():
            self.w.mkdir(self.top + self.fresh("dir"))

    def unlink(self):
        path = self.file()
        if path:
            with self.w.refusable():
                self.w.unlink(path)

    def sync_dir(self):
        self.w.sync_dir(self.rng.choice(sorted(self.dirs())).rstrip("/"))

    def wait(self):
        if self.w.slow:
            time.sleep(self.rng.choice((0.3, 0.8, INTERVAL + 0.2)))

    def save(self):
        if self.w.segments:
            path = self.rng.choice(("model", "optimizer", self.name()))
            entry = self.h.tree.get(path)
            if entry is None or entry[1] not in self.busy():
                content = safetensors(self.shared[0],
                                      data(MIB, self.fresh("save")))
                self.w.save(path, content, f"{len(content)}",
                            wait=self.rng.random() < 0.3)

    def save_tensors(self):
        if self.w.gpu:
            path = self.rng.choice(("tensors_0", "tensors_1"))
            self.w.save_tensors(
                path, {"frozen": self.shared[0],
                       "weight": data(700 * KIB, self.fresh("save"))},
                self.rng.random() < 0.3)

    WEIGHTS = {put: 24, step: 6, begin: 6, more: 8, finish: 5, append: 5,
               patch: 4, map: 3, truncate: 2, sized: 5, hold: 5, sync: 6,
               read: 6, rename: 6,
               rename_dir: 2, link: 4, symlink: 1, mkdir: 1, unlink: 7,
               sync_dir: 2, wait: 2, save: 12, save_tensors: 6}

    def act(self):
        op = self.rng.choices(list(self.WEIGHTS),
                              list(self.WEIGHTS.values()))[0]
        try:
            op(self)
        except OSError as e:
            if not self.w.full or e.errno not in FULL:
                raise
            self.make_room()

    def make_room(self):
        """Delete until a file can be written and synced; that must come."""
        while self.open:
            self.open.pop().close()
        deadline = time.monotonic() + FREE_BOUND
        files = self.files()
        self.rng.shuffle(files)
        for path in files[:2 * len(files) // 3]:
            try:
                with self.w.refusable():
                    self.w.unlink(path)
            except OSError as e:
                if e.errno not in FULL:
                    raise
        while True:
            try:
                self.put_whole(self.top + "room",
                               data(MIB, self.fresh("room")), True)
                return
            except OSError as e:
                if e.errno not in FULL:
                    raise
                assert time.monotonic() < deadline, \
                    f"no room {FREE_BOUND} s after {len(files)} files " \
                    "were deleted"
            time.sleep(0.1)

    def done(self):
        while self.open:
            self.open.pop().close()
        while self.readers:
            os.close(self.readers.pop())


def in_threads(w, rng, count):
    """Each with a directory of its own; the order of closes holds in each."""
    errors = []

    def lane(name, seed):
        other = BlockWork(w.root, w.count, history=w.h, lane=name,
                          slow=w.slow)
        actor = Actor(other, random.Random(seed), name + "/")
        try:
            for _ in range(THREAD_OPS):
                actor.act()
            actor.done()
        except BaseException as e:
            errors.append(e)

    names = [f"lane{i}" for i in range(count)]
    for name in names:
        w.mkdir(name)
    threads = [threading.Thread(target=lane, args=(n, rng.random()))
               for n in names]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]


def run(w, rig, flush, rng):
    """The whole history; rig remounts, or kills the daemon and starts
    another."""
    actor = Actor(w, rng, "")

    def remount():
        w.disconnect()
        rig.remount()

    if w.threads:
        in_threads(w, rng, w.threads)
    between = 6 if w.restless else 40  # calls between two of rig
    for i in range(OPS):
        actor.act()
        if i % between != between - 1:
            continue
        actor.done()
        how = rng.randrange(4)
        if w.full:
            actor.make_room()
        if how == 0:
            w.settle("unmount and mount", remount)
        elif how == 1:
            w.disconnect()
            step = w.h.begin("kill -9 of the daemon and a new one")
            rig.crash()
            w.h.end(step)
        elif how == 2 and flush:
            w.settle("flush", flush)
    actor.done()
    if w.full:
        actor.make_room()
    w.disconnect()
    w.settle("unmount", rig.remount)
