"""Saving and loading through the C library, on host memory and, by way of a
driver on host memory, from devices."""
import ctypes
import contextlib
import errno
import json
import os
import signal
import struct
import threading
from contextlib import closing

import ckptest as ck
import ckptgpu
import segments
from ckptest import Child, data, fails, put, same
from ckptgpu import Ckpt, Fake, Memory

BIG = 5 * ck.MIB + 123


def tensors(seed, fake=None, size=BIG):
    """Some tensors; every second one on a device when there is a driver."""
    made = {}
    for i, n in enumerate((size, 4096, 0, 1, size // 2)):
        content = data(n, f"{seed} {i}")
        made[f"t{i}"] = fake.memory(i % 2, content) if fake and n and \
            i % 2 == 0 else Memory(content)
    return made


def alike(got, want, what=""):
    assert sorted(got) == sorted(want), (sorted(got), sorted(want))
    for name, memory in want.items():
        content = memory if isinstance(memory, bytes) else memory.get()
        same(got[name], content, f"{what} {name}")


def alone(fn):
    """In a process of its own: a driver is opened once for each."""
    def run(m):
        Child(lambda: fn(m)).result()
    run.__name__ = fn.__name__
    return run


def header(path):
    with open(path, "rb") as f:
        return json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))


@ck.mounted()
def saves_of_one_structure_use_two_segments_and_no_more_descriptors(m):
    c = Ckpt()
    counts = []
    for step in range(6):
        c.save(m.path(f"step_{step}"), tensors(step), {"step": str(step)},
               wait=True)
        counts.append(len(os.listdir("/proc/self/fd")))
        assert header(m.path(f"step_{step}"))["__metadata__"] == \
            {"step": str(step)}
    assert len(set(counts[1:])) == 1, counts
    k = c.counters()
    assert k.segments_new <= 2 and k.saves == 6 and k.plain_saves == 0, \
        k.segments_new
    for state in m.stages(*(m.path(f"step_{s}") for s in range(6))):
        for step in range(6):
            alike(c.load(m.path(f"step_{step}")), tensors(step),
                  f"{state} {step}")
    c.close()


def placed(seed):
    """Pieces of a file with gaps between them, and what the file is."""
    size, pieces, whole = 3 * BIG, [], bytearray(3 * BIG)
    for i, (offset, n) in enumerate(((7, 100), (4096, BIG), (size - 9, 9))):
        content = data(n, f"{seed} {i}")
        pieces.append((offset, content))
        whole[offset:offset + n] = content
    return pieces, bytes(whole)


def save_placed(c, path, pieces):
    with closing(c.begin(path)) as s:
        for offset, content in pieces:
            s.add(f"at {offset}", Memory(content), offset=offset)
        s.commit()
        s.wait()


@ck.mounted()
def files_of_other_formats_are_laid_out_in_segments(m):
    c = Ckpt()
    for step in range(4):
        pieces, whole = placed(step)
        save_placed(c, m.path(f"f{step}"), pieces)
        with open(m.path(f"f{step}"), "rb") as f:
            same(f.read(), whole, step)
    k = c.counters()
    assert k.segments_new <= 2 and k.plain_saves == 0, k.segments_new
    with closing(c.begin(m.path("over"))) as s:
        s.add("a", Memory(b"abc"), offset=0)
        s.add("b", Memory(b"abc"), offset=2)
        fails(errno.EINVAL, s.commit)
    assert not os.path.exists(m.path("over"))
    c.close()
    # Through the file: a window's bytes are no part of the next one's gaps.
    c = Ckpt(ckptgpu.NO_GPU | ckptgpu.PLAIN, buffer_bytes=8192)
    pieces, whole = placed(9)
    save_placed(c, os.path.join(m.base, "plain"), pieces)
    with open(os.path.join(m.base, "plain"), "rb") as f:
        same(f.read(), whole)
    c.close()


@ck.mounted()
def saves_with_flags_of_their_own_share_segments(m):
    def run():
        fake = Fake()
        c = Ckpt(flags=0)
        for step, flags in enumerate((0, ckptgpu.SKIP_UNCHANGED, 0,
                                      ckptgpu.SEGMENT_ONLY) * 2):
            with closing(c.begin(m.path("f"), flags)) as s:
                for name, memory in tensors(step // 2, fake).items():
                    s.add(name, memory)
                s.commit()
                s.wait()
            alike(c.load(m.path("f")), tensors(step // 2), step)
        assert c.counters().segments_new <= 2, c.counters().segments_new
        with closing(c.begin(os.path.join(m.base, "plain"),
                             ckptgpu.PLAIN)) as s:
            s.commit()
        fails(errno.ENOTTY, lambda: c.begin(os.path.join(m.base, "x"), 0))
        fails(errno.EINVAL,
              lambda: c.begin(m.path("f"), ckptgpu.NO_GPU))
        c.close()
    Child(run).result()


@ck.mounted("debug_hold_drain")
def a_save_never_overwrites_one_that_is_not_durable(m):
    c = Ckpt()
    for step in range(5):  # the third and later wait for the first ones
        c.save(m.path(f"f{step}"), {"t": Memory(bytes([step]) * BIG)})
    for step in range(5):
        same(c.load(m.path(f"f{step}"))["t"], bytes([step]) * BIG, step)
    assert c.counters().segments_new == 2
    c.close()


@ck.mounted()
def what_changes_after_the_commit_is_not_in_the_file(m):
    c = Ckpt()
    step = Memory(struct.pack("<f", 1.0))
    with_step = {"step": step, "w": Memory(data(BIG, 1))}
    c.save(m.path("f"), with_step)
    step.set(struct.pack("<f", 2.0))
    assert c.load(m.path("f"))["step"] == bytes.fromhex("0000803f")
    s = c.begin(m.path("g"))
    s.add("step", step)
    s.start()
    s.commit()
    step.set(bytes(4))
    s.wait()
    s.close()
    assert c.load(m.path("g"))["step"] == struct.pack("<f", 2.0)
    c.close()


@ck.mounted()
def a_changed_structure_is_built_anew(m):
    c = Ckpt()
    a, b = Memory(data(BIG, "a")), Memory(data(4096, "b"))
    versions = [{"a": a, "b": b}, {"a": a}, {"a": a, "b": b, "c": b},
                {"a": b, "b": a}, {"a": a, "b": Memory(data(4097, "b"))},
                {"a": a, "b": b}]
    for i, version in enumerate(versions * 2):
        c.save(m.path(f"f{i}"), version, wait=True)
        alike(c.load(m.path(f"f{i}")), version, i)
    s = c.begin(m.path("retyped"))
    s.add("a", a)
    s.add("b", b, dtype="F32", shape=[1024])
    s.commit()
    s.close()
    assert header(m.path("retyped"))["b"]["dtype"] == "F32"
    alike(c.load(m.path("retyped")), {"a": a, "b": b})
    c.close()


@ck.mounted()
def a_restart_between_saves_is_not_noticed(m):
    c = Ckpt()
    for step in range(6):
        c.save(m.path(f"f{step}"), tensors(step))
        if step % 2:
            m.kill()
            m.start()
    for step in range(6):
        alike(c.load(m.path(f"f{step}")), tensors(step), step)
    c.close()


@ck.mounted()
def a_restart_during_a_save_does_not_lose_it(m):
    """The mount ends after it has given the segment, before the commit."""
    copying, copied = os.pipe(), os.pipe()

    def work():
        fake = Fake()
        c = Ckpt(0)
        for step in range(3):
            t = tensors(step, fake)
            s = c.begin(m.path(f"f{step}"))
            for name, memory in t.items():
                s.add(name, memory)
            fake.cu.fake_cuda_hold(1)
            before = c.counters().segments_new + c.counters().segments_reused
            s.start()
            ck.until("a segment", lambda b=before: c.counters().segments_new +
                     c.counters().segments_reused > b)
            os.write(copying[1], b"x")
            os.read(copied[0], 1)
            fake.cu.fake_cuda_hold(0)
            s.commit()
            s.wait()
            s.close()
            alike(c.load(m.path(f"f{step}")), t, step)
        assert c.counters().primed_again == 3, c.counters().primed_again
        c.close()
    child = Child(work)
    for _ in range(3):
        os.read(copying[0], 1)
        m.kill()
        m.start()
        os.write(copied[1], b"x")
    child.result()


@ck.mounted()
def a_restart_during_two_saves_of_one_structure_loses_neither(m):
    """Both have a segment that no mount knows; each needs another one."""
    copying, copied = os.pipe(), os.pipe()

    def work():
        fake = Fake()
        c = Ckpt(0)
        t = [tensors(seed, fake) for seed in (1, 2)]
        saves = [c.begin(m.path(name)) for name in "fg"]
        for s, own in zip(saves, t):
            for name, memory in own.items():
                s.add(name, memory)
        fake.cu.fake_cuda_hold(1)
        for s in saves:
            s.start()
        ck.until("both segments", lambda: c.counters().segments_new == 2)
        os.write(copying[1], b"x")
        os.read(copied[0], 1)
        fake.cu.fake_cuda_hold(0)
        for s in saves:
            s.commit()
            s.wait()
            s.close()
        for name, own in zip("fg", t):
            alike(c.load(m.path(name)), own, name)
        assert c.counters().primed_again == 2, c.counters().primed_again
        c.close()
    child = Child(work)
    os.read(copying[0], 1)
    m.kill()
    m.start()
    os.write(copied[1], b"x")
    child.result()


@ck.mounted()
def a_dead_mount_is_an_error_and_not_a_hang(m):
    c = Ckpt()
    c.save(m.path("f"), tensors(1))
    s = c.begin(m.path("g"))
    s.add("t", Memory(b"x"))
    os.kill(m.proc.pid, signal.SIGKILL)
    m.proc.wait(ck.WAIT_BOUND)
    fails(errno.ENOTCONN, s.commit)
    s.close()
    fails(errno.ENOTCONN, c.save, m.path("h"), tensors(1))
    m.proc = None
    ck.umount(m.mnt, ck.MNT_DETACH)
    fails(errno.ENOTTY, c.save, m.path("h"), tensors(1))
    m.start()
    c.save(m.path("h"), tensors(2))
    alike(c.load(m.path("h")), tensors(2))
    c.close()


@ck.mounted("segments=off")
def a_mount_without_segments_is_written_to(m):
    c = Ckpt(buffer_bytes=8192)
    t = tensors(1)
    c.save(m.path("f"), t, wait=True)
    assert m.state(m.path("f")) == "durable"
    alike(c.load(m.path("f")), t)
    c.close()


def why_plain(c, path):
    """What a save there says, before it is committed and after."""
    with contextlib.closing(c.begin(path)) as s:
        s.add("t", Memory(b"x" * 70000))
        assert s.plain_reason() is None
        s.commit()
        why = s.plain_reason()
    return why and why.decode()


@ck.mounted()
def without_the_socket_files_are_written(m):
    client = segments.Client(m.mnt)
    os.unlink(client.address)  # as in a container that has the mount alone
    client.close()
    c = Ckpt()
    t = tensors(1)
    c.save(m.path("f"), t, wait=True)
    assert c.counters().plain_saves == 1
    assert why_plain(c, m.path("h")) == (
        f"{m.path('h')}: the mount's socket cannot be seen from here: share "
        "its directory with this container")
    alike(c.load(m.path("f")), t)
    c.close()
    c = Ckpt(ckptgpu.NO_GPU | ckptgpu.SEGMENT_ONLY)
    fails(errno.EOPNOTSUPP, c.save, m.path("g"), t)
    c.close()


@ck.mounted()
def who_finds_the_mount_full_of_clients_writes_files(m):
    clients = [segments.Client(m.mnt) for _ in range(256)]
    c = Ckpt()
    t = tensors(1)
    c.save(m.path("f"), t)
    assert c.counters().plain_saves == 1
    full = m.status()["segment_clients"]
    clients.pop(0).close()  # the first ones were let in
    ck.until("there is room", lambda: m.status()["segment_clients"] < full)
    c.save(m.path("g"), t)
    assert c.counters().plain_saves == 1
    for name in "fg":
        alike(c.load(m.path(name)), t)
    for client in clients:
        client.close()
    c.close()


@ck.mounted()
def a_trainer_that_is_killed_leaves_nothing_half_written(m):
    for delay in range(8):
        def work():
            c = Ckpt()
            s = c.begin(m.path("f"))
            s.add("t", Memory(bytes(64 * ck.MIB)))
            s.start()
            for _ in range(delay * 2000):
                pass
            os.kill(os.getpid(), signal.SIGKILL)
        child = Child(work)
        os.waitpid(child.pid, 0)
        found = os.listdir(m.mnt)
        assert found in ([], ["f"]), found
        if found:
            same(Ckpt().load(m.path("f"))["t"], bytes(64 * ck.MIB))
            os.unlink(m.path("f"))
        ck.until("its segments are gone", lambda: m.status()["segments"] == 0)


@ck.mounted()
def two_processes_that_save_one_path_leave_one_of_the_two(m):
    def work(seed):
        c = Ckpt()
        for _ in range(12):
            c.save(m.path("f"), {"t": Memory(bytes([seed]) * BIG)})
        c.close()
    children = [Child(lambda s=s: work(s)) for s in (1, 2, 3)]
    c = Ckpt()
    seen = set()
    while len(seen) < 1:
        try:
            seen.add(c.load(m.path("f"))["t"][0])
        except FileNotFoundError:
            pass
    for _ in range(40):
        got = c.load(m.path("f"))["t"]
        assert got in {bytes([s]) * BIG for s in (1, 2, 3)}
    for child in children:
        child.result()
    assert c.load(m.path("f"))["t"] in {bytes([s]) * BIG for s in (1, 2, 3)}
    c.close()


@ck.mounted()
def a_child_must_open_its_own(m):
    c = Ckpt()
    t = {"t": Memory(data(BIG, 1))}
    c.save(m.path("f"), t)
    s = c.begin(m.path("g"))
    s.add("t", t["t"])

    def work():
        fails(errno.ECHILD, s.add, "u", Memory(b"x"))
        fails(errno.ECHILD, s.commit)
        fails(errno.ECHILD, c.save, m.path("h"), t)
        s.close()
        c.close()
        own = Ckpt()
        own.save(m.path("child"), t)
        own.close()
    Child(work).result()
    s.commit()
    s.close()
    for name in ("f", "g", "child"):
        alike(c.load(m.path(name)), t, name)
    assert not os.path.exists(m.path("h"))
    c.close()


@ck.mounted()
def wrong_arguments_are_said_and_the_save_stays_usable(m):
    c = Ckpt()
    t = Memory(data(4096, 1))
    os.mkdir(m.path("dir"))
    for path, code in ((m.path("none", "f"), errno.ENOENT),
                       (m.path("dir") + "/", errno.EISDIR),
                       (m.path("dir") + "/..", errno.EISDIR),
                       (m.path("x" * 300), errno.ENAMETOOLONG),
                       (os.path.join(m.base, "f"), errno.ENOTTY),
                       ("/proc/f", errno.ENOTTY)):
        fails(code, c.begin, path)
    fails(errno.EISDIR, c.save, m.path("dir"), {"t": t})
    s = c.begin(m.path("f"))
    for code, arguments in (
            (errno.EINVAL, {"dtype": "F33"}), (errno.EINVAL, {"dtype": ""}),
            (errno.EINVAL, {"device": 0}), (errno.EINVAL, {"device": -3}),
            (errno.EINVAL, {"address": 0}),
            (errno.EINVAL, {"dtype": "F4", "shape": [3]}),
            (errno.EINVAL, {"shape": [1] * 65}),
            (errno.EOVERFLOW, {"shape": [1 << 60]}),
            (errno.EOVERFLOW, {"shape": [1 << 40, 1 << 40]})):
        fails(code, s.add, "bad", t, **arguments)
    fails(errno.EINVAL, s.add, "__metadata__", t)
    fails(errno.ENAMETOOLONG, s.add, "x" * 5000, t)
    s.add("good", t)
    fails(errno.EEXIST, s.add, "good", t)
    fails(errno.EEXIST, lambda: [s.metadata("k", "v") for _ in range(2)])
    s.add("zero", Memory(b""), dtype="F32", shape=[3, 0])
    s.add("scalar", Memory(b"abcd"), dtype="F32", shape=[])
    s.add('"\\\n\u00e9', Memory(b"q"))
    s.commit()
    fails(errno.EINVAL, s.add, "late", t)
    s.commit()
    s.wait()
    s.close()
    got = c.load(m.path("f"))
    assert got == {"good": t.get(), "zero": b"", "scalar": b"abcd",
                   '"\\\n\u00e9': b"q"}, got.keys()
    assert header(m.path("f"))["zero"]["shape"] == [3, 0]
    c.save(m.path("empty"), {})
    assert c.load(m.path("empty")) == {}
    c.close()


@ck.mounted()
@alone
def tensors_that_are_not_contiguous_are_gathered(m):
    fake = Fake()
    c = Ckpt(0)
    raw = data(64 * 48 * 4, 5)
    want = b"".join(raw[(r * 48 + k) * 4:(r * 48 + k) * 4 + 4]
                    for k in range(48) for r in range(64))
    for where in (Memory(raw), fake.memory(0, raw)):
        before = fake.d2h_copies
        s = c.begin(m.path("f"))
        s.add("transposed", where, "F32", [48, 64], [1, 48])
        s.add("rows", where, "F32", [32, 48], [96, 1])
        s.add("dense", where, "F32", [64, 48], [48, 1])
        s.add("backwards", where, "F32", [64 * 48], [-1],
              address=where.address + len(raw) - 4)
        s.add("far", where, "F32", [4, 2], [16 * 48, 40])
        s.commit()
        s.close()
        # Not one copy for each element: only where they are far apart.
        assert fake.d2h_copies - before in (0, 4 + 8)
        got = c.load(m.path("f"))
        same(got["backwards"], b"".join(raw[i:i + 4] for i in
                                        range(len(raw) - 4, -1, -4)))
        same(got["far"], b"".join(raw[at * 4:at * 4 + 4] for r in range(4)
                                  for at in (r * 768, r * 768 + 40)))
        same(got["transposed"], want)
        same(got["rows"], b"".join(raw[r * 192:r * 192 + 192]
                                   for r in range(0, 64, 2)))
        same(got["dense"], raw)
    c.close()


@ck.mounted()
@alone
def one_copy_for_each_byte_from_a_device_and_one_back(m):
    fake = Fake()
    c = Ckpt(0)
    assert b"2 devices" in ckptgpu.lib().ckpt_gpu_state(c.c)
    for step in range(4):
        t = tensors(step, fake)
        on_device = sum(x.size for x in t.values() if x.device >= 0)
        before = fake.d2h_bytes
        c.save(m.path(f"f{step}"), t)
        assert fake.d2h_bytes - before == on_device, step
        same_bytes = {n: x.get() for n, x in t.items()}
        total = sum(map(len, same_bytes.values()))
        for device in (0, 1):
            before = fake.h2d_bytes
            alike(c.load(m.path(f"f{step}"), device, fake), same_bytes, step)
            assert fake.h2d_bytes - before == total, (step, device)
        alike(c.load(m.path(f"f{step}")), same_bytes, step)
    k = c.counters()
    assert k.segments_new <= 2 and k.pin_failures == 0, \
        (k.segments_new, k.pin_failures)
    assert k.pinned_bytes > 0
    c.close()
    assert fake.pinned_bytes == 0, fake.pinned_bytes


@ck.mounted()
@alone
def a_tensor_that_moves_to_the_device_is_not_mixed_up(m):
    fake = Fake()
    c = Ckpt(0)
    contents = [data(BIG, i) for i in range(3)]
    for step in range(6):
        t = {f"t{i}": fake.memory(0, x) if (step + i) % 2 else Memory(x)
             for i, x in enumerate(contents)}
        c.save(m.path("f"), t)
        alike(c.load(m.path("f")), t, step)
    c.close()


@ck.mounted()
@alone
def without_pinning_it_goes_on_and_says_so(m):
    fake = Fake(FAIL_REGISTER=1)
    c = Ckpt(0)
    for step in range(3):
        t = tensors(step, fake)
        c.save(m.path("f"), t, wait=True)
        alike(c.load(m.path("f")), t, step)
    k = c.counters()
    assert k.pin_failures >= 1 and k.pinned_bytes == 0, k.pin_failures
    c.close()


@ck.mounted()
@alone
def wrong_pointers_and_devices_are_refused(m):
    fake = Fake()
    c = Ckpt(0)
    here, there = Memory(data(4096, 1)), fake.memory(1, data(4096, 2))
    s = c.begin(m.path("f"))
    fails(errno.EINVAL, s.add, "a", here, device=0)
    fails(errno.EINVAL, s.add, "a", there, device=0)
    fails(errno.EINVAL, s.add, "a", there, device=ckptgpu.HOST)
    s.add("a", here, device=ckptgpu.ANY)
    s.add("b", there, device=ckptgpu.ANY)
    s.commit()
    s.close()
    alike(c.load(m.path("f")), {"a": here, "b": there})
    c.close()


@ck.mounted("debug_hold_drain")
@alone
def what_has_not_changed_is_not_copied_again(m):
    fake = Fake()
    c = Ckpt(ckptgpu.SKIP_UNCHANGED)
    t = tensors("x", fake)
    on_device = sum(x.size for x in t.values() if x.device >= 0)
    c.save(m.path("f0"), t)
    assert c.counters().d2h_bytes == on_device, c.counters().d2h_bytes
    # The first is not durable, so this is the second segment's.
    c.save(m.path("f1"), t)
    for step in range(3):
        c.save(m.path("same"), t, wait=True)
    assert c.counters().d2h_bytes == 2 * on_device, \
        (c.counters().d2h_bytes, on_device)
    t["t0"].set(b"changed", at=2 * ck.MIB + 5)
    c.save(m.path("changed"), t, wait=True)
    assert c.counters().d2h_bytes == 2 * on_device + ck.MIB, \
        (c.counters().d2h_bytes, on_device)
    for name in ("f0", "f1", "same"):
        same(c.load(m.path(name))["t0"], data(BIG, "x 0"), name)
    alike(c.load(m.path("changed")), t)
    c.close()
    host = Ckpt(ckptgpu.SKIP_UNCHANGED | ckptgpu.NO_GPU)
    t = tensors("y")
    for step in range(6):
        host.save(m.path(f"h{step}"), t, wait=True)
    copied = host.counters().host_bytes
    assert copied <= 2 * sum(x.size for x in t.values())
    alike(host.load(m.path("h5")), t)
    host.close()


@ck.mounted()
@alone
def a_driver_that_refuses_the_kernels_costs_copies_and_no_saves(m):
    fake = Fake()
    c = Ckpt(ckptgpu.SKIP_UNCHANGED)
    t = tensors("x", fake)
    for step in range(3):  # 209: no kernel image for this device
        fake.cu.fake_cuda_fail(b"cuModuleLoadData", 1, 209)
        c.save(m.path("f"), t, wait=True)
        alike(c.load(m.path("f")), t, step)
    k = c.counters()
    assert (k.skipped_bytes, k.saves) == (0, 3), k.skipped_bytes
    c.close()


@ck.mounted(modes=("auto",))
@alone
def without_memory_for_hashes_all_is_copied(m):
    """A trainer has all of it: device memory, pinned, the module's."""
    fake = Fake()
    c = Ckpt(ckptgpu.SKIP_UNCHANGED)
    t = tensors("x", fake)
    for call in (b"cuMemHostAlloc", b"cuMemAlloc_v2", b"cuModuleLoadData"):
        fake.cu.fake_cuda_fail(call, 1, 2)
        c.save(m.path("f"), t, wait=True)
        alike(c.load(m.path("f")), t, call)
        assert c.counters().skipped_bytes == 0, call
    for _ in range(4):  # there is some again
        c.save(m.path("f"), t, wait=True)
    assert c.counters().skipped_bytes > 0
    c.close()


@ck.mounted()
@alone
def saving_host_tensors_makes_no_context(m):
    fake = Fake()
    c = Ckpt(0)
    for step in range(3):
        c.save(m.path("f"), tensors(step), wait=True)
        alike(c.load(m.path("f")), tensors(step), step)
    assert [fake.cu.fake_cuda_contexts(d) for d in range(2)] == [0, 0]
    assert (c.counters().pinned_bytes, fake.pinned_bytes) == (0, 0)
    c.close()


@ck.mounted()
def a_file_is_not_taken_for_one_of_another_mount(m):
    """Two new stores give the same numbers; times and sizes may agree."""
    second = ck.Mount(os.path.join(m.base, "second"))
    second.start()

    def run():
        fake = Fake()
        c = Ckpt(0)
        here, there = (fake.memory(0, data(BIG, s)) for s in "ab")
        c.save(m.path("f"), {"t": here}, wait=True)
        c.save(second.path("f"), {"t": there}, wait=True)
        a, b = (os.stat(x.path("f")) for x in (m, second))
        assert (a.st_ino, a.st_size) == (b.st_ino, b.st_size)
        # Its own mapping does not have this time any more.
        os.utime(second.path("f"), ns=(a.st_mtime_ns, a.st_mtime_ns))
        alike(c.load(second.path("f"), 0, fake), {"t": there})
        c.close()
    try:
        Child(run).result()
    finally:
        second.unmount()


@ck.mounted()
@alone
def what_two_devices_hold_is_copied_from_one(m):
    fake = Fake()
    c = Ckpt(ckptgpu.SKIP_UNCHANGED)
    content = data(BIG, 1)
    t = {"a": fake.memory(0, content), "b": fake.memory(1, content),
         "own": fake.memory(1, data(BIG, 2))}
    c.save(m.path("f"), t)
    assert c.counters().d2h_bytes == 2 * BIG
    alike(c.load(m.path("f")), t)
    c.close()


@ck.mounted()
def a_version_lives_as_long_as_it_has_a_name_or_is_open(m):
    c = Ckpt()
    lib = ckptgpu.lib()
    shared = data(BIG, "shared")
    for v in (1, 2):
        c.save(m.path(f"v{v}"), {"shared": Memory(shared),
                                 "own": Memory(bytes([v]) * BIG)}, wait=True)
    opened = ctypes.c_void_p()
    ckptgpu.check(lib.ckpt_file_open(c.c, os.fsencode(m.path("v1")),
                                     ctypes.byref(opened)))
    os.unlink(m.path("v1"))
    for step in range(4):  # it would be overwritten now
        c.save(m.path(f"w{step}"), {"shared": Memory(bytes(BIG)),
                                    "own": Memory(bytes(BIG))}, wait=True)
    e = lib.ckpt_file_find(opened, b"own")
    got = Memory(bytes(BIG))
    target = ckptgpu.Target(e, got.address, ckptgpu.HOST)
    ckptgpu.check(lib.ckpt_file_read(opened, ctypes.byref(target),
                                     ctypes.c_size_t(1)))
    same(got.get(), bytes([1]) * BIG)
    lib.ckpt_file_close(opened)
    alike(c.load(m.path("v2")), {"shared": shared, "own": bytes([2]) * BIG})
    os.unlink(m.path("v2"))
    c.close()


@ck.mounted(start=False)
def an_error_of_the_drain_reaches_wait(m):
    disk = ck.Disk(m.base, 256 * ck.MIB)
    m.store = os.path.join(disk.path, "store")
    os.makedirs(m.store)
    m.start()
    m.expected += ["No space left"]
    try:
        c = Ckpt()
        disk.fill(leave=28 * ck.MIB)
        t = {"t": Memory(data(ck.MIB, 1) + data(31 * ck.MIB, 2))}
        s = c.begin(m.path("f"))
        s.add("t", t["t"])
        s.commit()
        fails(errno.ENOSPC, s.wait)
        disk.relieve()
        ck.until("durable after all",
                 lambda: m.state(m.path("f")) == "durable")
        s.wait()
        s.close()
        alike(c.load(m.path("f")), t)
        c.close()
        m.unmount()
    finally:
        m.stop()


@ck.mounted()
def plain_files_are_written_where_there_is_no_mount(m):
    c = Ckpt(ckptgpu.NO_GPU | ckptgpu.PLAIN, buffer_bytes=1 << 20)
    t = tensors(4)
    path = os.path.join(m.base, "plain")
    for _ in range(2):
        c.save(path, t, wait=True)
        alike(c.load(path), t)
    assert c.counters().plain_saves == 2
    assert why_plain(c, path) == f"{path}: not in a ckptfs mount"
    assert why_plain(c, m.path("f")) is None
    assert sorted(os.listdir(m.base)) == ["log", "mnt", "plain", "store"]
    c.close()


@ck.mounted()
def a_segment_that_one_thread_commits_is_at_once_anothers(m):
    """The mount may give it to the next save before who committed it knows:
    unlinked, it is idle. The same process crashed, so it is one of its own."""
    def work():
        c = Ckpt()
        want = {n: {"t": Memory(data(4096, n))} for n in range(4)}
        wrong = []

        def save(n):
            try:
                for i in range(150):
                    path = m.path(f"f{n}")
                    c.save(path, want[n])
                    if i % 10 == 0:
                        same(c.load(path)["t"], want[n]["t"].get())
                    os.unlink(path)
            except Exception as e:
                wrong.append(repr(e))
        threads = [threading.Thread(target=save, args=(n,)) for n in want]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not wrong, wrong
        k = c.counters()
        assert k.plain_saves == 0, k.plain_saves
        c.close()
    Child(work).result()


@ck.mounted()
def threads_share_a_library(m):
    c = Ckpt()
    wrong = []

    def work(rank):
        try:
            for step in range(6):
                t = tensors(f"{rank} {step}", size=ck.MIB)
                c.save(m.path(f"r{rank}_{step}"), t)
                alike(c.load(m.path(f"r{rank}_{step}")), t)
        except BaseException as e:  # told by the main thread
            wrong.append(e)
    threads = [threading.Thread(target=work, args=(r,)) for r in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, wrong
    c.close()


@ck.mounted()
def permissions_are_those_of_a_file_that_is_created(m):
    os.chmod(m.mnt, 0o777)
    os.mkdir(m.path("theirs"), 0o755)

    def work():
        os.umask(0o027)
        c = Ckpt()
        t = {"t": Memory(b"x" * 4096)}
        c.save(m.path("f"), t)
        fails(errno.EACCES, c.save, m.path("theirs", "f"), t)
        c.close()
    ck.as_user(work)
    found = os.stat(m.path("f"))
    assert found.st_mode & 0o777 == 0o640 and found.st_uid == ck.USER, found
    assert os.listdir(m.path("theirs")) == []


if __name__ == "__main__":
    ck.main()
