"""The shortest step that compute, memory and link rates allow at a budget: a lower bound for any schedule.

Sub-layers i of a step run one after the other, each on the CPU (c_i) or on the device (g_i); weights (w_i bytes, u_i ns
on the link) and KV cache (k_i bytes, v_i ns) of one that runs on the device are kept there or copied for the step. With
shares x of each sub-layer, which may be fractions,

    T >= sum of compute        sum_i  x_cpu c_i + (1 - x_cpu) g_i
    T >= the link's work       sum_i  x_stream u_i + x_both (u_i + v_i)
    M >= what is kept          sum_i  x_resident (w_i + k_i) + x_stream k_i
    M  = budget - small group - scratch of the step

The least T of this linear program is the limit. By duality it is the largest value over 0 <= a <= 1, p >= 0 of

    sum_i min over i's ways (a compute + (1 - a) link + p bytes)  -  p M

found by nested search over a and p, where the sum is concave. Left out, all of which can only make a step longer: hops,
waits for the first piece, ring sizes, contention. Of experts, only the share that a step uses has to be copied.
A step without the device has no M and no scratch; the smaller of both is the limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from xlm_broker.planner.sharding.costs import CPU, RESIDENT, STREAM, tokens_of
from xlm_broker.planner.sharding.plan import Planning
from xlm_broker.planner.sharding.predict import costs_at
from xlm_broker.planner.sharding.workload import tier_of

FloatArray = NDArray[np.float64]

_ROUNDS: Final = 40
_GOLDEN: Final = (5**0.5 - 1) / 2


def limit_ns(
    cpu: FloatArray, device: FloatArray, link_weights: FloatArray, link_kv: FloatArray, weight_bytes: FloatArray,
    kv_bytes: FloatArray, memory_bytes: float,
) -> float:  # fmt: skip
    """Arrays over sub-layers: ns, ns, ns, ns, bytes, bytes. Everything on the CPU where no memory is left."""
    on_cpu = float(cpu.sum())
    if memory_bytes <= 0:
        return on_cpu
    compute = np.stack([cpu, device, device, device])
    link = np.stack([np.zeros_like(cpu), link_weights + link_kv, link_weights, np.zeros_like(cpu)])
    kept = np.stack([np.zeros_like(cpu), np.zeros_like(cpu), kv_bytes, weight_bytes + kv_bytes])

    def dual(share: float, price: float) -> float:
        ways = share * compute + (1.0 - share) * link + price * kept
        return float(ways.min(axis=0).sum()) - price * memory_bytes

    gain = float(np.max(np.maximum(cpu, link_weights + link_kv) / np.maximum(kv_bytes + weight_bytes, 1.0)))
    best_kv = float(np.max(np.where(kv_bytes > 0, np.maximum(cpu, link_kv) / np.maximum(kv_bytes, 1.0), 0.0)))
    dearest = max(gain, best_kv)

    def best(share: float) -> float:
        return _highest(lambda price: dual(share, price), 0.0, dearest)

    return max(0.0, min(on_cpu, _highest(best, 0.0, 1.0)))


def _highest(f: Callable[[float], float], low: float, high: float) -> float:
    """Largest value of a concave function between two ends, by golden section; ends included."""
    ends = max(f(low), f(high))
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = f(left), f(right)
    for _ in range(_ROUNDS):
        if at_left < at_right:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = f(right)
        else:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = f(left)
    return max(ends, at_left, at_right)


def step_limit_ns(planning: Planning, tokens: int, depth: int, budget_bytes: int) -> float:
    """Of one step, by the rates the planner knows; with the work outside the graph (``costs.step``)."""
    costs, units = costs_at(planning, tokens, depth), planning.work.units
    used = np.array([u.experts[0].used_share(tokens_of(u, costs.points[0])) if u.experts else 1.0 for u in units])
    cache = np.array([u.attention.kv_bytes_per_token * depth if u.attention else 0.0 for u in units])
    weights = costs.weight_bytes.astype(np.float64)
    scratch = planning.work.scratch_bytes[planning.tiers[tier_of(tokens, planning.tiers)]]
    return float(costs.step[0]) + limit_ns(
        cpu=costs.compute[0, CPU],
        device=np.minimum(costs.compute[0, RESIDENT], costs.compute[0, STREAM]),
        link_weights=weights * used / costs.link_bytes_ns,
        link_kv=cache / costs.link_bytes_ns,
        weight_bytes=weights,
        kv_bytes=costs.kv_bytes.astype(np.float64),
        memory_bytes=budget_bytes - planning.work.small_bytes - scratch,
    )
