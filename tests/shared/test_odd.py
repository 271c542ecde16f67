"""What is rare, and has to end well all the same: a clock that is an hour off,
a folder of very many files, three nodes instead of two."""
import errno
import json
import os
import time

import nodes
from nodes import KIB, MIB, ck, content, race, shared, whole
from ckptest import get, put

HOUR = 3600


# --- a clock that is an hour off ---

def set_clock(node, ahead_s):
    """Of the node's daemon: tests/fault/clock.c."""
    asan = os.environ.get("ASAN_OPTIONS", "")
    node.environ = {
        "LD_PRELOAD": os.path.join(ck.BUILD, "tests/fault/libclock.so"),
        "CKPTFS_CLOCK_AHEAD_S": str(ahead_s),
        "ASAN_OPTIONS": asan + ":verify_asan_link_order=0"}


def told(c, name):
    said = json.loads(c.ctl("nodes", "--json", c.shared()))
    return next(n for n in said["nodes"] if n["node"] == name)


def nodes_with_clocks_apart(c, ahead_s):
    """Who asks when something was compares times of one clock: DIR's."""
    set_clock(c.a, ahead_s)
    c.a.start()
    c.b.start()
    put(c.a.path("f"), content("f", 1, MIB))
    ck.until("it says what its clock is", lambda:
             abs(told(c, "a")["clock_ahead_s"] - ahead_s) < HOUR / 2)
    for name in "ab":
        assert abs(told(c, name)["seen_s"]) < HOUR / 2
        assert not told(c, name)["away"]
    # What is pending there is waited for, and what is whole is used here.
    assert whole(get(c.b.path("f"))) == ("f", 1)
    c.settle()
    for version in range(2, 6):
        writer, reader = (c.a, c.b) if version % 2 else (c.b, c.a)
        put(writer.path("tmp"), content("f", version, MIB))
        os.rename(writer.path("tmp"), writer.path("f"))
        c.settle()
        for node in (writer, reader):
            assert whole(get(node.path("f"))) == ("f", version)
    # Changed behind ckptfs, as large as it was: not read from the cache.
    put(c.a.path("g"), content("g", 1, MIB))
    c.settle()
    with open(c.shared("g"), "r+b") as f:
        f.write(content("g", 2, MIB))
    for node in (c.a, c.b):
        assert whole(get(node.path("g"))) == ("g", 2)
    os.utime(c.b.path("g"))
    assert abs(os.lstat(c.a.path("g")).st_mtime - time.time()) < HOUR / 2
    # It dies and goes on.
    fd = os.open(c.a.path("h"), os.O_WRONLY | os.O_CREAT)
    ck.write_all(fd, content("h", 1, MIB))
    os.fsync(fd)
    c.a.kill()
    try:
        os.close(fd)
    except OSError:
        pass
    c.a.start()
    c.settle()
    assert whole(get(c.b.path("h"))) == ("h", 1)
    assert whole(get(c.b.path("g"))) == ("g", 2)


@shared(start=False, engines=("dir",))
def a_clock_an_hour_ahead_changes_nothing(c):
    nodes_with_clocks_apart(c, HOUR)


@shared(start=False, engines=("dir",))
def a_clock_an_hour_behind_changes_nothing(c):
    nodes_with_clocks_apart(c, -HOUR)


# --- very many files ---

def list_of(path, plus):
    """Names; with their sizes, each is looked up as well."""
    with os.scandir(path) as entries:
        return {e.name: e.stat(follow_symlinks=False).st_size if plus else 0
                for e in entries}


@shared(engines=("dir",))
def a_folder_of_50000_files_is_listed_and_read(c):
    """Most were there before; some are made while the other node looks."""
    count, more = 50000, 500
    os.mkdir(c.shared("many"))
    for n in range(count):
        with open(c.shared("many", f"f{n}"), "wb", buffering=0) as f:
            f.write(b"%d" % n)

    def lister(node, plus):
        def work():
            return list_of(node.path("many"), plus)
        return work

    def maker():
        for n in range(more):
            put(c.a.path("many", f"g{n}"), b"more")
    *seen, _ = race(lister(c.a, False), lister(c.b, True), maker)
    want = {f"f{n}": len(b"%d" % n) for n in range(count)}
    for got in seen:
        assert sum(name[0] == "f" for name in got) == count, len(got)
    assert want.items() <= seen[1].items()
    c.settle()
    want |= {f"g{n}": 4 for n in range(more)}
    assert list_of(c.a.path("many"), True) == want
    assert list_of(c.b.path("many"), False).keys() == want.keys()
    for node in (c.a, c.b):
        for n in range(0, count, 499):
            assert get(node.path("many", f"f{n}")) == b"%d" % n


# --- three nodes ---

@shared("abc")
def three_nodes_save_a_step_and_its_tracker(c):
    """Each its part; the tracker of one is whole when all parts are."""
    os.mkdir(c.a.path("step_1"))
    held = []
    for node in (c.a, c.b, c.c):
        held.append(os.open(node.path("step_1", f"part.{node.name}"),
                            os.O_WRONLY | os.O_CREAT))
        ck.write_all(held[-1], content(node.name, 1, MIB))
    put(c.a.path("latest"), b"step_1")
    for fd in held:
        assert c.is_pending("latest")
        os.close(fd)
    c.settle()
    for node in (c.a, c.b, c.c):
        assert get(node.path("latest")) == b"step_1"
        for name in "abc":
            assert whole(get(node.path("step_1", f"part.{name}"))) == (name, 1)


@shared("abc", bare=True)
def of_three_nodes_one_makes_a_file(c):
    def maker(node):
        def work():
            won = []
            for n in range(40):
                try:
                    os.close(os.open(node.path(f"f{n}"), os.O_CREAT |
                                     os.O_EXCL | os.O_WRONLY))
                    won.append(n)
                except FileExistsError:
                    pass
            return won
        return work
    won = race(*(maker(node) for node in (c.a, c.b, c.c)))
    assert sorted(sum(won, [])) == list(range(40)), won


@shared("abc", options="pending_wait=240", engines=("dir",))
def three_nodes_replace_one_file_in_turn_and_all_read_it(c):
    """No reader sees a mixture, or nothing."""
    put(c.a.path("f"), content("f", 0, 70 * KIB))
    c.settle()

    def saver(node, who):
        def work():
            for n in range(12):
                put(node.path(f"tmp.{who}"),
                    content("f", 3 * n + who, 70 * KIB))
                os.rename(node.path(f"tmp.{who}"), node.path("f"))
        return work

    def reader(node):
        def work():
            for _ in range(40):
                assert whole(get(node.path("f")))[0] == "f"
                assert os.lstat(node.path("f")).st_size == 70 * KIB
        return work
    race(*(saver(node, who) for who, node in enumerate((c.a, c.b, c.c))),
         *(reader(node) for node in (c.a, c.b, c.c)))
    c.settle()
    assert len({get(node.path("f")) for node in (c.a, c.b, c.c)}) == 1
    try:
        os.lstat(c.a.path("tmp.0"))
        raise AssertionError("it was renamed")
    except OSError as e:
        assert e.errno == errno.ENOENT


if __name__ == "__main__":
    nodes.main()
