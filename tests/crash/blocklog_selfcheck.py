#!/usr/bin/env python3
"""blocklog_selfcheck - disks are put together from a log as a cut leaves them.

What was flushed is on every one of them; of the rest anything may be there,
down to a sector, but never an older request's bytes where a newer one's are;
the same seed makes the same disk.
"""
import os
import random
import sys
import tempfile

from blocklog import (DISCARD, ENTRY, FLUSH, FUA, MAGIC, SECTOR, SUPER, Log,
                      Replay, coins)

SECTORS = 64  # of the disk
SEEDS = range(300)


class Case:
    """A log that is written as blklogwrites does it."""

    def __init__(self):
        self.scratch = tempfile.TemporaryDirectory(prefix="blocklog.")
        self.base, self.path = self.at("base"), self.at("log")
        self.entries, self.raw = 0, bytearray()
        with open(self.base, "wb") as f:
            f.truncate(SECTORS * SECTOR)

    def at(self, name):
        return os.path.join(self.scratch.name, name)

    def add(self, sector, content=b"", flags=0, count=None):
        count = len(content) // SECTOR if count is None else count
        self.raw += ENTRY.pack(sector, count, flags, 0).ljust(SECTOR, b"\0")
        self.raw += content
        self.entries += 1

    def log(self):
        with open(self.path, "wb") as f:
            f.write(SUPER.pack(MAGIC, 1, self.entries, SECTOR)
                    .ljust(SECTOR, b"\0") + self.raw)
            f.truncate(1 << 30)  # what was made room for
        log = Log(self.path)
        log.check()
        return log

    def disks(self, log, k, seeds=SEEDS):
        replay = Replay(self.base, log, self.at("settled"))
        for seed in seeds:
            replay.build(k, seed, self.at("disk"))
            with open(self.at("disk"), "rb") as f:
                yield f.read()
        replay.close()


def fill(letter, sectors):
    return letter.encode() * (sectors * SECTOR)


def sectors(disk, first, count):
    """One letter for each sector; "." for zeros, "?" for a mixture."""
    text = ""
    for i in range(first, first + count):
        s = set(disk[i * SECTOR:(i + 1) * SECTOR])
        text += "?" if len(s) > 1 else chr(s.pop()).replace("\0", ".")
    return text


def what_was_flushed_stays():
    c = Case()
    c.add(8, fill("a", 8))
    c.add(24, fill("b", 8), FUA)
    c.add(0, flags=FLUSH)
    c.add(10, fill("c", 2))
    c.add(40, fill("d", 4), FUA)
    log = c.log()
    assert log.flushed(2) == 0 and log.flushed(4) == 3
    for disk in c.disks(log, 3):
        assert sectors(disk, 8, 8) == "a" * 8
    for disk in c.disks(log, 5):
        assert sectors(disk, 8, 8) in ("aa" + m + "aaaa" for m in
                                       ("aa", "cc", "ac", "ca"))
        assert sectors(disk, 24, 8) == "b" * 8
        assert sectors(disk, 40, 4) == "d" * 4, "FUA is kept by itself"


def the_rest_is_lost_torn_and_reordered():
    c = Case()
    for i, letter in enumerate("abcd"):
        c.add(8 + 4 * i, fill(letter, 4))
    log = c.log()
    seen = {sectors(d, 8, 16) for d in c.disks(log, 4)}
    assert "." * 16 in seen and "aaaabbbbccccdddd" in seen
    assert "............dddd" in seen, "the last alone"
    assert any(s.startswith("aa..") for s in seen), "a beginning"
    assert any(s.startswith("..aa") for s in seen), "an end"
    assert not any("?" in s for s in seen), "less than a sector"
    assert len(seen) > 40, len(seen)
    first = list(c.disks(log, 4, [0, 1]))
    assert sectors(first[0], 8, 16) == "." * 16
    assert sectors(first[1], 8, 16) == "aaaabbbbccccdddd"


def newer_bytes_win():
    c = Case()
    c.add(8, fill("a", 4))
    c.add(8, fill("b", 4))
    c.add(9, flags=DISCARD, count=2)
    log = c.log()
    for k, letters in ((1, ".a"), (2, ".ab"), (3, ".ab")):
        for disk in c.disks(log, k):
            assert set(sectors(disk, 8, 4)) <= set(letters)
    assert sectors(next(c.disks(log, 3, [1])), 8, 4) == "b..b"


def superblocks_are_not_torn():
    c = Case()
    c.add(0, fill("a", 8))
    c.add(32, b"\xc0\x3b\x39\x98\0\0\0\4" + fill("j", 8)[8:])
    log = c.log()
    for seed in SEEDS:
        assert all(parts == [(0, r.count)] for r, parts in
                   coins(log, 2, seed))


def any_order_of_cuts_makes_the_same_disks():
    c = Case()
    rng = random.Random(1)
    for i in range(60):
        if rng.random() < 0.2:
            c.add(0, flags=FLUSH)
        else:
            n = rng.randrange(1, 9)
            c.add(rng.randrange(SECTORS - n),
                  fill(chr(65 + i % 26), n))
    log = c.log()
    replay = Replay(c.base, log, c.at("again"))
    for k in [*range(1, 61), *rng.sample(range(1, 61), 30)]:
        want = next(c.disks(log, k, [k]))
        replay.build(k, k, c.at("other"))
        with open(c.at("other"), "rb") as f:
            assert f.read() == want, k


def a_log_that_grows_is_read_to_its_end():
    c = Case()
    c.add(8, fill("a", 4))
    log = c.log()
    assert log.count() == 1
    c.add(0, flags=FLUSH)
    with open(c.path, "r+b") as f:
        f.seek(SECTOR)
        f.write(c.raw)
    assert log.count() == 2 and log[2].flags == FLUSH
    try:
        log.check()
    except ValueError:
        return
    raise AssertionError("the superblock still says 1")


def main():
    tests = [what_was_flushed_stays, the_rest_is_lost_torn_and_reordered,
             newer_bytes_win, superblocks_are_not_torn,
             any_order_of_cuts_makes_the_same_disks,
             a_log_that_grows_is_read_to_its_end]
    failed = 0
    for test in tests:
        try:
            test()
            print(f"ok  {test.__name__}")
        except Exception as e:
            failed += 1
            at = e.__traceback__.tb_next
            print(f"FAILED  {test.__name__}, line {at.tb_lineno}: {e!r}")
    print(f"{len(tests) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
