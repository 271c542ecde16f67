"""Steps of training as tests want them, and what a mount has said of them."""
import json
import os

import ckptest as ck
from ckptest import data

TYPES = {"F32": 4, "BF16": 2, "U8": 1}


def save(path, tensors, seed=0):
    """A safetensors file; tensors: name -> (type, shape)."""
    head, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = TYPES[dtype]
        for n in shape:
            size *= n
        head[name] = {"dtype": dtype, "shape": list(shape),
                      "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    ck.put(path, len(text).to_bytes(8, "little") + text + data(at, seed))


BASE = {"w": ("F32", (16, 1024)), "v": ("BF16", (512, 64))}
MORE = dict(BASE, rerun=("U8", (64,)))
LESS = {"w": BASE["w"]}


def step(m, number, tensors=None, *, name="step_%d", seed=None, publish=True):
    """A folder that is made aside, and published by its rename."""
    final = m.path(name % number)
    os.mkdir(final + ".tmp")
    for rank in range(2):
        save(f"{final}.tmp/rank_{rank}.safetensors",
             BASE if tensors is None else tensors,
             (number if seed is None else seed) * 10 + rank)
    ck.put(f"{final}.tmp/state.json", b'{"step": %d}' % number)
    if publish:
        os.rename(final + ".tmp", final)
    return final


def figures(m):
    """After the thread has looked at everything."""
    m.flush()
    return m.status()["structure"]


def counts(m, **want):
    got = figures(m)
    want = {**dict.fromkeys(("different", "broken", "missing", "gone",
                             "identical", "refused"), 0), **want}
    assert {k: got[k] for k in want} == want, got
    assert got["waiting"] == 0, got
    return got["last"]
