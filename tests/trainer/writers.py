"""A writer of the protocol of nvidia-resiliency-ext 0.6, as far as Megatron and
ckptfs.megatron see of it: written after its description and its behaviour, with
none of its code.

What the plan wants is resolved while it prepares: tensors on a device, others,
objects. Its preload, which may run in another process, makes the files of them
and copies what is on a device; what is cached there by a key is not sent again.
Where it shares memory (cpu_shm_mode) it copies what is on a device itself, into
memory that the preload has as well, and with a cache into the same each time.
"""
import os
import queue
import sys
import types
from functools import partial

import torch
from torch.distributed.checkpoint import (
    DefaultSavePlanner, FileSystemWriter)
from torch.distributed.checkpoint.filesystem import (
    SerializationFormat, _StorageWriterTransforms, _write_item)
from torch.distributed.checkpoint.planner import WriteItemType

copied = []  # names of what was copied from a device
_cache = {}  # in the process that preloads: key -> items and tensors


class OnDevice(torch.Tensor):
    """Says that it is where it is not."""

    is_cuda = property(lambda self: True)


class FileSystemWriterAsync(FileSystemWriter):
    _known = set()  # keys that were sent
    _shared = {}  # key -> shared memory of the tensors

    def __init__(self, path, thread_count, hint, cached, shares):
        super().__init__(path, thread_count=thread_count)
        self._folder, self._hint, self._cached = str(path), hint, cached
        self._shares = shares
        self.results_queue = queue.Queue()

    @classmethod
    def cleanup_tensor_caches(cls):
        cls._known.clear()
        cls._shared.clear()

    def prepare_write_data(self, plan, planner):
        tensors = [(item, planner.resolve_data(item)) for item in plan.items
                   if item.type != WriteItemType.BYTE_IO]
        device = [pair for pair in tensors if isinstance(pair[1], OnDevice)]
        others = [pair for pair in tensors if pair not in device]
        objects = [(item, planner.resolve_data(item)) for item in plan.items
                   if item.type == WriteItemType.BYTE_IO]
        key = None
        if self._shares:
            device = self._share(device)
        parts = [tuple(map(list, zip(*pairs))) if pairs else None
                 for pairs in (device, others, objects)]
        if self._cached:
            key = tuple(item.index.fqn for item, _ in device)
            if key in self._known:
                parts[0] = None
            self._known.add(key)
        self._data = (key, (self._hint, *parts, self.thread_count,
                            plan.storage_data))

    def _share(self, device):
        key = tuple(item.index.fqn for item, _ in device)
        shared = self._shared.get(key) or [
            torch.empty(tensor.shape, dtype=tensor.dtype).share_memory_()
            for _, tensor in device]
        if self._cached:
            self._shared[key] = shared
        for room, (_, tensor) in zip(shared, device):
            room.copy_(torch.Tensor.as_subclass(tensor, torch.Tensor))
        return [(item, room) for room, (item, _) in zip(shared, device)]

    def get_save_function_and_args(self):
        return (partial(self.write, [], False, open),
                partial(self.preload_tensors, (self._folder, self._data), True),
                [0, None, self.results_queue])

    @staticmethod
    def preload_tensors(resolved, non_blocking=True):
        folder, (key, (hint, device, others, objects, threads, plan)) = \
            resolved
        if key is not None:
            if device is None:
                device = _cache[key]
            _cache[key] = device
        pairs = [pair for part in (device, others, objects) if part
                 for pair in zip(*part)]
        groups = {"": pairs}
        if hint is not None:
            threads //= 2
            groups = {hint: [], "": []}
            for pair in pairs:
                groups[hint if pair[0].index.fqn.startswith(hint)
                       else ""].append(pair)
        buckets = []
        for group, members in groups.items():
            for number in range(threads):
                part = members[number::threads]
                name = f"{group}{plan.prefix}{len(buckets)}.distcp"
                tensors = []
                for item, data in part:
                    if item.type == WriteItemType.BYTE_IO:
                        continue
                    if data.is_cuda:
                        copied.append(item.index.fqn)
                        data = torch.Tensor.as_subclass(data, torch.Tensor).to(
                            "cpu", non_blocking=non_blocking, copy=True)
                    tensors.append((item, data))
                buckets.append((os.path.join(folder, name), name, (
                    [pair for pair in part
                     if pair[0].type == WriteItemType.BYTE_IO], tensors)))
        return buckets

    @staticmethod
    def write(transforms, use_msc, open_file, rank, buckets, results):
        del transforms, use_msc, rank
        results.put({number: _write(open_file, *bucket)
                     for number, bucket in enumerate(buckets)})

    def retrieve_write_results(self):
        found = self.results_queue.get_nowait()
        if isinstance(found, Exception):
            raise RuntimeError(f"Worker failure: {found}") from found
        return [one for each in found.values() for one in each]


def _write(open_file, path, name, data):
    with open_file(path, "wb") as stream:
        return [_write_item(_StorageWriterTransforms(), stream, one, item,
                            name, SerializationFormat.TORCH_SAVE)
                for part in data for item, one in part]


class Unknown(FileSystemWriterAsync):
    """Of a protocol that nobody has heard of."""

    def get_save_function_and_args(self):
        save, preload, args = super().get_save_function_and_args()
        return save, lambda: preload(), args


def stand_in(writer=FileSystemWriterAsync):
    """It is what is imported as nvidia_resiliency_ext from here on."""
    name = ""
    for part in ("nvidia_resiliency_ext", "checkpointing", "async_ckpt",
                 "filesystem_async"):
        name = f"{name}.{part}" if name else part
        module = sys.modules[name] = types.ModuleType(name)
        module.__path__ = []
        above, _, last = name.rpartition(".")
        if above:
            setattr(sys.modules[above], last, module)
    module.FileSystemWriterAsync = writer


def save(path, state, cached, hint=None, before=lambda: None,
         kind=FileSystemWriterAsync, shares=False):
    """As Megatron does it, of one rank."""
    writer = kind(path, 4, hint, cached, shares)
    planner = DefaultSavePlanner()
    planner.set_up_planner(state, is_coordinator=True)
    writer.set_up_storage_writer(True)
    plan = writer.prepare_local_plan(planner.create_local_plan())
    plans, metadata = planner.create_global_plan([plan])
    plan = planner.finish_plan(writer.prepare_global_plan(plans)[0])
    writer.prepare_write_data(plan, planner)
    run, preload, args = writer.get_save_function_and_args()
    before()
    args[1] = preload()
    run(*args)
    writer.finish(metadata, [writer.retrieve_write_results()])
