"""planned - a reader for torch.distributed.checkpoint that reads by plan.

What torch's own reader does not do: of the ranks that need a piece one reads
it and passes it on, and `ckptctl plan` says which. A rank opens a file once,
and only when the plan wants something of it; what it opened and what it read
of it is in its ledger. Rank 0 reads .metadata for all.

Imports torch: for the processes of the trainer only.
"""
import errno
import io
import json
import os
import subprocess
from dataclasses import replace

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.planner import LoadItemType

from trainer import ck

METADATA = ".metadata"


def label(index):
    """A stored piece, as ckptctl plan calls it."""
    return index.fqn if index.offset is None else \
        f"{index.fqn}@{tuple(index.offset)}"


def ask(*argv, text=None):
    p = subprocess.run([ck.CKPTCTL, "plan", "--json", *map(str, argv)],
                       input=text, capture_output=True, text=True, check=False,
                       timeout=ck.WAIT_BOUND)
    if p.returncode:
        raise RuntimeError(p.stderr.strip())
    return json.loads(p.stdout)["assignment"]


def writer_rank(file):
    """By path or descriptor; None: not known, or the file is not there, which
    whoever is to read it will say."""
    try:
        return int(os.getxattr(file, "user.ckptfs.writer_rank"))
    except OSError as e:
        if e.errno in (errno.ENODATA, errno.ENOENT):
            return None
        raise


def by_folder(reader, needed, world):
    """All ranks pass on to all: the plan of the checkpoint as it lies there.
    ckptctl is a child of this rank, so its opens are this rank's."""
    reader.note(os.path.join(reader.path, METADATA))
    readers = ask(reader.path, "--ranks", world, "--policy", reader.policy)
    for index, ranks in needed.items():
        yield index, ranks, readers[label(index)]


def by_request(reader, needed, world):
    """Ranks pass on within their group only, so that each group reads for
    itself. Who wrote a file is what the mount says of it."""
    groups = reader.groups or [[rank] for rank in range(world)]
    shards, asked = [], {}
    for index, ranks in needed.items():
        info = reader.storage_data[index]
        source = writer_rank(os.path.join(reader.path, info.relative_path))
        for group in groups:
            among = [rank for rank in group if rank in ranks]
            if not among:
                continue
            name = f"{label(index)} for {group}"
            asked[name] = index, among
            shards.append({
                "id": name, "bytes": info.length, "ranks": among,
                "source": None if source is None or source >= world
                else source})
    readers = ask("-", "--policy", reader.policy, text=json.dumps(
        {"num_ranks": world, "shards": shards}))
    for name, (index, among) in asked.items():
        yield index, among, readers[name]


class PlannedReader(dcp.FileSystemReader):
    """plan: by_folder or by_request; groups: who passes on to whom, or nobody
    does."""

    def __init__(self, path, plan, policy, groups):
        super().__init__(path)
        self.plan, self.policy, self.groups = plan, policy, groups
        self.metadata = None
        self.opened = []  # the ledger: [name, writer's rank, size]
        self.fetched = []  # and [name, label] of each piece

    def note(self, file):
        """An open, of this path or of a file that is open."""
        name, at = (file, file) if isinstance(file, (str, os.PathLike)) \
            else (file.name, file.fileno())
        self.opened.append([os.path.basename(name), writer_rank(at),
                            os.stat(at).st_size])

    def read_metadata(self, *args, **kwargs):
        if self.metadata is None:
            found = [None]
            if dist.get_rank() == 0:
                self.note(os.path.join(self.path, METADATA))
                found = [super().read_metadata()]
            dist.broadcast_object_list(found)
            self.metadata = found[0]
        return self.metadata

    def prepare_global_plan(self, plans):
        """On one rank for all: what each reads, and for whom."""
        needed = {}
        for rank, plan in enumerate(plans):
            for item in plan.items:
                ranks = needed.setdefault(item.storage_index, [])
                if rank not in ranks:
                    ranks.append(rank)
        tasks = [[] for _ in plans]
        for index, ranks, reader in self.plan(self, needed, len(plans)):
            tasks[reader].append((index, ranks))
        return [replace(plan, storage_data=task)
                for plan, task in zip(plans, tasks)]

    def fetch(self, task):
        """Each file once, at the offsets that .metadata names."""
        files, got = {}, {}
        for index, _ in task:
            info = self.storage_data[index]
            files.setdefault(info.relative_path, []).append((index, info))
        for name, pieces in files.items():
            with open(os.path.join(self.path, name), "rb",
                      buffering=0) as file:
                self.note(file)
                for index, info in pieces:
                    raw = os.pread(file.fileno(), info.length, info.offset)
                    if len(raw) != info.length:
                        raise OSError(errno.EIO, f"ends within {label(index)}",
                                      file.name)
                    self.fetched.append([name, label(index)])
                    got[index] = raw
        return got

    def exchange(self, task):
        """Read, pass on, and take what the others have for this rank. All
        learn of a failure, so that nobody waits for what does not come."""
        got, error, rank = {}, None, dist.get_rank()
        try:
            got = self.fetch(task)
        except OSError as e:
            error = f"rank {rank}: {e}"
        gift = [(index, ranks, got[index]) for index, ranks in task
                if not error and ranks != [rank]]
        gifts = [None] * dist.get_world_size()
        dist.all_gather_object(gifts, (error, gift))
        for error, gift in gifts:
            if error:
                raise RuntimeError(error)
            got.update((index, raw) for index, ranks, raw in gift
                       if rank in ranks)
        return got

    def read_data(self, plan, planner):
        got = self.exchange(plan.storage_data)
        for item in plan.items:
            raw = io.BytesIO(got[item.storage_index])
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, raw)
                continue
            piece = narrow_tensor_by_index(
                torch.load(raw, map_location="cpu", weights_only=True),
                item.storage_offsets, item.lengths)
            target = planner.resolve_tensor(item).detach()
            target.copy_(piece)
            planner.commit_tensor(item, target)
        done = torch.futures.Future()
        done.set_result(None)
        return done
