"""What a daemon that was killed left staged, and what `ckptctl fsck` and
`ckptctl rebuild` make of it: nothing of it is theirs to lose, and the next
mount makes it durable as if nobody had looked."""
import glob
import json
import os
import shutil

import ckptest as ck
from ckptest import KIB, MIB, data, get, put, same

# On the disk, as the first ones of their series, and one in the memory.
STAGED = {"step_1/rank_0.pt": 3 * MIB, "step_1/rank_1.pt": 3 * MIB,
          "step_1/big": 40 * MIB, "step_1/small": 5 * KIB, "step_1/empty": 0,
          "saved before": 2 * MIB}
DURABLE = {"other": MIB, "tiny": 99}


# A backup, which comes some time after the mount, knows names as well.
NO_BACKUP = "backup_interval=0"


def killed_with_files_staged(m, *options):
    """Some durable, some closed and not durable, and one of those replaces
    what is."""
    m.start(NO_BACKUP, *options)
    for name, size in DURABLE.items():
        put(m.path(name), data(size, name))
    put(m.path("saved before"), data(MIB, "first"), mode=0o640)
    m.remount("debug_hold_drain", NO_BACKUP, *options)
    os.mkdir(m.path("step_1"))
    for name, size in STAGED.items():
        put(m.path(name), data(size, name), mode=0o604)
        assert m.state(m.path(name)) == "staged"
    assert m.status()["staged_bytes"] > 0
    m.kill()


def all_is_there(m, names, folder=""):
    for name in names:
        with open(m.path(folder, name), "rb") as f:
            same(f.read(), data({**STAGED, **DURABLE}[name], name), name)


def is_recovered(m, *options):
    """As the next mount finds it."""
    m.start(*options)
    all_is_there(m, {**STAGED, **DURABLE})
    m.flush()
    m.remount(*options)
    all_is_there(m, {**STAGED, **DURABLE})
    assert m.status()["unknown_images"] == 0
    assert not os.path.exists(os.path.join(m.store, "lost"))
    m.unmount()
    assert "note" not in m.fsck("--scrub")


STAGES = ("debug_stage=auto", "debug_stage=memory")


def each_stage(m):
    for stage in STAGES:
        killed_with_files_staged(m, stage)
        yield stage
        shutil.rmtree(m.store)
        os.mkdir(m.store)


@ck.mounted(modes=("auto",), start=False)
def fsck_says_what_is_staged_and_changes_nothing(m):
    for stage in each_stage(m):
        said = m.fsck()
        for name in STAGED:
            assert f"note: /{name}: " in said, (name, said)
        assert "removes it" not in said, said
        found = json.loads(m.fsck("--json", "--scrub"))
        assert [p["code"] for p in found["notes"]] == \
            ["staged"] * len(STAGED), found
        is_recovered(m, stage)


@ck.mounted(modes=("auto",), start=False)
def rebuild_of_a_whole_database_leaves_what_is_staged(m):
    for stage in each_stage(m):
        found = json.loads(m.ctl("rebuild", "--json", m.store))
        assert found["base"] == "whole" and not found["aside"], found
        assert len(found["staged"]) == len(STAGED), found
        assert "removes it" not in m.fsck()
        is_recovered(m, stage)


def is_there_somewhere(m, named):
    """Each file that there is to be, once: under its own name, or, but for
    these, below /rebuilt."""
    got = {}
    for folder, _, files in os.walk(m.mnt):
        for name in files:
            path = os.path.join(folder, name)
            got[path] = get(path)
    for name in named:
        size = {**STAGED, **DURABLE, "new": MIB}[name]
        same(got.pop(m.path(name)), data(size, name), name)
    for name in set(STAGED) - set(named):
        at = [p for p, v in got.items() if v == data(STAGED[name], name)]
        assert len(at) == 1 and at[0].startswith(m.path("rebuilt/")), \
            (name, at, list(got))
        del got[at[0]]
    assert not got, list(got)


def lose(m, *names):
    for name in names:
        path = os.path.join(m.store, name)
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)


@ck.mounted(modes=("auto",), start=False)
def rebuild_without_a_database_keeps_what_is_staged(m):
    """Where the name is not known any more it gets one."""
    for stage in each_stage(m):
        lose(m, "db")
        m.ctl("fsck", m.store, code=1)
        found = json.loads(m.ctl("rebuild", "--json", m.store, code=1))
        assert len(found["staged"]) == len(STAGED), found
        assert not found["aside"], found
        m.fsck("--scrub")
        m.start(stage)
        # The labels of their durable versions name these two.
        is_there_somewhere(m, ("saved before", "other"))
        put(m.path("new"), data(MIB, "new"), sync=True)
        m.remount(stage)
        is_there_somewhere(m, ("saved before", "other", "new"))
        assert m.status()["unknown_images"] == 0
        m.unmount()
        m.fsck("--scrub")


@ck.mounted(modes=("auto",), start=False)
def rebuild_gives_a_file_that_is_lost_what_was_staged_of_it(m):
    """Its name is known, its durable bytes are gone, newer ones are staged."""
    for stage in each_stage(m):
        log = max((p for p in glob.glob(os.path.join(m.store, "db", "*.log"))),
                  key=os.path.getsize)
        os.unlink(log)
        first = data(MIB, "first")
        os.unlink(next(p for p in glob.glob(m.store + "/images/*/*")
                       if get(p) == first))
        found = json.loads(m.ctl("rebuild", "--json", m.store, code=1))
        assert found["base"] == "part" and not found["lost"], found
        assert len(found["staged"]) == len(STAGED), found
        m.fsck("--scrub")
        m.start(stage)
        is_there_somewhere(m, ("saved before", "other", "tiny"))
        assert os.stat(m.path("saved before")).st_mode & 0o777 == 0o640
        m.unmount()
        m.fsck("--scrub")


@ck.mounted(modes=("auto",), start=False)
def a_stage_elsewhere_is_found_without_being_told(m):
    place = os.path.join(m.base, "staging")
    os.mkdir(place, 0o700)
    killed_with_files_staged(m, f"stage={place}")
    assert m.fsck().count("was not durable yet") == len(STAGED)
    m.ctl("rebuild", m.store)
    is_recovered(m, f"stage={place}")


@ck.mounted(modes=("auto",), start=False)
def what_a_power_cut_took_is_not_waited_for(m):
    """The images are leftovers then, and rebuild puts them aside."""
    killed_with_files_staged(m)
    ck.umount(os.path.join(m.store, "stage"), ck.MNT_DETACH)
    assert "was not durable yet" not in m.fsck()
    found = json.loads(m.ctl("rebuild", "--json", m.store))
    assert not found["staged"] and len(found["aside"]) == 4, found
    m.start()
    all_is_there(m, DURABLE)
    same(get(m.path("saved before")), data(MIB, "first"), "saved before")


def replaced_by_a_rename(m, before, after):
    """Both saved under another name and renamed to their own, as safetensors
    does it: the second of them is not durable, and the first is kept."""
    m.start(NO_BACKUP)
    for name, content in before.items():
        put(m.path(name), content)
    m.remount("debug_hold_drain", NO_BACKUP)
    for name, content in after.items():
        put(m.path("tmp"), content)
        os.rename(m.path("tmp"), m.path(name))
        assert m.state(m.path(name)) == "staged"
    m.kill()


def names_in(m):
    return sorted(os.path.relpath(os.path.join(folder, name), m.mnt)
                  for folder, _, names in os.walk(m.mnt) for name in names)


BEFORE = {"large": data(3 * MIB, 1), "small": data(5 * KIB, 2)}
AFTER = {"large": data(3 * MIB, 3), "small": data(6 * KIB, 4)}


def renamed_stores(m, *damages):
    for damage in damages:
        for stage_is_lost in (False, True):
            replaced_by_a_rename(m, BEFORE, AFTER)
            if stage_is_lost:
                ck.umount(os.path.join(m.store, "stage"), ck.MNT_DETACH)
            lose(m, *damage)
            yield damage, stage_is_lost
            m.unmount()
            m.fsck("--scrub")
            shutil.rmtree(m.store)
            os.mkdir(m.store)


@ck.mounted(modes=("auto",), start=False)
def rebuild_keeps_what_a_rename_kept_until_the_new_file_is_durable(m):
    """Without a mark nothing is believed of the database but what its images
    bear out."""
    for damage, stage_is_lost in renamed_stores(m, (), ("mark",)):
        m.ctl("rebuild", m.store, code=1 if damage else 0)
        m.fsck("--scrub")
        m.start()
        for name, content in (BEFORE if stage_is_lost else AFTER).items():
            same(get(m.path(name)), content, f"{name} without {damage}")
        assert names_in(m) == ["large", "small"]


@ck.mounted(modes=("auto",), start=False)
def rebuild_without_a_database_has_both_sides_of_a_rename(m):
    """The label of what was replaced has the name; a small file has none."""
    for _, stage_is_lost in renamed_stores(m, ("db",)):
        m.ctl("rebuild", m.store, code=1)
        m.fsck("--scrub")
        m.start()
        same(get(m.path("large")), BEFORE["large"], "large")
        got = [get(m.path(name)) for name in names_in(m)]
        assert len(got) == (1 if stage_is_lost else 3), names_in(m)
        assert stage_is_lost or all(v in got for v in AFTER.values())


@ck.mounted(modes=("auto",), start=False)
def rebuild_of_a_kept_file_that_became_durable_takes_the_label(m):
    """Its content in the old copy is what it replaced, of generation 0."""
    replaced_by_a_rename(m, BEFORE, AFTER)
    aside = os.path.join(m.base, "aside")
    os.mkdir(aside)
    for name in ("db", "mark"):
        ck.sh("cp", "-a", os.path.join(m.store, name), aside)
    m.start()
    m.flush()
    m.unmount()
    lose(m, "db", "mark")
    for name in ("db", "mark"):
        ck.sh("cp", "-a", os.path.join(aside, name), m.store)
    m.ctl("rebuild", m.store, code=1)
    m.fsck("--scrub")
    m.start()
    same(get(m.path("large")), AFTER["large"], "large")
    same(get(m.path("small")), BEFORE["small"], "small")  # it has no label
    assert names_in(m) == ["large", "small"]


if __name__ == "__main__":
    ck.main()
