# shellcheck shell=bash disable=SC2034,SC2154 # run.sh has the variables
#
# torch.sh - what a trainer calls to save and load: torch, safetensors, and the
# library for tensors.

row_torch() {
	local what

	needs_torch 'torch.save and torch.load' || return 0
	fresh_store debug_hold_drain
	"$venv_python" "$here/torch_pairs.py" "$mnt" "$raw" "$ckptctl" \
		"$rounds" "$torch_bytes" >"$work/torch"
	for what in save load; do
		pairs < <(sed -n "s/^$what //p" "$work/torch")
		row_speed "torch.$what" 0.95 "$torch_bytes"
	done
	drop_store
}

# As a trainer with safetensors saves: .tmpXXXXXX, O_RDWR, ftruncate, rename.
row_safetensors() {
	needs_torch 'safetensors.torch.save_file' || return 0
	fresh_store debug_hold_drain,publish=async
	"$venv_python" "$here/safetensors_pairs.py" "$mnt" "$raw" "$ckptctl" \
		"$rounds" "$torch_bytes" >"$work/safetensors"
	pairs <"$work/safetensors"
	row_speed 'safetensors.torch.save_file' 0.9 "$torch_bytes"
	drop_store
}

row_tensors() {
	local threads

	threads=$(nproc)
	((threads <= 4)) || threads=4
	fresh_store ''
	# A tenth of a second each: more rounds than others.
	"$save_bench" "$mnt" "$bytes" $((rounds * 3)) "$threads" >"$work/tensors"
	pairs <"$work/tensors"
	row_speed "save tensors ($threads threads memcpy)" 0.95
	drop_store

	needs_torch 'save tensors (safetensors)' || return 0
	# As /dev/shm is: pages of 4 KiB.
	mount -t tmpfs -o "huge=never,size=$((stage_mib))M" ckptfs-bench "$small"
	fresh_store ''
	env CKPTFS_GPU_LIBRARY="$build/gpu/libckpt_gpu.so.0" \
		PYTHONPATH="$root/gpu/python" PYTHONDONTWRITEBYTECODE=1 \
		"$venv_python" "$here/save_pairs.py" "$mnt" "$small" "$ckptctl" \
		"$rounds" "$torch_bytes" >"$work/tensors"
	pairs <"$work/tensors"
	row_speed 'save tensors (safetensors.torch, raw tmpfs)' 3 "$torch_bytes"
	drop_store
	umount "$small"
}
