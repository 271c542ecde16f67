"""ckptfs - save tensors into a ckptfs mount, and load them from it.

    import ckptfs

    ckptfs.save_file(model.state_dict(), "/ckpt/step_100.safetensors")
    state = ckptfs.load_file("/ckpt/step_100.safetensors", device="cuda:0")

All that safetensors.torch has is here, called alike (ckptfs.numpy: what
safetensors.numpy has), and the files are ordinary safetensors files. What
differs: the bytes go from the device straight into memory that the mount
shares with this process, and the mount makes that memory the file.
save_file_async does it in the background:

    save = ckptfs.save_file_async(state, "/ckpt/step_200.safetensors")
    loss.backward()          # does not change the tensors
    save.copied()            # they may change from here on
    optimizer.step()
    ...
    save.wait()              # it would survive a power cut

ctypes, nothing to compile. Neither torch nor numpy is imported before a tensor
of its kind is met. The library is $CKPTFS_GPU_LIBRARY, or libckpt_gpu.so.0
in this folder (a wheel's), in the build tree or installed with it, or where
the loader finds it; it is loaded by the first call.

Errors: OSError(errno, sentence, path) when something could not be done, among
them EBADMSG for a file that is no safetensors file and ENOTTY for a path that
is not in a ckptfs mount (plain=True writes there all the same). ValueError and
TypeError for arguments that make no sense. Where safetensors raises its
SafetensorError, they are that as well.
"""
from . import weights  # noqa: F401
from ._bytes import deserialize, load, save, serialize, serialize_file
from ._errors import SafetensorError
from ._library import configure, counters, gpu_state
from ._loading import File, Slice, load_file, load_into, open_file
from ._models import load_model, save_model
from ._saving import PlainSaveWarning, Save, save_file, save_file_async
from ._tensors import TensorSpec

safe_open = open_file  # its name in safetensors

__all__ = ["save_file", "save_file_async", "load_file", "load_into",
           "save_model", "load_model", "save", "load", "serialize",
           "serialize_file", "deserialize", "open_file", "safe_open", "Save",
           "File", "Slice", "TensorSpec", "SafetensorError",
           "PlainSaveWarning", "configure", "counters", "gpu_state"]
