"""What stock llama.cpp would take with ``n_gpu_layers``: the baseline, by the same costs and without overlap.

The last ``n`` layers, and the output with one more, are on the device with their KV cache. Decode: the rest runs on
the CPU. Prompt steps of 32 tokens and more: weights and KV cache of the other layers are copied for each step, one
after the other and, from a mapped file, through pageable memory (ggml-backend.cpp: op offload, scheduler copies).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from xlm_broker.planner.sharding.costs import CPU, EVERYTHING, RESIDENT, STREAM_KV
from xlm_broker.planner.sharding.pipeline import hop_times
from xlm_broker.planner.sharding.plan import Planning
from xlm_broker.planner.sharding.problem import state_bytes

OFFLOAD_TOKENS = 32  # GGML_OP_OFFLOAD_MIN_BATCH's default


def stock_layers(planning: Planning, budget_bytes: int) -> int:
    """The most layers that fit; n_layer + 1 is everything."""
    most = 1 + max((u.layer for u in planning.work.units), default=-1)
    scratch = planning.work.scratch_bytes[planning.tiers[-1]]
    room = budget_bytes - scratch - planning.work.small_bytes
    fits = (n for n in range(most + 1, 0, -1) if state_bytes(planning.costs, _state(planning, n)) <= room)
    return next(fits, 0)


def _state(planning: Planning, n_gpu_layers: int) -> NDArray[np.int8]:
    units = planning.work.units
    most = 1 + max((u.layer for u in units), default=-1)
    first = most + 1 - n_gpu_layers  # the output counts as the last
    depth = np.array([u.layer if u.layer >= 0 else most for u in units])
    return np.where(depth >= first, EVERYTHING, 0).astype(np.int8)


def stock_step_ns(planning: Planning, tier: int, n_gpu_layers: int) -> float:
    """One step of a tier."""
    costs, resident = planning.costs, _state(planning, n_gpu_layers) == EVERYTHING
    offload = costs.points[tier].tokens >= OFFLOAD_TOKENS
    modes = np.where(resident | offload, RESIDENT, CPU).astype(np.uint8)
    computing = float(costs.compute[tier, modes, np.arange(costs.n_units)].sum())
    alone = replace(costs, home=np.zeros(costs.n_tiers), mask=np.zeros(costs.n_tiers))  # caches stay where they are
    hops = float(hop_times(alone, np.array([tier]), modes[None])[0])
    copied = float(costs.upload[tier, STREAM_KV][~resident].sum()) if offload else 0.0
    slower = planning.machine.link_bytes_s / planning.machine.pageable_bytes_s
    return computing + hops + copied * slower + float(costs.step[tier])


def stock_times(planning: Planning, n_gpu_layers: int) -> tuple[float, float]:
    """(decode tokens per second, time to the first token in ms)."""
    times = np.array([stock_step_ns(planning, tier, n_gpu_layers) for tier in range(planning.costs.n_tiers)])
    decode_ns = float(times @ planning.decode)
    return 1e9 * planning.workload.decode_tokens / decode_ns, float(times @ planning.prefill) / 1e6
