"""ckptfs.stash where one buffer has the rows of several experts, where values
are float8 in uint8 with scales beside them, and where a part of the rows goes
to the host by plan: gradients are those without it, bit by bit, what is held is
what came, and what is kept whole is named. In host memory and on a device that
is none, as in test_ckptfs_stash.py."""
import contextlib
import os
import random
import sys
import warnings

import test_ckptfs_stash as plain
import trainer
from test_ckptfs_stash import PAGE, make_stash, on_device, same, used
from trainer import raises

EXPERTS, ROWS = 4, 100
COUNTS = ((0, 0, 0, 0), (ROWS,) * 4, (1, 7, 8, 9), (0, 64, 0, 1),
          (99, 0, 3, 17))
TESTS = []


def test(fn):
    TESTS.append(fn)
    return fn


def pages(counts):
    return sum(-(-n // PAGE) for n in counts)


# --- experts that work on one buffer ---

def make_experts():
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef

    class Experts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first = torch.nn.Parameter(torch.randn(EXPERTS, 24, 80))
            self.last = torch.nn.Parameter(torch.randn(EXPERTS, 40, 24))
            self.all = torch.nn.Parameter(torch.randn(24, 24))

        def forward(self, x):
            # What all experts share sees their rows as one matrix.
            shared = (x.view(-1, 24) @ self.all).view(x.shape)
            both = torch.bmm(shared, self.first)
            gate, up = both.chunk(2, -1)
            product = torch.nn.functional.silu(gate) * up
            self.buffers = [StorageWeakRef(t.untyped_storage())
                            for t in (shared, both, product)]
            return torch.bmm(product, self.last)
    return Experts()


# x and what is shared; gate and up, which lie in one; silu's and the product.
KINDS = {(4, 24): 2, (4, 80): 1, (4, 40): 2}


def buffer(counts, seed):
    import torch
    g = torch.Generator().manual_seed(seed)
    made = torch.zeros(len(counts), ROWS, 24)
    for one, n in zip(made, counts):
        one[:n] = torch.randn(n, 24, generator=g)
    return made


def forward(model, counts, seed, stash):
    import torch
    given = torch.tensor(counts)
    x = buffer(counts, seed).requires_grad_()
    with stash.rows(given, ROWS) if stash else contextlib.nullcontext():
        y = model(x)
    given.fill_(10 ** 9)  # it was read, or a copy will be
    return x, (y * buffer(counts, seed + 99)).sum()


def gradients(microbatches, *, stash=None, model=None, between=None):
    model = model or make_experts()
    model.zero_grad()
    made = [forward(model, counts, seed, stash)
            for seed, counts in enumerate(microbatches)]
    if between:
        between()
    for _, loss in reversed(made):
        loss.backward()
    return [p.grad.clone() for p in model.parameters()] + \
        [x.grad for x, _ in made]


@test
def of_each_expert_its_own_rows_are_kept(make=make_stash):
    model, seen = make_experts(), []
    stash = make(model)

    def look():
        stash._side.finish()
        assert all(b.expired() for b in model.buffers)
        assert stash.padded_bytes == EXPERTS * ROWS * 4 * sum(
            width * n for (_, width), n in KINDS.items())
        seen.append({kind: n for kind, (n, _) in used(stash).items()})

    for counts in ((ROWS,) * EXPERTS, *COUNTS):
        del seen[:]
        got = stash.run(gradients, [counts], stash=stash, model=model,
                        between=look)
        same(got, gradients([counts]))
        assert seen[-1] in ({}, {kind: n * pages(counts)
                                 for kind, n in KINDS.items()}), seen
        assert not any(map(any, used(stash).values())), used(stash)
    assert seen[-1] and stash.overflows == 0


@test
def experts_that_get_more_than_was_recorded(make=make_stash):
    model = make_experts()
    stash = make(model, margin=1)
    for step, counts in enumerate(((9, 8, 7, 0), (9, 8, 7, 0), (9, 9, 9, 9),
                                   (8, 16, 0, 8), (0, 0, ROWS, 0))):
        same(stash.run(gradients, [counts] * 2, stash=stash, model=model),
             gradients([counts] * 2))
        assert stash.overflows == (0, 0, 1, 1, 2)[step], step


@test
def one_expert_may_have_its_dimension_or_not():
    import torch
    stash = make_stash(make_experts())
    for shape in ((1, ROWS, 24), (ROWS, 24)):
        for _ in range(2):
            with stash.step():
                x = torch.ones(shape, requires_grad=True)
                with stash.rows(torch.tensor([9]), ROWS):
                    y = x * x
                assert stash.padded_bytes == ROWS * 24 * 4, shape
                y.sum().backward()
                assert x.grad.sum() == 2 * 9 * 24


@test
def counts_that_make_no_sense_are_named():
    model = make_experts()
    stash = make_stash(model)
    with stash.step():
        for wrong in ((0, 0, -1, 0), (0, ROWS + 1, 0, 0)):
            raises(ValueError, stash.rows, wrong, ROWS,
                   says=f"count={[n for n in wrong if n][0]}: there are {ROWS}")
        for n in (24, 80):  # [4, 24, 80] is a parameter
            raises(ValueError, stash.rows, (0,) * EXPERTS, n,
                   says="`first` has such")
        stash.rows((0,) * 3, 80)  # but nothing is [3, 80]
        raises(ValueError, stash.rows, (0,) * 3, 8,  # and `all` has 24 rows
               says="has such a dimension")


# --- float8 in uint8 ---

def make_quantized():
    import torch

    class Product(torch.autograd.Function):
        """Keeps float8 values as bytes, and a scale for each row."""

        @staticmethod
        def forward(ctx, x, weight):
            scale = x.abs().amax(-1, keepdim=True) / 448 + 1e-9
            raw = (x / scale).to(torch.float8_e4m3fn).view(torch.uint8)
            ctx.save_for_backward(raw, scale, weight)
            return (raw.view(torch.float8_e4m3fn).float() * scale) @ weight

        @staticmethod
        def backward(ctx, grad):
            raw, scale, weight = ctx.saved_tensors
            x = raw.view(torch.float8_e4m3fn).float() * scale
            return grad @ weight.transpose(-2, -1), \
                x.transpose(-2, -1) @ grad

    class Quantized(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.weight = torch.nn.Parameter(torch.randn(EXPERTS, 24, 16))
            self.buffers = []

        def forward(self, x):
            return Product.apply(x, self.weight)
    return Quantized()


@test
def float8_in_uint8_is_kept_with_its_scales(make=make_stash):
    model = make_quantized()
    stash = make(model)

    def step(counts, stash):
        model.zero_grad()
        x, loss = forward(model, counts, 0, stash)
        held = stash.padded_bytes if stash else 0
        loss = loss * 2
        loss.backward()
        return held, [model.weight.grad.clone(), x.grad]

    def forward(model, counts, seed, stash):
        import torch
        x = buffer(counts, seed).requires_grad_()
        with stash.rows(torch.tensor(counts), ROWS) if stash else \
                contextlib.nullcontext():
            y = model(x)
        return x, (y[..., :1] * buffer(counts, 9)).sum()

    for counts in ((ROWS,) * EXPERTS, *COUNTS):
        held, got = stash.run(step, counts, stash)
        same(got, step(counts, None)[1])
        assert held == EXPERTS * ROWS * (24 + 4), held
    assert set(stash.state()) == {(1, 24), (4, 1)}, stash.state()


@test
def what_is_kept_whole_is_named_once():
    import torch
    stash = make_stash(make_experts(), min_bytes=1000)
    x = torch.randn(EXPERTS, ROWS, 24)

    class Keep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y, *kept):
            ctx.save_for_backward(*kept)
            return y * 1

        @staticmethod
        def backward(ctx, grad):
            return (grad, *(None for _ in ctx.saved_tensors))

    def said(count, *kept):
        with warnings.catch_warnings(record=True) as heard, stash.step():
            warnings.simplefilter("always")
            for _ in range(2):
                with stash.rows(count, ROWS):
                    Keep.apply(torch.ones(1, requires_grad=True), *kept)
        return [str(one.message) for one in heard]

    counts = torch.tensor([1] * EXPERTS)
    for count, tensor, text in (
            # One count cannot be that of each expert.
            (torch.tensor(5), x, "(4, 100, 24) is kept whole: its rows are"),
            (counts, x.transpose(0, 1), "(100, 4, 24) is kept whole: its rows"),
            (counts, x[0], "(100, 24) is kept whole: its rows are not"),
            # Scales as some products want them.
            (counts, torch.ones(6, EXPERTS * ROWS), "(6, 400) is kept whole"),
            (counts, x.long(), "it is of torch.int64"),
            (counts, x > 0, "it is of torch.bool"),
            (counts, x.to_sparse(), "layout torch.sparse_coo")):
        first, *more = said(count, tensor)
        assert text in first and not more, (first, more)
        assert not said(count, tensor), "it was said before"
    # Nobody has to hear of what is small, or has no rows, or is stashed.
    assert not said(counts, x, x.view(-1, 24), torch.ones(24, 80),
                    torch.ones(EXPERTS, ROWS // 2, dtype=torch.int8),
                    torch.zeros(24).expand(EXPERTS, ROWS, 24))


# --- a part of it in host memory, by plan ---

@test
def half_of_the_rows_are_on_the_host(make=make_stash):
    model, seen = plain.make_model(), []
    stash = make(model, margin=0.5, host_margin=0.5)

    def step(counts):
        seen.append(1)
        return plain.gradients(counts, stash=stash, model=model)

    # The ring has room for one and a half of these, none of which is split.
    recorded = (64, 64, 64)
    stash.run(step, recorded)
    chance = random.Random(1)
    for _ in range(12):
        counts = [chance.randrange(65) for _ in range(3)] if seen[1:] \
            else recorded
        same(stash.run(step, counts), plain.gradients(counts))
    assert len(seen) == 13 and stash.overflows == 0
    for kind, n in plain.KINDS.items():
        device, host = stash.state()[kind]["pages"]
        assert device == 12 * n and host == 12 * n + 8, stash.state()
    # What came first is on the device, what did not fit on the host.
    with stash.step():
        losses = [plain.Batch(64, n).forward(model, stash) for n in range(3)]
        assert used(stash) == {kind: (n * 8 if n == 1 else 24,
                                      n * 16 if n == 1 else 24)
                               for kind, n in plain.KINDS.items()}, used(stash)
        for loss in losses:
            loss.backward()
    assert not any(map(any, used(stash).values())), used(stash)
    # More than there is room for is still seen, and done again.
    same(stash.run(step, [200] * 3), plain.gradients([200] * 3))
    assert stash.overflows == 1
    same(stash.run(step, [200] * 3), plain.gradients([200] * 3))
    assert stash.overflows == 1
    device, host = stash.state()[4, 24]["pages"]
    assert (device, host) == (38, 38 + 25), (device, host)


@test
def no_rows_are_on_the_device_with_margin_0(make=make_stash):
    model = plain.make_model()
    stash = make(model, margin=0, host_margin=1)
    for _ in range(3):
        same(stash.run(plain.gradients, [64, 9], stash=stash, model=model),
             plain.gradients([64, 9]))
    assert all(s["pages"][0] == 0 for s in stash.state().values())
    assert stash.overflows == 0


@test
def a_device_does_the_same_later():
    with on_device() as (cu, make):
        for fn in (of_each_expert_its_own_rows_are_kept,
                   experts_that_get_more_than_was_recorded,
                   float8_in_uint8_is_kept_with_its_scales,
                   half_of_the_rows_are_on_the_host,
                   no_rows_are_on_the_device_with_margin_0):
            fn(make=make)
        device, pinned = {}, {}
        for margin in (1, 0.5, 0):
            model = plain.make_model()
            stash = make(model, margin=margin, host_margin=1 - margin)
            for _ in range(2):
                stash.run(plain.gradients, [256, 256], stash=stash,
                          model=model)
            stash._side.finish()
            device[margin] = cu.fake_cuda_device_bytes()
            pinned[margin] = cu.fake_cuda_pinned_bytes()
            rings = 64 * PAGE * sum(size * width * n for (size, width), n in
                                    plain.KINDS.items())
            assert rings * margin < device[margin] < rings * margin + 16384
            assert pinned[margin] >= rings * (1 - margin)
            del stash
        print(f"# on the device {device}, pinned {pinned}")


def all_here():
    import torch
    torch.set_num_threads(1)
    for fn in TESTS:
        print(f"# {fn.__name__}", flush=True)
        fn()


def main():
    if sys.argv[1:2] == ["all"]:
        all_here()
    else:
        trainer.need_torch()
        print(*trainer.finish(trainer.start(
            os.path.abspath(__file__), "all", CKPT_CUDA_LIBRARY=plain.FAKE)),
            end="")


if __name__ == "__main__":
    main()
