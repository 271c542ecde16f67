#!/bin/bash
# A real CephFS: a monitor, an OSD (`data`), an MDS (`meta`), no manager (its statfs says 0), and clients by ceph-fuse.
# Packages: ceph-mon ceph-osd ceph-mds ceph-fuse ceph-common, without recommends. See common.sh.
# Between tests with `kill data` its OSD's memory is lost, not its disk, as with real ones.
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$(readlink -f "$0")")/common.sh"
C=$D/ceph.conf
PORT=16789

cceph() { in_net timeout 60 ceph -c "$C" "$@"; }

up() {
	case $1 in
	mon) begin mon ceph-mon -f -c "$C" -i a --setuser root --setgroup root ;;
	data) begin data ceph-osd -f -c "$C" -i 0 --setuser root --setgroup root ;;
	meta) begin meta ceph-mds -f -c "$C" -i a --setuser root --setgroup root ;;
	esac
}

config() {
	cat >"$C" <<-END2
	[global]
	fsid = $FSID
	mon_host = [v2:127.0.0.1:$PORT]
	mon_initial_members = a
	auth_cluster_required = none
	auth_service_required = none
	auth_client_required = none
	keyring = $D/keyring
	public_network = 127.0.0.0/8
	cluster_network = 127.0.0.0/8
	public_addr = 127.0.0.1
	cluster_addr = 127.0.0.1
	ms_bind_ipv6 = false
	ms_bind_msgr1 = false
	pid_file =
	admin_socket = $D/run/\$name.asok
	run_dir = $D/run
	crash_dir = $D/log
	log_file = $D/log/\$name.log
	osd_pool_default_size = 1
	osd_pool_default_min_size = 1
	osd_pool_default_pg_autoscale_mode = off
	osd_crush_chooseleaf_type = 0
	mon_allow_pool_size_one = true
	mon_max_pg_per_osd = 1000
	osd_heartbeat_grace = 6
	osd_heartbeat_interval = 1
	[mon]
	mon_data = $D/mon
	mon_data_avail_crit = 1
	mon_data_avail_warn = 2
	mon_osd_min_down_reporters = 1
	paxos_propose_interval = 0.05
	paxos_min_wait = 0.01
	mon_warn_on_pool_no_redundancy = false
	mon_cluster_log_to_file = false
	[osd]
	osd_data = $D/osd0
	osd_objectstore = bluestore
	bluestore_block_create = true
	bluestore_block_size = $((SIZE << 20))
	bluestore_fsck_on_mount = false
	osd_memory_target = 1073741824
	osd_numa_auto_affinity = false
	bdev_aio_poll_ms = 10
	[mds]
	mds_data = $D/mds
	mds_cache_memory_limit = 268435456
	[client]
	objecter_timeout = 2
	objecter_tick_interval = 1
	log_file =
	admin_socket =
	END2
}

is_active() { cceph mds stat 2>/dev/null | grep -q up:active; }

start() {
	local pool uuid
	mkdir -p "$D/mon" "$D/mds" "$D/osd0"
	start_net 127.0.0.1
	FSID=$(cat /proc/sys/kernel/random/uuid)
	config
	monmaptool --create --clobber --fsid "$FSID" --addv a "[v2:127.0.0.1:$PORT]" "$D/monmap" >/dev/null
	ceph-mon -c "$C" --mkfs -i a --monmap "$D/monmap" >/dev/null
	up mon
	uuid=$(cat /proc/sys/kernel/random/uuid)
	cceph osd new "$uuid" >/dev/null
	in_net ceph-osd -c "$C" -i 0 --mkfs --osd-uuid "$uuid" >>"$D/log/mkfs" 2>&1
	up data
	for pool in meta data; do
		cceph osd pool create $pool 16 16 2>/dev/null
		cceph osd pool set $pool size 1 --yes-i-really-mean-it >/dev/null 2>&1
	done
	cceph fs new ckpt meta data >/dev/null 2>&1
	up meta
	await 60 "an active MDS" is_active
}

# The MDS would wait a minute for what a client held that was killed, and with it whoever wants to look there.
evict() { # DIR
	local id
	id=$(cceph tell mds.a client ls 2>/dev/null | python3 -c '
import json, sys
print(*(c["id"] for c in json.load(sys.stdin) if c["client_metadata"].get("mount_point") == sys.argv[1]))' "$1") || return 0
	for i in $id; do cceph tell mds.a client evict "id=$i" >/dev/null 2>&1 || :; done
}

case ${1:-} in
check) missing_tools ip ceph ceph-mon ceph-osd ceph-mds ceph-fuse monmaptool python3 ;;
start) start ;;
mount) begin_client "$2" ceph-fuse -f -c "$C" -n client.admin "$2" ;;
umount) end_client "$2" ;;
lose)
	lose_client "$2"
	if alive meta && alive mon; then evict "$2"; fi ;;
evict) evict "$2" ;;
stop) kill -STOP "$(pid_of "$2")" ;;
cont) kill -CONT "$(pid_of "$2")" ;;
kill) kill_one "$2" ;;
up) up "$2" ;;
full)
	if [ "$2" = on ]; then
		cceph osd set-nearfull-ratio 0.0001 && cceph osd set-backfillfull-ratio 0.0002 && cceph osd set-full-ratio 0.0003
	else
		cceph osd set-full-ratio 0.95 && cceph osd set-backfillfull-ratio 0.9 && cceph osd set-nearfull-ratio 0.85
	fi >/dev/null 2>&1 ;;
quota) setfattr -n ceph.quota.max_bytes -v "$3" "$2" ;;
clean) clean_all ;;
*) usage ;;
esac
