"""ckptfs.weights: who follows a folder gets each version that is the newest,
as it was published, is told of it and does not ask all the time; what it has
open stays while the trainer goes on."""
import os
import re
import signal
import subprocess
import sys
import threading
import time

import trainer
from trainer import ck, raises

GPU = os.path.join(trainer.HERE, "../../gpu")
os.environ.setdefault("CKPTFS_GPU_LIBRARY",
                      os.path.join(ck.BUILD, "gpu/libckpt_gpu.so.0"))
sys.path.insert(0, os.path.join(GPU, "python"))

NEVER = 86400.0  # seconds between two looks that nothing asked for


def state(seed):
    import torch
    g = torch.Generator().manual_seed(seed)
    return {"w": torch.randn(300, 1000, generator=g),
            "half": torch.randn(33, 7, generator=g).bfloat16(),
            "empty": torch.empty(0, 3), "step": torch.tensor(seed),
            "mask": torch.randint(0, 2, (5,), generator=g).bool()}


def same(got, want):
    import torch
    assert sorted(got) == sorted(want), sorted(got)
    for k, t in want.items():
        assert got[k].dtype == t.dtype and torch.equal(got[k], t), k


class Trainer:
    def __init__(self, folder):
        self.folder, self.plain = folder, not trainer.on_ckptfs(folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def publish(self, name, seed, **options):
        import ckptfs
        ckptfs.weights.publish(state(seed), self.path(name),
                               {"seed": str(seed)}, plain=self.plain,
                               **options)


# --- the programs ---

def engine(folder):
    """Says each version's name; looks at it again when it is told to."""
    import ckptfs
    for version in ckptfs.weights.follow(folder, poll_seconds=NEVER):
        with version:
            seed = int(version.metadata()["seed"])
            print(version.name, flush=True)
            assert input() == "look"
            same(version.get_tensors(), state(seed))
        if seed < 0:
            break


def two(folder):
    """The trainer's side: each version is removed, and its memory used again,
    before the engine looks at it. Nothing but the publication wakes it."""
    import ckptfs
    with subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "engine", folder],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as e:
        t = Trainer(folder)
        for seed in (1, 2, 3):
            t.publish(f"v{seed}", seed)
            assert e.stdout.readline() == f"v{seed}\n"
            os.unlink(t.path(f"v{seed}"))
            for _ in range(3):
                t.publish("v.tmp", 99)
            e.stdin.write("look\n")
            e.stdin.flush()
        begun = ckptfs.weights.publish_async(
            state(-1), t.path("last"), {"seed": "-1"}, plain=t.plain)
        begun.copied()
        assert e.stdout.readline() == "last\n"
        e.stdin.write("look\n")
        e.stdin.flush()
        assert e.wait() == 0


def newest(folder):
    """Which versions there are, and in what order."""
    import torch
    from safetensors.torch import save_file
    import ckptfs
    t = Trainer(folder)
    with ckptfs.weights.follow(folder, poll_seconds=NEVER) as follower:
        def expect(name):
            with follower.next() as version:
                assert version.name == name, version.name
            assert follower.next(0) is None
        assert follower.next(0) is None
        t.publish("v9", 9)
        expect("v9")
        for n in range(10, 13):
            t.publish(f"v{n}", n)
        expect("v12")
        os.unlink(t.path("v12"))
        assert follower.next(0) is None, "an older one is no news"
        t.publish("v3", 3)  # the trainer went back
        expect("v3")
        t.publish("v3", 4)  # the same name
        expect("v3")
        os.mkdir(t.path("v100"))
        torch.save(state(1), t.path("v101.pt"))
        with open(t.path(".v102"), "wb") as f:
            f.write(b"half")
        assert follower.next(0) is None, "these are no versions"
        save_file(state(5), t.path("theirs"))
        expect("theirs")
        ckptfs.save_file(state(6), t.path("silent"), plain=t.plain)
        os.rename(t.path("silent"), t.path("v6"))
        expect("v6")
        woken = []
        waiter = threading.Thread(
            target=lambda: woken.append(follower.next()))
        waiter.start()
        save_file(state(7), t.path("v7.tmp"))
        os.rename(t.path("v7.tmp"), t.path("v7"))
        waiter.join()
        assert woken[0].name == "v7"
        same(woken[0].get_tensors(), state(7))
        woken[0].close()
        ahead = time.time() + 1e6
        os.utime(t.path("v7"), (ahead, ahead))  # by a clock that went back
        expect("v7")
        t.publish("v8", 8)
        expect("v8")


def patient(folder):
    """What is not there yet is waited for, and close() ends it."""
    import ckptfs
    t = Trainer(os.path.join(folder, "later"))
    t.plain = not trainer.on_ckptfs(folder)
    follower = ckptfs.weights.follow(t.folder, poll_seconds=0.01)
    assert follower.next(0.05) is None
    got = []
    thread = threading.Thread(target=lambda: got.extend(follower))
    thread.start()
    os.mkdir(t.folder)
    t.publish("v1", 1)
    ck.until("the first version is seen", lambda: got)
    os.unlink(t.path("v1"))
    os.rmdir(t.folder)
    os.mkdir(t.folder)
    t.publish("v2", 2)
    ck.until("the new folder's is seen", lambda: len(got) > 1)
    follower.close()
    thread.join()
    assert follower.next() is None
    same(got[0].get_tensors(), state(1))
    same(got[1].get_tensors(), state(2))
    before = len(os.listdir("/proc/self/fd"))
    del follower
    for one in got:
        one.close()
    assert len(os.listdir("/proc/self/fd")) == before - 2
    for wrong in (7.5, None):
        raises(TypeError, ckptfs.weights.follow, wrong)
    here = ckptfs.weights.follow(os.path.abspath(__file__))
    raises(NotADirectoryError, here.next, 0)


def loads(folder):
    import torch
    import ckptfs
    t = Trainer(folder)
    t.publish("v1", 1, skip_unchanged=True)
    same(ckptfs.weights.load(t.path("v1")), state(1))
    room = {k: torch.zeros_like(v) for k, v in state(1).items()}
    assert ckptfs.weights.load(t.path("v1"), room) is room
    same(room, state(1))
    more = {**room, "more": torch.zeros(2)}
    less = {"w": torch.zeros(300, 1000)}
    for wrong, says in ((more, "'more'"), (less, "'half'")):
        raises(ValueError, ckptfs.weights.load, t.path("v1"), wrong, says=says)
        ckptfs.weights.load(t.path("v1"), wrong, strict=False)
        assert torch.equal(wrong["w"], state(1)["w"])
    raises(ValueError, ckptfs.weights.load, t.path("v1"),
           {"w": torch.zeros(3)}, strict=False, says="Key `w`")
    with ckptfs.weights.open_version(t.path("v1")) as version:
        assert version.pin() is False  # no device here
        assert version.name == "v1"
    raises(FileNotFoundError, ckptfs.weights.load, t.path("none"))


def buckets(folder):
    """They are as large as was said, in memory that is allocated once."""
    import torch
    import ckptfs
    want = {f"layer.{i:02}": torch.full((100 + i,), float(i))
            for i in range(20)}
    want.update((k, t) for k, t in state(1).items() if k != "w")
    largest = 512  # of them, aligned
    path = os.path.join(folder, "v1")
    ckptfs.weights.publish(want, path,
                           plain=not trainer.on_ckptfs(folder))
    for limit in (0, 1000, 4096, 1 << 30):
        got, places = {}, set()
        with ckptfs.weights.open_version(path) as version:
            order = version.offset_keys()
            for bucket in version.buckets(limit):
                sizes = [-(-t.nbytes // 256) * 256 for _, t in bucket]
                assert sum(sizes) <= max(limit, largest), limit
                assert not any(t.storage_offset() * t.element_size() % 256
                               for _, t in bucket)
                places.update(t.untyped_storage().data_ptr()
                              for _, t in bucket)
                got.update((name, t.clone()) for name, t in bucket)
        same(got, want)
        assert list(got) == order
        assert len(places) == 1, "memory for each bucket"
    assert len(got) == 24 and limit == 1 << 30
    stale = ckptfs.weights.open_version(path)
    taken = stale.buckets(1000)
    next(taken)
    stale.close()
    raises(ValueError, next, taken, says="is closed")
    for wrong in (-1, 1.5):
        with ckptfs.weights.open_version(path) as version:
            raises(ValueError, next, version.buckets(wrong),
                   says="bucket_bytes")


def put_folder(path, whole, parts=3, left_out=()):
    """As transformers' save_pretrained() lays out a large model, aside, and
    renamed then."""
    import json
    import shutil
    from safetensors.torch import save_file
    aside = f"{path}.tmp"
    os.mkdir(aside)
    names, weight_map = sorted(whole), {}
    for n in range(parts):
        file = f"model-{n + 1:05}-of-{parts:05}.safetensors"
        part = {name: whole[name] for name in names[n::parts]}
        weight_map.update(dict.fromkeys(part, file))
        if n not in left_out:
            save_file(part, f"{aside}/{file}", {"format": "pt"})
    with open(f"{aside}/model.safetensors.index.json", "w",
              encoding="utf-8") as f:
        json.dump({"metadata": {}, "weight_map": weight_map}, f)
    if os.path.exists(path):
        os.rename(path, f"{path}.old.tmp")
    os.rename(aside, path)
    shutil.rmtree(f"{path}.old.tmp", ignore_errors=True)


def folders(folder):
    """A folder of several files is a version, and stays what it was."""
    import torch
    import ckptfs
    t = Trainer(folder)
    with ckptfs.weights.follow(folder, poll_seconds=NEVER) as follower:
        put_folder(t.path("v1"), state(1))
        first = follower.next()
        assert first.name == "v1" and follower.next(0) is None
        t.publish("v2", 2)
        with follower.next() as version:
            assert version.name == "v2"
        put_folder(t.path("v1"), state(3))  # the same name
        with follower.next() as version:
            assert version.name == "v1"
            same(version.get_tensors(), state(3))
        put_folder(t.path("v4"), state(4), left_out=[1])
        os.mkdir(t.path("v5"))
        assert follower.next(0) is None, "neither is whole"
        put_folder(t.path("v6"), state(6), parts=1)
        with follower.next() as version:
            same(version.get_tensors(), state(6))
    # What it was, although it is gone.
    want = state(1)
    with first:
        assert isinstance(first, ckptfs.weights.Version)
        assert sorted(first.keys()) == sorted(want) == sorted(
            first.offset_keys()) and len(first) == len(want)
        assert "w" in first and "x" not in first
        assert first.metadata() == {"format": "pt"}
        same(first.get_tensors(), want)
        same({"w": first.get_tensor("w")}, {"w": want["w"]})
        assert torch.equal(first.get_slice("w")[3:5, :7], want["w"][3:5, :7])
        got = {name: torch.zeros_like(one) for name, one in want.items()}
        first.load_into(got)
        same(got, want)
        raises(ValueError, first.load_into, {"w": got["w"]}, says="'half'")
        got["w"].zero_()
        first.load_into({"w": got["w"], "x": got["w"]}, strict=False)
        same(got, want)
        seen = {}
        for bucket in first.buckets(4096):
            seen.update((name, one.clone()) for name, one in bucket)
        same(seen, want)
        first.pin()
    raises(ValueError, first.get_tensor, "w", says="closed")
    same(ckptfs.weights.load(t.path("v6")), state(6))
    error = raises(OSError, ckptfs.weights.load, t.path("v4"))
    assert "model-00002-of-00003" in str(error), error
    raises(OSError, ckptfs.weights.load, t.path("v5"), says="index.json")


def shards(folder):
    """What is one rank's part is not taken for the whole."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore
    import ckptfs
    t = Trainer(folder)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    own = torch.arange(12.0).reshape(4, 3)
    for placement in (Shard(0), Partial()):
        tensors = {"b": own, "w": DTensor.from_local(own, mesh, [placement],
                                                     run_check=False)}
        for call in (ckptfs.weights.publish, ckptfs.weights.publish_async):
            raises(ValueError, call, tensors, t.path("v1"), plain=t.plain,
                   says="`w`")
            raises(ValueError, call, tensors, t.path("v1"), plain=t.plain,
                   says="full_tensor()")
    assert os.listdir(folder) == []
    tensors["w"] = DTensor.from_local(own, mesh, [Replicate()],
                                      run_check=False)
    ckptfs.weights.publish(tensors, t.path("v1"), plain=t.plain)
    assert torch.equal(ckptfs.weights.load(t.path("v1"))["w"], own)
    dist.destroy_process_group()


def dead(folder):
    """A mount whose daemon is gone has no versions."""
    import ckptfs
    raises(OSError, os.listdir, folder, says="not connected")
    assert ckptfs.weights.follow(folder).next(0) is None


def outlives(folder, pipe):
    """Follows through the end of the mount, and its next start."""
    import ckptfs
    follower = ckptfs.weights.follow(folder, poll_seconds=0.01)
    with follower.next() as version:
        assert version.name == "v1"
    with open(pipe, "wb"):  # it was seen
        pass
    with follower.next() as version:
        assert version.name == "v2"
        same(version.get_tensors(), state(2))


def publish(folder, name, seed):
    Trainer(folder).publish(name, int(seed))


# --- the tests ---

PROGRAMS = {f.__name__: f for f in (
    engine, two, newest, patient, loads, buckets, folders, shards, dead,
    outlives, publish)}


def run(name, *argv):
    trainer.finish(trainer.start(__file__, name, *argv))


def tests():
    @ck.posix
    def a_version_stays_while_the_trainer_goes_on(fs):
        run("two", fs.dir)

    @ck.posix
    def the_newest_version_is_followed(fs):
        run("newest", fs.dir)

    @ck.posix
    def what_is_not_there_yet_is_waited_for(fs):
        run("patient", fs.dir)

    @ck.posix
    def a_version_is_loaded_as_a_whole_or_as_what_is_asked_for(fs):
        run("loads", fs.dir)

    @ck.posix
    def buckets_hold_all_of_it_in_memory_of_their_size(fs):
        run("buckets", fs.dir)

    @ck.posix
    def a_folder_of_several_files_is_a_version(fs):
        run("folders", fs.dir)

    @ck.posix
    def one_ranks_shard_is_not_published_for_the_whole(fs):
        run("shards", fs.dir)

    @ck.mounted()
    def a_follower_outlives_the_mount(m):
        pipe = m.base + "/seen"
        os.mkfifo(pipe)
        os.mkdir(m.path("w"))
        run("publish", m.path("w"), "v1", 1)
        follower = trainer.start(__file__, "outlives", m.path("w"), pipe)
        with open(pipe, "rb") as f:
            f.read()
        os.killpg(m.proc.pid, signal.SIGKILL)
        m.proc.wait(ck.WAIT_BOUND)
        m.proc = None
        run("dead", m.path("w"))
        ck.umount(m.mnt, ck.MNT_DETACH)
        m.start()
        run("publish", m.path("w"), "v2", 2)
        trainer.finish(follower)

    @ck.posix
    def the_example_copies_each_byte_once_each_way(fs):
        said = ck.sh(trainer.PYTHON, os.path.join(GPU, "examples/weights.py"),
                     fs.dir, "--versions", "6")
        assert re.search(r"^trainer: 6 versions, 1\.00 copies", said, re.M), \
            said
        assert re.search(r"^engine: \d versions loaded, 1\.00 copies .* "
                         r"0\.00 through a buffer$", said, re.M), said
        assert "generates with v6.safetensors" in said, said
        assert os.listdir(fs.dir) == ["v6.safetensors"]


if __name__ == "__main__":
    trainer.main(PROGRAMS, tests)
