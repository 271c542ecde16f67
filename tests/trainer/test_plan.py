"""ckptctl plan, and the reader of .metadata behind it, against torch's own
reader: checkpoints of one process and of four gloo ranks; and what it says to
bad input. No mount is needed for any of it."""
import json
import os
import pickle
import subprocess
import sys
import tempfile

import trainer
from trainer import ck

RANKS = 4


def state(mesh=None):
    """Of every kind: dtypes, scalars, empty tensors, names, shards, bytes."""
    import torch
    out = {name: torch.zeros(3, 2).to(dtype) for name, dtype in {
        "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16,
        "f8": torch.float8_e4m3fn, "c64": torch.complex64, "bool": torch.bool,
        "u8": torch.uint8, "i16": torch.int16, "u32": torch.uint32}.items()}
    out.update({
        "scalar": torch.tensor(1.5), "empty": torch.empty(0, 7),
        "odd name \u00e4 \"quoted\" \\ tab\t": torch.ones(5),
        "nested": {"list": [torch.ones(2), 3], "lr": 0.1},
        "parameter": torch.nn.Parameter(torch.ones(4, 4)),
    })
    if mesh:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import (Replicate, Shard,
                                              distribute_tensor)
        grid = init_device_mesh("cpu", (2, 2))
        for name, size, where, on in (
                ("rows", (1022, 15), [Shard(0)], mesh),
                ("columns", (3, 103), [Shard(1)], mesh),
                ("fewer rows than ranks", (2, 9), [Shard(0)], mesh),
                ("grid", (33, 65), [Shard(0), Shard(1)], grid),
                ("half", (9, 9), [Replicate(), Shard(0)], grid),
                ("replicated", (50, 50), [Replicate()], mesh)):
            out[name] = distribute_tensor(torch.randn(*size), on, where)
    return out


def one(folder):
    import torch.distributed.checkpoint as dcp
    dcp.save(state(), checkpoint_id=f"{folder}/one", no_dist=True)
    dcp.save(state(), no_dist=True, storage_writer=dcp.FileSystemWriter(
        f"{folder}/three files", thread_count=3))


def save(folder, rank, store):
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{store}",
                            rank=int(rank), world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    dcp.save(state(mesh), checkpoint_id=f"{folder}/four")
    dcp.save(state(mesh), storage_writer=dcp.FileSystemWriter(
        f"{folder}/eight files", thread_count=2))
    dist.barrier()
    dist.destroy_process_group()


def say(folder):
    """What torch's reader says, in the words of ckptctl plan --list --json."""
    import torch.distributed.checkpoint as dcp
    md = dcp.FileSystemReader(folder).read_metadata()
    # Like a dict of torch: by name and offset.
    stored = {(k.fqn, None if k.offset is None else tuple(k.offset)): v
              for k, v in md.storage_data.items()}

    def place(name, offset):
        v = stored[name, offset]
        return {"file": v.relative_path, "offset": v.offset,
                "length": v.length,
                "transformed": bool(v.transform_descriptors)}

    items = []
    for name, item in md.state_dict_metadata.items():
        if hasattr(item, "chunks"):
            items.append({
                "name": name, "shape": list(item.size),
                "dtype": str(item.properties.dtype).split(".", 1)[1],
                "chunks": [{"offsets": list(c.offsets),
                            "sizes": list(c.sizes),
                            **place(name, tuple(c.offsets))}
                           for c in item.chunks]})
        else:
            items.append({"name": name, "dtype": None, **place(name, None)})
    print(json.dumps({"items": items, "entries": len(md.storage_data)}))


def ctl(*argv, code=0, text=None):
    p = subprocess.run([ck.CKPTCTL, "plan", *map(str, argv)],
                       input=text, capture_output=True, text=True, check=False,
                       timeout=ck.WAIT_BOUND)
    assert p.returncode == code, (argv, p.returncode, p.stdout, p.stderr)
    return p


def torch_says(folder):
    p = trainer.start(os.path.abspath(__file__), "say", folder)
    out = p.communicate(timeout=2 * ck.WAIT_BOUND)[0]
    assert p.returncode == 0, out
    return json.loads(out.splitlines()[-1])


def label(item, chunk=None):
    if chunk is None:
        return item["name"]
    at = tuple(chunk["offsets"])
    return f"{item['name']}@{at}"


def check_list(folder, want):
    got = json.loads(ctl("--list", folder, "--json").stdout)
    assert got["findings"] == [], got["findings"]
    assert got["entries"] == want["entries"], (got["entries"], want["entries"])
    assert len(got["items"]) == len(want["items"])
    for g, w in zip(got["items"], want["items"]):
        assert g == w, (g, w)
    assert len(ctl("--list", folder).stdout.splitlines()) == \
        len(want["items"]) + 1


def check_plan(folder, want, ranks):
    """Each piece goes to the rank that wrote it, where that is one."""
    got = json.loads(ctl(folder, "--ranks", ranks, "--json").stdout)
    pieces = {}
    for item in want["items"]:
        for c in item.get("chunks", [None]):
            where = c or item
            pieces[label(item, c)] = (
                int(where["file"].split("_")[2]), where["length"])
    assert sorted(got["assignment"]) == sorted(pieces)
    load = [0] * ranks
    for name, (source, length) in pieces.items():
        to = got["assignment"][name]
        load[to] += length
        assert to == source or source >= ranks, (name, to, source)
    assert got["load"] == load
    table = ctl(folder, "-n", ranks, "-p", "greedy").stdout
    assert table.split()[0] == "rank", table
    # The same for everybody, whatever ran before.
    assert ctl(folder, "-n", ranks, "--json").stdout == \
        ctl(folder, "-n", ranks, "--json").stdout


def made(tmp):
    """All checkpoints: folder -> what torch says about it."""
    trainer.finish(trainer.start(os.path.abspath(__file__), "one", tmp))
    trainer.finish(*(trainer.start(os.path.abspath(__file__), "save", tmp,
                                   rank, tmp + "/store")
                     for rank in range(RANKS)))
    folders = [f"{tmp}/{name}" for name in ("one", "three files", "four",
                                            "eight files")]
    return {folder: torch_says(folder) for folder in folders}


def reader_agrees_with_torch(tmp):
    for folder, want in made(tmp).items():
        print(f"# {os.path.basename(folder)}: {want['entries']} entries")
        check_list(folder, want)
        for ranks in (1, 2, RANKS, 8):
            check_plan(folder, want, ranks)


def damage_is_found(tmp):
    """One process's checkpoint with one thing wrong at a time."""
    trainer.finish(trainer.start(os.path.abspath(__file__), "one", tmp))
    folder = tmp + "/one"
    data = f"{folder}/__0_0.distcp"

    def kinds(code=1):
        got = json.loads(ctl("--list", folder, "--json", code=code).stdout)
        return {f["kind"] for f in got["findings"]}

    assert kinds(0) == set()
    with open(data, "ab") as f:
        f.write(b"rerun state that .metadata does not name")
    assert kinds() == {"unnamed"}
    os.truncate(data, os.path.getsize(data) - 41)
    assert kinds() == {"past_end"}
    good = ctl(folder, "-n", 2, "--json")
    assert good.stderr == "", good.stderr
    os.rename(data, f"{folder}/__1_0.distcp")
    assert kinds() == {"dangling", "orphan"}
    # The plan is the same, but one cannot read by it.
    bad = ctl(folder, "-n", 2, "--json", code=1)
    assert bad.stdout == good.stdout
    assert "__0_0.distcp" in bad.stderr and "No such file" in bad.stderr, \
        bad.stderr


class Evil:
    def __reduce__(self):
        return os.system, ("touch executed",)


def bad_metadata_is_refused(tmp):
    for content, what in ((b"", "offset 0"), (b"junk", "offset 0"),
                          (pickle.dumps(Evil()), "system"),
                          (pickle.dumps([1]), "no Metadata"),
                          (b"\x80\x04" + b"(" * 5000, "deep")):
        with open(f"{tmp}/.metadata", "wb") as f:
            f.write(content)
        for argv in (("--list",), ("-n", 2)):
            p = ctl(*argv, tmp, "--json", code=1)
            assert what in json.loads(p.stdout)["error"]["message"], p.stdout
            assert what in p.stderr, p.stderr
    os.unlink(f"{tmp}/.metadata")
    assert ".metadata" in ctl("--list", tmp, code=1).stderr
    assert not os.path.exists("executed")


def text_is_planned(tmp):
    one_shard = {"id": "w", "bytes": 8, "ranks": [0, 1], "source": 1,
                 "cross": False}

    def plan(code=0, *argv, **members):
        text = json.dumps({"num_ranks": 2, "shards": [
            {**one_shard, **members}]})
        return ctl("--json", *argv, "-", text=text, code=code)

    want = {"assignment": {"w": 1}, "load": [0, 8]}
    assert json.loads(plan().stdout) == want
    assert json.loads(plan(0, "--policy", "greedy").stdout) == \
        {"assignment": {"w": 0}, "load": [8, 0]}
    assert json.loads(plan(ranks=None).stdout) == want
    path = f"{tmp}/plan.json"
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"shards": [{k: one_shard[k] for k in
                               ("id", "bytes", "ranks")}],
                   "more": [1, {"x": 2}], "num_ranks": 2}, f)
    assert json.loads(ctl(path, "--json").stdout)["load"] == [8, 0]
    odd = 'a "b" \\ \n \u00e4 \U0001f600'
    assert json.loads(plan(id=odd).stdout)["assignment"] == {odd: 1}
    for members, what in (({"ranks": []}, "no rank"), ({"ranks": [2]}, "rank"),
                          ({"ranks": [0, 0]}, "twice"), ({"id": 1}, "id"),
                          ({"bytes": -1}, "bytes"), ({"bytes": 0.5}, "bytes"),
                          ({"bytes": 2 ** 53}, "bytes"),
                          ({"source": 2}, "source"), ({"source": "1"}, "source"),
                          ({"cross": 1}, "cross"), ({"id": "a\0b"}, "NUL")):
        p = plan(1, **members)
        assert what in json.loads(p.stdout)["error"]["message"], \
            (members, p.stdout)
    for text in ("", "{", "[]", "{}", '{"num_ranks": 0, "shards": []}',
                 '{"num_ranks": 1}', '{"shards": []}', '{"num_ranks": 1, '
                 '"shards": [1]}', '{"num_ranks": 1, "shards": []} x',
                 '{"num_ranks": 1, "shards": [,]}', '{"num_ranks": 1 "a"}',
                 '{"num_ranks": 1, "shards": ' + "[" * 5000):
        assert "error" in json.loads(
            ctl("--json", "-", text=text, code=1).stdout), text


def wrong_usage_is_told_apart(tmp):
    for argv in ((), ("a", "b"), ("-p", "fastest", "-"), ("-c", "0.9", "-"),
                 ("-c", "x", "-"), ("-n", "0", tmp), ("-n", "x", tmp), (tmp,),
                 ("--list", "-"), ("-n", "2", "-"), (tmp + "/nothing",),
                 ("--what", tmp)):
        p = ctl(*argv, code=2)
        assert p.stdout == "" and p.stderr.startswith("ckptctl: "), (argv, p)
    assert "usage" in ctl("--help").stdout


TESTS = (reader_agrees_with_torch, damage_is_found, bad_metadata_is_refused,
         text_is_planned, wrong_usage_is_told_apart)


def main():
    programs = {"one": one, "save": save, "say": say}
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
