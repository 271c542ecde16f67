"""Who reads what: the answer of libckpt_plan, as `ckptctl plan` has it.

The plan is a function of its input alone; see ckpt_plan.h for the policies.
"""
import ctypes

from . import _library as c

_NO_SOURCE = (1 << 32) - 1


class _Shard(ctypes.Structure):
    _fields_ = [("id", ctypes.c_char_p), ("id_bytes", ctypes.c_size_t),
                ("bytes", ctypes.c_uint64),
                ("ranks", ctypes.POINTER(ctypes.c_uint32)),
                ("rank_count", ctypes.c_uint32), ("source", ctypes.c_uint32),
                ("cross", ctypes.c_bool)]


class _Options(ctypes.Structure):
    _fields_ = [("rank_count", ctypes.c_uint32), ("policy", ctypes.c_uint),
                ("cap_permille", ctypes.c_uint32)]


class _Fault(ctypes.Structure):
    _fields_ = [("shard", ctypes.c_size_t), ("what", ctypes.c_char_p)]


_SIGNATURES = {"ckpt_plan_reads": (ctypes.c_int, "pzpppp"),
               "ckpt_plan_id": (ctypes.c_size_t, "pzszpu"),
               "ckpt_plan_policy_of": (ctypes.c_bool, "sp")}
_library = None


def _lib():
    global _library
    if _library is None:
        _library = c.load_beside("libckpt_plan.so.0", "store", _SIGNATURES)
    return _library


def _id(index, group):
    """Of the piece, for that group: in the order of names, then of offsets."""
    name, offset = index.fqn.encode(), tuple(index.offset or ())
    offsets = (ctypes.c_uint64 * len(offset))(*offset)
    rest = name, len(name), offsets, len(offset)
    room = ctypes.create_string_buffer(_lib().ckpt_plan_id(None, 0, *rest))
    _lib().ckpt_plan_id(room, len(room), *rest)
    return room.raw + group.to_bytes(4, "big")


def by(policy):
    """What Reader has for `plan`: a function of that policy."""
    number = ctypes.c_uint()
    if not _lib().ckpt_plan_policy_of(str(policy).encode(),
                                      ctypes.byref(number)):
        raise ValueError(f"plan={policy!r}: give 'per_shard', 'pr3392', "
                         "'greedy' or a function")

    def plan(pieces, world):
        shards = (_Shard * len(pieces))()
        sets, groups = {}, {}
        for shard, piece in zip(shards, pieces):
            ranks, shard.source = tuple(piece.wanted), _NO_SOURCE
            if piece.source in piece.group:
                shard.source = piece.source
                ranks = tuple(sorted({*ranks, piece.source}))
            if ranks not in sets:
                sets[ranks] = (ctypes.c_uint32 * len(ranks))(*ranks)
            shard.ranks, shard.rank_count = sets[ranks], len(ranks)
            key = _id(piece.index, groups.setdefault(
                tuple(piece.group), len(groups)))
            shard.id, shard.id_bytes = key, len(key)
            shard.bytes = piece.bytes
        readers = (ctypes.c_uint32 * len(pieces))()
        loads, fault = (ctypes.c_uint64 * world)(), _Fault()
        rc = _lib().ckpt_plan_reads(
            shards, len(pieces), ctypes.byref(_Options(world, number, 0)),
            readers, loads, ctypes.byref(fault))
        if rc < 0:
            what = (fault.what or b"no memory").decode()
            if fault.shard < len(pieces):
                what = f"{pieces[fault.shard].index.fqn}: {what}"
            raise OSError(-rc, f"no plan of who reads what: {what}")
        return list(readers)
    return plan
