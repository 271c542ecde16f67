"""What is said of a step when it is published, and what is refused."""
import errno
import json
import os
import shutil
import subprocess

import ckptest as ck
from ckptest import KIB, data, fails, get, same
from steps import BASE, LESS, MORE, counts, figures, save, step

EUCLEAN = errno.EUCLEAN
def diff(path):
    return os.getxattr(path, "user.ckptfs.structure_diff").decode()


@ck.mounted()
def steps_of_one_structure_say_nothing(m):
    for number in (1, 9, 10):
        step(m, number)
    assert counts(m) == ""
    assert figures(m)["checked"] == 3
    assert ck.xattr(m.path("step_1"), "structure") == \
        ck.xattr(m.path("step_10"), "structure")
    assert diff(m.path("step_10")) == ""
    assert "structure:" not in m.log_text()


@ck.mounted()
def what_came_and_went_is_named(m):
    step(m, 9, MORE)
    step(m, 10)  # 9 is before 10, though "10" is before "9"
    last = counts(m, different=1, gone=1)
    assert "step_9" in last and "2 tensors are gone (rerun, rerun)" in last
    assert m.log_text().count("2 tensors are gone") == 1
    assert diff(m.path("step_10")) == "gone: rerun\ngone: rerun\n"
    step(m, 11, {"w": ("BF16", (16, 1024)), "v": ("BF16", (64, 512)),
                 "new": ("U8", (1,))})
    last = counts(m, different=2, gone=1)
    for word in ("2 tensors are new (new, new)",
                 "2 tensors are of another type (w, w)",
                 "2 tensors are of another shape (v, v)"):
        assert word in last, last
    assert "new: new\n" in diff(m.path("step_11"))
    assert "of another type: w (float32 -> bfloat16)\n" in diff(m.path("step_11"))
    text = m.ctl("status", m.mnt)
    assert "3 checked, 0 refused, 2 different, 1 gone" in text, text


@ck.mounted()
def the_step_before_is_found_by_all_its_numbers(m):
    more = dict(MORE, x=("U8", (1,)))
    step(m, 100, MORE, name="epoch=0-step=%d")
    step(m, 9, name="epoch=01-step=%d")
    assert "epoch=0-step=100" in counts(m, different=1, gone=1)
    step(m, 10, name="epoch=1-step=%d")
    step(m, 11, more, name="other=1-step=%d")  # another series
    step(m, 12, more, name="epoch=1-step=%d.pt")
    step(m, 9, more, name="step=%d")
    counts(m, different=1, gone=1)
    step(m, 50, MORE, name="epoch=0-step=%d")  # it is the first of all
    counts(m, different=1, gone=1)
    fails(errno.ENODATA, diff, m.path("epoch=0-step=50"))
    step(m, 11, MORE, name="epoch=1-step=%d")
    assert "epoch=1-step=10" in counts(m, different=2, gone=1)


@ck.mounted()
def order_and_bytes_do_not_count_but_the_file_does(m):
    step(m, 1)
    step(m, 2, dict(reversed(BASE.items())))
    assert counts(m) == ""
    other = step(m, 3, publish=False) + ".tmp"
    os.rename(other + "/rank_0.safetensors", other + "/x")
    os.rename(other + "/rank_1.safetensors", other + "/rank_0.safetensors")
    os.rename(other + "/x", other + "/rank_1.safetensors")
    os.rename(other, m.path("step_3"))
    assert counts(m) == ""  # the same names have the same things
    moved = step(m, 4, publish=False) + ".tmp"
    save(moved + "/rank_0.safetensors", {"w": BASE["w"]})
    save(moved + "/rank_1.safetensors", {"v": BASE["v"], "w": BASE["w"]})
    save(moved + "/rank_2.safetensors", {"v": BASE["v"]})
    os.rename(moved, m.path("step_4"))
    assert "1 tensor is in another file (v)" in counts(m, different=1)


@ck.mounted()
def stale_weights_are_told_of(m):
    for n in (1, 2):
        step(m, n, seed=7, publish=False)
        m.settle()  # what is open for the daemon is equal to nothing
        os.rename(m.path(f"step_{n}.tmp"), m.path(f"step_{n}"))
    last = counts(m, identical=1)
    assert "step_2" in last and "step_1" in last and "stale" in last, last
    step(m, 3)
    counts(m, identical=1)
    same(get(m.path("step_2/state.json")), b'{"step": 2}')


@ck.mounted()
def a_tracker_publishes_in_place(m):
    def iteration(number, tensors=None):
        folder = m.path("iter_%07d" % number)
        os.mkdir(folder)
        for rank in range(2):
            save(f"{folder}/rank_{rank}.safetensors", tensors or BASE,
                 number * 10 + rank)
        ck.put(m.path("latest_checkpointed_iteration.txt"),
               str(number).encode())

    iteration(90)
    iteration(100)
    assert counts(m) == "" and figures(m)["checked"] == 2
    iteration(110, MORE)
    assert "2 tensors are new (rerun, rerun)" in counts(m, different=1)
    os.mkdir(m.path("global_step5"))
    save(m.path("global_step5/mp_rank_00_model_states.safetensors"), BASE)
    ck.put(m.path("latest"), b"global_step5\n")
    assert figures(m)["checked"] == 4
    # What names no step is nobody's business.
    for text in (b"nothing", b"", b"..", b"\0", b"9" * 400, b"x" * 4000):
        ck.put(m.path("latest"), text)
    assert figures(m)["checked"] == 4


@ck.mounted("structure=refuse")
def what_is_not_the_same_is_not_published(m):
    m.expected.append("not published")
    step(m, 1)
    assert figures(m)["checked"] == 1  # by the rename, and nobody else
    bad = step(m, 2, LESS, publish=False)
    fails(EUCLEAN, os.rename, bad + ".tmp", bad)
    assert sorted(os.listdir(m.mnt)) == ["step_1", "step_2.tmp"]
    assert "2 tensors are gone (v, v)" in \
        counts(m, different=1, gone=1, refused=1)
    assert "(v, v)" in m.log_text() and "not published" in m.log_text()
    # Told that it is meant, it goes.
    os.setxattr(bad + ".tmp", "user.ckptfs.structure_policy", b"warn")
    os.rename(bad + ".tmp", bad)
    counts(m, different=2, gone=2, refused=1)
    good = step(m, 3, LESS)
    for _ in m.stages(good + "/rank_0.safetensors"):
        assert os.path.isdir(good)


@ck.mounted("structure=refuse")
def a_tracker_that_is_refused_keeps_what_it_said(m):
    m.expected.append("not published")
    latest = m.path("latest")
    step(m, 1, name="global_step%d")
    ck.put(latest, b"global_step1")
    m.flush()
    os.setxattr(m.path(), "user.ckptfs.structure_policy", b"off")
    step(m, 2000, LESS, name="global_step%d")
    os.setxattr(m.path(), "user.ckptfs.structure_policy", b"refuse")
    for sync in (False, True):
        fd = os.open(latest, os.O_WRONLY | os.O_TRUNC)
        os.write(fd, b"global_step2000")
        if sync:
            fails(EUCLEAN, os.fsync, fd)
            os.close(fd)
        else:
            fails(EUCLEAN, os.close, fd)
        same(get(latest), b"global_step1")
        assert os.path.getsize(latest) == len(b"global_step1")
    for _ in m.stages(latest):
        same(get(latest), b"global_step1")
    m.remount()
    # So does one that is put in place by a rename.
    ck.put(latest + ".tmp", b"global_step2000")  # is none yet
    fails(EUCLEAN, os.rename, latest + ".tmp", latest)
    same(get(latest), b"global_step1")
    # The first of all has nothing to go back to.
    os.unlink(latest)
    os.setxattr(m.path("global_step1"), "user.ckptfs.expect", b"none")
    fd = os.open(latest, os.O_WRONLY | os.O_CREAT)
    os.write(fd, b"global_step1")
    fails(EUCLEAN, os.close, fd)
    same(get(latest), b"")


@ck.mounted()
def a_symbolic_link_is_a_tracker_too(m):
    latest = m.path("latest")
    os.setxattr(m.path(), "user.ckptfs.structure_policy", b"off")
    for number, tensors in ((1, BASE), (2, BASE), (3, MORE)):
        step(m, number, tensors)
    os.setxattr(m.path(), "user.ckptfs.structure_policy", b"warn")
    os.symlink("step_2", latest)
    assert counts(m) == "" and figures(m)["checked"] == 1
    # As ln -sfn does it: made aside, and put in place.
    os.symlink("./step_3/", m.path("aside"))
    assert figures(m)["checked"] == 1
    os.rename(m.path("aside"), latest)
    assert "2 tensors are new (rerun, rerun)" in counts(m, different=1)
    os.unlink(latest)
    os.symlink(m.path("step_1"), latest)
    assert figures(m)["checked"] == 3
    # What leads elsewhere, or nowhere, names no step beside it.
    for target in ("step_9", "sub/step_1", "../step_1", "..", ".", "/",
                   "./", "x" * 4000):
        os.unlink(latest)
        os.symlink(target, latest)
    assert figures(m)["checked"] == 3
    run = m.path("run")
    os.mkdir(run)
    os.mkdir(f"{run}/step_1")
    save(f"{run}/step_1/model.safetensors", BASE)
    os.symlink(m.path("step_1"), f"{run}/latest")  # not this one
    assert figures(m)["checked"] == 3
    os.symlink(f"{run}/step_1", f"{run}/latest_too")
    assert figures(m)["checked"] == 4


@ck.mounted("structure=refuse")
def a_link_to_what_is_refused_is_not_made(m):
    m.expected.append("not published")
    latest = m.path("latest")
    step(m, 1)
    os.setxattr(m.path(), "user.ckptfs.structure_policy", b"off")
    step(m, 2, LESS)
    os.setxattr(m.path(), "user.ckptfs.structure_policy", b"refuse")
    fails(EUCLEAN, os.symlink, "step_2", latest)
    assert not os.path.lexists(latest)
    os.symlink("step_1", latest)
    os.symlink("step_2", m.path("aside"))
    fails(EUCLEAN, os.rename, m.path("aside"), latest)
    assert os.readlink(latest) == "step_1"
    # A second name publishes like the first.
    os.unlink(latest)
    ck.put(m.path("text"), b"step_2")
    fails(EUCLEAN, os.link, m.path("text"), latest)
    assert not os.path.lexists(latest)
    ck.put(m.path("text"), b"step_1")
    os.link(m.path("text"), latest)
    same(get(latest), b"step_1")
    assert figures(m)["refused"] == 3


@ck.mounted("structure=refuse")
def what_was_declared_must_be_there(m):
    m.expected.append("not published")
    os.setxattr(m.path(), "user.ckptfs.expect", b"w\nv\r\n\n")
    step(m, 1)
    os.setxattr(m.path(), "user.ckptfs.expect", b"w\nv\nrerun\n")
    os.mkdir(m.path("run"))
    bad = step(m, 2, publish=False)
    fails(EUCLEAN, os.rename, bad + ".tmp", bad)
    last = counts(m, missing=1, refused=1)
    assert "(rerun)" in last and "user.ckptfs.expect" in last, last
    # The nearest folder's word counts.
    os.setxattr(bad + ".tmp", "user.ckptfs.expect", b"w")
    os.rename(bad + ".tmp", bad)
    many = "\n".join(f"layer.{i}" for i in range(100))
    bad = step(m, 3, publish=False)
    os.setxattr(bad + ".tmp", "user.ckptfs.expect", many.encode())
    fails(EUCLEAN, os.rename, bad + ".tmp", bad)
    assert "layer.0, layer.1, layer.2, layer.3, ... 100 in all" in \
        figures(m)["last"]


@ck.mounted("structure=refuse")
def what_comes_and_goes_on_purpose_is_passed_over(m):
    m.expected.append("not published")
    ignore = "user.ckptfs.structure_ignore"

    def state(number, **more):
        return {**BASE, f"part.{number}.state": ("U8", (number,)), **more}

    step(m, 1, state(1))
    bad = step(m, 2, state(2), publish=False)
    fails(EUCLEAN, os.rename, bad + ".tmp", bad)
    # Neither a part of the name nor a letter more or less will do.
    for pattern in (b"part.*.stat", b"part", b"?.1.state", b"art*", b""):
        os.setxattr(m.path(), ignore, pattern)
        fails(EUCLEAN, os.rename, bad + ".tmp", bad)
    os.setxattr(m.path(), ignore, b"nothing\r\n\np*t.?.s**te\n")
    os.rename(bad + ".tmp", bad)
    same(diff(bad), "")
    # What else is different is seen, and the nearest folder's word counts.
    bad = step(m, 3, {"w": BASE["w"]}, publish=False)
    fails(EUCLEAN, os.rename, bad + ".tmp", bad)
    last = figures(m)["last"]
    assert "(v, v)" in last and "part" not in last, last
    os.setxattr(bad + ".tmp", ignore, b"v")
    fails(EUCLEAN, os.rename, bad + ".tmp", bad)
    os.setxattr(bad + ".tmp", ignore, b"*")
    os.rename(bad + ".tmp", bad)
    same(figures(m)["refused"], 8)

    lines = "\n".join(f"layer.{i}.*" for i in range(64)).encode()
    os.setxattr(bad, ignore, lines + b"\n")
    fails(errno.E2BIG, os.setxattr, bad, ignore, lines + b"\nx")
    fails(errno.EINVAL, os.setxattr, bad, ignore, b"a\0b")


@ck.mounted("structure=refuse")
def what_is_damaged_is_not_published(m):
    m.expected.append("not published")
    bad = step(m, 1, publish=False) + ".tmp"
    whole = get(bad + "/rank_1.safetensors")
    ck.put(bad + "/rank_1.safetensors", whole[:-1])
    fails(EUCLEAN, os.rename, bad, m.path("step_1"))
    assert "rank_1.safetensors" in counts(m, broken=1, refused=1)
    ck.put(bad + "/rank_1.safetensors", whole)
    ck.put(bad + "/.metadata", b"\x80\x04.")
    fails(EUCLEAN, os.rename, bad, m.path("step_1"))
    assert ".metadata" in figures(m)["last"]
    # .metadata is put in place by its own rename.
    os.unlink(bad + "/.metadata")
    os.rename(bad, m.path("step_1"))
    ck.put(m.path("step_1/.metadata.tmp"), b"\x80\x04.")
    fails(EUCLEAN, os.rename, m.path("step_1/.metadata.tmp"),
          m.path("step_1/.metadata"))
    assert not os.path.exists(m.path("step_1/.metadata"))
    # A name in a file cannot forge a line of the log.
    os.rename(m.path("step_1"), m.path("step_2"))
    save(m.path("step_2/rank_0.safetensors"),
         dict(BASE, **{"a\nckptfs: ERROR: forged": ("U8", (1,))}))
    bad = step(m, 3, publish=False)
    fails(EUCLEAN, os.rename, bad + ".tmp", bad)
    assert "a?ckptfs:" in figures(m)["last"]
    assert "\nckptfs: ERROR: forged" not in m.log_text()


@ck.mounted("structure=refuse")
def what_a_newer_torch_wrote_is_published_and_reported(m):
    new = step(m, 1, publish=False) + ".tmp"
    ck.put(new + "/.metadata", b"\x80\x04ctorch.newer\nMetadata\n.")
    os.rename(new, m.path("step_1"))
    assert "'torch.newer.Metadata'" in figures(m)["last"]
    assert figures(m)["refused"] == 0, figures(m)


@ck.mounted()
def what_it_says_is_text_whatever_the_names_are(m):
    for i in range(1, 6):
        folder = os.fsencode(m.path()) + b"/\xff\xfe_step_%d" % i
        aside = os.fsdecode(folder) + ".tmp"
        os.mkdir(aside)
        save(aside + "/a.safetensors", {  # cut off in all places of a letter
            "x" * i + "\u20ac" * 90 + str(n): ("U8", (1,)) for n in range(9)})
        os.rename(aside, folder)
        last = figures(m)["last"]
        assert i == 1 or "??_step_" in last, last
        if i > 1:
            os.getxattr(folder, "user.ckptfs.structure_diff").decode()
    counts(m, different=4, gone=4)


@ck.mounted("structure=refuse")
def where_a_step_goes_to_counts_and_not_where_it_was(m):
    m.expected.append("not published")
    for folder in ("aside", "run"):
        os.mkdir(m.path(folder))
    os.setxattr(m.path("aside"), "user.ckptfs.structure_policy", b"off")
    os.setxattr(m.path("run"), "user.ckptfs.expect", b"w\nv")
    step(m, 1, name="aside/step_%d")
    os.rename(m.path("aside/step_1"), m.path("run/step_1"))
    step(m, 2, LESS, name="aside/step_%d")
    fails(EUCLEAN, os.rename, m.path("aside/step_2"), m.path("run/step_2"))
    step(m, 3, {"w": BASE["w"]}, name="aside/step_%d")
    fails(EUCLEAN, os.rename, m.path("aside/step_3"), m.path("run/step_3"))
    assert "declares are not there (v)" in figures(m)["last"]
    # An exchange publishes both.
    step(m, 2, name="run/step_%d")
    for old, new in (("aside", "run"), ("run", "aside")):
        fails(EUCLEAN, ck.renameat2, m.path(old + "/step_2"),
              m.path(new + "/step_2"), ck.RENAME_EXCHANGE)
    # What has no tensors is no step, and nothing is expected of it.
    os.mkdir(m.path("run/logs.tmp"))
    os.rename(m.path("run/logs.tmp"), m.path("run/logs"))


@ck.mounted("structure=refuse")
def what_is_no_measure_is_passed_over(m):
    m.expected.append("not published")
    step(m, 1)
    os.mkdir(m.path("step_2"))  # it was never finished
    os.mkdir(m.path("step_3"))
    ck.put(m.path("step_3/rank_0.safetensors"), b"torn")
    bad = step(m, 4, LESS, publish=False)
    fails(EUCLEAN, os.rename, bad + ".tmp", bad)
    assert "not that of step_1" in figures(m)["last"]
    # Its own number in a file's name does not make it another file.
    for i in (1, 2):
        os.mkdir(m.path(f"n_step{i}.tmp"))
        save(m.path(f"n_step{i}.tmp/model_{i}_rank_1.safetensors"), BASE, i)
        os.rename(m.path(f"n_step{i}.tmp"), m.path(f"n_step{i}"))
    assert diff(m.path("n_step2")) == ""
    os.mkdir(m.path("n_step3.tmp"))
    save(m.path("n_step3.tmp/model_3_rank_7.safetensors"), BASE, 3)
    os.rename(m.path("n_step3.tmp"), m.path("n_step3"))
    assert "2 tensors are in another file (v, w)" in figures(m)["last"]


@ck.mounted("debug_hold_drain,structure=refuse")
def a_tracker_goes_back_to_what_was_accepted_last(m):
    m.expected.append("not published")
    latest = m.path("latest")
    for number in (1, 2, 3):
        os.mkdir(m.path(f"step_{number}"))
        save(m.path(f"step_{number}/a.safetensors"),
             LESS if number == 3 else BASE, number)
    for number in (1, 2):  # of which nothing is durable yet
        ck.put(latest, b"step_%d" % number)
    fails(EUCLEAN, ck.put, latest, b"step_3")
    same(get(latest), b"step_2")
    for _ in m.stages(latest):
        same(get(latest), b"step_2")


@ck.mounted("structure=refuse,debug_hold_drain")
def what_is_refused_is_not_made_durable_by_looking_for_the_old(m):
    m.expected.append("not published")
    latest = m.path("latest")
    for number in (1, 2):
        os.mkdir(m.path(f"step_{number}"))
        save(m.path(f"step_{number}/a.safetensors"),
             LESS if number == 2 else BASE, number)
    fd = os.open(latest, os.O_WRONLY | os.O_CREAT)
    os.write(fd, b"step_1")
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=fd):
        os.close(fd)  # but the child has it: what was closed is changed
        fails(EUCLEAN, ck.put, latest, b"step_2")
        same(get(latest), b"")
    # Each of several who have opened it has his close.
    fd = os.open(latest, os.O_WRONLY)
    fails(EUCLEAN, ck.put, latest, b"step_2")
    os.close(fd)


@ck.mounted()
def a_long_difference_fits_into_an_attribute(m):
    step(m, 1)
    step(m, 2, {"n" * 80 + str(i): ("U8", (1,)) for i in range(2000)})
    m.flush()
    text = diff(m.path("step_2"))
    assert 60000 < len(text) <= 65536, len(text)
    # Names out of what another user keeps to himself are not told.
    os.chown(m.path("step_2"), ck.USER, ck.USER)
    ck.as_user(lambda: fails(errno.EACCES, diff, m.path("step_2")))
    os.chown(m.path("step_1"), ck.USER, ck.USER)
    same(ck.as_user(lambda: diff(m.path("step_2"))), text)
    told = ck.as_user(lambda: subprocess.run(
        [ck.CKPTCTL, "status", "--timeout", "240", "--json", m.mnt], check=True,
        stdout=subprocess.PIPE, timeout=ck.WAIT_BOUND).stdout)
    assert json.loads(told)["structure"]["last"] == ""
    assert json.loads(told)["structure"]["different"] == 1


@ck.mounted("structure=off")
def nothing_is_looked_at_when_told_so(m):
    step(m, 1)
    step(m, 2, MORE)
    counts(m)
    assert figures(m)["checked"] == 0
    assert "gone" not in diff(m.path("step_2"))
    assert "new: rerun\n" in diff(m.path("step_2"))
    os.setxattr(m.path(), "user.ckptfs.structure_policy", b"warn")
    step(m, 3)
    counts(m, different=1)


@ck.mounted()
def what_is_no_step_is_let_alone(m):
    os.mkdir(m.path("plain_1.tmp"))
    os.rename(m.path("plain_1.tmp"), m.path("plain_1"))
    for rank in range(3):  # parts of one step, each with its own tensors
        step(m, rank, {f"t{rank}": ("U8", (4,))}, name="rank_%d")
    os.mkdir(m.path("a_2"))
    os.rename(m.path("a_2"), m.path("b_2"))
    os.symlink("nowhere", m.path("latest"))
    ck.put(m.path("file_1"), data(KIB))
    os.rename(m.path("file_1"), m.path("file_2"))
    counts(m)
    fails(errno.ENODATA, os.getxattr, m.path("plain_1"),
          "user.ckptfs.structure")
    fails(errno.ENODATA, diff, m.path("plain_1"))
    fails(errno.ENODATA, diff, m.path("rank_1"))


@ck.mounted()
def attributes_are_told_from_ours(m):
    path = m.path("step_1")
    step(m, 1)
    fails(errno.EPERM, os.setxattr, path, "user.ckptfs.structure", b"x")
    fails(errno.EPERM, os.setxattr, path, "user.ckptfs.structure_diff", b"x")
    fails(errno.EINVAL, os.setxattr, path, "user.ckptfs.structure_policy",
          b"perhaps")
    os.setxattr(path, "user.ckptfs.structure_policy", b"off")
    os.setxattr(path, "user.ckptfs.expect", b"a")
    same(sorted(os.listxattr(path)), ["user.ckptfs.expect",
                                      "user.ckptfs.structure_policy"])
    os.removexattr(path, "user.ckptfs.expect")
    same(ck.as_user(lambda: ck.xattr(path, "structure")),
         ck.xattr(path, "structure"))
    ck.as_user(lambda: fails(errno.EACCES, diff, path))
    # The command says the same of a file and of a folder.
    for name in ("step_1", "step_1/rank_0.safetensors"):
        seen = json.loads(m.ctl("inspect", "--json", m.path(name)))
        assert seen["structure"] == ck.xattr(m.path(name), "structure"), name
    copy = os.path.join(m.base, "copy")
    shutil.copytree(path, copy)
    seen = json.loads(subprocess.run(
        [ck.CKPTCTL, "inspect", "--json", copy], check=True,
        stdout=subprocess.PIPE, timeout=ck.WAIT_BOUND).stdout)
    assert seen["structure"] == ck.xattr(path, "structure")


if __name__ == "__main__":
    ck.main()
