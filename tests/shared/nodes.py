"""nodes - many nodes on one machine, over a cluster file system that is real.

A Cluster is an engine (engine/NAME.sh) on loopback and a folder in it that is
one test's own: DIR. A Node has what a node has: its own client of the engine,
with its own caches, its own STORE, its own daemon and mount. `outside` is one
more client, of somebody who looks at DIR without ckptfs.

A test is a function whose name is the promise; `@shared()` registers it and
gives it a Cluster whose nodes are mounted. main() runs each on every engine
that the machine has, with one start of the engine for all tests of the file;
what an engine lacks is skipped with the reason. `--bare` leaves ckptfs out and
runs, in DIR itself, the tests that any file system passes: it shows what the
engine alone does, and that the test is right.

The guard of ckptest.py watches: it ends a test that hangs, and the engine with
it, whatever is frozen. A test that leaves something frozen is thawed first.
"""
import hashlib
import mmap
import os
import random
import select
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../mount"))
# pylint: disable=wrong-import-position
import ckptest as ck  # noqa: E402
from ckptest import KIB, MIB  # noqa: E402

ENGINES = ("cephfs", "moosefs", "dir")
CLUSTERS = ("cephfs", "moosefs")  # these have clients and servers
# Who waits for a file gives up no sooner than the test does: by then it hangs.
STAGE = f"stage_size=256M,pending_wait={ck.WAIT_BOUND}"
PENDING = 0o1000  # in DIR, of a regular file: its bytes are not there yet
# What a trainer calls must not wait for a cluster that hangs. Nothing is
# measured by it: what waits for the cluster waits until it is thawed, and what
# waits for a file waits for HELD.
FREE_S = ck.WAIT_BOUND
HELD = "pending_wait=86400"


class Engine:
    """A cluster file system; what engine/NAME.sh says it can do."""

    def __init__(self, name, base, size_mib=4096):
        self.name = name
        self.dir = os.path.join(base, "engine")
        self.script = os.path.join(HERE, "engine", name + ".sh")
        self.size_mib = size_mib
        self.frozen, self.killed = set(), set()
        self.is_full = False

    def call(self, *argv, code=0, bound=180):
        done = subprocess.run(
            [self.script, *argv], stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=bound,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "ENGINE_DIR": self.dir,
                 "SIZE": str(self.size_mib)})
        assert code is None or done.returncode == code, \
            f"{self.name}.sh {' '.join(argv)}: exit {done.returncode}\n" \
            f"{done.stdout[-3000:]}"
        return done

    def check(self):
        """What it lacks on this machine, or ''."""
        done = self.call("check", code=None)
        return done.stdout.strip() if done.returncode else ""

    def start(self):
        ck.tell_guard("engine", self.script, self.dir)
        self.call("start")

    def freeze(self, what):
        self.frozen.add(what)
        self.call("stop", what)

    def thaw(self, what):
        self.call("cont", what)
        self.frozen.discard(what)

    def kill(self, what):
        self.killed.add(what)
        self.call("kill", what)

    def up(self, what):
        self.call("up", what)
        self.killed.discard(what)

    def full(self, yes):
        self.is_full = yes
        self.call("full", "on" if yes else "off")

    def heal(self):
        for what in sorted(self.frozen):
            self.thaw(what)
        for what in sorted(self.killed):
            self.up(what)
        if self.is_full:
            self.full(False)

    def clean(self):
        self.call("clean", code=None)


class Node(ck.Mount):
    """A node of a cluster; a.mnt is its tree, a.shared is DIR as it sees it."""

    def __init__(self, cluster, name, options=""):
        self.cluster, self.name = cluster, name
        super().__init__(os.path.join(cluster.base, name))
        self.client = os.path.join(cluster.base, "client-" + name)
        self.has_client = False
        self.join()
        self.options = ",".join(filter(None, (
            f"shared={self.shared},node={name},{STAGE}", options)))
        if cluster.bare:
            self.mnt = self.dir = self.shared

    @property
    def shared(self):
        return os.path.join(self.client, self.cluster.folder)

    def join(self):
        """Its client of the engine."""
        self.cluster.engine.call("mount", self.client)
        self.has_client = True

    def leave(self):
        self.cluster.engine.call("umount", self.client)
        self.has_client = False

    def lose_power(self):
        """The daemon, the engine's client and what memory held, at once."""
        self.cluster.engine.call("lose", self.client)
        self.has_client = False
        self.power_cut()

    def start(self, *options):
        return self if self.cluster.bare else super().start(*options)

    def unmount(self):
        if not self.cluster.bare:
            super().unmount()

    def flush(self, path=None):
        if not self.cluster.bare:
            super().flush(path)

    def end(self):
        """After a test that passed: a clean end, and nothing wrong in it."""
        if not self.cluster.bare:
            if self.proc is not None:
                self.unmount()
            if os.path.exists(os.path.join(self.store, "format")):
                self.fsck("--scrub")
            self.check_log()
        # What a client of CephFS held that was lost delays the next test, a
        # client of MooseFS takes two seconds to leave.
        if self.has_client and self.cluster.engine.name == "cephfs":
            self.leave()

    def stop(self):
        """Its client first: a daemon that waits for it cannot be killed."""
        if self.proc is not None and self.proc.poll() is None:
            os.killpg(self.proc.pid, signal.SIGKILL)
        if self.has_client:
            self.cluster.engine.call("lose", self.client, code=None)
            self.has_client = False
        super().stop()


class Cluster:
    """DIR, of one test, and its nodes; c.a and c.b by their names."""

    def __init__(self, engine, base, folder, bare=False):
        self.engine, self.base, self.bare = engine, base, bare
        self.folder = folder
        self.nodes = {}
        self.outside = os.path.join(engine.dir, "../outside")
        self.ctl("init", "--shared", self.shared())

    def ctl(self, *argv, code=0):
        return "" if self.bare else ck.sh(ck.CKPTCTL, *argv, code=code)

    def shared(self, *names):
        """A path in DIR, as the client without ckptfs sees it."""
        return os.path.join(self.outside, self.folder, *names)

    def add(self, name, options=""):
        self.nodes[name] = Node(self, name, options)
        return self.nodes[name]

    def __getattr__(self, name):
        try:
            return self.__dict__["nodes"][name]
        except KeyError:
            raise AttributeError(name) from None

    # looking at DIR

    def mode(self, *names):
        return os.lstat(self.shared(*names)).st_mode

    def is_pending(self, *names):
        mode = self.mode(*names)
        return stat.S_ISREG(mode) and bool(mode & PENDING)

    def pending(self, folder=""):
        """Paths below DIR whose bytes are not there yet."""
        found = []
        for at, folders, names in os.walk(self.shared(folder)):
            if ".ckptfs" in folders:
                folders.remove(".ckptfs")
            for name in names:
                path = os.path.join(at, name)
                try:
                    mode = os.lstat(path).st_mode
                except FileNotFoundError:
                    continue
                if stat.S_ISREG(mode) and mode & PENDING:
                    found.append(path)
        return found

    def replacing(self):
        """What is about to replace a file."""
        tickets, found = self.shared(".ckptfs/next"), []
        for at, _, names in os.walk(tickets):
            found += [os.path.join(at, name) for name in names]
        return found

    def settle(self, what="every file is plain"):
        """Wait until DIR has all that the nodes have."""
        left = ["?"]

        def is_settled():
            left[:] = [] if self.bare else self.pending() + self.replacing()
            if left:
                time.sleep(0.05)
            return not left
        try:
            ck.until(what, is_settled)
        except AssertionError as e:
            raise AssertionError(f"{e}: {left[:5]}") from None

    def await_plain(self, *names):
        if not self.bare:
            ck.until(f"{names} is plain", lambda: not self.is_pending(*names))

    def end(self):
        for node in self.nodes.values():
            node.end()

    def stop(self):
        try:
            self.engine.heal()
        finally:
            for node in self.nodes.values():
                node.stop()

    def logs(self):
        return "".join(f"the log of node {n.name} ends:\n"
                       f"{n.log_text()[-2000:]}\n"
                       for n in self.nodes.values())

    log_text = logs  # for ckptest's report


# --- bytes that say themselves whether they are whole ---

BLOCK = 4 * KIB
FILLER = random.Random(0).randbytes(BLOCK)


def content(name, version, size):
    """Blocks that each say which version of what they are, at which place."""
    out = bytearray()
    for at in range(0, size, BLOCK):
        head = f"{name}\n{version}\n{size}\n{at}\n".encode()
        head += hashlib.sha256(head).hexdigest().encode() + b"\n"
        out += head + FILLER[len(head):]
    return bytes(out[:size])


def content_of(raw):
    """(name, version, size said, bytes that are right) of such a file, or an
    AssertionError when a byte is no file's or two versions are mixed."""
    assert raw, "no bytes"
    name, version, size = raw.split(b"\n", 3)[:3]
    name, version, size = name.decode(), int(version), int(size)
    want = content(name, version, size)
    ck.same(raw, want[:len(raw)], f"{name} version {version}")
    return name, version, size, len(raw)


def whole(raw):
    """(name, version) of a file all of whose bytes are there."""
    name, version, size, got = content_of(raw)
    assert got == size, f"{name} version {version}: {got} bytes of {size}"
    return name, version


def gone(path):
    """Not there, soon: a client of MooseFS keeps a name for a second after
    another node has removed it, and ckptfs shows what the client says."""
    try:
        ck.until(f"{path} is gone", lambda: not os.path.lexists(path))
    except AssertionError:
        raise AssertionError(f"still there: {os.lstat(path)}") from None


def lists(path, want):
    """These names, soon."""
    got = []

    def is_so():
        got[:] = sorted(os.listdir(path))
        return got == sorted(want)
    try:
        ck.until("listed", is_so)
    except AssertionError:
        raise AssertionError(f"{path} has {got[:20]}, not "
                             f"{sorted(want)[:20]}") from None


# --- doing two things at once ---

class Background:
    """fn(stop) in a thread, until stop.is_set(); done() has what it returned
    or raises what it did."""

    def __init__(self, fn):
        self.stop, self.value, self.error = threading.Event(), None, None

        def run():
            try:
                self.value = fn(self.stop)
            except BaseException as e:  # carried to the test
                self.error = e
        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def done(self):
        self.stop.set()
        self.thread.join(ck.WAIT_BOUND)
        assert not self.thread.is_alive(), "a thread does not end"
        if self.error is not None:
            raise self.error
        return self.value


class Running(ck.Child):
    """A process of fn() which may be late, or never end."""

    def ends_within(self, seconds):
        """Whether it is done; it goes on if not."""
        return bool(select.select([self.reader], [], [], seconds)[0])


def within(seconds, what, fn, **how):
    """fn() in a process of its own, which must end in time."""
    running = Running(fn, **how)
    if running.ends_within(seconds):
        return running.result()
    with open(f"/proc/{running.pid}/stack", encoding="ascii") as f:
        where = f.read()
    os.kill(running.pid, signal.SIGKILL)
    raise AssertionError(f"not within {seconds} s: {what}:\n{where}")


def start_line(count):
    """All children of a race begin together."""
    board = mmap.mmap(-1, 4096)

    def ready(who):
        board[who] = 1
        while not all(board[i] for i in range(count)):
            time.sleep(0)
    return ready


def race(*fns):
    """All at once, each in a process; what each returned."""
    children = [ck.Child(fn) for fn in fns]
    return [c.result() for c in children]


def watch_plain(c, folder=""):
    """Looks at every file in DIR again and again: what is plain is right, in
    every look. Returns how many times it looked at (pending, plain); files
    that are a part of what was to be written, or nothing of it, by (name,
    version): {} unless a writer was cut off."""
    def look(stop):
        seen, parts = [0, 0], {}
        while not stop.is_set():
            for at, folders, names in os.walk(c.shared(folder)):
                if ".ckptfs" in folders:
                    folders.remove(".ckptfs")
                for path in (os.path.join(at, name) for name in names):
                    try:
                        raw = plain_bytes(path)
                    except FileNotFoundError:
                        continue
                    seen[raw is not None] += 1
                    if raw is None:
                        continue
                    if not raw:
                        parts[os.path.basename(path), 0] = path
                        continue
                    try:
                        name, version, size, got = content_of(raw)
                    except AssertionError as e:
                        raise AssertionError(
                            f"plain with a wrong byte: {path}: {e}") from None
                    if got != size:
                        parts[name, version] = path
        return seen, parts
    return Background(look)


def plain_bytes(path):
    """What a file in DIR has, None while it is pending."""
    if os.lstat(path).st_mode & PENDING:
        return None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except PermissionError:  # no root here, or pending again
        return None
    try:
        if os.fstat(fd).st_mode & PENDING:
            return None
        with open(fd, "rb", buffering=0, closefd=False) as f:
            return f.readall()
    finally:
        os.close(fd)


# --- tests, and what runs them ---

TESTS = []


def shared(names="ab", options="", *, engines=ENGINES, bare=False, start=True):
    """A promise of these nodes; bare: of any file system, too."""
    def register(fn):
        TESTS.append((fn, names, options, engines, bare, start))
        return fn
    return register


class Runner(ck.Runner):
    def chosen_of(self, engine):
        return [t for t in TESTS if engine in t[3] and
                (t[4] or not self.args.bare) and
                (not self.args.k or self.args.k in t[0].__name__)]

    def one(self, engine, test):
        fn, names, options, _, _, start = test
        holder = []
        base = self.base(f"{engine.name}-{fn.__name__}"[:60])

        def run():
            folder = fn.__name__[:100]
            root = os.path.join(self.scratch, engine.name, "outside", folder)
            os.mkdir(root)
            os.chmod(root, 0o777)
            c = Cluster(engine, base, folder, self.args.bare)
            holder.append(c)
            try:
                for name in names:
                    node = c.add(name, options)
                    if start:
                        node.start()
                fn(c)
                c.end()
            finally:
                c.stop()
        begun = time.monotonic()
        self.report(engine.name, fn.__name__, run,
                    ck._Lazy(lambda: holder[0] if holder else None))
        if self.args.times:
            print(f"       {time.monotonic() - begun:.1f} s", flush=True)
        if not self.args.keep:
            shutil.rmtree(base, ignore_errors=True)

    def all(self):
        for name in self.args.engine or ENGINES:
            tests = self.chosen_of(name)
            base = self.base(name)
            engine = Engine(name, base, self.args.size)
            lacks = tests and engine.check()
            if lacks:
                for fn, *_ in tests:
                    self.skipped += 1
                    print(f"skip - {name} {fn.__name__}: SKIP: {lacks}",
                          flush=True)
                continue
            if not tests:
                continue
            try:
                engine.start()
                engine.call("mount", os.path.join(base, "outside"))
                for test in tests:
                    self.one(engine, test)
            finally:
                engine.clean()
        print(f"{self.passed} passed, {self.failed} failed, "
              f"{self.skipped} skipped", flush=True)
        return 1 if self.failed else 0 if self.passed else 77


class Guard(ck.Guard):
    """Ends engines, too: all who wait for a frozen one wait no longer."""

    def __init__(self, *args):
        super().__init__(*args)
        self.engines = []

    def hear(self, kind, *words):
        if kind == "engine":
            self.engines.append(words)
        super().hear(kind, *words)

    def end_daemons(self):
        """The engine first: daemons and tests may wait for it."""
        for script, folder in self.engines:
            if os.path.isdir(folder):
                subprocess.run([script, "clean"], check=False, timeout=120,
                               stdin=subprocess.DEVNULL,
                               env={**os.environ, "ENGINE_DIR": folder})
        super().end_daemons()


def main():
    parser = ck.options()
    parser.add_argument("--engine", action="append", choices=ENGINES)
    parser.add_argument("--bare", action="store_true",
                        help="in DIR itself, without ckptfs")
    parser.add_argument("--size", type=int, default=4096, metavar="MIB",
                        help="of what holds the engine's bytes")
    parser.add_argument("--times", action="store_true",
                        help="say how long each test took")
    parser.set_defaults(plain=None)
    args = parser.parse_args()
    ck.need_mounts(args)
    sys.exit(ck.guarded(args, Runner, Guard))
