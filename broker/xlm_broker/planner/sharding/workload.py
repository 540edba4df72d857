"""The expected mix of work, as weights of token tiers: what a plan is best for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .costs import FloatArray, TierPoint

Objective = Literal["interactive", "throughput"]

DECODE_TOKENS = 128
PROMPT_TOKENS = 512
THROUGHPUT_BATCH = 4  # requests that decode together


@dataclass(frozen=True, slots=True)
class Workload:
    """One request: a prompt, then an answer; ``depth`` positions are in the cache before.

    interactive: time to the first token + ``decode_tokens`` x time of a token, one request at a time.
    throughput: the same work with ``batch`` requests decoding in one step.
    """

    prompt_tokens: int = PROMPT_TOKENS
    decode_tokens: int = DECODE_TOKENS
    depth: int = 0
    objective: Objective = "interactive"
    batch: int = THROUGHPUT_BATCH

    @property
    def decode_width(self) -> int:
        """Tokens in a decode step."""
        return self.batch if self.objective == "throughput" else 1

    @property
    def decode_depth(self) -> float:
        return self.depth + self.prompt_tokens + self.decode_tokens / 2

    def prefill_depth(self, n_ubatch: int) -> float:
        """Mean depth before a prompt step."""
        return self.depth + max(0, self.prompt_tokens - n_ubatch) / 2


def tier_of(tokens: int, tiers: Sequence[int]) -> int:
    """The smallest tier that takes so many tokens; the last takes more."""
    return next((t for t, most in enumerate(tiers) if tokens <= most), len(tiers) - 1)


def tier_points(workload: Workload, tiers: Sequence[int]) -> list[TierPoint]:
    """At which depth each tier is costed: decode steps at the answer's, larger ones at the prompt's."""
    decode, prefill = workload.decode_depth, workload.prefill_depth(tiers[-1])
    return [TierPoint(tokens, decode if tokens <= workload.decode_width else prefill) for tokens in tiers]


def decode_weights(workload: Workload, tiers: Sequence[int]) -> FloatArray:
    """[tier] decode steps for one request."""
    weights = np.zeros(len(tiers))
    weights[tier_of(workload.decode_width, tiers)] = workload.decode_tokens / workload.decode_width
    return weights


def prefill_weights(workload: Workload, tiers: Sequence[int]) -> FloatArray:
    """[tier] prompt steps of one request: full ones of the largest tier, and one for the rest."""
    weights = np.zeros(len(tiers))
    full, rest = divmod(workload.prompt_tokens, tiers[-1])
    weights[-1] += full
    if rest:  # costed as a whole step of its tier: an upper estimate
        weights[tier_of(rest, tiers)] += 1.0
    return weights
