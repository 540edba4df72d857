"""The vision phase of a schedule: the planner's, or a simple one where it made none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from msgspec import structs

from xlm.protocol import link

ANY_PATCHES: Final = (1 << 32) - 1
_ORDER: Final[tuple[link.Kind, ...]] = ("attention", "ffn")  # what repays its place first


def with_vision(schedule: link.Schedule, sublayers: Sequence[link.SubLayer], vision_id: int) -> link.Schedule:
    """``schedule`` of the language model's sub-layers, made one of all: the tower's sub-layers rest between images.

    Without vision tiers of its own, or with those of another tower, it gets one that keeps the tower resident; the
    backend streams what does not fit, and runs the rest on the CPU.
    """
    tower = [sub for sub in sublayers if sub.model_id == vision_id]
    tiers = [_padded(tier, len(sublayers)) for tier in schedule.tiers]
    others = [sub.index for sub in sublayers if sub.index not in set(schedule.priority)]
    fitting = all(len(tier.placement) == len(sublayers) for tier in schedule.vision_tiers)
    vision, ring = (schedule.vision_tiers, schedule.vision_ring_bytes) if fitting else ([], 0)
    if not vision and schedule.budget_bytes > 0:
        vision, ring = [_resident(tower, len(sublayers))], _ring_bytes(tower, schedule.budget_bytes)
    return structs.replace(
        schedule,
        tiers=tiers,
        priority=[*schedule.priority, *_by_worth(tower, others)] if schedule.priority else [],
        vision_tiers=vision,
        vision_ring_bytes=ring,
    )


def _padded(tier: link.Tier, count: int) -> link.Tier:
    return structs.replace(tier, placement=tier.placement + bytes(max(0, count - len(tier.placement))))


def _resident(tower: Sequence[link.SubLayer], count: int) -> link.Tier:
    placement = bytearray(count)
    for sub in tower:
        if sub.kind != "lookup":
            placement[sub.index] = link.RESIDENT
    return link.Tier(max_tokens=ANY_PATCHES, placement=bytes(placement))


def _ring_bytes(tower: Sequence[link.SubLayer], budget_bytes: int) -> int:
    """Two of the largest sub-layers, which go some patches at a time each as one, but not more than a quarter of the
    budget; 0 where not even two of the largest pieces fit that."""
    largest = max((sub.largest_piece_bytes for sub in tower), default=0)
    ring = min(2 * max((sub.device_bytes for sub in tower), default=0), budget_bytes // 4)
    return ring if ring >= 2 * largest else 0


def _by_worth(tower: Sequence[link.SubLayer], indices: Sequence[int]) -> list[int]:
    kinds = {sub.index: sub.kind for sub in tower}
    rank = {kind: place for place, kind in enumerate(_ORDER)}
    return sorted(indices, key=lambda index: (rank.get(kinds.get(index, "small"), math.inf), index))
