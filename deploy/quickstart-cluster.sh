#!/bin/bash
#
# quickstart-cluster.sh - two nodes over a real CephFS, and one of them dies.
#
# Installs what is missing, builds, starts CephFS on this machine alone, mounts
# ckptfs twice as two nodes would, lets two ranks of a torch job on each save
# together, and kills one node while its bytes are still on their way. The job
# goes on from the other node with the last step that is whole; then the first
# node comes back, and its step is completed.
#
# Keeps true: what it made is gone at its end, however it ends: processes,
# mounts, files. CephFS runs in a network of its own.

set -euo pipefail

ROOM_KB=$((6 << 20))
SETTLE_S=120 # for what is on its way

usage() {
	cat <<-'END'
	usage: quickstart-cluster.sh [--help]

	Installs what is missing, builds ckptfs, and shows on this machine what two
	nodes over a CephFS do when one of them dies. A few minutes; root.

	CKPTFS_PREFIX  where deploy/setup.sh puts a newer libfuse (/opt/ckptfs)
	CKPTFS_PYTHON  a python with torch 2.6 or newer (default: that of CKPTFS_VENV)
	CKPTFS_VENV    as for deploy/setup.sh --trainer (/var/cache/ckptfs/venv)

	exit code: 0 fine; 1 a step failed or a value differs; 2 wrong usage;
	3 cannot work here; 130 interrupted
	END
}

say() { printf '\nquickstart: %s\n' "$*"; }
die() {
	local code=$1
	shift
	printf 'quickstart: %s\n' "$*" >&2
	exit "$code"
}

show() {
	printf '\n$ %s\n' "$*"
	"$@"
}

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
work='' # everything of ours; removed at the end
declare -A daemon=() # by node: the process of its ckptfs
export PATH=$PATH:/usr/sbin:/sbin LC_ALL=C

engine() { ENGINE_DIR=$work/ceph "$root/tests/shared/engine/cephfs.sh" "$@"; }

# A node: its client of CephFS, then its ckptfs.
node_up() {
	engine mount "$work/client-$1" >>"$work/log" 2>&1 || die 1 "no client of CephFS"
	if [[ ${2-} == first ]]; then
		[[ -d $work/client-$1/ckpt ]] || mkdir "$work/client-$1/ckpt"
		[[ -d $work/client-$1/ckpt/.ckptfs ]] ||
			show ckptctl init --shared "$work/client-$1/ckpt"
	fi
	mkdir -p "$work/store-$1" "$work/node-$1"
	ckptfs -f -o "shared=$work/client-$1/ckpt,node=$1,pending_wait=5,stage_size=1G" \
		"$work/store-$1" "$work/node-$1" >>"$work/log-$1" 2>&1 &
	daemon[$1]=$!
	disown "${daemon[$1]}" # or the shell says when one is killed
	until grep -q " $work/node-$1 fuse.ckptfs " /proc/self/mounts; do
		kill -0 "${daemon[$1]}" 2>/dev/null || {
			cat "$work/log-$1" >&2
			die 1 "node $1 cannot be mounted"
		}
		sleep 0.05
	done
	say "node $1: ckptfs on $work/node-$1, over $work/client-$1/ckpt"
}

# As when it loses power: its client of CephFS and its memory are gone, too.
node_is_dead() {
	engine lose "$work/client-$1"
	unset "daemon[$1]"
	umount -l "$work/node-$1" 2>/dev/null || true
	if mountpoint -q "$work/store-$1/stage"; then umount -l "$work/store-$1/stage"; fi
}

cleanup() {
	local code=$? name
	trap '' INT TERM HUP
	[[ $work ]] || exit "$code"
	for name in "${!daemon[@]}"; do kill -KILL "${daemon[$name]}" 2>/dev/null || true; done
	engine clean >/dev/null 2>&1 || true
	for name in a b; do
		umount -l "$work/node-$name" 2>/dev/null || true
		umount -l "$work/store-$name/stage" 2>/dev/null || true
	done
	if [[ $code -eq 1 ]]; then
		for name in "$work"/log*; do
			printf 'quickstart: the end of %s:\n' "${name##*/}" >&2
			tail -n 5 "$name" >&2
		done
	fi
	rm -rf --one-file-system "$work"
	exit "$code"
}

job() { OMP_NUM_THREADS=1 "$python" -W ignore "$root/deploy/quickstart-cluster.py" "$@"; }

pending() { find "$work/client-a/ckpt" -path '*/.ckptfs' -prune -o -type f -perm -1000 -print; }

await_plain() {
	local s
	for ((s = 0; s < SETTLE_S * 10; s++)); do
		[[ $(pending) ]] || return 0
		sleep 0.1
	done
	die 1 "still pending after $SETTLE_S s: $(pending)"
}

while (($#)); do
	case $1 in
	-h | --help)
		usage
		exit 0
		;;
	*) die 2 "unknown argument '$1' (see --help)" ;;
	esac
done

export CKPTFS_PREFIX=${CKPTFS_PREFIX:-/opt/ckptfs}
export CKPTFS_VENV=${CKPTFS_VENV:-/var/cache/ckptfs/venv}
cd "$root"
[[ $EUID -eq 0 ]] || die 3 "must be root: CephFS and two nodes are started"
[[ -e /dev/fuse ]] || die 3 "there is no /dev/fuse: modprobe fuse"
options=()
trap cleanup EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
work=$(mktemp -d /var/tmp/ckptfs-cluster.XXXXXX)
chmod 755 "$work"
: >"$work/log"
free=$(df -Pk -- "$work" | awk 'NR == 2 { print $4 }')
((free >= ROOM_KB)) || die 1 "/var/tmp has $((free >> 10)) MiB free, $((ROOM_KB >> 10)) are needed"

begin=$SECONDS
deploy/setup.sh --no-tests --clusters || exit
lacks=$(engine check) || die 3 "no CephFS here: $lacks"
python=${CKPTFS_PYTHON:-$CKPTFS_VENV/bin/python}
if ! "$python" -W ignore -c 'import torch.distributed.tensor' >/dev/null 2>&1; then
	say "making a Python environment with torch, for this job alone"
	deploy/setup.sh --no-tests --trainer || exit
	python=$CKPTFS_VENV/bin/python
fi
if [[ ! -e build/CMakeCache.txt ]] && ! pkg-config --exists cmocka; then
	options=(-DCKPTFS_TESTS=OFF)
fi
cmake -S . -B build -G Ninja -DCKPTFS_PREFIX="$CKPTFS_PREFIX" "${options[@]}" \
	>>"$work/log" 2>&1 || die 1 "cmake failed"
cmake --build build --target ckptfs ckptctl >>"$work/log" 2>&1 || die 1 "the build failed"
PATH=$root/build/fuse:$PATH
say "$(build/fuse/ckptfs --version) is built"

say "starting CephFS: a monitor, an OSD and an MDS, on this machine alone"
engine start >>"$work/log" 2>&1 || die 1 "CephFS does not start"
node_up a first
node_up b first
a=$work/node-a/job b=$work/node-b/job
mkdir "$a"

say "four ranks, two on each node, save together"
job save --step 1 "$a" "$a" "$b" "$b" || exit 1
job save --step 2 "$a" "$a" "$b" "$b" || exit 1
await_plain
say "the bytes are in CephFS: what is there are ordinary files"
show ls -la "$work/client-a/ckpt/job/step_2"

say "they save step 3; when the last shard is closed, node b loses power"
job save --step 3 --kill "${daemon[b]}" "$a" "$a" "$b" "$b" || exit 1
node_is_dead b
until [[ $(pending | grep -vc '/\.metadata$') -le 2 ]]; do sleep 0.1; done # node a's get there
say "in CephFS, as who has no ckptfs sees it: what has no permissions is not whole"
show ls -la "$work/client-a/ckpt/job/step_3"
[[ $(pending) ]] || say "(this time node b had written all before it died)"

say "the job goes on with all four ranks on node a"
job resume "$a" "$a" "$a" "$a" || exit 1
job save --step 4 "$a" "$a" "$a" "$a" || exit 1
show ckptctl nodes "$work/client-a/ckpt"

say "node b comes back, and completes what it has"
node_up b
await_plain
show ls -la "$work/client-a/ckpt/job/step_3"
job load --step 3 "$a" "$b" "$a" "$b" || exit 1
job load --step 4 "$b" "$b" "$b" "$b" || exit 1
for name in a b; do
	umount "$work/node-$name" || die 1 "cannot unmount node $name"
	while kill -0 "${daemon[$name]}" 2>/dev/null; do sleep 0.1; done
	unset "daemon[$name]"
done
say "fine: both nodes have ended, all steps are whole, in $((SECONDS - begin)) s"
