# shellcheck shell=bash disable=SC2034,SC2154 # run.sh has the variables
#
# dedup.sh - how many bytes sharing saves.

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

	needs_torch 'what sharing saves' || return 0
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
	added "${step[@]}" moved 1 "$mnt/moved_1.h5"
	added "${step[@]}" moved 2 "$mnt/moved_2.h5"
	row_added 'no known format, all moved: bytes added' $((64 << 20)) 0.05
	drop_store
}
