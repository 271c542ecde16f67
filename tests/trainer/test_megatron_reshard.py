"""Megatron's checkpoints read with other parallel sizes than they were saved
with, through ckptfs.megatron: a rank reads what it has written itself, and
passes it on; bytes are counted, with Megatron's distribution and with ours. And
a job with experts on several ranks and the distributed optimizer, which trains,
saves, and goes on from there, with the same sizes and with others.

What Megatron needs of a GPU to train is stood in for as well (train_on_host).
"""
import contextlib
import os
from unittest import mock

import test_megatron as megatron
import trainer
from trainer import ck


class Counted:
    """Bytes that the Readers of all ranks read from files of their own rank's,
    and from others'."""

    def __init__(self, me):
        self.rank, self.names = me.rank, megatron.count_reads()

    def all(self):
        """Since it was asked last."""
        import torch
        import torch.distributed as dist
        sums = torch.zeros(2, dtype=torch.int64)
        for name, size in self.names.items():
            sums[int(not name.startswith(f"__{self.rank}_"))] += size
        self.names.clear()
        dist.all_reduce(sums)
        return dict(zip(("own", "foreign"), sums.tolist()))


@contextlib.contextmanager
def loading(me, ours=True, **options):
    """A strategy that has Megatron's distribution, or ours."""
    if ours:
        me.ours.install(**options)
    _, strategy = me.wrapped(True)
    if not ours:
        strategy.base_strategy = me.ours.LoadStrategy()
    try:
        yield strategy
    finally:
        me.ours.uninstall()


def locality(folder, rank, world, meet):
    os.makedirs(folder, exist_ok=True)
    me = megatron.Rank(rank, world, meet)
    counted = Counted(me)
    for saved, loaded in ((1, 2), (2, 1)) if world == 2 else ((4, 2), (2, 2)):
        path, seed = f"{folder}/tp{saved}", 1
        me.ours.install(segment_only=True)
        megatron.parallel(saved)
        save, _ = me.wrapped(True)
        me.save(path, megatron.state(megatron.model(saved), seed), save)
        me.ours.uninstall()
        found = []
        megatron.parallel(loaded)
        for ours in (False, True):
            gpt = megatron.model(loaded)
            counted.all()
            with loading(me, ours) as load:
                me.load(path, gpt, seed, load)
            found.append(counted.all())
        theirs, ours = found
        if me.rank == 0:
            print(f"# saved TP{saved}xDP{world // saved}, loaded TP{loaded}xDP"
                  f"{world // loaded}: of {sum(theirs.values())} bytes "
                  f"Megatron's distribution reads {theirs['foreign']} from "
                  f"others' files, ours {ours['foreign']} of "
                  f"{sum(ours.values())}", flush=True)
        assert ours["foreign"] == 0 < theirs["foreign"], found
        assert ours["own"] <= sum(theirs.values()), found
        if saved > loaded:
            assert theirs["foreign"] > 0.45 * sum(theirs.values()), theirs
        me.load(path, gpt, seed, me.ours.LoadStrategy(share=True))
        alone = counted.all()
        assert alone["foreign"] == 0 < alone["own"], alone
    if trainer.on_ckptfs(folder):
        k = me.ckptfs.counters()
        assert k["plain_saves"] == 0 and k["saves"] > 0, k
    # Where there are no segments it fails, with the strategy and with all.
    path = os.path.join(os.path.dirname(meet), "plain")
    for strategy in (me.ours.SaveStrategy(segment_only=True), None):
        if strategy is None:
            me.ours.install(segment_only=True)
        try:
            me.save(path, megatron.state(gpt, seed), strategy)
        except BaseException as e:  # torch's is no Exception
            assert me.rank or "not in a ckptfs mount" in str(e), e
        else:
            raise AssertionError("it did not fail")
        me.barrier()
        assert not any(name.endswith(".distcp") for name in os.listdir(path))
        me.barrier()
    me.ours.uninstall()


# --- a job that trains ---

def train_on_host():
    """Where Apex is not, Megatron 0.16 takes torch's Adam, which counts steps
    for each parameter: what is loaded has them for groups of parameters, and
    load() brings them from there."""
    import torch
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
    from megatron.core.transformer.moe import moe_utils
    kind = torch.Tensor.type
    torch.Tensor.type = lambda self, *args, **options: \
        kind(self, *args, **options) if args or options else \
        "torch.cuda." + kind(self).rsplit(".", 1)[1]
    set_states = DistributedOptimizer._set_main_param_and_optimizer_states
    DistributedOptimizer._set_main_param_and_optimizer_states = \
        lambda self, param, tensors: set_states(
            self, param, {"step": torch.tensor(0.0), **tensors})
    CudaRNGStatesTracker.fork = lambda self, name=None: \
        contextlib.nullcontext()
    for name in ("current_stream", "default_stream", "Stream", "Event"):
        setattr(torch.cuda, name, lambda *args, **options: mock.MagicMock())
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None  # 0.16 asks it, whether it is or not


class Job:
    """A GPT of experts and its distributed optimizer, with these sizes."""

    FORMAT = "fully_reshardable"

    def __init__(self, me, tensor, expert, seed):
        import torch
        from megatron.core import parallel_state
        from megatron.core.distributed import (
            DistributedDataParallel, DistributedDataParallelConfig)
        from megatron.core.models.gpt import GPTModel
        from megatron.core.models.gpt.gpt_layer_specs import \
            get_gpt_layer_local_spec
        from megatron.core.optimizer import (
            OptimizerConfig, get_megatron_optimizer)
        from megatron.core.transformer.transformer_config import \
            TransformerConfig
        self.me = me
        parallel_state.destroy_model_parallel()
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=tensor,
            expert_model_parallel_size=expert, expert_tensor_parallel_size=1)
        torch.manual_seed(seed)
        config = TransformerConfig(
            num_layers=2, hidden_size=32, num_attention_heads=4,
            num_moe_experts=4, moe_ffn_hidden_size=48,
            moe_token_dispatcher_type="allgather", add_bias_linear=False,
            attention_dropout=0.0, hidden_dropout=0.0,
            use_cpu_initialization=True, bf16=True,
            params_dtype=torch.bfloat16, tensor_model_parallel_size=tensor,
            expert_model_parallel_size=expert, expert_tensor_parallel_size=1)
        self.gpt = GPTModel(config, get_gpt_layer_local_spec(
            num_experts=4, moe_grouped_gemm=False), vocab_size=128,
            max_sequence_length=16).bfloat16()
        self.model = DistributedDataParallel(
            config, DistributedDataParallelConfig(
                use_distributed_optimizer=True, grad_reduce_in_fp32=True),
            self.gpt)
        self.optimizer = get_megatron_optimizer(OptimizerConfig(
            optimizer="adam", lr=1e-2, bf16=True, params_dtype=torch.bfloat16,
            use_distributed_optimizer=True), [self.model])

    def train(self, *steps):
        """Losses of these steps."""
        import torch
        losses = []
        for step in steps:
            g = torch.Generator().manual_seed(100 * step + self.me.rank)
            tokens = torch.randint(0, 128, (2, 16), generator=g)
            mask = torch.ones(16, 16).tril()[None, None] < 0.5
            self.model.zero_grad_buffer()
            self.optimizer.zero_grad()
            loss = self.model(tokens, torch.arange(16).expand(2, 16), mask,
                              labels=tokens).mean()
            loss.backward()
            self.step()
            losses.append(loss.item())
        return losses

    def step(self):
        self.model.start_grad_sync()
        self.model.finish_grad_sync()
        assert self.optimizer.step()[0]

    def state(self, is_loading):
        model = self.gpt.sharded_state_dict()
        return {"model": model, "optimizer": self.optimizer.sharded_state_dict(
            model, is_loading=is_loading, metadata={
                "distrib_optim_sharding_type": self.FORMAT,
                "distrib_optim_fully_reshardable_mem_efficient": False})}

    def save(self, path, strategy):
        self.me.save(path, self.state(False), strategy)

    def load(self, path, strategy):
        """Into the job; all tensors that were loaded, by their place."""
        import torch
        from megatron.core import dist_checkpointing
        from torch.distributed.checkpoint._nested_dict import \
            flatten_state_dict
        self.step()  # torch's Adam has nothing to load into before it
        loaded = dist_checkpointing.load(self.state(True), path, strategy)
        flat = {name: one.clone() if isinstance(one, torch.Tensor) else one
                for name, one in flatten_state_dict(loaded)[0].items()}
        self.gpt.load_state_dict(loaded["model"])
        self.optimizer.load_state_dict(loaded["optimizer"])
        for one in self.optimizer.chained_optimizers:
            for group in one.optimizer.param_groups:
                for p in group["params"]:
                    one.optimizer.state[p]["step"] = \
                        torch.tensor(float(group["step"]))
        return flat

    def parameters(self):
        return {name: p.detach().clone()
                for name, p in self.gpt.named_parameters()}


def same(got, want):
    import torch
    assert got.keys() == want.keys(), got.keys() ^ want.keys()
    for name, one in want.items():
        if isinstance(one, torch.Tensor):
            assert one.dtype == got[name].dtype and \
                torch.equal(one, got[name]), name


def resume(folder, rank, world, meet):
    os.makedirs(folder, exist_ok=True)
    me = megatron.Rank(rank, world, meet)
    train_on_host()
    counted = Counted(me)
    for Job.FORMAT in ("dp_reshardable", "fully_reshardable"):
        path = f"{folder}/{Job.FORMAT}"
        job = Job(me, 1, 2, seed=1)
        first = job.train(1, 2)
        me.ours.install()
        job.save(path, me.wrapped(True)[0])
        me.ours.uninstall()
        losses, trained = job.train(3, 4), job.parameters()
        assert losses != first
        # The same sizes: it goes on as if nothing had happened.
        job = Job(me, 1, 2, seed=2)
        with loading(me) as load:
            job.load(path, load)
        assert job.train(3, 4) == losses
        same(job.parameters(), trained)
    # Other ones: what is loaded is what Megatron alone loads.
    counted.all()
    # (Without expert parallelism 0.16 has one optimizer, of other names.)
    for tensor, expert in ((1, 4), (2, 2), (4, 2)):
        with loading(me) as load:
            got = Job(me, tensor, expert, seed=2).load(path, load)
        read = counted.all()
        assert read["foreign"] == 0 < read["own"], read
        want = Job(me, tensor, expert, seed=3).load(path, me.wrapped(True)[1])
        assert sum("exp_avg" in name for name in want) > 20, list(want)
        assert sum("experts" in name for name in want) >= 4, list(want)
        same(got, want)
    # And with copies of each rank's own.
    job = Job(me, 2, 2, seed=4)
    job.step()
    me.ours.install(replicas=True)
    job.save(f"{folder}/replicas", me.wrapped(True)[0])
    me.ours.uninstall()
    for tensor, expert in ((2, 2), (1, 4)):
        with loading(me, replicas=True) as load:
            got = Job(me, tensor, expert, seed=2).load(
                f"{folder}/replicas", load)
        want = Job(me, tensor, expert, seed=3).load(
            f"{folder}/replicas", me.wrapped(True)[1])
        same(got, want)
    if trainer.on_ckptfs(folder):
        k = me.ckptfs.counters()
        assert k["plain_saves"] == 0, k
    me.barrier()


PROGRAMS = {"locality": locality, "resume": resume}
PROGRAMS["forked"] = lambda *given: megatron.forked(PROGRAMS, *given)


def tests():
    for count in (2, 4):
        @ck.mounted(modes=("auto",))
        def nobody_reads_what_another_rank_has_written(m, count=count):
            megatron.ranks("locality", m.path("job"),
                           os.path.join(m.base, "meet"), count, __file__)

    @ck.mounted(modes=("auto",))
    def a_job_with_experts_goes_on_where_it_was_saved(m):
        megatron.ranks("resume", m.path("job"), os.path.join(m.base, "meet"),
                       4, __file__)


if __name__ == "__main__":
    megatron.main(PROGRAMS, tests)
