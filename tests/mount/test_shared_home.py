"""What ckptctl says of a directory that nodes share, and what it does there:
`init --shared` makes one, `nodes` lists them, `fsck --shared` finds what is
nobody's, `forget-node` gives up what a lost node has left. The nodes here are
programs that do as a daemon does (shared_node.c)."""
import json
import os
import shutil
import signal
import stat
import subprocess

import ckptest as ck
from ckptest import KIB, get, put

NODE = os.path.join(ck.BUILD, "tests/mount/shared_node")
OTHER_BOOT = "00000000-1111-4222-8333-444444444444"


def ctl(*words, code=0):
    return ck.sh(ck.CKPTCTL, *words, code=code)


def ask(*words, code=0):
    """Its JSON, which stands alone on standard output."""
    done = subprocess.run([ck.CKPTCTL, *words, "--json"], text=True,
                          capture_output=True, timeout=ck.WAIT_BOUND,
                          check=False)
    assert done.returncode == code, done
    return json.loads(done.stdout)


class Node:
    def __init__(self, shared, name, number=1, said="ok", rejoin=False):
        self.store = f"{number:08d}-89ab-4def-8123-456789abcdef"
        self.proc = subprocess.Popen(
            [NODE, shared, name, self.store, *["rejoin"][:rejoin]], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        answer = self.proc.stdout.readline()
        assert said in answer, answer

    def do(self, *words, said="ok"):
        self.proc.stdin.write(" ".join(map(str, words)) + "\n")
        self.proc.stdin.flush()
        answer = self.proc.stdout.readline()
        assert answer == f"{said}\n", (words, answer)

    def end(self, code=0):
        self.proc.stdin.close()
        assert self.proc.wait(ck.WAIT_BOUND) == code
        self.proc.stdout.close()

    def kill(self):
        self.proc.kill()
        assert self.proc.wait(ck.WAIT_BOUND) == -signal.SIGKILL
        self.proc.stdin.close()
        self.proc.stdout.close()


def share(m):
    shared = os.path.join(m.base, "shared")
    os.mkdir(shared)
    ctl("init", "--shared", shared)
    return shared


def tree(path):
    return sorted(os.path.relpath(os.path.join(folder, name), path)
                  for folder, folders, files in os.walk(path)
                  for name in folders + files)


@ck.mounted(modes=("auto",), start=False)
def init_shared_makes_one_of_a_directory_that_is_there(m):
    shared = os.path.join(m.base, "shared")
    said = ctl("init", "--shared", shared, code=2)
    assert "does not exist" in said and not os.path.exists(shared), said
    os.mkdir(shared)
    put(os.path.join(shared, "model.pt"), b"was here before")
    assert ctl("init", "--shared", shared) == \
        f"{shared} can be shared by nodes now\n"
    assert tree(shared) == [".ckptfs", ".ckptfs/format", ".ckptfs/new",
                            ".ckptfs/nodes", "model.pt"]
    text = get(os.path.join(shared, ".ckptfs/format"))
    assert "already" in ctl("init", "--shared", shared, code=2)
    assert get(os.path.join(shared, ".ckptfs/format")) == text
    assert ask("nodes", shared)["uuid"] in text.decode()
    other = os.path.join(m.base, "other")
    os.mkdir(other)
    assert ask("init", "--shared", other) == {"shared": other}
    ctl("init", m.store)
    assert "is a store" in ctl("init", "--shared", m.store, code=2)
    m.start()
    assert "is mounted" in ctl("init", "--shared", m.mnt, code=2)
    m.unmount()


@ck.mounted(modes=("auto",), start=False)
def wrong_usage_and_wrong_directories_are_told(m):
    shared = share(m)
    for words in (("init", "--shared"), ("init", "--shared", shared, shared),
                  ("nodes",), ("nodes", shared, shared),
                  ("forget-node", shared), ("forget-node", shared, "a", "b"),
                  ("forget-node", shared, "../a"), ("fsck", "--shared"),
                  ("fsck", "--shared", "--scrub", shared),
                  ("fsck", "--shared", "--read-only", shared),
                  ("nodes", "--yes", shared),
                  ("forget-node", "--all", shared, "a")):
        said = ctl(*words, code=2)
        assert f"see ckptctl {words[0]} --help" in said, (words, said)
    for words in (("nodes",), ("fsck", "--shared"), ("forget-node",)):
        name = ("a",) if words[0] == "forget-node" else ()
        for path, why in ((m.base, "ckptctl init --shared"),
                          (os.path.join(m.base, "no"), "does not exist"),
                          (m.log, "is not a directory")):
            said = ctl(*words, path, *name, code=2)
            assert path in said and why in said, said
            error = ask(*words, path, *name, code=2)["error"]
            assert error["exit_code"] == 2 and why in error["message"], error
    said = ctl("forget-node", "--yes", shared, "a", code=2)
    assert "has no node a" in said, said
    assert tree(shared) == [".ckptfs", ".ckptfs/format", ".ckptfs/new",
                            ".ckptfs/nodes"]
    m.start()
    for words in (("nodes", m.mnt), ("fsck", "--shared", m.mnt)):
        assert "is where ckptfs is mounted" in ctl(*words, code=2)
    m.unmount()


@ck.mounted(modes=("auto",), start=False)
def nodes_says_who_is_there_and_whose_clock_is_off(m):
    shared = share(m)
    assert ask("nodes", shared)["nodes"] == []
    a, b, c = (Node(shared, name, n) for n, name in enumerate("abc"))
    a.do("alive")
    b.do("alive-of", OTHER_BOOT, 10800)
    answer = {n["node"]: n for n in ask("nodes", shared)["nodes"]}
    assert list(answer) == ["a", "b", "c"]
    assert [n["locked"] for n in answer.values()] == [True] * 3
    assert [n["away"] for n in answer.values()] == [False] * 3
    assert answer["a"]["store"] == a.store
    assert answer["a"]["process"] == a.proc.pid
    assert answer["a"]["boot"] == \
        get("/proc/sys/kernel/random/boot_id").decode().strip()
    assert abs(answer["a"]["clock_ahead_s"]) <= 1, answer
    assert abs(answer["b"]["clock_ahead_s"] - 10800) <= 1, answer
    assert -10800 <= answer["b"]["seen_by_its_clock_s"] < -10000, answer
    assert 0 <= answer["b"]["seen_s"] < 600, answer
    assert answer["b"]["version"] == "0.9-other"
    assert "version" not in answer["c"], "it was never alive"
    said = ctl("nodes", shared)
    assert said.startswith(f"{shared}: 3 nodes\n"), said
    assert "b: its clock is 3 h ahead of the one of the directory" in said
    assert "a: its clock" not in said, said
    # Without a lock it is there as long as it says so.
    a.do("unlock")
    [first] = [n for n in ask("nodes", shared)["nodes"] if n["node"] == "a"]
    assert first["locked"] is False and first["away"] is False, first
    alive = os.path.join(shared, ".ckptfs/nodes/a/alive")
    os.utime(alive, (1e9, 1e9))
    [first] = [n for n in ask("nodes", shared)["nodes"] if n["node"] == "a"]
    assert first["away"] is True and first["seen_s"] > 86400, first
    for node in (a, b, c):
        node.end()


@ck.mounted(modes=("auto",), start=False)
def nodes_counts_what_is_pending_of_each(m):
    shared = share(m)
    a, b = Node(shared, "a", 1), Node(shared, "b", 2)
    os.makedirs(os.path.join(shared, "run/step_1"))
    for n in range(3):
        a.do("pending", 100 * KIB, f"run/step_1/rank {n}.pt")
    a.do("alive")
    put(os.path.join(shared, "run/plain"), b"x")
    answer = ask("nodes", "--pending", shared)
    assert [(n["node"], n["pending_files"], n["pending_bytes"])
            for n in answer["nodes"]] == [("a", 3, 300 * KIB), ("b", 0, 0)]
    assert "3 files, 300 KiB" in ctl("nodes", "--pending", shared)
    assert "pending_files" not in ask("nodes", shared)["nodes"][0]
    a.kill()
    os.utime(os.path.join(shared, ".ckptfs/nodes/a/alive"), (1e9, 1e9))
    said = ctl("nodes", "--pending", shared, code=1)
    assert f"ckptctl forget-node {shared} a" in said, said
    b.end()


@ck.mounted(modes=("auto",), start=False)
def fsck_names_what_is_nobody_s(m):
    shared = share(m)
    a, b = Node(shared, "a", 1), Node(shared, "b", 2)
    a.do("pending", 7, "fine")
    a.do("pending", 0, "fine-too")
    assert f"{shared}: no problem found" in ctl("fsck", "--shared", shared)
    answer = ask("fsck", "--shared", shared)
    assert answer["ok"] is True and answer["problems"] == [], answer
    assert (answer["nodes"], answer["pending_files"]) == (2, 2), answer
    os.mkdir(os.path.join(shared, "in"))
    a.do("bare", 5000, "in/bare")
    b.do("pending", 7, "lost")
    b.do("new", 17)
    b.end()
    shutil.rmtree(os.path.join(shared, ".ckptfs/nodes/b"))
    before = tree(shared)
    answer = ask("fsck", "--shared", shared, code=1)
    assert sorted((p["code"], p["path"]) for p in answer["problems"]) == [
        ("leftover", ".ckptfs/new/b"), ("nobodys", "in/bare"),
        ("nobodys", "lost")], answer
    assert answer["ok"] is False and answer["problem_count"] == 3, answer
    said = ctl("fsck", "--shared", shared, code=1)
    assert f"{shared}: 3 problems found" in said, said
    assert f"ckptctl forget-node {shared} b" in said, said
    assert tree(shared) == before
    # What it says to do helps.
    ctl("forget-node", "--yes", shared, "b")
    os.unlink(os.path.join(shared, "lost"))
    os.unlink(os.path.join(shared, "in/bare"))
    ctl("fsck", "--shared", shared)
    a.end()


@ck.mounted(modes=("auto",), start=False)
def fsck_waits_for_a_file_that_is_being_completed(m):
    shared = share(m)
    a = Node(shared, "a")
    a.do("bare", 5000, "f")
    proc = subprocess.Popen([ck.CKPTCTL, "fsck", "--shared", shared],
                            stdout=subprocess.PIPE, text=True)
    # Either way it is complete before fsck gives up on it.
    os.chmod(os.path.join(shared, "f"), 0o644)
    said, _ = proc.communicate(timeout=ck.WAIT_BOUND)
    assert proc.returncode == 0 and "no problem found" in said, said
    a.end()


@ck.mounted(modes=("auto",), start=False)
def a_node_that_is_mounted_is_not_forgotten(m):
    shared = share(m)
    a = Node(shared, "a")
    a.do("alive")
    a.do("pending", 7, "f")
    before = tree(shared)
    for options in ((), ("--yes",)):
        said = ctl("forget-node", *options, shared, "a", code=2)
        assert "node a is mounted" in said, said
        error = ask("forget-node", *options, shared, "a", code=2)["error"]
        assert "node a is mounted" in error["message"], error
    assert tree(shared) == before
    a.end()


@ck.mounted(modes=("auto",), start=False)
def a_node_whose_alive_moves_is_not_forgotten(m):
    """Also where its lock is not seen, and its clock stands still."""
    shared = share(m)
    a = Node(shared, "a")
    a.do("unlock")
    a.do("alive-of", OTHER_BOOT, 0)
    a.do("pending", 7, "f")
    before = tree(shared)
    proc = subprocess.Popen([ck.CKPTCTL, "forget-node", "--yes", shared, "a"],
                            stderr=subprocess.PIPE, text=True)
    exited = os.pidfd_open(proc.pid)
    while not ck.select.select([exited], [], [], 0.1)[0]:
        a.do("alive-of", OTHER_BOOT, 0)
    os.close(exited)
    _, said = proc.communicate(timeout=ck.WAIT_BOUND)
    assert proc.returncode == 2 and "node a is alive" in said, said
    assert tree(shared) == before
    a.end()


def leave(shared, boot=None):
    """Node a with pending files, and b with one; a is killed."""
    a, b = Node(shared, "a", 1), Node(shared, "b", 2)
    a.do(*(("alive-of", boot, 0) if boot else ("alive",)))
    os.makedirs(os.path.join(shared, "run"))
    a.do("pending", 100 * KIB, "run/rank_0.pt")
    a.do("pending", 0, "run/rank 1\t.pt")
    a.do("new", 17)
    b.do("pending", 7, "run/of-b")
    put(os.path.join(shared, "run/plain"), b"x")
    a.kill()
    return b


@ck.mounted(modes=("auto",), start=False)
def what_a_lost_node_has_left_is_listed_and_with_yes_given_up(m):
    shared = share(m)
    b = leave(shared)
    before = tree(shared)
    said = ctl("forget-node", shared, "a", code=1)
    assert "run/rank_0.pt" in said and "again with --yes" in said, said
    assert "run/rank 1\\011.pt" in said, said
    assert "run/of-b" not in said and "run/plain" not in said, said
    answer = ask("forget-node", shared, "a", code=1)
    assert answer["forgotten"] is False, answer
    assert sorted((f["path"], f["bytes"], f["removed"], f["lost"])
                  for f in answer["files"]) == [
        ("run/rank 1\t.pt", 0, False, False),
        ("run/rank_0.pt", 100 * KIB, False, False)], answer
    assert tree(shared) == before
    answer = ask("forget-node", "--yes", shared, "a")
    assert answer["forgotten"] is True, answer
    assert (answer["pending_files"], answer["lost_files"],
            answer["removed_files"]) == (2, 2, 0), answer
    assert all(f["lost"] for f in answer["files"]), answer
    # They have their names; the node's folder is another one's, as it was.
    [lost] = os.listdir(os.path.join(shared, ".ckptfs/lost"))
    assert lost.startswith("a."), lost
    assert tree(shared) == sorted(
        [".ckptfs/lost"] + [
            path.replace(".ckptfs/nodes/a", f".ckptfs/lost/{lost}")
            for path in before if not path.startswith(".ckptfs/new/a")])
    answer = ask("nodes", "--pending", shared)
    assert [n["node"] for n in answer["nodes"]] == ["b"], answer
    assert [(n["node"], n["lost_files"], n["lost_bytes"])
            for n in answer["forgotten"]] == [("a", 2, 100 * KIB)], answer
    said = ctl("nodes", "--pending", shared)
    assert "a: it was forgotten, with 2 files, 100 KiB" in said, said
    answer = ask("fsck", "--shared", shared, code=1)
    assert sorted((p["code"], p["path"]) for p in answer["problems"]) == [
        ("lost", "run/rank 1\t.pt"), ("lost", "run/rank_0.pt")], answer
    assert answer["lost_files"] == 2 and answer["pending_files"] == 1, answer
    # The name is free for another store.
    Node(shared, "a", 3).end()
    b.end()


@ck.mounted(modes=("auto",), start=False)
def a_node_that_was_forgotten_joins_again_when_it_says_so(m):
    shared = share(m)
    b = leave(shared)
    ctl("forget-node", "--yes", shared, "a")
    os.unlink(os.path.join(shared, "run/rank_0.pt"))
    before = tree(shared)
    Node(shared, "a", 1, said="this store was node a there, and was forgotten"
         ).proc.communicate()
    assert tree(shared) == before
    a = Node(shared, "a", 1, rejoin=True)
    answer = ask("nodes", "--pending", shared)
    assert [(n["node"], n["pending_files"]) for n in answer["nodes"]] == [
        ("a", 1), ("b", 1)], answer
    # Until the daemon knows all that came back.
    assert [n["node"] for n in answer["forgotten"]] == ["a"], answer
    a.do("joined")
    assert ask("nodes", shared)["forgotten"] == []
    a.end()
    Node(shared, "a", 1).end()
    ctl("fsck", "--shared", shared)
    b.end()


@ck.mounted(modes=("auto",), start=False)
def a_node_that_has_left_nothing_is_gone_for_good(m):
    shared = share(m)
    a, b = Node(shared, "a", 1), Node(shared, "b", 2)
    a.do("alive")
    a.end()
    before = tree(shared)
    ctl("forget-node", "--yes", shared, "a")
    assert all("/a" in path for path in set(before) - set(tree(shared)))
    assert not os.path.exists(os.path.join(shared, ".ckptfs/lost"))
    Node(shared, "a", 1).end()
    b.end()


@ck.mounted(modes=("auto",), start=False)
def what_cannot_be_given_up_is_a_node_yet(m):
    shared = share(m)
    b = leave(shared)
    put(os.path.join(shared, ".ckptfs/lost"), b"not of ckptfs")
    said = ctl("forget-node", "--yes", shared, "a", code=1)
    assert "cannot move the node to lost/: Not a directory" in said, said
    assert ".ckptfs/nodes/a/store" in tree(shared)
    os.unlink(os.path.join(shared, ".ckptfs/lost"))
    ctl("forget-node", "--yes", shared, "a")
    assert ask("fsck", "--shared", shared, code=1)["lost_files"] == 2
    b.end()


@ck.mounted(modes=("auto",), start=False)
def a_node_that_is_forgotten_while_it_lives_is_told(m):
    """Its client was away, so that its lock is another one's to have."""
    shared = share(m)
    a = Node(shared, "a", 1)
    a.do("unlock")
    a.do("pending", 7, "f")
    ctl("forget-node", "--yes", shared, "a")
    a.do("alive", said="Cannot send after transport endpoint shutdown")
    assert tree(shared).count("f") == 1
    a.end(code=1)


@ck.mounted(modes=("auto",), start=False)
def a_node_of_another_boot_is_watched_and_then_forgotten(m):
    shared = share(m)
    b = leave(shared, boot=OTHER_BOOT)
    said = ctl("forget-node", "--yes", shared, "a")
    assert "node a has 2 pending files" in said, said
    assert "run/of-b" in tree(shared) and "run/plain" in tree(shared)
    assert "run/rank_0.pt" in tree(shared)
    assert ask("fsck", "--shared", shared, code=1)["lost_files"] == 2
    b.end()


@ck.mounted(modes=("auto",), start=False)
def a_user_sees_nodes_and_changes_nothing(m):
    shared = share(m)
    a = Node(shared, "a")
    a.do("alive")
    a.do("pending", 7, "f")
    os.chmod(m.base, 0o755)
    os.chmod(shared, 0o1777)
    assert stat.S_IMODE(os.stat(os.path.join(shared, "f")).st_mode) == 0o1000

    def look():
        [node] = ask("nodes", shared)["nodes"]
        assert node["locked"] is None and not node["away"], node
        for words in (("fsck", "--shared", shared),
                      ("nodes", "--pending", shared)):
            said = ctl(*words, code=1)
            assert "Permission denied" in said, said
        said = ctl("forget-node", "--yes", shared, "a", code=2)
        assert "Permission denied" in said, said
        for name in ("x", "nodes/x", "new/x", "nodes/a/x"):
            ck.fails(ck.errno.EACCES, os.mkdir,
                     os.path.join(shared, ".ckptfs", name))
        ck.fails(ck.errno.EACCES, os.listdir,
                 os.path.join(shared, ".ckptfs/new/a"))
        # Nor can he make one of his own that others believe.
        ck.fails(ck.errno.EPERM, os.rename, os.path.join(shared, ".ckptfs"),
                 os.path.join(shared, "away"))
    before = tree(shared)
    ck.as_user(look)
    assert tree(shared) == before
    a.end()


if __name__ == "__main__":
    ck.main()
