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
import contextlib
import fcntl
import fnmatch
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml

FLAKY_MAX = 2  # more of them fail the run
ALONE = 3  # times that a test which failed is run again
AGAIN_MAX = 8  # tests that are run again; with more something else is wrong
END_S = 30  # how long what a signal ends may take
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


ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Held:
    """While `on`, a signal waits in `came`: what was read is not lost to it."""
    on, came = False, None


def raise_ended(number, _):
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)
    Held.came = signal.Signals(number).name
    if not Held.on:
        raise Ended(Held.came)


def end_group(group):
    """What cleans up when it is told to end has the time for it."""
    deadline = time.monotonic() + END_S
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
        while time.monotonic() < deadline:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-group, os.WNOHANG)  # ctest itself
            os.killpg(group, 0)
            time.sleep(0.05)
        os.killpg(group, signal.SIGKILL)


def cases_of(report):
    """The tests that ctest reports; None: it has not."""
    try:
        return list(xml.parse(report).getroot().iter("testcase"))
    except (OSError, xml.ParseError):
        return None


def is_skipped(case):
    """By itself: ctest also reports so what it could not start."""
    skipped = case.find("skipped")
    return skipped is not None and \
        (skipped.get("message") or "").startswith("SKIP_")


def has_failed(case):
    return not is_skipped(case) and (
        case.find("failure") is not None or case.get("status") != "run")


def output_of(case):
    return (case.findtext("system-out") or "").splitlines()


def why_skipped(case):
    """The line that gives the reason, not a sum behind it."""
    lines = output_of(case)
    return next((l.strip() for l in lines
                 if re.search(r"SKIP: |^skipped: ", l)),
                lines[-1].strip() if lines else "it does not say why")


class Failure:
    """What failed, what it said, and the command that repeats it."""

    def __init__(self, name, again, lines=()):
        self.name, self.again, self.lines = name, again, []
        for line in lines:
            self.say(line)

    def say(self, line):
        if not WELL.match(line):
            self.lines.append(line)


class Part:
    """One call of ctest: a preset, and what its tests are called after."""

    def __init__(self, preset, name, env):
        self.preset, self.name, self.env = preset, name, env

    def command(self, options):
        says = "".join(f"{k}={v} " for k, v in self.env.items())
        if self.preset == "tsan":
            says += "setarch -R "
        return f"{says}ctest --preset {self.preset} {options}"

    def failure(self, test, lines=()):
        return Failure(f"{self.name}/{test}",
                       self.command(f"-R '^{re.escape(test)}$'"), lines)


class Run:
    """What has happened until now."""

    def __init__(self, args):
        self.args = args
        self.jobs = os.environ.get("CKPTFS_JOBS") or str(
            2 * len(os.sched_getaffinity(0)))
        if not re.fullmatch("[1-9][0-9]*", self.jobs):
            print(f"run: CKPTFS_JOBS='{self.jobs}' is no number of tests",
                  file=sys.stderr)
            sys.exit(2)
        self.passed, self.failures, self.flaky = 0, [], []
        self.skips = []  # a line each
        self.begun = time.monotonic()
        self.part = None  # of ctest, that runs
        self.suspects = {}  # its tests that failed beside others: Failure
        self.reasons = {}  # what ctest says of them: ***Timeout
        self.ended = False  # by a signal
        self.begin("start")

    # --- programs ---

    def begin(self, step):
        self.step, self.said = step, []  # what runs now, and what it has said
        self.running = {}  # tests of it that have not ended: name -> None
        self.well = 0  # tests of it that have passed
        self.telling = None  # the suspect whose output comes
        print(f"\n== {step} ({time.monotonic() - self.begun:.0f} s)",
              flush=True)

    def call(self, argv, env=(), quiet=False):
        """The exit code of a program in a process group of its own, which ends
        with this one. Its output is printed, and kept in self.said."""
        with subprocess.Popen(
                argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, env={**os.environ, **dict(env)},
                start_new_session=True) as process:
            fd, self.unheard, more = process.stdout.fileno(), b"", True
            try:
                while more:
                    select.select([fd], [], [])  # a signal ends it here
                    lines, more = self.hear_some(fd)
                    if not quiet and lines:
                        print(*lines, sep="\n", flush=True)
            except Ended:
                self.ended = True
                end_group(process.pid)
                os.set_blocking(fd, False)
                with contextlib.suppress(BlockingIOError):
                    while self.hear_some(fd)[1]:
                        pass  # nobody who holds it open is waited for
                raise
        return process.returncode

    def hear_some(self, fd):
        """The lines that were said, and whether there may be more."""
        Held.on = True
        try:
            data = os.read(fd, 1 << 16)
            *lines, self.unheard = (self.unheard + data).split(b"\n")
            if not data and self.unheard:  # a last line without an end
                lines, self.unheard = [self.unheard], b""
            lines = [line.decode(errors="replace") for line in lines]
            for line in lines:
                self.hear(line)
        finally:
            Held.on = False
        if Held.came and not self.ended:
            raise Ended(Held.came)
        return lines, bool(data)

    def hear(self, line):
        self.said.append(line)
        begun, ended = BEGUN.match(line), ENDED.match(line)
        if not begun and not ended:
            if self.telling:
                self.telling.say(line)
            return
        self.telling = None
        if begun:
            self.running[begun[1]] = None
            return
        self.running.pop(ended[1], None)
        self.well += ended[2] == "Passed"
        if ended[2].startswith("***") and "Skipped" not in ended[2]:
            self.reasons[ended[1]] = ended[2].lstrip("*")
            self.telling = self.suspects.setdefault(
                ended[1], self.part.failure(ended[1]))

    # --- trees ---

    def set_up(self, options):
        self.begin("set-up")
        if self.call(["deploy/setup.sh", *options]) == 0:
            return True
        self.failures.append(Failure(
            "deploy/setup.sh", " ".join(["deploy/setup.sh", *options]),
            self.said))
        return False

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
                self.failures.append(Failure(f"build of {preset}", again,
                                             self.said))
                return False
        return True

    def ctest(self, options, report):
        """Its exit code, and its tests as it reports them, or None."""
        if os.path.exists(report):
            os.unlink(report)
        # The shadow memory of the thread sanitizer has a fixed place, which a
        # random layout may take.
        code = self.call(["setarch", os.uname().machine, "-R", "ctest",
                          "--preset", self.part.preset, "--output-junit",
                          report, *options], self.part.env)
        return code, cases_of(report)

    def count(self, part, options):
        done = subprocess.run(
            ["ctest", "--preset", part.preset, "-N", *options], check=False,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        found = re.search(r"^Total Tests: (\d+)", done.stdout, re.M)
        return int(found[1]) if found else 0

    def test(self, part, *options):
        options = list(options)
        if self.args.label:
            options += ["-L", f"^{re.escape(self.args.label)}$"]
        if self.args.test:
            options += ["-R", f"^{re.escape(self.args.test)}$"]
        count = self.count(part, options)
        if count == 0 and (self.args.label or self.args.test):
            return  # another part may have some
        self.part, self.suspects, self.reasons = part, {}, {}
        self.begin(f"testing {part.name}")
        with tempfile.TemporaryDirectory() as scratch:
            report = os.path.join(scratch, "tests.xml")
            code, cases = self.ctest(["-j", self.jobs, *options], report)
            if not cases or len(cases) != count:
                self.incomplete(count, code)
                return
            heard, self.suspects = self.suspects, {}
            for case in cases:
                if not self.judge(case):
                    self.suspect(case)
            if code != 0 and not self.suspects:
                self.suspects = heard
                self.incomplete(count, code)
                return
            is_tried = len(self.suspects) <= AGAIN_MAX
            while self.suspects:
                name, failure = next(iter(self.suspects.items()))
                if is_tried and self.passes_alone(name, report):
                    self.passed += 1
                    self.flaky.append(failure)
                else:
                    self.failures.append(failure)
                del self.suspects[name]

    def incomplete(self, count, code):
        """ctest has died, or has not run what it was to run."""
        self.passed += self.well
        self.failures += self.suspects.values()
        self.suspects = {}
        self.failures.append(Failure(
            f"ctest of {self.part.name}", self.part.command("").strip(),
            [*self.said[-20:], f"exit code {code}, {count} tests were chosen",
             *(f"still running: {name}" for name in self.running)]))

    def judge(self, case):
        """False: it has failed."""
        if has_failed(case):
            return False
        if is_skipped(case):
            self.skip(case.get("name"), "", why_skipped(case))
            return True
        self.passed += 1
        self.skip_parts(case)
        return True

    def skip_parts(self, case):
        """"skip - PART: SKIP: REASON", cmocka's "[  SKIPPED ] PART"."""
        found = map(re.compile(r"(?:skip - |\[  SKIPPED \] (?!.*test\(s\)))"
                               r"(.*?)(?:: SKIP: (.*))?$").match,
                    output_of(case))
        for part, why in dict.fromkeys(m.groups() for m in found if m):
            self.skip(case.get("name"), part.strip(), why or "skipped")

    def skip(self, name, part, why):
        """What CI may not skip is a failure there."""
        allowed = os.environ.get("CKPTFS_SKIP_OK", "").split()
        what = f"{self.part.name}/{name}{'/' if part else ''}{part}: {why}"
        self.skips.append(what)
        if os.environ.get("CI") == "true" and not any(
                fnmatch.fnmatchcase(n, pattern) for pattern in allowed
                for n in (name, f"{name}/{part}")):
            failure = self.part.failure(name, [f"skipped: {part}: {why}"])
            failure.name = f"{failure.name} was skipped, which CI must not"
            self.failures.append(failure)

    def suspect(self, case):
        name = case.get("name")
        lines = output_of(case)
        for kind in ("failure", "skipped"):
            if case.find(kind) is not None:
                lines.append(case.find(kind).get("message") or "")
        if self.reasons.get(name, "Failed") != "Failed":
            lines.append(f"ctest: {self.reasons[name]}")
        self.suspects[name] = self.part.failure(name, lines)

    def passes_alone(self, test, report):
        self.begin(f"{self.part.name}/{test} failed: again, {ALONE} times, "
                   "alone")
        code, cases = self.ctest(["-R", f"^{re.escape(test)}$", "--repeat",
                                  f"until-fail:{ALONE}"], report)
        if code != 0 or not cases or any(
                has_failed(c) or is_skipped(c) for c in cases):
            return False
        for case in cases:
            self.skip_parts(case)
        return True

    # --- the end ---

    def has_failed(self):
        return bool(self.failures) or \
            len(self.flaky) > (0 if self.args.strict else FLAKY_MAX)

    def interrupted(self, why):
        """What has failed is a failure: nobody runs it again."""
        if self.step.startswith("testing"):
            self.passed += self.well
        self.failures += self.suspects.values()
        self.failures.append(Failure(
            f"{why} ended this run", "tests/run.sh",
            [f"while {self.step}",
             *(f"still running: {name}" for name in self.running)]))

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
        for skipped in self.skips:
            print(f"skipped: {skipped}")
        if self.passed + len(self.failures) + len(self.skips) == 0:
            self.failures.append(Failure(
                "no test was chosen", "ctest --preset normal -N",
                [] if self.args.all else ["the gate has none: try --all"]))
        print(*last_lines(self.failures, self.flaky), sep="\n")
        print(f"total: {self.passed} passed, {len(self.failures)} failed, "
              f"{len(self.skips)} skipped", flush=True)
        return not self.has_failed()


def last_lines(failures, flaky):
    """What is to be seen of them in the last 40 lines: each one's name, as much
    of its last lines as there is room for, and the command that repeats it."""
    heads = [(f"FAILED {f.name}; again: {f.again}", f) for f in failures] + \
        [(f"FLAKY {f.name}; again: {f.again}", f) for f in flaky]
    room = LAST_LINES - 1  # the sum
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
    """What is tested: the hash of the tree, and whether more than it."""
    # Those of a hook lead to the repository whose hook it is.
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}

    def git(*argv):
        return subprocess.run(["git", *argv], check=True, text=True, env=env,
                              stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL).stdout.strip()
    try:
        dirty = git("status", "--porcelain")
        return git("rev-parse", "HEAD^{tree}") + (" dirty" if dirty else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown: no git repository"


def passed_as(run, before):
    """The line of build/passed."""
    after = tree_hash()
    line = before if after == before else f"{after.split()[0]} dirty"
    return f"{line}, {len(run.skips)} skipped" if run.skips else line


def closed_folder():
    """One above the tree that others may not look into, or None."""
    folder = os.getcwd()
    while os.stat(folder).st_mode & 0o001:
        if folder == os.path.dirname(folder):
            return None
        folder = os.path.dirname(folder)
    return folder


def everything(run):
    closed = closed_folder()
    if os.geteuid() == 0 and closed:
        run.failures.append(Failure(
            f"{os.getcwd()} lies in {closed}, which is closed to others, and "
            "tests act as other users: put it elsewhere", "tests/run.sh"))
        return
    if run.args.setup is not None and not run.set_up(run.args.setup.split()):
        return
    gate = ["-L", "^gate$"]
    if not run.build("normal"):
        return
    run.test(Part("normal", "normal", {}), *([] if run.args.all else gate))
    if not run.args.all or run.has_failed():
        return
    library = os.path.abspath("build/tests/jitter/libjitter.so")
    if not os.path.exists(library) or re.search(r"[\s:]", library):
        run.failures.append(Failure(
            "late", "tests/run.sh --all", [f"{library} cannot be preloaded"]))
        return
    run.test(Part("normal", "late", {
        "LD_PRELOAD": library, "CKPTFS_JITTER": "1",
        "CKPTFS_JITTER_RARELY": "4"}), "-L", "^unit$")
    for preset in ("asan", "tsan", "fuzz"):
        if run.has_failed() or not run.build(preset):
            return
        run.test(Part(preset, preset, {}))


def lock_build():
    """One run at a time in a tree."""
    os.makedirs("build", exist_ok=True)
    fd = os.open("build/.run", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit("run: another tests/run.sh runs in this tree")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--label")
    parser.add_argument("--test")
    parser.add_argument("--setup", help="options of deploy/setup.sh")
    args = parser.parse_args()
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    sys.stdout.reconfigure(errors="backslashreplace")
    lock_build()
    if os.path.exists("build/passed"):
        os.unlink("build/passed")
    run, before = Run(args), ""
    try:
        for number in ENDING:
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
                signal.signal(number, raise_ended)
        before = tree_hash()
        everything(run)
    except Ended as why:
        run.interrupted(why.args[0])
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    good = run.report()
    if good and not args.label and not args.test:
        with open("build/passed", "w", encoding="ascii") as f:
            print(passed_as(run, before), file=f)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
