"""The wheel: what pip installs from that one file, without a network and
outside the sources, saves and loads with the library that is in it; its name
says what it needs; and where the daemon is of another version it says so."""
import errno
import importlib.metadata
import os
import re
import sys
import zipfile

import trainer
from trainer import ck

SYSTEM = r"lib(c|m|dl|rt|pthread)\.so\.6|ld-linux[\w-]*\.so\.\d"


# --- the programs; they see the wheel, and nothing of the sources ---

def loaded():
    """The files of the libraries that this process has mapped."""
    with open("/proc/self/maps", encoding="utf-8") as f:
        return {line.split()[-1] for line in f if ".so" in line}


def only_the_wheels(folder, *more):
    import ckptfs
    home = os.path.dirname(ckptfs.__file__)
    assert home.startswith(os.path.realpath(folder)), home
    ckptfs.gpu_state()
    for name in ("libckpt_gpu", "libcjson", "libxxhash", *more):
        found = [path for path in loaded() if name in path]
        assert len(found) == 1 and os.path.dirname(found[0]) == home, found


def bare(installed, path):
    """Without torch and numpy: what a file is, and what is missing."""
    import ckptfs
    only_the_wheels(installed)
    with ckptfs.open_file(path) as f:
        assert f.keys() == ["a"] and f.metadata() == {"k": "v"}
        assert f.get_slice("a").get_shape() == [2, 3]
        for framework in ("pt", "np"):
            try:
                ckptfs.load_file(path, framework=framework)
            except ModuleNotFoundError as e:
                assert e.name == {"pt": "torch", "np": "numpy"}[framework], e
            else:
                raise AssertionError(framework)
    assert ckptfs.counters()["saves"] == 0
    plugin, = importlib.metadata.entry_points(group="vllm.general_plugins")
    assert plugin.value == "ckptfs.vllm:register", plugin
    try:
        plugin.load()
    except ModuleNotFoundError as e:
        assert e.name in ("torch", "vllm"), e
    else:
        raise AssertionError("without vLLM")
    try:
        ckptfs.load_file("/nowhere/at.all")
    except FileNotFoundError as e:
        assert e.filename == "/nowhere/at.all", e


def with_torch(installed, folder, mounted):
    import torch
    import ckptfs._plan
    import ckptfs.stash
    ckptfs._plan.by("greedy")
    only_the_wheels(installed, "libckpt_plan")
    path = os.path.join(folder, "w.safetensors")
    tensors = {"a": torch.arange(1 << 20), "b": torch.ones(3).bfloat16()}
    for step in range(3):
        tensors["a"] += 1
        ckptfs.save_file(tensors, path, plain=mounted != "True",
                         segment_only=mounted == "True")
        got = ckptfs.load_file(path)
        assert sorted(got) == ["a", "b"]
        assert all(torch.equal(got[k], t) for k, t in tensors.items()), step
    layer = torch.nn.Linear(3, 5)
    stash = ckptfs.stash.Stash(layer, min_bytes=0)
    for step in range(2):
        with stash.step(), stash.rows(2, 7):
            layer(torch.ones(7, 3)).sum().backward()
    assert stash.state()


def another_version(folder):
    import torch
    import ckptfs
    path = os.path.join(folder, "x.safetensors")
    try:
        ckptfs.save_file({"a": torch.arange(9)}, path)
    except OSError as e:
        assert e.errno == errno.EPROTONOSUPPORT, e
        assert "package of the version that is mounted" in str(e), e
        assert not os.path.exists(path)
        return
    raise AssertionError("it saved")


# --- the tests ---

PROGRAMS = {f.__name__: f for f in (bare, with_torch, another_version)}


def build():
    ck.sh("cmake", "--build", ck.BUILD, "--target", "wheel")
    name, = os.listdir(os.path.join(ck.BUILD, "wheel"))
    return os.path.join(ck.BUILD, "wheel", name)


def run(python, program, *argv, **env):
    """As a user does: none of this build's settings, and somewhere else."""
    return ck.sh("env", "-u", "CKPTFS_GPU_LIBRARY", "-u", "LD_LIBRARY_PATH",
                 *(f"{k}={v}" for k, v in env.items()), python,
                 os.path.abspath(__file__), program, *map(str, argv), cwd="/")


def install(folder, *options):
    """Into a fresh environment, with no index to ask. Its python."""
    ck.sh(sys.executable, "-m", "venv", *options, folder)
    python = os.path.join(folder, "bin/python")
    ck.sh(python, "-m", "pip", "install", "-q", "--no-index",
          "--disable-pip-version-check", build(), cwd="/")
    return python


def a_file():
    """Made by hand: six numbers."""
    header = b'{"__metadata__":{"k":"v"},"a":{"dtype":"U8","shape":[2,3],' \
        b'"data_offsets":[0,6]}}'
    return len(header).to_bytes(8, "little") + header + bytes(6)


def versions(path):
    return {int(n) for n in re.findall(
        r"GLIBC_2\.(\d+)", ck.sh("objdump", "-T", path))}


def tests():
    @ck.mounted(modes=("auto",))
    def a_wheel_is_all_that_a_fresh_environment_needs(m):
        python = install(m.base + "/env")
        ck.put(m.path("hand.safetensors"), a_file())
        run(python, "bare", m.base + "/env", m.path("hand.safetensors"))
        ck.sh(python, "-m", "pip", "uninstall", "-q", "-y", "ckptfs")
        left = [n for _, _, names in os.walk(m.base + "/env")
                for n in names if "ckpt" in n]
        assert not left, left

    @ck.posix
    def torch_saves_and_loads_with_the_wheels_library(fs):
        into = os.path.join(os.path.dirname(fs.mnt.rstrip("/")), "target")
        ck.sh(sys.executable, "-m", "pip", "install", "-q", "--no-index",
              "--disable-pip-version-check", "--root-user-action=ignore",
              "--upgrade", "--target", into, build())
        run(trainer.PYTHON, "with_torch", into, fs.dir, not fs.plain,
            PYTHONPATH=into)

    @ck.mounted()
    def a_daemon_of_another_version_is_named(m):
        run(trainer.PYTHON, "another_version", m.mnt,
            PYTHONPATH=os.path.join(trainer.HERE, "../../gpu/python"),
            CKPTFS_GPU_LIBRARY=os.path.join(ck.BUILD,
                                            "gpu/libckpt_gpu.so.0"),
            LD_PRELOAD=os.path.join(ck.BUILD,
                                    "tests/trainer/libother_wire.so"))

    @ck.mounted(start=False, modes=("auto",))
    def a_library_of_another_version_is_named(m):
        said = ck.sh("env", "CKPTFS_GPU_LIBRARY=libc.so.6", "PYTHONPATH=" +
                     os.path.join(trainer.HERE, "../../gpu/python"),
                     sys.executable, "-c", "import ckptfs; ckptfs.gpu_state()",
                     code=1)
        assert "ImportError: libc.so.6 has no ckpt_" in said, said

    @ck.mounted(start=False, modes=("auto",))
    def the_name_of_the_wheel_says_what_it_needs(m):
        path = build()
        tag = re.fullmatch(r"ckptfs-[\d.]+-py3-none-manylinux_2_(\d+)_(\w+)"
                           r"\.whl", os.path.basename(path))
        assert tag and tag[2] == os.uname().machine, path
        into = m.base + "/wheel"
        with zipfile.ZipFile(path) as archive:
            archive.extractall(into)
            names = archive.namelist()
        beside = {n for n in os.listdir(into + "/ckptfs") if ".so" in n}
        newest = 0
        for name in beside:
            one = os.path.join(into, "ckptfs", name)
            newest = max(newest, *versions(one))
            for needed in re.findall(r"NEEDED +(\S+)",
                                     ck.sh("objdump", "-p", one)):
                assert needed in beside or re.fullmatch(SYSTEM, needed), \
                    (name, needed)
            licences = [n for n in names if n.endswith("licenses/" + name)]
            assert licences or name.startswith("libckpt_"), name
        assert newest == int(tag[1]), (newest, path)
        first = ck.get(path)
        assert ck.get(build()) == first, "another build has other bytes"


if __name__ == "__main__":
    trainer.main(PROGRAMS, tests)
