"""kill -9 of the daemon at random points under load, round after round.

Every block of every file says which version of which file it belongs to and
at which place, so that a missing, torn or mixed block shows. Two writers
report over a pipe before and after each step; what they reported as finished
must be whole after the remount, what was in flight must be a prefix. In every
third round the stage is lost as well: then files are whole or absent, and
only what was synced or published must be there.

CKPTFS_KILL_ROUNDS (50) and CKPTFS_TEST_SEED choose the rounds.
"""
import hashlib
import os
import random
import time

import ckptest as ck
from ckptest import KIB, MIB, get, put

ROUNDS = int(os.environ.get("CKPTFS_KILL_ROUNDS", "50"))
SEED = ck.SEED
BLOCK = 4 * KIB
SHARED = random.Random(0).randbytes(BLOCK)  # gives dedup something to find


def content(name, version, size):
    """Blocks of 4 KiB, each tagged; every fourth is shared by all files."""
    out = bytearray()
    for i in range(0, size, BLOCK):
        tag = hashlib.sha256(f"{name} {version} {i}".encode()).digest()
        out += SHARED if i // BLOCK % 4 == 3 else tag + SHARED[len(tag):]
    return bytes(out[:size])


def writer(folder, seed, pipe):
    """Saves until the daemon is gone; tells what begins and what is done.

    Lines: begin|written|synced|renamed NAME VERSION SIZE.
    """
    rand = random.Random(seed)

    def tell(*words):
        os.write(pipe, (" ".join(map(str, (*words,))) + "\n").encode())
    try:
        for n in range(100000):
            name = f"s{seed}-{n % 7}" if rand.random() < 0.3 else f"s{seed}n{n}"
            size = rand.choice((0, 1, 700, 5000, 40 * KIB, 200 * KIB,
                                rand.randrange(3 * MIB)))
            # A rename of what was synced is durable, any other one in order.
            what = rand.choice(("plain", "sync", "rename", "rename-synced"))
            renames = what.startswith("rename")
            path = os.path.join(folder, name)
            bytes_ = content(name, n, size)
            target = path + ".tmp" if renames else path
            tell("begin", what, name, n, size)
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            step = rand.choice((3000, 128 * KIB, MIB))
            for at in range(0, size, step):
                os.write(fd, bytes_[at:at + step])
            if not renames:
                tell("written", what, name, n, size)
            if what in ("sync", "rename-synced"):
                os.fsync(fd)
            if what == "sync":
                tell("synced", what, name, n, size)
            os.close(fd)
            if renames:
                os.rename(target, path)
                tell("synced" if what == "rename-synced" else "written", what,
                     name, n, size)
    except OSError:
        pass  # the daemon was killed


class Model:
    """What each name may hold, from what the writers reported."""

    def __init__(self):
        self.versions = {}  # name -> [(version, size)], the oldest first
        self.written = {}  # name -> index of the last whose writes returned
        self.synced = {}  # name -> index of the last that was synced

    def hear(self, line):
        event, what, name, version, size = line.split()
        known = self.versions.setdefault(name, [])
        if event == "begin":
            known.append((int(version), int(size), what))
        else:
            at = next(i for i, v in enumerate(known) if v[0] == int(version))
            self.written[name] = at
            if event == "synced":
                self.synced[name] = at

    def check(self, name, got, power_cut):
        """got: the bytes found, or None. Raises when no history explains it;
        the version that was found becomes all that is known."""
        known = self.versions[name]
        sure = (self.synced if power_cut else self.written).get(name, -1)
        for i in range(len(known) - 1, max(sure, 0) - 1, -1):
            version, size, what = known[i]
            want = content(name, version, size)
            in_flight = i > self.written.get(name, -1)
            if got == want or (got is not None and in_flight and not power_cut
                               and not what.startswith("rename") and
                               want.startswith(got)):
                self.settle(name, (version, len(got), what))
                return
        if sure < 0 and got is None:
            del self.versions[name]
            return
        raise AssertionError(
            f"{name}: found {None if got is None else len(got)} bytes, may "
            f"hold {known[max(sure, 0):]} (sure: {sure}, power cut: "
            f"{power_cut})")

    def settle(self, name, version):
        self.versions[name] = [version]
        self.written[name] = self.synced[name] = 0


def one_round(m, rand, model, folder, power_cut):
    reader, pipe = os.pipe()
    children = [ck.Child(lambda s=rand.randrange(1 << 40):
                         writer(folder, s, pipe)) for _ in range(2)]
    os.close(pipe)
    heard = os.read(reader, 4096)  # they are at it
    time.sleep(rand.random() ** 2 * 0.3)  # the random point, not a wait
    (m.power_cut if power_cut else m.kill)()
    while piece := os.read(reader, 65536):
        heard += piece
    os.close(reader)
    for child in children:
        child.result()
    for line in heard.decode().splitlines():
        model.hear(line)


@ck.mounted(modes=("auto",), start=False)
def kill_9_at_random_points_never_loses_or_mixes_bytes(m):
    print(f"seed {SEED}, {ROUNDS} rounds")
    rand = random.Random(SEED)
    model = Model()
    for n in range(ROUNDS):
        m.mode = ("auto", "off")[n % 2]
        power_cut = n % 3 == 2
        folder = os.path.join(m.mnt, f"round{n}")
        m.start()
        os.mkdir(folder)
        put(os.path.join(folder, "synced"), b"", sync=True)
        model.versions.clear()
        model.written.clear()
        model.synced.clear()
        one_round(m, rand, model, folder, power_cut)
        m.start()
        here = set(os.listdir(folder)) - {"synced"}
        for name in list(model.versions):
            path = os.path.join(folder, name)
            model.check(name, get(path) if name in here else None, power_cut)
        strange = {name for name in here
                   if not name.endswith(".tmp")} - set(model.versions)
        assert not strange, (n, strange)
        if rand.random() < 0.5:  # the recovered stages are drained now
            m.flush()
            m.power_cut()
            m.start()
            for name in list(model.versions):
                model.check(name, get(os.path.join(folder, name)), True)
        if n >= 3:
            old = os.path.join(m.mnt, f"round{n - 3}")
            for name in os.listdir(old):
                os.unlink(os.path.join(old, name))
            os.rmdir(old)
        m.unmount()
        if n % 10 == 9:
            m.fsck("--scrub")


if __name__ == "__main__":
    ck.main()
