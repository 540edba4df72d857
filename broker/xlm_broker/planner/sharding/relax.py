"""A lower bound on what any plan can reach, and the prices that lead to a good one.

A step of tier t takes at least, whatever the order and however large the ring,

    T >= sum of compute                                          the chain
    T >= sum of uploads                                          the link
    T >= (1 - k) sum(device) + sum(cpu) + k sum(uploads)         the memory both share

with k = 1 - 1/slowdown, the smallest over the sub-layers. (The link works at least sum(uploads) long; at most
T - T_cpu of that while the CPU rests; the rest, o, stretches the CPU's part to sum(cpu) + k o. Eliminate o, T_cpu.)
Any convex combination of the three is a bound too. With the combination fixed, sub-layers only share the memory
budget, and the best fractional resident set of a multiple-choice knapsack is found by sorting (Sinha, Zoltners 1979).
The bound is the best over the combinations; its state costs, saving per byte, are the prices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .costs import CPU, EVERYTHING, KV, NOTHING, RESIDENT, STREAM, STREAM_KV, Costs, FloatArray

ROUNDS = 4
_GRID = 5  # values of a multiplier in a round


@dataclass(frozen=True)
class Relaxation:
    """``bound_ns``: weighted time no plan of these capabilities can beat. ``saving`` [2, unit]: worth, in weighted
    ns, of keeping the KV cache, and of keeping everything."""

    bound_ns: float
    saving: FloatArray


def relax(costs: Costs, weights: FloatArray, memory_bytes: float, rounds: int = ROUNDS) -> Relaxation:
    """For ``weights`` [tier], by which a tier's ns are multiplied, and the bytes there are for resident copies."""
    problem = _Problem.of(costs, weights)
    best = np.tile(np.array([[0.25, 0.25]]), (len(problem.tiers), 1))  # [tier, (link, shared memory)]
    width, value = 0.5, -np.inf
    for _ in range(rounds):
        for tier in range(len(best)):
            value, best[tier] = _best_point(problem, best, tier, width, memory_bytes)
        width /= 2.5
    if not len(best):
        value = 0.0
    saving = problem.savings(best[None])[0][:, costs.alike]
    return Relaxation(max(0.0, float(value)) + problem.fixed, saving)


def _best_point(
    problem: _Problem, best: FloatArray, tier: int, width: float, memory_bytes: float
) -> tuple[float, FloatArray]:
    around = best[tier]
    steps = np.linspace(-width, width, _GRID)
    link, shared = (axis.ravel() for axis in np.meshgrid(around[0] + steps, around[1] + steps))
    inside = np.flatnonzero((link >= 0) & (shared >= 0) & (link + shared <= 1))
    trial = np.repeat(best[None], len(inside) + 1, axis=0)
    trial[:-1, tier, 0], trial[:-1, tier, 1] = link[inside], shared[inside]
    values = problem.values(trial, memory_bytes)
    winner = int(np.argmax(values))
    return float(values[winner]), trial[winner, tier]


@dataclass(frozen=True)
class _Problem:
    """Per weighted tier: compute and upload of the modes that each memory state allows. Equal units are one class."""

    tiers: NDArray[np.int64]
    weights: FloatArray  # [tier]
    cpu: FloatArray  # [tier, class]
    device: FloatArray
    stream: FloatArray  # upload of STREAM; infinite upload where a state forbids the mode
    stream_kv: FloatArray
    shared: FloatArray  # [tier] k
    state_bytes: FloatArray  # [2, class] of one unit
    count: FloatArray  # [class]
    fixed: float

    @classmethod
    def of(cls, costs: Costs, weights: FloatArray) -> _Problem:
        tiers = np.flatnonzero(weights > 0)
        _, first, count = np.unique(costs.alike, return_index=True, return_counts=True)
        compute, busy, upload = (a[tiers][:, :, first] for a in (costs.compute, costs.busy, costs.upload))
        kv, weight = costs.kv_bytes[first], costs.weight_bytes[first]
        # streaming whose upload is part of its compute (experts on demand) counts on the link as well
        upload = upload + np.where(upload > 0, 0.0, compute - compute[:, RESIDENT : RESIDENT + 1])
        slow = busy[:, CPU] / np.maximum(compute[:, CPU], 1e-9)
        stream_kv = upload[:, STREAM_KV]
        if not costs.capabilities.kv_streaming:
            stream_kv = np.where(kv > 0, np.inf, stream_kv)
        return cls(
            tiers=tiers, weights=weights[tiers], cpu=compute[:, CPU], device=compute[:, RESIDENT],
            stream=upload[:, STREAM], stream_kv=stream_kv,
            shared=1.0 - 1.0 / np.maximum(slow.min(axis=1, initial=np.inf), 1.0),
            state_bytes=np.stack([kv, kv + weight]).astype(np.float64), count=count.astype(np.float64),
            fixed=float(weights.sum() * costs.step),
        )  # fmt: skip

    def state_costs(self, multipliers: FloatArray) -> FloatArray:
        """[trial, state, class] weighted cost of each memory state for each trial's [tier, 2] multipliers."""
        link, shared = multipliers[..., 0, None], multipliers[..., 1, None]  # [trial, tier, 1]
        chain = 1.0 - link - shared
        k = self.shared[None, :, None]
        cpu = (chain + shared) * self.cpu
        device = (chain + shared * (1 - k)) * self.device
        price = link + shared * k
        weight = self.weights[None, :, None]
        nothing = np.minimum(cpu, device + _priced(price, self.stream_kv))
        cache = np.minimum(cpu, device + _priced(price, self.stream))
        both = [nothing, np.minimum(nothing, cache), np.minimum(np.minimum(nothing, cache), device)]
        return np.stack([(weight * cost).sum(axis=1) for cost in both], axis=1)

    def savings(self, multipliers: FloatArray) -> FloatArray:
        """[trial, 2, class] saved by keeping the KV cache, or everything."""
        costs = self.state_costs(multipliers)
        return costs[:, NOTHING : NOTHING + 1] - costs[:, KV : EVERYTHING + 1]

    def values(self, multipliers: FloatArray, memory_bytes: float) -> FloatArray:
        """[trial] the bound each combination gives."""
        costs = self.state_costs(multipliers)
        return costs[:, NOTHING] @ self.count - self._knapsack(costs, memory_bytes)

    def _knapsack(self, costs: FloatArray, memory_bytes: float) -> FloatArray:
        """[trial] most that can be saved: steps of the lower convex hull, taken by saving per byte."""
        sizes = self.state_bytes[None] * self.count
        first = (costs[:, NOTHING] - costs[:, KV]) * self.count
        whole = (costs[:, NOTHING] - costs[:, EVERYTHING]) * self.count
        kv, all_ = np.broadcast_to(sizes[:, 0], first.shape), np.broadcast_to(sizes[:, 1], first.shape)
        split = first * all_ > whole * kv  # the cache alone is worth more per byte than everything
        one = np.where(split, first, whole), np.where(split, kv, all_)
        two = np.where(split, whole - first, 0.0), np.where(split, all_ - kv, 0.0)
        gain, size = np.concatenate([one[0], two[0]], axis=1), np.concatenate([one[1], two[1]], axis=1)
        order = np.argsort(-gain / np.maximum(size, 1e-9), axis=1, kind="stable")
        gain, size = np.take_along_axis(gain, order, 1), np.take_along_axis(size, order, 1)
        before = np.cumsum(size, axis=1) - size
        share = np.clip((max(0.0, memory_bytes) - before) / np.maximum(size, 1e-9), 0.0, 1.0)
        return np.asarray((np.maximum(gain, 0.0) * share).sum(axis=1), dtype=np.float64)


def _priced(price: FloatArray, upload: FloatArray) -> FloatArray:
    """price * upload, where infinity stays infinite at a price of zero."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(upload), np.inf, price * np.where(np.isinf(upload), 0.0, upload))
