"""Other ways to sync than fsync: flags of an open or of one write, a folder."""
import mmap
import os

import ckptest as ck
from ckptest import KIB, MIB, data, get, put, same

FLAGS = {"O_SYNC": os.O_SYNC, "O_DSYNC": os.O_DSYNC,
         "O_DIRECT|O_SYNC": os.O_DIRECT | os.O_SYNC}
NEW = os.O_CREAT | os.O_EXCL
HELD = "debug_hold_drain,debug_stage=memory"


def aligned(content):
    """In memory that O_DIRECT takes."""
    m = mmap.mmap(-1, len(content))
    m[:] = content
    return m


def close_all(fds):
    for fd in fds:
        try:
            os.close(fd)
        except OSError:
            pass  # its mount is dead


@ck.mounted(HELD)
def what_a_write_with_o_sync_returned_for_survives_a_power_cut(m):
    want, fds = {}, []
    for name, flag in FLAGS.items():
        for access in (os.O_WRONLY, os.O_RDWR):
            for size in (4 * KIB, 64 * KIB, 3 * MIB):
                path = m.path(f"{name} {access} {size}")
                fds.append(os.open(path, access | flag | NEW, 0o644))
                want[path] = data(size, path)
                assert os.write(fds[-1], aligned(want[path])) == size
    os.mkdir(m.path("d"))
    path = m.path("d", "appended")
    put(path, b"before ", sync=True)
    fds.append(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_SYNC))
    for n in range(10):
        os.write(fds[-1], b"line %d " % n)
    want[path] = b"before " + b"".join(b"line %d " % n for n in range(10))
    path = m.path("in place")
    put(path, data(MIB), sync=True)
    fds.append(os.open(path, os.O_RDWR | os.O_DSYNC))
    os.pwrite(fds[-1], b"in place", 5000)
    want[path] = data(MIB)[:5000] + b"in place" + data(MIB)[5008:]
    m.power_cut()
    close_all(fds)
    m.start()
    for path, content in want.items():
        same(get(path), content, path)


@ck.mounted(HELD)
def who_writes_with_o_sync_and_who_does_not_have_one_file(m):
    """Of handles of one inode the kernel moves the bytes of some."""
    path, want = m.path("f"), bytearray(data(2 * MIB))
    put(path, want)
    reader = os.open(path, os.O_RDONLY)
    mapped = mmap.mmap(reader, len(want), mmap.MAP_SHARED, mmap.PROT_READ)
    plain = os.open(path, os.O_RDWR)
    synced = os.open(path, os.O_RDWR | os.O_SYNC)
    late = os.open(path, os.O_RDONLY)
    for n, fd in enumerate((synced, plain, synced, plain, synced)):
        at = 4000 * n + 90
        os.pwrite(fd, b"%d" % n * 9000, at)
        want[at:at + 9000] = b"%d" % n * 9000
        for who in (reader, plain, synced, late):
            same(os.pread(who, 3 * MIB, 0), bytes(want), f"{n} by {who}")
        same(mapped[:], bytes(want), f"{n}, mapped")
    os.lseek(synced, 0, os.SEEK_END)
    os.write(synced, b"longer")
    want += b"longer"
    for who in (reader, plain, synced, late):
        assert os.fstat(who).st_size == len(want)
        same(os.pread(who, 3 * MIB, 0), bytes(want), f"longer, by {who}")
    with mmap.mmap(synced, len(want)) as own:
        own[:4] = b"mmap"
    want[:4] = b"mmap"
    same(os.pread(late, 3 * MIB, 0), bytes(want), "written through a mapping")
    os.write(synced, b".")
    want += b"."
    mapped.close()
    m.power_cut()
    close_all((reader, plain, synced, late))
    m.start()
    same(get(path), bytes(want), "after the cut")


@ck.mounted(HELD, modes=("off",))
def one_write_with_rwf_sync_is_durable_without_passthrough(m):
    want, fds = {}, []
    for name, flag in (("sync", os.RWF_SYNC), ("dsync", os.RWF_DSYNC)):
        path = m.path(name)
        fds.append(os.open(path, os.O_WRONLY | NEW, 0o644))
        want[path] = data(100 * KIB, name)
        os.pwritev(fds[-1], [want[path]], 0, flag)
    m.power_cut()
    close_all(fds)
    m.start()
    for path, content in want.items():
        same(get(path), content, path)


def fsync_folder(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)


@ck.mounted(HELD)
def fsync_of_a_folder_makes_what_its_names_say_durable(m):
    want = {}
    os.makedirs(m.path("d/below"))
    os.mkdir(m.path("e"))
    put(m.path("d/other name"), b"old")
    os.link(m.path("d/other name"), m.path("e/linked"))  # waits for it
    put(m.path("d/other name"), data(MIB, "link"))
    want[m.path("e/linked")] = want[m.path("d/other name")] = data(MIB, "link")
    fsync_folder(m.path("e"))
    assert m.state(m.path("e/linked")) == "durable"
    for size in (10, 100 * KIB, 3 * MIB):
        for how in ("new", "over an old one", "from elsewhere", "closed"):
            path = m.path("d", f"{how} {size}")
            want[path] = data(size, path)
            if how == "over an old one":
                put(path, data(size, "old"), sync=True)
            if how == "closed":
                put(path, want[path])
                continue
            tmp = m.path("d" if how == "new" else "", f"tmp {how} {size}")
            put(tmp, want[path])
            os.rename(tmp, path)
    fsync_folder(m.path("d"))
    m.power_cut()
    m.start()
    for path, content in want.items():
        same(get(path), content, path)
    assert sorted(os.listdir(m.path("d"))) == sorted(
        [os.path.basename(p) for p in want if "/d/" in p] + ["below"])


@ck.mounted(HELD)
def fsync_of_a_folder_leaves_alone_what_is_open(m):
    os.mkdir(m.path("d"))
    fd = os.open(m.path("d/open"), os.O_WRONLY | NEW, 0o644)
    os.write(fd, data(MIB))
    put(m.path("d/closed"), data(MIB, 1))
    fsync_folder(m.path("d"))
    assert m.state(m.path("d/open")) == "staged"
    assert m.state(m.path("d/closed")) == "durable"
    put(m.path("beside"), data(MIB, 2))
    fsync_folder(m.path("d"))
    assert m.state(m.path("beside")) == "staged", "of another folder"
    os.close(fd)
    fsync_folder(m.path("d"))
    assert m.state(m.path("d/open")) == "durable"


if __name__ == "__main__":
    ck.main()
