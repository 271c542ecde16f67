"""The images of a store as files: found, and damaged."""
import os

from ckptest import MIB


def image_of(m, size):
    """The one image of about that length."""
    found = [os.path.join(folder, name)
             for folder, _, names in os.walk(os.path.join(m.store, "images"))
             for name in names]
    found = [p for p in found if size <= os.path.getsize(p) <= size + MIB]
    assert len(found) == 1, found
    return found[0]


def flip(path, at):
    with open(path, "r+b") as f:
        f.seek(at)
        byte = f.read(1)
        f.seek(at)
        f.write(bytes([byte[0] ^ 1]))
