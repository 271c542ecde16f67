# shellcheck shell=bash disable=SC2034,SC2154 # run.sh has the variables
#
# files.sh - many small files, mounting a store that has them, and backups of
# its database meanwhile.

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
