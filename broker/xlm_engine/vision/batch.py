"""Steps of image tokens: llama.cpp's batch of embeddings, filled without copying them."""

from __future__ import annotations

import ctypes
from typing import Any, Final

import llama_cpp.llama_cpp as C
import numpy as np

from xlm_engine.vision.mtmd import Embeddings, Positions

MAX_COUNTS: Final = 8


class _Columns:
    """What is the same in all steps of so many image tokens, with llama.cpp's batch of it."""

    def __init__(self, count: int) -> None:
        self.seq_id: Final = (C.llama_seq_id * 1)()
        self._ones: Final = np.ones(count, dtype=np.int32)
        self._sequences: Final = np.full(count, ctypes.addressof(self.seq_id), dtype=np.uintp)
        self._no_logits: Final = np.zeros(count, dtype=np.int8)
        batch: Any = C.llama_batch()
        batch.n_tokens = count
        batch.n_seq_id = self._ones.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        batch.seq_id = self._sequences.ctypes.data_as(ctypes.POINTER(ctypes.POINTER(C.llama_seq_id)))
        batch.logits = self._no_logits.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))
        self.batch: Final = batch


class ImageBatch:
    """For one context; owned by the decode thread."""

    def __init__(self, context: Any) -> None:
        self._context: Final = context
        self._columns: Final[dict[int, _Columns]] = {}  # by number of tokens

    def decode(self, embeddings: Embeddings, positions: Positions, seq_id: int, *, non_causal: bool) -> int:
        """llama_decode's status. ``positions``: one row, or four with M-RoPE. No token gets logits."""
        count = len(embeddings)
        rows = np.ascontiguousarray(embeddings, dtype=np.float32)
        places = np.ascontiguousarray(positions, dtype=np.int32)
        columns = self._columns_of(count)
        columns.seq_id[0] = seq_id
        batch = columns.batch
        batch.embd = rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        batch.pos = places.ctypes.data_as(ctypes.POINTER(C.llama_pos))
        if not non_causal:
            return int(C.llama_decode(self._context, batch))
        C.llama_set_causal_attn(self._context, False)
        try:
            return int(C.llama_decode(self._context, batch))
        finally:
            C.llama_set_causal_attn(self._context, True)

    def _columns_of(self, count: int) -> _Columns:
        columns = self._columns.get(count)
        if columns is None:
            if len(self._columns) >= MAX_COUNTS:
                self._columns.clear()
            columns = self._columns[count] = _Columns(count)
        return columns
