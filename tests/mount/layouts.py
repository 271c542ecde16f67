"""Checkpoints as frameworks lay them out, byte by byte, without any of them."""
import collections
import io
import json
import os
import pickle
import sys
import types
import zipfile

import ckptest as ck
from ckptest import data


def _known(module, name, value=None):
    """A class of torch's, as far as a pickle names it."""
    parts = module.split(".")
    for i in range(len(parts)):
        path = ".".join(parts[:i + 1])
        sys.modules.setdefault(path, types.ModuleType(path))
    value = value or type(name, (), {})
    value.__module__, value.__qualname__ = module, name
    setattr(sys.modules[module], name, value)
    return value


class _Storage:
    def __init__(self, key, count):
        self.id = ("storage", _FLOATS, key, "cpu", count)


def _rebuild(*_):
    raise AssertionError("nothing is loaded here")


class _Dtype:
    def __reduce__(self):
        return "float32"


_METADATA = "torch.distributed.checkpoint.metadata"
_FLOATS = _known("torch", "FloatStorage")
_REBUILD = _known("torch._utils", "_rebuild_tensor_v2", _rebuild)
_Dtype.__module__ = "torch"
_FLOAT32 = sys.modules["torch"].float32 = _Dtype()
_SIZE = _known("torch", "Size", type("Size", (), {
    "__init__": lambda self, numbers: setattr(self, "numbers", numbers),
    "__reduce__": lambda self: (_SIZE, (self.numbers,))}))
_CLASSES = {name: _known(module, name) for module, name in (
    (_METADATA, "Metadata"), (_METADATA, "TensorStorageMetadata"),
    (_METADATA, "TensorProperties"), (_METADATA, "ChunkStorageMetadata"),
    (_METADATA, "MetadataIndex"), (_METADATA, "BytesStorageMetadata"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"))}
_RERUN_STATES = {0: "NOT_RUNNING_YET", 3: "WILL_RERUN_FROM_CHECKPOINT"}
# By number; by name, as Python 3.11 does it.
RERUN_STATE = _known("megatron.core.rerun_state_machine", "RerunState", type(
    "RerunState", (), {
        "__init__": lambda self, number, named=False: self.__dict__.update(
            number=number, named=named),
        "__reduce__": lambda self: (getattr, (
            RERUN_STATE, _RERUN_STATES[self.number])) if self.named else (
                RERUN_STATE, (self.number,))}))
for _name in [n for n in sys.modules if n.split(".")[0] in (
        "torch", "megatron")]:
    sys.modules.pop(_name)


def _made(name, **state):
    made = _CLASSES[name]()
    made.__dict__.update(state)
    return made


class Tensor:
    """Of 32 bit floats; its bytes are those of the seed."""

    def __init__(self, *shape, seed=0):
        self.shape, self.count = shape, 1
        for n in shape:
            self.count *= n
        self.bytes = data(4 * self.count, seed)


class _Pickler(pickle._Pickler):  # in Python: nothing of torch is imported
    def __init__(self, out):
        super().__init__(out, 2)
        self.payloads = []

    def save_global(self, obj, name=None):
        module = obj.__module__
        self.write(b"c%s\n%s\n" % (module.encode(),
                                   (name or obj.__qualname__).encode()))
        self.memoize(obj)

    dispatch = dict(pickle._Pickler.dispatch)
    dispatch[type] = save_global
    dispatch[types.FunctionType] = save_global
    dispatch[types.BuiltinFunctionType] = save_global

    def persistent_id(self, obj):
        return obj.id if isinstance(obj, _Storage) else None

    def reducer_override(self, obj):
        if not isinstance(obj, Tensor):
            return NotImplemented
        strides = [1]
        for n in reversed(obj.shape[1:]):
            strides.insert(0, strides[0] * n)
        self.payloads.append(obj.bytes)
        return _REBUILD, (_Storage(str(len(self.payloads) - 1), obj.count), 0,
                          obj.shape, tuple(strides[:len(obj.shape)]), False,
                          collections.OrderedDict())


def torch_save(tree):
    """What torch.save() writes."""
    text, out = io.BytesIO(), io.BytesIO()
    p = _Pickler(text)
    p.dump(tree)
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as z:
        z.writestr("archive/data.pkl", text.getvalue())
        for i, payload in enumerate(p.payloads):
            z.writestr(f"archive/data/{i}", payload)
        z.writestr("archive/version", b"3\n")
    return out.getvalue()


def dcp(ranks):
    """.metadata and .distcp files; ranks: for each, name -> Tensor, or another
    object."""
    files, items, stored = {}, {}, {}
    for rank, tensors in enumerate(ranks):
        name, content = f"__{rank}_0.distcp", b""
        for key, t in tensors.items():
            one = torch_save(t)
            if not isinstance(t, Tensor):
                items[key] = _made("BytesStorageMetadata")
                stored[_made("MetadataIndex", fqn=key, offset=None,
                             index=None)] = _made(
                    "_StorageInfo", relative_path=name, offset=len(content),
                    length=len(one), transform_descriptors=None)
                content += one
                continue
            zeros = [0] * len(t.shape)
            items[key] = _made(
                "TensorStorageMetadata",
                properties=_made("TensorProperties", dtype=_FLOAT32),
                size=_SIZE(t.shape),
                chunks=[_made("ChunkStorageMetadata", offsets=_SIZE(
                    tuple(zeros)), sizes=_SIZE(t.shape))])
            stored[_made("MetadataIndex", fqn=key, offset=_SIZE(
                tuple(zeros)), index=0)] = _made(
                    "_StorageInfo", relative_path=name, offset=len(content),
                    length=len(one), transform_descriptors=None)
            content += one
        files[name] = content
    text = io.BytesIO()
    _Pickler(text).dump(_made("Metadata", state_dict_metadata=items,
                              planner_data=None, storage_data=stored,
                              storage_meta=None))
    return {**files, ".metadata": text.getvalue()}


def safetensors(tensors, seed):
    head, at = {}, 0
    for name, shape in tensors.items():
        size = 4
        for n in shape:
            size *= n
        head[name] = {"dtype": "F32", "shape": list(shape),
                      "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data(at, seed)


def npy(count, seed=0):
    """What numpy.save() writes of so many 32 bit floats."""
    head = "{'descr': '<f4', 'fortran_order': False, 'shape': (%d,), }" % count
    head += " " * (-(len(head) + 11) % 64) + "\n"
    return b"\x93NUMPY\1\0" + len(head).to_bytes(2, "little") + \
        head.encode() + data(4 * count, seed)


def npz(arrays):
    """What numpy.savez() does."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as z:
        for name, content in arrays.items():
            z.writestr(name + ".npy", content)
    return out.getvalue()


def put_all(folder, files):
    for name, content in files.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        ck.put(path, content)
