#!/bin/bash
#
# setup.sh - everything that building, testing and running ckptfs needs.
#
# Keeps true: after exit 0 every package named below is installed, and a
# libfuse that knows FUSE passthrough is where CMakeLists.txt looks for it:
# in the system, or under $CKPTFS_PREFIX (/opt/ckptfs), whose lib/pkgconfig
# goes in front of PKG_CONFIG_PATH and whose lib becomes the RPATH.
#
# That libfuse is the source package of a newer release of the same
# distribution. Its source entry is derived from this machine's own package
# configuration and lives in a temporary directory, so the configuration stays
# as it is; apt checks the signature, and nothing unsigned is ever built. Of
# the libfuse built here only the library is installed: fusermount3 is setuid
# and stays the distribution's.
#
# Repeating it is cheap and silent: nothing missing, nothing done, no root.

set -euo pipefail

PREFIX=${CKPTFS_PREFIX:-/opt/ckptfs}
STAMP=$PREFIX/share/ckptfs/libfuse
WORK= # temporary directory, made by the first step that has work to do

usage() {
	cat <<-'END'
	usage: setup.sh [--no-tests] [--clusters] [--fuzz] [--trainer] [--help]

	Installs what ckptfs needs on Debian 12, Debian 13 and Ubuntu 24.04.

	  --no-tests  only what building and running the product needs
	  --clusters  also the programs of CephFS and MooseFS, which tests of many
	              nodes start (tests/run.sh --all). Their services are neither
	              started nor enabled
	  --fuzz      also clang and its runtime, for the coverage-guided fuzzers, and
	              clang-tidy
	  --trainer   also the virtual environment of the tests with real torch

	CKPTFS_PREFIX  where a newer libfuse is installed (/opt/ckptfs)
	CKPTFS_SUITES  releases to take its source from, best first

	exit code: 0 everything is there; 1 a step failed; 2 wrong usage;
	3 cannot work here (not root, unknown distribution)
	END
}

# Everything the user must read is one line; the details stay in a log.
say() { printf 'setup: %s\n' "$*"; }
die() {
	local code=$1
	shift
	printf 'setup: %s\n' "$*" >&2
	exit "$code"
}

cleanup() {
	local code=$?
	if [[ $WORK && $code -eq 1 && -s $WORK/log ]]; then
		printf 'setup: the end of the log:\n' >&2
		tail -n 4 "$WORK/log" >&2
	fi
	if [[ $WORK ]]; then rm -rf "$WORK"; fi
}
trap cleanup EXIT

need_work_dir() {
	if [[ $WORK ]]; then return; fi
	WORK=$(mktemp -d)
	chmod 755 "$WORK" # apt downloads as its own user
}

apt_get_as=() # what runs it
apt_get() {
	DEBIAN_FRONTEND=noninteractive "${apt_get_as[@]}" apt-get -q -y \
		-o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@" \
		</dev/null >>"$WORK/log" 2>&1
}

packages_missing() {
	local have name
	have=$'\n'$(dpkg-query -W -f '${Package} ${db:Status-Status}\n')$'\n'
	for name in "$@"; do
		[[ $have == *$'\n'"$name installed"$'\n'* ]] || printf '%s\n' "$name"
	done
}

install_packages() {
	local missing name
	mapfile -t missing < <(packages_missing "$@")
	if ((${#missing[@]} == 0)); then return; fi
	if [[ $EUID -ne 0 ]]; then
		die 3 "must be root to install: ${missing[*]}"
	fi
	need_work_dir
	say "installing ${missing[*]}"
	apt_get update || true # one broken entry must not stop the others
	for name in "${missing[@]}"; do
		if [[ -z $(apt-cache madison "$name" 2>/dev/null) ]]; then
			die 1 "no package $name (is the network up? on Ubuntu," \
				"is 'universe' enabled?)"
		fi
	done
	apt_get install --no-install-recommends "${missing[@]}" ||
		die 1 "apt-get install failed (is the network up?)"
}

# Packages whose services are not for this machine: the tests start the programs
# themselves. In a mount namespace of its own apt-get's scripts find nothing that
# starts or enables a service, and nothing is left behind when it is killed.
install_without_services() {
	local missing name found=()
	mapfile -t missing < <(packages_missing "$@")
	if ((${#missing[@]} == 0)); then return; fi
	if [[ $EUID -ne 0 ]]; then
		die 3 "must be root to install: ${missing[*]}"
	fi
	need_work_dir
	if [[ -z $(apt-cache madison "${missing[@]}" 2>/dev/null) ]]; then
		apt_get update || true
	fi
	for name in "${missing[@]}"; do
		if [[ $(apt-cache madison "$name" 2>/dev/null) ]]; then
			found+=("$name")
		else
			say "no package $name: the tests that need it are skipped"
		fi
	done
	if ((${#found[@]} == 0)); then return; fi
	if ! unshare --mount true 2>/dev/null; then
		say "no mount namespaces: not installing ${found[*]}," \
			"whose services would start"
		return
	fi
	say "installing ${found[*]}, without their services"
	# shellcheck disable=SC2016 # expanded in there
	apt_get_as=(unshare --mount sh -ec '
		for f in /usr/sbin/invoke-rc.d /usr/sbin/update-rc.d \
			/usr/bin/deb-systemd-invoke /usr/bin/deb-systemd-helper; do
			[ ! -e $f ] || mount --bind /bin/true $f
		done
		exec "$@"' -)
	apt_get install --no-install-recommends "${found[@]}" ||
		die 1 "apt-get install failed (is the network up?)"
	apt_get_as=()
}

# Ask for the feature, never for a version. $1: a pkgconfig directory or ''.
libfuse_has_passthrough() {
	local include
	include=$(PKG_CONFIG_PATH=${1:+$1:}${PKG_CONFIG_PATH-} \
		pkg-config --variable=includedir fuse3 2>/dev/null) || return 1
	grep -qsw FUSE_CAP_PASSTHROUGH "$include"/fuse3/fuse_common.h
}

# One deb822 stanza for the source packages of suite $1, at the address and
# with the key that this machine has for its own release.
source_entry() {
	local suite=$1 uri files=() file
	# shellcheck disable=SC2016 # apt expands these, not the shell
	uri=$(apt-get indextargets --format \
		'$(ORIGIN) $(CODENAME) $(COMPONENT) $(REPO_URI)' |
		awk -v want="$ID $VERSION_CODENAME main" \
			'tolower($1 " " $2 " " $3) == want && !n++ { print $4 }')
	if [[ -z $uri ]]; then return 1; fi
	for file in /etc/apt/sources.list.d/*.sources \
		/etc/apt/sources.list.d/*.list /etc/apt/sources.list; do
		if [[ -f $file ]]; then files+=("$file"); fi
	done
	printf 'Types: deb-src\nURIs: %s\nSuites: %s\nComponents: main\n' \
		"$uri" "$suite"
	signed_by "${uri%/}" "${files[@]}"
}

# Print the Signed-By field that goes with address $1 in the files that follow,
# be it a path, a key spelled out over several lines, or (no output) absent.
signed_by() {
	local uri=$1
	shift
	awk -v uri="$uri" '
		function end_stanza() {
			if (found && !done) { printf "%s", key; done = 1 }
			found = in_key = 0; key = ""
		}
		function same(address) {
			sub(/\/+$/, "", address)
			return address == uri
		}
		FNR == 1 { end_stanza() }
		/^[[:space:]]*#/ { next }
		FILENAME !~ /\.sources$/ { # deb [signed-by=PATH ...] URI ...
			if (!match($0, /signed-by=[^] ]+/)) next
			option = substr($0, RSTART + 10, RLENGTH - 10)
			for (i = 2; i <= NF; i++)
				if (same($i) && !done++) print "Signed-By: " option
			next
		}
		/^[[:space:]]*$/ { end_stanza(); next }
		/^[^[:space:]]/ { in_key = tolower($1) == "signed-by:" }
		in_key { key = key $0 "\n" }
		tolower($1) == "uris:" {
			for (i = 2; i <= NF; i++) if (same($i)) found = 1
		}
		END { end_stanza() }
	' "$@"
}

# apt as of now knows only the stanza in $WORK/src.sources.
apt_source() {
	apt_get -o Dir::Etc::SourceList="$WORK/src.sources" \
		-o Dir::Etc::SourceParts=/dev/null \
		-o Dir::Etc::Preferences=/dev/null \
		-o Dir::Etc::PreferencesParts=/dev/null \
		-o Dir::State::Lists="$WORK/lists" \
		-o APT::Update::Error-Mode=any \
		-o APT::Get::AllowUnauthenticated=false "$@"
}

# Put the newest source of fuse3 in suite $1 into $WORK/$1/src. When the
# release is signed with a key that came after this machine's own, the keyring
# package of the distribution brings it.
fetch_libfuse() {
	local suite=$1 keyring=$ID-archive-keyring

	source_entry "$suite" >"$WORK/src.sources" || return 1
	rm -rf "$WORK/lists" "${WORK:?}/$suite"
	mkdir -p "$WORK/lists" "$WORK/$suite"
	if ! apt_source update; then
		if [[ $EUID -ne 0 ]]; then return 1; fi
		if [[ $ID == ubuntu ]]; then
			apt_get install ubuntu-keyring || return 1
		else
			apt_get install debian-archive-keyring || return 1
		fi
		sed -i '/^Signed-By:/,$d' "$WORK/src.sources"
		printf 'Signed-By: /usr/share/keyrings/%s.gpg\n' "$keyring" \
			>>"$WORK/src.sources"
		apt_source update || return 1
	fi
	if [[ $EUID -eq 0 ]] && id _apt >/dev/null 2>&1; then
		chown _apt "$WORK/$suite"
	fi
	(
		cd "$WORK/$suite" &&
			apt_source source --download-only fuse3 &&
			dpkg-source -x fuse3_*.dsc src >>"$WORK/log" 2>&1
	)
}

# Build $1 and install it under $PREFIX; only the library and its headers.
build_libfuse() (
	cd "$1"
	exec >>"$WORK/log" 2>&1
	grep -qw FUSE_CAP_PASSTHROUGH include/fuse_common.h &&
		meson setup build --prefix="$PREFIX" --libdir=lib \
			--buildtype=release -Ddefault_library=shared \
			-Dexamples=false -Dutils=false -Dtests=false \
			-Duseroot=false &&
		ninja -C build && meson install -C build --no-rebuild
)

need_libfuse() {
	local suites suite version

	if libfuse_has_passthrough ''; then return; fi
	if [[ -s $STAMP ]] && libfuse_has_passthrough "$PREFIX/lib/pkgconfig"
	then
		return
	fi
	install_packages meson ninja-build dpkg-dev ca-certificates gpgv
	mkdir -p "$PREFIX" 2>/dev/null || true
	[[ -w $PREFIX ]] ||
		die 3 "must be root to write to $PREFIX (or set CKPTFS_PREFIX)"
	need_work_dir
	if [[ $ID == ubuntu ]]; then
		suites=${CKPTFS_SUITES:-resolute devel}
	else
		suites=${CKPTFS_SUITES:-testing sid trixie}
	fi
	say "this libfuse has no passthrough, building a newer one of $ID"
	if [[ -z $(apt-get indextargets) ]]; then apt_get update || true; fi
	for suite in $suites; do
		fetch_libfuse "$suite" || continue
		build_libfuse "$WORK/$suite/src" || continue
		libfuse_has_passthrough "$PREFIX/lib/pkgconfig" || continue
		version=$(cd "$WORK/$suite" && ls fuse3_*.dsc)
		mkdir -p "${STAMP%/*}"
		printf '%s from %s\n' "${version%.dsc}" "$suite" >"$STAMP"
		say "libfuse: ${version%.dsc} from $suite, in $PREFIX"
		say "cmake takes it from $PREFIX (-DCKPTFS_PREFIX); others need" \
			"PKG_CONFIG_PATH=$PREFIX/lib/pkgconfig"
		return
	done
	die 1 "no release of $ID had a libfuse with passthrough that builds" \
		"(tried: $suites; is the network up?)"
}

tests=yes clusters='' fuzz='' trainer=''
for arg in "$@"; do
	case $arg in
	--no-tests) tests='' ;;
	--clusters) clusters=yes ;;
	--fuzz) fuzz=yes ;;
	--trainer) trainer=yes ;;
	-h | --help)
		usage
		exit 0
		;;
	*) die 2 "unknown argument '$arg' (see --help)" ;;
	esac
done

ID=unknown VERSION_ID='' VERSION_CODENAME=''
# shellcheck disable=SC1091 # the machine's own, not ours
if [[ -r /etc/os-release ]]; then . /etc/os-release; fi
case $ID:$VERSION_ID in
debian:1[2-9] | ubuntu:2[4-9].*) ;;
debian:*) # testing and sid have no number
	[[ -z $VERSION_ID ]] || die 3 "Debian $VERSION_ID is too old, 12 is needed"
	;;
*) die 3 "unknown distribution '$ID $VERSION_ID' (Debian 12, 13, Ubuntu 24.04)" ;;
esac

# These names are the same on Debian 12, 13 and Ubuntu 24.04 (there partly in
# 'universe'); what differs is chosen by case above and below.
packages=(
	gcc libc6-dev cmake ninja-build pkgconf
	fuse3 libfuse3-dev librocksdb-dev libxxhash-dev libcjson-dev
	util-linux mount
)
if [[ $tests ]]; then
	packages+=(
		libcmocka-dev python3 python3-venv attr rsync sqlite3 git
		e2fsprogs procps gdb strace man-db patch zsh iproute2
	)
	case $ID:$VERSION_ID in # where qemu-storage-daemon is
	debian:12 | ubuntu:24.*) packages+=(qemu-system-common) ;;
	*) packages+=(qemu-utils) ;;
	esac
fi
cluster_packages=( # the file systems that tests/shared starts on loopback
	ceph-mon ceph-osd ceph-mds ceph-fuse ceph-common
	moosefs-master moosefs-chunkserver moosefs-client
	iproute2 python3
)
if [[ $fuzz ]]; then packages+=(clang libclang-rt-dev clang-tidy); fi
if [[ $trainer ]]; then packages+=(python3 python3-venv ca-certificates); fi

install_packages "${packages[@]}"
if [[ $clusters ]]; then
	install_without_services "${cluster_packages[@]}"
fi
need_libfuse
if [[ $trainer ]]; then
	"$(dirname "$0")"/../tests/trainer/setup-venv.sh >/dev/null ||
		die 1 "the virtual environment for the trainer tests failed"
fi
