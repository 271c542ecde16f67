"""Two nodes make, rename, replace and remove the same names at once.

Of names the whole history is checked: there must be one order of all calls of
both nodes, each between its begin and its end, in which each gives what it
gave. Of bytes each read: whole, of a version that was written, and at the end
the same on both nodes and in DIR.

CKPTFS_TEST_SEED chooses what is done.
"""
import errno
import os
import random
import time

import nodes
from nodes import KIB, ck, content, race, shared, start_line
from ckptest import get, put

SEED = ck.SEED
NAMES = "xyz"


def timed(history, what, fn, *args):
    """One call: (what it is, what it gave, begin, end)."""
    begin = time.monotonic_ns()
    try:
        gave = fn(*args)
    except OSError as e:
        gave = errno.errorcode[e.errno]
    history.append((what, gave, begin, time.monotonic_ns()))
    return gave


# --- names: links, whose targets say which one they are ---

def link_work(node, who, seed, ready, count):
    def work():
        rand = random.Random(f"{seed} {who}")
        history = []
        os.chdir(node.mnt)
        ready(who)
        for n in range(count):
            what = rand.choice(("make", "make", "read", "remove", "rename",
                                "rename", "swap"))
            x, y = rand.sample(NAMES, 2)
            mark = f"{who}.{n}"
            if what == "make":
                timed(history, (what, x, mark), os.symlink, mark, x)
            elif what == "read":
                timed(history, (what, x), os.readlink, x)
            elif what == "remove":
                timed(history, (what, x), os.unlink, x)
            elif what == "rename":
                timed(history, (what, x, y), os.rename, x, y)
            else:
                timed(history, ("keep", x, y), ck.renameat2, x, y,
                      ck.RENAME_NOREPLACE)
        return history
    return work


def apply(state, what):
    """(what the call gives, the state after it); state: name -> mark."""
    kind, x = what[:2]
    has = dict(state)
    if kind == "make":
        if x in has:
            return "EEXIST", state
        has[x] = what[2]
        gave = None
    elif x not in has:
        return "ENOENT", state
    elif kind == "read":
        return has[x], state
    elif kind == "remove":
        del has[x]
        gave = None
    else:
        if kind == "keep" and what[2] in has:
            return "EEXIST", state
        has[what[2]] = has.pop(x)
        gave = None
    return gave, tuple(sorted(has.items()))


def nothing(state, what):
    """A rename of a file onto itself is fine and does nothing, and a kernel
    takes two names for one file when another node renames the first to the
    second between its look-ups: on any file system with several clients."""
    if what[0] in ("rename", "keep") and what[2] in dict(state):
        yield (None if what[0] == "rename" else "EEXIST"), state


def one_order(a, b):
    """Whether both histories are one; else the calls where they part."""
    best, seen = (0, 0, ()), set()
    todo = [(0, 0, ())]
    while todo:
        at = todo.pop()
        if at in seen:
            continue
        seen.add(at)
        i, j, state = at
        if i + j > best[0] + best[1]:
            best = at
        if i == len(a) and j == len(b):
            return None
        for mine, other, step in ((a[i:i + 1], b[j:j + 1], (1, 0)),
                                  (b[j:j + 1], a[i:i + 1], (0, 1))):
            if not mine or other and other[0][3] < mine[0][2]:
                continue  # the other had ended before this one began
            for gave, after in (apply(state, mine[0][0]),
                                *nothing(state, mine[0][0])):
                if gave == mine[0][1]:
                    todo.append((i + step[0], j + step[1], after))
    i, j, state = best
    return f"after {state}: neither {a[i:i + 2]} nor {b[j:j + 2]}"


@shared(engines=("dir",), bare=True)
def names_change_in_one_order_for_both_nodes(c):
    """Not on MooseFS, whose client keeps a name for a second after another
    node has changed it, and answers from that. Not on CephFS, where renames of
    the same names by two clients in user space can wait for each other for
    ever: each holds its folder in the kernel, and its invalidation by the
    other's change waits for that."""
    print(f"# CKPTFS_TEST_SEED={SEED}", flush=True)
    for n in range(5):
        ready = start_line(2)
        a, b = race(*(link_work(node, who, SEED + n, ready, 120)
                      for who, node in enumerate((c.a, c.b))))
        wrong = one_order(a, b)
        assert not wrong, f"seed {SEED + n}: {wrong}"
        for name in NAMES:
            if os.path.lexists(c.shared(name)):
                os.unlink(c.shared(name))
            nodes.gone(c.a.path(name))
            nodes.gone(c.b.path(name))


# --- files ---

def file_work(node, who, seed, ready, count, renames):
    """What each call gave, and every version that was read."""
    def work():
        rand = random.Random(f"{seed} {who}")
        history, read = [], []
        os.chdir(node.mnt)
        ready(who)

        def save(name, version, flags):
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | flags, 0o644)
            try:
                ck.write_all(fd, content("f", version, size))
            finally:
                os.close(fd)

        def replace(name, version):
            save(f"tmp{who}", version, os.O_EXCL)
            os.rename(f"tmp{who}", name)
        for n in range(count):
            what = rand.choice(("make", "replace", "anew", "read", "read",
                                "remove", "rename"))
            x, y = rand.sample(NAMES, 2)
            version = 2 * n + who
            size = rand.choice((100, 5 * KIB, 70 * KIB, 900 * KIB))
            if what == "make":
                timed(history, (what, x, version), save, x, version, os.O_EXCL)
            elif what == "replace":
                timed(history, (what, x, version), replace, x, version)
            elif what == "anew":
                timed(history, (what, x, version), save, x, version,
                      os.O_TRUNC)
            elif what == "read":
                raw = []
                gave = timed(history, (what, x), lambda: raw.append(get(x)))
                if gave is None:
                    read.append((raw[0][:200], len(raw[0]), n) if not raw[0]
                                else nodes.content_of(raw[0]))
            elif what == "remove":
                timed(history, (what, x), os.unlink, x)
            elif renames:
                timed(history, (what, x, y), os.rename, x, y)
        return history, read
    return work


@shared(options="pending_wait=240")
def files_are_whole_whatever_both_nodes_do_with_them(c):
    print(f"# CKPTFS_TEST_SEED={SEED}", flush=True)
    watcher = nodes.watch_plain(c)
    written = set()
    for n in range(3):
        ready = start_line(2)
        renames = c.engine.name != "cephfs"  # see above
        sides = race(*(file_work(node, who, SEED + n, ready, 40, renames)
                       for who, node in enumerate((c.a, c.b))))
        c.settle(f"seed {SEED + n}")
        allowed = {None, "ENOENT", "EEXIST"}
        for history, _ in sides:
            for what, gave, begin, end in history:
                # Who writes to what is pending elsewhere gets EBUSY, and
                # ESTALE when the other node has replaced it twice since.
                busy = {"EBUSY", "ESTALE"} if what[0] == "anew" else set()
                assert gave in allowed | busy, \
                    f"seed {SEED + n}: {what} gave {gave} " \
                    f"after {(end - begin) / 1e9:.1f} s"
                if what[0] in ("make", "replace", "anew"):
                    written.add(what[2])
        for _, read in sides:
            for got in read:
                if len(got) == 4:
                    assert got[0] == "f" and got[1] in written, got
        left = sorted(x for x in os.listdir(c.shared()) if x != ".ckptfs")
        for node in (c.a, c.b):
            nodes.lists(node.mnt, left)
            for x in left:
                ck.same(get(node.path(x)), get(c.shared(x)),
                        f"seed {SEED + n}: {x} on {node.name}")
    watcher.done()


@shared(bare=True)
def a_name_that_is_renamed_over_is_never_missing(c):
    """A tracker: each node replaces it, both look, and there always is one."""
    def saver(node, who, ready):
        def work():
            os.chdir(node.mnt)
            ready(who)
            for n in range(15):
                with open(f"latest.{who}", "w", encoding="ascii") as f:
                    f.write(f"step_{who}_{n}")
                os.rename(f"latest.{who}", "latest")
        return work

    def looker(node, who, ready):
        def work():
            ready(who)
            seen = set()
            for _ in range(30):
                os.lstat(node.path("latest"))
                seen.add(get(node.path("latest")))
            return seen
        return work
    with open(c.a.path("latest"), "w", encoding="ascii") as f:
        f.write("step_0_0")
    c.settle()
    ready = start_line(4)
    _, _, a, b = race(saver(c.a, 0, ready), saver(c.b, 1, ready),
                      looker(c.a, 2, ready), looker(c.b, 3, ready))
    for seen in a | b:
        assert seen.startswith(b"step_"), seen
    c.settle()
    assert get(c.a.path("latest")) == get(c.b.path("latest"))


# --- between a look-up and an open ---

def reopened(fd):
    """The bytes of what was looked up, without another look-up."""
    return get(f"/proc/self/fd/{fd}")


def replace_on(node, name, version):
    put(node.path("tmp"), content("f", version, 70 * KIB))
    os.rename(node.path("tmp"), node.path(name))


@shared(engines=("dir",), bare=True)
def what_was_looked_up_is_opened_though_it_was_replaced(c):
    """As on any local file system it is the file that was found; where an
    engine does not open that any more, the one that is at the name."""
    replace_on(c.b, "f", 0)
    c.settle()
    for n in range(1, 6):
        fd = os.open(c.a.path("f"), os.O_PATH)
        replace_on(c.b, "f", n)
        c.settle()
        assert nodes.whole(reopened(fd)) in (("f", n - 1), ("f", n))
        assert os.fstat(fd).st_size == 70 * KIB
        os.close(fd)


@shared(engines=("dir",), bare=True)
def what_is_open_has_its_attributes_though_it_was_replaced(c):
    replace_on(c.b, "f", 0)
    c.settle()
    with open(c.a.path("f"), "rb") as f:
        was = os.fstat(f.fileno()).st_ino
        for n in range(1, 4):
            replace_on(c.b, "f", n)
            c.settle()
            assert os.fstat(f.fileno()).st_ino == was
        assert nodes.whole(f.read()) == ("f", 0)


@shared(options="pending_wait=240", engines=("dir",))
def who_waits_for_a_file_that_is_replaced_goes_on_with_the_next(c):
    """What replaced it, in DIR, is another file than the one that was asked
    for: nobody completes that one any more."""
    held = []
    for n in range(2):
        held.append(os.open(c.b.path("f"), os.O_CREAT | os.O_WRONLY))
        assert c.is_pending("f")
        fd = os.open(c.a.path("f"), os.O_PATH)
        reader = nodes.Running(lambda fd=fd: reopened(fd))
        node = c.b.name
        ck.until("it is asked for", lambda: os.lstat(
            c.shared(f".ckptfs/nodes/{node}/wanted")).st_mtime_ns >
            os.fstat(held[-1]).st_mtime_ns)
        put(c.shared("tmp"), content("f", n, 70 * KIB))
        os.rename(c.shared("tmp"), c.shared("f"))
        assert nodes.whole(reader.result()) == ("f", n)
        os.close(fd)
        os.unlink(c.a.path("f"))
    for fd in held:
        os.close(fd)


@shared(bare=True)
def folders_move_over_and_into_each_other(c):
    """mkdir, rename and rmdir of the same folders; then both see the same."""
    def work(node, who, ready):
        def run():
            rand = random.Random(f"{SEED} {who}")
            os.chdir(node.mnt)
            ready(who)
            history = []
            for _ in range(40):
                x, y = rand.sample(("p", "q", "p/r", "q/r"), 2)
                what = rand.choice((os.mkdir, os.mkdir, os.rmdir, os.rename))
                args = (x, y) if what is os.rename else (x,)
                timed(history, (what.__name__, *args), what, *args)
            return history
        return run
    print(f"# CKPTFS_TEST_SEED={SEED}", flush=True)
    ready = start_line(2)
    sides = race(work(c.a, 0, ready), work(c.b, 1, ready))
    # ESTALE: the other node has moved the folder twice since.
    allowed = {None, "ENOENT", "EEXIST", "ENOTEMPTY", "EINVAL", "ESTALE"}
    for history in sides:
        for what, gave, *_ in history:
            assert gave in allowed, (what, gave)

    def tree(root):
        return sorted(os.path.relpath(os.path.join(at, d), root)
                      for at, folders, _ in os.walk(root) for d in folders
                      if ".ckptfs" not in os.path.join(at, d))
    want = tree(c.shared())
    for node in (c.a, c.b):
        ck.until("one tree", lambda: tree(node.mnt) == want)


if __name__ == "__main__":
    nodes.main()
