#!/usr/bin/env python3
"""wheel.py - one file that pip installs: the package ckptfs, and the library.

    cmake --build build --target wheel

What is in it works on any Linux of the same processor whose glibc is at least
as new as the wheel's name says; no other library has to be there. What of the
library's own needs is not in every distribution is put beside it, where its
RUNPATH ($ORIGIN) finds it, with its licence.

A wheel is an archive with four small files about itself. They are written
here: neither setuptools nor the network is needed. The same sources and
libraries give the same bytes.

Usage: wheel.py --version V --library FILE --needs FILE --out FOLDER
           [--beside FILE]... [--licence SONAME=FILE]...
    --library  libckpt_gpu, linked to be moved
    --needs    the same, linked for this machine: says where its libraries are
    --beside   another library of ours
Exit: 0 and the path of the wheel is printed; 1 with a sentence why not.
"""
import argparse
import base64
import glob
import hashlib
import os
import platform
import re
import subprocess
import sys
import time
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
# What each manylinux system has: the C library, and the loader.
THEIRS = re.compile(r"(lib(c|m|dl|rt|pthread)|ld-linux[\w-]*)\.so\.\d+")
# A licence lies there on Debian and Ubuntu, and on Fedora.
LICENCES = ("/usr/share/doc/{}*/copyright", "/usr/share/licenses/{}*/LICENSE*")

METADATA = """\
Metadata-Version: 2.1
Name: ckptfs
Version: {version}
Summary: Save tensors into a ckptfs mount, and load them from it
License: Apache-2.0
Requires-Python: >=3.8
Platform: linux
"""

WHEEL = """\
Wheel-Version: 1.0
Generator: ckptfs {version}
Root-Is-Purelib: false
Tag: py3-none-{platform}
"""

# vLLM loads these in each of its processes.
ENTRY_POINTS = """\
[vllm.general_plugins]
ckptfs = ckptfs.vllm:register
"""


def fail(why):
    sys.exit(f"wheel: {why}")


def output(*argv):
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE,
                          text=True, env={**os.environ, "LC_ALL": "C"}).stdout


def dynamic(path, tag):
    """The names in a library's dynamic section: NEEDED, SONAME, RUNPATH."""
    return re.findall(rf"\({tag}\).*\[(.*)\]", output("readelf", "-dW", path))


def bundled(library, needs):
    """soname -> path of what goes with the library; all of it, and theirs."""
    where = dict(re.findall(r"^\s+(\S+) => (/\S+)", output("ldd", needs),
                            re.M))
    found, ask = {}, [library]
    while ask:
        for soname in dynamic(ask.pop(), "NEEDED"):
            if THEIRS.fullmatch(soname) or soname in found:
                continue
            if re.match(r"lib([alt]|ub)san", soname):
                fail(f"{library} needs a sanitizer's {soname}: use a build "
                     "without one (the preset `normal`)")
            if soname not in where:
                fail(f"{needs} needs {soname}, and ldd does not find it")
            found[soname] = where[soname]
            ask.append(where[soname])
    return found


def platform_tag(libraries):
    """The oldest glibc that has all that these ask it for."""
    asked = {name for path in libraries
             for name in re.findall(r"Name: ((?:GLIBC|GCC|CXXABI)\w*[\d.]*)",
                                    output("readelf", "-VW", path))}
    machine = platform.machine()
    numbers = [re.fullmatch(r"GLIBC_2\.(\d+)(?:\.\d+)?", n) for n in asked]
    if not asked or not all(numbers):
        return f"linux_{machine}"  # not glibc, or more than its versions
    # No manylinux is older than 2.5, and none of aarch64 than 2.17.
    return f"manylinux_2_{max(17, *(int(n[1]) for n in numbers))}_{machine}"


def licence(soname, given):
    stem = re.match(r"(?:lib)?(.*?)\.so", soname)[1]
    paths = [given[soname]] if soname in given else sorted(
        path for pattern in LICENCES for name in (f"lib{stem}", stem)
        for path in glob.glob(pattern.format(name)))
    if not paths:
        fail(f"{soname} goes into the wheel, and its licence has to: give it "
             f"with --licence {soname}=FILE")
    return paths[0]


def contents(path):
    with open(path, "rb") as f:
        return f.read()


def members(options):
    """(name in the wheel, bytes, is a library)"""
    for path in sorted(glob.glob(os.path.join(HERE, "ckptfs/**/*.py"),
                                 recursive=True)):
        yield os.path.relpath(path, HERE), contents(path), False
    soname, = dynamic(options.library, "SONAME")
    if dynamic(options.library, "RUNPATH") != ["$ORIGIN"]:
        fail(f"{options.library}: its RUNPATH is not $ORIGIN")
    beside = bundled(options.library, options.needs)
    ours = {soname: options.library}
    for path in options.beside:
        soname, = dynamic(path, "SONAME")
        ours[soname] = path
        beside.update(bundled(path, path))
    libraries = {**ours, **beside}
    for name, path in sorted(libraries.items()):
        yield f"ckptfs/{name}", contents(path), True
    info = f"ckptfs-{options.version}.dist-info"
    yield f"{info}/METADATA", METADATA.format(
        version=options.version).encode(), False
    yield f"{info}/WHEEL", WHEEL.format(
        version=options.version,
        platform=platform_tag(libraries.values())).encode(), False
    yield f"{info}/entry_points.txt", ENTRY_POINTS.encode(), False
    yield f"{info}/licenses/LICENSE", contents(
        os.path.join(HERE, "../../LICENSE")), False
    given = dict(one.split("=", 1) for one in options.licence)
    for name in sorted(beside):
        yield f"{info}/licenses/{name}", contents(licence(name, given)), False


def date_of_all():
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH", 0))
    return max(time.gmtime(seconds)[:6], (1980, 1, 1, 0, 0, 0))


def write(path, files, info):
    date, record = date_of_all(), []

    def add(archive, name, data, executable=False):
        one = zipfile.ZipInfo(name, date)
        one.external_attr = (0o100755 if executable else 0o100644) << 16
        one.compress_type = zipfile.ZIP_DEFLATED
        archive.writestr(one, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
        record.append(f"{name},sha256={digest.decode().rstrip('=')},"
                      f"{len(data)}\n")

    with zipfile.ZipFile(path, "w") as archive:
        for one in files:
            add(archive, *one)
        name = f"{info}/RECORD"
        add(archive, name, "".join([*record, f"{name},,\n"]).encode())


def main():
    parser = argparse.ArgumentParser(
        usage=__doc__[__doc__.index("Usage: ") + 7:__doc__.index("\n    --l")])
    parser.add_argument("--version", required=True)
    parser.add_argument("--library", required=True)
    parser.add_argument("--needs", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--beside", action="append", default=[])
    parser.add_argument("--licence", action="append", default=[])
    options = parser.parse_args()
    files = list(members(options))
    info = f"ckptfs-{options.version}.dist-info"
    about = next(data for name, data, _ in files if name == f"{info}/WHEEL")
    tag = re.search(r"Tag: (\S+)", about.decode())[1]
    os.makedirs(options.out, exist_ok=True)
    for old in glob.glob(os.path.join(options.out, "ckptfs-*.whl")):
        os.unlink(old)
    path = os.path.join(options.out, f"ckptfs-{options.version}-{tag}.whl")
    write(path + ".tmp", files, info)
    os.rename(path + ".tmp", path)
    print(path)


if __name__ == "__main__":
    main()
