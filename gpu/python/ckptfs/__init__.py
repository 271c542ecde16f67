"""ckptfs - save tensors into a ckptfs mount, and load them from it.

    import ckptfs

    ckptfs.save_file(model.state_dict(), "/ckpt/step_100.safetensors")
    state = ckptfs.load_file("/ckpt/step_100.safetensors", device="cuda:0")

save_file and load_file are called like those of safetensors.torch, and the
files are ordinary safetensors files. What differs: the bytes go from the
device straight into memory that the mount shares with this process, and the
mount makes that memory the file. save_file_async does it in the background:

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
TypeError for arguments that make no sense.
"""
from . import weights  # noqa: F401
from ._library import configure, counters, gpu_state
from ._loading import File, Slice, load_file, load_into, open_file
from ._saving import Save, save_file, save_file_async

safe_open = open_file  # its name in safetensors

__all__ = ["save_file", "save_file_async", "load_file", "load_into",
           "open_file", "safe_open", "Save", "File", "Slice", "configure",
           "counters", "gpu_state"]
