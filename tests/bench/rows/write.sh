# shellcheck shell=bash disable=SC2034,SC2154 # run.sh has the variables
#
# write.sh - writing: what a save costs, by size of its calls, number of writers
# and age of its series.

# second_save CALL WRITERS NAME WANTED [COMMAND]
second_save() {
	local round a b

	write_files "$mnt/step_1" "$2" "$1" 1 "${5-}" >/dev/null
	flush
	for ((round = 1; round <= rounds; round++)); do
		warm_up $((bytes * 2))
		a=$(write_files "$mnt/step_$((round + 1))" "$2" "$1" \
			$((round + 1)) "${5-}")
		rm -r "$mnt/step_$((round + 1))"
		sleep 0.2
		warm_up $((bytes * 2))
		b=$(write_files "$raw/step" "$2" "$1" "$round" "${5-}")
		rm -r "$raw/step"
		pair "$a" "$b"
	done
	row_speed "$3" "$4"
	rm -r "$mnt/step_1"
	settle
}

row_write() {
	fresh_store debug_hold_drain
	second_save $((1 << 20)) 1 'write 1 MiB calls, second save' 0.9
	second_save $((1 << 20)) 4 'write 1 MiB calls, 4 writers' 0.9
	second_save $((1 << 20)) 1 'write 1 MiB calls, O_RDWR' 0.9 update
	drop_store
}

row_write128k() {
	fresh_store debug_hold_drain
	second_save $((128 << 10)) 1 'write 128 KiB calls, second save' 0.8
	second_save $((128 << 10)) 4 'write 128 KiB calls, 4 writers' 0.8
	drop_store
}

# first_save CALL WRITERS NAME
first_save() {
	local round a b new=a

	for ((round = 1; round <= rounds; round++)); do
		new+=b # no file before had this name, digits apart
		warm_up $((bytes * 2))
		a=$(write_files "$mnt/$2_$new" "$2" "$1" "$round")
		rm -r "${mnt:?}/$2_$new"
		sleep 0.2
		warm_up $((bytes * 2))
		b=$(write_files "$plain/step" "$2" "$1" "$round")
		rm -r "$plain/step"
		pair "$a" "$b"
	done
	row_speed "$3" 0.9
	settle
}

row_first() {
	fresh_store debug_hold_drain
	first_save $((1 << 20)) 1 'first save, 1 MiB calls (page cache)'
	first_save $((1 << 20)) 4 'first save, 4 writers (page cache)'
	first_save $((128 << 10)) 1 'first save, 128 KiB calls (page cache)'
	drop_store
}

# third_save WRITERS NAME: of a series of its own, against its first save
third_save() {
	local round new=a a b

	for ((round = 1; round <= rounds; round++)); do
		new+=b
		warm_up $((bytes * 2))
		b=$(write_files "$mnt/$1_${new}_step_1" "$1" $((1 << 20)) 1)
		flush
		write_files "$mnt/$1_${new}_step_2" "$1" $((1 << 20)) 2 >/dev/null
		flush
		warm_up $((bytes * 2))
		a=$(write_files "$mnt/$1_${new}_step_3" "$1" $((1 << 20)) 3)
		flush
		pair "$a" "$b"
		rm -r "$mnt/$1_${new}"_step_?
		settle
	done
	row_speed "$2" 1.0
}

row_series() {
	fresh_store ''
	third_save 1 'third save of a series (its first)'
	third_save 4 'third save, 4 writers (the first)'
	drop_store
}
