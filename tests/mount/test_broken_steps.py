"""Steps of many layouts that broke on their way, and steps that did not: which
of them structure=refuse lets through."""
import errno
import json
import os
import random
import subprocess

import ckptest as ck
import layouts
from ckptest import fails, get, same
from layouts import Tensor, torch_save
from steps import figures

EUCLEAN = errno.EUCLEAN
REFUSED = "user.ckptfs.refused"


def tensors(seed, *names, prefix="layer"):
    return {f"{prefix}.{n}": Tensor(8, 16, seed=seed * 100 + i)
            for i, n in enumerate(names)}


def shapes(*names):
    return {f"layer.{n}": (8, 16) for n in names}


def model_and_optimizer(n, rank=0, names="ab"):
    return torch_save({
        "model": tensors(n * 10 + rank, *names),
        "optimizer": {"state": {i: {"exp_avg": Tensor(8, 16, seed=n + i)}
                                for i in range(len(names))}},
        "iteration": n})


# --- what the steps of each layout have: a file's name -> its bytes ---

def dcp(n):
    return layouts.dcp([tensors(n * 10, "a", "b"), tensors(n * 10 + 1, "c")])


def fsdp(n):
    return {f"{part}/{name}": content
            for i, part in enumerate(("pytorch_model_fsdp_0", "optimizer_0"))
            for name, content in dcp(n * 2 + i).items()}


def megatron(n):
    return {f"mp_rank_0{r}/model_optim_rng.pt": model_and_optimizer(n, r)
            for r in range(2)}


RERUNS = "rerun_state_machine_state/shard_%d_2"


def megatron_dist(n, state=0, ranks=(), common="common.pt"):
    """state: of the rerun state machine; ranks: who saved what he has for it;
    common: where the common state is, a file or an item."""
    said = {"iteration": n, "rerun_state_machine": {
        "mode": "x", "state": layouts.RERUN_STATE(state, named=n % 2)}}
    parts = [tensors(n * 10, "a", "b"), tensors(n * 10 + 1, "c")]
    for rank in ranks:
        parts[rank][RERUNS % rank] = {"rerun_requested": True}
    files = {} if common != "common.pt" else {common: torch_save(said)}
    if not files:
        parts[0][common] = [said]
    return {**layouts.dcp(parts), **files,
            "metadata.json": b'{"sharded_backend": "torch_dist"}'}


def megatron_item(n, *args):
    return megatron_dist(n, *args, common="common_state/shard_0_1")


def verl(n):
    files = {"data.pt": torch_save({"sampler": n})}
    for r in range(2):
        files[f"actor/model_world_size_2_rank_{r}.pt"] = \
            torch_save(tensors(n * 10 + r, "a", "b"))
        files[f"actor/optim_world_size_2_rank_{r}.pt"] = torch_save(
            {"state": {"a": {"exp_avg": Tensor(8, 16, seed=n + r)}}})
        files[f"actor/extra_state_world_size_2_rank_{r}.pt"] = \
            torch_save({"rng": n})
    return files


def deepspeed(n):
    files = {"mp_rank_00_model_states.pt": torch_save(
        {"module": tensors(n, "a", "b"), "global_steps": n})}
    for r in range(2):
        files[f"zero_pp_rank_{r}_mp_rank_00_optim_states.pt"] = torch_save(
            {"optimizer_state_dict": {"flat": Tensor(64, seed=n * 2 + r)}})
    return files


def hf(n):
    one, two = (f"model-0000{i}-of-00002.safetensors" for i in (1, 2))
    index = {"metadata": {"total_size": 1536}, "weight_map": {
        "layer.a": one, "layer.b": one, "layer.c": two}}
    return {one: layouts.safetensors(shapes("a", "b"), n),
            two: layouts.safetensors(shapes("c"), n + 50),
            "model.safetensors.index.json": json.dumps(index).encode(),
            "optimizer.pt": torch_save(
                {"state": {0: {"exp_avg": Tensor(8, 16, seed=n)}}}),
            "scheduler.pt": torch_save({"last_epoch": n}),
            "rng_state.pth": torch_save({"python": n}),
            "trainer_state.json": b'{"global_step": %d}' % n}


def hf_bin(n):
    one, two = (f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2))
    index = {"weight_map": {"layer.a": one, "layer.b": one, "layer.c": two}}
    return {one: torch_save(tensors(n, "a", "b")),
            two: torch_save(tensors(n + 50, "c")),
            "pytorch_model.bin.index.json": json.dumps(index).encode()}


def ranks_safetensors(n):
    return {f"rank_{r}.safetensors": layouts.safetensors(
        shapes("a", "b"), n * 10 + r) for r in range(2)}


def ranks_torch(n):
    return {f"rank_{r}.pt": model_and_optimizer(n, r) for r in range(2)}


def single_torch(n):
    return {"": model_and_optimizer(n)}


def single_safetensors(n):
    return {"": layouts.safetensors(shapes("a", "b"), n)}


class Layout:
    """files: see above; name: of a step; how: it is published; tracker: the
    file that names it, and what that says."""

    def __init__(self, files, name, how, tracker=None, says="%d"):
        self.files, self.name, self.how = files, name, how
        self.tracker, self.says = tracker, says

    def step(self, n):
        return self.name % n

    def publish(self, run, n, files, name=None):
        """The call that does it may fail."""
        final = os.path.join(run, name or self.step(n))
        if self.how == "file":
            ck.put(final, files[""])
        elif self.how == "file rename":
            ck.put(final + ".tmp", files[""])
            os.rename(final + ".tmp", final)
        elif self.how == "folder":
            layouts.put_all(final + ".tmp", files)
            os.rename(final + ".tmp", final)
        elif self.how == "metadata":
            layouts.put_all(final, {k: v for k, v in files.items()
                                    if k != ".metadata"})
            if ".metadata" in files:
                ck.put(final + "/.metadata.tmp", files[".metadata"])
                os.rename(final + "/.metadata.tmp", final + "/.metadata")
        else:
            layouts.put_all(final, files)
        self.track(run, n)

    def track(self, run, n):
        if self.tracker:
            ck.put(os.path.join(run, self.tracker),
                   (self.says % n).encode())


LAYOUTS = {
    "dcp": Layout(dcp, "step_%d", "metadata"),
    "fsdp": Layout(fsdp, "checkpoint-%d", "folder"),
    "megatron": Layout(megatron, "iter_%07d", "tracker",
                       "latest_checkpointed_iteration.txt"),
    "megatron_dist": Layout(megatron_dist, "iter_%07d", "tracker",
                            "latest_checkpointed_iteration.txt"),
    "megatron_item": Layout(megatron_item, "iter_%07d", "tracker",
                            "latest_checkpointed_iteration.txt"),
    "verl": Layout(verl, "global_step_%d", "tracker",
                   "latest_checkpointed_iteration.txt"),
    "deepspeed": Layout(deepspeed, "global_step%d", "tracker", "latest",
                        "global_step%d"),
    "hf": Layout(hf, "checkpoint-%d", "folder"),
    "hf_bin": Layout(hf_bin, "checkpoint-%d", "folder"),
    "lightning": Layout(single_torch, "epoch=0-step=%d.ckpt", "file"),
    "lightning_aside": Layout(single_torch, "epoch=0-step=%d.ckpt",
                              "file rename"),
    "torch_file": Layout(single_torch, "step_%d.pt", "file rename"),
    "safetensors_file": Layout(single_safetensors, "model_step_%d.safetensors",
                               "file rename"),
    "safetensors": Layout(ranks_safetensors, "step_%d", "folder"),
    "torch": Layout(ranks_torch, "step_%d", "folder"),
}


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


def good_steps(m, name, numbers=(1, 2)):
    run = m.path(name)
    os.mkdir(run)
    for n in numbers:
        LAYOUTS[name.split("-")[0]].publish(
            run, n, LAYOUTS[name.split("-")[0]].files(n))
    return run


def told(m, **want):
    """What the guard has counted, when it has counted so much: the kernel tells
    the daemon of a close behind the call."""
    ck.until(want, lambda: all(figures(m)[k] >= n for k, n in want.items()))
    seen = figures(m)
    assert {k: seen[k] for k in want} == want, seen
    return seen


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
def a_child_that_closes_half_a_step_is_not_told_of(m):
    with open(m.path("step_1.pt"), "wb") as f:
        whole = single_torch(1)[""]
        f.write(whole[:700])
        f.flush()
        os.fsync(f.fileno())
        ck.Child(lambda: None).result()
        f.write(whole[700:])
    seen = figures(m)
    assert seen["broken"] == seen["refused"] == 0, seen
    fails(errno.ENODATA, os.getxattr, m.path("step_1.pt"), REFUSED)
    same(get(m.path("step_1.pt")), whole)


@ck.mounted("structure=refuse")
def a_close_that_ends_nothing_is_not_told_of(m):
    """Whoever closes it goes on with another descriptor, or his parent does: a
    shell moves the one that it has opened to its place, and closes that."""
    run = good_steps(m, "megatron")
    tracker = os.path.join(run, "latest_checkpointed_iteration.txt")
    said = get(tracker)
    for text in (b"1\n", b"2\n", b"0000001\n"):
        ck.sh("bash", "-ec", f"echo {text.decode().strip()} > {tracker}")
        same(get(tracker), text)
    ck.sh("bash", "-ec", f"(printf 0; /bin/true; printf 2) > {tracker}")
    same(get(tracker), b"02")
    whole = single_torch(1)[""]
    for path, text in ((m.path("step_1.pt"), whole), (tracker, said)):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for half in (text[:len(text) // 2], text[len(text) // 2:]):
            os.close(os.dup(fd))
            ck.write_all(fd, half)
        os.close(fd)
        same(get(path), text)
        fails(errno.ENODATA, os.getxattr, path, REFUSED)
    seen = figures(m)
    assert seen["broken"] == seen["missing"] == seen["refused"] == 0, seen
    # The last one is told, whatever is open to read.
    m.expected.append("not published")
    with open(tracker, "rb"):
        fd = os.open(tracker, os.O_WRONLY | os.O_TRUNC)
        other = os.dup(fd)
        os.write(fd, b"9")
        os.close(fd)
        fails(EUCLEAN, os.close, other)
    same(get(tracker), said)


@ck.mounted("structure=refuse", modes=("auto",))
def the_same_file_of_another_mount_is_another_one(m):
    """It has the same number there, and the same name."""
    other = ck.Mount(os.path.join(m.base, "other")).start()
    try:
        files = []
        m.expected.append("not published")
        for mount in (m, other):
            run = os.path.join(mount.mnt, "deepspeed")
            good_steps(mount, "deepspeed")
            files.append(os.path.join(run, "latest"))
        fd = os.open(files[1], os.O_WRONLY)
        same(os.fstat(fd).st_ino, os.stat(files[0]).st_ino)
        fails(EUCLEAN, ck.put, files[0], b"global_step9")
        os.close(fd)
    finally:
        other.stop()


@ck.mounted("structure=refuse")
def what_a_mapping_has_is_there_when_a_name_is_given(m):
    """Also where the kernel has it still: without passthrough."""
    whole = hf(1)
    os.mkdir(m.path("tmp"))
    maps = []
    for name, text in whole.items():
        path = m.path("tmp", name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, len(text))
        maps.append(ck.BareMap(fd, len(text)))
        os.close(fd)
        maps[-1].write(0, text)
    os.rename(m.path("tmp"), m.path("step_1"))
    for name, text in whole.items():
        same(get(m.path("step_1", name)), text)
    # What is not there is missed as ever.
    os.mkdir(m.path("tmp"))
    path = m.path("tmp", max(whole))
    ck.put(path, bytes(len(whole[max(whole)])))
    m.expected.append("not published")
    fails(EUCLEAN, os.rename, m.path("tmp"), m.path("step_2"))
    for mapped in maps:
        mapped.close()
    told(m, refused=1)


# --- what a killed daemon leaves ---

@ck.mounted("structure=refuse")
def what_was_open_when_the_daemon_was_killed_is_looked_at(m):
    """The close that would have been told never comes."""
    m.expected += ["not published", "stays as it is"]
    run = good_steps(m, "deepspeed")
    latest = os.path.join(run, "latest")
    os.mkdir(m.path("new"))
    os.mkdir(m.path("new/global_step1"))
    half = single_torch(1)[""][:700]
    ck.put(m.path("latest"), b"new")
    m.flush()
    fds = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for path in
           (latest, m.path("step_1.pt"), m.path("new/latest"),
            m.path("latest"))]
    for fd, text in zip(fds, (b"global_step9", half, b"global_step7", b"")):
        ck.write_all(fd, text)
    # Who has it from before keeps nothing of it in the order of closes.
    reader = open(latest, "rb")
    m.kill()
    for fd in fds:
        fails(errno.ENOTCONN, os.close, fd)
    m.start()
    same(get(latest), b"global_step2")
    assert "names global_step9, which is not there" in \
        os.getxattr(latest, REFUSED).decode()
    same(get(m.path("step_1.pt")), half)
    ck.until("it is told", lambda: figures(m)["broken"] == 1)
    assert "cut off" in os.getxattr(m.path("step_1.pt"), REFUSED).decode()
    same(get(m.path("new/latest")), b"global_step7", "it led nowhere before")
    same(get(m.path("latest")), b"new", "what was emptied")
    assert "it was emptied" in os.getxattr(m.path("latest"), REFUSED).decode()
    m.flush()
    reader.close()
    m.power_cut()
    m.start()
    same(get(latest), b"global_step2")
    assert "global_step9" in os.getxattr(latest, REFUSED).decode()


def hold_guard(m, name, content):
    """It looks at this file, and at nothing else before that is durable."""
    ck.put(m.path(name), content)
    ck.until("it has looked", lambda: m.status()["structure"]["checked"] == 1)


def save_again(m):
    """The guard comes to a file when its next save is half written."""
    whole = single_torch(1)[""]
    path = m.path("last.ckpt")
    hold_guard(m, "step_1.pt", whole)
    ck.put(path, whole)
    with open(path, "wb") as f:
        f.write(whole[:700])
        f.flush()
        seen = figures(m)
        assert seen["broken"] == seen["refused"] == 0, seen
        f.write(whole[700:])
    seen = told(m, checked=2)
    assert seen["broken"] == seen["refused"] == 0, seen
    fails(errno.ENODATA, os.getxattr, path, REFUSED)
    same(get(path), whole)
    return path, whole


@ck.mounted("debug_hold_drain,structure=refuse")
def a_file_that_is_saved_again_is_not_refused(m):
    m.expected.append("stays as it is")
    path, whole = save_again(m)
    fails(EUCLEAN, ck.put, path, whole[:-100])
    told(m, broken=1, refused=1)


@ck.mounted("debug_hold_drain")
def a_file_that_is_saved_again_is_not_called_damaged(m):
    path, whole = save_again(m)
    ck.put(path, whole[:-100])
    told(m, broken=1)
    ck.until("the log says it",
             lambda: m.log_text().count("it is damaged") == 1)


@ck.mounted("debug_hold_drain,structure=refuse")
def a_file_that_waits_for_its_bytes_is_not_refused(m):
    whole = single_safetensors(1)[""]
    hold_guard(m, "a_step_1.safetensors", whole)

    def made_first(path):
        ck.put(path, b"")
        ck.put(path, whole)

    def by_a_child(path):
        with open(path, "wb") as f:
            child = subprocess.Popen(["sh", "-c", "read go; cat"],
                                     stdin=subprocess.PIPE, stdout=f)
        child.communicate(b"go\n" + whole)
        assert child.returncode == 0, child.returncode

    def by_a_mapping(path):
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, len(whole))
        mapped = ck.BareMap(fd, len(whole))
        os.close(fd)
        mapped.write(0, whole)
        mapped.close()

    def by_two(path):
        fds = [os.open(path, os.O_WRONLY | os.O_CREAT) for _ in range(2)]
        for fd, at, end in zip(fds, (0, 700), (700, len(whole))):
            assert os.pwrite(fd, whole[at:end], at) == end - at
            os.close(fd)

    for i, write in enumerate((made_first, by_a_child, by_a_mapping, by_two)):
        write(m.path(f"step_{i}.safetensors"))
    seen = figures(m)
    assert seen["broken"] == seen["refused"] == 0, seen
    for i in range(4):
        path = m.path(f"step_{i}.safetensors")
        same(get(path), whole)
        fails(errno.ENODATA, os.getxattr, path, REFUSED)
    # Nobody came.
    ck.put(m.path("step_9.safetensors"), b"")
    seen = told(m, broken=1)
    assert "it has 0 bytes" in seen["last"], seen
    assert seen["refused"] == 0, seen


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
