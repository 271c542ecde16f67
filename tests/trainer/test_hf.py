"""ckptfs.hf: what transformers and accelerate save and load by safetensors goes
through the mount; other files, and what safetensors refuses, are safetensors'.

A stand-in calls safetensors as transformers 5 does: functions that it has
imported by names of its own, shards with an index, slices taken by threads.
The real ones are tried by frameworks.sh."""
import concurrent.futures
import json
import os
import sys
import types
import typing
import warnings

import trainer
from test_ckptfs_py import same, trainer_tmp
from trainer import ck, on_ckptfs, raises

STAND_IN = """
from safetensors import safe_open
from safetensors.torch import save_file as safe_save_file
import safetensors.torch
"""


def transformers(name):
    """Imported now."""
    module = sys.modules[name] = types.ModuleType(name)
    exec(STAND_IN, vars(module))  # pylint: disable=exec-used
    return module


def save_pretrained(module, state, folder):
    """Two shards and their index; how many files that is."""
    os.makedirs(folder, exist_ok=True)
    names, weight_map = sorted(state), {}
    for n, part in enumerate((names[:2], names[2:]), 1):
        file = f"model-{n:05}-of-00002.safetensors"
        module.safe_save_file({k: state[k] for k in part},
                              os.path.join(folder, file),
                              metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(part, file))
    with open(os.path.join(folder, "model.safetensors.index.json"), "w",
              encoding="utf-8") as f:
        json.dump({"metadata": {}, "weight_map": weight_map}, f)


def from_pretrained(module, folder, kinds):
    """The state; kinds gets the types of what was opened."""
    with open(os.path.join(folder, "model.safetensors.index.json"),
              encoding="utf-8") as f:
        files = set(json.load(f)["weight_map"].values())
    opened, state = set(), {}
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for file in sorted(files):
            pointer = module.safe_open(os.path.join(folder, file),
                                       framework="pt", device="cpu",
                                       backend="mmap")
            assert pointer.metadata() == {"format": "pt"}
            opened.add(pointer)
            for key in pointer.keys():
                one = pointer.get_slice(key)
                state[key] = pool.submit(lambda one=one: one[...])
    for pointer in opened:
        pointer.__exit__(None, None, None)
    kinds.update(map(type, opened))
    return {key: one.result() for key, one in state.items()}


def state(seed):
    return {k: v.contiguous().clone() for k, v in trainer.state(seed).items()}


def functions(*modules):
    return [getattr(module, name) for module in modules for name in (
        "safe_open", "safe_save_file", "save_file", "load_file")
            if hasattr(module, name)]


# --- the programs ---

def through(folder):
    """Those that have imported safetensors before, and after."""
    import safetensors.torch
    theirs = safetensors.safe_open
    before = transformers("before")
    were = functions(before, safetensors, safetensors.torch)
    import ckptfs
    import ckptfs.hf
    ckptfs.hf.install()
    ckptfs.hf.install()  # once more is the same
    after = transformers("after")
    want = {ckptfs.File} if on_ckptfs(folder) else {theirs}
    saved = 2 if on_ckptfs(folder) else 0
    held = {}
    for seed, module in enumerate((before, after)):
        where = os.path.join(folder, f"model-{seed}")
        for again in range(2):  # over files that are loaded
            count = ckptfs.counters()["saves"]
            save_pretrained(module, state(seed + again), where)
            assert ckptfs.counters()["saves"] - count == saved
            kinds = set()
            loaded = from_pretrained(module, where, kinds)
            assert kinds == want, kinds
            same(loaded, state(seed + again), where)
            if again:
                same(held, state(seed), "what was loaded before")
            held = loaded
    with after.safe_open(os.path.join(
            where, "model-00001-of-00002.safetensors"), "pt") as f:
        assert isinstance(f, after.safe_open)
    assert not isinstance(7, after.safe_open)
    assert typing.Optional[after.safe_open]  # as annotations say it
    assert isinstance(after.safe_open, type)
    both(folder, before.safetensors.torch, saved // 2)
    assert not saved or ckptfs.counters()["segments_new"], ckptfs.counters()
    ckptfs.hf.uninstall()
    assert functions(before, safetensors, safetensors.torch) == were
    assert after.safe_open is theirs
    kinds = set()
    same(from_pretrained(after, os.path.join(folder, "model-1"), kinds),
         state(2), "without")
    assert kinds == {theirs}


def both(folder, module, saved):
    """What calls save_file and load_file goes with them."""
    import torch
    import ckptfs
    count = ckptfs.counters()["saves"]
    model, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    model.more, other.more = model.weight, other.weight
    path = os.path.join(folder, "linear.safetensors")
    module.save_model(model, path)  # as Accelerator.load_state() is undone
    assert module.load_model(other, path) == (set(), [])
    same(other.state_dict(), model.state_dict(), "load_model")
    assert ckptfs.counters()["saves"] - count == saved


def elsewhere(folder):
    """Not in a mount, and what safetensors refuses or alone knows."""
    import safetensors.torch as module
    import torch
    import ckptfs
    import ckptfs.hf
    theirs = module.safe_open
    ckptfs.hf.install()
    path = os.path.join(trainer_tmp(), f"ckptfs_hf.{os.getpid()}")
    try:
        module.save_file(state(1), path)
        same(module.load_file(path), state(1), "elsewhere")
        with module.safe_open(path, "pt") as f:
            assert type(f) is theirs
    finally:
        os.unlink(path)
    bad = os.path.join(folder, "bad")
    base = torch.zeros(4, 4)
    raises(RuntimeError, module.save_file, {"a": base, "b": base[:2]}, bad,
           says="Some tensors share memory")
    raises(ValueError, module.save_file, {"a": base.t()[:, :2]}, bad,
           says="non contiguous")
    raises(ValueError, module.save_file, {"a": base.to_sparse()}, bad,
           says="sparse tensors")
    raises(RuntimeError, module.save_file, {"a": base.to("meta")}, bad,
           says="meta tensor")
    raises(ValueError, module.save_file, [base], bad, says="Expected a dict")
    raises(TypeError, module.save_file, {"a": base})
    raises(TypeError, module.load_file, bad, plain=True)
    raises(FileNotFoundError, module.load_file, bad)
    assert not os.path.exists(bad) and ckptfs.counters()["saves"] == 0
    module.save_file({"a": base}, bad)
    raises(ModuleNotFoundError, module.safe_open, bad, "paddle")
    os.chdir(folder)
    module.save_file({"a": base + 1}, filename="here")
    same(module.load_file("here"), {"a": base + 1}, "a name alone")
    assert ckptfs.counters()["saves"] == 2 * on_ckptfs(folder)


def unknown():
    """A safetensors of another year: one warning, and nothing is touched."""
    import safetensors.torch as module
    import ckptfs.hf

    def save_file(tensors, filename, metadata=None, *, compress=False):
        raise AssertionError((tensors, filename, metadata, compress))
    module.save_file = save_file
    were = functions(module)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        ckptfs.hf.install()
    assert [str(one.message) for one in said] == [
        "ckptfs.hf does not know save_file(tensors, filename, metadata=None, *,"
        " compress=False) of this safetensors: it goes on writing and reading "
        "its files itself"], said
    assert functions(module) == were
    ckptfs.hf.uninstall()
    assert functions(module) == were


# --- the tests ---

PROGRAMS = {f.__name__: f for f in (through, elsewhere, unknown)}


def run(name, *argv):
    trainer.finish(trainer.start(__file__, name, *argv))


def tests():
    @ck.posix
    def whoever_calls_safetensors_saves_and_loads_through_the_mount(fs):
        run("through", fs.dir)

    @ck.posix
    def other_files_and_refusals_are_those_of_safetensors(fs):
        run("elsewhere", fs.dir)

    @ck.posix
    def an_unknown_safetensors_is_left_alone(fs):
        run("unknown")


if __name__ == "__main__":
    trainer.main(PROGRAMS, tests)
