"""The rings of a paged stash, as torch reaches them: the library's calls as
operators, the stream that has them all, and the items that they are about.

torch.ops.ckptfs.stash_pack and .stash_unpack are what profilers see. They
enqueue kernels and return; for a stash in host memory they do it.
"""
import ctypes
import itertools
import threading

import torch

from . import _library as c

# --- The library's calls, as operators ---------------------------------------
# `pages` is empty, and stands for what the call changes besides its arguments.

_ops = torch.library.Library("ckptfs", "DEF")
_ops.define("stash_pack(Tensor(a!) pages, Tensor data, Tensor rows, int item, "
            "int stream) -> ()")
_ops.define("stash_unpack(Tensor(a!) pages, Tensor(b!) data, int item, "
            "int stream) -> ()")


def _pack(_pages, data, rows, item, stream):
    c.check(c.lib().ckpt_stash_pack(item, data.data_ptr(), rows.data_ptr(),
                                    stream))


def _unpack(_pages, data, item, stream):
    c.check(c.lib().ckpt_stash_unpack(item, data.data_ptr(), stream))


for _name, _function in (("stash_pack", _pack), ("stash_unpack", _unpack)):
    _ops.impl(_name, _function, "CPU")
    _ops.impl(_name, _function, "CUDA")
    _ops.impl(_name, lambda *arguments: None, "Meta")


# --- Streams -----------------------------------------------------------------

class Host:
    """In host memory everything is done when its call returns."""
    raw = 0

    def after_caller(self, *tensors):
        pass

    def done(self):
        pass

    def finish(self):
        pass


class Side:
    """A stream of the stash's own, which has all of its calls."""

    def __init__(self, device):
        self.device, self.stream = device, torch.cuda.Stream(device)
        self.raw = self.stream.cuda_stream

    def after_caller(self, *tensors):
        """What comes now follows what the caller's stream has; the tensors'
        memory is not used again before it is over."""
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        for tensor in tensors:
            tensor.record_stream(self.stream)

    def done(self):
        """For who takes a tensor: its stream waits for what is here now."""
        event = self.stream.record_event()

        def wait(tensor):
            here = torch.cuda.current_stream(self.device)
            here.wait_event(event)
            tensor.record_stream(here)
        return wait

    def finish(self):
        self.stream.synchronize()


# --- The rings ---------------------------------------------------------------

class Rings:
    """One stash of the library, and its items: each is used again once it is
    unpacked, or everything was reset."""

    def __init__(self, device, side, page_rows, rows, host_rows):
        """rows, host_rows: by type, which is (bytes, elements) of a row."""
        self.rows, self.host_rows = rows, host_rows
        self._side, self._page_rows = side, page_rows
        self._token = torch.empty(0)
        types = (c.StashType * len(rows))(*(
            c.StashType(*kind, rows[kind], host_rows[kind]) for kind in rows))
        options = c.StashOptions(
            c.HOST if device.type == "cpu" else device.index, page_rows,
            types, len(rows))
        self._stash, self._items, self._free = ctypes.c_void_p(), {}, {}
        self._lock = threading.Lock()  # the library's, for the program's end
        with c.handle() as ours:
            c.check(c.lib().ckpt_stash_new(ours, ctypes.byref(options),
                                           ctypes.byref(self._stash)))
            self._process = c.process()
            self._process.open.add(self)

    def reset(self):
        c.check(c.lib().ckpt_stash_reset(self._stash, self._side.raw))
        self._free = {key: list(made) for key, made in self._items.items()}

    def _item(self, kind, max_rows):
        free = self._free.setdefault((kind, max_rows), [])
        if not free:
            made = ctypes.c_void_p()
            c.check(c.lib().ckpt_stash_item_new(
                self._stash, *kind, max_rows, ctypes.byref(made)))
            self._items.setdefault((kind, max_rows), []).append(made.value)
            free.append(made.value)
        return free.pop()

    def pack(self, kind, parts, counts):
        """Of each part of a tensor its first rows, as many as its count says;
        returns the items that have them."""
        self._side.after_caller(parts[0], counts)  # of one memory
        items = [self._item(kind, len(part)) for part in parts]
        for part, count, item in zip(parts, counts, items):
            torch.ops.ckptfs.stash_pack(self._token, part, count, item,
                                        self._side.raw)
        return items

    def unpack(self, kind, items, parts):
        """Returns what Side.done() does."""
        self._side.after_caller()
        for part, item in zip(parts, items):
            torch.ops.ckptfs.stash_unpack(self._token, part, item,
                                          self._side.raw)
            self._free[kind, len(part)].append(item)
        return self._side.done()

    def overflowed(self, flag):
        c.check(c.lib().ckpt_stash_overflowed(self._stash, flag.data_ptr(),
                                              self._side.raw))

    def state(self, kind):
        one = c.StashState()
        c.check(c.lib().ckpt_stash_get_state(
            self._stash, *kind, self._side.raw, ctypes.byref(one)))
        return {"page_bytes": kind[0] * kind[1] * self._page_rows,
                "pages": tuple(one.capacity),
                "used": tuple(n - (tail - head) for n, tail, head in zip(
                    one.capacity, one.tail, one.head))}

    def _close(self):
        if self._stash and self._process is c.process():  # not a child's
            self._side.finish()
            for item in itertools.chain(*self._items.values()):
                c.lib().ckpt_stash_item_free(item)
            c.lib().ckpt_stash_free(self._stash)
            self._stash, self._items, self._free = None, {}, {}

    __del__ = _close
