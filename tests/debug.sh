#!/bin/bash
#
# debug.sh - one test in a debugger.
#
# A C program of ctest is started in gdb. A mount or trainer test, which is
# Python, runs beside gdb, and each daemon that it starts stops before it begins
# until gdb has it: there, the test waits without a bound.

set -euo pipefail

usage() {
	cat <<-'END'
	usage: tests/debug.sh [--preset P] TEST [ARGUMENT...]

	Builds the tree and starts TEST, a name that `ctest --preset P -N` lists. What
	follows goes to the test: -k CASE for one case of a mount test.

	  --preset P  a tree of CMakePresets.json (debug: without optimization)
	  --help      this text

	GDB  the debugger with its options: GDB="gdb -batch -ex run -ex bt"

	exit code: the debugger's; 1 the build failed or there is no such test;
	2 wrong usage
	END
}

die() {
	local code=$1
	shift
	printf 'debug: %s\n' "$*" >&2
	exit "$code"
}

preset=debug
while [[ ${1-} == -* ]]; do
	case $1 in
	--preset)
		[[ ${2-} ]] || die 2 "--preset needs a name"
		preset=$2
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
(($#)) || die 2 "name a test (see --help)"
name=$1
shift
cd "$(dirname "${BASH_SOURCE[0]}")/.."
gdb=()
eval "gdb=(${GDB:-gdb})" # so that options may be quoted

log=$(mktemp -d)
trap 'rm -rf "$log"' EXIT
{
	cmake --preset "$preset" && cmake --build --preset "$preset"
} >"$log/build" 2>&1 || {
	tail -n 20 "$log/build" >&2
	die 1 "the build of $preset failed"
}

# The test's environment and command, each ended by a NUL.
ctest --preset "$preset" --show-only=json-v1 >"$log/tests"
mapfile -d '' command < <(python3 - "$name" "$log/tests" <<-'END'
	import json, sys
	for test in json.load(open(sys.argv[2]))["tests"]:
	    if test["name"] == sys.argv[1]:
	        for one in test["properties"]:
	            if one["name"] == "ENVIRONMENT":
	                print(*one["value"], sep="\0", end="\0")
	        print(*test["command"], sep="\0", end="\0")
	END
)
((${#command[@]})) || {
	ctest --preset "$preset" -N -R "$name" | grep -o 'Test *#.*' >&2 || true
	die 1 "$preset has no test '$name'"
}
while [[ ${command[0]} == *=* ]]; do
	export "${command[0]}"
	command=("${command[@]:1}")
done
# Leaks cannot be looked for in a process that is traced.
export ASAN_OPTIONS=detect_leaks=0:${ASAN_OPTIONS-}

if [[ ${command[0]} != *python3* ]]; then
	code=0
	"${gdb[@]}" --args "${command[@]}" "$@" || code=$?
	exit "$code"
fi

mkfifo "$log/daemons"
export CKPTFS_TEST_DEBUGGED=$log/daemons CKPTFS_TEST_TIMEOUT=86400
{
	"${command[@]}" "$@" || true
	echo end >"$log/daemons"
} &
code=0
while read -r pid <"$log/daemons" && [[ $pid != end ]]; do
	printf 'debug: daemon %s: set breakpoints after its exec, then continue\n' \
		"$pid"
	"${gdb[@]}" -p "$pid" -ex 'handle SIGSTOP nostop noprint nopass' \
		-ex 'catch exec' -ex continue || code=$?
	kill -CONT "$pid" 2>/dev/null || true # when gdb let it go at once
done
wait
exit "$code"
