"""Budget arithmetic: what the model may use of the device. Pure, signed, clamped to the device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .settings import BudgetSettings


@dataclass(frozen=True, slots=True)
class Wishes:
    """What live clients asked for."""

    caps: tuple[int, ...] = ()
    reservations: tuple[int, ...] = ()
    spoken: bool = False  # any live lease has sent set_budget or reserve
    frame_limit_bytes: int | None = None  # what frame pacing leaves, where a game allowed it to shrink

    @property
    def reserved_bytes(self) -> int:
        return sum(self.reservations)


@dataclass(frozen=True, slots=True)
class Card:
    """What is known of the device. ``total_bytes`` None: not yet known, and nothing is offered of it."""

    total_bytes: int | None
    foreign_bytes: int | None = None  # held by other processes, by NVML or the OS; None: not known
    spill_limit_bytes: int | None = None  # set by the spill watchdog


@dataclass(frozen=True, slots=True)
class Effective:
    """The budget and which limit decided it."""

    bytes: int
    limited_by: str  # device | reservation | cap | max | os | fixed | idle | spill | frame


def effective(settings: BudgetSettings, card: Card, wishes: Wishes) -> Effective:
    """min(total - headroom - reservations, caps, max, what others left, mode); 0 <= result <= total."""
    total = max(0, card.total_bytes or 0)
    free_of_wishes = total - settings.headroom_bytes
    limits = [("device", free_of_wishes)]
    if wishes.reserved_bytes:
        limits.append(("reservation", free_of_wishes - wishes.reserved_bytes))
    limits += [("cap", cap) for cap in wishes.caps]
    limits += _optional(settings, card, wishes)
    name, value = min(limits, key=lambda limit: limit[1])
    return Effective(min(max(0, value), total), name)


def _optional(settings: BudgetSettings, card: Card, wishes: Wishes) -> Iterable[tuple[str, int]]:
    if settings.max_bytes is not None:
        yield "max", settings.max_bytes
    if card.foreign_bytes is not None and card.total_bytes is not None:
        yield "os", card.total_bytes - settings.headroom_bytes - card.foreign_bytes
    if card.spill_limit_bytes is not None:
        yield "spill", card.spill_limit_bytes
    if wishes.frame_limit_bytes is not None:
        yield "frame", wishes.frame_limit_bytes
    if settings.mode == "fixed" and settings.fixed_bytes is not None:
        yield "fixed", settings.fixed_bytes
    if settings.mode == "game" and not wishes.spoken:
        yield "idle", settings.idle_bytes
