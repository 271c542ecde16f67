#!/bin/bash
#
# install.sh - build ckptfs and put it where a node looks for it.
#
#   PREFIX/bin                 ckptfs, ckptctl
#   PREFIX/lib, PREFIX/include libckpt_gpu, libckpt_plan and their headers
#   PREFIX/share/ckptfs        the Python module, examples
#   PREFIX/share/man           ckptfs(8), ckptctl(1), ckpt_gpu(3)
#   PREFIX/share/bash-completion, PREFIX/share/zsh
#                              what shells complete after ckptctl
#   /usr/sbin                  umount.fuse.ckptfs: umount(8) looks only there
#   PREFIX/lib/systemd         system/ckptfs@.service, and
#                              system-generators/ckptfs-generator
#
# That is what `cmake --install` does; this also gets what building needs and
# tells systemd.
#
# Repeating it brings what changed. It mounts nothing and enables nothing.

set -euo pipefail

usage() {
	cat <<-'END'
	usage: deploy/install.sh [--prefix DIR] [--uninstall] [--help]

	Installs what is missing, builds in build/, and installs ckptfs, ckptctl, the
	library for tensors (libckpt_gpu) with its Python module, the man pages, shell
	completion, the helper of umount(8) and the systemd unit. Must be root.

	  --prefix DIR  where to (/usr/local; its bin must be in root's PATH)
	  --uninstall   remove these files again

	CKPTFS_PREFIX  where deploy/setup.sh puts a newer libfuse (/opt/ckptfs)

	exit code: 0 fine; 1 a step failed; 2 wrong usage; 3 cannot work here
	END
}

die() {
	local code=$1
	shift
	printf 'install: %s\n' "$*" >&2
	exit "$code"
}

prefix=/usr/local uninstall=''
while (($#)); do
	case $1 in
	--prefix)
		[[ ${2-} == /* ]] || die 2 "--prefix needs an absolute path"
		prefix=$2
		shift
		;;
	--uninstall) uninstall=yes ;;
	-h | --help)
		usage
		exit 0
		;;
	*) die 2 "unknown argument '$1' (see --help)" ;;
	esac
	shift
done
if [[ $EUID -ne 0 ]]; then die 3 "must be root to write to $prefix and /usr/sbin"; fi

cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
export CKPTFS_PREFIX=${CKPTFS_PREFIX:-/opt/ckptfs}
helper=/usr/sbin/umount.fuse.ckptfs
units=$prefix/lib/systemd/system

reload() {
	if [[ -d /run/systemd/system ]]; then systemctl daemon-reload; fi
}

if [[ $uninstall ]]; then
	rm -f "$prefix"/bin/{ckptfs,ckptctl} "$helper" "$units/ckptfs@.service" \
		"$prefix/lib/systemd/system-generators/ckptfs-generator" \
		"$prefix"/lib/libckpt_{gpu,plan}.so* \
		"$prefix"/include/ckpt_{gpu,plan}.h \
		"$prefix"/share/bash-completion/completions/ckptctl \
		"$prefix"/share/zsh/site-functions/_ckptctl \
		"$prefix"/share/man/{man8/ckptfs.8,man1/ckptctl.1,man3/ckpt_gpu.3}
	rm -rf "$prefix/share/ckptfs"
	ldconfig
	reload
	printf 'install: removed from %s and /usr/sbin; stores stay\n' "$prefix"
	exit 0
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
step() {
	"$@" >"$log" 2>&1 || {
		tail -n 5 "$log" >&2
		die 1 "failed: $*"
	}
}

deploy/setup.sh --no-tests || exit
options=()
if [[ ! -e build/CMakeCache.txt ]] && ! pkg-config --exists cmocka; then
	options=(-DCKPTFS_TESTS=OFF)
fi
step cmake -S . -B build -G Ninja -DCKPTFS_PREFIX="$CKPTFS_PREFIX" \
	-DCKPTFS_HELPER_DIR=/usr/sbin -DCKPTFS_UNIT_DIR=lib/systemd/system \
	"${options[@]}"
step cmake --build build --target ckptfs ckptctl ckpt_gpu ckpt_plan
step cmake --install build --prefix "$prefix"
step ldconfig
reload
printf 'install: %s in %s\n' "$("$prefix/bin/ckptfs" --version)" "$prefix/bin"
