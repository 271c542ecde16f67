"""Locks between processes, and names of fifos and sockets."""
import errno
import fcntl
import os
import socket
import stat
import struct
import threading

import ckptest as ck
from ckptest import KIB, MIB, Child, data, fails, put


def held_by_another(fs, lock):
    """Open the file, take a lock, and say whether it was refused."""
    def work():
        fd = os.open(fs.path("f"), os.O_RDWR)
        try:
            lock(fd)
            return False
        except OSError as e:
            assert e.errno in (errno.EAGAIN, errno.EACCES), e
            return True
    return Child(work).result()


@ck.posix
def flock_excludes_other_handles_until_it_is_dropped(fs):
    put(fs.path("f"), b"x")
    shared, alone = fcntl.LOCK_SH | fcntl.LOCK_NB, fcntl.LOCK_EX | fcntl.LOCK_NB
    fd = os.open(fs.path("f"), os.O_RDWR)
    for mine, theirs, refused in ((alone, alone, True), (alone, shared, True),
                                  (shared, shared, False),
                                  (shared, alone, True)):
        fcntl.flock(fd, mine)
        got = held_by_another(fs, lambda o, f=theirs: fcntl.flock(o, f))
        assert got == refused, (mine, theirs)
        fcntl.flock(fd, fcntl.LOCK_UN)
        assert not held_by_another(fs, lambda o: fcntl.flock(o, alone))
    fcntl.flock(fd, alone)
    os.close(fd)  # close drops it
    assert not held_by_another(fs, lambda o: fcntl.flock(o, alone))


@ck.posix
def record_locks_cover_only_their_bytes(fs):
    put(fs.path("f"), data(100))
    fd = os.open(fs.path("f"), os.O_RDWR)
    nb = fcntl.LOCK_EX | fcntl.LOCK_NB
    fcntl.lockf(fd, nb, 10, 20)
    for start, size, refused in ((20, 1, True), (29, 5, True), (30, 5, False),
                                 (0, 20, False), (0, 0, True)):
        got = held_by_another(
            fs, lambda o, s=start, n=size: fcntl.lockf(o, nb, n, s))
        assert got == refused, (start, size)

    def who():
        """F_GETLK names the holder."""
        other = os.open(fs.path("f"), os.O_RDWR)
        ask = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, start, size, pid = struct.unpack(
            "hhqqi4x", fcntl.fcntl(other, fcntl.F_GETLK, ask))
        return kind, start, size, pid
    assert Child(who).result() == (fcntl.F_WRLCK, 20, 10, os.getpid())
    os.close(fd)
    assert not held_by_another(fs, lambda o: fcntl.lockf(o, nb))


@ck.posix
def o_trunc_leaves_a_lock_with_its_file(fs):
    """The second one opens with O_TRUNC, as a shell's `exec 9>lock` does."""
    for size in (0, 5, 100 * KIB, 3 * MIB):
        path = fs.path(f"lock{size}")
        put(path, data(size))
        for stage in fs.stages(path):
            for mode in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
                for take in (fcntl.flock, fcntl.lockf):
                    if take is fcntl.lockf and mode == os.O_RDONLY:
                        continue
                    what = f"{size} {stage} {mode} {take.__name__}"
                    fd = os.open(path, mode)
                    if mode != os.O_WRONLY:
                        os.read(fd, 1)
                    take(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

                    def second():
                        other = os.open(path, os.O_WRONLY | os.O_CREAT |
                                        os.O_TRUNC, 0o644)
                        fails(errno.EAGAIN, take, other,
                              fcntl.LOCK_EX | fcntl.LOCK_NB)
                    Child(second).result()
                    Child(second).result()
                    assert os.fstat(fd).st_ino == os.stat(path).st_ino, what
                    os.close(fd)
                    put(path, data(size))


@ck.posix
def a_shell_locks_an_empty_file(fs):
    script = 'exec 9>"$1"; flock -n 9 || exit 7; exec 8>"$1"; ' \
             'flock -n 8 && exit 8; exec 8>&-; flock -n "$1" true && exit 9; ' \
             'exit 0'
    for stage in fs.stages():
        ck.tool("flock")
        ck.sh("bash", "-c", script, "lock", fs.path("lk"))


@ck.posix
def a_waiting_lock_is_granted_when_the_holder_dies(fs):
    put(fs.path("f"), b"x")
    for take in (lambda fd: fcntl.flock(fd, fcntl.LOCK_EX),
                 lambda fd: fcntl.lockf(fd, fcntl.LOCK_EX)):
        ready, tell = os.pipe()

        def hold():
            take(os.open(fs.path("f"), os.O_RDWR))
            os.write(tell, b"1")
            threading.Event().wait()
        holder = Child(hold)
        os.read(ready, 1)
        waiter = Child(lambda: take(os.open(fs.path("f"), os.O_RDWR)))
        holder.kill()
        waiter.result()
        os.close(ready)
        os.close(tell)


@ck.posix
def a_fifo_carries_bytes(fs):
    path = fs.path("pipe")
    os.mkfifo(path, 0o640)
    for stage in fs.stages():
        assert os.lstat(path).st_mode == stat.S_IFIFO | 0o640, stage
        writer = Child(lambda: put(path, b"through the pipe", flags=0))
        with open(path, "rb") as f:
            assert f.read() == b"through the pipe", stage
        writer.result()


@ck.posix
def a_unix_socket_has_a_name(fs):
    d = os.open(fs.dir, os.O_RDONLY)
    server = socket.socket(socket.AF_UNIX)
    server.bind(f"/proc/self/fd/{d}/sock")  # paths are limited to 108 bytes
    server.listen()
    client = socket.socket(socket.AF_UNIX)
    client.connect(f"/proc/self/fd/{d}/sock")
    accepted, _ = server.accept()
    client.sendall(b"hello")
    assert accepted.recv(9) == b"hello"
    fails(errno.EADDRINUSE, socket.socket(socket.AF_UNIX).bind,
          f"/proc/self/fd/{d}/sock")
    for s in (server, client, accepted):
        s.close()
    os.close(d)
    for stage in fs.stages():
        assert stat.S_ISSOCK(os.lstat(fs.path("sock")).st_mode), stage
        fails(errno.ENXIO, os.open, fs.path("sock"), os.O_RDONLY)
    os.unlink(fs.path("sock"))


if __name__ == "__main__":
    ck.main()
