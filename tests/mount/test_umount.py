"""umount(8) of a mount that root made with the bare command: it asks
umount.fuse.ckptfs, where that is installed, and what it knows of the mount is
gone afterwards, however it was unmounted."""
import fcntl
import os
import re
import shutil
import subprocess

import ckptest as ck
from ckptest import KIB, MIB, data, get, put, same

CLONE_NEWNS = 0x20000
DEPLOY = os.path.join(ck.HERE, "../../deploy")
HELPER = "umount.fuse.ckptfs"


def table(m):
    """What libmount's own table says of this mount."""
    try:
        with open("/run/mount/utab", encoding="utf-8") as f:
            return [line for line in f
                    if re.search(rf" TARGET={re.escape(m.mnt)} ", line)]
    except FileNotFoundError:
        return []


def private_sbin(m, helper=True):
    """A mount namespace of this test's own, in which /sbin has our helper or
    none, and which says in m.asked how it was called."""
    if os.path.realpath("/sbin") not in ("/sbin", "/usr/sbin"):
        ck.skip("/sbin is somewhere else")
    if ck.libc.unshare(CLONE_NEWNS) != 0:
        ck.skip("no mount namespace to be had")
    ck.sh("mount", "--make-rprivate", "/")
    old, new = (os.path.join(m.base, name) for name in ("sbin", "new-sbin"))
    os.mkdir(old)
    os.mkdir(new)
    ck.sh("mount", "--bind", "/sbin", old)
    for name in os.listdir(old):
        os.symlink(os.path.join(old, name), os.path.join(new, name))
    m.asked = os.path.join(m.base, "asked")
    path = os.path.join(new, HELPER)
    if os.path.lexists(path):
        os.unlink(path)
    if helper:
        with open(path, "w", encoding="utf-8") as f:
            f.write(f'#!/bin/sh\necho "$@" >>{m.asked}\n'
                    f"PATH={os.path.dirname(ck.CKPTCTL)}:$PATH\n"
                    f'exec {DEPLOY}/{HELPER} "$@"\n')
        os.chmod(path, 0o755)
    if not os.path.lexists(os.path.join(new, "ckptfs")):
        os.symlink(ck.CKPTFS, os.path.join(new, "ckptfs"))
    ck.sh("mount", "--bind", new, "/sbin")
    os.makedirs("/run/mount", exist_ok=True)
    ck.sh("mount", "-n", "-t", "tmpfs", "ckptest", "/run/mount")


def alone(test):
    """Run the test in a process of its own: there is no way back out of a
    mount namespace."""
    def run(m):
        def body():
            try:
                test(m)
                m.check_log()
            finally:
                m.stop()
        ck.Child(body).result()
    run.__name__ = test.__name__
    return run


def asked(m):
    """How often the helper was, since the last time."""
    try:
        found = get(m.asked).decode().splitlines()
        os.unlink(m.asked)
    except FileNotFoundError:
        return 0
    assert all(m.mnt in line for line in found), found
    return len(found)


def command(m, *options):
    """Mount as people do: the command returns when the mount is there."""
    ck.sh(ck.CKPTFS, "-o", ",".join(("stage_size=1G", *options)), m.store,
          m.mnt)
    pid = int(get(os.path.join(m.store, "lock")).split()[0])
    ck.tell_guard("daemon", pid, m.mnt)
    return pid


def wait_for_end(m):
    with open(os.path.join(m.store, "lock"), "rb") as f:
        fcntl.flock(f, fcntl.LOCK_SH)


@ck.mounted(modes=("auto",), start=False)
@alone
def umount_returns_when_the_daemon_has_ended(m):
    private_sbin(m)
    command(m, "debug_hold_drain")
    assert len(table(m)) == 1, table(m)
    for n in range(20):
        put(m.path(f"f{n}"), data(MIB, n))
    ck.sh("umount", m.mnt)
    with open(os.path.join(m.store, "lock"), "rb") as f:
        fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)  # or it still writes
    assert asked(m) == 1
    assert table(m) == []
    left = [p for p in ck.mounts_under(m.store) if p != m.store]
    assert left == [], left
    command(m)
    for n in range(20):
        same(get(m.path(f"f{n}")), data(MIB, n), f"f{n}")
    ck.sh("umount", m.mnt)
    assert asked(m) == 1


@ck.mounted(modes=("auto",), start=False)
@alone
def nothing_is_left_in_the_table_of_mount_8(m):
    private_sbin(m)
    for end in (lambda pid: ck.umount(m.mnt), lambda pid: os.kill(pid, 15),
                lambda pid: ck.sh("umount", "-i", m.mnt),
                lambda pid: ck.sh("umount", "-l", m.mnt)):
        pid = command(m)
        assert len(table(m)) == 1, table(m)
        end(pid)
        wait_for_end(m)
        assert table(m) == [], table(m)


@ck.mounted(modes=("auto",), start=False)
@alone
def a_dead_daemons_mount_is_taken_away_by_umount(m):
    private_sbin(m)
    os.kill(command(m), 9)
    wait_for_end(m)
    done = subprocess.run([ck.CKPTFS, m.store, m.mnt], capture_output=True,
                          text=True, timeout=ck.WAIT_BOUND, check=False)
    assert done.returncode == 1 and f"umount {m.mnt}" in done.stderr, done
    ck.sh("umount", m.mnt)
    assert asked(m) == 1 and table(m) == []
    command(m)
    ck.sh("umount", m.mnt)
    assert asked(m) == 1 and table(m) == []


@ck.mounted(modes=("auto",), start=False)
@alone
def a_mount_by_mount_8_is_noted_once(m):
    private_sbin(m)
    ck.tool("mount.fuse3")
    for options in ("stage_size=1G", "stage_size=1G,x-note,nofail"):
        ck.sh("mount", "-t", "fuse.ckptfs", "-o", options, m.store, m.mnt)
        pid = int(get(os.path.join(m.store, "lock")).split()[0])
        ck.tell_guard("daemon", pid, m.mnt)
        put(m.path("f"), data(100 * KIB))
        ck.sh("umount", m.mnt)
        assert asked(m) == 1, options
        assert table(m) == [], (options, table(m))


@ck.mounted(modes=("auto",), start=False)
@alone
def without_the_helper_or_the_table_it_mounts_all_the_same(m):
    private_sbin(m, helper=False)
    command(m)
    assert table(m) == [], table(m)
    ck.sh("umount", m.mnt)
    wait_for_end(m)
    ck.sh("mount", "-n", "-o", "remount,ro", "/run/mount")
    shutil.copy(os.path.join(DEPLOY, HELPER), m.base)
    path = os.path.join("/sbin", HELPER)
    os.symlink(os.path.join(m.base, HELPER), path)
    done = subprocess.run([ck.CKPTFS, "-o", "stage_size=1G", m.store, m.mnt],
                          capture_output=True, text=True, check=False,
                          timeout=ck.WAIT_BOUND)
    assert done.returncode == 0, done
    assert "mount:" not in done.stderr, done
    put(m.path("f"), data(MIB))
    ck.umount(m.mnt)
    wait_for_end(m)


@ck.mounted(modes=("auto",), start=False)
def an_installation_has_the_helper_and_the_unit(m):
    cmake = ck.tool("cmake")
    root = os.path.join(m.base, "root")
    done = subprocess.run(
        [cmake, "--install", ck.BUILD, "--prefix", "/usr/local"],
        env=dict(os.environ, DESTDIR=root), capture_output=True, text=True,
        timeout=ck.WAIT_BOUND, check=False)
    assert done.returncode == 0, done
    for name, mode in (("usr/local/bin/ckptfs", 0o755),
                       ("usr/local/bin/ckptctl", 0o755),
                       ("usr/sbin/" + HELPER, 0o755),
                       ("usr/local/lib/systemd/system/ckptfs@.service",
                        0o644)):
        path = os.path.join(root, name)
        assert os.stat(path).st_mode & 0o777 == mode, path
    ck.sh(os.path.join(root, "usr/local/bin/ckptfs"), "--version")


if __name__ == "__main__":
    ck.main()
