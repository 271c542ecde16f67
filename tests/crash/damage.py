"""Damage a store at random: none may end silent, no intact image may go.

A store is filled: files that are native, that share parts, that are wholly
shared, small ones, some before a backup of its database and some after it; then
it ends cleanly, or by kill -9 and without its stage. Each case takes a copy,
changes one thing (flips a bit, cuts, deletes, zeroes or swaps a file of the
database, of what lies beside it, or an image; removes or empties db/), and
looks:

  fsck and scrub, and a mount, twice: it is refused, and nothing was changed
  (but the database's own files, when its compaction met the damage first),
  or it is mounted; then each file is what was durable, or reading it fails, or
  scrub had said that there is damage
  refused: `ckptctl rebuild`; then scrub finds nothing, it mounts, and each file
  is what was durable, or rebuild had said that something is lost
  after all of that each image that is not the damaged one is there, or in lost/

It prints its seed; --seed and --case do one again.
"""
import argparse
import errno
import filecmp
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../mount"))

import ckptest as ck  # noqa: E402
from ckptest import KIB, MIB, data, put  # noqa: E402

OPS = ("flip", "flip", "cut", "delete", "zero", "swap")


class Silent(Exception):
    """What must not be."""


# --- the store that is damaged ---

def step(truth, m, name, seed, sync=False):
    """A step of a training: replicas, a part of its own each, small files."""
    common = data(2 * MIB, f"common {seed}")
    os.makedirs(m.path(name + ".tmp"))
    for rank in range(3):
        own = data(MIB + rank * 77, f"{seed} {rank}") if rank else b""
        truth[f"{name}/rank_{rank}"] = common + own
    truth[f"{name}/meta"] = data(200, f"meta {seed}")
    truth[f"{name}/big"] = data(3 * MIB + 5, f"big {seed}")
    for path in [p for p in truth if p.startswith(name + "/")]:
        put(m.path(path.replace(name, name + ".tmp", 1)), truth[path],
            sync=sync)
    os.rename(m.path(name + ".tmp"), m.path(name))


def alone(truth, m, name, size, sync=True):
    truth[name] = data(size, name)
    put(m.path(name), truth[name], sync=sync)


def fill(m, killed):
    """What is durable, and the store as it is then left."""
    truth = {}
    m.start("backup_interval=1")
    step(truth, m, "step_1", 1)
    alone(truth, m, "native", 2 * MIB)
    truth["latest"] = b"step_1"
    put(m.path("latest.tmp"), truth["latest"])
    os.rename(m.path("latest.tmp"), m.path("latest"))
    os.link(m.path("native"), m.path("linked"))
    truth["linked"] = truth["native"]
    ck.until("a backup with all of that", lambda: backup_is_made(m))
    m.remount("backup_interval=0")
    step(truth, m, "step_2", 2)
    alone(truth, m, "later", 2 * MIB + 1)
    alone(truth, m, "later_small", 500)
    truth["native"] = truth["linked"] = data(2 * MIB + 9, "native again")
    put(m.path("native"), truth["native"], sync=True)
    os.unlink(m.path("step_1/big"))
    del truth["step_1/big"]
    m.flush()
    if killed:
        put(m.path("never_synced"), data(MIB, "never"))
        m.power_cut()
    else:
        m.unmount()
    return truth


def backup_is_made(m):
    """One that was begun after all that was written."""
    made = m.status()["backup"]["made"]
    if made < backup_is_made.wanted:
        return False
    if backup_is_made.wanted == 1:
        backup_is_made.wanted = made + 1
        put(m.path("again"), b"x")
        os.rename(m.path("again"), m.path("again2"))
        os.unlink(m.path("again2"))
        return False
    return True


class Template:
    """A filled store, and which of its images a mount must leave alone."""

    def __init__(self, scratch, killed):
        self.name = "killed" if killed else "clean"
        base = os.path.join(scratch, self.name)
        os.makedirs(base)
        backup_is_made.wanted = 1
        m = ck.Mount(base)
        try:
            self.truth = fill(m, killed)
        finally:
            m.stop()
        self.store = m.store
        # What an undamaged start keeps is what must not go.
        copy = os.path.join(base, "undamaged")
        copy_store(self.store, copy)
        whole = ck.Mount(os.path.join(base, "check"), store=copy)
        try:
            whole.start()
            got = compare(whole, self.truth)
            assert not got, got
            whole.unmount()
            whole.fsck("--scrub")
        finally:
            whole.stop()
        self.images = images_of(copy)


def copy_store(store, to):
    shutil.rmtree(to, ignore_errors=True)
    subprocess.run(["cp", "-a", "--sparse=always", store, to], check=True)


def images_of(store):
    return {name: os.path.join(folder, name)
            for folder, _, names in os.walk(os.path.join(store, "images"))
            for name in names}


# --- one damage ---

def targets(store, rand):
    """A file to be damaged, by kinds, so that each has its share."""
    def of(folder, ending):
        found = [os.path.join(folder, n) for n in os.listdir(folder)
                 if re.search(ending, n)]
        return sorted(f for f in found if os.path.isfile(f))
    db = os.path.join(store, "db")
    kinds = [of(db, r"\.log$"), of(db, r"\.log$"), of(db, "^MANIFEST"),
             of(db, "^CURRENT$"), of(db, r"\.sst$"), of(db, r"\.sst$"),
             of(db, "^OPTIONS"), of(store, "^format$"), of(store, "^mark$"),
             of(store, "^secret$"),
             sorted(p for p in images_of(store).values()
                    if os.path.getsize(p))]
    return rand.choice([k for k in kinds if k])


def damage(store, rand):
    """What was done, in words, and the image that it was done to."""
    if rand.random() < 0.06:
        what = rand.choice(("missing", "empty"))
        shutil.rmtree(os.path.join(store, "db"))
        if what == "empty":
            os.mkdir(os.path.join(store, "db"), 0o700)
        return f"db/ is {what}", None
    files = targets(store, rand)
    path = rand.choice(files)
    op = rand.choice(OPS)
    size = os.path.getsize(path)
    words = f"{op} {os.path.relpath(path, store)} of {size} bytes"
    image = os.path.basename(path) if "/images/" in path else None
    if op in ("flip", "zero", "cut") and size == 0:
        op, words = "delete", "delete " + words
    if op == "delete":
        os.unlink(path)
    elif op == "cut":
        left = rand.randrange(size)
        os.truncate(path, left)
        words += f" to {left}"
    elif op == "swap":
        return swap(store, path, rand, words, image)
    else:
        at = rand.randrange(size)
        length = 1 if op == "flip" else rand.randrange(1, size - at + 1)
        with open(path, "r+b") as f:
            f.seek(at)
            old = f.read(length)
            f.seek(at)
            new = bytes([old[0] ^ 1 << rand.randrange(8)]) \
                if op == "flip" else bytes(length)
            f.write(new)
        words += f" at {at}, {length} bytes"
    return words, image


def swap(store, path, rand, words, image):
    folder = os.path.dirname(path)
    if image:
        others = [p for p in images_of(store).values() if p != path]
    else:
        others = [os.path.join(folder, n) for n in os.listdir(folder)
                  if os.path.join(folder, n) != path and
                  os.path.isfile(os.path.join(folder, n))]
    other = rand.choice(sorted(others))
    os.rename(path, path + "~")
    os.rename(other, path)
    os.rename(path + "~", other)
    return words + f" with {os.path.relpath(other, store)}", \
        (image, os.path.basename(other)) if image else None


# --- what is found ---

def compare(m, truth):
    """The files that are not what was durable: {path: how}."""
    wrong = {}
    for path, content in truth.items():
        try:
            got = ck.get(m.path(path))
            if got != content:
                wrong[path] = f"{len(got)} other bytes"
        except FileNotFoundError:
            wrong[path] = "missing"
        except OSError as e:
            wrong[path] = errno.errorcode[e.errno]
            assert e.errno == errno.EIO, (path, e)
    return wrong


def ctl(*argv):
    done = subprocess.run([ck.CKPTCTL, *argv], capture_output=True, text=True,
                          errors="replace", timeout=240)
    if done.returncode not in (0, 1, 2):
        raise Silent(f"ckptctl {argv[0]} ended with {done.returncode}")
    return done.returncode, (done.stdout + done.stderr).strip()


def try_mount(m):
    """Is it mounted? What it said when not."""
    old = len(m.log_text())
    proc = m.spawn()
    ck.until("up or gone", lambda: proc.poll() is not None or
             m.mnt in ck.mounts_under(m.mnt))
    if proc.poll() is None:
        return True, ""
    m.proc = None
    said = m.log_text()[old:].strip()
    if proc.returncode not in (1, 2) or not said:
        raise Silent(f"the mount ended with {proc.returncode}: {said!r}")
    return False, said


def snapshot(path):
    found = {}
    for folder, _, names in os.walk(path):
        found[folder] = None
        for name in names:
            found[os.path.join(folder, name)] = \
                ck.get(os.path.join(folder, name))
    return found


def was_met_late(why):
    """
    The damage lay where nobody had read: a compaction of the database's own met
    it, in the middle of what a mount takes over. Which of its files that has
    written by then is luck.
    """
    return "database: write: Corruption" in why and \
        "cannot be taken over" in why


def changes(before, now, late):
    """The files that differ; `late`: but for the database's and the lock."""
    return sorted(p for p in set(before) | set(now)
                  if before.get(p, 0) != now.get(p, 0) and
                  not (late and ("/db/" in p or p.endswith("/lock"))))


def images_are_there(template, store, damaged, when):
    damaged = damaged if isinstance(damaged, tuple) else (damaged,)
    now = images_of(store)
    for folder in ("lost",):
        lost = os.path.join(store, folder)
        if os.path.isdir(lost):
            now.update({n: os.path.join(lost, n) for n in os.listdir(lost)})
    for name, path in template.images.items():
        if name in damaged:
            continue
        if name not in now:
            raise Silent(f"{when}: image {name} is gone")
        if not filecmp.cmp(path, now[name], shallow=False):
            raise Silent(f"{when}: image {name} was changed")


def look_at_mounted(m, template, checked, scrubbed):
    wrong = compare(m, template.truth)
    m.ctl("gc", m.mnt)
    done = subprocess.run(["umount", m.mnt], check=False, timeout=240)
    m.proc.wait(240)
    m.proc = None
    if done.returncode:
        raise Silent("it could not be unmounted")
    quiet = {p: how for p, how in wrong.items() if how != "EIO"}
    if quiet and checked[0] == 0 and scrubbed[0] == 0:
        raise Silent(f"mounted, and nothing was said: {quiet}")
    return "mounted" if not wrong else \
        f"mounted, {len(wrong)} files damaged and reported"


def rebuild(m, template, image):
    code, said = ctl("rebuild", m.store)
    if code == 2:
        raise Silent(f"rebuild: {said}")
    images_are_there(template, m.store, image, "after rebuild")
    scrub, found = ctl("scrub", m.store)
    if scrub != 0 and (image is None or "image" not in found):
        raise Silent(f"scrub after rebuild: {found}\nrebuild: {said}")
    up, why = try_mount(m)
    if not up:
        raise Silent(f"not mounted after rebuild: {why}")
    wrong = compare(m, template.truth)
    extra = [p for p in os.listdir(m.mnt)]
    m.unmount()
    images_are_there(template, m.store, image, "after rebuild and mount")
    if wrong and code == 0 and scrub == 0:
        raise Silent(f"rebuild said that nothing is lost: {wrong}\n{said}")
    bad = {p: how for p, how in wrong.items() if "other bytes" in how and
           not p.startswith(("native", "linked"))}
    if bad and scrub == 0:
        raise Silent(f"wrong bytes after rebuild: {bad}")
    if not extra:
        raise Silent("rebuild left an empty store")
    left = len(template.truth) - len(wrong)
    base = re.search(r"rebuilt from (.{10})", said)
    return f"refused, rebuilt from {base[1] if base else '?'}..: " \
        f"{left} of {len(template.truth)} files" + \
        (f"; not {', '.join(sorted(wrong))}" if wrong else "")


def one_case(template, base, rand):
    """The words for one line, or Silent."""
    store = os.path.join(base, "store")
    copy_store(template.store, store)
    words, image = damage(store, rand)
    m = ck.Mount(base, store=store)
    m.expected.append(".*")
    try:
        before = snapshot(store)
        checked = ctl("fsck", store)
        scrubbed = ctl("scrub", "--read-only", store)
        if snapshot(store) != before:
            raise Silent("fsck changed the store")
        up, why = try_mount(m)
        if up:
            result = look_at_mounted(m, template, checked, scrubbed)
            images_are_there(template, store, image, "after the mount")
            again, why = try_mount(m)
            if again:
                look_at_mounted(m, template, checked, scrubbed)
                images_are_there(template, store, image, "after the second")
            return words, result
        if checked[0] == 0:
            raise Silent(f"fsck found nothing, the mount is refused: {why}")
        late = was_met_late(why)
        changed = changes(before, snapshot(store), late)
        if changed:
            raise Silent(f"the mount that was refused changed {changed}: {why}")
        up, again = try_mount(m)
        if up and late:
            result = look_at_mounted(m, template, checked, scrubbed)
            images_are_there(template, store, image, "after the second")
            return words, result
        if up or (again != why and not late):
            raise Silent(f"the second try says something else: {again!r}, "
                         f"not {why!r}")
        changed = changes(before, snapshot(store), late)
        if changed:
            raise Silent(f"the second mount changed {changed}: {again}")
        return words, rebuild(m, template, image)
    except Silent as e:
        e.words = words
        raise
    finally:
        m.stop()


def main():
    p = argparse.ArgumentParser(
        description=__doc__.split("\n", maxsplit=1)[0],
        epilog=__doc__.split("\n\n", 1)[1],
        formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--count", type=int, default=24)
    p.add_argument("--seed", type=int, default=ck.SEED,
                   help="of what is damaged (default: CKPTFS_TEST_SEED, or 1)")
    p.add_argument("--case", type=int, help="only this one")
    p.add_argument("--keep", action="store_true", help="leave the last one")
    args = p.parse_args()
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse") or \
            not os.access(ck.CKPTFS, os.X_OK):
        print("skipped: it needs root, /dev/fuse and a built ckptfs")
        return 77
    ck.own_mounts()
    print(f"seed {args.seed}", flush=True)
    scratch = os.path.realpath(tempfile.mkdtemp(
        prefix="damage-", dir=os.environ.get("CKPTFS_TEST_DIR", "/var/tmp")))
    bad = 0
    try:
        templates = [Template(scratch, killed) for killed in (False, True)]
        cases = range(args.count) if args.case is None else [args.case]
        for n in cases:
            base = os.path.join(scratch, "case")
            shutil.rmtree(base, ignore_errors=True)
            os.makedirs(base)
            template = templates[n % 2]
            rand = random.Random(f"{args.seed} {n}")
            try:
                words, result = one_case(template, base, rand)
                print(f"ok   {n} {template.name}: {words}: {result}",
                      flush=True)
            except Silent as e:
                bad += 1
                print(f"FAIL {n} {template.name} seed {args.seed}: "
                      f"{getattr(e, 'words', '?')}: {e}", flush=True)
        print(f"{len(cases) - bad} passed, {bad} failed", flush=True)
    finally:
        for path in ck.mounts_under(scratch):
            ck.umount(path, ck.MNT_DETACH)
        if not args.keep:
            shutil.rmtree(scratch, ignore_errors=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
