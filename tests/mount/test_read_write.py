"""Bytes written are the bytes read: odd offsets, appends, O_DIRECT, many
handles at once, and files that change after they became durable."""
import errno
import mmap
import os
import random
import threading

import ckptest as ck
from ckptest import KIB, MIB, PAGE, data, get, put, same

SIZES = (0, 1, 511, PAGE - 1, PAGE, PAGE + 1, 32 * KIB, 32 * KIB + 1,
         128 * KIB + 7, MIB, 3 * MIB + 3439)


@ck.posix
def files_of_every_size_are_read_back_in_every_stage(fs):
    for size in SIZES:
        put(fs.path(f"f{size}"), data(size, size))
    names = [fs.path(f"f{size}") for size in SIZES]
    for stage in fs.stages(*names):
        for size in SIZES:
            path = fs.path(f"f{size}")
            assert os.stat(path).st_size == size, (stage, size)
            same(get(path), data(size, size), f"{stage} {size}")


@ck.posix
def reads_at_odd_offsets_see_exactly_their_bytes(fs):
    path, content = fs.path("f"), data(2 * MIB + 77)
    put(path, content)
    places = [(0, 1), (1, 4095), (4095, 2), (PAGE, PAGE), (MIB - 1, MIB + 5),
              (2 * MIB + 76, 1), (2 * MIB + 76, 100), (2 * MIB + 77, 10),
              (9 * MIB, 1), (33, 2 * MIB)]
    for stage in fs.stages(path):
        fd = os.open(path, os.O_RDONLY)
        for at, size in places:
            same(os.pread(fd, size, at), content[at:at + size],
                 f"{stage} {at}+{size}")
        os.close(fd)


@ck.posix
def random_writes_match_a_model_in_memory(fs):
    seed = ck.SEED
    print(f"seed {seed}")
    rand = random.Random(seed)
    path = fs.path("f")
    model = bytearray()
    for step in range(6):
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        for _ in range(25):
            if rand.random() < 0.1:
                size = rand.randrange(1 + len(model) * 5 // 4)
                os.ftruncate(fd, size)
                model = model[:size] + bytes(size - len(model[:size]))
                continue
            at = rand.randrange(1 + len(model) + 70000)
            piece = rand.randbytes(rand.choice((1, 100, 4096, 70001, 300000)))
            os.pwrite(fd, piece, at)
            model += bytes(max(0, at + len(piece) - len(model)))
            model[at:at + len(piece)] = piece
            if rand.random() < 0.05:
                os.fsync(fd)
        same(os.pread(fd, len(model) + 1, 0), bytes(model), f"step {step}")
        os.close(fd)
        if step == 2:
            fs.flush(path)
        if step == 4:
            fs.remount()
        same(get(path), bytes(model), f"after step {step}")


@ck.posix
def appends_of_two_writers_never_overlap(fs):
    path = fs.path("log")
    put(path, b"")

    def append(tag):
        fd = os.open(path, os.O_WRONLY | os.O_APPEND)
        for i in range(200):
            line = f"{tag} {i:4d} ".encode().ljust(97, b".") + b"\n"
            assert os.write(fd, line) == len(line)
        os.close(fd)
    writers = [ck.Child(lambda tag=tag: append(tag)) for tag in "ab"]
    for writer in writers:
        writer.result()
    for stage in fs.stages(path):
        lines = get(path).split(b"\n")
        assert len(lines) == 401 and lines[-1] == b"", (stage, len(lines))
        for tag in (b"a", b"b"):
            mine = [line for line in lines if line.startswith(tag)]
            assert [int(x.split()[1]) for x in mine] == list(range(200)), stage


@ck.posix
def append_goes_to_the_end_whatever_the_position(fs):
    path = fs.path("f")
    put(path, b"12345")
    fd = os.open(path, os.O_RDWR | os.O_APPEND)
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, b"67")
    assert os.lseek(fd, 0, os.SEEK_CUR) == 7
    assert os.pread(fd, 99, 0) == b"1234567"
    os.close(fd)


@ck.posix
def direct_io_with_an_appended_tail(fs):
    """DeepSpeed's FastFileWriter: aligned O_DIRECT writes, the tail appended
    by another handle, then O_DIRECT | O_APPEND again."""
    path, content = fs.path("zero.pt"), data(2 * MIB + 1234)
    buffer = mmap.mmap(-1, MIB)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o644)
    for at in (0, MIB):
        buffer[:] = content[at:at + MIB]
        assert os.write(fd, buffer) == MIB
    os.fsync(fd)
    os.close(fd)
    with open(path, "ab") as f:
        f.write(content[2 * MIB:])
    same(get(path), content, "tail")
    pad = data(PAGE - 1234, "pad")
    with open(path, "ab") as f:
        f.write(pad)
    fd = os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_APPEND)
    buffer[:] = data(MIB, "more")
    assert os.write(fd, buffer) == MIB
    os.close(fd)
    content += pad + data(MIB, "more")
    for stage in fs.stages(path):
        same(get(path), content, stage)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        assert os.preadv(fd, [buffer], MIB) == MIB
        same(buffer[:], content[MIB:2 * MIB], stage + " O_DIRECT")
        os.close(fd)


@ck.posix
def a_writer_and_a_reader_see_the_same_file(fs):
    path = fs.path("f")
    for stage in fs.stages():
        writer = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        reader = os.open(path, os.O_RDONLY)
        for i in range(64):
            piece = data(5000, i)
            os.write(writer, piece)
            same(os.read(reader, 9999), piece, f"{stage} piece {i}")
            assert os.fstat(reader).st_size == (i + 1) * 5000, stage
        os.pwrite(writer, b"changed", 100)
        assert os.pread(reader, 7, 100) == b"changed", stage
        os.close(writer)
        same(os.pread(reader, 5000, 5000), data(5000, 1), stage)
        os.close(reader)


@ck.posix
def many_handles_in_mixed_modes_share_one_file(fs):
    path, content = fs.path("f"), data(MIB)
    put(path, content)
    # A writer first: who only reads keeps what was there when he came.
    modes = (os.O_RDWR, os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_APPEND,
             os.O_RDONLY | os.O_DIRECT, os.O_RDWR | os.O_DIRECT)
    for stage in fs.stages(path):
        fds = [(mode, os.open(path, mode)) for mode in modes * 20]
        for i, (mode, fd) in enumerate(fds):
            if mode & os.O_ACCMODE == os.O_RDWR and not mode & os.O_DIRECT \
                    and not mode & os.O_APPEND:
                os.pwrite(fd, bytes([i]), i)
                content = content[:i] + bytes([i]) + content[i + 1:]
        random.Random(1).shuffle(fds)
        for mode, fd in fds:
            if mode & os.O_ACCMODE != os.O_WRONLY \
                    and not mode & os.O_DIRECT:
                same(os.pread(fd, MIB, 0), content, stage)
            os.close(fd)
        same(get(path), content, stage)


@ck.posix
def closing_and_opening_in_turns_loses_nothing(fs):
    """RELEASE of one handle may arrive after the OPEN of the next."""
    path = fs.path("f")
    put(path, b"")
    for i in range(300):
        fd = os.open(path, os.O_WRONLY if i % 2 else os.O_RDWR)
        os.pwrite(fd, b"%04d" % i, 4 * i)
        os.close(fd)
    assert get(path) == b"".join(b"%04d" % i for i in range(300))
    stop = threading.Event()

    def reopen():
        while not stop.is_set():
            assert len(get(path)) >= 1200
    readers = [threading.Thread(target=reopen) for _ in range(3)]
    for reader in readers:
        reader.start()
    for i in range(300, 600):
        with open(path, "ab") as f:
            f.write(b"%04d" % i)
    stop.set()
    for reader in readers:
        reader.join()
    assert get(path) == b"".join(b"%04d" % i for i in range(600))


@ck.posix
def a_durable_file_can_be_changed_anywhere(fs):
    changes = (("append small", None, 10), ("append big", None, 100 * KIB),
               ("first byte", 0, 1), ("middle", MIB + 17, 5000),
               ("past the end", 3 * MIB, 4097))
    for size in (100, 20 * KIB, 2 * MIB + 5):
        for what, at, count in changes:
            path = fs.path(f"{what} {size}")
            put(path, data(size))
    fs.flush()
    want = {}
    for size in (100, 20 * KIB, 2 * MIB + 5):
        for what, at, count in changes:
            path, piece = fs.path(f"{what} {size}"), data(count, what)
            content = bytearray(data(size))
            with open(path, "ab" if at is None else "r+b") as f:
                f.seek(size if at is None else at)
                f.write(piece)
            at = size if at is None else at
            content += bytes(max(0, at + count - len(content)))
            content[at:at + count] = piece
            want[path] = bytes(content)
    for stage in fs.stages(*want):
        for path, content in want.items():
            same(get(path), content, f"{stage} {path}")


@ck.posix
def a_durable_file_is_changed_while_it_is_read(fs):
    path, content = fs.path("f"), data(2 * MIB)
    put(path, content)
    fs.flush(path)
    reader = os.open(path, os.O_RDONLY)
    same(os.pread(reader, 2 * MIB, 0), content, "before")
    with open(path, "r+b", buffering=0) as f:
        f.seek(MIB)
        f.write(b"new bytes")
        f.seek(0, os.SEEK_END)
        f.write(b"tail")
        # Served by the kernel from committed bytes, which never change, the
        # reader keeps what it opened, whole; else it sees what is written.
        seen = os.pread(reader, 3 * MIB, 0)
        new = content[:MIB] + b"new bytes" + content[MIB + 9:] + b"tail"
        assert seen in (content, new), "a mixture"
    os.close(reader)
    want = content[:MIB] + b"new bytes" + content[MIB + 9:] + b"tail"
    for stage in fs.stages(path):
        same(get(path), want, stage)


@ck.posix
def opens_that_must_fail_say_why(fs):
    os.mkdir(fs.path("d"))
    put(fs.path("f"), b"x")
    os.symlink("f", fs.path("l"))
    new = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    for code, name, flags in (
            (errno.ENOENT, "nothing", os.O_RDONLY),
            (errno.ENOENT, "nothing/f", os.O_CREAT | os.O_WRONLY),
            (errno.EEXIST, "f", new), (errno.EEXIST, "l", new),
            (errno.EEXIST, "d", new), (errno.EISDIR, "d", os.O_WRONLY),
            (errno.EISDIR, "d", os.O_RDWR), (errno.ENOTDIR, "f/x", os.O_RDONLY),
            (errno.ENOTDIR, "f", os.O_RDONLY | os.O_DIRECTORY),
            (errno.ELOOP, "l", os.O_RDONLY | os.O_NOFOLLOW)):
        ck.fails(code, os.open, fs.path(name), flags)
    fd = os.open(fs.path("f"), os.O_RDONLY)
    ck.fails(errno.EBADF, os.write, fd, b"x")
    os.close(fd)
    fd = os.open(fs.path("f"), os.O_WRONLY)
    ck.fails(errno.EBADF, os.read, fd, 1)
    os.close(fd)
    fd = os.open(fs.path("d"), os.O_RDONLY)
    ck.fails(errno.EISDIR, os.read, fd, 1)
    os.fsync(fd)
    os.close(fd)


if __name__ == "__main__":
    ck.main()
