"""planned - ckptfs.dcp.Reader by the plans of `ckptctl plan`, and what it opens.

The Reader's own plan is libckpt_plan's of what the ranks want (by_writer); these
ask ckptctl, for the checkpoint as it lies there and for what is wanted. A rank opens a file once, and
only when the plan wants something of it; what it opened is in its ledger.

Imports torch: for the processes of the trainer only.
"""
import errno
import json
import os
import subprocess

import torch.distributed as dist
from ckptfs.dcp import Reader

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


class PlannedReader(Reader):
    """plan: by_folder, by_request or by_writer; groups: who passes on to whom,
    or nobody does."""

    def __init__(self, path, plan, policy, groups):
        by = {"by_folder": self.by_folder, "by_request": self.by_request,
              "by_writer": "per_shard"}[plan]
        alone = [[rank] for rank in range(dist.get_world_size())]
        super().__init__(path, plan=by, share=groups or (
            alone if plan == "by_request" else True))
        self.policy = policy
        self.opened = []  # the ledger: [name, writer's rank, size]

    def by_folder(self, pieces, world):
        """The plan of the checkpoint as it lies there. ckptctl is a child of
        this rank, so its opens are this rank's."""
        self.note(os.path.join(self.path, METADATA))
        readers = ask(self.path, "--ranks", world, "--policy", self.policy)
        return [readers[label(piece.index)] for piece in pieces]

    def by_request(self, pieces, world):
        """Of what is wanted, each group for itself."""
        names = [f"{label(p.index)} for {list(p.group)}" for p in pieces]
        readers = ask("-", "--policy", self.policy, text=json.dumps(
            {"num_ranks": world, "shards": [
                {"id": name, "bytes": p.bytes, "ranks": p.wanted,
                 "source": p.source if p.source in range(world) else None}
                for name, p in zip(names, pieces)]}))
        return [readers[name] for name in names]

    def note(self, path):
        """An open."""
        self.opened.append([os.path.basename(path), writer_rank(path),
                            os.stat(path).st_size])

    def read_metadata(self, *args, **kwargs):
        if not self._metadata and dist.get_rank() == 0:
            self.note(os.path.join(self.path, METADATA))
        return super().read_metadata(*args, **kwargs)

    def _open(self, name):
        file = super()._open(name)
        self.note(file.path)
        return file

    @property
    def fetched(self):
        """[name, label] of each piece that was read."""
        return [[name, label(index)] for name, index in self.pieces]
