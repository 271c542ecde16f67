"""What is refused at start, with which exit code and what sentence: wrong
options, missing and foreign directories, newer formats, a second daemon."""
import fcntl
import os
import re
import select
import subprocess

import ckptest as ck
from ckptest import MIB, data, get, put, same


def format_file(m):
    return os.path.join(m.store, "format")


@ck.mounted(modes=("auto",), start=False)
def wrong_usage_exits_2_and_names_what_is_wrong(m):
    for option in ("nonsense", "stage_size=lots", "stage_size=-1",
                   "stage_size=", "create=", "durable=maybe", "publish=never",
                   "verify=sometimes", "dedup_min_saving=101",
                   "dedup_copies=0", "dedup_copies=5",
                   "stage_size=64", "stage_size=63M",
                   "dedup_min_saving=x", "drain_threads=-1", "passthrough=yes",
                   "drain_interval=soon", "names_timeout=soon"):
        said = m.refuse(option, code=2)
        assert option.split("=")[0] in said, (option, said)
        assert said.startswith("ckptfs: "), (option, said)
        assert "ckptfs --help" in said, (option, said)
    for argv in ([], ["one"], [m.store, m.mnt, "three"], ["-o"],
                 ["--nonsense", m.store, m.mnt]):
        done = subprocess.run([ck.CKPTFS, *argv], capture_output=True,
                              text=True, timeout=ck.WAIT_BOUND, check=False)
        assert done.returncode == 2, (argv, done.returncode)
        assert "usage" in done.stderr.lower(), (argv, done.stderr)
    done = subprocess.run([ck.CKPTFS, "--help"], capture_output=True,
                          text=True, timeout=ck.WAIT_BOUND, check=False)
    assert done.returncode == 0 and "STORE" in done.stdout, done
    assert os.listdir(m.store) == [], "a wrong option made a store"


@ck.mounted(modes=("auto",), start=False)
def a_container_that_lacks_something_is_told_which_flag_it_needs(m):
    def mount_without(prepare, *front):
        done = subprocess.run(
            ["unshare", "-m", "--propagation", "slave", "sh", "-c",
             prepare + '; exec "$@"', "sh", *front, ck.CKPTFS, "-f", m.store,
             m.mnt], check=False, capture_output=True, text=True,
            timeout=ck.WAIT_BOUND)
        assert done.returncode == 1, done
        return done.stderr
    flags = ("--device /dev/fuse --cap-add SYS_ADMIN",
             "apparmor=unconfined", "privileged: true")
    empty = "mount -t tmpfs none /dev && mknod /dev/null c 1 3"
    said = mount_without(empty)
    assert "there is no /dev/fuse" in said and "modprobe fuse" in said, said
    assert all(flag in said for flag in flags), said
    # A device that this machine has no driver for; one that is not ours.
    said = mount_without(f"{empty} && mknod /dev/fuse c 10 254")
    assert "no FUSE behind it" in said and "modprobe fuse" in said, said
    assert "docker" not in said, said
    said = mount_without(f"{empty} && mknod /dev/fuse c 10 229 && "
                         "mount -o remount,nodev /dev")
    assert "may not be opened" in said, said
    assert all(flag in said for flag in flags), said
    said = mount_without("true", "setpriv", "--bounding-set", "-sys_admin",
                         "--inh-caps", "-sys_admin")
    assert "no CAP_SYS_ADMIN" in said and "Operation not permitted" in said
    assert all(flag in said for flag in flags), said
    m.start()


@ck.mounted(modes=("auto",), start=False)
def a_missing_mount_point_is_refused(m):
    os.rmdir(m.mnt)
    assert m.mnt in m.refuse(code=1)
    put(m.mnt, b"a file")
    assert m.mnt in m.refuse(code=1)
    os.unlink(m.mnt)
    os.mkdir(m.mnt)
    m.start()


@ck.mounted(modes=("auto",), start=False)
def paths_that_lie_in_each_other_are_refused(m):
    """Mounted so, the store would be hidden by what it is mounted as."""
    inner = os.path.join(m.store, "inner")
    link = os.path.join(m.base, "link")
    os.mkdir(inner)
    os.symlink(m.store, link)
    os.mkdir(os.path.join(m.mnt, "stage"))
    for store, mnt, options in (
            (m.store, m.store, ""), (m.store, link, ""), (link, m.store, ""),
            (m.store, inner, ""), (link, inner, ""), (m.store, m.base, ""),
            (inner, m.store, ""), (m.store, "/", ""),
            (m.store, m.mnt, f"stage={m.mnt}"),
            (m.store, m.mnt, f"stage={m.mnt}/stage")):
        done = subprocess.run(
            [ck.CKPTFS, *(["-o", options] if options else []), store, mnt],
            capture_output=True, text=True, timeout=ck.WAIT_BOUND,
            check=False)
        assert done.returncode == 2, (store, mnt, done)
        assert re.fullmatch(r"ckptfs: .*; give [^\n]*\n", done.stderr), done
        assert m.store in done.stderr or m.mnt in done.stderr, done
    assert os.listdir(m.store) == ["inner"], "it wrote into the store"
    bound = os.path.join(m.base, "bound")
    os.mkdir(bound)
    ck.sh("mount", "--bind", m.store, bound)
    try:
        done = subprocess.run([ck.CKPTFS, m.store, bound], text=True,
                              capture_output=True, timeout=ck.WAIT_BOUND,
                              check=False)
        assert done.returncode == 2 and bound in done.stderr, done
    finally:
        ck.umount(bound)


@ck.mounted(modes=("auto",))
def a_store_on_a_ckptfs_is_refused(m):
    """Two daemons that wait for each other can never be unmounted."""
    os.makedirs(m.path("d", "store"))
    os.makedirs(m.path("d", "stage"))
    second = ck.Mount(os.path.join(m.base, "second"),
                      store=m.path("d", "store"))
    said = second.refuse(code=2)
    assert m.path("d", "store") in said and f" on {m.mnt};" in said, said
    assert os.listdir(second.store) == []
    third = ck.Mount(os.path.join(m.base, "third"))
    said = third.refuse(f"stage={m.path('d', 'stage')}", code=2)
    assert m.path("d", "stage") in said and f" on {m.mnt};" in said, said
    bound = os.path.join(m.base, "bound")  # no matter by which name
    os.mkdir(bound)
    ck.sh("mount", "--bind", m.path("d"), bound)
    try:
        second.store = os.path.join(bound, "store")
        second.refuse(code=2)
    finally:
        ck.umount(bound)


@ck.mounted(modes=("auto",), start=False)
def a_store_that_cannot_be_written_is_refused(m):
    ck.sh("mount", "-t", "tmpfs", "-o", "ro", "ckptest", m.store)
    said = m.refuse(code=1)
    assert m.store in said and "Read-only file system" in said, said
    ck.umount(m.store)
    put(os.path.join(m.base, "file"), b"")
    m.store = os.path.join(m.base, "file")
    assert "not a directory" in m.refuse(code=1)


@ck.mounted(modes=("auto",), start=False)
def a_store_may_be_called_anything(m):
    """Its name is an option of the mount and a field of the mount table."""
    m.store = os.path.join(m.base, "a, b\\c\\040#\"d\n=%s")
    os.mkdir(m.store)
    m.start()
    with open("/proc/self/mountinfo", encoding="utf-8") as f:
        [line] = [line for line in f if f" {m.mnt} " in line]
    source = re.sub(r"\\(\d{3})", lambda o: chr(int(o[1], 8)),
                    line.split(" - ")[1].split()[1])
    assert source == m.store, line
    assert m.status()["store"] == m.store
    put(m.path("f"), data(MIB))
    second = ck.Mount(os.path.join(m.base, "second"), store=m.store)
    assert "mounted already" in second.refuse(code=1)
    said = ck.sh(os.path.join(ck.HERE, "../../deploy/umount.fuse.ckptfs"),
                 m.mnt)
    with open(os.path.join(m.store, "lock"), "rb") as f:
        fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)  # it waited for the end
    assert "cannot see its store" not in said, said
    assert m.proc.wait(ck.WAIT_BOUND) == 0
    m.start()
    same(get(m.path("f")), data(MIB), "f")


@ck.mounted(modes=("auto",), start=False)
def a_relative_stage_is_that_of_the_caller(m):
    """The daemon in the background works in another directory."""
    os.mkdir(os.path.join(m.base, "stage"))
    done = subprocess.run([ck.CKPTFS, "-o", "stage=stage", m.store, m.mnt],
                          capture_output=True, text=True, cwd=m.base,
                          timeout=ck.WAIT_BOUND, check=False)
    assert done.returncode == 0, done
    pid = int(get(os.path.join(m.store, "lock")).split()[0])
    ck.tell_guard("daemon", pid, m.mnt)
    ended = os.pidfd_open(pid)
    assert m.status()["stage"] == os.path.join(m.base, "stage")
    ck.umount(m.mnt)
    assert select.select([ended], [], [], ck.WAIT_BOUND)[0], "no end"
    os.close(ended)


@ck.mounted(modes=("auto",), start=False)
def a_foreign_directory_is_refused_and_left_alone(m):
    put(os.path.join(m.store, "thesis.tex"), b"all my work")
    os.mkdir(os.path.join(m.store, "images"))
    said = m.refuse(code=1)
    assert m.store in said, said
    assert sorted(os.listdir(m.store)) == ["images", "thesis.tex"], said
    assert get(os.path.join(m.store, "thesis.tex")) == b"all my work"
    os.rmdir(os.path.join(m.store, "images"))
    os.unlink(os.path.join(m.store, "thesis.tex"))
    os.rmdir(m.store)
    put(m.store, b"a file")
    assert m.store in m.refuse(code=1)


@ck.mounted(modes=("auto",))
def a_newer_format_is_refused_and_left_alone(m):
    put(m.path("f"), data(MIB))
    m.unmount()
    old = get(format_file(m))
    newer = re.sub(rb"\d+", b"999", old, count=1)
    assert newer != old, old
    put(format_file(m), newer)
    said = m.refuse(code=1)
    assert "999" in said, said
    m.fsck(code=2)
    put(format_file(m), b"not a version\n")
    m.refuse(code=1)
    put(format_file(m), old)
    m.start()
    same(get(m.path("f")), data(MIB), "f")


@ck.mounted(modes=("auto",))
def a_store_that_is_mounted_is_not_mounted_twice(m):
    put(m.path("f"), data(MIB))
    second = ck.Mount(os.path.join(m.base, "second"), store=m.store)
    said = second.refuse(code=1)
    assert re.search("mounted|in use", said), said
    same(get(m.path("f")), data(MIB), "the first goes on")
    m.fsck(code=2)  # fsck is offline
    put(m.path("g"), data(MIB, "g"))
    m.kill()
    second.start()  # a dead daemon's store is free
    same(get(second.path("g")), data(MIB, "g"), "taken over")
    second.unmount()


@ck.mounted(modes=("auto",))
def a_mount_point_is_not_mounted_over_twice(m):
    second = ck.Mount(os.path.join(m.base, "second"))
    second.mnt = m.mnt
    put(m.path("f"), b"x")
    second.spawn()
    code = second.proc.wait(ck.WAIT_BOUND)
    second.proc = None
    assert code == 1, code
    assert get(m.path("f")) == b"x"


@ck.mounted(modes=("auto",), start=False)
def a_missing_store_is_refused_and_not_made(m):
    """A disk that is not mounted must not become a store on the root disk."""
    os.rmdir(m.store)
    assert m.store in m.refuse(code=1)
    assert not os.path.exists(m.store)


@ck.mounted(modes=("auto",), start=False)
def a_fresh_file_system_is_an_empty_directory(m):
    """lost+found does not make it a foreign one."""
    disk = ck.Disk(m.base, 64 * MIB)
    m.store = disk.path
    m.start()
    put(m.path("f"), data(MIB))
    m.remount()
    same(get(m.path("f")), data(MIB), "f")
    m.unmount()
    ck.umount(disk.path)


@ck.mounted(start=False)
def a_stage_on_disk_works(m):
    stage = os.path.join(m.base, "stage")
    os.mkdir(stage)
    m.options = f"stage={stage},debug_hold_drain"
    m.start()
    assert not ck.mounts_under(m.store), "a tmpfs although stage= is given"
    for size in (0, 100, 5 * MIB):
        put(m.path(f"f{size}"), data(size))
    m.kill()
    m.start()
    for size in (0, 100, 5 * MIB):
        same(get(m.path(f"f{size}")), data(size), f"{size} after kill -9")
    m.remount()
    for size in (0, 100, 5 * MIB):
        same(get(m.path(f"f{size}")), data(size), f"{size} remounted")
    m.unmount()
    assert ck.du(stage) == 0, "staged bytes left behind"
    m.options = f"stage={stage}-missing"
    assert "missing" in m.refuse(code=1)


@ck.mounted(start=False)
def the_mount_helper_of_mount_8_is_understood(m):
    """fstab: STORE MNT fuse.ckptfs defaults,nofail,... 0 0"""
    for option in ("rw", "nosuid,nodev", "noatime", "nofail,_netdev",
                   "x-systemd.automount", "defaults", "noexec"):
        m.start(option)
        put(m.path("f"), option.encode())
        assert get(m.path("f")) == option.encode()
        m.unmount()


@ck.mounted("passthrough=off", modes=("auto",))
def status_tells_which_way_the_bytes_go(m):
    assert m.status()["passthrough"] is False
    m.unmount()
    m.start("passthrough=auto")
    said = m.log_text().lower()
    assert m.status()["passthrough"] is True or "passthrough" in said


if __name__ == "__main__":
    ck.main()
