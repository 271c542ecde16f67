"""A job that saves with torch.distributed.checkpoint and is restored by plan:
every rank has all that it will read in its own file and opens no other one,
and the copies cost nothing. The same with checkpoints from before there were
copies, with fewer and more ranks than saved, and with a file that is gone."""
import datetime
import json
import os
import sys

import trainer
from trainer import ck

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "../../gpu/python"))

RANKS = 4
SHARDED = {"rows": 0, "columns": 1}  # and along which dimension
# Megatron's name for a rank's own copy of what all ranks have.
REPLICA = ".__tp_replica_"
CHUNK_MIN = 16 * ck.KIB  # neighbours that are all shorter are one chunk
COUNTERS = [f"{whose}_{what}" for whose in ("own", "foreign", "unknown")
            for what in ("opens", "bytes")]


def whole(seed):
    """The state as one rank would hold all of it. "ln" is what every rank
    reads a copy of; "parallel" one rank reads, and passes it on to all."""
    import torch
    g = torch.Generator().manual_seed(seed)

    def new(*shape):
        return torch.randn(*shape, generator=g)
    return {
        "rows": new(1022, 515), "columns": new(515, 1030).to(torch.bfloat16),
        "ln.large": new(777, 1031), "ln.other": new(300, 700),
        "ln.weight": new(4097).to(torch.bfloat16), "ln.step": new(1)[0],
        **{f"parallel.{n}": new(257, 250 + n) for n in range(8)},
    }


# --- the processes of a job ---

class Rank:
    """What one rank does for each job of a list; methods are their names."""

    def __init__(self, rank, world, meet):
        import torch.distributed as dist
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group(
            "gloo", init_method=f"file://{meet}", rank=rank, world_size=world,
            timeout=datetime.timedelta(seconds=2 * ck.WAIT_BOUND))
        self.rank, self.world, self.barrier = rank, world, dist.barrier

    def state(self, seed, old, key_of, number, empty=False):
        """key_of: the name of a replica -> that of this rank's copy, or None.
        number: of whom this rank has the random numbers."""
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor
        mesh = init_device_mesh("cpu", (self.world,))
        out = {f"rng.{number}": b"" if empty else b"of rank %d" % number}
        for name, value in whole(seed).items():
            if empty:
                value = torch.zeros_like(value)
            if name in SHARDED:
                value = distribute_tensor(value, mesh, [Shard(SHARDED[name])])
            key = key_of(name) if name.startswith("ln.") else name
            if key and not (old and name.startswith("parallel.")):
                out[key] = value
        return out

    def save(self, folder, seed, old=False):
        """old: nothing is passed on, and replicas are rank 0's alone."""
        import torch.distributed.checkpoint as dcp

        def key_of(name):
            if old:
                return name if self.rank == 0 else None
            return f"{name}{REPLICA}{self.rank}"
        dcp.save(self.state(seed, old, key_of, self.rank),
                 checkpoint_id=folder)
        self.barrier()

    def load(self, folder, seed, old=False, plan="by_folder",
             policy="per_shard", groups=None, fails=False):
        """Into zeros; then all must be as it was saved."""
        import planned
        import torch.distributed.checkpoint as dcp
        reader = planned.PlannedReader(folder, plan, policy, groups)
        before = self.counters(folder)
        keys = reader.read_metadata().state_dict_metadata

        def key_of(name):
            """An own copy, another rank's when there were fewer ranks then,
            or the only one."""
            copies = sum(key.startswith(name + REPLICA) for key in keys)
            return f"{name}{REPLICA}{self.rank % copies}" if copies else name
        number = self.rank % sum(key.startswith("rng.") for key in keys)
        got = self.state(seed, old, key_of, number, empty=True)
        error = ""
        try:
            dcp.load(got, storage_reader=reader)
        except dcp.api.CheckpointException as e:
            if not fails:
                raise
            error = "; ".join({str(why) for why, _ in e.failures.values()})
        else:
            self.compare(got, self.state(seed, old, key_of, number), folder)
        return {"opened": reader.opened, "fetched": reader.fetched,
                "error": error, "before": before,
                "after": self.counters(folder)}

    def counters(self, folder):
        """What the mount has counted of all; none of them opens anything
        meanwhile. Rank 0 asks."""
        self.barrier()
        reads = None
        if self.rank == 0:
            reads = json.loads(ck.sh(ck.CKPTCTL, "status", "--timeout", "240", "--json",
                                     os.path.dirname(folder)))["reads"]
        self.barrier()
        return reads

    @staticmethod
    def compare(got, want, what):
        import torch
        assert sorted(got) == sorted(want), (what, sorted(got))
        for key, w in want.items():
            g = got[key]
            if not isinstance(w, torch.Tensor):
                assert g == w, f"{what} {key}: {g} instead of {w}"
                continue
            g, w = (t.to_local() if hasattr(t, "to_local") else t
                    for t in (g, w))
            assert g.dtype == w.dtype and torch.equal(g, w), \
                f"{what} {key}: {g} instead of {w}"

    def unlink(self, path):
        if self.rank == 0:
            os.unlink(path)
        self.barrier()


def work(meet, rank, world, jobs):
    """One process: its answers go to a file beside the meeting point."""
    import torch.distributed as dist
    me = Rank(int(rank), int(world), meet)
    answers = [getattr(me, do)(**arguments)
               for do, arguments in json.loads(jobs)]
    with open(f"{meet}.{rank}", "w", encoding="utf-8") as f:
        json.dump(answers, f)
    dist.barrier()
    dist.destroy_process_group()


# --- the driver ---

def run(m, world, *jobs):
    """Do the jobs with so many ranks, each started as a launcher does it;
    what the loads among them have found."""
    meet = os.path.join(m.base, "meet")
    if os.path.exists(meet):
        os.unlink(meet)  # the last world's
    trainer.finish(*(trainer.start(
        os.path.abspath(__file__), "work", meet, rank, world, json.dumps(jobs),
        RANK=str(rank), WORLD_SIZE=str(world)) for rank in range(world)))
    answers = []
    for rank in range(world):
        with open(f"{meet}.{rank}", encoding="utf-8") as f:
            answers.append(json.load(f))
    return [Load(each) for each in zip(*answers) if each[0]]


def save(folder, seed, **arguments):
    return "save", {"folder": folder, "seed": seed, **arguments}


def load(folder, seed, **arguments):
    return "load", {"folder": folder, "seed": seed, **arguments}


class Load:
    """What the ranks say that they did, and the mount's count of it."""

    def __init__(self, answers):
        self.errors = [a["error"] for a in answers]
        self.files = [[name for name, _, _ in a["opened"]
                       if name != ".metadata"] for a in answers]
        self.fetched = [[piece for _, piece in a["fetched"]] for a in answers]
        self.foreign = [0] * len(answers)
        rows = [{row["rank"]: row for row in answers[0][when]}
                for when in ("before", "after")]
        for rank, a in enumerate(answers):
            before, after = (r.get(rank, dict.fromkeys(COUNTERS, 0))
                             for r in rows)
            counted = {c: after[c] - before[c] for c in COUNTERS}
            assert counted == self.ledger(rank, a["opened"]), \
                (rank, counted, a["opened"])
            self.foreign[rank] = counted["foreign_opens"]
        assert all(rank < len(answers) for rank in rows[1]), rows[1]

    @staticmethod
    def ledger(rank, opened):
        """The counters, from what the rank itself knows that it opened."""
        sums = dict.fromkeys(COUNTERS, 0)
        for _, writer, size in opened:
            whose = "unknown" if writer is None else \
                "own" if writer == rank else "foreign"
            sums[whose + "_opens"] += 1
            sums[whose + "_bytes"] += size
        return sums

    def once(self):
        """All pieces that were read, of which none was read twice."""
        pieces = sum(self.fetched, [])
        assert len(pieces) == len(set(pieces)), sorted(pieces)
        return set(pieces)

    def by_each(self):
        """All pieces, of which no rank has read one twice."""
        for pieces in self.fetched:
            assert len(pieces) == len(set(pieces)), sorted(pieces)
        return set(sum(self.fetched, []))


def file_of(rank):
    return f"__{rank}_0.distcp"


def stored(folder, code=0):
    """Every piece, as the plan calls it -> its length; and what is wrong."""
    said = json.loads(ck.sh(ck.CKPTCTL, "plan", "--list", "--json", folder,
                            code=code))
    lengths = {}
    for item in said["items"]:
        for chunk in item.get("chunks", [item]):
            at = f"@{tuple(chunk['offsets'])}" if chunk is not item else ""
            lengths[item["name"] + at] = chunk["length"]
    assert len(lengths) == said["entries"]
    return lengths, said["findings"]


def wanted(pieces, ranks):
    """Without the copies and the random numbers of other ranks."""
    return {p for p in pieces
            if not (REPLICA in p and
                    int(p.split(REPLICA)[1].split("@")[0]) not in ranks) and
            not (p.startswith("rng.") and int(p[4:]) not in ranks)}


def copies_cost_one(folder, before, after):
    """What the save of RANKS copies has added is what one of them takes, and
    of each further one what torch puts around tensors, and those tensors that
    are too short for chunks of their own."""
    def grown(what):
        return after[what] - before[what]
    pieces, _ = stored(folder)
    sizes = [os.path.getsize(os.path.join(folder, name))
             for name in os.listdir(folder)]
    copy = [length for piece, length in pieces.items()
            if f"{REPLICA}0@" in piece]
    further = (RANKS - 1) * sum(copy)
    around = (RANKS - 1) * sum(min(length, 2 * ck.KIB) if length > CHUNK_MIN
                               else length for length in copy)
    assert around < further / 200
    assert grown("logical_bytes") == sum(sizes)
    one = sum(sizes) - further
    for added in grown("physical_bytes"), grown("du"):
        assert one - 2 * ck.KIB * len(pieces) <= added, (added, one)
    assert grown("physical_bytes") <= one + around, (after, one, around)
    assert grown("du") <= one + around + CHUNK_MIN * len(pieces)
    print(f"# {RANKS} copies of {sum(copy)} bytes: "
          f"{grown('logical_bytes')} logical, {grown('physical_bytes')} "
          f"physical, {one} with one copy", flush=True)


def tests():
    @ck.mounted(modes=("auto",))
    def each_rank_reads_its_own_file_and_nothing_else(m):
        folder = m.path("step_1")
        before = dict(m.status(), du=m.images_du())
        run(m, RANKS, save(folder, 1))
        m.flush()
        copies_cost_one(folder, before, dict(m.status(), du=m.images_du()))
        m.remount()
        planned, ours, greedy = run(m, RANKS, load(folder, 1),
                                    load(folder, 1, plan="by_writer"),
                                    load(folder, 1, policy="greedy"))
        for rank in range(RANKS):
            assert ck.xattr(f"{folder}/{file_of(rank)}", "writer_rank") == \
                str(rank)
        for each in (planned, ours):
            assert each.files == [[file_of(r)] for r in range(RANKS)], \
                each.files
            assert each.foreign == [0] * RANKS
            assert each.once() == greedy.once() == set(stored(folder)[0])
        # By load alone the ranks do open others' files, and that is seen.
        assert max(map(len, greedy.files)) > 1, greedy.files
        assert sum(greedy.foreign) > 0, greedy.files

    @ck.mounted(modes=("auto",))
    def what_rank_0_alone_has_is_read_from_its_file(m):
        folder = m.path("old")
        alone, pairs, shared, ours = run(
            m, RANKS, save(folder, 2, old=True),
            load(folder, 2, old=True, plan="by_request"),
            load(folder, 2, old=True, plan="by_request",
                 groups=[[0, 2], [1, 3]]),
            load(folder, 2, old=True),
            load(folder, 2, old=True, plan="by_writer"))
        own = [[file_of(rank)] for rank in range(RANKS)]
        pieces = set(stored(folder)[0])
        replicas = sorted(p for p in pieces if p.startswith("ln."))
        assert len(replicas) == 4
        # Each for itself: all others need rank 0's file beside their own.
        assert alone.foreign == [0] + [1] * (RANKS - 1)
        assert [sorted(f) for f in alone.files] == \
            [own[0]] + [own[0] + own[rank] for rank in range(1, RANKS)]
        for fetched in alone.fetched:
            assert [p for p in sorted(fetched) if p in replicas] == replicas
        # Rank 2 has it from rank 0, and of the two others one does.
        assert pairs.foreign[0] == pairs.foreign[2] == 0, pairs.files
        assert [pairs.files[0], pairs.files[2]] == [own[0], own[2]]
        assert sorted(p for rank in (1, 3) for p in pairs.fetched[rank]
                      if p in replicas) == replicas
        assert pairs.foreign[1] + pairs.foreign[3] > 0
        # All together: nobody opens another's file.
        for each in (shared, ours):
            assert each.files == own and each.foreign == [0] * RANKS
            assert each.once() == pieces

    @ck.mounted(modes=("auto",))
    def fewer_and_more_ranks_read_every_piece_once(m):
        four, two = m.path("four"), m.path("two")
        run(m, RANKS, save(four, 3))
        m.remount()
        shared, ours, alone = run(m, 2, load(four, 3),
                                  load(four, 3, plan="by_writer"),
                                  load(four, 3, plan="by_request"),
                                  save(two, 4))
        # Whose writer is still a rank is read by it; the rest by anyone.
        pieces = wanted(stored(four)[0], range(2))
        for each in (shared, ours):
            assert each.once() == pieces
            for rank in range(2):
                assert file_of(rank) in each.files[rank]
                assert file_of(1 - rank) not in each.files[rank], each.files
            assert set(sum(each.files, [])) == \
                {file_of(r) for r in range(RANKS)}
        assert alone.by_each() == pieces
        # Again; of eight ranks six have no file of their own.
        shared, alone = run(m, 8, load(two, 4),
                            load(two, 4, plan="by_request"))
        pieces = set(stored(two)[0])
        assert shared.once() == pieces
        assert shared.files == [[file_of(0)], [file_of(1)]] + 6 * [[]]
        assert shared.foreign == [0] * 8
        assert alone.by_each() == pieces
        for rank, opened in enumerate(alone.files):
            assert opened, rank
            assert alone.foreign[rank] == len(opened) - (rank < 2), opened

    @ck.mounted(modes=("auto",))
    def a_file_that_is_gone_is_named(m):
        folder = m.path("lost")
        loads = run(m, 2, save(folder, 5),
                    ("unlink", {"path": f"{folder}/{file_of(1)}"}),
                    load(folder, 5, fails=True),
                    load(folder, 5, plan="by_writer", fails=True),
                    load(folder, 5, plan="by_request", fails=True))
        # By the plan of the folder, and by the rank that was to read it.
        for each in loads:
            for error in each.errors:
                assert file_of(1) in error and "No such file" in error, error
        _, findings = stored(folder, code=1)
        assert {(f["kind"], f["file"]) for f in findings} == \
            {("dangling", file_of(1))}
        for option in ("--list", "--ranks=2"):
            said = ck.sh(ck.CKPTCTL, "plan", option, folder, code=1)
            assert file_of(1) in said, said


if __name__ == "__main__":
    trainer.main({"work": work}, tests)
