"""Safetensors files of torch.distributed.checkpoint, as its own
HuggingFaceStorageWriter and -Reader have them, through segments.

A rank's file, a "shard", has what the rank has of each tensor; its metadata say
where in the whole tensor that lies. Consolidating makes files of whole tensors
of them, as the Hugging Face Hub has them, with an index. A part that lies in
one piece in its tensor goes from one file's memory to the other's; only a
tensor that was cut along another dimension is put together in between.
"""
import contextlib
import glob
import json
import math
import os

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import (
    FileSystemWriter, HuggingFaceStorageReader, HuggingFaceStorageWriter)
from torch.distributed.checkpoint._hf_utils import (
    CUSTOM_METADATA_KEY, DCP_VERSION_KEY, FORMAT_KEY, FORMAT_VALUE,
    HF_DCP_VERSION, SAVED_OFFSETS_KEY, SUFFIX, _gen_file_name, _metadata_fn)
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from . import _staging
from ._loading import File
from ._ranges import Ranges
from ._reading import Piece, lends, read_file
from ._saving import begin_placed, is_mounted, save_file_async
from ._share import agree

_ALIGN = 8  # of the first tensor, as safetensors has it


# --- Writing -----------------------------------------------------------------

class _Segments(FileSystemWriter):
    """What HuggingFaceStorageWriter hands its files to."""

    def _write_data(self, planner, file_queue):
        results = []

        def begun():
            while not file_queue.empty():
                path, name, items = file_queue.get_nowait()
                tensors = _resolved(items, planner)
                yield save_file_async(
                    {item.index.fqn: tensor for item, tensor in tensors}, path,
                    {CUSTOM_METADATA_KEY: json.dumps(
                        {item.index.fqn: {SAVED_OFFSETS_KEY: list(
                            item.tensor_data.chunk.offsets)}
                         for item, _ in tensors}),
                     DCP_VERSION_KEY: str(HF_DCP_VERSION),
                     FORMAT_KEY: FORMAT_VALUE},
                    plain=True, skip_unchanged=self.skip_unchanged)
                for item, tensor in tensors:
                    size = tensor.numel() * tensor.element_size()
                    results.append(WriteResult(
                        index=item.index, size_in_bytes=size,
                        storage_data=_StorageInfo(name, 0, size)))
        _staging.write(begun(), self.sync_files)
        done = Future()
        done.set_result(results)
        return done


def _resolved(items, planner):
    """[(item, tensor)] of one file, which has a name for each."""
    seen = set()
    for item in items:
        fqn = item.index.fqn
        if item.type == WriteItemType.BYTE_IO:
            raise ValueError(f"Key `{fqn}` is no tensor, and safetensors has "
                             "nothing else: leave it out of the state")
        if fqn in seen:
            raise ValueError(f"Key `{fqn}` is several shards on this rank, and "
                             "a safetensors file has one of each name")
        seen.add(fqn)
    return [(item, planner.resolve_data(item).detach()) for item in items]


class HFWriter(HuggingFaceStorageWriter, _Segments):
    """torch's HuggingFaceStorageWriter, whose files are laid out in segments.

    fqn_to_index_mapping, thread_count, save_distributed, enable_consolidation:
        torch's. What is consolidated goes by segments as well.
    thread_count_consolidation: means nothing; ckptfs.configure() has the
        number of threads.
    sync_files, skip_unchanged: as Writer has them.
    """

    def __init__(self, path, fqn_to_index_mapping=None, thread_count=1,
                 save_distributed=False, enable_consolidation=False,
                 thread_count_consolidation=1, *, sync_files=None,
                 skip_unchanged=False):
        super().__init__(path, fqn_to_index_mapping, thread_count,
                         save_distributed, enable_consolidation,
                         thread_count_consolidation)
        self._sync_asked, self.skip_unchanged = sync_files, skip_unchanged

    def set_up_storage_writer(self, *args, **options):
        super().set_up_storage_writer(*args, **options)
        self.sync_files = not is_mounted(self.path) \
            if self._sync_asked is None else self._sync_asked

    def finish(self, metadata, results):
        if not (self.save_distributed and self.enable_consolidation):
            super().finish(metadata, results)
            return
        mapping = self.fqn_to_index_mapping or dict.fromkeys(
            metadata.state_dict_metadata, 1)
        # What an earlier save with more ranks has left there is none of it.
        names = {one.storage_data.relative_path
                 for written in results for one in written}
        _write_index(self.consolidated_output_path, [_consolidate(
            [os.path.join(self.path, name) for name in sorted(names)],
            self.consolidated_output_path, mapping, self.sync_files)])


# --- Consolidating -----------------------------------------------------------

class _Shard(File):
    """A rank's file, and where its tensors lie in the whole ones."""

    def __init__(self, path):
        super().__init__(path)
        found = (self.metadata() or {}).get(CUSTOM_METADATA_KEY)
        if found is None:
            raise ValueError(f"{path} does not say where its tensors belong: "
                             "it is no shard of torch.distributed.checkpoint")
        self.offsets = {name: one[SAVED_OFFSETS_KEY]
                        for name, one in json.loads(found).items()}


class _Whole:
    """A tensor, of the parts that shards have."""

    def __init__(self, name, shards):
        self.name = name
        self.parts = []  # (its shard, its shape, where it begins)
        for shard in shards:
            if name in shard:
                entry = shard._entry(name)
                dtype, shape = shard._torch_shape(torch, entry)
                self.parts.append((shard, shape, shard.offsets[name]))
                self.dtype, self._torch_dtype = entry.dtype.decode(), dtype
        if not self.parts:
            raise ValueError(f"Key `{name}` is to be consolidated, and no "
                             "shard has it")
        self.shape = [max(ends) for ends in zip(*(
            [first + size for first, size in zip(at, shape)]
            for _, shape, at in self.parts))]
        if sum(math.prod(shape) for _, shape, _ in self.parts) != \
                math.prod(self.shape):
            raise ValueError(f"Key `{name}`: its shards do not make up "
                             f"{self.shape}. Is one of another save there?")
        self.bytes = math.prod(self.shape) * dtype.itemsize

    def described(self):
        """Its shape, as safetensors has it."""
        if self.dtype == "F4":  # two elements are one of torch's
            return [*self.shape[:-1], 2 * self.shape[-1]]
        return self.shape

    def pieces(self, start):
        """(name, tensor, offset) each, of a file in which it begins there."""
        row = math.prod(self.shape[1:]) * self._torch_dtype.itemsize
        if all(list(shape[1:]) == self.shape[1:] for _, shape, _ in self.parts):
            found = [(shard.get_tensor(self.name), at[0] * row if at else 0)
                     for shard, _, at in self.parts]
        else:
            whole = torch.empty(self.shape, dtype=self._torch_dtype)
            for shard, shape, at in self.parts:
                whole[tuple(slice(first, first + size) for first, size in
                            zip(at, shape))] = shard.get_tensor(self.name)
            found = [(whole, 0)]
        return [(f"{number}.{self.name}", tensor, start + at)
                for number, (tensor, at) in enumerate(found) if tensor.numel()]


def _begin_whole(path, tensors):
    """A Save of the safetensors file of these."""
    # The widest first, so that all are aligned.
    tensors = sorted(tensors, key=lambda one: -one.bytes // max(
        1, math.prod(one.shape)))
    header, end = {"__metadata__": {FORMAT_KEY: FORMAT_VALUE}}, 0
    for one in tensors:
        header[one.name] = {"dtype": one.dtype, "shape": one.described(),
                            "data_offsets": [end, end + one.bytes]}
        end += one.bytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGN)
    pieces = [("header", len(text).to_bytes(8, "little") + text, 0)]
    for one in tensors:
        pieces += one.pieces(8 + len(text) +
                             header[one.name]["data_offsets"][0])
    return begin_placed(path, pieces, plain=True)


def _consolidate(paths, output_dir, mapping, durable, only=lambda number: True):
    """Makes the files that `only` wants; returns what the index is to say of
    them: their names by tensor, and the bytes of all."""
    weight_map, total, files = {}, 0, {}
    for name, number in mapping.items():
        if only(number):
            files.setdefault(number, []).append(name)
    if not files:
        return weight_map, total
    with contextlib.ExitStack() as stack:
        shards = [stack.enter_context(_Shard(path)) for path in paths]
        for number, names in files.items():
            file = _gen_file_name(number, max(mapping.values()))
            tensors = [_Whole(name, shards) for name in names]
            # One after the other: what is put together takes memory.
            _staging.write([_begin_whole(os.path.join(output_dir, file),
                                         tensors)], durable)
            weight_map.update(dict.fromkeys(names, file))
            total += sum(one.bytes for one in tensors)
    return weight_map, total


def _write_index(output_dir, made):
    weight_map = {}
    for names, _ in made:
        weight_map.update(names)
    with open(os.path.join(output_dir, _metadata_fn), "w",
              encoding="utf-8") as f:
        json.dump({"metadata": {"total_size": sum(size for _, size in made)},
                   "weight_map": weight_map}, f, indent=2)


def consolidate(input_dir, output_dir, fqn_to_index_mapping, num_threads=1,
                process_group=None):
    """torch's consolidate_safetensors_files_on_every_rank(): of the shards in
    input_dir the files of whole tensors, and their index. Each rank makes some
    of the files, the first one the index. num_threads means nothing."""
    del num_threads
    several = dist.is_available() and dist.is_initialized()
    rank = dist.get_rank(process_group) if several else 0
    world = dist.get_world_size(process_group) if several else 1
    made, error = None, None
    try:
        made = _consolidate(
            sorted(glob.glob(os.path.join(glob.escape(str(input_dir)),
                                          f"*{SUFFIX}"))),
            output_dir, fqn_to_index_mapping, not is_mounted(output_dir),
            lambda number: number % world == rank)
    except Exception as e:  # pylint: disable=broad-except
        error = e
    if several:
        made = agree(error, process_group, made)
    elif error:
        raise error
    if rank == 0:
        _write_index(output_dir, made if several else [made])
    if several:
        dist.barrier(process_group)


# --- Reading -----------------------------------------------------------------

class _Stored(File):
    """A file that read_file() reads."""

    is_mapped = True
    read, get = Ranges.read, Ranges.get

    def piece(self, item):
        entry = self._entry(item.storage_index.fqn)
        return Piece(item, _StorageInfo(self.path, entry.offset, entry.bytes),
                     self._torch_shape(torch, entry))

    def laid_out(self, places):
        return [_AsItIs] * len(places)

    def stored(self, piece):
        return self.get_tensor(piece.item.storage_index.fqn)


class _AsItIs:
    offset = 0  # of the bytes, from where the tensor begins


class HFReader(HuggingFaceStorageReader):
    """torch's HuggingFaceStorageReader, reading into the state's own memory: as
    Reader does it. Any safetensors files, shards or whole.

    thread_count: means nothing; ckptfs.configure() has the number of threads.
    """

    def read_data(self, plan, planner):
        by_file = {}
        for item in plan.items:
            path = self.storage_data[item.storage_index].relative_path
            by_file.setdefault(path, []).append(item)
        for path, items in by_file.items():
            with _Stored(path) as file:
                read_file(file, [file.piece(item) for item in items], planner,
                          lends(planner))
        done = Future()
        done.set_result(None)
        return done
