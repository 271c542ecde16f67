"""history - what was done to a mount, and what may be left of it after a cut.

A history is a list of steps (one file call that matters each), and for each
path the line of complete states that it went through: absent, a directory, a
link, or version v of file f. A step knows how many store operations had been
done when it was asked for and when it was answered; so for a cut after k of
them it is known which promises had been given, and what had been begun.

violations() compares a tree found after a cut with all that the promises
allow, and names each difference in one line.
"""
import hashlib
import os
import stat

PAGE = 4096
DIR = ("dir",)


def digest(content):
    return hashlib.blake2b(content, digest_size=16).digest()


class Step:
    def __init__(self, what, asked):
        self.what = what
        self.asked = asked  # store operations done when it was called
        self.answered = None  # ... when it had returned, with success

    def begun(self, k):
        return k is None or self.asked <= k

    def promised(self, k):
        """k None: the cut was live; whatever was answered counts."""
        if self.answered is None:
            return False
        return k is None or self.answered <= k


class Close:
    """A version that was closed, and what may have hurried it along."""

    def __init__(self, step, fid, version, path, lane=None):
        self.step, self.fid, self.version = step, fid, version
        self.path = path
        self.lane = lane  # who else closed meanwhile has another
        self.hurried = []  # (step, how): "synced" or "published"
        self.left = None  # the step that took it out of its place


class History:
    def __init__(self, count):
        self.count = count  # a function: store operations so far
        self.steps = []
        self.lines = {}  # path -> [(step, state)], the first at step -1
        self.tree = {}  # path -> DIR, ("link", text), ("file", fid)
        self.version = {}  # fid -> its last complete version, or None
        self.content = {}  # (fid, version) -> bytes
        self.floors = []  # (step, paths): all older states are gone for good
        self.closes = []
        self.renames = []  # (step, paths): they change together
        self.deaths = {}  # fid -> (step, path): its last name went
        self.parts = []  # (content, bytes that are sure), see grow()

    def __getstate__(self):
        return {**self.__dict__, "count": None}

    # --- recording ---

    def begin(self, what):
        self.steps.append(Step(what, self.count()))
        return len(self.steps) - 1

    def end(self, step):
        self.steps[step].answered = self.count()

    def _state(self, path):
        entry = self.tree.get(path)
        if entry is None or entry[0] != "file":
            return entry
        version = self.version[entry[1]]
        return None if version is None else ("file", entry[1], version)

    def note(self, step, *paths):
        for path in paths:
            line = self.lines.setdefault(path, [(-1, None)])
            state = self._state(path)
            if line[-1][1] != state:
                line.append((step, state))

    def names(self, fid):
        return [p for p, e in self.tree.items() if e == ("file", fid)]

    def under(self, path):
        """The path and everything below it."""
        return [p for p in self.tree
                if p == path or p.startswith(path + "/")]

    def new_file(self, path):
        fid = len(self.version)
        self.version[fid] = None
        self.tree[path] = ("file", fid)
        self.lines.setdefault(path, [(-1, None)])
        return fid

    def set_version(self, step, fid, content):
        """From this step on the file may be found with this content."""
        old = self.version[fid]
        if old is None or self.content[fid, old] != content:
            self.version[fid] = 0 if old is None else old + 1
            self.content[fid, self.version[fid]] = bytes(content)
        self.note(step, *self.names(fid))
        return self.version[fid]

    def add_close(self, step, fid, version, path, lane=None):
        close = Close(step, fid, version, path, lane)
        self.closes.append(close)
        return close

    def grow(self, step, fid, content, sure):
        """A file that stays open is made durable as it stands: from this
        step on any beginning of the content may be found, down to the bytes
        that are sure. content: appended to later; None for a file that is
        changed in place, of which anything may be found."""
        self.parts.append((content, sure))
        for path in self.names(fid):
            self.lines[path].append((step, ("part", fid,
                                            len(self.parts) - 1)))

    def leave(self, step, fid):
        """Changed in place before it was durable: it waits for its next
        close, and loses its place in the order."""
        for close in self.closes:
            if close.fid == fid and close.left is None:
                close.left = step

    def floor(self, step, paths):
        self.floors.append((step, set(paths)))

    def hurry(self, step, fids, how):
        for close in self.closes:
            if close.fid in fids:
                close.hurried.append((step, how))

    def fids(self, paths):
        return {self.tree[p][1] for p in paths
                if p in self.tree and self.tree[p][0] == "file"}

    def put(self, step, path, entry):
        self.tree[path] = entry
        self.note(step, path)

    def drop(self, step, path):
        entry = self.tree.pop(path)
        self.note(step, path)
        if entry[0] == "file" and not self.names(entry[1]):
            self.deaths[entry[1]] = (step, path)

    def rename(self, step, src, dst, exchange=False, publishes=True):
        """Returns all paths that the rename gave or took something. One that
        publishes happens to all of them or to none; after any other one the
        new name has what it had until the file is durable."""
        moved = {p: self.tree[p] for p in self.under(src)}
        gone = {p: self.tree[p] for p in self.under(dst)}
        for path in (*moved, *gone):
            del self.tree[path]
        for path, entry in moved.items():
            self.tree[dst + path[len(src):]] = entry
        if exchange:
            for path, entry in gone.items():
                self.tree[src + path[len(dst):]] = entry
        for entry in gone.values():
            if entry[0] == "file" and not self.names(entry[1]):
                self.deaths[entry[1]] = (step, dst)
        paths = set(moved) | set(gone) | set(self.under(dst)) \
            | set(self.under(src))
        self.note(step, *paths)
        if publishes:
            self.renames.append((step, paths))
        return paths

    # --- judging ---

    def violations(self, found, k):
        """found: path -> Found. k: store operations before the cut, or None
        for a cut during the run. Returns a list of (kind, sentence)."""
        return Judge(self, found, k).all()

    def position(self, k):
        """Where in the run the cut was, for people."""
        last = max((i for i, s in enumerate(self.steps) if s.begun(k)),
                   default=None)
        if last is None:
            return "before the first step"
        step = self.steps[last]
        return ("after" if step.promised(k) else "during") + \
            f" step {last}: {step.what}"


class Found:
    """What a path has after the cut. error: it could not be read."""

    def __init__(self, state, content=None, ino=0, error=None):
        self.state, self.content = state, content
        self.ino, self.error = ino, error
        self.digest = None if content is None else digest(content)


def look(root):
    """Everything below root, read to the last byte."""
    found = {}

    def failed(e):
        found[os.path.relpath(e.filename, root)] = Found(None, error=e)

    for where, dirs, files in os.walk(root, onerror=failed):
        for name in dirs + files:
            path = os.path.join(where, name)
            short = os.path.relpath(path, root)
            try:
                st = os.lstat(path)
                if stat.S_ISLNK(st.st_mode):
                    found[short] = Found(("link", os.readlink(path)))
                elif stat.S_ISDIR(st.st_mode):
                    found.setdefault(short, Found(DIR))
                else:
                    with open(path, "rb", buffering=0) as f:
                        content = f.readall()
                    found[short] = Found(("file",), content, st.st_ino)
                    if len(content) != st.st_size:
                        raise OSError(0, f"{len(content)} bytes read of "
                                      f"{st.st_size}")
            except OSError as e:
                found[short] = Found(None, error=e)
    return found


class Judge:
    def __init__(self, history, found, k):
        self.h, self.found, self.k = history, found, k
        self.out = []
        # path -> [(first step, last step, state)] that fit what was found
        self.fits = {}
        self.digests = {key: digest(content)
                        for key, content in history.content.items()}

    def say(self, kind, sentence):
        self.out.append((kind, sentence))

    def all(self):
        for path in sorted(set(self.h.lines) | set(self.found)):
            self.path(path)
        if not self.out:  # the rest builds on sound paths
            self.renames()
            self.close_order()
            self.links()
        return self.out

    def same(self, state, path):
        f = self.found.get(path)
        if f is None or state is None:
            return f is None and state is None
        if state[0] == "file":
            return f.digest is not None and \
                f.digest == self.digests[state[1:]]
        if state[0] == "part":
            content, sure = self.h.parts[state[2]]
            return f.content is not None and (
                content is None or len(f.content) >= sure and
                content.startswith(f.content))
        return f.state == state

    def path(self, path):
        f = self.found.get(path)
        if f is not None and f.error is not None:
            self.say("unreadable", f"{path}: {f.error}")
            return
        line = self.h.lines.get(path)
        if line is None:
            self.say("foreign", f"{path}: never was such a name")
            return
        floor = max((s for s, paths in self.h.floors if path in paths
                     and self.h.steps[s].promised(self.k)), default=-1)
        ends = [step for step, _ in line[1:]] + [len(self.h.steps)]
        fits = []
        for (first, state), end in zip(line, ends):
            if end <= floor or \
                    (first >= 0 and not self.h.steps[first].begun(self.k)):
                continue
            if self.same(state, path):
                fits.append((max(first, floor), end - 1, state))
        self.fits[path] = fits
        if not fits:
            self.say(*self.explain(path, line, floor))

    def explain(self, path, line, floor):
        f = self.found.get(path)
        promise = "" if floor < 0 else \
            f", though promised by step {floor}: {self.h.steps[floor].what}"
        old = [step for step, state in line if self.same(state, path)]
        what = "absent" if f is None else \
            f"{len(f.content)} bytes" if f.content is not None else \
            f"{f.state}"
        if old and min(old) <= floor:
            return "lost", f"{path}: as before step {floor} ({what}){promise}"
        if f is None:
            return "lost", f"{path}: absent{promise}"
        if f.content is None:
            return "foreign", f"{path}: {f.state} never was there{promise}"
        for _, state in line:
            if state and state[0] == "file" and f.digest in (
                    self.digests[state[1], v] for v in range(state[2])):
                return "older", f"{path}: {what} that its file had before " \
                    f"it got this name{promise}"
        return "torn", f"{path}: {what} that no complete version has" \
            f"{promise}: {self.anatomy(path, line)}"

    def anatomy(self, path, line):
        """Which block of a torn file is which version's."""
        content = self.found[path].content
        known = [(f"v{s[2]} of file {s[1]} ({len(self.h.content[s[1:]])})",
                  self.h.content[s[1:]])
                 for _, s in line if s is not None and s[0] == "file"]
        runs = []
        for at in range(0, len(content), PAGE):
            block = content[at:at + PAGE]
            names = [name for name, c in known if c[at:at + PAGE] == block] \
                or (["zeros"] if not any(block) else ["unknown"])
            if runs and runs[-1][1] == names:
                runs[-1][2] = at + len(block)
            else:
                runs.append([at, names, at + len(block)])
        text = "; ".join(f"{a}..{b} {' = '.join(names)}"
                         for a, names, b in runs[:6])
        have = ", ".join(name for name, _ in known) or "none"
        return f"[{text}] known: {have}"

    def renames(self):
        for step, paths in self.h.renames:
            if not self.h.steps[step].begun(self.k):
                continue
            moved = [p for p in paths
                     if any(s == step for s, _ in self.h.lines[p])]
            before = all(any(first < step for first, _, _ in self.fits[p])
                         for p in moved)
            after = all(any(last >= step for _, last, _ in self.fits[p])
                        for p in moved)
            if not before and not after:
                self.say("half", f"step {step}: {self.h.steps[step].what}: "
                         "happened to some names and not to others: " +
                         ", ".join(sorted(moved)))

    def has(self, fid, version, surely):
        """Is this version of the file, or a newer one, under some name?"""
        for fits in self.fits.values():
            hits = [s is not None and s[0] == "file" and s[1] == fid
                    and s[2] >= version for _, _, s in fits]
            if hits and (all(hits) if surely else any(hits)):
                return True
        return False

    def whose(self, path):
        """Which steps left what was found at the path."""
        if path not in self.found:
            return "absent"
        return "as left by " + " or ".join(sorted(
            {self.h.steps[first].what if first >= 0 else "nobody"
             for first, _, _ in self.fits[path]}))

    def settled(self, close):
        if self.has(close.fid, close.version, False):
            return True
        if close.left is not None and \
                self.h.steps[close.left].begun(self.k):
            return True
        step, path = self.h.deaths.get(close.fid, (None, None))
        return step is not None and self.h.steps[step].begun(self.k) and \
            any(last >= step for _, last, _ in self.fits[path])

    def close_order(self):
        for lane in {close.lane for close in self.h.closes}:
            self.lane_order(lane)

    def lane_order(self, lane):
        missing = None
        for close in self.h.closes:
            if close.lane != lane:
                continue
            if not self.h.steps[close.step].begun(self.k):
                break
            if missing is None:
                if not self.settled(close):
                    missing = close
                continue
            hurry = {how for step, how in close.hurried
                     if self.h.steps[step].begun(self.k)}
            if "synced" in hurry or \
                    not self.has(close.fid, close.version, True):
                continue
            kind = "overtaken-by-publish" if hurry else "overtaken"
            self.say(kind, f"step {close.step}: "
                     f"{self.h.steps[close.step].what} is durable, but not "
                     f"step {missing.step} before it: "
                     f"{self.h.steps[missing.step].what}, which is "
                     f"{self.whose(missing.path)}")
            return

    def links(self):
        """The same file is the same inode under all its names."""
        sure = {}
        for path, fits in self.fits.items():
            fids = {s[1] if s and s[0] == "file" else None
                    for _, _, s in fits}
            if len(fids) == 1 and None not in fids:
                sure.setdefault(fids.pop(), []).append(path)
        for paths in sure.values():
            inos = {self.found[p].ino for p in paths}
            if len(inos) > 1:
                self.say("split", f"{', '.join(paths)} were one file")
