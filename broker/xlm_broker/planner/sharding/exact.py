"""The optimum for models of a few sub-layers, by branch and bound over resident sets.

A set's times with an endless ring, everything else free, bound what it can reach; sets are simulated exactly (all
assignments, the ring they leave) in order of that bound until it passes the best plan known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from .costs import CPU, EVERYTHING, KV, RESIDENT, Costs, FloatArray
from .pipeline import IntArray, ModeArray
from .problem import Solution, StateArray, Task, on_cpu, ring_for, simulate, stream_mode

MAX_UNITS = 8  # 3^8 resident sets
MAX_SETS = 1000  # simulated exactly, at most; beyond it the result is the best found
LISTED_UNITS = 12  # up to so many units the most promising sets are simulated with all assignments
LISTED_SETS = 12
ENDLESS_BYTES = 1 << 60


def improve_exactly(task: Task, known: Solution, reaches: Sequence[int]) -> Solution:
    """``known`` or a better plan for the weighted tiers; the optimum unless ``MAX_SETS`` was reached."""
    tiers = [int(t) for t in np.flatnonzero(task.weights > 0)]
    lattice = _Lattice.of(task.costs, tiers)
    host, best, sets = on_cpu(task), known, 0
    for reach in reaches:
        bounds = lattice.bounds(task, host, reach)
        for flat in np.argsort(bounds, kind="stable"):
            if bounds[flat] >= best.objective * (1 - 1e-9) or sets >= MAX_SETS:
                break
            sets += 1
            found = _of_state(task, host, lattice.state(int(flat)), reach, tiers)
            best = found if found.objective < best.objective else best
    return best


def improve_listed(task: Task, known: Solution, sets: Iterable[tuple[StateArray, int]]) -> Solution:
    """``known`` or better: the best assignment of each of the given (resident set, reach), the first few of them."""
    tiers = [int(t) for t in np.flatnonzero(task.weights > 0)]
    host = on_cpu(task)
    found = [_of_state(task, host, state, reach, tiers) for state, reach in islice(sets, LISTED_SETS)]
    return min([known, *found], key=lambda solution: solution.objective)


@dataclass(frozen=True)
class _Lattice:
    """All resident sets, as [3] * units flattened. ``times`` [tier]: the least with an endless ring."""

    n_units: int
    bytes: IntArray
    tiers: Sequence[int]
    times: Sequence[FloatArray]

    @classmethod
    def of(cls, costs: Costs, tiers: Sequence[int]) -> _Lattice:
        shape = (3,) * costs.n_units
        grid = np.indices(shape).reshape(costs.n_units, -1)
        total = (costs.kv_bytes @ (grid >= KV)) + (costs.weight_bytes @ (grid == EVERYTHING))
        modes, states = _every_use(costs)
        times = [_least(simulate(costs, np.full(len(modes), t), modes, ENDLESS_BYTES), states, shape) for t in tiers]
        return cls(costs.n_units, total, tiers, times)

    def state(self, flat: int) -> StateArray:
        return np.array(np.unravel_index(flat, (3,) * self.n_units), dtype=np.int8)

    def bounds(self, task: Task, host: Solution, reach: int) -> FloatArray:
        """[set] what it reaches at best; infinite for those that do not fit."""
        bound = np.zeros(len(self.bytes))
        for tier, times in zip(self.tiers, self.times, strict=True):
            bound += task.weights[tier] * (times if tier < reach else host.times[tier])
        return np.where(self.bytes <= task.room(reach), bound, np.inf)


def _every_use(costs: Costs) -> tuple[ModeArray, IntArray]:
    """All assignments with the least state each needs: [row, unit] modes and states."""
    uses = []
    for unit in range(costs.n_units):
        options = [(CPU, 0), (RESIDENT, EVERYTHING)]
        for level in (0, KV):
            state = np.full(costs.n_units, level, dtype=np.int8)
            mode = int(stream_mode(costs, state, ENDLESS_BYTES)[unit])
            options += [(mode, level)] if mode != CPU and (level == 0 or costs.kv_bytes[unit]) else []
        uses.append(np.array(options))
    choice = np.indices([len(u) for u in uses]).reshape(len(uses), -1)
    picked = np.stack([use[row] for use, row in zip(uses, choice, strict=True)], axis=1)
    return picked[..., 0].astype(np.uint8), picked[..., 1]


def _least(times: FloatArray, states: IntArray, shape: tuple[int, ...]) -> FloatArray:
    """The least time over all assignments that a set allows: a running minimum along each unit's axis."""
    best = np.full(shape, np.inf)
    np.minimum.at(best, tuple(states.T), times)
    for axis in range(len(shape)):
        best = np.minimum.accumulate(best, axis=axis)
    return best.ravel()


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
