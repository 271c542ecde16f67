"""Which steps are refused and which are only told of, and where the reason is."""
import errno
import itertools
import json
import os
import subprocess
import sys

import ckptest as ck
from ckptest import fails, same
from steps import BASE, LESS, MORE, counts, figures, save, step

EUCLEAN = errno.EUCLEAN
REFUSED = "user.ckptfs.refused"
SEEDS = itertools.count(1)    # no two steps have the same bytes


def why(path):
    return os.getxattr(path, REFUSED).decode()


def says_nothing(path):
    fails(errno.ENODATA, os.getxattr, path, REFUSED)


def folder(m, path, files):
    """A folder of files of tensors, each file with its tensors."""
    os.makedirs(m.path(path))
    for name, tensors in files.items():
        os.makedirs(os.path.dirname(m.path(f"{path}/{name}")), exist_ok=True)
        save(m.path(f"{path}/{name}"), tensors, next(SEEDS))


def publish(m, path, files):
    folder(m, path + ".tmp", files)
    os.rename(m.path(path + ".tmp"), m.path(path))


def is_refused(m, path, files):
    folder(m, path + ".tmp", files)
    fails(EUCLEAN, os.rename, m.path(path + ".tmp"), m.path(path))


@ck.mounted("structure=refuse")
def the_reason_is_at_the_path_of_the_error(m):
    m.expected.append("not published")
    step(m, 1)
    bad = step(m, 2, LESS, publish=False)
    says_nothing(bad + ".tmp")
    try:
        os.rename(bad + ".tmp", bad)
        raise AssertionError("it was published")
    except OSError as e:
        same(e.errno, EUCLEAN)
        assert "2 tensors are gone (v, v)" in why(e.filename)
    for _ in m.stages(bad + ".tmp/rank_0.safetensors"):
        assert "2 tensors are gone (v, v)" in why(bad + ".tmp")
    fails(errno.EPERM, os.setxattr, bad + ".tmp", REFUSED, b"x")
    fails(errno.EPERM, os.removexattr, bad + ".tmp", REFUSED)
    same(os.listxattr(bad + ".tmp"), [])
    os.setxattr(bad + ".tmp", "user.mine", b"x")
    same(os.listxattr(bad + ".tmp"), ["user.mine"])
    says_nothing(m.path("step_1"))
    # A file that is written anew, or a new one: it is another step now.
    save(bad + ".tmp/rank_1.safetensors", BASE, 5)
    says_nothing(bad + ".tmp")
    fails(EUCLEAN, os.rename, bad + ".tmp", bad)
    assert "1 tensor is gone (v)" in why(bad + ".tmp")
    ck.put(bad + ".tmp/more", b"x")
    says_nothing(bad + ".tmp")
    fails(EUCLEAN, os.rename, bad + ".tmp", bad)
    os.setxattr(bad + ".tmp", "user.ckptfs.structure_policy", b"warn")
    os.rename(bad + ".tmp", bad)
    says_nothing(bad)


@ck.mounted("structure=refuse")
def the_reason_is_at_what_was_to_publish_as_well(m):
    m.expected.append("not published")
    latest = m.path("latest")
    os.setxattr(m.path(), "user.ckptfs.structure_policy", b"off")
    step(m, 1)
    step(m, 2, LESS)
    step(m, 3)
    os.setxattr(m.path(), "user.ckptfs.structure_policy", b"refuse")
    ck.put(latest, b"step_1")
    fails(EUCLEAN, ck.put, latest, b"step_2")
    for path in (latest, m.path("step_2")):
        assert "2 tensors are gone (v, v)" in why(path)
    ck.put(latest, b"step_3")
    says_nothing(latest)
    assert "gone" in why(m.path("step_2"))
    # .metadata.tmp is what os.rename() names.
    ck.put(m.path("step_3/.metadata.tmp"), b"\x80\x04torn")
    fails(EUCLEAN, os.rename, m.path("step_3/.metadata.tmp"),
          m.path("step_3/.metadata"))
    assert "it is damaged: .metadata" in why(m.path("step_3/.metadata.tmp"))
    assert "it is damaged: .metadata" in why(m.path("step_3"))
    # Names out of files are for who may read them.
    ck.as_user(lambda: fails(errno.EACCES, why, m.path("step_2")))


@ck.mounted("structure=refuse")
def what_a_newer_torch_may_write_is_no_damage(m):
    step(m, 1)
    ck.put(m.path("step_1/.metadata.tmp"),
           b"\x80\x04\x8c\x0btorch.newer\x8c\x04Plan\x93.")
    os.rename(m.path("step_1/.metadata.tmp"), m.path("step_1/.metadata"))
    says_nothing(m.path("step_1"))
    last = figures(m)
    assert last["refused"] == 0, last


@ck.mounted("structure=refuse")
def status_has_the_last_ten(m):
    m.expected.append("not published")
    step(m, 1)
    for number in range(2, 14):
        bad = step(m, number, LESS, publish=False)
        fails(EUCLEAN, os.rename, bad + ".tmp", bad)
    last = figures(m)
    assert last["checked"] == 13 and last["refused"] == 12, last
    same([r["path"] for r in last["refusals"]],
         [f"/step_{n}.tmp" for n in range(13, 3, -1)])
    assert all("(v, v)" in r["why"] and r["at_s"] > 1e9
               for r in last["refusals"]), last
    text = m.ctl("status", m.mnt)
    assert "13 checked, 12 refused, 12 different, 12 gone" in text, text
    assert text.count("    refused 2") == 10 and "/step_13.tmp\n" in text, text
    # To others only of their own steps.
    os.chown(m.path("step_13.tmp"), ck.USER, ck.USER)
    fails(EUCLEAN, os.rename, m.path("step_13.tmp"), m.path("step_13"))
    told = json.loads(ck.as_user(lambda: subprocess.run(
        [ck.CKPTCTL, "status", "--timeout", "240", "--json", m.mnt], check=True,
        stdout=subprocess.PIPE, timeout=ck.WAIT_BOUND).stdout))
    same([r["path"] for r in told["structure"]["refusals"]],
         ["/step_13.tmp"])


@ck.mounted("structure=refuse")
def what_is_no_loss_is_published(m):
    optim = {"state.0.exp_avg": ("F32", (8,)), "state.0.step": ("F32", (1,))}
    seen = {"w": BASE["w"], "loader.seen": ("U8", (10,))}
    rows = (
        # what it begins with, what follows, and what is said of that
        ({"model": BASE}, {"model": BASE, "optimizer": optim}, "are new"),
        ({"model": BASE, "optimizer": optim}, {"model": BASE}, "left out"),
        ({"model": BASE}, {"model": MORE}, "is new (rerun)"),
        ({"model": seen}, {"model": dict(seen, **{
            "loader.seen": ("U8", (11,))})}, "of another shape"),
        ({"model": BASE}, {"adapter_model": {"q.lora_A": ("F32", (4,))}},
         "left out (v, w)"),
        ({"model": BASE}, {"model-1-of-2": {"v": BASE["v"]},
                           "model-2-of-2": {"w": BASE["w"]}},
         "in another file"),
    )
    for i, (before, after, said) in enumerate(rows):
        os.mkdir(m.path(f"run{i}"))
        for number, files in ((1, before), (2, after)):
            publish(m, f"run{i}/step_{number}",
                    {f"{k}.safetensors": v for k, v in files.items()})
        assert said in figures(m)["last"], (i, figures(m)["last"])
    counts(m, different=len(rows))


@ck.mounted("structure=refuse")
def what_is_a_loss_is_refused(m):
    m.expected.append("not published")
    optim = {"state.0.exp_avg": ("F32", (8,)), "state.1.exp_avg": ("F32", (8,))}
    rows = (
        ({"model": BASE}, {"model": LESS}, "gone (v)"),
        ({"model": BASE, "optimizer": optim},
         {"model": BASE, "optimizer": {"state.0.exp_avg": ("F32", (8,))}},
         "gone (state.1.exp_avg)"),
        ({"model": BASE, "optimizer": optim}, {"model": LESS}, "gone (v)"),
        ({"actor/model": BASE, "critic/model": BASE}, {"actor/model": BASE},
         "gone (v, w)"),
        ({"rank_0": BASE, "rank_1": BASE}, {"rank_0": BASE}, "gone (v, w)"),
    )
    for i, (before, after, said) in enumerate(rows):
        publish(m, f"run{i}/step_1",
                {f"{k}.safetensors": v for k, v in before.items()})
        is_refused(m, f"run{i}/step_2",
                   {f"{k}.safetensors": v for k, v in after.items()})
        assert said in figures(m)["last"], (i, figures(m)["last"])
    counts(m, different=len(rows), gone=len(rows), refused=len(rows))


@ck.mounted("structure=refuse")
def what_an_emergency_added_may_go_again(m):
    m.expected.append("not published")
    step(m, 1)
    step(m, 2, MORE)
    step(m, 3)
    assert "2 tensors are left out (rerun, rerun)" in counts(m, different=2)
    assert "left out: rerun\n" in os.getxattr(
        m.path("step_3"), "user.ckptfs.structure_diff").decode()
    step(m, 4, MORE)
    step(m, 5, MORE)    # now it is a part of the step
    bad = step(m, 6, publish=False)
    fails(EUCLEAN, os.rename, bad + ".tmp", bad)
    counts(m, different=4, gone=1, refused=1)


@ck.mounted("structure=refuse")
def folders_that_are_no_steps_are_not_compared(m):
    m.expected.append("not published")
    for names in (("llama-7b", "llama-13b"), ("stage1", "stage2"),
                  ("export-v1", "export-v2"), ("trial_0", "trial_1"),
                  ("llama-7b-step-1", "llama-13b-step-2"),
                  ("rank_0_step_1", "rank_1_step_2")):
        for name, tensors in zip(names, (BASE, LESS)):
            publish(m, name, {"a.safetensors": tensors})
    counts(m)
    # A number at the end is a step when they lie in a row, or a tracker says.
    for name, tensors in (("a/100", MORE), ("a/200", BASE), ("b/run_7", MORE),
                          ("b/run_13", BASE)):
        publish(m, name, {"a.safetensors": tensors})
    counts(m)
    is_refused(m, "a/300", {"a.safetensors": LESS})
    ck.put(m.path("b/latest"), b"run_7")
    is_refused(m, "b/run_17", {"a.safetensors": LESS})
    os.unlink(m.path("b/latest"))
    os.rename(m.path("b/run_17.tmp"), m.path("b/run_17"))
    fails(EUCLEAN, ck.put, m.path("b/latest"), b"run_17")
    # What a staging folder has is compared under the name that it gets.
    publish(m, "step_1", {"a.safetensors": BASE})
    folder(m, "aside", {"a.safetensors": LESS})
    os.rename(m.path("aside"), m.path("step_2.incomplete"))
    fails(EUCLEAN, os.rename, m.path("step_2.incomplete"), m.path("step_2"))


@ck.mounted("structure=refuse")
def what_was_measured_is_not_what_is_counted(m):
    m.expected.append("not published")
    name = "model--val_loss=%s-epoch=%d-step=%d%s"
    publish(m, name % ("0.90", 0, 50, ""), {"weights.safetensors": MORE})
    last = name % ("0.50", 1, 100, "-last")
    is_refused(m, last, {"weights.safetensors": BASE})
    assert "not that of model--val_loss=0.90" in why(m.path(last + ".tmp"))


@ck.mounted("structure=refuse")
def a_step_is_all_that_lies_below_it(m):
    m.expected.append("not published")
    parts = {"actor/model_rank_0.safetensors": BASE,
             "critic/model_rank_0.safetensors": BASE,
             "critic/deep/er/head.safetensors": {"h": ("U8", (4,))}}
    publish(m, "global_step_1", parts)
    bad = dict(parts)
    del bad["critic/deep/er/head.safetensors"]
    is_refused(m, "global_step_2", bad)
    assert "1 tensor is gone (h)" in why(m.path("global_step_2.tmp"))
    # A folder in a step has the one of that name in the step before.
    folder(m, "global_step_3", {"actor/model_rank_0.safetensors": BASE})
    is_refused(m, "global_step_3/critic",
               {"model_rank_0.safetensors": LESS})
    assert "not that of global_step_1" in why(
        m.path("global_step_3/critic.tmp"))
    publish(m, "global_step_3/other", {"a.safetensors": LESS})
    # A folder of steps is none.
    publish(m, "all", {f"step_{n}/a.safetensors": BASE for n in (1, 2)})
    fails(errno.ENODATA, ck.xattr, m.path("all"), "structure")
    same(len(os.listdir(m.path("all"))), 2)


@ck.mounted("structure=refuse")
def what_an_index_names_must_be_there(m):
    m.expected.append("not published")
    one, two = (f"model-0000{n}-of-00002.safetensors" for n in (1, 2))
    index = json.dumps({"metadata": {"total_size": 1},
                        "weight_map": {"w": one, "v": two}}).encode()

    def make(number, files, text=index):
        path = m.path(f"checkpoint-{number}")
        folder(m, f"checkpoint-{number}.tmp", files)
        ck.put(path + ".tmp/model.safetensors.index.json", text)
        return path + ".tmp", path

    w, v = {"w": BASE["w"]}, {"v": BASE["v"]}
    os.rename(*make(1, {one: w, two: v}))
    bad = make(2, {one: BASE})
    fails(EUCLEAN, os.rename, *bad)
    assert f"not complete: {two}: the file that is named by" in why(bad[0])
    bad = make(3, {one: w, two: w})
    fails(EUCLEAN, os.rename, *bad)
    assert "tensor 'v' named by model.safetensors.index.json is not there" \
        in why(bad[0]), why(bad[0])
    bad = make(4, {one: w, two: v}, index[:-9])
    fails(EUCLEAN, os.rename, *bad)
    assert "it is damaged: model.safetensors.index.json" in why(bad[0])
    counts(m, different=2, gone=1, missing=2, broken=1, refused=3)
    # A leftover beside the model in one file, or something else.
    os.rename(*make(5, {"model.safetensors": BASE}))
    os.rename(*make(6, {one: w, two: v}, b'{"weight_map": [1], "x": "y"}'))


@ck.mounted("structure=refuse")
def a_smaller_world_has_fewer_files(m):
    m.expected.append("not published")
    script = ("import os, sys; sys.path.insert(0, sys.argv[1]); "
              "import steps; "
              "steps.save(sys.argv[2], steps.BASE, int(sys.argv[3]))")

    def ranks(path, world, count):
        os.makedirs(m.path(path))
        for rank in range(count):
            subprocess.run(
                [sys.executable, "-c", script,
                 os.path.dirname(os.path.abspath(__file__)),
                 m.path(f"{path}/rank_{rank}.safetensors"),
                 str(next(SEEDS))],
                env={**os.environ, "RANK": str(rank),
                     "WORLD_SIZE": str(world)},
                check=True, timeout=ck.WAIT_BOUND)
        return m.path(path), m.path(path)[:-len(".tmp")]

    os.rename(*ranks("step_1.tmp", 3, 3))
    os.rename(*ranks("step_2.tmp", 2, 2))
    same(counts(m), "")
    bad = ranks("step_3.tmp", 2, 1)
    fails(EUCLEAN, os.rename, *bad)
    assert "2 tensors are gone (v, w)" in why(bad[0])


def memory(m, what):
    with open(f"/proc/{m.proc.pid}/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f
                    if line.startswith(what + ":"))


def sanitized(m):
    with open(f"/proc/{m.proc.pid}/maps") as f:
        return "libasan" in f.read()


@ck.mounted("structure=refuse")
def what_is_too_large_to_check_takes_no_memory_and_is_published(m):
    step(m, 1)
    before = memory(m, "RssAnon")
    # As many tensors as a header of 83 MiB has, and numbers alone.
    count = 83 * ck.MIB // 62
    names = ",".join(
        '"t%07d":{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]}'
        % (i, i, i + 1) for i in range(count))
    huge = ("{%s}" % names).encode()
    assert 80 * ck.MIB < len(huge) < 100 * ck.MIB, len(huge)
    for i, text in enumerate((huge, b'{"a":[' + b"0," * (10 * ck.MIB) + b"0]}")):
        run = f"run{i}"
        os.mkdir(m.path(run))
        for number in (1, 2):
            step(m, number, name=run + "/step_%d", publish=False)
            aside = m.path(f"{run}/step_{number}.tmp")
            with open(aside + "/huge.safetensors", "wb") as f:
                f.write(len(text).to_bytes(8, "little"))
                f.write(text)
                f.write(bytes(count if i == 0 else 0))
            os.rename(aside, m.path(f"{run}/step_{number}"))
            said = figures(m)["last"]
            assert "not looked at: huge.safetensors: too large" in said, said
            folder = m.path(f"{run}/step_{number}")
            assert "not looked at: huge.safetensors: too large" in os.getxattr(
                folder, "user.ckptfs.structure_diff").decode()
            fails(errno.EFBIG, os.getxattr, folder + "/huge.safetensors",
                  "user.ckptfs.structure")
        # A sanitizer keeps what is freed.
        seen = memory(m, "RssAnon") - before
        assert sanitized(m) or seen < len(huge), seen
    # All of it, with the file that the drain has mapped.
    peak = memory(m, "VmHWM") - before
    assert sanitized(m) or peak < 4 * len(huge), (peak, len(huge))
    # A tensor that is gone may be in what was not read.
    step(m, 3, LESS, name="run1/step_%d", publish=False)
    ck.put(m.path("run1/step_3.tmp/huge.safetensors"),
           (90 * ck.MIB).to_bytes(8, "little") + b"{")
    with open(m.path("run1/step_3.tmp/huge.safetensors"), "r+b") as f:
        f.truncate(91 * ck.MIB)
    os.rename(m.path("run1/step_3.tmp"), m.path("run1/step_3"))
    same(figures(m)["refused"], 0)


if __name__ == "__main__":
    ck.main()
