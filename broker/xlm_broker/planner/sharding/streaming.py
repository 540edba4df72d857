"""Which sub-layers a tier streams: in order of time saved per uploaded byte, evenly spread over the model's depth.

For many resident sets and tiers at once: a *case* is one of each.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .costs import CPU, EVERYTHING, RESIDENT, Costs, FloatArray
from .orders import TierOrders
from .pipeline import IntArray, ModeArray, hop_times
from .problem import StateArray


class Streaming:
    """What each case would stream first, and its estimated time with the first k pairs of the order, as far as its set
    allows them: with an endless ring and no hops, max(chain, link), as relax.py has it.

    ``states`` [set, unit]; ``modes`` [set, unit] as of ``stream_mode``; ``sets``, ``tiers`` [case].
    """

    def __init__(
        self, costs: Costs, orders: TierOrders, states: StateArray, modes: ModeArray, sets: IntArray, tiers: IntArray
    ) -> None:
        self.sets, self.tiers = sets, tiers
        self._costs, self._orders = costs, orders
        self._resident, self._mode = (states == EVERYTHING)[sets], modes[sets]
        usable = self._able(orders.unit, orders.mode)
        gain, link = (_cumulated(a[tiers] * usable) for a in (orders.gain, orders.upload))
        kept = _sums(orders.resident_gain[tiers], self._resident)[:, None]
        host = _sums(orders.cpu[tiers], ~self._resident)[:, None] - gain
        chain, lost = orders.chain[tiers, None] - kept - gain, orders.lost[tiers, None]
        times = np.maximum(chain + lost * np.minimum(link, np.maximum(host, 0.0)), link + costs.step[tiers, None])
        best, case = times.argmin(axis=1), np.arange(len(tiers))
        self.least = times[case, best]  # [case] ns at the estimated crossing
        self._number = _cumulated(usable)
        self._most, self._best = self._number[:, -1], self._number[case, best]

    def _able(self, unit: IntArray, mode: ModeArray) -> NDArray[np.bool_]:
        """[case, pair] whether the case's set and ring allow it."""
        at = unit[self.tiers]
        at += (np.arange(len(at)) * self._mode.shape[1])[:, None]
        return np.asarray(self._mode.take(at) == mode[self.tiers])

    def counts(self, case: int, steps: int = 4) -> list[int]:
        """Counts worth trying: at the estimated crossing of chain and link and beside it; with the default, all too.

        Beside: ``steps`` further ones on both sides, at growing distance.
        """
        most, middle = int(self._most[case]), int(self._best[case])
        near = {middle} | {middle + sign * (1 << step) for sign in (-1, 1) for step in range(steps)}
        return sorted(count for count in near | ({0, most} if steps > 1 else set()) if 0 <= count <= most)

    def hops(self) -> FloatArray:
        """[case] ns of activation hops at the estimated crossing."""
        return hop_times(self._costs, self.tiers, self.rows(np.arange(len(self.tiers)), self._best))

    def rows(self, case: IntArray, count: IntArray) -> ModeArray:
        """[row, unit] modes of the cases, with so many sub-layers streamed."""
        modes = np.where(self._resident[case], RESIDENT, CPU).astype(np.uint8)
        streaming = np.flatnonzero(count > 0)
        row, unit = self._chosen(case[streaming], count[streaming])
        row = streaming[row]
        modes[row, unit] = self._mode[case[row], unit]
        return modes

    def _chosen(self, case: IntArray, count: IntArray) -> tuple[IntArray, IntArray]:
        """(row, unit) of all that is streamed.

        Of equal worth the last of each of as many equal blocks: the link has a whole block's time before the first is
        needed.
        """
        pairs, start = self._even
        tier, start = self.tiers[case], start[case]
        border = pairs[start + count - 1]  # the pair with which there are enough
        before = self._number[case, self._orders.first[tier, border]]
        equals = self._number[case, self._orders.last[tier, border] + 1] - before
        row = np.repeat(np.arange(len(case)), count)
        nth = np.arange(len(row)) - (np.cumsum(count) - count)[row]
        block, before = nth + 1 - before[row], before[row]
        nth = np.where(block <= 0, nth, before - 1 + block * equals[row] // (count[row] - before))
        return row, self._orders.even_unit[tier[row], pairs[start[row] + nth]]

    @cached_property
    def _even(self) -> tuple[IntArray, IntArray]:
        """The usable pairs, equals by unit, one case after the other; and where each begins."""
        pairs = self._able(self._orders.even_unit, self._orders.even_mode).nonzero()[1]
        return pairs, np.cumsum(self._most) - self._most


def _sums(values: FloatArray, marked: NDArray[np.bool_]) -> FloatArray:
    """[case] sum of the marked ones alone, in the order and precision of a sum over just them."""
    zero = np.zeros((len(values), 1))
    chosen = np.concatenate([zero == 0, marked], axis=1)
    starts = np.cumsum(chosen.sum(axis=1)) - chosen.sum(axis=1)
    return np.add.reduceat(np.concatenate([zero, values], axis=1)[chosen], starts)


def _cumulated(values: NDArray[Any]) -> NDArray[Any]:
    """[case, 0 to n] sums of the first so many."""
    dtype = np.int64 if values.dtype == np.bool_ else values.dtype
    sums = np.zeros((len(values), values.shape[1] + 1), dtype=dtype)
    values.cumsum(axis=1, out=sums[:, 1:])
    return sums
