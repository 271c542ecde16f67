"""transformers, accelerate and whatever else calls safetensors, through the
mount:

    import ckptfs.hf

    ckptfs.hf.install()
    model.save_pretrained("/ckpt/step_100")
    model = AutoModel.from_pretrained("/ckpt/step_100")

None of them has a place to name who writes or reads its files (transformers 5,
accelerate 1, huggingface_hub 2): all call three public functions of
safetensors. install() puts a function in the place of each, also where somebody
has imported it already, that is ours for a file in a ckptfs mount, and theirs
for any other file, for tensors that safetensors refuses (those that share
memory, so its error is what it was) or that are no plain memory, and for
frameworks that only safetensors knows. What calls these three goes the same
way: safetensors.torch.save_model() and load_model(), Trainer, Accelerator's
save_state(), load_checkpoint_and_dispatch().

Written for safetensors 0.4 to 0.8. Of one whose functions take something else
all is left as it is, and a warning says so.
"""
import functools
import inspect
import os
import sys
import warnings

from . import _library
from ._loading import File, knows, load_file, open_file
from ._models import shared
from ._saving import save_file
from ._tensors import has_memory, torch_table

__all__ = ["install", "uninstall"]


def _in_mount(path):
    """Whether something is in a ckptfs mount."""
    try:
        device = os.stat(path).st_dev
    except (OSError, TypeError, ValueError):
        return False
    with open("/proc/self/mountinfo", encoding="utf-8",
              errors="surrogateescape") as f:
        for line in f:
            where, what = line.split(" - ", 1)
            if what.startswith("fuse.ckptfs ") and \
                    where.split()[2] == f"{os.major(device)}:" \
                    f"{os.minor(device)}":
                return True
    return False


def _is_saved(tensors, filename, **_):
    """Where it goes, and whether safetensors would take it."""
    torch = sys.modules["torch"]
    return isinstance(filename, (str, os.PathLike)) and \
        _in_mount(os.path.dirname(os.path.abspath(filename))) and \
        isinstance(tensors, dict) and all(
            isinstance(one, torch.Tensor) and one.device.type != "meta" and
            not hasattr(one, "to_local") and has_memory(torch, one) and
            one.is_contiguous() and one.dtype in torch_table(torch)
            for one in tensors.values()) and not shared(tensors)


def _is_loaded(filename, **_):
    return _in_mount(filename)


def _is_opened(filename, framework, **_):
    return knows(framework) and _in_mount(filename)


class _Opener(type):
    """Of what is in the place of a class: what it opens is an instance of it,
    and annotations may name it."""

    def __call__(cls, *args, **options):
        return cls.opens(*args, **options)

    def __instancecheck__(cls, one):
        return isinstance(one, (File, cls.__wrapped__))


def _either(theirs, ours, is_ours):
    """What is one or the other, as its arguments say."""
    known = inspect.signature(theirs)

    @functools.wraps(theirs, updated=())
    def call(*args, **options):
        try:
            given = known.bind(*args, **options).arguments
        except TypeError:
            return theirs(*args, **options)  # says what is wrong
        return (ours if is_ours(**given) else theirs)(*args, **options)
    if not isinstance(theirs, type):
        return call
    return _Opener(theirs.__name__, (), {
        "__module__": theirs.__module__, "__doc__": theirs.__doc__,
        "__wrapped__": theirs, "opens": staticmethod(call)})


def _is_known(theirs, ours):
    """Whether ours takes all that theirs may be given."""
    wanted, given = ([(one.name, one.kind) for one in
                      inspect.signature(function).parameters.values()]
                     for function in (theirs, ours))
    return [one for one in given if one in wanted] == wanted


def _replace(old, new):
    """Wherever a module has it by a name of its own."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        for name in [n for n, one in names.items() if one is old] \
                if isinstance(names, dict) else ():
            names[name] = new


_installed = []  # (theirs, what is in its place)


def install():
    """From here on safetensors files in a ckptfs mount are saved and loaded by
    ckptfs in this process, whoever calls safetensors for it.

    OSError: there is no libckpt_gpu.
    """
    import safetensors.torch as of_torch
    uninstall()
    _library.lib()
    calls = [(of_torch.save_file, save_file, _is_saved),
             (of_torch.load_file, load_file, _is_loaded),
             (of_torch.safe_open, open_file, _is_opened)]
    for theirs, ours, _ in calls:
        if not _is_known(theirs, ours):
            warnings.warn(
                f"ckptfs.hf does not know {theirs.__name__}"
                f"{inspect.signature(theirs)} of this safetensors: it goes on "
                "writing and reading its files itself", stacklevel=2)
            return
    for theirs, ours, is_ours in calls:
        call = _either(theirs, ours, is_ours)
        _replace(theirs, call)
        _installed.append((theirs, call))


def uninstall():
    """safetensors as it was, for everybody."""
    while _installed:
        theirs, call = _installed.pop()
        _replace(call, theirs)
