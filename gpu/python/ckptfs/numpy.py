"""safetensors.numpy's calls, by the names that it gives their arguments: those
of ckptfs for numpy arrays."""
from . import _bytes, _loading, _saving


def save(tensor_dict, metadata=None):
    return _bytes.save(tensor_dict, metadata)


def save_file(tensor_dict, filename, metadata=None, **options):
    """options: ckptfs.save_file()'s."""
    _saving.save_file(tensor_dict, filename, metadata, **options)


def load(data):
    return _bytes.load(data, framework="np")


def load_file(filename, *, backend="mmap"):
    return _loading.load_file(filename, backend=backend, framework="np")
