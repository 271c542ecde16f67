#!/bin/bash
#
# quickstart.sh - from a fresh machine to checkpoints of a torch job in ckptfs.
#
# Installs what is missing, builds, mounts a store, lets four ranks of a torch
# job save two steps, looks at them, unmounts, mounts again, loads everything
# and compares every tensor. Python and torch are for this job alone: the
# product needs neither.
#
# Keeps true: what it made is gone at its end, however it ends, unless --keep
# is given: processes, mounts, files. A store that was there before keeps what
# else is in it.

set -euo pipefail

RANKS=4
STEPS=2
ROOM_KB=$((2 << 20)) # what the job writes, and some more
DAEMON_END_S=120 # at the end: how long the daemon may go on writing

usage() {
	cat <<-'END'
	usage: quickstart.sh [--store DIR] [--mount DIR] [--keep] [--help]

	Installs what is missing, builds ckptfs, mounts a store, saves two steps of a
	torch job with four ranks to it, mounts it again, loads and compares.

	  --store DIR  the store (default: a new one under /var/tmp); one that is
	               there already is used, and only the job's files are removed
	  --mount DIR  where to mount it (default: a new directory beside it)
	  --keep       leave the store mounted, with the job's files

	CKPTFS_PREFIX  where deploy/setup.sh puts a newer libfuse (/opt/ckptfs)
	CKPTFS_PYTHON  a python with torch (default: the first of python3 in PATH,
	               /usr/bin/python3 and that of CKPTFS_VENV which has it, else
	               python3-torch is installed, or CKPTFS_VENV is made)
	CKPTFS_VENV    as for deploy/setup.sh --trainer (/var/cache/ckptfs/venv)

	exit code: 0 fine; 1 a step failed or a tensor differs; 2 wrong usage;
	3 cannot work here; 130 interrupted
	END
}

say() { printf 'quickstart: %s\n' "$*"; }
die() {
	local code=$1
	shift
	printf 'quickstart: %s\n' "$*" >&2
	exit "$code"
}

# A command as one would type it, and what it says.
show() {
	printf '\n$ %s\n' "$*"
	"$@"
}

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
work='' # everything of ours; removed at the end
job='' # process group of the python that runs now
store='' mount='' keep=''
mounting=0 made_base='' made_store='' made_mount='' made_jobdir=''
export PATH=$PATH:/usr/sbin:/sbin LC_ALL=C

# $1: where. Not through stat: the daemon may be dead.
is_mounted() {
	local text=${1//\\/\\134}
	text=${text// /\\040}
	grep -qF " $text fuse.ckptfs " /proc/self/mounts
}

# Without asking whether all is durable: whatever is left is thrown away.
throw_away() {
	local s

	if [[ $job ]]; then
		kill -TERM -- "-$job" 2>/dev/null || true
		wait "$job" 2>/dev/null || true
	fi
	if [[ $made_jobdir && ! $made_store ]]; then
		rm -rf "$mount"/quickstart/step_* 2>/dev/null || true
		rmdir "$mount/quickstart" 2>/dev/null || true
	fi
	# The daemon holds the lock until everything is durable. It may not even
	# have mounted yet.
	for ((s = 0; mounting && s < DAEMON_END_S; s++)); do
		if is_mounted "$mount"; then
			umount -i -l "$mount" 2>/dev/null ||
				fusermount3 -u -z "$mount"
		fi
		if [[ ! -e $store/lock ]] ||
			flock -s -w 1 "$store/lock" true; then break; fi
	done
	if ((s == DAEMON_END_S)); then
		say "the daemon still writes to $store; that is left there" >&2
		return 1
	fi
	if [[ $made_store ]]; then
		if mountpoint -q "$store/stage"; then umount "$store/stage"; fi
		rm -rf --one-file-system "$store"
	fi
	if [[ $made_mount ]]; then rmdir "$mount"; fi
	if [[ $made_base ]]; then rmdir "$made_base"; fi
}

cleanup() {
	local code=$?
	trap '' INT TERM HUP
	if ((code > 128)); then say "interrupted, cleaning up" >&2; fi
	if [[ ! $keep || $code -ne 0 ]]; then
		throw_away || code=$((code ? code : 1))
	fi
	if [[ $work ]]; then
		if [[ $code -eq 1 && -s $work/log ]]; then
			printf 'quickstart: the end of the log:\n' >&2
			tail -n 5 "$work/log" >&2
		fi
		rm -rf "$work" 2>/dev/null || true
	fi
	exit "$code"
}

# In a group of its own, so that an interrupt stops it and all its ranks. torch
# 2.6 makes a temporary directory in each rank, and the rank's end leaves it.
run_job() {
	TMPDIR=$work/tmp setsid "$python" -W ignore "$root/deploy/quickstart.py" \
		--ranks "$RANKS" --steps "$STEPS" --ckptctl "$ckptctl" \
		"$@" "$mount/quickstart" "$work/expected" &
	job=$!
	wait "$job" || {
		job=''
		exit 1
	}
	job=''
}

find_python() {
	local name
	for name in ${CKPTFS_PYTHON:+"$CKPTFS_PYTHON"} python3 /usr/bin/python3 \
		"$CKPTFS_VENV/bin/python"; do
		if "$name" -W ignore -c 'import torch' >/dev/null 2>&1; then
			python=$name
			return 0
		fi
	done
	return 1
}

# Ubuntu 24.04 has no package of torch.
need_torch() {
	if find_python; then return; fi
	if [[ $EUID -ne 0 ]]; then
		die 3 "must be root to install python3-torch (or name a python" \
			"that has torch in CKPTFS_PYTHON)"
	fi
	apt-get -q update >>"$work/log" 2>&1 </dev/null || true
	if [[ -z $(apt-cache madison python3-torch 2>/dev/null) ]]; then
		say "no package python3-torch, making a Python environment with" \
			"torch, for this job alone"
		: >"$work/log" # what fails here says so itself
		deploy/setup.sh --no-tests --trainer || true
		find_python ||
			die 1 "cannot make $CKPTFS_VENV; a python that has torch can" \
				"be named in CKPTFS_PYTHON"
		return
	fi
	say "installing python3-torch, for this job alone"
	DEBIAN_FRONTEND=noninteractive apt-get -q -y \
		-o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 \
		install --no-install-recommends python3-torch \
		>>"$work/log" 2>&1 </dev/null ||
		die 1 "cannot install python3-torch (is the network up?); a" \
			"python that has torch can be named in CKPTFS_PYTHON"
	find_python || die 1 "python3-torch is installed, but cannot be imported"
}

# Into build/, like tests/run.sh. The tests only where what they need is there.
build() {
	local options=() start=$SECONDS

	if [[ (-e build && ! -w build) || (! -e build && ! -w .) ]]; then
		[[ -x build/fuse/ckptfs && -x build/fuse/ckptctl ]] ||
			die 3 "cannot write to $root: its owner must build first"
		say "taking $root/build as it is, which belongs to somebody else"
		return
	fi
	if [[ ! -e build/CMakeCache.txt ]] && ! pkg-config --exists cmocka; then
		options=(-DCKPTFS_TESTS=OFF)
	fi
	cmake -S . -B build -G Ninja -DCKPTFS_PREFIX="$CKPTFS_PREFIX" \
		"${options[@]}" >>"$work/log" 2>&1 || die 1 "cmake failed"
	cmake --build build --target ckptfs ckptctl >>"$work/log" 2>&1 ||
		die 1 "the build failed"
	: >"$work/log"
	say "built in $((SECONDS - start)) s: $(build/fuse/ckptfs --version)"
}

# $1: a directory that need not be there yet.
check_room() {
	local dir=$1 free
	while [[ ! -d $dir ]]; do dir=$(dirname "$dir"); done
	free=$(df -Pk -- "$dir" | awk 'NR == 2 { print $4 }')
	((free >= ROOM_KB)) ||
		die 1 "$dir has $((free >> 10)) MiB free, $((ROOM_KB >> 10)) are" \
			"needed; --store names another place"
}

prepare_directories() {
	if [[ ! $store || ! $mount ]]; then
		base=$(mktemp -d /var/tmp/ckptfs-quickstart.XXXXXX)
		made_base=$base
	fi
	store=${store:-$base/store}
	mount=${mount:-$base/mnt}
	check_room "$store"
	if is_mounted "$mount" || mountpoint -q "$mount"; then
		die 1 "$mount is a mount point already"
	fi
	if [[ ! -e $store ]]; then
		mkdir -p -m 700 -- "$store" 2>/dev/null || die 1 "cannot make $store"
		made_store=yes
		ckptctl init "$store" >/dev/null || die 1 "cannot make a store in $store"
	fi
	if [[ ! -e $mount ]]; then
		mkdir -p -- "$mount" 2>/dev/null || die 1 "cannot make $mount"
		made_mount=yes
	elif [[ $(ls -A -- "$mount" 2>&1) ]]; then
		die 1 "$mount is not an empty directory"
	fi
}

mount_store() {
	mounting=1
	if ! ckptfs "$store" "$mount"; then
		mounting=0
		die 1 "cannot mount $store on $mount"
	fi
	say "mounted $store on $mount"
}

number() { # $1: of the JSON in the input
	sed -n "s/^[[:space:]]*\"$1\":[[:space:]]*\([0-9]*\),*\$/\1/p" | head -n 1
}

summary() {
	local sizes logical physical
	sizes=$(ckptctl du -s --json "$mount/quickstart")
	logical=$(number logical_bytes <<<"$sizes")
	physical=$(number physical_bytes <<<"$sizes")
	awk -v l="$logical" -v p="$physical" -v s="$1" 'BEGIN {
		printf "quickstart: fine: %.2f GB saved, %.2f GB in the store ", \
			l / 1e9, p / 1e9
		printf "(%.2f times smaller), all of it loaded again, in %d s\n", \
			l / p, s
	}'
}

while (($#)); do
	case $1 in
	--store | --mount)
		[[ ${2-} ]] || die 2 "$1 needs a directory (see --help)"
		if [[ $1 == --store ]]; then
			store=$(realpath -m -- "$2")
		else
			mount=$(realpath -m -- "$2")
		fi
		shift
		;;
	--keep) keep=yes ;;
	-h | --help)
		usage
		exit 0
		;;
	*) die 2 "unknown argument '$1' (see --help)" ;;
	esac
	shift
done

export CKPTFS_PREFIX=${CKPTFS_PREFIX:-/opt/ckptfs}
export CKPTFS_VENV=${CKPTFS_VENV:-/var/cache/ckptfs/venv}
cd "$root"
trap cleanup EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
work=$(mktemp -d)
mkdir "$work/expected" "$work/tmp"

deploy/setup.sh --no-tests || exit
need_torch
build
PATH=$root/build/fuse:$PATH
ckptctl=$root/build/fuse/ckptctl

begin=$SECONDS
[[ -e /dev/fuse ]] || die 3 "there is no /dev/fuse: modprobe fuse"
if [[ $EUID -ne 0 ]]; then
	[[ -r /dev/fuse && -w /dev/fuse ]] ||
		die 3 "this user may not open /dev/fuse"
	say "not root: mounting through fusermount3, without kernel passthrough"
fi
prepare_directories
mount_store
if [[ $EUID -eq 0 ]] &&
	! ckptctl status --timeout 60 --json "$mount" | grep -q '"passthrough":[[:space:]]*true'
then
	say "no kernel passthrough here: all bytes go through the daemon"
fi
made_jobdir=yes
mkdir -p "$mount/quickstart"
run_job save
show ls -l "$mount/quickstart/step_$STEPS"
show du -sh "$mount/quickstart"
show ckptctl du "$mount/quickstart"
show ckptctl status --timeout 60 "$mount"
printf '\n'
start=$EPOCHREALTIME
"$root/deploy/umount.fuse.ckptfs" "$mount" || die 1 "cannot unmount $mount"
mounting=0
say "unmounted in $(awk "BEGIN { printf \"%.2f\", $EPOCHREALTIME - $start }")" \
	"s; everything is durable"
mount_store
run_job load
summary $((SECONDS - begin))
if [[ $keep ]]; then
	say "left mounted: $mount (unmount: $root/deploy/umount.fuse.ckptfs $mount)"
	say "its store: $store"
fi
