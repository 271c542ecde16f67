"""Extended attributes: the user's own, and the ones that ckptfs shows."""
import errno
import os

import ckptest as ck
from ckptest import KIB, MIB, USER, as_user, data, fails, get, put


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
