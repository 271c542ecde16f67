"""Steps are looked at when they are published, whichever nodes have their
parts, and what is told of files and steps is what is there."""
import errno
import json
import os

import nodes
from nodes import ck, shared
from ckptest import fails, get, put, same
from steps import BASE, LESS, counts, save, step

EUCLEAN = errno.EUCLEAN


def xattr(path, name):
    return os.getxattr(path, "user.ckptfs." + name).decode()


def torn(path):
    """A file of tensors that ends too early. It is a new one, for what is to
    replace a whole one is not seen by others before it is whole, too."""
    raw = get(path)
    os.unlink(path)
    put(path, raw[:-100])


@shared(options="structure=refuse")
def a_broken_step_is_refused_whichever_node_wrote_it(c):
    step(c.a, 1)
    made = step(c.a, 2, publish=False) + ".tmp"
    torn(made + "/rank_1.safetensors")
    # All of it is waited for, and then read in DIR by the node that publishes.
    fails(EUCLEAN, os.rename, c.b.path("step_2.tmp"), c.b.path("step_2"))
    said = counts(c.b, broken=1, gone=1, different=1, refused=1)
    assert "rank_1.safetensors: tensor 'v'" in said, said
    for node in (c.a, c.b):
        assert "it is damaged" in xattr(node.path("step_2.tmp"), "refused")
        assert not os.path.exists(node.path("step_2"))
        assert "user.ckptfs.refused" not in os.listxattr(
            node.path("step_2.tmp"))
    save(c.b.path("step_2.tmp", "rank_1.safetensors"), BASE, 21)
    c.settle()  # what replaces a file is seen elsewhere when it is whole
    os.rename(c.a.path("step_2.tmp"), c.a.path("step_2"))
    fails(errno.ENODATA, xattr, c.b.path("step_2"), "refused")
    assert xattr(c.a.path("step_1"), "structure") == \
        xattr(c.b.path("step_2"), "structure")
    assert xattr(c.b.path("step_2"), "structure_diff") == ""
    # What the step before had, on the other node.
    step(c.a, 3, LESS, publish=False)
    fails(EUCLEAN, os.rename, c.b.path("step_3.tmp"), c.b.path("step_3"))
    os.setxattr(c.a.path("step_3.tmp"), "user.ckptfs.structure_policy",
                b"warn")
    os.rename(c.b.path("step_3.tmp"), c.b.path("step_3"))
    fails(errno.EINVAL, os.setxattr, c.a.path(""),
          "user.ckptfs.structure_policy", b"sometimes")
    c.b.expected.append("structure: .*not published")


@shared(options="structure=refuse")
def a_tracker_that_is_refused_is_what_it_was(c):
    step(c.a, 1)
    put(c.a.path("latest"), b"step_1")
    c.settle()
    torn(step(c.a, 2, publish=False) + ".tmp/rank_0.safetensors")
    c.settle()
    os.rename(c.shared("step_2.tmp"), c.shared("step_2"))
    for word in b"step_2", b"step_7":
        fails(EUCLEAN, put, c.a.path("latest"), word)
    for node in (c.a, c.b):
        same(get(node.path("latest")), b"step_1", "the tracker")
    assert not c.replacing()
    put(c.b.path("other.tmp"), b"step_2")
    fails(EUCLEAN, os.rename, c.b.path("other.tmp"), c.b.path("latest"))
    fails(EUCLEAN, os.symlink, "step_2", c.b.path("latest-link"))
    same(get(c.a.path("latest")), b"step_1", "the tracker")
    for node in (c.a, c.b):
        node.expected.append("structure: .*not published")


@shared()
def parts_of_other_nodes_are_looked_at_when_they_are_whole(c):
    """Without waiting for them, where nobody asks for that."""
    c.b.unmount()
    c.b.start("structure=refuse", "publish=async")
    step(c.b, 1)
    path = step(c.b, 2, publish=False) + ".tmp"
    whole = get(path + "/rank_0.safetensors")
    with open(c.a.path("step_2.tmp", "rank_2.safetensors"), "wb") as f:
        os.rename(path, c.b.path("step_2"))
        counts(c.b)
        assert xattr(c.b.path("step_2"), "structure_diff") == \
            "not looked at: rank_2.safetensors: another node has its " \
            "bytes, and they are not all there yet\n"
        fails(errno.EAGAIN, xattr, c.b.path("step_2"), "structure")
        assert xattr(c.b.path("step_2", "rank_2.safetensors"),
                     "shared") == "pending on a"
        f.write(whole[:-100])
    ck.until("it was looked at again",
             lambda: c.b.status()["structure"]["broken"] == 1)
    assert "rank_2.safetensors" in c.b.status()["structure"]["last"]


@shared()
def what_is_told_of_a_file_is_where_its_bytes_are(c):
    for rank, node in enumerate((c.a, c.b)):
        save(node.path(f"rank_{rank}.safetensors"), BASE, rank)
        save(node.path(f"same_{rank}.safetensors"), BASE, rank)
    c.settle()
    size = os.path.getsize(c.a.path("rank_0.safetensors"))
    for rank, node in enumerate((c.a, c.b)):
        # What is plain in DIR is not kept before its last fsync has ended.
        node.ctl("flush", "--shared", node.mnt)
        own, other = (node.path(f"rank_{n}.safetensors")
                      for n in (rank, 1 - rank))
        assert xattr(own, "shared") == "kept"
        assert xattr(other, "shared") == "plain"
        assert (xattr(other, "state"), xattr(other, "physical_bytes")) == \
            ("durable", "0")
        fails(errno.ENODATA, xattr, node.path(""), "shared")
        # Equal bytes count once on the node that has them, others not at all.
        rows = json.loads(node.ctl("du", "--json", node.mnt))
        total = (rows["paths"] if isinstance(rows, dict) else rows)[-1]
        assert total["files"] == 4 and total["logical_bytes"] == 4 * size
        assert size <= total["physical_bytes"] < 2 * size, total
        told = json.loads(node.ctl("inspect", "--json", other))
        assert (told["shared"], told["state"], told["size_bytes"]) == \
            ("plain", "durable", size), told
        told = json.loads(node.ctl("inspect", "--json", own))
        assert (told["shared"], told["path"]) == \
            ("kept", f"/rank_{rank}.safetensors"), told
        assert "kept" in node.ctl("inspect", own)
    with open(c.a.path("open"), "wb") as f:
        f.write(b"x" * size)
        assert xattr(c.a.path("open"), "shared") == "pending"
        assert xattr(c.b.path("open"), "shared") == "pending on a"
        assert xattr(c.b.path("open"), "state") == "staged"
        # Nobody waits for it.
        said = c.b.ctl("inspect", "--json", c.b.mnt, code=1)
        told = json.JSONDecoder().raw_decode(said)[0]
        assert any(f["name"] == "open" and f["state"] == "staged"
                   for f in told["files"]), said
        assert "open: another node has its bytes" in said, said


if __name__ == "__main__":
    nodes.main()
