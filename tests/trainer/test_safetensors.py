"""safetensors: save_file and load_file, slices through safe_open, and a second
step whose frozen tensors cost nothing."""
import os

import trainer
from trainer import ck, equal, state

STEPS = (100, 200)


def clean(seed):
    """safetensors refuses views that share storage, and orders the names."""
    return {k: v.contiguous().clone() for k, v in sorted(state(seed).items())}


def path(folder, step, rank=0):
    return os.path.join(folder, f"step_{step}", f"model-{rank}.safetensors")


def save_step(folder, step):
    from safetensors.torch import save_file
    step = int(step)
    os.makedirs(os.path.join(folder, f"step_{step}"))
    for rank in range(2):  # two replicas
        save_file(clean(step), path(folder, step, rank),
                  metadata={"step": str(step)})
    with open(os.path.join(folder, "latest"), "w", encoding="utf-8") as f:
        f.write(f"step_{step}")


def check(folder):
    from safetensors import safe_open
    from safetensors.torch import load, load_file
    for step in STEPS:
        want = clean(step)
        for rank in range(2):
            name = path(folder, step, rank)
            got = load_file(name)
            equal(dict(sorted(got.items())), want, name)
            with open(name, "rb") as f:
                equal(dict(sorted(load(f.read()).items())), want, name)
            with safe_open(name, framework="pt") as f:
                assert f.metadata() == {"step": str(step)}
                part = f.get_slice("embedding")[100:200, 7:9]
                assert part.equal(want["embedding"][100:200, 7:9]), name
    with open(os.path.join(folder, "latest"), encoding="utf-8") as f:
        assert f.read() == f"step_{STEPS[-1]}"


def tests():
    @ck.posix
    def every_tensor_is_loaded_as_it_was_saved(fs):
        grown = []
        for step in STEPS:
            before = 0 if fs.plain else fs.status()["physical_bytes"]
            trainer.finish(trainer.start(__file__, "save", fs.dir, step))
            fs.flush()
            grown.append(0 if fs.plain else
                         fs.status()["physical_bytes"] - before)
        for _ in fs.stages():
            trainer.finish(trainer.start(__file__, "check", fs.dir))
        if not fs.plain:
            one = os.path.getsize(path(fs.dir, STEPS[0]))
            frozen = 4 * 1024 * 512 * 4
            assert grown[0] < 1.05 * one, (one, grown)  # replicas cost one
            assert grown[1] < 1.1 * (one - frozen), (one, grown)


if __name__ == "__main__":
    trainer.main({"save": save_step, "check": check}, tests)
