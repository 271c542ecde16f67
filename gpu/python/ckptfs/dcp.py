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
import concurrent.futures
import ctypes
import errno
import io
import os
import re
import threading

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.filesystem import (
    _split_by_size_and_type, _StorageInfo)
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future
from torch.serialization import skip_data

from ._saving import begin_placed
from ._tensors import local

__all__ = ["Writer", "Reader", "AsyncSave", "async_save"]

_ALIGN = 64  # of an archive in its file: its tensor is aligned to that as well
_SPARE = 4096  # objects may grow to a multiple of it before anything moves
_SUFFIX = ".distcp"


def _up(n, unit):
    return -(-n // unit) * unit


def _longer(archive, more):
    """The end of a zip archive, longer by a comment of zeros. What is no
    archive's end stays as it is."""
    if archive[-22:-18] != b"PK\5\6" or archive[-2:] != b"\0\0":
        return archive
    return archive[:-2] + more.to_bytes(2, "little") + bytes(more)


class _Sink(io.RawIOBase):
    """What is written, and the gap that is left for a tensor's bytes."""

    def __init__(self):
        super().__init__()
        self.at = 0
        self.parts = [bytearray(), bytearray()]  # before and after the gap
        self.gap = None  # where it begins; its length

    def writable(self):
        return True

    def write(self, data):
        self.parts[self.gap is not None] += data
        self.at += len(data)
        return len(data)

    def seek(self, offset, whence=os.SEEK_SET):
        if whence != os.SEEK_CUR or offset < 0 or self.gap:
            raise io.UnsupportedOperation("one gap, forwards")
        self.gap = (self.at, offset)
        self.at += offset
        return self.at

    def tell(self):
        return self.at


class _Archive:
    """What torch.save() writes before and after the bytes of a tensor."""

    made = {}  # (dtype, shape) -> _Archive

    def __init__(self, dtype, shape):
        sink = _Sink()
        with skip_data():  # its memory is never touched
            torch.save(torch.empty(shape, dtype=dtype), sink)
        self.offset, self.bytes = sink.gap or (0, 0)
        head, tail = sink.parts if sink.gap else (b"", sink.parts[0])
        # No gap between archives: whatever is in the file has a name.
        self.length = _up(sink.at, _ALIGN)
        self.head = bytes(head)
        self.tail = _longer(bytes(tail), self.length - sink.at)

    @classmethod
    def known(cls, dtype, shape):
        if (dtype, shape) not in cls.made:
            cls.made[dtype, shape] = cls(dtype, shape)
        return cls.made[dtype, shape]


class _File:
    """One .distcp file: what lies where, for the library and for .metadata."""

    def __init__(self, name):
        self.name = name
        self.end = 0
        self.pieces = []  # (name, bytes or tensor, offset)
        self.results = []

    def _note(self, item, offset, length):
        self.results.append(WriteResult(
            index=item.index, size_in_bytes=length,
            storage_data=_StorageInfo(self.name, offset, length)))

    def add_tensor(self, item, tensor):
        tensor = local(tensor).detach().contiguous()
        archive = _Archive.known(tensor.dtype, tuple(tensor.shape))
        start, number = self.end, len(self.results)
        for what, data, offset in (
                ("head", archive.head, 0), ("data", tensor, archive.offset),
                ("tail", archive.tail, archive.offset + archive.bytes)):
            if what != "data" or archive.bytes:
                self.pieces.append((f"{number}.{what}", data, start + offset))
        self.end += archive.length
        self._note(item, start, archive.length)

    def add_objects(self, objects):
        """Behind the tensors, where those that grow move nothing."""
        if not objects:
            return
        packed = bytearray()
        for number, (item, data) in enumerate(objects, 1):
            raw, at = bytes(data.getbuffer()), len(packed)
            if number == len(objects):
                raw = _longer(raw, -(at + len(raw)) % _SPARE)
            self._note(item, self.end + at, len(raw))
            packed += raw
        packed += bytes(-len(packed) % _SPARE)
        self.pieces.append(("objects", bytes(packed), self.end))
        self.end += len(packed)


class Writer(FileSystemWriter):
    """A FileSystemWriter whose .distcp files are laid out in segments.

    path, single_file_per_rank, thread_count, overwrite: as FileSystemWriter
        has them; thread_count is the number of files of each rank, which are
        copied at once.
    sync_files: return when the files are durable. By default dcp.save()
        returns when they are there; the mount makes them durable in their
        order, and .metadata after them.
    skip_unchanged: do not copy what the mount's memory holds from before.
    """

    def __init__(self, path, single_file_per_rank=True, sync_files=False,
                 thread_count=1, overwrite=True, *, skip_unchanged=False):
        super().__init__(path, single_file_per_rank=single_file_per_rank,
                         sync_files=sync_files, thread_count=thread_count,
                         overwrite=overwrite)
        self._skip_unchanged = skip_unchanged
        self._before = lambda: None  # what has to be waited for on a device
        self._after = lambda: None  # the tensors may change

    def write_data(self, plan, planner):
        """The files of this rank, all begun before the first is waited for."""
        self._before()
        items = _split_by_size_and_type(self.thread_count, plan.items) \
            if self.single_file_per_rank else [[item] for item in plan.items]
        saves, results = [], []
        for number, bucket in enumerate(items):
            file = _File(f"{plan.storage_data.prefix}{number}{_SUFFIX}")
            objects = []
            for item in bucket:
                data = planner.resolve_data(item)
                if item.type == WriteItemType.BYTE_IO:
                    objects.append((item, data))
                else:
                    file.add_tensor(item, data)
            file.add_objects(objects)
            # Outside of a mount the file is written plainly.
            saves.append(begin_placed(
                os.path.join(self.path, file.name), file.pieces, plain=True,
                skip_unchanged=self._skip_unchanged))
            results += file.results
        for save in saves:
            save.copied()
        self._after()
        if self.sync_files:
            for save in saves:
                save.wait()
        done = Future()
        done.set_result(results)
        return done


def _without_rank(fqn):
    """Megatron's name for a rank's own copy, in checkpoints from before there
    were copies (Megatron-LM pull request 3392)."""
    return re.sub(r"\.__tp_replica_\d+$", "", fqn)


class _Tensors(dict):
    """state_dict_metadata that knows a tensor by such a name as well."""

    def __contains__(self, fqn):
        return super().__contains__(fqn) or \
            super().__contains__(_without_rank(fqn))

    def __missing__(self, fqn):
        known = _without_rank(fqn)
        if known == fqn:
            raise KeyError(fqn)
        return self[known]


class _Places(dict):
    """storage_data, likewise."""

    def __missing__(self, index):
        known = _without_rank(index.fqn)
        if known == index.fqn:
            raise KeyError(index)
        return self[MetadataIndex(known, index.offset)]


class _Piece:
    """What one read item wants of one file."""

    def __init__(self, item, info, known):
        self.item, self.offset, self.length = item, info.offset, info.length
        self.known = known  # (dtype, shape) of the stored tensor; None: objects


class Reader(FileSystemReader):
    """A FileSystemReader that reads into the state's own memory.

    A tensor that is contiguous in host memory, and wanted whole, gets its bytes
    from the file without a copy between; any other by one buffer, pinned when
    it goes to a device. thread_count pieces are read at once.

    A rank opens the file that it has written itself first. Keys that end in
    `.__tp_replica_N` are found in checkpoints that do not know them.
    """

    def __init__(self, path, thread_count=4):
        super().__init__(path)
        self._threads = thread_count
        self._known = {}

    def read_metadata(self, *args, **kwargs):
        metadata = super().read_metadata(*args, **kwargs)
        metadata.state_dict_metadata = _Tensors(metadata.state_dict_metadata)
        if metadata.storage_data is not None:
            metadata.storage_data = _Places(metadata.storage_data)
        self._known = metadata.state_dict_metadata
        return metadata

    def _stored(self, index):
        """(dtype, shape) of the tensor that lies there."""
        known = self._known[index.fqn]
        for chunk in getattr(known, "chunks", ()):
            if index.offset is None or chunk.offsets == index.offset:
                return known.properties.dtype, tuple(chunk.sizes)
        return None

    def _own_first(self, names):
        """The files, this rank's own before the others, these as they come."""
        rank = torch.distributed.get_rank() \
            if torch.distributed.is_initialized() else 0

        def is_foreign(name):
            try:
                writer = os.getxattr(os.path.join(self.path, name),
                                     "user.ckptfs.writer_rank")
            except OSError:
                return True  # who opens it will say what is wrong
            return int(writer) != rank
        return sorted(names, key=is_foreign)

    def read_data(self, plan, planner):
        files = {}
        for item in plan.items:
            info = self.storage_data[item.storage_index]
            if info.transform_descriptors:
                return super().read_data(plan, planner)  # an extension's
            files.setdefault(info.relative_path, []).append(_Piece(
                item, info, None if item.type == LoadItemType.BYTE_IO else
                self._stored(item.storage_index)))
        with concurrent.futures.ThreadPoolExecutor(self._threads) as pool:
            for name in self._own_first(files):
                with open(os.path.join(self.path, name), "rb",
                          buffering=0) as file:
                    _read_file(file, files[name], planner, pool)
        done = Future()
        done.set_result(None)
        return done


def _read_file(file, pieces, planner, pool):
    """The planner is asked by this thread alone; the bytes come by others,
    none of which reads any more when this ends, however it ends."""
    waiting = []
    try:
        for piece in sorted(pieces, key=lambda p: p.offset):
            if piece.item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(piece.item,
                                   io.BytesIO(_read(file, piece)))
                continue
            target = planner.resolve_tensor(piece.item).detach()
            waiting.append((piece, target, pool.submit(
                _read_tensor, file, piece, target)))
        for piece, target, read in waiting:
            _take(file, piece, target, read.result())
            planner.commit_tensor(piece.item, target)
    finally:
        for _, _, read in waiting:
            read.cancel()
        concurrent.futures.wait([read for _, _, read in waiting])


def _take(file, piece, target, stored):
    """What is wanted of the stored tensor; None: the target has it."""
    if stored is None:
        return
    for dim, (at, size) in enumerate(zip(piece.item.storage_offsets,
                                         piece.item.lengths)):
        stored = stored.narrow(dim, at, size)
    if stored.size() != target.size():
        raise ValueError(
            f"{file.name}: {piece.item.storage_index.fqn} is "
            f"{list(stored.size())}, not {list(target.size())}")
    target.copy_(stored)


def _read_tensor(file, piece, target):
    """Into the target (None), or the stored tensor."""
    archive = piece.known and _Archive.known(*piece.known)
    if not archive or piece.length < archive.offset + archive.bytes or \
            os.pread(file.fileno(), len(archive.head), piece.offset) != \
            archive.head:
        # Of another torch, or not laid out densely: it says itself what it is.
        return torch.load(io.BytesIO(_read(file, piece)), map_location="cpu",
                          weights_only=True)
    dtype, shape = piece.known
    whole = tuple(piece.item.lengths) == shape
    if whole and target.is_contiguous() and target.device.type == "cpu" and \
            target.dtype == dtype and tuple(target.shape) == shape:
        room, stored = target, None
    else:
        room = stored = torch.empty(
            shape, dtype=dtype, pin_memory=target.device.type == "cuda")
    _read_into(file, room.data_ptr(), archive.bytes,
               piece.offset + archive.offset)
    return stored


def _read(file, piece):
    buffer = (ctypes.c_char * piece.length)()
    _read_into(file, ctypes.addressof(buffer), piece.length, piece.offset)
    return buffer.raw


def _read_into(file, address, size, offset):
    done = 0
    while done < size:
        room = (ctypes.c_char * (size - done)).from_address(address + done)
        got = os.preadv(file.fileno(), [room], offset + done)
        if got == 0:
            raise OSError(errno.EIO, "it ends before its tensors do",
                          file.name)
        done += got


class _NoCopy(AsyncStager):
    """The state as it is: the Writer copies it, and says when it has."""

    should_synchronize_after_execute = False

    def stage(self, state_dict):
        return state_dict

    def synchronize_staging(self):
        pass

    def close(self):
        pass


class AsyncSave:
    """A save that async_save() has begun."""

    def __init__(self):
        self._copied = threading.Event()
        self._future = None

    def copied(self):
        """Wait until the tensors may change. Raises what the save raised."""
        self._copied.wait()
        if self._future.done():
            self._future.result()

    def is_copied(self):
        return self._copied.is_set()

    def result(self):
        """Wait for the end, which is .metadata's; returns that."""
        return self._future.result()


def _streams():
    """Marks on the caller's streams, for the thread that will save."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return lambda: None
    marks = {n: torch.cuda.current_stream(n).record_event()
             for n in range(torch.cuda.device_count())}

    def wait():
        for n, mark in marks.items():
            torch.cuda.current_stream(n).wait_event(mark)
    return wait


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
    writer, save = Writer(checkpoint_id, **options), AsyncSave()
    writer._before, writer._after = _streams(), save._copied.set
    save._future = dcp.async_save(
        state_dict, storage_writer=writer, planner=planner,
        process_group=process_group, async_stager=_NoCopy())
    save._future.add_done_callback(lambda _: save._copied.set())
    return save
