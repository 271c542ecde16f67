"""Steps as trainers lay them out and publish them, whole."""
import errno
import json
import os

import ckptest as ck
import layouts
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
