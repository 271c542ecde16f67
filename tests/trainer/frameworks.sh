#!/bin/bash
#
# frameworks.sh - training frameworks, unmodified, on a fresh mount.
#
# By hand or nightly: it makes virtual environments from the package index
# (CKPTFS_FRAMEWORKS says where; they are used again) and has frameworks.py run
# each framework in processes of its own. It takes some minutes and 3 GB.
#
# Keeps true: the table on standard output has a row for each framework that
# was asked for, with its version and what came of it. Exit 0: all went well;
# 1: one did not; 2: it could not be tried.
#
#     frameworks.sh [FRAMEWORK...]    as root; CKPTFS_BUILD is the build tree

set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
venvs=${CKPTFS_FRAMEWORKS:-/var/cache/ckptfs/frameworks}
all=(torch safetensors transformers accelerate hf lightning deepspeed
	torchsnapshot megatron orbax tensorstore)

# The newest Python that has venv; some of them want 3.12.
find_python() {
	local python
	for python in ${CKPTFS_PYTHON:-} python3.13 python3.12 python3; do
		"$python" -c 'import ensurepip' 2>/dev/null || continue
		command -v "$python"
		return
	done
	die 'no python3 with venv (CKPTFS_PYTHON says which)'
}
say() { printf 'frameworks: %s\n' "$*" >&2; }
die() {
	say "$@"
	exit 2
}

# What has torch beneath it goes where setup-venv.sh has put one without
# CUDA's libraries, and must not ask for them again: without its dependencies,
# and then theirs, until none is missing.
with_torch() {
	local missing

	CKPTFS_VENV=$venvs/torch CKPTFS_PYTHON=$python \
		"$here/setup-venv.sh" >/dev/null &&
		install torch transformers accelerate lightning torchsnapshot psutil \
			megatron-core triton packaging 'setuptools<81' &&
		DS_BUILD_OPS=0 install torch --no-build-isolation deepspeed || return
	while :; do
		missing=$("$venvs/torch/bin/python" "$here/frameworks.py" missing) ||
			return
		if [[ -z $missing ]]; then return; fi
		# shellcheck disable=SC2086 # one word each
		install torch $missing || return
	done
}
install() {
	local venv=$venvs/$1
	shift
	"$venv/bin/pip" install -q --no-deps --no-cache-dir \
		--disable-pip-version-check "$@" </dev/null >&2
}
with_jax() {
	"$python" -m venv "$venvs/jax" >&2 || return
	"$venvs/jax/bin/pip" install -q --no-cache-dir \
		--disable-pip-version-check jax orbax-checkpoint tensorstore \
		</dev/null >&2
}

# make NAME: once, as setup-venv.sh does it.
make() {
	[[ -e $venvs/$1/made ]] && return
	say "making $venvs/$1"
	"with_$1" || # where -e does not count
		die "pip failed for $venvs/$1 (is the network up?)"
	touch "$venvs/$1/made"
}
venv_of() {
	case $1 in
	orbax | tensorstore) echo jax ;;
	*) echo torch ;;
	esac
}

if [[ $# -eq 0 ]]; then set -- "${all[@]}"; fi
python=$(find_python)
mkdir -p "$venvs" || die "cannot write to $venvs (set CKPTFS_FRAMEWORKS)"
for name; do
	[[ " ${all[*]} " == *" $name "* ]] ||
		die "$name is none of: ${all[*]}"
	make "$(venv_of "$name")"
done
export CKPTFS_FRAMEWORKS=$venvs PYTHONDONTWRITEBYTECODE=1
exec python3 "$here/frameworks.py" "$@"
