#!/bin/bash
#
# setup-venv.sh - a Python with a recent torch for the tests in this folder, and
# beside it Megatron's core of several releases, which megatrons.py chooses from.
#
# Keeps true: after exit 0 the virtual environment $CKPTFS_VENV holds exactly
# the versions below and imports them; the path of its python is all that
# standard output says. It lives outside the repository and is used again by
# later runs: its stamp names the versions, this script and the Python that
# made it, and is written last, so that one half made is made again.
#
# The wheels of torch are linked with two gigabytes of CUDA libraries, which
# these tests never call. Only the runtime, which registers kernels while torch
# is loaded, is installed (2 MB); the others are stood in for by libraries of a
# few kilobytes that define the names torch asks for. Calling one traps.

set -euo pipefail

VENV=${CKPTFS_VENV:-/var/cache/ckptfs/venv}
PINS=(
	torch==2.15.0 nvidia-cuda-runtime==13.2.86
	numpy==2.4.6 safetensors==0.8.0
	# what torch itself imports
	filelock==4.2.11 fsspec==2026.9.0 jinja2==3.1.6 markupsafe==3.0.4
	mpmath==1.3.0 networkx==3.6.1 sympy==1.14.0 typing-extensions==4.16.0
	packaging==26.3 psutil==7.2.2 # what Megatron's core does
)
# The oldest that ckptfs.megatron is for, and the newest. From 0.17 on they ask
# for Python 3.12, and run with 3.11.
MEGATRONS=(0.16.1 0.19.2)
PROBE='import numpy, safetensors.torch, torch
import torch.distributed.checkpoint as dcp
assert hasattr(dcp, "async_save") and not torch.cuda.is_available()'

say() { printf 'setup-venv: %s\n' "$*" >&2; }
die() {
	say "$@"
	exit 1
}

# The distribution's own first: it is the one with a matching venv package.
find_python() {
	local python
	for python in "${CKPTFS_PYTHON:-/usr/bin/python3}" python3; do
		if "$python" -c 'import sys, ensurepip
sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
			command -v "$python"
			return
		fi
	done
	die "no Python >= 3.10 with venv (run deploy/setup.sh --trainer)"
}

install() {
	"$VENV"/bin/pip install -q --no-cache-dir --no-deps --progress-bar off \
		--disable-pip-version-check "$@" </dev/null >&2 ||
		die "pip failed (is the network up?)"
}

works() { "$VENV"/bin/python -W error -c "$PROBE" >/dev/null 2>&1; }

# Build stub library $1 in the current directory. $2 holds its version names,
# one a line, and a line "symbol version" for each function.
stub() {
	awk 'NF == 2 { print "void " $1 "(void) { __builtin_trap(); }" }' \
		"$2" >"$2.c"
	awk '{ names[$NF] = names[$NF] (NF == 2 ? $1 ";" : "") }
		END {
			for (v in names)
				print v " {" (names[v] ? "global:" : "") names[v] "};"
		}' "$2" >"$2.map"
	gcc -w -fno-builtin -nostdlib -shared -fPIC -o "$1" "$2.c" \
		-Wl,-soname,"$1" -Wl,--version-script,"$2.map"
}

# Stand in for every CUDA library that torch is linked with and that is not in
# the environment. First without symbols, so that the loader can list what is
# undefined; then with those. Those without a version go into the first one.
stub_cuda() (
	local tmp=$1 have lib libs first=''

	cd "$VENV"/lib/python3*/site-packages/torch/lib
	unset LD_LIBRARY_PATH
	export LC_ALL=C
	have=$(find . ../../nvidia -name 'lib*.so*' -printf '%f\n')
	libs=$(readelf -dW ./*.so |
		sed -nE 's/.*NEEDED.*\[(lib(cu|nv|nccl)[^]]*)\]/\1/p' |
		sort -u | grep -vxF -e "$have" -e libcuda.so.1) || return 0
	for lib in $libs; do
		# A library's first version is its base, named like itself.
		{
			printf '%s\n' "$lib"
			readelf -VW ./*.so | awk -v lib="$lib" '
				sub(/.*File: /, "") { mine = $1 == lib }
				sub(/.*Name: /, "") && mine { print $1 }'
		} | sort -u >"$tmp/$lib"
		stub "$lib" "$tmp/$lib"
	done
	ldd -r ./libtorch_python.so 2>&1 |
		sed -nE 's/undefined symbol: ([^,[:space:]]+)(, version ([^[:space:]]+))?.*/\1 \3/p' |
		sort -u >"$tmp/undefined"
	for lib in $libs; do
		first=${first:-$lib}
		awk -v unversioned="$([[ $lib == "$first" ]] && echo "$lib")" '
			NR == FNR { mine[$1]; print; next }
			NF == 2 && $2 in mine { print }
			NF == 1 && unversioned && /^(cu|nccl|nv)/ {
				print $1, unversioned
			}' "$tmp/$lib" "$tmp/undefined" >"$tmp/$lib.all"
		stub "$lib" "$tmp/$lib.all"
	done
)

[[ $# -eq 0 ]] || die "takes no arguments (CKPTFS_VENV says where)"
python=$(find_python)
stamp=$(printf '%s\n' "${PINS[@]}" "${MEGATRONS[@]}" "$("$python" -VV)" \
	"$(cksum <"$0")")

mkdir -p "${VENV%/*}" 2>/dev/null || true
[[ -w ${VENV%/*} ]] || die "cannot write to ${VENV%/*} (set CKPTFS_VENV)"
exec 9>"$VENV.lock"
flock 9
if [[ $stamp != "$(cat "$VENV/stamp" 2>/dev/null)" ]] || ! works; then
	say "making $VENV (about 550 MB to download, 1.4 GB on disk)"
	tmp=$(mktemp -d)
	trap 'rm -rf "$tmp"' EXIT
	rm -rf "$VENV"
	"$python" -m venv "$VENV" >&2 || die "venv failed"
	install "${PINS[@]}"
	for version in "${MEGATRONS[@]}"; do
		install --ignore-requires-python "megatron-core==$version" \
			--target "$VENV/megatron-core/$version"
	done
	stub_cuda "$tmp" || die "the stand-ins for CUDA's libraries failed"
	works || {
		"$VENV"/bin/python -W error -c "$PROBE" >&2 || true
		die "torch was installed, but does not work"
	}
	printf '%s\n' "$stamp" >"$VENV/stamp"
fi
printf '%s\n' "$VENV/bin/python"
