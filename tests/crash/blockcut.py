#!/usr/bin/env python3
"""blockcut - no promise is broken by a power cut of a real file system's disk.

The store lies on ext4 (or xfs), that on a loop device, and that on a disk
that logs every request. One run of a workload is recorded. Then the disk is
put together again as cuts leave it: at each flush and between two of them,
with what was written since the last one lost, kept, torn, in any order. Each
such disk is mounted, its journal replayed, the store checked and mounted, and
what it shows is held against the promises that had been given by then. Some
recoveries are recorded too, and cut once more.

A run is one setting (--settings: mount options, where the stage lies, what is
done) and one seed. A disk that breaks a promise is kept, and so is its run:
blockcut.py --replay DIR judges it again, and with --k K --seed S any other
cut of that run.
"""
import argparse
import filecmp
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import time

import blockdisk
import blockwork
import lossy
import workload
from blockdisk import MKFS, Mounted, Recorder, is_mounted
from blocklog import Log, Replay
from lossy import BUILD, MNT_DETACH, umount
from rig import (CKPTCTL, CKPTFS, STEP_BOUND, Daemon, Guard, Report,
                 judge, own_mounts, progress)

NOSYNC = os.path.join(BUILD, "tests/crash/libnosync.so")
MIB = 1 << 20
RECOVERY_EVERY = 6  # every n-th cut is followed by some in its recovery
RECOVERY_CUTS = 3
BEFORE_EVERY = 3  # every n-th is checked before it is mounted
TWICE_EVERY = 4  # every n-th is mounted twice
BAD_MAX = 5  # of one run; the others would say the same
RUN_BOUND = 10 * STEP_BOUND


class Setting:
    """stage: "ram" a directory in memory, "own" what the mount makes itself,
    "disk" a directory beside the store."""

    def __init__(self, work="random", options="", stage="own", mib=512,
                 kind="ext4", **traits):
        self.work, self.options, self.stage = work, options, stage
        self.size, self.kind, self.traits = mib * MIB, kind, traits


SMALL = "stage_size=96M,drain_interval=2"
SETTINGS = {
    "files": Setting("files", stage="ram"),
    "segments": Setting("segments", stage="ram"),
    "plain": Setting(options="stage_size=1G"),
    "small": Setting(options=SMALL, slow=True),
    "disk": Setting(options="drain_interval=2", stage="disk", slow=True),
    "daemon": Setting(options="stage_size=96M,passthrough=off"),
    "sync": Setting(options="stage_size=256M,durable=close", durable=True),
    "save": Setting(options="stage_size=256M", segments=True),
    "gpu": Setting(options=SMALL, slow=True, segments=True, gpu=True),
    "threads": Setting(options=SMALL, slow=True, threads=3),
    "restless": Setting(options="stage_size=96M", restless=True),
    "full": Setting(options="stage_size=256M", mib=192, full=True),
    "full-small": Setting(options=SMALL, mib=128, full=True, slow=True),
    "xfs": Setting(options=SMALL, kind="xfs", mib=512, slow=True),
}


class Run:
    """What was recorded: enough to make any cut of it again."""

    def __init__(self, setting, seed, base, log, history, start):
        self.setting, self.seed = setting, seed
        self.base, self.log = base, log
        self.history, self.start = history, start

    def keep(self, directory):
        os.makedirs(directory, exist_ok=True)
        blockdisk.copy(self.base, os.path.join(directory, "base"))
        blockdisk.copy(self.log.path, os.path.join(directory, "log"))
        with open(os.path.join(directory, "history"), "wb") as f:
            pickle.dump((self.setting, self.seed, self.history, self.start),
                        f)

    @classmethod
    def kept(cls, directory):
        with open(os.path.join(directory, "history"), "rb") as f:
            setting, seed, history, start = pickle.load(f)
        log = Log(os.path.join(directory, "log"))
        log.count()
        return cls(setting, seed, os.path.join(directory, "base"), log,
                   history, start)


class Rig:
    """Images in memory, and a place to mount one of them with its store."""

    def __init__(self, scratch, name, preload=None):
        self.scratch, self.name = scratch, name
        self.setting = SETTINGS[name]
        self.root = os.path.join(scratch, "root")  # of the file system
        self.mount = os.path.join(scratch, "mount")
        self.ram = os.path.join(scratch, "ram")
        for path in (self.root, self.mount, self.ram):
            os.makedirs(path, exist_ok=True)
        where = {"own": None, "ram": os.path.join(self.ram, "stage"),
                 "disk": os.path.join(self.root, "stage")}
        self.stage = where[self.setting.stage]
        self.store = os.path.join(self.root, "store")
        self.daemon = Daemon(self.store, self.mount, self.stage,
                             self.setting.options,
                             os.path.join(scratch, "daemon.log"), preload)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.daemon.kill()
        self.lose_memory()
        while is_mounted(self.root):
            umount(self.root, MNT_DETACH)

    def image(self, name):
        return os.path.join(self.ram, name)

    def lose_memory(self):
        """What a cut takes beside the disk's cache: the stage."""
        own = os.path.join(self.store, "stage")
        while is_mounted(own):
            umount(own, MNT_DETACH)
        if self.setting.stage == "ram":
            shutil.rmtree(self.stage, ignore_errors=True)
            os.mkdir(self.stage, 0o700)

    def new_boot(self):
        """After a cut the machine has another boot id. A stage on the disk
        has kept the old one."""
        if self.setting.stage != "disk":
            return
        with open("/proc/sys/kernel/random/boot_id", "rb") as f:
            boot = f.read().strip()
        try:
            with open(os.path.join(self.stage, "table"), "r+b") as f:
                at = f.read(4096).find(boot)
                if at >= 0:
                    f.seek(at)
                    f.write(b"another" + boot[7:])
        except FileNotFoundError:
            pass

    # --- recording ---

    def remount(self):
        self.daemon.stop()
        self.daemon.start()

    def crash(self):
        self.daemon.kill()
        self.daemon.start()

    def work(self, w, seed):
        d = self.daemon
        flush = d.flush if os.access(CKPTCTL, os.X_OK) else None
        step = w.h.begin("the first mount")
        d.start()
        w.h.end(step)
        try:
            with Guard(d, "the run", RUN_BOUND):
                if self.setting.work == "random":
                    blockwork.run(w, self, flush, random.Random(seed))
                else:
                    workload.WORKLOADS[self.setting.work](
                        w, self.remount, self.crash, flush)
                d.stop()
        finally:
            w.disconnect()

    def record(self, seed):
        base, disk = self.image("base"), self.image("disk")
        blockdisk.make(base, self.setting.size, self.setting.kind)
        blockdisk.copy(base, disk)
        recorder = Recorder(self.ram, disk)
        try:
            fs = Mounted(recorder.export, self.root, self.setting.kind)
            try:
                self.lose_memory()
                os.mkdir(self.store)
                if self.setting.stage == "disk":
                    os.mkdir(self.stage, 0o700)
                os.sync()
                start = recorder.log.count()
                w = blockwork.BlockWork(self.mount, recorder.log.count,
                                   **self.setting.traits)
                try:
                    self.work(w, seed)
                except BaseException:
                    print(w.h.position(None), self.daemon.said_lately(),
                          sep="\n", flush=True)
                    raise
                finally:
                    self.daemon.kill()
                    self.lose_memory()
            finally:
                fs.close()
            recorder.stop()
            recorder.log.check()
            self.compare(base, recorder.log, disk)
        finally:
            recorder.stop()
            os.unlink(disk)
        return Run(self.name, seed, base, recorder.log, w.h, start)

    def compare(self, base, log, disk):
        """The log makes the disk that it was written beside."""
        replay = Replay(base, log, self.image("settled"))
        try:
            replay.build(log.count(), 1, self.image("state"))
            if not filecmp.cmp(self.image("state"), disk, shallow=False):
                raise RuntimeError("the log does not make the disk")
        finally:
            replay.close()
            os.unlink(self.image("state"))

    # --- judging ---

    def judge(self, image, history, k, **how):
        """What is wrong with the disk in this file; it is changed."""
        self.lose_memory()
        try:
            fs = Mounted(image, self.root, self.setting.kind)
        except OSError as e:
            return [("disk", str(e))]
        try:
            self.new_boot()
            out = []
            if not os.path.isdir(self.store):
                return [("disk", "the store's directory is not there")]
            out += judge(self.daemon, history, k, **how)
        finally:
            self.daemon.kill()
            self.lose_memory()
            fs.close()
        if fs.repaired:
            out.append(("disk", "its file system had to be repaired"))
        return out

    def cut(self, run, replay, k, seed, **how):
        image = self.image("state")
        replay.build(k, seed, image)
        try:
            return self.judge(image, run.history, k, **how)
        finally:
            os.unlink(image)

    def recovery(self, run, replay, k, seed, rng):
        """Cuts while the disk of another is recovered: (title, violations)
        of each."""
        first, disk = self.image("first"), self.image("disk")
        replay.build(k, seed, first)
        blockdisk.copy(first, disk)
        second = self.image("second")
        os.makedirs(second, exist_ok=True)
        recorder = Recorder(second, disk)
        try:
            found = self.judge(recorder.export, run.history, k, new=False)
            recorder.stop()
            recorder.log.check()
            if found:
                yield "recovery", found
                return
            again = Replay(first, recorder.log, self.image("settled2"))
            try:
                end = recorder.log.count()
                for n, k2 in enumerate(sorted(
                        rng.randrange(1, end + 1)
                        for _ in range(RECOVERY_CUTS))):
                    seed2 = (0, 2 + rng.randrange(1 << 30))[n % 2]
                    state = self.image("state")
                    again.build(k2, seed2, state)
                    found = self.judge(state, run.history, k)
                    os.unlink(state)
                    yield f"second cut {k2} of 1..{end}, seed {seed2}", found
            finally:
                again.close()
        finally:
            recorder.close()
            os.unlink(first)
            os.unlink(disk)


def plan(run, count, rng):
    """(k, seed) of the cuts to judge, in the order of the log. Of each time
    between two flushes the end is where most was promised and least is
    sure; most cuts are of that kind, with everything lost or by a coin."""
    end = run.log.count()
    flushes = run.log.flushes(run.start, end)
    ends = sorted({max(run.start, k - 1) for k in flushes} | {end})
    cuts = [(k, 0) for k in rng.sample(ends, min(len(ends), count // 3))]
    while len(cuts) < count:
        how = rng.randrange(4)
        k = rng.choice(flushes) if how == 0 and flushes else \
            rng.choice(ends) if how < 3 else rng.randint(run.start, end)
        cuts.append((k, rng.choice((1, *[2 + rng.randrange(1 << 30)] * 7))))
    return sorted(set(cuts))


class Campaign:
    def __init__(self, args, scratch):
        self.args, self.scratch = args, scratch
        self.report = Report()
        self.runs = 0

    def keep(self, rig, run, k, seed, title, found):
        """The failing disk is made again from the run, before recovery."""
        top = self.args.keep or tempfile.gettempdir()
        where = os.path.join(top, f"blockcut.{run.setting}.{run.seed}."
                             f"{os.getpid()}")
        if not os.path.exists(os.path.join(where, "log")):
            run.keep(where)
        with open(os.path.join(where, "violations"), "a") as f:
            f.write(f"--k {k} --seed {seed} {title}\n")
            for kind, sentence in found:
                f.write(f"    {kind}: {sentence}\n")
            f.write(rig.daemon.said_lately() + "\n")
        return where

    def one(self, rig, run, k, seed, title, found):
        position = run.history.position(k)
        self.report.add(f"{run.setting}, run {run.seed}: --k {k} --seed "
                        f"{seed} {title} ({position}; {run.log[k]})", found)
        if found:
            where = self.keep(rig, run, k, seed, title, found)
            print(f"    kept: --replay {where} --k {k} --seed {seed}",
                  flush=True)

    def judge(self, rig, run, cuts, rng, deadline=None):
        before = self.report.bad
        replay = Replay(run.base, run.log, rig.image("settled"))
        try:
            for n, (k, seed) in enumerate(cuts):
                if self.report.bad - before >= BAD_MAX or \
                        deadline and time.monotonic() > deadline:
                    break
                if self.args.recovery or \
                        n % RECOVERY_EVERY == RECOVERY_EVERY - 1:
                    for title, found in rig.recovery(run, replay, k, seed,
                                                     rng):
                        self.one(rig, run, k, seed, title, found)
                else:
                    there = run.history.steps[0].promised(k)
                    found = rig.cut(run, replay, k, seed, before=there
                                    and n % BEFORE_EVERY == 0,
                                    mounts=1 + (n % TWICE_EVERY == 1))
                    self.one(rig, run, k, seed, "", found)
                progress(f"{run.setting} {run.seed}: {n + 1} of {len(cuts)} "
                         f"cuts, {self.report.bad} bad")
        finally:
            replay.close()
        progress("")

    def run(self, name, seed, deadline=None):
        began = time.monotonic()
        with Rig(self.scratch, name) as rig:
            run = rig.record(seed)
            recorded = time.monotonic() - began
            before = self.report.cuts
            rng = random.Random(f"cuts {seed}")
            self.judge(rig, run, plan(run, self.args.states, rng), rng,
                       deadline)
            end = run.log.count()
            print(f"{name}, run {seed}: {len(run.history.steps)} steps, "
                  f"{end - run.start} requests, "
                  f"{len(run.log.flushes(run.start, end))} flushes, "
                  f"{self.report.cuts - before} states; {recorded:.0f} s + "
                  f"{time.monotonic() - began - recorded:.0f} s", flush=True)
            run.log.close()
        self.runs += 1

    def all(self):
        args = self.args
        deadline = time.monotonic() + args.minutes * 60 \
            if args.minutes else None
        seed = args.seed if args.seed is not None else \
            random.randrange(1 << 20) if args.minutes else 1
        while True:
            for name in args.settings:
                if deadline and time.monotonic() > deadline:
                    return
                self.run(name, seed, deadline)
            seed += 1
            if not deadline:
                return


def replay(args, scratch):
    run = Run.kept(args.replay)
    campaign = Campaign(args, scratch)
    with Rig(scratch, run.setting) as rig:
        rng = random.Random(args.seed)
        cuts = [(args.k, args.seed or 0)] if args.k else \
            plan(run, args.states, rng)
        campaign.judge(rig, run, cuts, rng)
    return campaign.report


def prove_lies_are_caught(args, scratch):
    """A daemon whose syncs do nothing must fail the same test."""
    with Rig(scratch, "files", NOSYNC) as rig:
        run = rig.record(1)
        rig.daemon.preload = None
        # only losses count: a store that never was must not be the reason
        run.start = max(run.start, run.history.steps[0].answered)
        rng = random.Random(1)
        report = Report()
        replay = Replay(run.base, run.log, rig.image("settled"))
        for k, seed in plan(run, args.states, rng):
            report.add("", rig.cut(run, replay, k, seed))
            if report.bad >= 1:
                break
    caught = set(report.kinds) & {"lost", "torn", "dead", "fsck",
                                  "unreadable"}
    print(f"syncs left out: {'' if caught else 'NOT '}caught in "
          f"{report.cuts} cuts")
    return 0 if caught else 1


def arguments():
    p = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        epilog=__doc__.split("\n\n", 1)[1],
        formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--settings", type=lambda s: s.split(","),
                   default=["files"], help="some of " + ",".join(SETTINGS) +
                   ", or all")
    p.add_argument("--states", type=int, default=40, help="cuts of each run")
    p.add_argument("--minutes", type=float, help="runs, until the time is up")
    p.add_argument("--seed", type=int, help="of the first run, or with --k")
    p.add_argument("--keep", metavar="DIR", help="where failing runs are kept")
    p.add_argument("--replay", metavar="DIR", help="a run that was kept")
    p.add_argument("--k", type=int, help="with --replay: only this cut")
    p.add_argument("--recovery", action="store_true",
                   help="record the recovery of each cut, and cut it")
    p.add_argument("--no-sync", action="store_true", help="the daemon's "
                   "syncs do nothing: pass when that is caught")
    args = p.parse_args()
    if args.settings == ["all"]:
        args.settings = [name for name, s in SETTINGS.items()
                         if shutil.which(MKFS[s.kind][0])]
    for name in args.settings:
        if name not in SETTINGS:
            p.error(f"no setting {name}")
    return args


def main():
    args = arguments()
    # So that what is mounted is unmounted, whoever ends it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    why = lossy.missing() or blockdisk.missing()
    for path in (CKPTFS, *([NOSYNC] if args.no_sync else ())):
        if not why and not os.access(path, os.X_OK):
            why = f"it needs {path}"
    if why:
        print(f"skipped: {why}")
        return lossy.SKIP
    own_mounts()
    scratch = os.path.realpath(tempfile.mkdtemp(prefix="blockcut."))
    lossy.mount_tmpfs(scratch, "size=12g,mode=700")
    try:
        if args.no_sync:
            return prove_lies_are_caught(args, scratch)
        if args.replay:
            report = replay(args, scratch)
        else:
            campaign = Campaign(args, scratch)
            campaign.all()
            report = campaign.report
    finally:
        umount(scratch, MNT_DETACH)
        os.rmdir(scratch)
    kinds = ", ".join(f"{n} {kind}" for kind, n in
                      sorted(report.kinds.items()))
    print(f"{report.cuts} states, {report.bad} with violations"
          + (f": {kinds}" if kinds else ""))
    print(f"{report.cuts - report.bad} passed, {report.bad} failed")
    return 1 if report.bad else 0


if __name__ == "__main__":
    sys.exit(main())
