#!/bin/bash
# No cluster: one small ext4, and each "node" is a bind mount of it. For machines without the packages of the others, and
# because it is quick. Nothing is cached by a client here, so it shows less. See common.sh.
# `stop data` freezes the file system: what changes something waits. There is no process to kill.
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$(readlink -f "$0")")/common.sh"

case ${1:-} in
check) command -v mkfs.ext4 >/dev/null || { echo "mkfs.ext4 is not installed"; exit 1; } ;;
start)
	mkdir -p "$D/run" "$D/log"
	disk
	mkdir "$D/disk/root" ;;
mount)
	mkdir -p "$2"
	mount --bind "$D/disk/root" "$2"
	readlink -f "$2" >>"$D/run/mounts" ;;
umount) umount "$2" ;;
lose) umount -l "$2" ;;
stop) [ "$2" = data ] && fsfreeze -f "$D/disk" ;;
cont) [ "$2" = data ] && fsfreeze -u "$D/disk" ;;
full)
	if [ "$2" = on ]; then
		dd if=/dev/zero of="$D/disk/filler" bs=1M 2>/dev/null || :
		cat /dev/zero >>"$D/disk/filler" 2>/dev/null || :
	else
		rm -f "$D/disk/filler"
	fi ;;
clean)
	fsfreeze -u "$D/disk" 2>/dev/null || :
	clean_all ;;
kill | up | quota) echo "there is nothing of the kind in a directory"; exit 3 ;;
*) usage ;;
esac
