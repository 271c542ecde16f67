"""What the log says of a mount's life, with its name: that it is there, that it
is gone, and who asked for that."""
import os
import re
import signal

import ckptest as ck
from ckptest import MIB, data, put

HELPER = os.path.join(ck.HERE, "../../deploy/umount.fuse.ckptfs")
ME = ck.get("/proc/self/comm").decode().strip()


def ended(m):
    assert m.proc.wait(ck.WAIT_BOUND) == 0, m.log_text()
    m.proc = None


def lines(m, since=0):
    """Of the mount, without its name."""
    return re.findall(rf"^ckptfs: info: {re.escape(m.mnt)}: (.*)$",
                      m.log_text()[since:], re.M)


def is_mounted(m):
    """The line comes behind the mount."""
    before = f"{m.mnt}: mounted, its store is {m.store}\n"
    ck.until("the mount is told of", lambda: before in m.log_text())


@ck.mounted("debug_hold_drain", modes=("auto",), start=False)
def the_signal_that_ends_it_and_who_sent_it_are_told(m):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        since = len(m.log_text())
        m.start()
        put(m.path("f"), data(MIB))
        os.kill(m.proc.pid, number)
        ended(m)
        assert lines(m, since) == [
            f"mounted, its store is {m.store}",
            f"{number.name} from process {os.getpid()} ({ME}) of user 0 "
            "ends it", "unmounted", "ended, everything is durable"]


@ck.mounted(modes=("auto",))
def an_unmount_is_told_with_who_asked_the_helper_for_it(m):
    is_mounted(m)
    old = os.environ["PATH"]
    os.environ["PATH"] = os.path.dirname(ck.CKPTCTL) + ":" + old
    try:
        ck.sh(HELPER, m.mnt)
    finally:
        os.environ["PATH"] = old
    ended(m)
    said = lines(m)
    assert re.fullmatch(
        r"unmounted, as process \d+ \(umount\.fuse\.ckp\) of user 0, for "
        rf"process {os.getpid()} \({re.escape(ME)}\) asked", said[1]), said
    assert said[2:] == ["ended, everything is durable"], said


@ck.mounted(modes=("auto",))
def an_unmount_of_which_nobody_says_by_whom_is_told(m):
    """A flush of the mount by anybody else is no unmount."""
    is_mounted(m)
    m.flush()
    ck.umount(m.mnt)
    ended(m)
    assert lines(m)[1:] == [
        "unmounted, without umount's helper: nobody says by whom",
        "ended, everything is durable"], lines(m)


@ck.mounted("debug_hold_drain", modes=("auto",))
def what_is_taken_over_is_told_with_the_store(m):
    put(m.path("f"), data(MIB))
    m.kill()
    m.start("ro")
    is_over = f"{m.store}: took over 1 staged file that"
    assert is_over in m.log_text()
    ck.until("it is told how", lambda:
             f"its store is {m.store}, read-only" in m.log_text())


def socket_of(m):
    uuid = re.search(r"[0-9a-f-]{36}",
                     ck.get(os.path.join(m.store, "format")).decode())
    return f"/run/ckptfs/{uuid.group()}.sock"


@ck.mounted(modes=("auto",))
def the_socket_of_a_killed_daemon_goes_with_the_next_mount(m):
    others = [ck.Mount(m.base + name) for name in ("-b", "-c")]
    try:
        lives = others[0].start()
        ck.until("each listens", lambda: all(
            os.path.exists(socket_of(one)) for one in (m, lives)))
        m.kill()
        others[1].start()
        ck.until("it goes", lambda: not os.path.exists(socket_of(m)))
        assert os.path.exists(socket_of(lives))
    finally:
        for one in others:
            one.stop()
    m.start()
    ck.until("it listens", lambda: os.path.exists(socket_of(m)))


@ck.mounted(modes=("auto",))
def a_name_in_it_forges_no_line(m):
    m.unmount()
    m.mnt = os.path.join(m.base, "a\nckptfs: ERROR: b")
    os.mkdir(m.mnt)
    with open(m.log, "w", encoding="ascii"):
        pass
    m.start()
    ck.until("it is told", lambda: "a\\nckptfs: ERROR: b: mounted" in
             m.log_text())
    os.kill(m.proc.pid, signal.SIGTERM)
    ended(m)
    m.expected.append(r"a\\nckptfs: ERROR: b")


if __name__ == "__main__":
    ck.main()
