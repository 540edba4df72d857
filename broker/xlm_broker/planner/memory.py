"""Memory arithmetic of a model: what a sub-layer, a step's scratch and a whole residence take on the device."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from xlm.protocol.link import ModelFacts

DECODE_TOKENS = 4  # steps of up to so many tokens are decode steps: nothing is streamed in them
TIER_STEPS = (1, 4, 16, 64, 256, 1024, 4096)

# Order of worth per byte: the small group is a condition for the device's use at all; attention brings its KV,
# whose traffic grows with the context; experts are read sparsely, so a resident byte of them saves least.
CLASS_ORDER = ("small", "attention", "extras", "shared_experts", "ffn", "experts", "output")

# Only for engines that did not measure: logits as float32 and a guess of the widest activations per token.
FALLBACK_SCRATCH_BYTES = 1 << 20
FALLBACK_SCRATCH_BYTES_PER_TOKEN = 64 << 10


def tier_tokens(n_ubatch: int) -> list[int]:
    """Upper token bounds of the tiers, ascending; the last is ``n_ubatch``."""
    top = max(1, n_ubatch)
    return [tokens for tokens in TIER_STEPS if tokens < top] + [top]


def scratch_bytes(model: ModelFacts, tokens: int) -> int:
    """Device scratch of a step of ``tokens``: measured, between measurements linear, never falling with tokens."""
    measured = sorted((max(1, at), max(0, size)) for at, size in model.scratch_bytes.items())
    if not measured:
        return FALLBACK_SCRATCH_BYTES + tokens * (FALLBACK_SCRATCH_BYTES_PER_TOKEN + 4 * model.n_vocab)
    ats = [at for at, _ in measured]
    sizes = [int(size) for size in np.maximum.accumulate(np.array([size for _, size in measured], dtype=np.int64))]
    if tokens > ats[-1]:
        return ceil(sizes[-1] * tokens / ats[-1])
    return ceil(float(np.interp(tokens, ats, sizes)))


@dataclass(frozen=True)
class Table:
    """A model's sub-layers as arrays over the native index; an index no sub-layer has is never placed."""

    cost_bytes: NDArray[np.int64]  # of a resident copy, KV included
    kv_bytes: NDArray[np.int64]
    piece_bytes: NDArray[np.int64]  # largest piece while streamed
    rank: NDArray[np.int64]  # position in CLASS_ORDER; len(CLASS_ORDER): never on the device
    order: NDArray[np.int64]  # all indices, the most worth keeping first

    @classmethod
    def of(cls, model: ModelFacts) -> Table:
        count = 1 + max((sub.index for sub in model.sublayers), default=-1)
        cost, kv, piece, layer = (np.zeros(count, dtype=np.int64) for _ in range(4))
        rank = np.full(count, len(CLASS_ORDER), dtype=np.int64)
        for sub in model.sublayers:
            cost[sub.index] = max(0, sub.device_bytes) + max(0, sub.kv_bytes)
            kv[sub.index] = max(0, sub.kv_bytes)
            piece[sub.index] = sub.largest_piece_bytes or sub.device_bytes
            layer[sub.index] = sub.layer
            if sub.kind in CLASS_ORDER:
                rank[sub.index] = CLASS_ORDER.index(sub.kind)
        order = np.lexsort((np.arange(count), layer, rank))
        return cls(cost, kv, piece, rank, order)

    @property
    def small(self) -> NDArray[np.bool_]:
        return np.equal(self.rank, 0)

    @property
    def placeable(self) -> NDArray[np.bool_]:
        """May run on the device (the small group and host look-ups are no units of their own)."""
        return np.logical_and(self.rank > 0, self.rank < len(CLASS_ORDER))

    def bytes_of(self, chosen: NDArray[np.bool_]) -> int:
        return int(self.cost_bytes[chosen].sum())


def minimum_device_bytes(model: ModelFacts, ring_pieces: int = 0) -> int:
    """The smallest budget with which one sub-layer runs on the device in single-token steps; 0 if none ever can.

    ``ring_pieces``: how many of its pieces a ring has to take for its weights to be streamed; 0: they never are then.
    """
    table = Table.of(model)
    if not table.placeable.any():
        return 0
    streamed = table.kv_bytes + ring_pieces * table.piece_bytes
    needs = np.minimum(table.cost_bytes, streamed) if ring_pieces else table.cost_bytes
    cheapest = int(needs[table.placeable].min())
    return scratch_bytes(model, 1) + table.bytes_of(table.small) + cheapest


def unified_demand(model: ModelFacts) -> int:
    """The budget with which everything that can be on the device is resident, for every step size."""
    table = Table.of(model)
    return scratch_bytes(model, max(1, model.n_ubatch)) + table.bytes_of(table.small | table.placeable)
