#!/bin/bash
#
# faults.sh - does the simulator find what was found by hand before? Each patch
# in faults/ puts one old fault back into a copy of the tree; the simulator runs
# on it until it finds something.
#
# usage: tests/sim/faults.sh [--check | [--rare | --nodes] [--seconds S]] [PATTERN]
#   --check  only look whether the patches apply: builds nothing, needs no git
#   --rare   with the plans of ckpt_sim --rare
#   --nodes  those of several nodes, in faults/nodes/
#   S  for each fault, 120 by default; PATTERN: names of patches (all)
#
# Prints a line for each: fault, the seed from 1 on, seconds, what was found. What
# the tree finds without the patch does not count. Exit code 0: all
# were found; 1: one was not, or does not apply any more.
set -euo pipefail

seconds=120 check='' rare=() program=ckpt_sim faults=tests/sim/faults
while :; do
	case ${1-} in
	--check) check=1 ;;
	--rare) rare=(--rare) ;;
	--nodes) program=ckpt_sim_nodes faults=tests/sim/faults/nodes ;;
	--seconds)
		seconds=$2
		shift
		;;
	*) break ;;
	esac
	shift
done
pattern=${1-*}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

# With lines that have become others a patch might go to another place.
apply() {
	local tree=$1 patch=$2
	shift 2
	patch -d "$tree" -p1 -F0 -r - -s --no-backup-if-mismatch "$@" <"$patch"
}

if [[ $check ]]; then
	lost=0
	for patch in "$root"/tests/sim/faults/{,nodes/}$pattern.patch; do
		[[ -e $patch ]] || continue
		apply "$root" "$patch" --dry-run -f && continue
		printf '%s: does not apply any more: make it anew\n' \
			"${patch#"$root"/}"
		lost=1
	done
	exit $lost
fi

work=$root/build/faults # used again by the next run
failed=0

# The tree as it is, and a build of it: only what a patch touches is built anew.
mkdir -p "$work"
while IFS= read -r -d '' file; do
	cmp -s "$root/$file" "$work/$file" ||
		(cd "$root" && cp --parents -t "$work" "$file")
done < <(git -C "$root" ls-files -z CMakeLists.txt CMakePresets.json store fuse gpu tests deploy)
cmake -S "$work" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	-DCKPTFS_PREFIX="${CKPTFS_PREFIX:-/opt/ckptfs}" -DCKPTFS_TESTS=ON \
	-DCMAKE_C_COMPILER_LAUNCHER="$(command -v ccache || true)" >"$work/log" 2>&1 ||
	{ cat "$work/log"; exit 1; }

build() { cmake --build "$work/build" --target "$program" >"$work/log" 2>&1; }

sim=$work/build/tests/sim/$program
build || { cat "$work/log"; exit 1; }
cp "$sim" "$work/sane"

# Seeds from 1 until one finds what the sane tree does not have. Prints a line.
hunt() {
	local name=$1 seed=1 end=$((SECONDS + seconds)) begin=$SECONDS
	while ((SECONDS < end)); do
		if "$sim" "${rare[@]}" --seed "$seed" --count 1000000 \
			--seconds $((end - SECONDS)) >"$work/out" 2>&1; then
			seed=$((seed + $(sed -n 's/^\([0-9]*\) seeds in.*/\1/p' "$work/out")))
			break
		fi
		seed=$(sed -n 's/^FAILED: seed \([0-9]*\),.*/\1/p' "$work/out")
		if "$work/sane" "${rare[@]}" --seed "$seed" >/dev/null 2>&1; then
			printf '%-34s %8s %8s  %s\n' "$name" "$seed" \
				$((SECONDS - begin)) "$(grep -m1 -E \
					'FOUND|broken inv|Aborted|Segm|Alarm' \
					"$work/out" | sed 's/.* s: //' | cut -c1-90)"
			return 0
		fi
		seed=$((seed + 1))
	done
	printf '%-34s %8s %8s  %s\n' "$name" "$seed" "$seconds" 'NOT FOUND'
	return 1
}

printf '%-34s %8s %8s  %s\n' fault seed seconds found
for patch in "$root/$faults"/$pattern.patch; do
	name=$(basename "$patch" .patch)
	if ! apply "$work" "$patch" --dry-run -f >/dev/null 2>&1; then
		printf '%-34s %8s %8s  %s\n' "$name" - - 'DOES NOT APPLY'
		failed=1
		continue
	fi
	apply "$work" "$patch"
	if build; then
		hunt "$name" || failed=1
	else
		printf '%-34s %8s %8s  %s\n' "$name" - - 'DOES NOT BUILD'
		grep -m3 error "$work/log" || true
		failed=1
	fi
	apply "$work" "$patch" -R
done
exit $failed
