"""Which sequences the next step computes. Pure.

``exact``: a step holds one sequence, so no answer depends, in its last bits,
on who else speaks. On the CPU this costs nothing (measured: a step of two
sequences takes as long as two steps). ``throughput``: all decoding sequences
share a step, for real GPUs, where a step's time is that of reading the
weights; given text is still computed one sequence at a time, in turn with the
decode steps, so a long prompt never stalls those who speak.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Batching = Literal["exact", "throughput"]


@dataclass(frozen=True, slots=True)
class Ready:
    """A sequence that has tokens to compute. ``n_tokens`` of its next step; ``turn`` grows each time it was served."""

    seq_id: int
    n_tokens: int
    turn: int
    priority: int = 0


@dataclass(slots=True)
class Policy:
    batching: Batching = "exact"
    n_ubatch: int = 64

    def next_step(self, ready: Sequence[Ready]) -> list[Ready]:
        """The sequences of the next step; never more than n_ubatch tokens. Empty: nothing is ready."""
        if not ready:
            return []
        first = min(ready, key=lambda r: (r.turn, -r.priority, r.seq_id))
        if self.batching == "exact" or first.n_tokens > 1:
            return [first]
        return self._neighbours(first, {r.seq_id: r for r in ready if r.n_tokens == 1})

    def _neighbours(self, first: Ready, decoding: dict[int, Ready]) -> list[Ready]:
        """Sequences with consecutive ids around ``first``: llama.cpp makes one ubatch of exactly those."""
        low = first.seq_id
        while low - 1 in decoding:
            low -= 1
        high = first.seq_id
        while high + 1 in decoding:
            high += 1
        return [decoding[seq_id] for seq_id in range(low, high + 1)][: self.n_ubatch]
