# shellcheck shell=bash disable=SC2034,SC2154 # run.sh has the variables
#
# structure.sh - looking at a step: its signature and closure, and a large
# .metadata.

row_structure() {
	local a b what='signature, closure of a DCP step (its drain)'

	needs_torch "$what" || return 0
	fresh_store debug_hold_drain,structure=off
	"$venv_python" "$here/structure_pairs.py" "$mnt" "$raw" "$ckptctl" \
		"$rounds" "$torch_bytes" >"$work/structure"
	pairs < <(sed -n 's/^structure //p' "$work/structure")
	medians
	ours=() theirs=()
	line "$what" "$(awk -v n="$a" 'BEGIN { printf "%.2f ms", n / 1e6 }')" \
		"$(awk -v n="$b" 'BEGIN { printf "%.2f ms", n / 1e6 }')" \
		"$(awk -v a="$a" -v b="$b" 'BEGIN { printf "%.4f", a / b }')" \
		'<= 0.01' \
		"$(verdict "$(awk -v a="$a" -v b="$b" \
			'BEGIN { print a / b }')" LE 0.01)"
	drop_store
}

row_metadata() {
	local a b kib what="inspect 300000 chunks (torch's reader)"

	needs_torch "$what" || return 0
	mkdir "$plain/metadata"
	"$venv_python" "$here/metadata_pairs.py" "$plain/metadata" "$ckptctl" \
		"$rounds" >"$work/metadata"
	rm -r "$plain/metadata"
	pairs < <(sed -n 's/^metadata //p' "$work/metadata")
	medians
	line "$what" "$(awk -v n="$a" 'BEGIN { printf "%.2f s", n / 1e9 }')" \
		"$(awk -v n="$b" 'BEGIN { printf "%.2f s", n / 1e9 }')" \
		"$(printf %.2f "$(ratios | median)")" '<= 2 s' \
		"$(verdict "$a" LE 2000000000)"
	ours=() theirs=()
	kib=$(awk '/^metadata / { print $4 }' "$work/metadata" | median)
	line '  and resident' "$((kib / 1024)) MiB" - - '< 300 MiB' \
		"$(verdict "$kib" LE $((300 * 1024)))"
}
