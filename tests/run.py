#!/usr/bin/env python3
"""run.py - builds trees, runs their tests, and says what failed: tests/run.sh.

Keeps true: the last 40 lines name each test that failed, with its last lines
and the command that repeats it; a signal ends a run with the same lines. What
fails beside others is run again alone, three times: it is FLAKY when it passes
each time, and a failure otherwise. No tree with a sanitizer is built when
something has failed before it. A run of the whole gate that passes writes the
hash of the tree to build/passed.

A tree is one preset of CMake, a part is one call of ctest on it.
"""
import argparse
import fnmatch
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml

FLAKY_MAX = 2  # more of them fail the run
ALONE = 3  # times that a test which failed is run again
AGAIN_MAX = 8  # tests that are run again; with more something else is wrong
LAST_LINES = 40  # what is to be enough of the output
LINES_OF_ONE = 15  # of each failure among them
LINES_TOLD = 100  # of each failure before them
# What went well is left out: it may be all of the last lines.
WELL = re.compile(r"ok +- |\[ +(RUN|OK) +\] |\s*$")
# "  3/99 Test #12: unit_test_vec ....***Failed    0.01 sec"
ENDED = re.compile(r"\s*\d+/\d+ Test\s+#\d+: (\S+) \.*\s*(\S.*?)\s+[\d.]+ sec")
BEGUN = re.compile(r"\s*Start\s+\d+: (\S+)$")


class Ended(Exception):
    """A signal has come: args[0] is its name."""


def raise_ended(number, _):
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise Ended(signal.Signals(number).name)


def cases_of(report):
    """The tests that ctest reports; None: it has not."""
    try:
        return list(xml.parse(report).getroot().iter("testcase"))
    except (OSError, xml.ParseError):
        return None


def has_failed(case):
    return case.find("skipped") is None and (
        case.find("failure") is not None or case.get("status") != "run")


class Failure:
    def __init__(self, name, lines, again):
        self.name, self.again = name, again
        self.lines = [l for l in lines if not WELL.match(l)]


class Run:
    """What has happened until now."""

    def __init__(self, args):
        self.args = args
        self.jobs = os.environ.get("CKPTFS_JOBS") or str(
            2 * len(os.sched_getaffinity(0)))
        self.passed, self.failures, self.flaky = 0, [], []
        self.skips = []  # (test, its part or "", reason, whether CI may)
        self.step, self.said = "", []  # what runs now, and what it has said
        self.running = {}  # tests of it that have not ended: name -> None
        self.begun = time.monotonic()

    # --- programs ---

    def begin(self, step):
        self.step, self.said, self.running = step, [], {}
        print(f"\n== {step} ({time.monotonic() - self.begun:.0f} s)",
              flush=True)

    def call(self, argv, env=None, quiet=False):
        """The exit code of a program in a process group of its own, which ends
        with this one. Its output is printed, and kept in self.said."""
        with subprocess.Popen(
                argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, text=True, errors="replace",
                env={**os.environ, **(env or {})},
                start_new_session=True) as process:
            try:
                for line in process.stdout:
                    self.hear(line.rstrip("\n"))
                    if not quiet:
                        print(line, end="", flush=True)
            except Ended:
                os.killpg(process.pid, signal.SIGTERM)
                raise
        return process.returncode

    def hear(self, line):
        self.said.append(line)
        begun, ended = BEGUN.match(line), ENDED.match(line)
        if begun:
            self.running[begun[1]] = None
        elif ended:
            self.running.pop(ended[1], None)

    # --- trees ---

    def build(self, preset):
        self.begin(f"building {preset}")
        again = f"cmake --preset {preset} && cmake --build --preset {preset}"
        prefix = os.environ.get("CKPTFS_PREFIX", "/opt/ckptfs")
        for argv, quiet in ((["cmake", "--preset", preset,
                              f"-DCKPTFS_PREFIX={prefix}"], True),
                            (["cmake", "--build", "--preset", preset], False)):
            if self.call(argv, quiet=quiet):
                if quiet:
                    print("\n".join(self.said), flush=True)
                self.failures.append(Failure(f"build of {preset}", self.said,
                                             again))
                return False
        return True

    def ctest(self, preset, options, report, env):
        """Runs it, and reads what it reports: its tests, or None."""
        if os.path.exists(report):
            os.unlink(report)
        # The shadow memory of the thread sanitizer has a fixed place, which a
        # random layout may take.
        self.call(["setarch", os.uname().machine, "-R", "ctest", "--preset",
                   preset, "--output-junit", report, *options], env)
        return cases_of(report)

    def test(self, preset, name, options=(), env=None):
        """One part: `name` is what its tests are called after."""
        options = list(options)
        if self.args.label:
            options += ["-L", f"^{re.escape(self.args.label)}$"]
        if self.args.test:
            options += ["-R", f"^{re.escape(self.args.test)}$"]
        counted = subprocess.run(
            ["ctest", "--preset", preset, "-N", *options], check=False,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if "Total Tests: 0" in counted.stdout:
            return
        self.begin(f"testing {name}")
        with tempfile.TemporaryDirectory() as scratch:
            report = os.path.join(scratch, "tests.xml")
            cases = self.ctest(preset, ["-j", self.jobs, *options], report, env)
            if cases is None:
                self.failures.append(Failure(f"ctest of {name}", self.said,
                                             f"ctest --preset {preset}"))
                return
            failed = []
            for case in cases:
                lines = (case.findtext("system-out") or "").splitlines()
                if self.judge(name, case, lines):
                    continue
                failure = case.find("failure")
                why = failure.get("message") if failure is not None else ""
                failed.append((case.get("name"), [*lines, why or ""]))
            for test, lines in failed:
                self.again(preset, name, test, lines, report, env,
                           len(failed) <= AGAIN_MAX)

    def judge(self, name, case, lines):
        """False: it has failed."""
        test = f"{name}/{case.get('name')}"
        if case.find("skipped") is not None:
            why = [l for l in lines if "skip" in l.lower()] or lines or ["?"]
            self.skip(test, case.get("name"), "", why[-1].strip())
            return True
        if has_failed(case):
            return False
        self.passed += 1
        # Parts: "skip - PART: SKIP: REASON", cmocka's "[  SKIPPED ] PART".
        found = map(re.compile(r"(?:skip - |\[  SKIPPED \] (?!.*test\(s\)))"
                               r"(.*?)(?:: SKIP: (.*))?$").match, lines)
        for part, why in dict.fromkeys(m.groups() for m in found if m):
            self.skip(test, case.get("name"), part.strip(), why or "skipped")
        return True

    def skip(self, test, name, part, why):
        allowed = os.environ.get("CKPTFS_SKIP_OK", "").split()
        may = os.environ.get("CI") != "true" or any(
            fnmatch.fnmatchcase(n, pattern) for pattern in allowed
            for n in (name, f"{name}/{part}"))
        self.skips.append((test, part, why, may))

    def again(self, preset, name, test, lines, report, env, is_tried):
        """It failed beside others: a failure, or flaky."""
        says = "".join(f"{k}={v} " for k, v in (env or {}).items())
        pattern = f"^{re.escape(test)}$"
        command = f"{says}ctest --preset {preset} -R '{pattern}'"
        if preset == "tsan":
            command = f"setarch -R {command}"
        failure = Failure(f"{name}/{test}", lines, command)
        if is_tried:
            self.begin(f"{name}/{test} failed: again, {ALONE} times, alone")
            cases = self.ctest(preset, ["-R", pattern, "--repeat",
                                        f"until-fail:{ALONE}"], report, env)
            if cases and not any(map(has_failed, cases)):
                self.passed += 1
                self.flaky.append(failure)
                return
        self.failures.append(failure)

    # --- the end ---

    def has_failed(self):
        return bool(self.failures or
                    any(not may for *_, may in self.skips) or
                    len(self.flaky) > (0 if self.args.strict else FLAKY_MAX))

    def interrupted(self, why):
        failed, lines = None, []
        for line in self.said:  # those of the part that did not end
            ended = ENDED.match(line)
            if ended or BEGUN.match(line):
                if failed:
                    self.failures.append(Failure(failed, lines,
                                                 "it was not run again"))
                failed, lines = None, []
                if ended and ended[2].startswith("***") and \
                        "Skipped" not in ended[2]:
                    failed = ended[1]
            elif failed:
                lines.append(line)
        if failed:
            self.failures.append(Failure(failed, lines,
                                         "it was not run again"))
        self.failures.append(Failure(
            f"{why} ended this run", [f"while {self.step}", *(
                f"still running: {name}" for name in self.running)],
            "tests/run.sh"))

    def report(self):
        """True: all is well."""
        self.begin("result")
        told = [(f"{f.name} failed and said:", f) for f in self.failures] + \
            [(f"FLAKY {f.name}: passed {ALONE} times alone; beside others it "
              "said:", f) for f in self.flaky]
        for head, f in told:
            lines = f.lines
            if len(lines) > LINES_TOLD:
                left = len(lines) - LINES_TOLD + 10
                lines = lines[:30] + [f"... {left} lines are left out ..."] + \
                    lines[30 + left:]
            print(f"-- {head}", *lines, sep="\n")
        for test, part, why, may in self.skips:
            print(f"skipped{'' if may else ', which CI must not'}: {test}"
                  f"{'/' if part else ''}{part}: {why}")
        if self.passed + len(self.failures) + len(self.skips) == 0:
            self.failures.append(Failure("no test was chosen", [
                "" if self.args.all else "the gate has none: look with --all"],
                "ctest --preset normal -N"))
        print(*last_lines(self.failures, self.flaky), sep="\n")
        refused = sum(not may for *_, may in self.skips)
        if refused:
            print(f"{refused} skipped, which CI must not: see above")
        print(f"total: {self.passed} passed, {len(self.failures)} failed, "
              f"{len(self.skips)} skipped", flush=True)
        return not self.has_failed()


def last_lines(failures, flaky):
    """What is to be seen of them in the last 40 lines: each one's name, as much
    of its last lines as there is room for, and the command that repeats it."""
    heads = [(f"FAILED {f.name}; again: {f.again}", f) for f in failures] + \
        [(f"FLAKY {f.name}; again: {f.again}", f) for f in flaky]
    room = LAST_LINES - 2  # the sum, and what was refused
    if len(heads) > room:
        more = len(heads) - room + 1
        heads[room - 1:] = [(f"and {more} more: see above", None)]
    out = []
    for n, (head, f) in enumerate(heads):
        share = (room - len(heads)) // len(heads)
        if n < (room - len(heads)) % len(heads):
            share += 1
        out.append(head)
        count = min(share, LINES_OF_ONE)
        if f and count:
            out += [f"    {line[:300]}" for line in f.lines[-count:]]
    return out


def tree_hash():
    """What was tested: the hash of the tree, and whether more than it."""
    def git(*argv):
        return subprocess.run(["git", *argv], check=True, text=True,
                              stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL).stdout.strip()
    try:
        dirty = git("status", "--porcelain")
        return git("rev-parse", "HEAD^{tree}") + (" dirty" if dirty else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown: no git repository"


def everything(run):
    gate = ["-L", "^gate$"]
    if not run.build("normal"):
        return
    run.test("normal", "normal", [] if run.args.all else gate)
    if not run.args.all or run.has_failed():
        return
    library = os.path.abspath("build/tests/jitter/libjitter.so")
    run.test("normal", "late", ["-L", "^unit$"],
             {"LD_PRELOAD": library, "CKPTFS_JITTER": "1"})
    for preset in ("asan", "tsan", "fuzz"):
        if run.has_failed() or not run.build(preset):
            return
        run.test(preset, preset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--label")
    parser.add_argument("--test")
    run = Run(parser.parse_args())
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup(1) has it
            signal.signal(number, raise_ended)
    tested = tree_hash()
    try:
        everything(run)
    except Ended as why:
        run.interrupted(why.args[0])
    good = run.report()
    if good and not run.args.label and not run.args.test:
        with open("build/passed", "w", encoding="ascii") as f:
            print(tested, file=f)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
