# shellcheck shell=bash disable=SC2034,SC2154 # run.sh has the variables
#
# shared.sh - many nodes: what a directory of theirs costs, and what it is to
# read and list there through a mount. The directory is on the store's disk, or
# where --shared-in says.

other=$work/other other_store=$work/other_store

# mount_other OPTIONS: a second store beside the first one, on $other
mount_other() {
	local tries=0

	mkdir -p "$other" "$other_store"
	"$ckptfs" -f -o "stage_size=${stage_mib}M${1:+,$1}" "$other_store" "$other" \
		>"$work/other.log" 2>&1 &
	other_daemon=$!
	until mountpoint -q "$other"; do
		if ((tries++ == 1500)) || ! kill -0 "$other_daemon" 2>/dev/null; then
			cat "$work/other.log" >&2
			die 1 "the second ckptfs does not mount"
		fi
		sleep 0.02
	done
}

drop_other() {
	umount "$other"
	wait "$other_daemon" || {
		cat "$work/other.log" >&2
		die 1 "the second ckptfs failed at its end"
	}
	other_daemon=''
	rm -rf --one-file-system "$other_store"
}

# fresh_shared PARENT: $shared, below it, and a mount of node a
fresh_shared() {
	shared=$1/ckptfs-bench.${work##*.}
	mkdir "$shared"
	"$ckptctl" init --shared "$shared" >/dev/null
	fresh_store "shared=$shared,node=a"
}

drop_shared() {
	drop_store
	rm -rf --one-file-system "$shared"
	shared=''
}

flush_shared() { "$ckptctl" flush --shared "$mnt" >/dev/null; }

# Nothing goes on in the background of what comes next.
shared_rests() {
	flush_shared
	settle
	sync -f "$shared"
}

row_shared() {
	local parent=${shared_parent:-$plain}

	fresh_shared "$parent"
	mount_other ''
	shared_writes
	drop_other
	shared_frozen
	mount_other "shared=$shared,node=b"
	shared_uploads
	shared_reads
	shared_small
	drop_other
	drop_shared
}

# Saves of a name that is new each time, as trainers have them.
shared_writes() {
	local round

	for ((round = 0; round <= rounds; round++)); do
		ours+=("$(write_files "$mnt/step_$round" 1 $((1 << 20)) "1$round")")
		theirs+=("$(write_files "$other/step_$round" 1 $((1 << 20)) "2$round")")
		shared_rests
		"$ckptctl" flush "$other"
		rm -r "$mnt/step_$round" "$other/step_$round"
		settle
		"$ckptctl" gc "$other" >/dev/null
		((round > 0)) || ours=() theirs=() # its size was not known
	done
	row_speed 'write with shared= (without)' 0.95
}

# On an ext4 of its own, which is frozen while it is written and closed.
shared_frozen() {
	if [[ ${shared_parent-} ]]; then
		not_run 'write with shared=, frozen (without)' '--shared-in is given'
		return
	fi
	truncate -s 512M "$plain/ext4"
	mkfs.ext4 -q "$plain/ext4"
	mkdir -p "$work/ext4"
	mount -o loop "$plain/ext4" "$work/ext4"
	rm -rf --one-file-system "$other_store"
	mkdir "$work/ext4/shared"
	"$ckptctl" init --shared "$work/ext4/shared" >/dev/null
	unmount_store
	mv "$store" "$store.kept"
	mkdir "$store"
	mount_store "shared=$work/ext4/shared,node=a"
	mount_other ''
	pairs < <(python3 "$here/frozen_pairs.py" "$rounds" "$bytes" \
		"$work/ext4" "$mnt" "$other")
	row_speed 'write with shared=, frozen (without)' 0.95
	drop_other
	drop_store
	umount "$work/ext4"
	rm "$plain/ext4"
	mv "$store.kept" "$store"
	mount_store "shared=$shared,node=a"
}

# upload_ns ROUND WRITERS: with the drain of what is stored here already, which
# is held until then, so that no file is under way before
upload_ns() {
	write_files "$mnt/upload_$1" "$2" $((8 << 20)) 7 >/dev/null
	"$bench" run "$ckptctl" flush --shared "$mnt"
}

# copy_ns ROUND WRITERS: the same bytes, by dd, one file after the other
copy_ns() {
	mkdir "$shared/dd_$1"
	# shellcheck disable=SC2016 # it is for sh
	"$bench" run sh -c 'for f in "$0"/*; do
		dd if="$f" of="$1/${f##*/}" bs=8M conv=fsync status=none || exit
	done' "$raw/upload" "$shared/dd_$1"
}

# The sides change their order: what was removed is given back meanwhile.
uploads_of() { # WRITERS NAME
	local round a b

	write_files "$raw/upload" "$1" $((8 << 20)) 7 >/dev/null
	write_files "$mnt/upload" "$1" $((8 << 20)) 7 >/dev/null
	for ((round = 0; round < rounds; round++)); do
		shared_rests
		if ((round % 2)); then
			a=$(upload_ns "$round" "$1")
			sync -f "$shared"
			b=$(copy_ns "$round" "$1")
		else
			b=$(copy_ns "$round" "$1")
			sync -f "$shared"
			a=$(upload_ns "$round" "$1")
		fi
		pair "$a" "$b"
	done
	row_speed "$2" 0.9
	rm -r "$mnt"/upload* "$shared"/dd_* "$raw/upload"
	shared_rests
}

shared_uploads() {
	unmount_store
	mount_store "shared=$shared,node=a,debug_hold_drain"
	uploads_of 1 'upload (dd bs=8M conv=fsync)'
	uploads_of 8 'upload of 8 files (dd, one by one)'
	unmount_store
	mount_store "shared=$shared,node=a"
}

shared_reads() {
	"$bench" write $((1 << 20)) "$bytes" 8 "$mnt/read" >/dev/null
	shared_rests
	read_pairs "$other/read" "$shared/read" \
		"read another node's file (in DIR)" 0.95
	read_pairs "$mnt/read" "$(image_of "$mnt/read")" \
		'read a file kept here (the image)' 0.9
	rm "$mnt/read"
	shared_rests
}

# list_ns DIR: names and attributes of all there
# shellcheck disable=SC2016 # it is for sh
list_ns() { "$bench" run sh -c 'exec ls -lRU "$0" >/dev/null' "$1"; }

# names_rows WHAT: stat and ls of $files, which are of another node
names_rows() {
	local round

	for ((round = 0; round < rounds; round++)); do
		pair "$("$bench" stat "$files" "$other/small")" \
			"$("$bench" stat "$files" "$shared/small")"
	done
	row_rate "stat $files files$1 (in DIR)" 0.8
	for ((round = 0; round < rounds; round++)); do
		pair "$(list_ns "$other/small")" "$(list_ns "$shared/small")"
	done
	row_rate "ls -l of $files files$1 (in DIR)" 0.8
}

shared_small() {
	local round

	mkdir "$mnt/small" "$shared/raw"
	for ((round = 0; round < rounds; round++)); do
		mkdir "$mnt/made_$round" "$shared/made_raw"
		pair "$("$bench" create "$((files / 10))" "$mnt/made_$round")" \
			"$("$bench" create "$((files / 10))" "$shared/made_raw")"
		shared_rests
		rm -r "$shared/made_raw"
	done
	row "create $((files / 10)) files of 4 KiB (in DIR)" 0 \
		"$((files * 100000))" k/s
	"$bench" create "$files" "$mnt/small" >/dev/null
	shared_rests
	names_rows ''
	drop_other
	mount_other "shared=$shared,node=c,names_timeout=1"
	names_rows ', timeout 1'
	rm -r "$mnt/small" "$mnt"/made_*
}
