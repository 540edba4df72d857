"""Which sub-layers a tier streams: in order of time saved per uploaded byte, evenly spread over the model's depth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .costs import CPU, EVERYTHING, RESIDENT, STREAM, STREAM_KV, Costs, FloatArray
from .pipeline import IntArray
from .problem import StateArray, stream_mode


@dataclass(frozen=True)
class TierOrder:
    """All (unit, mode) pairs that could be streamed in a tier, the most saving per byte first."""

    tier: int
    unit: IntArray
    mode: NDArray[np.uint8]
    rank: IntArray  # equal for pairs of equal worth
    gain: FloatArray
    upload: FloatArray
    resident_gain: FloatArray  # [unit]
    chain: float  # everything on the CPU
    lost: float  # share of CPU time that a busy link costs

    @classmethod
    def of(cls, costs: Costs, tier: int) -> TierOrder:
        compute = costs.compute[tier]
        unit = np.tile(np.arange(costs.n_units), 2)
        mode = np.repeat(np.array([STREAM, STREAM_KV], dtype=np.uint8), costs.n_units)
        gain, upload = compute[CPU, unit] - compute[mode, unit], costs.upload[tier, mode, unit]
        ratio = gain / np.maximum(upload, 1.0)
        worth = np.round(ratio / max(1e-30, float(ratio.max(initial=0.0))), 9)
        order = np.argsort(-worth, kind="stable")
        order = order[gain[order] > 0]
        slow = float((costs.busy[tier, CPU] / np.maximum(compute[CPU], 1e-9)).mean()) if costs.n_units else 1.0
        return cls(
            tier, unit[order], mode[order], np.searchsorted(-worth[order], -worth[order]), gain[order], upload[order],
            compute[CPU] - compute[RESIDENT], float(compute[CPU].sum()) + costs.step, 1.0 - 1.0 / max(slow, 1.0),
        )  # fmt: skip


@dataclass(frozen=True)
class Streaming:
    """For one resident set: what the tier would stream first, and its estimated time with the first k of it.

    ``rank``: of each position in ``order``; within an equal rank any choice is as good by the estimate.
    """

    base: NDArray[np.uint8]
    mode: NDArray[np.uint8]
    order: IntArray
    rank: IntArray
    times: FloatArray

    def counts(self, steps: int = 4) -> list[int]:
        """Counts worth trying: at the estimated crossing of chain and link and beside it; with the default, all too.

        Beside: ``steps`` further ones on both sides, at growing distance.
        """
        most, middle = len(self.order), int(np.argmin(self.times))
        near = {middle} | {middle + sign * (1 << step) for sign in (-1, 1) for step in range(steps)}
        return sorted(count for count in near | ({0, most} if steps > 1 else set()) if 0 <= count <= most)

    def row(self, count: int) -> NDArray[np.uint8]:
        """[unit] modes with ``count`` sub-layers streamed."""
        modes = self.base.copy()
        chosen = self._chosen(count)
        modes[chosen] = self.mode[chosen]
        return modes

    def _chosen(self, count: int) -> IntArray:
        if count == 0:
            return self.order[:0]
        same = self.rank == self.rank[count - 1]
        start = int(np.argmax(same))
        equals, wanted = np.sort(self.order[same]), count - start
        # the last of each of ``wanted`` equal blocks: the link has a whole block's time before the first is needed
        even = equals[np.arange(1, wanted + 1) * len(equals) // wanted - 1]
        return np.concatenate([self.order[:start], even])


def streaming(costs: Costs, order: TierOrder, state: StateArray, ring_bytes: int) -> Streaming:
    """Estimates with an endless ring and no hops: max(chain, link), as relax.py has it."""
    mode = stream_mode(costs, state, ring_bytes)
    resident = state == EVERYTHING
    base = np.where(resident, RESIDENT, CPU).astype(np.uint8)
    usable = np.flatnonzero(mode[order.unit] == order.mode)
    gain, link = _cumulated(order.gain[usable]), _cumulated(order.upload[usable])
    chain = order.chain - float(order.resident_gain[resident].sum()) - gain
    host = float(costs.compute[order.tier, CPU][~resident].sum()) - gain
    times = np.maximum(chain + order.lost * np.minimum(link, np.maximum(host, 0.0)), link + costs.step)
    return Streaming(base, mode, order.unit[usable], order.rank[usable], times)


def _cumulated(values: FloatArray) -> FloatArray:
    return np.concatenate([[0.0], np.cumsum(values)])
