"""Tensors of load_file() and safe_open() lie where the file is mapped, as
safetensors' do: nothing is copied, they are the version that they were of
whatever becomes of the name, and what is written to them stays with them."""
import gc
import os
import sys

import trainer
from trainer import ck

os.environ.setdefault("CKPTFS_GPU_LIBRARY",
                      os.path.join(ck.BUILD, "gpu/libckpt_gpu.so.0"))
sys.path.insert(0, os.path.join(trainer.HERE, "../../gpu/python"))


def maps(path):
    """How often this process has the file mapped."""
    name = os.path.basename(path)
    with open("/proc/self/maps", encoding="utf-8") as f:
        return sum(name in line for line in f)


def save(tensors, path):
    import ckptfs
    ckptfs.save_file(tensors, path, plain=not trainer.on_ckptfs(
        os.path.dirname(path)))


def mapped(folder):
    import ckptfs
    import torch
    path = os.path.join(folder, "mapped")
    first, later = trainer.state(1), trainer.state(2)
    save(first, path)
    copied = ckptfs.counters()["host_bytes"]
    got = ckptfs.load_file(path)
    with ckptfs.safe_open(path) as f:
        one = f.get_tensor("embedding")
    assert ckptfs.counters()["host_bytes"] == copied, "nothing is copied"
    trainer.equal(got, {name: first[name] for name in got})
    assert len(got) == len(first) and torch.equal(one, first["embedding"])
    # Each has a storage of its own, as large as it is.
    storages = {t.untyped_storage().data_ptr() for t in got.values()
                if t.numel()}
    assert len(storages) == sum(1 for t in got.values() if t.numel())
    assert all(t.untyped_storage().nbytes() == t.nbytes
               for t in got.values())
    # What is written to them is theirs.
    got["embedding"].zero_()
    assert torch.equal(one, first["embedding"])
    trainer.equal({"e": ckptfs.load_file(path)["embedding"]},
                  {"e": first["embedding"]})
    # They are saved over the file that they lie in.
    save(got, path)
    assert not ckptfs.load_file(path)["embedding"].any()
    assert torch.equal(one, first["embedding"])
    save(later, path)
    again = ckptfs.load_file(path)
    os.unlink(path)
    trainer.equal(again, {name: later[name] for name in again})
    first["embedding"] = torch.zeros_like(one)
    trainer.equal(got, {name: first[name] for name in got})
    # The memory goes with the last of them.
    kept = again["half"]
    assert maps(path) > 0
    del got, again, one
    gc.collect()
    assert maps(path) == 1, maps(path)
    assert torch.equal(kept, later["half"])
    del kept
    gc.collect()
    assert maps(path) == 0


def odd(folder):
    """What cannot lie where it is has memory of its own."""
    import json
    import torch
    import ckptfs
    path = os.path.join(folder, "odd")
    header = json.dumps({
        "byte": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "float": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
        "none": {"dtype": "F32", "shape": [0], "data_offsets": [9, 9]},
    }).encode()
    with open(path, "wb") as f:
        f.write(len(header).to_bytes(8, "little") + header + b"\7" +
                torch.tensor([1.5, -2.0]).numpy().tobytes())
    got = ckptfs.load_file(path)
    assert list(got) == ["byte", "float", "none"], list(got)
    assert got["byte"].item() == 7 and got["none"].shape == (0,)
    assert got["float"].tolist() == [1.5, -2.0]
    assert got["float"].data_ptr() % 4 == 0


PROGRAMS = {f.__name__: f for f in (mapped, odd)}


def tests():
    @ck.posix
    def tensors_lie_where_the_file_is_mapped(fs):
        trainer.finish(trainer.start(__file__, "mapped", fs.dir))

    @ck.posix
    def a_tensor_that_is_not_aligned_is_copied(fs):
        trainer.finish(trainer.start(__file__, "odd", fs.dir))


if __name__ == "__main__":
    trainer.main(PROGRAMS, tests)
