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

# flush_ns MAKE SEED FILE: how long the file takes that MAKE made
flush_ns() {
	"$1" "$2" "$mnt/$3" >/dev/null
	"$bench" run "$ckptctl" flush "$mnt"
}
unknown_file() { "$bench" write $((1 << 20)) "$bytes" "$1" "$2"; }

# drop FILE...: and what they held is given back
drop() {
	(cd "$mnt" && rm "$@")
	settle
}

row_drain() {
	local round a b c d known=() new=()

	fresh_store debug_hold_drain
	flush_ns tensor_file 1 new_1 >/dev/null
	drop new_1
	for ((round = 2; round <= rounds + 1; round++)); do
		a=$(flush_ns tensor_file "$round" new)
		b=$(direct_write $((1 << 20)))
		c=$(direct_write $((8 << 20)))
		pair "$a" $((b < c ? b : c))
		d=$(flush_ns tensor_file "$round" copy)
		new+=("$a") known+=("$d")
		drop new copy
	done
	row_speed 'drain of new bytes (O_DIRECT + fdatasync)' 0.7
	ours=("${known[@]}") theirs=("${new[@]}")
	row_speed 'drain of known bytes (of new bytes)' 2.5
	drop_store
}

row_cut() {
	local round cut_mib=256 theirs_new=() theirs_known=() ours_known=()

	"$build/tests/bench/ckpt_cut_bench" "$cut_mib" "$rounds" >"$plain/cut"
	pairs <"$plain/cut"
	rm "$plain/cut"
	row_speed 'cut by content, a core (hash the chunks)' 0.1 $((cut_mib << 20))
	fresh_store debug_hold_drain
	flush_ns unknown_file 1 new_1 >/dev/null
	drop new_1
	for ((round = 2; round <= rounds + 1; round++)); do
		ours+=("$(flush_ns unknown_file "$round" new)")
		ours_known+=("$(flush_ns unknown_file "$round" copy)")
		drop new copy
		theirs_new+=("$(flush_ns tensor_file "1$round" new)")
		theirs_known+=("$(flush_ns tensor_file "1$round" copy)")
		drop new copy
	done
	theirs=("${theirs_new[@]}")
	row_speed 'drain, no known format (safetensors)' 0.7
	ours=("${ours_known[@]}") theirs=("${theirs_known[@]}")
	row_speed '  known bytes (safetensors)' 0.3
	drop_store
}
