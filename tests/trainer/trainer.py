"""trainer - a mount test whose work is done by a real torch.

A test file here has two programs: save(folder) and check(folder), which raises
when a tensor differs. They run in processes of their own under the virtual
environment of setup-venv.sh, so that a check never sees what the saver still
holds in memory. main() is the driver: save, check, drain, check, remount,
check, in each mode of the mount; `--plain DIR` leaves the mount out of it.
"""
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "../mount"))
# pylint: disable=wrong-import-position
import ckptest as ck  # noqa: E402
import warm  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = os.path.join(os.environ.get("CKPTFS_VENV", "/var/cache/ckptfs/venv"),
                      "bin/python")


def need_torch():
    """Not at import: a machine without torch skips, it does not fail."""
    if not os.access(PYTHON, os.X_OK):
        print(f"SKIP: no {PYTHON}: run tests/trainer/setup-venv.sh")
        sys.exit(77)


def _env(env):
    return dict(os.environ, OMP_NUM_THREADS="2", CUDA_VISIBLE_DEVICES="",
                PYTHONFAULTHANDLER="1", **env)


def start(script, *argv, **env):
    """One process of the trainer; two threads are all it is given. It has
    imported torch already, where that makes no difference."""
    if warm.needs_new(env):
        return start_new(script, *argv, **env)
    return warm.Process(PYTHON, [os.path.abspath(script), *map(str, argv)],
                        _env(env))


def start_new(script, *argv, **env):
    """The same with an interpreter of its own."""
    return subprocess.Popen(
        [PYTHON, script, *map(str, argv)], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL,
        env=_env(env))


def ranks(script, program, folder, count, meet, **env):
    """So many processes, each told the folder, its rank, their number and the
    file where they meet, which is gone afterwards: what one world left in it
    would lead the next one astray."""
    try:
        finish(*(start(script, program, folder, rank, count, meet, **env)
                 for rank in range(count)))
    finally:
        if os.path.exists(meet):
            os.unlink(meet)


def _where(process):
    """What it says of where it stands, when it does not end."""
    if isinstance(process, warm.Process):
        process.abort()
    else:
        process.send_signal(signal.SIGABRT)
    try:
        return process.communicate(timeout=ck.WAIT_BOUND)[0]
    except subprocess.TimeoutExpired:
        return "it does not even abort"


def finish(*processes, bound=2 * ck.WAIT_BOUND):
    """All must end well; if one does not, everybody's output is shown. What
    each has said."""
    said = []
    try:
        for p in processes:
            said.append(p.communicate(timeout=bound)[0])
    except subprocess.TimeoutExpired as e:
        raise AssertionError(f"{e}:\n" + "\n".join(
            map(_where, processes[len(said):]))[-4000:]) from None
    finally:
        for p in processes:
            p.kill()
            p.wait()
    codes = [p.returncode for p in processes]
    assert not any(codes), f"exit {codes}:\n" + "\n".join(said)[-4000:]
    return said


def main(programs, tests):
    """programs: name -> function for the children; tests() registers."""
    if len(sys.argv) > 1 and sys.argv[1] in programs:
        programs[sys.argv[1]](*sys.argv[2:])
        return
    need_torch()
    tests()
    ck.main()


def save_and_check(script, fs):
    """The life of a checkpoint as every test here wants it."""
    finish(start(script, "save", fs.dir))
    for stage in fs.stages():
        print(f"# check {stage}", flush=True)
        finish(start(script, "check", fs.dir))


def on_ckptfs(folder):
    """Whether this child works on the mount or on an ordinary directory."""
    return ck.mount_type(folder).startswith("fuse")


def raises(kind, fn, *args, says="", code=None, **options):
    """The exception, whose text has these words, and that errno."""
    try:
        fn(*args, **options)
    except kind as e:
        assert says in str(e), e
        assert code is None or e.errno == code, e
        return e
    raise AssertionError(f"{fn}{args} raised nothing")


def state(seed, frozen_seed=0):
    """A state dict with what real ones have: several types, a scalar, an
    empty tensor, views that share storage, and layers that never change."""
    import torch
    g = torch.Generator().manual_seed(seed)
    frozen = torch.Generator().manual_seed(frozen_seed)
    base = torch.randn(300, 700, generator=g)
    return {
        "embedding": torch.randn(1009, 513, generator=g),
        "half": torch.randn(333, 257, generator=g).to(torch.bfloat16),
        "fp16": torch.randn(65, generator=g).to(torch.float16),
        "step": torch.tensor(seed),
        "mask": torch.randint(0, 2, (77, 5), generator=g).bool(),
        "ids": torch.randint(-9, 9, (12345,), generator=g),
        "bytes": torch.randint(0, 255, (70001,), generator=g).to(torch.uint8),
        "empty": torch.empty(0, 7),
        "view": base[10:20], "same storage": base.t(),
        **{f"frozen.{i}": torch.randn(1024, 512, generator=frozen)
           for i in range(4)},
    }


def equal(got, want, what=""):
    """Same keys, same types, same bits."""
    import torch
    assert list(got) == list(want), (what, list(got))
    for key, w in want.items():
        g = got[key]
        assert g.dtype == w.dtype and g.shape == w.shape, (what, key, g.dtype)
        assert torch.equal(g, w), f"{what} {key}: values differ"
