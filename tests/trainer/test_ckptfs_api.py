"""Whoever calls safetensors can call ckptfs: the same names, arguments and
defaults, the same bytes and models, and errors that are of safetensors' types
as well. Held against the real safetensors, side by side."""
import inspect
import os
import pickle
import sys
import types

import test_ckptfs_py as py
import trainer
from test_ckptfs_py import Files, all_types, same, shapes
from trainer import ck, raises

# What safetensors.torch has besides: helpers for its own.
HELPERS = {"storage_ptr", "storage_size"}


# --- the programs ---

def calls():
    """Each public function and method of theirs, by its arguments."""
    import safetensors.numpy
    import safetensors.torch
    import ckptfs
    import ckptfs.numpy
    pairs = [(getattr(module, name), getattr(ours, name))
             for module, ours in ((safetensors.torch, ckptfs),
                                  (safetensors.numpy, ckptfs.numpy))
             for name, one in vars(module).items()
             if isinstance(one, types.FunctionType) and name[0] != "_"
             and one.__module__ == module.__name__ and name not in HELPERS]
    assert len(pairs) == 10, pairs
    pairs += [(getattr(safetensors, name), getattr(ckptfs, name))
              for name in ("safe_open", "serialize", "serialize_file",
                           "deserialize", "TensorSpec")]
    methods = [name for name in vars(safetensors.safe_open) if name[0] != "_"]
    assert len(methods) >= 6, methods
    pairs += [(getattr(safetensors.safe_open, name),
               getattr(ckptfs.File, name)) for name in methods]
    for theirs, ours in pairs:
        want = list(inspect.signature(theirs).parameters.values())
        got = list(inspect.signature(ours).parameters.values())
        for mine, one in zip(got, want):
            assert (mine.name, mine.kind) == (one.name, one.kind) or \
                one.name == mine.name == "self", (theirs, mine, one)
            assert one.default in (mine.default, Ellipsis, one.empty), \
                (theirs, mine, one)
        assert len(got) >= len(want), (theirs, got)
        for more in got[len(want):]:  # ours alone are never in the way
            assert more.kind in (more.KEYWORD_ONLY, more.VAR_KEYWORD) or \
                more.default is not more.empty, (theirs, more)


def errors(folder):
    """Whoever catches what safetensors raises catches what ckptfs raises."""
    import numpy as np
    import safetensors.numpy
    import safetensors.torch
    import torch
    import ckptfs
    import ckptfs.numpy
    files, one = Files(folder), {"a": torch.zeros(4, 2)}
    good, cut, none = files.path("good"), files.path("cut"), files.path("none")
    files.save(one, "good")
    with open(cut, "wb") as f:
        f.write(b"\xff\0\0\0\0\0\0\0{}")
    header = b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}'
    short = len(header).to_bytes(8, "little") + header + b"\0" * 35
    plain = {"plain": files.plain}
    closed = {}
    for name, module in (("theirs", safetensors), ("ours", ckptfs)):
        with module.safe_open(good, "pt") as closed[name]:
            pass

    def spec(made, **other):
        return made.TensorSpec(**{"dtype": "float32", "shape": [2],
                                  "data_ptr": one["a"].data_ptr(),
                                  "data_len": 8, **other})

    def opened(module, framework, use):
        with module.safe_open(good, framework) as f:
            return use(f)
    bad = {  # of (safetensors, .torch, .numpy, options of a save, its name)
        "no file": lambda s, t, n, o, w: t.load_file(none),
        "no safetensors file": lambda s, t, n, o, w: t.load_file(cut),
        "no folder": lambda s, t, n, o, w: t.save_file(
            one, os.path.join(none, "x"), **o),
        "a framework": lambda s, t, n, o, w: s.safe_open(good, "magic"),
        "a backend": lambda s, t, n, o, w: t.load_file(good, backend="magic"),
        "a device": lambda s, t, n, o, w: t.load_file(good, "magic"),
        "numpy's device": lambda s, t, n, o, w: s.safe_open(
            good, "np", "cuda:0"),
        "no tensor": lambda s, t, n, o, w: opened(
            s, "pt", lambda f: f.get_tensor("x")),
        "no slice": lambda s, t, n, o, w: opened(
            s, "pt", lambda f: f.get_slice("x")),
        "torch's index": lambda s, t, n, o, w: opened(
            s, "pt", lambda f: f.get_slice("a")[7]),
        "numpy's index": lambda s, t, n, o, w: opened(
            s, "np", lambda f: f.get_slice("a")[1:, -3]),
        "a closed file": lambda s, t, n, o, w: closed[w].get_tensor("a"),
        "its keys": lambda s, t, n, o, w: closed[w].keys(),
        "their order": lambda s, t, n, o, w: closed[w].offset_keys(),
        "its metadata": lambda s, t, n, o, w: closed[w].metadata(),
        "no dict": lambda s, t, n, o, w: t.save_file([1], good, **o),
        "no tensors": lambda s, t, n, o, w: t.save_file({"a": 1}, good, **o),
        "sparse": lambda s, t, n, o, w: t.save_file(
            {"a": torch.eye(3).to_sparse()}, good, **o),
        "meta": lambda s, t, n, o, w: t.save_file(
            {"a": torch.zeros(2, device="meta")}, good, **o),
        "metadata": lambda s, t, n, o, w: t.save_file(one, good, {"a": 1}, **o),
        "a type of numpy's": lambda s, t, n, o, w: n.save_file(
            {"a": np.array(["x"])}, good, **o),
        "not contiguous": lambda s, t, n, o, w: t.save_model(
            module_of(a=torch.zeros(2, 3).t()), good, None, False, **o),
        "no whole": lambda s, t, n, o, w: t.save_model(
            module_of(**dict(zip("ab", [torch.zeros(9)[:4]] * 2))), good, **o),
        "model": lambda s, t, n, o, w: t.load_model(
            module_of(b=torch.zeros(2)), good),
        "bytes": lambda s, t, n, o, w: t.load(b"\xff\0\0\0\0\0\0\0{}"),
        "no bytes": lambda s, t, n, o, w: s.deserialize(b""),
        "short bytes": lambda s, t, n, o, w: s.deserialize(short),
        "text": lambda s, t, n, o, w: t.load("text"),
        "saved text": lambda s, t, n, o, w: t.save("text"),
        "spec's type": lambda s, t, n, o, w: spec(s, dtype="magic"),
        "spec's shape": lambda s, t, n, o, w: spec(s, shape=["x"]),
        "spec's length": lambda s, t, n, o, w: s.serialize(
            {"a": spec(s, data_len=4)}),
        "no spec": lambda s, t, n, o, w: s.serialize({"a": {"shape": [2]}}),
        "spec's name": lambda s, t, n, o, w: s.serialize({1: spec(s)}),
        "specs": lambda s, t, n, o, w: s.serialize_file([spec(s)], good, **o),
    }
    for what, call in bad.items():
        try:
            call(safetensors, safetensors.torch, safetensors.numpy, {},
                 "theirs")
        except Exception as e:
            want = type(e)
        else:
            raise AssertionError(f"safetensors takes {what}")
        e = raises(want, call, ckptfs, ckptfs, ckptfs.numpy, plain, "ours")
        again = pickle.loads(pickle.dumps(e))  # as between ranks
        assert isinstance(again, want) and str(again) == str(e), (what, again)
    same(files.load("good"), one, "after all that")
    e = raises(safetensors.SafetensorError, ckptfs.load_file, cut)
    assert isinstance(e, ckptfs.SafetensorError) and e.filename == cut, e


def alone(folder):
    """Without safetensors there are errors of the same names."""
    import ckptfs
    assert "safetensors" not in sys.modules
    path = os.path.join(folder, "alone")
    with open(path, "wb") as f:
        f.write(b"nothing")
    e = raises(ckptfs.SafetensorError, ckptfs.load_file, path)
    assert isinstance(e, OSError), e
    assert type(pickle.loads(pickle.dumps(e))) is type(e)
    assert "safetensors" not in sys.modules


def in_memory(folder):
    """Bytes are safetensors' own, bit by bit, whoever reads or made them."""
    import numpy as np
    import safetensors.numpy
    import safetensors.torch
    import torch
    import ckptfs
    import ckptfs.numpy
    files = Files(folder)
    for tensors in (all_types(), shapes(), {}):
        made = ckptfs.save(tensors)
        assert made == safetensors.torch.save(tensors)
        same(ckptfs.load(made), tensors, "load")
        assert {k: v for k, v in ckptfs.deserialize(made)} == \
            {k: v for k, v in safetensors.deserialize(made)}
    made = ckptfs.save(shapes(), py.METADATA)
    assert len(made) == len(safetensors.torch.save(shapes(), py.METADATA))
    same(safetensors.torch.load(made), shapes(), "their load")
    got = ckptfs.load(made)
    got["large"] += 1  # a copy
    same(ckptfs.load(made), shapes(), "again")
    with open(files.path("bytes"), "wb") as f:
        f.write(made)
    with ckptfs.safe_open(files.path("bytes"), "pt") as f:
        assert f.metadata() == py.METADATA
    view = torch.arange(12.0).reshape(3, 4).t()
    same(ckptfs.load(ckptfs.save({"t": view})), {"t": view}, "any layout")

    arrays = {"a": np.arange(6, dtype="f4").reshape(2, 3),
              "b": np.arange(4, dtype=">i2"), "none": np.empty((0, 2))}
    made = ckptfs.numpy.save(arrays)
    assert made == safetensors.numpy.save(arrays)
    ckptfs.numpy.save_file(arrays, files.path("arrays"), plain=files.plain)
    for got in (ckptfs.numpy.load(made),
                ckptfs.numpy.load_file(files.path("arrays"))):
        for name, array in arrays.items():
            assert np.array_equal(got[name], array), name
    packed = np.arange(4, dtype="u1")
    for module in (ckptfs, safetensors):
        spec = module.TensorSpec(dtype="float4_e2m1fn_x2", shape=(2, 2),
                                 data_ptr=packed.ctypes.data, data_len=4)
        assert (spec.dtype, spec.shape, spec.data_len) == ("F4", [2, 4], 4)
        made = ckptfs.serialize({"p": spec}, {"k": "v"})
        assert made == safetensors.serialize({"p": safetensors.TensorSpec(
            dtype="float4_e2m1fn_x2", shape=[2, 2], data_len=4,
            data_ptr=packed.ctypes.data)}, {"k": "v"})
        ckptfs.serialize_file({"p": spec}, files.path("spec"), {"k": "v"},
                              plain=files.plain)
        with open(files.path("spec"), "rb") as f:
            (name, what), = ckptfs.deserialize(f.read())
        assert (name, what["data"]) == ("p", bytearray(range(4))), what


def module_of(**tensors):
    """With parameters of these names; the same tensor may have several."""
    import torch
    made, known = torch.nn.Module(), {}
    for name, tensor in tensors.items():
        if id(tensor) not in known:
            known[id(tensor)] = torch.nn.Parameter(tensor)
        setattr(made, name, known[id(tensor)])
    return made


def models(folder):
    """A tensor of several names is saved once, by the one that safetensors
    would take, and each loads what the other has saved."""
    import safetensors
    import safetensors.torch as theirs
    import torch
    import ckptfs
    files = Files(folder)

    def tied(seed, one="a", other="b"):
        g = torch.Generator().manual_seed(seed)
        shared = torch.randn(5, 3, generator=g)
        rest = torch.randn(4, 4, generator=g)
        return module_of(**{one: shared, "z": rest, other: shared,
                            "part": rest[:2], "t": rest.clone().t()})
    metadata = {"format": "pt"}
    ckptfs.save_model(tied(1), files.path("ours"), metadata, plain=files.plain)
    assert metadata == {"format": "pt"}  # the caller's
    theirs.save_model(tied(1), files.path("theirs"), {"format": "pt"})
    shown = []
    for name in ("ours", "theirs"):
        with safetensors.safe_open(files.path(name), "pt") as f:
            shown.append((f.keys(), f.metadata()))
        for load in (ckptfs.load_model, theirs.load_model):
            made = tied(2)
            assert load(made, files.path(name)) == (set(), [])
            same(made.state_dict(), tied(1).state_dict(), name)
            assert made.a is made.b
    assert shown[0] == shown[1] and shown[0][1]["b"] == "a", shown
    # A file may have the other one of two names.
    only = {"b": tied(3).b, "z": tied(3).z, "t": tied(3).t}
    files.save(only, "only")
    for load in (ckptfs.load_model, theirs.load_model):
        made = tied(2)
        load(made, files.path("only"))
        same(made.state_dict(), tied(3).state_dict(), "only")
    for strict, load in ((s, f) for s in (True, False)
                         for f in (ckptfs.load_model, theirs.load_model)):
        other = module_of(a=torch.zeros(5, 3), more=torch.zeros(1))
        if strict:
            e = raises(RuntimeError, load, other, files.path("ours"),
                       says='Missing key(s) in state_dict: "more"')
            assert '"t", "z"' in str(e), e
        else:
            missing, unexpected = load(other, files.path("ours"), strict=False)
            assert missing == {"more"} and sorted(unexpected) == ["t", "z"]


def others(folder):
    """Frameworks that take numpy's arrays get their own; slices of torch are
    where the tensor is."""
    import numpy as np
    import torch
    import ckptfs
    files = Files(folder)
    table = torch.arange(6000.0).reshape(60, 100)
    files.save({"table": table, "half": table.bfloat16()}, "table")
    for name, call in (("jax.numpy", "array"), ("mlx.core", "array"),
                       ("tensorflow", "convert_to_tensor")):
        stand_in = types.ModuleType(name)
        setattr(stand_in, call, lambda array, name=name: (name, array))
        sys.modules[name] = stand_in
        sys.modules.setdefault(name.split(".")[0],
                               types.ModuleType(name.split(".")[0]))
    for framework, name in (("jax", "jax.numpy"), ("flax", "jax.numpy"),
                            ("tf", "tensorflow"), ("tensorflow", "tensorflow"),
                            ("mlx", "mlx.core")):
        with ckptfs.safe_open(files.path("table"), framework) as f:
            by, whole = f.get_tensor("table")
            by_slice, part = f.get_slice("table")[3:5]
            raises(TypeError, f.get_tensor, "half", says="BF16")
        assert by == by_slice == name
        assert np.array_equal(whole, table.numpy())
        assert np.array_equal(part, table[3:5].numpy())
    with ckptfs.safe_open(files.path("table"), "pt") as f:
        there, part = f.get_tensor("table"), f.get_slice("table")
        assert part[...].data_ptr() == there.data_ptr()
        assert part[2:].data_ptr() == there[2:].data_ptr()
        assert part[:, 5:7].data_ptr() == there[:, 5:7].data_ptr()
    assert torch.equal(there, table)  # it stays
    with torch.device("meta"):  # as models are made, to be loaded
        got = ckptfs.load_file(files.path("table"))
        again = ckptfs.load(ckptfs.save(got))
        with ckptfs.safe_open(files.path("table"), "pt") as f:
            part = f.get_slice("table")[1:]
    same({**got, "part": part}, {**again, "part": table[1:]}, "on the host")


# --- the tests ---

PROGRAMS = {f.__name__: f for f in (
    calls, errors, alone, in_memory, models, others)}


def run(name, *argv):
    trainer.finish(trainer.start(__file__, name, *argv))


def tests():
    @ck.posix
    def each_call_of_safetensors_is_one_of_ours(fs):
        run("calls")

    @ck.posix
    def errors_are_of_safetensors_types_too(fs):
        run("errors", fs.dir)

    @ck.posix
    def errors_need_no_safetensors(fs):
        trainer.finish(trainer.start_new(__file__, "alone", fs.dir))

    @ck.posix
    def bytes_are_those_of_safetensors(fs):
        run("in_memory", fs.dir)

    @ck.posix
    def models_with_tied_tensors_are_saved_once(fs):
        run("models", fs.dir)

    @ck.posix
    def other_frameworks_and_slices_get_what_they_want(fs):
        run("others", fs.dir)


if __name__ == "__main__":
    trainer.main(PROGRAMS, tests)
