"""Finds one resident set for all tiers, and for each tier what is streamed and what the CPU computes.

    1. prices     the relaxation says what a byte of each sub-layer is worth while the others fit best
    2. proposals  resident sets filled in order of those prices and of simpler ones, for a few ring sizes
    3. streaming  for each set and tier: how many sub-layers, from the crossing of chain and link
    4. simulate   the most promising of them, exactly
    5. improve    exchanges between set and rest, single and paired changes of mode, as far as the effort goes

Deterministic. The effort is counted in simulated sub-layers, never in time.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import accumulate, chain, islice, pairwise

import numpy as np
from numpy.typing import NDArray

from .costs import CPU, EVERYTHING, KV, NOTHING, RESIDENT, STREAM, STREAM_KV, Costs, FloatArray
from .counts import counted_states
from .exact import MAX_UNITS, improve_exactly
from .improve import ROUNDING, Improver
from .orders import TierOrders
from .pipeline import IntArray
from .problem import (
    EFFORT,
    SMALL_UNITS,
    Solution,
    StateArray,
    Task,
    kept_bytes,
    on_cpu,
    rings_for,
    simulate,
    stream_mode,
)
from .relax import ROUNDS, Relaxation, relax
from .streaming import Streaming

MIN_REACH_SHARE = 0.15  # scratch below this share of the budget is no reason to do without a tier
FINALISTS = 3  # proposals that are simulated, at least
MAX_FINALISTS = 200
STARTS = 4  # share of the remaining effort that one start may use
MIN_ROWS = 500
FINALIST_ROWS = 13  # simulated steps of a finalist and tier, at most


@dataclass(frozen=True)
class _Proposal:
    """``spared``: what the resident set was to leave for the ring; ``ring_bytes``: what it left.

    ``with_caches``: whether it may stream them. ``cases``: of ``streaming``, one for each tier that uses the device.
    """

    state: StateArray
    spared: int
    ring_bytes: int
    reach: int
    with_caches: bool = True
    streaming: Streaming | None = field(default=None, repr=False)
    cases: tuple[int, ...] = ()

    def tried(self) -> list[tuple[int, int]]:
        """(case, streamed sub-layers) worth simulating."""
        plan = self.streaming
        return [(case, n) for case in self.cases for n in plan.counts(case)] if plan is not None else []


def search(task: Task, keep: StateArray | None = None) -> Solution:
    """The best plan found. ``keep``: only plans with exactly this resident state (for hysteresis).

    Never above the budget. All on the CPU where nothing fits, or where the device does not help.
    """
    best = on_cpu(task)
    orders = task.orders or TierOrders.of(task.costs)
    relaxed = {reach: _relaxed(task, reach) for reach in _reaches(task)}
    bound = min([best.objective, *(r.bound_ns for r in relaxed.values())])
    finalists = _finalists(task, orders, relaxed, keep)
    starts = _starts(task, finalists, _simulated(task, finalists))
    improved = _improved(task, starts, orders, exchange=keep is None)
    best = min([best, *improved], key=lambda s: s.objective)
    if keep is None and 0 < task.costs.n_units <= MAX_UNITS:
        best = improve_exactly(task, best, [r for r in range(1, task.costs.n_tiers + 1) if task.room(r) > 0])
    best = _all_tiers(task, orders, best)
    return replace(best, bound=min(bound, best.objective))


def _starts(task: Task, proposals: Sequence[_Proposal], found: Sequence[Solution]) -> list[Solution]:
    """Where to improve from, best first: of each reach and spared ring the best, then all others. In large models the
    best alone, and of those as good as it the one with the longest ring, with which other changes are near."""
    best: dict[tuple[int, int], Solution] = {}
    for proposal, solution in sorted(zip(proposals, found, strict=True), key=lambda pair: pair[1].objective):
        best.setdefault((proposal.reach, proposal.spared), solution)
    first = {id(solution) for solution in best.values()}
    if task.costs.n_units <= SMALL_UNITS:
        return [*best.values(), *sorted((s for s in found if id(s) not in first), key=lambda s: s.objective)]
    ordered = list(best.values())
    equal = [s for s in ordered[1:] if s.objective <= ordered[0].objective * (1 + ROUNDING)]
    return [*ordered[:1], *sorted(equal, key=lambda s: -s.ring_bytes)[:1]]


def _improved(task: Task, starts: Sequence[Solution], orders: TierOrders, *, exchange: bool) -> Iterator[Solution]:
    """One start after the other, the most promising first, until the effort is used up; in large models, where there
    are two at most, each with all of it."""
    rows = task.effort // (2 * max(1, task.costs.n_units))
    for start in starts:
        if rows > 0 and not task.enough():
            share = max(rows // STARTS, MIN_ROWS)
            improver = Improver(task, start, orders, min(rows, share))
            yield improver.run(exchange=exchange)
            if task.costs.n_units <= SMALL_UNITS:
                rows -= min(rows, share) - improver.rows_left


def _finalists(
    task: Task, orders: TierOrders, relaxed: Mapping[int, Relaxation], keep: StateArray | None
) -> list[_Proposal]:
    """The proposals of least estimate. Half of the effort goes into them."""
    rows = FINALIST_ROWS * max(1, int((task.weights > 0).sum()))
    count = max(FINALISTS, min(MAX_FINALISTS, task.effort // (2 * rows * max(1, task.costs.n_units))))
    both = task.costs.capabilities.kv_streaming and keep is None
    count = max(FINALISTS, count // 2) if both else count
    plain_orders = _plain_orders(task) if keep is None else []
    heard = [[p for reach, r in relaxed.items() for p in _proposals(task, reach, r, keep, plain_orders)]]
    if both:
        # streaming a cache makes keeping one look worthless by estimate; sets that do keep them get a hearing too
        plain = replace(task, costs=task.costs.without_kv_streaming)
        prices = {reach: _relaxed(plain, reach, rounds=2) for reach in relaxed}
        others = [_proposals(plain, reach, r, None, plain_orders, counted=False) for reach, r in prices.items()]
        heard.append(list(chain.from_iterable(others)))
    return _distinct(_least(task, orders, [_distinct(proposals) for proposals in heard], count))


def _least(task: Task, orders: TierOrders, heard: Sequence[list[_Proposal]], count: int) -> list[_Proposal]:
    """Those of least estimate of each hearing."""
    found = _streamed(task.costs, orders, list(chain.from_iterable(heard)), np.flatnonzero(task.weights > 0))
    estimates, ends = _estimates(task, orders, found), accumulate(len(proposals) for proposals in heard)
    places = [sorted(range(end - len(h), end), key=estimates.__getitem__) for h, end in zip(heard, ends, strict=True)]
    return [found[i] for order in places for i in order[:count]]


def _reaches(task: Task) -> list[int]:
    """The full reach; smaller ones only where scratch takes a noticeable part of the budget."""
    fitting = [reach for reach in range(1, task.costs.n_tiers + 1) if task.room(reach) > 0]
    if not fitting or task.scratch_bytes[fitting[-1] - 1] <= MIN_REACH_SHARE * task.budget_bytes:
        return fitting[-1:]
    weighted = set((np.flatnonzero(task.weights > 0) + 1).tolist())
    return [reach for reach in fitting if reach == fitting[-1] or reach in weighted]


def _relaxed(task: Task, reach: int, rounds: int = ROUNDS) -> Relaxation:
    """Prices and bound for a reach: the tiers beyond it run on the CPU."""
    within = np.where(np.arange(task.costs.n_tiers) < reach, task.weights, 0.0)
    relaxed = relax(task.costs, within, task.room(reach), rounds)
    on_host = (task.costs.compute[:, CPU].sum(axis=1) + task.costs.step) @ (task.weights - within)
    return replace(relaxed, bound_ns=relaxed.bound_ns + float(on_host))


# -- proposals -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Order:
    """Resident copies in the order in which they are worth keeping; ``extra``: bytes beyond those before it."""

    unit: IntArray
    state: NDArray[np.int8]
    extra: IntArray
    known: dict[int, StateArray] = field(default_factory=dict, compare=False, repr=False)  # by room

    @cached_property
    def _total(self) -> IntArray:
        return np.cumsum(self.extra)

    @cached_property
    def _runs(self) -> tuple[list[int], list[tuple[int, int, int]]]:
        """Copies of one size side by side: where each run ends; its end, bytes of each, and the least from there on."""
        ends = np.concatenate([np.flatnonzero(np.diff(self.extra)) + 1, [len(self.extra)]])
        each = self.extra[ends - 1]
        least = np.minimum.accumulate(each[::-1])[::-1]
        return ends.tolist(), list(zip(ends.tolist(), each.tolist(), least.tolist(), strict=True))

    def filled(self, n_units: int, room: int) -> StateArray:
        """Takes in order whatever still fits."""
        if room not in self.known:
            self.known[room] = self._filled(n_units, room)
        return self.known[room]

    def _filled(self, n_units: int, room: int) -> StateArray:
        state, begin = np.zeros(n_units, dtype=np.int8), int(self._total.searchsorted(room, side="right"))
        state[self.unit[:begin]] = self.state[:begin]  # a unit's cache comes before all of it
        if begin == len(self.unit):
            return state
        room -= int(self._total[begin - 1]) if begin else 0
        ends, runs = self._runs
        for end, each, least in runs[bisect_right(ends, begin) :]:
            if least > room:
                break
            if each <= room:
                taken = slice(begin, min(end, begin + room // each) if each else end)
                state[self.unit[taken]] = self.state[taken]
                room -= (taken.stop - begin) * each
            begin = end
        return state


def _proposals(
    task: Task, reach: int, relaxed: Relaxation, keep: StateArray | None, plain_orders: Sequence[_Order], *,
    counted: bool = True,
) -> list[_Proposal]:  # fmt: skip
    room, n_units = task.room(reach), task.costs.n_units
    states: list[tuple[StateArray, int]] = [] if keep is None else [(keep, 0)]
    if keep is None:
        rings = _ring_sizes(task, room)
        orders = [*_priced_orders(task.costs, relaxed), *plain_orders]
        states = [(order.filled(n_units, room - ring), ring) for order in orders for ring in rings]
        if counted:
            found = counted_states(task.costs, [room - ring for ring in rings], long=task.effort > EFFORT)
            states += [(state, rings[i]) for i, state in found]
    if not states:
        return []
    every = np.array([state for state, _ in states])
    fits, rings_left = kept_bytes(task.costs, every) <= room, rings_for(task, every, reach).tolist()
    zipped = zip(states, fits.tolist(), rings_left, strict=True)
    caches = task.costs.capabilities.kv_streaming
    return [_Proposal(state, spared, left, reach, caches) for (state, spared), fit, left in zipped if fit]


def _ring_sizes(task: Task, room: int) -> list[int]:
    """None; room for the pieces of each class; deeper ones, to look ahead over more CPU sub-layers."""
    costs, bound = task.costs, room
    if task.ring_bytes is not None:
        return [0]
    needs, with_kv = costs.ring_needs
    count = max(3, task.effort // (500 * max(1, costs.n_units)))
    rings = _few(np.unique(np.concatenate([needs, 2 * needs[-1:], 4 * needs[-1:]])), bound, count)
    if costs.capabilities.kv_streaming:
        rings += _few(with_kv, bound, count // 2)
    return [0, *sorted(set(rings))]


def _few(values: NDArray[np.int64], bound: int, count: int) -> list[int]:
    """At most ``count`` of the values within the bound, smallest and largest among them."""
    fitting = values[(values > 0) & (values <= bound)]
    if len(fitting) > count:
        fitting = fitting[np.unique(np.linspace(0, len(fitting) - 1, count).astype(np.int64))]
    return [int(value) for value in fitting]


def _priced_orders(costs: Costs, relaxed: Relaxation) -> Iterator[_Order]:
    """By the relaxation's prices, equals side by side or spread."""
    yield _by_price(costs, relaxed.saving, np.arange(costs.n_units)[::-1])
    yield _by_price(costs, relaxed.saving, _reversed_bits(costs.n_units))


def _plain_orders(task: Task) -> list[_Order]:
    """Whole layers; by the first tier's own gain."""
    costs, last_first = task.costs, np.arange(task.costs.n_units)[::-1]
    everything = np.full(costs.n_units, EVERYTHING, dtype=np.int8)
    found = [_Order(last_first, everything, (costs.weight_bytes + costs.kv_bytes)[last_first])]
    for tier in np.flatnonzero(task.weights > 0)[:1]:
        gain = costs.compute[tier, CPU] - costs.compute[tier, RESIDENT]
        found.append(_by_price(costs, np.stack([np.zeros_like(gain), gain]), last_first))
    return found


def _by_price(costs: Costs, saving: FloatArray, tie: NDArray[np.int64]) -> _Order:
    kv, whole = costs.kv_bytes, costs.kv_bytes + costs.weight_bytes
    ratio = saving / np.maximum(np.stack([kv, whole]), 1)
    first = (ratio[0] > ratio[1]) & (kv > 0)  # the cache alone, where it is worth more per byte than everything
    key = np.concatenate([np.where(first, ratio[0], -1.0), ratio[1]])
    extra = np.concatenate([kv, np.where(first, costs.weight_bytes, whole)])
    top = max(1e-30, float(key.max(initial=0.0)))
    order = np.lexsort((np.concatenate([tie, tie]), -np.round(key / top, 9)))
    order = order[key[order] > 0]
    n = costs.n_units
    return _Order(order % n, np.where(order < n, KV, EVERYTHING).astype(np.int8), extra[order])


@cache
def _reversed_bits(count: int) -> IntArray:
    """Van der Corput's sequence: every prefix of the resulting order is spread about evenly."""
    return np.array([int(f"{value:012b}"[::-1], 2) for value in range(count)], dtype=np.int64)


def _distinct(proposals: Iterable[_Proposal]) -> list[_Proposal]:
    seen: dict[tuple[bytes, int], _Proposal] = {}
    for p in proposals:
        seen.setdefault((p.state.tobytes(), p.reach), p)
    return list(seen.values())


# -- estimates and simulation ------------------------------------------------------------


def _streamed(costs: Costs, orders: TierOrders, proposals: Sequence[_Proposal], planned: IntArray) -> list[_Proposal]:
    """The same, and what each would stream in those tiers."""
    pairs = [(i, tier) for i, p in enumerate(proposals) for tier in planned.tolist() if tier < p.reach]
    if not pairs:
        return list(proposals)
    states, rings = np.array([p.state for p in proposals]), np.array([p.ring_bytes for p in proposals])
    modes = stream_mode(costs, states, rings)
    modes[(modes == STREAM_KV) & ~np.array([[p.with_caches] for p in proposals])] = CPU
    sets, tiers = np.array(pairs, dtype=np.int64).T
    plan, ends = Streaming(costs, orders, states, modes, sets, tiers), np.searchsorted(sets, np.arange(len(states) + 1))
    cases = [tuple(range(a, b)) for a, b in pairwise(ends.tolist())]
    return [replace(p, streaming=plan, cases=case) for p, case in zip(proposals, cases, strict=True)]


def _estimates(task: Task, orders: TierOrders, proposals: Sequence[_Proposal]) -> list[float]:
    """Of each proposal the expected work's time; tiers beyond its reach run on the CPU. All of one ``Streaming``."""
    times = np.tile(orders.chain, (len(proposals), 1))
    plan = proposals[0].streaming if proposals else None
    if plan is not None:
        times[plan.sets, plan.tiers] = plan.least + plan.hops()
    weighted = (times * task.weights).T[task.weights > 0]
    return [float(estimate) for estimate in sum(weighted, np.zeros(len(proposals)))]


def _simulated(task: Task, proposals: Sequence[_Proposal]) -> list[Solution]:
    """All proposals in one run of the pipeline; each with its best count of streamed sub-layers in every tier. All of
    one ``Streaming``."""
    host, tried = on_cpu(task), [p.tried() for p in proposals]
    plan = proposals[0].streaming if any(tried) else None
    if plan is None:
        return [host for _ in proposals]
    case, count = np.array(list(chain.from_iterable(tried)), dtype=np.int64).T
    tiers, modes = plan.tiers[case], plan.rows(case, count)
    rings = np.repeat([p.ring_bytes for p in proposals], [len(rows) for rows in tried])
    timed = zip(tiers.tolist(), modes, simulate(task.costs, tiers, modes, rings).tolist(), strict=True)
    return [_best_of(task, host, p, islice(timed, len(rows))) for p, rows in zip(proposals, tried, strict=True)]


def _best_of(
    task: Task, host: Solution, proposal: _Proposal, rows: Iterable[tuple[int, NDArray[np.uint8], float]]
) -> Solution:
    times, modes = host.times.copy(), host.modes.copy()
    for tier, mode, time in sorted(rows, key=lambda row: -row[2]):
        if time < times[tier]:
            times[tier], modes[tier] = time, mode
    objective = float(times @ task.weights)
    return Solution(proposal.state, modes, proposal.ring_bytes, proposal.reach, times, objective, 0.0)


def _all_tiers(task: Task, orders: TierOrders, best: Solution) -> Solution:
    """Plans the tiers that the expected work does not name too, with the resident set as it is."""
    others = np.flatnonzero(task.weights <= 0)
    others = others[others < best.reach]
    if not len(others):
        return _trimmed(task, best)
    proposal = _Proposal(best.state, 0, best.ring_bytes, best.reach)
    found = _simulated(task, _streamed(task.costs, orders, [proposal], others))
    chosen = np.where(task.weights > 0, best.times, found[0].times)
    modes = np.where(task.weights[:, None] > 0, best.modes, found[0].modes)
    return _trimmed(task, replace(best, times=chosen, modes=modes))


def _trimmed(task: Task, best: Solution) -> Solution:
    """No longer a ring than what is streamed in a step; nothing kept that no tier uses; no tier that uses nothing."""
    if not best.modes.any():
        return on_cpu(task)
    upload = np.take_along_axis(task.costs.upload, best.modes[:, None, :].astype(np.int64), axis=1)
    streamed = float(upload.sum(axis=(1, 2)).max(initial=0.0)) * task.costs.link_bytes_ns
    by_need = ((best.modes == STREAM) & (task.costs.upload[:, STREAM] == 0)).any(axis=0)  # experts: through a window
    streamed += float(task.costs.plain_ring_bytes[by_need].max(initial=0))
    plain, with_kv = ((best.modes == mode).any(axis=0) for mode in (STREAM, STREAM_KV))
    streamed = max(streamed, float(task.costs.plain_ring_bytes[plain].max(initial=0)))
    streamed = max(streamed, float(task.costs.ring_needs[1][-1]) if with_kv.any() else 0.0)
    unused = ((best.state == EVERYTHING) & ~(best.modes == RESIDENT).any(axis=0)) | (
        (best.state == KV) & ~(best.modes == STREAM).any(axis=0)
    )
    state = np.where(unused, NOTHING, best.state).astype(np.int8)
    reach = 1 + int(np.flatnonzero(best.modes.any(axis=1))[-1])
    return replace(best, state=state, ring_bytes=min(best.ring_bytes, math.ceil(streamed)), reach=reach)
