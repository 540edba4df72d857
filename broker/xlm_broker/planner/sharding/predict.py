"""What a step takes by a schedule, at any number of tokens and depth: the timing model without the search."""

from __future__ import annotations

import numpy as np

from xlm.protocol.link import CPU as PLACE_CPU
from xlm.protocol.link import RESIDENT as PLACE_RESIDENT
from xlm.protocol.link import STREAM_KV as PLACE_STREAM_KV
from xlm.protocol.link import ModelFacts, Schedule

from .costs import CPU, RESIDENT, STREAM, STREAM_KV, Costs, TierPoint, build_costs
from .pipeline import ModeArray, StepTrace, trace_step
from .plan import Planning
from .slots import ExpertPlans


def predicted_step(
    planning: Planning, schedule: Schedule, tokens: int, depth: int, model: ModelFacts | None = None
) -> StepTrace:
    """One step of ``tokens`` with ``depth`` positions in the cache; times in ns. The step before it was alike.

    ``schedule`` is one of this model's; where its tier does without the device, all is on the CPU. ``model``: for a
    schedule that keeps experts one by one; an even router is assumed.
    """
    tier = next((t for t in schedule.tiers if tokens <= t.max_tokens), schedule.tiers[-1])
    costs = costs_at(planning, tokens, depth)
    if model is not None and schedule.experts:
        slots = {index: policy.n_slots for index, policy in schedule.experts.items()}
        costs = ExpertPlans(planning, model, ()).costs_with(costs, slots)
    ring_ns = schedule.ring_bytes / costs.link_bytes_ns  # a schedule's is without the window
    return trace_step(costs, 0, modes_of(planning, tier.placement), ring_ns)


def costs_at(planning: Planning, tokens: int, depth: int) -> Costs:
    """Costs of every sub-layer in a step of this very size and depth."""
    point = TierPoint(tokens, float(depth))
    capabilities = planning.costs.capabilities
    return build_costs(planning.work, planning.machine, planning.kernels, [point], capabilities)


def modes_of(planning: Planning, placement: bytes) -> ModeArray:
    """[unit] modes of a tier's placement."""
    modes = {PLACE_CPU: CPU, PLACE_RESIDENT: RESIDENT, PLACE_STREAM_KV: STREAM_KV}
    places = (placement[unit.index] if unit.index < len(placement) else PLACE_CPU for unit in planning.work.units)
    return np.array([modes.get(place, STREAM) for place in places], dtype=np.uint8)
