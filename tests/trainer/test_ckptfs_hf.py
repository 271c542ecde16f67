"""ckptfs.dcp.HFWriter, HFReader and consolidate: torch.distributed.checkpoint's
safetensors files through segments. torch's own reader and safetensors read what
they write, and they read what torch's writer does."""
import glob
import json
import os
import sys
import types

import test_dcp
import trainer
from trainer import ck

HERE = os.path.dirname(os.path.abspath(__file__))
os.environ.setdefault("CKPTFS_GPU_LIBRARY",
                      os.path.join(ck.BUILD, "gpu/libckpt_gpu.so.0"))
sys.path.insert(0, os.path.join(HERE, "../../gpu/python"))

INDEX = "model.safetensors.index.json"
FILES = {"rows": 1, "columns": 1, "ids": 2, "scalar": 2, "replicated": 1,
         "bf16": 2, "cube": 2}


def whole(seed):
    import torch
    g = torch.Generator().manual_seed(seed)
    return {"rows": torch.randn(103, 5, generator=g),
            "columns": torch.randn(7, 130, generator=g),
            "ids": torch.randint(-9, 9, (101,), generator=g),
            "scalar": torch.tensor(seed + 0.5, dtype=torch.float64),
            "replicated": torch.randn(30, 3, generator=g),
            "bf16": torch.randn(33, 9, generator=g).to(torch.bfloat16),
            "cube": torch.randn(6, 11, 4, generator=g)}


def sharded(seed):
    """This rank's part, of tensors that are cut in each of the dimensions."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    cut = {"columns": Shard(1), "cube": Shard(1), "replicated": Replicate(),
           "scalar": None}
    return {name: distribute_tensor(one, mesh, [cut.get(name, Shard(0))])
            if cut.get(name, one) is not None else one
            for name, one in whole(seed).items()}


def empty(state):
    import torch
    return {name: torch.zeros_like(one) for name, one in state.items()}


def own(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def same(got, want, what=""):
    import torch
    assert set(got) == set(want), (what, list(got))
    for name, one in want.items():
        a, b = own(got[name]), own(one)
        assert a.dtype == b.dtype and torch.equal(a, b), (what, name)


def load(path, want, reader, **options):
    import torch.distributed.checkpoint as dcp
    got = empty(want)
    where = {name: own(one).data_ptr() for name, one in got.items()}
    dcp.load(got, storage_reader=reader(path), **options)
    same(got, want, f"{path} {reader}")
    assert where == {name: own(one).data_ptr() for name, one in got.items()}


def files(folder):
    """What safetensors finds, and the index."""
    from safetensors.torch import load_file
    with open(f"{folder}/{INDEX}", encoding="utf-8") as f:
        index = json.load(f)
    found = {}
    for path in glob.glob(f"{glob.escape(folder)}/*.safetensors"):
        for name, one in load_file(path).items():
            assert index["weight_map"][name] == os.path.basename(path), name
            found[name] = one
    assert set(index["weight_map"]) == set(found), index
    assert index["metadata"]["total_size"] == sum(
        one.nbytes for one in found.values()), index
    return found


def on_segments(folder):
    """All saves of the process since its beginning."""
    import ckptfs
    k = ckptfs.counters()
    assert k["saves"] > 0, k
    if trainer.on_ckptfs(folder):
        assert k["plain_saves"] == 0, k


def one(folder):
    """One rank has it all."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import (
        HuggingFaceStorageReader, HuggingFaceStorageWriter)
    from torch.distributed.checkpoint.planner import WriteItemType
    from ckptfs._hf import _resolved
    from ckptfs.dcp import HFReader, HFWriter
    want = whole(1)
    for number, mapping in enumerate((None, FILES)):
        path = f"{folder}/one {number}"
        dcp.save(want, storage_writer=HFWriter(path, mapping), no_dist=True)
        dcp.save(want, storage_writer=HuggingFaceStorageWriter(
            f"{path} torch", mapping), no_dist=True)
        same(files(path), want)
        assert sorted(os.listdir(path)) == sorted(os.listdir(f"{path} torch"))
        for name in (path, f"{path} torch"):
            for reader in (HuggingFaceStorageReader, HFReader):
                load(name, want, reader, no_dist=True)
    on_segments(folder)
    # Of another type, in another order, and only a part of it.
    other = {"rows": torch.zeros(5, 103).t(), "bf16": torch.zeros(33, 9)}
    dcp.load(other, storage_reader=HFReader(path), no_dist=True)
    assert torch.equal(other["rows"], want["rows"])
    assert torch.equal(other["bf16"], want["bf16"].float())
    for state, says in (({"x": torch.ones(2), "step": 3}, "`step` is no tensor"),
                        ({"x": torch.ones(2, dtype=torch.complex128)}, "`x`")):
        trainer.raises(BaseException, lambda state=state: dcp.save(
            state, storage_writer=HFWriter(f"{folder}/refused"), no_dist=True),
            says=says)
    assert not glob.glob(f"{folder}/refused/*.safetensors")
    trainer.raises(TypeError, HFWriter, folder, says="overwrite",
                   overwrite=True)
    # Two shards of one tensor: torch's file has the second alone.
    part = types.SimpleNamespace(index=types.SimpleNamespace(fqn="two"),
                                 type=WriteItemType.SHARD)
    trainer.raises(ValueError, _resolved, [part, part], None, says="`two`")


def several(folder, rank, world, store):
    """Each rank has a shard; then whole files are made of them."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import (
        HuggingFaceStorageReader, HuggingFaceStorageWriter)
    from ckptfs.dcp import HFReader, HFWriter, Stager, consolidate
    test_dcp.join(rank, world, store)
    want, all_of_it = sharded(2), whole(2)
    shards, path = f"{folder}/run/sharded", f"{folder}/run"
    for writer, name in ((HFWriter, shards),
                         (HuggingFaceStorageWriter, f"{folder}/torch")):
        dcp.save(want, storage_writer=writer(name, FILES,
                                             save_distributed=True))
        for reader in (HuggingFaceStorageReader, HFReader):
            load(name, want, reader)
            load(name, all_of_it, reader)
    assert set(os.listdir(shards)) == set(os.listdir(f"{folder}/torch"))
    consolidate(shards, path, FILES, num_threads=5)
    same(files(path), all_of_it, "consolidated")
    load(path, want, HFReader)
    on_segments(folder)
    # In the writer: what torch makes of it, which fails for integers and has
    # zeros for scalars.
    floats = {name: one for name, one in want.items()
              if name not in ("ids", "scalar")}
    for writer, name in ((HFWriter, "by itself"),
                         (HuggingFaceStorageWriter, "torch by itself")):
        dcp.save(floats, storage_writer=writer(
            f"{folder}/{name}", save_distributed=True,
            enable_consolidation=True))
        if rank == "0":
            same(files(f"{folder}/{name}"),
                 {name: all_of_it[name] for name in floats}, name)
        dist.barrier()
    # While the job goes on, and over what is there.
    state = {name: own(want[name]).clone() for name in ("scalar", "replicated")}
    saved = dcp.async_save(
        state, async_stager=Stager(), storage_writer=HFWriter(
            f"{folder}/by itself", save_distributed=True,
            enable_consolidation=True))
    saved.staging_completion.result()
    before = {name: one.clone() for name, one in state.items()}
    for one in state.values():
        one += 1
    saved.upload_completion.result()
    if rank == "0":
        same(files(f"{folder}/by itself"), before, "again")
    wrong(folder, rank, shards)
    dist.barrier()
    dist.destroy_process_group()


def wrong(folder, rank, shards):
    """What is missing or too much is named on all ranks."""
    import shutil
    import torch.distributed as dist
    import ckptfs
    from ckptfs.dcp import consolidate
    out = f"{folder}/out"
    if rank == "0":
        os.mkdir(out)
        for name in ("less", "more", "strange"):
            shutil.copytree(shards, f"{folder}/{name}")
        os.unlink(sorted(glob.glob(f"{folder}/less/shard-00001-*"))[0])
        shutil.copy(glob.glob(f"{folder}/more/shard-00001-*")[0],
                    f"{folder}/more/shard-00009-model-00001.safetensors")
        ckptfs.save_file({}, f"{folder}/strange/x.safetensors", plain=True)
    dist.barrier()
    for path, mapping, says in (
            (f"{folder}/less", FILES, "`rows`"), (f"{folder}/more", FILES,
                                                  "do not make up"),
            (f"{folder}/strange", FILES, "strange/x.safetensors"),
            (shards, dict(FILES, nothing=1), "`nothing`")):
        trainer.raises((RuntimeError, ValueError), consolidate, path, out,
                       mapping, says=says)
        assert not os.path.exists(f"{out}/{INDEX}")


PROGRAMS = {f.__name__: f for f in (one, several)}


def tests():
    @ck.posix
    def one_rank_writes_what_torch_and_safetensors_read(fs):
        trainer.finish(trainer.start(__file__, "one", fs.dir))

    @ck.posix
    def shards_of_all_ranks_become_whole_tensors(fs):
        for world in (3, 1):
            folder = f"{fs.dir}/{world}"
            os.mkdir(folder)
            trainer.ranks(__file__, "several", folder, world,
                          fs.mnt.rstrip("/") + ".gloo", MASTER_ADDR="127.0.0.1")


if __name__ == "__main__":
    trainer.main(PROGRAMS, tests)
