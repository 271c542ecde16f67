"""What the names of many nodes are made of: the calls that they rely on, from
two clients of one directory, without ckptfs.

Each test is one thing that a file system has to do, or it is no place for DIR.
The names are those of .ckptfs, so that a test reads as the protocol does: a
pending file is linked in the folder of its node, by its inode number; a file
that is to replace another one is a ticket (replace_model.py).

What a client may see late, since it remembers attributes for a while, is waited
for; names must be seen at once.
"""
import errno
import os
import stat

import nodes
from nodes import KIB, MIB, ck, content, race, shared, start_line, within
from ckptest import get, put, same

OWN = "nodes/a/own"
NAMES = 10  # that are raced for; a CephFS needs seconds for some
TRIES = 60  # until each of two has lost a race; no test fails when one has not


def primitive(fn):
    """On two clients; no daemon is started, so that it is the same `--bare`."""
    return shared(bare=True, start=False)(fn)


def paths(c, *folders):
    """The directory as each client has it; with these folders in it."""
    for folder in folders:
        os.makedirs(os.path.join(c.a.shared, folder))
    return c.a.shared, c.b.shared


def pending(path, text=b""):
    """A new file that nobody may read."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, nodes.PENDING)
    os.write(fd, text)
    return fd


def own(root, name):
    """A pending file with its link; its inode number."""
    fd = pending(os.path.join(root, name))
    number = os.fstat(fd).st_ino
    os.close(fd)
    os.link(os.path.join(root, name), os.path.join(root, OWN, str(number)))
    return number


def mode(path):
    return stat.S_IMODE(os.lstat(path).st_mode)


def no_error(fn, *args):
    """Whether it came in time; another client was quicker if not."""
    try:
        fn(*args)
    except (FileNotFoundError, FileExistsError):
        return False
    return True


def both(of_a, of_b, count=NAMES):
    """Each client does its calls, each with the other's at the same moment;
    who came in time."""
    starts = [start_line(2) for _ in range(count)]

    def work(who, calls):
        def run():
            won = []
            for start, call in zip(starts, calls):
                start(who)
                won.append(no_error(*call))
            return won
        return run
    return race(work(0, [of_a(i) for i in range(count)]),
                work(1, [of_b(i) for i in range(count)]))


# --- a pending file and its link ---

@primitive
def a_file_that_nobody_may_read_gets_a_second_name(c):
    a, b = paths(c, OWN)
    number = own(a, "f")
    for root in (a, b):
        for name in ("f", f"{OWN}/{number}"):
            at = os.lstat(os.path.join(root, name))
            assert stat.S_ISREG(at.st_mode)
            same(stat.S_IMODE(at.st_mode), nodes.PENDING, name)
            same((at.st_nlink, at.st_ino), (2, number), name)


@primitive
def a_user_completes_what_nobody_may_read(c):
    """A store may be a user's own, and then DIR is that user's. Who starts
    again has no descriptor: it may read the file when it is sticky still."""
    a, b = paths(c, OWN)
    for path in (a, os.path.join(a, OWN)):
        os.chmod(path, 0o777)
    number = ck.as_user(lambda: own(a, "f"))

    def complete():
        link = os.path.join(a, OWN, str(number))
        os.chmod(link, nodes.PENDING | 0o600)
        fd = os.open(link, os.O_RDWR)
        os.write(fd, b"bytes")
        os.fsync(fd)
        os.fchmod(fd, 0o640)
        os.close(fd)
    ck.as_user(complete)
    ck.until("its mode is seen", lambda: mode(os.path.join(b, "f")) == 0o640)
    same(get(os.path.join(b, "f")), b"bytes")


@primitive
def a_folder_lists_the_inode_numbers_of_its_files(c):
    a, b = paths(c, OWN)
    numbers = {own(a, f"f{i}") for i in range(5)}
    for root in (a, b):
        with os.scandir(os.path.join(root, OWN)) as listed:
            same({(e.name, e.inode()) for e in listed},
                 {(str(n), n) for n in numbers}, root)


@primitive
def it_is_completed_by_its_link_wherever_its_name_has_gone(c):
    a, b = paths(c, OWN, "there")
    number, raw = own(a, "f"), content("f", 1, 300 * KIB)
    os.rename(os.path.join(b, "f"), os.path.join(b, "there/g"))
    os.rename(os.path.join(b, "there"), os.path.join(b, "elsewhere"))
    link = os.path.join(a, OWN, str(number))
    fd = os.open(link, os.O_RDWR)
    os.write(fd, raw)
    os.fsync(fd)
    os.utime(fd, (10 ** 9, 10 ** 9))
    os.fchmod(fd, 0o644)
    os.fsync(fd)
    os.close(fd)
    os.unlink(link)
    there = os.path.join(b, "elsewhere/g")

    def is_whole():
        at = os.lstat(there)
        return (stat.S_IMODE(at.st_mode), at.st_size, at.st_nlink,
                at.st_mtime_ns) == (0o644, len(raw), 1, 10 ** 18)
    ck.until("the other client sees all of it", is_whole)
    same(get(there), raw)


@primitive
def who_owns_it_sees_that_its_name_is_gone(c):
    a, b = paths(c, OWN)
    number = own(a, "f")
    os.unlink(os.path.join(b, "f"))
    fd = os.open(os.path.join(a, OWN, str(number)), os.O_RDWR)
    ck.until("one name is left", lambda: os.fstat(fd).st_nlink == 1)
    os.close(fd)
    assert not os.path.lexists(os.path.join(a, "f"))


@primitive
def a_rename_of_one_of_two_names_leaves_the_other(c):
    a, b = paths(c, OWN)
    number = own(a, "f")
    put(os.path.join(a, "g"), b"old")
    os.rename(os.path.join(b, "f"), os.path.join(b, "g"))
    for root in (a, b):
        assert not os.path.lexists(os.path.join(root, "f"))
        same(os.lstat(os.path.join(root, "g")).st_ino, number)
        same(os.lstat(os.path.join(root, OWN, str(number))).st_ino, number)


@primitive
def a_rename_of_a_name_over_another_of_its_file_does_nothing(c):
    """As POSIX says: both stay, and who completes removes one."""
    a, b = paths(c)
    put(os.path.join(a, "f"), b"bytes")
    os.link(os.path.join(a, "f"), os.path.join(a, "g"))
    os.rename(os.path.join(a, "f"), os.path.join(a, "g"))
    for root in (a, b):
        same(os.lstat(os.path.join(root, "f")).st_ino,
             os.lstat(os.path.join(root, "g")).st_ino)


@primitive
def a_node_is_forgotten_by_one_rename(c):
    a, b = paths(c, OWN, "lost")
    numbers = [own(a, f"f{i}") for i in range(5)]
    os.rename(os.path.join(b, "nodes/a"), os.path.join(b, "lost/a.uuid"))
    for root in (a, b):
        same(sorted(os.listdir(os.path.join(root, "lost/a.uuid/own"))),
             sorted(map(str, numbers)))
        same(os.lstat(os.path.join(root, "f0")).st_nlink, 2)
        assert not os.path.lexists(os.path.join(root, "nodes/a"))


# --- who is first ---

@primitive
def of_two_who_make_a_name_one_does(c):
    a, b = paths(c)
    for root, node in ((a, "a"), (b, "b")):
        put(os.path.join(root, node), node.encode())

    def make(path):
        os.close(pending(path))

    def link(path):
        os.link(os.path.join(os.path.dirname(path),
                             "a" if path.startswith(a) else "b"), path)
    for what, fn in (("file", make), ("link", link), ("folder", os.mkdir)):
        won = both(lambda i, w=what, f=fn: (f, os.path.join(a, f"{w}{i}")),
                   lambda i, w=what, f=fn: (f, os.path.join(b, f"{w}{i}")))
        for i, pair in enumerate(zip(*won)):
            assert sum(pair) == 1, f"{what} {i} was made by {pair}"


# --- tickets ---

@primitive
def a_ticket_is_listed_by_the_other_client_at_once(c):
    a, b = paths(c, "next")
    for i in range(NAMES):
        os.close(pending(os.path.join(a, f"next/{i}.a.1")))
        assert f"{i}.a.1" in os.listdir(os.path.join(b, "next"))
        os.rename(os.path.join(a, f"next/{i}.a.1"),
                  os.path.join(a, f"next/{i}.a.1!"))
        listed = os.listdir(os.path.join(b, "next"))
        assert f"{i}.a.1!" in listed and f"{i}.a.1" not in listed, listed


@primitive
def a_ticket_is_taken_or_revoked(c):
    a, b = paths(c, "next")
    for i in range(NAMES):
        os.close(pending(os.path.join(a, f"next/{i}")))
    took, revoked = both(
        lambda i: (os.rename, os.path.join(a, f"next/{i}"),
                   os.path.join(a, f"next/{i}!")),
        lambda i: (os.unlink, os.path.join(b, f"next/{i}")))
    for i, pair in enumerate(zip(took, revoked)):
        assert sum(pair) == 1, f"ticket {i}: {pair}"
    for root in (a, b):
        same(sorted(os.listdir(os.path.join(root, "next"))),
             sorted(f"{i}!" for i in range(NAMES) if took[i]), root)


@primitive
def who_came_too_late_for_a_ticket_goes_on(c):
    """A client may not get over a rename that failed. Nobody looks up again
    what that was to make; all else goes on, at each client: the name that is
    to be replaced, too, whether there was one or not."""
    a, b = paths(c, "next", "names")
    late = {a: [], b: []}  # the names that each was too late for

    def race_for(i):
        if i % 2:
            put(os.path.join(a, f"names/{i}"), b"old")
        os.close(pending(os.path.join(a, f"next/{i}"), b"new"))
        took, revoked = both(
            lambda _: (os.rename, os.path.join(a, f"next/{i}"),
                       os.path.join(a, f"next/{i}!")),
            lambda _: (os.unlink, os.path.join(b, f"next/{i}")), 1)
        assert took[0] != revoked[0], f"ticket {i}: {took}, {revoked}"
        if took[0]:
            os.rename(os.path.join(a, f"next/{i}!"),
                      os.path.join(a, f"names/{i}"))
        late[b if took[0] else a].append(i)
    for i in range(TRIES):
        if min(len(late[a]), len(late[b])) < 2:
            race_for(i)

    def replace():
        for i in late[a] + late[b]:
            os.close(pending(os.path.join(b, "next/newer"), b"newer"))
            os.rename(os.path.join(b, "next/newer"),
                      os.path.join(b, f"names/{i}"))

    def use(root):
        os.close(pending(os.path.join(root, "next/made")))
        os.unlink(os.path.join(root, "next/made"))
        same(os.listdir(os.path.join(root, "next")), [])
        for i in late[a] + late[b]:
            os.path.lexists(os.path.join(root, f"names/{i}"))

    def read(root):
        for i in late[a] + late[b]:
            same(get(os.path.join(root, f"names/{i}")), b"newer", str(i))
    for what, fn in (("used", lambda: use(a)), ("used", lambda: use(b)),
                     ("replaced", replace), ("read", lambda: read(a)),
                     ("read", lambda: read(b))):
        within(ck.WAIT_BOUND, f"all names are {what}", fn)


@primitive
def a_folder_that_was_not_there_is_listed_at_once(c):
    """Who looks for tickets mostly finds no folder of them, and remembers it."""
    a, b = paths(c)
    for i in range(5):
        folder = os.path.join(b, f"next{i}")
        assert not os.path.lexists(folder)
        os.mkdir(os.path.join(a, f"next{i}"))
        os.close(pending(os.path.join(a, f"next{i}/1.a.1")))
        same(os.listdir(folder), ["1.a.1"])


@primitive
def of_a_few_tickets_none_is_missed_while_they_are_taken(c):
    """A folder with thousands of names is read in pieces, and a name that is
    renamed meanwhile may be in none; these are as many as there ever are."""
    a, b = paths(c, "next")
    names = [f"{i}.a.1" for i in range(NAMES)]
    for name in names:
        os.close(pending(os.path.join(a, "next", name)))

    def take():
        for name in names:
            os.rename(os.path.join(a, "next", name),
                      os.path.join(a, "next", name + "!"))
    taker = ck.Child(take)
    taken = set()
    while len(taken) < NAMES:
        listed = set(os.listdir(os.path.join(b, "next")))
        for name in names:
            assert name in listed or name + "!" in listed, name
        taken = {name for name in names if name not in listed}
    taker.result()


@primitive
def who_has_a_file_open_reads_it_on_when_it_is_replaced(c):
    a, b = paths(c, "next")
    old, new = content("f", 1, 24 * MIB), content("f", 2, 700 * KIB)
    put(os.path.join(a, "f"), old)
    put(os.path.join(a, "next/1.a.1!"), new)
    with open(os.path.join(b, "f"), "rb", buffering=0) as f:
        same(f.read(8 * KIB), old[:8 * KIB])
        os.rename(os.path.join(a, "next/1.a.1!"), os.path.join(a, "f"))
        same(f.readall(), old[8 * KIB:], "what was opened before")
    ck.until("the new one is seen", lambda: get(os.path.join(b, "f")) == new)


# --- folders ---

@primitive
def a_descriptor_of_a_folder_outlasts_the_renames_of_others(c):
    a, b = paths(c, "x/y")
    fd = os.open(os.path.join(a, "x/y"), os.O_RDONLY | os.O_DIRECTORY)
    os.rename(os.path.join(b, "x"), os.path.join(b, "z"))
    os.close(os.open("f", os.O_WRONLY | os.O_CREAT | os.O_EXCL, dir_fd=fd))
    assert os.path.lexists(os.path.join(b, "z/y/f"))
    assert os.path.lexists(os.path.join(a, "z/y/f"))
    os.close(fd)


@primitive
def of_a_folders_removal_and_a_new_name_in_it_one_comes(c):
    """The last ticket goes, and its folder with it, while one more is made."""
    a, b = paths(c)
    for i in range(NAMES):
        os.mkdir(os.path.join(a, f"next{i}"))

    def remove(path):
        try:
            os.rmdir(path)
        except OSError as e:
            if e.errno != errno.ENOTEMPTY:
                raise
            raise FileExistsError from None

    def make(path):
        try:
            os.close(pending(path))
        except OSError as e:
            if e.errno != errno.ESTALE:
                raise
            raise FileNotFoundError from None
    removed, made = both(
        lambda i: (remove, os.path.join(a, f"next{i}")),
        lambda i: (make, os.path.join(b, f"next{i}/1.b.1")))
    for i in range(NAMES):
        assert removed[i] != made[i], f"folder {i}: both, or none"
        for root in (a, b):
            same(os.path.lexists(os.path.join(root, f"next{i}/1.b.1")),
                 made[i], root)


# --- a client that is shut out ---

@shared(bare=True, start=False, engines=("cephfs",))
def a_client_that_was_evicted_says_so(c):
    """It does not hang, and the next client of its node has all names."""
    a, _ = paths(c, OWN)
    number = own(a, "f")
    folder = os.open(a, os.O_RDONLY | os.O_DIRECTORY)
    c.engine.call("evict", c.a.client)

    shut_out = {errno.ESHUTDOWN, errno.ENOTCONN}

    def error_of(fn):
        try:
            fn()
        except OSError as e:
            return e.errno
        return 0

    def is_shut_out():
        """Of what it has, ceph-fuse says ENOENT as if it were removed; so it is
        by a look-up or a create that one is to know."""
        of_names = {error_of(fn) for fn in (
            lambda: os.stat("f", dir_fd=folder),
            lambda: os.mkdir("g", dir_fd=folder),
            lambda: os.close(os.open("h", os.O_WRONLY | os.O_CREAT,
                                     dir_fd=folder)))}
        of_folder = {error_of(fn) for fn in (
            lambda: os.fstat(folder), lambda: os.listdir(folder))}
        return of_names <= shut_out and \
            of_folder <= shut_out | {errno.ENOENT}
    ck.until("each call fails", lambda: ck.Child(is_shut_out).result())
    os.close(folder)
    c.engine.call("lose", c.a.client)
    c.a.join()
    same(os.listdir(os.path.join(c.a.shared, OWN)), [str(number)])


if __name__ == "__main__":
    nodes.main()
