"""workload - what trainers and people do to a mount, as one known history.

Every method makes one call, or the calls that belong together, and records
what may be found and what was promised. Contents come from seeds; no two
versions are alike unless they are meant to be.
"""
import ctypes
import errno
import json
import os
import re
import random
import sys

from history import DIR, History

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)),
                             "../mount"))
import segments  # noqa: E402  (its folder is known only now)

libc = ctypes.CDLL(None, use_errno=True)
KIB, MIB = 1 << 10, 1 << 20
RENAME_EXCHANGE = 2
AT_FDCWD = -100


# Of a file: see tracker_publishes().
PUBLISHES = re.compile(r"latest(?!.*\.tmp)|\.metadata$|.+\.(ckpt|index\.json)$")


def data(size, seed):
    return random.Random(f"{seed}").randbytes(size)


def safetensors(*tensors):
    """A file in that format; the same tensor is stored once, wherever."""
    head, at = {}, 0
    for i, t in enumerate(tensors):
        head[f"layer.{i}"] = {"dtype": "U8", "shape": [len(t)],
                              "data_offsets": [at, at + len(t)]}
        at += len(t)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(tensors)


def renameat2(old, new, flags):
    if libc.renameat2(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new),
                      flags) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


class Writer:
    """A file open for writing. Complete versions are at fsync and close."""

    def __init__(self, work, path, flags):
        self.work, self.path, h = work, path, work.h
        entry = h.tree.get(path)
        h.lines.setdefault(path, [(-1, None)])
        step = h.begin(f"open {path}")
        access = 0 if flags & os.O_RDWR else os.O_WRONLY
        self.fd = os.open(work.at(path), access | os.O_CREAT | flags, 0o644)
        h.end(step)
        self.fid = entry[1] if entry else h.new_file(path)
        old = h.version[self.fid]
        self.content = bytearray() if old is None or flags & os.O_TRUNC \
            else bytearray(h.content[self.fid, old])
        self.append = flags & os.O_APPEND
        self.synced = []  # steps

    def write(self, content, offset=None, piece=MIB):
        if offset is None:
            offset = len(self.content)
        end = offset + len(content)
        if len(self.content) < end:
            self.content.extend(bytes(end - len(self.content)))
        self.content[offset:end] = content
        for at in range(0, len(content), piece):
            part = content[at:at + piece]
            if self.append:
                wrote = os.write(self.fd, part)
            else:
                wrote = os.pwrite(self.fd, part, offset + at)
            if wrote != len(part):  # the power went in the middle of it
                raise OSError(errno.EIO, "a short write", self.path)
        return self

    def sync(self, call=os.fsync):
        h = self.work.h
        step = h.begin(f"{call.__name__} {self.path} "
                       f"({len(self.content)} bytes)")
        h.set_version(step, self.fid, self.content)
        h.floor(step, [self.path] if self.path in h.tree else [])
        h.hurry(step, {self.fid}, "synced")
        self.synced.append((step, bytes(self.content)))
        call(self.fd)
        h.end(step)
        return self

    def close(self):
        h = self.work.h
        step = h.begin(f"close {self.path} ({len(self.content)} bytes)")
        version = h.set_version(step, self.fid, self.content)
        os.close(self.fd)
        self.fd = -1
        h.end(step)
        if not h.names(self.fid):
            return
        close = h.add_close(step, self.fid, version, self.path,
                            self.work.lane)
        close.hurried += [(s, "synced") for s, content in self.synced
                          if content == self.content]


class Work:
    lane = None  # of the closes

    def __init__(self, root, count):
        self.root = root
        self.h = History(count)
        self.client = None  # connected with the first save
        self.inos = {}  # of what was saved last: ino -> path

    def disconnect(self):
        """Who saves ends, or must connect anew: its daemon is another."""
        client, self.client = self.client, None
        if client:
            client.close()

    def at(self, path):
        return os.path.join(self.root, path)

    def open(self, path, flags=os.O_TRUNC):
        return Writer(self, path, flags)

    def put(self, path, content, sync=False, flags=os.O_TRUNC):
        w = self.open(path, flags).write(content)
        if sync:
            w.sync()
        w.close()

    # --- saves through segments ---

    def _wait(self, ino):
        """What the ioctl answers for is durable."""
        h, path = self.h, self.inos[ino]
        step = h.begin(f"wait for {path}")
        h.floor(step, [path] if path in h.tree else [])
        h.hurry(step, h.fids([path]), "synced")
        try:
            self.client.wait(ino)
        except OSError as e:
            # deleted, or another inode has the name: it says nothing
            if e.errno != errno.ENOENT:
                raise
            h.floors.pop()
        h.end(step)

    def _acquire(self, signature, size):
        if self.client is None:
            self.client = segments.Client(self.root)
        for _ in range(16):
            try:
                return self.client.acquire(signature, size)
            except segments.Refused as e:
                if e.errno != errno.EAGAIN:
                    raise
                if not self.client.drop_released():
                    self._wait(e.busy)
        raise OSError(errno.EBUSY, "no segment after 16 tries")

    def save(self, path, content, signature=None, wait=False):
        """A commit: what was there stays, or all of this is there."""
        h = self.h
        segment = self._acquire(
            (signature or f"{len(content)} bytes").encode(), len(content))
        segment.memory[:] = content
        h.lines.setdefault(path, [(-1, None)])
        step = h.begin(f"save {path} ({len(content)} bytes)")
        entry = h.tree.get(path)
        fid = entry[1] if entry else h.new_file(path)
        version = h.set_version(step, fid, content)
        ino = segment.commit(os.path.dirname(self.at(path)),
                             os.path.basename(path))
        h.end(step)
        h.add_close(step, fid, version, path, self.lane)
        self.inos[ino] = path
        if wait:
            self._wait(ino)
        return ino

    def append(self, path, content):
        self.put(path, content, flags=os.O_APPEND)

    def patch(self, path, content, offset):
        self.open(path, 0).write(content, offset).close()

    def sync(self, path):
        """fsync of a file by somebody who did not write it."""
        h = self.h
        fd = os.open(self.at(path), os.O_RDONLY)
        try:
            step = h.begin(f"fsync {path}, opened again")
            h.floor(step, [path])
            h.hurry(step, h.fids([path]), "synced")
            os.fsync(fd)
            h.end(step)
        finally:
            os.close(fd)

    def truncate(self, path, size):
        h = self.h
        fid = h.tree[path][1]
        content = h.content[fid, h.version[fid]][:size]
        step = h.begin(f"truncate {path} to {size}")
        h.set_version(step, fid, content + bytes(size - len(content)))
        os.truncate(self.at(path), size)
        h.end(step)

    def _simple(self, what, path, entry, call, *args):
        step = self.h.begin(f"{what} {path}")
        if entry is None:
            self.h.drop(step, path)
        else:
            self.h.put(step, path, entry)
        call(*args)
        self.h.end(step)

    def mkdir(self, path):
        self._simple("mkdir", path, DIR, os.mkdir, self.at(path))

    def rmdir(self, path):
        self._simple("rmdir", path, None, os.rmdir, self.at(path))

    def unlink(self, path):
        self._simple("unlink", path, None, os.unlink, self.at(path))

    def symlink(self, text, path):
        self._simple("symlink", path, ("link", text), os.symlink, text,
                     self.at(path))

    def link(self, old, new):
        self._simple(f"link {old} as", new, self.h.tree[old], os.link,
                     self.at(old), self.at(new))

    def rename(self, src, dst, exchange=False):
        """Durable when it returns, if it publishes something; any other one
        is in the order of the closes, and need not be."""
        h = self.h
        publishes = exchange or h.tree[src][0] == "dir" or \
            PUBLISHES.match(os.path.basename(dst)) is not None
        step = h.begin(f"rename {src} {dst}" + " (exchange)" * exchange)
        paths = h.rename(step, src, dst, exchange, publishes)
        if publishes:
            h.floor(step, paths)
            h.hurry(step, h.fids(paths), "published")
        renameat2(self.at(src), self.at(dst),
                  RENAME_EXCHANGE if exchange else 0)
        h.end(step)

    def sync_dir(self, path):
        """What was removed from a synced directory does not come back."""
        h = self.h
        fd = os.open(self.at(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            step = h.begin(f"fsync of the directory {path or '/'}")
            h.floor(step, [p for p in h.lines if os.path.dirname(p) == path
                           and p not in h.tree])
            os.fsync(fd)
            h.end(step)
        finally:
            os.close(fd)

    def settle(self, what, call, *args):
        """A call that returns when everything is durable."""
        h = self.h
        step = h.begin(what)
        h.floor(step, list(h.lines))
        h.hurry(step, set(h.version), "synced")
        call(*args)
        h.end(step)


def run(w, remount, crash, flush):
    """The whole history. remount: clean, everything is durable; crash: kill
    -9 of the daemon and a new one; flush: ckptctl flush of the mount, or
    None."""
    shared, frozen = data(2 * MIB, "shared"), data(MIB, "frozen")

    # A first step, as a trainer saves it: nothing synced, tracker last.
    w.mkdir("step_1")
    w.put("step_1/rank_0.safetensors",
          safetensors(shared, data(MIB, "rank 0")))
    w.put("step_1/rank_1.safetensors",
          safetensors(data(777, "small"), shared, data(300 * KIB, "rank 1")))
    w.put("step_1/meta.json", data(100, "meta"))
    w.put("latest", b"step_1")

    # Synced in all the ways that trainers sync.
    w.put("synced_100", data(100, 1), sync=True)
    w.put("synced_20k", data(20 * KIB, 2), sync=True)
    w.put("synced_40k", data(40 * KIB, 3), sync=True)
    w.open("synced_early").sync().write(data(3439, 4)).close()
    log = w.open("synced_half").write(data(MIB, 5)).sync()
    log.write(data(MIB + 333, 6)).sync(os.fdatasync)
    log.write(data(50 * KIB, 7)).close()

    # .metadata: written aside, synced, the old one unlinked, renamed.
    for i in range(2):
        w.put(".metadata.tmp", data(9 * KIB, f"metadata {i}"), sync=True)
        if i:
            w.unlink(".metadata")
        w.rename(".metadata.tmp", ".metadata")

    # A directory published by its rename, and a tracker by its own.
    w.mkdir("step_2.tmp")
    w.put("step_2.tmp/rank_0.safetensors",
          safetensors(shared, data(MIB, "rank 0")))  # a whole duplicate
    w.put("step_2.tmp/rank_1.safetensors",
          safetensors(frozen, shared, data(99, "tail")))
    w.put("step_2.tmp/meta.json", data(120, "meta 2"))
    w.rename("step_2.tmp", "step_2")
    w.put("latest.tmp", b"step_2")
    w.rename("latest.tmp", "latest")

    # Two writers at once, closed in the other order.
    a, b = w.open("pair_a"), w.open("pair_b")
    for i in range(3):
        a.write(data(33 * KIB, f"a{i}"))
        b.write(data(45 * KIB, f"b{i}"))
    b.close()
    a.close()

    # What exists is written again: whole, at its end, in the middle.
    w.put("step_1/rank_0.safetensors",
          safetensors(data(MIB, "new 0"), frozen, shared[:MIB]))
    w.append("synced_40k", data(5000, 8))
    w.patch("synced_20k", data(6000, 9), 7000)
    w.patch("synced_half", data(64 * KIB, 10), MIB - 4096)
    w.sync("synced_20k")
    w.truncate("synced_40k", 10000)
    w.put("synced_100", data(50 * KIB, 11))  # small becomes large
    w.put("step_1/meta.json", data(90, 12), sync=True)

    # One name for every step, faster than the disk, each with its tracker.
    for step in range(3):
        w.put("model.pt", shared[step:] + data(40 * KIB + step, f"m{step}"))
        w.put("model_latest", b"%d" % step)
    again = w.open("model.pt").write(data(300 * KIB, "m3"))
    w.put("model_log", data(10 * KIB, "log"))
    again.close()
    w.put("model_latest", b"3")

    # As safetensors saves: a name of its own, renamed over the last one.
    for step in range(3):
        w.put(f".tmpA{step}", data(300 * KIB + step, f"renamed {step}"))
        w.rename(f".tmpA{step}", "renamed.safetensors")
        w.put("renamed_log", b"%d" % step)

    # Names.
    w.link("synced_20k", "step_2/hard")
    w.symlink("step_2/hard", "soft")
    w.unlink("synced_early")
    w.sync_dir("")
    w.mkdir("empty")
    w.rmdir("empty")
    w.rename("pair_a", "step_2/pair_a")
    w.rename("synced_20k", ".metadata", exchange=True)
    gone = w.open("unlinked_open").write(data(70 * KIB, 13))
    w.unlink("unlinked_open")
    gone.close()

    # Bytes that others share are given back, and written once more.
    w.unlink("step_1/rank_1.safetensors")
    w.unlink("step_2/rank_0.safetensors")
    w.put("again.safetensors", safetensors(shared, data(MIB, "rank 0")))
    if flush:
        w.settle("flush", flush)
    w.put(".tmpB", data(270 * KIB, "over what is durable"))
    w.rename(".tmpB", "renamed.safetensors")
    w.put("after_flush", data(60 * KIB, 14))

    w.settle("unmount and mount", remount)

    # The same on a store that has seen life.
    w.mkdir("step_3")
    for rank in range(3):
        w.put(f"step_3/rank_{rank}.pt",
              data(200 * KIB, f"rank {rank}") + shared[:MIB])
    w.put("latest", b"step_3")
    w.unlink("step_1/rank_0.safetensors")
    w.unlink("step_1/meta.json")
    w.rmdir("step_1")
    w.put("again.safetensors", data(35 * KIB, 15), sync=True)
    w.append("step_2/hard", data(30 * KIB, 16))
    w.sync("step_2/hard")

    # The daemon dies with work to do; the next one finds it.
    w.put("before_crash_100", data(100, 17))
    w.put("before_crash_2m", data(2 * MIB, 18))
    w.put("again.safetensors", shared + data(KIB, 19))
    w.put(".tmpC", data(280 * KIB, "taken over"))
    w.rename(".tmpC", "renamed.safetensors")
    for step in range(4, 7):
        w.put("model.pt", data(MIB + step, f"m{step}"))
        w.put("model_latest", b"%d" % step)
    step = w.h.begin("kill -9 of the daemon and a new one")
    crash()
    w.h.end(step)
    w.put("after_crash", data(25 * KIB, 20))
    w.sync("before_crash_2m")
    w.rename("step_3", "step_3.done")
    w.unlink("before_crash_100")
    w.put("last", data(80 * KIB, 21))
    w.settle("unmount", remount)


def run_segments(w, remount, crash, flush):
    """The same of saves that are commits of segments: a commit counts as a
    close, and stands in its order among files that are written."""
    shared = data(2 * MIB, "shared")

    def remounted():
        w.disconnect()
        remount()

    # Steps as a trainer saves them, and a tracker after each.
    for step in range(4):
        w.mkdir(f"step_{step}")
        for rank in range(2):
            w.save(f"step_{step}/rank_{rank}.safetensors",
                   safetensors(shared, data(300 * KIB, f"{step} {rank}")),
                   f"rank {rank}")
        w.put(f"step_{step}/meta.json", data(120, f"meta {step}"))
        w.put("latest", b"step_%d" % step)

    # Somebody waits for one; what nobody waits for keeps its place.
    w.save("unawaited", data(MIB, "unawaited"))
    w.put("before_wait", data(40 * KIB, "before"))
    w.save("waited", data(MIB, "waited"), wait=True)
    w.put("after_wait", data(100, "after"))
    w.sync("before_wait")

    # One name for every step: new, committed, not committed yet.
    for step in range(5):
        w.save("model", data(MIB, f"model {step}"))
        w.put("model_latest", b"%d" % step)
        if step == 2:
            w.save("model", data(MIB, "model waited for"), wait=True)

    # Saves over files that were written, and the other way round.
    w.put("mixed", data(70 * KIB, 1))
    w.save("mixed", data(MIB, 2))
    w.put("mixed_log", b"1")
    w.put("mixed", data(50 * KIB, 3))
    w.save("mixed", data(MIB, 4), wait=True)
    w.append("mixed", data(30 * KIB, 5))
    w.patch("mixed", data(6000, 6), 7000)
    w.put("mixed_log", b"2")
    w.save("mixed", data(MIB, 7))
    w.sync("mixed")

    # While it is read, and while it is written, the name goes on.
    with open(w.at("model"), "rb") as reader:
        reader.read(4096)
        w.save("model", data(MIB, "while it is read"))
        w.put("model_latest", b"5")
        w.save("model", data(MIB, "while it was read"), wait=True)
    slow = w.open("slow").write(data(200 * KIB, "slow"))
    w.save("between", data(MIB, "between"))
    slow.close()

    # Names.
    w.save("saved.tmp", data(MIB, "published"))
    w.rename("saved.tmp", "saved")
    w.save("saved", data(MIB, "published again"), wait=True)
    w.link("saved", "saved_too")
    w.save("saved", data(MIB, "through one of two names"))
    w.put("saved_log", b"1")
    w.save("gone", data(MIB, "gone"))
    w.unlink("gone")
    w.unlink("step_0/rank_0.safetensors")
    w.rename("step_1", "step_1.done")
    w.rename("unawaited", "waited", exchange=True)
    w.sync_dir("")
    if flush:
        w.settle("flush", flush)
    w.settle("unmount and mount", remounted)

    # The daemon dies with saves to drain; the next one finds them.
    w.save("model", data(MIB, "before the crash"))
    w.put("model_latest", b"6")
    for step in range(4, 6):
        w.mkdir(f"step_{step}")
        w.save(f"step_{step}/rank_0.safetensors",
               safetensors(shared, data(300 * KIB, f"{step} 0")), "rank 0")
        w.put("latest", b"step_%d" % step)
    w.disconnect()
    step = w.h.begin("kill -9 of the daemon and a new one")
    crash()
    w.h.end(step)
    w.save("model", data(MIB, "after the crash"))
    w.put("model_latest", b"7")
    w.save("step_5/rank_0.safetensors", data(MIB, "a new one"), wait=True)
    w.put("last", data(80 * KIB, 21))
    w.settle("unmount", remounted)


WORKLOADS = {"files": run, "segments": run_segments}
