#!/usr/bin/env python3
"""soak.py - one round after the other of tests/soak.sh.

Keeps true: a round is counted in cases and not in seconds, all of it follows
from the round's seed, and a find ends nothing: it is written down, and the rest
of the round is tried.
"""
import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile
import time

import run

FOUND = "found"
# Schedules of the simulator in a round, and its options.
SCHEDULES = {"store": (4000, []), "rare": (2000, ["--rare"]),
             "nodes": (1000, ["--nodes"])}
SHARE = 250  # of them that a process tries
# Tests that kill daemons and nodes in the middle of their work.
KILLS = "mount.kill|mount.kill_segment|shared.deaths.dir|shared.races.dir"
VARIATIONS = 1000000  # of each parser's corpus
DAMAGES = 24
# The line of an output that says what is wrong, the surest sign first.
WRONG = (r"^FOUND at ", r"^FAIL", r"^TIMEOUT|\[  FAILED  \]|Sanitizer",
         r"Error|error:")


def commit():
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], check=False,
        capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


class Soak:
    def __init__(self, only):
        self.only, self.commit, self.finds = only, commit(), 0

    def found(self, kind, seed, again, output):
        """A file of its own, so that what was found before stays."""
        lines = output.strip().splitlines() or ["it said nothing"]
        what = next((l.strip() for pattern in WRONG for l in lines
                     if re.search(pattern, l)), lines[-1])
        os.makedirs(FOUND, exist_ok=True)
        stamp = time.strftime("%Y%m%d-%H%M%S")
        name = f"{stamp}-{re.sub(r'[^a-z0-9_.]', '_', kind)}-{seed}-" \
            f"{self.finds}.txt"
        with open(os.path.join(FOUND, name), "w", encoding="utf-8") as f:
            f.write(f"commit: {self.commit}\nkind: {kind}\nseed: {seed}\n"
                    f"again: {again}\nfound: {what}\n\n"
                    f"{output[-200000:]}\n")
        self.finds += 1
        print(f"soak: FOUND {kind}, seed {seed}: {FOUND}/{name}\n"
              f"      {what}", flush=True)

    def has(self, kind):
        return self.only in (None, kind)

    # --- the simulator ---

    def schedules(self, kind, first, count, options):
        """A find ends the simulator; it begins again behind that seed."""
        end, seed = first + count, first
        while seed < end:
            done = subprocess.run(
                ["tests/sim/run", *options, "--seed", str(seed), "--count",
                 str(end - seed)], check=False, text=True, errors="replace",
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if done.returncode == 0:
                return
            last = re.search(r"^FAILED: seed (\d+),", done.stdout, re.M)
            if not last:
                self.found(kind, seed, f"tests/sim/run {' '.join(options)} "
                           f"--seed {seed} --count {end - seed}", done.stdout)
                return
            seed = int(last[1])
            self.found(kind, seed, " ".join(
                ["tests/sim/run", *options, "--seed", str(seed)]), done.stdout)
            seed += 1

    def simulate(self, seed):
        """Each kind on all cores."""
        cores = len(os.sched_getaffinity(0))
        with concurrent.futures.ThreadPoolExecutor(cores) as pool:
            waits = [pool.submit(self.schedules, kind, seed + at,
                                 min(SHARE, count - at), options)
                     for kind, (count, options) in SCHEDULES.items()
                     if self.has(kind) for at in range(0, count, SHARE)]
        for each in waits:
            each.result()

    # --- tests that ctest knows ---

    def ctest(self, kind, seed, options, jobs, env):
        part = run.Part("normal", kind, env)
        with tempfile.TemporaryDirectory() as scratch:
            report = os.path.join(scratch, "tests.xml")
            subprocess.run(
                ["ctest", "--preset", "normal", "-Q", "-j", str(jobs),
                 "--output-junit", report, *options], check=False,
                env={**os.environ, **env}, stderr=subprocess.DEVNULL)
            cases = run.cases_of(report)
        if cases is None:
            self.found(kind, seed, part.command(" ".join(options)),
                       "ctest gave no report")
            return
        for case in cases:
            if run.is_skipped(case):
                print(f"soak: skipped {case.get('name')}: "
                      f"{run.why_skipped(case)}", flush=True)
            elif run.has_failed(case):
                failure = part.failure(case.get("name"), run.output_of(case))
                self.found(f"{kind}.{case.get('name')}", seed, failure.again,
                           "\n".join(failure.lines))

    def round(self, seed):
        cores = len(os.sched_getaffinity(0))
        self.simulate(seed)
        fresh = {"CKPTFS_TEST_SEED": str(seed % (1 << 31))}
        if self.has("late"):
            library = os.path.abspath("build/tests/jitter/libjitter.so")
            late = {**fresh, "LD_PRELOAD": library,
                    "CKPTFS_JITTER": fresh["CKPTFS_TEST_SEED"]}
            self.ctest("late", seed, ["-L", "^unit$"], 2 * cores, late)
            self.ctest("late", seed, ["-L", "^unit$"], 2 * cores,
                       {**late, "CKPTFS_JITTER_WHO": "caller"})
        if self.has("kills"):
            self.ctest("kills", seed, ["-R", f"^({KILLS})$"], cores, fresh)
        if self.has("damage"):
            self.program("damage", seed, [
                sys.executable, "tests/crash/damage.py", "--count",
                str(DAMAGES), "--seed", fresh["CKPTFS_TEST_SEED"]])
        if self.has("fuzz"):
            for name in sorted(os.listdir("tests/fuzz/corpus")):
                # It keeps the input that it runs where it is started.
                self.program(f"fuzz.{name}", seed, [
                    f"tests/fuzz/fuzz_{name}_smoke", f"-seed={seed}",
                    f"-runs={VARIATIONS}", f"../tests/fuzz/corpus/{name}"],
                    "build")

    def program(self, kind, seed, argv, folder="."):
        done = subprocess.run(argv, check=False, text=True, errors="replace",
                              cwd=folder, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        if done.returncode == 77:
            print(f"soak: skipped {kind}: {done.stdout.strip()}", flush=True)
        elif done.returncode != 0:
            self.found(kind, seed, f"cd {folder} && {' '.join(argv)}",
                       f"{done.stdout}\nexit code {done.returncode}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=float, default=1)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seed", type=int, default=int(time.time()) * 100000)
    parser.add_argument("--only")
    args = parser.parse_args()
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    soak, rounds, end = Soak(args.only), 0, time.time() + args.hours * 3600
    while rounds < args.rounds if args.rounds else time.time() < end:
        # Apart, so that no round tries another one's schedules.
        seed = args.seed + rounds * 100000
        print(f"soak: round {rounds + 1}, seed {seed}, commit {soak.commit}; "
              f"{soak.finds} found", flush=True)
        soak.round(seed)
        rounds += 1
    print(f"soak: {rounds} rounds, {soak.finds} found")
    sys.exit(1 if soak.finds else 0)


if __name__ == "__main__":
    main()
