#!/usr/bin/env python3
"""powercut - no promise is broken by a power cut, wherever it comes.

The store lies on lossyfs, which keeps a log of every operation. One run of
the workload is recorded; then, for one k after the other, the disk is put
back to what a cut after the k-th operation leaves (what was not synced
survives by seeded coins), the stage is emptied as memory would be, a daemon
is started, and what it shows is held against the promises that had been given
by then. Some cuts come during the recovery itself, and some runs are cut
live, where nothing that fails may be called durable.

A failure prints its k and its seed and keeps the recorded run:
powercut.py --replay DIR --k K --seed S shows it again, exactly.

  CKPTFS_POWERCUT_STRIDE   a cut at every N-th operation; 1 is the whole
                           proof; unset: as many, evenly spread, as fit into
  CKPTFS_POWERCUT_SECONDS  (60)
"""
import argparse
import itertools
import os
import pickle
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import lossy
import workload
from history import look
from lossy import BUILD, MNT_DETACH, Lossy, umount

CKPTFS = os.environ.get("CKPTFS", os.path.join(BUILD, "fuse/ckptfs"))
CKPTCTL = os.environ.get("CKPTCTL", os.path.join(BUILD, "fuse/ckptctl"))
STEP_BOUND = 30  # seconds for anything a daemon is asked to do
STAGE_OPTIONS = "size=1g,mode=700"
SHOWN_MAX = 20  # violations printed in full
DOUBLE_EVERY = 5  # every n-th cut is followed by one during the recovery


class Hung(Exception):
    pass


class NoMount(Exception):
    """The daemon did not come up; its own words are in the message."""


class Guard:
    """Bounds a block: when its time is over the daemon is killed, which
    wakes everybody who waits for it in the kernel."""

    def __init__(self, daemon, what, bound=STEP_BOUND):
        self.daemon, self.what, self.hit = daemon, what, False
        self.timer = threading.Timer(bound, self.strike)

    def strike(self):
        self.hit = True
        self.daemon.shoot()

    def __enter__(self):
        self.timer.start()
        return self

    def __exit__(self, kind, e, _tb):
        self.timer.cancel()
        self.timer.join()
        if self.hit:
            raise Hung(f"{self.what} did not return within "
                       f"{self.timer.interval:.0f} s") from e


class Daemon:
    def __init__(self, store, mount, stage, options, log):
        self.store, self.mount, self.stage = store, mount, stage
        self.options = f"stage={stage}" + (options and "," + options)
        self.log, self.process = log, None

    def argv(self):
        return [CKPTFS, "-f", "-o", self.options, self.store, self.mount]

    def mounted(self):
        with open("/proc/self/mountinfo") as f:
            return any(line.split()[4] == self.mount for line in f)

    def start(self):
        with open(self.log, "ab") as log, open("/proc/self/mountinfo") as info:
            self.said_from = log.tell()
            # a session of its own: shoot() gets its children too
            self.process = subprocess.Popen(
                self.argv(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True)
            ended = os.pidfd_open(self.process.pid)
            poll = select.poll()
            poll.register(info, select.POLLPRI)
            poll.register(ended, select.POLLIN)
            try:
                deadline = time.monotonic() + STEP_BOUND
                while not self.mounted() and self.process.poll() is None:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        self.kill()
                        raise Hung(f"no mount within {STEP_BOUND} s: "
                                   f"{self.said()}")
                    poll.poll(left * 1000)
            finally:
                os.close(ended)
        if not self.mounted():
            code = self.process.wait()
            self.process = None
            raise NoMount(f"exit {code}: {self.said()}")
        with Guard(self, "statvfs of the new mount"):
            os.statvfs(self.mount)

    def said(self):
        with open(self.log, "rb") as f:
            f.seek(self.said_from)
            return f.read().decode(errors="replace").strip()[-2000:]

    def said_lately(self):
        """The last words of all daemons of this run."""
        with open(self.log, "rb") as f:
            return f.read().decode(errors="replace")[-4000:]

    def shoot(self):
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def kill(self):
        """As kill -9 does it; the mount goes with it."""
        self.shoot()
        if self.process:
            self.process.wait(STEP_BOUND)
            self.process = None
        while self.mounted():
            umount(self.mount, MNT_DETACH)

    def stop(self):
        """A clean unmount; everything is durable when it returns."""
        umount(self.mount)
        try:
            code = self.process.wait(STEP_BOUND)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Hung("the daemon did not end after its unmount") from None
        self.process = None
        if code != 0:
            raise NoMount(f"exit {code} after its unmount: {self.said()}")

    def fsck(self):
        return subprocess.run(
            [CKPTCTL, "fsck", self.store, "--scrub"], timeout=STEP_BOUND,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True)

    def flush(self):
        subprocess.run([CKPTCTL, "flush", self.mount], timeout=STEP_BOUND,
                       check=True, stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL)


class Rig:
    """A lossyfs, a store on it, a mount of that, and the stage's tmpfs."""

    def __init__(self, scratch, options, lossy_options, work="files"):
        self.scratch = scratch
        self.workload = workload.WORKLOADS[work]
        for name in ("mount", "stage"):
            os.mkdir(os.path.join(scratch, name))
        self.stage = os.path.join(scratch, "stage")
        lossy.mount_tmpfs(self.stage, STAGE_OPTIONS)
        self.disk = Lossy(os.path.join(scratch, "disk"), *lossy_options)
        self.daemon = Daemon(self.disk.path("store"),
                             os.path.join(scratch, "mount"), self.stage,
                             options, os.path.join(scratch, "log"))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.daemon.kill()
        self.disk.__exit__(*exc)
        umount(self.stage, MNT_DETACH)

    def lose_memory(self):
        umount(self.stage, MNT_DETACH)
        lossy.mount_tmpfs(self.stage, STAGE_OPTIONS)
        stage = self.disk.path("store/stage")
        try:
            if os.path.ismount(stage):
                umount(stage, MNT_DETACH)
        except OSError:
            pass  # there is no power to look with

    def fresh(self):
        """An empty disk that keeps a log; where the history begins."""
        self.lose_memory()
        self.disk.tell("lie", "none")
        self.disk.tell("record")
        os.mkdir(self.daemon.store)
        fd = os.open(self.disk.root, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)

    # --- runs ---

    def remount(self):
        self.daemon.stop()
        self.daemon.start()

    def crash(self):
        self.daemon.kill()
        self.daemon.start()

    def work(self, w, lie):
        d = self.daemon
        flush = d.flush if os.access(CKPTCTL, os.X_OK) else None
        step = w.h.begin("the first mount")
        d.start()
        w.h.end(step)
        self.disk.tell("lie", lie)
        try:
            with Guard(d, "the run", 10 * STEP_BOUND):
                self.workload(w, self.remount, self.crash, flush)
                d.stop()
        finally:
            w.disconnect()

    def record(self, lie="none"):
        """Run the workload once; its history, and where it begins."""
        self.fresh()
        w = workload.Work(self.daemon.mount, self.disk.count)
        start = self.disk.count()
        self.work(w, lie)
        self.disk.tell("freeze")
        return w.h, start

    def live(self, n):
        """Run the workload with a cut at the n-th operation."""
        self.fresh()
        self.disk.tell("freeze")
        w = workload.Work(self.daemon.mount, self.disk.count)
        self.disk.tell("arm", n)
        out = []
        try:
            self.work(w, "none")
        except Hung as e:
            out.append(("hung", f"{e}, {w.h.position(None)}"))
        except (OSError, NoMount, subprocess.SubprocessError):
            pass  # what else? there is no power
        was_cut = self.disk.state()[1]
        self.daemon.kill()
        self.lose_memory()
        return w.h, was_cut, out

    # --- the proof ---

    def judge(self, history, k):
        """Start a daemon on what is there and look. Leaves it unmounted."""
        d, out = self.daemon, []
        try:
            d.start()
            with Guard(d, "reading everything"):
                found = look(d.mount)
            out += history.violations(found, k)
            with Guard(d, "a new file"):
                out += self.use()
            d.stop()
            fsck = d.fsck()
            if fsck.returncode != 0:
                out.append(("fsck", f"exit {fsck.returncode}: "
                            f"{fsck.stdout.strip()[-1000:]}"))
        except (OSError, Hung, NoMount, subprocess.SubprocessError) as e:
            out.append(("dead", f"{type(e).__name__}: {e}"))
        d.kill()
        return out

    def use(self):
        """A store that came through a cut takes new files."""
        path = os.path.join(self.daemon.mount, "new after the cut")
        content = workload.data(100_000, "new")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            os.write(fd, content)
            os.fsync(fd)
            same = os.pread(fd, len(content) + 1, 0) == content
        finally:
            os.close(fd)
        os.unlink(path)
        return [] if same else [("torn", "a new file reads wrong")]

    def cut(self, history, k, seed, second=0):
        """The cut after k operations; a second one in the recovery, at its
        second-th operation."""
        self.disk.tell("rewind", k, seed)
        self.lose_memory()
        if second:
            self.disk.tell("arm", second)
            try:
                self.daemon.start()
                with Guard(self.daemon, "reading everything"):
                    look(self.daemon.mount)
            except (OSError, NoMount):
                pass
            except Hung as e:
                self.daemon.kill()
                return [("hung", str(e))]
            self.daemon.kill()
            self.lose_memory()
            self.disk.tell("reboot", seed + 7)
        return self.judge(history, k)


def spread(first, last):
    """All of first..last once, any beginning of it evenly spread."""
    n = last - first + 1
    step = max(1, round(n * 0.6180339887))
    while any(step % p == 0 and n % p == 0 for p in range(2, step + 1)):
        step += 1
    return (first + i * step % n for i in range(n))


def seeds_of(k, count):
    """Everything lost; a coin; nothing lost; more coins."""
    return list(itertools.islice(itertools.chain(
        (0, 2 + k, 1), (100_000 * i + k for i in itertools.count(1))), count))


def plan(args, start, end):
    """(k, seed, second) for every cut."""
    if args.k is not None:
        seeds = [args.seed] if args.seed is not None else \
            seeds_of(args.k, args.seeds)
        return [(args.k, seed, args.second) for seed in seeds]
    if args.stride > 0:
        return [(k, seed, 1 + (k * 7 + i) % 60 if
                 i == args.seeds - 1 and k % DOUBLE_EVERY == 0 else 0)
                for k in range(start, end + 1, args.stride)
                for i, seed in enumerate(seeds_of(k, args.seeds))]
    return ((k, seeds_of(k, 3)[i % 3],
             1 + i % 60 if i % DOUBLE_EVERY == 4 else 0)
            for i, k in enumerate(spread(start, end)))


def progress(text):
    if sys.stdout.isatty():
        print(f"\r\033[K{text}", end="", flush=True)


class Report:
    def __init__(self):
        self.cuts = self.bad = 0
        self.kinds = {}

    def add(self, title, violations):
        self.cuts += 1
        if not violations:
            return
        self.bad += 1
        for kind, _ in violations:
            self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if self.bad <= SHOWN_MAX:
            progress("")
            print(f"VIOLATION {title}")
            for kind, sentence in violations:
                print(f"    {kind}: {sentence}")
            sys.stdout.flush()


def replay(rig, args, history, start, report, *, stop_at_first=False):
    end = rig.disk.state()[2]
    deadline = time.monotonic() + args.seconds
    for k, seed, second in plan(args, start, end):
        if args.stride <= 0 and args.k is None and \
                time.monotonic() > deadline:
            break
        found = rig.cut(history, k, seed, second)
        again = f"--k {k} --seed {seed}" + \
            (f" --second {second}" if second else "")
        report.add(f"{again} (of {start}..{end}, {history.position(k)}; last "
                   f"done: {rig.disk.say(k)})", found)
        progress(f"cut {report.cuts}, k {k} of {start}..{end}, "
                 f"{report.bad} bad")
        if found and stop_at_first:
            break
    progress("")


def live(rig, args, span, report):
    for i in range(args.live):
        n = 1 + span * (2 * i + 1) // (2 * args.live)
        history, was_cut, found = rig.live(n)
        if was_cut:
            rig.disk.tell("reboot", seed := 2 + i if i % 2 else 0)
            found += rig.judge(history, None)
            report.add(f"live cut at operation {n}, seed {seed} "
                       f"({history.position(None)})", found)
            if found:  # it cannot be played again
                print(rig.daemon.said_lately(), flush=True)
        progress(f"live cut {i + 1} of {args.live}, {report.bad} bad")
    progress("")


def keep(rig, history, start, directory):
    os.makedirs(directory, exist_ok=True)
    rig.disk.tell("save", os.path.join(directory, "log"))
    with open(os.path.join(directory, "history"), "wb") as f:
        pickle.dump((history, start), f)


def prove(rig, args):
    report = Report()
    if args.replay:
        rig.disk.tell("load", os.path.join(args.replay, "log"))
        with open(os.path.join(args.replay, "history"), "rb") as f:
            history, start = pickle.load(f)
        replay(rig, args, history, start, report)
    for run in range(0 if args.replay else args.runs):
        history, start = rig.record()
        before = report.bad
        replay(rig, args, history, start, report)
        span = rig.disk.state()[2] - start
        print(f"run {run + 1}: {len(history.steps)} steps, {span} store "
              "operations")
        if report.bad > before:
            kept = os.path.join(args.keep or tempfile.gettempdir(),
                                f"powercut.{os.getpid()}.{run}")
            keep(rig, history, start, kept)
            print(f"recorded run kept: --replay {kept}")
        live(rig, args, span, report)
    kinds = ", ".join(f"{n} {kind}" for kind, n in
                      sorted(report.kinds.items()))
    print(f"{report.cuts} cuts, {report.bad} with violations"
          + (f": {kinds}" if kinds else ""))
    print(f"{report.cuts - report.bad} passed, {report.bad} failed")
    return 1 if report.bad else 0


def prove_lies_are_caught(rig, args):
    """A disk that does not sync must fail the same test."""
    missed = []
    for lie in ("all", "files"):
        report = Report()
        history, start = rig.record(lie)
        # only losses count: a store that never was must not be the reason
        start = max(start, history.steps[0].answered)
        replay(rig, args, history, start, report, stop_at_first=True)
        caught = set(report.kinds) & {"lost", "torn", "dead", "fsck",
                                      "unreadable"}
        print(f"lie {lie}: caught after {report.cuts} cuts" if caught else
              f"lie {lie}: NOT caught in {report.cuts} cuts")
        if not caught:
            missed.append(lie)
    print(f"{2 - len(missed)} passed, {len(missed)} failed")
    return 1 if missed else 0


def arguments():
    p = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        epilog=__doc__.split("\n\n", 1)[1],
        formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--stride", type=int, default=int(
        os.environ.get("CKPTFS_POWERCUT_STRIDE") or 0))
    p.add_argument("--seconds", type=float, default=float(
        os.environ.get("CKPTFS_POWERCUT_SECONDS") or 60))
    p.add_argument("--seeds", type=int, default=3,
                   help="outcomes for each k, with --stride or --k")
    p.add_argument("--k", type=int, help="only this cut")
    p.add_argument("--seed", type=int, help="only this outcome, with --k")
    p.add_argument("--second", type=int, default=0, help="with --k: cut once "
                   "more at this operation of the recovery")
    p.add_argument("--live", type=int, default=8, help="how many live cuts")
    p.add_argument("--runs", type=int, default=1, help="recordings")
    p.add_argument("--replay", metavar="DIR", help="a recorded run")
    p.add_argument("--keep", metavar="DIR", help="where failing runs are kept")
    p.add_argument("-o", dest="options", default="",
                   help="more mount options, e.g. passthrough=off")
    p.add_argument("--workload", choices=list(workload.WORKLOADS),
                   default="files")
    p.add_argument("--strict-names", action="store_true", help="fsync of a "
                   "new file does not make its name durable")
    p.add_argument("--lie-fsync", action="store_true", help="the disk does "
                   "not sync: pass when that is caught")
    return p.parse_args()


def main():
    args = arguments()
    why = lossy.missing()
    if not why and not os.access(CKPTFS, os.X_OK):
        why = f"it needs {CKPTFS}"
    if why:
        print(f"skipped: {why}")
        return lossy.SKIP
    scratch = tempfile.mkdtemp(prefix="powercut.")
    options = ["--strict-names"] if args.strict_names else []
    try:
        with Rig(scratch, args.options, options, args.workload) as rig:
            if args.lie_fsync:
                return prove_lies_are_caught(rig, args)
            return prove(rig, args)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
