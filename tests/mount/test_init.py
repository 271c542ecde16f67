"""A store is made by `ckptctl init`, or by a mount of an empty directory, which
says so. With create=no a mount makes none: the directory below a disk that is
not mounted looks like a new one."""
import ctypes
import json
import os
import signal
import subprocess

import ckptest as ck
from ckptest import KIB, data, get, put, same

NEW = "was empty, and is a new store now"
PTRACE_TRACEME, PTRACE_SYSCALL = 0, 24
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p,
                        ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


def init(path, *options, code=0):
    return ck.sh(ck.CKPTCTL, "init", *options, path, code=code)


def names(path):
    """Everything in it, and how large it is."""
    return {os.path.relpath(os.path.join(folder, name), path):
            os.lstat(os.path.join(folder, name)).st_size
            for folder, folders, files in os.walk(path)
            for name in folders + files}


def is_usable(m, name="f"):
    m.start("create=no")
    put(m.path(name), data(100 * KIB, name))
    m.remount("create=no")
    same(get(m.path(name)), data(100 * KIB, name), name)
    m.unmount()


@ck.mounted(modes=("auto",), start=False)
def init_makes_a_store_that_mounts(m):
    assert init(m.store) == f"{m.store} is a new store\n"
    m.fsck()
    is_usable(m)
    assert NEW not in m.log_text()
    m.store += "-that-is-not-there"
    assert json.loads(init(m.store, "--json")) == {"store": m.store}
    assert os.stat(m.store).st_mode & 0o7777 == 0o700
    is_usable(m)
    os.mkdir(m.store + "2")  # as a new disk of ext4 has it
    m.store += "2"
    os.mkdir(os.path.join(m.store, "lost+found"))
    init(m.store)
    is_usable(m)


@ck.mounted(modes=("auto",), start=False)
def init_leaves_a_store_and_what_is_not_empty(m):
    init(m.store)
    is_usable(m)
    before = names(m.store)
    assert "is a ckptfs store already" in init(m.store, code=2)
    assert names(m.store) == before
    m.start()
    assert "is a ckptfs store already" in init(m.store, code=2)
    assert "is mounted" in init(m.mnt, code=2)
    same(get(m.path("f")), data(100 * KIB, "f"), "f")
    m.unmount()
    foreign = os.path.join(m.base, "foreign")
    os.mkdir(foreign)
    put(os.path.join(foreign, "thesis.tex"), b"all my work")
    assert "is not empty and not a ckptfs store" in init(foreign, code=2)
    assert names(foreign) == {"thesis.tex": 11}
    text = os.path.join(foreign, "thesis.tex")
    assert "is not a directory" in init(text, code=2)
    above = os.path.join(m.base, "not", "there")
    said = init(above, code=2)
    assert "the directory above it does not exist" in said, said
    assert not os.path.exists(os.path.dirname(above))
    os.chmod(foreign, 0o777)
    os.unlink(text)
    assert "can be written by other users" in init(foreign, code=2)
    assert names(foreign) == {}
    assert "name one store" in ck.sh(ck.CKPTCTL, "init", code=2)
    ck.sh(ck.CKPTCTL, "init", m.store, foreign, code=2)


@ck.mounted(modes=("auto",), start=False)
def a_disk_that_is_full_is_a_problem_and_not_wrong_usage(m):
    ck.sh("mount", "-t", "tmpfs", "-o", "size=16k,mode=700", "ckptest",
          m.store)
    said = init(m.store, code=1)
    assert f"ckptctl: {m.store}: its disk is full" in said, said
    assert not os.path.exists(os.path.join(m.store, "format")), said
    ck.sh("mount", "-o", "remount,size=256m", m.store)
    init(m.store)
    is_usable(m)
    ck.umount(m.store)


@ck.mounted(modes=("auto",), start=False)
def a_mount_of_an_empty_directory_makes_a_store_and_says_so(m):
    m.start()
    assert f"{m.store} {NEW}" in m.log_text()
    m.remount()
    assert m.log_text().count(NEW) == 1
    m.unmount()
    m.store += "2"
    os.mkdir(m.store)
    said = ck.sh(ck.CKPTFS, "-o", "stage_size=1G,create=yes", m.store, m.mnt)
    ck.tell_guard("daemon", get(os.path.join(m.store, "lock")).split()[0]
                  .decode(), m.mnt)
    assert said.count("\n") == 1 and f"{m.store} {NEW}" in said, said
    ck.sh(os.path.join(ck.HERE, "../../deploy/umount.fuse.ckptfs"), m.mnt)


@ck.mounted("create=no", modes=("auto",), start=False)
def with_create_no_only_a_store_is_mounted(m):
    """And nothing is written, the file `lock` neither."""
    def refused():
        said = m.refuse(code=1)
        assert m.store in said and "is its disk mounted?" in said, said
        assert "ckptctl init" in said and said.count("\n") == 1, said
    refused()
    assert names(m.store) == {}
    os.mkdir(os.path.join(m.store, "lost+found"))
    refused()
    put(os.path.join(m.store, "thesis.tex"), b"all my work")
    refused()
    assert names(m.store).keys() == {"lost+found", "thesis.tex"}
    os.rename(m.store, m.store + "-away")
    refused()
    put(m.store, b"a file")
    assert "is not a directory; give a store" in m.refuse(code=1)
    os.unlink(m.store)
    os.mkdir(m.store)
    assert "create=maybe: give yes or no" in m.refuse("create=maybe", code=2)
    init(m.store)
    is_usable(m)


@ck.mounted("create=no", modes=("auto",), start=False)
def the_directory_below_a_disk_that_is_away_stays_empty(m):
    disk = ck.Disk(m.base, 64 * ck.MIB)
    m.store = disk.path
    init(m.store)
    m.start()
    put(m.path("f"), data(100 * KIB))
    m.unmount()
    source = next(line.split()[0] for line in
                  get("/proc/mounts").decode().splitlines()
                  if line.split()[1] == disk.path)
    image = os.path.join(m.base, "disk.img")
    if not source.startswith("/dev/"):
        ck.skip("no loop device")
    ck.umount(disk.path)
    assert "is its disk mounted?" in m.refuse(code=1)
    assert names(m.store) == {}
    ck.sh("mount", "-o", "loop", image, disk.path)
    m.start()
    same(get(m.path("f")), data(100 * KIB), "f")
    m.unmount()
    ck.umount(disk.path)


def look(path):
    try:
        return sorted(os.listdir(path))
    except FileNotFoundError:
        return None


def stops_of_init(store, kill_at=None):
    """Run it, stopped before and after each system call of its first thread,
    and killed at the one given. The stops at which what there is changed."""
    pid = os.fork()
    if pid == 0:
        try:
            libc.ptrace(PTRACE_TRACEME, 0, None, None)
            os.environ["ASAN_OPTIONS"] = "detect_leaks=0"  # another tracer
            out = os.open("/dev/null", os.O_WRONLY)
            os.dup2(out, 1)
            os.dup2(out, 2)
            os.execv(ck.CKPTCTL, [ck.CKPTCTL, "init", store])
        finally:
            os._exit(127)
    stop, points, before = 0, [], None
    while True:
        _, status = os.waitpid(pid, 0)
        if not os.WIFSTOPPED(status):
            break
        number = os.WSTOPSIG(status)
        now = (look(store), look(os.path.join(store, "db")),
               look(os.path.join(store, "images", "7f")))
        if now != before:
            points.append(stop)
        before = now
        if stop == kill_at:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return points
        stop += 1
        # Its own stops come as SIGTRAP; any other signal is handed on.
        libc.ptrace(PTRACE_SYSCALL, pid, None,
                    0 if number == signal.SIGTRAP else number)
    assert os.waitstatus_to_exitcode(status) == 0, status
    return points + [stop]


@ck.mounted("create=no", modes=("auto",), start=False)
def an_init_that_is_killed_anywhere_leaves_a_store_or_none(m):
    os.rmdir(m.store)
    points = stops_of_init(m.store)
    assert len(points) > 10, points
    points = sorted({*points, *((a + b) // 2
                                for a, b in zip(points, points[1:]))})
    half = whole = 0
    for n, point in enumerate(points):
        m.store = os.path.join(m.base, f"store-{point}")
        if n % 2:
            os.mkdir(m.store)
        stops_of_init(m.store, kill_at=point)
        if os.path.exists(os.path.join(m.store, "format")):
            assert "is a ckptfs store already" in init(m.store, code=2)
            whole += 1
        else:
            before = names(m.store)
            said = m.refuse(code=1)
            assert m.store in said and "ckptctl init" in said, said
            assert names(m.store) == before
            half += 1
            init(m.store)
        m.start()
        put(m.path("f"), b"x")
        m.unmount()
        m.fsck()
    assert half > 5 and whole > 0, (half, whole, points)


@ck.mounted(modes=("auto",), start=False)
def a_mount_makes_a_store_of_what_a_killed_init_left(m):
    points = stops_of_init(m.store)
    m.store += "2"
    os.mkdir(m.store)
    stops_of_init(m.store, kill_at=points[len(points) * 2 // 3])
    assert "format" not in os.listdir(m.store) and os.listdir(m.store)
    m.start()
    assert NEW in m.log_text()
    put(m.path("f"), b"x")
    m.remount("create=no")
    assert get(m.path("f")) == b"x"


if __name__ == "__main__":
    ck.main()
