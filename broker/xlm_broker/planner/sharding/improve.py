"""Local search around a plan: other modes for a tier's sub-layers, exchanges between the resident set and the rest.

Steepest descent over simulated neighbours; stops where none is better or the effort is used up. Small models are
searched over all single and paired changes, large ones over a sample spread evenly over their depth.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from .costs import CPU, EVERYTHING, KV, NOTHING, RESIDENT
from .orders import TierOrders
from .pipeline import IntArray, ModeArray
from .problem import SMALL_UNITS, Solution, StateArray, Task, kept_bytes, rings_for, simulate, stream_mode
from .streaming import Streaming

POLISHED = 6  # exchanges that are followed up although they are no better as they are
MIN_GAIN = 1e-6  # share of the objective that is worth a change
ROUNDING = 1e-12  # share of a time; of modes that differ by less the first ones are taken


_Chosen = dict[int, tuple[float, NDArray[np.uint8]]]  # tier -> time and modes


@dataclass(frozen=True)
class _Exchange:
    state: StateArray
    ring_bytes: int
    rows: tuple[tuple[int, NDArray[np.uint8]], ...]  # (tier, modes): alternatives


class Improver:
    """One descent of at most about ``rows`` simulated steps. The reach stays; the ring gets what the set leaves.

    ``orders``: of the weighted tiers. ``run`` may be called once.
    """

    def __init__(self, task: Task, start: Solution, orders: TierOrders, rows: int) -> None:
        self._task = task
        self._orders = orders
        self._costs = task.costs
        self._state = start.state.copy()
        self._modes = start.modes.copy()
        self._times = start.times.copy()
        self._ring = start.ring_bytes
        self._reach = start.reach
        self.rows_left = rows
        self._small = task.costs.n_units <= SMALL_UNITS
        self._tiers = [int(t) for t in np.flatnonzero(task.weights > 0) if t < start.reach]

    def run(self, *, exchange: bool) -> Solution:
        while self.rows_left > 0:
            better = self._flip()
            if exchange:
                better = self._exchange(self._neighbours()) or better
                if not better and self._small:
                    better = self._exchange(self._far_neighbours())
            if not better:
                break
        return Solution(self._state, self._modes, self._ring, self._reach, self._times, self._objective, 0.0)

    @property
    def _objective(self) -> float:
        return float(self._times @ self._task.weights)

    def _time(self, rows: Sequence[tuple[int, NDArray[np.uint8]]], rings: Sequence[int]) -> NDArray[np.float64]:
        self.rows_left -= len(rows)
        tiers = np.array([tier for tier, _ in rows], dtype=np.int64)
        return simulate(self._costs, tiers, np.array([modes for _, modes in rows]), np.array(rings))

    # -- modes of a tier ------------------------------------------------------------

    def _flip(self) -> bool:
        """The best change of mode in each tier, all tiers at once."""
        rows = [(tier, modes) for tier in self._tiers for modes in self._flips(tier)]
        if not rows:
            return False
        times, better = self._time(rows, [self._ring] * len(rows)), False
        for (tier, modes), time in zip(rows, times, strict=True):
            if time < self._times[tier] * (1 - MIN_GAIN):
                self._times[tier], self._modes[tier], better = time, modes, True
        return better

    def _flips(self, tier: int) -> Iterator[NDArray[np.uint8]]:
        other = self._other_modes(tier)
        changeable = np.flatnonzero(other != self._modes[tier])
        limit = max(4, self.rows_left // (4 * max(1, len(self._tiers))))
        changes: list[tuple[int, ...]] = [(int(i),) for i in _sample(changeable, limit)]
        if self._small:
            changes += [(int(a), int(b)) for a, b in combinations(changeable, 2)]
        for change in changes:
            modes = self._modes[tier].copy()
            modes[list(change)] = other[list(change)]
            yield modes

    def _other_modes(self, tier: int) -> NDArray[np.uint8]:
        """[unit] the alternative to the present mode: the device for a CPU unit and the reverse; else the same."""
        streamed = stream_mode(self._costs, self._state, self._ring)
        device = np.where(self._state == EVERYTHING, RESIDENT, streamed)
        return np.where(self._modes[tier] == CPU, device, CPU).astype(np.uint8)

    # -- the resident set ------------------------------------------------------------

    def _exchange(self, states: Iterable[StateArray]) -> bool:
        """The best change of the resident set to one that fits."""
        every = np.array([*states, self._state])[:-1]  # of its shape, even if there are none
        exchanges = self._prepared(every[kept_bytes(self._costs, every) <= self._task.room(self._reach)])
        rows = [row for exchange in exchanges for row in exchange.rows]
        if not rows:
            return False
        rings = [exchange.ring_bytes for exchange in exchanges for _ in exchange.rows]
        times, at = self._time(rows, rings), 0
        found: list[tuple[float, _Exchange, _Chosen]] = []
        for exchange in exchanges:
            chosen = _fastest(exchange.rows, times[at : at + len(exchange.rows)])
            at += len(exchange.rows)
            found.append((self._with(chosen), exchange, chosen))
        found.sort(key=lambda entry: float(f"{entry[0]:.11e}"))  # the first of those that differ by rounding alone
        return self._take(found)

    def _take(self, found: Sequence[tuple[float, _Exchange, _Chosen]]) -> bool:
        """The best if it is better; in small models also the next best ones, once their modes are improved."""
        before = (self._state, self._modes.copy(), self._times.copy(), self._ring)
        goal = self._objective * (1 - MIN_GAIN)
        for objective, exchange, chosen in found[: POLISHED if self._small else 1]:
            self._accept(exchange, chosen)
            while objective >= goal and self.rows_left > 0 and self._flip():
                pass
            if self._objective < goal:
                return True
            self._state, self._modes, self._times, self._ring = before[0], before[1].copy(), before[2].copy(), before[3]
        return False

    def _with(self, chosen: _Chosen) -> float:
        times = self._times.copy()
        for tier, (time, _) in chosen.items():
            times[tier] = time
        return float(times @ self._task.weights)

    def _accept(self, exchange: _Exchange, chosen: _Chosen) -> None:
        self._state, self._ring = exchange.state, exchange.ring_bytes
        for tier, (time, modes) in chosen.items():
            self._times[tier], self._modes[tier] = time, modes

    def _prepared(self, every: StateArray) -> list[_Exchange]:
        """What each tier could do with each of the states, starting from what it does now, and afresh."""
        if not len(every) or not self._tiers:
            return []
        rings = rings_for(self._task, every, self._reach)
        streamed = stream_mode(self._costs, every, rings)
        devices, afresh = np.where(every == EVERYTHING, np.uint8(RESIDENT), streamed), self._afresh(every, streamed)
        kept = np.where(self._modes[self._tiers] == CPU, np.uint8(CPU), devices[:, None])  # [state, tier, unit]
        found = []
        for state, ring, device, of_tiers in zip(every, rings.tolist(), devices, kept, strict=True):
            changed, rows = np.flatnonzero(state != self._state), []
            for tier, modes in zip(self._tiers, of_tiers, strict=True):
                rows += [(tier, other) for other in (*_alternatives(modes, device, changed), *next(afresh))]
            found.append(_Exchange(state, ring, tuple(rows)))
        return found

    def _afresh(self, states: StateArray, streamed: ModeArray) -> Iterator[ModeArray]:
        """[row, unit] for each state and tier."""
        sets = np.repeat(np.arange(len(states)), len(self._tiers))
        tiers = np.tile(np.array(self._tiers, dtype=np.int64), len(states))
        plan = Streaming(self._costs, self._orders, states, streamed, sets, tiers)
        counts = [plan.counts(case, 1 if self._small else 0) for case in range(len(sets))]
        lengths = np.array([len(of_one) for of_one in counts])
        rows = plan.rows(np.repeat(np.arange(len(sets)), lengths), np.concatenate(counts))
        return iter(np.split(rows, np.cumsum(lengths)[:-1]))

    def _neighbours(self) -> Iterator[StateArray]:
        """One unit more or less, or one in the place of another."""
        limit = max(4, self.rows_left // (4 * max(1, len(self._tiers))))
        grown, shrunk = self._changes(up=True), self._changes(up=False)
        for one in _spread(np.concatenate([grown, shrunk]), limit):
            yield from self._changed((one,))
        side = limit if self._small else max(2, isqrt(limit))
        for pair in product(_spread(shrunk, side), _spread(grown, side)):
            yield from self._changed(pair)

    def _far_neighbours(self) -> Iterator[StateArray]:
        """One unit in the place of two, or two in the place of one; no more than the effort allows."""
        grown, shrunk = self._changes(up=True).tolist(), self._changes(up=False).tolist()
        changes = [(down, *two) for down, two in product(shrunk, combinations(grown, 2))]
        changes += [(*two, up) for two, up in product(combinations(shrunk, 2), grown)]
        limit = self.rows_left // (4 * max(1, len(self._tiers)))
        for i in _sample(np.arange(len(changes)), max(0, limit)):
            yield from self._changed(changes[i])

    def _changes(self, *, up: bool) -> IntArray:
        """[change, (unit, new state)] one way."""
        states, now = np.array([NOTHING, KV, EVERYTHING]), self._state[:, None]
        able = (states != KV) | (self._costs.kv_bytes[:, None] > 0)
        return np.argwhere(able & (states > now if up else states < now))

    def _changed(self, changes: Sequence[tuple[int, int]]) -> Iterator[StateArray]:
        """Nothing where a unit is named twice."""
        if len({unit for unit, _ in changes}) == len(changes):
            state = self._state.copy()
            for unit, new in changes:
                state[unit] = new
            yield state


def _alternatives(
    kept: NDArray[np.uint8], device: NDArray[np.uint8], changed: NDArray[np.int64]
) -> list[NDArray[np.uint8]]:
    """The changed units on the device where they can be, or only where they are resident."""
    placed, there = kept.copy(), device[changed]
    placed[changed] = there
    if ((there == RESIDENT) | (there == CPU)).all():
        return [placed]
    hosted = kept.copy()
    hosted[changed] = np.where(there == RESIDENT, RESIDENT, CPU)
    return [placed, hosted]


def _fastest(rows: Sequence[tuple[int, NDArray[np.uint8]]], times: NDArray[np.float64]) -> _Chosen:
    best: _Chosen = {}
    for (tier, modes), time in zip(rows, times.tolist(), strict=True):
        if tier not in best or time < best[tier][0] * (1 - ROUNDING):
            best[tier] = (time, modes)
    return best


def _sample(values: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    if len(values) <= limit:
        return values
    return values[np.linspace(0, len(values) - 1, limit).astype(np.int64)]


def _spread(changes: IntArray, limit: int) -> list[tuple[int, int]]:
    return [(unit, new) for unit, new in changes[_sample(np.arange(len(changes)), limit)].tolist()]
