"""torch_check - tensors on a device through ckptfs.py and safetensors.torch,
compared bit by bit.

    torch_check.py [--device cuda:0] DIR

What one of them wrote the other reads, with the same bytes; saves that follow
each other do not get each other's. Gradients with a stash, and from a graph
that has captured a step with one, are those without. DIR is in a ckptfs mount,
or any directory.
Exit: 0 all the same, 1 a tensor differs, 77 there is no torch, or no device.
"""
import argparse
import contextlib
import errno
import os
import sys
import time


def skip(why):
    print("SKIP: torch:", why)
    sys.exit(77)


parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda:0")
parser.add_argument("directory")
options = parser.parse_args()

try:
    import torch
except ImportError as e:
    skip(f"cannot be imported: {e}")
if options.device != "cpu" and not torch.cuda.is_available():
    skip(f"{torch.__version__} sees no CUDA device")
try:
    import safetensors.torch
except ImportError:
    safetensors = None
import ckptfs
import ckptfs.stash

# Through bytes: NaNs and types without comparison are the same bits, too.
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64,
          torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64,
          torch.bool] + [getattr(torch, name) for name in
                         ("float8_e4m3fn", "float8_e5m2") if
                         hasattr(torch, name)]
failed = 0


def random_tensor(shape, dtype, device, generator):
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator,
                             dtype=torch.uint8).to(torch.bool).to(device)
    width = torch.empty((), dtype=dtype).element_size()
    data = torch.randint(0, 256, (*shape[:-1], shape[-1] * width),
                         generator=generator, dtype=torch.uint8)
    return data.to(device).view(dtype)


def bits(tensor):
    return tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8)


def compare(found, wanted, what):
    global failed
    if set(found) != set(wanted):
        print(f"WRONG: {what}: {sorted(set(found) ^ set(wanted))}")
        failed += 1
        return
    for name, tensor in wanted.items():
        other = found[name]
        if (other.dtype != tensor.dtype or other.shape != tensor.shape or
                not torch.equal(bits(other), bits(tensor))):
            print(f"WRONG: {what}: '{name}' ({tensor.dtype}, "
                  f"{tuple(tensor.shape)}) differs")
            failed += 1


def make(seed, device):
    generator = torch.Generator().manual_seed(seed)
    tensors = {f"dtype.{dtype}": random_tensor((33, 64), dtype, device,
                                               generator)
               for dtype in DTYPES}
    tensors["large"] = random_tensor((1024, 4096), torch.bfloat16, device,
                                     generator)
    tensors["empty"] = torch.empty((0, 7), device=device)
    tensors["scalar"] = torch.tensor(float(seed), device=device)
    tensors["on the host"] = random_tensor((17, 5), torch.float32, "cpu",
                                           generator)
    return tensors


def is_plain(directory):
    path = os.path.join(directory, "torch_check.probe")
    try:
        ckptfs.save_file({"x": torch.zeros(1)}, path)
    except OSError as e:
        if e.errno != errno.ENOTTY:
            raise
        return True
    os.unlink(path)
    return False


def check_weights(path, tensors, device, plain):
    """As another process would load them: pinned and not, and in buckets."""
    ckptfs.weights.publish(tensors, path, plain=plain)
    for pinned in (False, True):
        with ckptfs.weights.open_version(path, device) as version:
            how = "pinned" if pinned and version.pin() else "not pinned"
            room = {k: torch.empty_like(t) for k, t in tensors.items()}
            version.load_into(room)
            compare(room, tensors, f"weights, {how}")
            found = {name: tensor.clone()
                     for bucket in version.buckets(1 << 20)
                     for name, tensor in bucket}
            compare(found, tensors, f"weights in buckets, {how}")


def check_hf(path, tensors, device, plain):
    """As transformers calls safetensors, in whose place ckptfs.hf is."""
    import ckptfs.hf
    ckptfs.hf.install()
    count = ckptfs.counters()["saves"]
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    compare({"saves": torch.tensor(ckptfs.counters()["saves"] - count)},
            {"saves": torch.tensor(0 if plain else 1)}, "ckptfs.hf")
    compare(safetensors.torch.load_file(path, device=device), tensors,
            f"loaded to {device} by ckptfs.hf")
    with safetensors.safe_open(path, framework="pt") as f:
        slices = {name: f.get_slice(name) for name in f.keys()}
        compare({name: one[...].to(device) for name, one in slices.items()},
                tensors, f"slices by ckptfs.hf, moved to {device}")
    ckptfs.hf.uninstall()


class Experts(torch.nn.Module):
    """Of two experts; its input, how many rows of it matter, and what its
    output is weighed with stay where they are, as a graph wants it."""
    ROWS = 500

    def __init__(self, device, stash=None):
        super().__init__()
        made = torch.Generator().manual_seed(1)
        self.up, self.down = (
            torch.nn.Parameter(torch.randn(shape, generator=made).to(device))
            for shape in ((2, 64, 96), (2, 96, 64)))
        self.x = torch.zeros(2, self.ROWS, 64, device=device)
        self.weight = torch.zeros(2, self.ROWS, 64, device=device)
        self.counts = torch.zeros(2, dtype=torch.int64, device=device)
        self.stash = stash

    def fill(self, counts):
        made = torch.Generator().manual_seed(sum(counts))
        self.counts.copy_(torch.tensor(counts))
        for tensor in (self.x, self.weight):
            tensor.zero_()
            for one, count in zip(tensor, counts):
                one[:count] = torch.randn(count, 64, generator=made)

    def go(self):
        self.zero_grad()
        with self.stash.rows(self.counts, self.ROWS) if self.stash else \
                contextlib.nullcontext():
            hidden = torch.bmm(self.x * 2, self.up)
            y = torch.bmm(torch.nn.functional.silu(hidden), self.down)
        (y * self.weight).sum().backward()


def check_stash(device):
    """As it runs, and on a device from a graph, whose step has the same
    launches whatever the counts are."""
    whole, stashed = Experts(device), Experts(device)
    stashed.stash = stash = ckptfs.stash.Stash(stashed, min_bytes=0)

    def check(counts, run, what):
        for one in (whole, stashed):
            one.fill(counts)
        whole.go()
        run()
        compare({name: p.grad for name, p in stashed.named_parameters()},
                {name: p.grad for name, p in whole.named_parameters()},
                f"gradients with a stash, {what}, {counts} rows")

    given = ((500, 500), (0, 131), (64, 1), (500, 0))
    try:
        for counts in given:  # the second one makes the rings
            check(counts, lambda: stash.run(stashed.go), "step by step")
    except OSError as e:
        if e.errno != errno.ENODEV:
            raise
        print(f"no stash is checked: {e}")  # a library without kernels
        return
    if device == "cpu":
        return
    graph = torch.cuda.CUDAGraph()
    with stash.step(), torch.cuda.graph(graph):
        stashed.go()

    def replay():
        with stash.step():
            graph.replay()
    for counts in given:
        check(counts, replay, "from a graph")


def main():
    device, plain = options.device, is_plain(options.directory)
    path = os.path.join(options.directory, "torch_check.safetensors")
    other = os.path.join(options.directory, "torch_check.other.safetensors")
    started = time.monotonic()
    for seed in range(4):
        tensors = make(seed, device)
        skipping = {"skip_unchanged": True} if seed == 3 else {}
        if seed == 2:
            save = ckptfs.save_file_async(tensors, path, {"step": "2"},
                                          plain=plain)
            save.wait()
        else:
            ckptfs.save_file(tensors, path, {"step": str(seed)}, plain=plain,
                             **skipping)
        compare(ckptfs.load_file(path, device=device), tensors,
                f"save {seed}, loaded to {device}")
        compare(ckptfs.load_file(path), tensors,
                f"save {seed}, loaded to the host")
        if safetensors:
            compare(safetensors.torch.load_file(path, device=device), tensors,
                    f"save {seed}, loaded by safetensors")
            safetensors.torch.save_file(tensors, other)
            compare(ckptfs.load_file(other, device=device), tensors,
                    f"save {seed} of safetensors")
    check_weights(path, tensors, device, plain)
    if safetensors:
        check_hf(other, tensors, device, plain)
    check_stash(device)
    views = {"transposed": tensors["large"].t(),
             "every third": tensors["large"][::3, 1::2],
             "of one row": tensors["large"][:1].expand(50, 4096)}
    ckptfs.save_file(views, path, plain=plain)
    compare(ckptfs.load_file(path, device=device), views, "views")
    os.unlink(path)
    if safetensors:
        os.unlink(other)
    print(f"torch {torch.__version__} on {device}, "
          f"{'a plain directory' if plain else 'a mount'}, "
          f"{'with' if safetensors else 'WITHOUT'} safetensors: "
          f"{'every tensor is the same' if not failed else 'WRONG'} "
          f"({time.monotonic() - started:.1f} s)")


main()
sys.exit(1 if failed else 0)
