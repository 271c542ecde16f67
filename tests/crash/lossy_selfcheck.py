#!/usr/bin/env python3
"""lossy_selfcheck - lossyfs keeps what was synced and can lose the rest.

A crash test is worth what its disk is worth. So: lossyfs is a file system
like any other while the power is on; what was synced is there after every
cut; what was not is lost by some seed, in every way it can be; sqlite, whose
durability is known, comes through a cut at every write, and is caught
missing when a sync is left out or is a lie.
"""
import argparse
import errno
import fcntl
import hashlib
import mmap
import multiprocessing
import os
import random
import shutil
import sqlite3
import sys
import tempfile
import time

import lossy
from lossy import Lossy, libc

SEEDS = range(40)
BLOCK = 4096
FALLOC_KEEP, FALLOC_PUNCH = 1, 2
TESTS = []


def test(fn):
    TESTS.append(fn)
    return fn


def put(path, content, sync=False, flags=os.O_TRUNC):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o644)
    try:
        assert os.write(fd, content) == len(content)
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


def get(path):
    """The content, or None when there is no such name."""
    try:
        with open(path, "rb", buffering=0) as f:
            return f.readall()
    except FileNotFoundError:
        return None


def sync_dir(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fails(code, fn, *args):
    try:
        fn(*args)
    except OSError as e:
        assert e.errno == code, f"{fn.__name__}: {e}"
        return
    raise AssertionError(f"{fn.__name__}{args} did not fail")


def outcomes(disk, look, seeds=SEEDS):
    """What look() says after a cut at the log's end, for every seed."""
    disk.tell("freeze")
    end = disk.state()[2]
    found = []
    for seed in seeds:
        disk.tell("rewind", end, seed)
        found.append(look())
    return found


def fresh(disk):
    disk.tell("record")
    os.mkdir(disk.path("d"))
    sync_dir(disk.root)
    return disk.path("d")


# --- a file system like any other ---

def tree(top):
    """Every name below top with what must be the same on two file systems."""
    found = {}
    for where, dirs, files in os.walk(top):
        for name in dirs + files:
            path = os.path.join(where, name)
            st = os.lstat(path)
            what = [oct(st.st_mode)]
            if os.path.islink(path):
                what.append(os.readlink(path))
            elif name in files:
                what += [st.st_nlink, st.st_size,
                         hashlib.sha256(get(path)).hexdigest()]
            else:
                what.append(st.st_nlink)
            found[os.path.relpath(path, top)] = what
    return found


def random_step(rng, top):
    def name():
        return os.path.join(top, *rng.choice(
            [("a",), ("b",), ("c",), ("s", "a"), ("s", "b"), ("s", "t", "a"),
             ("s",), ("s", "t"), ("u",)]))

    def rewrite(flags, how):
        fd = os.open(name(), flags, 0o640)
        try:
            how(fd)
        finally:
            os.close(fd)

    def alloc(mode):
        return lambda fd: libc.fallocate64(
            fd, mode, lossy.ctypes.c_int64(rng.randrange(20000)),
            lossy.ctypes.c_int64(rng.randrange(1, 20000)))

    def write(fd):
        os.pwrite(fd, rng.randbytes(rng.randrange(1, 30000)),
                  rng.randrange(50000))

    rw = os.O_RDWR
    steps = [
        lambda: rewrite(rw | os.O_CREAT, write),
        lambda: rewrite(rw | os.O_CREAT | os.O_TRUNC, write),
        lambda: rewrite(rw, write),
        lambda: rewrite(rw | os.O_APPEND,
                        lambda fd: os.write(fd, rng.randbytes(777))),
        lambda: rewrite(rw, lambda fd: os.ftruncate(
            fd, rng.randrange(60000))),
        lambda: rewrite(rw, alloc(FALLOC_PUNCH | FALLOC_KEEP)),
        lambda: rewrite(rw, alloc(0)),
        lambda: rewrite(rw, alloc(FALLOC_KEEP)),
        lambda: os.mkdir(name(), 0o750),
        lambda: os.rmdir(name()),
        lambda: os.unlink(name()),
        lambda: os.link(name(), name()),
        lambda: os.symlink("over/there", name()),
        lambda: os.rename(name(), name()),
        lambda: os.chmod(name(), rng.choice((0o600, 0o755))),
    ]
    rng.choice(steps)()


@test
def same_as_another_file_system_while_the_power_is_on(disk, scratch):
    top = fresh(disk)
    other = os.path.join(scratch, "other")
    os.mkdir(other)
    done = 0
    for i in range(6000):
        results = []
        for where in (top, other):
            rng = random.Random(f"step {i}")
            try:
                random_step(rng, where)
                results.append(0)
            except OSError as e:
                results.append(e.errno)
        assert results[0] == results[1], f"step {i}: {results}"
        done += results[0] == 0
        if i % 100 == 99:
            assert tree(top) == tree(other), f"after step {i}"
    assert done > 1000, done
    # and the same once more, from the log and with all that was not synced
    end = tree(other)
    assert outcomes(disk, lambda: tree(top) == end, [1]) == [True]


@test
def locks_between_processes_are_kept(disk, _scratch):
    path = os.path.join(fresh(disk), "lock")

    def try_lock(answer):
        with open(path, "r+b") as f:
            for how in (fcntl.flock, fcntl.lockf):
                try:
                    how(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    answer.send("got it")
                except OSError as e:
                    answer.send(errno.errorcode[e.errno])

    put(path, b"")
    with open(path, "r+b") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        fcntl.lockf(f, fcntl.LOCK_EX)
        mine, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(
            target=try_lock, args=(theirs,))
        child.start()
        child.join(lossy.WAIT_BOUND)
        assert [mine.recv(), mine.recv()] == ["EAGAIN", "EAGAIN"]


# --- what survives ---

@test
def synced_bytes_and_names_survive_every_cut(disk, _scratch):
    d = fresh(disk)
    old, new = b"1" * 50000, b"2" * 70000
    put(f"{d}/f", old, sync=True)
    put(f"{d}/g", old, sync=True)
    put(f"{d}/g", new, sync=True)
    os.makedirs(f"{d}/x/y")
    put(f"{d}/x/y/deep", new, sync=True)
    os.rename(f"{d}/f", f"{d}/h")
    put(f"{d}/gone", old, sync=True)
    os.unlink(f"{d}/gone")
    sync_dir(d)
    look = outcomes(disk, lambda: [get(f"{d}/{n}") for n in
                                   ("f", "g", "x/y/deep", "h", "gone")])
    assert all(o == [None, new, new, old, None] for o in look)


@test
def unsynced_bytes_are_lost_whole_or_in_part(disk, _scratch):
    d = fresh(disk)
    old, new = b"1" * (8 * BLOCK), b"2" * (16 * BLOCK)
    put(f"{d}/f", old, sync=True)
    put(f"{d}/f", new, flags=0)
    put(f"{d}/never", new)
    found = outcomes(disk, lambda: (get(f"{d}/f"), get(f"{d}/never")))
    assert found[0] == (old, None), "seed 0 loses everything"
    assert found[1] == (new, new), "seed 1 loses nothing"
    files = [f for f, _ in found]
    assert all(len(f) in (len(old), len(new)) for f in files)
    assert all(f[i:i + BLOCK] in (b"\0" * BLOCK, old[:BLOCK], new[:BLOCK])
               for f in files for i in range(0, len(f), BLOCK))
    assert any(b"1" in f and b"2" in f for f in files), "no torn file"
    assert any(b"\0" in f for f in files), "no size without bytes"
    assert None in [n for _, n in found], "no lost name"
    assert any(n == b"" for _, n in found), "no name without bytes"


@test
def a_name_without_a_sync_of_its_directory_needs_luck(disk, scratch):
    with Lossy(os.path.join(scratch, "strict"), "--strict-names") as strict:
        d = fresh(strict)
        put(f"{d}/f", b"x", sync=True)
        put(f"{d}/g", b"x", sync=True)
        sync_dir(d)
        put(f"{d}/h", b"x", sync=True)
        found = outcomes(strict, lambda: [get(f"{d}/{n}") for n in "fgh"])
        assert all(o[:2] == [b"x", b"x"] for o in found)
        assert {None, b"x"} == {o[2] for o in found}
    d = fresh(disk)
    put(f"{d}/h", b"x", sync=True)
    assert set(outcomes(disk, lambda: get(f"{d}/h"))) == {b"x"}


@test
def a_rename_survives_whole_or_not_at_all(disk, _scratch):
    d = fresh(disk)
    os.mkdir(f"{d}/to")
    put(f"{d}/f", b"new", sync=True)
    put(f"{d}/to/f", b"old", sync=True)
    os.rename(f"{d}/f", f"{d}/to/f")
    found = outcomes(disk, lambda: (get(f"{d}/f"), get(f"{d}/to/f")))
    assert set(found) == {(b"new", b"old"), (None, b"new")}
    d = fresh(disk)
    put(f"{d}/a", b"x", sync=True)
    os.rename(f"{d}/a", f"{d}/b")
    os.rename(f"{d}/b", f"{d}/c")
    found = outcomes(disk, lambda: "".join(sorted(os.listdir(d))))
    assert set(found) == {"a", "b", "c"}


@test
def an_unlinked_name_can_come_back(disk, _scratch):
    d = fresh(disk)
    put(f"{d}/f", b"x" * 9000, sync=True)
    os.unlink(f"{d}/f")
    found = outcomes(disk, lambda: get(f"{d}/f"))
    assert set(found) == {None, b"x" * 9000}


def punch(fd, block):
    assert libc.fallocate64(
        fd, FALLOC_PUNCH | FALLOC_KEEP, lossy.ctypes.c_int64(block * BLOCK),
        lossy.ctypes.c_int64(BLOCK)) == 0


@test
def a_punched_hole_is_as_volatile_as_a_write(disk, _scratch):
    d = fresh(disk)
    put(f"{d}/f", b"x" * (4 * BLOCK), sync=True)
    fd = os.open(f"{d}/f", os.O_RDWR)
    punch(fd, 1)
    os.fdatasync(fd)
    punch(fd, 2)
    os.close(fd)
    found = outcomes(disk, lambda: tuple(
        get(f"{d}/f")[i * BLOCK] for i in range(4)))
    x = ord("x")
    assert set(found) == {(x, 0, x, x), (x, 0, 0, x)}


@test
def direct_writes_need_a_sync_too(disk, _scratch):
    d = fresh(disk)
    page = mmap.mmap(-1, 2 * BLOCK)

    def write(name, flags, sync):
        page[:] = b"y" * len(page)
        fd = os.open(f"{d}/{name}", os.O_RDWR | os.O_CREAT | flags)
        assert os.pwritev(fd, [page], 0) == len(page)
        if sync:
            os.fdatasync(fd)
        os.close(fd)

    write("plain", os.O_DIRECT, False)
    write("synced", os.O_DIRECT, True)
    write("dsync", os.O_DSYNC, False)
    sync_dir(d)
    found = outcomes(disk, lambda: [get(f"{d}/{n}") == bytes(page)
                                    for n in ("synced", "dsync", "plain")])
    assert all(o[:2] == [True, True] for o in found)
    assert {False, True} == {o[2] for o in found}


@test
def a_mapping_shows_what_survived_and_no_older_page(disk, _scratch):
    d = fresh(disk)
    put(f"{d}/f", b"1" * BLOCK, sync=True)
    put(f"{d}/f", b"2" * BLOCK, flags=0)

    def look():
        with open(f"{d}/f", "rb") as f, \
                mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
            return m[:1]

    assert look() == b"2"
    assert set(outcomes(disk, look)) == {b"1", b"2"}


# --- the cut itself ---

@test
def a_bad_block_is_good_again_once_all_of_it_is_written(disk, _scratch):
    path = f"{fresh(disk)}/f"
    put(path, bytes(3 * BLOCK), sync=True)
    fd = os.open(path, os.O_RDWR)
    for mend in (lambda: os.pwrite(fd, b"x" * BLOCK, BLOCK),
                 lambda: punch(fd, 1)):
        disk.tell("spoil", os.fstat(fd).st_ino, 1)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        fails(errno.EIO, os.pread, fd, 1, BLOCK + 7)
        fails(errno.EIO, os.pwrite, fd, b"y", BLOCK + 7)
        assert os.pread(fd, BLOCK, 0) == bytes(BLOCK)
        mend()
        assert len(os.pread(fd, BLOCK, BLOCK)) == BLOCK
    os.close(fd)


@test
def every_call_fails_once_the_power_is_cut(disk, _scratch):
    d = fresh(disk)
    put(f"{d}/f", b"x", sync=True)
    fd = os.open(f"{d}/f", os.O_RDWR)
    before = disk.count()
    disk.tell("arm", 3)
    os.pwrite(fd, b"1", 0)
    os.pwrite(fd, b"2", 1)
    assert not disk.state()[1]
    fails(errno.EIO, os.pwrite, fd, b"3", 2)
    assert disk.state()[:2] == (before + 2, True)
    for call, *args in ((os.fsync, fd), (os.unlink, f"{d}/f"),
                        (os.mkdir, f"{d}/new"), (os.listdir, d),
                        (os.rename, f"{d}/f", f"{d}/g"),
                        (os.truncate, fd, 0)):
        fails(errno.EIO, call, *args)
    os.close(fd)
    disk.tell("reboot", 0)
    assert get(f"{d}/f") == b"x"
    put(f"{d}/f", b"on again", sync=True)
    disk.tell("cut")
    disk.tell("reboot", 0)
    assert get(f"{d}/f") == b"on again"


@test
def the_same_seed_gives_the_same_disk(disk, scratch):
    d = fresh(disk)
    for i in range(400):
        try:
            random_step(random.Random(f"step {i}"), d)
            if i % 7 == 0:
                sync_dir(d)
        except OSError:
            pass
    disk.tell("freeze")
    end = disk.state()[2]
    log = os.path.join(scratch, "log")
    disk.tell("save", log)

    def look(on, k, seed):
        on.tell("rewind", k, seed)
        return tree(on.path("d"))

    with Lossy(os.path.join(scratch, "again")) as again:
        again.tell("load", log)
        seen = set()
        for k in range(end // 2, end, 7):
            for seed in (0, 1, 2, 3):
                a = look(disk, k, seed)
                assert a == look(again, k, seed), f"k {k} seed {seed}"
                seen.add(repr(a))
        assert len(seen) > 20
    with open(log, "r+b") as f:
        f.truncate(os.path.getsize(log) - 1)
    fails(errno.EBADMSG, disk.tell, "load", log)
    fails(errno.EINVAL, disk.tell, "nonsense")
    fails(errno.ERANGE, disk.tell, "rewind", 1 << 40, 0)


# --- a real program whose promises are known ---

ROWS = 60


def row(i):
    return random.Random(f"row {i}").randbytes(50 + 400 * (i % 23))


def sqlite_open(path, journal, sync):
    db = sqlite3.connect(path, isolation_level=None)
    if journal == "wal":  # and no file for shared memory
        db.execute("pragma locking_mode=exclusive")
    db.execute(f"pragma journal_mode={journal}")
    db.execute(f"pragma synchronous={sync}")
    return db


def sqlite_run(disk, journal, sync):
    """Insert ROWS rows; when each one was asked for and was promised."""
    d = fresh(disk)
    times = [(0, disk.count())]
    db = sqlite_open(f"{d}/db", journal, sync)
    db.execute("create table t (i integer primary key, v blob)")
    made = disk.count()
    for i in range(ROWS):
        asked = disk.count()
        db.execute("insert into t values (?, ?)", (i, row(i)))
        times.append((asked, disk.count()))
    db.close()
    disk.tell("freeze")
    return times, made, disk.state()[2]


def sqlite_look(path, journal, sync):
    """How many rows survived (-1: not even the table); or an exception."""
    db = sqlite_open(path, journal, sync)
    try:
        said = db.execute("pragma integrity_check").fetchall()
        assert said == [("ok",)], said
        if not db.execute("select 1 from sqlite_master").fetchall():
            return -1
        rows = db.execute("select i, v from t order by i").fetchall()
    finally:
        db.close()
    for at, (i, v) in enumerate(rows):
        assert i == at and v == row(i), f"row {at} is wrong"
    return len(rows)


def sqlite_violations(disk, journal, sync, stride):
    times, made, end = sqlite_run(disk, journal, sync)
    found, cuts = [], 0
    for k in range(made, end + 1, stride):
        for seed in (0, 1, 2 + k, 1000 + k):
            disk.tell("rewind", k, seed)
            cuts += 1
            # promised at count c: needed at most the first c operations
            least = max(i for i, (_, c) in enumerate(times) if c <= k)
            most = max(i for i, (a, _) in enumerate(times) if a <= k)
            try:
                got = sqlite_look(disk.path("d/db"), journal, sync)
                if not least <= got <= most:
                    found.append(f"k {k} seed {seed}: {got} rows instead of "
                                 f"{least}..{most}")
            except (AssertionError, sqlite3.Error) as e:
                found.append(f"k {k} seed {seed}: {e!r}")
    return found, cuts


STRIDE = 1


@test
def sqlite_survives_a_cut_at_every_write(disk, _scratch):
    for journal, sync in (("wal", "full"), ("delete", "extra")):
        found, cuts = sqlite_violations(disk, journal, sync, STRIDE)
        assert not found, f"{len(found)} of {cuts}, first: {found[0]}"
        assert cuts > 100 // STRIDE, cuts


@test
def sqlite_is_caught_without_its_sync_of_the_directory(disk, _scratch):
    # "full" does not sync the directory after the journal's unlink, and
    # says so: the last commit may be rolled back, nothing else.
    found, cuts = sqlite_violations(disk, "delete", "full", STRIDE)
    assert found and len(found) < cuts
    assert all("rows instead of" in f for f in found), found[0]


@test
def sqlite_is_caught_when_a_sync_is_a_lie(_disk, scratch):
    with Lossy(os.path.join(scratch, "liar"), "--lie-fsync") as liar:
        for journal, sync in (("wal", "full"), ("delete", "extra")):
            found, _ = sqlite_violations(liar, journal, sync, 5 * STRIDE)
            assert found


def main():
    global STRIDE
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--stride", type=int, help="cut sqlite at every "
                        "N-th write", default=int(os.environ.get(
                            "CKPTFS_POWERCUT_STRIDE") or 3))
    parser.add_argument("names", nargs="*", help="only these tests")
    args = parser.parse_args()
    STRIDE = max(1, args.stride)
    why = lossy.missing()
    if why:
        print(f"skipped: {why}")
        return lossy.SKIP
    failed = 0
    tests = [t for t in TESTS if not args.names or t.__name__ in args.names]
    for t in tests:
        scratch = tempfile.mkdtemp(prefix="lossy.")
        start = time.monotonic()
        try:
            with Lossy(os.path.join(scratch, "disk")) as disk:
                t(disk, scratch)
            verdict = "ok"
        except Exception as e:
            verdict = f"FAILED: {type(e).__name__}: {e}"
            failed += 1
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        print(f"{verdict}  {t.__name__}  {time.monotonic() - start:.1f} s",
              flush=True)
    print(f"{len(tests) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
