"""Which sub-layers a tier streams: in order of time saved per uploaded byte, evenly spread over the model's depth.

For many resident sets and tiers at once: a *case* is one of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .costs import CPU, EVERYTHING, RESIDENT, STREAM, STREAM_KV, Costs, FloatArray
from .pipeline import IntArray, ModeArray, hop_times
from .problem import StateArray, stream_mode

_NEVER = 255  # mode of a pair that saves nothing


@dataclass(frozen=True)
class TierOrders:
    """Of each tier all (unit, mode) pairs that could be streamed, the most saving per byte first: [tier, pair]."""

    unit: IntArray
    mode: ModeArray
    first: IntArray  # of the pairs of equal worth
    last: IntArray
    even_unit: IntArray  # the same pairs, those of equal worth by unit
    even_mode: ModeArray
    gain: FloatArray
    upload: FloatArray
    resident_gain: FloatArray  # [tier, unit]
    cpu: FloatArray  # [tier, unit]
    chain: FloatArray  # [tier] everything on the CPU
    lost: FloatArray  # [tier] share of CPU time that a busy link costs

    @classmethod
    def of(cls, costs: Costs) -> TierOrders:
        compute = costs.compute
        cpu, busy = (np.ascontiguousarray(a[:, CPU]) for a in (compute, costs.busy))
        cached = np.flatnonzero(costs.kv_bytes > 0)
        unit = np.concatenate([np.arange(costs.n_units), cached])
        mode = np.repeat(np.array([STREAM, STREAM_KV], dtype=np.uint8), [costs.n_units, len(cached)])
        gain, upload = cpu[:, unit] - compute[:, mode, unit], costs.upload[:, mode, unit]
        ratio = gain / np.maximum(upload, 1.0)
        worth = np.round(ratio / np.maximum(1e-30, ratio.max(axis=1, initial=0.0, keepdims=True)), 9)
        order = np.argsort(-worth, axis=1, kind="stable")
        gain, upload, worth = (np.take_along_axis(a, order, 1) for a in (gain, upload, worth))
        unit, mode = unit[order], np.where(gain > 0, mode[order], _NEVER).astype(np.uint8)
        first, last = _equals(worth)
        even = np.lexsort((unit, first))
        slow = busy / np.maximum(cpu, 1e-9)
        mean = slow.mean(axis=1) if costs.n_units else np.ones(costs.n_tiers)
        return cls(
            unit, mode, first, last, np.take_along_axis(unit, even, 1), np.take_along_axis(mode, even, 1),
            gain, upload, cpu - compute[:, RESIDENT], cpu, cpu.sum(axis=1) + costs.step, 1 - 1 / np.maximum(mean, 1.0),
        )  # fmt: skip


def _equals(worth: FloatArray) -> tuple[IntArray, IntArray]:
    """[tier, pair] where the pairs of its worth begin and end; ``worth`` is sorted."""
    n = worth.shape[1]
    change, here = worth[:, 1:] != worth[:, :-1], np.broadcast_to(np.arange(n), worth.shape)
    edge = np.ones((len(worth), min(n, 1)), dtype=bool)
    first = np.where(np.concatenate([edge, change], axis=1), here, 0)
    last = np.where(np.concatenate([change, edge], axis=1), here, n - 1)
    return np.maximum.accumulate(first, axis=1), np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1]


class Streaming:
    """What each case would stream first, and its estimated time with the first k pairs of the order, as far as its set
    allows them: with an endless ring and no hops, max(chain, link), as relax.py has it.

    ``states`` [set, unit], ``rings`` [set] bytes; ``sets``, ``tiers`` [case].
    """

    def __init__(
        self, costs: Costs, orders: TierOrders, states: StateArray, rings: IntArray, sets: IntArray, tiers: IntArray
    ) -> None:
        self.sets, self.tiers = sets, tiers
        self._costs, self._orders = costs, orders
        self._resident, self._mode = (states == EVERYTHING)[sets], stream_mode(costs, states, rings)[sets]
        usable = self._able(orders.unit, orders.mode)
        gain, link = (_cumulated(np.where(usable, a[tiers], 0.0)) for a in (orders.gain, orders.upload))
        kept = _sums(orders.resident_gain[tiers], self._resident)[:, None]
        host = _sums(orders.cpu[tiers], ~self._resident)[:, None] - gain
        chain, lost = orders.chain[tiers, None] - kept - gain, orders.lost[tiers, None]
        times = np.maximum(chain + lost * np.minimum(link, np.maximum(host, 0.0)), link + costs.step)
        best = np.argmin(times, axis=1)
        self.least = np.take_along_axis(times, best[:, None], 1)[:, 0]  # [case] ns at the estimated crossing
        number = _cumulated(usable)
        self._most, self._best = number[:, -1], np.take_along_axis(number, best[:, None], 1)[:, 0]

    def _able(self, unit: IntArray, mode: ModeArray) -> NDArray[np.bool_]:
        """[case, pair] whether the case's set and ring allow it."""
        return np.asarray(np.take_along_axis(self._mode, unit[self.tiers], 1) == mode[self.tiers])

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
        tier, able, number = self.tiers[case], self._even[0][case], self._even[1][case]
        border = np.argmax(number >= count[:, None], axis=1)  # the pair with which there are enough
        first, last = self._orders.first[tier, border], self._orders.last[tier, border]
        rows = np.arange(len(case))
        before = np.where(first > 0, number[rows, first - 1], 0)
        equals, wanted = number[rows, last] - before, count - before
        row, pair = np.nonzero(able & (np.arange(able.shape[1]) <= last[:, None]))
        nth = number[row, pair] - before[row]
        block = -(-nth * wanted[row] // equals[row])
        chosen = np.flatnonzero((nth <= 0) | (block * equals[row] // wanted[row] == nth))
        return row[chosen], self._orders.even_unit[tier[row[chosen]], pair[chosen]]

    @cached_property
    def _even(self) -> tuple[NDArray[np.bool_], IntArray]:
        """[case, pair] with equals by unit: whether usable, and how many are up to there."""
        able = self._able(self._orders.even_unit, self._orders.even_mode)
        return able, np.cumsum(able, axis=1)


def _sums(values: FloatArray, marked: NDArray[np.bool_]) -> FloatArray:
    """[case] sum of the marked ones alone, in the order and precision of a sum over just them."""
    zero = np.zeros((len(values), 1))
    chosen = np.concatenate([zero == 0, marked], axis=1)
    starts = np.cumsum(chosen.sum(axis=1)) - chosen.sum(axis=1)
    return np.add.reduceat(np.concatenate([zero, values], axis=1)[chosen], starts)


def _cumulated(values: NDArray[Any]) -> NDArray[Any]:
    """[case, 0 to n] sums of the first so many."""
    return np.cumsum(np.concatenate([np.zeros((len(values), 1), dtype=values.dtype), values], axis=1), axis=1)
