"""Nodes that die: by kill -9 of the daemon at random moments, with the power,
for ever; and servers of the cluster file system. What was closed gets plain
with the right bytes, and nothing else is ever plain.

CKPTFS_DEATHS_ROUNDS (6) and CKPTFS_TEST_SEED choose the rounds.
"""
import errno
import os
import random
import time

import nodes
from nodes import CLUSTERS, KIB, MIB, ck, content, shared, whole
from ckptest import fails, get, put

ROUNDS = int(os.environ.get("CKPTFS_DEATHS_ROUNDS", "6"))
SEED = ck.SEED
READY = b"ready\n"


def saver(folder, seed, first, pipe):
    """Saves until its mount is gone. Lines to the pipe: READY when it is in the
    folder, and before and after each save begin|closed|synced NAME VERSION."""
    rand = random.Random(seed)

    def tell(*words):
        os.write(pipe, (" ".join(map(str, words)) + "\n").encode())
    os.chdir(folder)  # the mount, also when it is taken away below
    os.write(pipe, READY)
    try:
        for version in range(first, first + 10000):
            # Some names are written anew, by O_TRUNC or by a rename.
            name = f"s{version % 5}" if rand.random() < 0.4 else f"n{version}"
            size = rand.choice((1 * KIB, 5000, 100 * KIB, MIB, 6 * MIB))
            raw = content(name, version, size)
            renames, syncs = rand.random() < 0.5, rand.random() < 0.4
            target = name + ".tmp" if renames else name
            tell("begin", name, version)
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            for at in range(0, size, 300 * KIB):
                ck.write_all(fd, raw[at:at + 300 * KIB])
            if syncs:
                os.fsync(fd)
            os.close(fd)
            if renames:
                os.rename(target, name)
            tell("synced" if syncs else "closed", name, version)
    except OSError as e:
        # The daemon is gone; a call that was under way has one of these.
        assert e.errno in (errno.ENOTCONN, errno.ECONNABORTED, errno.ENOENT,
                           errno.EIO), e


class Saver:
    """saver() in a process, and what it has told."""

    def __init__(self, folder, seed, first):
        self.told = {}  # name: (version, what) of the last one that ended
        self.begun = set()
        self.last = first
        reader, writer = os.pipe()
        self.child = ck.Child(lambda: saver(folder, seed, first, writer))
        os.close(writer)
        self.reader = reader
        os.read(reader, len(READY))  # it is there, and may lose its mount

    def ended(self):
        with open(self.reader, "rb") as f:
            lines = f.read().decode().splitlines()
        self.child.result()
        for line in lines:
            what, name, version = line.split()
            self.last = max(self.last, int(version))
            if what == "begin":
                self.begun.add((name, int(version)))
            else:
                self.told[name] = (int(version), what)
        return self


class History:
    """What savers have told, of all rounds."""

    def __init__(self, only):
        self.only = only  # of what was told, what is promised
        self.told = {}  # name: version
        self.open = {}  # name: versions that were begun, and did not end
        self.was_open = {}  # name: those of any round

    def add(self, saving):
        for name, version in saving.begun:
            self.open.setdefault(name, set()).add(version)
        for name, (version, what) in saving.told.items():
            if what in self.only:
                self.told[name] = version
        for name, version in saving.begun:
            # What came after what is promised may be there, or not.
            if self.told.get(name) == version:
                self.open[name] -= {v for v in self.open[name] if v <= version}
            elif self.only == ("synced",):
                self.told.pop(name, None)
        for name, versions in self.open.items():
            self.was_open.setdefault(name, set()).update(versions)

    def check(self, raw, name):
        """It is what was promised, or a later version as far as it got."""
        if not raw:
            assert self.open.get(name), f"{name} has no bytes"
            return
        got_name, got, size, length = nodes.content_of(raw)
        assert got_name == name, (got_name, name)
        if got in self.open.get(name, ()):
            return
        assert length == size, f"{name} version {got}: {length} of {size}"
        assert got == self.told.get(name), \
            f"{name} has version {got}, not {self.told.get(name)}"

    def check_in(self, folder):
        for name in self.told:
            self.check(get(os.path.join(folder, name)), name)


def rounds_of_deaths(c, die, only, rounds=ROUNDS):
    print(f"# CKPTFS_TEST_SEED={SEED}", flush=True)
    rand = random.Random(SEED)
    watcher = nodes.watch_plain(c)
    history, first = History(only), 1
    for n in range(rounds):
        saving = Saver(c.a.mnt, SEED + n, first)
        time.sleep(rand.uniform(0.05, 1.5))  # the moment, not a wait
        die(c.a)
        history.add(saving.ended())
        first = saving.last + 1
        if not c.a.has_client:
            c.a.join()
        c.a.start()
        if rand.random() < 0.5:
            c.settle(f"round {n}, seed {SEED}")
            history.check_in(c.shared())
    c.settle(f"the end, seed {SEED}")
    history.check_in(c.shared())
    looks, parts = watcher.done()
    assert looks[1], "nobody saw a plain file"
    for name, version in parts:
        name = name.removesuffix(".tmp")
        assert version in history.was_open[name] or not version and \
            history.was_open[name], (name, version)
    # The nodes say what DIR has.
    names = [n for n in os.listdir(c.shared()) if n != ".ckptfs"]
    for node in (c.a, c.b):
        nodes.lists(node.mnt, names)
        for name in names:
            ck.same(get(node.path(name)), get(c.shared(name)), name)


@shared()
def what_was_closed_gets_plain_whenever_the_daemon_is_killed(c):
    rounds_of_deaths(c, lambda node: node.kill(), ("closed", "synced"))


@shared()
def what_was_synced_gets_plain_when_the_node_loses_power(c):
    # The engine's client goes a moment before the daemon.
    c.a.expected += [os.strerror(errno.ENOTCONN), os.strerror(
        errno.ECONNABORTED), os.strerror(errno.EIO)]
    rounds_of_deaths(c, lambda node: node.lose_power(), ("synced",), 3)


@shared()
def both_daemons_may_be_killed(c):
    rand = random.Random(SEED)
    watcher = nodes.watch_plain(c)
    told, first = {}, 1
    print(f"# CKPTFS_TEST_SEED={SEED}", flush=True)
    for name in "ab":
        os.mkdir(c.a.path(name))
    for n in range(3):
        savers = {name: Saver(c.nodes[name].path(name), SEED + n, first)
                  for name in "ab"}
        time.sleep(rand.uniform(0.1, 1.0))  # the moment, not a wait
        for name in rand.sample("ab", 2):
            c.nodes[name].kill()
        for name, saving in savers.items():
            saving.ended()
            for key, (version, _) in saving.told.items():
                told[f"{name}/{key}"] = version
            for key, version in saving.begun:  # it may have been cut off
                if told.get(f"{name}/{key}", 0) < version:
                    told.pop(f"{name}/{key}", None)
        first = max(s.last for s in savers.values()) + 1
        for node in c.nodes.values():
            node.start()
    c.settle(f"seed {SEED}")
    for path, version in told.items():
        for at in (c.shared(path), c.a.path(path), c.b.path(path)):
            assert whole(get(at)) == (path[2:], version), path
    watcher.done()


def held_for_ever(c):
    """Node a dies while f is being written: it never gets plain by itself."""
    put(c.a.path("plain"), content("plain", 1, MIB))
    c.settle()
    fd = os.open(c.a.path("f"), os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(fd, content("f", 1, MIB))
    c.a.kill()
    try:
        os.close(fd)
    except OSError:
        pass
    assert c.is_pending("f")


@shared(options="pending_wait=2")
def a_node_that_does_not_come_back_is_named(c):
    held_for_ever(c)
    fails(errno.EIO, get, c.b.path("f"))
    said = [line for line in c.b.log_text().splitlines() if "/f " in line]
    assert said and " a " in said[-1], c.b.log_text()
    os.lstat(c.b.path("f"))
    assert "f" in os.listdir(c.b.mnt)
    assert whole(get(c.b.path("plain"))) == ("plain", 1)
    put(c.b.path("own"), content("own", 1, MIB))
    c.await_plain("own")
    c.a.start()
    c.settle()
    ck.same(get(c.b.path("f")), content("f", 1, MIB))


@shared(options="pending_wait=2")
def a_node_can_be_forgotten(c):
    held_for_ever(c)
    said = c.ctl("nodes", c.shared())
    assert "a" in said.split() and "b" in said.split(), said
    said = c.ctl("forget-node", c.shared(), "a", "--yes")
    assert "f" in said, said
    fails(errno.EIO, get, c.b.path("f"))
    assert "f is lost with node a" in c.b.log_text(), c.b.log_text()
    assert whole(get(c.b.path("plain"))) == ("plain", 1)
    put(c.b.path("f"), content("f", 2, MIB))
    c.settle()
    assert whole(get(c.shared("f"))) == ("f", 2)


@shared()
def a_node_that_lives_is_not_forgotten(c):
    said = c.ctl("forget-node", c.shared(), "a", "--yes", code=2)
    assert " a " in said or "'a'" in said, said
    put(c.a.path("f"), content("f", 1, MIB))
    assert whole(get(c.b.path("f"))) == ("f", 1)


@shared()
def who_waits_gets_the_bytes_when_the_node_is_back(c):
    held_for_ever(c)
    reader = nodes.Background(lambda _: get(c.b.path("f")))
    reader.thread.join(1)
    assert reader.thread.is_alive(), "what is not there was opened"
    c.a.start()
    ck.same(reader.done(), content("f", 1, MIB))


def server_dies(c, what):
    """While both nodes save: they go on, and all of it gets plain."""
    watcher = nodes.watch_plain(c)

    def save(node):
        def work(stop):
            n = 0
            while not stop.is_set() or n < 20:
                put(node.path(f"{node.name}{n}"),
                    content(f"{node.name}{n}", n, MIB))
                n += 1
            return n
        return nodes.Background(work)
    savers = [save(c.a), save(c.b)]
    time.sleep(random.Random(SEED).uniform(0.3, 1.0))  # the moment
    c.engine.kill(what)
    c.engine.up(what)
    counts = [s.done() for s in savers]
    c.settle()
    watcher.done()
    for node, count, other in zip("ab", counts, (c.b, c.a)):
        for n in range(count):
            want = (f"{node}{n}", n)
            assert whole(get(c.shared(f"{node}{n}"))) == want
            assert whole(get(other.path(f"{node}{n}"))) == want


@shared(engines=CLUSTERS)
def nothing_is_lost_when_the_server_of_bytes_is_killed(c):
    server_dies(c, "data")


@shared(engines=CLUSTERS)
def nothing_is_lost_when_the_server_of_names_is_killed(c):
    server_dies(c, "meta")


if __name__ == "__main__":
    nodes.main()
