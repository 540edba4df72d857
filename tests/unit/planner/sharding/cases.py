"""Random small planning problems, and their true optimum by enumeration."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from xlm_broker.planner.sharding.costs import (
    CPU,
    RESIDENT,
    RING_PIECES,
    STREAM,
    STREAM_KV,
    Capabilities,
    Costs,
    TierPoint,
)
from xlm_broker.planner.sharding.exact import _Lattice
from xlm_broker.planner.sharding.pipeline import step_times
from xlm_broker.planner.sharding.problem import Task, default_effort, on_cpu, ring_for

MIB = 1 << 20


def make_task(seed: int, n_units: int, *, n_tiers: int = 2, kv_streaming: bool = False, alike: bool = False) -> Task:
    """A problem drawn from ranges of real machines: ratios of CPU, device and link over two decades."""
    rng = np.random.default_rng(seed)
    costs = _costs(rng, n_units, n_tiers, Capabilities(kv_streaming=kv_streaming), alike)
    weights = np.array([128.0] + [float(rng.choice([0.5, 1, 4])) for _ in range(n_tiers - 1)])
    scratch = np.sort(rng.integers(1, 24 * MIB, n_tiers))
    whole = int((costs.weight_bytes + costs.kv_bytes).sum())
    budget = int(whole * rng.uniform(0.05, 1.1)) + int(scratch[-1])
    return Task(costs, weights, scratch, int(rng.integers(0, MIB)), budget, default_effort(n_units))


def _costs(rng: np.random.Generator, n: int, tiers: int, capabilities: Capabilities, alike: bool) -> Costs:
    weights = rng.integers(4 * MIB, 64 * MIB, n)
    kv = np.where(rng.random(n) < 0.4, rng.integers(1 * MIB, 16 * MIB, n), 0)
    if alike:
        weights[:], kv[::2], kv[1::2] = weights[0], max(1, int(kv[0])), 0
    link = rng.uniform(4, 50)  # bytes per ns
    compute = np.zeros((tiers, 4, n))
    for t in range(tiers):
        cpu = weights / rng.uniform(10, 80) * (1 + 30 * t) * (1.0 if alike else rng.uniform(0.5, 2, n))
        compute[t] = cpu / rng.uniform(2, 60)
        compute[t, CPU] = cpu
    busy = compute.copy()
    busy[:, CPU] *= rng.uniform(1, 1.5)
    upload = np.zeros_like(compute)
    upload[:, STREAM] = weights / link
    upload[:, STREAM_KV] = (weights + 0.5 * kv) / link
    share = np.ones_like(compute)
    share[:, CPU] = rng.uniform(0.7, 1.0)
    pieces = (weights * rng.choice([0.25, 0.5, 1.0], n)).astype(np.int64)
    hop = np.full((tiers, n + 1), rng.uniform(5e3, 1e5))
    return Costs(
        points=tuple(TierPoint(64**t, 0.0) for t in range(tiers)), compute=compute, busy=busy, upload=upload,
        link_share=share, piece_share=pieces / weights, hop_up=hop[:, :-1], hop_down=hop, step=np.full(tiers, 1e5),
        home=np.zeros(tiers), mask=np.zeros(tiers),
        weight_bytes=weights, kv_bytes=kv.astype(np.int64), piece_bytes=pieces, link_bytes_ns=link,
        capabilities=capabilities, alike=np.arange(n),
    )  # fmt: skip


@st.composite
def tasks(draw: st.DrawFn, /, max_units: int = 7, **options: Any) -> Task:
    return make_task(
        draw(st.integers(0, 2**32 - 1)),
        draw(st.integers(2, max_units)),
        kv_streaming=draw(st.booleans()),
        alike=draw(st.booleans()),
        **options,
    )


def optimum(task: Task, known: float = np.inf) -> float:
    """The least objective over all reaches, resident sets and assignments; each set's ring is all it leaves.

    Branch and bound: a set's times with an endless ring are a lower bound for it; sets are computed exactly in order
    of that bound, until it passes the best. ``known``: an objective that some plan reaches. Exponential in the units.
    """
    costs, best = task.costs, known
    host = costs.compute[:, CPU].sum(axis=1) + costs.step
    best = min(best, float(host @ task.weights))
    endless = [_per_state(costs, tier, 1 << 60) for tier in range(costs.n_tiers)]
    for reach in range(1, costs.n_tiers + 1):
        beyond = float(host[reach:] @ task.weights[reach:])
        bound = sum(endless[t] * task.weights[t] for t in range(reach)) + beyond
        bound = np.where(_state_bytes(costs) <= task.room(reach), bound, np.inf)
        for flat in np.argsort(bound):
            if bound[flat] >= best * (1 - 1e-9):
                break
            state = np.array(np.unravel_index(flat, (3,) * costs.n_units), dtype=np.int8)
            best = min(best, _with_state(task, state, reach) + beyond)
    return best


def better_than(task: Task, goal: float) -> float | None:
    """An objective below ``goal`` that some plan reaches, or None: there is none.

    Every set whose bound (tested apart, against ``_with_state``) is below the goal is computed with all assignments.
    """
    lattice, host = _Lattice.of(task.costs), on_cpu(task)
    assert lattice is not None
    if host.objective < goal:
        return host.objective
    for reach in range(1, task.costs.n_tiers + 1):
        if task.room(reach) <= 0:
            continue
        beyond = float(host.times[reach:] @ task.weights[reach:])
        bounds = lattice.bounds(task, host, reach, range(task.costs.n_tiers))
        for flat in np.flatnonzero(bounds < goal):
            found = _with_state(task, lattice.state(int(flat)), reach) + beyond
            if found < goal:
                return found
    return None


def sets_and_bounds(task: Task, reach: int) -> Iterator[tuple[float, float]]:
    """(bound, least objective) of every resident set that fits."""
    lattice, host = _Lattice.of(task.costs), on_cpu(task)
    assert lattice is not None
    bounds = lattice.bounds(task, host, reach, range(task.costs.n_tiers))
    beyond = float(host.times[reach:] @ task.weights[reach:])
    for flat in np.flatnonzero(np.isfinite(bounds)):
        yield float(bounds[flat]), _with_state(task, lattice.state(int(flat)), reach) + beyond


def _with_state(task: Task, state: NDArray[np.int8], reach: int) -> float:
    costs, ring = task.costs, ring_for(task, state, reach)
    total = 0.0
    for tier in range(reach):
        allowed = [_modes(costs, u, int(state[u]), ring) for u in range(costs.n_units)]
        choice = np.indices([len(a) for a in allowed]).reshape(len(allowed), -1)
        modes = np.stack([np.array(a, dtype=np.uint8)[c] for a, c in zip(allowed, choice, strict=True)], axis=1)
        rows = len(modes)
        times = step_times(costs, np.full(rows, tier), modes, np.full(rows, costs.ring_ns(ring)))
        total += float(times.min()) * float(task.weights[tier])
    return total


def _modes(costs: Costs, unit: int, level: int, ring: int) -> list[int]:
    """Modes that make sense with a unit's state: what is resident is not streamed."""
    nothing, cache, everything = _levels(costs, unit, ring)
    return [[*nothing], [CPU, *cache], [CPU, *everything]][level]


def _levels(costs: Costs, unit: int, ring: int) -> list[list[int]]:
    """Modes that become possible at each memory level of a unit: nothing, KV, everything."""
    kv, need = int(costs.kv_bytes[unit]), int(RING_PIECES * costs.piece_bytes[unit])
    nothing = [CPU]
    cache: list[int] = []
    if 0 < need <= ring:
        (cache if kv else nothing).append(STREAM)
    if kv and costs.capabilities.kv_streaming and need + kv <= ring:
        nothing.append(STREAM_KV)
    return [nothing, cache, [RESIDENT]]


def _per_state(costs: Costs, tier: int, ring: int) -> NDArray[np.float64]:
    """[3] * units: least time of the tier with each state, flattened."""
    n = costs.n_units
    best = np.full((3,) * n, np.inf)
    options = [[(m, level) for level, modes in enumerate(_levels(costs, u, ring)) for m in modes] for u in range(n)]
    for chunk in _chunks(product(*options), 1 << 15):
        modes = np.array([[m for m, _ in row] for row in chunk], dtype=np.uint8)
        level = np.array([[at for _, at in row] for row in chunk])
        rows = len(chunk)
        times = step_times(costs, np.full(rows, tier), modes, np.full(rows, costs.ring_ns(ring)))
        np.minimum.at(best, tuple(level.T), times)
    for axis in range(n):
        best = np.minimum.accumulate(best, axis=axis)
    return best.ravel()


def _state_bytes(costs: Costs) -> NDArray[np.int64]:
    total = np.zeros((3,) * costs.n_units, dtype=np.int64)
    for unit in range(costs.n_units):
        levels = np.array([0, costs.kv_bytes[unit], costs.kv_bytes[unit] + costs.weight_bytes[unit]])
        total += levels.reshape([3 if axis == unit else 1 for axis in range(costs.n_units)])
    return total.ravel()


def _chunks(rows: Iterator[Any], size: int) -> Iterator[list[Any]]:
    chunk: list[Any] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
