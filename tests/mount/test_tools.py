"""What people do all day: cp, rsync, tar, git, sqlite. The same tree must
come out as went in, now, drained, and after a remount."""
import filecmp
import os
import sqlite3
import stat

import ckptest as ck
from ckptest import KIB, MIB, data, get, put, same, sh, tool

WHEN = 1500000000123456789


def make_tree(root):
    """A tree with every kind of name, mode, size and time."""
    os.makedirs(os.path.join(root, "d", "empty"))
    for name, size, mode in (("small", 5, 0o644), ("exact", 4096, 0o600),
                             ("run.sh", 70, 0o755), ("d/big", MIB + 7, 0o444),
                             ("d/.hidden", 40000, 0o640), ("none", 0, 0o644)):
        put(os.path.join(root, name), data(size, name), mode=mode)
        os.chmod(os.path.join(root, name), mode)
    with open(os.path.join(root, "sparse"), "wb") as f:
        f.seek(3 * MIB)
        f.write(b"end")
    os.symlink("d/big", os.path.join(root, "link"))
    os.symlink("/no/where", os.path.join(root, "dangling"))
    os.link(os.path.join(root, "small"), os.path.join(root, "d", "hard"))
    os.mkfifo(os.path.join(root, "fifo"))
    for folder, folders, names in os.walk(root, topdown=False):
        for name in names + folders:
            os.utime(os.path.join(folder, name), ns=(WHEN, WHEN),
                     follow_symlinks=False)
    os.utime(root, ns=(WHEN, WHEN))


def describe(root):
    """Everything that a faithful copy has in common."""
    found = {}
    for folder, folders, names in os.walk(root):
        for name in names + folders:
            path = os.path.join(folder, name)
            st = os.lstat(path)
            body = None
            if stat.S_ISLNK(st.st_mode):
                body = os.readlink(path)
            elif stat.S_ISREG(st.st_mode):
                body = hash(get(path))
            found[os.path.relpath(path, root)] = (
                oct(st.st_mode), st.st_uid, st.st_mtime_ns // 1000,
                st.st_nlink if not stat.S_ISDIR(st.st_mode) else 0,
                st.st_size if not stat.S_ISDIR(st.st_mode) else 0, body)
    return found


def compare(root, want, what):
    got = describe(root)
    for name in sorted(set(got) | set(want)):
        assert got.get(name) == want.get(name), \
            f"{what} {name}: {got.get(name)} instead of {want.get(name)}"


@ck.posix
def cp_a_keeps_everything(fs):
    make_tree(fs.path("from"))
    want = describe(fs.path("from"))
    sh(tool("cp"), "-a", fs.path("from"), fs.path("staged"))
    fs.flush()
    sh(tool("cp"), "-a", fs.path("from"), fs.path("durable"))
    sh("cp", "-a", "--reflink=auto", "--sparse=always", fs.path("from"),
       fs.path("sparse"))
    for stage in fs.stages():
        for name in ("from", "staged", "durable", "sparse"):
            compare(fs.path(name), want, f"{stage} {name}")


@ck.posix
def cp_a_brings_a_tree_in_and_out(fs):
    outside = fs.mnt + ".outside" if not fs.plain else fs.path("outside")
    make_tree(os.path.join(outside, "in"))
    want = describe(os.path.join(outside, "in"))
    sh("cp", "-a", os.path.join(outside, "in"), fs.path("here"))
    for stage in fs.stages():
        compare(fs.path("here"), want, stage)
    sh("cp", "-a", fs.path("here"), os.path.join(outside, "out"))
    compare(os.path.join(outside, "out"), want, "out")
    sh("rm", "-rf", outside, fs.path("here"))


@ck.posix
def a_second_rsync_has_nothing_to_do(fs):
    rsync = tool("rsync")
    make_tree(fs.path("from"))
    want = describe(fs.path("from"))
    args = (rsync, "-aH", "--itemize-changes", fs.path("from") + "/",
            fs.path("to") + "/")
    assert sh(*args)
    for stage in fs.stages():
        assert sh(*args) == "", stage
        compare(fs.path("to"), want, stage)
    with open(fs.path("from", "d", "big"), "r+b") as f:
        f.seek(500 * KIB)
        f.write(b"changed")
    for extra in ("--inplace", "--append-verify", "--checksum"):
        sh(*args, extra)
        assert filecmp.cmp(fs.path("from/d/big"), fs.path("to/d/big"), False)
    put(fs.path("from", "late"), b"late")
    os.unlink(fs.path("from", "exact"))
    sh(*args, "--delete")
    compare(fs.path("to"), describe(fs.path("from")), "after --delete")


@ck.posix
def tar_packs_and_unpacks(fs):
    make_tree(fs.path("from"))
    want = describe(fs.path("from"))
    sh(tool("tar"), "-C", fs.dir, "--format=posix", "--sparse", "-cf",
       fs.path("a.tar"), "from")
    os.mkdir(fs.path("to"))
    for stage in fs.stages(fs.path("a.tar")):
        sh("tar", "-C", fs.path("to"), "-xpf", fs.path("a.tar"))
        compare(fs.path("to", "from"), want, stage)
        sh("tar", "-C", fs.dir, "-df", fs.path("a.tar"))


@ck.posix
def git_commits_clones_and_checks(fs):
    git = tool("git")
    env = ("env", "GIT_CONFIG_NOSYSTEM=1", "HOME=" + fs.dir,
           "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a",
           "GIT_COMMITTER_EMAIL=a@b", git)
    repo, clone = fs.path("repo"), fs.path("clone")
    sh(*env, "init", "-q", "-b", "main", repo)
    for i in range(30):
        put(os.path.join(repo, f"f{i}"), data(3000, i))
    put(os.path.join(repo, "big"), data(2 * MIB))
    sh(*env, "-C", repo, "add", ".")
    sh(*env, "-C", repo, "commit", "-qm", "one")
    sh(*env, "clone", "-q", "--no-local", repo, clone)
    for stage in fs.stages():
        for where in (repo, clone):
            sh(*env, "-C", where, "fsck", "--full", "--strict")
            assert sh(*env, "-C", where, "status", "--porcelain") == "", stage
        put(os.path.join(clone, stage), stage.encode())
        sh(*env, "-C", clone, "add", stage)
        sh(*env, "-C", clone, "commit", "-qm", stage)
        sh(*env, "-C", clone, "gc", "-q", "--prune=now")
    sh(*env, "-C", repo, "pull", "-q", clone, "main")
    assert filecmp.cmp(os.path.join(repo, "big"), os.path.join(clone, "big"))


@ck.posix
def sqlite_keeps_a_database(fs):
    for mode in ("delete", "wal", "truncate"):
        path = fs.path(mode + ".db")
        db = sqlite3.connect(path)
        assert db.execute(f"pragma journal_mode={mode}").fetchone() == (mode,)
        db.execute("create table t (k integer primary key, v blob)")
        for i in range(40):
            with db:
                db.executemany("insert into t (v) values (?)",
                               [(data(300, (i, j)),) for j in range(25)])
            if i % 10 == 9:
                with db:
                    db.execute("delete from t where k % 3 = ?", (i // 10 % 3,))
        other = sqlite3.connect(path)  # a second reader while it is open
        rows = other.execute("select k, v from t order by k").fetchall()
        assert rows == db.execute("select k, v from t order by k").fetchall()
        other.close()
        db.close()
        for stage in fs.stages(path):
            db = sqlite3.connect(path)
            assert db.execute("pragma integrity_check").fetchone() == ("ok",)
            again = db.execute("select k, v from t order by k").fetchall()
            assert again == rows, (mode, stage, len(again), len(rows))
            with db:
                db.execute("insert into t (v) values (?)", (stage,))
            rows = db.execute("select k, v from t order by k").fetchall()
            db.close()


@ck.mounted()
def a_committed_transaction_survives_a_power_cut(m):
    def work():
        open_still = []
        for mode in ("delete", "wal"):
            db = sqlite3.connect(m.path(mode + ".db"))
            db.execute(f"pragma journal_mode={mode}")
            db.execute("pragma synchronous=full")
            db.execute("create table t (v blob)")
            for i in range(20):
                with db:
                    db.execute("insert into t values (?)", (data(5000, i),))
            open_still.append(db)
        m.power_cut()
    ck.Child(work).result()
    m.proc.wait(ck.WAIT_BOUND)
    m.proc = None
    m.start()
    for mode in ("delete", "wal"):
        db = sqlite3.connect(m.path(mode + ".db"))
        assert db.execute("pragma integrity_check").fetchone() == ("ok",)
        rows = [row[0] for row in db.execute("select v from t")]
        assert rows == [data(5000, i) for i in range(20)], (mode, len(rows))
        db.close()


@ck.posix
def shell_tools_work_as_everywhere(fs):
    put(fs.path("f"), data(MIB))
    for stage in fs.stages():
        sh("dd", "if=" + fs.path("f"), "of=" + fs.path("dd"), "bs=77777",
           "conv=fsync")
        same(get(fs.path("dd")), data(MIB), stage)
        sh("install", "-m", "0700", fs.path("f"), fs.path("installed"))
        sh("cmp", fs.path("f"), fs.path("installed"))
        sh("truncate", "-s", "5M", fs.path("dd"))
        sh("find", fs.dir, "-type", "f", "-size", "+4M")
        sh("df", fs.dir)
        assert int(sh("du", "-sk", fs.path("f")).split()[0]) >= 1000, stage
        sh("bash", "-c", "echo a > g; echo b >> g; mv g h; cp h i; "
           "test \"$(cat i)\" = $'a\\nb'; rm h i", cwd=fs.dir)


@ck.mounted()
def a_folder_can_be_the_lower_one_of_an_overlay(m):
    """A container's image layers, or a base model below a job's own files."""
    if ck.mount_type(m.base) in ("overlay", "ecryptfs", "fuse"):
        ck.skip("the store lies on a stacked file system")
    os.mkdir(m.path("lower"))
    put(m.path("lower", "small"), data(9))
    put(m.path("lower", "large"), data(3 * MIB))
    folders = {n: os.path.join(m.base, n) for n in ("upper", "work", "all")}
    for folder in folders.values():
        os.mkdir(folder)
    m.flush()
    assert m.status()["passthrough"] == (m.mode != "off")
    sh("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={m.path('lower')}"
       f",upperdir={folders['upper']},workdir={folders['work']}",
       folders["all"])
    try:
        large = os.path.join(folders["all"], "large")
        same(get(large), data(3 * MIB))
        put(large, b"mine", flags=0)
        os.unlink(os.path.join(folders["all"], "small"))
        assert os.listdir(folders["all"]) == ["large"]
        same(get(large), b"mine" + data(3 * MIB)[4:])
    finally:
        sh("umount", folders["all"])
    same(get(m.path("lower", "large")), data(3 * MIB))
    assert get(m.path("lower", "small")) == data(9)


if __name__ == "__main__":
    ck.main()
