"""ckptfs.dcp - torch.distributed.checkpoint through memory of the mount.

    import torch.distributed.checkpoint as dcp
    from ckptfs.dcp import Reader, Writer, async_save

    dcp.save(state, storage_writer=Writer("/ckpt/run/step_100"))

    save = async_save(state, "/ckpt/run/step_200")
    loss.backward()          # does not change the tensors
    save.copied()            # they may change from here on
    optimizer.step()
    ...
    save.result()            # .metadata is there

What lies there afterwards is what torch's own FileSystemWriter would have
written: .distcp files and .metadata, for FileSystemReader and every tool that
reads them. What differs is how the bytes get there. FileSystemWriter copies a
tensor to the host, pickles it into an archive and writes that; this one lays
the files out in segments, and the devices copy straight into them. The archive
around a tensor depends on its type and shape alone, so it is made without the
bytes, once, and a step of the same structure finds its segments again.

    dcp.load(state, storage_reader=Reader("/ckpt/run/step_100"))

Reader reads such files, and torch's, into the memory of the state itself, by
some threads, a rank's own file first.

Outside of a mount, and where the mount has no memory left, the files are
written all the same.
"""
import contextlib
import dataclasses
import os
import re

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.filesystem import _split_by_size_and_type
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType
from torch.futures import Future

from . import _plan, _share, _staging
from ._distcp import lay_out
from ._hf import HFReader, HFWriter, consolidate
from ._reading import Archives, Passed, Piece, lends, read_file
from ._saving import is_mounted
from ._staging import Stager

__all__ = ["Writer", "Reader", "HFWriter", "HFReader", "consolidate", "Stager",
           "AsyncSave", "async_save"]

_SUFFIX = ".distcp"


class Writer(FileSystemWriter):
    """A FileSystemWriter whose .distcp files are laid out in segments.

    path, single_file_per_rank, thread_count, overwrite and whatever else
        FileSystemWriter has, in its order: thread_count is the number of files
        of each rank, which are copied at once, so that per_thread_copy_ahead
        means nothing. With _extensions, or another serialization_format, torch
        writes the files.
    sync_files: return when the files are durable. By default dcp.save()
        returns in a mount when they are there; it makes them durable in their
        order, and .metadata after them. Elsewhere they are synced, as torch's
        are.
    skip_unchanged: do not copy what the mount's memory holds from before.
    segment_only: fail, as ckptfs.save_file() does, with ENOTTY outside of a
        mount and with ENOSPC or EOPNOTSUPP where it has no memory for the
        files, and do not write them. .metadata is torch's to write. By default
        they are written without a segment there, and a PlainSaveWarning says
        so, once for a folder.
    """

    def __init__(self, path, single_file_per_rank=True, sync_files=None,
                 thread_count=1, per_thread_copy_ahead=10_000_000,
                 cache_staged_state_dict=False, overwrite=True,
                 _extensions=None, serialization_format=None, *,
                 skip_unchanged=False, segment_only=False):
        self._sync_asked = sync_files
        more = {"_extensions": _extensions,
                "serialization_format": serialization_format}
        super().__init__(path, single_file_per_rank, bool(sync_files),
                         thread_count, per_thread_copy_ahead,
                         cache_staged_state_dict=cache_staged_state_dict,
                         overwrite=overwrite,
                         **{name: value for name, value in more.items()
                            if value is not None})
        self._theirs = bool(_extensions) or getattr(
            serialization_format, "name", "TORCH_SAVE") != "TORCH_SAVE"
        self._skip_unchanged = skip_unchanged
        self._segment_only = segment_only
        if self._theirs and segment_only:
            raise ValueError("segment_only=True: with _extensions, or another "
                             "serialization_format, torch writes the files")

    def set_up_storage_writer(self, *args, **options):
        super().set_up_storage_writer(*args, **options)
        if self._sync_asked is None:
            self.sync_files = not is_mounted(self.path)

    def write_data(self, plan, planner):
        """The files of this rank, all begun before the first is waited for."""
        if self._theirs:
            with _staging.copying():
                return super().write_data(plan, planner)
        items = _split_by_size_and_type(self.thread_count, plan.items) \
            if self.single_file_per_rank else [[item] for item in plan.items]
        results = []

        def begun():
            for number, bucket in enumerate(items):
                if not bucket:
                    continue  # more files than there are items
                file = lay_out(f"{plan.storage_data.prefix}{number}{_SUFFIX}",
                               [(item, planner.resolve_data(item))
                                for item in bucket])
                yield file.begin(os.path.join(self.path, file.name),
                                 skip_unchanged=self._skip_unchanged,
                                 segment_only=self._segment_only)
                results.extend(file.results)
        _staging.write(begun(), self.sync_files)
        done = Future()
        done.set_result(results)
        return done


def _without_rank(fqn):
    """Megatron's name for a rank's own copy, in checkpoints from before there
    were copies (Megatron-LM pull request 3392). Behind a slash is which part
    of an object it is."""
    return re.sub(r"\.__tp_replica_\d+(?=$|/)", "", fqn)


class _Plain(dict):
    def __reduce__(self):
        # Whoever writes what was read, as Megatron does, writes what torch
        # would have read.
        return dict, (dict(self),)


class _Tensors(_Plain):
    """state_dict_metadata that knows a tensor by such a name as well."""

    def __contains__(self, fqn):
        return super().__contains__(fqn) or \
            super().__contains__(_without_rank(fqn))

    def __missing__(self, fqn):
        known = _without_rank(fqn)
        if known == fqn:
            raise KeyError(fqn)
        return self[known]


class _Places(_Plain):
    """storage_data, likewise."""

    def __missing__(self, index):
        known = _without_rank(index.fqn)
        if known == index.fqn:
            raise KeyError(index)
        return self[MetadataIndex(known, index.offset)]


class Reader(FileSystemReader):
    """A FileSystemReader that reads into the state's own memory.

    A tensor that is contiguous and wanted whole gets its bytes from the file
    without a copy between; on a device it gets them from the file's own memory,
    where this process has that pinned (it has saved it), or by pinned buffers,
    one copy over the bus. Any other goes by one buffer on the host.

    thread_count: with 1 each tensor is committed to the planner before the next
        one is asked for; else many are read at once (ckptfs.configure() has
        the number of threads), unless the planner has a commit_tensor() of
        its own and may lend one room to all.
    share: what several ranks want one of them reads, and passes it on: the
        rank that wrote it, or one of them. True: among all ranks; a list of
        lists of ranks: within each of these. Rank 0 reads .metadata for all.
        Every rank has to load, with the same `share`.
    group: the process group that dcp.load() is given; `share` counts its ranks.
    plan: who reads what: a policy of libckpt_plan, as `ckptctl plan` has them
        (per_shard, pr3392, greedy), or a function of (pieces, ranks) that
        returns a rank for each Piece.

    A rank opens the file that it has written itself first. Keys that end in
    `.__tp_replica_N` are found in checkpoints that do not know them. `pieces`
    says what was read by this rank: (file, MetadataIndex) each.
    """

    def __init__(self, path, thread_count=4, *, _extension_registry=None,
                 share=False, group=None, plan="per_shard"):
        if thread_count is None or not isinstance(thread_count, int):
            # Where torch has it.
            thread_count, _extension_registry = 4, thread_count
        super().__init__(path, *([_extension_registry]
                                 if _extension_registry is not None else []))
        self._threads = thread_count
        self._lends = None  # whether the planner does; None: as it looks
        self._known, self._metadata = {}, {}
        self._share, self._group, self._plan = share, group, plan
        if not (dist.is_available() and dist.is_initialized()):
            self._share = False
        if self._share and not callable(plan):
            self._plan = _plan.by(plan)
        self.pieces = []

    def reset(self, checkpoint_id=None):
        super().reset(checkpoint_id)
        if checkpoint_id:
            self._metadata = {}

    def read_metadata(self, *args, **kwargs):
        """Read once for each of its arguments."""
        key = (args, tuple(kwargs.items()))
        if key not in self._metadata:
            metadata = self._metadata[key] = self._for_all(
                super().read_metadata, *args, **kwargs)
            metadata.state_dict_metadata = _Tensors(
                metadata.state_dict_metadata)
            if metadata.storage_data is not None:
                metadata.storage_data = _Places(metadata.storage_data)
        self._known = self._metadata[key].state_dict_metadata
        return self._metadata[key]

    def _for_all(self, read, *args, **kwargs):
        if not self._share:
            return read(*args, **kwargs)
        found = [None, None]
        if dist.get_rank(self._group) == 0:
            try:
                found[0] = read(*args, **kwargs)
            except Exception as e:  # pylint: disable=broad-except
                found[1] = e
        dist.broadcast_object_list(found, group=self._group, group_src=0)
        if found[1] is not None:
            raise found[1]
        return found[0]

    def _stored(self, index):
        """(dtype, shape) of the tensor that lies there."""
        known = self._known[index.fqn]
        for chunk in getattr(known, "chunks", ()):
            if index.offset is None or chunk.offsets == index.offset:
                return known.properties.dtype, tuple(chunk.sizes)
        return None

    def prepare_global_plan(self, plans):
        """On one rank for all: what each passes on, and to whom."""
        if not self._share:
            return plans
        world = dist.get_world_size(self._group)
        if len(plans) != world:
            raise ValueError(f"a Reader with share=... of {world} ranks, and "
                             f"{len(plans)} of them load (no_dist?)")
        groups = [range(world)] if self._share is True else self._share
        pieces = _share.wanted_pieces(plans, self.storage_data, groups,
                                      self.path)
        rounds = _share.rounds_of(pieces, self._plan(pieces, world), world)
        return [dataclasses.replace(plan, storage_data=own)
                for plan, own in zip(plans, rounds)]

    def _own_first(self, names):
        """The files, this rank's own before the others, these as they come."""
        rank = dist.get_rank() if dist.is_available() and \
            dist.is_initialized() else 0
        return sorted(names, key=lambda name: _share.writer_rank(
            os.path.join(self.path, name)) != rank)

    def _open(self, name):
        return Archives(os.path.join(self.path, name))

    def read_data(self, plan, planner):
        wanted, in_turn = {}, self._threads == 1 or \
            (lends(planner) if self._lends is None else self._lends)
        extended = []  # what an extension has to read: torch does that
        for item in plan.items:
            info = self.storage_data[item.storage_index]
            if info.transform_descriptors:
                extended.append(item)
                continue
            wanted.setdefault(item.storage_index, []).append(Piece(
                item, info, None if item.type == LoadItemType.BYTE_IO else
                self._stored(item.storage_index)))
        with contextlib.ExitStack() as stack:
            files = {}

            def opened(name):
                if name not in files:
                    files[name] = stack.enter_context(self._open(name))
                return files[name]
            if self._share:
                self._exchange(plan.storage_data, Passed(
                    lambda index: (self.storage_data[index],
                                   self._stored(index)),
                    opened, wanted, planner, in_turn))
            by_file = {}
            for index, pieces in wanted.items():
                name = self.storage_data[index].relative_path
                self.pieces.append((name, index))
                by_file.setdefault(name, []).extend(pieces)
            for name in self._own_first(by_file):
                read_file(opened(name), by_file[name], planner, in_turn)
        return super().read_data(dataclasses.replace(plan, items=extended),
                                 planner)

    def _exchange(self, rounds, passed):
        """What others have for this rank, which is wanted no longer then."""
        error = None
        for one in rounds:
            self.pieces += dict.fromkeys(
                (self.storage_data[index].relative_path, index)
                for _, index in one[0])
            met = _share.exchange(one, passed, self._group)
            error = error or met
        if rounds:
            _share.agree(error, self._group)


class AsyncSave:
    """A save that async_save() has begun."""

    def __init__(self, response):
        self._staged = response.staging_completion
        self._saved = response.upload_completion

    def copied(self):
        """Wait until the tensors may change. Raises what the save raised."""
        self._staged.result()
        if self._saved.done():
            self._saved.result()

    def is_copied(self):
        return self._staged.done()

    def result(self):
        """Wait for the end, which is .metadata's; returns that."""
        return self._saved.result()


def async_save(state_dict, checkpoint_id, *, planner=None, process_group=None,
               **options):
    """Begin to save with a Writer, whose options are given; returns an
    AsyncSave.

    torch's async_save() copies the state to the host before it returns, and
    that copy to the file afterwards. Here the devices copy into the file while
    the caller goes on: nothing in the state may change before copied() has
    returned. Every rank has to call it, and the process group needs a backend
    for the host, as torch's wants it.
    """
    return AsyncSave(dcp.async_save(
        state_dict, storage_writer=Writer(checkpoint_id, **options),
        planner=planner, process_group=process_group, async_stager=Stager()))
