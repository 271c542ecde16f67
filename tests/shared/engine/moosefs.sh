#!/bin/bash
# A real MooseFS: a master (`meta`), a chunkserver (`data`) on a small ext4, and clients by mfsmount.
# Packages: moosefs-master moosefs-chunkserver moosefs-client, without recommends. See common.sh.
# It refuses 127.0.0.1 for its master: the namespace has the documentation address 192.0.2.1.
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$(readlink -f "$0")")/common.sh"
PORT=19419
IP=192.0.2.1

up() {
	case $1 in
	meta) begin meta mfsmaster -f ${2:+"$2"} -c "$D/mfsmaster.cfg" ;;
	data) begin data mfschunkserver -f -c "$D/mfschunkserver.cfg" ;;
	esac
}

listens() { in_net bash -c "exec 3<>/dev/tcp/$IP/$1" 2>/dev/null; }

# What the chunkserver may fill, in MiB less than the disk.
config_chunks() { # leave
	cat >"$D/mfschunkserver.cfg" <<-END2
		WORKING_USER = root
		WORKING_GROUP = root
		DATA_PATH = $D/cs
		HDD_CONF_FILENAME = $D/mfshdd.cfg
		HDD_LEAVE_SPACE_DEFAULT = $1MiB
		MASTER_HOST = $IP
		MASTER_PORT = $((PORT + 1))
		MASTER_RECONNECTION_DELAY = 1
		CSSERV_LISTEN_HOST = $IP
		CSSERV_LISTEN_PORT = $((PORT + 3))
	END2
}

start() {
	mkdir -p "$D/master" "$D/cs"
	start_net $IP
	disk
	cp /var/lib/mfs/metadata.mfs.empty "$D/master/metadata.mfs" 2>/dev/null || printf 'MFSM NEW' >"$D/master/metadata.mfs"
	echo "$IP/32 / rw,alldirs,admin,maproot=0:0" >"$D/mfsexports.cfg"
	: >"$D/mfstopology.cfg"
	echo "$D/disk" >"$D/mfshdd.cfg"
	cat >"$D/mfsmaster.cfg" <<-END2
		WORKING_USER = root
		WORKING_GROUP = root
		DATA_PATH = $D/master
		EXPORTS_FILENAME = $D/mfsexports.cfg
		TOPOLOGY_FILENAME = $D/mfstopology.cfg
		MATOML_LISTEN_HOST = $IP
		MATOML_LISTEN_PORT = $PORT
		MATOCS_LISTEN_HOST = $IP
		MATOCS_LISTEN_PORT = $((PORT + 1))
		MATOCL_LISTEN_HOST = $IP
		MATOCL_LISTEN_PORT = $((PORT + 2))
	END2
	config_chunks 64
	up meta
	await 20 "a master" listens $((PORT + 2))
	up data
	await 20 "a chunkserver" listens $((PORT + 3))
}

case ${1:-} in
check) missing_tools ip mfsmaster mfschunkserver mfsmount mkfs.ext4 ;;
start) start ;;
mount) begin_client "$2" mfsmount -f -H $IP -P $((PORT + 2)) -o "mfssubfolder=/,fsname=$D/mfs" "$2" ;;
umount) end_client "$2" ;;
lose) lose_client "$2" ;;
stop) kill -STOP "$(pid_of "$2")" ;;
cont) kill -CONT "$(pid_of "$2")" ;;
kill) kill_one "$2" ;;
up)
	if [ "$2" = meta ]; then # its changes are in logs: -a applies them
		up meta -a
		await 60 "a master" listens $((PORT + 2))
	else
		up "$2"
	fi ;;
full)
	if [ "$2" = on ]; then config_chunks $((SIZE - 1)); else config_chunks 64; fi
	kill -HUP "$(pid_of data)" ;;
quota)
	if [ "$3" = 0 ]; then mfsdelquota -a "$2"; else mfssetquota -S "$3" "$2"; fi >/dev/null ;;
clean) clean_all ;;
*) usage ;;
esac
