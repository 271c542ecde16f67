# shellcheck shell=bash disable=SC2034,SC2154 # run.sh has the variables
#
# drain.sh - the drain, of new bytes and of known ones; what cutting by content
# costs it.

# direct_write CALL: O_DIRECT and fdatasync of as many bytes
direct_write() {
	"$bench" direct "$1" "$bytes" 9 "$plain/direct"
	rm "$plain/direct"
	sync -f "$plain"
	sleep 0.2
}

row_drain() {
	local round a b c d known=() new=()

	fresh_store debug_hold_drain
	"$bench" write $((1 << 20)) "$bytes" 1 "$mnt/new_1" >/dev/null
	flush
	rm "$mnt/new_1"
	"$bench" write $((1 << 20)) "$bytes" 1 "$mnt/copy_1" >/dev/null
	flush
	rm "$mnt/copy_1"
	settle
	for ((round = 2; round <= rounds + 1; round++)); do
		"$bench" write $((1 << 20)) "$bytes" "$round" "$mnt/new_$round" >/dev/null
		a=$("$bench" run "$ckptctl" flush "$mnt")
		b=$(direct_write $((1 << 20)))
		c=$(direct_write $((8 << 20)))
		pair "$a" $((b < c ? b : c))
		"$bench" write $((1 << 20)) "$bytes" "$round" "$mnt/copy_$round" >/dev/null
		d=$("$bench" run "$ckptctl" flush "$mnt")
		new+=("$a") known+=("$d")
		rm "$mnt/new_$round" "$mnt/copy_$round"
		settle
	done
	row_speed 'drain of new bytes (O_DIRECT + fdatasync)' 0.7
	ours=("${known[@]}") theirs=("${new[@]}")
	row_speed 'drain of known bytes (of new bytes)' 2.5
	drop_store
}

# tensor_file SEED FILE: as many random bytes as one tensor of safetensors
tensor_file() {
	"$bench" write $((1 << 20)) "$bytes" "$1" "$plain/bytes" >/dev/null
	{
		printf '\0\1\0\0\0\0\0\0%-256s' \
			"{\"w\":{\"dtype\":\"U8\",\"shape\":[$bytes],\"data_offsets\":[0,$bytes]}}"
		cat "$plain/bytes"
	} >"$2"
	rm "$plain/bytes"
	sync -f "$plain"
}

row_cut() {
	local round a b cut_mib=256

	"$build/tests/bench/ckpt_cut_bench" "$cut_mib" "$rounds" >"$plain/cut"
	pairs <"$plain/cut"
	rm "$plain/cut"
	row_speed 'cut by content, a core (hash the chunks)' 0.1 $((cut_mib << 20))
	fresh_store debug_hold_drain
	"$bench" write $((1 << 20)) "$bytes" 1 "$mnt/unknown" >/dev/null
	flush
	rm "$mnt/unknown"
	settle
	for ((round = 2; round <= rounds + 1; round++)); do
		"$bench" write $((1 << 20)) "$bytes" "$round" "$mnt/unknown" >/dev/null
		a=$("$bench" run "$ckptctl" flush "$mnt")
		rm "$mnt/unknown"
		settle
		tensor_file "1$round" "$mnt/known"
		b=$("$bench" run "$ckptctl" flush "$mnt")
		rm "$mnt/known"
		settle
		pair "$a" "$b"
	done
	row_speed 'drain, no known format (of safetensors)' 0.8
	drop_store
}
