"""Weights that one process saves and another one loads, each with a device of
its own (tests/gpu/fake_cuda.c): how often each byte is copied, and what the
reader has while the writer goes on."""
import ctypes
import errno
import os

import ckptest as ck
import ckptgpu
from ckptest import data, same
from ckptgpu import Ckpt, Fake

SIZE = 3 * ck.MIB + 12345
NAMES = ("a", "b", "tiny")


def weights(version):
    return {name: data(5 if name == "tiny" else SIZE, f"{version} {name}")
            for name in NAMES}


def total(version):
    return sum(map(len, weights(version).values()))


class Reader:
    """An open version."""

    def __init__(self, c, path):
        self.lib, self.f = ckptgpu.lib(), ctypes.c_void_p()
        ckptgpu.check(self.lib.ckpt_file_open(c.c, os.fsencode(path),
                                              ctypes.byref(self.f)))

    def pin(self):
        return self.lib.ckpt_file_pin(self.f)

    def read(self, fake, device):
        rooms, targets = {}, []
        for i in range(self.lib.ckpt_file_count(self.f)):
            e = self.lib.ckpt_file_entry(self.f, ctypes.c_size_t(i))
            room = fake.memory(device, bytes(e.contents.bytes))
            rooms[e.contents.name.decode()] = room
            targets.append(ckptgpu.Target(e, room.address, device))
        array = (ckptgpu.Target * len(targets))(*targets)
        ckptgpu.check(self.lib.ckpt_file_read(self.f, array,
                                              ctypes.c_size_t(len(targets))))
        return {name: room.get() for name, room in rooms.items()}

    def close(self):
        self.lib.ckpt_file_close(self.f)


class Steps:
    """What two processes have done, as each tells the other."""

    def __init__(self):
        self.to_reader, self.to_writer = os.pipe(), os.pipe()

    def writer_did(self):
        os.write(self.to_reader[1], b".")

    def reader_did(self):
        os.write(self.to_writer[1], b".")

    def wait_for_writer(self):
        assert os.read(self.to_reader[0], 1) == b"."

    def wait_for_reader(self):
        assert os.read(self.to_writer[0], 1) == b"."


def writer(m, steps, versions):
    """Publishes each, and takes away the one before."""
    fake, c = Fake(), Ckpt(0)
    for v in range(versions):
        tensors = {n: fake.memory(0, x) for n, x in weights(v).items()}
        before = fake.d2h_bytes
        c.save(m.path(f"v{v}"), tensors, wait=True)
        assert fake.d2h_bytes - before == total(v), "one copy for each byte"
        if v > 0:
            os.unlink(m.path(f"v{v - 1}"))
        steps.writer_did()
        if v in (0, versions - 1):
            steps.wait_for_reader()
    k = c.counters()
    assert (k.saves, k.plain_saves) == (versions, 0)
    c.close()


@ck.mounted()
def each_byte_is_copied_once_from_a_device_and_once_to_another(m):
    versions, steps = 5, Steps()
    child = ck.Child(lambda: writer(m, steps, versions))

    def reader():
        fake, c = Fake(), Ckpt(0)
        steps.wait_for_writer()
        held = Reader(c, m.path("v0"))
        assert held.pin() == 0, ckptgpu.lib().ckpt_last_error()
        assert held.pin() == 0  # it is
        size = os.stat(m.path("v0")).st_size
        assert fake.pinned_bytes == size == c.counters().pinned_bytes
        steps.reader_did()
        for _ in range(versions - 1):
            steps.wait_for_writer()
        assert os.listdir(m.mnt) == [f"v{versions - 1}"]
        for device in (0, 1):
            before = fake.h2d_bytes
            assert held.read(fake, device) == weights(0)
            assert fake.h2d_bytes - before == total(0), "one copy"
        assert c.counters().h2d_bytes == 2 * total(0)
        assert c.counters().buffered_bytes == 0, "and none on the host"
        held.close()
        assert fake.pinned_bytes == 0 == c.counters().pinned_bytes
        newest = Reader(c, m.path(f"v{versions - 1}"))
        assert newest.read(fake, 0) == weights(versions - 1)
        assert c.counters().buffered_bytes == total(0), "unpinned: buffers"
        newest.close()
        c.close()
        assert fake.pinned_bytes == 0
        steps.reader_did()
    ck.Child(reader).result()
    child.result()


@ck.mounted()
def what_cannot_be_pinned_goes_through_buffers(m):
    def reader():
        c = Ckpt(ckptgpu.NO_GPU)
        c.save(m.path("v"), {n: ckptgpu.Memory(x)
                             for n, x in weights(1).items()})
        f = Reader(c, m.path("v"))
        assert f.pin() == -errno.ENODEV
        assert b"CKPT_NO_GPU" in ckptgpu.lib().ckpt_last_error()
        f.close()
        c.close()
        fake, c = Fake(), Ckpt(0)
        f = Reader(c, m.path("v"))
        fake.cu.fake_cuda_fail(b"cuMemHostRegister_v2", 1, 801)
        assert f.pin() < 0
        assert b"operation not supported" in ckptgpu.lib().ckpt_last_error()
        assert f.read(fake, 1) == weights(1)
        k = c.counters()
        assert (k.pin_failures, k.h2d_bytes, k.buffered_bytes) == \
            (1, total(1), total(1))
        f.close()
        c.close()
        assert fake.pinned_bytes == 0
    ck.Child(reader).result()


@ck.mounted()
def a_file_that_was_cut_short_is_not_pinned(m):
    def reader():
        fake, c = Fake(), Ckpt(0)
        c.save(m.path("v"), {n: ckptgpu.Memory(x)
                             for n, x in weights(1).items()}, wait=True)
        f = Reader(c, m.path("v"))
        os.truncate(m.path("v"), 4096)
        if f.pin() == 0:  # it kept its version
            same(f.read(fake, 0)["a"], weights(1)["a"])
        else:
            assert b"shorter now" in ckptgpu.lib().ckpt_last_error()
            ck.fails(errno.ESTALE, f.read, fake, 0)
        f.close()
        c.close()
    ck.Child(reader).result()


if __name__ == "__main__":
    ck.main()
