"""Errors that are safetensors' as well: whoever catches its SafetensorError
catches ours, and whoever knows OSError and its errno, KeyError or ValueError
catches that.

safetensors need not be there. Who names its class has imported it, so the
class is looked for when an error is raised.
"""
import sys


class SafetensorError(Exception):
    """Raised together with what it is besides: OSError, ValueError..."""

    __module__ = "ckptfs"


_made = {}  # (kind, safetensors' class or None) -> class


def also(kind):
    """The class of errors that are of this kind and a SafetensorError."""
    theirs = getattr(sys.modules.get("safetensors"), "SafetensorError", None)
    if (kind, theirs) not in _made:
        bases = (SafetensorError, kind, *((theirs,) if theirs else ()))
        _made[kind, theirs] = type(kind.__name__, bases, {
            "__module__": "ckptfs", "_kind": kind, "__reduce__": _reduce})
    return _made[kind, theirs]


def _reduce(error):
    """For pickle: the reader may have safetensors, or none."""
    return _again, (error._kind, *error._kind.__reduce__(error)[1])


def _again(kind, *args):
    return also(kind)(*args)
