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
