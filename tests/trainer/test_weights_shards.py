"""ckptfs.weights.publish_shards(): what ranks have of tensors is one version,
which is there when all of it is, and is read as wholes or in any other
sharding; of several versions the newest is the one published last."""
import json
import os
import threading
import time

# Before trainer brings the folder of mount tests, which has one of that name.
from test_weights import NEVER, same, state
import trainer  # pylint: disable=wrong-import-order
from trainer import ck, raises  # pylint: disable=wrong-import-order

RANKS = 4


def whole(seed):
    import torch
    g = torch.Generator().manual_seed(seed)
    made = {name: torch.randn(*shape, generator=g) for name, shape in {
        "rows": (50, 30), "columns": (16, 33), "both": (17, 9), "few": (3, 4),
        "replica": (8, 8), "plain": (5, 5), "cube": (4, 6, 10)}.items()}
    made["half"] = torch.randn(40, 12, generator=g).bfloat16()
    made["empty"], made["step"] = torch.empty(0, 3), torch.tensor(seed)
    made["mask"] = torch.randint(0, 2, (9,), generator=g).bool()
    return made


def sharded(seed, mesh, turn=0):
    """The same as DTensors; another turn, other shards."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    zero, one, all_of_it = Shard(0), Shard(1), Replicate()
    layouts = {"rows": (zero, zero), "columns": (all_of_it, one),
               "both": (zero, one), "few": (zero, zero),
               "replica": (all_of_it, all_of_it), "cube": (one, Shard(2)),
               "half": (all_of_it, zero), "empty": (zero, all_of_it)}
    names = sorted(set(layouts) - {"cube", "empty"})
    given = {**layouts, **{name: layouts[names[(i + turn) % len(names)]]
                           for i, name in enumerate(names)}}
    return {name: distribute_tensor(tensor, mesh, given[name],
                                    src_data_rank=None)
            if name in given else tensor
            for name, tensor in whole(seed).items()}


def join(rank, world, meet):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    dist.init_process_group("gloo", init_method=f"file://{meet}",
                            rank=int(rank), world_size=int(world))
    return init_device_mesh("cpu", (2, int(world) // 2))


def leave():
    import torch.distributed as dist
    dist.barrier()
    dist.destroy_process_group()


def options(folder):
    return {"plain": not trainer.on_ckptfs(folder)}


# --- the programs ---

def save(folder, rank, world, meet):
    """Two versions, and one gathered. Nobody writes what another one has."""
    import torch.distributed as dist
    import ckptfs
    mesh = join(rank, world, meet)
    for seed in (1, 2):
        ckptfs.weights.publish_shards(
            sharded(seed, mesh), f"{folder}/v{seed}", {"seed": str(seed)},
            **options(folder))
    said = [None] * int(world)
    dist.all_gather_object(said, ckptfs.counters())
    assert sum(k["host_bytes"] for k in said) == 2 * sum(
        one.nbytes for one in whole(1).values()), said
    if trainer.on_ckptfs(folder):
        assert not any(k["plain_saves"] for k in said), said
    ckptfs.weights.publish_shards(sharded(3, mesh), f"{folder}/v3", gather=True,
                                  **options(folder))
    leave()


def check(folder):
    """All of it, in one process."""
    import torch
    import ckptfs
    same(ckptfs.weights.load(f"{folder}/v3"), whole(3))
    assert os.path.isfile(f"{folder}/v3")
    want = whole(2)
    with ckptfs.weights.open_version(f"{folder}/v2") as version:
        assert version.metadata() == {"seed": "2"}
        assert len(version) == len(want) and "rows" in version
        same(version.get_tensors(), want)
        same({"rows": version.get_tensor("rows")}, {"rows": want["rows"]})
        part = version.get_slice("both")
        assert part.get_shape() == [17, 9] and part.get_dtype() == "F32"
        for index in ((slice(7, 11), slice(2, 9)), slice(1, 16), 3,
                      (slice(None), slice(0, 9, 2)), slice(5, 5)):
            assert torch.equal(part[index], want["both"][index]), index
        got = {name: torch.zeros_like(one) for name, one in want.items()}
        version.load_into(got)
        same(got, want)
        strided = {"rows": torch.zeros(30, 50).t()}
        version.load_into(strided, strict=False)
        same(strided, {"rows": want["rows"]})
        for limit in (700, 1 << 20):
            seen = {}
            for bucket in version.buckets(limit):
                seen.update((name, one.clone()) for name, one in bucket)
            same(seen, want)
        kept = dict(one for bucket in version.buckets(700, reuse=False)
                    for one in bucket)
        same(kept, want)
        for wrong in (torch.zeros(50, 31), torch.zeros(50, 30).int(),
                      torch.zeros(50, 30).half()):
            raises(ValueError, version.load_into, {"rows": wrong},
                   strict=False, says="Key `rows`")
        raises(ValueError, version.views, pin=False, says="no view")


def casts(folder):
    import torch
    import ckptfs
    for name, want in (("v2", whole(2)), ("v3", whole(3))):
        path, half = f"{folder}/{name}", torch.bfloat16
        cast = {k: t.to(half) if t.is_floating_point() else t
                for k, t in want.items()}
        same(ckptfs.weights.load(path, dtype=half), cast)
        with ckptfs.weights.open_version(path, dtype=half) as version:
            same(dict(one for bucket in version.buckets(900, reuse=False)
                      for one in bucket), cast)
            for index in (slice(3, 5), 2):
                assert torch.equal(version.get_slice("rows")[index],
                                   cast["rows"][index])
            into = {k: torch.zeros_like(t).double() if t.is_floating_point()
                    else torch.zeros_like(t) for k, t in want.items()}
            version.load_into(into)
            same(into, {k: t.double() if t.is_floating_point() else t
                        for k, t in want.items()})
            raises(ValueError, version.load_into,
                   {"step": torch.tensor(1.0)}, strict=False, says="`step`")
            raises(ValueError, version.load_into,
                   {"rows": torch.zeros(50, 30).int()}, strict=False,
                   says="`rows`")
            raises(ValueError, version.views, pin=False, says="no view")
    with ckptfs.weights.follow(folder, dtype=half) as follower:
        with follower.next() as version:
            same(version.get_tensors(), cast)
    for wrong in (torch.int32, "bfloat16"):
        raises(ValueError, ckptfs.weights.load, path, dtype=wrong,
               says="floating-point")


def other(folder, rank, world, meet):
    """Another world, and other shards: each reads no more than its rows."""
    import torch
    import ckptfs
    mesh = join(rank, world, meet)
    for name, want in (("v2", sharded(2, mesh)), ("v3", sharded(3, mesh))):
        for turn in range(3):
            room = {k: torch.zeros_like(t)
                    for k, t in sharded(9, mesh, turn).items()}
            ckptfs.weights.load(f"{folder}/{name}", room)
            for key, full in whole(int(name[1])).items():
                got = room[key]
                got = got.full_tensor() if hasattr(got, "full_tensor") else got
                assert torch.equal(got, full), (name, turn, key)
        half = {k: torch.zeros_like(t).bfloat16()
                for k, t in sharded(9, mesh, 1).items() if k in ("rows", "both",
                                                                 "half")}
        ckptfs.weights.load(f"{folder}/{name}", half, strict=False,
                            dtype=torch.bfloat16)
        for key, got in half.items():
            assert torch.equal(got.full_tensor(),
                               whole(int(name[1]))[key].bfloat16()), key
        before = ckptfs.counters()["host_bytes"]
        rows = {"rows": torch.zeros_like(want["rows"])}
        ckptfs.weights.load(f"{folder}/{name}", rows, strict=False)
        assert ckptfs.counters()["host_bytes"] - before == \
            rows["rows"].to_local().nbytes
    leave()


def fsdp(folder, rank, world, meet):
    """FSDP2's own state dicts, over tensor parallelism where there are ranks
    for it, there and back."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel, RowwiseParallel, parallelize_module)
    import ckptfs
    join(rank, world, meet)
    of_tensors = int(world) // 2
    mesh = init_device_mesh("cpu", (2, of_tensors),
                            mesh_dim_names=("data", "tensor"))

    def model(seed):
        torch.manual_seed(seed)
        wide = (16, 8, 4) if of_tensors > 1 else (13, 7, 3)
        made = torch.nn.Sequential(torch.nn.Linear(*wide[:2]),
                                   torch.nn.Linear(*wide[1:]))
        full = {k: t.clone() for k, t in made.state_dict().items()}
        if of_tensors > 1:
            parallelize_module(made, mesh["tensor"], {
                "0": ColwiseParallel(), "1": RowwiseParallel()})
        return fully_shard(made, mesh=mesh["data"]), full
    trained, full = model(1)
    path = f"{folder}/f{world}"
    ckptfs.weights.publish_shards(trained.state_dict(), path,
                                  **options(folder))
    fresh, _ = model(2)
    ckptfs.weights.load(path, fresh.state_dict())
    for name, tensor in fresh.state_dict().items():
        assert torch.equal(tensor.full_tensor(), full[name]), name
    same(ckptfs.weights.load(path), full)
    leave()


def dying(folder, rank, world, meet):
    """One dies with its file half there: nobody sees a version of it."""
    import ckptfs
    from ckptfs import _publishing
    mesh = join(rank, world, meet)
    ckptfs.weights.publish_shards(sharded(1, mesh), f"{folder}/old",
                                  **options(folder))
    if int(rank) == int(world) - 1:
        _publishing.Parts.add = lambda *args: os._exit(0)
    for name in ("new", "old"):
        try:
            ckptfs.weights.publish_shards(sharded(2, mesh), f"{folder}/{name}",
                                          **options(folder))
        except RuntimeError:
            continue
        raise AssertionError("it went well without all ranks")


def nothing_new(folder):
    import ckptfs
    raises(OSError, ckptfs.weights.load, f"{folder}/new")
    same(ckptfs.weights.load(f"{folder}/old"), whole(1))
    with ckptfs.weights.follow(folder) as follower:
        with follower.next(0) as version:
            assert version.name == "old"
        assert follower.next(0) is None
    # What was left is taken away by the next one.
    ckptfs.weights.publish_shards(whole(3), f"{folder}/old", **options(folder))
    assert len(os.listdir(f"{folder}/old")) == 2
    same(ckptfs.weights.load(f"{folder}/old"), whole(3))


def failing(folder, rank, world, meet):
    """What one rank meets all raise, and what was there stays."""
    import torch
    from torch.distributed.tensor import DTensor, Partial, Shard
    import ckptfs
    mesh = join(rank, world, meet)
    rank, path = int(rank), f"{folder}/v1"

    def fails(kind, says, tensors, mine=True, to=path, **more):
        raises(kind if mine else RuntimeError, ckptfs.weights.publish_shards,
               tensors, to, says=says, **options(folder), **more)
    ckptfs.weights.publish_shards(sharded(1, mesh), path, **options(folder))
    files = sorted(os.listdir(path))
    fails(ValueError, "`x` is torch.float32 [2] on rank 1",
          {"x": torch.zeros(2 if rank == 1 else 3)})
    fails(ValueError, "elements", {"x": DTensor.from_local(
        torch.zeros(2, 2), mesh, [Shard(0), Shard(0)], run_check=False,
        shape=(9, 2), stride=(2, 1))})
    fails(ValueError, "redistribute()", {"x": DTensor.from_local(
        torch.zeros(2), mesh, [Partial(), Partial()], run_check=False)})
    fails(TypeError, "metadata", {}, metadata={"a": 1})
    fails(ValueError, "a dict of", [("x", torch.zeros(2))])
    fails(ValueError, "Key `x` is invalid", {"x": [1.0]})
    fails(ValueError, "rank 1" if rank != 1 else "sparse",
          {"x": torch.eye(2).to_sparse()} if rank == 1 else
          {"y": torch.eye(2)}, mine=rank == 1)
    fails(ValueError, "rank 0 has nothing of ['x']",
          {"x": torch.eye(2)} if rank == 1 else {}, gather=True)
    with open(f"{folder}/file", "wb"):
        pass
    fails(FileExistsError, "file", {"x": torch.zeros(2)}, mine=rank == 0,
          to=f"{folder}/file")
    assert sorted(os.listdir(path)) == files, os.listdir(path)
    same(ckptfs.weights.load(path), whole(1))
    leave()


def refused(folder, rank, world, meet, step):
    """Other ranks have other shards: nothing of the step before is lost."""
    import ckptfs
    mesh = join(rank, world, meet)
    ckptfs.weights.publish_shards(sharded(int(step), mesh),
                                  f"{folder}/step_{step}")
    leave()
    same(ckptfs.weights.load(f"{folder}/step_{step}"), whole(int(step)))


def followed(folder):
    """Who has a version open keeps it, whatever becomes of its name, and is
    told of the next; who starts then begins with the newest."""
    import ckptfs

    def publish(name, seed):
        ckptfs.weights.publish_shards(whole(seed), f"{folder}/{name}",
                                      **options(folder))
    with ckptfs.weights.follow(folder, poll_seconds=NEVER) as follower:
        publish("v1", 1)
        first = follower.next(0)
        assert first.name == "v1" and follower.next(0) is None
        got = []
        waiter = threading.Thread(target=lambda: got.append(follower.next()))
        waiter.start()
        publish("v2", 2)
        waiter.join()
        assert got[0].name == "v2"
        publish("v1", 3)  # the name again
        with follower.next(0) as version:
            assert version.name == "v1"
            same(version.get_tensors(), whole(3))
        with ckptfs.weights.follow(folder) as late:
            with late.next(0) as version:
                assert version.name == "v1"
                same(version.get_tensors(), whole(3))
            assert late.next(0) is None
        for name in ("v1", "v2"):
            ckptfs.weights.remove(f"{folder}/{name}")
        assert os.listdir(folder) == [] and follower.next(0) is None
        same(first.get_tensors(), whole(1))
        same(got[0].get_tensors(), whole(2))
        first.close()
        raises(ValueError, first.get_tensor, "rows", says="closed")
        got[0].close()
        publish("v3", 3)
        ckptfs.weights.publish(whole(4), f"{folder}/v4", **options(folder))
        with follower.next(0) as version:
            assert version.name == "v4"
        ckptfs.weights.remove(f"{folder}/v4")
        raises(FileNotFoundError, ckptfs.weights.remove, f"{folder}/v4")
        raises(FileNotFoundError, ckptfs.weights.remove, folder,
               says="no version")
        same(ckptfs.weights.load(f"{folder}/v3"), whole(3))


def ahead(folder):
    """A version whose time lies ahead, of a clock that went back or of another
    node, does not hide those that are published later."""
    import ckptfs

    def publish(name, seed, how=ckptfs.weights.publish):
        how(state(seed), f"{folder}/{name}", **options(folder))

    def newest():
        with ckptfs.weights.follow(folder) as late:
            with late.next(0) as version:
                return version.name
    later = time.time() + 1e6
    with ckptfs.weights.follow(folder, poll_seconds=NEVER) as follower:
        publish("v7", 7)
        os.utime(f"{folder}/v7", (later, later))
        publish("v2", 2)
        # Both are news to it, and to who starts now.
        with follower.next(0) as version:
            assert version.name == "v2", version.name
            same(version.get_tensors(), state(2))
        assert newest() == "v2"
        publish("v1", 1, ckptfs.weights.publish_shards)
        with follower.next(0) as version:
            assert version.name == "v1"
        assert newest() == "v1"
        publish("v0", 3)
        assert newest() == "v0"
        begun = ckptfs.weights.publish_async(state(4), f"{folder}/last",
                                             **options(folder))
        begun.copied()
        assert newest() == "last"
        with follower.next(0) as version:
            assert version.name == "last"
        # What is none has no say.
        os.utime(f"{folder}/last", (1, 1))
        publish("v9.tmp", 9)
        os.utime(f"{folder}/v9.tmp", (later * 2, later * 2))
        publish("v5", 5)
        assert os.stat(f"{folder}/v5").st_mtime < later * 1.5


def broken(folder):
    """A folder that does not hold together is none, and says why."""
    import torch
    from safetensors.torch import save_file
    import ckptfs
    part = "part-00000-00000-1.safetensors"

    def put(name, files, shards, tensors=None):
        os.mkdir(f"{folder}/{name}")
        save_file(tensors or {"w": torch.zeros(2, 3)}, f"{folder}/{name}/{part}",
                  {"ckptfs.shards": shards})
        save_file({}, f"{folder}/{name}/manifest.safetensors",
                  {"ckptfs.files": files})
        return raises(OSError, ckptfs.weights.load, f"{folder}/{name}")
    for number, (files, shards, says) in enumerate((
            ('["../x"]', "{}", "'../x'"), ("[1]", "{}", "names 1"),
            ("{}", "{}", "manifest.safetensors does not say"),
            ("[", "{}", "does not say"),
            (json.dumps([part]), "[]", f"{part} does not say"),
            (json.dumps([part, part]), "{}", "twice"),
            *((json.dumps([part]), json.dumps({"w": said}), "`w`") for said in (
                {}, 7, {"shape": [2, 3]}, {"shape": [4, 3], "at": [0, 0]},
                {"shape": [2, 3], "at": [0, 1]}, {"shape": [2], "at": [0]},
                {"shape": "ab", "at": [0, 0]},
                {"shape": [2, 3], "at": [0, -1]})))):
        error = put(f"v{number}", files, shards)
        assert says in str(error), (says, error)
    assert isinstance(put("gone", '["part-1.safetensors"]', "{}"),
                      FileNotFoundError)
    assert ckptfs.weights.follow(folder).next(0) is None


def again(folder):
    """The next versions take the memory of those that are gone."""
    import ckptfs
    for number in range(8):
        ckptfs.weights.publish_shards(whole(number), f"{folder}/v{number}",
                                      segment_only=True)
        if number:
            ckptfs.weights.remove(f"{folder}/v{number - 1}")
    k = ckptfs.counters()
    assert k["saves"] == 16 and k["plain_saves"] == 0, k
    assert k["segments_new"] <= 4 and k["segments_reused"] >= 12, k


# --- the tests ---

PROGRAMS = {f.__name__: f for f in (
    save, check, casts, other, fsdp, dying, nothing_new, failing, refused,
    followed, ahead, broken, again)}


def run(name, *argv):
    trainer.finish(trainer.start(__file__, name, *argv))


def ranks(program, fs, world=RANKS):
    trainer.ranks(__file__, program, fs.dir, world,
                  fs.mnt.rstrip("/") + ".gloo", MASTER_ADDR="127.0.0.1")


def tests():
    @ck.posix
    def shards_are_one_version_and_are_read_as_wholes_or_as_other_shards(fs):
        ranks("save", fs)
        run("check", fs.dir)
        run("casts", fs.dir)
        ranks("other", fs, 2)

    @ck.posix
    def fsdp_publishes_its_state_dict_as_it_is(fs):
        ranks("fsdp", fs, 2)
        ranks("fsdp", fs, 4)

    @ck.posix
    def a_rank_that_dies_leaves_no_version(fs):
        ranks("dying", fs, 2)
        run("nothing_new", fs.dir)

    @ck.posix
    def what_one_rank_meets_all_raise(fs):
        ranks("failing", fs, 2)

    @ck.posix
    def a_version_of_shards_is_followed_and_stays(fs):
        run("followed", fs.dir)

    @ck.posix
    def a_time_that_lies_ahead_hides_no_later_version(fs):
        run("ahead", fs.dir)

    @ck.posix
    def a_folder_that_does_not_hold_together_is_no_version(fs):
        run("broken", fs.dir)

    @ck.mounted(modes=("auto",))
    def versions_of_shards_take_the_same_memory_again(m):
        os.mkdir(m.path("w"))
        run("again", m.path("w"))

    @ck.mounted("structure=refuse", modes=("auto",))
    def no_mount_refuses_what_other_ranks_publish(m):
        os.mkdir(m.path("w"))
        for step, world in ((1, 4), (2, 2), (3, 4)):
            trainer.finish(*(trainer.start(
                __file__, "refused", m.path("w"), rank, world,
                f"{m.base}/meet.{step}", step, MASTER_ADDR="127.0.0.1")
                for rank in range(world)))


if __name__ == "__main__":
    trainer.main(PROGRAMS, tests)
