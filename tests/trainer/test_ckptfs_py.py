"""The module ckptfs: files of its own and of safetensors mean the same to both,
its saves are complete whatever happens to the tensors and to the process, and
the examples that use it resume where they were killed."""
import ctypes
import os
import re
import subprocess
import sys
import tempfile

import trainer
from trainer import ck, raises

HERE = os.path.dirname(os.path.abspath(__file__))
GPU = os.path.join(HERE, "../../gpu")
os.environ.setdefault("CKPTFS_GPU_LIBRARY",
                      os.path.join(ck.BUILD, "gpu/libckpt_gpu.so.0"))
sys.path.insert(0, os.path.join(GPU, "python"))

METADATA = {"format": "pt", "step": "7", "odd \u00e4\n\"": ""}


# --- what the programs share ---

class Files:
    """The module as a user of this folder calls it."""

    def __init__(self, folder):
        self.folder = folder
        self.plain = not trainer.on_ckptfs(folder)

    def path(self, name):
        return os.path.join(self.folder, name + ".safetensors")

    def save(self, tensors, name, metadata=None, **options):
        import ckptfs
        ckptfs.save_file(tensors, self.path(name), metadata, plain=self.plain,
                         **options)

    def begin(self, tensors, name, metadata=None, **options):
        import ckptfs
        return ckptfs.save_file_async(tensors, self.path(name), metadata,
                                      plain=self.plain, **options)

    def load(self, name, *args, **options):
        import ckptfs
        return ckptfs.load_file(self.path(name), *args, **options)


def bits(tensor):
    import torch
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def same(got, want, what):
    """Same names, types, shapes and bits; the order may differ."""
    assert sorted(got) == sorted(want), (what, sorted(got))
    for name, w in want.items():
        g = got[name]
        assert g.dtype == w.dtype, (what, name, g.dtype)
        assert g.shape == w.shape, (what, name, g.shape)
        assert bits(g) == bits(w), f"{what} {name}: the bits differ"


def all_types():
    """Every type that torch and safetensors both have, with any bits."""
    import torch
    from safetensors.torch import _SIZE
    g = torch.Generator().manual_seed(5)
    out = {}
    for dtype in filter(None, _SIZE):
        raw = torch.randint(0, 256, (6, 5 * _SIZE[dtype]), generator=g)
        raw = raw.to(torch.uint8)
        out[str(dtype)] = (raw % 2).bool() if dtype == torch.bool else \
            raw.view(dtype)
    assert len(out) >= 20, sorted(out)
    return out


def shapes():
    import torch
    return {
        "scalar": torch.tensor(3.5), "empty": torch.empty(0),
        "empty.2": torch.empty(3, 0, 2, dtype=torch.int64),
        "ones": torch.zeros(1, 1, 1, 1, 1, 1, 1), "odd": torch.ones(3).bool(),
        "large": torch.arange(3 << 20),
        "\u00e4 \"\\\n\U0001f600": torch.arange(7), "": torch.arange(3),
    }


# --- the programs ---

def save(folder):
    """Ours and theirs, for check(): each is loaded with both."""
    from safetensors.torch import save_file
    files = Files(folder)
    files.save(all_types(), "types")
    files.save(shapes(), "shapes", METADATA)
    files.save({}, "nothing")
    save_file(all_types(), files.path("their types"))
    save_file(shapes(), files.path("their shapes"), METADATA)


def check(folder):
    from safetensors import safe_open
    from safetensors.torch import load_file
    import ckptfs
    files = Files(folder)
    for name in ("types", "their types"):
        same(files.load(name), all_types(), name)
        same(load_file(files.path(name)), all_types(), name)
    for name in ("shapes", "their shapes"):
        same(files.load(name), shapes(), name)
        same(load_file(files.path(name)), shapes(), name)
        with safe_open(files.path(name), framework="pt") as theirs, \
                ckptfs.open_file(files.path(name)) as ours:
            assert ours.metadata() == theirs.metadata() == METADATA
            assert sorted(ours.keys()) == sorted(theirs.keys())
            assert len(ours) == len(shapes()) and "odd" in ours
            assert "x" not in ours
            same({"large": ours.get_tensor("large")},
                 {"large": theirs.get_tensor("large")}, name)
    assert files.load("nothing") == {} == load_file(files.path("nothing"))
    with ckptfs.open_file(files.path("nothing")) as f:
        assert f.metadata() is None


def parity(folder):
    """Whatever safe_open shows of a file, ours shows as well."""
    from safetensors import safe_open
    import ckptfs
    files = Files(folder)
    table = {"table": shapes()["large"][:6000].reshape(60, 100),
             **{k: t for k, t in all_types().items() if "float4" not in k}}
    files.save(table, "table")
    where = (slice(None), 3, -1, slice(5, 9), (slice(2, 4), slice(1, None, 2)),
             (Ellipsis, 0), (1, 2), None, [0, 2], slice(4, 4))
    with safe_open(files.path("table"), "pt") as theirs, \
            ckptfs.safe_open(files.path("table"), "pt") as ours, \
            ckptfs.safe_open(files.path("table"), "np") as arrays:
        assert ours.keys() == theirs.keys()
        assert ours.offset_keys() == theirs.offset_keys()
        for name in table:
            mine, other = ours.get_slice(name), theirs.get_slice(name)
            assert mine.get_shape() == other.get_shape(), name
            assert mine.get_dtype() == other.get_dtype(), name
            for index in where:
                same({name: mine[index]}, {name: table[name][index]}, index)
            raises(IndexError, lambda: mine[999])
        with ckptfs.safe_open(files.path("table"), "pt") as other:
            own = other.get_slice("table")[2:3]
            own += 1  # what is written is in no other open file
        assert ours.get_slice("table")[2, 0] == table["table"][2, 0]
        assert (arrays.get_slice("table")[1:3, ::7] ==
                table["table"].numpy()[1:3, ::7]).all()
        raises(KeyError, ours.get_slice, "no such tensor")
    raises(ValueError, lambda: mine[0], says="is closed")


def into(folder):
    """A file's tensors go into memory that is there already."""
    import torch
    import ckptfs
    files = Files(folder)
    tensors = {"a": torch.arange(12.0).reshape(3, 4), "b": torch.arange(5),
               "none": torch.empty(0, 3)}
    files.save(tensors, "into")
    room = {"a": torch.zeros(4, 3).t(), "b": torch.zeros(5, dtype=torch.int64),
            "none": torch.empty(0, 3)}
    parameter = torch.nn.Parameter(torch.zeros(3, 4))
    addresses = {k: t.data_ptr() for k, t in room.items()}
    ckptfs.load_into(room, files.path("into"))
    ckptfs.load_into({"a": parameter}, files.path("into"))
    same({k: t.contiguous() for k, t in room.items()}, tensors, "into")
    assert torch.equal(parameter.detach(), tensors["a"])
    assert addresses == {k: t.data_ptr() for k, t in room.items()}
    for wrong in (torch.zeros(4, 3), torch.zeros(3, 4).double()):
        raises(ValueError, ckptfs.load_into, {"a": wrong},
               files.path("into"), says="Key `a`")
    raises(KeyError, ckptfs.load_into, {"x": parameter}, files.path("into"))


def handles(folder):
    """Saves that differ in their options share segments."""
    import errno
    import torch
    import ckptfs
    files = Files(folder)
    ckptfs.configure(copy_threads=2, buffer_bytes=1 << 20)
    tensors = {"a": torch.arange(1 << 18)}
    for step in range(6):
        tensors["a"] += 1
        files.save(tensors, "handles", skip_unchanged=step % 2 == 1,
                   segment_only=not files.plain and step % 3 == 1)
        same(files.load("handles"), tensors, step)
    new = ckptfs.counters()["segments_new"]
    assert new <= 2, new  # none without a mount
    raises(RuntimeError, ckptfs.configure, copy_threads=1)
    raises(ValueError, ckptfs.save_file, tensors, files.path("x"),
           plain=True, segment_only=True)
    raises(OSError, ckptfs.save_file, tensors, os.path.join(
        trainer_tmp(), "x"), segment_only=True, code=errno.ENOTTY)


def shards(folder, rank, world, store):
    """FSDP2's state dict: each rank saves its shards, and loads them into
    another model without a copy."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor
    import ckptfs
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{store}",
                            rank=int(rank), world_size=int(world))
    files = Files(folder)

    def model(seed):
        torch.manual_seed(seed)
        made = torch.nn.Sequential(torch.nn.Linear(33, 17),
                                   torch.nn.Linear(17, 3))
        return fully_shard(made)
    first, second = model(1), model(2)
    state = first.state_dict()
    assert all(isinstance(t, DTensor) for t in state.values())
    files.save(state, f"shard-{rank}")
    want = {k: t.to_local().clone() for k, t in state.items()}
    same(files.load(f"shard-{rank}"), want, "shards")
    ckptfs.load_into(second.state_dict(), files.path(f"shard-{rank}"))
    same({k: t.to_local() for k, t in second.state_dict().items()}, want,
         "loaded")
    dist.barrier()
    dist.destroy_process_group()


def layouts(folder):
    """Memory that is not what it seems: views, strides, gradients, numpy."""
    import numpy as np
    import torch
    files = Files(folder)
    base = torch.arange(24.0).reshape(4, 6)
    z = torch.tensor([[1 + 2j, 3 - 4j]], dtype=torch.complex64)
    tensors = {
        "transposed": base.t(), "columns": base[:, 1::2], "row": base[2],
        "every other": base[::2], "broadcast": base[:1].expand(3, 6),
        "permuted": torch.arange(120).reshape(2, 3, 4, 5).permute(3, 0, 2, 1),
        "channels last": torch.arange(96.0).reshape(2, 3, 4, 4).to(
            memory_format=torch.channels_last),
        "alias": base, "parameter": torch.nn.Parameter(base.clone()),
        "conjugate": z.conj(), "negative": z.conj().imag,
        "no elements": base.t()[:, :0], "half": base.bfloat16().t(),
    }
    files.save(tensors, "layouts")
    from safetensors.torch import load_file
    want = {k: v.detach().resolve_conj().resolve_neg().contiguous()
            for k, v in tensors.items()}
    same(files.load("layouts"), want, "layouts")
    same(load_file(files.path("layouts")), want, "layouts")

    arrays = {
        "f": np.arange(6.0).reshape(2, 3), "fortran": np.asfortranarray(
            np.arange(6.0, dtype="f4").reshape(2, 3)),
        "big-endian": np.arange(5, dtype=">i4"), "bool": np.array([True]),
        "backwards": np.arange(9)[::-2], "scalar": np.array(7, dtype="u2"),
        "none": np.empty((0, 3), dtype="f2"),
    }
    files.save(arrays, "arrays")
    got = files.load("arrays", framework="np")
    for name, array in arrays.items():
        assert got[name].dtype == array.dtype.newbyteorder("="), name
        assert np.array_equal(got[name], array), name
    mixed = files.load("arrays")  # and torch reads them
    assert mixed["backwards"].tolist() == [8, 6, 4, 2, 0]


def ownership(folder):
    """What was loaded is the caller's: it can be written to, and stays."""
    import ckptfs
    import torch
    files = Files(folder)
    files.save({"a": torch.arange(5), "b": torch.arange(70000)}, "x")
    first = files.load("x")
    first["a"] += 1
    assert files.load("x")["a"].tolist() == [0, 1, 2, 3, 4]
    with ckptfs.open_file(files.path("x")) as held:
        files.save({"a": torch.zeros(2)}, "x")
        os.unlink(files.path("x"))
        assert held.get_tensor("a").tolist() == [0, 1, 2, 3, 4]
    for closed in (held.metadata, held.get_tensors, held.keys):
        raises(ValueError, closed, says="is closed")


def errors(folder):
    """Wrong arguments, and files that cannot be: nothing appears."""
    import errno
    import numpy as np
    import torch
    import ckptfs
    from safetensors.torch import save_file as their_save
    files = Files(folder)
    one = {"a": torch.zeros(2)}
    for metadata in ({"a": 1}, {1: "a"}, ["a"], "a"):
        for save_one in (files.save, lambda t, n, m: their_save(
                t, files.path(n), m)):
            raises(TypeError, save_one, one, "bad", metadata, says="metadata")
    for tensors in ([one["a"]], None, {"a": 1}, {"a": [1.0]},
                    {"a": torch.eye(3).to_sparse()}):
        raises(ValueError, files.save, tensors, "bad")
        raises(ValueError, their_save, tensors, files.path("bad"))
    raises(TypeError, files.save, {1: one["a"]}, "bad")
    raises(RuntimeError, files.save, {"a": torch.zeros(2, device="meta")},
           "bad", says="Key `a`")
    for tensors in ({"a": torch.zeros(2, dtype=torch.complex128)},
                    {"a": np.array(["x"])}, {"__metadata__": one["a"]},
                    {"a\0b": one["a"]}):
        raises(ValueError, files.save, tensors, "bad")
        raises(ValueError, files.begin, tensors, "bad")
    raises(ValueError, files.save, one, "bad\0name")
    raises(TypeError, ckptfs.save_file, one, 7.5)
    assert not os.path.exists(files.path("bad"))

    missing = os.path.join(folder, "no such folder", "x")
    e = raises(FileNotFoundError, ckptfs.save_file, one, missing,
               plain=files.plain)
    assert e.filename == missing, e
    e = raises(FileNotFoundError, ckptfs.load_file, missing, says=missing)
    assert e.filename == missing, e
    raises(IsADirectoryError, ckptfs.load_file, folder)
    raises(OSError, ckptfs.save_file, one, os.path.join(
        trainer_tmp(), "ckptfs_py.none"), code=errno.ENOTTY)
    with open(files.path("cut"), "wb") as f:
        f.write(b"\xff\0\0\0\0\0\0\0{}")
    raises(OSError, files.load, "cut", code=errno.EBADMSG,
           says="a header of 255 bytes")
    files.save(one, "good")
    with ckptfs.open_file(files.path("good")) as f:
        raises(KeyError, f.get_tensor, "b")
    raises(ValueError, ckptfs.open_file, files.path("good"), "magic")
    files.save({"a": torch.zeros(2).bfloat16()}, "bf16")
    raises(TypeError, files.load, "bf16", framework="np", says="BF16")
    assert isinstance(ckptfs.gpu_state(), str)


def plain(folder, mounted):
    """What lies in no segment is said, once for a path, and counted."""
    import shutil
    import warnings
    import torch
    import ckptfs
    from ckptfs import _publishing
    state = {"w": torch.ones(20000)}

    def said(*paths, **options):
        with warnings.catch_warnings(record=True) as all_said:
            warnings.simplefilter("always")
            for path in paths:
                ckptfs.save_file(state, path, plain=True, **options)
        return [str(w.message) for w in all_said
                if w.category is ckptfs.PlainSaveWarning]
    a, b = os.path.join(folder, "a"), os.path.join(folder, "b")
    first = said(a, a)
    assert len(first) == 1 and a in first[0], first
    assert len(said(b, a, b)) == 1
    assert ckptfs.counters()["plain_saves"] == 5, ckptfs.counters()
    whole = said(os.path.join(mounted, "f"))
    assert not whole, whole
    assert ckptfs.counters()["plain_saves"] == 5, ckptfs.counters()
    # An error for who wants one: the file is there all the same, and the next
    # save and the program's end are not disturbed.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        c, left = os.path.join(folder, "c"), os.path.join(folder, "left")
        raises(ckptfs.PlainSaveWarning, ckptfs.save_file, state, c, plain=True)
        raises(ckptfs.PlainSaveWarning, ckptfs.save_file_async(
            state, os.path.join(folder, "d"), plain=True).wait)
        save = ckptfs.save_file_async(state, left, plain=True)
        assert save._lib.ckpt_commit(save._save) == 0  # nobody asks it
        del save
        assert ckptfs.load_file(c)["w"].equal(state["w"])
        ckptfs.save_file(state, os.path.join(mounted, "g"))
        ckptfs.save_file_async(state, os.path.join(folder, "e"), plain=True)
        # A version is the newest all the same, and its manifest is not undone.
        weights, ahead = os.path.join(folder, "weights"), 2 * 10 ** 18
        os.mkdir(weights)
        ckptfs.weights.publish(state, os.path.join(mounted, "v"))
        shutil.copy(os.path.join(mounted, "v"), os.path.join(weights, "v1"))
        os.utime(os.path.join(weights, "v1"), ns=(ahead, ahead))
        raises(ckptfs.PlainSaveWarning, ckptfs.weights.publish, state,
               os.path.join(weights, "v2"), plain=True)
        assert os.stat(os.path.join(weights, "v2")).st_mtime_ns > ahead
        os.mkdir(os.path.join(folder, "v3"))
        _publishing.commit(os.path.join(folder, "v3"), [], None,
                           (True, False, False))
    child = os.fork()
    if child == 0:
        os._exit(len(said(a)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def trainer_tmp():
    """A directory that is in no mount of ours."""
    return os.environ.get("TMPDIR", "/tmp")


def many(folder):
    """Two thousand tensors with few descriptors; none is left open."""
    import resource
    import torch
    import ckptfs
    files = Files(folder)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    tensors = {f"layer.{i}": torch.full((i % 7, 5), float(i))
               for i in range(2000)}
    open_before = None
    for step in range(6):
        tensors["step"] = torch.tensor(step)
        files.save(tensors, f"many-{step % 2}")
        same(files.load(f"many-{step % 2}"), tensors, f"step {step}")
        if step == 3:  # by then each of both segments was used
            open_before = len(os.listdir("/proc/self/fd"))
    assert len(os.listdir("/proc/self/fd")) <= open_before
    assert ckptfs.counters()["saves"] == 6, ckptfs.counters()


def asynchronous(folder):
    """What is saved is what was there before copied(), and nothing after."""
    import torch
    import ckptfs
    files = Files(folder)
    step, weights = torch.tensor(1.0), torch.zeros(1 << 20)
    saves = []
    for n in range(1, 5):
        save = files.begin({"step": step, "weights": weights}, f"async-{n}",
                           {"n": str(n)})
        save.copied()
        assert save.is_copied() is True
        step += 1
        weights += 1
        saves.append(save)
    for n, save in enumerate(saves, 1):
        save.wait()
        save.wait()  # the answer stays
        got = files.load(f"async-{n}")
        assert got["step"] == n, (n, got["step"])
        assert (got["weights"] == n - 1).all(), n
    with files.begin({"step": step}, "async-with"):
        pass
    step += 1
    assert files.load("async-with")["step"] == 5
    # The tensors are the save's alone, and then the save is nobody's.
    files.begin({"t": torch.full((1 << 20,), 9.0)}, "async-dropped")
    files.begin({"t": torch.arange(3)}, "async-next").wait()
    # Errors: at once where that is possible, else from copied().
    gone = os.path.join(folder, "gone")
    os.mkdir(gone)
    raises(ValueError, files.begin, {"t": 1}, "bad")
    os.rmdir(gone)
    e = raises(OSError, lambda: ckptfs.save_file_async(
        {"t": step}, os.path.join(gone, "x"), plain=files.plain).copied())
    assert e.filename == os.path.join(gone, "x"), e


def check_asynchronous(folder):
    """In the next process: the save that nobody waited for."""
    files = Files(folder)
    assert (files.load("async-dropped")["t"] == 9).all()
    assert files.load("async-4")["step"] == 4


def c_read_to_device(file):
    from ckptfs import _library as c
    target = c.Target(c.EntryPointer(file._entry("a")), 4096, 0)
    c.check(c.lib().ckpt_file_read(file._file, ctypes.byref(target), 1))


def daemons(folder):
    """The program ends while threads that nobody waits for save and load."""
    import threading
    import torch
    import ckptfs
    many = {str(n): torch.tensor(n) for n in range(4000)}
    at = [threading.Event() for _ in range(4)]

    def work(n):
        path = os.path.join(folder, f"daemon-{n}")
        ckptfs.save_file(many, path)
        at[n].set()
        while True:
            if n % 2:
                ckptfs.load_file(path)
            else:
                ckptfs.save_file(many, path)
    for n, one in enumerate(at):
        threading.Thread(target=work, args=(n,), daemon=True).start()
    for one in at:
        one.wait()


def forks(folder):
    """A child has a library of its own, and leaves its parent's alone."""
    import torch
    import ckptfs
    files = Files(folder)
    files.save({"a": torch.arange(3)}, "parent")
    pending = files.begin({"a": torch.arange(4)}, "pending")
    held = ckptfs.open_file(files.path("parent"))

    def child():
        raises(ChildProcessError, pending.copied)
        assert held.get_tensors()["a"].tolist() == [0, 1, 2]
        assert held.get_slice("a")[1:].tolist() == [1, 2]
        raises(ChildProcessError, c_read_to_device, held)
        held.close()
        with open("/proc/self/maps", encoding="utf-8") as maps:
            assert held.path not in maps.read()
        raises(ValueError, held.get_tensors, says="is closed")
        files.save({"a": torch.arange(5)}, "child")
        assert len(files.load("child")["a"]) == 5
        assert len(files.load("parent")["a"]) == 3
        assert ckptfs.counters()["saves"] == 1, ckptfs.counters()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            child()
            code = 0
        except BaseException as e:
            print(repr(e), file=sys.stderr, flush=True)
        os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert status == 0, status
    pending.wait()
    assert len(held.get_tensor("a")) == 3
    assert len(files.load("child")["a"]) == 5
    files.save({"a": torch.arange(6)}, "parent")
    assert len(files.load("parent")["a"]) == 6


def imports():
    """The module costs nothing that is not used, and needs no torch."""
    import ckptfs
    assert not {"torch", "numpy"} & set(sys.modules)
    raises(FileNotFoundError, ckptfs.load_file, "/nowhere/at.all")
    assert not {"torch", "numpy"} & set(sys.modules)


def host_only(folder, library):
    """Nothing on a device: the driver is not started, which would end CUDA in
    forked children, until somebody asks for it."""
    import torch
    import ckptfs
    files = Files(folder)
    cu = ctypes.CDLL(library)
    files.save({"a": torch.arange(3)}, "host")
    assert len(files.load("host")["a"]) == 3
    assert cu.fake_cuda_inits() == 0
    assert "2 devices" in ckptfs.gpu_state()
    assert cu.fake_cuda_inits() == 1
    pid = os.fork()
    if pid == 0:
        ckptfs.configure(gpu=False)
        os._exit("not looked for" not in ckptfs.gpu_state() or
                 cu.fake_cuda_inits() != 1)
    assert os.waitpid(pid, 0)[1] == 0


def threads(folder):
    """Several threads save and load at once."""
    import concurrent.futures
    import torch
    files = Files(folder)

    def work(n):
        for step in range(5):
            tensors = {"a": torch.full((100000,), n * 10 + step)}
            files.save(tensors, f"thread-{n}")
            same(files.load(f"thread-{n}"), tensors, n)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


# --- the tests ---

PROGRAMS = {f.__name__: f for f in (
    save, check, parity, into, handles, shards, layouts, ownership, errors, plain,
    many, asynchronous, check_asynchronous, daemons, forks, imports, host_only, threads)}


def run(name, *argv):
    trainer.finish(trainer.start(__file__, name, *argv))


def checksum(output):
    found = re.search(r"done, checksum (\w+)", output)
    assert found, output
    return found[1]


def kill_and_resume(start, folder):
    """Killed after each of its first saves; then it ends as if it never was.
    start: of a process that does these steps in a folder."""
    steps = ("--steps", "12", "--every", "2")
    whole, cut = os.path.join(folder, "whole"), os.path.join(folder, "cut")
    os.makedirs(whole)
    os.makedirs(cut)
    want = checksum(*trainer.finish(start(*steps, whole)))
    for saves in (1, 2, 3):
        process = start(*steps, cut)
        try:
            for line in process.stdout:
                saves -= ": saved " in line
                if not saves:
                    break
        finally:
            process.kill()
            process.stdout.close()
            process.wait()
    output, = trainer.finish(start(*steps, cut))
    assert ": restored" in output, output
    assert checksum(output) == want, output
    kept = {int(m[1]) for m in (re.fullmatch(
        r"ckpt_(\d+)\.safetensors", n) for n in os.listdir(cut)) if m}
    # One more, if the last kill came before it was deleted.
    assert {10, 12} <= kept <= {8, 10, 12}, kept


def tests():
    @ck.posix
    def files_mean_the_same_to_ckptfs_and_to_safetensors(fs):
        trainer.save_and_check(__file__, fs)

    @ck.posix
    def parts_and_orders_are_those_of_safe_open(fs):
        run("parity", fs.dir)

    @ck.posix
    def a_file_is_read_into_memory_that_is_there(fs):
        run("into", fs.dir)

    @ck.posix
    def saves_with_different_options_share_their_memory(fs):
        run("handles", fs.dir)

    @ck.posix
    def the_shards_of_fsdp_are_saved_and_loaded_by_their_ranks(fs):
        trainer.ranks(__file__, "shards", fs.dir, 2,
                      fs.mnt.rstrip("/") + ".gloo")

    @ck.posix
    def any_layout_of_memory_is_saved_as_its_values(fs):
        run("layouts", fs.dir)

    @ck.posix
    def loaded_tensors_own_their_memory_and_files_their_version(fs):
        run("ownership", fs.dir)

    @ck.posix
    def errors_say_what_is_wrong_and_leave_nothing_behind(fs):
        run("errors", fs.dir)

    @ck.posix
    def a_save_without_a_segment_is_said(fs):
        if trainer.on_ckptfs(fs.dir):
            with tempfile.TemporaryDirectory() as beside:
                run("plain", beside, fs.dir)

    @ck.posix
    def two_thousand_tensors_need_few_descriptors(fs):
        run("many", fs.dir)

    @ck.posix
    def tensors_may_change_once_they_are_copied(fs):
        run("asynchronous", fs.dir)
        run("check_asynchronous", fs.dir)

    @ck.posix
    def a_child_of_fork_has_a_library_of_its_own(fs):
        run("forks", fs.dir)

    @ck.posix
    def the_program_may_end_under_its_daemon_threads(fs):
        for _ in range(3):
            trainer.finish(trainer.start_new(__file__, "daemons", fs.dir))

    @ck.posix
    def threads_may_save_and_load_at_once(fs):
        run("threads", fs.dir)

    @ck.posix
    def neither_torch_nor_numpy_is_imported(fs):
        trainer.finish(trainer.start_new(__file__, "imports"))

    @ck.posix
    def tensors_of_the_host_start_no_driver(fs):
        fake = os.path.join(ck.BUILD, "tests/gpu/libfake_cuda.so")
        trainer.finish(trainer.start_new(__file__, "host_only", fs.dir, fake,
                                         CKPT_CUDA_LIBRARY=fake))

    @ck.posix
    def the_example_in_python_resumes_where_it_was_killed(fs):
        # In a process that was forked with torch imported the same steps end
        # with other bits now and then, also in a plain directory.
        kill_and_resume(lambda *argv: trainer.start_new(
            os.path.join(GPU, "examples/train.py"), *argv), fs.dir)

    @ck.posix
    def the_example_in_c_resumes_where_it_was_killed(fs):
        program = os.environ.get("CKPTFS_EXAMPLE", os.path.join(
            ck.BUILD, "gpu/ckpt_example_train"))
        kill_and_resume(lambda *argv: subprocess.Popen(
            [program, *argv], stdout=subprocess.PIPE, text=True), fs.dir)


if __name__ == "__main__":
    trainer.main(PROGRAMS, tests)
