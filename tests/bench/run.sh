#!/bin/bash
#
# run.sh - how fast the mount is: one table, every row measured on both sides in
# one run.
#
# The rows are functions of the files in rows/.
#
# Keeps true: the two sides of a row take turns (A B A B ...), the figures are
# medians, and the ratio is the median of the rounds' ratios, so that what else
# the machine does meets both. Memory that a row will use is touched first, and
# again before each side of each round: on a virtual machine a page's first use
# is many times slower than its second, and a host may take back what is free.
# Nothing is left behind: mounts, files and processes go at the end, however
# it comes.
#
# A row that falls short is printed as such and is no failure: a busy machine
# can cause it. Exit 1 means that something could not be measured.

# shellcheck disable=SC2034 # the rows use what is not used here
set -euo pipefail
shopt -s inherit_errexit

usage() {
	cat <<-'END'
	usage: tests/bench/run.sh [OPTION...]

	  --quick              small sizes, one round: does it work at all?
	  --row NAME           only this part of the table (may be repeated):
	                       write write128k first series read assembled torch
	                       tensors structure metadata restore plan drain cut files
	                       mount backup memory dedup shared
	  --size MIB           size of the large files (2048)
	  --rounds N           rounds, of which the median counts (5)
	  --store DIR          a directory on the disk to be measured (/var/tmp)
	  --shared-in DIR      the shared directory of row `shared` is made there
	                       (on the store's disk)
	  --build DIR          where ckptfs, ckptctl and ckpt_bench were built (build)
	  --passthrough-ll PATH  libfuse's sample of that name, to compare with
	  --help               this text

	CKPTFS_VENV   where the Python with torch is (/var/cache/ckptfs/venv)

	Needs root (a tmpfs is mounted to compare with), six times --size of disk
	and five times of memory. Rows of torch need CKPTFS_VENV.

	exit code: 0 measured; 1 something failed; 2 wrong usage
	END
}

die() {
	local code=$1
	shift
	printf 'bench: %s\n' "$*" >&2
	exit "$code"
}

all_rows=(write write128k first series read assembled torch safetensors tensors
	structure metadata restore plan drain cut files mount backup memory dedup shared)
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
rows=() quick='' mib=2048 rounds=5 disk=/var/tmp build=$root/build sample=''
shared_parent='' shared='' other_daemon=''
while (($#)); do
	case $1 in
	--quick) quick=yes ;;
	--row | --size | --rounds | --store | --build | --passthrough-ll | \
		--shared-in)
		[[ ${2-} ]] || die 2 "$1 needs a value"
		case $1 in
		--row)
			[[ " ${all_rows[*]} " == *" $2 "* ]] ||
				die 2 "no row '$2': there are ${all_rows[*]}"
			rows+=("$2")
			;;
		--size) mib=$2 ;;
		--rounds) rounds=$2 ;;
		--store) disk=$2 ;;
		--build) build=$2 ;;
		--passthrough-ll) sample=$2 ;;
		--shared-in) shared_parent=$2 ;;
		esac
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
[[ $mib =~ ^[1-9][0-9]*$ && $rounds =~ ^[1-9][0-9]*$ ]] ||
	die 2 "--size and --rounds are numbers"
((${#rows[@]})) || rows=("${all_rows[@]}")
files=10000 many_files=100000 chunk_counts=(10000 100000 1000000)
torch_bytes=$((mib * 3 / 4 << 20))
if [[ $quick ]]; then
	mib=128 rounds=1 torch_bytes=$((96 << 20))
	files=500 many_files=2000 chunk_counts=(10000 20000)
fi
bytes=$((mib << 20))
stage_mib=$((mib * 3 + 512))

bench=$build/tests/bench/ckpt_bench
save_bench=$build/tests/bench/save_bench
restore_bench=$build/tests/bench/restore_bench
ckptfs=$build/fuse/ckptfs
ckptctl=$build/fuse/ckptctl
venv_python=${CKPTFS_VENV:-/var/cache/ckptfs/venv}/bin/python
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
for program in "$bench" "$save_bench" "$restore_bench" "$ckptfs" "$ckptctl"; do
	[[ -x $program ]] || die 1 "$program is not built"
done
[[ -z $sample || -x $sample ]] || die 1 "$sample cannot be run"
((EUID == 0)) || die 1 "mounting a tmpfs to compare with needs root"
exec </dev/null

work=$(mktemp -d "$disk/ckptfs-bench.XXXXXX")
store=$work/store mnt=$work/mnt raw=$work/raw plain=$work/plain small=$work/small
daemon='' sample_pid=''
mkdir "$mnt" "$raw" "$plain" "$small"

leave() {
	local code=$? dir

	trap - EXIT
	! mountpoint -q "$work/ext4" || fsfreeze -u "$work/ext4" 2>/dev/null || true
	for dir in "$mnt" "$work/other" "$work/sample" "$work/ext4" "$raw" "$small"; do
		! mountpoint -q "$dir" || umount "$dir" || ! mountpoint -q "$dir" ||
			umount -l "$dir" || code=1
	done
	# The daemon leaves when everything is durable.
	[[ -z $daemon ]] || wait "$daemon" || code=1
	[[ -z $other_daemon ]] || wait "$other_daemon" || code=1
	[[ -z $sample_pid ]] || wait "$sample_pid" || true
	for dir in "$work"/*/stage; do
		! mountpoint -q "$dir" || umount "$dir" || code=1
	done
	rm -rf --one-file-system "$work" ${shared:+"$shared"}
	exit "$code"
}
trap leave EXIT
trap 'exit 1' INT TERM HUP

# --- our mount ---------------------------------------------------------------

# mount_store OPTIONS: $store on $mnt, in the foreground as a child of ours
mount_store() {
	local tries=0

	"$ckptfs" -f -o "stage_size=${stage_mib}M${1:+,$1}" "$store" "$mnt" \
		>"$work/log" 2>&1 &
	daemon=$!
	until mountpoint -q "$mnt"; do
		if ((tries++ == 1500)) || ! kill -0 "$daemon" 2>/dev/null; then
			cat "$work/log" >&2
			die 1 "ckptfs does not mount"
		fi
		sleep 0.02
	done
}

fresh_store() {
	rm -rf --one-file-system "$store"
	mkdir "$store"
	mount_store "$1"
}

unmount_store() {
	umount "$mnt"
	wait "$daemon" || {
		cat "$work/log" >&2
		die 1 "ckptfs failed at its end"
	}
	daemon=''
}

drop_store() {
	unmount_store
	rm -rf --one-file-system "$store"
}

flush() { "$ckptctl" flush "$mnt"; }

# What was deleted is gone from the disk, too, before the next measurement.
settle() {
	"$ckptctl" gc "$mnt" >/dev/null
	sync -f "$plain"
	sleep 0.2
}

# status_number KEY; inspect_text PATH KEY
status_number() {
	"$ckptctl" status --timeout 240 --json "$mnt" | sed -n "s/^\t*\"$1\":\t*\([0-9]*\),*$/\1/p"
}
inspect_text() {
	"$ckptctl" inspect --json "$1" |
		sed -n "s/^[{\t]*\"$2\":\t*\"\{0,1\}\([0-9a-z]*\)\"\{0,1\},*$/\1/p" |
		head -n 1
}

# image_of PATH: the image that a native file is
image_of() {
	local id

	[[ $(inspect_text "$1" native) == true ]] || die 1 "$1 is not native"
	id=$(printf %016x "$(inspect_text "$1" image)")
	printf '%s/images/%s/%s\n' "$store" "${id: -2}" "$id"
}

# --- files of a step --------------------------------------------------------

# paths DIR WRITERS: the files of one step
paths() {
	local i

	mkdir -p "$1"
	for ((i = 0; i < $2; i++)); do printf '%s\n' "$1/rank_${i}_of_$2.bin"; done
}

# write_files DIR WRITERS CALL SEED [COMMAND]
write_files() {
	local list

	mapfile -t list < <(paths "$1" "$2")
	"$bench" "${5:-write}" "$3" $((bytes / $2)) "$4" "${list[@]}"
}

# --- the table ---------------------------------------------------------------

line() { printf '%-44s %12s %12s %8s  %-9s %s\n' "$@"; }

median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

ours=() theirs=()
pair() { # OURS_NS THEIRS_NS
	ours+=("$1") theirs+=("$2")
}

# Those of both sides, in nanoseconds: into a and b of the caller.
medians() {
	a=$(printf '%s\n' "${ours[@]}" | median)
	b=$(printf '%s\n' "${theirs[@]}" | median)
}

ratios() { # theirs / ours: how many times faster we are
	local i

	for i in "${!ours[@]}"; do
		awk -v a="${theirs[i]}" -v b="${ours[i]}" 'BEGIN { print a / b }'
	done
}

# verdict VALUE LE|GE LIMIT
verdict() {
	awk -v v="$1" -v op="$2" -v l="$3" \
		'BEGIN { print (op == "GE" ? v >= l : v <= l) ? "ok" : "short" }'
}

# row NAME WANTED UNITS SUFFIX: from the pairs so far; UNITS of work in each
row() {
	local a b r

	medians
	r=$(ratios | median)
	line "$1" "$(awk -v n="$3" -v t="$a" -v s="$4" \
		'BEGIN { printf "%.2f %s", n / t, s }')" \
		"$(awk -v n="$3" -v t="$b" -v s="$4" \
			'BEGIN { printf "%.2f %s", n / t, s }')" \
		"$(printf %.2f "$r")" ">= $2" "$(verdict "$r" GE "$2")"
	ours=() theirs=()
}
row_speed() { row "$1" "$2" "${3:-$bytes}" GB/s; } # bytes / ns
row_rate() { row "$1" "$2" "$((files * 1000000))" k/s; } # 1000 files / s

not_run() { line "$1" - - - - "not run: $2"; }

# needs_torch NAME: or that row is not run
needs_torch() {
	[[ -x $venv_python ]] || {
		not_run "$1" "no $venv_python"
		return 1
	}
}

pairs() { # from stdin, one in a line
	local a b

	while read -r a b _; do pair "$a" "$b"; done
}

# --- the run -----------------------------------------------------------------

# Touch as much memory as any row will use, on both sides.
warm_up() {
	"$bench" write $((1 << 20)) "$1" 1 "$raw/warm" >/dev/null
	rm "$raw/warm"
}

for file in "$here"/rows/*.sh; do
	# shellcheck source=/dev/null
	source "$file"
done

mount -t tmpfs -o "huge=always,size=$((stage_mib * 2))M" ckptfs-bench "$raw"
printf '%s rounds, %s MiB, %s cores, Linux %s\n\n' "$rounds" "$mib" "$(nproc)" \
	"$(uname -r)"
line row ours other ratio wanted ''
warm_up $((bytes * 4))
for name in "${rows[@]}"; do "row_$name"; done
