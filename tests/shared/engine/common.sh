# shellcheck shell=bash
# common.sh - what the engines of tests/shared have in common; sourced by them.
#
# An engine is a cluster file system on this machine alone, all of it in the folder $ENGINE_DIR (./engine-test). Its processes
# run in a network namespace of their own, so that its addresses and ports are nobody else's; its mounts are seen by everybody.
# Each client is a process of its own, with caches as another node would have.
#
# Keeps true: only processes are ended that were started here. $ENGINE_DIR/run/NAME.pid has a process's number and when it
# began, in the kernel's ticks: a number that is somebody else's by now does not count.
#
#   NAME.sh check                what is missing on this machine, one line; 0 when nothing is
#   NAME.sh start                a fresh, empty file system
#   NAME.sh mount DIR            one more client, on DIR
#   NAME.sh umount DIR           it ends when it has written what it has
#   NAME.sh lose DIR             kill -9 of the client, as when a node loses power
#   NAME.sh stop|cont|kill|up data|meta     SIGSTOP, SIGCONT, kill -9, start again
#   NAME.sh full on|off          no room for bytes
#   NAME.sh quota PATH BYTES     of a folder below a mounted DIR; 0: none
#   NAME.sh clean                end everything, at once; remove it
#
# env: ENGINE_DIR; SIZE, in MiB, of what holds the bytes (4096, sparse); ACLS=1: with access lists, where that is to be said.
set -eu
export PATH=$PATH:/usr/sbin:/sbin
D=${ENGINE_DIR:-$PWD/engine-test}
SIZE=${SIZE:-4096}

began() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }

pid_of() { cut -d' ' -f1 "$D/run/$1.pid" 2>/dev/null; }

alive() {
	local p t
	read -r p t <"$D/run/$1.pid" 2>/dev/null && [ "$(began "$p")" = "$t" ]
}

note_pid() { echo "$2 $(began "$2")" >"$D/run/$1.pid"; } # name pid

await_end() { # pid seconds
	local i
	for ((i = 0; i < $2 * 20; i++)); do
		kill -0 "$1" 2>/dev/null || return 0
		[ "$(sed 's/.*) //; s/ .*//' "/proc/$1/stat" 2>/dev/null)" != Z ] || return 0
		sleep 0.05
	done
	return 1
}

kill_one() {
	alive "$1" || return 0
	local p
	p=$(pid_of "$1")
	kill -KILL "$p"
	await_end "$p" 60 || echo "$1 ($p) does not end" >&2
	rm -f "$D/run/$1.pid"
}

in_net() { nsenter --net="/proc/$(pid_of net)/ns/net" "$@"; }

# A process in the namespace; nsenter becomes it, so that its number is known.
begin() { # name argv...
	local name=$1
	shift
	setsid nsenter --net="/proc/$(pid_of net)/ns/net" "$@" </dev/null >>"$D/log/$name" 2>&1 &
	note_pid "$name" $!
}

await() { # seconds what command...
	local i seconds=$1 what=$2
	shift 2
	for ((i = 0; i < seconds * 10; i++)); do
		"$@" && return 0
		sleep 0.1
	done
	echo "not within $seconds s: $what (see $D/log)" >&2
	return 1
}

net_is_apart() { [ "$(readlink "/proc/$(pid_of net)/ns/net")" != "$(readlink /proc/self/ns/net)" ]; }

start_net() { # address
	mkdir -p "$D/run" "$D/log"
	setsid unshare --net sleep infinity </dev/null >/dev/null 2>&1 &
	note_pid net $!
	await 60 "a network namespace" net_is_apart
	in_net ip link set lo up
	[ "$1" = 127.0.0.1 ] || in_net ip addr add "$1/32" dev lo
}

client_of() { # DIR: the name of its process
	echo "client$(readlink -f "$1" | tr / _)"
}

is_mounted() { grep -qF " $1 " /proc/self/mounts; }

# A client in the foreground, on DIR.
begin_client() { # DIR argv...
	local dir name
	mkdir -p "$1"
	dir=$(readlink -f "$1")
	name=$(client_of "$dir")
	shift
	begin "$name" "$@"
	echo "$dir" >>"$D/run/mounts"
	await 60 "a mount on $dir" is_mounted "$dir"
}

end_client() { # DIR
	local name p
	name=$(client_of "$1")
	umount "$1"
	p=$(pid_of "$name") || return 0
	await_end "$p" 60 || { echo "the client of $1 does not end" >&2; kill_one "$name"; return 1; }
	rm -f "$D/run/$name.pid"
}

# Whoever waits for a client waits no longer; else it cannot even be killed when it waits in the kernel for a user who waits
# for it: two clients of CephFS that rename the same names do that.
abort_mount() { umount -f "$1" 2>/dev/null || :; }

lose_client() { # DIR
	abort_mount "$(readlink -f "$1")"
	kill_one "$(client_of "$1")"
	umount -l "$1" 2>/dev/null || :
}

clean_all() {
	local f name
	if [ -d "$D/run" ]; then
		[ ! -f "$D/run/mounts" ] || while read -r m; do abort_mount "$m"; done <"$D/run/mounts"
		for f in "$D"/run/*.pid; do
			name=${f##*/}
			[ ! -e "$f" ] || kill_one "${name%.pid}"
		done
		[ ! -f "$D/run/mounts" ] || while read -r m; do umount -l "$m" 2>/dev/null || :; done <"$D/run/mounts"
	fi
	! is_mounted "$(readlink -f "$D")/disk" || umount -l "$D/disk"
	rm -rf --one-file-system "$D"
}

missing_tools() { # programs, and the packages they are in
	local t
	for t in "$@"; do
		command -v "$t" >/dev/null || { echo "$t is not installed (deploy/setup.sh)"; return 1; }
	done
	unshare --net true 2>/dev/null || { echo "no network namespaces here"; return 1; }
}

disk() { # a small ext4 of SIZE on $D/disk, or else a tmpfs
	mkdir -p "$D/disk"
	truncate -s "${SIZE}M" "$D/disk.img"
	mkfs.ext4 -q -F -m0 "$D/disk.img"
	mount -o loop "$D/disk.img" "$D/disk" 2>/dev/null || mount -t tmpfs -o "size=${SIZE}M" shared "$D/disk"
}

usage() {
	sed -n 's/^# \?//; /NAME.sh/p' "$(dirname "${BASH_SOURCE[0]}")/common.sh" | sed "s/NAME.sh/${0##*/}/"
	exit 2
}
