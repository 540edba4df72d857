"""The optimum for models of a few sub-layers, by branch and bound over resident sets.

What a set can reach at best is bounded tier by tier as in relax.py: for fixed multipliers of chain, link and shared
memory the cheapest assignment is a shortest path over the sub-layers, hops between CPU and device included and with
no more streamed than the set's ring allows; the best of a few multipliers counts. Sets are simulated exactly (all
assignments) in order of that bound until it comes within ``TOLERANCE`` of the best plan known, or the effort is used
up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .costs import CPU, EVERYTHING, KV, NOTHING, RESIDENT, STREAM, STREAM_KV, Costs, FloatArray
from .pipeline import IntArray, ModeArray
from .problem import Solution, StateArray, Task, on_cpu, ring_for, simulate, stream_mode

MAX_UNITS: Final = 12
TOLERANCE: Final = 0.004  # of the objective: what is left to be gained when the search ends by itself
SETS_EFFORT: Final = 150  # one set is simulated exactly for so much of the effort
MAX_LATTICE: Final = 150_000  # resident sets; beyond it the search is left to improve.py
MAX_RINGS: Final = 6  # classes of sets by what their ring can take
# multipliers of link and shared memory; the chain has the rest
_TRIALS: Final = (
    (0.0, 0.0), (0.15, 0.0), (0.3, 0.0), (0.45, 0.0), (0.6, 0.0), (0.8, 0.0), (1.0, 0.0), (0.0, 0.5), (0.25, 0.5),
    (0.0, 1.0),
)  # fmt: skip


def improve_exactly(task: Task, known: Solution, reaches: Sequence[int]) -> Solution:
    """``known`` or a better plan for the weighted tiers: within ``TOLERANCE`` of the optimum, or the best found."""
    tiers = [int(t) for t in np.flatnonzero(task.weights > 0)]
    lattice = _Lattice.of(task.costs)
    if lattice is None:
        return known
    host, best, sets = on_cpu(task), known, max(1, task.effort // SETS_EFFORT)
    bounds = [lattice.bounds(task, host, reach, tiers) for reach in reaches]
    order = sorted((float(b[i]), r, int(i)) for r, b in enumerate(bounds) for i in np.argsort(b, kind="stable")[:sets])
    for bound, r, flat in order[:sets]:
        if bound >= best.objective * (1 - TOLERANCE) or task.enough():
            break
        found = _of_state(task, host, lattice.state(flat), reaches[r], tiers)
        best = found if found.objective < best.objective else best
    return best


@dataclass(frozen=True)
class _Lattice:
    """All resident sets, flattened over ``levels``: what each unit can keep (its cache only if it has one)."""

    levels: Sequence[IntArray]
    bytes: IntArray
    streamable: IntArray  # bytes of weights and cache that are not kept

    @classmethod
    def of(cls, costs: Costs) -> _Lattice | None:
        levels = [np.array([NOTHING, KV, EVERYTHING] if kv else [NOTHING, EVERYTHING]) for kv in costs.kv_bytes]
        if float(np.prod([float(len(level)) for level in levels])) > MAX_LATTICE:
            return None
        whole = costs.kv_bytes + costs.weight_bytes
        kept = np.stack([np.zeros_like(whole), costs.kv_bytes, whole])
        left = np.stack([whole, whole, np.zeros_like(whole)])
        return cls(levels, _sums(kept, levels), _sums(left, levels))

    def state(self, flat: int) -> StateArray:
        at = np.unravel_index(flat, [len(level) for level in self.levels])
        return np.array([level[i] for level, i in zip(self.levels, at, strict=True)], dtype=np.int8)

    def bounds(self, task: Task, host: Solution, reach: int, tiers: Sequence[int]) -> FloatArray:
        """[set] what it reaches at best; infinite for those that do not fit."""
        total = np.zeros(len(self.bytes))
        room = task.room(reach)
        ring = np.minimum(room - self.bytes, self.streamable)
        ring = ring if task.ring_bytes is None else np.full_like(ring, task.ring_bytes)
        fits = self.bytes <= room
        for tier in tiers:
            ns = self._tier(task.costs, tier, ring, fits) if tier < reach else host.times[tier]
            total += task.weights[tier] * ns
        return np.where(fits, total, np.inf)

    def _tier(self, costs: Costs, tier: int, ring: IntArray, fits: NDArray[np.bool_]) -> FloatArray:
        """By classes of rings: a set may stream what its class's largest ring can take."""
        best = np.zeros(len(ring))
        needs = np.unique(np.concatenate([costs.plain_ring_bytes, costs.kv_ring_bytes]))
        edges = needs[np.unique(np.linspace(0, len(needs) - 1, MAX_RINGS).astype(np.int64))]
        classes = np.searchsorted(edges, ring, side="right")
        for one in np.unique(classes[fits]):
            members = classes == one
            largest = int(ring[members & fits].max(initial=0))
            best[members] = _shortest(costs, tier, self.levels, largest)[members]
        return best


def _shortest(costs: Costs, tier: int, levels: Sequence[IntArray], ring_bytes: int) -> FloatArray:
    """[set] a lower bound of the tier's time: the best of the trials' shortest paths."""
    slow = costs.busy[tier, CPU] / np.maximum(costs.compute[tier, CPU], 1e-9)
    k = 1.0 - 1.0 / max(1.0, float(slow.min(initial=np.inf)))
    best: FloatArray | None = None
    for link, shared in _TRIALS:
        cpu = (1.0 - link) * costs.compute[tier, CPU]
        device = _device_costs(costs, tier, ring_bytes, 1.0 - link - shared * k, link + shared * k)
        path = _path(cpu, device, levels, costs.hop_up[tier], costs.hop_down[tier])
        best = path if best is None else np.maximum(best, path)
    assert best is not None
    return np.asarray(best + costs.step[tier], dtype=np.float64)


def _device_costs(costs: Costs, tier: int, ring_bytes: int, chain: float, price: float) -> FloatArray:
    """[level, unit] least cost on the device; infinite where it cannot be."""
    plain, with_kv = costs.plain_ring_bytes, costs.kv_ring_bytes
    compute, upload = costs.compute[tier], costs.upload[tier]
    stream = np.where(plain <= ring_bytes, chain * compute[STREAM] + price * upload[STREAM], np.inf)
    able = (with_kv <= ring_bytes) & costs.capabilities.kv_streaming
    with_cache = np.where(able, chain * compute[STREAM_KV] + price * upload[STREAM_KV], np.inf)
    nothing = np.where(costs.kv_bytes > 0, with_cache, stream)
    return np.stack([nothing, stream, chain * compute[RESIDENT]])


def _path(
    cpu: FloatArray, device: FloatArray, levels: Sequence[IntArray], up: FloatArray, down: FloatArray
) -> FloatArray:
    """[set] the shortest way through all units; it begins and ends on the CPU."""
    on_cpu_, on_device = np.zeros(1), np.full(1, np.inf)
    for unit, level in enumerate(levels):
        to_cpu = np.minimum(on_cpu_, on_device + down[unit]) + cpu[unit]
        to_device = np.minimum(on_device, on_cpu_ + up[unit])
        on_cpu_ = np.repeat(to_cpu, len(level))
        on_device = (to_device[:, None] + device[level, unit][None, :]).ravel()
    return np.asarray(np.minimum(on_cpu_, on_device + down[-1]), dtype=np.float64)


def _sums(values: IntArray, levels: Sequence[IntArray]) -> IntArray:
    """[set] sums over the units; ``values`` [level, unit]."""
    total = np.zeros(1, dtype=np.int64)
    for unit, level in enumerate(levels):
        total = (total[:, None] + values[level, unit][None, :]).ravel()
    return total


def _of_state(task: Task, host: Solution, state: StateArray, reach: int, tiers: Sequence[int]) -> Solution:
    """The best assignment of every weighted tier with this set."""
    ring = ring_for(task, state, reach)
    device = np.where(state == EVERYTHING, RESIDENT, stream_mode(task.costs, state, ring)).astype(np.uint8)
    rows = _subsets(device)
    times, modes = host.times.copy(), host.modes.copy()
    for tier in tiers:
        if tier < reach:
            found = simulate(task.costs, np.full(len(rows), tier), rows, ring)
            winner = int(np.argmin(found))
            times[tier], modes[tier] = found[winner], rows[winner]
    return Solution(state, modes, ring, reach, times, float(times @ task.weights), 0.0)


def _subsets(device: NDArray[np.uint8]) -> ModeArray:
    """Each unit that can be on the device there or on the CPU: all combinations."""
    able = np.flatnonzero(device != CPU)
    on = (np.arange(1 << len(able))[:, None] >> np.arange(len(able))) & 1
    rows = np.zeros((len(on), len(device)), dtype=np.uint8)
    rows[:, able] = np.where(on, device[able], CPU)
    return rows
