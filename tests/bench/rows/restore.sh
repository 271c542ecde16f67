# shellcheck shell=bash disable=SC2034,SC2154 # run.sh has the variables
#
# restore.sh - restoring with cold caches, by several ranks.

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
