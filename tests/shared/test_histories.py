"""What several nodes do with the same names is as if one call had come after
the other: at the end a name has what a call has left that no later call
follows, on each node and in DIR; also when nodes die in between, and return.

A call is later than another one when it began after that had returned. One that
has failed, or has not returned, may have come or not."""
import collections
import dataclasses
import errno
import os
import random
import threading
import time

import nodes
from nodes import ck, content, content_of, shared
from ckptest import get, put

SEED = int(os.environ.get("CKPTFS_TEST_SEED", "1"))
ROUNDS = int(os.environ.get("CKPTFS_TEST_ROUNDS", "4"))
SECONDS = 4  # for which a round goes on
NAMES = ("x", "y", "latest")
SIZES = (40, 3000, 70000, 2 << 20)
# What a name that others are at may say; and what a dead mount does.
EXPECTED = (errno.ENOENT, errno.EEXIST, errno.EBUSY)
# And where nodes die: an open that was told ESTALE by one daemon may come to
# the next one, which knows nothing of it.
DEAD = (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.EINTR,
        errno.ESTALE)


@dataclasses.dataclass
class Call:
    name: str
    leaves: object  # a version; None: nothing
    began: float
    what: str
    node: str
    ended: float = 0  # 0: it has failed, or never returned


class History:
    def __init__(self, expected):
        self.lock = threading.Lock()
        self.expected = expected
        self.calls = []
        self.errors = collections.Counter()
        self.versions = 0

    def version(self):
        with self.lock:
            self.versions += 1
            return self.versions

    def call(self, node, what, name, leaves, fn):
        c = Call(name, leaves, time.monotonic(), what, node)
        with self.lock:
            self.calls.append(c)
        try:
            fn()
        except OSError as e:
            assert e.errno in self.expected, f"{what} {name} on {node}: {e}"
            with self.lock:
                self.errors[f"{what}: {errno.errorcode[e.errno]}"] += 1
            return False
        c.ended = time.monotonic()
        return True

    def check(self, name, leaves, where):
        """What is there: a version, or None."""
        mine = [c for c in self.calls if c.name == name]
        ended = [c for c in mine if c.ended]

        def is_followed(c):
            return c.ended and any(later.began > c.ended for later in ended)
        left = [c for c in mine if c.leaves == leaves]
        if leaves is None and not ended:
            return
        assert any(not is_followed(c) for c in left), \
            f"seed {SEED}: '{name}' {where} is version {leaves}, of {left}; " \
            f"later ones: {[c for c in ended if not is_followed(c)]}"


def write(node, name, version, size, flags):
    fd = os.open(node.path(name), os.O_WRONLY | os.O_CREAT | flags, 0o644)
    try:
        os.write(fd, content(name, version, size))
    finally:
        os.close(fd)


def work(node, history, rand, until):
    while time.monotonic() < until:
        name, size = rand.choice(NAMES), rand.choice(SIZES)
        version = history.version()
        what = rand.choice(("write", "write", "rename", "rename", "make",
                            "remove", "read"))
        if what == "write":
            history.call(node.name, what, name, version, lambda: write(
                node, name, version, size, os.O_TRUNC))
        elif what == "make":
            history.call(node.name, what, name, version, lambda: write(
                node, name, version, size, os.O_EXCL))
        elif what == "rename":
            # Of a daemon that dies the name has what is durable, which would
            # be another name's, if it were used again.
            tmp = f"tmp.{node.name}.{version}"
            try:
                put(node.path(tmp), content(name, version, size))
            except OSError:
                continue
            history.call(node.name, what, name, version, lambda: os.rename(
                node.path(tmp), node.path(name)))
        elif what == "remove":
            history.call(node.name, what, name, None,
                         lambda: os.unlink(node.path(name)))
        else:
            try:
                got = get(node.path(name))
            except OSError:
                continue
            assert not got or content_of(got)[0] == name, (name, got[:20])


def version_at(path):
    try:
        got = get(path)
    except FileNotFoundError:
        return None
    return content_of(got)[1] if got else 0


def one_round(c, rand, deaths):
    history = History(EXPECTED + DEAD if deaths else EXPECTED)
    failed = []

    def worker(node, seed):
        try:
            work(node, history, random.Random(seed),
                 time.monotonic() + SECONDS)
        except BaseException as e:  # it is said by who joins it
            failed.append(e)
    threads = [threading.Thread(target=worker, args=(node, rand.random()))
               for node in c.nodes.values()]
    for thread in threads:
        thread.start()
    for _ in range(deaths):
        # After so many calls, if there are so many.
        count = len(history.calls) + rand.randint(5, 200)
        ck.until("a node dies", lambda n=count: len(history.calls) >= n or
                 not any(t.is_alive() for t in threads))
        node = rand.choice(list(c.nodes.values()))
        node.kill()
        node.start()
    for thread in threads:
        thread.join(ck.WAIT_BOUND)
        assert not thread.is_alive(), f"seed {SEED}: a call does not return"
    if failed:
        raise failed[0]
    print(f"# {len(history.calls)} calls, {dict(history.errors)}", flush=True)
    c.settle(f"seed {SEED}")
    for name in NAMES:
        want = version_at(c.shared(name))
        if want != 0:  # emptied, and its node died
            history.check(name, want, "in DIR")
        for node in c.nodes.values():
            ck.until(f"{name} on {node.name} is what DIR has",
                     lambda n=node, p=name: version_at(n.path(p)) ==
                     version_at(c.shared(p)))
    left = list(c.nodes.values())[0]
    for name in os.listdir(left.mnt):
        os.unlink(left.path(name))
    c.settle("the end of a round")


@shared(names="abc", options="pending_wait=20")
def names_of_three_nodes_are_in_order(c):
    print(f"# CKPTFS_TEST_SEED={SEED}", flush=True)
    for n in range(ROUNDS):
        one_round(c, random.Random(SEED * 1000 + n), 0)


@shared(names="abc", options="pending_wait=20")
def so_they_are_when_daemons_are_killed(c):
    print(f"# CKPTFS_TEST_SEED={SEED}", flush=True)
    for n in range(ROUNDS):
        one_round(c, random.Random(SEED * 1000 + n), 2)


if __name__ == "__main__":
    nodes.main()
