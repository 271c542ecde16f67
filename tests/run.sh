#!/bin/bash
#
# run.sh - the tests: what CI runs, and with --all what else there is.
#
# Keeps true: on one tree it says the same each time. The gate, which is what it
# runs without --all, draws no fresh seeds and measures no time. Exit code 0
# means that the tree was built with warnings as errors, that every test which
# was chosen ran or was skipped for what the machine lacks, and that none failed
# when it ran alone. The last 40 lines are enough where the rest was cut off,
# also when a signal ends the run. tests/run.py sets the machine up, builds,
# tests and reports.
#
# All of it has a mount namespace of its own, so that the mounts of the tests are
# seen by nobody else, and nobody who copies the machine's mounts keeps them.
set -euo pipefail

usage() {
	cat <<-'END'
	usage: tests/run.sh [--all] [--strict] [--label L] [--test NAME] [--help]

	Without --all: the gate. It builds the tree and runs the tests that say the
	same each time.

	  --all        then all other tests: real CephFS and MooseFS, sanitizers,
	               late threads, fuzzers, damage, clang-tidy; an hour
	  --strict     a test that fails beside others and passes alone is a failure
	  --label L    only tests with this label: unit, sim, mount, crash, fuzz...
	  --test NAME  only this test, as ctest names it (with --all: of each tree)

	CKPTFS_PREFIX   where deploy/setup.sh puts a newer libfuse (/opt/ckptfs)
	CKPTFS_VENV     where the Python with torch is kept between runs
	CKPTFS_SKIP_OK  tests that CI may skip: names or patterns, with spaces
	CKPTFS_JOBS     how many tests run at once (twice the number of cores: half
	                of their time they wait, for a disk or for each other)

	A test that fails beside others is run again alone, three times. If it passes
	it is FLAKY: the last lines say so, and more than two of them are a failure.
	A run of the whole gate that passes writes the tree's hash to build/passed.
	One run at a time in a tree.

	exit code: 0 all passed; 1 a step or a test failed; 2 wrong usage
	END
}

die() {
	local code=$1
	shift
	printf 'run: %s\n' "$*" >&2
	exit "$code"
}

given=("$@") options=()
setup=(--trainer)
while (($#)); do
	case $1 in
	--all)
		options+=(--all)
		setup=(--trainer --fuzz --clusters)
		;;
	--strict) options+=(--strict) ;;
	--label | --test)
		[[ ${2-} ]] || die 2 "$1 needs a name"
		options+=("$1" "$2")
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
# Slaves of the machine's mounts, as it may unmount what it likes; shared below
# that, so that a copy which a test takes loses what is unmounted here.
if [[ $EUID -eq 0 && ! ${CKPTFS_RUN_MOUNTS-} ]] &&
	unshare --mount --propagation slave true 2>/dev/null; then
	export CKPTFS_RUN_MOUNTS=own
	# shellcheck disable=SC2016 # expanded in there
	exec unshare --mount --propagation slave sh -ec \
		'mount --make-rshared /; exec "$0" "$@"' "$root/tests/run.sh" "${given[@]}"
fi
exec </dev/null
export CKPTFS_PREFIX=${CKPTFS_PREFIX:-/opt/ckptfs}
export CKPTFS_VENV=${CKPTFS_VENV:-/var/cache/ckptfs/venv}
# Where there is no Python yet; else run.py does it, and reports how it ends.
command -v python3 >/dev/null || deploy/setup.sh "${setup[@]}" ||
	die 1 "deploy/setup.sh failed"
exec python3 -B tests/run.py --setup="${setup[*]}" "${options[@]}"
