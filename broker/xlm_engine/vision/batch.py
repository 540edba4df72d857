"""Steps of image tokens: llama.cpp's batch of embeddings, filled without copying them."""

from __future__ import annotations

import ctypes
from typing import Any, Final

import llama_cpp.llama_cpp as C
import numpy as np

from xlm_engine.vision.mtmd import Embeddings, Positions


class ImageBatch:
    """For one context; owned by the decode thread."""

    def __init__(self, context: Any) -> None:
        self._context: Final = context

    def decode(self, embeddings: Embeddings, positions: Positions, seq_id: int, *, non_causal: bool) -> int:
        """llama_decode's status. ``positions``: one row, or four with M-RoPE. No token gets logits."""
        count = len(embeddings)
        rows = np.ascontiguousarray(embeddings, dtype=np.float32)
        places = np.ascontiguousarray(positions, dtype=np.int32)
        sequence = (C.llama_seq_id * 1)(seq_id)
        ones, no_logits = np.ones(count, dtype=np.int32), np.zeros(count, dtype=np.int8)
        sequences = np.full(count, ctypes.addressof(sequence), dtype=np.uintp)
        batch: Any = C.llama_batch()
        batch.n_tokens = count
        batch.embd = rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        batch.pos = places.ctypes.data_as(ctypes.POINTER(C.llama_pos))
        batch.n_seq_id = ones.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        batch.seq_id = sequences.ctypes.data_as(ctypes.POINTER(ctypes.POINTER(C.llama_seq_id)))
        batch.logits = no_logits.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))
        if not non_causal:
            return int(C.llama_decode(self._context, batch))
        C.llama_set_causal_attn(self._context, False)
        try:
            return int(C.llama_decode(self._context, batch))
        finally:
            C.llama_set_causal_attn(self._context, True)
