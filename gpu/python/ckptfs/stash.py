"""ckptfs.stash - what MoE layers keep from forward to backward, in pages.

An expert works on a buffer that has room for as many rows as could come, and
autograd keeps what it computes at that size. How many rows came only the
device knows. A stash packs these rows, and no more, into rings of pages, and
takes them out again for the backward; the host never asks how many there are.

    stash = ckptfs.stash.Stash(model)

    def step(batch):                        # it may run twice
        optimizer.zero_grad()
        loss = model(batch)
        loss.backward()
        return loss

    for batch in batches:
        loss = stash.run(step, batch)
        optimizer.step()

    # in the layer, around what the expert does with its buffer:
        with stash.rows(count, max_rows):   # count: one integer, on the device
            y = expert(buffer)              # buffer: max_rows rows

The first step is recorded: its rows are kept beside the rings, exactly, which
asks the device for each count. It says how large the rings have to be, and in
which order rows are wanted back: from then on they are on their way, on a
stream of the stash's own, before the backward wants them. A step whose rows
did not fit has wrong gradients, which Overflow says when it ends; run() has it
done again, recorded, and the rings become larger.

In rows(), tensors whose first dimension is max_rows are stashed, whoever
computed them: floating-point ones, and uint8, as which float8 is often kept;
parameters and what is made of them must not have such a dimension, which rows()
checks. Rows from `count` on come back as zeros: the layer has to ignore them,
as it does what lies there now. What looks like rows and is kept whole all the
same is named by a warning, once.

Where one buffer has the rows of several experts, [experts, max_rows, ...],
`count` is a tensor of one integer for each: of each expert its own rows are
kept.

    with stash.rows(counts, capacity):      # buffer: [len(counts), capacity, H]
        y = torch.bmm(buffer, weights)

With margin=0.5, host_margin=0.5 the rings have half of what was recorded, and
what does not fit goes to pinned host memory, which has room for all of it.

Errors: ValueError for arguments that make no sense, RuntimeError for calls in
the wrong order, OSError from the library (ENOMEM: the rings).
"""
import contextlib
import itertools
import math
import threading
import warnings
import weakref

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ._rings import Host, Rings, Side
from ._tensors import is_rocm

# --- What autograd holds in place of a tensor ---------------------------------

class _Rows:
    """Of the rows of one storage: for each expert an item of the rings, or
    (recorded) a copy; and a tensor from when it is asked for, as a graph may be
    gone through twice."""

    def __init__(self, tensor, experts, index, step):
        self.shape, self.dtype = tensor.shape, tensor.dtype
        self.experts, self.index, self.step = experts, index, step
        self.items = self.copies = self.pages = None
        self.tensor = self.wait = None

    @property
    def kind(self):
        return self.dtype.itemsize, self.shape[1]

    def of_experts(self, tensor):
        return tensor.view(self.experts, -1, self.shape[1]).unbind()


class _Whole:
    """Of a tensor that is not stashed. Detached: a graph that held its own
    output would never be freed."""

    def __init__(self, tensor):
        self.tensor, self.version = tensor.detach(), tensor._version


def _place(t, shape):
    """How t lies in rows of its storage: (where these begin, their width, t's
    column). A view of columns has neighbours there, which are often kept as
    well: the rows are stashed with all of them, once. None: it has no rows.
    shape: of t's first dimensions, which count rows."""
    own, width = len(shape), t.stride(len(shape) - 1)
    start = t.storage_offset()
    extent = 1 + sum((n - 1) * step
                     for n, step in zip(t.shape[own:], t.stride()[own:]))
    if extent > width or own == 2 and shape[0] > 1 and \
            t.stride(0) != shape[1] * width:
        return None
    most = t.untyped_storage().nbytes() // t.element_size() - \
        math.prod(shape) * width
    column = start % width
    if column + extent > width or start - column > most:
        column = 0
    return (start - column, width, column) if start - column <= most else None


class Overflow(RuntimeError):
    """Rows did not fit: the gradients of the step are wrong."""


def _dimensions(module):
    """What the dimensions of a parameter, or of a view of it, can be: (name,
    dimensions) of each."""
    return [(name, {math.prod(one.shape[first:last])
                    for last in range(1, one.dim() + 1)
                    for first in range(last)})
            for name, one in itertools.chain(module.named_parameters(),
                                             module.named_buffers())]


def _rows_of(t, shape):
    """Which of t's first dimensions count rows; none: it has not so many."""
    for one in (shape, (math.prod(shape),)):
        if t.shape[:len(one)] == one:
            return one
    return ()


def _has_rows(t, shape):
    """Whether some of t's dimensions count rows, wherever they are."""
    return not {shape[-1], math.prod(shape)}.isdisjoint(
        {*t.shape, *itertools.accumulate(t.shape, int.__mul__)})


class Stash:
    """A stash for the layers of `module`, on its device; one thread at a time
    uses it.

    margin: the rings have room for so many times the rows that were recorded.
    host_margin: and pinned host memory for so many times as many, for what
        does not fit into the rings. With a margin below 1 both make at least 1,
        and host memory has room for the largest tensor more: none is split.
    min_bytes: smaller tensors stay as they are.
    ahead: how many tensors are taken out before the backward wants them; by
        default 1 on a device, 0 in host memory.
    group: whose ranks do a step again when one of them has to: by default all
        of torch.distributed's, if there are some; False: each by itself.
    """

    def __init__(self, module, *, margin=1.1, host_margin=0.0, page_rows=64,
                 min_bytes=1 << 20, ahead=None, group=None):
        for name, value, least in (("margin", margin, 0), ("ahead", ahead, 0),
                                   ("host_margin", host_margin, 0),
                                   ("page_rows", page_rows, 1),
                                   ("min_bytes", min_bytes, 0)):
            if value is not None and not value >= least:
                raise ValueError(f"{name}={value!r}: give {least} or more")
        if margin + host_margin < 1:
            raise ValueError(
                f"margin={margin!r} and host_margin={host_margin!r}: the "
                "recorded rows need 1 or more of both together")
        where = {p.device for p in module.parameters()}
        if len(where) != 1:
            raise ValueError(f"the module's parameters are on {len(where)} "
                             "devices: give a module that is on one")
        self.device, = where
        on_device = self.device.type == "cuda"
        if is_rocm(torch) if on_device else self.device.type != "cpu":
            raise ValueError(f"no stash on {self.device}: it is for CUDA's "
                             "devices and the host")
        self._side = Side(self.device) if on_device else Host()
        self._flag = torch.zeros(1, dtype=torch.int32, pin_memory=on_device)
        self._dimensions, self._taken = _dimensions(module), {}
        self._margin, self._host_margin = margin, host_margin
        self._page_rows, self._min_bytes = page_rows, min_bytes
        self._ahead = int(on_device) if ahead is None else ahead
        self._group, self._lock = group, threading.RLock()
        self._rings, self._peaks = None, {}  # type -> pages at once
        self._largest = {}  # type -> pages of one item
        self._told = set()  # shapes that are kept whole, and why
        self._record, self._inside, self._step = True, False, 0
        self._next = {}  # index of a tensor -> whose turn is after it
        self.overflows = 0  # steps that had to be done again
        self._forget()

    def _forget(self):
        """What is known of one step."""
        self._live = weakref.WeakValueDictionary()  # index -> _Rows
        self._known = {}  # what tensor -> (its storage, weak _Rows)
        self._fetched = {}  # index -> tensor: on its way to who wants it
        self._order = []  # of the indices, as they were wanted
        self._used, self._unknown = {}, False  # type -> pages, if recorded
        self._contexts = self._count = 0
        self.padded_bytes = 0  # of the tensors that this step has stashed

    # --- steps ---

    @contextlib.contextmanager
    def step(self):
        """Around the forward and the backward of a step, all microbatches of
        it. Overflow when it ends: the gradients are wrong; zero them and do
        the step again, which is recorded then. run() does all this."""
        with self._lock:
            if self._inside:
                raise RuntimeError("a step of the stash is not over yet")
            self._side.finish()  # if the one before ended in an error
            self._forget()
            if not self._record:
                self._fit()
                self._rings.reset()
            self._step += 1
            self._inside = True
        try:
            yield self
            again = self._must_run_again()
        finally:
            self._inside = False
        self._next = dict(zip(self._order, self._order[1:]))
        self._record = again or self._unknown or not self._peaks
        if again:
            self.overflows += 1
            raise Overflow("the rows of this step did not fit into the stash: "
                           "zero the gradients and do it again")

    def run(self, function, *args, **options):
        """What function(*args, **options) returns, called within step(), and
        again after an Overflow. It zeroes the gradients before anything else,
        and does no step of the optimizer. Random numbers are drawn anew."""
        for last in (False, True):  # what is recorded does not overflow
            try:
                with self.step():
                    result = function(*args, **options)
                return result
            except Overflow:
                result = None  # with the graph that it may have
                if last:
                    raise

    def close(self):
        """Give the rings back. A later step is recorded, and makes new."""
        with self._lock:
            if self._rings:
                self._rings._close()
            self._rings, self._record = None, True

    def state(self):
        """type -> {"page_bytes", "pages", "used"} of the rings; the latter two
        on the device and on the host. Waits for the device."""
        with self._lock:
            return {kind: self._rings.state(kind)
                    for kind in (self._rings.rows if self._rings else ())}

    def _fit(self):
        """Rings that have room for what was recorded."""
        had = self._rings.rows if self._rings else {}
        if all(self._has_room(kind) for kind in self._peaks):
            return
        self.close()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # the rings' memory is not torch's
        self._rings = Rings(
            self.device, self._side, self._page_rows,
            {k: max(math.ceil(n * self._page_rows * self._margin),
                    had.get(k, 0)) for k, n in self._peaks.items()},
            {k: self._host_rows(k) for k in self._peaks})
        self._record = False

    def _host_rows(self, kind):
        """An item goes there when the ring has less room than it needs. So
        there is room for all when both have it for the recorded pages, and for
        the largest item besides."""
        pages = self._peaks[kind] * self._host_margin
        if self._margin < 1:
            pages += self._largest[kind] * (self._margin + self._host_margin)
        return math.ceil(pages * self._page_rows)

    def _has_room(self, kind):
        """Do the rings that there are have it for what was recorded?"""
        if not self._rings or kind not in self._rings.rows:
            return False
        rows, pages = self._rings.rows[kind], self._peaks[kind]
        if self._margin < 1:
            rows += self._rings.host_rows[kind]
            pages += self._largest[kind]
        return rows >= pages * self._page_rows

    def _must_run_again(self):
        """Did anything overflow, on any rank? Waits for the device."""
        self._flag.zero_()
        if not self._record:
            self._rings.overflowed(self._flag)
        self._side.finish()
        dist = torch.distributed
        if self._group is False or not (dist.is_available() and
                                        dist.is_initialized()):
            return bool(self._flag)
        flag = self._flag.to(self.device, copy=True)
        dist.all_reduce(flag, dist.ReduceOp.MAX, self._group)
        return bool(flag)

    # --- forward ---

    def rows(self, count, max_rows):
        """A context: what autograd keeps of tensors of max_rows rows, of which
        the first `count` matter, goes into the stash; or of max_rows rows of
        each expert. count: a tensor of one integer, or of one for each expert,
        on the stash's device, or ints. One context for each use."""
        if not torch.is_grad_enabled():
            return contextlib.nullcontext()  # nothing is kept
        if not self._inside:
            raise RuntimeError("rows() outside of step() and run()")
        count = torch.as_tensor(count)
        if count.dim() > 1 or not count.numel() or count.is_floating_point() \
                or count.device not in (self.device, torch.device("cpu")):
            raise ValueError(f"count: {tuple(count.shape)} of {count.dtype} "
                             f"on {count.device}: give one integer on "
                             f"{self.device}, or one for each expert")
        shape = (*count.shape, max_rows)
        if shape not in self._taken:  # a module has thousands of parameters
            self._taken[shape] = next(
                (name for name, dimensions in self._dimensions
                 if dimensions.issuperset(shape) or
                 math.prod(shape) in dimensions), None)
        if self._taken[shape]:
            raise ValueError(
                f"max_rows={max_rows}: `{self._taken[shape]}` has such a "
                "dimension and could be taken for rows: pad to another number")
        # A copy, as it is read later than the caller may write to it.
        count = count.detach().reshape(-1).to(self.device, torch.int64,
                                              copy=True)
        known = None
        if self._record:
            known = count.tolist()
            for one in known:
                if not 0 <= one <= max_rows:
                    raise ValueError(f"count={one}: there are {max_rows} rows")
        self._contexts += 1
        context = self._contexts
        return torch.autograd.graph.saved_tensors_hooks(
            lambda t: self._keep(t, shape, count, known, context), self._give)

    def _keep(self, t, shape, count, known, context):
        own = _rows_of(t, shape)
        place = _place(t, own) if own and t.layout is torch.strided else None
        why = self._why_whole(t, place)
        if why is not None:
            if why and _has_rows(t, shape):
                self._say(t, shape, why)
            return _Whole(t)
        start, width, column = place
        view = (t.shape, t.stride(), column)
        with self._lock, torch.no_grad():
            if known is None and \
                    (t.element_size(), width) not in self._rings.rows:
                self._unknown = True  # the next step is recorded
                return _Whole(t)
            # While a weak reference to a storage is held, no other has the
            # same number.
            storage = StorageWeakRef(t.untyped_storage())
            key = (context, storage.cdata, start, width, t.dtype, t._version)
            before = self._known.get(key)
            rows = before and not before[0].expired() and before[1]()
            if not rows:
                rows = self._stash(t.detach().as_strided(
                    (math.prod(shape), width), (width, 1), start), count, known)
                self._known[key] = (storage, weakref.ref(rows))
            return rows, view

    def _why_whole(self, t, place):
        """Why it is not stashed; "": nobody would ask. None: it is."""
        if isinstance(t, torch.nn.Parameter) or t.device != self.device:
            return ""
        if type(t) is not torch.Tensor or t.layout is not torch.strided:
            return f"it is a {type(t).__name__} of layout {t.layout}"
        if t.nbytes < max(self._min_bytes, 1):
            return ""
        if t.is_neg() or not (t.is_floating_point() or t.dtype == torch.uint8):
            return f"it is of {t.dtype}" + ", to be negated" * t.is_neg()
        if place is not None:
            return None
        if t.untyped_storage().nbytes() < t.nbytes:
            return ""  # an expanded one holds less than it shows
        return "its rows are not its first dimensions, or not one after the " \
            f"other in memory (strides {tuple(t.stride())})"

    def _say(self, t, shape, why):
        if (t.shape, why) in self._told:
            return
        self._told.add((t.shape, why))
        of = f"{shape[-1]} rows" + (f" of each of {shape[0]} experts"
                                    if len(shape) > 1 else "")
        warnings.warn(f"ckptfs.stash: in rows() for {of} a tensor of "
                      f"{tuple(t.shape)} is kept whole: {why}", stacklevel=2)

    def _stash(self, data, count, known):
        rows = _Rows(data, len(count), self._count, self._step)
        parts = rows.of_experts(data)
        if known is not None:
            rows.copies = [part[:n].clone() for part, n in zip(parts, known)]
            pages = [-(-n // self._page_rows) for n in known]
            kind, rows.pages = rows.kind, sum(pages)
            used = self._used[kind] = self._used.get(kind, 0) + rows.pages
            self._peaks[kind] = max(self._peaks.get(kind, 0), used)
            self._largest[kind] = max(self._largest.get(kind, 0), *pages)
        else:
            rows.items = self._rings.pack(rows.kind, parts, count)
        self._count += 1
        self.padded_bytes += data.nbytes
        self._live[rows.index] = rows
        return rows

    # --- backward ---

    def _give(self, kept):
        if isinstance(kept, _Whole):
            if kept.tensor._version != kept.version:
                raise RuntimeError(
                    f"a tensor of {tuple(kept.tensor.shape)} that the backward "
                    "needs was changed in place")
            return kept.tensor
        rows, view = kept
        with self._lock, torch.no_grad():
            if rows.tensor is None:
                if rows.step != self._step or not self._inside:
                    raise RuntimeError(
                        f"a tensor of {tuple(view[0])} was stashed in step "
                        f"{rows.step}, which is over: a backward belongs into "
                        "the step of its forward")
                self._take(rows)
            return rows.tensor.as_strided(*view)

    def _take(self, rows):
        self._fetch(rows)
        rows.tensor = self._fetched.pop(rows.index)
        if rows.wait:
            rows.wait(rows.tensor)
        self._order.append(rows.index)
        index = rows.index
        for _ in range(self._ahead):
            index = self._next.get(index)
            ahead = self._live.get(index)
            if ahead is None:  # not there yet, or no longer
                break
            self._fetch(ahead)

    def _fetch(self, rows):
        """Rows are taken out once: their pages are somebody else's then."""
        if rows.tensor is not None or rows.index in self._fetched:
            return
        tensor = torch.zeros(rows.shape, dtype=rows.dtype, device=self.device)
        parts = rows.of_experts(tensor)
        if rows.copies is not None:
            for part, copy in zip(parts, rows.copies):
                part[:len(copy)] = copy
            rows.copies = None
            self._used[rows.kind] -= rows.pages
        else:
            rows.wait = self._rings.unpack(rows.kind, rows.items, parts)
        self._fetched[rows.index] = tensor
