"""A job of Megatron-LM's that is to run its last step again: with
structure=refuse its checkpoint is published when every rank has saved what it
needs for that, and else not. A part of test_megatron.py.
"""
import errno


def job(me, folder):
    """Two ranks; folder: in such a mount."""
    import torch
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.mapping import (
        ShardedObject, ShardedTensor)
    from megatron.core.rerun_state_machine import RerunMode, RerunState

    def save(step, state, who):
        machine = {"mode": RerunMode.VALIDATE_RESULTS, "state": state,
                   "current_iteration": step}
        if me.rank in who:
            machine["sharded"] = ShardedObject(
                "rerun_state_machine_state", {"rerun_requested": True}, (2,),
                (me.rank,))
        dist_checkpointing.save(
            {"w": ShardedTensor.from_rank_offsets(
                "w", torch.full((9,), float(step)), (0, me.rank, 2)),
             "iteration": step, "rerun_state_machine": machine},
            me.folder(f"{folder}/iter_{step:07}"))
        me.barrier()

    none, pending = RerunState.NOT_RUNNING_YET, \
        RerunState.WILL_RERUN_FROM_CHECKPOINT
    for step, state, who in ((1, none, ()), (2, pending, (0, 1)),
                             (3, none, (0, 1)), (4, none, ())):
        save(step, state, who)
    # Megatron's rank 0 hears of it alone; the other waits for it, until it ends.
    try:
        save(5, pending, ())
    except OSError as e:
        assert e.errno == errno.EUCLEAN, e
    except RuntimeError as e:
        assert me.rank == 1, e
    else:
        raise AssertionError("step 5 was published")
