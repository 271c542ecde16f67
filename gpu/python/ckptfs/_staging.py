"""A state that is saved while the job goes on: what marks it when the save is
asked for, and what tells the job that the state may change.

torch's async_save() asks an AsyncStager for a copy. Ours makes none of tensors:
a writer of ours copies them to where they stay, and says so then. It does so in
a thread of this process, or in another process, which is told by a pipe and
tells by it.
"""
import concurrent.futures
import contextlib
import copy
import multiprocessing
import threading

import torch
from torch.distributed.checkpoint.staging import AsyncStager

from ._tensors import local

_saving = threading.local()  # staged: what this thread is to save
_sides = {}  # device -> the stream on which its tensors are copied


def _kept(value, devices):
    """The same tensors, in containers and beside objects that nobody else has;
    and where they are."""
    if isinstance(value, torch.Tensor):
        if value.device.type == "cuda":
            devices.add(value.device.index)
        return value
    if isinstance(value, dict):
        kept = copy.copy(value)
        for key, one in value.items():
            kept[key] = _kept(one, devices)
        return kept
    if type(value) in (list, tuple):
        return type(value)(_kept(one, devices) for one in value)
    return copy.deepcopy(value)


def _apart(value):
    """For another process. Pickling a tensor of the host moves it to memory of
    both, under the feet of who computes with it; so that happens to a copy."""
    if isinstance(value, torch.Tensor):
        own = local(value)
        return value.detach().clone() if own.device.type == "cpu" and \
            not own.is_shared() else value
    if isinstance(value, dict):
        return {key: _apart(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_apart, value))
    return value


class _Staged(concurrent.futures.Future):
    """The state as it is. The thread that is to save it asks first, and has
    it at once; it is done when the tensors may change. That is when a writer
    of that thread, or of the process that it sends the state to, has copied
    them, or when the thread has ended, which no longer reads them, whatever it
    did."""

    def __init__(self, state_dict):
        super().__init__()
        devices = set()
        self._state = _State(_kept(state_dict, devices))
        self._state.staged = self
        self._end = threading.Lock()  # guards being done
        self._pipe = None  # by which another process says that it has copied
        self._marks = {n: torch.cuda.current_stream(n).record_event()
                       for n in devices}

    def result(self, timeout=None):
        state = self._state
        if not self.done():
            _saving.staged = self
            self._in_background(self._watch, threading.current_thread())
        return state

    def copied(self):
        with self._end:
            if not self.done():
                self._state = None
                self.set_result(None)

    @contextlib.contextmanager
    def aside(self):
        """What this thread enqueues in it comes after what the caller's streams
        had when the state was staged, and not after what they are given
        meanwhile."""
        with contextlib.ExitStack() as stack:
            for n, mark in self._marks.items():
                if n not in _sides:
                    _sides[n] = torch.cuda.Stream(n)
                _sides[n].wait_event(mark)
                stack.enter_context(torch.cuda.stream(_sides[n]))
            yield

    def send(self, state):
        """What another process gets: its streams know nothing of ours."""
        for mark in self._marks.values():
            mark.synchronize()
        self._pipe = multiprocessing.Pipe(duplex=False)
        self._in_background(self._listen)
        return _apart(dict(state)), self._pipe[1]

    @staticmethod
    def _in_background(call, *args):
        threading.Thread(target=call, args=args, daemon=True).start()

    def _listen(self):
        self._pipe[0].recv_bytes()
        self.copied()

    def _watch(self, saver):
        saver.join()
        self.copied()
        if self._pipe:
            self._pipe[1].send_bytes(b"")  # _listen() waits no longer


class _State(dict):
    def __reduce__(self):
        return _arrive, self.staged.send(self)


class _Arrived:
    """What another process has staged, and waits for."""

    def __init__(self, pipe):
        self._pipe = pipe

    def copied(self):
        with contextlib.suppress(OSError):  # it may have gone
            self._pipe.send_bytes(b"")

    aside = staticmethod(contextlib.nullcontext)


def _arrive(state, pipe):
    _saving.staged = _Arrived(pipe)
    return state


@contextlib.contextmanager
def copying():
    """What copies the tensors of what this thread is to save."""
    staged = _saving.__dict__.pop("staged", None)
    with staged.aside() if staged else contextlib.nullcontext():
        yield
    if staged:
        staged.copied()


def write(begun, durable):
    """begun: an iterator that begins the Saves of what this thread is to write.
    Returns when all are copied; durable: when their files are, too."""
    saves = []
    try:
        with copying():
            for save in begun:
                saves.append(save)
            for save in saves:
                save.copied()
        for save in saves if durable else ():
            save.wait()
    finally:
        for save in saves:
            save._close()  # none of them reads a tensor any more


class Stager(AsyncStager):
    """What dcp.async_save(..., async_stager=Stager()) needs to copy nothing
    before the Writer copies it: what a device has goes to the file directly.

        saved = dcp.async_save(state, storage_writer=Writer(path),
                               async_stager=stager)
        ...
        saved.staging_completion.result()  # the tensors may change
        saved.upload_completion.result()   # .metadata is there

    What of the state is no tensor may change at once. One stager may be used
    again and again. The segments are laid out when all ranks have agreed on a
    plan, by whoever writes; nothing could be staged in them before.

    With AsyncCheckpointerType.PROCESS that is torch's other process, which
    copies from the devices, too; tensors of the host are copied to memory of
    both first. It says when it has copied; the tensors may change then.
    """

    _last = None

    def stage(self, state_dict):
        self._last = _Staged(state_dict)
        return self._last

    def synchronize_staging(self):
        """Wait until the tensors may change."""
        if self._last is not None:
            concurrent.futures.wait([self._last])

    def close(self):
        pass
