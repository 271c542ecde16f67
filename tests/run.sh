#!/bin/bash
#
# run.sh - everything that CI runs: set-up, builds with warnings as errors, and
# the tests in each of them.
#
# Keeps true: exit 0 means that every tree was built, every test that was
# chosen ran, and none failed. What was skipped is listed with its reason in
# the last lines; with CI=true it is a failure unless CKPTFS_SKIP_OK names it,
# so that a machine that lost a feature cannot turn the tests green. The trees
# are folders of the repository and are used again by the next run:
#
#   build       as delivered; every test
#   build-asan  address and undefined behaviour: unit, mount and fuzz tests
#   build-tsan  data races: unit tests
#   build-fuzz  clang and its libFuzzer: fuzz tests

set -euo pipefail

usage() {
	cat <<-'END'
	usage: tests/run.sh [--quick] [--label L] [--help]

	  --quick    only the preset 'normal': no sanitizers, no fuzzers
	  --label L  only tests with this label: unit, sim, mount, crash, fuzz...

	CKPTFS_PREFIX   where deploy/setup.sh puts a newer libfuse (/opt/ckptfs)
	CKPTFS_VENV     where the Python with torch is kept between runs
	CKPTFS_SKIP_OK  tests that CI may skip: names or patterns, with spaces
	CKPTFS_JOBS     how many tests run at once (twice the number of cores: half
	                of their time they wait, for a disk or for each other)
	CKPTFS_SIM_SECONDS  how long each core tries fresh seeds (100)
	CKPTFS_SIM_NODES_SECONDS  the same of several nodes (10)

	exit code: 0 all passed; 1 a step or a test failed; 2 wrong usage
	END
}

die() {
	local code=$1
	shift
	printf 'run: %s\n' "$*" >&2
	exit "$code"
}

quick='' label=''
while (($#)); do
	case $1 in
	--quick) quick=yes ;;
	--label)
		[[ ${2-} ]] || die 2 "--label needs a name"
		label=$2
		shift
		;;
	-h | --help)
		usage
		exit 0
		;;
	*) die 2 "unknown argument '$1' (see --help)" ;;
	esac
	shift
done

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
exec </dev/null
export CKPTFS_PREFIX=${CKPTFS_PREFIX:-/opt/ckptfs}
export CKPTFS_VENV=${CKPTFS_VENV:-/var/cache/ckptfs/venv}
jobs=${CKPTFS_JOBS:-$((2 * $(nproc)))}
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
failed=0

step() { printf '\n== %s (%d s)\n' "$*" "$SECONDS"; }

# build_tree PRESET
build_tree() {
	step "building $1"
	cmake --preset "$1" -DCKPTFS_PREFIX="$CKPTFS_PREFIX" \
		>"$results/cmake.log" 2>&1 || {
		cat "$results/cmake.log"
		die 1 "cmake failed for $1"
	}
	cmake --build --preset "$1" || die 1 "the build failed for $1"
}

# test_tree PRESET: a tree without one chosen test is passed by; that no tree
# had one is seen at the end. setarch: the shadow memory of the thread sanitizer
# has a fixed place, which a random layout may take.
test_tree() {
	local preset=$1 chosen
	shift
	if [[ $label ]]; then set -- -L "^$label\$"; fi
	chosen=$(ctest --preset "$preset" -N "$@" | sed -n 's/^Total Tests: //p')
	if ((chosen == 0)); then return; fi
	step "testing $preset"
	setarch "$(uname -m)" -R ctest --preset "$preset" -j "$jobs" \
		--output-junit "$results/$preset.xml" "$@" || failed=1
}

# One line for each skipped test or part of one, then the sum of all trees.
# Exit 1 when something failed, was skipped and must not be, or nothing ran.
summary() {
	python3 - "$results" <<-'END'
	import fnmatch, glob, os, re, sys
	import xml.etree.ElementTree as xml

	allowed = os.environ.get("CKPTFS_SKIP_OK", "").split()
	strict = os.environ.get("CI") == "true"
	passed = failed = 0
	skips = []  # (tree, test, part or "", reason)
	for path in sorted(glob.glob(sys.argv[1] + "/*.xml")):
	    tree = os.path.basename(path)[:-len(".xml")]
	    for case in xml.parse(path).getroot().iter("testcase"):
	        name = case.get("name")
	        lines = (case.findtext("system-out") or "").splitlines()
	        if case.find("skipped") is not None:
	            why = [l for l in lines if "skip" in l.lower()] or lines or ["?"]
	            skips.append((tree, name, "", why[-1].strip()))
	            continue
	        if case.find("failure") is None and case.get("status") == "run":
	            passed += 1
	        else:
	            failed += 1
	        # Parts: "skip - PART: SKIP: REASON", cmocka's "[  SKIPPED ] PART".
	        for part, why in dict.fromkeys(
	                m.groups() for m in map(re.compile(
	                    r"(?:skip - |\[  SKIPPED \] (?!.*test\(s\)))"
	                    r"(.*?)(?:: SKIP: (.*))?$").match, lines) if m):
	            skips.append((tree, name, part.strip(), why or "skipped"))
	refused = 0
	for tree, name, part, why in skips:
	    ok = not strict or any(fnmatch.fnmatchcase(n, p) for p in allowed
	                           for n in (name, f"{name}/{part}"))
	    refused += not ok
	    print(f"skipped{'' if ok else ', which CI must not'}: "
	          f"{tree}/{name}{'/' if part else ''}{part}: {why}")
	if passed + failed == 0:
	    print("no test was run")
	print(f"{len(skips)} skipped")
	print(f"total: {passed} passed, {failed} failed, {len(skips)} skipped")
	sys.exit(1 if failed or refused or passed + failed == 0 else 0)
	END
}

step "set-up"
deploy/setup.sh --fuzz --trainer || die 1 "deploy/setup.sh failed"

# simulate: schedules that nobody has seen before this change of store/. What
# fails says how to see it again.
simulate() {
	local seconds=${CKPTFS_SIM_SECONDS:-100}
	local nodes=${CKPTFS_SIM_NODES_SECONDS:-10}
	if [[ $label && $label != sim ]]; then return; fi
	step "simulating for $seconds s"
	tests/sim/run --of-tree --jobs "$(nproc)" --seconds "$seconds" || failed=1
	step "simulating several nodes for $nodes s"
	tests/sim/run --nodes --of-tree --jobs "$(nproc)" --seconds "$nodes" ||
		failed=1
}

build_tree normal
test_tree normal
simulate
if [[ ! $quick && ${label:-unit} =~ ^(unit|mount|fuzz)$ ]]; then
	for preset in asan tsan fuzz; do
		build_tree "$preset"
		test_tree "$preset"
	done
fi

step "result"
summary || failed=1
exit "$failed"
