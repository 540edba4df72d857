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

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from .costs import CPU, EVERYTHING, KV, NOTHING, RESIDENT, STREAM, STREAM_KV, Costs, FloatArray

ROUNDS = 4
_GRID = np.arange(5.0)  # values of a multiplier in a round: two below the best so far, itself, two above
_PAIRS = np.stack([np.tile(_GRID, len(_GRID)), np.repeat(_GRID, len(_GRID))], axis=1)


@dataclass(frozen=True)
class Relaxation:
    """``bound_ns``: weighted time no plan of these capabilities can beat. ``saving`` [2, unit]: worth, in weighted
    ns, of keeping the KV cache, and of keeping everything."""

    bound_ns: float
    saving: FloatArray


def relax(costs: Costs, weights: FloatArray, memory_bytes: float, rounds: int = ROUNDS) -> Relaxation:
    """For ``weights`` [tier], by which a tier's ns are multiplied, and the bytes there are for resident copies."""
    problem = _Problem.of(costs, weights)
    best = np.full((len(problem.tiers), 2), 0.25)  # [tier, (link, shared memory)]
    own = [problem.tier_costs(tier, best[tier : tier + 1]) for tier in range(len(best))]
    width, value = 0.5, 0.0
    for _ in range(rounds):
        around = _PAIRS * (width / 2) - width
        for tier in range(len(best)):
            trial = _inside(best[tier], around)
            value, at, own[tier] = _best_point(problem, own, tier, trial, memory_bytes)
            best[tier] = trial[at]
        width /= 2.5
    saving = problem.savings(own)[0][:, costs.alike]
    return Relaxation(max(0.0, value) + problem.fixed, saving)


def _inside(point: FloatArray, around: FloatArray) -> FloatArray:
    """Multipliers that are none below 0 and together at most 1; the point itself last."""
    trial = point + around
    link, shared = trial[:, 0], trial[:, 1]
    return np.concatenate([trial[(link >= 0) & (shared >= 0) & (link + shared <= 1)], point[None]])


def _best_point(
    problem: _Problem, own: list[FloatArray], tier: int, trial: FloatArray, memory_bytes: float
) -> tuple[float, int, FloatArray]:
    """Bound and place of the best multipliers for a tier, the others' staying as they are, and its costs with them."""
    costs = problem.tier_costs(tier, trial)
    values = problem.values([*own[:tier], costs, *own[tier + 1 :]], memory_bytes)
    winner = int(np.argmax(values))
    return float(values[winner]), winner, costs[winner : winner + 1]


@dataclass(frozen=True)
class _Problem:
    """Per weighted tier: compute and upload of the modes that each memory state allows. Equal units are one class."""

    tiers: NDArray[np.int64]
    weights: FloatArray  # [tier]
    cpu: FloatArray  # [tier, class]
    device: FloatArray
    stream: FloatArray  # upload of STREAM
    stream_kv: FloatArray
    barred: FloatArray  # [class] infinite where STREAM_KV cannot be
    shared: FloatArray  # [tier] k
    state_bytes: FloatArray  # [2, class] of all its units
    count: FloatArray  # [class]
    fixed: float

    @classmethod
    def of(cls, costs: Costs, weights: FloatArray) -> _Problem:
        tiers = np.flatnonzero(weights > 0)
        first, count = costs.classes
        compute, busy, upload = (a[:, :, first][tiers] for a in (costs.compute, costs.busy, costs.upload))
        kv, weight = costs.kv_bytes[first], costs.weight_bytes[first]
        # streaming whose upload is part of its compute (experts on demand) counts on the link as well
        upload = upload + np.where(upload > 0, 0.0, compute - compute[:, RESIDENT : RESIDENT + 1])
        slow = busy[:, CPU] / np.maximum(compute[:, CPU], 1e-9)
        able = costs.capabilities.kv_streaming
        return cls(
            tiers=tiers, weights=weights[tiers], cpu=compute[:, CPU], device=compute[:, RESIDENT],
            stream=upload[:, STREAM], stream_kv=upload[:, STREAM_KV],
            barred=np.where((kv > 0) & (not able), np.inf, 0.0),
            shared=1.0 - 1.0 / np.maximum(slow.min(axis=1, initial=np.inf), 1.0),
            state_bytes=np.stack([kv, kv + weight]).astype(np.float64) * count, count=count.astype(np.float64),
            fixed=float(weights @ costs.step),
        )  # fmt: skip

    def tier_costs(self, tier: int, multipliers: FloatArray) -> FloatArray:
        """[trial, state, class] weighted cost of each memory state in one tier for each trial's two multipliers."""
        link, shared = multipliers[:, :1], multipliers[:, 1:]  # [trial, 1]
        chain, k = 1.0 - link - shared, self.shared[tier]
        cpu = (chain + shared) * self.cpu[tier]
        device = (chain + shared * (1 - k)) * self.device[tier]
        price = link + shared * k
        costs = np.empty((len(multipliers), 3, len(self.count)))
        nothing, cache, everything = costs[:, NOTHING], costs[:, KV], costs[:, EVERYTHING]
        np.minimum(cpu, device + (price * self.stream_kv[tier] + self.barred), out=nothing)
        np.minimum(nothing, np.minimum(cpu, device + price * self.stream[tier]), out=cache)
        np.minimum(cache, device, out=everything)
        costs *= self.weights[tier]
        return costs

    def savings(self, own: Sequence[FloatArray]) -> FloatArray:
        """[trial, 2, class] saved by keeping the KV cache, or everything; ``own``: costs of each tier."""
        costs = self._sum(own)
        return costs[:, NOTHING : NOTHING + 1] - costs[:, KV : EVERYTHING + 1]

    def values(self, own: Sequence[FloatArray], memory_bytes: float) -> FloatArray:
        """[trial] the bound each combination gives."""
        costs = self._sum(own)
        return costs[:, NOTHING] @ self.count - self._knapsack(costs, memory_bytes)

    def _sum(self, own: Sequence[FloatArray]) -> FloatArray:
        return reduce(np.add, own) if own else np.zeros((1, 3, len(self.count)))

    def _knapsack(self, costs: FloatArray, memory_bytes: float) -> FloatArray:
        """[trial] most that can be saved: steps of the lower convex hull, taken by saving per byte."""
        first = (costs[:, NOTHING] - costs[:, KV]) * self.count
        whole = (costs[:, NOTHING] - costs[:, EVERYTHING]) * self.count
        kv, all_ = self.state_bytes
        split = first * all_ > whole * kv  # the cache alone is worth more per byte than everything
        gain, size = np.empty((2, len(first), 2 * len(kv)))
        one, two = slice(None, len(kv)), slice(len(kv), None)
        gain[:, one], size[:, one] = np.where(split, first, whole), np.where(split, kv, all_)
        np.subtract(whole, gain[:, one], out=gain[:, two])  # where all was taken at once, nothing is left
        np.subtract(all_, size[:, one], out=size[:, two])
        least = np.maximum(size, 1e-9)
        order = (-gain / least).argsort(axis=1, kind="stable")
        order += (np.arange(len(order)) * order.shape[1])[:, None]
        gain, size, least = gain.take(order), size.take(order), least.take(order)
        before = size.cumsum(axis=1) - size
        share = np.minimum(np.maximum((max(0.0, memory_bytes) - before) / least, 0.0), 1.0)
        return np.asarray((np.maximum(gain, 0.0) * share).sum(axis=1), dtype=np.float64)
