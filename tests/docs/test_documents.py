"""What the documents say, against what there is. Each man page in deploy/man
formats without a warning; options and commands are compared with what the
programs print for --help, calls with the header and the Python module. Links of
the Markdown files lead to something, and the tests that they name exist.

Usage: test_documents.py. CKPTFS_BUILD is the build tree. Exit: 0 fine, 1 a
document is wrong, 77 this machine has no man(1) that formats a page.
"""
import ast
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
BUILD = os.environ.get("CKPTFS_BUILD", os.path.join(ROOT, "build"))
PAGES = ("ckptfs.8", "ckptctl.1", "ckpt_gpu.3")
# Where manual pages are left out of an image, man(1) is a stub, and the real
# one has this name.
MAN = shutil.which("man.REAL") or shutil.which("man")
EMPTY = ".Dd January 1, 2026\n.Dt X 1\n.Os\n.Sh NAME\n.Nm x\n.Nd y\n"
# Mount options of one word that the help names beside the list.
HELP_WORDS = {"ro", "noexec", "nosuid"}


def text_of(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def page(name):
    return text_of(f"deploy/man/{name}")


def said(program, *arguments):
    """What a program prints when it is asked, and is content with."""
    return subprocess.run([os.path.join(BUILD, "fuse", program), *arguments],
                          check=True, capture_output=True, text=True).stdout


def same(there, told, what):
    """Two sets of names must be one, and not empty."""
    gone, new = sorted(told - there), sorted(there - told)
    assert not gone, f"{what}: the page has what there is not: {gone}"
    assert not new, f"{what}: the page lacks {new}"
    assert there, f"{what}: nothing was found: the test does not look right"


# --- what the pages say ---

def warnings_of(source):
    """What man(1) complains of. The formatted page itself goes nowhere."""
    done = subprocess.run(
        [MAN, "--warnings=w", "-E", "UTF-8", "-l", "-Tutf8", "-Z", source],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "LC_ALL": "C.UTF-8"}, check=False)
    return done.stderr or ("" if done.returncode == 0 else
                           f"man: exit code {done.returncode}")


def warnings_of_text(text):
    with tempfile.NamedTemporaryFile("w", suffix=".1") as f:
        f.write(text)
        f.flush()
        return warnings_of(f.name)


def sections(source, macro):
    """Title and lines of each section (.Sh) or subsection (.Ss)."""
    found, title = {}, None
    for line in source.splitlines():
        if line.startswith(macro + " "):
            title = line[len(macro) + 1:]
            found[title] = []
        elif line.startswith(".Sh "):
            title = None
        elif title:
            found[title].append(line)
    return found


def flags_of(lines):
    """-x and --xyz that are items of a list: `.It Fl x , Fl -xyz`."""
    return {"-" + flag for line in lines if line.startswith(".It Fl ")
            for flag in re.findall(r"\bFl (\S+)", line)}


def mount_options_of(lines):
    """`.It Cm name Ns = Ns Cm a | Cm b` as name=a|b."""
    found = set()
    for line in lines:
        if line.startswith(".It Cm "):
            words = [w for w in line.split()[1:] if w not in ("Cm", "Ns", "Ar")]
            found.add("".join(words))
    return found


# --- what the programs say ---

def flags_in(text):
    """-x and --xyz in front of a help's lines, or in brackets at their end."""
    found = set()
    for line in text.splitlines():
        if re.match(r" {2,4}-", line):
            found.update(re.findall(r"(?<![\w-])-[A-Za-z]\b|--[a-z-]+",
                                    re.split(r" {2,}", line.strip())[0]))
        # The long name stands at the end, where it has no place in front.
        found.update(re.findall(r"\((--[a-z-]+)\)", line))
    return found


# --- the promises ---

def pages_format_without_a_warning():
    for name in PAGES:
        complaint = warnings_of(os.path.join(ROOT, "deploy/man", name))
        assert not complaint, f"{name}: {complaint}"
    # And man(1) would complain: of a macro that there is not.
    assert warnings_of_text(EMPTY + ".Xyzzy\n"), "man does not warn"


def ckptfs_has_the_options_of_its_help():
    help_text = said("ckptfs", "--help")
    front, options = help_text.split("options (-o):\n")
    there = flags_in(front)
    there.update("-" + letter for letter in re.findall(r"\[-(\w) ", help_text))
    of_mount = {line.split()[0] for line in options.splitlines()
                if re.match(r"  [a-z_]+(=| )", line) and
                not line.startswith("  and ")}
    told = sections(page("ckptfs.8"), ".Ss")["Mount options"]
    same(of_mount, mount_options_of(told), "mount options of ckptfs(8)")
    told = sections(page("ckptfs.8"), ".Sh")["OPTIONS"]
    same(there, flags_of(told), "options of ckptfs(8)")
    beside = next(l for l in options.splitlines() if l.startswith("  and "))
    assert HELP_WORDS <= set(re.findall(r"\w+", beside)), beside


def ckptctl_has_the_commands_and_options_of_its_help():
    overview = said("ckptctl", "--help")
    commands = set(re.findall(r"^  ([\w-]+) +\S", overview, re.M))
    subsections = sections(page("ckptctl.1"), ".Ss")
    pages = {title.split()[0]: lines for title, lines in subsections.items()}
    usages = {title.split()[0]: set(re.findall(r"Fl -(\S+)", title))
              for title in subsections}
    same(commands, set(pages), "commands of ckptctl(1)")
    of_all = flags_of(sections(page("ckptctl.1"), ".Sh")["OPTIONS"])
    same({"--json", "--help", "--version", "-V"}, of_all,
         "options of all commands in ckptctl(1)")
    for command, lines in pages.items():
        help_text = said("ckptctl", command, "--help")
        there = flags_in(help_text)
        assert {"--json", "--help"} <= there, help_text
        told = flags_of(lines)
        usage = set(re.findall(r"--([\w-]+)", help_text.splitlines()[0]))
        assert usage == usages[command], \
            f"ckptctl {command}: {usage} and {usages[command]}"
        same((there | {"a command may have none"}) - {"--json", "--help"},
             told | {"a command may have none"}, f"ckptctl {command}")


def the_library_has_the_calls_of_its_header():
    header = text_of("gpu/ckpt_gpu.h")
    source = page("ckpt_gpu.3")
    calls = set(re.findall(r"^CKPT_API [^;]*?(ckpt_\w+)\(", header,
                           re.M | re.S))
    synopsis, rest = source.split(".Sh DESCRIPTION")
    same(calls, set(re.findall(r"^\.Fn (ckpt_\w+)", synopsis, re.M)),
         "calls in the synopsis of ckpt_gpu(3)")
    same(calls, set(re.findall(r"(?:^\.|[ ,])(?:It )?Fn (ckpt_\w+)", rest,
                               re.M)), "calls explained in ckpt_gpu(3)")
    names = set(re.findall(r"\b(CKPT_(?!API\b)[A-Z_]+)\b",
                           re.sub(r"/\*.*?\*/", "", header, flags=re.S)))
    same(names, set(re.findall(r"^\.(?:It )?Dv (CKPT_\w+)", source, re.M)) |
         set(re.findall(r" Dv (CKPT_\w+)", source)),
         "constants in ckpt_gpu(3)")
    counters = re.search(r"struct ckpt_counters \{(.*?)\}", header, re.S)
    same(set(re.findall(r"uint64_t (\w+);", counters.group(1))),
         {name for line in sections(source, ".Ss")["Counters"]
          if line.startswith(".It ")
          for name in re.findall(r"Li (\w+)", line)},
         "counters in ckpt_gpu(3)")


def sources_of_the_package():
    return {os.path.basename(path): text_of(os.path.relpath(path, ROOT))
            for path in glob.glob(os.path.join(ROOT, "gpu/python/ckptfs/*.py"))}


def the_library_has_the_calls_of_its_package():
    sources = sources_of_the_package()
    public = next(ast.literal_eval(node.value)
                  for node in ast.parse(sources["__init__.py"]).body
                  if isinstance(node, ast.Assign) and
                  node.targets[0].id == "__all__")
    told = "\n".join(sections(page("ckpt_gpu.3"), ".Sh")["PYTHON"])
    same(set(public), set(re.findall(r"(?:Fn|Li) (\w+)", told)) &
         set(public), "the Python package in ckpt_gpu(3)")
    # Those of a module with a name of its own are called by that.
    for node in (n for name, s in sources.items() if name.startswith("_")
                 for n in ast.parse(s).body):
        if isinstance(node, ast.FunctionDef) and node.name in public and \
                node.args.args + node.args.kwonlyargs:
            line = re.search(rf"Fn {node.name} (.*)", told).group(1)
            names = {a.arg for a in node.args.args + node.args.kwonlyargs}
            if line != "...":
                same(names, {w.split("=")[0] for w in line.split()},
                     f"arguments of {node.name}() in ckpt_gpu(3)")
    keys = set(re.findall(r"environ\.get\(\"(\w+)\"",
                          "\n".join(sources.values())))
    for source in glob.glob(os.path.join(ROOT, "gpu/*.c")):
        keys.update(re.findall(r"getenv\(\"(\w+)\"", text_of(source)))
    same(keys, set(re.findall(r"^\.It Ev (\w+)", page("ckpt_gpu.3"), re.M)),
         "environment in ckpt_gpu(3)")


def documents():
    """All Markdown files of the sources, relative to the top."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [f for f in folders
                      if f == ".github" or not f.startswith((".", "build"))]
        for name in names:
            if name.endswith(".md"):
                yield os.path.relpath(os.path.join(folder, name), ROOT)


def links_of_the_documents_lead_somewhere():
    found = 0
    for name in documents():
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text_of(name)):
            found += 1
            path = os.path.join(ROOT, os.path.dirname(name), target)
            assert os.path.exists(path), f"{name} links to {target}"
    assert found > 0, "no link was found: the test does not look right"


def alternatives(pattern):
    """a(b|c)d|e as abd, acd and e: each must be there, not only one."""
    depth, parts = 0, [""]
    for c in pattern:
        depth += (c == "(") - (c == ")")
        if c == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    for part in parts:
        group = re.search(r"\(([^()]*)\)", part)
        if group is None:
            yield part
            continue
        for one in group.group(1).split("|"):
            yield part[:group.start()] + one + part[group.end():]


def tests_that_the_guide_names_exist():
    listed = json.loads(subprocess.run(
        ["ctest", "--test-dir", BUILD, "--show-only=json-v1"], check=True,
        capture_output=True, text=True).stdout)["tests"]
    names = [test["name"] for test in listed]
    guide = text_of("tests/README.md").replace("\\|", "|")
    patterns = re.findall(r"(?<!setarch )-R '?([^'` \n]+)", guide)
    patterns += re.findall(r"debug.sh (?:--preset \w+ )?(\w[\w.]*)", guide)
    assert len(patterns) > 10, patterns
    for pattern in patterns:
        for one in alternatives(pattern):
            assert any(re.search(one, name) for name in names), \
                f"tests/README.md names {one}: there is no such test"


TESTS = (
    pages_format_without_a_warning,
    ckptfs_has_the_options_of_its_help,
    ckptctl_has_the_commands_and_options_of_its_help,
    the_library_has_the_calls_of_its_header,
    the_library_has_the_calls_of_its_package,
    links_of_the_documents_lead_somewhere,
    tests_that_the_guide_names_exist,
)


def main():
    if not MAN or warnings_of_text(EMPTY):
        print("skip: there is no man(1) here that formats a page")
        return 77
    failed = 0
    for test in TESTS:
        try:
            test()
            print(f"ok - {test.__name__}")
        except AssertionError as e:
            failed += 1
            print(f"FAILED - {test.__name__}: {e}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
