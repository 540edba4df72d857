"""What is left of a schedule in a smaller budget. No search and no model of time: at hand in any state."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from xlm.protocol.link import CPU, RESIDENT, STREAM, STREAM_KV, ExpertPolicy, ModelFacts, Schedule, Tier
from xlm_broker.planner.report import summarise

Rows = NDArray[np.uint8]  # [tier, sub-layer]


def shrunk_schedule(model: ModelFacts, schedule: Schedule, budget_bytes: int, *, schedule_id: int) -> Schedule:
    """Evicts from the end of the priority list until ring, scratch and the rest fit; then gives up, in this order,
    the ring and the largest tiers. A schedule of another model gives one without the device. Nothing is lent but in a
    budget that the schedule was made for."""
    sizes = _Sizes(model)
    if budget_bytes >= schedule.budget_bytes and all(len(t.placement) == sizes.count for t in schedule.tiers):
        return replace(schedule, schedule_id=schedule_id, budget_bytes=budget_bytes)
    rows = _rows(schedule, sizes.count)
    streaming = _streaming_bytes(schedule)
    for reach in range(_reach(rows), 0, -1):
        scratch = max((t.scratch_bytes for t in schedule.tiers[:reach]), default=0)
        for ring in dict.fromkeys((streaming, 0)):
            kept = _evicted(sizes, _limited(rows, reach, ring), schedule.priority, budget_bytes - scratch - ring)
            if kept is not None:
                ring = ring if _streams(kept).any() else 0
                return _schedule(model, sizes, schedule, kept, budget_bytes, ring, schedule_id)
    nothing = np.zeros((len(schedule.tiers), sizes.count), dtype=np.uint8)
    return _schedule(model, sizes, schedule, nothing, budget_bytes, 0, schedule_id)


def _streaming_bytes(schedule: Schedule) -> int:
    """Of the ring, and of the experts' window where that is not a part of it."""
    scratch = max((t.scratch_bytes for t in schedule.tiers), default=0)
    return max(schedule.ring_bytes, schedule.reserve_bytes - scratch)


class _Sizes:
    def __init__(self, model: ModelFacts) -> None:
        self.count = 1 + max((sub.index for sub in model.sublayers), default=-1)
        self.weights = np.zeros(self.count, dtype=np.int64)
        self.kv = np.zeros(self.count, dtype=np.int64)
        self.small = np.zeros(self.count, dtype=np.bool_)
        self.subs = {sub.index: sub for sub in model.sublayers}
        for sub in model.sublayers:
            self.weights[sub.index], self.kv[sub.index] = max(0, sub.device_bytes), max(0, sub.kv_bytes)
            self.small[sub.index] = sub.kind == "small"

    def held(self, rows: Rows) -> int:
        """Lasting bytes: weights resident in any tier, KV of what has it there in any."""
        resident = (rows == RESIDENT).any(axis=0)
        used = ((rows == RESIDENT) | (rows == STREAM)).any(axis=0)
        return int(self.weights[resident].sum() + self.kv[used].sum())


def _rows(schedule: Schedule, count: int) -> Rows:
    rows = np.zeros((len(schedule.tiers), count), dtype=np.uint8)
    for row, tier in zip(rows, schedule.tiers, strict=True):
        if len(tier.placement) == count:
            row[:] = np.frombuffer(tier.placement, dtype=np.uint8)
    return _without_lent(rows, np.array([tier.reserve_bytes > 0 for tier in schedule.tiers], dtype=np.bool_))


def _without_lent(rows: Rows, lends: NDArray[np.bool_]) -> Rows:
    """What only tiers that lend keep, weights or a cache, goes where the first of the others has it."""
    if lends.any() and not lends.all():
        others = rows[~lends]
        kept, cached = (others == RESIDENT).any(axis=0), np.isin(others, (RESIDENT, STREAM)).any(axis=0)
        lent = ((rows == RESIDENT) & ~kept) | ((rows == STREAM) & ~cached)
        rows = np.where(lent & lends[:, None], others[0], rows)
    return rows


def _streams(rows: Rows) -> NDArray[np.bool_]:
    return np.asarray((rows == STREAM) | (rows == STREAM_KV), dtype=np.bool_)


def _reach(rows: Rows) -> int:
    used = np.flatnonzero(rows.any(axis=1))
    return int(used[-1]) + 1 if len(used) else 0


def _limited(rows: Rows, reach: int, ring: int) -> Rows:
    rows = rows.copy()
    rows[reach:] = CPU
    if not ring:
        rows[_streams(rows)] = CPU
    return rows


def _evicted(sizes: _Sizes, rows: Rows, priority: list[int], room: int) -> Rows | None:
    """None where nothing but the small group, or not even that, would be left."""
    for index in [*reversed(priority), *range(sizes.count)]:
        if sizes.held(rows) <= room:
            break
        if 0 <= index < sizes.count and not sizes.small[index]:
            rows[:, index] = CPU
    idle = ~rows[:, ~sizes.small].any(axis=1)
    rows[idle] = CPU
    return rows if rows.any() and sizes.held(rows) <= room else None


def _fewer_slots(sizes: _Sizes, old: Schedule, rows: Rows, room: int) -> tuple[dict[int, ExpertPolicy], int]:
    """Slots of the layers that are still streamed, each with the same share of what it had; and their bytes."""
    known = {i: p for i, p in old.experts.items() if i in sizes.subs and i < sizes.count}
    kept = {i: p for i, p in known.items() if (rows[:, i] == STREAM).any() and not (rows[:, i] == RESIDENT).any()}
    wanted = sum(p.n_slots * sizes.subs[i].expert_bytes for i, p in kept.items())
    fixed = sum(sizes.subs[i].expert_overhead_bytes for i, p in kept.items() if p.n_slots)
    share = min(1.0, max(0, room - fixed) / wanted) if wanted else 0.0
    fewer = {i: replace(p, n_slots=int(p.n_slots * share)) for i, p in kept.items()}
    used = sum(
        p.n_slots * sizes.subs[i].expert_bytes + sizes.subs[i].expert_overhead_bytes
        for i, p in fewer.items() if p.n_slots
    )  # fmt: skip
    return fewer, used


def _schedule(
    model: ModelFacts, sizes: _Sizes, old: Schedule, rows: Rows, budget_bytes: int, ring: int, schedule_id: int
) -> Schedule:
    tiers = [
        Tier(max_tokens=t.max_tokens, placement=row.tobytes(), scratch_bytes=t.scratch_bytes if row.any() else 0)
        for t, row in zip(old.tiers, rows, strict=True)
    ]
    scratch = max((t.scratch_bytes for t in tiers), default=0)
    priority = old.priority if sorted(old.priority) == list(range(sizes.count)) else list(range(sizes.count))
    resident = sizes.held(rows)
    experts, slot_bytes = _fewer_slots(sizes, old, rows, budget_bytes - resident - ring - scratch)
    bare = Schedule(
        schedule_id=schedule_id,
        budget_bytes=budget_bytes,
        experts=experts,
        expert_window_bytes=old.expert_window_bytes if ring else 0,
        tiers=tiers or [Tier(max_tokens=max(1, model.n_ubatch), placement=bytes(sizes.count))],
        priority=priority,
        ring_bytes=old.ring_bytes if ring else 0,
        reserve_bytes=ring + scratch,
        resident_bytes=resident + slot_bytes,
    )
    return replace(bare, summary=summarise(bare, model))
