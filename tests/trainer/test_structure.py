"""Checkpoints of torch whose structure changed, or that do not hold together:
what the mount says when they are published, and what it refuses."""
import errno
import os
import sys
import tempfile

import test_dcp
import trainer
from trainer import ck

EUCLEAN = errno.EUCLEAN


def states():
    import torch
    g = torch.Generator().manual_seed(1)

    def rand(*size):
        return torch.randn(*size, generator=g)

    base = {"w": rand(4, 4096), "v": rand(2, 4096)}
    return {
        "base": base,
        "again": base,
        "other bytes": {"w": rand(4, 4096), "v": rand(2, 4096)},
        "other order": {"v": rand(2, 4096), "w": rand(4, 4096)},
        "rerun": {**base, "rerun": rand(1, 4096)},
        "longer": {"w": rand(8, 4096), "v": rand(2, 4096)},
        "type": {k: t.bfloat16().float().to(torch.bfloat16)
                 for k, t in base.items()},
        "fewer": {"w": rand(4, 4096)},
    }


def make(folder):
    """Each as a checkpoint of its own, outside of any mount."""
    import torch.distributed.checkpoint as dcp
    for name, state in states().items():
        dcp.save(state, checkpoint_id=f"{folder}/{name}", no_dist=True)


def series(folder):
    """A trainer that saves; what it was told, step by step."""
    import torch.distributed.checkpoint as dcp
    for step, (name, state) in enumerate(states().items()):
        try:
            dcp.save(state, checkpoint_id=f"{folder}/step_{step}",
                     no_dist=True)
            print("saved", name)
        # DCP wraps what its writer met, in what is no Exception.
        except BaseException as e:  # pylint: disable=broad-except
            if "cleaning" not in str(e):
                raise
            print("refused", name)


def world(folder, step, rank, size, store):
    """One rank of a trainer with two models, each in a folder of the step."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    test_dcp.join(rank, size, store)
    state = test_dcp.sharded(int(step))
    dcp.save(state, checkpoint_id=f"{folder}/global_step{step}/actor")
    if step == "4":
        del state["bf16"]
    try:
        dcp.save(state, checkpoint_id=f"{folder}/global_step{step}/critic")
        print("saved")
    # DCP wraps what its writer met, in what is no Exception.
    except BaseException as e:  # pylint: disable=broad-except
        if "cleaning" not in str(e):
            raise
        print("refused")
    dist.barrier()
    if rank == "0":
        with open(f"{folder}/latest", "w", encoding="utf-8") as f:
            f.write(f"global_step{min(int(step), 3)}")
    dist.barrier()
    dist.destroy_process_group()


def copy(source, target, *, metadata=None, data=None):
    """As a trainer writes it: .metadata last, by a rename. The errno."""
    os.makedirs(target, exist_ok=True)
    for name in os.listdir(source):
        if name != ".metadata":
            ck.put(f"{target}/{name}",
                   ck.get(f"{data or source}/{name}"))
    ck.put(f"{target}/.metadata.tmp",
           ck.get(f"{metadata or source}/.metadata"))
    try:
        os.rename(f"{target}/.metadata.tmp", f"{target}/.metadata")
    except OSError as e:
        return e.errno
    return 0


def figures(m):
    m.flush()
    return m.status()["structure"]


def tests():
    @ck.mounted("structure=refuse")
    def a_trainer_is_told_when_its_structure_changed(m):
        m.expected.append("not published")
        p = trainer.start(os.path.abspath(__file__), "series", m.mnt)
        said = p.communicate(timeout=2 * ck.WAIT_BOUND)[0]
        assert p.returncode == 0, said
        outcome = dict(reversed(line.split(" ", 1))
                       for line in said.splitlines()
                       if line.startswith(("saved ", "refused ")))
        assert outcome == {
            "base": "saved", "again": "saved", "other bytes": "saved",
            "other order": "saved", "rerun": "saved", "longer": "saved",
            "type": "saved", "fewer": "refused",
        }, said
        seen = figures(m)
        # "longer" has lost "rerun", which one step alone had.
        assert seen["refused"] == 1 and seen["gone"] == 1, seen
        assert seen["different"] == 4, seen
        assert seen["identical"] == 1, seen  # "again", and nothing else
        log = m.log_text()
        for words in ("step_1: all its tensors have the bytes they have in "
                      "step_0", "1 tensor is new (rerun)",
                      "1 tensor is of another shape (w)",
                      "2 tensors are of another type (v, w)",
                      "1 tensor is gone (v)"):
            assert words in log, (words, log)
        # What was refused is not there, and what was there is whole.
        for step in range(8):
            assert os.path.exists(m.path(f"step_{step}/.metadata")) == \
                (step < 7), step
        assert "1 tensor is gone (v)" in os.getxattr(
            m.path("step_7"), "user.ckptfs.refused").decode()
        m.ctl("inspect", "--diff", m.path("step_0"), m.path("step_2"))
        m.ctl("plan", "--list", m.path("step_3"))

    @ck.mounted("structure=refuse")
    def what_does_not_hold_together_is_refused(m):
        m.expected.append("not published")
        with tempfile.TemporaryDirectory() as tmp:
            trainer.finish(trainer.start(os.path.abspath(__file__), "make",
                                         tmp))
            step = [m.path(f"step_{i}") for i in range(8)]
            base = tmp + "/base"
            assert copy(base, step[0]) == 0

            def refused(code, *words):
                assert code == EUCLEAN, code
                last = figures(m)["last"]
                for word in words:
                    assert word in last, (word, last)

            # .metadata names what no file has.
            refused(copy(base, step[1], metadata=tmp + "/rerun"),
                    "__0_0.distcp")
            # A file has what .metadata does not name.
            refused(copy(base, step[2], data=tmp + "/rerun"), "unnamed")
            # A tensor that grew, with the metadata of before.
            refused(copy(base, step[3], data=tmp + "/longer"))
            # A file is not there.
            os.makedirs(step[4])
            ck.put(step[4] + "/.metadata.tmp", ck.get(base + "/.metadata"))
            ck.fails(EUCLEAN, os.rename, step[4] + "/.metadata.tmp",
                     step[4] + "/.metadata")
            refused(EUCLEAN, "dangling", "__0_0.distcp")
            # Files that a larger world left there harm nobody.
            os.makedirs(step[5])
            ck.put(step[5] + "/__7_0.distcp", ck.get(base + "/__0_0.distcp"))
            assert copy(base, step[5]) == 0
            assert "orphan: __7_0.distcp" in m.log_text()
            figures(m)  # that it has the bytes of step_0 is said by now
            # The only way to see what the trainer never handed over.
            os.setxattr(m.path(), "user.ckptfs.expect", b"w\nv\nrerun")
            refused(copy(base, step[6]), "(rerun)", "user.ckptfs.expect")
            os.removexattr(m.path(), "user.ckptfs.expect")
            assert copy(base, step[6]) == 0
            seen = figures(m)
            assert seen["broken"] == 3 and seen["missing"] == 2, seen

    @ck.mounted("structure=refuse")
    def a_world_of_another_size_saves_the_same_step(m):
        m.expected.append("not published")

        def run(step, size):
            store = m.mnt.rstrip("/") + f".gloo{step}"
            trainer.finish(*(trainer.start(
                os.path.abspath(__file__), "world", m.mnt, step, rank, size,
                store) for rank in range(size)))

        for step, size in ((1, 3), (2, 2), (3, 1)):
            run(step, size)
            seen = figures(m)
            # Two .metadata, and the tracker of all.
            assert seen["checked"] == 3 * step, seen
            assert seen["different"] == seen["refused"] == 0, seen
            diff = os.getxattr(m.path(f"global_step{step}"),
                               "user.ckptfs.structure_diff") \
                if step > 1 else b""
            assert diff == b"", diff
        run(4, 2)
        critic = m.path("global_step4/critic")
        assert not os.path.exists(critic + "/.metadata")
        for path in (critic, critic + "/.metadata.tmp"):
            why = os.getxattr(path, "user.ckptfs.refused").decode()
            assert "critic: its structure is not that of global_step3: " \
                "1 tensor is gone (bf16)" in why, why

    @ck.mounted()
    def warn_lets_it_pass_and_says_so(m):
        with tempfile.TemporaryDirectory() as tmp:
            trainer.finish(trainer.start(os.path.abspath(__file__), "make",
                                         tmp))
            for i, name in enumerate(("base", "rerun", "fewer")):
                assert copy(f"{tmp}/{name}", m.path(f"step_{i}")) == 0
        seen = figures(m)
        assert seen["different"] == 2 and seen["refused"] == 0, seen
        assert m.log_text().count("WARNING: structure:") == 2
        got = os.getxattr(m.path("step_2"), "user.ckptfs.structure_diff")
        assert got == b"gone: rerun\ngone: v\n", got

    @ck.mounted()
    def metadata_and_tracker_of_one_step_say_it_once(m):
        extra = ck.get(os.path.join(os.path.dirname(
            os.path.abspath(__file__)), "../fuzz/corpus/tensors/safetensors"))
        with tempfile.TemporaryDirectory() as tmp:
            trainer.finish(trainer.start(os.path.abspath(__file__), "make",
                                         tmp))
            for i, name in enumerate(("base", "other bytes", "rerun")):
                folder = m.path("iter_%07d" % i)
                assert copy(f"{tmp}/{name}", folder) == 0
                # What comes after .metadata is not missed before it comes.
                seen = figures(m)
                assert seen["different"] == (i == 2), seen
                ck.put(folder + "/common.safetensors", extra)
                ck.put(m.path("latest_checkpointed_iteration.txt"),
                       str(i).encode())
                m.flush()
        seen = figures(m)
        assert seen["checked"] == 6 and seen["different"] == 2, seen
        assert m.log_text().count("1 tensor is new (rerun)") == 1


if __name__ == "__main__":
    trainer.main({"make": make, "series": series, "world": world}, tests)
    sys.exit(0)
