"""Steps that a real torch writes, in the layouts of many frameworks: each file
of them that breaks is found when they are published with structure=refuse, and
whatever a trainer may do in good order is let through."""
import errno
import io
import json
import os
import random
import shutil
import sys

import trainer
from trainer import ck

TRACKER = "latest_checkpointed_iteration.txt"


def put(path, content):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    ck.put(path, content)


def saved(what, **options):
    import torch
    out = io.BytesIO()
    torch.save(what, out, **options)
    return out.getvalue()


# --- what one step consists of: path -> bytes ---

class Made:
    """A model that is trained by one step for each number."""

    def __init__(self, n):
        import torch
        torch.manual_seed(7)
        self.n = n
        self.net = torch.nn.Sequential(torch.nn.Embedding(50, 32),
                                       torch.nn.Linear(32, 48),
                                       torch.nn.Linear(48, 16))
        self.optimizer = torch.optim.AdamW(self.net.parameters())
        for _ in range(n):
            self.net(torch.arange(20)).pow(2).mean().backward()
            self.optimizer.step()
        self.model = self.net.state_dict()
        self.optim = self.optimizer.state_dict()
        self.rng = saved({"cpu": torch.get_rng_state()})
        self.scheduler = saved({"last_epoch": n})

    def parts(self, count):
        """The tensors of the model, each in one of so many parts."""
        names = sorted(self.model)
        return [{k: self.model[k].clone() for k in names[i::count]}
                for i in range(count)]

    def slices(self, count):
        import torch
        flat = torch.cat([p.flatten() for p in self.model.values()])
        return [t.clone() for t in flat.chunk(count)]


def dcp(made, folder):
    import torch.distributed.checkpoint as torch_dcp
    torch_dcp.save({"model": made.model, "optimizer": made.optim,
                    "step": made.n}, checkpoint_id=folder, no_dist=True)
    files = {}
    for name in os.listdir(folder):
        files[name] = ck.get(os.path.join(folder, name))
    shutil.rmtree(folder)
    return files


def indexed(made, form, save):
    parts = [form % (i + 1) for i in range(3)]
    tensors = dict(zip(parts, made.parts(3)))
    index = {"metadata": {"total_size": 1}, "weight_map": {
        k: name for name, part in tensors.items() for k in part}}
    end = form.rsplit(".", 1)[1]
    return {**{k: save(v) for k, v in tensors.items()},
            f"{form.split('-')[0]}.{end}.index.json":
            json.dumps(index).encode()}


def hf(made, _):
    import safetensors.torch
    return {**indexed(made, "model-%05d-of-00003.safetensors",
                      safetensors.torch.save),
            "config.json": b'{"model_type": "gpt2"}\n',
            "trainer_state.json": b'{"loss": NaN}',
            "optimizer.pt": saved(made.optim), "scheduler.pt": made.scheduler,
            "rng_state.pth": made.rng}


def hf_bin(made, _):
    return indexed(made, "pytorch_model-%05d-of-00003.bin", saved)


def adapter(made, _):
    import safetensors.torch
    return {"adapter_model.safetensors": safetensors.torch.save(
        {f"base_model.{k}.lora_A": v for k, v in made.parts(2)[0].items()}),
        "adapter_config.json": b"{}"}


def accelerate(made, _):
    import safetensors.torch
    return {"model.safetensors": safetensors.torch.save(made.parts(1)[0]),
            "optimizer.bin": saved(made.optim),
            "scheduler.bin": made.scheduler, "random_states_0.pkl": made.rng}


def deepspeed(made, _):
    return {"mp_rank_00_model_states.pt": saved({"module": made.model}),
            **{f"bf16_zero_pp_rank_{i}_mp_rank_00_optim_states.pt":
               saved({"optimizer_state_dict": {"fp32": t, "exp_avg": t * 2}})
               for i, t in enumerate(made.slices(4))}}


def megatron(made, _):
    return {f"mp_rank_{i:02d}/{name}.pt": saved(what)
            for i, part in enumerate(made.parts(2))
            for name, what in (("model_optim_rng", {"model": part}),
                               ("distrib_optim", {"exp_avg": part}))}


def verl(made, _):
    return {f"actor/{kind}_world_size_2_rank_{i}.pt": saved(part)
            for i, part in enumerate(made.parts(2))
            for kind in ("model", "optim", "extra_state")}


def numpy(made, _):
    import numpy as np
    arrays, out = {k: t.numpy() for k, t in made.model.items()}, io.BytesIO()
    np.savez(out, **arrays)
    return {"params.npz": out.getvalue()}


def lightning(made, _):
    return {"": saved({"state_dict": made.model, "optimizer_states": [
        made.optim], "pytorch-lightning_version": "2.6"})}


def safetensors_file(made, _):
    import safetensors.torch
    return {"": safetensors.torch.save(made.parts(1)[0])}


LAYOUTS = {  # the files of a step, its name, the tracker and what it says
    "dcp": (dcp, "step_%d", None, None),
    "hf": (hf, "checkpoint-%d", None, None),
    "hf_bin": (hf_bin, "checkpoint-%d", None, None),
    "adapter": (adapter, "checkpoint-%d", None, None),
    "accelerate": (accelerate, "checkpoint_%d", None, None),
    "deepspeed": (deepspeed, "global_step%d", "latest", "global_step%d"),
    "megatron": (megatron, "iter_%07d", TRACKER, "%d"),
    "verl": (verl, "global_step_%d", TRACKER, "%d\n"),
    "numpy": (numpy, "step_%d", None, None),
    "lightning": (lightning, "epoch=0-step=%d.ckpt", None, None),
    "safetensors_file": (safetensors_file, "step_%d.safetensors", None, None),
}
# What may be left out of a step, as random states may; and what is all that it
# has: it may be a folder of something else, unless a tracker names it.
MAY_LACK = ("scheduler", "rng_state", "random_states", "config.json",
            "trainer_state", "optimizer", "adapter_", "params.npz")

BREAKS = {
    "lost": lambda b: None,
    "cut in half": lambda b: b[:len(b) // 2],
    "cut by a byte": lambda b: b[:-1],
    "empty": lambda b: b"",
    "zeros": lambda b: bytes(len(b)),
    "noise": lambda b: random.Random(1).randbytes(len(b)),
}


def publish(run, layout, n, files):
    _, name, tracker, says = LAYOUTS[layout]
    final = os.path.join(run, name % n)
    if list(files) == [""]:
        put(final + ".part", files[""])
        os.rename(final + ".part", final)
        return
    aside = final if tracker else final + ".tmp"
    os.makedirs(aside)
    for path, content in files.items():
        put(os.path.join(aside, path), content)
    if tracker:
        ck.put(os.path.join(run, tracker), (says % n).encode())
    else:
        os.rename(aside, final)


def is_case(file, how, content):
    if how == "lost":
        return file != "" and not file.startswith(MAY_LACK)
    # An object ends at its brace.
    return how != "cut by a byte" or content[-1:] != b"\n"


def steps(folder):
    """All layouts, in order and broken; a line for each step that was."""
    steps_of = {name: [make(Made(n), os.path.join(folder, "aside"))
                       for n in (1, 2, 3)]
                for name, (make, *_) in LAYOUTS.items()}
    for layout, three in steps_of.items():
        for n, files in enumerate(three):
            publish(os.path.join(folder, layout), layout, n + 1, files)
        for file, how in ((f, h) for f in three[2] for h in BREAKS):
            if not is_case(file, how, three[2][file]):
                continue
            run = os.path.join(folder, f"{layout} {file} {how}".replace(
                "/", " "))
            for n in (1, 2):
                publish(run, layout, n, three[n - 1])
            broken = BREAKS[how](three[2][file])
            files = {k: broken if k == file else v
                     for k, v in three[2].items()
                     if k != file or broken is not None}
            try:
                publish(run, layout, 3, files)
                print("published:", os.path.basename(run))
            except OSError as e:
                assert e.errno == errno.EUCLEAN, e
                print("refused:", os.path.basename(run))


# --- what is in order ---

def objects():
    import collections
    import datetime
    import functools
    import numpy as np
    import torch
    ring = {"w": torch.ones(3)}
    ring["self"] = ring
    return {"ring": ring, "time": datetime.timedelta(1),
            "partial": functools.partial(int, base=3),
            "dd": collections.defaultdict(list, a=[1]), "big": -(1 << 999),
            "np": np.array([None, "x"], dtype=object), "f": len, "...": ...,
            "rng": np.random.default_rng(0), "set": frozenset([1]),
            ("a", 1): torch.ones(2), "x" * 5000: torch.ones(2),
            "nul\0": torch.ones(2), "dev": torch.device("cpu")}


def odd_tensors():
    import torch
    w = torch.ones(9, 9)
    return {"tied": w, "to": w, "view": w[3:5], "turned": w.t(),
            "none": torch.empty(0, 7), "one": torch.tensor(3.),
            "wide": torch.ones(1).expand(100), "bool": w > 0,
            "sparse": torch.eye(9).to_sparse(), "half": w.bfloat16(),
            "f8": w.to(torch.float8_e4m3fn), "c": w.to(torch.complex64),
            "parameter": torch.nn.Parameter(w),
            "meta": torch.empty(3, device="meta")}


def good(folder):
    """Each must go through; torch.save() itself writes to the mount."""
    import torch
    both = ({"module." + k: v for k, v in Made(1).model.items()},
            Made(1).model,
            {"_orig_mod." + k: v for k, v in Made(1).model.items()})
    rows = {"wrapped": both, "odd tensors": [odd_tensors()] * 2,
            "old torch's": [Made(1).model] * 2,
            "fewer scores": [{"model": Made(1).model, "callbacks": {
                "best_k_models": {f"/run/{n}.ckpt": torch.tensor(1.)}}}
                for n in (1, 2)],
            "no optimizer": ({"model": Made(1).model, "optimizer":
                              Made(1).optim}, {"model": Made(1).model})}
    for protocol in (2, 3, 4, 5):
        for key, what in objects().items():
            rows[f"{protocol} {key!r:.9}"] = [{key: what}] * 2
    for name, states in rows.items():
        run = os.path.join(folder, "good " + name.replace("/", " ").replace(
            "\0", " "))
        os.mkdir(run)
        protocol = int(name[0]) if name[0].isdigit() else 2
        for n, what in enumerate(states):
            path = os.path.join(run, f"step_{n}.pt")
            ck.put(path, b"")  # made before it is written
            torch.save(what, path, pickle_protocol=protocol,
                       _use_new_zipfile_serialization=name != "old torch's")
    run = os.path.join(folder, "top")
    for n in range(5):  # the best ones are kept, and the last one
        publish(run, "lightning", n, lightning(Made(1), None))
        put(os.path.join(run, "last.ckpt"), lightning(Made(1), None)[""])
        if n > 1:
            os.unlink(os.path.join(run, f"epoch=0-step={n - 2}.ckpt"))


def tests():
    @ck.mounted("structure=refuse", modes=("auto",))
    def what_broke_is_refused_and_what_is_whole_is_not(m):
        m.expected.append("not published")
        said = trainer.finish(trainer.start(os.path.abspath(__file__), "steps",
                                            m.mnt))
        lines = "".join(said).splitlines()
        passed = [x for x in lines if x.startswith("published: ")]
        refused = [x for x in lines if x.startswith("refused: ")]
        print(f"# {len(refused)} of {len(refused) + len(passed)} broken")
        assert not passed, passed
        assert m.status()["structure"]["refused"] == len(refused)

    @ck.mounted("structure=refuse")
    def what_a_trainer_does_in_good_order_is_let_through(m):
        trainer.finish(trainer.start(os.path.abspath(__file__), "good", m.mnt))
        m.flush()
        assert m.status()["structure"]["refused"] == 0, m.status()


if __name__ == "__main__":
    trainer.main({"steps": steps, "good": good}, tests)
    sys.exit(0)
