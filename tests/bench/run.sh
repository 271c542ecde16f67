#!/bin/bash
#
# run.sh - how fast the mount is: one table, every row measured on both sides in
# one run.
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

set -euo pipefail
shopt -s inherit_errexit

usage() {
	cat <<-'END'
	usage: tests/bench/run.sh [OPTION...]

	  --quick              small sizes, one round: does it work at all?
	  --row NAME           only this part of the table (may be repeated):
	                       write write128k first series read assembled torch
	                       tensors structure metadata restore plan drain files
	                       mount backup memory dedup
	  --size MIB           size of the large files (2048)
	  --rounds N           rounds, of which the median counts (5)
	  --store DIR          a directory on the disk to be measured (/var/tmp)
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
	structure metadata restore plan drain files mount backup memory dedup)
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
rows=() quick='' mib=2048 rounds=5 disk=/var/tmp build=$root/build sample=''
while (($#)); do
	case $1 in
	--quick) quick=yes ;;
	--row | --size | --rounds | --store | --build | --passthrough-ll)
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
	for dir in "$mnt" "$work/sample" "$raw" "$small"; do
		! mountpoint -q "$dir" || umount "$dir" || ! mountpoint -q "$dir" ||
			umount -l "$dir" || code=1
	done
	# The daemon leaves when everything is durable.
	[[ -z $daemon ]] || wait "$daemon" || code=1
	[[ -z $sample_pid ]] || wait "$sample_pid" || true
	for dir in "$work"/*/stage; do
		! mountpoint -q "$dir" || umount "$dir" || code=1
	done
	rm -rf --one-file-system "$work"
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
	"$ckptctl" status --json "$mnt" | sed -n "s/^\t*\"$1\":\t*\([0-9]*\),*$/\1/p"
}
inspect_text() {
	"$ckptctl" inspect --json "$1" |
		sed -n "s/^[{\t]*\"$2\":\t*\"\{0,1\}\([0-9a-z]*\)\"\{0,1\},*$/\1/p" |
		head -n 1
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

# --- writing -----------------------------------------------------------------

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

# second_save CALL WRITERS NAME WANTED [COMMAND]
second_save() {
	local round a b

	write_files "$mnt/step_1" "$2" "$1" 1 "${5-}" >/dev/null
	flush
	for ((round = 1; round <= rounds; round++)); do
		warm_up $((bytes * 2))
		a=$(write_files "$mnt/step_$((round + 1))" "$2" "$1" \
			$((round + 1)) "${5-}")
		rm -r "$mnt/step_$((round + 1))"
		sleep 0.2
		warm_up $((bytes * 2))
		b=$(write_files "$raw/step" "$2" "$1" "$round" "${5-}")
		rm -r "$raw/step"
		pair "$a" "$b"
	done
	row_speed "$3" "$4"
	rm -r "$mnt/step_1"
	settle
}

row_write() {
	fresh_store debug_hold_drain
	second_save $((1 << 20)) 1 'write 1 MiB calls, second save' 0.9
	second_save $((1 << 20)) 4 'write 1 MiB calls, 4 writers' 0.9
	second_save $((1 << 20)) 1 'write 1 MiB calls, O_RDWR' 0.9 update
	drop_store
}

row_write128k() {
	fresh_store debug_hold_drain
	second_save $((128 << 10)) 1 'write 128 KiB calls, second save' 0.8
	second_save $((128 << 10)) 4 'write 128 KiB calls, 4 writers' 0.8
	drop_store
}

# first_save CALL WRITERS NAME
first_save() {
	local round a b new=a

	for ((round = 1; round <= rounds; round++)); do
		new+=b # no file before had this name, digits apart
		warm_up $((bytes * 2))
		a=$(write_files "$mnt/$2_$new" "$2" "$1" "$round")
		rm -r "${mnt:?}/$2_$new"
		sleep 0.2
		warm_up $((bytes * 2))
		b=$(write_files "$plain/step" "$2" "$1" "$round")
		rm -r "$plain/step"
		pair "$a" "$b"
	done
	row_speed "$3" 0.9
	settle
}

row_first() {
	fresh_store debug_hold_drain
	first_save $((1 << 20)) 1 'first save, 1 MiB calls (page cache)'
	first_save $((1 << 20)) 4 'first save, 4 writers (page cache)'
	first_save $((128 << 10)) 1 'first save, 128 KiB calls (page cache)'
	drop_store
}

# third_save WRITERS NAME: of a series of its own, against its first save
third_save() {
	local round new=a a b

	for ((round = 1; round <= rounds; round++)); do
		new+=b
		warm_up $((bytes * 2))
		b=$(write_files "$mnt/$1_${new}_step_1" "$1" $((1 << 20)) 1)
		flush
		write_files "$mnt/$1_${new}_step_2" "$1" $((1 << 20)) 2 >/dev/null
		flush
		warm_up $((bytes * 2))
		a=$(write_files "$mnt/$1_${new}_step_3" "$1" $((1 << 20)) 3)
		flush
		pair "$a" "$b"
		rm -r "$mnt/$1_${new}"_step_?
		settle
	done
	row_speed "$2" 1.0
}

row_series() {
	fresh_store ''
	third_save 1 'third save of a series (its first)'
	third_save 4 'third save, 4 writers (the first)'
	drop_store
}

# --- reading -----------------------------------------------------------------

# read_pairs OURS THEIRS NAME WANTED: once for the cache, then in turn
read_pairs() {
	local round

	"$bench" read $((1 << 20)) "$1" >/dev/null
	"$bench" read $((1 << 20)) "$2" >/dev/null
	for ((round = 0; round < rounds; round++)); do
		pair "$("$bench" read $((1 << 20)) "$1")" \
			"$("$bench" read $((1 << 20)) "$2")"
	done
	row_speed "$3" "$4"
}

# image_of PATH: the image that a native file is
image_of() {
	local id

	[[ $(inspect_text "$1" native) == true ]] || die 1 "$1 is not native"
	id=$(printf %016x "$(inspect_text "$1" image)")
	printf '%s/images/%s/%s\n' "$store" "${id: -2}" "$id"
}

row_read() {
	fresh_store debug_hold_drain
	write_files "$mnt/step_1" 1 $((1 << 20)) 1 >/dev/null
	flush
	write_files "$mnt/step_2" 1 $((1 << 20)) 2 >/dev/null
	write_files "$raw/step" 1 $((1 << 20)) 2 >/dev/null
	read_pairs "$mnt/step_2/rank_0_of_1.bin" "$raw/step/rank_0_of_1.bin" \
		'read back, staged' 0.9
	rm -r "$raw/step"
	drop_store

	fresh_store debug_no_stage_cache
	write_files "$mnt/step" 1 $((1 << 20)) 1 >/dev/null
	flush
	read_pairs "$mnt/step/rank_0_of_1.bin" \
		"$(image_of "$mnt/step/rank_0_of_1.bin")" \
		'read back, native, page cache (the image)' 0.9
	drop_store
}

row_assembled() {
	fresh_store debug_no_stage_cache
	"$bench" write $((1 << 20)) "$bytes" 1 "$mnt/native" >/dev/null
	flush
	"$bench" write $((1 << 20)) "$bytes" 1:2 "$mnt/partly" >/dev/null
	flush
	image_of "$mnt/native" >/dev/null
	[[ $(inspect_text "$mnt/partly" native) == false ]] ||
		die 1 "the partly shared file is native"
	read_pairs "$mnt/partly" "$mnt/native" \
		'read half-shared, page cache (a native file)' 0.4
	drop_store
}

# --- torch -------------------------------------------------------------------

row_torch() {
	local what a b

	if ! [[ -x $venv_python ]]; then
		not_run 'torch.save and torch.load' "no $venv_python"
		return
	fi
	fresh_store debug_hold_drain
	"$venv_python" "$here/torch_pairs.py" "$mnt" "$raw" "$ckptctl" \
		"$rounds" "$torch_bytes" >"$work/torch"
	for what in save load; do
		while read -r a b; do
			pair "$a" "$b"
		done < <(sed -n "s/^$what //p" "$work/torch")
		row_speed "torch.$what" 0.9 "$torch_bytes"
	done
	drop_store
}

# --- looking at a step -------------------------------------------------------

row_structure() {
	local a b what='signature, closure of a DCP step (its drain)'

	if ! [[ -x $venv_python ]]; then
		not_run "$what" "no $venv_python"
		return
	fi
	fresh_store debug_hold_drain,structure=off
	"$venv_python" "$here/structure_pairs.py" "$mnt" "$raw" "$ckptctl" \
		"$rounds" "$torch_bytes" >"$work/structure"
	while read -r a b; do
		pair "$a" "$b"
	done < <(sed -n 's/^structure //p' "$work/structure")
	medians
	ours=() theirs=()
	line "$what" "$(awk -v n="$a" 'BEGIN { printf "%.2f ms", n / 1e6 }')" \
		"$(awk -v n="$b" 'BEGIN { printf "%.2f ms", n / 1e6 }')" \
		"$(awk -v a="$a" -v b="$b" 'BEGIN { printf "%.4f", a / b }')" \
		'<= 0.01' \
		"$(verdict "$(awk -v a="$a" -v b="$b" \
			'BEGIN { print a / b }')" LE 0.01)"
	drop_store
}

row_metadata() {
	local a b kib what="inspect 300000 chunks (torch's reader)"

	if ! [[ -x $venv_python ]]; then
		not_run "$what" "no $venv_python"
		return
	fi
	mkdir "$plain/metadata"
	"$venv_python" "$here/metadata_pairs.py" "$plain/metadata" "$ckptctl" \
		"$rounds" >"$work/metadata"
	rm -r "$plain/metadata"
	while read -r a b kib; do
		pair "$a" "$b"
	done < <(sed -n 's/^metadata //p' "$work/metadata")
	medians
	line "$what" "$(awk -v n="$a" 'BEGIN { printf "%.2f s", n / 1e9 }')" \
		"$(awk -v n="$b" 'BEGIN { printf "%.2f s", n / 1e9 }')" \
		"$(printf %.2f "$(ratios | median)")" '<= 2 s' \
		"$(verdict "$a" LE 2000000000)"
	ours=() theirs=()
	kib=$(awk '/^metadata / { print $4 }' "$work/metadata" | median)
	line '  and resident' "$((kib / 1024)) MiB" - - '< 300 MiB' \
		"$(verdict "$kib" LE $((300 * 1024)))"
}

# --- restoring ---------------------------------------------------------------

# cold COMMAND...: with nothing in the page cache, or mapped by the daemon. What
# is dropped may go back to the host, so memory is touched once more.
cold() {
	unmount_store
	mount_store ''
	sync
	echo 3 >/proc/sys/vm/drop_caches
	warm_up $((bytes * 3))
	"$@"
}

# rank_files FOLDER: those of four ranks
rank_files() {
	local rank

	mkdir -p "$1"
	for rank in 0 1 2 3; do printf '%s\n' "$1/rank_$rank.safetensors"; done
}

# restored OWN SHARED every|kept NAME: four ranks, each its own file, against
# the images, or files as large
restored() {
	local round list images=() path step

	for step in 1 2; do
		mapfile -t list < <(rank_files "$mnt/step_$step")
		"$restore_bench" write "$1" "$2" "$3" "$step" "${list[@]}" >/dev/null
		flush
		[[ $3 == kept ]] || break
	done
	for path in "${list[@]}"; do
		if [[ $(inspect_text "$path" native) == true ]]; then
			images+=("$(image_of "$path")")
		else # as large, and by itself on the same disk
			cp "$path" "$plain/${path##*/}"
			images+=("$plain/${path##*/}")
		fi
	done
	for ((round = 0; round < rounds; round++)); do
		cold "$restore_bench" read $((1 << 20)) "${list[@]}" >"$work/a"
		cold "$restore_bench" read $((1 << 20)) "${images[@]}" >"$work/b"
		pair "$(<"$work/a")" "$(<"$work/b")"
	done
	row_speed "$4" 0.9 $((4 * ($1 + $2)))
	rm -rf "$mnt"/step_? "${plain:?}"/*.safetensors
	settle
}

row_restore() {
	fresh_store ''
	restored $((bytes / 2)) 0 every 'restore, 4 ranks, cold (the images)'
	restored $((bytes / 4)) $((bytes / 4)) kept \
		'restore, half kept, 4 ranks, cold (files)'
	restored $((bytes * 3 / 8)) $((bytes / 8)) every \
		'restore, a quarter replicas, cold (files)'
	drop_store
}

# A checkpoint with one copy of what is common, read with each of two plans.
row_plan() {
	local round list own=$((bytes * 3 / 8)) shared=$((bytes / 2))
	local a b counts_a counts_b

	fresh_store ''
	mapfile -t list < <(rank_files "$mnt/step_1")
	"$restore_bench" write "$own" "$shared" one 1 "${list[@]}" >/dev/null
	flush
	for ((round = 0; round < rounds; round++)); do
		cold "$restore_bench" plan per_shard $((1 << 20)) \
			"$own" "$shared" "${list[@]}" >"$work/plan"
		read -r a counts_a <"$work/plan"
		cold "$restore_bench" plan greedy $((1 << 20)) \
			"$own" "$shared" "${list[@]}" >"$work/plan"
		read -r b counts_b <"$work/plan"
		pair "$a" "$b"
	done
	row_speed 'restore, own files only, cold (greedy plan)' 0.9 \
		$((4 * own + shared))
	read -ra a <<<"$counts_a"
	read -ra b <<<"$counts_b"
	line '  files that ranks opened' "${a[2]}" "${b[2]}" - '= 4' \
		"$(verdict "${a[2]}" LE 4)"
	line "  bytes of other ranks' files" "$((a[1] >> 20)) MiB" \
		"$((b[1] >> 20)) MiB" - '= 0' "$(verdict "${a[1]}" LE 0)"
	drop_store
}

# As a trainer with safetensors saves: .tmpXXXXXX, O_RDWR, ftruncate, rename.
row_safetensors() {
	local a b

	if ! [[ -x $venv_python ]]; then
		not_run 'safetensors.torch.save_file' "no $venv_python"
		return
	fi
	fresh_store debug_hold_drain,publish=async
	"$venv_python" "$here/safetensors_pairs.py" "$mnt" "$raw" "$ckptctl" \
		"$rounds" "$torch_bytes" >"$work/safetensors"
	while read -r a b; do
		pair "$a" "$b"
	done <"$work/safetensors"
	row_speed 'safetensors.torch.save_file' 0.9 "$torch_bytes"
	drop_store
}

# --- tensors, by the library ---------------------------------------------------

row_tensors() {
	local a b threads

	threads=$(nproc)
	((threads <= 4)) || threads=4
	fresh_store ''
	# A tenth of a second each: more rounds than others.
	"$save_bench" "$mnt" "$bytes" $((rounds * 3)) "$threads" >"$work/tensors"
	while read -r a b; do
		pair "$a" "$b"
	done <"$work/tensors"
	row_speed "save tensors ($threads threads memcpy)" 0.9
	drop_store

	if ! [[ -x $venv_python ]]; then
		not_run 'save tensors (safetensors)' "no $venv_python"
		return
	fi
	# As /dev/shm is: pages of 4 KiB.
	mount -t tmpfs -o "huge=never,size=$((stage_mib))M" ckptfs-bench "$small"
	fresh_store ''
	env CKPTFS_GPU_LIBRARY="$build/gpu/libckpt_gpu.so.0" \
		PYTHONPATH="$root/gpu/python" PYTHONDONTWRITEBYTECODE=1 \
		"$venv_python" "$here/save_pairs.py" "$mnt" "$small" "$ckptctl" \
		"$rounds" "$torch_bytes" >"$work/tensors"
	while read -r a b; do
		pair "$a" "$b"
	done <"$work/tensors"
	row_speed 'save tensors (safetensors.torch, raw tmpfs)' 3 "$torch_bytes"
	drop_store
	umount "$small"
}

# --- the drain ---------------------------------------------------------------

# direct_write CALL: O_DIRECT and fdatasync of as many bytes
direct_write() {
	"$bench" direct "$1" "$bytes" 9 "$plain/direct"
	rm "$plain/direct"
	sync -f "$plain"
	sleep 0.2
}

row_drain() {
	local round a b c d known=() new=()

	fresh_store debug_hold_drain
	"$bench" write $((1 << 20)) "$bytes" 1 "$mnt/new_1" >/dev/null
	flush
	rm "$mnt/new_1"
	"$bench" write $((1 << 20)) "$bytes" 1 "$mnt/copy_1" >/dev/null
	flush
	rm "$mnt/copy_1"
	settle
	for ((round = 2; round <= rounds + 1; round++)); do
		"$bench" write $((1 << 20)) "$bytes" "$round" "$mnt/new_$round" >/dev/null
		a=$("$bench" run "$ckptctl" flush "$mnt")
		b=$(direct_write $((1 << 20)))
		c=$(direct_write $((8 << 20)))
		pair "$a" $((b < c ? b : c))
		"$bench" write $((1 << 20)) "$bytes" "$round" "$mnt/copy_$round" >/dev/null
		d=$("$bench" run "$ckptctl" flush "$mnt")
		new+=("$a") known+=("$d")
		rm "$mnt/new_$round" "$mnt/copy_$round"
		settle
	done
	row_speed 'drain of new bytes (O_DIRECT + fdatasync)' 0.7
	ours=("${known[@]}") theirs=("${new[@]}")
	row_speed 'drain of known bytes (of new bytes)' 2.5
	drop_store
}

# --- many files --------------------------------------------------------------

row_files() {
	local round name i names=(create stat unlink) side='' result=''

	if ! [[ $sample ]]; then
		not_run 'create 4 KiB files, stat, unlink' '--passthrough-ll not given'
		return
	fi
	mkdir "$work/sample" "$work/source"
	"$sample" -f -o "source=$work/source" "$work/sample" >"$work/sample.log" 2>&1 &
	sample_pid=$!
	fresh_store ''
	for ((i = 0; i < 500; i++)); do
		! mountpoint -q "$work/sample" || break
		sleep 0.02
	done
	for ((round = 0; round < rounds; round++)); do
		for name in "${names[@]}"; do
			for side in mnt sample; do
				result=$("$bench" "$name" "$files" "$work/$side")
				printf '%s\n' "$result" >>"$work/$name.$side"
				# What goes on behind it is not the next one's.
				[[ $side == sample ]] || flush
				sync -f "$plain"
			done
		done
	done
	for name in "${names[@]}"; do
		mapfile -t ours <"$work/$name.mnt"
		mapfile -t theirs <"$work/$name.sample"
		row_rate "$name $files files of 4 KiB (passthrough_ll)" 1.0
	done
	drop_store
	umount "$work/sample"
	wait "$sample_pid" || true
	sample_pid=''
	rm -r "$work/sample" "$work/source" "$work"/{create,stat,unlink}.{mnt,sample}
}

# mount_time STORE: until the mount can be used
mount_time() {
	"$bench" run "$ckptfs" -o "stage_size=${stage_mib}M" "$1" "$mnt"
	stat "$mnt" >/dev/null
	umount "$mnt"
	flock "$1/lock" true # the daemon has left
}

row_mount() {
	local round a b

	fresh_store ''
	"$bench" create "$many_files" "$mnt" >/dev/null
	unmount_store
	mkdir "$work/empty"
	mount_time "$work/empty" >/dev/null
	for ((round = 0; round < rounds; round++)); do
		pair "$(mount_time "$store")" "$(mount_time "$work/empty")"
	done
	row_difference "mount with $many_files files (empty)" 1
	rm -rf --one-file-system "$store" "$work/empty"
}

# rename_on: something is published again and again, until it is killed
rename_on() {
	echo x >"$mnt/published.tmp"
	for ((;;)); do
		mv "$mnt/published.tmp" "$mnt/published"
		mv "$mnt/published" "$mnt/published.tmp"
		sleep 0.1
	done
}

# What a backup of the database takes, and what creating files has to do with it.
row_backup() {
	local round a b made renamer

	for ((round = 0; round < rounds; round++)); do
		fresh_store backup_interval=0
		rename_on &
		renamer=$!
		b=$("$bench" create "$files" "$mnt")
		kill "$renamer"
		wait "$renamer" || true
		drop_store
		fresh_store backup_interval=1
		rename_on &
		renamer=$!
		a=$("$bench" create "$files" "$mnt")
		kill "$renamer"
		wait "$renamer" || true
		pair "$a" "$b"
		if ((round < rounds - 1)); then drop_store; fi
	done
	row_rate "create $files files, a backup each s (none)" 0.9
	flush
	made=$(status_number made)
	until (($(status_number made) > made + 1)); do
		touch "$mnt/published"
		mv "$mnt/published" "$mnt/again"
		sleep 0.1
	done
	line "  a backup then" "$(status_number took_ms) ms" - - - ''
	line "  and holds (the database)" \
		"$(($(status_number bytes) >> 10)) KiB" \
		"$(du -sk --apparent-size "$store/db" | cut -f 1) KiB" - - ''
	drop_store
}

# row_difference NAME SECONDS: how much longer than theirs
row_difference() {
	local a b d

	medians
	d=$(awk -v a="$a" -v b="$b" 'BEGIN { printf "%+.3f", (a - b) / 1e9 }')
	line "$1" "$(awk -v a="$a" 'BEGIN { printf "%.3f s", a / 1e9 }')" \
		"$(awk -v a="$b" 'BEGIN { printf "%.3f s", a / 1e9 }')" \
		"$d s" "<= +$2 s" "$(verdict "$d" LE "$2")"
	ours=() theirs=()
}

# --- memory and look-ups -----------------------------------------------------

# Resident memory of the daemon in MiB, what it maps of the stage apart.
resident_mib() {
	awk '/^VmRSS/ { a = $2 } /^RssShmem/ { b = $2 }
		END { print int((a - b) / 1024) }' "/proc/$daemon/status"
}

# Two chunks for each pair of tensors; a file of pairs_per_file is 80 MiB.
pairs_per_file=5000 lookup_pairs=4096

# drain_us FIRST STEP APART: microseconds for each chunk of a file of 64 MiB
# whose first pair is the FIRST, and in the next rounds APART further on
drain_us() {
	local round

	for ((round = 0; round < rounds; round++)); do
		"$bench" tensors $(($1 + round * $3)) "$lookup_pairs" "$2" \
			"$mnt/lookup" >/dev/null
		"$bench" run "$ckptctl" flush "$mnt"
		rm "$mnt/lookup"
		settle
	done | median | awk -v n=$((2 * lookup_pairs)) '{ printf "%.2f", $1 / n / 1000 }'
}

row_memory() {
	local count made=0 pairs first_new='' first_known='' new known mib_now
	local serial=500000000 # of pairs that the store does not have

	# Bytes are not compared: what is timed is the index, not the disk.
	fresh_store debug_hold_drain,verify=off
	for count in "${chunk_counts[@]}"; do
		pairs=$((count / 2))
		while ((made < pairs)); do
			"$bench" tensors "$made" "$pairs_per_file" 1 \
				"$mnt/chunks_$made" >/dev/null
			((made += pairs_per_file))
			((made % (10 * pairs_per_file))) || flush
		done
		flush
		new=$(drain_us $serial 1 $lookup_pairs)
		serial=$((serial + 1000000))
		# Spread over all that the store has.
		known=$(drain_us 0 $(((pairs - rounds) / lookup_pairs)) 1)
		first_new=${first_new:-$new} first_known=${first_known:-$known}
		mib_now=$(resident_mib)
		row_growth "drain, new chunks, $count in the store" "$new" "$first_new"
		row_growth "drain, known chunks, $count in the store" "$known" \
			"$first_known"
		line "resident with $count chunks" "$mib_now MiB" - - '< 200 MiB' \
			"$(verdict "$mib_now" LE 199)"
	done
	unmount_store
	mount_store ''
	"$bench" create "$many_files" "$mnt" >/dev/null
	flush
	"$bench" stat "$many_files" "$mnt" >/dev/null
	"$bench" tensors 0 "$lookup_pairs" $((pairs / lookup_pairs)) "$mnt/lookup" \
		>/dev/null
	flush
	mib_now=$(resident_mib)
	line "  and $many_files files" "$mib_now MiB" - - '< 200 MiB' \
		"$(verdict "$mib_now" LE 199)"
	drop_store
}

# row_growth NAME NOW AT_FIRST: times for one chunk, in microseconds
row_growth() {
	local r

	r=$(awk -v a="$2" -v b="$3" 'BEGIN { printf "%.2f", a / b }')
	line "$1" "$2 us" "$3 us" "$r" '<= 2' "$(verdict "$r" LE 2)"
}

# --- sharing -----------------------------------------------------------------

# added COMMAND...: bytes that the store grew by, as counted and on the disk
counted=0 on_disk=0
added() {
	local before disk_before

	before=$(status_number physical_bytes)
	disk_before=$(du -s -B1 "$store/images" | cut -f1)
	"$@"
	flush
	sync -f "$plain"
	counted=$(($(status_number physical_bytes) - before))
	on_disk=$(($(du -s -B1 "$store/images" | cut -f1) - disk_before))
}

# row_added NAME OF_BYTES LIMIT: the larger of both counts
row_added() {
	local grown=$((counted > on_disk ? counted : on_disk)) r

	r=$(awk -v a="$grown" -v b="$2" 'BEGIN { printf "%.4f", a / b }')
	line "$1" "$((grown >> 10)) KiB" "$(($2 >> 10)) KiB" "$r" "<= $3" \
		"$(verdict "$r" LE "$3")"
}

row_dedup() {
	local step=("$venv_python" "$here/dedup_files.py")

	if ! [[ -x $venv_python ]]; then
		not_run 'what sharing saves' "no $venv_python"
		return
	fi
	fresh_store ''
	added "${step[@]}" shard 0 "$mnt/__0_0.distcp"
	added "${step[@]}" shard 1 "$mnt/__1_0.distcp"
	row_added 'second .distcp, 16 MiB shared: bytes added' $((16 << 20)) 0.01
	added "${step[@]}" replica 0 "$mnt/rank_0.pt"
	added "${step[@]}" replica 0 "$mnt/rank_1.pt"
	row_added "second of two replicas: bytes added" $((64 << 20)) 0.01
	added "${step[@]}" frozen 1 "$mnt/step_1.pt"
	added "${step[@]}" frozen 2 "$mnt/step_2.pt"
	row_added 'step with 90 % frozen: bytes added' $((64 << 20)) 0.105
	drop_store
}

# --- the run -----------------------------------------------------------------

# Touch as much memory as any row will use, on both sides.
warm_up() {
	"$bench" write $((1 << 20)) "$1" 1 "$raw/warm" >/dev/null
	rm "$raw/warm"
}

mount -t tmpfs -o "huge=always,size=$((stage_mib * 2))M" ckptfs-bench "$raw"
printf '%s rounds, %s MiB, %s cores, Linux %s\n\n' "$rounds" "$mib" "$(nproc)" \
	"$(uname -r)"
line row ours other ratio wanted ''
warm_up $((bytes * 4))
for name in "${rows[@]}"; do "row_$name"; done
