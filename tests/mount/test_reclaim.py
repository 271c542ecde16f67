"""Space comes back while the mount is in use, and never a byte too many."""
import os

import ckptest as ck
from ckptest import KIB, MIB, data, get, put, same

SLACK = MIB  # images are given back in whole blocks


def shrinks_to(m, size, what):
    m.flush()
    ck.until(f"{what}: images shrink to {size}, now {m.images_du()}",
             lambda: m.images_du() <= size + SLACK)


@ck.mounted()
def unlink_gives_the_space_back(m):
    for i in range(4):
        put(m.path(f"f{i}"), data(8 * MIB, i))
    m.flush()
    assert m.images_du() >= 32 * MIB
    os.unlink(m.path("f0"))
    shrinks_to(m, 24 * MIB, "one of four")
    for i in range(1, 4):
        os.unlink(m.path(f"f{i}"))
    shrinks_to(m, 0, "all four")
    s = m.status()
    assert (s["images"], s["logical_bytes"], s["chunks"]) == (0, 0, 0), s
    assert s["physical_bytes"] < SLACK, s


@ck.mounted()
def every_way_to_lose_content_gives_its_space_back(m):
    put(m.path("rest"), data(4 * MIB, "rest"))
    for what, change, left in (
            ("o_trunc", lambda p: put(p, b"x"), 0),
            ("new content", lambda p: put(p, data(8 * MIB, "new")), 8),
            ("truncate", lambda p: os.truncate(p, 2 * MIB), 2),
            ("replaced", lambda p: (put(p + "2", b"x"),
                                    os.rename(p + "2", p)), 0),
            ("unlinked", os.unlink, 0)):
        path = m.path("f")
        put(path, data(8 * MIB, what))
        m.flush()
        assert m.images_du() >= 12 * MIB, what
        change(path)
        shrinks_to(m, (4 + left) * MIB, what)
        same(get(m.path("rest")), data(4 * MIB, "rest"), what)
    put(m.path("f"), data(8 * MIB))
    m.flush()
    fd = os.open(m.path("f"), os.O_RDONLY)
    os.unlink(m.path("f"))
    m.flush()
    same(os.pread(fd, 9 * MIB, 0), data(8 * MIB), "open and unlinked")
    os.close(fd)
    shrinks_to(m, 4 * MIB, "closed after unlink")


@ck.mounted()
def shared_bytes_stay_until_the_last_file_goes(m):
    """a owns the image that b and c point into."""
    common = [data(2 * MIB, i) for i in range(4)]
    own = {name: data(2 * MIB, name) for name in "abc"}
    want = {name: own[name] + b"".join(common) for name in "abc"}
    for name in "abc":
        put(m.path(name), want[name])
        m.flush()
    shrinks_to(m, 14 * MIB, "what b and c share with a")
    os.unlink(m.path("a"))
    shrinks_to(m, 12 * MIB, "what only a had")
    for name in "bc":
        same(get(m.path(name)), want[name], name)
    m.remount()
    for name in "bc":
        same(get(m.path(name)), want[name], name + " remounted")
    put(m.path("d"), want["a"])  # shares again what is left of a
    m.flush()
    shrinks_to(m, 14 * MIB, "what d shares")
    os.unlink(m.path("b"))
    os.unlink(m.path("c"))
    shrinks_to(m, 10 * MIB, "only d is left")
    same(get(m.path("d")), want["a"], "d")
    os.unlink(m.path("d"))
    shrinks_to(m, 0, "nothing is left")
    assert m.status()["images"] == 0


@ck.mounted()
def deleting_while_others_share_loses_no_byte(m):
    """Old steps are deleted while new ones that share with them drain."""
    frozen = data(3 * MIB, "frozen")
    for step in range(12):
        os.mkdir(m.path(f"step_{step}"))
        for rank in range(2):
            put(m.path(f"step_{step}", f"r{rank}"),
                frozen + data(MIB, (step, rank)))
        if step:
            for rank in range(2):
                os.unlink(m.path(f"step_{step - 1}", f"r{rank}"))
            os.rmdir(m.path(f"step_{step - 1}"))
        for rank in range(2):
            same(get(m.path(f"step_{step}", f"r{rank}")),
                 frozen + data(MIB, (step, rank)), f"{step}")
    m.flush()
    m.remount()
    for rank in range(2):
        same(get(m.path("step_11", f"r{rank}")),
             frozen + data(MIB, (11, rank)), "last")
    shrinks_to(m, 5 * MIB, "eleven steps")


@ck.mounted()
def punched_holes_are_reclaimed(m):
    put(m.path("f"), data(8 * MIB))
    m.flush()
    with open(m.path("f"), "r+b") as f:
        ck.fallocate(f.fileno(), 3, MIB, 6 * MIB)
    shrinks_to(m, 2 * MIB, "six of eight punched")
    want = data(8 * MIB)
    same(get(m.path("f")), want[:MIB] + bytes(6 * MIB) + want[7 * MIB:], "f")


@ck.mounted()
def gc_finds_nothing_left_to_do(m):
    for i in range(20):
        put(m.path(f"f{i}"), data(200 * KIB, i))
    m.flush()
    for i in range(0, 20, 2):
        os.unlink(m.path(f"f{i}"))
    m.shrinks_by_gc(10 * 200 * KIB + SLACK, "every other one")
    for i in range(1, 20, 2):
        same(get(m.path(f"f{i}")), data(200 * KIB, i), f"f{i}")


if __name__ == "__main__":
    ck.main()
