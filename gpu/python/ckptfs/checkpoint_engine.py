"""ckptfs.checkpoint_engine - a version as the memory that MoonshotAI's
checkpoint-engine distributes from.

    with ckptfs.weights.open_version(path) as version:
        buffers = ckptfs.checkpoint_engine.memory_buffers(version)

are MemoryBuffers of the version's own memory, pinned, and nothing is copied:
what its ParameterServer keeps for a checkpoint, makes its buckets of and
registers for RDMA. They hold the version, as Version.views() says; the library
unpins it when the last is gone (manually_pinned is False).

register_checkpoint() itself takes tensors and files alone. The tensors of
version.views() can be given to it as named_tensors: it copies them once, into
memory that it allocates. Its pinning in place takes files in /dev/shm, which it
maps to be written and deletes: no version of others.

Made for checkpoint-engine 0.4.
"""
import torch
from checkpoint_engine.data_types import MemoryBuffer, ParameterMeta


def memory_buffers(version, pin=True):
    """Of all files of an open version. pin: OSError if that cannot be done."""
    return [MemoryBuffer(
        buffer=memory, size=memory.nbytes, manually_pinned=False,
        metas=[ParameterMeta(name=name, dtype=dtype, shape=torch.Size(shape),
                             aligned_size=torch.Size(shape).numel() *
                             dtype.itemsize)
               for name, dtype, shape, _ in tensors])
        for memory, tensors in version.memory(pin)]
