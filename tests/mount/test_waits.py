"""What waits for the disk, when the disk does not answer: each wait ends with a
signal, and what need not wait goes on."""
import contextlib
import errno
import os
import select
import signal
import subprocess

import ckptest as ck
from ckptest import MIB, data, get, put, same
from frozen import (Caller, STAGE, call, frozen, images_on_their_own_disk,
                    libc, task_states, unmount)

IOC_FLUSH = 0x6b02  # CKPTFS_IOC_FLUSH


def saved(m, name):
    put(m.path(name), data(3 * MIB, name))
    return m.path(name).encode()


def fsync_file(m):
    fd = os.open(m.path("f"), os.O_RDWR | os.O_CREAT)
    ck.write_all(fd, data(3 * MIB, "f"))
    return lambda: call(libc.fsync, fd)


def close_file(m):
    """Only the copy of the descriptor that the child has is closed."""
    fd = os.open(m.path("c"), os.O_RDWR | os.O_CREAT)
    ck.write_all(fd, data(3 * MIB, "c"))
    return lambda: call(libc.close, fd)


def rename_step(m):
    os.mkdir(m.path("step.tmp"))
    old, new = saved(m, "step.tmp/model.pt"), m.path("step_1").encode()
    return lambda: call(libc.rename, os.path.dirname(old), new)


def rename_step_back(m):
    """Nothing was renamed."""
    assert not os.path.exists(m.path("step_1"))
    same(get(m.path("step.tmp/model.pt")), data(3 * MIB, "step.tmp/model.pt"))


def link_file(m):
    path = saved(m, "l")
    return lambda: call(libc.link, path, path + b"2")


def link_file_back(m):
    assert not os.path.exists(m.path("l2"))


def flush_mount(m):
    """What the helper of umount(8) asks for."""
    saved(m, "g")
    return lambda: call(libc.ioctl, libc.open(m.mnt.encode(), os.O_RDONLY),
                        IOC_FLUSH)


def empty_under_readers(m):
    """Who reads keeps the old file, so that must be durable first."""
    path = saved(m, "r")
    os.open(path, os.O_RDONLY)
    return lambda: call(libc.open, path, os.O_WRONLY | os.O_TRUNC)


def empty_under_readers_back(m):
    same(get(m.path("r")), data(3 * MIB, "r"))


# What waits, with which option.
WAITS = ((fsync_file, ""), (rename_step, ""), (link_file, ""),
         (flush_mount, ""), (empty_under_readers, ""),
         (close_file, "durable=close"))


@ck.mounted(modes=("auto",), start=False)
def each_wait_for_a_frozen_disk_ends_with_a_signal(m):
    disk = images_on_their_own_disk(m)
    for prepare, option in WAITS:
        m.start(STAGE, option)
        fn = prepare(m)
        with frozen(disk):
            caller = Caller(fn)
            caller.end()
            got = caller.result()
            assert got == errno.EINTR, f"{prepare.__name__}: {got}"
            globals().get(prepare.__name__ + "_back", lambda m: 0)(m)
        m.kill()


def rename_waits(m):
    """A rename that waits, and has begun to, for a worker that writes."""
    caller = Caller(rename_step(m))
    ck.until("a worker waits for the disk", lambda: "D" in task_states(m))
    return caller


@ck.mounted(STAGE, modes=("auto",), start=False)
def a_signal_that_ends_nothing_ends_no_wait(m):
    disk = images_on_their_own_disk(m)
    m.start()
    with frozen(disk):
        caller = rename_waits(m)
        caller.nudge(3)
        assert m.status()["draining"] > 0  # the daemon has gone on
    assert caller.result() == 0
    unmount(m)


@ck.mounted(STAGE, modes=("auto",), start=False)
def a_signal_ends_a_wait_after_one_that_does_not(m):
    disk = images_on_their_own_disk(m)
    m.start()
    with frozen(disk):
        caller = rename_waits(m)
        caller.nudge(1)
        caller.end()
        assert caller.result() == errno.EINTR
        rename_step_back(m)
    unmount(m)


@ck.mounted(STAGE, modes=("auto",), start=False)
def who_is_killed_while_it_waits_is_gone(m):
    disk = images_on_their_own_disk(m)
    m.start()
    with frozen(disk):
        caller = rename_waits(m)
        caller.child.kill()
        rename_step_back(m)
    unmount(m)


def drain_stands(m):
    """Somebody waits for all files, and a worker for the disk. No fsync: who
    does that has the file's lock in the kernel."""
    caller = Caller(flush_mount(m))
    ck.until("a worker waits for the disk", lambda: "D" in task_states(m))
    return caller


@ck.mounted(STAGE, modes=("auto",), start=False)
def a_file_whose_drain_stands_is_removed_and_written_anew(m):
    """Neither waits for what the drain has begun."""
    disk = images_on_their_own_disk(m)
    m.start()
    paths = [saved(m, name) for name in ("removed", "anew")]
    with frozen(disk):
        caller = drain_stands(m)
        os.unlink(paths[0])
        assert not os.path.exists(paths[0])
        put(paths[1], b"something else")
        same(get(paths[1]), b"something else")
        caller.end()
        assert caller.result() == errno.EINTR
    m.flush()
    same(get(paths[1]), b"something else")
    unmount(m)


@ck.mounted(STAGE, modes=("auto",), start=False)
def a_truncate_waits_for_one_piece_of_writing_and_can_be_ended(m):
    disk = images_on_their_own_disk(m)
    m.start()
    path = m.path("g").encode()
    with frozen(disk):
        syncer = drain_stands(m)
        caller = Caller(lambda: call(libc.truncate, path, 5))
        caller.end()
        assert caller.result() == errno.EINTR
        same(get(path), data(3 * MIB, "g"))
        syncer.end()
        assert syncer.result() == errno.EINTR
    os.truncate(path, 5)
    unmount(m)
    m.start()
    same(get(path), data(3 * MIB, "g")[:5])
    unmount(m)


@ck.mounted(STAGE, modes=("auto",), start=False)
def while_a_rename_waits_what_the_kernel_knows_of_its_folder_is_there(m):
    """The kernel has the folder's lock, not the daemon: no look-up of a name
    that it does not know, no listing, no new name. All else goes on."""
    disk = images_on_their_own_disk(m)
    m.start()
    os.mkdir(m.path("other"))
    known = saved(m, "known")
    # Held, so that the kernel forgets neither, whatever drops its caches.
    pins = [os.open(path, os.O_PATH) for path in (known, m.path("other"))]
    with frozen(disk):
        caller = rename_waits(m)
        assert os.stat(known).st_size == 3 * MIB
        same(get(known), data(3 * MIB, "known"))
        put(known, b"x", flags=os.O_WRONLY)
        os.utime(known)
        assert os.listdir(m.path("other")) == []
        put(m.path("other", "new"), b"y")
        os.unlink(m.path("other", "new"))
        m.status()
    assert caller.result() == 0
    assert os.path.exists(m.path("step_1"))
    for pin in pins:
        os.close(pin)
    unmount(m)


@ck.mounted(STAGE, modes=("auto",), start=False)
def while_a_rename_waits_listings_and_names_of_its_folder_stand(m):
    """In the kernel, for the folder's lock; each is there when it has ended."""
    disk = images_on_their_own_disk(m)
    m.start()
    for name in ("gone", "linked", "moved"):
        os.stat(saved(m, name))
    put(m.path("unknown"), b"z")
    unmount(m)  # what the kernel knew of names it forgets
    m.start()
    for name in ("gone", "linked", "moved"):
        os.stat(m.path(name))
    with frozen(disk):
        rename = rename_waits(m)
        calls = {
            "a listing": lambda: os.listdir(m.mnt),
            "a new file": lambda: put(m.path("new"), b"n"),
            "a new folder": lambda: os.mkdir(m.path("folder")),
            "a new symbolic link": lambda: os.symlink("x", m.path("s")),
            "a new link": lambda: os.link(m.path("linked"), m.path("l2")),
            "a removal": lambda: os.unlink(m.path("gone")),
            "a rename": lambda: os.rename(m.path("moved"), m.path("m2")),
            "a look-up": lambda: os.stat(m.path("unknown")).st_size,
            "one of what is not there": lambda: os.path.exists(m.path("-"))}
        callers = {what: Caller(fn) for what, fn in calls.items()}
        for what, caller in callers.items():
            ck.until(f"{what} stands", caller.stands)
        assert not rename.is_over() and m.status()["draining"] > 0
    assert rename.result() == 0
    got = {what: caller.result() for what, caller in callers.items()}
    assert got["a look-up"] == 1 and not got["one of what is not there"], got
    names = set(os.listdir(m.mnt))
    assert {"new", "folder", "s", "l2", "m2", "step_1"} <= names, names
    assert not {"gone", "moved", "step.tmp"} & names, names
    unmount(m)


@ck.mounted(STAGE, modes=("auto",), start=False)
def while_a_rename_from_folder_to_folder_waits_others_of_its_kind_stand(m):
    """And its two folders; within another one a rename goes on."""
    disk = images_on_their_own_disk(m)
    m.start()
    for name in "abcde":
        os.mkdir(m.path(name))
    for name in ("c/x", "e/x"):
        put(m.path(name), b"x")
        os.stat(m.path(name))
    os.mkdir(m.path("a/step.tmp"))
    saved(m, "a/step.tmp/model.pt")
    old, new = m.path("a/step.tmp").encode(), m.path("b/step_1").encode()
    with frozen(disk):
        rename = Caller(lambda: call(libc.rename, old, new))
        ck.until("a worker waits for the disk", lambda: "D" in task_states(m))
        callers = [Caller(fn) for fn in (
            lambda: os.listdir(m.path("a")), lambda: os.listdir(m.path("b")),
            lambda: os.rename(m.path("c/x"), m.path("d/x")))]
        for caller in callers:
            ck.until("it stands", caller.stands)
        os.rename(m.path("e/x"), m.path("e/y"))
        assert os.listdir(m.path("e")) == ["y"]
        assert set(os.listdir(m.mnt)) == set("abcde")
        assert not rename.is_over()
    assert rename.result() == 0
    for caller in callers:
        caller.result()
    assert os.listdir(m.path("d")) == ["x"] and os.path.exists(new)
    unmount(m)


def child_of(pid, name):
    """A process of this name that pid started."""
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError), \
                open(f"/proc/{int(entry)}/stat", encoding="utf-8") as f:
            head, _, rest = f.read().rpartition(")")
            if rest.split()[1] == str(pid) and head.endswith(f"({name}"):
                return int(entry)
    return None


@ck.mounted(STAGE, modes=("auto",), start=False)
def who_ends_umounts_helper_ends_the_flush_in_the_daemon(m):
    """A call that the daemon has begun ends only when it answers: the end of
    ckptctl is that of its flush."""
    disk = images_on_their_own_disk(m)
    m.start()
    helper = os.path.join(ck.HERE, "../../deploy/umount.fuse.ckptfs")
    path = os.path.dirname(ck.CKPTCTL) + ":/usr/sbin:/usr/bin:/sbin:/bin"
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        saved(m, number.name)
        with frozen(disk), subprocess.Popen(
                [helper, m.mnt], env={"PATH": path}) as umount:
            ck.until("a worker waits for the disk",
                     lambda: "D" in task_states(m))
            flush = os.pidfd_open(child_of(umount.pid, "ckptctl"))
            umount.send_signal(number)
            assert umount.wait(ck.WAIT_BOUND) == 128 + number
            assert select.select([flush], [], [], ck.WAIT_BOUND)[0], \
                "its flush goes on"
            os.close(flush)
            assert m.mnt in ck.mounts_under(m.mnt)
            put(m.path("as"), b"before")
            assert m.status()["failed"] == 0
    unmount(m)
    m.start()
    same(get(m.path("SIGTERM")), data(3 * MIB, "SIGTERM"))
    unmount(m)


if __name__ == "__main__":
    ck.main()
