"""DIR is a directory like any other: people change it behind ckptfs, and it
may be the wrong one. What they did counts, nothing hangs, and the node keeps
what it cannot put there."""
import errno
import os
import shutil
import stat

import nodes
from nodes import MIB, ck, content, gone, lists, shared, whole
from ckptest import as_user, fails, get, put


@shared()
def what_others_do_to_a_plain_file_is_seen(c):
    for name in ("cut", "more", "mode", "gone", "moved", "new"):
        put(c.a.path(name), content(name, 1, MIB))
    c.settle()
    for name in ("cut", "more", "mode", "gone", "moved", "new"):
        assert whole(get(c.a.path(name))) == (name, 1)
    os.truncate(c.shared("cut"), 10)
    with open(c.shared("more"), "ab") as f:
        f.write(b"more")
    os.chmod(c.shared("mode"), 0o611)
    os.unlink(c.shared("gone"))
    os.rename(c.shared("moved"), c.shared("moved.1"))
    os.unlink(c.shared("new"))
    put(c.shared("new"), content("new", 2, MIB), sync=True)
    for node in (c.a, c.b):
        lists(node.mnt, ["cut", "mode", "more", "moved.1", "new"])
        ck.until("cut", lambda: get(node.path("cut")) ==
                 content("cut", 1, MIB)[:10])
        ck.until("more", lambda: get(node.path("more")) ==
                 content("more", 1, MIB) + b"more")
        ck.until("mode", lambda: stat.S_IMODE(
            os.lstat(node.path("mode")).st_mode) == 0o611)
        assert whole(get(node.path("moved.1"))) == ("moved", 1)
        ck.until("new", lambda: whole(get(node.path("new"))) == ("new", 2))


@shared()
def a_plain_file_overwritten_in_place_is_not_read_from_the_cache(c):
    """As large as it was, and in the same second."""
    put(c.a.path("f"), content("f", 1, MIB))
    c.settle()
    assert whole(get(c.a.path("f"))) == ("f", 1)
    fd = os.open(c.shared("f"), os.O_RDWR)
    os.pwrite(fd, content("f", 2, MIB), 0)
    os.fsync(fd)
    os.close(fd)
    for node in (c.b, c.a):
        ck.until("what was written", lambda: whole(get(node.path("f"))) ==
                 ("f", 2))


def held(c, name, size=MIB):
    """A file that is pending until its descriptor is closed."""
    fd = os.open(c.a.path(name), os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(fd, content(name, 1, size))
    assert c.is_pending(name)
    return fd


@shared()
def a_pending_file_that_is_deleted_stays_deleted(c):
    fd = held(c, "f")
    os.unlink(c.shared("f"))
    os.close(fd)
    put(c.a.path("after"), content("after", 1, MIB))
    c.await_plain("after")
    c.settle()
    gone(c.shared("f"))
    for node in (c.a, c.b):
        lists(node.mnt, ["after"])


@shared()
def a_pending_file_that_is_moved_is_completed_where_it_is(c):
    fd = held(c, "f")
    os.mkdir(c.shared("d"))
    os.rename(c.shared("f"), c.shared("d", "g"))
    os.close(fd)
    c.settle()
    assert whole(get(c.shared("d", "g"))) == ("f", 1)
    for node in (c.a, c.b):
        gone(node.path("f"))
        assert whole(get(node.path("d", "g"))) == ("f", 1)


@shared()
def a_link_to_a_pending_file_is_the_same_file(c):
    fd = held(c, "f")
    os.link(c.shared("f"), c.shared("g"))
    os.close(fd)
    c.settle()
    assert os.path.samefile(c.shared("f"), c.shared("g"))
    for name in "fg":
        for at in (c.shared(name), c.a.path(name), c.b.path(name)):
            assert whole(get(at)) == ("f", 1), at


@shared()
def a_pending_file_whose_mode_is_changed_is_completed(c):
    """By its owner, or root, with chmod: then it is no longer sticky, but it
    is not whole either. The node that has it completes it nevertheless."""
    fd = held(c, "f")
    os.chmod(c.shared("f"), 0o600)
    os.close(fd)
    put(c.a.path("after"), content("after", 1, MIB))
    c.await_plain("after")
    ck.until("it is whole", lambda: get(c.shared("f")) ==
             content("f", 1, MIB))
    assert whole(get(c.b.path("f"))) == ("f", 1)


@shared()
def a_pending_file_that_is_cut_is_completed(c):
    """Or made longer: not a hang, and the bytes that its node has are there
    at the end."""
    fds = [held(c, f"f{n}") for n in range(3)]
    os.truncate(c.shared("f0"), 0)
    os.truncate(c.shared("f1"), 3 * MIB)
    with open(c.shared("f2"), "ab") as f:
        f.write(bytes(5000))
    for n in range(3):
        os.lstat(c.b.path(f"f{n}"))
    for fd in fds:
        os.close(fd)
    c.settle()
    for n in range(3):
        assert whole(get(c.shared(f"f{n}"))) == (f"f{n}", 1)
        assert whole(get(c.b.path(f"f{n}"))) == (f"f{n}", 1)


@shared(options="pending_wait=2")
def a_sticky_file_of_somebody_else_is_no_pending_one(c):
    """No node has it: it is what it is, and no open of it hangs for ever."""
    put(c.shared("f"), content("f", 1, MIB))
    os.chmod(c.shared("f"), 0o1644)
    st = os.lstat(c.a.path("f"))
    assert st.st_size == MIB, st
    got = nodes.within(nodes.FREE_S, "open of a sticky file", lambda:
                       _bytes_or_errno(c.a.path("f")))
    assert got in (content("f", 1, MIB), errno.EIO), got if \
        isinstance(got, int) else got[:20]


def _bytes_or_errno(path):
    try:
        return get(path)
    except OSError as e:
        return e.errno


@shared()
def nobody_but_root_reads_a_pending_file(c):
    os.chmod(c.a.mnt, 0o777)
    fd = held(c, "f")
    fails(errno.EACCES, as_user, lambda: get(c.shared("f")))
    os.close(fd)
    c.settle()
    as_user(lambda: whole(get(c.shared("f"))))


@shared()
def a_folder_that_is_removed_with_pending_files_is_gone(c):
    os.mkdir(c.a.path("d"))
    fds = [held(c, f"d/f{n}") for n in range(5)]
    shutil.rmtree(c.shared("d"))
    for fd in fds:
        os.close(fd)
    put(c.a.path("after"), content("after", 1, MIB))
    c.await_plain("after")
    c.settle()
    for node in (c.a, c.b):
        lists(node.mnt, ["after"])


@shared()
def names_of_255_bytes_go_through(c):
    name = "\u00e4" * 127 + "n"
    assert len(os.fsencode(name)) == 255
    os.mkdir(c.a.path(name))
    put(c.a.path(name, name), content("n", 1, MIB))
    put(c.b.path(name, name[:-1] + "m"), content("m", 1, MIB))
    assert whole(get(c.b.path(name, name))) == ("n", 1)
    c.settle()
    put(c.b.path(name, name), content("n", 2, MIB))
    c.settle()
    assert whole(get(c.a.path(name, name))) == ("n", 2)
    fails(errno.ENAMETOOLONG, os.mkdir, c.a.path(name + "x"))
    # Deep, too: more than a path of PATH_MAX bytes.
    deep = name[:-1] + "d"
    os.mkdir(c.a.path(deep))
    at = os.open(c.a.path(deep), os.O_RDONLY)
    for _ in range(20):
        os.mkdir(name, dir_fd=at)
        below = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    fd = os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=at)
    os.write(fd, content("deep", 1, MIB))
    os.close(fd)
    os.close(at)
    at = os.open(c.b.path(deep), os.O_RDONLY)
    for _ in range(20):
        below = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    fd = os.open("f", os.O_RDONLY, dir_fd=at)
    with open(fd, "rb") as f:
        assert whole(f.read()) == ("deep", 1)
    os.close(at)


@shared()
def a_folder_of_many_files_gets_there(c):
    """5,000 of them; of a real cluster each costs milliseconds of its own."""
    count = 5000 if c.engine.name == "dir" else 500
    os.mkdir(c.a.path("many"))
    for n in range(count):
        put(c.a.path("many", f"f{n}"), b"%d" % n)
    assert len(os.listdir(c.b.path("many"))) == count
    c.settle()
    for n in range(0, count, 97):
        assert get(c.b.path("many", f"f{n}")) == b"%d" % n
        assert get(c.shared("many", f"f{n}")) == b"%d" % n


# --- the wrong directory ---

@shared(names="a", start=False)
def a_directory_without_a_format_is_not_filled(c):
    """The cluster file system is not mounted: what is below stays empty."""
    c.a.leave()
    os.makedirs(c.a.shared)
    c.a.refuse(code=1)
    assert os.listdir(c.a.shared) == [], os.listdir(c.a.shared)
    os.rmdir(c.a.shared)
    c.a.join()
    c.a.expected = []
    c.a.start()
    put(c.a.path("f"), content("f", 1, MIB))
    c.settle()


@shared(names="a", start=False)
def a_directory_that_is_not_there_is_refused(c):
    c.a.refuse(f"shared={c.a.shared}-not", code=1)


@shared(names="a")
def a_store_of_another_directory_is_refused(c):
    put(c.a.path("f"), content("f", 1, MIB))
    c.settle()
    c.a.unmount()
    os.mkdir(c.shared("other"))
    c.ctl("init", "--shared", c.shared("other"))
    c.a.refuse(f"shared={os.path.join(c.a.shared, 'other')}", code=1)
    assert os.listdir(c.shared("other")) == [".ckptfs"]
    # Nor is it mounted alone: its files would be nobody's.
    c.a.options = nodes.STAGE
    c.a.refuse(code=1)


@shared(names="a", start=False)
def a_directory_of_a_newer_format_is_refused(c):
    with open(c.shared(".ckptfs/format"), encoding="ascii") as f:
        text = f.read()
    with open(c.shared(".ckptfs/format"), "w", encoding="ascii") as f:
        f.write(text.replace("format 2", "format 9"))
    c.a.refuse(code=1)
    with open(c.shared(".ckptfs/format"), "w", encoding="ascii") as f:
        f.write(text[:-4] + "0000"[:3] + "\n")
    c.a.refuse(code=1)


@shared(names="a", start=False, engines=("dir",))
def a_directory_that_is_read_only_is_refused(c):
    ck.sh("mount", "-o", "remount,bind,ro", c.a.client)
    c.a.refuse(code=1)


@shared()
def one_name_is_one_node(c):
    twin = nodes.Node(c, "twin", "node=a")
    try:
        said = twin.refuse(code=1)
        assert " a " in said or "'a'" in said, said
    finally:
        twin.stop()
    put(c.a.path("f"), content("f", 1, MIB))
    assert whole(get(c.b.path("f"))) == ("f", 1)


@shared(names="a", engines=("dir",), start=False)
def a_store_is_a_cache_of_what_is_whole(c):
    """Three times what its disk holds is saved, and all of it is there."""
    disk = ck.Disk(c.base, 320 * MIB)
    # It says so, and makes room.
    c.a.expected.append("cannot be made durable: No space left on device")
    c.a.store = os.path.join(disk.path, "store")
    os.mkdir(c.a.store)
    c.a.start()
    for n in range(24):
        put(c.a.path(f"f{n}"), content("f", n, 20 * MIB))
        c.settle()
        ck.until("room for the next", lambda: disk.free() > 28 * MIB)
    for n in range(24):
        assert whole(get(c.a.path(f"f{n}"))) == ("f", n)
        assert whole(get(c.shared(f"f{n}"))) == ("f", n)
    c.a.unmount()
    c.a.fsck("--scrub")
    ck.sh("umount", disk.path)


if __name__ == "__main__":
    nodes.main()
