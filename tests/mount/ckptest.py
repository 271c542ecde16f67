"""ckptest - what every mount test needs: a private store, a daemon, a guard.

A test is a function whose name is the promise. `@posix` tests get a directory
that must behave like any local file system; they run on a mount with kernel
passthrough, on one without (`passthrough=off`), and with `--plain DIR` on an
ordinary directory, which proves the test itself right. `@mounted` tests get a
store of their own and may kill, remount and damage it.

main() forks. The parent is the guard: it knows the deadline of the running
test, dumps the stacks of a daemon that hangs, kills it (which wakes whoever
waits for it in the kernel), and cleans up all mounts and processes whatever
happens to the child. Both have a mount namespace of their own. Nothing sleeps
in place of an event; every wait has a bound. Exit: 0 all passed, 1 a test
failed, 77 nothing could be run here.
"""
import argparse
import ctypes
import errno
import faulthandler
import itertools
import json
import mmap
import os
import pickle
import random
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.environ.get("CKPTFS_BUILD", os.path.join(HERE, "../../build"))
CKPTFS = os.path.join(BUILD, "fuse/ckptfs")
CKPTCTL = os.path.join(BUILD, "fuse/ckptctl")
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PAGE = 4096
# tests/debug.sh: a pipe that is told each daemon, which then waits for gdb.
DEBUGGED = os.environ.get("CKPTFS_TEST_DEBUGGED")
# These end what hangs; nothing is measured by them, so that a slow machine is
# no failure. Seconds for any one event: mounted, unmounted, durable.
WAIT_BOUND = 86400 if DEBUGGED else 240
TEST_BOUND = 600  # for one test
# The guard says what hung before ctest's own TIMEOUT would only kill it.
TOTAL_BOUND = int(os.environ.get("CKPTFS_TEST_TIMEOUT", "3600"))
# Of all that is random: each run is the same, unless somebody gives another.
SEED = int(os.environ.get("CKPTFS_TEST_SEED", "1"))
USER = 1000  # some uid and gid that is not root; needs no passwd entry

libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64,
                           ctypes.c_int64]
MNT_DETACH = 2
CLONE_NEWNS = 0x20000
PR_CAPBSET_DROP, CAP_SYS_RESOURCE = 24, 24
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
AT_FDCWD = -100


class Skip(Exception):
    """Raised with the missing feature: the test says nothing here."""


# --- system calls that os lacks ---

def _call(fn, *args):
    if fn(*args) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def renameat2(old, new, flags):
    _call(libc.renameat2, AT_FDCWD, os.fsencode(old), AT_FDCWD,
          os.fsencode(new), flags)


def fallocate(fd, mode, offset, length):
    _call(libc.fallocate, fd, mode, offset, length)


def umount(path, flags=0):
    _call(libc.umount2, os.fsencode(path), flags)


def own_mounts():
    """What is mounted from now on is seen by this process and its children
    alone. Else whoever copies all mounts for itself meanwhile, another test or
    a container that starts, keeps ours alive after they are unmounted here,
    and their daemons with them. It is shared with the copies that a test makes
    of it: what is unmounted here is unmounted there."""
    _call(libc.unshare, CLONE_NEWNS)
    sh("mount", "--make-rslave", "/")
    sh("mount", "--make-rshared", "/")


def copy_mounts():
    """A copy of these mounts for this process and its children: what is
    mounted there is not seen here, what is unmounted here is gone there.
    False: there may be none."""
    if libc.unshare(CLONE_NEWNS) != 0:
        return False
    sh("mount", "--make-rslave", "/")
    return True


# --- small helpers ---

def data(size, seed=0):
    """Bytes that are the same for the same seed and compress to nothing."""
    return random.Random(f"{seed}").randbytes(size)


def put(path, content, flags=os.O_TRUNC, mode=0o644, sync=False):
    """Create or rewrite a file with as few calls as the kernel allows."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags, mode)
    try:
        write_all(fd, content)
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd, content):
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view):]


def get(path):
    with open(path, "rb", buffering=0) as f:
        return f.readall()


def same(got, want, what=""):
    """Equal bytes, or a short sentence instead of megabytes."""
    if got == want:
        return
    short = min(len(got), len(want))
    at = short
    for lo in range(0, short, PAGE):
        if got[lo:lo + PAGE] != want[lo:lo + PAGE]:
            at = next(i for i in range(lo, short) if got[i] != want[i])
            break
    raise AssertionError(
        f"{what}: {len(got)} bytes instead of {len(want)}, first difference "
        f"at {at}: {got[at:at + 8].hex()} not {want[at:at + 8].hex()}")


def fails(code, fn, *args, **kwargs):
    """The call fails with exactly this errno."""
    try:
        got = fn(*args, **kwargs)
    except OSError as e:
        assert e.errno == code, f"{fn.__name__}{args}: {e!r}, not " \
            f"{errno.errorcode[code]}"
        return
    if fn is os.open:
        os.close(got)
    raise AssertionError(f"{fn.__name__}{args} did not fail with "
                         f"{errno.errorcode[code]}")


def until(what, condition):
    """Poll a state that has no event of its own."""
    deadline = time.monotonic() + WAIT_BOUND
    while not condition():
        assert time.monotonic() < deadline, \
            f"not within {WAIT_BOUND} s: {what}"
        time.sleep(0.005)


def du(path):
    """Bytes on disk of everything under path."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except FileNotFoundError:
                pass  # removed meanwhile
    return total


def tool(name):
    """The path of a program, or the test is skipped."""
    return shutil.which(name) or skip(f"{name} is not installed")


def skip(why):
    raise Skip(why)


def in_pid_namespace(m, own_proc):
    """From its next start on m's daemon is in a pid namespace of its own, with
    our /proc, or with its own one. Skipped where there can be none."""
    ns = [tool("unshare"), "-pfm", "--kill-child", "--propagation",
          "unchanged"]
    if subprocess.run(ns + ["true"], check=False,
                      capture_output=True).returncode:
        skip("no new pid namespace can be made")
    if "argv" not in vars(m):
        # What it mounts in its own mount namespace is to be seen here.
        sh("mount", "--bind", m.base, m.base)
        sh("mount", "--make-shared", m.base)
    first = "mount --make-private /proc && mount -t proc proc /proc && "
    m.argv = lambda *options: ns + [
        "sh", "-c", (first if own_proc else "") + 'exec "$@"', "sh",
        *type(m).argv(m, *options)]


def sh(*argv, cwd=None, code=0):
    """Run a program; its exit code must be the one given. Its output."""
    done = subprocess.run(argv, cwd=cwd, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True,
                          timeout=WAIT_BOUND * 2, errors="replace")
    assert done.returncode == code, \
        f"{' '.join(map(str, argv))}: exit {done.returncode}\n{done.stdout}"
    return done.stdout


class Child:
    """fn() in a process of its own; result() returns or raises what it did."""

    def __init__(self, fn, uid=None, groups=()):
        self.reader, writer = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid:
            os.close(writer)
            return
        try:
            if uid is not None:
                os.setgroups(groups)
                os.setgid(uid)
                os.setuid(uid)
            reply = (True, fn())
        except BaseException as e:  # carried to the parent, whatever it is
            reply = (False, e if isinstance(e, (OSError, Skip)) else
                     AssertionError(traceback.format_exc()))
        try:
            with open(writer, "wb") as f:
                pickle.dump(reply, f)
        finally:
            os._exit(0)

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.reader)

    def result(self):
        with open(self.reader, "rb") as f:
            raw = f.read()
        _, status = os.waitpid(self.pid, 0)
        assert raw, f"child died: {os.waitstatus_to_exitcode(status)}"
        good, value = pickle.loads(raw)
        if not good:
            raise value
        return value


def as_user(fn, uid=USER, groups=()):
    return Child(fn, uid, groups).result()


class BareMap:
    """A shared, writable map that keeps no handle; Python's own keeps one."""
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int,
                          ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

    def __init__(self, fd, size):
        self.size = size
        self.at = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE,
                                 mmap.MAP_SHARED, fd, 0)
        if self.at == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "mmap")

    def write(self, offset, what):
        ctypes.memmove(self.at + offset, what, len(what))

    def read(self, offset, count):
        return ctypes.string_at(self.at + offset, count)

    def close(self):
        assert libc.munmap(self.at, self.size) == 0


# --- places a test can run in ---

class Plain:
    """An ordinary directory; nothing is ever more durable than it is."""
    plain, mode = True, "plain"

    def __init__(self, root):
        self.dir = self.mnt = root

    def path(self, *names):
        return os.path.join(self.dir, *names)

    def flush(self, path=None):
        pass

    def remount(self):
        pass

    def stages(self, *paths):
        yield "plain"


def mounts_under(prefix):
    """Mount points below prefix, the innermost first."""
    with open("/proc/self/mountinfo", encoding="utf-8") as f:
        found = [re.sub(r"\\(\d{3})", lambda o: chr(int(o[1], 8)),
                        line.split()[4]) for line in f]
    return [m for m in reversed(found)
            if m == prefix or m.startswith(prefix + "/")]


def mount_type(path):
    """The file system type that the kernel shows for path."""
    path, found = os.path.realpath(path), ("", "")
    with open("/proc/self/mounts", encoding="utf-8") as f:
        for line in f:
            _, at, kind = line.split()[:3]
            if len(at) >= len(found[0]) and \
                    (path + "/").startswith(at.rstrip("/") + "/"):
                found = (at, kind)
    return found[1]


class Mount:
    """A store and, between start() and unmount() or kill(), its daemon."""
    plain = False

    def __init__(self, base, mode="auto", options="", store=None):
        self.mode = mode
        self.options = options
        self.base = base
        self.store = store or os.path.join(base, "store")
        self.mnt = self.dir = os.path.join(base, "mnt")
        self.log = os.path.join(base, "log")
        self.expected = []  # patterns of ERROR lines that belong to the test
        self.proc = None
        self.uid = None
        self.files = None  # how many descriptors the daemon may have
        self.environ = {}  # what the daemon has in its besides
        os.makedirs(self.store, exist_ok=True)
        os.makedirs(self.mnt, exist_ok=True)
        open(self.log, "ab").close()

    # starting and stopping

    def argv(self, *options):
        chosen = {}
        given = "allow_other,stage_size=1G," if self.uid is None else ""
        given += ",".join((self.options, *options))
        if self.mode == "off":
            given += ",passthrough=off"
        for option in filter(None, given.split(",")):
            chosen[option.split("=")[0]] = option
        return [CKPTFS, "-f"] + (["-o", ",".join(chosen.values())]
                                 if chosen else []) + [self.store, self.mnt]

    def spawn(self, *options):
        def become_user():
            if self.files is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE,
                                   (self.files, self.files))
                _call(libc.prctl, PR_CAPBSET_DROP, CAP_SYS_RESOURCE, 0, 0, 0)
            if self.uid is not None:
                os.setgroups([])
                os.setgid(self.uid)
                os.setuid(self.uid)
            if DEBUGGED:
                with open(DEBUGGED, "w", encoding="ascii") as pipe:
                    print(os.getpid(), file=pipe)
                os.kill(os.getpid(), signal.SIGSTOP)
        with open(self.log, "ab") as log:
            self.proc = subprocess.Popen(
                self.argv(*options), stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True, preexec_fn=become_user,
                env={**os.environ, **self.environ})
        tell_guard("daemon", self.proc.pid, self.mnt)
        return self.proc

    def start(self, *options):
        """Start the daemon and wait until its mount is there."""
        with open("/proc/self/mounts", "rb") as table:
            mounted = mounts_under(self.mnt)
            assert not mounted, f"still mounted: {mounted}"
            exited = os.pidfd_open(self.spawn(*options).pid)
            try:
                poll = select.poll()
                poll.register(table, select.POLLPRI | select.POLLERR)
                poll.register(exited, select.POLLIN)
                deadline = time.monotonic() + WAIT_BOUND
                while self.mnt not in mounts_under(self.mnt):
                    assert self.proc.poll() is None, \
                        f"ckptfs exited {self.proc.returncode}:\n" \
                        f"{self.log_text()[-3000:]}"
                    left = deadline - time.monotonic()
                    assert left > 0, "no mount appeared"
                    poll.poll(left * 1000)
            finally:
                os.close(exited)
        return self

    def refuse(self, *options, code):
        """The daemon must not come up: it exits so, and says why."""
        old = len(self.log_text())
        got = self.spawn(*options).wait(WAIT_BOUND)
        said = self.log_text()[old:]
        self.expected.append(".*")
        self.proc = None
        assert got == code, f"exit {got} instead of {code}: {said}"
        assert self.mnt not in mounts_under(self.mnt), "left a mount"
        assert said.strip(), "it said nothing"
        return said

    def unmount(self):
        """A clean end: everything durable, exit 0, nothing left mounted."""
        def is_unmounted():
            # The kernel may keep a mapping's file for a moment after its
            # process has ended: it is busy with nobody there.
            done = subprocess.run(["umount", self.mnt], check=False, text=True,
                                  env=dict(os.environ, LC_ALL="C"),
                                  capture_output=True, timeout=2 * WAIT_BOUND)
            assert done.returncode == 0 or "busy" in done.stderr, done
            return done.returncode == 0
        until("unmounted, it is busy", is_unmounted)
        code = self.proc.wait(WAIT_BOUND)
        self.proc = None
        assert code == 0, f"ckptfs exited {code}:\n{self.log_text()[-3000:]}"
        left = [m for m in mounts_under(self.store) if m != self.store]
        assert not left, f"left mounted: {left}"

    def remount(self, *options):
        self.unmount()
        return self.start(*options)

    def kill(self):
        """kill -9 of the daemon; the mount is dead until the next start()."""
        os.killpg(self.proc.pid, signal.SIGKILL)
        self.proc.wait(WAIT_BOUND)
        self.proc = None
        for path in mounts_under(self.mnt):
            umount(path, MNT_DETACH)

    def power_cut(self):
        """Kill the daemon and lose what only memory held: the stage."""
        self.kill()
        for path in mounts_under(self.store):
            umount(path, MNT_DETACH)

    def stop(self):
        """Whatever state the test left, end it."""
        if self.proc is not None and self.proc.poll() is None:
            self.kill()
        for path in mounts_under(self.base):
            umount(path, MNT_DETACH)

    # asking

    def path(self, *names):
        return os.path.join(self.dir, *names)

    def ctl(self, *argv, code=0):
        if argv[:1] == ("status",):  # a slow machine is no failure
            argv = ("status", "--timeout", str(WAIT_BOUND), *argv[1:])
        return sh(CKPTCTL, *argv, code=code)

    def flush(self, path=None):
        self.ctl("flush", path or self.mnt)

    def settle(self):
        """Durable, and closed as the daemon sees it: the kernel tells it of a
        close behind the call, and until then a file counts as staged, too."""
        def is_closed():
            self.flush()
            return self.status()["staged_files"] == 0
        until("all is closed", is_closed)

    def status(self):
        # Exit code 1 says that a file has failed; the fields say which.
        done = subprocess.run([CKPTCTL, "status", "--timeout",
                               str(WAIT_BOUND), "--json", self.mnt],
                              stdout=subprocess.PIPE, timeout=2 * WAIT_BOUND)
        assert done.returncode in (0, 1), done
        return json.loads(done.stdout)

    def fsck(self, *options, code=0):
        return self.ctl("fsck", *options, self.store, code=code)

    def shrinks_by_gc(self, size, what):
        """The daemon may not have heard of a deletion yet when gc is called:
        the kernel tells it behind the call."""
        def has_shrunk():
            self.ctl("gc", self.mnt)
            return self.images_du() <= size
        until(f"{what}: images shrink to {size}, now {self.images_du()}",
              has_shrunk)

    def images_du(self):
        return du(os.path.join(self.store, "images"))

    def state(self, path):
        return xattr(path, "state")

    def stages(self, *paths):
        """The states of a file's life; in each one it must look the same."""
        yield "staged"
        self.flush()
        for path in paths:
            assert self.state(path) == "durable", self.state(path)
        yield "durable"
        self.remount()
        yield "remounted"

    def log_text(self):
        with open(self.log, encoding="utf-8", errors="replace") as f:
            return f.read()

    def check_log(self):
        bad = [line for line in self.log_text().splitlines()
               if re.search(r"\bERROR\b|runtime error:|Sanitizer", line) and
               not any(re.search(p, line) for p in self.expected)]
        assert not bad, "unexpected in the log:\n" + "\n".join(bad[:20])


def xattr(path, name):
    return os.getxattr(path, "user.ckptfs." + name).decode()


def native(path):
    return int(xattr(path, "native"))


class Disk:
    """A small file system for a store that is to run full."""

    def __init__(self, base, size, inodes=None):
        """inodes: as many and no more, or the test is skipped."""
        self.path = os.path.join(base, "disk")
        image = os.path.join(base, "disk.img")
        os.makedirs(self.path)
        with open(image, "wb") as f:
            f.truncate(size)
        few = ["-N", str(inodes)] if inodes else []
        made = subprocess.run(["mkfs.ext4", "-q", "-m0", *few, image],
                              check=False, capture_output=True)
        if made.returncode or subprocess.run(
                ["mount", "-o", "loop", image, self.path], check=False,
                capture_output=True).returncode:
            if inodes:
                skip("no ext4 on a loop device")
            sh("mount", "-t", "tmpfs", "-o", f"size={size}", "ckptest",
               self.path)

    def free(self):
        s = os.statvfs(self.path)
        return s.f_bavail * s.f_frsize

    def fill(self, leave):
        """Take the room beside the store until only `leave` is left."""
        with open(os.path.join(self.path, "filler"), "ab") as f:
            # In pieces: the file system's own records need room as well.
            piece = 1 << 20
            while self.free() > leave and piece >= 4096:
                size = os.fstat(f.fileno()).st_size
                want = min(piece, self.free() - leave)
                try:
                    os.posix_fallocate(f.fileno(), size, max(want, 4096))
                except OSError as e:
                    assert e.errno == errno.ENOSPC, e
                    piece //= 4

    def relieve(self):
        os.unlink(os.path.join(self.path, "filler"))

    def fill_inodes(self):
        """Take all of them beside the store."""
        folder = os.path.join(self.path, "inodes")
        os.mkdir(folder)
        for n in itertools.count():
            try:
                open(os.path.join(folder, str(n)), "xb").close()
            except OSError as e:
                assert e.errno == errno.ENOSPC, e
                return

    def relieve_inodes(self):
        shutil.rmtree(os.path.join(self.path, "inodes"))


# --- tests, and the two processes that run them ---

TESTS = []
_guard = None  # the pipe to the guard


def tell_guard(*words):
    if _guard is not None:
        os.write(_guard, (" ".join(map(str, words)) + "\n").encode())


def posix(fn=None, *, shared=True):
    """The same on any local file system. shared: one mount for the file."""
    def register(fn):
        TESTS.append((fn, "posix" if shared else "own", "", True,
                      ("auto", "off")))
        return fn
    return register(fn) if fn else register


def mounted(options="", *, modes=("auto", "off"), start=True):
    """A promise of the mount: a store of its own, in each mode."""
    def register(fn):
        TESTS.append((fn, "mounted", options, start, modes))
        return fn
    return register


class Runner:
    def __init__(self, args, scratch):
        self.args, self.scratch = args, scratch
        self.shared = None
        self.passed = self.failed = self.skipped = 0

    def chosen(self, kinds, mode):
        return [t for t in TESTS if t[1] in kinds and mode in t[4] and
                (not self.args.k or self.args.k in t[0].__name__)]

    def report(self, mode, name, fn, log=None):
        tell_guard("test", mode, name)
        try:
            fn()
        except Skip as why:
            self.skipped += 1
            print(f"skip - {mode} {name}: SKIP: {why}", flush=True)
            return
        except Exception:
            self.failed += 1
            text = traceback.format_exc()
            if log is not None and log.log_text():
                text += "the daemon's log ends:\n" + log.log_text()[-2000:]
            print(f"FAIL - {mode} {name}\n{text}", flush=True)
            return
        self.passed += 1
        print(f"ok   - {mode} {name}", flush=True)

    def base(self, name):
        path = os.path.join(self.scratch, name)
        shutil.rmtree(path, ignore_errors=True)
        os.makedirs(path)
        return path

    def own(self, test, mode):
        fn, _, options, start, _ = test
        m = Mount(self.base(fn.__name__), mode, options)

        def run():
            try:
                if start:
                    m.start()
                fn(m)
                if m.proc is not None:
                    m.unmount()
                if os.path.exists(os.path.join(m.store, "format")) and \
                        not m.expected:
                    m.fsck("--scrub")
                m.check_log()
            finally:
                m.stop()
        self.report(mode, fn.__name__, run, m)
        shutil.rmtree(m.base, ignore_errors=True)

    def on_shared(self, test, mode):
        fn = test[0]

        def run():
            if self.shared is None:
                self.shared = Mount(self.base("shared-" + mode), mode).start()
            m = self.shared
            m.dir = os.path.join(m.mnt, fn.__name__)
            os.makedirs(m.dir)
            try:
                fn(m)
                assert m.proc.poll() is None, \
                    f"ckptfs died: {m.proc.returncode}"
                m.check_log()
            except Skip:
                raise
            except BaseException:
                m.stop()  # the next test gets a fresh one
                self.shared = None
                self.failed_mount = m
                raise
        self.failed_mount = None
        self.report(mode, fn.__name__, run,
                    log=_Lazy(lambda: self.failed_mount))

    def end_shared(self, mode):
        m, self.shared = self.shared, None
        if m is None:
            return

        def run():
            try:
                m.unmount()
                m.check_log()
                m.fsck("--scrub")
            finally:
                m.stop()
        self.report(mode, "unmount_is_clean_and_fsck_finds_nothing", run, m)
        shutil.rmtree(m.base, ignore_errors=True)

    def plain(self, directory):
        for fn, *_ in self.chosen(("posix", "own"), "auto"):
            place = Plain(tempfile.mkdtemp(prefix="plain-", dir=directory))
            os.chmod(place.dir, 0o755)
            self.report("plain", fn.__name__, lambda: fn(place))
            shutil.rmtree(place.dir, ignore_errors=True)

    def all(self):
        if self.args.plain:
            self.plain(self.args.plain)
        else:
            for mode in self.args.mode or ("auto", "off"):
                for test in self.chosen(("posix",), mode):
                    self.on_shared(test, mode)
                self.end_shared(mode)
                for test in self.chosen(("own", "mounted"), mode):
                    self.own(test, mode)
        print(f"{self.passed} passed, {self.failed} failed, "
              f"{self.skipped} skipped", flush=True)
        return 1 if self.failed else 0 if self.passed else 77


class _Lazy:
    """The log of a mount that is known only after the test failed."""

    def __init__(self, mount):
        self.mount = mount

    def log_text(self):
        m = self.mount()
        return m.log_text() if m else ""


def is_python(pid):
    try:
        return os.path.samefile(f"/proc/{pid}/exe", "/proc/self/exe")
    except OSError:
        return False


class Guard:
    """Watches the child that runs the tests; outlives whatever they break."""

    def __init__(self, child, pipe, scratch):
        self.child, self.pipe, self.scratch = child, pipe, scratch
        self.daemons = {}
        self.what, self.late = "start", False
        self.end = time.monotonic() + TOTAL_BOUND
        self.deadline = self.end

    def listen(self):
        for line in os.read(self.pipe, 65536).decode().splitlines():
            self.hear(*line.split())

    def hear(self, kind, *words):
        if kind == "daemon":
            self.daemons[int(words[0])] = words[1]
        elif kind == "test":
            self.what, self.late = " ".join(words), False
            self.deadline = self.end if DEBUGGED else min(
                self.end, time.monotonic() + TEST_BOUND)

    def dump(self, pid):
        print(f"--- stacks of {pid}", flush=True)
        for task in sorted(os.listdir(f"/proc/{pid}/task")):
            for name in ("comm", "stack"):
                try:
                    with open(f"/proc/{pid}/task/{task}/{name}",
                              encoding="utf-8") as f:
                        print(task, f.read().strip(), flush=True)
                except OSError:
                    pass
        if shutil.which("gdb"):
            subprocess.run(["gdb", "-p", str(pid), "-batch", "-nx", "-ex",
                            "thread apply all bt 12"], check=False,
                           timeout=120, stdin=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)

    def tests(self):
        """The processes of the test itself: the one that runs it, and those
        that it forked, which are of its group."""
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.getpgid(int(pid)) == self.child:
                    yield int(pid)
            except ProcessLookupError:
                pass  # it ended meanwhile

    def is_daemon(self, pid):
        try:  # a pid may be somebody else's by now, of another test even
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                ours = os.fsencode(self.scratch) in f.read()
            return ours and \
                os.readlink(f"/proc/{pid}/exe") == os.path.realpath(CKPTFS)
        except OSError:
            return False

    def timeout(self):
        if self.late:
            os.killpg(self.child, signal.SIGKILL)
            return
        print(f"TIMEOUT - {self.what}", flush=True)
        for pid in filter(is_python, self.tests()):
            os.kill(pid, signal.SIGUSR1)  # faulthandler shows their threads
        for pid in (*self.tests(), *filter(self.is_daemon, self.daemons)):
            try:
                self.dump(pid)
            except (OSError, subprocess.SubprocessError) as e:
                print(f"no stacks: {e}", flush=True)
        self.end_daemons()
        self.late, self.deadline = True, time.monotonic() + 30

    def end_daemons(self):
        for pid in self.daemons:
            if self.is_daemon(pid):
                os.killpg(pid, signal.SIGKILL)
        for path in mounts_under(self.scratch):
            try:
                umount(path, MNT_DETACH)
            except OSError:
                pass

    def watch(self):
        done = os.pidfd_open(self.child)
        poll = select.poll()
        poll.register(self.pipe, select.POLLIN)
        poll.register(done, select.POLLIN)
        while True:
            left = max(0, self.deadline - time.monotonic())
            ready = dict(poll.poll(left * 1000))
            if ready.get(self.pipe, 0) & select.POLLIN:
                self.listen()
            elif done in ready:
                _, status = os.waitpid(self.child, 0)
                code = os.waitstatus_to_exitcode(status)
                return code if code in (0, 77) else 1
            elif not ready:
                self.timeout()


def main():
    parser = options()
    parser.add_argument("--plain", metavar="DIR",
                        help="run the POSIX tests in an ordinary directory")
    args = parser.parse_args()
    need_mounts(args)
    sys.exit(guarded(args, Runner, Guard))


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", action="append", choices=("auto", "off"))
    parser.add_argument("--keep", action="store_true",
                        help="leave the scratch directory behind")
    parser.add_argument("-k", metavar="TEXT", help="only tests named so")
    return parser


def heed_signals():
    """A shell's `&` and nohup(1) have some ignored, and so would the daemons
    and the programs of the tests."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP,
                   signal.SIGTERM):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler
                          if number == signal.SIGINT else signal.SIG_DFL)


def need_mounts(args):
    if os.geteuid() != 0 and not args.plain:
        print("SKIP: mounting a private stage needs root")
        sys.exit(77)
    if not args.plain and not os.path.exists("/dev/fuse"):
        print("SKIP: no /dev/fuse")
        sys.exit(77)
    if not args.plain and not os.access(CKPTFS, os.X_OK):
        sys.exit(f"{CKPTFS} is missing: build it first")


def guarded(args, runner, guardian):
    """The exit code of runner(args, scratch).all(), with a guardian over it."""
    global _guard
    os.umask(0o022)
    heed_signals()
    if not args.plain:
        try:
            own_mounts()
        except PermissionError:
            print("SKIP: mounts are not allowed here (CAP_SYS_ADMIN)")
            sys.exit(77)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    scratch = os.path.realpath(tempfile.mkdtemp(
        prefix="ckptest-", dir=os.environ.get("CKPTFS_TEST_DIR", "/var/tmp")))
    os.chmod(scratch, 0o755)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.close(reader)
        _guard = writer
        faulthandler.register(signal.SIGUSR1, sys.stdout)
        code = 1
        try:
            code = runner(args, scratch).all()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    os.close(writer)
    os.setpgid(child, child)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    guard = guardian(child, reader, scratch)
    try:
        return guard.watch()
    finally:
        # timeout(1) asks twice; the second time must not end this.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            os.killpg(child, signal.SIGKILL)
        except ProcessLookupError:
            pass
        guard.end_daemons()
        if not args.keep:
            shutil.rmtree(scratch, ignore_errors=True)
