"""What each file costs the cluster file system: the calls to DIR, counted.

strace says which they are. A test fails when there is one more of a kind: what
1,000 nodes do at once is this, times their files (README, "On many nodes").
"""
import collections
import os
import re
import shutil
import signal
import subprocess

import nodes
from nodes import MIB, ck, content, shared, whole
from ckptest import get, put

FILES = 20
# What is known without a call to the servers is not counted: closing, and
# opening what is only held (O_PATH).
CALLS = ("openat,fstat,newfstatat,statx,read,pread64,preadv,write,pwrite64,"
         "pwritev,fsync,fdatasync,ftruncate,truncate,utimensat,chmod,fchmod,"
         "fchmodat,fchown,fchownat,renameat,renameat2,unlinkat,linkat,mkdirat,"
         "getdents64,sync_file_range,copy_file_range,sendfile")
LINE = re.compile(r"^\d+ +[\d.]+ (\w+)\((.*)$")
LOOK = '/.ckptfs/nodes/a>, "wanted"'


class Trace:
    """The calls of a daemon, from here to stop()."""

    def __init__(self, node):
        if not shutil.which("strace"):
            raise ck.Skip("strace is not installed")
        self.out = os.path.join(node.base, "trace")
        self.proc = subprocess.Popen(
            ["strace", "-f", "-ttt", "-y", "-s0", "-qq", "-e", "trace=" + CALLS,
             "-e", "signal=none", "-o", self.out, "-p", str(node.proc.pid)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True)
        # The daemon looks at its directory twice a second.
        ck.until("strace has the daemon", self.has_begun)

    def has_begun(self):
        if self.proc.poll() is not None:
            why = self.proc.stderr.read()
            if "not permitted" in why:
                raise ck.Skip(f"strace may not: {why.strip()}")
            raise AssertionError(why)
        return os.path.exists(self.out) and os.path.getsize(self.out) > 0

    def text(self):
        with open(self.out, encoding="utf-8", errors="replace") as f:
            return f.read()

    def times(self, pattern):
        return [float(line.split()[1]) for line in self.text().splitlines()
                if re.search(pattern, line)]

    def stop(self):
        """Calls by the name of the file that they were about."""
        self.proc.send_signal(signal.SIGINT)
        self.proc.wait(ck.WAIT_BOUND)
        begun, found = {}, collections.defaultdict(collections.Counter)
        for line in self.text().splitlines():
            pid = line.split()[0]
            if line.endswith("<unfinished ...>"):
                begun[pid] = line[:-len("<unfinished ...>")]
                continue
            if "resumed>" in line:
                line = begun.pop(pid, "") + line.split("resumed>", 1)[1]
            match = LINE.match(line)
            if match and "O_PATH" not in line:
                call, rest = match.groups()
                found[rest][call] += 1
        return found


def calls_of(trace, wanted):
    """Of all that are about a file of DIR whose name is wanted."""
    total = collections.Counter()
    for rest, calls in trace.items():
        if wanted(rest):
            total.update(calls)
    return total


def check(total, bounds, what):
    """What is counted, for each file, against what it may be."""
    print(f"# {what}: " + ", ".join(f"{name} {n / FILES:g}" for name, n in
                                    sorted(total.items())), flush=True)
    for name, n in total.items():
        assert n <= bounds.get(name, 0) * FILES, \
            f"{what}: {name} {n} times for {FILES} files, not " \
            f"{bounds.get(name, 0)} for each: {dict(total)}"
    # It was looked at all: nothing is made without these.
    for name in ("openat", "fsync", "ftruncate", "fchmod"):
        assert total[name] >= FILES, f"{what}: {name} is missing: {total}"


def save_all(c, version, prefix):
    for n in range(FILES):
        put(c.a.path(f"{prefix}{n}"), content(f"{prefix}{n}", version, MIB))
    c.a.ctl("flush", "--shared", c.a.mnt)


def shown_in(c, trace):
    """The files in the order in which they got their mode: bytes first. They
    are opened by their numbers."""
    trace.stop()
    begun, synced, shown = {}, set(), []
    names = {f"{os.lstat(c.shared(name)).st_ino:016x}": name
             for name in os.listdir(c.shared())}
    for line in trace.text().splitlines():
        pid, _, rest = line.split(None, 2)
        call = re.match(r"(fsync|fchmod)\(\d+<[^>]*/own/([0-9a-f]{16})>", rest)
        if call and call[1] == "fchmod":
            assert call[2] in synced, f"{call[2]} has its mode too early"
            shown.append(names[call[2]])
        elif call and rest.endswith("<unfinished ...>"):
            begun[pid] = call[2]
        elif call:
            synced.add(call[2])
        elif rest.startswith("<... fsync resumed>") and pid in begun:
            synced.add(begun.pop(pid))
    return shown


@shared("a", engines=("dir",))
def a_new_file_costs_these_calls_and_no_more(c):
    trace = Trace(c.a)
    save_all(c, 1, "counted-")
    found = trace.stop()
    at = os.path.join(c.a.client, "")
    total = calls_of(found, lambda rest: at in rest and
                     ("counted-" in rest or "/own" in rest or
                      ".ckptfs/next" in rest))
    check(total, {
        "openat": 3,  # is it to be replaced? made; opened to be uploaded
        "statx": 1,  # is it to be replaced?
        "newfstatat": 3,  # made; before the bytes; at the end
        "pwritev": 1,  # its bytes
        "fsync": 2,  # its bytes; its mode
        "ftruncate": 1, "fchmod": 1,
        "utimensat": 2,  # what mode it will have; its times
        "linkat": 1, "unlinkat": 1},  # in own/
        "a new file")
    assert whole(get(c.shared("counted-3"))) == ("counted-3", 1)


@shared("a", engines=("dir",))
def a_file_that_replaces_one_costs_these_calls_and_no_more(c):
    save_all(c, 1, "counted-")
    trace = Trace(c.a)
    save_all(c, 2, "counted-")
    found = trace.stop()
    at, tickets = os.path.join(c.a.client, ""), ".ckptfs/next"
    total = calls_of(found, lambda rest: at in rest and
                     ("counted-" in rest or tickets in rest or
                      "/own" in rest))
    check(total, {
        "openat": 8,  # made; opened; lists of its name's tickets, 3 each
        "statx": 6, "getdents64": 4,  # of those, too, when there are others
        "newfstatat": 9,
        "pwritev": 1, "fsync": 2,
        "ftruncate": 1, "utimensat": 1,
        "fchown": 1, "fchmod": 2,  # to be the owner's, and pending; its mode
        "renameat": 2,  # taken; to its name
        "mkdirat": 2,  # the folders of its ticket,
        "linkat": 1, "unlinkat": 3}, "a file that replaces one")  # and own/
    assert whole(get(c.shared("counted-3"))) == ("counted-3", 2)


@shared("a", engines=("dir",))
def files_do_not_make_the_node_look_at_dir_more_often(c):
    """Twice a second it says that it lives, and looks who waits."""
    trace, n = Trace(c.a), 0
    while trace.text().count(LOOK) < 3:
        save_all(c, 1, f"counted-{n}-")
        n += 1
    trace.stop()
    at = trace.times(re.escape(LOOK))
    for before, after in zip(at, at[1:]):
        assert after - before >= 0.5, f"looked after {after - before} s"


@shared("a", engines=("dir",))
def a_node_without_pending_files_asks_dir_for_its_attributes_only(c):
    """Thousands of nodes do, all the time."""
    save_all(c, 1, "counted-")
    alive = rf'newfstatat\(\d+<{re.escape(c.a.shared)}>, ""'
    trace = Trace(c.a)
    ck.until("it lives", lambda: len(trace.times(alive)) >= 5)
    trace.stop()
    at, looks = trace.times(alive), trace.times(re.escape(LOOK))
    assert len(looks) <= 1 + (at[-1] - at[0]) / 10, (at, looks)


@shared("a", engines=("dir",))
def files_are_shown_in_the_order_of_closes_each_after_its_bytes(c):
    """Also when many are on their way: the mode shows a file, and its bytes
    have been synced then."""
    names = [f"counted-{n}" for n in range(10 * FILES)]
    trace = Trace(c.a)
    for n, name in enumerate(names):
        put(c.a.path(name), content(name, 1, 5000 * (n % 7 + 1)))
    c.a.ctl("flush", "--shared", c.a.mnt)
    assert shown_in(c, trace) == names


@shared("a", engines=("dir",))
def what_is_synced_is_shown_after_what_was_closed_before(c):
    """The fsync overtakes on the node, where it is waited for, and not there."""
    trace = Trace(c.a)
    put(c.a.path("counted-0"), content("counted-0", 1, 256 * MIB))
    with open(c.a.path("counted-1"), "wb") as f:
        f.write(content("counted-1", 1, 5000))
        f.flush()
        os.fsync(f.fileno())
    c.a.ctl("flush", "--shared", c.a.mnt)
    assert shown_in(c, trace) == ["counted-0", "counted-1"]


@shared("ab", engines=("dir",))
def who_waits_for_a_step_asks_for_one_file_of_it(c):
    """And not for each, five times a second: a step has thousands."""
    os.mkdir(c.a.path("step_1"))
    fd = os.open(c.b.path("step_1/held"), os.O_WRONLY | os.O_CREAT, 0o644)
    for n in range(FILES):
        name = f"counted-{n}"
        put(c.a.path("step_1", name), content(name, 1, 5000))
    c.await_plain("step_1", f"counted-{FILES - 1}")
    put(c.a.path("step_1/.metadata"), content(".metadata", 1, 5000))
    trace = Trace(c.a)
    held = r'newfstatat\(\d+<[^>]*/step_1/held>|/step_1>, "held"'
    ck.until("it waits", lambda: len(trace.times(held)) >= 15)
    trace.stop()
    walks = len(trace.times(r'getdents64\(\d+<[^>]*/step_1>')) / 2
    assert walks <= 1 + len(trace.times(held)) / 10, walks
    assert c.is_pending("step_1/.metadata")
    os.write(fd, content("held", 1, MIB))
    os.close(fd)
    c.await_plain("step_1/.metadata")
    assert whole(get(c.shared("step_1/held"))) == ("held", 1)


@shared("ab", options="names_timeout=3600", engines=("dir",))
def with_names_timeout_names_that_were_seen_cost_no_calls(c):
    """And what this node changes itself is seen at once all the same."""
    os.mkdir(c.a.path("many"))
    for n in range(FILES):
        put(c.a.path(f"many/counted-{n}"), content(f"counted-{n}", 1, 5000))
    c.settle()
    many = c.b.path("many")
    want = {e.name: e.stat().st_size for e in os.scandir(many)}
    assert want == {f"counted-{n}": 5000 for n in range(FILES)}
    trace = Trace(c.b)
    for _ in range(5):
        for name in want:
            assert os.lstat(os.path.join(many, name)).st_size == 5000
    total = calls_of(trace.stop(), lambda rest: "many" in rest)
    assert not total, f"of names that were seen: {dict(total)}"

    os.chmod(c.b.path("many/counted-0"), 0o600)
    assert os.lstat(c.b.path("many/counted-0")).st_mode & 0o777 == 0o600
    os.rename(c.b.path("many/counted-1"), c.b.path("many/moved"))
    assert not os.path.lexists(c.b.path("many/counted-1"))
    assert whole(get(c.b.path("many/moved"))) == ("counted-1", 1)
    os.unlink(c.b.path("many/counted-2"))
    assert not os.path.lexists(c.b.path("many/counted-2"))
    put(c.b.path("many/counted-3"), content("counted-3", 2, 9000))
    assert whole(get(c.b.path("many/counted-3"))) == ("counted-3", 2)
    assert os.lstat(c.b.path("many/counted-3")).st_size == 9000
    # What the other node put in the place of a file is opened, old or new.
    put(c.a.path("many/counted-4"), content("counted-4", 2, 9000))
    c.settle()
    assert whole(get(c.b.path("many/counted-4"))) in (("counted-4", 1),
                                                      ("counted-4", 2))


if __name__ == "__main__":
    nodes.main()
