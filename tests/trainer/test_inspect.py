"""ckptctl inspect: the tensors of real files of torch and safetensors, of four
gloo ranks' checkpoint and of hostile files; and --diff: what a step that went
wrong looks like. No mount is needed."""
import io
import itertools
import json
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import zipfile

import trainer
from trainer import ck

RANKS = 4
NUMPY_DTYPES = ("float64 float32 float16 complex64 bool int8 int16 int32 int64"
                " uint8 uint16 uint32 uint64")
DTYPES = ("float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 complex64"
          " complex128 bool int8 int16 int32 int64 uint8 uint16 uint32 uint64")


class Odd:
    """Something that the reader knows nothing of."""

    def __init__(self):
        self.deep = {"x": [1, 2.5, None]}


def nested():
    import argparse
    import collections
    import torch
    base = torch.arange(600.).reshape(20, 30)
    return {
        **{n: torch.ones(3, 5).to(getattr(torch, n)) for n in DTYPES.split()},
        "model": torch.nn.Sequential(torch.nn.Linear(4, 3),
                                     torch.nn.BatchNorm1d(3)).state_dict(),
        "optimizer": {"state": {0: {"step": torch.tensor(3.),
                                    "exp_avg": torch.ones(4, 3)}},
                      "param_groups": [{"lr": 0.1, "params": [0, 1]}]},
        "parameter": torch.nn.Parameter(torch.ones(2, 2)),
        "tied": base, "view": base[3:7], "transposed": base.t(),
        "list": [torch.ones(2), (torch.zeros(1), "text")],
        "scalar": torch.tensor(7), "empty": torch.empty(0, 9),
        "odd \u00e4 \"name\"\n": torch.ones(1),
        "args": argparse.Namespace(lr=1, names={"a", "b"}),
        "object": Odd(), "big": 2 ** 100, "bytes": b"x" * 300,
        "set": {1, 2}, "frozen": frozenset("ab"), "array": bytearray(9),
        "default": collections.defaultdict(list, {"t": torch.ones(4)}),
        "inside": argparse.Namespace(hidden=torch.full((11,), 3.)),
    }


def tensors_of(value, name=""):
    """(name, tensor) as inspect is to list them."""
    import torch
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for k, v in value.items():
            yield from tensors_of(v, f"{name}.{k}" if name else str(k))
    elif isinstance(value, (list, tuple)):
        for k, v in enumerate(value):
            yield from tensors_of(v, f"{name}.{k}" if name else str(k))


def files(folder):
    import torch
    from safetensors.torch import save_file
    state = nested()
    want = {}
    for protocol in (2, 4):
        torch.save(state, f"{folder}/p{protocol}.pt", pickle_protocol=protocol)
    torch.save(torch.ones(5, 6), f"{folder}/one.pt")
    flat = {n: t.detach().contiguous().clone() for n, t in tensors_of(state)
            if "odd" not in n and t.dtype != torch.complex128}
    save_file(flat, f"{folder}/s.safetensors", metadata={"format": "pt"})
    for name, tensors in (("p", dict(tensors_of(state))), ("s", flat)):
        want[name] = {n: [str(t.dtype)[6:], list(t.shape),
                          t.detach().contiguous().flatten().view(torch.uint8)
                          .numpy().tobytes().hex() if t.is_contiguous() and
                          t.numel() else None]
                      for n, t in tensors.items()}
    with open(f"{folder}/want.json", "w", encoding="utf-8") as f:
        json.dump(want, f)


def dcp_state(change=""):
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (RANKS,))
    seed = 2 if change == "bytes" else 1
    g = torch.Generator().manual_seed(seed)
    rows = 48 if change == "reshaped" else 64
    out = {"w": distribute_tensor(torch.randn(rows, 16, generator=g), mesh,
                                  [Shard(0)]),
           "frozen": distribute_tensor(torch.ones(32, 32), mesh, [Shard(0)]),
           "copy": distribute_tensor(torch.ones(9, 9), mesh, [Replicate()]),
           "b": torch.ones(7).to(torch.float32 if change == "retyped"
                                 else torch.bfloat16),
           "extra": {"note": "x" * (999 if change == "payload" else 1)}}
    if change == "dropped":
        del out["b"]
    return out


def save(folder, rank, store):
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{store}",
                            rank=int(rank), world_size=RANKS)
    for change in ("first", "stale", "bytes", "retyped", "reshaped",
                   "dropped", "payload"):
        dcp.save(dcp_state(change), checkpoint_id=f"{folder}/{change}")
    dist.barrier()
    dist.destroy_process_group()


def model():
    """What any of the containers can hold, as torch has it."""
    import torch
    g = torch.Generator().manual_seed(3)
    state = {n: torch.randint(0, 2, (6, 4), generator=g).to(getattr(torch, n))
             for n in NUMPY_DTYPES.split()}
    state["half"] = torch.randn(8, 3, generator=g).to(torch.bfloat16)
    state["w"] = torch.randn(40, 24, generator=g)
    state["deep.block"] = torch.randn(8, 12, 5, generator=g)
    state["large"] = torch.randn(5_000_000, 2, generator=g)  # two slabs
    state["scalar"] = torch.tensor(7.5)
    state["empty"] = torch.empty(0, 9)
    return state


def containers(folder):
    """The same in each container. What numpy has no type for is in neither of
    small.npz and small.pt."""
    import numpy
    import torch
    from safetensors.torch import save_file
    state = model()
    save_file(state, f"{folder}/one.safetensors")
    torch.save(dict(state, epoch=3), f"{folder}/plain.pt")
    # The same values, stored the other way round, and as part of a larger one.
    odd = dict(state)
    odd["w"] = state["w"].t().contiguous().t()
    odd["deep.block"] = torch.cat([state["deep.block"]] * 2, 1)[:, :12]
    torch.save(odd, f"{folder}/odd.pt")
    torch.save(dict(state, w=state["w"] + 1, scalar=state["scalar"].double()),
               f"{folder}/other.pt")
    os.mkdir(f"{folder}/sharded")
    names = sorted(state)
    for n in range(2):
        save_file({k: state[k] for k in names[n::2]},
                  f"{folder}/sharded/model-{n + 1:05}-of-00002.safetensors")
    with open(f"{folder}/sharded/model.safetensors.index.json", "w",
              encoding="utf-8") as f:
        json.dump({"weight_map": {
            k: f"model-{n + 1:05}-of-00002.safetensors"
            for n in range(2) for k in names[n::2]}}, f)
    small = {k: v for k, v in state.items() if k != "half"}
    torch.save(small, f"{folder}/small.pt")
    arrays = {k: v.numpy() for k, v in small.items()}
    numpy.savez(f"{folder}/small.npz", **arrays)
    arrays["w"] = numpy.asfortranarray(arrays["w"])
    numpy.savez(f"{folder}/fortran.npz", **arrays)
    numpy.savez_compressed(f"{folder}/packed.npz", **arrays)
    numpy.save(f"{folder}/w.npy", arrays["w"])
    torch.save(state["w"], f"{folder}/w.pt")
    with open(f"{folder}/two.npy", "wb") as f:
        numpy.save(f, numpy.arange(3))
        numpy.save(f, numpy.arange(4))
    numpy.save(f"{folder}/objects.npy", numpy.array([{}, 1], object))
    numpy.save(f"{folder}/record.npy", numpy.zeros(3, [("a", "<f4")]))
    numpy.save(f"{folder}/big_endian.npy", numpy.zeros(3, ">f4"))


def cut_up(folder, rank, world, store):
    """By all ranks: in rows and in columns, of uneven sizes."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{store}",
                            rank=int(rank), world_size=int(world))
    mesh = init_device_mesh("cpu", (int(world),))
    state = model()
    for name, dim in (("w", 0), ("deep.block", 1), ("large", 0), ("half", 1)):
        state[name] = distribute_tensor(state[name], mesh, [Shard(dim)])
    dcp.save(state, checkpoint_id=f"{folder}/dcp{world}")
    dist.destroy_process_group()


def ctl(*argv, code=0):
    p = subprocess.run([ck.CKPTCTL, "inspect", *map(str, argv)],
                       capture_output=True, text=True, check=False,
                       timeout=ck.WAIT_BOUND)
    assert p.returncode == code, (argv, p.returncode, p.stdout[-2000:],
                                  p.stderr)
    return p


def look(*argv, code=0):
    return json.loads(ctl("--json", *argv, code=code).stdout)


def all_of_torch_is_listed(tmp):
    trainer.finish(trainer.start(os.path.abspath(__file__), "files", tmp))
    with open(f"{tmp}/want.json", encoding="utf-8") as f:
        wants = json.load(f)
    for name, want, form in (("p2.pt", wants["p"], "torch_zip"),
                             ("p4.pt", wants["p"], "torch_zip"),
                             ("s.safetensors", wants["s"], "safetensors")):
        path = f"{tmp}/{name}"
        found = look("--digest", path)
        assert found["format"] == form and found["errors"] == []
        got = {t["name"]: t for t in found["tensors"]}
        # What an unknown object holds is there as well, but without a name.
        hidden = {n for n in got if got[n]["dtype"] is None}
        assert len(hidden) == (form == "torch_zip"), hidden
        assert set(got) - hidden == set(want), set(got) ^ set(want)
        with open(path, "rb") as f:
            data = f.read()
        for n, (dtype, shape, content) in want.items():
            t = got[n]
            assert (t["dtype"], t["shape"]) == (dtype, shape), (n, t)
            assert t["file"] == path
            if content is not None:
                assert data[t["offset"]:][:t["bytes"]].hex() == content, n
            assert len(t["digest"]) == 32
        if form == "torch_zip":
            assert got["transposed"]["strides"] == [1, 30]
            assert got["tied"]["shared_with"] == [
                {"name": "transposed"}], got["tied"]
        people = ctl(path).stdout.splitlines()
        assert len([x for x in people if x.startswith("    ")]) <= 66, people
        assert not [x for x in people if "\n" in x]
    [one] = look(f"{tmp}/one.pt")["tensors"]
    assert one["shape"] == [5, 6] and one["bytes"] == 120, one
    assert len(look(tmp)["tensors"]) == 2 * (len(wants["p"]) + 1) + \
        len(wants["s"]) + 1


def many_tensors_are_cut_short_for_people(tmp):
    names = {f"t{i}": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]}
             for i in range(100)}
    write_safetensors(f"{tmp}/f.safetensors", names, bytes(100))
    said = ctl(f"{tmp}/f.safetensors").stdout
    assert "and 36 more" in said and said.count("uint8") == 64, said
    assert ctl("-a", f"{tmp}/f.safetensors").stdout.count("uint8") == 100


def steps_are_compared(tmp):
    trainer.finish(*(trainer.start(os.path.abspath(__file__), "save", tmp,
                                   rank, tmp + "/store")
                     for rank in range(RANKS)))
    first = f"{tmp}/first"
    found = look("-d", first)
    assert found["format"] == "dcp" and found["findings"] == []
    assert sum(t["name"] == "w" for t in found["tensors"]) == RANKS
    assert {t["file"] for t in found["tensors"] if t["name"] == "w"} == {
        f"__{r}_0.distcp" for r in range(RANKS)}
    frozen = [t for t in found["tensors"] if t["name"] == "frozen"]
    assert len(frozen[0]["shared_with"]) == RANKS - 1, frozen
    assert frozen[0]["whole_shape"] == [32, 32]

    def diff(change, code):
        d = look("--diff", first, f"{tmp}/{change}", code=code)
        assert d["same_structure"] == (code == 0)
        return d, {k: {t["name"] for t in d[k]} for k in
                   ("added", "removed", "retyped", "reshaped", "changed")}

    none = {k: set() for k in ("added", "removed", "retyped", "reshaped")}
    d, names = diff("stale", 0)
    assert d["identical"] and names == {**none, "changed": set()}, names
    assert "stale weights" in ctl("--diff", first, f"{tmp}/stale").stdout
    d, names = diff("bytes", 0)
    assert not d["identical"] and names == {**none, "changed": {"w"}}, names
    d, names = diff("retyped", 1)
    assert names["retyped"] == {"b"} and not names["reshaped"], names
    d, names = diff("reshaped", 1)
    assert names["reshaped"] | names["added"] == {"w"}, names
    d, names = diff("dropped", 1)
    assert names["removed"] == {"b"} and not names["added"], names
    # The structure is the same where only the length of an object differs.
    d, names = diff("payload", 0)
    assert names["changed"] == {"extra.note"}, names
    for change in ("retyped", "stale"):
        d = look("--diff", "--structure", first, f"{tmp}/{change}",
                 code=int(change == "retyped"))
        assert d["identical"] is None and d["changed"] == []

    # One file alone: names come from the .metadata beside it.
    path = f"{first}/__1_0.distcp"
    names = {t["name"]: t for t in look(path)["tensors"]}
    assert names["w"]["shape"] == [16, 16] and \
        names["w"]["dtype"] == "float32", names
    os.rename(f"{first}/.metadata", f"{tmp}/away")
    assert all(t["name"].startswith("@") for t in look(path)["tensors"])
    os.rename(f"{tmp}/away", f"{first}/.metadata")

    # .metadata alone says where to look; a damaged one is told.
    metadata = f"{first}/.metadata"
    assert look(metadata)["format"] == "dcp"
    assert "inspect their directory" in ctl(metadata).stdout
    assert "two directories" in ctl("--diff", metadata, metadata,
                                    code=2).stderr
    with open(metadata, "rb") as f:
        whole = f.read()
    with open(metadata, "wb") as f:
        f.write(whole[:len(whole) // 2])
    assert ".metadata: " in ctl(metadata, code=1).stderr
    with open(metadata, "wb") as f:
        f.write(whole)

    # A rank's file is gone; another one is of a larger world.
    with open(f"{first}/metadata.json", "w", encoding="utf-8") as f:
        f.write('{"sharded_backend": "torch_dist", '
                '"sharded_backend_version": 1}')
    os.rename(path, f"{first}/__7_0.distcp")
    found = look(first, code=1)
    assert {f["kind"] for f in found["findings"]} == {"dangling", "orphan"}
    assert found["sharded_backend"] == "torch_dist"
    assert found["sharded_backend_version"] == 1
    assert "dangling" in ctl(first, code=1).stdout


def the_same_model_is_the_same_in_every_container(tmp):
    trainer.finish(trainer.start(os.path.abspath(__file__), "containers", tmp))
    for world in (3, 2):
        trainer.finish(*[
            trainer.start(os.path.abspath(__file__), "cut_up", tmp, rank, world,
                          f"{tmp}/store{world}") for rank in range(world)])
    same = ("one.safetensors", "plain.pt", "odd.pt", "sharded", "dcp3", "dcp2")
    pairs = [(a, b) for a, b in itertools.combinations(same, 2)
             if (a, b) != ("plain.pt", "odd.pt")]
    pairs += [("small.pt", "small.npz"), ("fortran.npz", "small.pt"),
              ("w.npy", "w.pt")]
    for a, b in pairs:
        d = look("--diff", f"{tmp}/{a}", f"{tmp}/{b}")
        assert d["same_structure"] and d["identical"], (a, b, d)
        assert d["whole_tensors"], (a, b, d)
        assert not any(d[k] for k in ("added", "removed", "retyped", "reshaped",
                                      "moved", "changed")), (a, b, d)
    for a, b in pairs[-3:]:
        said = ctl("--diff", f"{tmp}/{a}", f"{tmp}/{b}").stdout
        assert "with the same bytes" in said and "stale" not in said, said
    # What differs is said, by the tensor.
    for a in ("one.safetensors", "sharded", "dcp3"):
        d = look("--diff", f"{tmp}/{a}", f"{tmp}/other.pt", code=1)
        assert [t["name"] for t in d["changed"]] == ["scalar", "w"], d
        [retyped] = d["retyped"]
        assert retyped["a"] == {"dtype": "float32", "shape": []}, d
        assert retyped["b"] == {"dtype": "float64", "shape": []}, d
        d = look("--diff", f"{tmp}/{a}", f"{tmp}/small.npz", code=1)
        assert [t["name"] for t in d["removed"]] == ["half"], d
        assert not d["changed"] and not d["retyped"], d
    # A byte in one rank's file.
    path = f"{tmp}/dcp3/__1_0.distcp"
    [w] = [t for t in look(path)["tensors"] if t["name"] == "large"]
    with open(path, "r+b") as f:
        f.seek(w["offset"] + w["bytes"] // 2)
        byte = f.read(1)
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte[0] ^ 1]))
    d = look("--diff", f"{tmp}/dcp3", f"{tmp}/one.safetensors")
    assert [t["name"] for t in d["changed"]] == ["large"], d
    assert d["unchanged"] > 10 and not d["identical"], d
    # Pieces that are gone are no tensor.
    os.unlink(path)
    p = ctl("--diff", f"{tmp}/dcp3", f"{tmp}/one.safetensors", code=1)
    assert "large: No such file" in p.stderr, p.stderr


def arrays_of_numpy_are_listed(tmp):
    trainer.finish(trainer.start(os.path.abspath(__file__), "containers", tmp))
    found = look(f"{tmp}/fortran.npz")
    assert found["format"] == "npz" and "note" not in found, found
    got = {t["name"]: t for t in found["tensors"]}
    assert got["w"]["dtype"] == "float32" and got["w"]["shape"] == [40, 24]
    assert got["w"]["strides"] == [1, 40], got["w"]
    assert got["scalar"]["shape"] == [] and got["empty"]["bytes"] == 0
    with open(f"{tmp}/fortran.npz", "rb") as f:
        f.seek(got["int16"]["offset"])
        assert set(f.read(got["int16"]["bytes"])) == {0, 1}
    found = look(f"{tmp}/packed.npz")
    assert "compressed" in found["note"] and len(found["tensors"]) == len(got)
    assert all(t["dtype"] is None for t in found["tensors"])
    [t] = look(f"{tmp}/w.npy")["tensors"]
    assert (t["name"], t["shape"], t["dtype"], t["offset"]) == (
        "(tensor)", [40, 24], "float32", 128), t
    first, rest = look(f"{tmp}/two.npy")["tensors"]
    assert first["dtype"] == "int64" and rest["name"] == "(what follows)" and \
        rest["offset"] == first["offset"] + first["bytes"]
    assert look(f"{tmp}/big_endian.npy")["tensors"][0]["dtype"] == ">f4"
    for name in ("objects", "record"):
        [t] = look(f"{tmp}/{name}.npy")["tensors"]
        assert t["dtype"] is None and t["offset"] == 0, t
    with open(f"{tmp}/w.npy", "rb") as f:
        whole = f.read()
    for end in (129, 2000, len(whole) - 1):
        with open(f"{tmp}/w.npy", "wb") as f:
            f.write(whole[:end])
        assert "cut off" in ctl(f"{tmp}/w.npy", code=1).stderr


def put(path, content):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(content if isinstance(content, str) else json.dumps(content))


def arrays_of_zarr_are_listed(tmp):
    """Both versions, as their specifications describe them."""
    three, two = f"{tmp}/three", f"{tmp}/two"
    group = {"zarr_format": 3, "node_type": "group"}
    put(f"{three}/zarr.json", group)
    put(f"{three}/model/zarr.json", group)
    for name, kind in (("w", "float32"), ("b", {"name": "bfloat16"})):
        put(f"{three}/model/{name}/zarr.json",
            {"zarr_format": 3, "node_type": "array", "shape": [40, 24],
             "data_type": kind})
        put(f"{three}/model/{name}/c/0/0", "a chunk")
    put(f"{two}/.zgroup", {"zarr_format": 2})
    put(f"{two}/model/.zgroup", {"zarr_format": 2})
    put(f"{two}/model/w/.zarray", {"zarr_format": 2, "shape": [40, 24],
                                   "dtype": "<f4"})
    put(f"{two}/model/w/0.0", "a chunk")
    found = look(three)
    assert found["format"] == "zarr" and found["errors"] == [], found
    assert [(t["name"], t["dtype"], t["shape"], t["file"])
            for t in found["tensors"]] == [
        ("model/b", "bfloat16", [40, 24], "model/b/zarr.json"),
        ("model/w", "float32", [40, 24], "model/w/zarr.json")], found
    assert "bytes are not read" in ctl(three).stdout
    d = look("--diff", "--structure", three, two, code=1)
    assert [t["name"] for t in d["removed"]] == ["model/b"], d
    assert not d["added"] + d["retyped"] + d["reshaped"], d
    assert "--structure" in ctl("--diff", three, two, code=2).stderr
    assert "--digest" in ctl("-d", three, code=2).stderr
    # One array by itself.
    [t] = look(f"{two}/model/w")["tensors"]
    assert t["name"] == "(tensor)" and t["shape"] == [40, 24], t
    # What is wrong is said; the others are listed.
    path = f"{two}/model/w/.zarray"
    for wrong, what in (("{", "not JSON"), ("[]", "no JSON object"),
                        ({"dtype": "<f4"}, "no shape"),
                        ({"shape": [-1]}, "no shape"),
                        ({"shape": [1] * 65}, "no shape"),
                        ("{" + " " * (1 << 20) + "}", "too long")):
        put(path, wrong)
        p = ctl("--json", two, code=1)
        [error] = json.loads(p.stdout)["errors"]
        assert what in error["what"] and error["file"] == "model/w/.zarray", p
    deep = two
    for _ in range(20):
        deep += "/d"
    put(path, {"shape": [], "dtype": "\x1b[2J"})
    put(f"{deep}/.zgroup", "{}")
    p = ctl(two, code=1)
    assert "too many groups" in p.stderr and "\x1b" not in p.stdout, p


def what_is_not_listed_is_named(tmp):
    import gzip
    import tarfile
    path = f"{tmp}/f"
    for content, form, says in (
            (b"\x89HDF\r\n\x1a\n" + bytes(99), "hdf5", "h5ls"),
            (bytes(512) + b"\x89HDF\r\n\x1a\n", "hdf5", "h5ls"),
            (b"GGUF\3\0\0\0", "gguf", "gguf-dump"),
            (pickle.dumps({"a": 1}, 4), "pickle", "not read"),
            (pickle.dumps([1] * 99, 2), "pickle", "not read"),
            (gzip.compress(b"x" * 99), "gzip", "gzip -d"),
            (b"\x28\xb5\x2f\xfd....", "zstd", "zstd -d"),
            (b"\x0c\xdb\x3a\x2a....", "ocdbt", "tensorstore")):
        with open(path, "wb") as f:
            f.write(content)
        found = look(path)
        assert found["format"] == form and says in found["note"], found
        assert says in ctl(path).stdout
        assert says in ctl("--diff", path, path, code=2).stderr
    with tarfile.open(path, "w") as t:
        t.add(__file__)
    assert look(path)["format"] == "tar"
    for names, form, says in ((("manifest.ocdbt",), "ocdbt", "tensorstore"),
                              (("_CHECKPOINT_METADATA",), "orbax", "orbax")):
        with tempfile.TemporaryDirectory(dir=tmp) as folder:
            for name in names:
                with open(f"{folder}/{name}", "w", encoding="ascii") as f:
                    f.write("{}")
            found = look(folder)
            assert found["format"] == form and says in found["note"], found
            assert says in ctl(folder).stdout


def write_safetensors(path, header, data):
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


class Call:
    def __init__(self, *what):
        self.what = what

    def __reduce__(self):
        return self.what


def archive(path, content, more=(), method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as z:
        z.writestr("archive/data.pkl", content)
        for name, data in more:
            z.writestr(name, data)


def what_is_hostile_is_refused(tmp):
    path = f"{tmp}/f.pt"

    def refused(what, name=path):
        p = ctl("--json", name, code=1)
        errors = json.loads(p.stdout)["errors"]
        assert len(errors) == 1 and what in errors[0]["what"], (what, p)
        assert what in p.stderr and ctl(name, code=1).stderr == p.stderr

    cycle = {}
    cycle["again"] = cycle
    archive(path, pickle.dumps(cycle, 2))
    assert look(path)["tensors"] == []
    deep = []
    for _ in range(70):
        deep = [deep]
    archive(path, pickle.dumps(deep, 2))
    refused("nested more than")
    again = []
    for _ in range(60):
        again = [again, again]
    archive(path, pickle.dumps(again, 2))
    refused("again and again")
    # Nothing is called, whatever it is.
    archive(path, pickle.dumps({"x": Call(os.system, ("touch executed",))}, 2))
    assert look(path)["tensors"] == []
    assert not os.path.exists("executed")
    for content, what in ((b"", "offset 0"), (b"\x80\x02}", "offset 3"),
                          (b"\x80\x02P1\n.", "offset 2"),
                          (b"\x80\x02\x82\x01.", "EXT1"),
                          (b"\x80\x02X\xff\xff\xff\x7f", "past the pickle"),
                          (b"\x80\x02" + b"(" * 5000, "deep")):
        archive(path, content)
        refused(what)
    key = b"X\x01\x00\x00\x00a"

    def tensor(size, stride, first=0, name=b"0", kind=b"FloatStorage"):
        def text(t):
            return b"X" + struct.pack("<I", len(t)) + t

        def number(i):
            return b"\x8a\x08" + struct.pack("<q", i)

        def numbers(t):
            return b"(" + b"".join(map(number, t)) + b"t"
        return (b"\x80\x02}" + key +
                b"ctorch._utils\n_rebuild_tensor_v2\n((" + text(b"storage") +
                b"ctorch\n" + kind + b"\n" + text(name) + text(b"cpu") +
                number(4) + b"tQ" + number(first) + numbers(size) +
                numbers(stride) + b"\x89}tRs.")

    data = [("archive/data/0", bytes(16))]
    archive(path, tensor([4], [1]), data)
    [t] = look(path)["tensors"]
    assert t["bytes"] == 16 and t["name"] == "a"
    for bad in (([5], [1]), ([4], [2]), ([4], [1], 1), ([2 ** 62], [4]),
                ([2 ** 40, 2 ** 40], [2 ** 40, 1]), ([4], [2 ** 62]),
                ([-1], [1]), ([4], [1, 1]), ([4], [1], -1),
                ([4], [1], 2 ** 62), ([4], [1], 0, b"1"),
                ([4], [1], 0, b"../../etc/passwd"), ([4], [1], 0, b"\xff"),
                ([4], [1], 0, b"0", b"NoStorage")):
        archive(path, tensor(*bad), data)
        refused("tensor 'a'")
    archive(path, tensor([4], [1]).replace(key, b"X\x01\x00\x00\x00\x00"),
            data)
    assert [t["name"] for t in look(path)["tensors"]] == ["0"]
    # A bomb: packed, or longer than the file.
    archive(path, tensor([4], [1]) + bytes(1 << 20), data,
            zipfile.ZIP_DEFLATED)
    refused("compressed")
    archive(path, tensor([4], [1]), data)
    with open(path, "rb") as f:
        whole = f.read()
    at = whole.rindex(b"PK\1\2")
    for size in (17, 1000, 0x7fffffff, 0xfffffffe):
        with open(path, "wb") as f:
            f.write(whole[:at + 20] + struct.pack("<II", size, size) +
                    whole[at + 28:])
        if size == 17:  # still inside the archive, of another member
            continue
        refused("does not lie in the archive")
    for end in range(4, len(whole)):
        with open(path, "wb") as f:
            f.write(whole[:end])
        if end % 7 == 0 or end > len(whole) - 30:
            refused("cut off")

    path = f"{tmp}/f.safetensors"
    for content, what in (
            (b"", "0 bytes"), (struct.pack("<Q", 1 << 60) + b"{", "header"),
            (struct.pack("<Q", 99) + b"{}", "header"),
            (struct.pack("<Q", 2) + b"[]", "'{'")):
        with open(path, "wb") as f:
            f.write(content)
        refused(what, path)
    one = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
    for header, what in (({"a\0b": one}, "NUL"),
                         ({"a": {**one, "shape": [2 ** 52] * 9}}, "'a'"),
                         ({"a": {**one, "data_offsets": [0, 5]}}, "'a'"),
                         ({"a": one, "b": one}, "overlap"),
                         ({"a": {**one, "dtype": "U9"}}, "U9")):
        write_safetensors(path, header, bytes(4))
        refused(what, path)
    with open(f"{tmp}/.metadata", "wb") as f:
        f.write(pickle.dumps(Call(os.system, ("touch executed",))))
    found = look(tmp, code=1)
    assert len(found["errors"]) == 3, found["errors"]
    assert not os.path.exists("executed")


def other_files_have_no_tensors(tmp):
    with open(f"{tmp}/plain", "wb") as f:
        f.write(b"just text")
    assert look(f"{tmp}/plain") == {
        "path": f"{tmp}/plain", "size_bytes": 9, "format": "plain",
        "structure": look(f"{tmp}/plain")["structure"], "errors": [],
        "tensors": []}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as z:
        z.writestr("a.txt", "x")
    with open(f"{tmp}/a.zip", "wb") as f:
        f.write(buffer.getvalue())
    assert look(f"{tmp}/a.zip")["format"] == "zip"
    for argv in (("--diff", tmp), ("--diff", tmp, f"{tmp}/plain"),
                 ("--diff", f"{tmp}/plain", f"{tmp}/plain"),
                 ("--structure", tmp), (tmp, tmp), ("--diff", tmp, "/no"),
                 ("--what", tmp)):
        ctl(*argv, code=2)


TESTS = (all_of_torch_is_listed, many_tensors_are_cut_short_for_people,
         steps_are_compared, the_same_model_is_the_same_in_every_container,
         arrays_of_numpy_are_listed, arrays_of_zarr_are_listed, what_is_not_listed_is_named,
         what_is_hostile_is_refused,
         other_files_have_no_tensors)


def main():
    programs = {"files": files, "save": save, "containers": containers,
                "cut_up": cut_up}
    if len(sys.argv) > 1:
        programs[sys.argv[1]](*sys.argv[2:])
        return
    trainer.need_torch()
    for number, test in enumerate(TESTS, 1):
        with tempfile.TemporaryDirectory() as tmp:
            test(tmp)
        print(f"ok {number} - {test.__name__}", flush=True)


if __name__ == "__main__":
    main()
