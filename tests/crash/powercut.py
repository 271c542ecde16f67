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
import shutil
import subprocess
import sys
import tempfile
import time

import lossy
import workload
from history import look
from lossy import MNT_DETACH, Lossy, umount
from rig import (CKPTCTL, CKPTFS, STEP_BOUND, Daemon, Guard, Hung, NoMount,
                 Report, judge, own_mounts, progress)

STAGE_OPTIONS = "size=1g,mode=700"
DOUBLE_EVERY = 5  # every n-th cut is followed by one during the recovery


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
        return judge(self.daemon, history, k)


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


def replay(rig, args, history, start, report, *, stop_at_first=False):
    end = rig.disk.state()[2]
    deadline = time.monotonic() + args.seconds
    timed = args.stride <= 0 and args.k is None and not args.cuts
    for k, seed, second in itertools.islice(plan(args, start, end),
                                            args.cuts or None):
        if timed and time.monotonic() > deadline:
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
            found += judge(rig.daemon, history, None)
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
    p.add_argument("--cuts", type=int, default=0,
                   help="so many, however long they take")
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
    own_mounts()
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
