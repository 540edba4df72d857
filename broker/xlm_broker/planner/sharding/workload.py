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


def tier_of(tokens: int, tiers: Sequence[int]) -> int:
    """The smallest tier that takes so many tokens; the last takes more."""
    return next((t for t, most in enumerate(tiers) if tokens <= most), len(tiers) - 1)


def prompt_steps(workload: Workload, tiers: Sequence[int]) -> list[tuple[int, int, float]]:
    """(tier, how many, their mean depth) of a request's prompt: full steps of the largest tier, one for the rest."""
    full, rest = divmod(workload.prompt_tokens, tiers[-1])
    steps = [(len(tiers) - 1, full, workload.depth + tiers[-1] * (full - 1) / 2)] if full else []
    if rest:  # costed as a whole step of its tier: an upper estimate
        steps.append((tier_of(rest, tiers), 1, workload.depth + float(tiers[-1] * full)))
    return steps


def tier_points(workload: Workload, tiers: Sequence[int]) -> list[TierPoint]:
    """At which depth each tier is costed: steps of the prompt at their own, all others at the answer's, where later
    turns and conversations that answer together are."""
    counts, sums = prefill_weights(workload, tiers), np.zeros(len(tiers))
    for tier, count, depth in prompt_steps(workload, tiers):
        sums[tier] += count * depth
    counts[tier_of(workload.decode_width, tiers)] = 0.0
    return [
        TierPoint(tokens, float(total / count) if count else workload.decode_depth)
        for tokens, count, total in zip(tiers, counts, sums, strict=True)
    ]


def decode_weights(workload: Workload, tiers: Sequence[int]) -> FloatArray:
    """[tier] decode steps for one request."""
    weights = np.zeros(len(tiers))
    weights[tier_of(workload.decode_width, tiers)] = workload.decode_tokens / workload.decode_width
    return weights


def prefill_weights(workload: Workload, tiers: Sequence[int]) -> FloatArray:
    """[tier] prompt steps of one request."""
    weights = np.zeros(len(tiers))
    for tier, count, _ in prompt_steps(workload, tiers):
        weights[tier] += count
    return weights
