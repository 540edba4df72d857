"""The first policy: pin by priority until the budget is full; stream the rest in prefill; the CPU decodes it.

One resident set serves all token tiers, so that a change of tier moves no bytes. What a plan holds at most is

    resident (weights and KV) + ring + scratch of the largest tier on the device  <=  budget

The scratch of a large prefill step can be worth many resident layers; where it would take more than a share
of the budget, the large tiers run on the CPU instead (``REACH_SHARE``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from xlm.errors import BudgetError
from xlm.protocol.link import CPU, RESIDENT, STREAM, DeviceFacts, ModelFacts, Schedule, Tier

from .memory import DECODE_TOKENS, Table, minimum_device_bytes, scratch_bytes, tier_tokens, unified_demand
from .report import below_minimum, summarise

Objective = Literal["balanced", "decode", "prefill"]
Profile = Mapping[str, float]  # measured rates by name; this policy needs none

# Largest part of the budget that ring and scratch may take while a smaller reach would do.
REACH_SHARE: Mapping[Objective, float] = {"balanced": 0.5, "decode": 0.25, "prefill": 0.75}
RING_SHARE = 0.25  # of the budget
RING_PIECES = 2  # one piece computes while the next is copied


@dataclass(frozen=True)
class _Fit:
    """A placement that holds its budget. ``reach``: how many tiers, from the smallest, use the device."""

    reach: int
    scratch_bytes: int
    ring_bytes: int
    pinned: NDArray[np.bool_]
    streamed: NDArray[np.bool_]

    @property
    def reserve_bytes(self) -> int:
        return self.ring_bytes + self.scratch_bytes


def plan(
    model: ModelFacts,
    device: DeviceFacts,
    budget_bytes: int,
    *,
    require_device: bool = False,
    schedule_id: int = 0,
    objective: Objective = "balanced",
    profile: Profile | None = None,
) -> Schedule:
    """The schedule for a budget. Pure and deterministic.

    A budget too small for the device gives the all-CPU schedule, or BudgetError (budget_infeasible, with
    ``minimum_bytes``) when ``require_device`` is set. ``profile`` is for policies that weigh measured rates.
    """
    table = Table.of(model)
    budget = max(0, budget_bytes)
    fit = _best_fit(model, table, budget, REACH_SHARE[objective]) if _usable(device) else None
    if fit is None and require_device:
        raise _infeasible(model, device, budget)
    return _schedule(model, table, fit or _on_cpu(table), budget, schedule_id, table.order)


def shrink_plan(
    model: ModelFacts, device: DeviceFacts, schedule: Schedule, budget_bytes: int, *, schedule_id: int = 0
) -> Schedule:
    """What is left of ``schedule`` within a smaller budget: evicts from the end of its priority, adds nothing."""
    table = Table.of(model)
    budget = max(0, budget_bytes)
    held = _held(schedule, len(table.order))
    fit = _shrunk(model, table, schedule, held, budget) if _usable(device) and held.any() else None
    order = np.array(schedule.priority, dtype=np.int64)
    same_model = len(order) == len(table.order)
    return _schedule(model, table, fit or _on_cpu(table), budget, schedule_id, order if same_model else table.order)


def _usable(device: DeviceFacts) -> bool:
    return device.kind != "none" and not device.degraded


def _infeasible(model: ModelFacts, device: DeviceFacts, budget: int) -> BudgetError:
    minimum = minimum_device_bytes(model)
    why = below_minimum(budget, minimum) if _usable(device) else "there is no usable device"
    error = BudgetError(f"nothing can run on the device: {why}", code="budget_infeasible")
    error.minimum_bytes = minimum
    return error


def _on_cpu(table: Table) -> _Fit:
    none = np.zeros(len(table.order), dtype=np.bool_)
    return _Fit(0, 0, 0, none, none)


def _best_fit(model: ModelFacts, table: Table, budget: int, share: float) -> _Fit | None:
    """The widest reach whose reserve is modest; else the narrowest that places anything at all."""
    narrowest = None
    for reach in range(len(tier_tokens(model.n_ubatch)), 0, -1):
        fit = _fit(model, table, budget, reach)
        if fit is not None and (fit.reserve_bytes <= share * budget or _complete(table, fit)):
            return fit
        narrowest = fit or narrowest
    return narrowest


def _complete(table: Table, fit: _Fit) -> bool:
    return bool(fit.pinned[table.placeable].all())


def _fit(model: ModelFacts, table: Table, budget: int, reach: int) -> _Fit | None:
    tokens = tier_tokens(model.n_ubatch)[reach - 1]
    scratch = scratch_bytes(model, tokens)
    pinned, _ = _pin(table, table.order, budget - scratch)
    if not pinned[table.placeable].any():
        return None
    plain = _Fit(reach, scratch, 0, pinned, np.zeros_like(pinned))
    if tokens <= DECODE_TOKENS or _complete(table, plain):
        return plain
    return _with_ring(table, plain, budget) or plain


def _with_ring(table: Table, plain: _Fit, budget: int) -> _Fit | None:
    ring = _ring_bytes(table, table.placeable & ~plain.pinned, int(budget * RING_SHARE))
    pinned, left = _pin(table, table.order, budget - plain.scratch_bytes - ring)
    streamed = _stream(table, table.placeable & ~pinned, ring, left)
    if not streamed.any() or not pinned[table.placeable].any():
        return None
    return _Fit(plain.reach, plain.scratch_bytes, ring, pinned, streamed)


def _pin(table: Table, order: NDArray[np.int64], room: int) -> tuple[NDArray[np.bool_], int]:
    """Takes in order whatever still fits; returns the choice and the bytes left. Nothing without the small group."""
    pinned = np.zeros(len(table.order), dtype=np.bool_)
    left = room - table.bytes_of(table.small)
    if left < 0:
        return pinned, max(0, room)
    pinned |= table.small
    for index in order[table.placeable[order]]:
        cost = int(table.cost_bytes[index])
        if cost <= left:
            pinned[index] = True
            left -= cost
    return pinned, left


def _ring_bytes(table: Table, candidates: NDArray[np.bool_], bound: int) -> int:
    """Room for RING_PIECES of the largest piece that can be streamed within the bound."""
    needs = RING_PIECES * table.piece_bytes[candidates]
    return int(needs[needs <= bound].max(initial=0))


def _stream(table: Table, candidates: NDArray[np.bool_], ring: int, left: int) -> NDArray[np.bool_]:
    """Those whose pieces fit the ring. Streamed attention still needs its KV on the device: out of what is left."""
    streamed = candidates & (RING_PIECES * table.piece_bytes <= ring) & (ring > 0)
    for index in table.order[streamed[table.order]]:
        left -= int(table.kv_bytes[index])
        if left < 0:
            streamed[index] = False
            left += int(table.kv_bytes[index])
    return streamed


def _held(schedule: Schedule, count: int) -> NDArray[np.bool_]:
    """What the schedule keeps resident (in any tier); nothing if it is another model's."""
    held = np.zeros(count, dtype=np.bool_)
    for tier in schedule.tiers:
        if len(tier.placement) == count:
            held |= np.frombuffer(tier.placement, dtype=np.uint8) == RESIDENT
    return held


def _shrunk(model: ModelFacts, table: Table, schedule: Schedule, held: NDArray[np.bool_], budget: int) -> _Fit | None:
    """The widest reach of the old plan that leaves something resident, first with its ring, then without."""
    used = [i for i, tier in enumerate(schedule.tiers) if any(tier.placement)]
    for reach in range(min(1 + max(used, default=-1), len(tier_tokens(model.n_ubatch))), 0, -1):
        tokens = tier_tokens(model.n_ubatch)[reach - 1]
        scratch = scratch_bytes(model, tokens)
        for ring in (schedule.ring_bytes, 0) if tokens > DECODE_TOKENS else (0,):
            pinned, left = _keep(table, schedule.priority, held, budget - scratch - ring)
            if pinned[table.placeable].any():
                streamed = _stream(table, table.placeable & ~pinned, ring, left)
                return _Fit(reach, scratch, ring if streamed.any() else 0, pinned, streamed)
    return None


def _keep(table: Table, priority: list[int], held: NDArray[np.bool_], room: int) -> tuple[NDArray[np.bool_], int]:
    """Evicts from the end of the priority list until the rest fits."""
    kept = held | table.small
    total = table.bytes_of(kept)
    for index in reversed(priority):
        if total <= room:
            break
        if kept[index] and not table.small[index]:
            kept[index] = False
            total -= int(table.cost_bytes[index])
    if total > room:
        return np.zeros_like(kept), max(0, room)
    return kept, room - total


def _schedule(
    model: ModelFacts, table: Table, fit: _Fit, budget: int, schedule_id: int, order: NDArray[np.int64]
) -> Schedule:
    resident = table.bytes_of(fit.pinned) + int(table.kv_bytes[fit.streamed].sum())
    placed = table.bytes_of(table.small | table.placeable)
    bare = Schedule(
        schedule_id=schedule_id,
        budget_bytes=budget,
        tiers=_tiers(model, fit),
        priority=[int(index) for index in order],
        ring_bytes=fit.ring_bytes,
        reserve_bytes=fit.reserve_bytes,
        resident_bytes=resident,
        predicted={"resident_share": table.bytes_of(fit.pinned) / placed if placed else 0.0},
    )
    return replace(bare, summary=summarise(bare, model))


def _tiers(model: ModelFacts, fit: _Fit) -> list[Tier]:
    decode = np.where(fit.pinned, RESIDENT, CPU).astype(np.uint8)
    prefill = np.where(fit.streamed, STREAM, decode).astype(np.uint8)
    tiers = []
    for position, tokens in enumerate(tier_tokens(model.n_ubatch), start=1):
        on_device = position <= fit.reach
        placement = (decode if tokens <= DECODE_TOKENS else prefill) if on_device else np.zeros_like(decode)
        scratch = scratch_bytes(model, tokens) if on_device else 0
        tiers.append(Tier(max_tokens=tokens, placement=placement.tobytes(), scratch_bytes=scratch))
    return tiers


class PriorityPlanner:
    """The functions above as the object the state machine is given. Stateless, safe in any thread."""

    def plan(self, model: ModelFacts, device: DeviceFacts, budget_bytes: int, *, schedule_id: int) -> Schedule:
        return plan(model, device, budget_bytes, schedule_id=schedule_id)

    def shrink_plan(
        self, model: ModelFacts, device: DeviceFacts, schedule: Schedule, budget_bytes: int, *, schedule_id: int
    ) -> Schedule:
        return shrink_plan(model, device, schedule, budget_bytes, schedule_id=schedule_id)

    def minimum_device_bytes(self, model: ModelFacts) -> int:
        """With streaming: this plan is only the first, and the one searched for beside the broker streams."""
        return minimum_device_bytes(model, RING_PIECES)

    def unified_demand(self, model: ModelFacts) -> int:
        return unified_demand(model)
