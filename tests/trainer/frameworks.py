"""Training frameworks, unmodified, on a fresh mount: each saves in one process,
and another loads and compares, before and after the mount was made anew. See
frameworks.sh, which makes what they run in. "hf" is two of them by ckptfs.hf.

A framework is a class here whose save() and load() are its users' own calls,
of the same numbers: state() is made of a seed in both processes.
"""
import importlib.metadata
import os
import re
import subprocess
import sys

import trainer
from trainer import ck

PACKAGE = os.path.join(trainer.HERE, "../../gpu/python")
VENVS = os.environ.get("CKPTFS_FRAMEWORKS", "/var/cache/ckptfs/frameworks")
# What setup-venv.sh leaves out of torch on purpose.
WITHOUT = re.compile(r"(nvidia|cuda|triton|torch$|torchvision|pillow)")


class Torch:
    """torch.save, and torch.distributed.checkpoint"""
    package, venv = "torch", "torch"

    def save(self, folder):
        import torch
        import torch.distributed.checkpoint as dcp
        torch.save(trainer.state(1), f"{folder}/x.pt")
        dcp.save(trainer.state(1), checkpoint_id=f"{folder}/dcp", no_dist=True)

    def load(self, folder):
        import torch
        import torch.distributed.checkpoint as dcp
        trainer.equal(torch.load(f"{folder}/x.pt"), trainer.state(1))
        got = {k: torch.zeros_like(v) for k, v in trainer.state(1).items()}
        dcp.load(got, checkpoint_id=f"{folder}/dcp", no_dist=True)
        trainer.equal(got, trainer.state(1))


class Safetensors:
    package, venv = "safetensors", "torch"

    @staticmethod
    def state():
        return {k: v.contiguous().clone() for k, v in sorted(
            trainer.state(2).items())}

    def save(self, folder):
        from safetensors.torch import save_file
        save_file(self.state(), f"{folder}/x.safetensors")

    def load(self, folder):
        from safetensors.torch import load_file
        got = load_file(f"{folder}/x.safetensors")
        trainer.equal(dict(sorted(got.items())), self.state())


class Transformers:
    """save_pretrained in shards, and from_pretrained"""
    package, venv = "transformers", "torch"

    @staticmethod
    def model(seed):
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel
        torch.manual_seed(seed)
        return GPT2LMHeadModel(GPT2Config(
            n_layer=2, n_embd=64, n_head=4, vocab_size=1000, n_positions=64))

    def save(self, folder):
        self.model(3).save_pretrained(f"{folder}/gpt2", max_shard_size="200KB")

    def load(self, folder):
        from transformers import GPT2LMHeadModel
        shards = [n for n in os.listdir(f"{folder}/gpt2")
                  if n.endswith(".safetensors")]
        assert len(shards) > 1, shards
        same(GPT2LMHeadModel.from_pretrained(f"{folder}/gpt2"), self.model(3))


class Accelerate:
    """save_state and load_state, of a model that was trained a step"""
    package, venv = "accelerate", "torch"

    @staticmethod
    def parts(seed):
        import torch
        from accelerate import Accelerator
        accelerator = Accelerator(cpu=True)
        torch.manual_seed(seed)
        model = torch.nn.Linear(300, 200)
        parts = accelerator.prepare(model, torch.optim.AdamW(
            model.parameters()))
        return accelerator, *parts

    def save(self, folder):
        import torch
        accelerator, model, optimizer = self.parts(4)
        accelerator.backward(model(torch.ones(2, 300)).sum())
        optimizer.step()
        accelerator.save_state(f"{folder}/state")
        print(digest(model))

    def load(self, folder):
        accelerator, model, optimizer = self.parts(5)
        accelerator.load_state(f"{folder}/state")
        assert optimizer.state_dict()["state"], "the optimizer has no state"
        print(digest(model))


class Hf:
    """The two by ckptfs.hf: every safetensors file, and no other, is ours."""
    package, venv = "transformers", "torch"
    theirs = (Transformers, Accelerate)

    def save(self, folder):
        import ckptfs.hf
        ckptfs.hf.install()
        for one in self.theirs:
            one().save(folder)
        made = [name for _, _, names in os.walk(folder) for name in names
                if name.endswith(".safetensors")]
        assert ckptfs.counters()["saves"] == len(made) > 2, made

    def load(self, folder):
        import ckptfs.hf
        ckptfs.hf.install()
        for one in self.theirs:
            one().load(folder)


class Lightning:
    """a Trainer's checkpoint, and going on from it"""
    package, venv = "lightning", "torch"

    @staticmethod
    def trainer(folder, epochs):
        import lightning
        return lightning.Trainer(
            max_epochs=epochs, default_root_dir=folder, accelerator="cpu",
            logger=False, enable_progress_bar=False,
            enable_model_summary=False, callbacks=[
                lightning.pytorch.callbacks.ModelCheckpoint(
                    folder, "last", save_last=False)])

    @staticmethod
    def model():
        import lightning
        import torch

        class Model(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                torch.manual_seed(6)
                self.layer = torch.nn.Linear(500, 300)

            def training_step(self, batch, _):
                return self.layer(batch[0]).square().mean()

            def configure_optimizers(self):
                return torch.optim.Adam(self.parameters())
        data = torch.utils.data.TensorDataset(torch.ones(8, 500))
        return Model(), torch.utils.data.DataLoader(data, batch_size=4)

    def save(self, folder):
        model, data = self.model()
        self.trainer(f"{folder}/run", 1).fit(model, data)
        print(digest(model))

    def load(self, folder):
        import torch
        path = f"{folder}/run/last.ckpt"
        model, data = self.model()
        model.load_state_dict(torch.load(
            path, weights_only=False)["state_dict"])
        print(digest(model))
        fit = self.trainer(f"{folder}/again", 2)
        fit.fit(model, data, ckpt_path=path, weights_only=False)
        assert fit.current_epoch == 2, fit.current_epoch


class Deepspeed:
    """ZeRO-1 on the host: save_checkpoint and load_checkpoint"""
    package, venv = "deepspeed", "torch"

    @staticmethod
    def engine(seed):
        import deepspeed
        import torch
        for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"),
                            ("LOCAL_RANK", "0"), ("MASTER_PORT", "29533"),
                            ("MASTER_ADDR", "127.0.0.1")):
            os.environ.setdefault(name, value)
        torch.manual_seed(seed)
        model = torch.nn.Linear(300, 200)
        return deepspeed.initialize(
            model=model, optimizer=torch.optim.Adam(model.parameters()),
            dist_init_required=True, config={
                "train_micro_batch_size_per_gpu": 1,
                "zero_optimization": {"stage": 1}})[0]

    def save(self, folder):
        import torch
        engine = self.engine(7)
        engine.backward(engine(torch.ones(1, 300)).sum())
        engine.step()
        engine.save_checkpoint(f"{folder}/ds")
        print(digest(engine.module))

    def load(self, folder):
        engine = self.engine(8)
        assert engine.load_checkpoint(f"{folder}/ds")[0]
        print(digest(engine.module))


class Torchsnapshot:
    """of what it can save: no empty tensor, nor bfloat16 of an odd length"""
    package, venv = "torchsnapshot", "torch"

    @staticmethod
    def state(zero):
        from torchsnapshot import StateDict
        return {"app": StateDict(**{
            k.replace(" ", "_"): v.contiguous().clone() * (not zero)
            if v.dtype.is_floating_point else v.clone()
            for k, v in trainer.state(9).items()
            if v.numel() and k != "half"})}

    def save(self, folder):
        from torchsnapshot import Snapshot
        Snapshot.take(f"{folder}/snapshot", self.state(False))

    def load(self, folder):
        from torchsnapshot import Snapshot
        got = self.state(True)
        Snapshot(f"{folder}/snapshot").restore(got)
        trainer.equal(dict(got["app"]), dict(self.state(False)["app"]))


class Orbax:
    package, venv = "orbax-checkpoint", "jax"

    @staticmethod
    def state():
        import jax.numpy as jnp
        import numpy as np
        g = np.random.default_rng(10)
        return {"w": jnp.asarray(g.normal(size=(1000, 300)), jnp.float32),
                "b": jnp.asarray(g.normal(size=700), jnp.bfloat16),
                "step": jnp.asarray(7)}

    def save(self, folder):
        import orbax.checkpoint as ocp
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(f"{folder}/orbax", self.state())

    def load(self, folder):
        import numpy as np
        import orbax.checkpoint as ocp
        with ocp.StandardCheckpointer() as checkpointer:
            got = checkpointer.restore(f"{folder}/orbax", self.state())
        for key, want in self.state().items():
            assert np.array_equal(got[key], want), key


class Tensorstore:
    """zarr, zarr3 and OCDBT beneath it"""
    package, venv = "tensorstore", "jax"

    @staticmethod
    def stores(folder):
        file = {"driver": "file", "path": f"{folder}/ts/"}
        ocdbt = {"driver": "ocdbt", "base": f"file://{folder}/ocdbt/",
                 "path": "a/"}
        return [("zarr", file), ("zarr3", ocdbt)]

    @staticmethod
    def array():
        import numpy as np
        return np.random.default_rng(11).normal(size=(777, 555))

    def save(self, folder):
        import tensorstore as ts
        for driver, store in self.stores(folder):
            ts.open({"driver": driver, "kvstore": store}, create=True,
                    dtype=ts.float64, shape=self.array().shape).result() \
                .write(self.array()).result()

    def load(self, folder):
        import numpy as np
        import tensorstore as ts
        for driver, store in self.stores(folder):
            got = ts.open({"driver": driver, "kvstore": store}).result()
            assert np.array_equal(got.read().result(), self.array()), driver


FRAMEWORKS = {one.__name__.lower(): one for one in (
    Torch, Safetensors, Transformers, Accelerate, Hf, Lightning, Deepspeed,
    Torchsnapshot, Orbax, Tensorstore)}


def same(got, want):
    trainer.equal(dict(got.state_dict()), dict(want.state_dict()))


def digest(module):
    """Of all its bits: the loader's is to be the saver's."""
    import hashlib
    h = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        h.update(name.encode())
        h.update(value.detach().contiguous().numpy().tobytes())
    return f"digest {h.hexdigest()}"


def missing():
    """What the installed packages want and do not have."""
    from packaging.requirements import Requirement
    have = {d.metadata["Name"].lower().replace("_", "-")
            for d in importlib.metadata.distributions()}
    want = set()
    for d in importlib.metadata.distributions():
        for text in d.requires or ():
            r = Requirement(text)
            name = r.name.lower().replace("_", "-")
            if (not r.marker or r.marker.evaluate({"extra": ""})) and \
                    name not in have and not WITHOUT.match(name):
                want.add(f"{r.name}{r.specifier}")
    print("\n".join(sorted(want)))


# --- the driver ---

def python(venv):
    return os.path.join(VENVS, venv, "bin/python")


def run(venv, *argv):
    """What it said; an AssertionError with that, if it failed."""
    done = subprocess.run(
        [python(venv), *argv], stdout=subprocess.PIPE, text=True, check=False,
        stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=900,
        env=dict(os.environ, OMP_NUM_THREADS="2", CUDA_VISIBLE_DEVICES="",
                 JAX_PLATFORMS="cpu", HF_HUB_OFFLINE="1",
                 TOKENIZERS_PARALLELISM="false", PYTHONPATH=PACKAGE,
                 CKPTFS_GPU_LIBRARY=os.path.join(
                     ck.BUILD, "gpu/libckpt_gpu.so.0")))
    assert done.returncode == 0, f"exit {done.returncode}: " + \
        done.stdout.strip()[-2000:]
    return done.stdout


def version(venv, package):
    return run(venv, "-c", "import importlib.metadata as m; "
               f"print(m.version('{package}'))").strip()


def on_mount(m, name):
    """Save, load, and load of a mount that has nothing in memory."""
    one = FRAMEWORKS[name]
    folder = m.path(name)
    os.makedirs(folder, exist_ok=True)

    def digests(what):
        said = run(one.venv, os.path.abspath(__file__), what, name, folder)
        return [line for line in said.splitlines()
                if line.startswith("digest ")]
    saved = digests("save")
    assert digests("load") == saved, "the loader has other bits"
    m.flush()
    m.remount()
    assert digests("load") == saved, "other bits after the remount"


def megatron():
    """Its own test, which mounts for itself."""
    done = subprocess.run(
        [sys.executable, os.path.join(os.path.dirname(
            os.path.abspath(__file__)), "test_megatron.py")],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False, env=dict(os.environ,
                              CKPTFS_VENV=os.path.join(VENVS, "torch"),
                              CKPTFS_MEGATRON="installed"))
    print(done.stdout, end="", flush=True)
    assert done.returncode == 0, done.stdout.strip()[-2000:]


def tests(names):
    @ck.mounted(modes=("auto",))
    def frameworks_save_and_load_on_the_mount(m):
        rows, failures = [], []
        for name in names:
            one = FRAMEWORKS.get(name)
            what = version(one.venv, one.package) if one else \
                version("torch", "megatron-core")
            try:
                if one:
                    on_mount(m, name)
                else:
                    megatron()
                rows.append((name, what, "ok"))
            except (AssertionError, subprocess.TimeoutExpired) as e:
                failures.append(f"{name} {what}: {e}")
                rows.append((name, what, "FAILED"))
        print(f"\n{'framework':<16}{'version':<12}result")
        for name, what, result in rows:
            print(f"{name:<16}{what:<12}{result}", flush=True)
        assert not failures, "\n\n".join(failures)


def main():
    if sys.argv[1:2] == ["missing"]:
        missing()
        return
    if len(sys.argv) == 4 and sys.argv[1] in ("save", "load"):
        getattr(FRAMEWORKS[sys.argv[2]](), sys.argv[1])(sys.argv[3])
        return
    tests(sys.argv[1:] or [*FRAMEWORKS, "megatron"])
    del sys.argv[1:]
    ck.main()


if __name__ == "__main__":
    main()
