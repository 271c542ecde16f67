"""The table of promises. A crash is kill -9 of the daemon; a power cut is
that and the loss of the stage, which is all that only memory held."""
import os
import random
import threading

import ckptest as ck
from ckptest import KIB, MIB, data, get, put, same

SIZES = (0, 1, 3439, 32 * KIB, 100 * KIB, MIB + 13, 5 * MIB)


def whole_or_absent(path, *versions):
    """After a power cut: one of the versions, complete, or no file at all.
    None among the versions allows the absence. Which one it was."""
    try:
        content = get(path)
    except FileNotFoundError:
        content = None
    for i, version in enumerate(versions):
        if content == version:
            return i
    raise AssertionError(
        f"{path}: {'absent' if content is None else len(content)} is none of "
        f"{[None if v is None else len(v) for v in versions]}")


def open_put(path, content, flags=os.O_TRUNC):
    """Written and left open, as when the trainer is still at it."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o644)
    ck.write_all(fd, content)
    return fd


def close_all(fds):
    for fd in fds:
        try:
            os.close(fd)
        except OSError:
            pass  # its mount is dead


@ck.mounted("debug_hold_drain")
def what_write_returned_for_survives_kill_9(m):
    want, fds = {}, []
    os.makedirs(m.path("d", "e"))
    for size in SIZES:
        for how in ("closed", "open", "renamed", "durable then appended"):
            path = m.path("d", f"{how} {size}")
            want[path] = data(size, how)
            if how == "open":
                fds.append(open_put(path, want[path]))
            elif how == "renamed":
                put(m.path("d", "e", "tmp"), want[path])
                os.rename(m.path("d", "e", "tmp"), path)
            elif how == "closed":
                put(path, want[path])
            else:
                put(path, want[path], sync=True)
                fds.append(open_put(path, b"appended", os.O_APPEND))
                want[path] += b"appended"
    os.chmod(m.path("d", "closed 1"), 0o600)
    os.symlink("closed 1", m.path("d", "l"))
    m.kill()
    close_all(fds)
    m.start()
    for path, content in want.items():
        same(get(path), content, path)
    assert os.stat(m.path("d", "l")).st_mode & 0o777 == 0o600
    m.remount()
    for path, content in want.items():
        same(get(path), content, path + " later")


@ck.mounted("debug_hold_drain")
def what_fsync_returned_for_survives_a_power_cut(m):
    want, fds, loose = {}, [], {}
    os.makedirs(m.path("new", "dir"))
    for size in SIZES:
        for sync in (os.fsync, os.fdatasync):
            for closed in (False, True):
                path = m.path("new/dir", f"{sync.__name__} {closed} {size}")
                want[path] = data(size, path)
                fds.append(open_put(path, want[path]))
                sync(fds[-1])
                if closed:
                    os.close(fds.pop())
        path = m.path("new", f"loose {size}")
        loose[path] = data(size, path)
        put(path, loose[path])
    m.power_cut()
    close_all(fds)
    m.start()
    for path, content in want.items():
        same(get(path), content, path)
    for path, content in loose.items():
        whole_or_absent(path, None, content)


@ck.mounted("debug_hold_drain")
def fsync_is_exact_while_the_writer_goes_on(m):
    path, parts = m.path("log"), [data(700 * KIB, i) for i in range(3)]
    fd = open_put(path, parts[0])
    os.fsync(fd)
    ck.write_all(fd, parts[1])
    os.fsync(fd)
    ck.write_all(fd, parts[2])
    m.power_cut()
    close_all([fd])
    m.start()
    whole_or_absent(path, parts[0] + parts[1], b"".join(parts))


@ck.mounted("debug_hold_drain")
def an_overwrite_that_was_not_synced_leaves_the_old_content(m):
    """O_TRUNC, r+, append, truncate and rename over a durable file."""
    changes = {
        "o_trunc": lambda p: put(p, data(MIB, "new")),
        "o_trunc open": lambda p: fds.append(open_put(p, data(MIB, "new"))),
        "o_trunc empty": lambda p: put(p, b""),
        "append": lambda p: put(p, data(70 * KIB, "new"), os.O_APPEND),
        "middle": lambda p: put(p, data(500, "new"), 0),
        "truncate": lambda p: os.truncate(p, 700),
    }
    fds, want = [], {}
    for size in (2000, 2 * MIB):
        for how, change in changes.items():
            path, new = m.path(f"{how} {size}"), data(size, "old")
            put(path, new, sync=True)
            want[path] = [new, None]
            change(path)
            want[path][1] = get(path)
    synced, content = m.path("synced"), data(2 * MIB, "synced")
    put(synced, data(MIB), sync=True)
    put(synced, content, sync=True)
    m.power_cut()
    close_all(fds)
    m.start()
    for path, (old, new) in want.items():
        whole_or_absent(path, old, new)
    same(get(synced), content, "synced")


@ck.mounted("debug_hold_drain")
def a_rename_that_publishes_nothing_returns_at_once(m):
    """As safetensors saves: a random name, renamed over the last save. What it
    replaces stays until the new one is durable, or nothing is there."""
    def files():
        for size in (100, MIB, 5 * MIB):
            for old in (None, data(size // 2, "old")):
                yield m.path(f"model {size} {old is None}"), size, old
    for path, _, old in files():
        if old is not None:
            put(path, old)
    m.ctl("flush", m.mnt)
    for path, size, old in files():
        put(m.path(".tmpXYZ"), data(size, "new"))
        os.rename(m.path(".tmpXYZ"), path)
        assert m.state(path) == "staged", path
        same(get(path), data(size, "new"), path)
    put(m.path("other"), b"x", sync=True)  # of the log, with all names
    m.power_cut()
    m.start()
    for path, _, old in files():  # nothing was drained
        whole_or_absent(path, old)
    assert ".tmpXYZ" not in os.listdir(m.mnt)
    m.unmount()
    m.fsck()


@ck.mounted("debug_hold_drain")
def a_rename_that_publishes_nothing_survives_kill_9(m):
    want = {}
    for size in (100, MIB):
        path = m.path(f"model{size}.safetensors")
        put(path, data(size // 2, "old"))
        want[path] = data(size, "new")
    m.ctl("flush", m.mnt)
    for path, content in want.items():
        put(m.path(".tmpXYZ"), content)
        os.rename(m.path(".tmpXYZ"), path)
        assert m.state(path) == "staged"
    m.kill()
    m.start()
    assert len(os.listdir(m.mnt)) == 2
    for path, content in want.items():
        same(get(path), content, path)
        m.ctl("flush", path)
    m.power_cut()
    m.start()
    for path, content in want.items():
        same(get(path), content, path)
    m.unmount()
    m.fsck()


@ck.mounted("debug_hold_drain")
def nothing_closed_later_is_durable_before_what_was_renamed(m):
    """A publish makes durable what was closed before, renamed files too."""
    path, content = m.path("model.safetensors"), data(MIB, "new")
    put(path, data(MIB, "old"))
    m.ctl("flush", path)
    put(m.path(".tmpXYZ"), content)
    os.rename(m.path(".tmpXYZ"), path)
    assert m.state(path) == "staged"
    put(m.path("latest.tmp"), b"step_1")
    os.rename(m.path("latest.tmp"), m.path("latest"))
    m.power_cut()
    m.start()
    same(get(m.path("latest")), b"step_1", "latest")
    same(get(path), content, "what was closed and renamed before it")


@ck.mounted("debug_hold_drain")
def a_rename_of_what_publishes_a_step_waits(m):
    names = ["step_100.pt", "last.ckpt", ".metadata", "latest",
             "model.safetensors.index.json"]
    for old in (False, True):
        for name in names:
            put(m.path(".tmpXYZ"), data(MIB, f"{name} {old}"))
            os.rename(m.path(".tmpXYZ"), m.path(name))
            assert m.state(m.path(name)) == "durable", name
    for i, sync_closed in enumerate((False, True)):
        put(m.path(".tmpXYZ"), data(MIB, i), sync=not sync_closed)
        if sync_closed:  # by a handle that came after the close
            fd = os.open(m.path(".tmpXYZ"), os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
        os.rename(m.path(".tmpXYZ"), m.path(f"synced {i}"))
    m.power_cut()
    m.start()
    for name in names:
        same(get(m.path(name)), data(MIB, f"{name} True"), name)
    for i in range(2):
        same(get(m.path(f"synced {i}")), data(MIB, i), "fsynced before")


@ck.mounted("debug_hold_drain")
def a_rename_waits_where_the_order_alone_would_not_do(m):
    """Over what was closed and is not durable, of what was durable and then
    changed, of what is open, over another's file or one with another mode."""
    over = m.path("over")
    put(over, data(MIB, 1))
    put(m.path("t"), data(MIB, 2))
    os.rename(m.path("t"), over)
    assert m.state(over) == "durable"
    put(m.path("t"), data(MIB, 3), sync=True)
    put(m.path("t"), data(MIB, 4))
    os.rename(m.path("t"), m.path("changed"))
    assert m.state(m.path("changed")) == "durable"
    put(over, data(MIB, 5), sync=True)
    os.chmod(over, 0o600)
    put(m.path("t"), data(MIB, 6))
    os.rename(m.path("t"), over)
    assert m.state(over) == "durable"
    put(m.path("t"), data(MIB, 7))
    os.link(m.path("t"), m.path("t2"))
    put(m.path("t"), data(MIB, 8))
    os.rename(m.path("t"), over)
    assert m.state(over) == "durable"
    m.power_cut()
    m.start()
    same(get(over), data(MIB, 8), "over")
    same(get(m.path("t2")), data(MIB, 8), "its other name")
    same(get(m.path("changed")), data(MIB, 4), "changed")


@ck.mounted("publish=async,debug_hold_drain")
def an_async_rename_never_shows_data_that_is_not_there(m):
    """The wait is off, the order is not: old or new, never neither."""
    old, new = data(100 * KIB, "old"), data(MIB, "new")
    put(m.path("tracker"), old, sync=True)
    put(m.path("tmp"), new)
    os.rename(m.path("tmp"), m.path("tracker"))
    os.mkdir(m.path("step.tmp"))
    for i in range(3):
        put(m.path("step.tmp", f"r{i}"), data(200 * KIB, i))
    os.rename(m.path("step.tmp"), m.path("step"))
    assert m.state(m.path("step", "r0")) == "staged"  # nobody waited
    m.power_cut()
    m.start()
    whole_or_absent(m.path("tracker"), old, new)
    if os.path.exists(m.path("step")):
        for i in range(3):
            whole_or_absent(m.path("step", f"r{i}"), None,
                            data(200 * KIB, i))


@ck.mounted("publish=async,debug_hold_drain")
def an_async_rename_survives_kill_9(m):
    old, new = data(100 * KIB, "old"), data(MIB, "new")
    put(m.path("tracker"), old, sync=True)
    put(m.path("tmp"), new)
    os.rename(m.path("tmp"), m.path("tracker"))
    m.kill()
    m.start()
    assert os.listdir(m.mnt) == ["tracker"]
    same(get(m.path("tracker")), new, "tracker")


@ck.mounted("publish=wait,debug_hold_drain")
def rename_of_a_file_publishes_it(m):
    for size in (100, MIB):
        for old in (False, True):
            path = m.path(f"f{size}{old}")
            if old:
                put(path, data(size, "old"), sync=True)
            put(path + ".tmp", data(size, "new"))
            os.rename(path + ".tmp", path)
            assert m.state(path) == "durable"
    m.power_cut()
    m.start()
    for size in (100, MIB):
        for old in (False, True):
            same(get(m.path(f"f{size}{old}")), data(size, "new"), f"{size}")
    assert len(os.listdir(m.mnt)) == 4


@ck.mounted("debug_hold_drain")
def rename_of_a_directory_publishes_all_below(m):
    want, fds = {}, []
    os.makedirs(m.path("step.tmp", "shards", "deep"))
    for i, size in enumerate(SIZES):
        for below in ("", "shards", "shards/deep"):
            name = os.path.join(below, f"rank_{i}")
            want[name] = data(size, name)
            put(m.path("step.tmp", name), want[name])
    want["still open"] = data(MIB, "open")
    fds.append(open_put(m.path("step.tmp", "still open"), want["still open"]))
    os.rename(m.path("step.tmp"), m.path("step"))
    m.power_cut()
    close_all(fds)
    m.start()
    assert os.listdir(m.mnt) == ["step"]
    for name, content in want.items():
        same(get(m.path("step", name)), content, name)


@ck.mounted("debug_hold_drain")
def a_hard_link_publishes_the_file(m):
    """Names are durable with the next sync of anything: a new one must not
    show what the file was before its last close."""
    for size in (100, MIB):
        for old in (False, True):
            path = m.path(f"f{size}{old}")
            if old:
                put(path, data(size, "old"), sync=True)
            put(path, data(size, "new"))
            os.link(path, path + ".link")
            assert m.state(path) == "durable"
    put(m.path("other"), b"x", sync=True)
    m.power_cut()
    m.start()
    for size in (100, MIB):
        for old in (False, True):
            for name in ("", ".link"):
                same(get(m.path(f"f{size}{old}{name}")), data(size, "new"),
                     f"{size} {old} {name}")


@ck.mounted("debug_hold_drain")
def a_hard_link_makes_no_half_of_a_file_durable(m):
    put(m.path("f"), data(MIB, "old"), sync=True)
    fd = open_put(m.path("f"), data(MIB // 2, "new"))
    os.link(m.path("f"), m.path("link"))
    m.power_cut()
    close_all([fd])
    m.start()
    for name in ("f", "link"):
        same(get(m.path(name)), data(MIB, "old"), name)


@ck.mounted("durable=close")
def close_waits_when_asked_to(m):
    for i, size in enumerate(SIZES):
        put(m.path(f"f{i}"), data(size, i))
        assert m.state(m.path(f"f{i}")) == "durable", size
    m.power_cut()
    m.start()
    for i, size in enumerate(SIZES):
        same(get(m.path(f"f{i}")), data(size, i), f"f{i}")


@ck.mounted("drain_threads=4")
def files_become_durable_in_the_order_of_their_close(m):
    """Big and small in turns, so that a small one could overtake."""
    seed = ck.SEED
    print(f"seed {seed}")
    rand = random.Random(seed)
    sizes = [rand.choice((20, 20 * KIB, 300 * KIB, 6 * MIB))
             for _ in range(24)]
    sizes[0] = 16 * MIB
    for cut in range(6):
        if cut:
            m.start()
        folder = m.path(f"cut{cut}")
        os.mkdir(folder)
        for i, size in enumerate(sizes):
            put(os.path.join(folder, f"{i:03d}"), data(size, i))
        awaited = os.path.join(folder, f"{rand.randrange(len(sizes)):03d}")
        ck.until("a file is durable", lambda p=awaited: m.state(p) == "durable")
        m.power_cut()
        m.start()
        there = [whole_or_absent(os.path.join(folder, f"{i:03d}"), None,
                                 data(size, i))
                 for i, size in enumerate(sizes)]
        assert there == sorted(there, reverse=True), there
        assert there[int(awaited[-3:])], there
        m.unmount()


@ck.mounted("drain_threads=4")
def a_tracker_never_gets_ahead_of_its_step(m):
    """`latest` is rewritten in place after each step, and nobody syncs."""
    rand = random.Random(7)
    for cut in range(6):
        if cut:
            m.start()
        base = 100 * cut
        for step in range(base, base + 8):
            os.mkdir(m.path(f"step_{step}"))
            for rank in range(3):
                put(m.path(f"step_{step}", f"rank_{rank}"),
                    data(rand.choice((9, 4 * MIB)), step + rank))
            put(m.path("latest"), f"{step}".encode())
        awaited = m.path(f"step_{base + rand.randrange(8)}", "rank_2")
        ck.until("a file is durable", lambda p=awaited: m.state(p) == "durable")
        m.power_cut()
        m.start()
        if not os.path.exists(m.path("latest")):
            m.unmount()
            continue
        step = int(get(m.path("latest")))
        if step >= base:
            for rank in range(3):
                got = get(m.path(f"step_{step}", f"rank_{rank}"))
                assert len(got) in (9, 4 * MIB), (cut, step, rank, len(got))
                same(got, data(len(got), step + rank), f"step {step}")
        m.unmount()


@ck.mounted("debug_hold_drain")
def a_file_synced_before_it_was_written_is_whole(m):
    """DCP and Megatron call fsync before Python's buffer is flushed."""
    content = data(3439)

    def save(path):
        with open(path, "wb") as f:
            f.write(content)  # still in the buffer
            os.fsync(f.fileno())
    save(m.path("a"))
    m.kill()
    m.start()
    same(get(m.path("a")), content, "kill -9")
    save(m.path("b"))
    m.flush(m.path("b"))
    m.power_cut()
    m.start()
    same(get(m.path("a")), content, "flush of b came after the close of a")
    same(get(m.path("b")), content, "flushed")


@ck.mounted("debug_hold_drain")
def the_metadata_dance_survives_a_power_cut(m):
    path = m.path(".metadata")
    for i in range(4):
        put(path + ".tmp", data(50 * KIB, i), sync=True)
        if i:
            os.unlink(path)
        os.rename(path + ".tmp", path)
    m.power_cut()
    m.start()
    same(get(path), data(50 * KIB, 3), "the rename was a publish")
    put(path + ".tmp", data(50 * KIB, 4), sync=True)
    os.unlink(path)
    m.power_cut()
    m.start()
    whole_or_absent(path, None, data(50 * KIB, 3))
    same(get(path + ".tmp"), data(50 * KIB, 4), "synced")


@ck.mounted()
def an_unlinked_file_stays_unlinked_after_a_crash(m):
    for name in ("durable", "synced", "open"):
        put(m.path(name), data(MIB, name), sync=name == "synced")
    m.flush()
    put(m.path("staged"), data(MIB, "staged"))
    fd = os.open(m.path("open"), os.O_RDWR)
    for name in os.listdir(m.mnt):
        os.unlink(m.path(name))
    os.write(fd, b"an orphan is written to")
    m.kill()
    close_all([fd])
    m.start()
    assert os.listdir(m.mnt) == []
    m.flush()
    ck.until("the space of all four is given back",
             lambda: m.images_du() < 100 * KIB)
    assert m.status()["staged_bytes"] == 0
    assert m.status()["logical_bytes"] == 0


@ck.mounted("debug_hold_drain")
def a_crash_in_the_middle_of_an_overwrite_keeps_what_was_written(m):
    for size in (1000, 2 * MIB):
        put(m.path(f"f{size}"), data(size, "old"), sync=True)
    fds = [open_put(m.path(f"f{size}"), data(size // 3, "new"))
           for size in (1000, 2 * MIB)]
    m.kill()
    close_all(fds)
    m.start()
    for size in (1000, 2 * MIB):
        same(get(m.path(f"f{size}")), data(size // 3, "new"), f"{size}")


@ck.mounted()
def a_killed_writer_leaves_a_prefix_and_hurts_no_one(m):
    put(m.path("other"), data(3 * MIB, "other"))
    content = data(32 * MIB)
    for cut in (0, 1, 700):
        path = m.path(f"f{cut}")
        reader, writer = os.pipe()

        def write():
            fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
            for at in range(0, len(content), 4096):
                os.write(fd, content[at:at + 4096])
                if at == cut * 4096:
                    os.write(writer, b"1")
        child = ck.Child(write)
        os.read(reader, 1)
        child.kill()
        os.close(reader)
        os.close(writer)
        got = get(path)
        assert len(got) >= (cut + 1) * 4096, (cut, len(got))
        same(got, content[:len(got)], f"cut {cut}")
    m.flush()
    for cut in (0, 1, 700):
        assert m.state(m.path(f"f{cut}")) == "durable"
    m.remount()
    same(get(m.path("other")), data(3 * MIB, "other"), "other")
    same(get(m.path("f0")), content[:len(get(m.path("f0")))], "f0")


@ck.mounted("drain_interval=1")
def a_file_that_stays_open_is_drained_all_the_same(m):
    path, content = m.path("log"), data(300 * KIB)
    fd = open_put(path, content)
    ck.until("the open file is durable", lambda: m.state(path) == "durable")
    os.write(fd, b"more")
    m.power_cut()
    close_all([fd])
    m.start()
    assert whole_or_absent(path, content, content + b"more") == 0


@ck.mounted("drain_interval=1")
def what_replaces_a_file_is_not_drained_before_it_is_closed(m):
    """It is open for longer than a log that is drained meanwhile, twice."""
    size, fds, olds = 300 * KIB, [], {}
    for how, flags in (("o_trunc", os.O_TRUNC), ("in place", 0)):
        path = m.path(how)
        olds[path] = data(size, how)
        put(path, olds[path], sync=True)
        fds.append(open_put(path, data(size // 3, "new"), flags))
    log = m.path("log")
    for part in ("one", "two"):
        fds.append(open_put(log, data(size, part), os.O_APPEND))
        ck.until("the log is durable", lambda: m.state(log) == "durable")
    m.power_cut()
    close_all(fds)
    m.start()
    for path, old in olds.items():
        same(get(path), old, path)
    same(get(log), data(size, "one") + data(size, "two"), "the log")


@ck.mounted("drain_interval=1")
def what_changes_during_a_drain_is_stored_as_it_ended(m):
    """Eight writers go on while their files are drained, again and again."""
    final = {}

    def work(path, seed):
        rand = random.Random(seed)
        content = bytearray(4 * MIB)
        with open(path, "w+b", buffering=0) as f:
            f.truncate(len(content))
            for _ in range(300):
                at = rand.randrange(len(content) - 9999)
                content[at:at + 9999] = piece = rand.randbytes(9999)
                os.pwrite(f.fileno(), piece, at)
                if rand.random() < 0.02:
                    os.fsync(f.fileno())
        final[path] = bytes(content)
    threads = [threading.Thread(target=work, args=(m.path(f"f{i}"), i))
               for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    m.flush()
    m.power_cut()
    m.start()
    assert len(final) == 8
    for path, content in final.items():
        same(get(path), content, path)


@ck.mounted("debug_hold_drain")
def a_clean_unmount_makes_everything_durable(m):
    os.mkdir(m.path("d"))
    for i, size in enumerate(SIZES):
        put(m.path("d", f"f{i}"), data(size, i))
        assert not size or m.state(m.path("d", f"f{i}")) == "staged", size
    m.unmount()
    m.start()
    assert m.status()["draining"] == 0
    for i, size in enumerate(SIZES):
        assert m.state(m.path("d", f"f{i}")) == "durable", size
        same(get(m.path("d", f"f{i}")), data(size, i), f"f{i}")


@ck.mounted()
def a_directory_can_be_synced(m):
    os.mkdir(m.path("d"))
    put(m.path("d", "f"), b"x", sync=True)
    fd = os.open(m.path("d"), os.O_RDONLY | os.O_DIRECTORY)
    os.rename(m.path("d", "f"), m.path("d", "g"))
    os.fsync(fd)
    os.close(fd)
    m.power_cut()
    m.start()
    assert os.listdir(m.path("d")) == ["g"]


if __name__ == "__main__":
    ck.main()
