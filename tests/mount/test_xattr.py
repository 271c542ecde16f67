"""Extended attributes: the user's own, and the ones that ckptfs shows."""
import errno
import os
import struct

import ckptest as ck
from ckptest import KIB, MIB, USER, as_user, data, fails, get, put

CAP_SYS_ADMIN = 21
CAPS = "security.capability"
# Permitted: CAP_NET_BIND_SERVICE; see capabilities(7).
CAPS_VALUE = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)


@ck.posix
def user_attributes_are_set_listed_and_removed(fs):
    put(fs.path("f"), data(50 * KIB))
    os.mkdir(fs.path("d"))
    want = {"user.empty": b"", "user.bin": bytes(range(256)),
            "user.big": data(2000), "user." + "n" * 250: b"long name"}
    for name in "fd":
        for key, value in want.items():
            os.setxattr(fs.path(name), key, value)
        os.setxattr(fs.path(name), "user.gone", b"x")
        os.removexattr(fs.path(name), "user.gone")
        os.setxattr(fs.path(name), "user.bin", b"first")
        os.setxattr(fs.path(name), "user.bin", want["user.bin"])
    for stage in fs.stages(fs.path("f")):
        for name in "fd":
            listed = [k for k in os.listxattr(fs.path(name))
                      if k.startswith("user.")
                      and not k.startswith("user.ckptfs.")]
            assert sorted(listed) == sorted(want), (stage, listed)
            for key, value in want.items():
                assert os.getxattr(fs.path(name), key) == value, (stage, key)


@ck.posix
def attributes_follow_the_file_and_not_the_name(fs):
    a, b = fs.path("a"), fs.path("b")
    for size in (9, 100 * KIB):
        put(a, data(size))
        os.setxattr(a, "user.k", b"v")
        os.rename(a, b)
        put(a, b"new")
        assert os.getxattr(b, "user.k") == b"v"
        fails(errno.ENODATA, os.getxattr, a, "user.k")
        fs.flush(b)
        put(b, b"other content")  # O_TRUNC is still the same file
        for stage in fs.stages(b):
            assert os.getxattr(b, "user.k") == b"v", stage
        os.unlink(b)
        put(b, b"")
        fails(errno.ENODATA, os.getxattr, b, "user.k")


@ck.posix
def attribute_calls_fail_where_they_must(fs):
    put(fs.path("f"), b"")
    f = fs.path("f")
    os.setxattr(f, "user.k", b"12345")
    for code, fn, *args in (
            (errno.ENODATA, os.getxattr, "user.no"),
            (errno.ENODATA, os.removexattr, "user.no"),
            (errno.EEXIST, os.setxattr, "user.k", b"", os.XATTR_CREATE),
            (errno.ENODATA, os.setxattr, "user.no", b"", os.XATTR_REPLACE),
            (errno.E2BIG, os.setxattr, "user.k", bytes(65537)),
            (errno.ERANGE, os.setxattr, "user." + "n" * 251, b""),
            (errno.EOPNOTSUPP, os.setxattr, "nonsense.k", b"")):
        fails(code, fn, f, *args)
    for space in ("user.", "trusted.", "security."):
        fails(errno.EINVAL, os.getxattr, f, space)
        fails(errno.EINVAL, os.setxattr, f, space, b"")
        fails(errno.EINVAL, os.removexattr, f, space)
    for name in ("nonsense.k", "nonsense", "users.k", "system.k",
                 "os2.k", "User.k"):
        fails(errno.EOPNOTSUPP, os.getxattr, f, name)
        fails(errno.EOPNOTSUPP, os.setxattr, f, name, b"")
        fails(errno.EOPNOTSUPP, os.removexattr, f, name)
    os.setxattr(f, "user.k", b"new", os.XATTR_REPLACE)
    os.setxattr(f, "user.k2", b"", os.XATTR_CREATE)
    assert os.getxattr(f, "user.k") == b"new"
    fails(errno.ENOENT, os.getxattr, fs.path("no"), "user.k")
    assert ck.libc.getxattr(os.fsencode(f), b"user.k", None, 0) == 3
    small = ck.ctypes.create_string_buffer(2)
    assert ck.libc.getxattr(os.fsencode(f), b"user.k", small, 2) == -1
    assert ck.ctypes.get_errno() == errno.ERANGE


@ck.posix
def attributes_obey_the_mode_of_the_file(fs):
    os.chmod(fs.dir, 0o755)
    put(fs.path("f"), b"", mode=0o644)
    os.setxattr(fs.path("f"), "user.k", b"v")

    def work():
        assert os.getxattr(fs.path("f"), "user.k") == b"v"
        fails(errno.EACCES, os.setxattr, fs.path("f"), "user.k", b"w")
        fails(errno.EACCES, os.removexattr, fs.path("f"), "user.k")
    as_user(work, USER)


def without_capabilities(fn):
    """Root who is no administrator, as in a container."""
    def work():
        ck.libc.prctl(ck.PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0)
        head = struct.pack("Ii", 0x20080522, 0)
        ck._call(ck.libc.capset, head, bytes(24))
        return fn()
    return ck.Child(work).result()


@ck.posix
def trusted_attributes_are_listed_to_administrators_alone(fs):
    os.chmod(fs.dir, 0o755)
    put(fs.path("f"), b"", mode=0o644)
    os.mkdir(fs.path("d"))
    for name in "fd":
        path = fs.path(name)
        os.setxattr(path, "trusted.k", b"v")
        os.setxattr(path, "user.k", b"v")

        def others():
            fails(errno.ENODATA, os.getxattr, path, "trusted.k")
            fails(errno.EPERM, os.setxattr, path, "trusted.k", b"")
            return os.listxattr(path)
        assert os.getxattr(path, "trusted.k") == b"v"
        assert sorted(os.listxattr(path)) == ["trusted.k", "user.k"], name
        assert as_user(others) == ["user.k"], name
        assert without_capabilities(others) == ["user.k"], name


# What changes a file's bytes or its owner, and what does not. Each is done
# to an open file, for writing, of at least 100 bytes.
TAKE_CAPS = {
    "write": lambda fd, path: os.pwrite(fd, b"x", 7),
    "append": lambda fd, path: os.pwrite(fd, b"x", os.fstat(fd).st_size),
    "sendfile": lambda fd, path: os.sendfile(fd, zeros(), 0, 10),
    "open_trunc": lambda fd, path: os.close(
        os.open(path, os.O_WRONLY | os.O_TRUNC)),
    "truncate": lambda fd, path: os.truncate(path, 9),
    "truncate_to_the_same": lambda fd, path: os.truncate(
        path, os.stat(path).st_size),
    "ftruncate": lambda fd, path: os.ftruncate(fd, 9),
    "allocate": lambda fd, path: ck.fallocate(fd, 0, 0, MIB),
    "allocate_kept": lambda fd, path: ck.fallocate(fd, 1, 0, 9),
    "punch": lambda fd, path: ck.fallocate(fd, 3, 0, 9),
    "zero": lambda fd, path: ck.fallocate(fd, 16, 0, 9)}
ROOT_TAKES_CAPS = {
    "chown": lambda fd, path: os.chown(path, 5, 6),
    "chown_to_nobody_else": lambda fd, path: os.chown(path, -1, -1)}
LEAVE_CAPS = {
    "open": lambda fd, path: None,
    "write_of_nothing": lambda fd, path: os.write(fd, b""),
    "chmod": lambda fd, path: os.chmod(path, 0o711),
    "utime": lambda fd, path: os.utime(path),
    "rename": lambda fd, path: (os.rename(path, path + "."),
                                os.rename(path + ".", path)),
    "link": lambda fd, path: os.link(path, path + "-"),
    "attribute": lambda fd, path: os.setxattr(path, "user.k", b"v")}


def zeros():
    fd = os.memfd_create("zeros")
    os.write(fd, bytes(10))
    return fd


def has_caps(path):
    try:
        return os.getxattr(path, CAPS) == CAPS_VALUE
    except OSError as e:
        assert e.errno == errno.ENODATA, e
        return False


def caps_after(fs, name, work, size, stage, user):
    path = fs.path(f"{name}-{size}-{stage}-{user}")
    put(path, data(size))
    if stage == "durable":
        fs.flush(path)
    os.chown(path, user, user)

    def run():
        fd = os.open(path, os.O_RDWR)
        work(fd, path)
        os.close(fd)
    os.setxattr(path, CAPS, CAPS_VALUE)
    as_user(run, user)
    if name in LEAVE_CAPS or has_caps(path):
        return has_caps(path)
    # Set again while it is open, and after it has been written.
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, b"a", 0)
    os.setxattr(path, CAPS, CAPS_VALUE)
    work(fd, path)
    os.close(fd)
    return has_caps(path)


@ck.posix
def a_change_of_the_bytes_takes_the_capabilities_of_the_file(fs):
    """As file_remove_privs() of the kernel does, whoever writes."""
    os.chmod(fs.dir, 0o777)
    for size in (100, 50 * KIB, 3 * MIB):
        for stage in ("staged", "durable"):
            for user in (0, USER):
                for name, work in {**TAKE_CAPS, **LEAVE_CAPS,
                                   **({} if user else ROOT_TAKES_CAPS)}.items():
                    assert caps_after(fs, name, work, size, stage, user) \
                        == (name in LEAVE_CAPS), (name, size, stage, user)


@ck.mounted("debug_hold_drain")
def ckptfs_shows_the_state_of_a_file_read_only(m):
    path = m.path("f")
    put(path, data(MIB))
    assert m.state(path) == "staged"
    m.flush(path)
    assert m.state(path) == "durable"
    assert ck.native(path) == 1
    assert MIB <= int(ck.xattr(path, "physical_bytes")) <= MIB + 64 * KIB
    digest = ck.xattr(path, "digest")
    assert digest
    for name in ("state", "native", "physical_bytes", "digest", "invented"):
        fails(errno.EPERM, os.setxattr, path, "user.ckptfs." + name, b"x")
        fails(errno.EPERM, os.removexattr, path, "user.ckptfs." + name)
    put(m.path("same"), data(MIB))
    put(m.path("other"), data(MIB, 1))
    m.flush()
    assert ck.xattr(m.path("same"), "digest") == digest
    assert ck.xattr(m.path("other"), "digest") != digest
    m.remount()
    assert ck.xattr(path, "digest") == digest
    assert m.state(path) == "durable"


@ck.mounted()
def the_attributes_of_ckptfs_do_not_get_in_the_way_of_copies(m):
    """cp -a copies every attribute that is listed; it could not set these."""
    put(m.path("f"), data(100 * KIB))
    os.setxattr(m.path("f"), "user.mine", b"kept")
    m.flush()
    ck.sh(ck.tool("cp"), "-a", m.path("f"), m.path("g"))
    assert os.getxattr(m.path("g"), "user.mine") == b"kept"
    assert get(m.path("g")) == data(100 * KIB)


if __name__ == "__main__":
    ck.main()
