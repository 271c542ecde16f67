"""Between users: nobody learns from the mount what is in files that he may not
read, nor what they are called, and nobody takes from others what is theirs."""
import errno
import fcntl
import json
import os
import struct
import subprocess

import ckptest as ck
from ckptest import MIB, as_user, data, fails, get, put, same, xattr

ALICE, BOB, TEAM = 1001, 1002, 4242
IOC_QUERY = 3 << 30 | 8208 << 16 | ord("k") << 8 | 1
STATUS, INSPECT, GC = 1, 2, 3
SECRET = data(6 * MIB + 12345, "secret")


def query(path, what, flags=os.O_RDONLY):
    """What ckptctl asks for, of any descriptor; the first page will do."""
    fd = os.open(path, flags)
    try:
        raw = bytearray(struct.pack("=IIQ8192s", what, 0, 0, b""))
        fcntl.ioctl(fd, IOC_QUERY, raw)
        _, length, _, text = struct.unpack("=IIQ8192s", raw)
        return json.loads(text[:length])
    finally:
        os.close(fd)


def homes(m):
    """A private directory for each, and one for both."""
    for name, uid, mode in (("alice", ALICE, 0o700), ("bob", BOB, 0o700),
                            ("both", 0, 0o1777)):
        os.mkdir(m.path(name))
        os.chown(m.path(name), uid, uid)
        os.chmod(m.path(name), mode)


def alone(path):
    """True when nothing says that anybody else has these bytes."""
    seen = query(path, INSPECT)
    return int(xattr(path, "physical_bytes")) == os.stat(path).st_size and \
        seen["physical_bytes"] == os.stat(path).st_size and \
        len({e["image"] for e in seen["extents"]}) == 1


def ctl_as(uid, *argv):
    return as_user(lambda: subprocess.run(
        [ck.CKPTCTL, *argv], stdout=subprocess.PIPE, text=True, check=False,
        timeout=ck.WAIT_BOUND).stdout, uid)


def counters(m):
    s = m.status()
    return s["shared_bytes"], s["physical_bytes"], s["chunks"], s["images"]


@ck.mounted()
def a_guess_tells_nothing_of_another_users_file(m):
    homes(m)
    as_user(lambda: put(m.path("alice", "f"), SECRET, mode=0o600), ALICE)
    m.flush()
    before = counters(m)
    mine, wrong = m.path("bob", "right"), m.path("bob", "wrong")
    as_user(lambda: put(mine, SECRET), BOB)
    m.flush()
    after = counters(m)
    as_user(lambda: put(wrong, data(len(SECRET), "wrong")), BOB)
    m.flush()
    control = counters(m)
    for path in (mine, wrong):
        assert as_user(lambda p=path: alone(p), BOB), path
        assert str(ctl_as(BOB, "du", "--json", path)).count(
            str(len(SECRET))) >= 2, path
    # The sums of the mount move as they do for bytes that nobody has.
    assert [b - a for a, b in zip(before, after)] == \
        [b - a for a, b in zip(after, control)], (before, after, control)
    assert after[0] == before[0]
    # And of those of her own, she has them once.
    as_user(lambda: put(m.path("alice", "g"), SECRET, mode=0o600), ALICE)
    m.flush()
    assert counters(m)[1] == control[1]
    assert as_user(lambda: alone(mine), BOB)
    os.unlink(m.path("alice", "f"))
    os.unlink(m.path("alice", "g"))
    m.flush()
    m.remount()
    same(as_user(lambda: get(mine), BOB), SECRET, mine)


@ck.mounted()
def two_who_close_at_the_same_moment_share_nothing(m):
    """The table of chunks that are about to be stored tells nothing either."""
    homes(m)
    a = ck.Child(lambda: put(m.path("alice", "f"), SECRET, mode=0o600), ALICE)
    b = ck.Child(lambda: put(m.path("bob", "f"), SECRET), BOB)
    a.result(), b.result()
    m.flush()
    assert as_user(lambda: alone(m.path("bob", "f")), BOB)
    assert m.status()["shared_bytes"] == 0


@ck.mounted("share=all")
def share_all_stores_everybodys_bytes_once(m):
    homes(m)
    as_user(lambda: put(m.path("alice", "f"), SECRET, mode=0o600), ALICE)
    as_user(lambda: put(m.path("bob", "f"), SECRET), BOB)
    m.flush()
    assert m.status()["shared_bytes"] == len(SECRET)
    for who, uid in (("alice", ALICE), ("bob", BOB)):
        got = as_user(lambda w=who: xattr(m.path(w, "f"), "physical_bytes"),
                      uid)
        assert int(got) < len(SECRET) * 0.51, (who, got)
    # What is shared stays so; what comes now is not.
    m.remount("share=user")
    as_user(lambda: put(m.path("bob", "g"), SECRET), BOB)
    m.flush()
    assert as_user(lambda: alone(m.path("bob", "g")), BOB)
    assert m.status()["shared_bytes"] == len(SECRET)
    m.remount("share=all")
    as_user(lambda: put(m.path("alice", "h"), SECRET), ALICE)
    m.flush()
    assert m.status()["shared_bytes"] == 2 * len(SECRET)


@ck.mounted()
def who_may_write_to_a_file_cannot_guess_its_owners_others(m):
    """Alice lets everybody write to one of her files. What he puts there is
    not compared with what she keeps to herself."""
    homes(m)
    as_user(lambda: put(m.path("alice", "f"), SECRET, mode=0o600), ALICE)
    m.flush()

    def open_file(name, mode, gid):
        fd = os.open(m.path("both", name), os.O_WRONLY | os.O_CREAT, 0o600)
        os.fchown(fd, -1, gid)
        os.fchmod(fd, mode)
        os.close(fd)
    as_user(lambda: open_file("all", 0o666, ALICE), ALICE)
    as_user(lambda: open_file("team", 0o660, TEAM), ALICE, groups=[TEAM])
    shared = m.status()["shared_bytes"]
    for name in ("all", "team"):
        path = m.path("both", name)
        as_user(lambda p=path: guess(p), BOB, groups=[TEAM])
        m.flush()
        got = as_user(lambda p=path: int(xattr(p, "physical_bytes")), BOB,
                      groups=[TEAM])
        assert got == len(SECRET), (name, got)
        assert m.status()["shared_bytes"] == shared, name


def guess(path):
    fd = os.open(path, os.O_WRONLY)
    ck.write_all(fd, SECRET)
    os.close(fd)


@ck.mounted()
def a_public_file_does_not_tell_of_its_owners_private_ones(m):
    homes(m)
    path = m.path("both", "public")
    as_user(lambda: put(m.path("alice", "f"), SECRET, mode=0o600), ALICE)
    as_user(lambda: put(path, SECRET), ALICE)
    m.flush()
    assert int(xattr(path, "physical_bytes")) < len(SECRET) * 0.51
    seen = as_user(lambda: query(path, INSPECT), BOB)
    assert seen["physical_bytes"] == len(SECRET), seen
    assert seen["extents"] == [] and seen["path"] == "", seen
    assert as_user(lambda: int(xattr(path, "physical_bytes")),
                   BOB) == len(SECRET)


@ck.mounted()
def a_descriptor_for_writing_does_not_show_the_inside(m):
    homes(m)
    path = m.path("both", "box")
    as_user(lambda: put(path, SECRET), ALICE)
    os.chmod(path, 0o622)
    m.flush()
    as_user(lambda: fails(errno.EACCES, query, path, INSPECT, os.O_WRONLY),
            BOB)
    assert as_user(lambda: query(path, INSPECT, os.O_WRONLY),
                   ALICE)["digest"]


@ck.mounted()
def what_a_folder_consists_of_is_for_who_may_read_it(m):
    homes(m)
    header = b'{"secret.name":{"dtype":"U8","shape":[9],' \
        b'"data_offsets":[0,9]}}'
    header += b" " * (-len(header) % 8)
    file = struct.pack("<Q", len(header)) + header + bytes(9)
    os.mkdir(m.path("run"))
    os.chmod(m.path("run"), 0o1777)

    def step(number, mode):
        os.mkdir(m.path("run", f"step_{number}"), 0o755)
        put(m.path("run", f"step_{number}", "a.safetensors"), file, mode=mode)
    as_user(lambda: step(1, 0o600), ALICE)
    as_user(lambda: step(2, 0o644), ALICE)
    m.flush()
    of = lambda n: xattr(m.path("run", f"step_{n}"), "structure")
    as_user(lambda: fails(errno.EACCES, of, 1), BOB)
    assert as_user(lambda: of(2), BOB) == of(1) == as_user(lambda: of(1),
                                                           ALICE)


@ck.mounted("structure=refuse")
def a_refusal_does_not_tell_of_a_step_that_is_not_for_the_publisher(m):
    homes(m)

    def file(name):
        header = json.dumps({name: {"dtype": "U8", "shape": [8],
                                    "data_offsets": [0, 8]}}).encode()
        header += b" " * (-len(header) % 8)
        return struct.pack("<Q", len(header)) + header + bytes(8)
    os.mkdir(m.path("run"))
    os.chmod(m.path("run"), 0o1777)

    def publish(number, name, mode):
        tmp = m.path("run", f"step_{number}.tmp")
        os.mkdir(tmp)
        put(os.path.join(tmp, "a.safetensors"), file(name), mode=mode)
        os.rename(tmp, m.path("run", f"step_{number}"))
    as_user(lambda: publish(1, "a", 0o600), ALICE)
    as_user(lambda: publish(2, "b", 0o644), BOB)
    m.expected.append("step_3: its structure is not that of step_2")
    as_user(lambda: fails(errno.EUCLEAN, publish, 3, "a", 0o644), BOB)


@ck.mounted(start=False)
def what_failed_is_named_to_its_owner(m):
    disk = ck.Disk(m.base, 192 * MIB)
    m.store = os.path.join(disk.path, "store")
    os.mkdir(m.store)
    m.start()
    homes(m)
    for step in (1, 2):
        as_user(lambda s=step: os.mkdir(m.path("alice", f"step_{s}")), ALICE)
    as_user(lambda: put(m.path("alice", "step_1", "f"), data(40 * MIB, 1)),
            ALICE)
    m.flush()
    disk.fill(leave=30 * MIB)
    m.expected.append("step_2/f|No space")
    as_user(lambda: fails(errno.ENOSPC, put, m.path("alice", "step_2", "f"),
                          data(40 * MIB, 2)), ALICE)

    def failed(uid):
        s = json.loads(ctl_as(uid, "status", "--timeout", "240", "--json", m.mnt))
        return s["failed"], [f["path"] for f in s["failed_files"]]
    assert failed(BOB) == (1, [])
    assert failed(ALICE)[1] == failed(0)[1] != []
    disk.relieve()
    m.flush()
    m.unmount()
    ck.umount(disk.path)


def keeps(m, victim, *options, says):
    """It does not mount, says why, and has not touched the victim."""
    said = m.refuse(*options, code=1)
    assert says in said, said
    assert get(victim) == b"precious", "it was overwritten"
    assert ck.mounts_under(m.base) == []


@ck.mounted(start=False, modes=("auto",))
def a_stage_that_others_can_change_is_refused(m):
    victim = os.path.join(m.base, "victim")
    put(victim, b"precious", mode=0o600)
    os.chmod(m.base, 0o755)
    stage = os.path.join(m.base, "stage")
    os.mkdir(stage)
    table = os.path.join(stage, "table")
    option = f"stage={stage}"

    def link():
        os.symlink(victim, table)
    os.chown(stage, BOB, BOB)
    as_user(link, BOB)
    keeps(m, victim, option, says=f"{stage} belongs to another user (1002)")
    os.chown(stage, 0, 0)
    for mode in (0o1777, 0o775, 0o757):
        os.chmod(stage, mode)
        keeps(m, victim, option, says=f"chmod go-w")
    # What he left behind when it was his is not followed either.
    os.chmod(stage, 0o755)
    keeps(m, victim, option, says=stage)
    os.unlink(table)
    os.link(victim, table)
    keeps(m, victim, option, says=stage)
    os.unlink(table)
    m.start(option)
    put(m.path("f"), SECRET)
    m.unmount()


@ck.mounted(start=False, modes=("auto",))
def a_store_that_others_can_change_is_refused(m):
    victim = os.path.join(m.base, "victim")
    put(victim, b"precious", mode=0o600)
    os.chown(m.store, BOB, BOB)
    as_user(lambda: os.symlink(m.base, os.path.join(m.store, "db")), BOB)
    keeps(m, victim, says="belongs to another user (1002)")
    os.unlink(os.path.join(m.store, "db"))
    keeps(m, victim, says="belongs to another user (1002)")
    os.chown(m.store, 0, 0)
    os.chmod(m.store, 0o1777)
    keeps(m, victim, says="chmod go-w")
    os.chmod(m.store, 0o755)
    m.start().unmount()
    # Names that were planted while others could.
    for name in ("db", "images", "stage"):
        path = os.path.join(m.store, name)
        os.rename(path, path + ".away")
        os.symlink(path + ".away", path)
        keeps(m, victim, says=name)
        os.unlink(path)
        os.rename(path + ".away", path)
    for name in ("lock", "format"):
        path = os.path.join(m.store, name)
        os.rename(path, path + ".away")
        os.symlink(victim, path)
        keeps(m, victim, says=m.store)
        os.unlink(path)
        os.rename(path + ".away", path)
    # And images below images/.
    path = os.path.join(m.store, "images", "00")
    os.rename(path, path + ".away")
    os.symlink(path + ".away", path)
    keeps(m, victim, says=m.store)
    os.unlink(path)
    os.rename(path + ".away", path)
    m.start()


@ck.mounted()
def gc_drops_the_callers_cache_alone(m):
    homes(m)
    for name, uid in (("alice", ALICE), ("bob", BOB)):
        for n in range(3):  # from the second on they are in memory
            as_user(lambda w=name, i=n: put(m.path(w, f"f{i}"),
                                            data(8 * MIB, (w, i))), uid)
            m.flush()
    def used():
        return m.status()["stage_used_bytes"]
    both = used()
    ctl_as(BOB, "gc", m.mnt)
    # Who drained them last may have them yet.
    ck.until("his are gone", lambda: both - used() >= 2 * 8 * MIB)
    hers = used()
    m.ctl("gc", m.mnt)
    ck.until("hers are, too", lambda: hers - used() >= both - hers)
    assert both - hers == hers - used(), (both, hers, used())


@ck.mounted("stage_size=128M,debug_hold_drain")
def one_users_saves_leave_memory_to_who_was_left_without(m):
    """Alone he has all of it. What does not fit is staged on the disk, and
    nobody is refused."""
    homes(m)
    size = 20 * MIB

    def save(who, uid, name):
        path = m.path(who, name)
        before = m.status()["staged_memory_bytes"]
        as_user(lambda: put(path, data(size, name)), uid)
        return m.status()["staged_memory_bytes"] - before >= size

    for who, uid in (("alice", ALICE), ("bob", BOB)):
        save(who, uid, "step_0")  # the series has a size
        m.flush()
        m.remount()  # and there are no caches
    got = [save("alice", ALICE, f"step_{i}") for i in range(1, 8)]
    assert sum(got) >= 5 and not got[-1], got
    assert not save("bob", BOB, "step_1")
    m.flush()
    # From now on she has as much as she leaves.
    got = [save("alice", ALICE, f"step_{i}") for i in range(10, 17)]
    assert 2 <= sum(got) <= 3, got
    assert save("bob", BOB, "step_2")
    m.flush()
    for i in (*range(8), *range(10, 17)):
        same(as_user(lambda p=m.path("alice", f"step_{i}"): get(p), ALICE),
             data(size, f"step_{i}"), i)
    for i in range(3):
        same(as_user(lambda p=m.path("bob", f"step_{i}"): get(p), BOB),
             data(size, f"step_{i}"), i)


@ck.mounted("debug_stage=memory", modes=("auto",))
def a_file_that_can_never_be_stored_holds_up_nobody(m):
    """The kernel writes it past every limit of the daemon's, in memory."""
    m.expected.append("/alice/f: cannot be made durable: File too large")
    homes(m)

    def too_long():
        fd = os.open(m.path("alice", "f"), os.O_RDWR | os.O_CREAT)
        os.pwrite(fd, b"x", 20 << 40)
        os.close(fd)

    as_user(too_long, ALICE)
    os.mkdir(m.path("step.tmp"))
    put(m.path("step.tmp", "model.pt"), data(3 * MIB, "model"))
    os.rename(m.path("step.tmp"), m.path("step_1"))
    assert m.state(m.path("step_1", "model.pt")) == "durable"
    ck.until("it has failed", lambda: m.status()["failed"] == 1)
    as_user(lambda: fails(errno.EFBIG, os.open, m.path("alice", "f"),
                          os.O_RDONLY), ALICE)
    as_user(lambda: os.truncate(m.path("alice", "f"), 3), ALICE)
    m.flush()
    assert m.state(m.path("alice", "f")) == "durable"
    assert m.status()["failed"] == 0


if __name__ == "__main__":
    ck.main()
