#!/usr/bin/env python3
"""Which folder uses which: the rooms of store/ and the order they stand in.

A room uses those above it in ROOMS and not those below, and no file of
store/, fuse/ or gpu/ uses itself through others. RocksDB is seen by db/kv*.c
alone, libfuse by fuse/ alone. Two things are read: the #include lines, and of
a build what each object file calls: a header that several sources share says
little about who needs whom.

    rooms.py TREE [BUILD]   check the tree, and what was built of it
    rooms.py --self         check that the script finds what it is for

rooms_allowed.txt lists what is still wrong: FILE HEADER for an #include,
FILE FILE without the .c for a call, both with * as in a shell. It only
shrinks: a line that is not needed any more is an error as well.
"""
import fnmatch
import pathlib
import re
import subprocess
import sys
import tempfile

# A file that is a room of its own: what two rooms ask, and needs neither.
ROOMS = ["gpu", "store/base", "store/db", "store/formats", "store/space",
         "store/names", "store/file/state", "store/drain", "store/file",
         "store/step", "store/guard", "store/check", "store", "store/shared",
         "fuse", "fuse/ctl"]
# Rooms that see less than all that stands above them: what is pure, and the
# library for trainers.
SEES = {
    "gpu": {"gpu", "store/base"},
    "store/formats": {"store/base", "store/formats"},
    "store/step": {"store/base", "store/formats", "store/step"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)


def room(path):
    alone = str(pathlib.PurePath(path).with_suffix(""))
    if alone in ROOMS:
        return alone
    folder = str(pathlib.PurePath(path).parent)
    return "gpu" if folder.startswith("gpu/") else folder


def may_see(user, used):
    a, b = room(user), room(used)
    if a in SEES:
        return b in SEES[a]
    return b != "gpu" and ROOMS.index(b) <= ROOMS.index(a)


def read_includes(tree):
    """(file, header, is ours) for each #include of the three folders."""
    for top in ("store", "fuse", "gpu"):
        for path in sorted((tree / top).rglob("*.[ch]")):
            name = str(path.relative_to(tree))
            for mark, header in INCLUDE.findall(path.read_text()):
                yield name, header, mark == '"'


def read_calls(tree, build):
    """(file, file) for each function or variable of another file.

    A name may be defined twice, in the store and in the library of gpu/, which
    each use their own. An object without its source is an old one.
    """
    defined, wanted = {}, {}
    for path in sorted(build.glob("*/CMakeFiles/*.dir/**/*.c.o")):
        name = re.sub(r"/CMakeFiles/[^/]*\.dir/", "/",
                      str(path.relative_to(build)))[:-len(".c.o")]
        if name in wanted or not (tree / (name + ".c")).is_file() or \
                room(name) not in ROOMS:
            continue
        out = subprocess.run(["nm", path], check=True, text=True,
                             capture_output=True).stdout
        symbols = [line.split()[-2:] for line in out.splitlines()]
        wanted[name] = {s for kind, s in symbols if kind == "U"}
        for kind, s in symbols:
            if kind in "TDBR":
                defined.setdefault(s, []).append(name)
    assert wanted, f"{build}: nothing was built here"
    pairs = set()
    for name, symbols in wanted.items():
        for s in symbols & defined.keys():
            of_gpu = [d for d in defined[s] if room(d) == "gpu"]
            others = [d for d in defined[s] if room(d) != "gpu"]
            first = of_gpu + others if room(name) == "gpu" else others
            pairs.add((name, (first + of_gpu)[0]))
    return sorted(p for p in pairs if p[0] != p[1])


def find_circle(pairs):
    """A chain of files that ends where it begins, or None."""
    edges, done, chain = {}, set(), []
    for a, b in pairs:
        edges.setdefault(a, set()).add(b)

    def visit(at):
        if at in chain:
            return chain[chain.index(at):] + [at]
        if at in done:
            return None
        chain.append(at)
        for to in sorted(edges.get(at, ())):
            found = visit(to)
            if found:
                return found
        chain.pop()
        done.add(at)
        return None

    for at in sorted(edges):
        found = visit(at)
        if found:
            return found
    return None


def check_readme(tree):
    """store/README.md has the rooms and the locks in their order: those that
    others are taken under, then the leaves."""
    text = (tree / "store/README.md").read_text()
    rooms = re.findall(r"^\| `(\w+(?:/\w+)?)/?` \|", text, re.M)
    locks = re.search(r"^## Locks.*?```\n(.*?)```", text, re.M | re.S)
    source = (tree / "store/base/sync.h").read_text()
    ranks = re.findall(r'X\((LOCK_\w+),\s*"([^"]+)"\)', source)
    leaf = re.search(r"^#define LOCK_FIRST_LEAF (\w+)$", source, re.M)
    first = [rank for rank, _ in ranks].index(leaf[1]) if leaf else 0
    lists = [[name for _, name in part]
             for part in (ranks[:first], ranks[first:])]
    wrong = []
    if rooms != [r[len("store/"):] for r in ROOMS if r.startswith("store/")]:
        wrong.append("store/README.md: its rooms are not those of rooms.py")
    if not locks or [part.split() for part in
                     locks[1].split("\n\n")] != lists:
        wrong.append("store/README.md: its locks are not those of "
                     "store/base/sync.h, in that order")
    return wrong


def check_doors(tree):
    wrong = []
    for name, header, is_ours in read_includes(tree):
        if header.startswith("rocksdb/") and not re.match(
                r"store/db/kv\w*\.[ch]$", name):
            wrong.append(f"{name}: only store/db/kv*.c sees {header}")
        if name.startswith("store/") and header.startswith("fuse"):
            wrong.append(f"{name}: store/ does not see {header}")
        elif is_ours and not (tree / header).is_file():
            wrong.append(f"{name}: {header} is not named from the top")
        elif is_ours and room(header) not in ROOMS:
            wrong.append(f"{header}: its folder is not in ROOMS")
    return wrong


def check_order(pairs, allowed):
    """Nothing below, no circle; allowed: the lines that were needed."""
    def covers(line, pair):
        return all(map(fnmatch.fnmatchcase, pair, line))

    known = [p for p in pairs if any(covers(line, p) for line in allowed)]
    rest = [p for p in pairs if p not in known]
    wrong = [f"{a}: {room(a)} does not use {b}" for a, b in rest
             if not may_see(a, b)]
    circle = find_circle([p for p in rest if may_see(*p)])
    if circle:
        wrong.append("a circle: " + " -> ".join(circle))
    needed = {line for line in allowed for p in known if covers(line, p)
              and (circle or not may_see(*p) or find_circle(
                  [q for q in rest if may_see(*q)] +
                  [q for q in known if covers(line, q)]))}
    return wrong, needed


def check(tree, build, allowed):
    wrong = check_doors(tree)
    if wrong:
        return wrong
    needed = set()
    for pairs in ([(a, b) for a, b, is_ours in read_includes(tree)
                   if is_ours],
                  read_calls(tree, build) if build else []):
        more, used = check_order(pairs, allowed)
        wrong += more
        needed |= used
    if build:
        wrong += [f"{' '.join(line)}: not needed any more, and still in "
                  "rooms_allowed.txt" for line in sorted(allowed - needed)]
    return wrong


def self_check():
    good = {"store/base/a.h": "", "store/db/b.h": "int b(void);",
            "store/db/b.c": "int b(void);int b(void){return 0;}",
            "store/db/kv.c": "#include <rocksdb/c.h>\n"
            '#include "store/base/a.h"\n',
            "store/names/n.c": '#include "store/db/b.h"\n'
            "int n(void);int n(void){return b();}"}
    bad = [
        ({"store/db/c.h": '#include "store/names/n.h"\n',
          "store/names/n.h": ""}, (), "store/db does not use"),
        ({"store/db/d.h": '#include "store/db/c.h"\n',
          "store/db/c.h": '#include "store/db/d.h"\n'}, (),
         "store/db/c.h -> store/db/d.h -> store/db/c.h"),
        ({"store/db/c.c": "#include <rocksdb/c.h>\n"}, (), "sees rocksdb"),
        ({"store/db/c.c": "#include <fuse_lowlevel.h>\n"}, (), "see fuse"),
        ({"store/db/c.c": '#include "a.h"\n'}, (), "from the top"),
        ({"gpu/g.c": '#include "store/db/b.h"\n'}, (), "gpu does not use"),
        ({"store/db/c.c": "int n(void);int c(void){return n();}"}, (),
         "store/db does not use store/names/n"),
        ({"store/db/c.c": "int d(void);int c(void){return d();}",
          "store/db/d.c": "int c(void);int d(void){return c();}"}, (),
         "store/db/c -> store/db/d -> store/db/c"),
        ({}, {("store/names/*", "store/db/b.h")}, "not needed any more"),
    ]
    for files, allowed, said in [({}, (), None)] + bad:
        with tempfile.TemporaryDirectory() as top:
            build = pathlib.Path(top, "build")
            for name, text in {**good, **files}.items():
                path = pathlib.Path(top, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
                if not name.endswith(".c") or "#include <" in text:
                    continue
                folder, rest = name.split("/", 1)
                object_ = build / folder / "CMakeFiles/x.dir" / (rest + ".o")
                object_.parent.mkdir(parents=True, exist_ok=True)
                subprocess.run(["cc", "-I", top, "-c", "-o", object_, path],
                               check=said != "from the top",
                               stderr=subprocess.DEVNULL)
            wrong = check(pathlib.Path(top), build, set(allowed))
        assert len(wrong) == (said is not None), (files, wrong)
        assert not said or said in wrong[0], (said, wrong)


def main():
    if sys.argv[1:] == ["--self"]:
        return self_check()
    text = (pathlib.Path(__file__).parent / "rooms_allowed.txt").read_text()
    wrong = check_readme(pathlib.Path(sys.argv[1]))
    wrong += check(pathlib.Path(sys.argv[1]),
                   pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None,
                   {tuple(line.split()) for line in text.splitlines()
                    if line and not line.startswith("#")})
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
