"""Memory that a client fills becomes a file of the tree that all nodes have."""
import errno
import os
import stat
import threading

import nodes
from nodes import ck, shared
import ckptgpu
from ckptest import as_user, data, fails, get, put, same
from ckptgpu import Ckpt, Memory
from segments import Client

SIZE = 3 * ck.MIB + 4096
STRANGER = 1001


def save(client, path, seed, size=SIZE, mode=0o644):
    segment = client.acquire(size=size)
    segment.memory[:] = data(size, seed)
    try:
        return segment.commit(os.path.dirname(path), os.path.basename(path),
                              mode)
    except OSError:
        client.give_back(segment)
        raise


@shared()
def a_segment_is_a_file_of_all_nodes(c):
    client = Client(c.a.mnt)
    os.mkdir(c.a.path("step"))
    number = save(client, c.a.path("step/f"), 1, mode=0o640)
    client.wait(number)
    same(get(c.a.path("step/f")), data(SIZE, 1), "where it was made")
    same(get(c.b.path("step/f")), data(SIZE, 1), "on the other node")
    found = os.stat(c.b.path("step/f"))
    assert stat.S_IMODE(found.st_mode) == 0o640 and found.st_size == SIZE
    c.settle()
    same(get(c.shared("step/f")), data(SIZE, 1), "in DIR")
    # Nobody sees a part of what takes its place.
    save(client, c.a.path("step/f"), 2)
    assert get(c.b.path("step/f")) in (data(SIZE, 1), data(SIZE, 2))
    same(get(c.a.path("step/f")), data(SIZE, 2), "where it was made")
    c.settle()
    for path in c.shared("step/f"), c.a.path("step/f"), c.b.path("step/f"):
        same(get(path), data(SIZE, 2), path)
    assert stat.S_IMODE(os.stat(c.shared("step/f")).st_mode) == 0o640
    # What the other node has made, and made pending.
    put(c.b.path("step/g"), b"b's")
    c.settle()
    save(client, c.a.path("step/g"), 3)
    c.settle()
    same(get(c.b.path("step/g")), data(SIZE, 3), "what b had made")
    client.close()


@shared()
def a_segment_is_pending_from_its_first_moment(c):
    """Until it is whole: no other node, and nobody in DIR, reads a byte."""
    client = Client(c.a.mnt)
    stop, seen = threading.Event(), []

    def look():
        while not stop.is_set():
            try:
                mode = c.mode("f")
                size = os.stat(c.shared("f")).st_size
            except FileNotFoundError:
                continue
            if not mode & nodes.PENDING and size != SIZE:
                seen.append((oct(mode), size))
    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for n in range(5):
            save(client, c.a.path("f"), n)
            same(get(c.b.path("f")), data(SIZE, n), "waited for")
            os.unlink(c.b.path("f"))
    finally:
        stop.set()
        watcher.join()
    assert not seen, seen[:3]
    client.close()


@shared()
def what_a_segment_may_not_become_it_does_not(c):
    os.chmod(c.shared(), 0o777)
    os.mkdir(c.a.path("theirs"), 0o755)
    put(c.a.path("mine"), b"root's")
    os.link(c.a.path("mine"), c.a.path("second"))
    c.settle()

    def by_stranger():
        client = Client(c.a.mnt)
        fails(errno.EACCES, save, client, c.a.path("theirs/f"), 1)
        fails(errno.EACCES, save, client, c.a.path("mine"), 1)
        fails(errno.EISDIR, save, client, c.a.path("theirs"), 1)
        save(client, c.a.path("own"), 1, mode=0o400)
        client.close()
    as_user(by_stranger, STRANGER)
    assert os.listdir(c.b.path("theirs")) == []
    for name in "mine", "second":
        same(get(c.b.path(name)), b"root's", name)
    client = Client(c.a.mnt)
    # Others have it by another name: its bytes go to DIR itself.
    fails(errno.EOPNOTSUPP, save, client, c.a.path("mine"), 1)
    client.close()
    c.settle()
    found = os.stat(c.shared("own"))
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (STRANGER, 0o400)
    same(get(c.shared("own")), data(SIZE, 1), "in DIR")


@shared()
def the_library_saves_through_segments_and_the_other_node_loads(c):
    def saves():
        library = Ckpt(ckptgpu.NO_GPU | ckptgpu.SEGMENT_ONLY)
        for number in range(4):  # more than there are segments
            tensors = {"w": Memory(data(SIZE, number)),
                       "v": Memory(data(4096, 100 + number))}
            library.save(c.a.path(f"step_{number}"), tensors, wait=True)
            library.save(c.a.path("last"), tensors)
        same(library.load(c.a.path("last"))["w"], data(SIZE, 3), "here")
        assert library.counters().plain_saves == 0
        library.close()
    ck.Child(saves).result()

    def loads():
        library = Ckpt()
        for number, name in (0, "step_0"), (3, "step_3"):
            found = library.load(c.b.path(name))
            same(found["w"], data(SIZE, number), name)
            same(found["v"], data(4096, 100 + number), name)
        library.close()
    ck.Child(loads).result()
    c.settle()
    same(get(c.shared("last")), get(c.a.path("last")), "in DIR")


if __name__ == "__main__":
    nodes.main()
