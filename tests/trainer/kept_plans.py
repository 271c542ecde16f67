"""Plans that Megatron keeps from save to save, wherever they are: what a state
has more of on one rank, and then on another, is in the checkpoint all the same,
or the save fails. A part of test_megatron.py, whose ranks these are.
"""
import contextlib
import os


# What a state has more of than the first one, save by save: objects and tensors
# of these ranks alone, one that all ranks have, and one that goes from one rank
# to another of the same data.
NOTHING = ((), (), False, None)
MORE = [NOTHING] * 4 + [
    ((1,), (), False, None), ((1,), (), False, None), ((1, 2), (3,), False, 0),
    ((1, 2), (3,), False, 2), ((1, 2), (3,), True, 2), ((1, 2), (3,), True, 2),
    ((2,), (0, 3), True, None), ((2,), (0,), False, None),
    ((2,), (0,), False, None)]


def with_more(me, sharded, objects, tensors, common, moving):
    """The state of test_megatron.py, and that."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.dist_checkpointing.mapping import (
        ShardedObject, ShardedTensor)
    if me.rank in objects:
        name = f"new.{me.rank}"
        sharded[name] = ShardedObject(name, {"of": me.rank}, (1,), (0,))
    if me.rank in tensors:
        name = f"tensor.{me.rank}"
        sharded[name] = ShardedTensor.from_rank_offsets(
            name, torch.full((5,), 1.0 + me.rank))
    if me.rank == moving:
        sharded["moving"] = ShardedTensor.from_rank_offsets(
            "tensor.moving", torch.arange(3.0))
    if common:
        sharded["common"] = ShardedTensor.from_rank_offsets(
            "tensor.common", torch.arange(7.0), replica_id=(
                0, parallel_state.get_tensor_model_parallel_rank(),
                parallel_state.get_data_parallel_rank()))
    return sharded


def job(me, gpt, state, folder):
    """With ckptfs.megatron as it stands, installed or not."""
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.dist_checkpointing.mapping import (
        ShardedObject, ShardedTensor)
    from megatron.core.dist_checkpointing.strategies import (
        fully_parallel, torch as torch_dist)
    import torch
    import torch.distributed.checkpoint as dcp

    def look(path, objects, tensors, common, moving):
        found = dcp.FileSystemReader(path).read_metadata()
        got = {key for key in (
            name.split("/")[0] for name in found.state_dict_metadata)
            if key.startswith(("new.", "tensor."))}
        assert {index.fqn for index in found.storage_data} == \
            set(found.state_dict_metadata), path
        want = {f"new.{rank}" for rank in objects} | \
            {f"tensor.{rank}" for rank in tensors} | \
            ({"tensor.common"} if common else set()) | \
            ({"tensor.moving"} if moving is not None else set())
        assert got == want, (path, want, got)

    def save_and_look(path, strategy):
        for more in MORE:
            me.save(path, with_more(me, state(gpt, 5), *more), strategy,
                    validate_access_integrity=False)
            look(path, *more)
            me.barrier()
        loaded = dist_checkpointing.load(
            {"new": ShardedObject("new.2", None, (1,), (0,)),
             "tensor": ShardedTensor.from_rank_offsets(
                 "tensor.0", torch.zeros(5))}, path,
            validate_access_integrity=False)
        assert loaded["new"] == {"of": 2}, loaded
        assert torch.equal(loaded["tensor"], torch.ones(5)), loaded
        me.load(path, gpt, 5)

    def wrapped(strategy, keeps=True):
        return fully_parallel.FullyParallelSaveStrategyWrapper(
            strategy, parallel_state.get_data_parallel_group(
                with_context_parallel=True), keeps)

    def theirs():
        return torch_dist.TorchDistSaveShardedStrategy(
            "torch_dist", 1, cached_metadata=True)

    if not me.ours._installed:
        for name, wrap in (("kept", lambda one: one),
                           ("kept_wrapped", wrapped)):
            save_and_look(f"{folder}/{name}",
                          wrap(me.ours.SaveStrategy(cached_metadata=True)))
        return
    save_and_look(f"{folder}/kept_installed", wrapped(theirs()))
    with distributions_in_a_file():
        save_and_look(f"{folder}/kept_in_a_file", wrapped(theirs(), False))

    # By somebody whom nobody knows: the save fails, on all ranks.
    plan_anew, me.ours._plan_anew = me.ours._plan_anew, lambda *args: None
    left_out(me, f"{folder}/kept_by_others", wrapped(theirs()), "new.1",
             [with_more(me, state(gpt, 5), *more) for more in MORE[2:5]])

    def few(shards):
        """Of one tensor, which is all that rank 1 has; rank 0 has another."""
        if me.rank == 0:
            return {"other": ShardedTensor.from_rank_offsets(
                "other", torch.ones(3))}
        return {f"part.{n}": ShardedTensor.from_rank_offsets(
            "part", torch.ones(4), (0, n, shards)) for n in range(shards)
            if me.rank == 1}
    for before in (0, 1):
        left_out(me, f"{folder}/few_{before}", theirs(), "part",
                 [few(before), few(before), few(2)])
    me.ours._plan_anew = plan_anew
    me.barrier()


def left_out(me, path, strategy, name, states):
    """The last of these has more than a plan that is kept."""
    for number, sharded in enumerate(states):
        is_last = number == len(states) - 1
        try:
            me.save(path, sharded, strategy, validate_access_integrity=False)
        except BaseException as e:  # torch's is no Exception
            assert is_last and (me.rank or "leaves out" in str(e)
                                and name in str(e)), e
        else:
            assert not is_last, "it did not fail"
    assert not os.path.exists(f"{path}/.metadata")
    me.barrier()


@contextlib.contextmanager
def distributions_in_a_file():
    """As Megatron has them with --ckpt-pg-tensors-cache-path, once in a process
    for each group, of whatever state, and of a larger group."""
    from megatron.core.dist_checkpointing.strategies import fully_parallel
    name, kept = "determine_main_replica_uniform_distribution", {}
    theirs = getattr(fully_parallel, name)

    def once(sharded_state_dict, group, *args, **options):
        if group not in kept:
            one = theirs(sharded_state_dict, group, *args, **options)
            ranks = one.main_rank_for_shard
            kept[group] = one._replace(main_rank_for_shard={
                **ranks, min(ranks, key=str): 7})
        return kept[group]
    setattr(fully_parallel, name, once)
    try:
        yield
    finally:
        setattr(fully_parallel, name, theirs)
