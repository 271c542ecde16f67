"""What bash and zsh complete after `ckptctl`, against its --help: every command
and every option, and none that there is not. bash runs its file; so does zsh,
with the functions that offer something replaced by ones that print it.

Usage: test_completion.py. CKPTFS_BUILD is the build tree. Exit: 0 fine, 1 a
completion is wrong, 77 there is no zsh (bash's was fine).
"""
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

from test_documents import ROOT, flags_in, said, same

FILES = os.path.join(ROOT, "deploy/completion")
# Instead of those of zsh: they print what they are to offer, one on a line.
ZSH = r"""
compdef() { : }
_describe() { print -rl -- "${(@P)4%%:*}" }
compadd() { print -rl -- "${(@P)2}" }
_directories() { print -l DIRECTORIES }
_arguments() { shift; print -rl -- "$@" }
"""


def bash(*words, cwd="/"):
    """What is offered for the last word."""
    script = (f"source {shlex.quote(FILES + '/ckptctl')}; "
              f"COMP_WORDS=({shlex.join(words)}); "
              f"COMP_CWORD={len(words) - 1}; _ckptctl; "
              "printf '%s\\n' \"${COMPREPLY[@]}\"")
    done = subprocess.run(["bash", "--norc", "-c", script], check=True,
                          capture_output=True, text=True, cwd=cwd)
    assert not done.stderr, done.stderr
    return set(done.stdout.split("\n")) - {""}


def zsh(*words):
    script = (ZSH + f"words=({shlex.join(words)}); CURRENT={len(words)}; "
              f"source {shlex.quote(FILES + '/_ckptctl')}")
    done = subprocess.run(["zsh", "-f", "-c", script], check=True,
                          capture_output=True, text=True)
    assert not done.stderr, done.stderr
    return set(done.stdout.split("\n")) - {""}


def zsh_flags(offered):
    """'(-a --all)--all[print]' is --all."""
    found = set()
    for one in offered:
        hit = re.match(r"(?:\([^)]*\))?(--?[a-zA-Z-]+)=?\[", one)
        if hit:
            found.add(hit.group(1))
    return found


def commands():
    return set(re.findall(r"^  ([\w-]+) +\S", said("ckptctl", "--help"), re.M))


def flags(command):
    return flags_in(said("ckptctl", command, "--help"))


def words_of(command, option):
    """The words that an option takes, from the help: `a: this; b: that`."""
    text = said("ckptctl", command, "--help")
    part = re.search(rf"^  {option} [A-Z]+\s(.*?)^  -", text, re.M | re.S)
    return set(re.findall(r"([a-z_0-9]+)(?:: |\n)", part.group(1) + "\n"))


def bash_has_every_command_and_option():
    general = {"--help", "--version", "-h", "-V"}
    same(commands() | {"help"} | general, bash("ckptctl", ""),
         "commands that bash completes")
    same(commands(), bash("ckptctl", "help", ""), "bash: help")
    for command in commands():
        same(flags(command), bash("ckptctl", command, "-"),
             f"bash: {command}")
    assert bash("ckptctl", "st") == {"status"}
    assert bash("ckptctl", "inspect", "--di") == {"--digest", "--diff"}


def bash_has_the_words_of_an_option():
    orders, policies = words_of("du", "--sort"), words_of("plan", "-p")
    assert len(orders) == 3 and len(policies) == 3, (orders, policies)
    same(orders, bash("ckptctl", "du", "--sort", ""), "bash: --sort")
    assert bash("ckptctl", "du", "--sort", "=", "l") == {"logical"}
    same(orders, bash("ckptctl", "du", "--sort", "="), "bash: --sort=")
    for option in ("-p", "--policy"):
        same(policies, bash("ckptctl", "plan", option, ""), f"bash: {option}")
    assert bash("ckptctl", "du", "-d", "") == set()


def bash_has_paths_with_odd_names():
    with tempfile.TemporaryDirectory() as tmp:
        for name in ("a step", "a-b$c"):
            os.mkdir(os.path.join(tmp, name))
        open(os.path.join(tmp, "a.pt"), "wb").close()
        for command, want in (("inspect", {"a step", "a-b$c", "a.pt"}),
                              ("fsck", {"a step", "a-b$c"}),
                              ("status", {"a step", "a-b$c"})):
            assert bash("ckptctl", command, "a", cwd=tmp) == want, command


def zsh_has_every_command_and_option():
    general = {"--help", "--version", "-h", "-V"}
    same(commands() | {"help"} | general, zsh("ckptctl", ""),
         "commands that zsh completes")
    same(commands(), zsh("ckptctl", "help", ""), "zsh: help")
    for command in commands():
        offered = zsh("ckptctl", command, "-")
        same(flags(command), zsh_flags(offered), f"zsh: {command}")
        for option, words in (("du", words_of("du", "--sort")),
                              ("plan", words_of("plan", "-p"))):
            if option == command:
                [listed] = {re.search(r":\(([^()]*)\)$", one).group(1)
                            for one in offered if one.endswith(")")}
                same(words, set(listed.split()), f"zsh: {command}")


def zsh_knows_whose_completion_it_is():
    script = (f"fpath=({shlex.quote(FILES)} $fpath); autoload -Uz compinit; "
              "compinit -u -D; print -r -- $_comps[ckptctl]")
    done = subprocess.run(["zsh", "-f", "-c", script], check=True,
                          capture_output=True, text=True)
    assert done.stdout.strip() == "_ckptctl", done


TESTS = (bash_has_every_command_and_option, bash_has_the_words_of_an_option,
         bash_has_paths_with_odd_names)
OF_ZSH = (zsh_has_every_command_and_option, zsh_knows_whose_completion_it_is)


def main():
    failed = 0
    has_zsh = shutil.which("zsh") is not None
    for test in TESTS + (OF_ZSH if has_zsh else ()):
        try:
            test()
            print(f"ok - {test.__name__}")
        except AssertionError as e:
            failed += 1
            print(f"FAILED - {test.__name__}: {e}")
    if failed:
        return 1
    if not has_zsh:
        print("skip: there is no zsh here")
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
