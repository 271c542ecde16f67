"""A daemon that may have few descriptors: files that are staged take none of
them, so that nobody can use up what others need."""
import os

import ckptest as ck
from ckptest import KIB, as_user, data, get, put, same

LIMIT = 256  # of the daemon, and it cannot raise it
FILES = 1200


def payload(n, size=40 * KIB):
    return f"{n:08d}".encode() * (size // 8)


@ck.mounted(start=False)
def thousands_of_staged_files_drain_with_few_descriptors(m):
    """More closed files than the daemon may have descriptors."""
    m.files = LIMIT
    m.start("debug_hold_drain")
    for n in range(FILES):
        put(m.path(f"f{n}"), payload(n))
    ck.until("all are closed", lambda: m.status()["draining"] >= FILES)
    m.flush()
    for n in range(0, FILES, 97):
        assert m.state(m.path(f"f{n}")) == "durable"
    m.remount()
    for n in range(FILES):
        same(get(m.path(f"f{n}")), payload(n), f"f{n}")
    m.unmount()
    m.fsck("--scrub")


@ck.mounted(start=False)
def files_held_open_by_one_user_leave_descriptors_for_the_others(m):
    m.files = LIMIT
    m.start()
    os.mkdir(m.path("a"))
    os.mkdir(m.path("b"))
    os.chown(m.path("b"), 1002, 1002)

    def hold():
        fds = []
        for n in range(1000):
            fds.append(os.open(m.path(f"a/f{n}"), os.O_WRONLY | os.O_CREAT))
            os.write(fds[-1], payload(n))
        for n in range(300):  # and some to read
            fds.append(os.open(m.path(f"a/f{n}"), os.O_RDONLY))
        other = ck.Child(second_user, 1002)
        other.result()
        os.fsync(fds[500])
        for fd in fds:
            os.close(fd)

    def second_user():
        for n in range(50):
            put(m.path(f"b/g{n}"), data(60 * KIB, n), sync=n % 10 == 0)
            same(get(m.path(f"b/g{n}")), data(60 * KIB, n))

    hold()
    m.flush()
    assert m.status()["draining"] == 0
    m.remount()
    for n in range(1000):
        same(get(m.path(f"a/f{n}")), payload(n), f"f{n}")
    as_user(lambda: same(get(m.path("b/g7")), data(60 * KIB, 7)), 1002)
    m.unmount()
    m.fsck("--scrub")


if __name__ == "__main__":
    ck.main()
