"""A damaged store: found, named and contained, and never a crash."""
import errno
import json
import os
import random
import shutil
import signal
import subprocess

import ckptest as ck
from ckptest import KIB, MIB, data, fails, get, put, same
from images import flip, image_of
from steps import save


def three_files(m):
    for name, size in (("victim", 5 * MIB), ("other", 3 * MIB), ("tiny", 99)):
        put(m.path(name), data(size, name))
    m.unmount()


@ck.mounted()
def an_image_cut_short_never_opens(m):
    three_files(m)
    os.truncate(image_of(m, 5 * MIB), 2 * MIB)
    m.expected.append("victim")
    assert "victim" in m.fsck(code=1)
    m.start()
    fails(errno.EIO, os.open, m.path("victim"), os.O_RDONLY)
    assert "victim" in m.log_text()
    same(get(m.path("other")), data(3 * MIB, "other"), "other")
    same(get(m.path("tiny")), data(99, "tiny"), "tiny")
    os.unlink(m.path("victim"))
    put(m.path("victim"), data(MIB, "saved again"))
    m.remount()
    same(get(m.path("victim")), data(MIB, "saved again"), "saved again")
    m.unmount()
    m.fsck("--scrub")


@ck.mounted()
def a_missing_image_never_opens(m):
    three_files(m)
    os.unlink(image_of(m, 5 * MIB))
    m.expected.append("victim")
    assert "victim" in m.fsck(code=1)
    m.start()
    fails(errno.EIO, os.open, m.path("victim"), os.O_RDONLY)
    same(get(m.path("other")), data(3 * MIB, "other"), "other")
    put(m.path("new"), data(2 * MIB, "new"), sync=True)
    m.power_cut()
    m.start()
    same(get(m.path("new")), data(2 * MIB, "new"), "new")


@ck.mounted()
def a_flipped_byte_is_found_by_scrub_and_by_verify_open(m):
    three_files(m)
    m.fsck("--scrub")
    flip(image_of(m, 5 * MIB), 3 * MIB + 77)
    m.fsck()  # without --scrub nobody reads the bytes
    m.expected.append("victim")
    assert "victim" in m.fsck("--scrub", code=1)
    found = json.loads(m.fsck("--scrub", "--json", code=1))
    assert "victim" in json.dumps(found), found
    m.start()
    got = get(m.path("victim"))
    assert got != data(5 * MIB, "victim") and len(got) == 5 * MIB
    m.remount("verify=open")
    fails(errno.EIO, os.open, m.path("victim"), os.O_RDONLY)
    assert "victim" in m.log_text()
    same(get(m.path("other")), data(3 * MIB, "other"), "other")
    for _ in range(3):  # verified once, opened often
        same(get(m.path("other")), data(3 * MIB, "other"), "other again")


@ck.mounted()
def a_flipped_byte_in_a_shared_image_names_every_file(m):
    put(m.path("owner"), data(5 * MIB))
    put(m.path("replica"), data(5 * MIB))
    m.unmount()
    flip(image_of(m, 5 * MIB), 123)
    m.expected.append("owner|replica")
    said = m.fsck("--scrub", code=1)
    assert "owner" in said and "replica" in said, said


@ck.mounted()
def a_damaged_original_is_not_shared_further(m):
    """Sharing compares bytes, so a good copy is never lost to a bad one."""
    three_files(m)
    flip(image_of(m, 5 * MIB), 4 * MIB)
    m.expected.append(".*")
    m.start()
    put(m.path("good"), data(5 * MIB, "victim"))
    m.flush()
    m.remount()
    same(get(m.path("good")), data(5 * MIB, "victim"), "good")


@ck.mounted(modes=("auto",))
def damaged_database_files_never_crash_it(m):
    """Flip bytes all over RocksDB's files. Whatever happens, it is an error
    with a sentence: no signal, no hang, no wrong bytes."""
    seed = ck.SEED
    print(f"seed {seed}")
    rand = random.Random(seed)
    for i in range(60):
        put(m.path(f"f{i}"), data(100 if i % 3 else 70 * KIB, i))
        os.setxattr(m.path(f"f{i}"), "user.k", b"v")
    for _ in range(2):
        m.remount()  # what the log held goes into tables
    m.unmount()
    tables = sorted(os.path.join(folder, name)
                    for folder, _, names in os.walk(m.store) for name in names
                    if name.endswith((".sst", ".log"))
                    and os.path.getsize(os.path.join(folder, name)))
    assert any(t.endswith(".sst") for t in tables), tables
    m.expected.append(".*")
    for n in range(12):
        path = rand.choice(tables)
        whole = get(path)
        at = rand.randrange(len(whole))
        flip(path, at)
        what = f"{os.path.basename(path)} byte {at} of {len(whole)}"
        done = subprocess.run([ck.CKPTCTL, "fsck", m.store], check=False,
                              capture_output=True, timeout=ck.WAIT_BOUND)
        assert done.returncode in (0, 1), (what, done)
        try_to_use(m, what)
        put(path, whole)
        if not all(os.path.exists(t) for t in tables):
            break  # it was compacted meanwhile: damage is where it belongs


def try_to_use(m, what):
    proc = m.spawn()
    ck.until(f"{what}: up or gone", lambda: proc.poll() is not None or
             m.mnt in ck.mounts_under(m.mnt))
    if proc.poll() is not None:
        assert proc.returncode == 1, (what, proc.returncode)
        m.proc = None
        return
    try:
        for name in os.listdir(m.mnt):
            got = get(m.path(name))
            i = int(name[1:])
            same(got, data(len(got), i), f"{what} {name}")
            os.listxattr(m.path(name))
    except OSError as e:
        assert e.errno == errno.EIO, (what, e)
    assert proc.poll() is None, (what, proc.returncode)
    subprocess.run(["umount", m.mnt], check=True, timeout=ck.WAIT_BOUND)
    code = proc.wait(ck.WAIT_BOUND)
    m.proc = None
    assert code in (0, 1), (what, signal.Signals(-code) if code < 0 else code)
    for path in ck.mounts_under(m.store):
        ck.umount(path, ck.MNT_DETACH)


@ck.mounted()
def a_damaged_stage_is_not_taken_for_a_file(m):
    """Foreign files on the stage after a crash are ignored or named."""
    put(m.path("f"), data(MIB), sync=True)
    m.kill()
    m.expected.append(".*")
    stage = os.path.join(m.store, "stage")
    for name in ("rubbish", "18446744073709551616", "7"):
        put(os.path.join(stage, name), data(5000, name))
    m.start()
    same(get(m.path("f")), data(MIB), "f")
    assert os.listdir(m.mnt) == ["f"]


@ck.mounted()
def an_image_that_nobody_recorded_is_kept_and_named(m):
    """The database may be what is wrong: only what the last daemon had begun
    is a leftover."""
    three_files(m)
    name = os.path.join(m.store, "images", "99", "0000000000009999")
    put(name, data(MIB))
    m.expected.append("0000000000009999")
    m.start()
    m.flush()
    m.ctl("gc", m.mnt)
    ck.until("the sweep has seen it",
             lambda: m.status()["unknown_images"] == 1)
    m.kill()
    m.start()
    m.unmount()
    same(get(name), data(MIB), "the image")
    assert "0000000000009999" in m.fsck(code=1)
    os.unlink(name)
    m.fsck("--scrub")


def snapshot(path):
    """Every name under path, with the bytes of what is a file."""
    found = {}
    for folder, _, names in os.walk(path):
        found[folder] = None
        for name in names:
            found[os.path.join(folder, name)] = get(os.path.join(folder, name))
    return found


def db(m, name=""):
    return os.path.join(m.store, "db", name)


def largest(m, ending):
    return max((db(m, name) for name in os.listdir(db(m))
                if name.endswith(ending)), key=os.path.getsize)


def refused(m, what):
    """Twice, in one sentence that fsck says too, and nothing is changed."""
    before = snapshot(m.store)
    said = m.refuse(code=1)
    for again in (m.refuse(code=1), m.fsck(code=1)):
        assert said.split(": ", 2)[-1].strip() in again, (what, said, again)
    assert "ckptctl rebuild" in said and said.count("\n") == 1, (what, said)
    after = snapshot(m.store)
    assert before == after, (what, [p for p in before | after
                                    if before.get(p) != after.get(p)])


def whole(m, copy):
    shutil.rmtree(m.store)
    shutil.copytree(copy, m.store)


@ck.mounted(modes=("auto",))
def without_its_database_a_store_is_refused_and_left_as_it_is(m):
    for i in range(30):
        put(m.path(f"f{i}"), data(100 if i % 3 else 70 * KIB, i))
    m.unmount()
    copy = m.store + "-copy"
    shutil.copytree(m.store, copy)
    for what, damage in (
            ("no db", lambda: shutil.rmtree(db(m))),
            ("an empty db", lambda: (shutil.rmtree(db(m)), os.mkdir(db(m)))),
            ("no CURRENT", lambda: os.unlink(db(m, "CURRENT"))),
            ("no table", lambda: os.unlink(largest(m, ".sst"))),
            ("no format", lambda: os.unlink(m.store + "/format")),
            ("no images", lambda: shutil.rmtree(m.store + "/images"))):
        damage()
        if what == "no images":
            assert "images" in m.refuse(code=1)
        else:
            refused(m, what)
        whole(m, copy)
    m.start()
    for i in range(30):
        same(get(m.path(f"f{i}")), data(100 if i % 3 else 70 * KIB, i), f"f{i}")


@ck.mounted(modes=("auto",))
def a_log_that_lost_what_was_durable_is_refused(m):
    """One flipped bit in the log, and all behind it would be gone."""
    for i in range(30):
        put(m.path(f"f{i}"), data(100 if i % 3 else 70 * KIB, i), sync=True)
    m.power_cut()
    copy = m.store + "-copy"
    shutil.copytree(m.store, copy)
    log = os.path.basename(largest(m, ".log"))
    size = os.path.getsize(db(m, log))
    for what, damage in (
            ("its first byte", lambda: flip(db(m, log), 0)),
            ("a bit in the middle", lambda: flip(db(m, log), size // 2)),
            ("half of it", lambda: os.truncate(db(m, log), size // 2)),
            ("all of it", lambda: os.unlink(db(m, log)))):
        damage()
        refused(m, what)
        whole(m, copy)
    m.start()
    for i in range(30):
        same(get(m.path(f"f{i}")), data(100 if i % 3 else 70 * KIB, i), f"f{i}")


@ck.mounted(modes=("auto",))
def rebuild_brings_back_what_backup_and_labels_know(m):
    m.remount("backup_interval=1")
    put(m.path("small.tmp"), data(99, "small"))
    os.rename(m.path("small.tmp"), m.path("small"))
    ck.until("a backup", lambda: m.status()["backup"]["made"] > 0)
    m.remount("backup_interval=0")
    put(m.path("small later"), data(99, "later"), sync=True)
    os.mkdir(m.path("new"))
    put(m.path("new/big"), data(3 * MIB, "big"), mode=0o640, sync=True)
    os.utime(m.path("new/big"), (5, 5))
    m.unmount()
    shutil.rmtree(db(m))
    refused(m, "no database")
    said = m.ctl("rebuild", m.store, code=1)
    assert "the backup of" in said and "/new/big" in said, said
    m.fsck("--scrub")
    m.start()
    same(get(m.path("small")), data(99, "small"), "small")
    same(get(m.path("new/big")), data(3 * MIB, "big"), "big")
    assert os.stat(m.path("new/big")).st_mode & 0o777 == 0o640
    assert not os.path.exists(m.path("small later"))  # it had no image
    put(m.path("after"), data(MIB, "after"))
    m.remount()
    same(get(m.path("after")), data(MIB, "after"), "after")


@ck.mounted(modes=("auto",))
def rebuild_of_an_old_copy_takes_back_what_the_images_have(m):
    """Database and mark are of one moment: nothing says that they are old but
    the images, which say of what file they are."""
    put(m.path("old"), data(MIB, "old"))
    put(m.path("changed"), data(MIB, "first"))
    m.unmount()
    aside = os.path.join(m.base, "aside")
    os.mkdir(aside)
    for name in ("db", "mark"):
        ck.sh("cp", "-a", os.path.join(m.store, name), aside)
    m.start()
    os.mkdir(m.path("step_7"))
    put(m.path("step_7", "rank_0.pt"), data(3 * MIB, 7))
    put(m.path("changed"), data(MIB, "second"))
    m.unmount()
    ck.sh("rm", "-r", os.path.join(m.store, "db"))
    for name in ("db", "mark"):
        ck.sh("cp", "-a", os.path.join(aside, name), m.store)
    m.ctl("rebuild", m.store, code=1)
    assert not os.path.exists(os.path.join(m.store, "lost"))
    m.start()
    same(get(m.path("old")), data(MIB, "old"), "old")
    same(get(m.path("changed")), data(MIB, "second"), "changed since")
    same(get(m.path("step_7", "rank_0.pt")), data(3 * MIB, 7), "made since")
    m.unmount()
    m.fsck("--scrub")


@ck.mounted(modes=("auto",))
def rebuild_of_a_database_that_lacks_nothing_loses_nothing(m):
    put(m.path("deleted"), data(MIB, "deleted"), sync=True)
    os.unlink(m.path("deleted"))
    three_files(m)
    os.unlink(db(m, "CURRENT"))
    refused(m, "no CURRENT")
    m.ctl("rebuild", m.store)
    assert os.path.isdir(os.path.join(m.store, "db.damaged-1"))
    m.fsck("--scrub")
    m.start()
    assert "deleted" not in os.listdir(m.mnt)
    for name, size in (("victim", 5 * MIB), ("other", 3 * MIB), ("tiny", 99)):
        same(get(m.path(name)), data(size, name), name)


@ck.mounted(modes=("auto",))
def rebuild_has_nothing_but_labels_when_all_else_is_gone(m):
    three_files(m)
    for gone in ("db", "backup"):
        shutil.rmtree(os.path.join(m.store, gone), ignore_errors=True)
    for gone in ("format", "mark", "secret"):
        os.unlink(os.path.join(m.store, gone))
    os.mkdir(db(m))
    assert "ckptctl rebuild" in m.refuse(code=1)
    found = json.loads(m.ctl("rebuild", "--json", m.store, code=1))
    assert found["base"] == "nothing", found
    assert len(found["recovered"]) == 2, found
    m.fsck("--scrub")
    m.start()
    same(get(m.path("victim")), data(5 * MIB, "victim"), "victim")
    same(get(m.path("other")), data(3 * MIB, "other"), "other")


@ck.mounted(modes=("auto",))
def rebuild_cuts_a_file_by_the_rule_that_its_label_has(m):
    """What shares with chunks cut by place is cut so: as all files were by a
    ckptfs that knew no other rule, whose labels lack the flag as well."""
    save(m.path("model.safetensors"), {"w": ("U8", (4 * MIB,))}, "by place")
    tensor = data(4 * MIB, "by place")
    put(m.path("by place"), tensor[:2 * MIB] + data(2 * MIB, 1), sync=True)
    put(m.path("by content"), data(4 * MIB, 2), sync=True)
    m.flush()
    m.unmount()
    for gone in ("db", "backup"):
        shutil.rmtree(os.path.join(m.store, gone), ignore_errors=True)
    os.mkdir(db(m))
    found = json.loads(m.ctl("rebuild", "--json", m.store, code=1))
    assert len(found["recovered"]) == 3, found
    m.fsck("--scrub")
    m.start()
    same(get(m.path("by place")), tensor[:2 * MIB] + data(2 * MIB, 1))
    same(get(m.path("by content")), data(4 * MIB, 2))
    same(get(m.path("model.safetensors"))[-4 * MIB:], tensor)


@ck.mounted(modes=("auto",))
def rebuild_of_what_is_no_store_changes_nothing(m):
    assert "is mounted" in m.ctl("rebuild", m.store, code=2)
    m.unmount()
    place = m.store + "-not"
    os.makedirs(os.path.join(place, "images"))
    put(os.path.join(place, "images", "holiday.jpg"), b"x")
    assert "not a ckptfs store" in m.ctl("rebuild", place, code=2)
    assert os.listdir(place) == ["images"]


if __name__ == "__main__":
    ck.main()
