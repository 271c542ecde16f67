#!/bin/bash
#
# run.sh - the GPU library on a machine with a GPU: every result bit by bit
# against the CPU, and its speed against the machine's own copies and against
# what trainers use today, in one table.
#
# Keeps true: exit 0 means that every check that this machine can do was done and
# no byte was wrong; what it cannot do (no mount, no compute-sanitizer, no torch)
# is said in a line that begins with "run: no", and rows for which there was no
# time in one that begins with "run: not measured". It ends within --limit: each
# step gets what is left of it. Each group of rows is a process of its own: one
# that fails does not take others with it. Nothing is left behind but the table,
# which is written as it goes: who kills us has what was measured by then.
#
# A bundle has everything that it needs: our programs and their shared
# libraries, found through an RPATH of $ORIGIN. The machine has to have glibc,
# the GPU's driver and bash; python3 with torch for two steps. A bundle that was
# made on Debian 12 wants glibc 2.34 or newer where libstdc++ is installed, else
# 2.36, which the one in lib/cxx wants; `bundle` prints both.

set -euo pipefail
shopt -s inherit_errexit

usage() {
	cat <<-'END'
	usage: tests/gpu/run.sh [OPTION...]            check and measure
	       tests/gpu/run.sh --part 1; ... 2; ... 3 the same in three calls
	       tests/gpu/run.sh bundle [OUT.tar.gz]    pack all that this needs

	  --small       as little as shows that it works
	  --size MIB    of tensors on the device (2048, or what there is memory for),
	                half of it in torch's rows
	  --rounds N    rounds, of which the median counts (5)
	  --strict      a row that falls short is a failure
	  --fake        a driver on host memory: shows that all of this works, and
	                no speed means anything
	  --part N      1: build and check, 2: rows of the library, 3: rows of torch
	                (--size 1024). Each ends within eight minutes (--limit 460)
	                and has a table of its own
	  --rows LIST   only these groups of rows (a,b), and nothing else
	  --list        print the groups
	  --skip STEP   checks, torch, bench (rows), trainer (torch's rows) or
	                sanitizer (may be repeated)
	  --limit S     end within so many seconds (560)
	  --no-mount    as where there is no /dev/fuse: the library alone
	  --build DIR   programs from this build tree, not from a bundle
	  --help        this text

	CKPTFS_GPU_BUNDLE  the unpacked bundle (tests/gpu/bundle)
	CKPTFS_PYTHON      a python3 with torch (CKPTFS_VENV's, python3)
	CKPTFS_SANITIZER   compute-sanitizer (from PATH; with --fake: none)
	CKPTFS_SCRATCH     where the store may be, twice --size (/var/tmp)
	OUT                a directory that gets a table as well

	`bundle` builds in build-bundle, leaves the result unpacked in
	tests/gpu/bundle, and writes it to OUT.tar.gz when that is given.

	exit code: 0 fine; 1 a byte is wrong or a step failed; 2 wrong usage;
	77 there is no GPU
	END
}

say() { printf 'run: %s\n' "$*"; }
die() {
	local code=$1
	shift
	printf 'run: %s\n' "$*" >&2
	exit "$code"
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bundle_mib_max=60

# --- the bundle ----------------------------------------------------------------

# What every machine has itself: the C library, and the driver's.
is_theirs() {
	case $1 in
	ld-linux*.so* | libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | \
		librt.so.* | libresolv.so.* | libcuda.so.* | linux-vdso.so.*) return 0 ;;
	*) return 1 ;;
	esac
}

# Of the compiler, and newer than the C library has to be: for machines that
# have none, and not in the way of their own.
is_cxx() { [[ $1 == libstdc++.so.* || $1 == libgcc_s.so.* ]]; }

# copy_libraries DIR FILE...: what the files need, with their sonames
copy_libraries() {
	local to=$1 name path in
	shift
	ldd "$@" | awk '$2 == "=>" { print $1, $3 }' | sort -u |
		while read -r name path; do
			if is_theirs "$name" || [[ -e $to/$name ]]; then continue; fi
			[[ -e $path ]] || die 1 "$name was not found"
			in=$to
			if is_cxx "$name"; then in=$to/cxx; fi
			cp -L "$path" "$in/$name"
			chmod 644 "$in/$name"
		done
}

newest_glibc() {
	objdump -T "$@" 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1
}

make_bundle() {
	local out=${1-} root build to=$here/bundle file kib
	local targets=(ckptfs ckptctl ckpt_gpu gpu_bench fake_cuda)

	root=$(cd "$here/../.." && pwd)
	build=$root/build-bundle
	[[ -f $root/CMakeLists.txt ]] || die 2 "a bundle is made in the source tree"
	# Not RUNPATH: the libraries' own libraries are to be found as well.
	# shellcheck disable=SC2016 # $ORIGIN is the loader's
	cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
		-DCKPTFS_PREFIX="${CKPTFS_PREFIX:-/opt/ckptfs}" -DCMAKE_SKIP_RPATH=ON \
		-DCMAKE_EXE_LINKER_FLAGS='-Wl,--disable-new-dtags,-rpath,'\''$ORIGIN/../lib'\' \
		-DCMAKE_SHARED_LINKER_FLAGS='-Wl,--disable-new-dtags,-rpath,'\''$ORIGIN'\' \
		>/dev/null || die 1 "cmake failed in $build"
	cmake --build "$build" --target "${targets[@]}" || die 1 "the build failed"
	grep -q '^CKPTFS_NVCC_WORKS:INTERNAL=ON' "$build/CMakeCache.txt" ||
		say "no nvcc: this bundle has no kernels, and rows of theirs will be missing"

	rm -rf "$to"
	mkdir -p "$to"/{bin,lib/cxx,python}
	cp "$build"/fuse/ckpt{fs,ctl} "$build/tests/gpu/gpu_bench" "$to/bin"
	cp -L "$build/gpu/libckpt_gpu.so.0" "$build/tests/gpu/libfake_cuda.so" "$to/lib"
	cp -r "$root/gpu/python/ckptfs" "$to/python"
	cp "$here"/{run.sh,torch_check.py,torch_bench.py} "$root/LICENSE" "$to"
	# Where this build's libfuse lies, the loader does not look by itself.
	LD_LIBRARY_PATH=${CKPTFS_PREFIX:-/opt/ckptfs}/lib \
		copy_libraries "$to/lib" "$to"/bin/* "$to/lib/libckpt_gpu.so.0"
	strip "$to"/bin/* "$to"/lib/*.so* "$to"/lib/cxx/*
	for file in "$to"/bin/* "$to"/lib/libckpt_gpu.so.0; do
		! env -u LD_LIBRARY_PATH ldd "$file" | grep 'not found' ||
			die 1 "${file##*/} does not find its libraries"
	done
	kib=$(du -sk "$to" | cut -f1)
	((kib < bundle_mib_max * 1024)) ||
		die 1 "the bundle has $((kib / 1024)) MiB: more than $bundle_mib_max"
	say "$to: $((kib / 1024)) MiB, needs" \
		"$(newest_glibc "$to"/bin/* "$to"/lib/*.so*)," \
		"without a libstdc++ $(newest_glibc "$to"/lib/cxx/*)"
	if [[ $out ]]; then
		tar -C "$here" --owner=0 --group=0 -czf "$out" bundle
		say "$out: $(($(stat -c %s "$out") >> 20)) MiB; unpack it anywhere and" \
			"start bundle/run.sh"
	fi
}

if [[ ${1-} == bundle ]]; then
	(($# <= 2)) || die 2 "bundle has one argument (see --help)"
	make_bundle "${2-}"
	exit
fi

# --- arguments -----------------------------------------------------------------

small='' size='' rounds='' strict='' fake='' build='' skipped=' ' rows=''
part='' limit_s='' list='' may_mount=yes
while (($#)); do
	case $1 in
	--small) small=yes ;;
	--strict) strict=yes ;;
	--fake) fake=yes ;;
	--list) list=yes ;;
	--no-mount) may_mount='' ;;
	--size | --rounds | --skip | --build | --rows | --limit | --part)
		[[ ${2-} ]] || die 2 "$1 needs a value"
		case $1 in
		--size) size=$2 ;;
		--rounds) rounds=$2 ;;
		--build) build=$2 ;;
		--rows) rows=$2 ;;
		--limit) limit_s=$2 ;;
		--part)
			[[ $2 =~ ^[123]$ ]] || die 2 "no part '$2': there are 1, 2 and 3"
			part=$2
			;;
		--skip)
			[[ $2 =~ ^(sanitizer|checks|torch|bench|trainer)$ ]] || die 2 "no step '$2'"
			skipped+="$2 "
			;;
		esac
		shift
		;;
	-h | --help)
		usage
		exit 0
		;;
	*) die 2 "unknown argument '$1' (see --help)" ;;
	esac
	shift
done
[[ ${size:-1} =~ ^[1-9][0-9]*$ && ${rounds:-1} =~ ^[1-9][0-9]*$ &&
	${limit_s:-1} =~ ^[1-9][0-9]*$ ]] ||
	die 2 "--size, --rounds and --limit are numbers"
[[ -z $part || -z $rows ]] || die 2 "give --part or --rows"
case $part in
1) skipped+='bench trainer ' ;;
2) skipped+='checks torch sanitizer trainer ' ;;
3)
	skipped+='checks torch sanitizer bench '
	size=${size:-1024}
	;;
esac
if [[ $part ]]; then limit_s=${limit_s:-460}; fi
exec </dev/null

# --- the programs ----------------------------------------------------------------

use_bundle() {
	bench=$1/bin/gpu_bench ckptfs=("$1/bin/ckptfs")
	library=$1/lib/libckpt_gpu.so.0 fake_library=$1/lib/libfake_cuda.so
	module=$1/python
	"${ckptfs[@]}" --version >/dev/null 2>&1 ||
		ckptfs=(env "LD_LIBRARY_PATH=$1/lib/cxx" "${ckptfs[@]}")
}

use_build() {
	bench=$1/tests/gpu/gpu_bench ckptfs=("$1/fuse/ckptfs")
	library=$1/gpu/libckpt_gpu.so.0 fake_library=$1/tests/gpu/libfake_cuda.so
	module=$here/../../gpu/python
}

bench='' ckptfs=() library='' fake_library='' module=''
if [[ $build ]]; then
	use_build "$build"
elif [[ ${CKPTFS_GPU_BUNDLE-} ]]; then
	use_bundle "$CKPTFS_GPU_BUNDLE"
elif [[ -x $here/bin/gpu_bench ]]; then
	use_bundle "$here"
elif [[ -x $here/bundle/bin/gpu_bench ]]; then
	use_bundle "$here/bundle"
else
	root=$(cd "$here/../.." && pwd)
	[[ -f $root/CMakeLists.txt ]] && type -P cmake ninja cc >/dev/null ||
		die 1 "no bundle in $here/bundle, and nothing to build with"
	say "no bundle: building in $root/build"
	cmake -S "$root" -B "$root/build" -G Ninja \
		-DCKPTFS_PREFIX="${CKPTFS_PREFIX:-/opt/ckptfs}" >/dev/null &&
		cmake --build "$root/build" >/dev/null || die 1 "the build failed"
	use_build "$root/build"
fi
[[ -x $bench ]] || die 1 "$bench is not there"
trainer_rows=(step files burst dcp process) # torch_bench.py's
mapfile -t bench_rows < <("$bench" --list)
((${#bench_rows[@]})) || die 1 "$bench does not run here (glibc too old?" \
	"$(ldd --version 2>&1 | head -n 1))"
if [[ $list ]]; then
	printf '%s\n' "${bench_rows[@]}" "${trainer_rows[@]}"
	exit 0
fi
for group in ${rows//,/ }; do
	[[ " ${bench_rows[*]} ${trainer_rows[*]} " == *" $group "* ]] ||
		die 2 "no such rows: '$group' (see --list)"
done
if [[ $fake ]]; then
	export CKPT_CUDA_LIBRARY=$fake_library
	small=yes
	if [[ $part == 3 ]]; then size=24; fi
	limit_s=${limit_s:-1700} # nobody waits for a device, and it may be slow
fi
limit_s=${limit_s:-560}

code=0 name=$("$bench" --name) || code=$?
if ((code == 77)); then
	say "no GPU here: nothing was measured (${name#SKIP: })"
	exit 77
fi
((code == 0)) || die 1 "$bench does not run here (glibc too old? $(ldd --version 2>&1 |
	head -n 1)): $name"

# --- where saves go ----------------------------------------------------------------

work=$(mktemp -d "${CKPTFS_SCRATCH:-/var/tmp}/ckptfs-gpu.XXXXXX")
store=$work/store mnt=$work/mnt plain=$work/plain memory=''
mkdir "$store" "$mnt" "$plain"
daemon='' failed=0 refused=0 unmeasured=0

leave() {
	local code=$?

	trap - EXIT
	if mountpoint -q "$mnt"; then
		umount "$mnt" || umount -l "$mnt" || code=1
	fi
	[[ -z $daemon ]] || wait "$daemon" || {
		cat "$work/log" >&2
		code=1
	}
	rm -rf --one-file-system "$work" "${memory:-$work}"
	exit "$code"
}
trap leave EXIT
trap 'exit 1' INT TERM HUP

# What torch's rows compare with: a tmpfs.
if [[ $(stat -fc %T /dev/shm 2>/dev/null) == tmpfs ]]; then
	memory=$(mktemp -d /dev/shm/ckptfs-gpu.XXXXXX)
fi

# A save is there eight times: on the device's behalf, in segments, to compare.
if [[ -z $size ]]; then
	size=$(awk '/^MemAvailable/ { print int($2 / 1024 / 10) }' /proc/meminfo)
	((size < 2048)) || size=2048
	if [[ $small ]]; then size=24; fi
fi

# Saves that follow each other share much here: comparing it before it is shared
# would take memory's speed from what is measured.
mount_options=stage_size=$((size * 5 + 512))M,verify=off

mount_store() {
	local tries=0

	"${ckptfs[@]}" -f -o "$mount_options" "$store" "$mnt" \
		>"$work/log" 2>&1 &
	daemon=$!
	until mountpoint -q "$mnt"; do
		if ((tries++ == 500)) || ! kill -0 "$daemon" 2>/dev/null; then
			kill "$daemon" 2>/dev/null || true
			wait "$daemon" || true
			daemon=''
			return 1
		fi
		sleep 0.02
	done
}

where=$plain
if [[ -z $may_mount ]]; then
	say "no mount: --no-mount"
elif ((EUID != 0)) || ! [[ -c /dev/fuse ]]; then
	say "no mount: that needs root and /dev/fuse"
elif ! type -P mountpoint >/dev/null; then
	say "no mount: there is no mountpoint(1) to see it with"
elif mount_store; then
	where=$mnt
else
	say "no mount: $(tr '\n' ' ' <"$work/log")"
fi

# --- the steps ----------------------------------------------------------------------

wanted() { [[ -z $rows && $skipped != *" $1 "* ]]; }

# Is this group of rows, of that step?
wants_rows() { # STEP GROUP
	if [[ $rows ]]; then
		[[ ,$rows, == *",$2,"* ]]
	else
		[[ $skipped != *" $1 "* ]]
	fi
}

# cut_off NAME WHY: there was no time for it, or not enough. Nothing is known of
# a row then; a check that was not made is a failure.
cut_off() {
	if [[ $1 == rows:* ]]; then
		say "not measured: ${1#rows: } ($2)"
		unmeasured=$((unmeasured + 1))
	else
		say "$1: not done ($2)"
		failed=1
	fi
}

# step NAME SECONDS COMMAND...: at most that long, and no longer than is left
step() {
	local what=$1 most=$2 left=$((limit_s - SECONDS - 20)) code=0
	shift 2
	((left > 5)) || {
		cut_off "$what" "no time left of --limit $limit_s"
		return 0
	}
	((most < left)) || most=$left
	printf '\n== %s (%d s)\n' "$what" "$SECONDS"
	timeout -k 5 "$most" "$@" || code=$?
	case $code in
	0) ;;
	77) say "no $what: see above" ;;
	124 | 137) cut_off "$what" "after $most s" ;;
	*)
		say "$what: exit code $code"
		failed=1
		;;
	esac
}

# Some virtual machines have a device that the sanitizer cannot look into: that
# is no fault of what it looks at.
refuses() { # SANITIZER
	local code=0 said

	said=$(timeout -k 5 60 "$1" --tool memcheck --error-exitcode 9 "$bench" --name \
		2>&1) || code=$?
	((code != 0)) || [[ $said == *"not supported"* ]] || return 1
	refused=$((refused + 1))
	say "no compute-sanitizer: it REFUSES this device (exit code $code):" \
		"$(grep -m 1 '^=.*[a-z]' <<<"$said" || head -n 1 <<<"$said")"
}

sanitizer() {
	local tool sanitizer=${CKPTFS_SANITIZER-}

	# Without a device's own instructions there is nothing to look at.
	if [[ -z $sanitizer && $fake ]]; then return 0; fi
	sanitizer=${sanitizer:-$(type -P compute-sanitizer ||
		type -P /usr/local/cuda/bin/compute-sanitizer || true)}
	[[ $sanitizer ]] || {
		say "no compute-sanitizer on this machine"
		return 0
	}
	if refuses "$sanitizer"; then return 0; fi
	for tool in memcheck racecheck; do
		step "compute-sanitizer $tool" 90 "$sanitizer" --tool "$tool" \
			--error-exitcode 9 "$bench" --check --small "$where"
	done
}

python=''
find_torch() {
	local venv=${CKPTFS_VENV:-/var/cache/ckptfs/venv} why

	python=${CKPTFS_PYTHON-}
	if [[ -z $python && -x $venv/bin/python ]]; then python=$venv/bin/python; fi
	python=${python:-$(type -P python3 || true)}
	if [[ -z $python ]]; then
		say "no torch, and none of its rows: there is no python3"
	elif ! why=$("$python" -c 'import torch' 2>&1); then
		say "no torch, and none of its rows: $python: ${why##*$'\n'}"
		python=''
	fi
}

with_torch() { # NAME SECONDS SCRIPT ARGUMENT...
	local name=$1 most=$2 script=$3
	shift 3
	step "$name" "$most" env CKPTFS_GPU_LIBRARY="$library" PYTHONPATH="$module" \
		PYTHONDONTWRITEBYTECODE=1 "$python" "$here/$script" \
		--device "$([[ $fake ]] && echo cpu || echo cuda:0)" "$@"
}

arguments=(--size "$size")
if [[ $small ]]; then arguments+=(--small); fi
if [[ $rounds ]]; then arguments+=(--rounds "$rounds"); fi
if [[ $strict ]]; then arguments+=(--strict); fi
trainer_arguments=(--mount "$mount_options" --disk "$plain")
if [[ $memory ]]; then trainer_arguments+=(--memory "$memory"); fi
if [[ $rounds ]]; then trainer_arguments+=(--rounds "$rounds"); fi
if [[ $strict ]]; then trainer_arguments+=(--strict); fi
# With a fake driver tensors are the CPU's, and few.
if [[ -z $fake ]]; then trainer_arguments+=(--size "$(((size + 1) / 2))"); fi

measure() {
	local group

	for group in "${bench_rows[@]}"; do
		if wants_rows bench "$group"; then
			step "rows: $group" 150 "$bench" --rows "$group" \
				--mount "$mount_options" "${arguments[@]}" "$where"
		fi
	done
	if [[ -z $python ]]; then return; fi
	for group in "${trainer_rows[@]}"; do
		if wants_rows trainer "$group"; then
			with_torch "rows: $group" 150 torch_bench.py \
				--rows "$group" "${trainer_arguments[@]}" "$where"
		fi
	done
}

needs_torch() {
	local group

	if wanted torch; then return 0; fi
	for group in "${trainer_rows[@]}"; do
		if wants_rows trainer "$group"; then return 0; fi
	done
	return 1
}

run_all() {
	printf '%s\n%s, %s cores, %s MiB, Linux %s\n' "$(date -u +%F)" "$name" \
		"$(nproc)" "$(awk '/^MemTotal/ { print int($2 / 1024) }' /proc/meminfo)" \
		"$(uname -r)"
	if [[ $fake ]]; then say "a fake driver: no figure means anything"; fi
	if [[ $where == "$mnt" ]]; then say "mounted with $mount_options"; fi
	if needs_torch; then find_torch; fi
	if wanted checks; then
		step checks 240 "$bench" --check "${arguments[@]}" "$where"
	fi
	if wanted torch && [[ $python ]]; then
		with_torch torch 150 torch_check.py "$where"
	fi
	measure
	if wanted sanitizer; then sanitizer; fi
	((refused == 0)) || say "refused: $refused"
	((unmeasured == 0)) || say "groups of rows that were not measured: $unmeasured"
	return "$failed"
}

tables=()
keep() { # DIRECTORY: of the table, which has the device's name
	local called=$name${part:+-part-$part}${rows:+-$rows}

	mkdir -p "$1" || die 1 "the table cannot be written to $1"
	tables+=("$1/$(tr -cs 'A-Za-z0-9\n' - <<<"$called")-$(date -u +%F).txt")
	: >"${tables[-1]}" || die 1 "${tables[-1]} cannot be written"
}
if [[ -z $fake ]]; then keep "$here/results"; fi
if [[ ${OUT-} ]]; then keep "$OUT"; fi

code=0
run_all > >(tee "${tables[@]}") 2>&1 || code=1
wait $! || true # tee has written all of it
for table in "${tables[@]}"; do say "the table is in $table"; done
printf '\n'
if ((code == 0)); then say "fine, in $SECONDS s"; else say "FAILED, in $SECONDS s"; fi
exit "$code"
