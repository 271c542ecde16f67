# shellcheck shell=bash disable=SC2034,SC2154 # run.sh has the variables
#
# drain.sh - the drain, of new bytes and of known ones.

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
