"""megatrons - the megatron-core that a test runs with, of those that
setup-venv.sh has put beside the virtual environment's own packages:
CKPTFS_MEGATRON is a version, `oldest`, `newest`, which is taken without it, or
`installed`: one of those packages.

From 0.18 on it imports Triton, for kernels that no test here runs; what it
names of that is stood in for, a gigabyte less.
"""
import importlib.abc
import importlib.machinery
import os
import sys
from unittest import mock

FOLDER = os.path.join(os.environ.get("CKPTFS_VENV", "/var/cache/ckptfs/venv"),
                      "megatron-core")


def _numbers(version):
    return [int(number) for number in version.split(".")]


def versions():
    """Those that there are, the oldest first."""
    try:
        return sorted(os.listdir(FOLDER), key=_numbers)
    except FileNotFoundError:
        return []


def there_is_one():
    return bool(versions()) or \
        os.environ.get("CKPTFS_MEGATRON") == "installed"


class _Triton(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds triton and all that is below it."""

    def find_spec(self, fullname, path, target=None):
        if fullname.partition(".")[0] != "triton":
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec):
        return mock.MagicMock(name=spec.name, __version__="3.9.0")

    def exec_module(self, module):
        pass


def use():
    """From here on `import megatron.core` is that one."""
    there, asked = versions(), os.environ.get("CKPTFS_MEGATRON") or "newest"
    if asked == "installed":
        return
    assert there and asked in ("oldest", "newest", *there), \
        f"CKPTFS_MEGATRON={asked}: there is {there}"
    version = {"oldest": there[0], "newest": there[-1]}.get(asked, asked)
    # Torch looks for Triton too, and keeps what it has found.
    import torch._dynamo  # noqa: F401 pylint: disable=unused-import
    import torch._inductor.compile_fx  # noqa: F401
    from torch.utils import _triton
    if _numbers(version) >= [0, 18] and not _triton.has_triton_package():
        sys.meta_path.append(_Triton())
    sys.path.insert(0, os.path.join(FOLDER, version))
