"""A KV cache filled to a depth without computing: the saved state of one token, repeated.

Layout of llama.cpp's sequence state (llama-kv-cache.cpp, state_write): magic, sequence, streams, cells; position,
count of sequences and sequence of each cell; whether V is transposed, layers; type, row size and rows of each K,
then of each V. Values are small random F16 numbers: denormals or zeros would change the CPU's speed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from xlm.errors import EngineError

_HEAD: Final = struct.Struct("<IiII")  # magic, sequence, streams, cells
_CELL: Final = np.dtype([("pos", "<i4"), ("count", "<u4"), ("seq", "<i4")])
_ROWS: Final = struct.Struct("<iQ")  # type, bytes of a row
_F16: Final = 1


def filled_state(one: bytes, depth: int) -> npt.NDArray[np.uint8]:
    """State of ``depth`` cells made from the state of one. EngineError where the layout is another one."""
    magic, seq, streams, cells = _HEAD.unpack_from(one)
    if (streams, cells) != (1, 1):
        raise EngineError(f"a state of {streams} streams and {cells} cells cannot be repeated", code="internal")
    at = _HEAD.size + _CELL.itemsize
    tensors = list(_tensors(one, at))
    head = _HEAD.pack(magic, seq, streams, depth)
    meta = np.zeros(depth, dtype=_CELL)
    meta["pos"], meta["count"], meta["seq"] = np.arange(depth), 1, seq
    parts = [np.frombuffer(head, np.uint8), meta.view(np.uint8), np.frombuffer(one[at : at + 8], np.uint8)]
    noise = _noise(max(size for _, size in tensors) * min(depth, 1024))
    for kind, size in tensors:
        parts.append(np.frombuffer(_ROWS.pack(kind, size), np.uint8))
        parts.append(np.resize(noise, depth * size))
    return np.concatenate(parts)


def _tensors(one: bytes, at: int) -> Iterator[tuple[int, int]]:
    """(type, row bytes) of all K, then all V."""
    transposed, n_layer = struct.unpack_from("<II", one, at)
    at += 8
    if transposed:
        raise EngineError("the V cache is transposed: flash attention is off", code="internal")
    for _ in range(2 * n_layer):
        kind, size = _ROWS.unpack_from(one, at)
        if kind != _F16 or size <= 0:
            raise EngineError(f"a KV cache of type {kind} cannot be filled", code="internal")
        yield kind, size
        at += _ROWS.size + size
    if at != len(one):
        raise EngineError("the state of a sequence has an unknown layout", code="internal")


def _noise(n_bytes: int) -> npt.NDArray[np.uint8]:
    values = np.random.default_rng(7).uniform(-1.0, 1.0, n_bytes // 2)
    return np.where(np.abs(values) < 0.01, 0.01, values).astype(np.float16).view(np.uint8)
