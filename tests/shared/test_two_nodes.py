"""What one node does, the other one sees: names at once, bytes when they are
there and whole, and permissions as the cluster file system keeps them."""
import contextlib
import errno
import json
import fcntl
import os
import stat
import subprocess
import threading
import time

import nodes
from nodes import KIB, MIB, ck, content, gone, lists, race, shared, whole
from ckptest import as_user, fails, get, put, same

TEAM, STRANGER = 4242, 1001


# --- names ---

@shared(bare=True)
def names_are_seen_on_the_other_node_at_once(c):
    a, b = c.a, c.b
    os.mkdir(a.path("step"), 0o750)
    put(a.path("step", "empty"), b"")
    put(a.path("step", "full"), content("full", 1, MIB))
    os.symlink("full", a.path("step", "link"))
    os.link(a.path("step", "full"), a.path("step", "second"))
    os.mkfifo(a.path("step", "pipe"))
    names = ["empty", "full", "link", "pipe", "second"]
    assert sorted(os.listdir(b.path("step"))) == names
    assert stat.S_IMODE(os.lstat(b.path("step")).st_mode) == 0o750
    assert os.readlink(b.path("step", "link")) == "full"
    assert stat.S_ISFIFO(os.lstat(b.path("step", "pipe")).st_mode)
    # One more while its node takes its own link away (ckptfs(8)).
    ck.until("it has two names", lambda: os.lstat(
        b.path("step", "second")).st_nlink == 2)
    os.rename(b.path("step"), b.path("moved"))
    assert sorted(os.listdir(a.path("moved"))) == names
    gone(a.path("step"))
    for name in names:
        os.unlink(b.path("moved", name))
        gone(a.path("moved", name))
    os.rmdir(a.path("moved"))
    gone(b.path("moved"))


@shared(bare=True)
def a_file_of_two_names_is_emptied_under_both(c):
    put(c.a.path("one"), b"old")
    os.link(c.a.path("one"), c.a.path("other"))
    c.settle()
    for node in (c.a, c.b):
        put(node.path("one"), b"new " + node.name.encode())
        c.settle()
        for name in "one", "other":
            same(get(c.b.path(name)), b"new " + node.name.encode(), name)
            same(get(c.a.path(name)), b"new " + node.name.encode(), name)
        assert os.stat(c.a.path("other")).st_nlink == 2


@shared(bare=True)
def a_name_that_was_missed_before_is_found(c):
    """No node remembers that there was nothing."""
    for n in range(20):
        one, other = (c.a, c.b)[::-1 if n % 2 else 1]
        fails(errno.ENOENT, os.lstat, other.path(f"f{n}"))
        put(one.path(f"f{n}"), b"x")
        os.lstat(other.path(f"f{n}"))
        os.unlink(other.path(f"f{n}"))
        fails(errno.ENOENT, os.lstat, one.path(f"f{n}"))


@shared(bare=True)
def an_exclusive_create_has_one_winner_100_times(c):
    def make(node):
        def work():
            won = []
            for n in range(100):
                try:
                    fd = os.open(node.path(f"lock{n}"),
                                 os.O_CREAT | os.O_EXCL | os.O_WRONLY)
                except FileExistsError:
                    continue
                os.write(fd, content(node.name, n, 10 * KIB))
                os.close(fd)
                won.append(n)
            return won
        return work
    a, b = race(make(c.a), make(c.b))
    assert sorted(a + b) == list(range(100)), (a, b)
    for n in range(100):
        winner = "a" if n in a else "b"
        for node in (c.a, c.b):
            assert whole(get(node.path(f"lock{n}"))) == (winner, n)


@shared(bare=True)
def a_mkdir_and_a_link_have_one_winner_too(c):
    put(c.a.path("from"), b"x")

    def make(node):
        def work():
            won = []
            for n in range(10):
                for kind, fn in (("d", os.mkdir), ("l", lambda p: os.link(
                        node.path("from"), p))):
                    try:
                        fn(node.path(f"{kind}{n}"))
                        won.append(f"{kind}{n}")
                    except FileExistsError:
                        pass
            return won
        return work
    a, b = race(make(c.a), make(c.b))
    assert len(a) + len(b) == 20 and not set(a) & set(b), (a, b)


@shared()
def the_folder_of_the_store_is_not_shown(c):
    for node in (c.a, c.b):
        assert ".ckptfs" not in os.listdir(node.mnt)
        fails(errno.ENOENT, os.lstat, node.path(".ckptfs"))
        fails(errno.ENOENT, os.listdir, node.path(".ckptfs/nodes"))
    assert ".ckptfs" in os.listdir(c.shared())


@shared(bare=True)
def a_folder_of_many_files_is_listed_whole_on_both(c):
    want = sorted(f"f{n:04}" for n in range(500))
    os.mkdir(c.a.path("many"))
    for n, name in enumerate(want):
        put((c.a, c.b)[n % 2].path("many", name), b"%d" % n)
    for node in (c.a, c.b):
        assert sorted(os.listdir(node.path("many"))) == want
    c.settle()
    assert sorted(os.listdir(c.shared("many"))) == want
    for n, name in enumerate(want):
        assert get(c.a.path("many", name)) == b"%d" % n


# --- bytes ---

@shared(bare=True)
def an_open_waits_until_the_bytes_are_there(c):
    for n, size in enumerate((1, 4095, 4096, 4097, 3 * MIB + 5, 40 * MIB)):
        one, other = (c.a, c.b)[::-1 if n % 2 else 1]
        put(one.path(f"f{n}"), content("f", n, size))
        same(get(other.path(f"f{n}")), content("f", n, size), f"{size} bytes")
        same(get(one.path(f"f{n}")), content("f", n, size), "at home")


@shared()
def a_file_that_is_being_written_is_waited_for(c):
    fd = os.open(c.a.path("f"), os.O_CREAT | os.O_WRONLY)
    os.write(fd, content("f", 1, 2 * MIB)[:MIB])
    assert c.is_pending("f")
    reader = nodes.Background(lambda _: get(c.b.path("f")))
    reader.thread.join(1)
    assert reader.thread.is_alive(), "what is half there was opened"
    os.write(fd, content("f", 1, 2 * MIB)[MIB:])
    os.close(fd)
    same(reader.done(), content("f", 1, 2 * MIB))


@shared(options=nodes.HELD)
def stat_does_not_wait_and_has_size_and_mode(c):
    fd = os.open(c.a.path("f"), os.O_CREAT | os.O_WRONLY, 0o640)
    os.fchown(fd, 7, TEAM)
    os.write(fd, content("f", 1, 5 * MIB + 3))
    os.close(fd)
    held = os.open(c.a.path("held"), os.O_CREAT | os.O_WRONLY, 0o604)
    os.write(held, bytes(100))
    ck.until("its size is told", lambda: os.lstat(c.b.path("f")).st_size)
    st = os.lstat(c.b.path("f"))
    assert st.st_mode == stat.S_IFREG | 0o640, oct(st.st_mode)
    assert (st.st_uid, st.st_gid, st.st_nlink) == (7, TEAM, 1)
    assert st.st_size == 5 * MIB + 3, st.st_size
    st = nodes.within(nodes.FREE_S, "stat of what is written",
                      lambda: tuple(os.lstat(c.b.path("held"))))
    assert st[0] == stat.S_IFREG | 0o604, oct(st[0])
    os.chmod(c.a.path("held"), 0o640)
    ck.until("its new mode is told", lambda: os.lstat(
        c.b.path("held")).st_mode == stat.S_IFREG | 0o640)
    os.close(held)
    c.settle()
    for node in (c.a, c.b):
        st = os.lstat(node.path("held"))
        assert (st.st_mode, st.st_size) == (stat.S_IFREG | 0o640, 100)


@shared(bare=True)
def what_is_complete_is_an_ordinary_file(c):
    """Without ckptfs: the bytes, the mode, the owner and the time."""
    size = 9 * MIB + 1
    fd = os.open(c.a.path("f"), os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(fd, content("f", 1, size))
    os.fchown(fd, 1234, TEAM)
    os.fchmod(fd, 0o2751)
    os.close(fd)
    os.utime(c.a.path("f"), ns=(10**18 + 17 * 10**9, 10**18 + 5 * 10**9))
    c.settle()
    same(get(c.shared("f")), content("f", 1, size), "in DIR")

    def as_it_was(path):
        st = os.lstat(path)
        return (st.st_mode, st.st_uid, st.st_gid, st.st_size, st.st_nlink,
                st.st_mtime_ns // 10**9)
    want = (stat.S_IFREG | 0o2751, 1234, TEAM, size, 1, 10**9 + 5)
    for path in (c.shared("f"), c.a.path("f"), c.b.path("f")):
        # a client of MooseFS keeps attributes for a second
        try:
            ck.until("as it was", lambda: as_it_was(path) == want)
        except AssertionError:
            raise AssertionError((path, as_it_was(path), want)) from None


@shared()
def a_time_that_was_not_set_is_that_of_the_last_write(c):
    before = time.time()
    put(c.a.path("f"), content("f", 1, MIB))
    at = os.lstat(c.a.path("f")).st_mtime
    # The clock of files is up to a tick behind; that of DIR may be another one.
    assert before - 2 <= at <= time.time() + 2, (before, at)
    c.settle()
    for path in (c.shared("f"), c.a.path("f"), c.b.path("f")):
        assert abs(os.lstat(path).st_mtime - at) <= 2, path


def replaced(c, replace, readers="ab", versions=12):
    """Readers see versions in order, each whole, and the last one."""
    sizes = [3 * MIB + 1, 700 * KIB, 5 * MIB, 4 * KIB]
    put(c.a.path("f"), content("f", 0, sizes[0]))
    c.settle()

    def reader(node):
        def read(stop):
            seen = [0]
            while not stop.is_set() or seen[-1] != versions:
                name, version = whole(get(node.path("f")))
                assert name == "f" and version >= seen[-1], (version, seen)
                if version != seen[-1]:
                    seen.append(version)
                if stop.is_set():
                    assert time.monotonic() < limit[0], \
                        f"{node.name} still reads {seen}"
            return seen
        return nodes.Background(read)
    limit = [0]
    readers = [reader(c.nodes[name]) for name in readers]
    watcher = nodes.watch_plain(c)
    for version in range(1, versions + 1):
        replace(c.a, content("f", version, sizes[version % len(sizes)]))
        if version % 3 == 0:
            c.settle()
    c.settle()
    limit[0] = time.monotonic() + ck.WAIT_BOUND
    for r in readers:
        r.done()
    looks, parts = watcher.done()
    assert not parts, parts
    assert looks[1], "nobody looked"
    lists(c.a.mnt, ["f"])
    assert whole(get(c.shared("f"))) == ("f", versions)


@shared()
def a_file_written_anew_is_old_until_it_is_new(c):
    """To others: on its own node it is what has been written so far."""
    replaced(c, lambda node, raw: put(node.path("f"), raw), "b")


@shared()
def a_file_renamed_over_is_old_until_it_is_new(c):
    def replace(node, raw):
        put(node.path("f.tmp"), raw)
        os.rename(node.path("f.tmp"), node.path("f"))
    replaced(c, replace)


@shared()
def both_nodes_may_replace_in_turn(c):
    """Each over the other's version, as soon as it is there."""
    for version in range(8):
        one, other = (c.a, c.b)[::-1 if version % 2 else 1]
        put(one.path("f"), content("f", version, MIB + version))
        c.settle()
        assert whole(get(other.path("f"))) == ("f", version)
        assert whole(get(one.path("f"))) == ("f", version)


@shared(bare=True)
def what_is_changed_in_place_is_changed_for_all(c):
    size = 2 * MIB
    put(c.a.path("f"), content("f", 1, size))
    c.settle()
    want = bytearray(content("f", 1, size))
    for n, node in enumerate((c.b, c.a, c.b)):
        other = c.a if node is c.b else c.b
        fd = os.open(node.path("f"), os.O_RDWR)
        os.pwrite(fd, b"%d" % n * 5000, n * 70000 + 3)
        want[n * 70000 + 3:n * 70000 + 5003] = b"%d" % n * 5000
        os.close(fd)
        same(get(other.path("f")), bytes(want), f"change {n}")
    os.truncate(c.a.path("f"), 100)
    assert os.lstat(c.b.path("f")).st_size == 100
    same(get(c.b.path("f")), bytes(want[:100]), "truncated")
    os.truncate(c.b.path("f"), 5000)
    same(get(c.a.path("f")), bytes(want[:100]) + bytes(4900), "longer")
    c.settle()
    same(get(c.shared("f")), bytes(want[:100]) + bytes(4900), "in DIR")


@shared(bare=True)
def what_both_append_is_all_there(c):
    for n in range(40):
        node = (c.a, c.b)[n % 2]
        fd = os.open(node.path("log"),
                     os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(fd, b"%d\n" % n)
        os.close(fd)
    want = b"".join(b"%d\n" % n for n in range(40))
    for path in (c.a.path("log"), c.b.path("log"), c.shared("log")):
        same(get(path), want, path)


@shared()
def a_log_that_is_open_is_followed_on_the_other_node(c):
    """What is opened to append is the engine's matter, also while open."""
    fd = os.open(c.a.path("log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for n in range(5):
        os.write(fd, b"line %d\n" % n)
        os.fsync(fd)
        want = b"".join(b"line %d\n" % k for k in range(n + 1))
        ck.until("the line is seen", lambda: get(c.b.path("log")) == want)
    os.close(fd)


# --- names of what is pending ---

@shared(bare=True)
def a_pending_file_may_be_moved_by_the_other_node(c):
    os.mkdir(c.a.path("to"))
    for n in range(10):
        put(c.a.path(f"f{n}"), content("f", n, 2 * MIB))
        os.rename(c.b.path(f"f{n}"), c.b.path("to", f"g{n}"))
    for n in range(10):
        gone(c.a.path(f"f{n}"))
        for node in (c.a, c.b):
            assert whole(get(node.path("to", f"g{n}"))) == ("f", n)
    c.settle()
    assert os.listdir(c.shared("to")) and len(os.listdir(c.shared("to"))) == 10
    for n in range(10):
        assert whole(get(c.shared("to", f"g{n}"))) == ("f", n)


@shared(bare=True)
def a_folder_with_pending_files_may_be_moved_by_the_other_node(c):
    os.mkdir(c.a.path("step"))
    for n in range(6):
        put(c.a.path("step", f"f{n}"), content("f", n, 2 * MIB))
    os.rename(c.b.path("step"), c.b.path("step_1"))
    put(c.a.path("step_1", "more"), content("more", 1, MIB))
    for n in range(6):
        assert whole(get(c.b.path("step_1", f"f{n}"))) == ("f", n)
        assert whole(get(c.a.path("step_1", f"f{n}"))) == ("f", n)
    c.settle()
    assert whole(get(c.shared("step_1", "more"))) == ("more", 1)


@shared(bare=True)
def a_pending_file_may_be_removed_by_the_other_node(c):
    os.mkdir(c.a.path("d"))
    for n in range(10):
        put(c.a.path("d", f"f{n}"), content("f", n, 2 * MIB))
        os.unlink(c.b.path("d", f"f{n}"))
        gone(c.a.path("d", f"f{n}"))
    os.rmdir(c.b.path("d"))
    put(c.a.path("after"), content("after", 1, MIB))
    assert whole(get(c.b.path("after"))) == ("after", 1)
    c.settle()
    for node in (c.a, c.b):
        lists(node.mnt, ["after"])


@shared()
def a_file_written_anew_may_be_removed_or_moved_meanwhile(c):
    for n in range(6):
        put(c.a.path(f"f{n}"), content("old", n, MIB))
    c.settle()
    fds = [os.open(c.a.path(f"f{n}"), os.O_WRONLY | os.O_TRUNC)
           for n in range(6)]
    for n, fd in enumerate(fds):
        os.write(fd, content("new", n, MIB))
    for n in (0, 1):
        os.unlink(c.b.path(f"f{n}"))
    # What is renamed is the new one, which is waited for.
    movers = [threading.Thread(target=os.rename, args=(
        c.b.path(f"f{n}"), c.b.path(f"g{n}"))) for n in (2, 3)]
    for mover in movers:
        mover.start()
    for fd in fds:
        os.close(fd)
    for mover in movers:
        mover.join()
    c.settle()
    for node in (c.a, c.b):
        ck.until("what was removed is gone", lambda: not any(
            os.path.lexists(node.path(f"f{n}")) for n in range(4)))
        lists(node.mnt, ["f4", "f5", "g2", "g3"])
        for n in range(2, 6):
            name = f"f{n}" if n > 3 else f"g{n}"
            assert whole(get(node.path(name))) == ("new", n)


@shared()
def a_node_that_returns_sets_nothing_back(c):
    """What it was to put there waited for its step when it died. Meanwhile
    another node has put a later one there, and has removed a name."""
    for name in ("latest", "config"):
        put(c.a.path(name), b"step_1")
    os.mkdir(c.a.path("step_2"))
    c.settle()
    fd = os.open(c.a.path("step_2/shard"), os.O_WRONLY | os.O_CREAT)
    os.write(fd, b"half")
    for name in ("latest", "config"):
        put(c.a.path(name), b"step_2", sync=True)
    put(c.a.path("latest"), b"step_2", sync=True)
    c.a.kill()
    with contextlib.suppress(OSError):
        os.close(fd)
    os.mkdir(c.b.path("step_3"))
    put(c.b.path("step_3/shard"), b"whole")
    put(c.b.path("latest"), b"step_3")
    os.unlink(c.b.path("config"))
    c.b.ctl("flush", "--shared", c.b.mnt)
    same(get(c.shared("latest")), b"step_3", "while it is away")
    c.a.start()
    c.settle()
    for node in (c.a, c.b):
        ck.until("config is gone", lambda n=node: not os.path.lexists(
            n.path("config")))
        same(get(node.path("latest")), b"step_3", node.name)
    same(get(c.shared("latest")), b"step_3", "when it is back")


@shared(options=nodes.HELD)
def what_a_node_that_is_away_has_pending_is_written_anew(c):
    """Nobody asks for its bytes, so nobody waits for them; and it is not given
    back to the name by a node that returns."""
    fds = []
    for name in ("latest", "other"):
        fds.append(os.open(c.a.path(name), os.O_WRONLY | os.O_CREAT, 0o640))
        os.write(fds[-1], b"step_1")
    c.a.kill()
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
    for name in ("latest", "other"):
        nodes.within(nodes.FREE_S, "an open with O_TRUNC",
                     lambda n=name: put(c.b.path(n), b"step_2"))
    c.b.ctl("flush", "--shared", c.b.mnt)
    same(get(c.shared("latest")), b"step_2", "while it is away")
    same(os.stat(c.shared("latest")).st_mode & 0o7777, 0o640)
    c.a.start()
    c.settle()
    for name in ("latest", "other"):
        same(get(c.a.path(name)), b"step_2", name)


def expect(node, *lines):
    """What the test makes its log say."""
    node.expected.extend(lines)


@shared(options=nodes.HELD)
def a_step_that_lost_a_file_with_its_node_gets_no_tracker(c):
    """Until that file is written again. Steps after it are told of, and the
    node may come back with what nobody has written again."""
    os.makedirs(c.a.path("run/step_2"))
    put(c.a.path("run/latest"), b"step_1")
    c.settle()
    fds = []
    for name in ("run/step_2/of_a", "other"):
        fds.append(os.open(c.a.path(name), os.O_WRONLY | os.O_CREAT, 0o640))
        os.write(fds[-1], content(name, 1, MIB))
        os.fsync(fds[-1])
    c.a.kill()
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
    os.utime(c.shared(".ckptfs/nodes/a/alive"), (1e9, 1e9))
    put(c.b.path("run/step_2/of_b"), content("of_b", 1, MIB))
    put(c.b.path("run/latest"), b"step_2")
    ck.until("it is said for whom it waits", lambda: waits_of(c.b) == [
        ("run/latest", "run/step_2/of_a", "a", "away")])
    said = c.ctl("status", c.b.mnt)
    assert "run/step_2/of_a of node a, WHICH IS NOT THERE" in said, said
    said = c.ctl("forget-node", c.shared(), "a", "--yes")
    assert "run/step_2/of_a" in said and "other" in said, said
    # Whoever asks is told at once, and with which node.
    for name in ("run/step_2/of_a", "other"):
        fails(errno.EIO, get, c.b.path(name))
        assert f"{name} is lost with node a" in c.b.log_text()
        same(os.getxattr(c.b.path(name), "user.ckptfs.shared"), b"lost on a")
        same(stat.S_IMODE(os.lstat(c.b.path(name)).st_mode), 0o640)
    expect(c.b, "is lost with node a")
    said = c.b.ctl("flush", "--shared", c.b.mnt, code=1)
    assert "Structure needs cleaning" in said, said
    said = [line for line in c.b.log_text().splitlines()
            if "run/latest does not come" in line]
    assert said and "run/step_2/of_a is lost with node a" in said[-1], said
    same(get(c.shared("run/latest")), b"step_1", "its step is not there")
    same(waits_of(c.b), [("run/latest", "run/step_2/of_a", "a", "lost")])
    said = c.ctl("status", c.b.mnt, code=1)
    assert "run/step_2/of_a IS LOST with node a" in said, said
    fails(errno.EUCLEAN, os.rename, c.b.path("run/step_2"),
          c.b.path("run/step_9"))
    # A tracker of another step does not wait for that one.
    os.mkdir(c.b.path("run/step_3"))
    for name in ("of_b", ".metadata"):
        put(c.b.path("run/step_3", name), b"step_3")
    c.await_plain("run/step_3/.metadata")
    put(c.b.path("run/step_2/of_a"), content("of_a", 2, MIB))
    c.b.ctl("flush", "--shared", c.b.mnt)
    same(get(c.shared("run/latest")), b"step_2", "its step is there")
    said = c.a.refuse(code=1)
    assert "was forgotten" in said and "rejoin" in said, said
    c.a.start("rejoin")
    c.settle()
    for node in (c.a, c.b):
        same(get(node.path("other")), content("other", 1, MIB))
        same(get(node.path("run/step_2/of_a")), content("of_a", 2, MIB))
    c.a.unmount()
    c.a.start()


@shared()
def attributes_are_set_from_either_node(c):
    put(c.a.path("plain"), content("p", 1, MIB))
    c.settle()
    put(c.a.path("late"), content("p", 2, 8 * MIB))
    for name in ("plain", "late"):
        os.chmod(c.b.path(name), 0o611)
        os.chown(c.b.path(name), 77, 88)
        os.utime(c.b.path(name), (1000, 2000))
        os.setxattr(c.b.path(name), "user.who", b"b")
    c.settle()
    for name in ("plain", "late"):
        for path in (c.a.path(name), c.b.path(name), c.shared(name)):
            def attributes():
                st = os.lstat(path)
                return (stat.S_IMODE(st.st_mode), st.st_uid, st.st_gid,
                        int(st.st_mtime), os.getxattr(path, "user.who"))
            try:
                ck.until("attributes", lambda: attributes() == (
                    0o611, 77, 88, 2000, b"b"))
            except AssertionError:
                raise AssertionError((path, attributes())) from None


@shared(bare=True)
def links_are_one_file_on_both(c):
    put(c.a.path("f"), content("f", 1, 3 * MIB))
    os.link(c.b.path("f"), c.b.path("g"))
    os.unlink(c.a.path("f"))
    assert whole(get(c.b.path("g"))) == ("f", 1)
    assert whole(get(c.a.path("g"))) == ("f", 1)
    c.settle()
    # One more while its node takes its own link away (ckptfs(8)).
    ck.until("it has one name", lambda: os.lstat(
        c.shared("g")).st_nlink == 1)
    os.link(c.a.path("g"), c.a.path("h"))
    os.truncate(c.b.path("h"), 10)
    assert os.lstat(c.a.path("g")).st_size == 10


@shared(bare=True)
def the_number_of_links_is_the_same_whatever_the_file_is(c):
    """Pending, kept here, and of another node."""
    def links(*names):
        return [os.lstat(n.path(name)).st_nlink
                for name in names for n in (c.a, c.b)]
    with open(c.a.path("f"), "wb") as f:
        f.write(b"pending")
        f.flush()
        os.link(c.a.path("f"), c.a.path("g"))
        assert links("f", "g") == [2] * 4, links("f", "g")
        assert os.fstat(f.fileno()).st_nlink == 2
        before = os.lstat(c.a.path("f")).st_ctime_ns

        def is_later():  # within a tick of the clock it is the same
            if os.path.lexists(c.a.path("h")):
                os.unlink(c.a.path("h"))
            os.link(c.a.path("g"), c.a.path("h"))
            return os.lstat(c.a.path("f")).st_ctime_ns > before
        ck.until("the time of its change", is_later)
        assert links("f", "g", "h") == [3] * 6
        os.unlink(c.a.path("f"))
        assert links("g", "h") == [2] * 4
    c.settle()
    assert links("g", "h") == [2] * 4
    os.rename(c.a.path("h"), c.a.path("i"))
    put(c.a.path("other"), b"x")
    os.rename(c.a.path("other"), c.a.path("i"))
    c.settle()
    assert links("g", "i") == [1] * 4


@shared()
def who_may_write_may_touch_and_takes_the_set_user_id_bit(c):
    os.chmod(c.a.mnt, 0o777)
    for node in (c.a, c.b):
        for size in (0, 20 * KIB):
            put(c.a.path("f"), b"x" * size, mode=0o666)
            c.settle()
            os.chmod(c.a.path("f"), 0o6777)

            def stranger():
                os.utime(node.path("f"))
                fails(errno.EPERM, os.utime, node.path("f"), (1, 1))
                put(node.path("f"), b"y", flags=os.O_WRONLY)
            as_user(stranger)
            c.settle()
            assert os.lstat(c.shared("f")).st_mode & 0o7777 == 0o777
            assert os.lstat(c.b.path("f")).st_mode & 0o7777 == 0o777


@shared(bare=True)
def a_lock_on_one_node_excludes_the_other(c):
    put(c.a.path("lock"), b"")
    c.settle()
    fds = [os.open(n.path("lock"), os.O_RDWR) for n in (c.a, c.b)]
    free = fcntl.LOCK_EX | fcntl.LOCK_NB
    fcntl.flock(fds[0], free)
    fails(errno.EAGAIN, fcntl.flock, fds[1], free)
    fcntl.flock(fds[0], fcntl.LOCK_UN)
    fcntl.flock(fds[1], free)
    fcntl.flock(fds[1], fcntl.LOCK_UN)

    def taken():
        try:
            fcntl.lockf(fds[1], free)
        except OSError as e:
            return e.errno in (errno.EAGAIN, errno.EACCES)
        return False
    fcntl.lockf(fds[0], free)
    assert ck.Child(taken).result(), "both have the lock"
    for fd in fds:
        os.close(fd)


@shared(bare=True)
def a_lock_to_read_ends_with_its_process(c):
    """Nobody gave it up: a file that is kept here, DIR's, and a new one."""
    put(c.a.path("kept"), b"x")
    c.settle()

    def lock(path):
        fcntl.lockf(os.open(path, os.O_RDONLY), fcntl.LOCK_SH)
    for node, name in ((c.a, "kept"), (c.b, "kept"), (c.a, "new")):
        if name == "new":
            put(node.path(name), b"x")
        ck.Child(lambda n=node, f=name: lock(n.path(f))).result()
        for other in (c.a, c.b):
            fd = os.open(other.path(name), os.O_RDWR)
            ck.until("nobody has the lock", lambda f=fd: is_free(f))
            os.close(fd)


def is_free(fd):
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        assert e.errno in (errno.EAGAIN, errno.EACCES), e
        return False
    return True


# The counter is wrong when two are between the lock and the end.
COUNTS = """for i in 1 2 3 4 5 6 7 8; do (
    flock 9 || exit 7
    eval "$3"
    read -r n < "$2"; echo $((n + 1)) > "$2"
) 9> "$1" || exit 8; done"""


def counted(c, name, writes):
    """By two loops on each node, which have the lock in turn."""
    count = os.path.join(os.path.dirname(c.a.mnt), f"count.{name}")
    put(count, b"0\n")
    loops = [subprocess.Popen(["bash", "-c", COUNTS, "bash", node.path(name),
                               count, writes])
             for node in (c.a, c.b) for _ in range(2)]
    for loop in loops:
        code = loop.wait(ck.WAIT_BOUND)
        assert code == 0, f"a loop that locks {name}: {code}"
    same(get(count), b"32\n", name)


@shared(bare=True)
def locks_of_the_shell_exclude_on_both_nodes(c):
    ck.tool("flock")
    put(c.a.path("text"), b"ten bytes\n")
    c.settle()
    counted(c, "fresh", ":")
    counted(c, "pid", "echo $$ >&9")
    counted(c, "text", ":")
    c.settle()
    for node in (c.a, c.b):
        for name, want in (("fresh", b""), ("text", b"")):
            ck.until(f"{name} is empty on {node.name}", lambda n=node, f=name,
                     w=want: get(n.path(f)) == w)
        assert get(node.path("pid")).strip().isdigit()


# --- whose it is ---

@shared(bare=True)
def files_belong_to_who_made_them(c):
    os.mkdir(c.a.path("team"))
    os.chown(c.a.path("team"), 0, TEAM)
    os.chmod(c.a.path("team"), 0o2770)
    os.chmod(c.a.mnt, 0o777)
    as_user(lambda: put(c.a.path("mine"), content("mine", 1, MIB), mode=0o600))
    as_user(lambda: put(c.b.path("team", "ours"), content("ours", 1, MIB),
                        mode=0o640), groups=(TEAM,))
    as_user(lambda: os.mkdir(c.b.path("d")))
    as_user(lambda: os.symlink("x", c.a.path("l")))
    for node in (c.a, c.b):
        for name, owner in (("mine", (1000, 1000)), ("team/ours", (1000, TEAM)),
                            ("d", (1000, 1000)), ("l", (1000, 1000))):
            st = os.lstat(node.path(name))
            assert (st.st_uid, st.st_gid) == owner, (name, st)
        fails(errno.EACCES, as_user, lambda: get(node.path("team", "ours")))
        as_user(lambda: whole(get(node.path("team", "ours"))), uid=STRANGER,
                groups=(TEAM,))
        as_user(lambda: whole(get(node.path("mine"))))
        fails(errno.EACCES, as_user, lambda: get(node.path("mine")),
              uid=STRANGER)
    c.settle()
    st = os.lstat(c.shared("mine"))
    assert (st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode)) == \
        (1000, 1000, 0o600)


@shared(bare=True)
def what_is_forbidden_is_refused_on_both_nodes(c):
    os.chmod(c.a.mnt, 0o755)
    put(c.a.path("theirs"), content("theirs", 1, 20 * KIB), mode=0o644)
    os.mkdir(c.a.path("sticky"))
    os.chmod(c.a.path("sticky"), 0o1777)
    put(c.a.path("sticky", "f"), b"x")
    os.mkdir(c.a.path("closed"), 0o700)
    for node in (c.b, c.a):
        def stranger():
            fails(errno.EACCES, os.open, node.path("new"),
                  os.O_CREAT | os.O_WRONLY)
            fails(errno.EACCES, os.mkdir, node.path("new"))
            fails(errno.EACCES, os.unlink, node.path("theirs"))
            fails(errno.EACCES, os.rename, node.path("theirs"),
                  node.path("x"))
            fails(errno.EACCES, os.open, node.path("theirs"), os.O_WRONLY)
            fails(errno.EACCES, os.open, node.path("theirs"),
                  os.O_WRONLY | os.O_TRUNC)
            fails(errno.EPERM, os.chmod, node.path("theirs"), 0o777)
            fails(errno.EPERM, os.chown, node.path("theirs"), 1000, 1000)
            fails(errno.EPERM, os.unlink, node.path("sticky", "f"))
            fails(errno.EACCES, os.listdir, node.path("closed"))
            assert whole(get(node.path("theirs"))) == ("theirs", 1)
        as_user(stranger)


@shared(options=nodes.HELD)
def what_may_not_be_read_is_refused_while_pending(c):
    """At once: nobody waits for what he is then refused."""
    os.chmod(c.a.mnt, 0o777)

    def work():
        return os.open(c.a.path("f"), os.O_CREAT | os.O_WRONLY, 0o600)
    held = os.open(c.a.path("f"), os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(held, b"x")
    for node in (c.b, c.a):
        fails(errno.EACCES, nodes.within, nodes.FREE_S, "a refusal",
              lambda: get(node.path("f")), uid=STRANGER)
        assert not nodes.within(nodes.FREE_S, "access", lambda: os.access(
            node.path("f"), os.R_OK), uid=STRANGER)
    os.close(held)


# --- nodes come and go ---

@shared()
def a_node_that_is_unmounted_has_left_everything(c):
    for n in range(5):
        put(c.a.path(f"f{n}"), content("f", n, 4 * MIB))
    c.a.unmount()
    for n in range(5):
        assert whole(get(c.b.path(f"f{n}"))) == ("f", n)
    c.a.start()
    for n in range(5):
        assert whole(get(c.b.path(f"f{n}"))) == ("f", n)
        assert whole(get(c.a.path(f"f{n}"))) == ("f", n)
    c.settle()


@shared()
def a_third_node_with_an_empty_store_has_everything(c):
    os.mkdir(c.a.path("d"))
    for n in range(5):
        put(c.a.path("d", f"f{n}"), content("f", n, 3 * MIB))
    third = c.add("third").start()
    for n in range(5):
        assert whole(get(third.path("d", f"f{n}"))) == ("f", n)
    put(third.path("d", "f0"), content("f", 10, MIB))
    c.settle()
    assert whole(get(c.b.path("d", "f0"))) == ("f", 10)


@shared()
def after_a_remount_all_is_as_it_was(c):
    for n in range(5):
        put(c.a.path(f"f{n}"), content("f", n, MIB))
    c.settle()
    put(c.b.path("f0"), content("f", 100, 2 * MIB))  # while a is there
    c.settle()
    c.a.unmount()
    put(c.b.path("f1"), content("f", 101, 2 * MIB))  # and while it is not
    os.unlink(c.b.path("f2"))
    os.rename(c.b.path("f3"), c.b.path("f2"))
    c.settle()
    c.a.start()
    want = {"f0": 100, "f1": 101, "f2": 3, "f4": 4}
    for node in (c.a, c.b):
        lists(node.mnt, want)
        for name, version in want.items():
            assert whole(get(node.path(name))) == ("f", version), name


@shared()
def status_says_how_much_waits_here(c):
    """A tracker waits until the step that it names is whole."""
    def waits():
        said = json.loads(c.ctl("status", "--json", c.a.mnt))
        return [said["shared_directory"][what]
                for what in ("pending", "pending_bytes")]
    os.mkdir(c.b.path("step_1"))
    fd = os.open(c.b.path("step_1", "f"), os.O_WRONLY | os.O_CREAT)
    os.write(fd, content("f", 1, MIB))
    put(c.a.path("latest"), b"step_1")
    ck.until("the tracker waits", lambda: waits() == [1, 6])
    assert c.is_pending("latest")
    assert "1 file, 6 " in c.ctl("status", c.a.mnt)
    # For what, and whose that is: it is looked for when that lasts.
    ck.until("its node is known", lambda: waits_of(c.a) == [
        ("latest", "step_1/f", "b", "alive")])
    said = c.ctl("status", c.a.mnt)
    assert "latest, for " in said and "step_1/f of node b\n" in said, said
    os.close(fd)
    c.settle()
    ck.until("nothing waits", lambda: waits() == [0, 0])
    assert waits_of(c.a) == []


def waits_of(node):
    said = node.status()["shared_directory"]["waits"]
    assert all(w["for_s"] >= 0 for w in said), said
    return [(w["path"], w["file"], w["node"], w["node_is"]) for w in said]


if __name__ == "__main__":
    nodes.main()
