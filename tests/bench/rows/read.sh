# shellcheck shell=bash disable=SC2034,SC2154 # run.sh has the variables
#
# read.sh - reading back what was saved, staged, native and put together.

# read_pairs OURS THEIRS NAME WANTED: once for the cache, then in turn
read_pairs() {
	local round

	"$bench" read $((1 << 20)) "$1" >/dev/null
	"$bench" read $((1 << 20)) "$2" >/dev/null
	for ((round = 0; round < rounds; round++)); do
		pair "$("$bench" read $((1 << 20)) "$1")" \
			"$("$bench" read $((1 << 20)) "$2")"
	done
	row_speed "$3" "$4"
}

row_read() {
	fresh_store debug_hold_drain
	write_files "$mnt/step_1" 1 $((1 << 20)) 1 >/dev/null
	flush
	write_files "$mnt/step_2" 1 $((1 << 20)) 2 >/dev/null
	write_files "$raw/step" 1 $((1 << 20)) 2 >/dev/null
	read_pairs "$mnt/step_2/rank_0_of_1.bin" "$raw/step/rank_0_of_1.bin" \
		'read back, staged' 0.9
	rm -r "$raw/step"
	drop_store

	fresh_store debug_no_stage_cache
	write_files "$mnt/step" 1 $((1 << 20)) 1 >/dev/null
	flush
	read_pairs "$mnt/step/rank_0_of_1.bin" \
		"$(image_of "$mnt/step/rank_0_of_1.bin")" \
		'read back, native, page cache (the image)' 0.9
	drop_store
}

row_assembled() {
	fresh_store debug_no_stage_cache
	"$bench" write $((1 << 20)) "$bytes" 1 "$mnt/native" >/dev/null
	flush
	"$bench" write $((1 << 20)) "$bytes" 1:2 "$mnt/partly" >/dev/null
	flush
	image_of "$mnt/native" >/dev/null
	[[ $(inspect_text "$mnt/partly" native) == false ]] ||
		die 1 "the partly shared file is native"
	read_pairs "$mnt/partly" "$mnt/native" \
		'read half-shared, page cache (a native file)' 0.4
	drop_store
}
