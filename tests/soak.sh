#!/bin/bash
#
# soak.sh - looks for what nobody has seen: fresh seeds, late threads, kills and
# damage, round after round. It is a search and no gate: what it finds is written
# to found/, and it goes on. tests/soak.py says what a round is.
set -euo pipefail

usage() {
	cat <<-'END'
	usage: tests/soak.sh [--hours H | --rounds N] [--seed S] [--only KIND] [--help]

	  --hours H    begin no round after so many hours (1)
	  --rounds N   so many rounds, however long they take
	  --seed S     the first round's seed; without it, a fresh one
	  --only KIND  of each round only this: store, rare, nodes, late, kills,
	               damage or fuzz

	A round tries the same number of cases on any machine. Each find is a file in
	found/: the commit, the seed, what was found, and the command that repeats it.

	exit code: 0 nothing was found; 1 found/ has something new; 2 wrong usage;
	3 it could not be built
	END
}

die() {
	local code=$1
	shift
	printf 'soak: %s\n' "$*" >&2
	exit "$code"
}

options=()
while (($#)); do
	case $1 in
	--hours | --rounds | --seed)
		[[ ${2-} =~ ^[0-9]+([.][0-9]+)?$ ]] || die 2 "$1 needs a number"
		options+=("$1" "$2")
		shift
		;;
	--only)
		[[ ${2-} =~ ^(store|rare|nodes|late|kills|damage|fuzz)$ ]] ||
			die 2 "--only needs a kind (see --help)"
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

cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
export CKPTFS_PREFIX=${CKPTFS_PREFIX:-/opt/ckptfs}
deploy/setup.sh || die 3 "deploy/setup.sh failed"
cmake --preset normal -DCKPTFS_PREFIX="$CKPTFS_PREFIX" >/dev/null ||
	die 3 "cmake failed"
cmake --build --preset normal >/dev/null || die 3 "the build failed"
exec python3 -B tests/soak.py "${options[@]}"
