"""Steps of many layouts that broke on their way, and steps that did not: which
of them structure=refuse lets through."""
import errno
import json
import os
import random

import ckptest as ck
import layouts
from ckptest import fails, get, same
from layouts import Tensor, torch_save
from steps import figures
from trainers import EUCLEAN, LAYOUTS, REFUSED, good_steps, told
from trainers import hf, megatron_dist, megatron_item, shapes
from trainers import single_torch, tensors


# --- what happens to them ---

def largest(files):
    """The file that has most of the tensors."""
    return max(files, key=lambda k: (len(files[k]), k))


def missing(files, _):
    del files[largest(files)]


def truncated(files, _):
    files[largest(files)] = files[largest(files)][:-100]


def zeroed(files, _):
    for name in files:
        if not name.endswith((".json", ".metadata")):
            files[name] = bytes(len(files[name]))


def one_zeroed(files, _):
    files[largest(files)] = bytes(len(files[largest(files)]))


def noise(files, _):
    for name in files:
        if not name.endswith((".json", ".metadata")):
            files[name] = random.Random(7).randbytes(len(files[name]))


def one_noise(files, _):
    name = largest(files)
    files[name] = random.Random(8).randbytes(len(files[name]))


def empty(files, _):
    files[largest(files)] = b""


def swapped(files, other):
    """Two files change places, if there are two of another size."""
    names = sorted((k for k in files if not k.endswith((".json", ".metadata"))),
                   key=lambda k: len(files[k]))
    files[names[0]], files[names[-1]] = files[names[-1]], files[names[0]]


def dropped(files, _):
    """A tensor is not in its file any more."""
    name = largest(files)
    if name.endswith(".safetensors") or files[name][8:9] == b"{":
        files[name] = layouts.safetensors(shapes("a"), 1)
    elif name.endswith(".distcp"):
        files[name] = torch_save(Tensor(8, 16))
    else:
        files[name] = torch_save({"model": tensors(3, "a"), "iteration": 3}
                                 if b"optimizer" in files[name] else
                                 tensors(3, "a"))


def hollow(files, _):
    """Each file is whole, and has no tensor: a model that is {}."""
    if ".metadata" in files:
        files.update(layouts.dcp([{}, {}]))
    for name, raw in files.items():
        if raw[8:9] == b"{":
            files[name] = layouts.safetensors({}, 1)
        elif raw[:2] == b"PK":
            files[name] = torch_save({})


def _again(files, *args):
    make = megatron_dist if "common.pt" in files else megatron_item
    files.update(make(3, *args))


def rerun_nowhere(files, _):
    """A job that is to run its last step again, and no rank has what for."""
    _again(files, 3)


def rerun_partly(files, _):
    _again(files, 3, [1])


def no_metadata(files, _):
    for name in [k for k in files if k.endswith(".metadata")]:
        del files[name]


def torn_metadata(files, _):
    name = max(k for k in files if k.endswith(".metadata"))
    files[name] = files[name][:-20]


def no_index(files, _):
    del files[[k for k in files if ".index." in k][0]]


def index_elsewhere(files, _):
    name = [k for k in files if ".index." in k][0]
    index = json.loads(files[name])
    index["weight_map"]["layer.a"] = index["weight_map"]["layer.c"]
    files[name] = json.dumps(index).encode()


def index_short(files, _):
    name = [k for k in files if ".index." in k][0]
    index = json.loads(files[name])
    del index["weight_map"]["layer.b"]
    files[name] = json.dumps(index).encode()


def index_torn(files, _):
    name = [k for k in files if ".index." in k][0]
    files[name] = files[name][:-9]


WHOLE = (truncated, one_zeroed, one_noise, empty)
CASES = [
    *(("dcp", k) for k in (missing, zeroed, one_zeroed, noise, one_noise,
                           truncated, empty, dropped, torn_metadata)),
    *(("fsdp", k) for k in (missing, zeroed, noise, truncated, torn_metadata)),
    *(("megatron", k) for k in (missing, zeroed, noise, dropped, *WHOLE)),
    *(("megatron_dist", k) for k in (missing, zeroed, one_noise, no_metadata,
                                     rerun_nowhere, rerun_partly)),
    *(("megatron_item", k) for k in (missing, zeroed, one_noise, truncated,
                                     empty, no_metadata, rerun_nowhere,
                                     rerun_partly)),
    *(("verl", k) for k in (missing, zeroed, noise, dropped, *WHOLE)),
    *(("deepspeed", k) for k in (missing, zeroed, noise, dropped, *WHOLE)),
    *(("hf", k) for k in (missing, zeroed, noise, swapped, dropped, no_index,
                          index_elsewhere, index_short, index_torn, *WHOLE)),
    *(("hf_bin", k) for k in (missing, noise, no_index, index_elsewhere,
                              index_torn, *WHOLE)),
    # What is empty may be another's to write: see below.
    *(("lightning", k) for k in (dropped, *WHOLE[:-1])),
    *(("lightning_aside", k) for k in (dropped, *WHOLE)),
    *(("torch_file", k) for k in (dropped, *WHOLE)),
    *(("safetensors_file", k) for k in (dropped, *WHOLE)),
    *(("safetensors", k) for k in (missing, zeroed, noise, dropped, *WHOLE)),
    *(("torch", k) for k in (missing, zeroed, noise, dropped, *WHOLE)),
    *((name, hollow) for name in (
        "dcp", "megatron_dist", "megatron_item", "megatron", "verl",
        "deepspeed", "hf", "hf_bin", "lightning", "lightning_aside",
        "torch_file", "safetensors_file", "safetensors", "torch")),
]


@ck.mounted("structure=refuse", modes=("auto",))
def a_step_that_broke_is_refused(m):
    m.expected += ["not published", "stays as it is"]
    passed = []
    for name, kind in CASES:
        layout = LAYOUTS[name]
        run = good_steps(m, f"{name}-{kind.__name__}")
        files = layout.files(3)
        kind(files, layout.files(2))
        try:
            layout.publish(run, 3, files)
            passed.append(f"{name} {kind.__name__}")
        except OSError as e:
            same(e.errno, EUCLEAN, f"{name} {kind.__name__}")
    print(f"# {len(CASES)} broken steps, published: {passed}")
    assert not passed, passed
    told(m, refused=len(CASES))


# --- trackers ---

@ck.mounted("structure=refuse")
def a_tracker_that_leads_nowhere_is_refused(m):
    m.expected.append("not published")
    for name, layout in LAYOUTS.items():
        if not layout.tracker:
            continue
        run = good_steps(m, f"{name}-tracker")
        tracker = os.path.join(run, layout.tracker)
        said = get(tracker)
        for wrong in ((layout.says % 9).encode(), b"\0" * len(said), b"x",
                      b"\xff\xfe\x01", said + b"7", b"garbage " * 100):
            fails(EUCLEAN, ck.put, tracker, wrong)
            same(get(tracker), said)
            assert "named" in os.getxattr(tracker, REFUSED).decode()
            ck.put(tracker + ".tmp", wrong)
            fails(EUCLEAN, os.rename, tracker + ".tmp", tracker)
        if name != "deepspeed":
            fails(EUCLEAN, ck.put, tracker, b"")
            same(get(tracker), said)
        # It says so until it is right.
        assert "named" in os.getxattr(tracker, REFUSED).decode()
        layout.track(run, 1)
        fails(errno.ENODATA, os.getxattr, tracker, REFUSED)
        os.unlink(tracker)
    seen = figures(m)
    assert seen["missing"] == seen["refused"] > 40, seen
    os.symlink("global_step1", os.path.join(run, "latest"))
    os.symlink("global_step9", os.path.join(run, "aside"))
    fails(EUCLEAN, os.rename, os.path.join(run, "aside"),
          os.path.join(run, "latest"))


@ck.mounted("structure=refuse")
def the_reason_outlives_an_error_that_nobody_hears(m):
    m.expected.append("not published")
    run = good_steps(m, "deepspeed")
    latest = os.path.join(run, "latest")
    # CPython drops what the close of a file says that nobody keeps.
    open(latest, "w").write("global_step9")
    same(get(latest), b"global_step2")
    same(figures(m)["refusals"][0]["path"], "/deepspeed/latest")
    for _ in m.stages(latest):
        assert "names global_step9, which is not there" in \
            os.getxattr(latest, REFUSED).decode()
    open(m.path("step_1.pt"), "wb").write(b"PK\3\4" + bytes(500))
    assert "cut off" in os.getxattr(m.path("step_1.pt"), REFUSED).decode()
    m.expected.append("stays as it is")
    ck.until("it is told", lambda: figures(m)["refusals"][0]["path"] ==
             "/step_1.pt")
    for _ in m.stages(m.path("step_1.pt")):
        assert "cut off" in os.getxattr(m.path("step_1.pt"), REFUSED).decode()


@ck.mounted("structure=refuse")
def a_tracker_that_is_written_with_o_sync_is_refused_by_the_write(m):
    m.expected.append("not published")
    run = good_steps(m, "deepspeed")
    latest = os.path.join(run, "latest")
    m.flush()
    fd = os.open(latest, os.O_WRONLY | os.O_SYNC)
    fails(EUCLEAN, os.pwrite, fd, b"global_step9", 0)
    same(get(latest), b"global_step2")
    os.pwrite(fd, b"global_step1", 0)
    os.close(fd)
    m.power_cut()
    m.start()
    same(get(latest), b"global_step1")


# --- what is in order ---

@ck.mounted("structure=refuse", modes=("auto",))
def a_step_that_is_whole_is_published(m):
    for name, layout in LAYOUTS.items():
        run = good_steps(m, name, range(1, 5))
        # Those before it are removed, and a run goes back to an earlier one.
        ck.sh("rm", "-r", os.path.join(run, layout.step(1)),
              os.path.join(run, layout.step(3)))
        layout.publish(run, 5, layout.files(5))
        if layout.tracker:
            layout.track(run, 2)
    # A restore, in any order.
    for name, layout in LAYOUTS.items():
        ck.sh("cp", "-r", m.path(name), m.path(name + "-copy"))
        if layout.tracker:
            run = m.path(name + "-late")
            os.mkdir(run)
            layout.track(run, 5)
            layout.publish(run, 4, layout.files(4))
    same(figures(m)["refused"], 0)


@ck.mounted("structure=refuse", modes=("auto",))
def a_rerun_that_all_ranks_have_saved_is_published(m):
    for name in ("megatron_dist", "megatron_item"):
        run, layout = good_steps(m, name), LAYOUTS[name]
        layout.publish(run, 3, layout.files(3, 3, [0, 1]))
        # The sentinel of later versions: nothing is to be run again.
        layout.publish(run, 4, layout.files(4, 0, [0, 1]))
        layout.publish(run, 5, layout.files(5))
        m.expected.append("not published")
        fails(EUCLEAN, layout.publish, run, 6, layout.files(6, 3))
        why = os.getxattr(os.path.join(run, layout.tracker), REFUSED).decode()
        assert "is under way, and rerun_state_machine_state of no rank" in \
            why, why


@ck.mounted("structure=refuse")
def what_only_looks_like_a_step_is_let_alone(m):
    # Files that anybody may call so, with anything in them.
    odd = (b"", b"0" * 100, b"{}", random.Random(1).randbytes(999),
           bytes(5000), b"\x80\x04K\x01.", b"(dp0\n.", b"PAR1", b"GGUF")
    for i, content in enumerate(odd):
        for name in ("model.pt", "w.bin", "a.pth", "step_%d.ckpt" % i,
                     "x_step_%d.bin" % (i + 1), "data-00001-of-00002.bin",
                     "pytorch.model", "x_world_size_a_rank_b.pt"):
            ck.put(m.path(name), content)
        os.makedirs(m.path(f"other_{i}/step_{i}.tmp"))
        ck.put(m.path(f"other_{i}/step_{i}.tmp/w.bin"), content)
        ck.put(m.path(f"other_{i}/step_{i}.tmp/notes.pt"), content)
        os.rename(m.path(f"other_{i}/step_{i}.tmp"),
                  m.path(f"other_{i}/step_{i}"))
    # Half of the ranks are on another machine.
    for kind in ("model", "optim"):
        for rank in (2, 3):
            layouts.put_all(m.path("global_step_1.tmp"), {
                f"actor/{kind}_world_size_4_rank_{rank}.pt":
                torch_save(tensors(rank, "a"))})
    os.rename(m.path("global_step_1.tmp"), m.path("global_step_1"))
    # Small pickles, old torch's, and compressed ones, under torch's names.
    layouts.put_all(m.path("checkpoint-1.tmp"), {
        "optimizer.pt": b"\x80\x04K\x01.", "scheduler.pt": b"\x1f\x8b\x08x",
        "pytorch_model.bin": b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.",
        "model-00001-of-00001.safetensors":
        layouts.safetensors(shapes("a"), 1)})
    os.rename(m.path("checkpoint-1.tmp"), m.path("checkpoint-1"))
    # A tracker that is cleared, or becomes something else, by its owner.
    latest = m.path("latest")
    for text in (b"nothing yet", b"checkpoint-1", b"", b"checkpoint-1",
                 b"/elsewhere/checkpoint-9"):
        ck.put(latest, text)
        same(get(latest), text)
    same(figures(m)["refused"], 0)


@ck.mounted("structure=refuse")
def what_is_put_out_of_the_way_is_let_alone(m):
    m.expected.append("not published")
    broken = {"model.safetensors": b"torn", "optimizer.pt": b"PK\3\4"}
    layouts.put_all(m.path("run/checkpoint-1"), broken)
    layouts.put_all(m.path("run/checkpoint-2.tmp"), broken)
    os.mkdir(m.path("trash"))
    for a, b in (("run", "run_1"), ("run_1/checkpoint-1", "c-1.corrupt"),
                 ("c-1.corrupt", "checkpoint-1.bad"),
                 ("checkpoint-1.bad", "trash/checkpoint-1"),
                 ("trash/checkpoint-1", ".deleting"),
                 (".deleting", "checkpoint-1.tmp.old"),
                 ("run_1", "run_2")):
        os.rename(m.path(a), m.path(b))
    same(figures(m)["refused"], 0)
    for name in ("checkpoint-1", "final"):
        fails(EUCLEAN, os.rename, m.path("checkpoint-1.tmp.old"), m.path(name))


@ck.mounted("structure=refuse")
def a_tracker_that_names_no_step_says_what_it_likes(m):
    run = good_steps(m, "torch")
    for name, texts in (("latest.json", ('{"step": "step_1"}',
                                         '{"step": "step_9"}')),
                        ("latest_epoch", "0134"), ("latest_run", "ab"),
                        ("latest_checkpointed_iteration.txt", "12")):
        for text in texts:
            ck.put(os.path.join(run, name), text.encode())
    # Nor does one whose steps lie elsewhere.
    for n in (7, 8):
        ck.put(m.path("latest.txt"), b"step_%d" % n)
    same(figures(m)["refused"], 0)


@ck.mounted("structure=refuse")
def a_file_that_a_tracker_names_is_looked_at(m):
    m.expected.append("not published")
    whole = single_torch(1)[""]
    ck.put(m.path("a.pt"), whole)
    ck.put(m.path("b.pt"), whole[:-100])
    ck.put(m.path("latest"), b"a.pt")
    fails(EUCLEAN, ck.put, m.path("latest"), b"b.pt")
    same(get(m.path("latest")), b"a.pt")
    os.unlink(m.path("latest"))
    fails(EUCLEAN, os.symlink, "b.pt", m.path("latest"))
    os.symlink("a.pt", m.path("latest"))


@ck.mounted("structure=refuse")
def the_last_file_of_lightning_is_looked_at(m):
    m.expected.append("stays as it is")
    whole = single_torch(1)[""]
    for name in ("last.ckpt", "last-v1.ckpt"):
        ck.put(m.path(name), whole)
        for torn in (whole[:-100], bytes(len(whole))):
            fails(EUCLEAN, ck.put, m.path(name), torn)
        ck.put(m.path(name), whole)


@ck.mounted("structure=refuse")
def arrays_of_numpy_are_known_by_their_names(m):
    m.expected.append("not published")
    array = layouts.npy(300)
    for i, name in enumerate(("params.npy", "params.npz")):
        content = array if i == 0 else layouts.npz({"w": array})
        for n in (1, 2):
            layouts.put_all(m.path(f"{i}/step_{n}.tmp"), {name: content})
            os.rename(m.path(f"{i}/step_{n}.tmp"), m.path(f"{i}/step_{n}"))
        layouts.put_all(m.path(f"{i}/step_3.tmp"), {name: bytes(len(content))})
        fails(EUCLEAN, os.rename, m.path(f"{i}/step_3.tmp"),
              m.path(f"{i}/step_3"))


@ck.mounted("structure=refuse")
def what_is_more_than_is_read_is_no_damage(m):
    ring, deep = {"w": Tensor(8, 8)}, Tensor(8, 8)
    ring["self"] = ring
    for _ in range(70):
        deep = [deep]
    newer = layouts.safetensors({"w": (8, 8)}, 1)
    for name, content in (
            ("ring_step_%d.pt", torch_save(ring)),
            ("deep_step_%d.pt", torch_save({"deep": deep})),
            ("long_step_%d.pt", torch_save({"n" * 5000: Tensor(8, 8)})),
            ("odd_step_%d.pt", torch_save({"a\0": Tensor(8, 8),
                                           "\ud800": Tensor(8, 8)})),
            ("new_step_%d.safetensors",
             newer.replace(b'"F32"', b'"F99"'))):
        for n in (1, 2):
            ck.put(m.path(name % n), content)
    same(figures(m)["refused"], 0)


@ck.mounted("structure=refuse")
def the_texts_of_a_model_are_whole(m):
    m.expected.append("not published")
    run = good_steps(m, "hf")
    text = b'{"model_type": "gpt2", "loss": NaN}\n'
    files = {**hf(3), "config.json": text, "trainer_state.json": text}
    for name in ("config.json", "trainer_state.json"):
        for torn in (text[:-9], bytes(len(text)), b""):
            fails(EUCLEAN, LAYOUTS["hf"].publish, run, 3,
                  {**files, name: torn})
    # Any other one may have anything in it.
    LAYOUTS["hf"].publish(run, 3, {**files, "note.json": b"{ # not yet"})


@ck.mounted("structure=refuse")
def a_step_that_has_none_of_the_tensors_is_no_step(m):
    m.expected.append("not published")
    run, layout = good_steps(m, "torch"), LAYOUTS["torch"]

    def rename(n, files):
        path = os.path.join(run, layout.step(n))
        os.mkdir(path + ".tmp")
        layouts.put_all(path + ".tmp", files)
        os.rename(path + ".tmp", path)
    # An empty folder, and folders in it.
    fails(EUCLEAN, rename, 3, {})
    os.mkdir(os.path.join(run, layout.step(3) + ".tmp", "rank_0"))
    fails(EUCLEAN, os.rename, os.path.join(run, layout.step(3) + ".tmp"),
          os.path.join(run, layout.step(3)))
    assert "are gone" in figures(m)["last"]
    # What had none before has none, and the rest may be in another format.
    files = layout.files(4)
    rename(4, {**files, "beside.pt": torch_save({"epoch": 4})})
    rename(5, {"beside.pt": torch_save({"epoch": 5}),
               "model.of_tomorrow": bytes(range(256)) * 9})
    # One that had some has none, whatever lies beside it.
    bare = {**files, "tokenizer.model": bytes(range(256))}
    hollow(bare, None)
    fails(EUCLEAN, rename, 6, bare)
    # Nothing was there before; and what a tracker names may come later.
    for name in ("first", "later"):
        os.mkdir(m.path(name))
        ck.put(m.path(name + "/model.pt"), torch_save({}))
    os.rename(m.path("first"), m.path("other_step_1"))
    os.mkdir(m.path("torch/" + layout.step(9)))
    ck.put(m.path("torch/latest"), layout.step(9).encode())


@ck.mounted("structure=refuse")
def a_tracker_does_not_name_a_step_without_tensors(m):
    m.expected.append("not published")
    run = good_steps(m, "verl")
    texts = {"actor/huggingface/config.json": b"{}", "actor/a.txt": b""}
    fails(EUCLEAN, LAYOUTS["verl"].publish, run, 3, texts)
    # As long as nobody does, it may be the folder of something else.
    layouts.put_all(os.path.join(run, "global_step_4.tmp"), texts)
    os.rename(os.path.join(run, "global_step_4.tmp"),
              os.path.join(run, "global_step_4"))


if __name__ == "__main__":
    ck.main()
