"""run_selfcheck.py - what tests/run.py makes of trees whose tests pass, fail,
fail now and then, are skipped, and do not end, and soak.py of what it finds.
Each tree is a repository with a project of a few lines, whose tests are
commands of a shell."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

# Those of a hook lead to the repository whose hook it is.
ENV = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
HERE = os.path.dirname(os.path.abspath(__file__))
PRESETS = {
    "version": 3,
    "configurePresets": [{"name": "normal", "generator": "Ninja",
                          "binaryDir": "${sourceDir}/build"}],
    "buildPresets": [{"name": "normal", "configurePreset": "normal"}],
    "testPresets": [{"name": "normal", "configurePreset": "normal",
                     "output": {"outputOnFailure": True}}],
}
FINE = "echo fine"
WRONG = "for i in $(seq 99); do echo line $i; done; exit 1"
# The first time that it is run it fails.
ONCE = "[ -e $0.ran ] && exit 0; touch $0.ran; echo the first time; exit 1"
BOUND = 300  # seconds for a run, of which each takes less than two


class Tree:
    """A project in a scratch directory, committed: {test: (command, labels)}"""

    def __init__(self, base, tests, build=""):
        self.dir = tempfile.mkdtemp(dir=base)
        os.chmod(self.dir, 0o755)
        os.mkdir(os.path.join(self.dir, "tests"))
        for name in ("run.py", "soak.py"):
            shutil.copy(os.path.join(HERE, name),
                        os.path.join(self.dir, "tests"))
        lines = ["cmake_minimum_required(VERSION 3.22)", "project(x NONE)",
                 "enable_testing()", build]
        for name, test in tests.items():
            command, labels = test if isinstance(test, tuple) else \
                (test, "unit;gate")
            self.write(f"{name}.sh", command)
            lines.append(f"add_test(NAME {name} COMMAND sh "
                         f"${{CMAKE_SOURCE_DIR}}/{name}.sh)")
            lines.append(f"set_tests_properties({name} PROPERTIES LABELS "
                         f'"{labels}" SKIP_RETURN_CODE 77)')
        self.write("CMakeLists.txt", "\n".join(lines))
        self.write("CMakePresets.json", json.dumps(PRESETS))
        self.write(".gitignore", "/build*/\n*.ran\n")
        self.git("init", "-q")
        self.git("add", "-A")
        self.git("-c", "user.name=x", "-c", "user.email=x@x.example", "commit",
                 "-qm", "x")

    def git(self, *argv):
        return subprocess.run(["git", *argv], cwd=self.dir, check=True,
                              env=ENV, text=True,
                              capture_output=True).stdout.strip()

    def write(self, name, text):
        with open(os.path.join(self.dir, name), "w", encoding="utf-8") as f:
            f.write(text)

    def passed(self):
        try:
            with open(os.path.join(self.dir, "build/passed"),
                      encoding="ascii") as f:
                return f.read().strip()
        except FileNotFoundError:
            return None

    def start(self, *options, program="tests/run.py", **env):
        return subprocess.Popen(
            [sys.executable, "-B", program, *options], cwd=self.dir,
            env={**ENV, "CI": "", "CKPTFS_SKIP_OK": "", **env},
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run(self, *options, code, **env):
        """The last 40 lines that it says."""
        return last_lines(self.start(*options, **env), code)


def last_lines(process, code):
    said, _ = process.communicate(timeout=BOUND)
    last = said.splitlines()[-40:]
    assert process.returncode == code, said
    assert re.fullmatch(r"total: \d+ passed, \d+ failed, \d+ skipped",
                        last[-1]), said
    return last


def a_tree_that_passes_has_its_hash_written_down(base):
    tree = Tree(base, {"fine": FINE, "aside": (WRONG, "unit")})
    assert tree.run(code=0)[-1] == "total: 1 passed, 0 failed, 0 skipped"
    assert tree.passed() == tree.git("rev-parse", "HEAD^{tree}")
    tree.write("more", "x")
    tree.run(code=0)
    assert tree.passed() == tree.git("rev-parse", "HEAD^{tree}") + " dirty"
    os.unlink(os.path.join(tree.dir, "build/passed"))
    tree.run("--test", "fine", code=0)
    assert tree.passed() is None, "that was a part of it"
    tree = Tree(base, {"fine": "echo x >>../CMakeLists.txt",
                       "aside": "echo SKIP: that; exit 77"})
    tree.run(code=0)
    assert tree.passed() == tree.git("rev-parse", "HEAD^{tree}") + \
        " dirty, 1 skipped", tree.passed()


def a_failed_test_is_named_with_its_last_lines_and_what_repeats_it(base):
    tree = Tree(base, {"fine": FINE, "wrong": WRONG})
    last = tree.run(code=1)
    head = "FAILED normal/wrong; again: ctest --preset normal -R '^wrong$'"
    at = last.index(head)
    assert [l.strip() for l in last[at + 1:at + 16]] == \
        [f"line {n}" for n in range(85, 100)], last
    assert last[-1] == "total: 1 passed, 1 failed, 0 skipped"
    assert tree.passed() is None


def many_that_fail_are_all_named(base):
    names = [f"wrong_{n}" for n in range(30)]
    last = "\n".join(Tree(base, {n: WRONG for n in names}).run(code=1))
    assert all(f"FAILED normal/{n};" in last for n in names), last


def what_fails_beside_others_and_passes_alone_is_flaky(base):
    tree = Tree(base, {"fine": FINE, "a": ONCE, "b": ONCE})
    last = tree.run(code=0)
    assert last[-1] == "total: 3 passed, 0 failed, 0 skipped"
    for name in "ab":
        assert f"FLAKY normal/{name}; again: ctest --preset normal -R " \
            f"'^{name}$'" in last, last
    assert last.count("    the first time") == 2, last
    assert tree.passed()
    Tree(base, {"a": ONCE}).run("--strict", code=1)
    tree = Tree(base, {name: ONCE for name in "abc"})
    tree.run(code=1)
    assert tree.passed() is None


def what_fails_again_alone_is_a_failure(base):
    for passes in ("-ge 2", "-lt 3 -a $n -gt 0"):  # the last of the three
        Tree(base, {"a": f"n=$(cat $0.ran); echo $((n + 1)) >$0.ran; "
                         f"n=${{n:-0}}; [ $n {passes} ]"}).run(code=1)


def what_is_skipped_alone_has_not_passed_there(base):
    for how in ("echo SKIP: gone; exit 77",):
        Tree(base, {"a": f"[ -e $0.ran ] && {{ {how}; }}; touch $0.ran; "
                         "exit 1"}).run(code=1)


def what_cannot_be_started_is_a_failure(base):
    tree = Tree(base, {"fine": FINE},
                "add_test(NAME gone COMMAND /nowhere/gone)\n"
                "set_tests_properties(gone PROPERTIES LABELS gate)")
    last = "\n".join(tree.run(code=1))
    assert "FAILED normal/gone; again: " in last, last
    assert tree.passed() is None


def how_a_test_ended_is_said(base):
    tree = Tree(base, {"dies": "echo before; kill -SEGV $$"},
                "add_test(NAME late COMMAND sleep 1000)\n"
                "set_tests_properties(late PROPERTIES LABELS gate TIMEOUT 1)")
    last = "\n".join(tree.run(code=1))
    assert "ctest: Timeout" in last, last
    assert "ctest: Exception: SegFault" in last, last


def a_ctest_that_dies_is_told_with_what_it_ran(base):
    tree = Tree(base, {"a": WRONG, "b": "kill -9 $PPID; exec sleep 1"})
    last = "\n".join(tree.run(code=1, CKPTFS_JOBS="1"))
    assert "FAILED normal/a; again: " in last, last
    assert "FAILED ctest of normal; again: " in last, last
    assert "still running: b" in last and "exit code -9" in last, last


def what_is_skipped_fails_ci_alone(base):
    tests = {"a": "echo SKIP: no such thing; echo 1 skipped; exit 77",
             "b": "echo 'skip - auto part: SKIP: no device'"}
    tree = Tree(base, tests)
    assert tree.run(code=0)[-1] == "total: 1 passed, 0 failed, 2 skipped"
    last = "\n".join(tree.run(code=1, CI="true"))
    assert "FAILED normal/a was skipped, which CI must not; again: " in last
    assert "skipped: : SKIP: no such thing" in last, last
    assert "FAILED normal/b was skipped, which CI must not; again: " in last
    assert "skipped: auto part: no device" in last, last
    tree.run(code=0, CI="true", CKPTFS_SKIP_OK="a b/*")


def a_build_that_fails_is_named(base):
    build = "add_custom_target(x ALL COMMAND sh -c \"echo why; exit 1\")"
    last = "\n".join(Tree(base, {"fine": FINE}, build).run(code=1))
    assert "FAILED build of normal; again: cmake --preset normal && " \
        "cmake --build --preset normal" in last, last
    assert "why" in last and "0 passed" in last, last


def a_run_in_which_nothing_is_chosen_fails(base):
    tree = Tree(base, {"fine": FINE, "aside": (FINE, "tidy")})
    tree.run("--label", "tidy", code=1)
    tree.run("--label", "nothing", code=1)
    tree.run("--test", "none", code=1)
    for jobs in ("foo", "0", "-3", "1 2"):
        process = tree.start(CKPTFS_JOBS=jobs)
        said, _ = process.communicate(timeout=BOUND)
        assert process.returncode == 2 and "CKPTFS_JOBS" in said, said


def a_second_run_in_a_tree_is_refused(base):
    tree = Tree(base, {"a": "echo begun >$0.fifo; cat $0.fifo"})
    fifo = os.path.join(tree.dir, "a.sh.fifo")
    os.mkfifo(fifo)
    first = tree.start()
    with open(fifo, encoding="ascii") as f:
        assert f.read() == "begun\n"
    second = tree.start()
    said, _ = second.communicate(timeout=BOUND)
    assert second.returncode == 1 and "another tests/run.sh" in said, said
    with open(fifo, "w", encoding="ascii") as f:
        f.write("go\n")
    last_lines(first, 0)
    assert tree.passed()


def a_tree_that_others_may_not_look_into_is_refused(base):
    if os.geteuid() != 0:
        return
    tree = Tree(base, {"fine": FINE})
    os.chmod(tree.dir, 0o700)
    last = "\n".join(tree.run(code=1))
    assert f"{tree.dir} lies in {tree.dir}, which is closed to others" in last


def wrong_arguments_are_refused(base):
    del base
    for name in ("run.sh", "soak.sh"):
        for code, *argv in ((2, "--nonsense"), (2, "more"), (0, "--help")):
            done = subprocess.run([os.path.join(HERE, name), *argv],
                                  capture_output=True, check=False, text=True,
                                  env=ENV, timeout=BOUND)
            assert done.returncode == code, (name, argv, done)
            assert "--help" in done.stdout + done.stderr, (name, argv, done)
    for name, *argv in (("run.sh", "--label"), ("soak.sh", "--rounds", "x"),
                        ("soak.sh", "--only", "nothing")):
        done = subprocess.run([os.path.join(HERE, name), *argv], check=False,
                              capture_output=True, env=ENV, timeout=BOUND)
        assert done.returncode == 2, (name, argv, done)


# Of its schedules two are wrong.
SIMULATOR = """
while [ $# -gt 0 ]; do
	case $1 in --seed) seed=$2 ;; --count) count=$2 ;; esac
	shift
done
for wrong in 1003 1004; do
	if [ $seed -le $wrong ] && [ $wrong -lt $((seed + count)) ]; then
		echo "FOUND at point 7, 0.1 s: torn"
		echo "FAILED: seed $wrong, after 1 seeds"
		exit 1
	fi
done
echo $seed $count >>tried.ran
"""


def a_soak_writes_down_what_it_finds_and_goes_on(base):
    tree = Tree(base, {"fine": FINE})
    os.mkdir(os.path.join(tree.dir, "tests/sim"))
    tree.write("tests/sim/run", "#!/bin/sh" + SIMULATOR)
    os.chmod(os.path.join(tree.dir, "tests/sim/run"), 0o755)
    process = tree.start("--rounds", "1", "--seed", "1000", "--only", "store",
                         program="tests/soak.py")
    said, _ = process.communicate(timeout=BOUND)
    assert process.returncode == 1 and "1 rounds, 2 found" in said, said
    found = os.path.join(tree.dir, "found")
    heads = []
    for name in sorted(os.listdir(found)):
        with open(os.path.join(found, name), encoding="utf-8") as f:
            heads.append(f.read().splitlines()[:5])
    commit = tree.git("rev-parse", "--short=12", "HEAD")
    for head, seed in zip(sorted(heads), (1003, 1004), strict=True):
        assert head == [f"commit: {commit}", "kind: store",
                        f"seed: {seed}",
                        f"again: tests/sim/run --seed {seed}",
                        "found: FOUND at point 7, 0.1 s: torn"], head
    with open(os.path.join(tree.dir, "tried.ran"), encoding="ascii") as f:
        tried = sorted(tuple(map(int, line.split())) for line in f)
    assert tried[0] == (1005, 245) and tried[-1] == (4750, 250), tried
    process = tree.start("--rounds", "1", "--seed", "9000", "--only", "store",
                         program="tests/soak.py")
    said, _ = process.communicate(timeout=BOUND)
    assert process.returncode == 0 and "1 rounds, 0 found" in said, said


def a_signal_ends_it_with_what_failed_until_then(base):
    tree = Tree(base, {"a": WRONG, "aa": FINE, "b":
                       "trap 'sleep 1; touch $0.ran; exit 1' TERM\n"
                       "echo begun >$0.fifo; sleep 1000 & wait"})
    begun = os.path.join(tree.dir, "b.sh.fifo")
    os.mkfifo(begun)
    process = tree.start(CKPTFS_JOBS="1")
    for line in process.stdout:
        if re.search(r"Start +\d+: ", line):
            break
    process.send_signal(signal.SIGSTOP)  # it has heard nothing when it ends
    with open(begun, encoding="ascii") as f:
        assert f.read() == "begun\n"
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)
    last = "\n".join(last_lines(process, 1))
    assert "FAILED normal/a; again: ctest --preset normal -R '^a$'" in last
    assert "line 99" in last, last
    assert "SIGTERM ended this run" in last and "still running: b" in last, last
    assert last.endswith("total: 1 passed, 2 failed, 0 skipped"), last
    assert os.path.exists(os.path.join(tree.dir, "b.sh.ran")), \
        "it had no time to clean up"


LINE_IN_HAND = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import run

class Told(run.Run):
    def hear(self, line):
        if line == "3":  # it was read, and nobody has it yet
            os.kill(os.getpid(), signal.SIGTERM)
        super().hear(line)

signal.signal(signal.SIGTERM, run.raise_ended)
told = Told(None)
try:
    told.call(["seq", "5"])
    sys.exit("it did not end")
except run.Ended as why:
    assert why.args == ("SIGTERM",), why
assert told.said == list("12345"), told.said
"""


def a_signal_loses_no_line_that_was_read(_):
    done = subprocess.run([sys.executable, "-c", LINE_IN_HAND, HERE], text=True,
                          capture_output=True, check=False, timeout=BOUND)
    assert done.returncode == 0, done.stderr


def a_signal_while_one_is_run_again_loses_no_other_one(base):
    waits = "[ -e $0.ran ] && exec sleep 1000; touch $0.ran; exit 1"
    tree = Tree(base, {"a": waits, "b": WRONG, "c": WRONG})
    process = tree.start()
    for line in process.stdout:
        if "normal/a failed: again" in line:
            break
    process.send_signal(signal.SIGTERM)
    last = "\n".join(last_lines(process, 1))
    assert all(f"FAILED normal/{name};" in last for name in "abc"), last
    assert last.endswith("total: 0 passed, 4 failed, 0 skipped"), last


def main():
    tests = [a_tree_that_passes_has_its_hash_written_down,
             a_failed_test_is_named_with_its_last_lines_and_what_repeats_it,
             many_that_fail_are_all_named,
             what_fails_beside_others_and_passes_alone_is_flaky,
             what_fails_again_alone_is_a_failure,
             what_is_skipped_alone_has_not_passed_there,
             what_cannot_be_started_is_a_failure,
             how_a_test_ended_is_said,
             a_ctest_that_dies_is_told_with_what_it_ran,
             what_is_skipped_fails_ci_alone,
             a_build_that_fails_is_named,
             a_run_in_which_nothing_is_chosen_fails,
             a_second_run_in_a_tree_is_refused,
             a_tree_that_others_may_not_look_into_is_refused,
             wrong_arguments_are_refused,
             a_soak_writes_down_what_it_finds_and_goes_on,
             a_signal_loses_no_line_that_was_read,
             a_signal_ends_it_with_what_failed_until_then,
             a_signal_while_one_is_run_again_loses_no_other_one]
    base = tempfile.mkdtemp(prefix="run-selfcheck-")
    os.chmod(base, 0o755)
    try:
        for test in tests:
            test(base)
            print(f"ok   - {test.__name__}", flush=True)
    finally:
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
