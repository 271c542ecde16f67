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

In rows(), floating-point tensors whose first dimension is max_rows are
stashed, whoever computed them; parameters and what is made of them must not
have such a dimension, which rows() checks. Rows from `count` on come back as
zeros: the layer has to ignore them, as it does what lies there now.

Errors: ValueError for arguments that make no sense, RuntimeError for calls in
the wrong order, OSError from the library (ENOMEM: the rings).
"""
import contextlib
import itertools
import math
import threading
import weakref

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ._rings import Host, Rings, Side
from ._tensors import is_rocm

# --- What autograd holds in place of a tensor ---------------------------------

class _Rows:
    """Of the rows of one storage: an item of the rings, or (recorded) a copy;
    and a tensor from when it is asked for, as a graph may be gone through
    twice."""

    def __init__(self, tensor, index, step):
        self.shape, self.dtype = tensor.shape, tensor.dtype
        self.index, self.step = index, step
        self.item = self.copy = self.pages = None
        self.tensor = self.wait = None

    @property
    def kind(self):
        return self.dtype.itemsize, self.shape[1]


class _Whole:
    """Of a tensor that is not stashed. Detached: a graph that held its own
    output would never be freed."""

    def __init__(self, tensor):
        self.tensor, self.version = tensor.detach(), tensor._version


def _place(t):
    """How t lies in rows of its storage: (where these begin, their width, t's
    column). A view of columns has neighbours there, which are often kept as
    well: the rows are stashed with all of them, once. None: it has no rows."""
    width, start = t.stride(0), t.storage_offset()
    extent = 1 + sum((n - 1) * step
                     for n, step in zip(t.shape[1:], t.stride()[1:]))
    if extent > width:
        return None
    most = t.untyped_storage().nbytes() // t.element_size() - len(t) * width
    column = start % width
    if column + extent > width or start - column > most:
        column = 0
    return (start - column, width, column) if start - column <= most else None


class Overflow(RuntimeError):
    """Rows did not fit: the gradients of the step are wrong."""


def _dimensions(module):
    """What the first dimension of a parameter, or of a view of it, can be:
    dimension -> whose it is."""
    found = {}
    for name, one in itertools.chain(module.named_parameters(),
                                     module.named_buffers()):
        for first in range(one.dim()):
            size = 1
            for n in one.shape[first:]:
                size *= n
                found.setdefault(size, name)
    return found


class Stash:
    """A stash for the layers of `module`, on its device; one thread at a time
    uses it.

    margin: the rings have room for so many times the rows that were recorded.
    host_margin: and pinned host memory for so many times as many, for what
        does not fit into the rings.
    min_bytes: smaller tensors stay as they are.
    ahead: how many tensors are taken out before the backward wants them; by
        default 1 on a device, 0 in host memory.
    group: whose ranks do a step again when one of them has to: by default all
        of torch.distributed's, if there are some; False: each by itself.
    """

    def __init__(self, module, *, margin=1.1, host_margin=0.0, page_rows=64,
                 min_bytes=1 << 20, ahead=None, group=None):
        for name, value, least in (("margin", margin, 1), ("ahead", ahead, 0),
                                   ("host_margin", host_margin, 0),
                                   ("page_rows", page_rows, 1),
                                   ("min_bytes", min_bytes, 0)):
            if value is not None and not value >= least:
                raise ValueError(f"{name}={value!r}: give {least} or more")
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
        self._dimensions = _dimensions(module)
        self._margin, self._host_margin = margin, host_margin
        self._page_rows, self._min_bytes = page_rows, min_bytes
        self._ahead = int(on_device) if ahead is None else ahead
        self._group, self._lock = group, threading.RLock()
        self._rings, self._peaks = None, {}  # type -> pages at once
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
        if all(had.get(kind, -1) >= pages * self._page_rows
               for kind, pages in self._peaks.items()):
            return
        self.close()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # the rings' memory is not torch's
        recorded = {k: n * self._page_rows for k, n in self._peaks.items()}
        self._rings = Rings(
            self.device, self._side, self._page_rows,
            {k: max(math.ceil(n * self._margin), had.get(k, 0))
             for k, n in recorded.items()},
            {k: math.ceil(n * self._host_margin) for k, n in recorded.items()})
        self._record = False

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
        the first `count` matter, goes into the stash. count: a tensor of one
        integer on the stash's device, or an int. One for each use."""
        if not torch.is_grad_enabled():
            return contextlib.nullcontext()  # nothing is kept
        if not self._inside:
            raise RuntimeError("rows() outside of step() and run()")
        if max_rows in self._dimensions:
            raise ValueError(
                f"max_rows={max_rows}: `{self._dimensions[max_rows]}` has such "
                "a dimension and could be taken for rows: pad to another "
                "number")
        count = torch.as_tensor(count)
        if count.numel() != 1 or count.is_floating_point() or \
                count.device not in (self.device, torch.device("cpu")):
            raise ValueError(f"count: {tuple(count.shape)} of {count.dtype} "
                             f"on {count.device}: give one integer on "
                             f"{self.device}")
        # A copy, as it is read later than the caller may write to it.
        count = count.detach().to(self.device, torch.int64, copy=True)
        known = None
        if self._record:
            known = int(count)
            if not 0 <= known <= max_rows:
                raise ValueError(f"count={known}: there are {max_rows} rows")
        self._contexts += 1
        context = self._contexts
        return torch.autograd.graph.saved_tensors_hooks(
            lambda t: self._keep(t, count, known, context)
            if self._wants(t, max_rows) else _Whole(t), self._give)

    def _wants(self, t, max_rows):
        return (type(t) is torch.Tensor and t.dim() > 0 and
                t.shape[0] == max_rows and t.device == self.device and
                t.layout is torch.strided and t.is_floating_point() and
                not t.is_neg() and t.nbytes >= max(self._min_bytes, 1))

    def _keep(self, t, count, known, context):
        place = _place(t)
        if place is None:
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
                    (len(t), width), (width, 1), start), count, known)
                self._known[key] = (storage, weakref.ref(rows))
            return rows, view

    def _stash(self, data, count, known):
        rows = _Rows(data, self._count, self._step)
        if known is not None:
            rows.copy = data[:known].clone()
            rows.pages = -(-known // self._page_rows)
            used = self._used[rows.kind] = \
                self._used.get(rows.kind, 0) + rows.pages
            self._peaks[rows.kind] = max(self._peaks.get(rows.kind, 0), used)
        else:
            rows.item = self._rings.pack(rows.kind, data, count)
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
        if rows.copy is not None:
            tensor[:len(rows.copy)] = rows.copy
            rows.copy = None
            self._used[rows.kind] -= rows.pages
        else:
            rows.wait = self._rings.unpack(rows.kind, rows.item, tensor)
        self._fetched[rows.index] = tensor
