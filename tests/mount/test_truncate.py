"""Sizes and holes: O_TRUNC, truncate, fallocate, SEEK_DATA, SEEK_HOLE and
copy_file_range, on files in memory and on files that are durable."""
import errno
import os
import threading

import ckptest as ck
from ckptest import KIB, MIB, PAGE, data, get, put, same

KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16


@ck.posix
def opening_with_o_trunc_empties_the_file(fs):
    path = fs.path("f")
    for durable in (False, True):
        for size in (10, 100 * KIB):
            put(path, data(size))
            if durable:
                fs.flush(path)
            fd = os.open(path, os.O_WRONLY | os.O_TRUNC)
            assert os.fstat(fd).st_size == 0 and get(path) == b""
            os.write(fd, b"new")
            os.close(fd)
            assert get(path) == b"new", (durable, size)
    os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))
    for stage in fs.stages(path):
        assert os.stat(path).st_size == 0 and get(path) == b"", stage


@ck.mounted()
def a_reader_keeps_the_whole_old_content_over_o_trunc(m):
    """Of what is larger than a log."""
    path, old, new = m.path("f"), data(64 * MIB + 1, "old"), data(MIB, "new")
    for durable in (False, True):
        put(path, old)
        if durable:
            m.flush(path)
        reader = os.open(path, os.O_RDONLY)
        same(os.pread(reader, 100, 0), old[:100], "before")
        put(path, new)
        same(os.pread(reader, 65 * MIB, 0), old, f"durable {durable}: reader")
        assert os.fstat(reader).st_size == len(old)
        same(get(path), new, "a new reader")
        m.flush(path)
        same(os.pread(reader, 65 * MIB, 0), old, "reader after the drain")
        os.close(reader)
        same(get(path), new, "after close")


@ck.posix
def a_writer_goes_on_after_its_file_was_truncated(fs):
    """Two handles for writing, one of them opened with O_TRUNC: one file."""
    path = fs.path("f")
    first = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(first, b"1234")
    put(path, b"ab")
    os.write(first, b"56")
    os.close(first)
    for stage in fs.stages(path):
        assert get(path) == b"ab\0\0" + b"56", stage


@ck.posix
def truncate_cuts_and_extends(fs):
    content = data(200 * KIB)
    for durable in (False, True):
        for by_fd in (False, True):
            for size in (0, 1, PAGE, 150001, 200 * KIB, 200 * KIB + 1, MIB):
                path = fs.path(f"{durable} {by_fd} {size}")
                put(path, content)
                if durable and size != PAGE:
                    fs.flush(path)
                if by_fd:
                    with open(path, "r+b") as f:
                        f.truncate(size)
                        assert os.fstat(f.fileno()).st_size == size
                else:
                    os.truncate(path, size)
                assert os.stat(path).st_size == size
    for stage in fs.stages(*map(fs.path, os.listdir(fs.dir))):
        for name in os.listdir(fs.dir):
            size = int(name.split()[-1])
            same(get(fs.path(name)), content[:size] + bytes(
                max(0, size - len(content))), f"{stage} {name}")


@ck.posix
def a_cut_tail_never_comes_back(fs):
    path = fs.path("f")
    for size in (1000, 300 * KIB):
        put(path, b"x" * size)
        fs.flush(path)
        os.truncate(path, 100)
        os.truncate(path, size)
        for stage in fs.stages(path):
            same(get(path), b"x" * 100 + bytes(size - 100), stage)


@ck.posix
def truncate_fails_where_it_must(fs):
    put(fs.path("f"), b"x")
    os.mkdir(fs.path("d"))
    ck.fails(errno.EISDIR, os.truncate, fs.path("d"), 0)
    ck.fails(errno.ENOENT, os.truncate, fs.path("no"), 0)
    ck.fails(errno.EINVAL, os.truncate, fs.path("f"), -1)
    fd = os.open(fs.path("f"), os.O_RDONLY)
    ck.fails(errno.EINVAL, os.ftruncate, fd, 0)
    os.close(fd)


@ck.posix
def fallocate_reserves_extends_and_punches(fs):
    content = data(256 * KIB)
    for durable in (False, True):
        path = fs.path(f"f{durable}")
        put(path, content)
        if durable:
            fs.flush(path)
        fd = os.open(path, os.O_RDWR)
        ck.fallocate(fd, KEEP_SIZE, 0, MIB)
        assert os.fstat(fd).st_size == 256 * KIB
        ck.fallocate(fd, 0, 256 * KIB, 100)
        assert os.fstat(fd).st_size == 256 * KIB + 100
        ck.fallocate(fd, PUNCH_HOLE | KEEP_SIZE, 10000, 100000)
        want = content[:10000] + bytes(100000) + content[110000:] + bytes(100)
        same(os.pread(fd, MIB, 0), want, "punched")
        ck.fallocate(fd, ZERO_RANGE, 200000, 1000)
        ck.fallocate(fd, ZERO_RANGE | KEEP_SIZE, 250000, MIB)
        want = want[:200000] + bytes(1000) + want[201000:250000]
        want += bytes(256 * KIB + 100 - len(want))
        same(os.pread(fd, MIB, 0), want, "zeroed")
        ck.fallocate(fd, ZERO_RANGE, 256 * KIB, 2000)
        want += bytes(1900)
        same(os.pread(fd, MIB, 0), want, "longer")
        for code, mode, at, size in ((errno.EINVAL, 0, 0, 0),
                                     (errno.EINVAL, 0, -1, 10),
                                     (errno.EOPNOTSUPP, PUNCH_HOLE, 0, 10)):
            ck.fails(code, ck.fallocate, fd, mode, at, size)
        os.close(fd)
        for stage in fs.stages(path):
            same(get(path), want, f"{stage} durable {durable}")


@ck.mounted(start=False)
def a_range_in_memory_is_zeroed_as_well(m):
    """tmpfs itself cannot: FALLOC_FL_ZERO_RANGE is answered alike everywhere."""
    m.start("debug_stage=memory", "debug_hold_drain")
    with open(m.path("f"), "w+b", buffering=0) as f:
        f.write(data(256 * KIB))
        ck.fallocate(f.fileno(), ZERO_RANGE, 5000, 100000)
        ck.fallocate(f.fileno(), ZERO_RANGE, 256 * KIB - 10, 1000)
    want = data(256 * KIB)
    want = want[:5000] + bytes(100000) + want[105000:-10] + bytes(1000)
    same(get(m.path("f")), want)


@ck.posix
def a_sparse_file_keeps_its_holes(fs):
    path = fs.path("sparse")
    piece = data(64 * KIB)
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    os.pwrite(fd, piece, 16 * MIB)
    os.ftruncate(fd, 64 * MIB)
    os.close(fd)
    for stage in fs.stages(path):
        assert os.stat(path).st_size == 64 * MIB
        assert os.stat(path).st_blocks * 512 <= 8 * MIB, stage
        fd = os.open(path, os.O_RDONLY)
        at = os.lseek(fd, 0, os.SEEK_DATA)
        assert at <= 16 * MIB, (stage, at)
        if stage != "staged":  # the stage may keep data in huge pages
            assert at > 12 * MIB, (stage, at)
        hole = os.lseek(fd, 16 * MIB, os.SEEK_HOLE)
        assert 16 * MIB + 64 * KIB <= hole <= 64 * MIB, (stage, hole)
        assert os.lseek(fd, 16 * MIB + 5, os.SEEK_DATA) == 16 * MIB + 5
        same(os.pread(fd, 64 * KIB + 1, 16 * MIB), piece + b"\0", stage)
        same(os.pread(fd, MIB, 40 * MIB), bytes(MIB), stage)
        for whence in (os.SEEK_DATA, os.SEEK_HOLE):
            ck.fails(errno.ENXIO, os.lseek, fd, 64 * MIB, whence)
        os.close(fd)


@ck.posix
def seeking_in_a_dense_file_finds_no_hole_before_its_end(fs):
    path = fs.path("f")
    for size in (1, 20 * KIB, MIB + 3):
        put(path, data(size))
        for stage in fs.stages(path):
            fd = os.open(path, os.O_RDONLY)
            assert os.lseek(fd, 0, os.SEEK_DATA) == 0, stage
            assert os.lseek(fd, 0, os.SEEK_HOLE) == size, stage
            assert os.lseek(fd, -1, os.SEEK_END) == size - 1, stage
            ck.fails(errno.EINVAL, os.lseek, fd, -1, os.SEEK_SET)
            os.close(fd)


@ck.posix
def copy_file_range_copies_between_and_within_files(fs):
    content = data(MIB + 17)
    for durable in (False, True):
        source, target = fs.path(f"s{durable}"), fs.path(f"t{durable}")
        put(source, content)
        if durable:
            fs.flush(source)
        a = os.open(source, os.O_RDONLY)
        b = os.open(target, os.O_RDWR | os.O_CREAT, 0o644)
        done = 0
        while done < len(content):
            n = os.copy_file_range(a, b, len(content))
            assert n > 0
            done += n
        assert os.copy_file_range(a, b, 100) == 0  # the end of the source
        n = os.copy_file_range(a, b, 5000, 333, 4096)
        assert n == 5000, n
        n = os.copy_file_range(b, b, 1000, 0, MIB)
        assert n == 1000, n
        ck.fails(errno.EINVAL, os.copy_file_range, b, b, 1000, 0, 500)
        os.close(a)
        os.close(b)
        want = bytearray(content)
        want[4096:9096] = content[333:5333]
        want[MIB:MIB + 1000] = want[0:1000]
        for stage in fs.stages(source, target):
            same(get(source), content, f"{stage} source")
            same(get(target), bytes(want), f"{stage} target {durable}")


@ck.posix
def a_file_that_is_polled_is_replaced_without_an_error(fs):
    """A tracker, or a checkpoint that an evaluation waits for."""
    for size, rounds in ((20, 1500), (3 * MIB, 60)):
        path, over = fs.path(f"f{size}"), threading.Event()
        put(path, data(size, 0))
        failed = []

        def poll():
            try:
                while not over.is_set():
                    get(path)
            except OSError as e:
                failed.append(e)

        readers = [threading.Thread(target=poll) for _ in range(3)]
        for t in readers:
            t.start()
        try:
            for i in range(rounds):
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.write(fd, data(size, i))
                os.close(fd)
        finally:
            over.set()
            for t in readers:
                t.join()
        assert not failed, failed
        for stage in fs.stages(path):
            same(get(path), data(size, rounds - 1), f"{size} {stage}")


if __name__ == "__main__":
    ck.main()
