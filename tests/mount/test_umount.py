"""umount(8) of a mount that root made with the bare command: it asks
umount.fuse.ckptfs, where that is installed, and what it knows of the mount is
gone afterwards, however it was unmounted."""
import contextlib
import fcntl
import itertools
import mmap
import os
import re
import select
import shutil
import signal
import socket
import subprocess

import ckptest as ck
from ckptest import KIB, MIB, data, get, put, same

DEPLOY = os.path.join(ck.HERE, "../../deploy")
HELPER = "umount.fuse.ckptfs"
NAME = get("/proc/self/comm").decode().strip()  # of this process


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
    if not ck.copy_mounts():
        ck.skip("no mount namespace to be had")
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
                    f"export PATH={os.path.dirname(ck.CKPTCTL)}:$PATH\n"
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


def refused(m):
    """What umount says that leaves the mount where it is."""
    said = ck.sh("umount", m.mnt, code=32)
    assert m.mnt in ck.mounts_under(m.mnt), said
    assert asked(m) == 1
    return said


@ck.mounted(modes=("auto",), start=False)
@alone
def who_keeps_a_mount_busy_is_named(m):
    private_sbin(m)
    command(m)
    os.mkdir(m.path("d"))
    put(m.path("d", "f*[x]"), data(MIB))
    for use, what in (
            (lambda: os.open(m.path("d", "f*[x]"), os.O_RDONLY),
             f"has open {m.path('d', 'f*[x]')}"),
            (lambda: os.chdir(m.path("d")), f"is in {m.path('d')}"),
            (lambda: mapped(m.path("d", "f*[x]")),
             f"has mapped {m.path('d', 'f*[x]')}")):
        with there(use) as pid:
            said = refused(m)
            assert f"process {pid} ({NAME}) {what}" in said, said
    os.mkdir(m.path("below"))
    ck.sh("mount", "-n", "-t", "tmpfs", "ckptest", m.path("below"))
    said = refused(m)
    assert f"  {m.path('below')}\n" in said and "process" not in said, said
    ck.sh("umount", m.path("below"))
    ck.sh("umount", m.mnt)


def mapped(path):
    fd = os.open(path, os.O_RDONLY)
    kept = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
    os.close(fd)
    return kept


@contextlib.contextmanager
def there(use):
    """A process that keeps what use() returns, as long as this block lasts."""
    ready, come = os.pipe()
    leave, end = os.pipe()

    def run():
        os.close(end)
        kept = use()
        if isinstance(kept, mmap.mmap):  # Python keeps a descriptor beside it
            for fd in os.listdir("/proc/self/fd"):
                with contextlib.suppress(OSError):
                    if "/mnt/" in os.readlink(f"/proc/self/fd/{fd}"):
                        os.close(int(fd))
        os.write(come, b"x")
        os.read(leave, 1)
    child = ck.Child(run)
    os.close(leave)
    assert os.read(ready, 1)
    try:
        yield child.pid
    finally:
        os.close(end)
        child.result()
        os.close(ready)
        os.close(come)


@ck.mounted(modes=("auto",), start=False)
@alone
def a_mount_that_is_busy_with_nobody_there_is_waited_for(m):
    """As a descriptor in a socket is no process's."""
    private_sbin(m)
    command(m)
    put(m.path("f"), data(MIB))
    a, b = socket.socketpair()
    fd = os.open(m.path("f"), os.O_RDONLY)
    socket.send_fds(a, [b"x"], [fd])
    os.close(fd)
    with subprocess.Popen(["umount", m.mnt], stderr=subprocess.PIPE,
                          text=True) as umount:
        said = umount.stderr.readline()
        assert "no process has anything open" in said, said
        assert m.mnt in ck.mounts_under(m.mnt)
        b.close()
        rest = umount.stderr.read()
    assert umount.returncode == 0, rest
    assert ck.mounts_under(m.mnt) == []


@ck.mounted(modes=("auto",), start=False)
@alone
def who_has_the_mount_in_another_namespace_is_named_and_not_waited_for(m):
    private_sbin(m)
    command(m)
    put(m.path("f"), data(MIB))

    def elsewhere():
        assert ck.libc.unshare(ck.CLONE_NEWNS) == 0
        ck.sh("mount", "--make-rprivate", "/")
        return os.open(m.path("f"), os.O_RDONLY)
    with there(elsewhere) as pid:
        said = ck.sh("umount", m.mnt)
        assert asked(m) == 1
        assert "still mounted elsewhere" in said, said
        assert f"process {pid} ({NAME}), at {m.mnt}\n" in said, said
        assert ck.mounts_under(m.mnt) == []
    wait_for_end(m)


@ck.mounted(modes=("auto",), start=False)
@alone
def who_ends_the_helper_ends_what_it_waits_for(m):
    private_sbin(m)
    command(m)
    begun = os.path.join(m.base, "begun")
    os.mkfifo(begun)
    path = os.path.join(m.base, "path")
    os.mkdir(path)
    # What asks whether the daemon answers, and the flush.
    for tool, number in itertools.product(
            ("stat", "ckptctl"),
            (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)):
        with open(os.path.join(path, tool), "w", encoding="utf-8") as f:
            f.write(f"#!/bin/sh\necho $$ $PPID >{begun}\n"
                    "exec sleep 100000\n")
        os.chmod(os.path.join(path, tool), 0o755)
        with subprocess.Popen([os.path.join(DEPLOY, HELPER), m.mnt],
                              env=dict(os.environ,
                                       PATH=path + ":/usr/bin:/bin"),
                              ) as helper:
            with open(begun, encoding="ascii") as f:
                waits, parent = map(int, f.read().split())
            assert parent == helper.pid
            ended = os.pidfd_open(waits)
            helper.send_signal(number)
        assert helper.returncode == 128 + number, (tool, helper)
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        assert poll.poll(ck.WAIT_BOUND * 1000), f"its {tool} goes on"
        os.close(ended)
        os.unlink(os.path.join(path, tool))
    assert m.mnt in ck.mounts_under(m.mnt)
    ck.sh("umount", m.mnt)


def traced(m, calls, *options):
    """The helper under strace, with a flush that never ends. What is read is
    the helper's number, from its flush, and the end when all have gone."""
    ours, theirs = os.pipe()
    path = os.path.join(m.base, "path")
    with open(os.path.join(path, "ckptctl"), "w", encoding="utf-8") as f:
        f.write(f"#!/bin/sh\necho $PPID >/dev/fd/{theirs}\n"
                "exec sleep 100000\n")
    os.chmod(os.path.join(path, "ckptctl"), 0o755)
    helper = subprocess.Popen(
        [ck.tool("strace"), "-qq", "-o", os.path.join(m.base, "calls"),
         "-e", "signal=TERM", "-e", f"trace={calls}", *options,
         os.path.join(DEPLOY, HELPER), m.mnt],
        env=dict(os.environ, PATH=path + ":/usr/bin:/bin"),
        pass_fds=(theirs,), start_new_session=True)
    os.close(theirs)
    return helper, ours


def all_end(helper, ours):
    """The helper's exit code, when no process of it is left."""
    poll = select.poll()
    poll.register(ours, select.POLLIN)
    try:
        while True:
            assert poll.poll(ck.WAIT_BOUND * 1000), "its flush goes on"
            if not os.read(ours, 100):
                return helper.wait(ck.WAIT_BOUND)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(helper.pid, signal.SIGKILL)
        helper.wait()
        os.close(ours)


def calls_until_it_waits(m, calls):
    helper, ours = traced(m, calls)
    shell = int(os.read(ours, 100))
    ck.until("it waits for its flush", lambda: get(
        f"/proc/{shell}/stat").decode().rsplit(")", 1)[1].split()[0] == "S")
    os.kill(shell, signal.SIGTERM)
    assert all_end(helper, ours) == 143
    return get(os.path.join(m.base, "calls")).decode() \
        .partition("--- SIGTERM")[0].count("(")


@ck.mounted(modes=("auto",), start=False)
@alone
def a_signal_as_a_command_starts_ends_the_helper_and_the_command(m):
    """It comes at each fork, the last of which is the flush's, and at each
    change of what a signal does, the last of which is HUP's trap."""
    private_sbin(m)
    command(m)
    os.mkdir(os.path.join(m.base, "path"))
    for calls, name in (("?fork,?vfork,?clone,?clone3", "TERM"),
                        ("rt_sigaction", "HUP")):
        number = calls_until_it_waits(m, calls)
        codes = [all_end(*traced(
            m, calls, "-e", f"inject={calls}:signal={name}:when={n}"))
            for n in range(1, number + 1)]
        signalled = signal.Signals["SIG" + name]
        first = codes.index(128 + signalled)  # once it listens
        assert codes == [-signalled] * first + \
            [128 + signalled] * (number - first), (calls, codes)
    assert m.mnt in ck.mounts_under(m.mnt)
    ck.sh("umount", m.mnt)


@ck.mounted(modes=("auto",), start=False)
@alone
def a_file_that_is_not_durable_is_named_and_the_mount_stays(m):
    private_sbin(m)
    disk = ck.Disk(m.base, 192 * MIB)
    m.store = os.path.join(disk.path, "store")
    os.mkdir(m.store)
    command(m, "debug_hold_drain", "debug_stage=memory", "stage_size=256M")
    put(m.path("rank_0.pt"), data(40 * MIB))
    disk.fill(leave=20 * MIB)
    said = refused(m)
    assert re.search(r"^ +\S*/rank_0\.pt: No space left on device$", said,
                     re.M), said
    assert "stays mounted, not everything is durable" in said, said
    disk.relieve()
    ck.sh("umount", m.mnt)
    command(m)
    same(get(m.path("rank_0.pt")), data(40 * MIB))
    ck.sh("umount", m.mnt)
    ck.umount(disk.path)


def helped(m, *options, code):
    """The helper by itself, which a script may call, and what it says."""
    path = os.path.dirname(ck.CKPTCTL) + ":" + os.environ["PATH"]
    done = subprocess.run([os.path.join(DEPLOY, HELPER), m.mnt, *options],
                          env=dict(os.environ, PATH=path), text=True,
                          capture_output=True, check=False,
                          timeout=2 * ck.WAIT_BOUND)
    assert done.returncode == code, done
    return done.stderr


@ck.mounted("debug_hold_drain,debug_stage=memory,stage_size=256M",
            modes=("auto",), start=False)
def the_helper_exits_32_and_the_mount_stays(m):
    """As it is: what was open is, and more can be written."""
    m.expected.append("cannot be made durable: No space left on device")
    disk = ck.Disk(m.base, 192 * MIB)
    m.store = os.path.join(disk.path, "store")
    os.mkdir(m.store)
    m.start()
    os.mkdir(m.path("below"))
    file = os.open(m.path("f"), os.O_RDWR | os.O_CREAT)

    def refused_with(sentence):
        said = helped(m, code=32)
        assert f"{m.mnt} stays mounted" in said and sentence in said, said
        assert m.mnt in ck.mounts_under(m.mnt)
        assert m.proc.poll() is None
    refused_with(f"has open {m.path('f')}")
    ck.write_all(file, b"x" * 10)
    same(os.pread(file, 10, 0), b"x" * 10)
    os.close(file)  # or it would be in use all the same
    ck.sh("mount", "-n", "-t", "tmpfs", "ckptest", m.path("below"))
    refused_with(m.path("below"))
    ck.umount(m.path("below"))
    put(m.path("rank_0.pt"), data(40 * MIB))
    disk.fill(leave=20 * MIB)
    refused_with("rank_0.pt: No space left on device")
    disk.relieve()
    assert "knows -flnrv" in helped(m, "-x", code=1)
    helped(m, code=0)
    assert m.proc.wait(ck.WAIT_BOUND) == 0
    m.proc = None
    assert "no ckptfs is mounted there" in helped(m, code=32)
    m.start()
    same(get(m.path("rank_0.pt")), data(40 * MIB))
    same(get(m.path("f")), b"x" * 10)
    m.unmount()
    ck.umount(disk.path)


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
                        0o644),
                       ("usr/local/lib/systemd/system-generators/"
                        "ckptfs-generator", 0o755)):
        path = os.path.join(root, name)
        assert os.stat(path).st_mode & 0o777 == mode, path
    ck.sh(os.path.join(root, "usr/local/bin/ckptfs"), "--version")


if __name__ == "__main__":
    ck.main()
