"""Handles and mappings that outlive their daemon: passthrough goes on for them,
after kill -9 and after SIGTERM. What they write must not reach what the next
daemon stores, and what they read must not change."""
import contextlib
import mmap
import os
import signal

import ckptest as ck
from ckptest import KIB, MIB, PAGE, as_user, data, fails, get, put, same

OWNER = 1001


def terminate(m):
    """SIGTERM while handles are open: it makes everything durable, and ends."""
    m.proc.send_signal(signal.SIGTERM)
    code = m.proc.wait(ck.WAIT_BOUND)
    m.proc = None
    assert code == 0, code
    for path in ck.mounts_under(m.mnt):
        ck.umount(path, ck.MNT_DETACH)


ENDS = {"kill": ck.Mount.kill, "term": terminate}
STAGES = {"disk": (), "memory": ("debug_stage=memory",)}


def each(m, *options, again=()):
    """Every way to stage and to end, in a folder of its own."""
    for stage, extra in STAGES.items():
        for end, fn in ENDS.items():
            m.start(*options, *extra)
            folder = m.path(f"{stage}-{end}")
            os.mkdir(folder)
            os.chmod(folder, 0o777)

            def restart(fn=fn, extra=extra):
                fn(m)
                m.start("share=all", *extra, *again)
            yield folder, restart
            m.unmount()
            m.fsck("--scrub")


@contextlib.contextmanager
def opened(path, flags, content=None):
    fd = os.open(path, flags, 0o644)
    try:
        if content is not None:
            ck.write_all(fd, content)
        yield fd
    finally:
        with contextlib.suppress(OSError):  # ENOTCONN: nobody is asked
            os.close(fd)


@ck.mounted(modes=("auto",), start=False)
def an_old_descriptor_does_not_write_into_what_others_store(m):
    want = data(8 * MIB, 1)
    for folder, restart in each(m, "debug_hold_drain"):
        public, own = f"{folder}/public", f"{folder}/own"
        with opened(public, os.O_WRONLY | os.O_CREAT, want) as fd:
            restart()
            m.flush()
            as_user(lambda: put(own, want, mode=0o600, sync=True), OWNER)
            assert m.status()["shared_bytes"] >= len(want)
            for at in range(0, len(want), 256 * KIB):
                assert os.pwrite(fd, b"!" * 4096, at) == 4096
            as_user(lambda: same(get(own), want, own), OWNER)
            same(get(public), want, public)
            m.remount("share=all")
            os.pwrite(fd, b"!" * 4096, 4096)
            as_user(lambda: same(get(own), want, own), OWNER)
            same(get(public), want, public)


def scribble(fd, size, pipe):
    """Write for ever; tells when it has begun."""
    words = data(64 * KIB, 7)
    n = 0
    while True:
        os.pwrite(fd, words[n % 64 * KIB:] + bytes([n % 251]) * 32,
                  n * 40961 % (size - 64 * KIB))
        n += 1
        if n == 100:
            os.write(pipe, b"x")


@ck.mounted(modes=("auto",), start=False)
def who_goes_on_writing_damages_nothing(m):
    size = 8 * MIB
    for folder, restart in each(m, "debug_hold_drain"):
        path = f"{folder}/f"
        with opened(path, os.O_WRONLY | os.O_CREAT, data(size, 2)) as fd:
            reader, pipe = os.pipe()
            child = ck.Child(lambda fd=fd, pipe=pipe: scribble(fd, size, pipe))
            try:
                os.read(reader, 1)
                restart()
                m.flush()
                assert m.state(path) == "durable"
                first = get(path)
                assert len(first) == size
                m.remount("share=all")
                same(get(path), first, path)
            finally:
                child.kill()
                os.close(reader)
                os.close(pipe)


@ck.mounted(modes=("auto",), start=False)
def an_old_reader_keeps_what_is_deleted_and_then_it_is_given_back(m):
    head, tail, other = data(4 * MIB, 3), data(4 * MIB, 4), data(4 * MIB, 5)
    for folder, restart in each(m):
        a, b = f"{folder}/a", f"{folder}/b"
        put(a, head + tail, sync=True)
        m.remount()  # both are read from their image
        put(b, head + other, sync=True)
        with opened(a, os.O_RDONLY) as fd:
            shared = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
            private = mmap.mmap(fd, 0, mmap.MAP_PRIVATE)
            restart()
            os.unlink(a)
            m.ctl("gc", m.mnt)
            held = m.images_du()
            same(os.pread(fd, 8 * MIB, 0), head + tail, "descriptor")
            same(shared[:], head + tail, "shared mapping")
            same(private[:], head + tail, "private mapping")
            shared.close()
            m.ctl("gc", m.mnt)
            same(private[:], head + tail, "private mapping")
            private.close()
        m.shrinks_by_gc(held - 4 * MIB, "nobody has it")
        same(get(b), head + other, b)
        os.unlink(b)


@ck.mounted(modes=("auto",), start=False)
def an_old_reader_keeps_what_was_staged(m):
    """Its stage becomes the image, or goes to the database, and is shared."""
    known, new = data(2 * MIB, 6), data(2 * MIB, 7)
    for folder, restart in each(m):
        put(f"{folder}/known", known + known[:MIB], sync=True)
        m.remount("debug_hold_drain")
        contents = {"small": data(20 * KIB, 8), "shares": known + new,
                    "large": data(3 * MIB, 9)}
        fds = {}
        for name, content in contents.items():
            put(f"{folder}/{name}", content)
            fds[name] = os.open(f"{folder}/{name}", os.O_RDONLY)
        maps = {name: mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
                for name, fd in fds.items()}
        restart()
        m.flush()
        m.ctl("gc", m.mnt)
        for name, content in contents.items():
            same(get(f"{folder}/{name}"), content, name)
            same(os.pread(fds[name], 8 * MIB, 0), content, name)
            same(maps[name][:], content, name)
            put(f"{folder}/{name}", b"something else")
        m.flush()
        put(f"{folder}/again", data(4 * MIB, 10), sync=True)
        m.ctl("gc", m.mnt)
        for name, content in contents.items():
            same(os.pread(fds[name], 8 * MIB, 0), content, name)
            same(maps[name][:], content, name)
            maps[name].close()
            os.close(fds[name])


def change_in_place(path):
    with open(path, "r+b", buffering=0) as f:
        os.pwrite(f.fileno(), b"!" * PAGE, 4 * PAGE)


def append(path):
    with open(path, "ab") as f:
        f.write(b"!" * PAGE)


def cut(path):
    os.truncate(path, 10)


def cut_by_handle(path):
    with open(path, "r+b", buffering=0) as f:
        f.truncate(10)


def map_in_place(path):
    with open(path, "r+b", buffering=0) as f:
        with mmap.mmap(f.fileno(), 0) as m:
            m[PAGE:PAGE + 10] = b"!" * 10


CHANGES = (change_in_place, append, cut, cut_by_handle, map_in_place)


def others_change(m, *hold):
    want = data(MIB, 6)
    for folder, restart in each(m, *hold, again=hold):
        names = [f"{folder}/{fn.__name__}" for fn in CHANGES]
        for path in names:
            put(path, want)
        if not hold:
            m.flush()
        fds = [os.open(path, os.O_RDONLY) for path in names]
        maps = [mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
                for fd in fds]
        restart()
        for path, fn in zip(names, CHANGES):
            with opened(path, os.O_RDONLY) as fd:
                fn(path)
                new = get(path)
                assert new != want and len(new) == os.stat(path).st_size
                if hold and folder.endswith("kill"):  # else: an image
                    same(os.pread(fd, 2 * MIB, 0), new, path)
        m.flush()
        for path, fn, fd, old in zip(names, CHANGES, fds, maps):
            same(os.pread(fd, 2 * MIB, 0), want, path + " descriptor")
            same(old[:], want, path + " mapping")
            old.close()
            os.close(fd)
            assert m.state(path) == "durable"
            put(path + "_plain", want)
            fn(path + "_plain")
            same(get(path), get(path + "_plain"), path)


@ck.mounted(modes=("auto",), start=False)
def an_old_reader_keeps_what_others_change(m):
    """They have a copy; who reads what is staged here sees their change."""
    others_change(m, "debug_hold_drain")


@ck.mounted(modes=("auto",), start=False)
def an_old_reader_keeps_what_is_durable_and_others_change(m):
    others_change(m)


@ck.mounted(modes=("auto",), start=False)
def a_deleted_file_that_is_still_written_to_touches_no_other(m):
    """Its stage must not be used again for another file."""
    for folder, restart in each(m):
        with opened(f"{folder}/f", os.O_WRONLY | os.O_CREAT,
                    data(100 * KIB, 1)) as fd:
            os.unlink(f"{folder}/f")
            restart()
            for n in range(20):
                put(f"{folder}/n{n}", data(100 * KIB, n))
            os.pwrite(fd, b"!" * 100 * KIB, 0)
            m.flush()
            os.pwrite(fd, b"!" * 100 * KIB, 0)
            for n in range(20):
                same(get(f"{folder}/n{n}"), data(100 * KIB, n))
        fails(2, os.stat, f"{folder}/f")


if __name__ == "__main__":
    ck.main()
