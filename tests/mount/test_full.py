"""Full disks and full memory: an error reaches whoever must know, nothing is
dropped, and a full stage is nobody's error while the disk has room."""
import errno
import mmap
import os
import threading

import ckptest as ck
from ckptest import KIB, MIB, data, fails, get, put, same

STAGE = "stage_size=64M"


def store_on_small_disk(m, size):
    disk = ck.Disk(m.base, size)
    m.store = os.path.join(disk.path, "store")
    os.mkdir(m.store)
    return disk


def second_save(m, disk, size):
    """step_2 staged in memory (its size is known from step_1) while the disk
    has no room for it, but for its name."""
    for step in (1, 2):
        os.mkdir(m.path(f"step_{step}"))
    put(m.path("step_1", "rank_0.pt"), data(size, 1))
    m.settle()
    disk.fill(leave=30 * MIB)
    m.expected.append("No space left|rank_0|ENOSPC|space")
    path = m.path("step_2", "rank_0.pt")
    # There is no room for it: its own close says so, and the bytes are kept.
    fails(errno.ENOSPC, put, path, data(size, 2))
    return path


@ck.mounted(start=False)
def a_full_store_fails_fsync_and_recovers(m):
    disk = store_on_small_disk(m, 192 * MIB)
    m.start()
    path = second_save(m, disk, 40 * MIB)
    fd = os.open(path, os.O_RDWR)
    fails(errno.ENOSPC, os.fsync, fd)
    assert m.status()["failed"] == 1
    assert m.state(path) == "failed"
    same(os.pread(fd, 40 * MIB, 0), data(40 * MIB, 2), "staged still")
    fails(errno.ENOSPC, os.close, fd)
    m.ctl("flush", path, code=1)
    same(get(m.path("step_1", "rank_0.pt")), data(40 * MIB, 1), "the other")
    disk.relieve()
    m.flush()
    assert m.status()["failed"] == 0
    assert m.state(path) == "durable"
    m.power_cut()
    m.start()
    for step in (1, 2):
        same(get(m.path(f"step_{step}", "rank_0.pt")), data(40 * MIB, step),
             f"step {step}")
    m.unmount()
    m.fsck("--scrub")
    ck.umount(disk.path)


@ck.mounted("debug_hold_drain", start=False)
def an_error_after_close_meets_the_next_open_and_sticks(m):
    disk = store_on_small_disk(m, 192 * MIB)
    m.start()
    m.expected.append("No space left|rank_0|ENOSPC|space")
    for step in (1, 2):
        os.mkdir(m.path(f"step_{step}"))
    put(m.path("step_1", "rank_0.pt"), data(40 * MIB, 1))
    m.flush()
    path = m.path("step_2", "rank_0.pt")
    put(path, data(40 * MIB, 2))  # there is room when it is closed
    disk.fill(leave=30 * MIB)
    m.ctl("flush", m.mnt, code=1)
    assert m.status()["failed"] == 1
    fails(errno.ENOSPC, os.open, path, os.O_RDONLY)
    m.kill()  # and the stage is still kept after a crash
    disk.relieve()
    m.start()
    m.flush()
    assert m.status()["failed"] == 0
    same(get(path), data(40 * MIB, 2), "retried")
    m.unmount()
    ck.umount(disk.path)


@ck.mounted("debug_hold_drain", start=False)
def status_tells_of_no_failure_when_what_failed_is_deleted(m):
    disk = store_on_small_disk(m, 192 * MIB)
    m.start()
    path = second_save(m, disk, 40 * MIB)
    m.ctl("status", m.mnt, code=1)
    os.unlink(path)
    # The kernel forgets a file after unlink(2) has returned.
    ck.until("what failed is forgotten", lambda: m.status()["failed"] == 0)
    m.ctl("status", m.mnt)
    m.unmount()
    m.fsck("--scrub")
    ck.umount(disk.path)


@ck.mounted(start=False)
def a_disk_filled_to_the_last_byte_works_again_once_freed(m):
    """RocksDB stops at its first failed write; it must be woken again."""
    disk = store_on_small_disk(m, 96 * MIB)
    m.start()
    m.expected.append(".*")
    put(m.path("before"), data(MIB), sync=True)
    disk.fill(leave=0)
    told = 0
    for i in range(3000):
        try:
            put(m.path(f"f{i}"), data(24 * KIB, i), sync=True)
        except OSError as e:
            assert e.errno == errno.ENOSPC, e
            told += 1
            if told > 5:
                break
    assert told, "nobody was told"
    same(get(m.path("before")), data(MIB), "read while full")
    disk.relieve()
    ck.until("a file can be synced again", lambda: can_sync(m.path("after")))
    m.flush()
    m.power_cut()
    m.start()
    assert get(m.path("after")) == b"after"
    same(get(m.path("before")), data(MIB), "before")
    for n in os.listdir(m.mnt):
        if n.startswith("f"):
            assert get(m.path(n)) in (b"", data(24 * KIB, n[1:])), n
    m.unmount()
    m.fsck("--scrub")
    ck.umount(disk.path)


def can_sync(path):
    try:
        put(path, b"after", sync=True)
        return True
    except OSError as e:
        assert e.errno == errno.ENOSPC, e
        return False


def works(fn, *args):
    try:
        fn(*args)
        return True
    except OSError as e:
        assert e.errno == errno.ENOSPC, e
        return False


@ck.mounted(start=False)
def what_a_full_disk_refuses_has_not_happened(m):
    """A replaced or removed file has no name left only once that is written:
    the kernel's forgetting it must not delete it otherwise."""
    disk = store_on_small_disk(m, 128 * MIB)
    m.start()
    m.expected.append("No space left|space")
    new, latest, step = m.path("new"), m.path("latest"), m.path("step_1")
    # Their records take some MiB, also when the database has written them
    # out: a few KiB that come free do not change the state.
    busy = [m.path("busy", f"{i:0250}") for i in range(8000)]
    os.mkdir(step)
    for name, size in ((new, MIB), (latest, 100)):
        put(name, data(size, name), sync=True)
    os.mkdir(m.path("busy"))
    for name in busy:
        os.mkfifo(name)
    disk.fill(leave=0)
    for i in range(1000000):
        if not works(os.chmod, busy[i % len(busy)], 0o600 + i // 8000 % 8):
            break
    disk.fill(leave=0)
    for change in ((os.rename, new, latest), (os.unlink, latest),
                   (os.rmdir, step), (os.rename, step, m.path("step_2")),
                   (os.unlink, new), (os.chmod, new, 0o600)):
        fails(errno.ENOSPC, *change)
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as f:
        f.write("2")  # and the kernel forgets inodes that nobody has open
    assert os.listdir(step) == []
    same(get(new), data(MIB, new), "what was not renamed")
    same(get(latest), data(100, latest), "what was not replaced")
    disk.relieve()
    ck.until("a change works again", lambda: works(os.chmod, new, 0o644))
    os.rename(new, latest)
    m.power_cut()
    m.start()
    same(get(latest), data(MIB, new), "renamed in the end")
    assert sorted(os.listdir(m.mnt)) == ["busy", "latest", "step_1"]
    m.unmount()
    m.fsck("--scrub")
    ck.umount(disk.path)


@ck.mounted(start=False)
def deleting_makes_room_on_a_full_store(m):
    disk = store_on_small_disk(m, 192 * MIB)
    m.start()
    m.expected.append("No space left|space")
    put(m.path("old"), data(40 * MIB, "old"), sync=True)
    disk.fill(leave=30 * MIB)
    put(m.path("small"), b"x", sync=True)
    os.unlink(m.path("old"))

    def fits():
        try:
            put(m.path("new"), data(30 * MIB, "new"), sync=True)
            return True
        except OSError as e:
            assert e.errno == errno.ENOSPC, e
            return False
    ck.until("the room is given back", fits)
    same(get(m.path("new")), data(30 * MIB, "new"), "new")
    m.unmount()
    ck.umount(disk.path)


@ck.mounted("debug_hold_drain", start=False)
def deleting_makes_room_while_a_save_that_failed_keeps_its_place(m):
    """Nobody syncs; what is ready behind the save waits for its turn."""
    disk = store_on_small_disk(m, 192 * MIB)
    m.start()
    m.expected.append("No space left|rank_0|ENOSPC|space")
    for step in (1, 2):
        os.mkdir(m.path(f"step_{step}"))
    old = m.path("step_1", "rank_0.pt")
    put(old, data(40 * MIB, 1))
    put(m.path("other"), data(40 * MIB, 3))
    m.settle()
    put(m.path("step_2", "rank_0.pt"), data(40 * MIB, 2))
    put(m.path("behind"), data(100 * KIB, 4))
    disk.fill(leave=40 * MIB)
    m.ctl("flush", m.mnt, code=1)
    ck.until("it has failed", lambda: m.status()["failed"] == 1)
    before = disk.free()
    os.unlink(m.path("other"))
    ck.until("the room is given back",
             lambda: disk.free() >= before + 39 * MIB)
    m.unmount()  # what failed has room now
    m.start()
    same(get(m.path("step_2", "rank_0.pt")), data(40 * MIB, 2), "saved")
    same(get(m.path("behind")), data(100 * KIB, 4), "behind it")
    m.unmount()
    m.fsck("--scrub")
    ck.umount(disk.path)


def full_store_with_reserve(m, clean):
    """Mounted for long enough to have a reserve, then filled to the last byte
    by somebody else."""
    disk = store_on_small_disk(m, 512 * MIB)
    reserve = os.path.join(m.store, "reserve")
    m.start()
    put(m.path("before"), data(MIB), sync=True)
    put(m.path("small"), data(KIB), sync=True)
    ck.until("there is a reserve", lambda: os.path.exists(reserve) and
             os.stat(reserve).st_blocks >= 32 * MIB // 512)
    if clean:
        m.unmount()
    else:
        for i in range(300):  # the log has something to be read
            put(m.path(f"log{i}"), data(24 * KIB, i), sync=True)
        m.power_cut()
    disk.fill(leave=0)
    return disk, reserve


def remove(m, disk):
    ck.umount(disk.path)
    ck.sh("rm", "-r", disk.path, disk.path + ".img")


@ck.mounted(modes=("auto",), start=False)
def a_full_disk_can_be_mounted_and_deletes(m):
    for clean in (True, False):
        disk, reserve = full_store_with_reserve(m, clean)
        m.start()
        m.expected.append("No space left|space")
        assert not os.path.exists(reserve), "kept"
        same(get(m.path("before")), data(MIB), "before")
        os.unlink(m.path("before"))
        os.unlink(m.path("small"))
        m.remount()
        assert "before" not in os.listdir(m.mnt)
        disk.relieve()
        ck.until("it takes files again", lambda: works(os.mkdir, m.path("d")))
        ck.until("there is a reserve again", lambda: os.path.exists(reserve))
        m.unmount()
        m.fsck("--scrub")
        remove(m, disk)


@ck.mounted(modes=("auto",), start=False)
def a_full_disk_without_a_reserve_is_refused_and_left_as_it_is(m):
    for clean in (True, False):
        disk, reserve = full_store_with_reserve(m, clean)
        os.unlink(reserve)
        disk.fill(leave=0)
        for _ in range(2):
            assert "make room" in m.refuse(code=1)
        disk.relieve()
        m.start()
        same(get(m.path("before")), data(MIB), "before")
        if not clean:
            same(get(m.path("log299")), data(24 * KIB, 299), "the last")
        m.unmount()
        m.fsck("--scrub")
        remove(m, disk)


@ck.mounted(modes=("auto",), start=False)
def a_disk_without_inodes_can_be_mounted_and_deletes(m):
    for clean in (True, False):
        disk = ck.Disk(m.base, 256 * MIB, inodes=2000)
        m.store = os.path.join(disk.path, "store")
        os.mkdir(m.store)
        reserve = os.path.join(m.store, "reserve.inodes")
        m.start()
        ck.until("there is a reserve", lambda: os.path.isdir(reserve) and
                 len(os.listdir(reserve)) == 32)
        for i in range(20):
            put(m.path(f"f{i}"), data(100 * KIB, i), sync=True)
        if clean:
            m.unmount()
        else:
            m.power_cut()
        disk.fill_inodes()
        m.start()
        m.expected.append("No space left|no inode left")
        same(get(m.path("f7")), data(100 * KIB, 7), "f7")
        os.unlink(m.path("f7"))
        m.remount()
        assert "f7" not in os.listdir(m.mnt)
        same(get(m.path("f8")), data(100 * KIB, 8), "f8")
        disk.relieve_inodes()
        ck.until("it takes files again", lambda: works(os.mkdir, m.path("d")))
        put(m.path("d/new"), data(MIB), sync=True)
        ck.until("there is a reserve again", lambda: os.path.isdir(reserve))
        m.unmount()
        m.fsck("--scrub")
        remove(m, disk)


@ck.mounted(modes=("auto",), start=False)
def inodes_that_run_out_are_an_error_and_no_loss(m):
    disk = ck.Disk(m.base, 256 * MIB, inodes=2000)
    m.store = os.path.join(disk.path, "store")
    os.mkdir(m.store)
    m.start()
    m.expected.append("No space left|no inode left")
    for i in range(20):
        put(m.path(f"f{i}"), data(100 * KIB, i), sync=True)
    disk.fill_inodes()
    made = []
    for i in range(60):
        try:
            put(m.path(f"more{i}"), data(100 * KIB, i))
            made.append(i)
        except OSError as e:
            assert e.errno == errno.ENOSPC, e
    assert len(made) < 60, "each file has an image"
    os.unlink(m.path("f7"))
    same(get(m.path("f8")), data(100 * KIB, 8), "f8")
    disk.relieve_inodes()
    m.flush()
    for i in made:
        same(get(m.path(f"more{i}")), data(100 * KIB, i), f"more{i}")
    m.unmount()
    m.fsck("--scrub")
    remove(m, disk)


@ck.mounted(STAGE)
def a_file_larger_than_the_stage_is_no_error(m):
    content = data(160 * MIB)
    put(m.path("first"), content)
    same(get(m.path("first")), content, "before the drain")
    m.flush()
    put(m.path("first"), content)  # its size is known now
    same(get(m.path("first")), content, "second save")
    m.remount()
    same(get(m.path("first")), content, "remounted")


@ck.mounted(STAGE)
def eight_files_larger_than_the_stage_together_are_no_error(m):
    """The first and the second save of a series, and a third that outgrew
    them, eight ranks at once."""
    for step, size in ((1, 12 * MIB), (2, 12 * MIB), (3, 30 * MIB)):
        os.mkdir(m.path(f"step_{step}"))
        barrier = threading.Barrier(8)
        errors = []

        def save(rank):
            try:
                content = data(size, (step, rank))
                barrier.wait(ck.WAIT_BOUND)
                put(m.path(f"step_{step}", f"rank_{rank}.pt"), content)
            except OSError as e:
                errors.append((rank, e))
        threads = [threading.Thread(target=save, args=(r,)) for r in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not errors, (step, errors)
        for rank in range(8):
            same(get(m.path(f"step_{step}", f"rank_{rank}.pt")),
                 data(size, (step, rank)), f"step {step} rank {rank}")
    assert m.status()["failed"] == 0
    m.remount()
    same(get(m.path("step_3", "rank_7.pt")), data(30 * MIB, (3, 7)), "later")


@ck.mounted(STAGE)
def a_map_larger_than_the_stage_raises_no_sigbus(m):
    size = 96 * MIB

    def fill():
        fd = os.open(m.path("f"), os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(fd, size)
        mapped = mmap.mmap(fd, size)
        for at in range(0, size, MIB):
            mapped[at:at + MIB] = data(MIB, at)
        mapped.flush()
        os.close(fd)
    ck.Child(fill).result()  # a SIGBUS would end the child
    m.flush()
    want = b"".join(data(MIB, at) for at in range(0, size, MIB))
    same(get(m.path("f")), want, "mapped")


@ck.mounted(STAGE)
def many_small_files_fit_through_a_small_stage(m):
    """A huge page each would be 2 GiB."""
    for i in range(1000):
        put(m.path(f"f{i}"), data(4 * KIB, i))
    for i in range(0, 1000, 7):
        same(get(m.path(f"f{i}")), data(4 * KIB, i), f"f{i}")
    m.flush()
    assert m.status()["files"] == 1000


@ck.mounted(STAGE)
def a_durable_file_larger_than_the_stage_can_be_changed(m):
    size = 100 * MIB
    put(m.path("f"), data(size))
    m.flush()
    want = bytearray(data(size))
    with open(m.path("f"), "r+b", buffering=0) as f:
        f.seek(50 * MIB + 3)
        f.write(b"changed")
        f.seek(0, os.SEEK_END)
        f.write(b"appended")
    want[50 * MIB + 3:50 * MIB + 10] = b"changed"
    want += b"appended"
    for stage in m.stages(m.path("f")):
        same(get(m.path("f")), bytes(want), stage)


@ck.mounted(STAGE)
def a_full_stage_is_given_back_oldest_first(m):
    """Durable stages are only a cache; the mount never runs out of them."""
    for i in range(20):
        put(m.path(f"f{i}"), data(8 * MIB, i))
        if i % 4 == 3:
            m.flush()
    m.flush()
    s = m.status()
    assert s["staged_bytes"] <= s["stage_capacity_bytes"] <= 64 * MIB, s
    for i in range(20):
        same(get(m.path(f"f{i}")), data(8 * MIB, i), f"f{i}")


class MemoryLimit:
    """A control group that this process is in, and what it starts."""

    def __init__(self, limit):
        for self.top, self.file in (("/sys/fs/cgroup/memory",
                                     "memory.limit_in_bytes"),
                                    ("/sys/fs/cgroup", "memory.max")):
            self.dir = os.path.join(self.top, f"ckptest-{os.getpid()}")
            try:
                os.mkdir(self.dir)
                if os.path.exists(os.path.join(self.dir, self.file)):
                    self.set(self.dir, self.file, limit)
                    return
                os.rmdir(self.dir)
            except OSError:
                pass
        ck.skip("no control group with a memory limit can be made")

    @staticmethod
    def set(folder, name, value):
        with open(os.path.join(folder, name), "w", encoding="ascii") as f:
            f.write(str(value))

    def __enter__(self):
        with open("/proc/self/cgroup", encoding="ascii") as f:
            lines = [line.strip().split(":", 2) for line in f]
        v1 = self.file != "memory.max"
        self.home = next(group for _, controllers, group in lines
                         if controllers == ("memory" if v1 else ""))
        self.set(self.dir, "cgroup.procs", os.getpid())

    def __exit__(self, *_):
        home = self.top + self.home
        self.set(home if os.path.isdir(home) else self.top, "cgroup.procs",
                 os.getpid())


@ck.mounted("stage_size=1G", modes=("auto",), start=False)
def a_stage_fits_into_the_control_group_of_the_daemon(m):
    """Or its memory, which the daemon allocates, would have it killed."""
    limit = MemoryLimit(300 * MIB)
    with limit:
        m.start()
    assert m.status()["stage_capacity_bytes"] <= 150 * MIB
    for n in range(8):
        put(m.path(f"step_{n}"), data(60 * MIB, n))
    m.flush()
    for n in range(8):
        same(get(m.path(f"step_{n}")), data(60 * MIB, n), f"step {n}")
    m.unmount()
    os.rmdir(limit.dir)


@ck.mounted(modes=("auto",))
def a_save_that_outgrows_its_series_does_not_end_its_writer(m):
    """What is written beyond what was allocated is charged to his group."""
    limit = MemoryLimit(100 * MIB)
    piece = data(MIB)
    for step, size in ((1, 40), (2, 160), (3, 40)):
        os.mkdir(m.path(f"step_{step}"))
        pid = os.fork()
        if pid == 0:
            try:
                with limit:
                    with open(m.path(f"step_{step}/f"), "wb", 0) as f:
                        for _ in range(size):
                            f.write(piece)
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        assert status == 0, (step, status)
        m.flush()
        same(get(m.path(f"step_{step}/f")), piece * size, f"step {step}")
    os.rmdir(limit.dir)


if __name__ == "__main__":
    ck.main()
