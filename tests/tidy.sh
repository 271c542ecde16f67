#!/bin/bash
#
# tidy.sh - clang-tidy over store, fuse and gpu, with the checks of .clang-tidy.
#
# It reads the compile_commands.json of a tree that was built, takes each file
# once, and runs on all cores. What it finds it prints; then it fails.

set -euo pipefail

usage() {
	cat <<-'END'
	usage: tests/tidy.sh [--build DIR] [FILE...]

	  --build DIR  a tree with compile_commands.json (build)
	  FILE         only these, such as store/db/kv.c

	exit code: 0 nothing was found; 1 something was; 2 wrong usage;
	77 there is no clang-tidy
	END
}

die() {
	local code=$1
	shift
	printf 'tidy: %s\n' "$*" >&2
	exit "$code"
}

build=build
while [[ ${1-} == -* ]]; do
	case $1 in
	--build)
		[[ ${2-} ]] || die 2 "--build needs a directory"
		build=$2
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
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v clang-tidy >/dev/null || die 77 "skip: there is no clang-tidy"
[[ -e $build/compile_commands.json ]] ||
	die 2 "$build has no compile_commands.json: cmake --preset normal"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The simulator compiles the store once more: one command for each file is
# enough. hash_variant.c is xxHash alone, whose headers are not ours.
mapfile -t files < <(python3 - "$build" "$work" "$@" <<-'END'
	import json, os, sys
	here, wanted = os.getcwd() + "/", sys.argv[3:]
	with open(sys.argv[1] + "/compile_commands.json") as f:
	    commands = {entry["file"].removeprefix(here): entry
	                for entry in reversed(json.load(f))}
	chosen = [name for name in sorted(commands)
	          if (name in wanted if wanted else
	              name.startswith(("store/", "fuse/", "gpu/")) and
	              not name.endswith("/hash_variant.c"))]
	with open(sys.argv[2] + "/compile_commands.json", "w") as f:
	    json.dump([commands[name] for name in chosen], f)
	for name in chosen:
	    print(name)
END
)
((${#files[@]} > 0 && ${#files[@]} >= $#)) || die 2 "$build does not build $*"

code=0
printf '%s\0' "${files[@]}" |
	xargs -0 -n 1 -P "$(nproc)" clang-tidy -p "$work" --quiet \
		>"$work/found" 2>"$work/said" || code=1
cat "$work/found"
if ((code)) && [[ ! -s $work/found ]]; then tail -n 20 "$work/said" >&2; fi
if ((code)); then die 1 "see above: found in ${#files[@]} files"; fi
printf 'tidy: nothing found in %d files\n' "${#files[@]}"
