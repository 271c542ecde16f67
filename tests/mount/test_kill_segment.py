"""kill -9 of the daemon while clients save through segments.

Three savers, each in a folder of its own: saves of new names and over old
ones, files that are written, unlinks and renames. Each reports over a pipe
before and after every step; after the remount each name must be what its last
finished step left, or what the step in flight would leave, byte for byte. In
every third round memory is lost too: then a name is any of its complete states
from the last one that was waited for, synced or published.

CKPTFS_KILL_ROUNDS (30) and CKPTFS_TEST_SEED choose the rounds.
"""
import errno
import os
import random
import time

import ckptest as ck
import segments
from ckptest import MIB, data, get, put
from segments import Client

ROUNDS = int(os.environ.get("CKPTFS_KILL_ROUNDS", "30"))
SEED = ck.SEED
SIZES = (5000, MIB, 2 * MIB + 4096)


def content(name, version, size):
    return data(size, f"{name} {version}")


def acquire(client, size):
    while True:
        try:
            return client.acquire(b"%d" % size, size)
        except segments.Refused as e:
            if e.errno != errno.EAGAIN:
                raise
            if not client.drop_released():
                client.wait(e.busy)


def step(client, folder, rand, n, tell):
    """One change; tell() is called before it, and what it returns after."""
    name = f"n{rand.randrange(6)}"
    path = os.path.join(folder, name)
    what = rand.choice(("save", "save", "save", "wait", "publish", "put",
                        "unlink"))
    if what == "unlink":
        if os.path.exists(path):
            tell("begin", name, n, -1)
            os.unlink(path)
            tell("done", name, n)
        return
    size = rand.choice(SIZES)
    bytes_ = content(name, n, size)
    tell("begin", name, n, size)
    if what == "put":
        # The rename makes it one step; of what was synced it is durable.
        put(path + ".tmp", bytes_, sync=True)
        os.rename(path + ".tmp", path)
        tell("durable", name, n)
        return
    segment = acquire(client, size)
    segment.memory[:] = bytes_
    if what == "publish":
        segment.commit(folder, name + ".tmp")
        os.rename(path + ".tmp", path)
        tell("durable", name, n)
        return
    ino = segment.commit(folder, name)
    tell("done", name, n)
    if what == "wait":
        client.wait(ino)
        tell("durable", name, n)


def saver(mount, folder, seed, pipe):
    rand = random.Random(seed)

    def tell(*words):
        line = " ".join(map(str, (os.path.basename(folder), *words)))
        os.write(pipe, (line + "\n").encode())
    try:
        client = Client(mount)
        for n in range(100000):
            step(client, folder, rand, n, tell)
    except OSError as e:
        # the daemon was killed; without a mount there is no such path
        if e.errno in (errno.EINVAL, errno.EPERM, errno.EACCES) or \
                (e.errno == errno.ENOENT and os.path.ismount(mount)):
            raise


class Model:
    """The states of each name, the oldest first: (version, size or -1)."""

    def __init__(self):
        self.states, self.done, self.durable = {}, {}, {}

    def hear(self, line):
        folder, event, name, version, *size = line.split()
        key = f"{folder}/{name}"
        known = self.states.setdefault(key, [(None, -1)])
        if event == "begin":
            known.append((int(version), int(size[0])))
            return
        at = next(i for i, s in enumerate(known) if s[0] == int(version))
        self.done[key] = at
        if event == "durable":
            self.durable[key] = at

    def check(self, key, got, power_cut):
        sure = (self.durable if power_cut else self.done).get(key, 0)
        name = os.path.basename(key)
        for version, size in self.states[key][sure:]:
            if size < 0 and got is None:
                return
            if size >= 0 and got == content(name, version, size):
                return
        raise AssertionError(
            f"{key}: found {None if got is None else len(got)} bytes, may be "
            f"{self.states[key][sure:]} (power cut: {power_cut})")


def one_round(m, rand, power_cut):
    reader, pipe = os.pipe()
    folders = [os.path.join(m.mnt, f"saver{i}") for i in range(3)]
    for folder in folders:
        os.makedirs(folder, exist_ok=True)
    m.flush()
    children = [ck.Child(lambda f=f, s=rand.randrange(1 << 40):
                         saver(m.mnt, f, s, pipe)) for f in folders]
    os.close(pipe)
    heard = os.read(reader, 4096)  # they are at it
    time.sleep(rand.random() ** 2 * 0.5)  # the random point, not a wait
    (m.power_cut if power_cut else m.kill)()
    while piece := os.read(reader, 65536):
        heard += piece
    os.close(reader)
    for child in children:
        child.result()
    model = Model()
    for line in heard.decode().splitlines():
        model.hear(line)
    return model


@ck.mounted(modes=("auto",), start=False)
def kill_9_while_clients_save_never_loses_or_mixes_bytes(m):
    print(f"seed {SEED}, {ROUNDS} rounds")
    rand = random.Random(SEED)
    changes = 0
    for n in range(ROUNDS):
        m.mode = ("auto", "off")[n % 2]
        power_cut = n % 3 == 2
        m.start()
        for folder in os.listdir(m.mnt):
            for name in os.listdir(m.path(folder)):
                os.unlink(m.path(folder, name))
        model = one_round(m, rand, power_cut)
        m.start()
        for key in model.states:
            path = m.path(*key.split("/"))
            got = get(path) if os.path.exists(path) else None
            model.check(key, got, power_cut)
        for folder in os.listdir(m.mnt):
            strange = {f"{folder}/{name}" for name in os.listdir(
                m.path(folder)) if not name.endswith(".tmp")} \
                - set(model.states)
            assert not strange, (n, strange)
        changes += sum(len(s) - 1 for s in model.states.values())
        assert m.status()["segments"] == 0
        m.unmount()
        if n % 10 == 9:
            m.fsck("--scrub")
    print(f"{changes} changes")


if __name__ == "__main__":
    ck.main()
