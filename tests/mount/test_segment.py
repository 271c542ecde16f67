"""Memory that a client fills and that becomes a file: segments."""
import ctypes
import errno
import mmap
import os
import stat
import struct
import threading

import ckptest as ck
import segments
from ckptest import Child, as_user, data, fails, get, put, same
from segments import Client

SIZE = 3 * ck.MIB + 4096
TOO_MUCH = 100 * ck.MIB
PUNCH = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE


def fill(segment, seed):
    segment.memory[:] = data(segment.size, seed)
    return segment


def acquire_waiting(client, size, signature=b"s"):
    """Waits for the file that has the memory, and drops what it is asked for,
    as the library does."""
    while True:
        try:
            return client.acquire(signature, size)
        except segments.Refused as e:
            if e.errno != errno.EAGAIN:
                raise
            if e.busy:
                client.wait(e.busy)
            elif not client.drop_released():
                raise


def save(client, path, seed, size=SIZE, signature=b"s"):
    """One whole save; the file's inode number."""
    segment = fill(acquire_waiting(client, size, signature), seed)
    return segment.commit(os.path.dirname(path), os.path.basename(path))


@ck.mounted()
def a_filled_segment_becomes_the_file_at_once(m):
    c = Client(m.mnt)
    fails(errno.ENOENT, os.stat, m.path("f"))  # remembered as absent
    segment = fill(c.acquire(size=SIZE), 1)
    assert os.listdir(m.mnt) == []
    ino = segment.commit(m.mnt, "f", 0o640)
    found = os.stat(m.path("f"))
    assert found.st_ino == ino and found.st_size == SIZE, found
    assert stat.S_IMODE(found.st_mode) == 0o640
    assert os.listdir(m.mnt) == ["f"]
    for state in m.stages(m.path("f")):
        same(get(m.path("f")), data(SIZE, 1), state)
    assert ck.native(m.path("f")) == 1
    c.close()


@ck.mounted()
def wait_returns_when_it_is_durable_and_segments_are_used_again(m):
    c = Client(m.mnt)
    seen = set()
    for step in range(6):
        segment = fill(c.acquire(size=SIZE), step)
        seen.add(segment.id)
        ino = segment.commit(m.mnt, f"step_{step}")
        c.wait(ino)
        assert m.state(m.path(f"step_{step}")) == "durable"
    assert len(seen) <= 2, seen
    for step in range(6):
        same(get(m.path(f"step_{step}")), data(SIZE, step), step)
    c.close()


@ck.mounted("debug_hold_drain")
def a_third_save_is_told_which_file_to_wait_for(m):
    c = Client(m.mnt)
    first, second = (save(c, m.path(f"f{i}"), i) for i in range(2))
    try:
        c.acquire(size=SIZE)
        raise AssertionError("both were in use")
    except segments.Refused as e:
        assert e.errno == errno.EAGAIN and e.busy == first, (e, first, second)
    c.wait(first)
    third = c.acquire(size=SIZE)
    assert not third.fresh
    fill(third, 2).commit(m.mnt, "f2")
    for i in range(3):
        same(get(m.path(f"f{i}")), data(SIZE, i), i)
    c.close()


@ck.mounted()
def what_a_client_has_mapped_cannot_be_cut_short_or_punched(m):
    c = Client(m.mnt)
    segment = c.acquire(size=SIZE)
    fd = c.fds[segment.id]
    for lent in (False, True):
        if lent:
            fill(segment, 1).commit(m.mnt, "f")
        fails(errno.EPERM, os.ftruncate, fd, 0)
        fails(errno.EPERM, ck.fallocate, fd, PUNCH, 0, 4096)
        fails(errno.EACCES, mmap.mmap, fd, SIZE)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t,
                                 ctypes.c_int]
        view = (ctypes.c_char * SIZE).from_buffer(segment.memory)
        assert libc.madvise(ctypes.addressof(view), 4096, 9) == -1
        assert ctypes.get_errno() == errno.EPERM
        del view
    same(get(m.path("f")), data(SIZE, 1))
    c.close()


@ck.mounted()
def one_that_was_cut_short_before_it_was_sealed_is_refused(m):
    c = Client(m.mnt)
    segment = c.acquire(size=SIZE, seal=False)
    os.ftruncate(c.fds[segment.id], 4096)
    fails(errno.ESTALE, c.ask, segments.MAPPED, ident=segment.id,
          generation=segment.generation)
    fails(errno.ESTALE, segment.commit, m.mnt, "f")
    assert os.listdir(m.mnt) == []
    c.close()


@ck.mounted("debug_hold_drain")
def a_commit_survives_the_death_of_client_and_daemon(m):
    def work():
        save(Client(m.mnt), m.path("f"), 7)
        half = Client(m.mnt).acquire(b"other", SIZE)
        half.memory[:4096] = b"x" * 4096
        os._exit(3)
    child = Child(work)
    os.waitpid(child.pid, 0)
    m.kill()
    m.start()
    assert os.listdir(m.mnt) == ["f"]
    for state in m.stages(m.path("f")):
        same(get(m.path("f")), data(SIZE, 7), state)


@ck.mounted()
def after_a_restart_former_generations_are_stale(m):
    c = Client(m.mnt)
    save(c, m.path("old"), 1)
    segment = fill(c.acquire(size=SIZE), 2)
    m.kill()
    m.start()
    fails(errno.ESTALE, segment.commit, m.mnt, "f")
    new = Client(m.mnt)
    again = new.acquire(size=SIZE)
    assert again.fresh
    fails(errno.ESTALE, again.commit, m.mnt, "f", generation=segment.generation)
    again.memory[:] = segment.memory[:]
    again.commit(m.mnt, "f")
    same(get(m.path("f")), data(SIZE, 2))
    same(get(m.path("old")), data(SIZE, 1))
    c.close()
    new.close()


@ck.mounted()
def a_save_replaces_a_file_and_its_readers_keep_what_they_have(m):
    c = Client(m.mnt)
    put(m.path("f"), data(ck.MIB, "old"))
    os.chmod(m.path("f"), 0o600)
    with open(m.path("f"), "rb") as reader:
        assert len(reader.read(100)) == 100
        save(c, m.path("f"), 1)
        reader.seek(0)
        same(reader.read(), data(ck.MIB, "old"), "reader")
        same(get(m.path("f")), data(SIZE, 1), "name")
    assert stat.S_IMODE(os.stat(m.path("f")).st_mode) == 0o600
    for step in range(4):
        save(c, m.path("f"), 10 + step)
        same(get(m.path("f")), data(SIZE, 10 + step), step)
    c.close()
    m.remount()
    same(get(m.path("f")), data(SIZE, 13))


def write_on(fd, so_far):
    """All that a handle can do to its file; what that is then."""
    os.write(fd, b" on")
    so_far += b" on"
    same(os.pread(fd, 1 << 21, 0), so_far, "written")
    os.fsync(fd)
    os.ftruncate(fd, 5)
    same(os.pread(fd, 100, 0), so_far[:5], "cut")
    os.ftruncate(fd, 8)
    ck.fallocate(fd, 0, 0, 5000)
    m = mmap.mmap(fd, 5000)
    m[:3] = b"map"
    m.close()
    os.pwrite(fd, b"!", 4999)
    same(os.pread(fd, 6000, 0), b"map" + so_far[3:5] + bytes(4994) + b"!")


def replace_what_is_written(m):
    c = Client(m.mnt)
    for flags in (0, os.O_SYNC):
        for size in (7, ck.MIB):
            path = m.path(f"f{flags}_{size}")
            fd = os.open(path, os.O_RDWR | os.O_CREAT | flags)
            content = data(size, "written")
            os.write(fd, content)
            save(c, path, 1)
            write_on(fd, content)
            same(get(path), data(SIZE, 1), "saved")
            os.close(fd)
            m.flush(path)
            same(get(path), data(SIZE, 1), "durable")
    c.close()


@ck.mounted()
def a_save_replaces_a_file_that_somebody_writes(m):
    """Who has it open goes on with what he has, which has no name any more."""
    replace_what_is_written(m)


@ck.mounted("debug_stage=memory")
def a_save_replaces_a_file_that_somebody_writes_in_memory(m):
    replace_what_is_written(m)


@ck.mounted("debug_hold_drain")
def until_a_replacement_is_durable_a_power_cut_leaves_the_old_content(m):
    c = Client(m.mnt)
    put(m.path("f"), data(ck.MIB, "old"))
    m.flush()
    save(c, m.path("f"), 1)
    same(get(m.path("f")), data(SIZE, 1))
    c.close()
    m.power_cut()
    m.start()
    same(get(m.path("f")), data(ck.MIB, "old"))


def seen_by_new_readers(path):
    """What read() and both kinds of mappings show; they agree."""
    got = get(path)
    with open(path, "rb") as f:
        for access in (mmap.ACCESS_READ, mmap.ACCESS_COPY):
            with mmap.mmap(f.fileno(), 0, access=access) as view:
                same(view[:], got, access)
    return got


@ck.mounted()
def what_a_client_writes_into_a_durable_file_is_seen_by_nobody(m):
    """A late copy of a device, or a program with a fault: it has the memory
    that it saved through mapped for good."""
    path = m.path("f")
    for size in (SIZE, 200 * ck.KIB):
        c = Client(m.mnt)
        segment = fill(c.acquire(size=size), 1)
        c.wait(segment.commit(m.mnt, "f"))
        digest = ck.xattr(path, "digest")
        for seed in (2, 3):
            segment.memory[:] = data(size, seed)
            same(seen_by_new_readers(path), data(size, 1), size)
            assert ck.xattr(path, "digest") == digest
            m.remount()  # he goes on all the same
        c.close()


@ck.mounted("debug_hold_drain")
def who_read_a_save_before_it_was_durable_leaves_it_to_the_next(m):
    c = Client(m.mnt)
    path = m.path("f")
    segment = fill(c.acquire(size=SIZE), 1)
    segment.commit(m.mnt, "f")
    with open(path, "rb") as f:
        view = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    same(view[:], data(SIZE, 1))
    m.flush(path)
    assert m.state(path) == "durable"
    segment.memory[:] = data(SIZE, 2)
    view.close()
    # The kernel is told to forget the file, once a second.
    ck.until("it is read from elsewhere", lambda: get(path) == data(SIZE, 1))
    same(seen_by_new_readers(path), data(SIZE, 1))
    c.close()


@ck.mounted()
def a_mapping_keeps_its_bytes_while_the_client_goes_on(m):
    c = Client(m.mnt)
    ino = save(c, m.path("f"), 0)
    c.wait(ino)
    # Not by Python's mmap, which keeps a descriptor open.
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int,
                          ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    fd = os.open(m.path("f"), os.O_RDONLY)
    view = libc.mmap(None, SIZE, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    os.close(fd)
    for step in range(1, 6):
        c.wait(save(c, m.path(f"f{step}"), step))
        same(ctypes.string_at(view, SIZE), data(SIZE, 0), step)
    assert libc.munmap(view, SIZE) == 0
    same(get(m.path("f")), data(SIZE, 0))
    c.close()


@ck.mounted("debug_hold_drain")
def a_commit_has_its_place_among_the_closes(m):
    c = Client(m.mnt)
    save(c, m.path("rank_0"), 0)
    save(c, m.path("rank_1"), 1)
    put(m.path("latest"), b"rank_0 rank_1")
    m.flush(m.path("latest"))
    assert m.state(m.path("rank_0")) == "durable"
    assert m.state(m.path("rank_1")) == "durable"
    c.close()


@ck.mounted(modes=("auto",))
def what_was_only_read_is_used_again(m):
    c = Client(m.mnt)
    seen = set()
    for step in range(6):
        segment = fill(c.acquire(size=SIZE), step)
        seen.add(segment.id)
        c.wait(segment.commit(m.mnt, f"f{step}"))
        same(get(m.path(f"f{step}")), data(SIZE, step), step)
    assert len(seen) <= 2, seen
    c.close()


@ck.mounted()
def a_saved_file_can_be_changed_like_any_other(m):
    c = Client(m.mnt)
    want = {}
    for name in ("append", "inside", "short", "long", "empty"):
        save(c, m.path(name), name, signature=name.encode())
        want[name] = bytearray(data(SIZE, name))
    with open(m.path("append"), "ab") as f:
        f.write(b"tail")
    want["append"] += b"tail"
    with open(m.path("inside"), "r+b") as f:
        f.seek(5000)
        f.write(b"inside")
    want["inside"][5000:5006] = b"inside"
    os.truncate(m.path("short"), 1000)
    del want["short"][1000:]
    os.truncate(m.path("long"), SIZE + 10)
    want["long"] += bytes(10)
    with open(m.path("empty"), "wb"):
        pass
    want["empty"] = b""
    os.utime(m.path("inside"), ns=(10**18, 10**18))
    assert os.stat(m.path("inside")).st_mtime_ns == 10**18
    for state in m.stages(*map(m.path, want)):
        for name, content in want.items():
            same(get(m.path(name)), bytes(content), f"{state} {name}")
        c.close() if state == "staged" else None


@ck.mounted("debug_hold_drain")
def times_can_be_set_while_it_is_staged(m):
    c = Client(m.mnt)
    save(c, m.path("f"), 1)
    os.utime(m.path("f"), ns=(10**18, 10**18))
    assert os.stat(m.path("f")).st_mtime_ns == 10**18
    fails(errno.EPERM, os.ftruncate, next(iter(c.fds.values())), 0)
    c.close()
    m.remount()
    assert os.stat(m.path("f")).st_mtime_ns == 10**18


@ck.mounted("debug_hold_drain")
def versions_within_a_tick_of_the_clock_have_times_of_their_own(m):
    if tuple(map(int, os.uname().release.split(".")[:2])) < (6, 13):
        ck.skip("this kernel's times are no finer than a tick")
    c, seen = Client(m.mnt), []
    for full in [fill(c.acquire(b"s%d" % n, 4096), n) for n in range(16)]:
        full.commit(m.mnt, "f")
        seen.append(os.stat(m.path("f")).st_mtime_ns)
    assert sorted(set(seen)) == seen, seen
    c.close()


@ck.mounted()
def unlinking_gives_the_segment_back(m):
    c = Client(m.mnt)
    first = fill(c.acquire(size=SIZE), 0)
    first.commit(m.mnt, "f")
    os.unlink(m.path("f"))
    ck.until("it is given back",
             lambda: m.status()["segment_idle_bytes"] >= SIZE)
    second = fill(c.acquire(size=SIZE), 1)
    second.commit(m.mnt, "g")
    assert second.id == first.id
    same(get(m.path("g")), data(SIZE, 1))
    c.close()


@ck.mounted("debug_hold_drain")
def a_file_that_lost_its_name_while_it_is_read_keeps_its_segment(m):
    c = Client(m.mnt)
    save(c, m.path("f"), 1)
    with open(m.path("f"), "rb") as reader:
        os.unlink(m.path("f"))
        for step in range(5):
            c.wait(save(c, m.path(f"g{step}"), step))
        same(reader.read(), data(SIZE, 1))
    c.close()


@ck.mounted()
def a_client_that_dies_gives_everything_back(m):
    before = m.status()["stage_used_bytes"]

    def work():
        c = Client(m.mnt)
        c.acquire(size=64 * ck.MIB)
        if os.fork() == 0:  # a child that keeps the socket
            os.close(write_end)
            os.read(read_end, 1)
            os._exit(0)
        os._exit(0)
    read_end, write_end = os.pipe()
    child = Child(work)
    os.waitpid(child.pid, 0)
    ck.until("the segment is gone", lambda: m.status()["segments"] == 0)
    os.close(write_end)
    ck.until("the memory is back",
             lambda: m.status()["stage_used_bytes"] <= before)


@ck.mounted()
def who_may_not_write_there_cannot_commit(m):
    os.mkdir(m.path("theirs"), 0o755)
    os.mkdir(m.path("ours"), 0o777)
    os.chmod(m.path("ours"), 0o777)
    put(m.path("ours", "locked"), b"x", mode=0o644)
    os.symlink("locked", m.path("ours", "link"))
    os.mkdir(m.path("ours", "dir"))

    def work():
        c = Client(m.mnt)
        s = fill(c.acquire(size=SIZE), 1)
        fails(errno.EACCES, s.commit, m.path("theirs"), "f")
        fails(errno.EACCES, s.commit, m.path("ours"), "locked")
        fails(errno.ELOOP, s.commit, m.path("ours"), "link")
        fails(errno.EISDIR, s.commit, m.path("ours"), "dir")
        for name in ("", ".", "..", "a/b", "x" * 256):
            fails(errno.EINVAL, s.commit, m.path("ours"), name)
        fails(errno.ESTALE, s.commit, m.path("ours"), "f", id=s.id + 1)
        fails(errno.ESTALE, s.commit, m.path("ours"), "f", size=SIZE - 1)
        fails(errno.ESTALE, s.commit, m.path("ours"), "f",
              generation=s.generation ^ 1)
        s.commit(m.path("ours"), "f")
        fails(errno.ESTALE, s.commit, m.path("ours"), "g")
        return s.id
    as_user(work)
    found = os.stat(m.path("ours", "f"))
    assert (found.st_uid, found.st_gid) == (ck.USER, ck.USER), found
    assert sorted(os.listdir(m.path("ours"))) == ["dir", "f", "link", "locked"]


@ck.mounted()
def replacing_takes_capabilities_away(m):
    put(m.path("f"), b"x")
    caps = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)
    os.setxattr(m.path("f"), "security.capability", caps)
    os.setxattr(m.path("f"), "user.k", b"v")
    save(Client(m.mnt), m.path("f"), 1)
    assert os.listxattr(m.path("f")) == ["user.k"]


@ck.mounted()
def replacing_needs_what_opening_needs_and_takes_set_user_id_away(m):
    os.mkdir(m.path("theirs"), 0o755)
    put(m.path("theirs", "open"), b"x", mode=0o666)
    os.chmod(m.path("theirs", "open"), 0o6777)

    def work():
        c = Client(m.mnt)
        save(c, m.path("theirs", "open"), 1)
        fails(errno.EACCES, save, c, m.path("theirs", "new"), 2)
    as_user(work)
    found = os.stat(m.path("theirs", "open"))
    assert stat.S_IMODE(found.st_mode) == 0o777 and found.st_uid == 0, found
    same(get(m.path("theirs", "open")), data(SIZE, 1))


@ck.mounted()
def nobody_commits_the_segment_of_another(m):
    os.chmod(m.mnt, 0o777)
    s = fill(Client(m.mnt).acquire(size=SIZE), 1)
    fails(errno.EPERM, as_user, lambda: s.commit(m.mnt, "f"))
    fails(errno.EACCES, Client(m.mnt, token=bytes(16)).acquire)
    s.commit(m.mnt, "f")


@ck.mounted("segments=10M")
def a_user_has_a_quota_and_idle_segments_make_room_in_it(m):
    c = Client(m.mnt)
    fails(errno.EDQUOT, c.acquire, b"a", 11 * ck.MIB)
    a = c.acquire(b"a", 6 * ck.MIB)
    fails(errno.EDQUOT, c.acquire, b"b", 6 * ck.MIB)
    c.give_back(a)
    fails(errno.EAGAIN, c.acquire, b"b", 6 * ck.MIB)
    assert c.releases == [a.id]
    c.drop_released()
    b = c.acquire(b"b", 6 * ck.MIB)
    c.give_back(b)
    other = Client(m.mnt)  # the same user: his quota is one
    thread = threading.Thread(
        target=lambda: (c.releases.append(c.receive()["id"]),
                        c.drop_released()))
    thread.start()
    other.acquire(b"c", 6 * ck.MIB)
    thread.join()
    c.close()
    other.close()


@ck.mounted("segments=10M")
def a_quota_is_counted_in_the_memory_that_it_takes(m):
    c = Client(m.mnt)
    for i in range(5):
        c.acquire(b"%d" % i, 4096)
    assert m.status()["segment_bytes"] == 10 * ck.MIB
    fails(errno.EDQUOT, c.acquire, b"5", 4096)
    c.close()


@ck.mounted("stage_size=256M,debug_release_wait=3600")
def who_waits_for_memory_is_asked_for_his_as_well(m):
    a, b, slow = Client(m.mnt), Client(m.mnt), Client(m.mnt)
    slow.acquire(b"keeps", 32 * ck.MIB)
    slow.give_back(slow.acquire(b"idle", 96 * ck.MIB))
    b.give_back(b.acquire(b"idle", 48 * ck.MIB))
    results = {}

    def work(name, who, size):
        try:
            acquire_waiting(who, size)
            results[name] = "ok"
        except segments.Refused as e:
            results[name] = str(e)
    threads = [threading.Thread(target=work, args=("b", b, 96 * ck.MIB)),
               threading.Thread(target=work, args=("a", a, 100 * ck.MIB))]
    threads[0].start()
    slow.releases.append(slow.receive()["id"])  # b waits for it
    threads[1].start()  # that one needs b's as well
    ck.until("b was asked", lambda: m.status()["segments"] == 2 or results)
    slow.drop_released()
    for t in threads:
        t.join()
    assert results["a"] == results["b"] == "ok", results
    for client in (a, b, slow):
        client.close()


@ck.mounted("segments=off")
def segments_can_be_turned_off(m):
    fails(errno.EOPNOTSUPP, Client, m.mnt)


@ck.mounted()
def nothing_is_committed_on_a_read_only_mount(m):
    Client(m.mnt).close()
    m.remount("ro")
    fails(errno.EROFS, Client, m.mnt)


@ck.mounted("stage_size=128M")
def under_memory_pressure_idle_segments_are_asked_back_first_used_first(m):
    c = Client(m.mnt)
    order = []
    for name in (b"a", b"b", b"c"):
        s = c.acquire(name, 32 * ck.MIB)
        c.give_back(s)
        order.append(s.id)
    shown = [line.split() for line in m.ctl("status", m.mnt).splitlines()
             if line.split()[0] == "segments"]
    assert shown == ["segments 96.0 MiB of 1 clients, 96.0 MiB idle".split()]
    fails(errno.EAGAIN, c.acquire, b"d", 64 * ck.MIB)
    assert c.releases == order[:2], (c.releases, order)
    c.drop_released()
    c.acquire(b"d", 64 * ck.MIB)
    fails(errno.ENOSPC, c.acquire, b"e", 256 * ck.MIB)
    c.close()


@ck.mounted("stage_size=128M,debug_hold_drain")
def a_full_stage_is_said_before_anything_is_copied(m):
    c = Client(m.mnt)
    save(c, m.path("f"), 1, size=80 * ck.MIB)
    fails(errno.ENOSPC, c.acquire, b"big", 80 * ck.MIB)
    put(m.path("g"), data(ck.MIB, 2))  # the disk has room
    same(get(m.path("g")), data(ck.MIB, 2))
    c.close()


@ck.mounted()
def rubbish_on_the_socket_ends_the_connection_only(m):
    c = Client(m.mnt)
    for raw in (b"", b"x", bytes(segments.REQUEST.size - 1),
                bytes(segments.REQUEST.size + 1)):
        victim = Client(m.mnt)
        victim.sock.send(raw)
        try:
            victim.sock.recv(1)
        except ConnectionResetError:
            pass
        victim.close()
    c.sock.send(bytes(segments.REQUEST.size))
    assert c.receive()["error"] == -errno.EPROTONOSUPPORT
    for size in (0, 1 << 63, (1 << 64) - 1):
        fails(errno.EINVAL, c.acquire, b"s", size)
    fails(errno.EINVAL, c.ask, 77)
    fails(errno.ESTALE, c.ask, segments.DROP, ident=1 << 40)
    save(c, m.path("f"), 1)
    same(get(m.path("f")), data(SIZE, 1))
    c.close()


@ck.mounted()
def umount_does_not_wait_for_clients(m):
    c = Client(m.mnt)
    save(c, m.path("f"), 1)
    s = c.acquire(b"filling", SIZE)
    m.remount()
    same(get(m.path("f")), data(SIZE, 1))
    fails(errno.ESTALE, s.commit, m.mnt, "g")
    s.memory[:4] = b"mine"  # the mapping is his as long as he wants
    c.close()


@ck.mounted("stage_size=128M,debug_release_wait=3600")
def umount_does_not_wait_for_who_waits_for_memory(m):
    a, b = Client(m.mnt), Client(m.mnt)
    a.give_back(a.acquire(b"never dropped", 80 * ck.MIB))
    ended = []

    def wait():
        fails(errno.ECONNRESET, b.acquire, b"s", 100 * ck.MIB)
        ended.append("as it must")
    waits = threading.Thread(target=wait)
    waits.start()
    a.receive()  # b waits now
    m.unmount()
    waits.join()
    assert ended
    a.close()
    b.close()


@ck.mounted()
def more_commits_in_a_directory_than_threads_that_serve_it(m):
    """To forget a name the kernel takes the directory's lock, which has who
    creates something there until he is answered."""
    count, over = 270, False  # FS_THREADS_MAX and some more
    c = Client(m.mnt)
    filled = [c.acquire(b"%d" % i, 4096) for i in range(count)]

    def churn(n):
        while not over:
            put(m.path(f"churn{n}"), b"")
            os.unlink(m.path(f"churn{n}"))
    others = [threading.Thread(target=churn, args=(n,)) for n in range(4)]
    barrier = threading.Barrier(count)
    commits = [threading.Thread(target=lambda s=s, i=i: (
        barrier.wait(), s.commit(m.mnt, f"f{i}")))
        for i, s in enumerate(filled)]
    for t in others + commits:
        t.start()
    for t in commits:
        t.join()
    over = True
    for t in others:
        t.join()
    assert sum(n[0] == "f" for n in os.listdir(m.mnt)) == count
    c.close()


@ck.mounted(modes=("auto",))
def a_user_who_connects_for_ever_keeps_nobody_else_out(m):
    ready, go_on = os.pipe(), os.pipe()

    def work():
        clients = []
        for _ in range(2000):
            clients.append(Client(m.mnt))
            try:
                clients[-1].ask(segments.RETURN)
            except OSError as e:
                if e.errno != errno.ESTALE:  # not let in
                    break
        os.write(ready[1], b"%d" % len(clients))
        os.read(go_on[0], 1)
    child = Child(work, ck.USER)
    count = int(os.read(ready[0], 10))
    assert 100 < count < 1000, count
    save(Client(m.mnt), m.path("f"), 1)
    same(get(m.path("f")), data(SIZE, 1))
    os.write(go_on[1], b"x")
    child.result()
    m.expected.append("a client of the socket is refused")


@ck.mounted(start=False)
def an_error_of_the_drain_reaches_who_waits(m):
    disk = ck.Disk(m.base, 256 * ck.MIB)
    m.store = os.path.join(disk.path, "store")
    os.makedirs(m.store)
    try:
        m.start()
        m.expected.append("No space left")
        c = Client(m.mnt)
        disk.fill(leave=28 * ck.MIB)
        ino = save(c, m.path("f"), 1, size=32 * ck.MIB)
        fails(errno.ENOSPC, c.wait, ino)
        same(get(m.path("f")) if m.state(m.path("f")) != "failed" else
             data(32 * ck.MIB, 1), data(32 * ck.MIB, 1))
        disk.relieve()
        ck.until("it is durable after all",
                 lambda: m.state(m.path("f")) == "durable")
        c.wait(ino)
        same(get(m.path("f")), data(32 * ck.MIB, 1))
        c.close()
        m.unmount()
    finally:
        m.stop()


def grow(fd, size, by=TOO_MUCH):
    """Take memory that was not asked for, with the descriptor."""
    os.posix_fallocate(fd, size, by)


@ck.mounted("stage_size=512M")
def what_is_written_past_the_end_is_cut_off_and_told(m):
    os.chmod(m.mnt, 0o777)

    def work():
        c = Client(m.mnt)
        segment = fill(c.acquire(size=SIZE), 1)
        honest = fill(c.acquire(b"other", SIZE), 2)
        before = m.status()
        grow(c.fds[segment.id], SIZE)
        fails(errno.ESTALE, segment.commit, m.mnt, "f")
        ck.until("cut off", lambda: os.fstat(c.fds[segment.id]).st_size ==
                 SIZE)
        # And nobody has to ask: also what has no size is found.
        ck.fallocate(c.fds[honest.id], 1, 64 * ck.MIB, TOO_MUCH)
        ck.until("given back", lambda: m.status()["stage_used_bytes"] <=
                 before["stage_used_bytes"])
        assert m.status()["segment_bytes"] == before["segment_bytes"]
        same(bytes(segment.memory), data(SIZE, 1), "what he may have")
        os.ftruncate(c.fds[c.acquire(b"third", SIZE, seal=False).id], 1 << 40)
        c.close()
    as_user(work)
    assert "of user 1000: " in m.log_text(), m.log_text()
    ck.until("gone", lambda: m.status()["segment_bytes"] == 0)


@ck.mounted("stage_size=512M")
def what_is_taken_shows_in_the_status(m):
    c = Client(m.mnt)
    segment = c.acquire(size=SIZE)

    def is_seen():
        grow(c.fds[segment.id], SIZE)
        return m.status()["segment_bytes"] >= TOO_MUCH
    # It is cut off once a second: one of the looks comes in between.
    ck.until("seen", is_seen)
    c.close()


@ck.mounted("segments=8M")
def what_is_dropped_and_held_counts_until_it_is_let_go(m):
    c = Client(m.mnt)
    for n in range(2):
        segment = c.acquire(b"%d" % n, SIZE)
        kept = os.dup(c.fds[segment.id])
        c.drop(segment.id)
        if n == 0:
            first = kept
    assert m.status()["segment_bytes"] == 8 * ck.MIB
    fails(errno.EDQUOT, c.acquire, b"x", SIZE)
    grow(first, SIZE)
    ck.until("cut off", lambda: os.fstat(first).st_size == SIZE)
    os.close(first)
    os.close(kept)
    ck.until("let go", lambda: m.status()["segment_bytes"] == 0)
    c.drop(c.acquire(b"x", SIZE).id)
    c.close()
    # The process is gone, and a child of it holds on.
    c = Client(m.mnt)
    fd = os.dup(c.fds[c.acquire(size=SIZE).id])
    c.close()
    ck.until("counted", lambda: m.status()["segment_clients"] == 0)
    grow(fd, SIZE)
    ck.until("cut off", lambda: os.fstat(fd).st_size == SIZE)
    assert m.status()["segment_bytes"] == 4 * ck.MIB
    os.close(fd)


if __name__ == "__main__":
    ck.main()
