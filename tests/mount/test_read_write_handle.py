"""Handles for reading and writing: what safetensors, mkstemp, h5py and rsync
write with. The kernel moves their bytes, and what a mapping of theirs leaves
behind is not lost."""
import mmap
import os
import signal
import threading

import ckptest as ck
from ckptest import KIB, MIB, BareMap, data, get, put, same

NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL


def without_daemon(m, fn):
    """fn, while the daemon can answer nobody."""
    if m.mode == "off":
        fn()
        return
    done = []
    os.kill(m.proc.pid, signal.SIGSTOP)
    try:
        worker = threading.Thread(target=lambda: done.append(fn()))
        worker.start()
        worker.join(ck.WAIT_BOUND)
        came = not worker.is_alive()
    finally:
        os.kill(m.proc.pid, signal.SIGCONT)
    worker.join()
    assert came, "it waited for the daemon"
    assert done, "it failed"


@ck.mounted()
def the_kernel_moves_the_bytes_of_a_handle_for_both(m):
    path, content = m.path("f"), data(8 * MIB)
    for round_ in range(3):  # the first is staged on the disk
        fd = os.open(m.path(f"step_{round_}"), NEW, 0o644)
        os.ftruncate(fd, len(content))
        os.pwrite(fd, b"x", 0)  # before it the kernel asks for capabilities

        def work():
            for at in range(0, len(content), MIB):
                os.pwrite(fd, content[at:at + MIB], at)
            same(os.pread(fd, len(content), 0), content, "read")
        without_daemon(m, work)
        os.close(fd)
        m.flush()
        same(get(m.path(f"step_{round_}")), content, "durable")
    put(path, content)
    fd = os.open(path, os.O_RDWR | os.O_TRUNC)
    os.pwrite(fd, b"x", 0)
    without_daemon(m, lambda: os.pwrite(fd, content, 0))
    os.close(fd)


@ck.mounted()
def who_closed_his_handle_has_a_clean_file(m):
    """No mapping is left: it is drained once, as any other."""
    for i in range(20):
        fd = os.open(m.path(f"f{i}"), NEW, 0o644)
        os.write(fd, data(2 * MIB, i))
        os.close(fd)
    m.flush()
    ck.until("no stage is dirty", lambda: m.status()["staged_bytes"] == 0)
    for i in range(20):
        assert m.state(m.path(f"f{i}")) == "durable"
        same(get(m.path(f"f{i}")), data(2 * MIB, i))


@ck.mounted("drain_interval=1")
def what_a_map_writes_after_the_last_close_becomes_durable(m):
    """As it stands while the map is there, and all of it at its end."""
    for size in (64 * KIB, 4 * MIB):
        path = m.path(f"f{size}")
        fd = os.open(path, NEW, 0o644)
        os.ftruncate(fd, size)
        shared = BareMap(fd, size)
        os.close(fd)
        shared.write(0, data(size, 1))
        m.flush(path)
        shared.write(0, data(size, 2))
        shared.close()
        # Nobody calls anything any more: it is found out.
        ck.until("it is durable", lambda p=path: m.state(p) == "durable")
    m.flush()
    m.power_cut()
    m.start()
    for size in (64 * KIB, 4 * MIB):
        same(get(m.path(f"f{size}")), data(size, 2), f"{size}")


@ck.mounted()
def a_private_map_of_a_reader_keeps_nothing_from_being_changed(m):
    path, size = m.path("f"), 4 * MIB
    put(path, data(size))
    m.flush()
    with open(path, "rb") as f:
        private = mmap.mmap(f.fileno(), size, mmap.MAP_PRIVATE, mmap.PROT_READ)
    with open(path, "r+b") as f:
        f.write(b"changed")
    assert get(path)[:7] == b"changed"
    private.close()
    m.remount()
    assert get(path)[:7] == b"changed"


@ck.mounted()
def its_file_is_staged_in_memory_when_the_name_is_random(m):
    """safetensors writes .tmpXXXXXX and renames it; rsync .NAME.XXXXXX."""
    if m.mode == "off":
        return
    size = 8 * MIB

    def save(step, i, name, tmp):
        os.makedirs(m.path(step), exist_ok=True)
        path = m.path(step, tmp)
        fd = os.open(path, NEW, 0o644)
        os.ftruncate(fd, size)
        os.write(fd, data(size, i))
        before = m.status()["staged_bytes"]
        os.close(fd)
        os.rename(path, m.path(step, name))
        return before

    def in_memory(name):
        """Its stage is a cache in memory: the image is not needed."""
        fd = os.open(name, os.O_RDONLY)
        try:
            return any(n.startswith("s") for n in os.listdir(
                os.path.join(m.store, "stage")))
        finally:
            os.close(fd)

    save("step_1", 0, "a-00001.safetensors", ".tmpAbC123")
    save("step_1", 1, "a-00002.safetensors", ".tmpZ9yXw8")
    assert in_memory(m.path("step_1", "a-00002.safetensors"))
    m.remount()
    assert not in_memory(m.path("step_1", "a-00002.safetensors"))
    save("step_2", 2, "a-00001.safetensors", ".tmpqqqqqq")
    assert in_memory(m.path("step_2", "a-00001.safetensors"))
    m.remount()
    save("step_2", 3, "b.bin", ".b.bin.Qw12er")
    m.remount()
    save("step_3", 4, "b.bin", ".b.bin.8sdfA1")
    assert in_memory(m.path("step_3", "b.bin"))


if __name__ == "__main__":
    ck.main()
