"""Segments of the C library when memory is scarce: what is asked back from
whom, and what goes on being used."""
import errno
import os
import threading

import ckptest as ck
import ckptgpu
from ckptest import Child, data, fails, same
from ckptgpu import Ckpt, Fake, Memory


@ck.mounted("stage_size=64M")
def a_full_stage_means_writing_through_the_file_or_an_error(m):
    big = {"t": Memory(data(ck.MIB, 3) * 80)}
    c = Ckpt(ckptgpu.NO_GPU | ckptgpu.SEGMENT_ONLY)
    fails(errno.ENOSPC, c.save, m.path("f"), big)
    assert os.listdir(m.mnt) == []
    c.close()
    c = Ckpt()
    c.save(m.path("f"), big)
    assert c.counters().plain_saves == 1
    same(c.load(m.path("f"))["t"], big["t"].get())
    assert os.listdir(m.mnt) == ["f"]
    c.close()


@ck.mounted("stage_size=256M,debug_hold_drain")
def memory_is_given_back_when_the_mount_asks(m):
    first, second = Ckpt(), Ckpt()
    first.save(m.path("f"), {"t": Memory(bytes(ck.MIB) * 60)})
    # It is not durable, so the next save needs another segment.
    ck.until("the second segment", lambda: m.status()["segments"] == 2)
    m.flush()
    second.save(m.path("g"), {"t": Memory(b"x" * ck.MIB * 180)}, wait=True)
    assert second.counters().plain_saves == 0
    assert first.counters().released > 0
    first.save(m.path("h"), {"t": Memory(b"y" * ck.MIB * 60)}, wait=True)
    same(first.load(m.path("h"))["t"], b"y" * ck.MIB * 60)
    first.close()
    second.close()
    ck.until("all given back", lambda: m.status()["segments"] == 0)


@ck.mounted("stage_size=64M")
def with_room_for_one_generation_it_is_used_again(m):
    def work():
        fake = Fake()
        c = Ckpt(ckptgpu.SEGMENT_ONLY)
        content = data(40 * ck.MIB, 1)
        t = {"t": fake.memory(0, content)}
        for step in range(8):
            c.save(m.path(f"f{step}"), t)
        k = c.counters()
        assert (k.segments_new, k.released, k.pinned_bytes) == \
            (1, 0, os.path.getsize(m.path("f0"))), (k.segments_new, k.released)
        same(c.load(m.path("f7"))["t"], content)
        c.close()
    Child(work).result()


@ck.mounted("stage_size=64M")
def two_saves_at_once_take_turns_in_the_only_one(m):
    c = Ckpt(ckptgpu.NO_GPU | ckptgpu.SEGMENT_ONLY)

    def work(n):
        for step in range(6):
            t = {"t": Memory(data(ck.MIB, step * n) * 40)}
            c.save(m.path(f"f{n}"), t)
    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    k = c.counters()
    assert (k.saves, k.segments_new, k.released) == (12, 1, 0), \
        (k.saves, k.segments_new, k.released)
    for n in (1, 2):
        same(c.load(m.path(f"f{n}"))["t"], data(ck.MIB, 5 * n) * 40)
    c.close()


@ck.mounted("stage_size=150M")
def a_second_generation_is_not_taken_from_who_saves_as_well(m):
    clients = [Ckpt(ckptgpu.NO_GPU | ckptgpu.SEGMENT_ONLY) for _ in range(2)]
    for step in range(6):
        for n, c in enumerate(clients):
            c.save(m.path(f"f{n}"), {"t": Memory(data(ck.MIB, n) * 40)},
                   wait=True)
    made = sorted(c.counters().segments_new for c in clients)
    # There is room for three; who is first may have two.
    assert made in ([1, 1], [1, 2]), made
    assert sum(c.counters().released for c in clients) == 0
    for c in clients:
        c.close()


@ck.mounted("stage_size=150M,debug_hold_drain")
def what_nobody_saves_any_more_makes_room_for_a_second_one(m):
    c = Ckpt(ckptgpu.NO_GPU | ckptgpu.SEGMENT_ONLY)
    old = {"old": Memory(data(ck.MIB, 1) * 40)}
    new = {"new": Memory(data(ck.MIB, 2) * 40)}
    for _ in range(2):  # the first is not durable yet
        c.save(m.path("f"), old)
    m.flush()
    assert m.status()["segments"] == 2
    for _ in range(40):  # the one before is not durable yet
        c.save(m.path("f"), new)
    k = c.counters()
    assert (k.segments_new, k.released) == (4, 1), \
        (k.segments_new, k.released)
    c.close()


@ck.mounted("stage_size=512M")
def who_reads_old_versions_keeps_none_of_the_savers_memory(m):
    c = Ckpt(ckptgpu.NO_GPU | ckptgpu.SEGMENT_ONLY)
    readers = []
    for step in range(6):
        c.save(m.path("f"), {"t": Memory(data(ck.MIB, step) * 40)}, wait=True)
        readers.append(open(m.path("f"), "rb"))
        mapped = [line for line in open("/proc/self/maps")
                  if "/segment" in line or "stage" in line]
        assert len(mapped) <= 3, mapped
    k = c.counters()
    for step, r in enumerate(readers):
        r.seek(-40 * ck.MIB, os.SEEK_END)
        same(r.read(), data(ck.MIB, step) * 40)
        r.close()
    assert k.plain_saves == 0
    c.close()


if __name__ == "__main__":
    ck.main()
