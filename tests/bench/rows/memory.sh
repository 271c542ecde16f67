# shellcheck shell=bash disable=SC2034,SC2154 # run.sh has the variables
#
# memory.sh - what look-ups and memory of the daemon grow with.

# Resident memory of the daemon in MiB, what it maps of the stage apart.
resident_mib() {
	awk '/^VmRSS/ { a = $2 } /^RssShmem/ { b = $2 }
		END { print int((a - b) / 1024) }' "/proc/$daemon/status"
}

# Two chunks for each pair of tensors; a file of pairs_per_file is 80 MiB.
pairs_per_file=5000 lookup_pairs=4096

# drain_us FIRST STEP APART: microseconds for each chunk of a file of 64 MiB
# whose first pair is the FIRST, and in the next rounds APART further on
drain_us() {
	local round

	for ((round = 0; round < rounds; round++)); do
		"$bench" tensors $(($1 + round * $3)) "$lookup_pairs" "$2" \
			"$mnt/lookup" >/dev/null
		"$bench" run "$ckptctl" flush "$mnt"
		rm "$mnt/lookup"
		settle
	done | median | awk -v n=$((2 * lookup_pairs)) '{ printf "%.2f", $1 / n / 1000 }'
}

row_memory() {
	local count made=0 pairs first_new='' first_known='' new known mib_now
	local serial=500000000 # of pairs that the store does not have

	# Bytes are not compared: what is timed is the index, not the disk.
	fresh_store debug_hold_drain,verify=off
	for count in "${chunk_counts[@]}"; do
		pairs=$((count / 2))
		while ((made < pairs)); do
			"$bench" tensors "$made" "$pairs_per_file" 1 \
				"$mnt/chunks_$made" >/dev/null
			((made += pairs_per_file))
			((made % (10 * pairs_per_file))) || flush
		done
		flush
		new=$(drain_us $serial 1 $lookup_pairs)
		serial=$((serial + 1000000))
		# Spread over all that the store has.
		known=$(drain_us 0 $(((pairs - rounds) / lookup_pairs)) 1)
		first_new=${first_new:-$new} first_known=${first_known:-$known}
		mib_now=$(resident_mib)
		row_growth "drain, new chunks, $count in the store" "$new" "$first_new"
		row_growth "drain, known chunks, $count in the store" "$known" \
			"$first_known"
		line "resident with $count chunks" "$mib_now MiB" - - '< 200 MiB' \
			"$(verdict "$mib_now" LE 199)"
	done
	unmount_store
	mount_store ''
	"$bench" create "$many_files" "$mnt" >/dev/null
	flush
	"$bench" stat "$many_files" "$mnt" >/dev/null
	"$bench" tensors 0 "$lookup_pairs" $((pairs / lookup_pairs)) "$mnt/lookup" \
		>/dev/null
	flush
	mib_now=$(resident_mib)
	line "  and $many_files files" "$mib_now MiB" - - '< 200 MiB' \
		"$(verdict "$mib_now" LE 199)"
	drop_store
}

# row_growth NAME NOW AT_FIRST: times for one chunk, in microseconds
row_growth() {
	local r

	r=$(awk -v a="$2" -v b="$3" 'BEGIN { printf "%.2f", a / b }')
	line "$1" "$2 us" "$3 us" "$r" '<= 2' "$(verdict "$r" LE 2)"
}
