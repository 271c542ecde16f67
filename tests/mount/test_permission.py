"""Another user: what is theirs, what is refused, and with which errno."""
import errno
import os
import stat

import ckptest as ck
from ckptest import KIB, MIB, USER, as_user, data, fails, get, put


def open_dir(fs, mode=0o777):
    """A directory in which an ordinary user may work."""
    os.chmod(fs.dir, mode)


@ck.posix
def new_files_belong_to_their_creator(fs):
    open_dir(fs)

    def work():
        put(fs.path("f"), data(100 * KIB))
        os.mkdir(fs.path("d"))
        os.symlink("x", fs.path("l"))
        os.mkfifo(fs.path("p"))
    as_user(work)
    for stage in fs.stages(fs.path("f")):
        for name in "fdlp":
            st = os.lstat(fs.path(name))
            assert (st.st_uid, st.st_gid) == (USER, USER), (stage, name)


@ck.posix
def a_setgid_directory_gives_its_group(fs):
    os.mkdir(fs.path("team"))
    os.chown(fs.path("team"), 0, 4242)
    os.chmod(fs.path("team"), 0o2777)

    def work():
        put(fs.path("team", "f"), b"x")
        os.mkdir(fs.path("team", "sub"))
        put(fs.path("team", "sub", "g"), b"x")
    as_user(work)
    for stage in fs.stages():
        for name in ("f", "sub", "sub/g"):
            st = os.stat(fs.path("team", name))
            assert (st.st_uid, st.st_gid) == (USER, 4242), (stage, name)
        assert os.stat(fs.path("team/sub")).st_mode & stat.S_ISGID, stage
        assert not os.stat(fs.path("team/f")).st_mode & stat.S_ISGID, stage


@ck.posix
def what_the_mode_forbids_is_refused(fs):
    open_dir(fs, 0o755)
    put(fs.path("secret"), data(50 * KIB), mode=0o600)
    put(fs.path("shown"), data(50 * KIB), mode=0o644)
    os.mkdir(fs.path("closed"), 0o700)
    put(fs.path("closed", "f"), b"")
    os.mkdir(fs.path("unlisted"), 0o711)
    put(fs.path("unlisted", "f"), b"1")

    def work():
        ro, wo = os.O_RDONLY, os.O_WRONLY
        for fn, *args in (
                (os.open, "secret", ro), (os.open, "shown", wo),
                (os.open, "shown", wo | os.O_TRUNC), (os.stat, "closed/f"),
                (os.open, "closed/f", ro), (os.listdir, "closed"),
                (os.listdir, "unlisted"), (os.truncate, "shown", 0),
                (os.unlink, "shown"), (os.mkdir, "new"),
                (os.open, "new", wo | os.O_CREAT), (os.rmdir, "closed"),
                (os.rename, "shown", fs.path("new")),
                (os.symlink, "x", fs.path("new"))):
            if fn is os.symlink:
                fails(errno.EACCES, fn, *args)
            else:
                fails(errno.EACCES, fn, fs.path(args[0]), *args[1:])
        for fn, *args in ((os.chmod, 0o777), (os.chown, USER, USER),
                          (os.utime, (1, 1))):
            fails(errno.EPERM, fn, fs.path("shown"), *args)
        fails(errno.EACCES, os.utime, fs.path("shown"))
        assert not os.access(fs.path("secret"), os.R_OK)
        assert os.access(fs.path("shown"), os.R_OK)
        assert get(fs.path("unlisted", "f")) == b"1"
        assert get(fs.path("shown")) == data(50 * KIB)
    for _ in fs.stages():
        as_user(work)


@ck.posix
def a_sticky_directory_protects_the_files_of_others(fs):
    open_dir(fs, 0o1777)
    put(fs.path("root"), b"root", mode=0o666)
    as_user(lambda: put(fs.path("mine"), b"mine"))

    def work():
        fails(errno.EPERM, os.unlink, fs.path("root"))
        fails(errno.EPERM, os.rename, fs.path("root"), fs.path("x"))
        fails(errno.EPERM, os.rename, fs.path("mine"), fs.path("root"))
        os.rename(fs.path("mine"), fs.path("still mine"))
        os.unlink(fs.path("still mine"))
    as_user(work)
    assert os.listdir(fs.dir) == ["root"]


@ck.posix
def a_supplementary_group_counts(fs):
    open_dir(fs, 0o755)
    put(fs.path("f"), b"group", mode=0o640)
    os.chown(fs.path("f"), 0, 4242)
    assert as_user(lambda: get(fs.path("f")), groups=[4242]) == b"group"
    try:
        as_user(lambda: get(fs.path("f")))
        raise AssertionError("read without the group")
    except PermissionError:
        pass


@ck.posix
def a_handle_keeps_the_rights_it_was_opened_with(fs):
    """git creates its objects read-only and writes them all the same."""
    open_dir(fs)

    def work():
        path = fs.path("object")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o400)
        ck.write_all(fd, data(MIB))
        os.fchmod(fd, 0o000)
        os.ftruncate(fd, MIB - 1)
        os.fsync(fd)
        assert os.pread(fd, 10, 0) == data(MIB)[:10]
        os.close(fd)
        fails(errno.EACCES, os.open, path, os.O_RDONLY)
    as_user(work)
    for stage in fs.stages():
        assert os.stat(fs.path("object")).st_size == MIB - 1, stage


@ck.posix
def writing_or_giving_away_clears_suid_and_sgid(fs):
    open_dir(fs)

    def made(name, size):
        put(fs.path(name), data(size))
        os.chmod(fs.path(name), 0o6777)
        os.chown(fs.path(name), USER, USER)
        os.chmod(fs.path(name), 0o6777)

    def mode(name):
        return stat.S_IMODE(os.stat(fs.path(name)).st_mode)
    for size in (100, 100 * KIB):
        for how in ("write", "truncate", "o_trunc", "chown"):
            made(how, size)
            fs.flush(fs.path(how))

        def work():
            with open(fs.path("write"), "r+b") as f:
                f.write(b"x")
            os.truncate(fs.path("truncate"), 1)
            put(fs.path("o_trunc"), b"new")
            os.chown(fs.path("chown"), -1, USER)
        as_user(work)
        for stage in fs.stages():
            for how in ("write", "truncate", "o_trunc", "chown"):
                assert mode(how) == 0o777, (stage, how, oct(mode(how)))


@ck.posix
def a_new_owner_takes_suid_and_sgid_of_all_but_directories(fs):
    open_dir(fs)
    makers = {"file": lambda p: put(p, b"x"), "fifo": os.mkfifo,
              "socket": lambda p: os.mknod(p, stat.S_IFSOCK | 0o600),
              "device": lambda p: os.mknod(p, stat.S_IFCHR | 0o600,
                                           os.makedev(1, 3)),
              "dir": os.mkdir}
    # The setgid bit of what a group cannot execute means something else: it
    # stays for who is of the group.
    for mode, in_group, other in ((0o6777, 0o777, 0o777),
                                  (0o6767, 0o2767, 0o767),
                                  (0o2700, 0o2700, 0o700),
                                  (0o4700, 0o700, 0o700)):
        for groups, want in (([USER, 4242], in_group), ([4242], other)):
            for uid, gid in ((-1, -1), (-1, 4242), (USER, -1)):
                for kind, make in makers.items():
                    path = fs.path("x")
                    make(path)
                    os.chown(path, USER, USER)
                    os.chmod(path, mode)

                    def work():
                        os.setresgid(groups[0], groups[0], groups[0])
                        os.setresuid(USER, USER, USER)
                        os.chown(path, uid, gid)
                    ck.Child(lambda: (os.setgroups(groups), work())).result()
                    got = stat.S_IMODE(os.stat(path).st_mode)
                    assert got == (mode if kind == "dir" else want), \
                        (kind, oct(mode), groups, uid, gid, oct(got))
                    (os.rmdir if kind == "dir" else os.unlink)(path)


@ck.posix
def an_owner_may_change_what_is_theirs(fs):
    open_dir(fs)

    def work():
        path = fs.path("f")
        put(path, b"x")
        os.chmod(path, 0o200)
        fails(errno.EACCES, os.open, path, os.O_RDONLY)
        os.utime(path, ns=(10**18, 10**18))
        fails(errno.EPERM, os.chown, path, 0, -1)
        fails(errno.EPERM, os.chown, path, -1, 4242)
    as_user(work)
    st = os.stat(fs.path("f"))
    assert (st.st_mtime_ns, stat.S_IMODE(st.st_mode)) == (10**18, 0o200)
    assert get(fs.path("f")) == b"x"  # root may read it all the same


if __name__ == "__main__":
    ck.main()
