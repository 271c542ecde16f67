"""torch's distributed checkpoints with ranks on two nodes: what they saved
together each node loads, and so does who has DIR alone."""
import os
import sys

import nodes
from nodes import HERE, ck, shared
from ckptest import sh

sys.path.insert(0, os.path.join(HERE, "../trainer"))
# pylint: disable=wrong-import-position
import trainer  # noqa: E402

JOB = os.path.join(HERE, "../../deploy/quickstart-cluster.py")
DCP = os.path.join(HERE, "../trainer/test_dcp.py")
RANKS = 4


def ranks(program, meet, *folders):
    """Rank r works in folder r."""
    try:
        trainer.finish(*(
            trainer.start(DCP, program, folder, rank, len(folders), meet)
            for rank, folder in enumerate(folders)))
    finally:
        if os.path.exists(meet):
            os.unlink(meet)


def metadata_is_last(c, folder):
    """Looks in DIR: with its .metadata plain, a step has no shard that is not.
    Returns how many looks saw one."""
    def look(stop):
        seen = 0
        while not stop.is_set():
            for step in os.listdir(c.shared(folder)):
                names = (folder, step, ".metadata")
                try:
                    if c.is_pending(*names):
                        continue
                except (FileNotFoundError, NotADirectoryError):
                    continue
                seen += 1
                shards = [n for n in os.listdir(c.shared(folder, step))
                          if n.endswith(".distcp")]
                late = [n for n in shards if c.is_pending(folder, step, n)]
                assert shards and not late, \
                    f"{step} has its .metadata, but not {late}"
        return seen
    return nodes.Background(look)


def saved_by_both(c):
    a, b = c.a.path("ck"), c.b.path("ck")
    meet = os.path.join(c.base, "meet")
    os.mkdir(a)
    ranks("save", meet, *(a, b) * (RANKS // 2))
    return a, b, meet


@shared(bare=True)
def ranks_on_two_nodes_save_and_either_loads(c):
    a, b, meet = saved_by_both(c)
    ranks("check", meet, *(b, a) * (RANKS // 2))
    trainer.finish(*(trainer.start(DCP, "alone", f) for f in (a, b)))
    c.settle()
    trainer.finish(trainer.start(DCP, "alone", c.shared("ck")))


@shared()
def a_step_that_looks_whole_in_the_shared_directory_is_whole(c):
    os.mkdir(c.a.path("ck"))
    looking = metadata_is_last(c, "ck")
    a, b = c.a.path("ck"), c.b.path("ck")
    meet = os.path.join(c.base, "meet")
    ranks("save", meet, *(a, b) * (RANKS // 2))
    c.settle()
    assert looking.done(), "no look saw a .metadata"


@shared(options="pending_wait=5")
def a_step_whose_shard_never_came_has_no_metadata(c):
    """Node b dies when all shards are closed and .metadata is not written: it
    must not get plain before they are."""
    os.mkdir(c.a.path("ck"))
    a, b = c.a.path("ck"), c.b.path("ck")
    looking = metadata_is_last(c, "ck")
    sh(trainer.PYTHON, "-W", "ignore", JOB, "save", "--step", "1", "--kill",
       str(c.b.proc.pid), a, a, b, b)
    c.b.kill()
    names = os.listdir(c.shared("ck/step_1"))
    assert ".metadata" in names and len(names) == 5, names
    if not c.pending("ck"):
        nodes.ck.skip("node b had written all before it died")
    ck.until("the shards of node a are plain", lambda: len(
        [p for p in c.pending("ck") if p.endswith(".distcp")]) <= 2)
    c.b.start()
    c.settle()
    looking.done()
    sh(trainer.PYTHON, "-W", "ignore", JOB, "load", "--step", "1", b, b, a, a)


@shared()
def what_one_node_saved_is_loaded_on_the_other_after_it_has_ended(c):
    a, b, meet = saved_by_both(c)
    c.settle()
    c.a.unmount()
    trainer.finish(trainer.start(DCP, "alone", b))
    ranks("check", meet, b, b)
    c.b.remount()
    trainer.finish(trainer.start(DCP, "alone", b))
    c.a.start()
    trainer.finish(trainer.start(DCP, "alone", a))


if __name__ == "__main__":
    if "--bare" not in sys.argv:
        trainer.need_torch()
    nodes.main()
