"""blocklog - a disk's log of writes, and the disks that a cut makes of it.

The format is that of the kernel's dm-log-writes, which qemu's blklogwrites
writes too: a superblock, then for each request one sector that says where it
went, followed by its data. The k-th entry of the log is the k-th request
that the disk answered.

A disk may lose, at a cut, whatever it was given since the last flush that it
answered: in any combination, and in parts of a request, down to a sector. It
never shows an older request's bytes where a newer one's are kept. coins()
throws for each request; the same seed and k make the same disk again.
"""
import ctypes
import os
import random
import struct

from lossy import libc

SECTOR = 512
FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8
KEEP_SIZE, PUNCH_HOLE = 1, 2  # of fallocate(2)
MAGIC = 0x6A736677736872
SUPER = struct.Struct("<QQQI")
ENTRY = struct.Struct("<QQQQ")
COPY_MAX = 4 << 20
# What ext4 writes without its journal and expects whole: the superblock, in
# the first block, and that of the journal (magic and type).
EXT4_SUPER = 2  # its first sector
JOURNAL_SUPERS = (b"\xc0\x3b\x39\x98\0\0\0\3", b"\xc0\x3b\x39\x98\0\0\0\4")


class Request:
    def __init__(self, sector, count, flags, at):
        self.sector, self.count, self.flags = sector, count, flags
        self.at = at  # of the data, in the log

    def __str__(self):
        names = [name for bit, name in ((FLUSH, "flush"), (FUA, "fua"),
                                        (DISCARD, "discard")) if
                 self.flags & bit]
        return " ".join(names or ["write"]) + \
            f" {self.count} at {self.sector}"


class Log:
    """The log in a file that somebody else is still writing to."""

    def __init__(self, path):
        self.path = path
        self.fd = os.open(path, os.O_RDONLY)
        self.requests = []
        self.end = SECTOR  # of what was read so far

    def close(self):
        os.close(self.fd)

    def __getitem__(self, k):
        """The k-th request, from 1 on."""
        return self.requests[k - 1]

    def count(self):
        """Requests so far."""
        while True:
            raw = os.pread(self.fd, ENTRY.size, self.end)
            if len(raw) < ENTRY.size or not any(raw):
                return len(self.requests)
            sector, count, flags, length = ENTRY.unpack(raw)
            # blklogwrites sets no other flag, and no data for marks
            if flags & ~(FLUSH | FUA | DISCARD) or length:
                raise ValueError(f"{self.path}: no request at {self.end}")
            at = self.end + SECTOR
            self.requests.append(Request(sector, count, flags, at))
            data = 0 if flags & DISCARD else count
            self.end = at + data * SECTOR

    def check(self):
        """The log of a disk that was shut down is whole."""
        magic, version, entries, sector = SUPER.unpack(
            os.pread(self.fd, SUPER.size, 0))
        if (magic, version, sector) != (MAGIC, 1, SECTOR):
            raise ValueError(f"{self.path} is no log of writes")
        if self.count() != entries:
            raise ValueError(f"{self.path}: {self.count()} requests, and its "
                             f"superblock says {entries}")

    def data(self, request, first, count):
        """Sectors of a request's data, counted from its first."""
        return os.pread(self.fd, count * SECTOR,
                        request.at + first * SECTOR)

    def whole(self, request):
        """Is it one of those that are never torn?"""
        if request.count > 8 or request.count == 0:
            return False
        return request.sector <= EXT4_SUPER < \
            request.sector + request.count or \
            self.data(request, 0, 1)[:8] in JOURNAL_SUPERS

    def flushed(self, k):
        """The last flush up to the k-th request: all before it survives."""
        while k > 0 and not self[k].flags & FLUSH:
            k -= 1
        return k

    def flushes(self, first, last):
        return [k for k in range(first, last + 1)
                if self[k].flags & FLUSH]


def coins(log, k, seed):
    """[(request, [(first sector, count)])]: what of the requests since the
    last flush a cut after the k-th leaves. Seed 0: nothing; 1: all."""
    pending = [log[i] for i in range(log.flushed(k) + 1, k + 1)]
    if seed < 2:
        return [(r, [(0, r.count)]) for r in pending
                if seed == 1 or r.flags & FUA]
    rng = random.Random(f"{seed} {k}")
    keep = rng.choice((0.1, 0.5, 0.9))
    tear = rng.choice((0.0, 0.1, 0.5))
    # a disk that works in order loses the end, one that does not, anything
    ordered = rng.random() < 0.3
    cut = rng.randrange(len(pending) + 1) if ordered else len(pending)
    left = []
    for i, r in enumerate(pending):
        if r.flags & FUA:
            left.append((r, [(0, r.count)]))
        elif i > cut or (not ordered and rng.random() >= keep):
            continue
        elif (i == cut or rng.random() < tear) and r.count > 1 and \
                not r.flags & DISCARD and not log.whole(r):
            left.append((r, torn(rng, r.count)))
        elif i != cut:
            left.append((r, [(0, r.count)]))
    return left


def torn(rng, count):
    """A part of a request: its beginning, its end, or some of its sectors."""
    at = rng.randrange(1, count)
    how = rng.randrange(3)
    if how == 0:
        return [(0, at)]
    if how == 1:
        return [(at, count - at)]
    parts, at = [], 0
    while at < count:
        run = min(count - at, rng.choice((1, 1, 2, 8, 64)))
        if rng.random() < 0.5:
            parts.append((at, run))
        at += run
    return parts


def copy_sparse(src, dst):
    """What src holds; holes stay holes."""
    size = os.fstat(src).st_size
    os.ftruncate(dst, 0)
    os.ftruncate(dst, size)
    at = 0
    while at < size:
        try:
            at = os.lseek(src, at, os.SEEK_DATA)
        except OSError:
            return
        end = os.lseek(src, at, os.SEEK_HOLE)
        while at < end:
            os.lseek(dst, at, os.SEEK_SET)
            at += os.sendfile(dst, src, at, min(COPY_MAX, end - at))


class Replay:
    """Disks as cuts of one log leave them. It goes on from cut to cut: ask
    for them in order."""

    def __init__(self, base, log, scratch):
        """base: the disk as it was before the first request, or its path."""
        self.base, self.log = base, log
        self.path = scratch  # the disk as of the last flush
        self.fd = os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        self.restart()

    def close(self):
        os.close(self.fd)
        os.unlink(self.path)

    def restart(self):
        base = os.open(self.base, os.O_RDONLY)
        try:
            copy_sparse(base, self.fd)
        finally:
            os.close(base)
        self.done = 0

    def apply(self, fd, request, first, count):
        at = (request.sector + first) * SECTOR
        if request.flags & DISCARD:
            if libc.fallocate64(fd, PUNCH_HOLE | KEEP_SIZE,
                                ctypes.c_int64(at),
                                ctypes.c_int64(count * SECTOR)) != 0:
                raise OSError(ctypes.get_errno(), "fallocate", self.path)
            return
        while count > 0:
            part = min(count, COPY_MAX // SECTOR)
            os.pwrite(fd, self.log.data(request, first, part), at)
            first, count, at = first + part, count - part, at + part * SECTOR

    def build(self, k, seed, path):
        """Write the disk after a cut at k to a file of this name."""
        settled = self.log.flushed(k)
        if settled < self.done:
            self.restart()
        while self.done < settled:
            self.done += 1
            request = self.log[self.done]
            self.apply(self.fd, request, 0, request.count)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            copy_sparse(self.fd, fd)
            for request, parts in coins(self.log, k, seed):
                for first, count in parts:
                    self.apply(fd, request, first, count)
        finally:
            os.close(fd)
