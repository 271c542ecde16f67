"""ckptfs.stash: gradients are those without it, bit by bit, whatever the counts
and the order of the backwards; what does not fit is seen and done again; the
rings are as large as was recorded, and no page is lost. In host memory, and on
a device that is none (tests/gpu/fake_cuda.c) with a stream that runs behind."""
import contextlib
import ctypes
import os
import re
import sys
import tempfile
import types

import trainer
from trainer import ck, raises

GPU = os.path.join(trainer.HERE, "../../gpu")
FAKE = os.path.join(ck.BUILD, "tests/gpu/libfake_cuda.so")
os.environ.setdefault("CKPTFS_GPU_LIBRARY",
                      os.path.join(ck.BUILD, "gpu/libckpt_gpu.so.0"))
sys.path.insert(0, os.path.join(GPU, "python"))

ROWS, PAGE = 300, 8
COUNTS = (0, 1, 7, 8, 9, 64, 131, ROWS)
TESTS = []


def test(fn):
    TESTS.append(fn)
    return fn


# --- a model, and its gradients ---

def make_model(seed=0):
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(seed)
            self.first = torch.nn.Parameter(torch.randn(24, 80))
            self.last = torch.nn.Parameter(torch.randn(40, 24))

        def forward(self, x):
            both = x @ self.first
            gate, up = both.chunk(2, -1)
            product = torch.nn.functional.silu(gate) * up
            if hasattr(self, "wanted"):
                product.register_hook(self.wanted)
            self.buffers = [StorageWeakRef(t.untyped_storage())
                            for t in (x, both, product)]
            return product @ self.last
    return Model()


def make_stash(model, **options):
    import ckptfs.stash
    return ckptfs.stash.Stash(model, **{"page_rows": PAGE, "min_bytes": 0,
                                        **options})


class Batch:
    """One microbatch: a buffer of which `count` rows matter."""

    def __init__(self, count, seed, dtype=None):
        import torch
        g = torch.Generator().manual_seed(seed)
        self.count = torch.tensor(count)
        self.x = torch.zeros(ROWS, 24, dtype=dtype)
        self.x[:count] = torch.randn(count, 24, generator=g)
        self.x.requires_grad_()
        self.to = torch.zeros(ROWS, 24, dtype=dtype)
        self.to[:count] = torch.randn(count, 24, generator=g)

    def forward(self, model, stash):
        with stash.rows(self.count, ROWS) if stash else \
                contextlib.nullcontext():
            y = model(self.x)
        self.count.fill_(10 ** 9)  # it was read, or a copy will be
        return (y * self.to).sum()


def gradients(counts, *, stash=None, order=None, model=None, dtype=None):
    """Of a step with these microbatches, their backwards in this order."""
    model = model or make_model()
    for p in model.parameters():
        p.grad = None
    made = [Batch(n, seed, dtype) for seed, n in enumerate(counts)]
    losses = [one.forward(model, stash) for one in made]
    for i in order or reversed(range(len(made))):
        losses[i].backward()
        losses[i] = None
    return [p.grad for p in model.parameters()] + [b.x.grad for b in made]


def same(got, want):
    import torch
    assert len(got) == len(want)
    for i, (g, w) in enumerate(zip(got, want)):
        assert g.dtype == w.dtype and torch.equal(g, w), i


def rings(pages_each):
    return {kind: n * pages_each for kind, n in KINDS.items()}


def used(stash):
    return {kind: s["used"] for kind, s in stash.state().items()}


def pages(stash):
    return {kind: s["pages"][0] for kind, s in stash.state().items()}


# The buffer; gate and up, which lie in one; silu's output and the product.
KINDS = {(4, 24): 1, (4, 80): 1, (4, 40): 2}


# --- the tests; all of them in one process ---

@test
def gradients_are_those_without_it(make=make_stash):
    for recorded in (0, 131, ROWS):
        model = make_model()
        stash = make(model)
        for count in (recorded, *COUNTS):
            got = stash.run(gradients, [count], stash=stash, model=model)
            same(got, gradients([count]))
        assert set(stash.state()) == set(KINDS)


@test
def rows_that_do_not_fit_are_seen_and_done_again(make=make_stash):
    import ckptfs.stash
    model, calls = make_model(), []
    stash = make(model, margin=1)

    def step(count):
        calls.append(count)
        return gradients([count, count], stash=stash, model=model)

    stash.run(step, 20)
    stash.run(step, 24)
    assert calls == [20, 24] and pages(stash) == rings(6), pages(stash)
    del calls[:]
    same(stash.run(step, 25), gradients([25, 25]))
    assert calls == [25, 25]
    same(stash.run(step, 32), gradients([32, 32]))
    assert calls == [25, 25, 32] and pages(stash) == rings(8)
    try:
        with stash.step():
            wrong = step(33)
    except ckptfs.stash.Overflow:
        assert all(g.isfinite().all() for g in wrong)
    else:
        raise AssertionError("nobody said that it did not fit")
    with stash.step():
        same(step(33), gradients([33, 33]))
    stash.run(step, 10)
    assert pages(stash) == rings(10) and stash.overflows == 2


@test
def the_rings_have_room_for_what_was_recorded():
    for margin in (1, 1.5):
        model = make_model()
        stash = make_stash(model, margin=margin)
        # At most two are there at once: 9 + 64 rows are 2 + 8 pages.
        for n in range(2):
            with stash.step():
                first = Batch(9, 0).forward(model, stash)
                Batch(64, 1).forward(model, stash).backward()
                Batch(64, 2).forward(model, stash).backward()
                first.backward()
            model.zero_grad()
        assert pages(stash) == rings(10 * margin), pages(stash)


@test
def backwards_come_in_any_order(make=make_stash):
    import random
    counts = (131, 0, 64, 9, 1, 200)
    orders = [list(range(6)), list(reversed(range(6)))]
    orders += [random.Random(n).sample(range(6), 6) for n in range(4)]
    for ahead in (0, 1, 3, 99):
        model = make_model()
        stash = make(model, ahead=ahead)
        for order in orders:
            for _ in range(2):  # the second time the order is known
                same(stash.run(gradients, counts, stash=stash, order=order,
                               model=model), gradients(counts, order=order))
                assert not any(map(any, used(stash).values())), used(stash)


@test
def what_is_next_is_on_its_way_before_it_is_wanted():
    for ahead in range(4):
        model, left = make_model(), []
        stash = make_stash(model, ahead=ahead)
        # When the product's gradient is there the product was taken out.
        model.wanted = lambda _: left.append(
            sum(n for n, _ in used(stash).values()))
        for _ in range(3):
            stash.run(gradients, [PAGE], stash=stash, model=model)
        assert left[1:] == [sum(KINDS.values()) - 1 - ahead] * 2, left


@test
def a_pipeline_interleaves_them(make=make_stash):
    """One forward, one backward: what is next may not be there yet."""
    model = make_model()
    stash = make(model, ahead=2)

    def step(stash):
        made = [Batch(20 * n, n) for n in range(6)]
        for p in model.parameters():
            p.grad = None
        waiting = []
        for one in made:
            waiting.append(one.forward(model, stash))
            if len(waiting) > 2:
                waiting.pop(0).backward()
        for loss in waiting:
            loss.backward()
        return [p.grad for p in model.parameters()] + [b.x.grad for b in made]

    want = step(None)
    for _ in range(3):
        same(stash.run(step, stash), want)


@test
def no_page_and_no_item_is_lost(make=make_stash):
    import random
    model, chance = make_model(), random.Random(1)
    stash = make(model)
    stash.run(gradients, [ROWS] * 3, stash=stash, model=model)
    had = None
    for step in range(50):
        counts = [chance.choice(COUNTS) for _ in range(3)]
        stash.run(gradients, counts, stash=stash, model=model)
        assert set(used(stash).values()) == {(0, 0)}, (step, used(stash))
        items = {k: sorted(v) for k, v in stash._rings._items.items()}
        assert items == (had or items), step
        had = items
        free = {k: sorted(v) for k, v in stash._rings._free.items()}
        assert free == items, step
    # A forward whose graph is thrown away has its pages until the next step.
    with stash.step():
        Batch(64, 0).forward(model, stash)
        assert all(n[0] for n in used(stash).values()), used(stash)
    same(stash.run(gradients, [ROWS] * 3, stash=stash, model=model),
         gradients([ROWS] * 3))
    assert set(used(stash).values()) == {(0, 0)}
    assert {k: sorted(v) for k, v in stash._rings._items.items()} == had


@test
def types_have_rings_of_their_own():
    import torch
    model, half = make_model(), make_model(1).bfloat16()
    stash = make_stash(torch.nn.ModuleList([model, half]))
    for step, counts in enumerate(((9, 64), (ROWS, 0), (64, 131))):
        def both():
            a = gradients(counts, stash=stash, model=model)
            return a + gradients(counts, stash=stash, model=half,
                                 dtype=torch.bfloat16)
        same(stash.run(both), gradients(counts) + gradients(
            counts, model=make_model(1).bfloat16(), dtype=torch.bfloat16))
    assert set(stash.state()) == {*KINDS, *((2, n) for _, n in KINDS)}
    # One that comes later is kept whole, and recorded in the next step.
    stash = make_stash(torch.nn.ModuleList([model, half]))
    for step in range(4):
        def more():
            a = gradients([64], stash=stash, model=model)
            return a + (gradients([64], stash=stash, model=half,
                                  dtype=torch.bfloat16) if step else [])
        want = gradients([64]) + (gradients(
            [64], model=make_model(1).bfloat16(),
            dtype=torch.bfloat16) if step else [])
        same(stash.run(more), want)
    assert set(stash.state()) == {*KINDS, *((2, n) for _, n in KINDS)}


@test
def buffers_are_let_go_and_counted():
    import torch
    model = make_model()
    stash = make_stash(model)
    for step in range(2):
        with stash.step():
            x = torch.zeros(ROWS, 24)
            x[:9] = 1
            with stash.rows(9, ROWS):
                y = model(x)
                y = y * y  # keeps one tensor twice
            del x
            assert all(b.expired() for b in model.buffers), step
            assert stash.padded_bytes == ROWS * 4 * (24 + 80 + 2 * 40 + 24)
            y.sum().backward()


@test
def one_tensor_may_have_two_counts():
    import torch
    stash = make_stash(make_model())
    for _ in range(2):
        with stash.step():
            x = torch.ones(ROWS, 24, requires_grad=True)
            total = 0
            for count in (9, 64):
                with stash.rows(count, ROWS):
                    total = total + (x * x)[:count].sum()
            total.backward()
            assert x.grad.sum(1).tolist() == \
                [96.0] * 9 + [48.0] * 55 + [0.0] * (ROWS - 64)


@test
def what_nobody_goes_back_through_is_freed():
    import gc
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef
    stash = make_stash(make_model())
    gc.disable()
    try:
        for _ in range(2):
            with stash.step():
                seen = []
                for rows in (ROWS, ROWS + 1):  # the latter stay whole
                    x = torch.ones(rows, 24, requires_grad=True)
                    with stash.rows(9, ROWS):
                        y = (x * 2).exp().tanh()
                    seen.append(StorageWeakRef(y.untyped_storage()))
                    del x, y
                assert all(one.expired() for one in seen), seen
    finally:
        gc.enable()


@test
def what_are_no_rows_stays_whole():
    import torch
    model = make_model()
    stash = make_stash(model)
    x = torch.randn(ROWS, 24, requires_grad=True)
    index = torch.arange(ROWS)
    frozen = torch.nn.Parameter(torch.randn(ROWS, 24), requires_grad=False)
    for step in range(2):
        with stash.step():
            x.grad = None
            with stash.rows(0, ROWS):
                y = x * torch.randn(24).expand(ROWS, 24)  # as large as 24
                y = y[index] * frozen
            assert stash.padded_bytes == 0
            y.sum().backward()
            assert x.grad.count_nonzero() > ROWS
        stash._record = not step  # nothing was recorded: it would be again
        stash._peaks = {(4, 1): 1}
    small = make_stash(model, min_bytes=ROWS * 4 * 24 + 1)
    for _ in range(2):
        with small.step():
            same(gradients([9], stash=small, model=model), gradients([9]))
            assert small.padded_bytes == ROWS * 4 * (80 + 2 * 40)
    with make_stash(model).step() as s:
        with s.rows(9, ROWS):
            scale = torch.ones(7, requires_grad=True)
            y = scale * scale
        with torch.no_grad():
            scale += 1
        raises(RuntimeError, y.sum().backward, says="changed in place")


@test
def a_graph_is_gone_through_twice_but_not_in_another_step():
    model = make_model()
    stash = make_stash(model, ahead=1)
    for step in range(3):
        with stash.step():
            loss = Batch(64, 0).forward(model, stash)
            model.zero_grad()
            loss.backward(retain_graph=True)
            once = [p.grad.clone() for p in model.parameters()]
            loss.backward()
            same([p.grad for p in model.parameters()],
                 [g + g for g in once])
            kept = [Batch(64, 0).forward(model, stash) for _ in range(2)]
        raises(RuntimeError, kept.pop().backward, says="which is over")
        with stash.step():
            Batch(64, 0).forward(model, stash).backward()
            raises(RuntimeError, kept.pop().backward,
                   says=f"in step {2 * step + 1}")


@test
def calls_that_make_no_sense_name_what_it_is():
    import torch
    model = make_model()
    stash = make_stash(model)
    raises(RuntimeError, stash.rows, 1, ROWS, says="outside of step()")
    with torch.no_grad(), stash.rows(1, ROWS):  # an evaluation keeps nothing
        model(torch.zeros(ROWS, 24))
    with stash.step():
        for n, name in ((24, "first"), (80, "first"), (24 * 80, "first"),
                        (40, "last")):
            raises(ValueError, stash.rows, 1, n, says=f"`{name}` has")
        raises(RuntimeError, stash.step().__enter__, says="not over yet")
        for wrong in (torch.zeros(2, 2, dtype=torch.int64), 1.5, []):
            raises(ValueError, stash.rows, wrong, ROWS, says="one integer on")
        for wrong in (-1, ROWS + 1):
            raises(ValueError, stash.rows, wrong, ROWS, says=f"count={wrong}")
    for wrong in ({"margin": 0.9}, {"margin": 0.5, "host_margin": 0.4}):
        raises(ValueError, make_stash, model, **wrong,
               says="1 or more of both together")
    for wrong in ({"margin": -1}, {"page_rows": 0}, {"ahead": -1},
                  {"host_margin": -1}, {"min_bytes": -1}):
        raises(ValueError, make_stash, model, **wrong,
               says=f"{list(wrong)[0]}={list(wrong.values())[0]}")
    raises(ValueError, make_stash, torch.nn.ReLU(), says="0 devices")
    raises(ValueError, make_stash, make_model().to("meta"), says="on meta")
    # In the rings it is an overflow, and the step that is recorded says why.
    stash.run(gradients, [9], stash=stash, model=model)

    def too_many():
        with stash.rows(ROWS + 1, ROWS):
            return model(torch.ones(ROWS, 24))
    raises(ValueError, stash.run, too_many, says=f"count={ROWS + 1}")
    # An error within a step leaves the stash as it was.
    same(stash.run(gradients, [9], stash=stash, model=model), gradients([9]))
    same(stash.run(gradients, [8], stash=stash, model=model), gradients([8]))
    raises(OSError, make_huge, says="room for 304000000000 rows")


def make_huge():
    model = make_model()
    stash = make_stash(model, margin=1e9)
    for _ in range(2):
        stash.run(gradients, [ROWS], stash=stash, model=model)


@test
def the_host_tier_takes_what_the_rings_cannot(make=make_stash):
    model = make_model()
    stash = make(model, margin=1, host_margin=2)
    stash.run(gradients, [64], stash=stash, model=model)
    calls = []

    def step():
        calls.append(1)
        return gradients([64, 64, 64], stash=stash, model=model)
    same(stash.run(step), gradients([64, 64, 64]))
    assert len(calls) == 1


@test
def close_gives_the_rings_back():
    model = make_model()
    stash = make_stash(model)
    for _ in range(2):
        for _ in range(2):
            same(stash.run(gradients, [9], stash=stash, model=model),
                 gradients([9]))
        assert stash.state()
        stash.close()
        assert not stash.state()


# --- the same on a device that is none ---

class Behind:
    """A stream of the fake device in place of torch's: what is enqueued runs
    in a thread of its own, later."""

    def __init__(self, cu):
        self.cu, self.held = cu, []
        context, stream = ctypes.c_void_p(), ctypes.c_void_p()
        assert cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        assert cu.cuCtxPushCurrent_v2(context) == 0
        assert cu.cuStreamCreate(ctypes.byref(stream), 1) == 0
        self.raw = stream.value

    def after_caller(self, *tensors):
        self.held += tensors

    def done(self):
        return lambda tensor: self.finish()

    def finish(self):
        assert self.cu.cuStreamSynchronize(ctypes.c_void_p(self.raw)) == 0
        self.held.clear()


@contextlib.contextmanager
def on_device():
    """The fake driver, and what makes a Stash there."""
    from ckptfs import stash as module
    cu = ctypes.CDLL(FAKE)
    cu.fake_cuda_device_bytes.restype = ctypes.c_uint64
    cu.fake_cuda_pinned_bytes.restype = ctypes.c_uint64
    assert cu.cuInit(0) == 0
    host_rings, device = module.Rings, types.SimpleNamespace(type="cuda",
                                                             index=0)

    def make(model, **options):
        stash = make_stash(model, **{"ahead": 1, **options})
        stash._side = Behind(cu)
        return stash
    module.Rings = lambda where, *rest: host_rings(device, *rest)
    try:
        yield cu, make
    finally:
        module.Rings = host_rings


@test
def a_device_does_the_same_later():
    with on_device() as (cu, make):
        for fn in (gradients_are_those_without_it,
                   rows_that_do_not_fit_are_seen_and_done_again,
                   backwards_come_in_any_order, a_pipeline_interleaves_them,
                   no_page_and_no_item_is_lost,
                   the_host_tier_takes_what_the_rings_cannot):
            fn(make=make)
        # Nothing waits for the device in the forward.
        model = make_model()
        stash = make(model)
        for _ in range(2):
            stash.run(gradients, [64], stash=stash, model=model)
        with stash.step():
            before = cu.fake_cuda_syncs()
            loss = Batch(64, 0).forward(model, stash)
            assert cu.fake_cuda_syncs() == before
            loss.backward()
            del loss
        assert cu.fake_cuda_device_bytes() > 0
        del stash
        assert cu.fake_cuda_device_bytes() == 0, "rings were not given back"
        assert cu.fake_cuda_pinned_bytes() == 0


def all_here(meet=None):
    import torch
    torch.set_num_threads(1)
    for fn in TESTS:
        print(f"# {fn.__name__}", flush=True)
        fn()
    if meet:
        rank(meet, 0)


# --- two ranks ---

def rank(meet, me):
    """One has more rows than were recorded, rank 1 first: both do it again."""
    import torch
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{meet}",
                                         rank=me, world_size=2)
    model, calls = make_model(), []
    stash = make_stash(model)

    def step(count):
        calls.append(count)
        got = gradients([count], stash=stash, model=model)
        torch.distributed.all_reduce(torch.ones(1))  # as a step would
        return got
    for count in (9, 9, 200 if me else 8, 200):
        same(stash.run(step, count), gradients([count]))
    assert calls == [9, 9, *[200 if me else 8] * 2, 200, 200], calls
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main():
    if sys.argv[1:2] == ["rank"]:
        rank(sys.argv[2], 1)
    elif sys.argv[1:2] == ["all"]:
        all_here(*sys.argv[2:])
    else:
        trainer.need_torch()
        quiet = {"OMP_WAIT_POLICY": "PASSIVE"}  # three at once do not spin
        with tempfile.TemporaryDirectory() as folder:
            said = trainer.finish(
                trainer.start(__file__, "all", f"{folder}/meet",
                              CKPT_CUDA_LIBRARY=FAKE, **quiet),
                trainer.start(__file__, "rank", f"{folder}/meet", **quiet),
                trainer.start(os.path.join(GPU, "examples/stash.py"),
                              "--steps", 4, **quiet))
        print(said[0], end="")
        assert re.search(r"5 forwards, gradients are those without it",
                         said[2]), said[2]
        whole, in_pages = map(int, re.search(
            r"held .*: (\d+) bytes without it, (\d+) in pages",
            said[2]).groups())
        assert in_pages * 3 < whole, said[2]
        print(said[2], end="")


if __name__ == "__main__":
    main()
