"""Mounted by an ordinary user: no passthrough, no private tmpfs, the same
files. The mount goes through fusermount3, as it does on any desktop."""
import errno
import os
import re
import select
import socket
import stat
import subprocess

import ckptest as ck
from ckptest import KIB, MIB, USER, as_user, data, fails, get, put, same


def open_device(m):
    """Where only root may open /dev/fuse, give this process tree one that
    everybody may, in a mount namespace of its own."""
    if os.stat("/dev/fuse").st_mode & 0o006 == 0o006:
        return
    if not ck.copy_mounts():
        ck.skip("/dev/fuse is for root only, and no mount namespace to be had")
    node = os.path.join(m.base, "fuse")
    old = os.umask(0)
    os.mknod(node, stat.S_IFCHR | 0o666, os.stat("/dev/fuse").st_rdev)
    os.umask(old)
    ck.sh("mount", "--bind", node, "/dev/fuse")


def need_fusermount(m):
    """fusermount3 is setuid, but a container may keep it from mounting."""
    ck.tool("fusermount3")
    open_device(m)
    probe = os.path.join(m.base, "probe")
    os.mkdir(probe)
    os.chown(probe, USER, USER)

    def mount():
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        env = dict(os.environ, _FUSE_COMMFD=str(theirs.fileno()))
        done = subprocess.run(["fusermount3", "--", probe], env=env,
                              pass_fds=[theirs.fileno()], check=False,
                              capture_output=True, text=True, cwd=probe,
                              timeout=ck.WAIT_BOUND)
        subprocess.run(["fusermount3", "-u", "-q", "-z", probe], check=False,
                       cwd="/", timeout=ck.WAIT_BOUND)
        ours.close()
        return done.returncode, done.stderr
    code, why = as_user(mount)
    if code:
        ck.skip(f"fusermount3 cannot mount here: {why.strip()}")


def start_as_user(m):
    need_fusermount(m)
    m.uid = USER
    for path in (m.store, m.mnt):
        os.chown(path, USER, USER)
    return m.start()


def unmount_as_user(m):
    as_user(lambda: ck.sh("fusermount3", "-u", m.mnt, cwd="/"))
    code = m.proc.wait(ck.WAIT_BOUND)
    m.proc = None
    assert code == 0, code


@ck.mounted(modes=("off",), start=False)
def an_ordinary_user_saves_and_finds_it_again(m):
    m.mode = "auto"  # it must find out by itself
    start_as_user(m)

    def save():
        assert m.status()["passthrough"] is False
        os.mkdir(m.path("d"))
        for size in (0, 100, 100 * KIB, 5 * MIB):
            put(m.path("d", f"f{size}"), data(size))
        os.rename(m.path("d"), m.path("e"))
        m.flush()
        assert m.state(m.path("e", f"f{MIB * 5}")) == "durable"
        return os.stat(m.path("e")).st_uid
    assert as_user(save) == USER
    unmount_as_user(m)
    m.start()

    def check():
        for size in (0, 100, 100 * KIB, 5 * MIB):
            same(get(m.path("e", f"f{size}")), data(size), f"{size}")
    as_user(check)
    unmount_as_user(m)


@ck.mounted(modes=("off",), start=False)
def kill_9_loses_nothing_of_an_ordinary_user(m):
    start_as_user(m)
    as_user(lambda: put(m.path("f"), data(5 * MIB)))
    m.kill()
    m.start()
    as_user(lambda: same(get(m.path("f")), data(5 * MIB), "f"))
    unmount_as_user(m)


@ck.mounted(modes=("off",), start=False)
def a_users_store_may_be_called_anything(m):
    m.store = os.path.join(m.base, "a, b\\c\\040")
    os.mkdir(m.store)
    start_as_user(m)
    assert as_user(lambda: m.status()["store"]) == m.store
    with open("/proc/self/mounts", encoding="utf-8") as f:
        assert any(line.split()[1] == m.mnt and
                   line.startswith(m.store.replace("\\", "\\134")
                                   .replace(" ", "\\040") + " ")
                   for line in f)
    unmount_as_user(m)


@ck.mounted(modes=("off",), start=False)
def that_there_is_no_passthrough_is_said_before_the_command_returns(m):
    """A daemon in the background has let go of the terminal by then."""
    need_fusermount(m)
    for path in (m.store, m.mnt):
        os.chown(path, USER, USER)
    as_user(lambda: ck.sh(ck.CKPTCTL, "init", m.store))

    def mount(*options):
        done = as_user(lambda: subprocess.run(
            [ck.CKPTFS, *options, m.store, m.mnt], capture_output=True,
            text=True, timeout=ck.WAIT_BOUND, check=False))
        assert done.returncode == 0, done
        pid = int(get(os.path.join(m.store, "lock")).split()[0])
        ck.tell_guard("daemon", pid, m.mnt)
        ended = os.pidfd_open(pid)
        assert ck.mounts_under(m.mnt) == [m.mnt]
        ck.umount(m.mnt)
        assert select.select([ended], [], [], ck.WAIT_BOUND)[0], "no end"
        os.close(ended)
        return done.stderr
    assert re.fullmatch(rf"ckptfs: WARNING: {m.mnt}: no kernel passthrough "
                        r"\(it needs root\)[^\n]*\n", said := mount()), said
    assert mount("-o", "passthrough=off") == "", "that is what was asked for"


@ck.mounted(modes=("off",), start=False)
def root_sees_nothing_of_a_users_private_mount(m):
    start_as_user(m)
    fails(errno.EACCES, os.listdir, m.mnt)
    unmount_as_user(m)


if __name__ == "__main__":
    ck.main()
