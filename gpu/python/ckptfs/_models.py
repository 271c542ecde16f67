"""Whole modules of torch: a tensor that has several names is saved by one of
them, and loading gives it all of them again. Which one, and that the file's
metadata says {other name: the one}, is as safetensors has it.
"""
import os
import sys

from ._loading import load_file
from ._saving import save_file
from ._tensors import has_memory, local


def _stretch(tensor):
    """The first byte of a tensor's memory, and the one after the last."""
    begin = tensor.data_ptr()
    if not tensor.numel():
        return begin, begin
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
    return begin, begin + (last + 1) * tensor.element_size()


def shared(tensors):
    """Those of plain memory that have some in common: lists of two names or
    more."""
    storages = {}
    for name, tensor in tensors.items():
        if tensor.device.type == "meta":
            continue
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage.data_ptr():
            storages.setdefault(
                (tensor.device, storage.data_ptr(), storage.nbytes()),
                []).append((*_stretch(tensor), name))
    found = []
    for ones in storages.values():
        until = None
        for begin, end, name in sorted(ones):
            if until is not None and begin < until:
                found[-1].append(name)
                until = max(until, end)
            else:
                found.append([name])
                until = end
    return [names for names in found if len(names) > 1]


def _is_whole(tensor):
    """Whether it is all of its storage."""
    storage = tensor.untyped_storage()
    return tensor.data_ptr() == storage.data_ptr() and \
        tensor.numel() * tensor.element_size() == storage.nbytes()


def _other_names(tensors, preferred=()):
    """{name: the one that stands for it}."""
    tensors = {name: local(tensor) for name, tensor in tensors.items()}
    stands = {}
    for names in shared({name: tensor for name, tensor in tensors.items()
                         if has_memory(sys.modules["torch"], tensor)}):
        whole = sorted(n for n in names if _is_whole(tensors[n]))
        if not whole:
            raise RuntimeError(
                f"{sorted(names)} share memory, and none of them is all of it: "
                "which one is to be saved? Give the module tensors of their "
                "own (.clone()), or save its state_dict() by save_file(), "
                "which writes each")
        one = next((n for n in whole if n in preferred), whole[0])
        stands.update((n, one) for n in sorted(names) if n != one)
    return stands


def save_model(model, filename, metadata=None, force_contiguous=True,
               **options):
    """Save a torch.nn.Module; a tensor that several names share is saved
    once, where save_file() writes each.

    metadata: as of save_file(); {other name: saved name} is added.
    force_contiguous: False: a tensor that is not contiguous is a ValueError;
        else any layout is saved as its values.
    options: save_file()'s.
    """
    state = model.state_dict()
    for name, tensor in () if force_contiguous else state.items():
        if not tensor.is_contiguous():
            raise ValueError(f"Key `{name}` is not contiguous: use "
                             "save_model(..., force_contiguous=True)")
    stands = _other_names(state)
    if stands:
        metadata = {**stands, **(metadata or {})}
    save_file({name: t for name, t in state.items() if name not in stands},
              filename, metadata, **options)


def load_model(model, filename, strict=True, device="cpu", *, backend="mmap"):
    """Load a file of save_model() into a torch.nn.Module.

    Returns (missing, unexpected): names of the model that the file does not
    have, and of the file that the model does not have. RuntimeError: strict,
    and there is one. device: where the tensors are on their way into the model.
    """
    state = load_file(filename, device, backend=backend)
    stands = _other_names(model.state_dict(), preferred=state)
    missing, unexpected = model.load_state_dict(state, strict=False)
    missing, unexpected = set(missing), list(unexpected)
    for name in stands:
        if name in missing:
            missing.remove(name)  # it has what its other name was given
        else:
            unexpected.append(name)
    if strict and (missing or unexpected):
        raise RuntimeError("\n    ".join(
            [f"Error(s) in loading state_dict for {type(model).__name__} from "
             f"{os.fsdecode(filename)}:"] +
            [f"{what} key(s) in state_dict: " +
             ", ".join(f'"{name}"' for name in sorted(names))
             for what, names in (("Missing", missing),
                                 ("Unexpected", unexpected)) if names]))
    return missing, unexpected
