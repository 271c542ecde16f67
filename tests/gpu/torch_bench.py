"""torch_bench - what a trainer with torch gets from ckptfs, beside what it has
today: safetensors, torch.save, and torch.distributed.checkpoint (DCP).

    torch_bench.py [--device cuda:0 | --cpu] [--rows a,b] [...] DIR

Both sides of a row take turns, the first round is not counted, figures are
medians, and the ratio is the median of the rounds' ratios. What was saved in
the first round is loaded again and compared, bit by bit. A row that fails is
printed as such, and the next one is measured all the same.

DIR is in a ckptfs mount; else files are written plainly, and rows say so.
--cpu goes through all of it with small tensors on the host, so that it is known
to work where there is no device; no figure of that means anything.

Exit: 0 fine, 1 a tensor differs or a row failed (--strict: or a row is short),
2 wrong usage, 77 there is no torch, or no device.
"""
import argparse
import errno
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from contextlib import closing

GROUPS = {}  # name: (function, ...), in the order of the table
MIB = 1 << 20
HIDDEN = 4096  # of a layer; so many numbers are a matrix' row
STEPS = 8  # of the loop, with one save in them
BURST = 4  # twice what there are segments for


def skip(why):
    print("SKIP: torch:", why)
    sys.exit(77)


def group(name):
    def add(function):
        GROUPS.setdefault(name, []).append(function)
        return function
    return add


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--size", type=int, metavar="MIB",
                        help="of the state (2048)")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--rows", metavar="LIST")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--mount", metavar="TEXT", default="options unknown",
                        help="how DIR is mounted, for the table")
    parser.add_argument("--disk", metavar="DIR",
                        help="where the other side writes (DIR's parent)")
    parser.add_argument("--memory", metavar="DIR",
                        help="a tmpfs for the other side (/dev/shm)")
    parser.add_argument("--child", action="store_true",
                        help=argparse.SUPPRESS)
    parser.add_argument("directory", nargs="?")
    options = parser.parse_args()
    if options.cpu or options.device == "cpu":
        options.cpu, options.device = True, "cpu"
    for name in ("size", "rounds"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            parser.error(f"--{name} is a number above zero")
    options.size = options.size or (4 if options.cpu else 2048)
    options.rounds = options.rounds or (1 if options.cpu else 3)
    if not options.directory and not (options.list or options.child):
        parser.error("give a directory")
    return parser, options


# --- tensors -----------------------------------------------------------------

def make_state(size_mib, device, hidden):
    """As a model's: matrices, and many vectors that are next to nothing."""
    generator = torch.Generator(device=device).manual_seed(1)
    state, left, layer = {}, size_mib * MIB, 0
    while left >= hidden * hidden * 2 or not layer:
        for name, shape in (("weight", (hidden, hidden)), ("norm", (hidden,)),
                            ("scale", ())):
            tensor = torch.randn(shape, generator=generator, device=device)
            state[f"layers.{layer}.{name}"] = tensor.to(torch.bfloat16)
        left -= hidden * hidden * 2
        layer += 1
    return state


def bytes_of(state):
    return sum(t.numel() * t.element_size() for t in state.values())


def change(state, n):
    """Other numbers in every tensor, as an optimizer makes them."""
    for tensor in state.values():
        tensor.add_(0.25 + n % 7)
    sync()


def digest(state):
    """Changes with every bit and its place."""
    total = 0
    for name in sorted(state):
        raw = state[name].detach().reshape(-1).view(torch.int16).long()
        place = torch.arange(1, raw.numel() + 1, device=raw.device)
        total = (total * 31 + int((raw * place).sum())) % (1 << 63)
    return total


def same(found, wanted, what):
    wrong = sorted(set(found) ^ set(wanted)) or [
        name for name, t in wanted.items()
        if found[name].dtype != t.dtype or found[name].shape != t.shape or
        not torch.equal(found[name].to(t.device).view(torch.int16),
                        t.view(torch.int16))]
    if wrong:
        raise Wrong(f"{what}: {len(wrong)} tensors differ: {wrong[:3]}")


class Wrong(Exception):
    """A tensor is not what was saved."""


class Missing(Exception):
    """A row that this machine cannot measure, and why."""


def sync():
    if options.device != "cpu":
        torch.cuda.synchronize()


def timed(work):
    """Seconds of work, with all that it enqueued."""
    sync()
    start = time.perf_counter()
    work()
    sync()
    return time.perf_counter() - start


# --- the table ---------------------------------------------------------------

def line(name, ours, theirs, ratio, wanted, verdict):
    print(f"{name:<60} {ours:>13} {theirs:>13} {ratio:>8}  {wanted:<8} "
          f"{verdict}".rstrip(), flush=True)


def text_of(seconds):
    return f"{seconds * 1e3:.3f} ms" if seconds >= 1e-4 else \
        f"{seconds * 1e6:.1f} us"


class Row:
    """Rounds of both sides; `wanted` is the least or the most that the ratio
    should be, None: it is only told."""

    def __init__(self, name, at_least=None, at_most=None):
        self._name = name if bench.mounted else f"{name}, NO MOUNT"
        self._most_counts = at_most is not None  # the ratio is ours / theirs
        # Of a dry run there is nothing to say.
        self._limit = None if options.cpu else \
            at_most if self._most_counts else at_least
        self._rounds = []

    def add(self, ours, theirs):
        self._rounds.append((ours, theirs))

    def _print(self, show, ratio):
        ours, theirs = (statistics.median_low(side)
                        for side in zip(*self._rounds))
        limit = self._limit
        ok = limit is None or (ratio <= limit if self._most_counts else
                               ratio >= limit)
        bench.short += not ok
        line(self._name, show(ours), show(theirs), f"{ratio:.3f}",
             ("(less)" if self._most_counts else "(more)") if limit is None
             else f"{'<=' if self._most_counts else '>='} {limit:g}",
             "" if limit is None else "ok" if ok else "SHORT")

    def print_speed(self, size):
        """The ratio says how many times faster we are."""
        self._print(lambda s: f"{size / s / 1e9:.2f} GB/s",
                    statistics.median_low(t / o for o, t in self._rounds))

    def print_times(self):
        """Likewise; or, with at_most, how many times longer we take."""
        self._print(text_of, statistics.median_low(
            (o / t if self._most_counts else t / o)
            for o, t in self._rounds))


class Bench:
    """What all rows use: the state, and where files go."""

    def __init__(self):
        self.short = self.failed = 0
        self.mounted = True

    def open(self):
        self.mounted = not is_plain(options.directory)
        self.here = tempfile.mkdtemp(prefix="torch_bench.",
                                     dir=options.directory)
        self.disk = tempfile.mkdtemp(
            prefix="torch_bench.", dir=options.disk or
            os.path.dirname(os.path.realpath(options.directory)))
        self.memory = None
        self.state = make_state(options.size, options.device,
                                256 if options.cpu else HIDDEN)
        self.bytes = bytes_of(self.state)
        memory = options.memory or "/dev/shm"
        # A state is there once, and the machine needs some as well.
        if (options.memory or os.path.ismount(memory)) and \
                shutil.disk_usage(memory).free > 2 * self.bytes:
            self.memory = tempfile.mkdtemp(prefix="torch_bench.", dir=memory)

    def close(self):
        for folder in (self.here, self.disk, self.memory):
            if folder:
                shutil.rmtree(folder, ignore_errors=True)

    def others(self):
        """(what the table calls it, directory) of the other side."""
        places = [("raw disk", self.disk)]
        if self.mounted:
            places.insert(0, ("on the mount", self.here))
        if self.memory:
            places.append(("tmpfs", self.memory))
        return places


def is_plain(directory):
    path = os.path.join(directory, "torch_bench.probe")
    try:
        ckptfs.save_file({"x": torch.zeros(1)}, path)
    except OSError as e:
        if e.errno != errno.ENOTTY:
            raise
        return True
    os.unlink(path)
    return False


def save(state, path):
    ckptfs.save_file(state, path, plain=not bench.mounted)


def settle(*paths):
    """What one side wrote is on its disk before the other side begins: each
    would else pay for the other's. Of a folder, its files."""
    for path in paths:
        names = [path] if not os.path.isdir(path) else \
            [one.path for one in os.scandir(path) if one.is_file()]
        for name in names:
            with open(name, "rb") as file:
                os.fsync(file.fileno())


def need_safetensors():
    if safetensors is None:
        raise Missing("there is no safetensors")
    return safetensors.torch


# --- step: the training loop -------------------------------------------------

class Loop:
    """Matrices times what goes through them, and an update of all of them that
    must wait for a save. A step is about as long as a quarter of a save."""

    def __init__(self):
        self._weights = [t for t in bench.state.values() if t.dim() == 2]
        if options.cpu:
            self._weights = self._weights[:2]
        width = self._weights[0].shape[0]
        self._x = torch.ones(width, width, dtype=torch.bfloat16,
                             device=options.device)
        self._times = 1
        if not options.cpu:
            timed(self._forward)
            copied = timed(lambda: {k: t.cpu()
                                    for k, t in bench.state.items()})
            self._times = max(1, round(copied / 4 / timed(self._forward)))

    def _forward(self):
        for _ in range(self._times):
            x = self._x
            for weight in self._weights:
                x = torch.tanh(x @ weight)

    def run(self, begin=None, snapshot=None):
        """STEPS steps; begin(state) saves in the second one, and returns what
        waits until the state may change (or None)."""
        waiting = None
        for number in range(STEPS):
            self._forward()
            if waiting:
                waiting()
            waiting = None
            for tensor in bench.state.values():
                tensor.mul_(-1)
            if begin and number == 1:
                if snapshot is not None:
                    snapshot.update((k, t.clone())
                                    for k, t in bench.state.items())
                waiting = begin(bench.state)
        if waiting:
            waiting()


class Nothing:
    """No save at all."""
    begin, path = None, None

    def end(self):
        pass


class FileSave(Nothing):
    """By begin(state, path), of a file at `path`."""

    def __init__(self, begin, path):
        self.begin, self.path = lambda state: begin(state, path), path


def our_save():
    return FileSave(
        lambda state, path: ckptfs.save_file_async(
            state, path, plain=not bench.mounted).copied,
        os.path.join(bench.here, "step.safetensors"))


def step_rounds(row, theirs, ours=None, load=None):
    """Two loops, each with the save of its side in it; load(path) gives what
    ours saved."""
    ours, load = ours or our_save(), load or ckptfs.load_file
    loop = Loop()
    for number in range(options.rounds + 1):
        snapshot = {} if number == 0 else None
        ours_s = timed(lambda: loop.run(ours.begin, snapshot))
        ours.end()
        if number == 0:
            same(load(ours.path), snapshot, "a save in the loop")
        settle(ours.path)
        theirs_s = timed(lambda: loop.run(theirs.begin))
        theirs.end()
        if theirs.path:
            settle(theirs.path)
        if number:
            row.add(ours_s, theirs_s)
    row.print_times()


@group("step")
def step_row():
    step_rounds(Row(f"{STEPS} steps, one save_file_async (no save)",
                    at_most=1.1), Nothing())


@group("step")
def step_torch_save_row():
    step_rounds(Row(f"{STEPS} steps, save_file_async (torch.save)",
                    at_least=1),
                FileSave(torch.save, os.path.join(bench.disk, "step.pt")))


@group("step")
def step_dcp_row():
    with closing(Dcp(pinned=True)) as theirs:
        step_rounds(Row(f"{STEPS} steps, save_file_async ({theirs.name})",
                        at_least=1), theirs)


@group("step")
def step_our_dcp_row():
    with closing(OurDcp(stager=False)) as ours:
        step_rounds(Row(f"{STEPS} steps, one dcp.async_save (no save)",
                        at_most=1.1), Nothing(), ours, dcp_load)
    with closing(OurDcp(stager=False)) as ours, \
            closing(Dcp(pinned=True)) as theirs:
        step_rounds(Row(f"{STEPS} steps, dcp.async_save ({theirs.name})",
                        at_least=1), theirs, ours, dcp_load)


# --- files: save_file, load_file ---------------------------------------------

@group("files")
def save_rows():
    theirs = need_safetensors()
    path = os.path.join(bench.here, "ours.safetensors")
    for place, folder in bench.others():
        row = Row(f"save_file (safetensors, {place})", at_least=1)
        other = os.path.join(folder, "theirs.safetensors")
        for number in range(options.rounds + 1):
            change(bench.state, number)
            ours_s = timed(lambda: save(bench.state, path))
            settle(path)
            theirs_s = timed(lambda: theirs.save_file(bench.state, other))
            settle(other)
            if number == 0:
                same(ckptfs.load_file(path), bench.state, "save_file")
                same(theirs.load_file(path), bench.state, "safetensors")
            else:
                row.add(ours_s, theirs_s)
        row.print_speed(bench.bytes)
        os.unlink(other)


@group("files")
def load_rows():
    theirs = need_safetensors()
    path = os.path.join(bench.here, "ours.safetensors")
    save(bench.state, path)
    for place, folder in bench.others():
        row = Row(f"load_file (safetensors, {place})", at_least=1)
        other = os.path.join(folder, "theirs.safetensors")
        theirs.save_file(bench.state, other)
        settle(path, other)
        for number in range(options.rounds + 1):
            found = {}
            ours_s = timed(lambda: found.update(
                ckptfs.load_file(path, device=options.device)))
            same(found, bench.state, "load_file")
            found.clear()
            theirs_s = timed(lambda: found.update(
                theirs.load_file(other, device=options.device)))
            if number:
                row.add(ours_s, theirs_s)
        del found
        row.print_speed(bench.bytes)
        os.unlink(other)


@group("burst")
def burst_rows():
    theirs = need_safetensors()

    def burst(one, folder):
        for number in range(BURST):
            one(bench.state, os.path.join(folder, f"burst.{number}"))
    for name, one in (("torch.save", torch.save),
                      ("safetensors", theirs.save_file)):
        row = Row(f"{BURST} saves back to back ({name}, raw disk)",
                  at_least=1)
        for number in range(options.rounds + 1):
            change(bench.state, number)
            ours_s = timed(lambda: burst(save, bench.here))
            if number == 0:
                for k in range(BURST):
                    same(ckptfs.load_file(
                        os.path.join(bench.here, f"burst.{k}")),
                        bench.state, "one of several saves")
            settle(bench.here)
            theirs_s = timed(lambda: burst(one, bench.disk))
            settle(bench.disk)
            if number:
                row.add(ours_s, theirs_s)
        row.print_speed(BURST * bench.bytes)


# --- dcp ---------------------------------------------------------------------

class Dcp:
    """Torch's own async_save to the raw disk, its stager kept as it should
    be, unless torch closes it: 2.11 does after each save. Without a device nothing
    can be pinned."""

    def __init__(self, pinned):
        from torch.distributed.checkpoint import staging
        pinned = pinned and not options.cpu
        self.name = f"DCP {'pinned' if pinned else 'pageable'}"
        self.path = os.path.join(bench.disk, f"dcp.{id(self)}")

        class Stager(staging.DefaultStager):
            closed = False

            def close(self):
                self.closed = True
                super().close()
        self._make = lambda: Stager(staging.StagingOptions(*[pinned] * 4))
        self._stager = self._make()
        self._saved = None

    def begin(self, state):
        import torch.distributed.checkpoint as dcp
        if self._stager.closed:
            self._stager = self._make()
        saved = dcp.async_save(
            state, storage_writer=dcp.FileSystemWriter(
                self.path, sync_files=False), async_stager=self._stager)
        staged = getattr(saved, "staging_completion", None)
        self._saved = getattr(saved, "upload_completion", saved)
        return staged.result if staged else lambda: None

    def end(self):
        """Until .metadata is there."""
        if self._saved is not None:
            self._saved.result()
        self._saved = None

    def close(self):
        if not self._stager.closed:
            self._stager.close()
        shutil.rmtree(self.path, ignore_errors=True)


class OurDcp:
    """ckptfs.dcp's async_save, or torch's own with its Stager."""

    def __init__(self, stager):
        import ckptfs.dcp
        self._dcp, self._stager = ckptfs.dcp, stager
        self.path = os.path.join(bench.here, f"dcp.{id(self)}")
        self._end = None

    def begin(self, state):
        import torch.distributed.checkpoint as dcp
        if not self._stager:
            saved = self._dcp.async_save(state, self.path)
            self._end = saved.result
            return saved.copied
        saved = dcp.async_save(state,
                               storage_writer=self._dcp.Writer(self.path),
                               async_stager=self._dcp.Stager())
        self._end = saved.upload_completion.result
        return saved.staging_completion.result

    def end(self):
        self._end()

    def close(self):
        shutil.rmtree(self.path, ignore_errors=True)


def dcp_load(path):
    """By torch's own reader."""
    import torch.distributed.checkpoint as dcp
    found = {k: torch.zeros_like(t) for k, t in bench.state.items()}
    dcp.load(found, storage_reader=dcp.FileSystemReader(path))
    return found


def dcp_rounds(ours, theirs, called):
    """Until the call returns, until the state may change, until all is
    there."""
    rows = [Row(f"{called}, stall ({theirs.name})"),
            Row(f"{called}, until copied ({theirs.name})", at_least=1),
            Row(f"{called}, until there ({theirs.name})", at_least=1)]
    for number in range(options.rounds + 1):
        change(bench.state, number)
        measured = []
        for side in (ours, theirs):
            sync()
            marks = [time.perf_counter()]
            copied = side.begin(bench.state)
            marks.append(time.perf_counter())
            copied()
            marks.append(time.perf_counter())
            side.end()
            marks.append(time.perf_counter())
            measured.append([m - marks[0] for m in marks[1:]])
            settle(side.path)
        if number == 0:
            same(dcp_load(ours.path), bench.state, "DCP")
        else:
            for row, one, other in zip(rows, *measured):
                row.add(one, other)
    for row in rows:
        row.print_times()


def with_sides(called, stager, pinned):
    with closing(OurDcp(stager)) as ours, closing(Dcp(pinned)) as theirs:
        dcp_rounds(ours, theirs, called)


@group("dcp")
def dcp_pinned_rows():
    with_sides("dcp.async_save", False, True)


@group("dcp")
def dcp_pageable_rows():
    with_sides("dcp.async_save", False, False)


@group("dcp")
def dcp_stager_rows():
    with_sides("Stager and Writer", True, True)


# --- process: weights for another one ----------------------------------------

class Child:
    """The other process: it has torch and its device ready, and loads what it
    is told to. It answers with seconds (pinning, then loading) and what it
    found."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--child",
             "--device", options.device], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._answer()

    def _answer(self):
        answer = self._process.stdout.readline().split(None, 1)
        if not answer or answer[0] != "ok":
            raise RuntimeError("the other process: " + (
                answer[1].strip() if len(answer) > 1 else "ended"))
        return answer[1:]

    def load(self, how, path, wanted):
        """Seconds of pinning and of loading."""
        print(how, path, file=self._process.stdin, flush=True)
        pin_s, load_s, found = self._answer()[0].split()
        if int(found) != wanted:
            raise Wrong(f"another process, {how}: other tensors")
        return float(pin_s), float(load_s)

    def close(self):
        self._process.stdin.close()
        self._process.wait()


def child_load(how, path):
    """(seconds of pinning, of loading, tensors)"""
    found, pin_s = {}, 0.0
    if how == "safetensors":
        load_s = timed(lambda: found.update(safetensors.torch.load_file(
            path, device=options.device)))
        return pin_s, load_s, found
    with ckptfs.weights.open_version(path, options.device) as version:
        if how == "pinned":
            pinned = []
            pin_s = timed(lambda: pinned.append(version.pin()))
            if not pinned[0] and options.device != "cpu":
                raise Missing("it cannot be pinned")
        load_s = timed(lambda: found.update(version.get_tensors()))
    return pin_s, load_s, found


def child_main():
    torch.zeros(1, device=options.device)
    print("ok ready", flush=True)
    for request in sys.stdin:
        how, path = request.rstrip("\n").split(" ", 1)
        try:
            pin_s, load_s, found = child_load(how, path)
            print("ok", pin_s, load_s, digest(found), flush=True)
            del found
        except Exception as e:  # pylint: disable=broad-except
            print("failed", str(e).replace("\n", " "), flush=True)


@group("process")
def process_rows():
    theirs = need_safetensors()
    with closing(Child()) as child:
        for place, folder in bench.others():
            process_rounds(child, theirs, place, folder)


def process_rounds(child, theirs, place, folder):
    against = f"(safetensors, {place})"
    loads = {"unpinned": Row(f"other process loads {against}", at_least=1),
             "pinned": Row(f"other process, pinned {against}", at_least=1)}
    both = Row(f"other process, pin and load {against}")
    path = os.path.join(bench.here, "version")
    other = os.path.join(folder, "version.theirs")
    for number in range(options.rounds + 1):
        change(bench.state, number)
        wanted = digest(bench.state)
        ckptfs.weights.publish(bench.state, path, plain=not bench.mounted)
        theirs.save_file(bench.state, other)
        settle(path, other)
        theirs_s = child.load("safetensors", other, wanted)[1]
        for how, row in list(loads.items()):
            try:
                pin_s, load_s = child.load(how, path, wanted)
            except RuntimeError as e:
                if how != "pinned" or "cannot be pinned" not in str(e):
                    raise
                row_skip("other process, pinned", "the driver cannot")
                del loads[how]
                continue
            if number:
                row.add(load_s, theirs_s)
                if how == "pinned":
                    both.add(pin_s + load_s, theirs_s)
    for row in loads.values():
        row.print_speed(bench.bytes)
    if "pinned" in loads:
        both.print_speed(bench.bytes)
    os.unlink(other)


# --- the run -----------------------------------------------------------------

def row_skip(name, why):
    line(name, "-", "-", "-", "-", f"SKIP: {why}")


def run_rows(name, rows):
    for function in rows:
        called = f"{name}: {function.__name__}"
        try:
            function()
        except Missing as e:
            row_skip(called, e)
        except Exception as e:  # pylint: disable=broad-except
            bench.failed += 1
            kind = "WRONG" if isinstance(e, Wrong) else "FAILED"
            line(called, "-", "-", "-", "-", f"{kind}: {type(e).__name__}: "
                 f"{str(e).splitlines()[0] if str(e) else ''}")
            traceback.print_exc()
        if options.device != "cpu":
            torch.cuda.empty_cache()


def main():
    wanted = options.rows.split(",") if options.rows else list(GROUPS)
    try:
        bench.open()
        device = "the CPU" if options.cpu else \
            torch.cuda.get_device_name(options.device)
        print(f"torch {torch.__version__} on {device}, "
              f"{'no' if safetensors is None else 'with'} safetensors; "
              f"{bench.bytes / MIB:.0f} MiB in {len(bench.state)} tensors, "
              f"{options.rounds} rounds")
        if options.cpu:
            print("a DRY RUN on the CPU: no figure means anything")
        print("saves go to a mount (" + options.mount + ")" if bench.mounted
              else "no mount: saves go to files, written plainly")
        line("row", "ours", "today", "ratio", "wanted", "")
        for name in GROUPS:
            if name in wanted:
                run_rows(name, GROUPS[name])
    finally:
        bench.close()
    print(f"\n{bench.short} short, {bench.failed} failed")
    return 1 if bench.failed or (options.strict and bench.short) else 0


the_parser, options = arguments()
if options.list:
    print("\n".join(GROUPS))
    sys.exit(0)
unknown = set((options.rows or "").split(",")) - set(GROUPS) - {""}
if unknown:
    the_parser.error(f"no such rows: {', '.join(sorted(unknown))}")
try:
    import torch
except ImportError as error:
    skip(f"cannot be imported: {error}")
if options.device != "cpu" and not torch.cuda.is_available():
    skip(f"{torch.__version__} sees no CUDA device")
try:
    import safetensors.torch
except ImportError:
    safetensors = None
import ckptfs

# Torch's, that nothing is distributed here, and that a checkpoint is replaced.
warnings.filterwarnings("ignore", category=UserWarning, module="torch")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and clean up
bench = Bench()
if options.child:
    child_main()
    sys.exit(0)
sys.exit(main())
