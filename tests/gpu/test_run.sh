#!/bin/bash
#
# test_run.sh BUILD - what run.sh makes of a machine that lacks something, that
# refuses something, or on which a group of rows fails: with the driver on host
# memory, and programs in the way that do as such a machine does.

set -euo pipefail

build=$(realpath "$1")
run=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/run.sh
work=$(mktemp -d "${CKPTFS_TEST_DIR:-/var/tmp}/test_run.XXXXXX")
trap 'rm -rf "$work"' EXIT
failed=0
only_sanitizer=(--skip checks --skip torch --skip bench --skip trainer)

# program FILE: of what stands in the input
program() {
	{ printf '#!/bin/bash\n' && cat; } >"$1"
	chmod +x "$1"
}

# expect NAME CODE COMMAND...: then `says` looks at what it printed
expect() {
	local code=0
	name=$1
	local wanted=$2
	shift 2
	"$@" >"$work/said" 2>&1 || code=$?
	if ((code == wanted)); then
		printf 'ok: %s\n' "$name"
	else
		printf 'FAILED: %s: exit code %d, not %d\n' "$name" "$code" "$wanted"
		cat "$work/said"
		failed=1
	fi
}

says() {
	grep -qF -- "$1" "$work/said" || {
		printf 'FAILED: %s: it does not say "%s"\n' "$name" "$1"
		cat "$work/said"
		failed=1
	}
}

says_not() {
	if grep -qF -- "$1" "$work/said"; then
		printf 'FAILED: %s: it says "%s"\n' "$name" "$1"
		failed=1
	fi
}

# The programs of the tree, gpu_bench with a word before it.
stub=$work/build
mkdir -p "$stub/tests/gpu" "$stub/gpu" "$stub/fuse"
ln -s "$build/tests/gpu/libfake_cuda.so" "$stub/tests/gpu"
ln -s "$build/gpu/libckpt_gpu.so.0" "$stub/gpu"
ln -s "$build/fuse/ckptfs" "$stub/fuse"
program "$stub/tests/gpu/gpu_bench" <<END
case "\$*" in *'--rows hash '*)
	echo 'gpu_bench: a row that cannot be measured' >&2
	exit 2 ;;
esac
exec '$build/tests/gpu/gpu_bench' "\$@"
END

expect 'a group of rows that fails leaves the others alone' 1 \
	"$run" --build "$stub" --fake --rows hash,stash
says 'rows: hash: exit code 2'
says 'stash pack'

expect 'a part measures what is its own, and writes that down' 0 \
	env OUT="$work/out" "$run" --build "$build" --fake --no-mount --part 2
says 'rows: devices'
says_not '== checks'
says_not 'rows: step'
says "the table is in $work/out"
grep -q 'two devices at once' "$work"/out/*part-2*.txt || failed=1
expect 'there is no fourth part' 2 "$run" --build "$build" --fake --part 4
says "no part '4'"

program "$stub/tests/gpu/gpu_bench" <<END
case "\$*" in *'--rows hash '*) exec sleep 1000 ;; esac
exec '$build/tests/gpu/gpu_bench' "\$@"
END
expect 'rows that are cut off are not measured, and have not failed' 0 \
	"$run" --build "$stub" --fake --no-mount --rows hash,stash --limit 30
says 'run: not measured: hash ('
says 'run: groups of rows that were not measured:'
expect 'a check that is cut off was not made' 1 \
	"$run" --build "$build" --fake --no-mount --limit 20 --skip bench \
	--skip trainer --skip torch
says 'run: checks: not done'

expect 'without a mount there are the rows of the library alone' 0 \
	"$run" --build "$build" --fake --no-mount --rows save,devices
says 'run: no mount'
says 'NO MOUNT'
says_not 'verify=off'

if ((EUID == 0)) && [[ -c /dev/fuse ]]; then
	expect 'the table says how the store was mounted' 0 \
		"$run" --build "$build" --fake --rows devices
	says 'verify=off'
fi

program "$work/python" <<'END'
echo "ModuleNotFoundError: No module named 'torch'" >&2
exit 1
END
expect "without torch its rows are left out, and the others are not" 0 \
	env CKPTFS_PYTHON="$work/python" "$run" --build "$build" --fake \
	--rows devices,step
says "none of its rows: $work/python: ModuleNotFoundError"
says 'two devices at once'

venv=${CKPTFS_VENV:-/var/cache/ckptfs/venv}/bin/python
# A library with a sanitizer is none for a Python that has none.
if [[ -x $venv ]] && ! grep -q '^CKPTFS_SANITIZE:.*=.' "$build/CMakeCache.txt"; then
	# As torch 2.11 does.
	cat >"$work/closes.py" <<-'END'
	import runpy, sys
	import torch.distributed.checkpoint as dcp
	save = dcp.async_save
	def closing(state, *args, async_stager=None, **kwargs):
	    saved = save(state, *args, async_stager=async_stager, **kwargs)
	    if hasattr(async_stager, "close"):
	        getattr(saved, "upload_completion", saved).add_done_callback(
	            lambda _: async_stager.close())
	    return saved
	dcp.async_save = closing
	sys.argv = sys.argv[1:]
	runpy.run_path(sys.argv[0], run_name="__main__")
	END
	program "$work/python" <<-END
	if [[ \$1 == *.py ]]; then set -- "$work/closes.py" "\$@"; fi
	exec '$venv' "\$@"
	END
	expect "a torch that closes the stager after each save is measured" 0 \
		env CKPTFS_PYTHON="$work/python" "$run" --build "$build" --fake \
		--rows step,dcp
	says 'dcp.async_save, until there'
fi

program "$work/sanitizer" <<'END'
echo '========= COMPUTE-SANITIZER'
echo '========= Error: Device not supported.'
exit 9
END
expect 'a sanitizer that refuses the device is no failure' 0 \
	env CKPTFS_SANITIZER="$work/sanitizer" "$run" --build "$build" --fake \
	"${only_sanitizer[@]}"
says 'REFUSES this device'
says 'run: refused: 1'
says_not '== compute-sanitizer'

program "$work/sanitizer" <<'END'
[[ $* == *--check* ]] || exit 0
echo '========= Invalid __global__ write of size 16 bytes'
exit 9
END
expect 'what a sanitizer finds is one' 1 \
	env CKPTFS_SANITIZER="$work/sanitizer" "$run" --build "$build" --fake \
	"${only_sanitizer[@]}"
says 'compute-sanitizer memcheck: exit code 9'
says 'compute-sanitizer racecheck: exit code 9'
says_not 'refused'

expect 'rows that do not exist are wrong usage' 2 \
	"$run" --build "$build" --fake --rows hash,speed
says "no such rows: 'speed'"

exit "$failed"
