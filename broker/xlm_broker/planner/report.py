"""Schedules for people."""

from __future__ import annotations

from collections.abc import Iterable

from xlm.protocol.link import CPU, KINDS, RESIDENT, STREAM, STREAM_KV, Kind, ModelFacts, Schedule, SubLayer, Tier

_LETTER = {CPU: "c", STREAM: "s", RESIDENT: "r", STREAM_KV: "k"}


def size(count_bytes: int) -> str:
    """Bytes in MiB, or GiB from 1 GiB on."""
    return f"{count_bytes / (1 << 30):.2f} GiB" if count_bytes >= 1 << 30 else f"{count_bytes / (1 << 20):.1f} MiB"


def mib(size_bytes: int, *, up: bool = False) -> str:
    """For people, in MiB. ``up``: rounded up, so that who asks for what a message says has enough."""
    hundredths = -(-size_bytes * 100 // (1 << 20)) if up else size_bytes * 100 // (1 << 20)
    return f"{hundredths / 100:.2f} MiB"


def below_minimum(offered_bytes: int, minimum_bytes: int) -> str:
    """Both as a person reads them; the minimum also to the byte, as a program asks for it."""
    return f"{mib(offered_bytes)} are below the minimum of {mib(minimum_bytes, up=True)} ({minimum_bytes} bytes)"


def summarise(schedule: Schedule, model: ModelFacts) -> str:
    """One line: what is resident of which kind, the ring, the reach."""
    on_device = [tier for tier in schedule.tiers if any(tier.placement)]
    if not on_device:
        return f"everything on the CPU ({size(schedule.budget_bytes)} budget)"
    parts = ", ".join(_share(on_device[0], model, kind) for kind in _present(model) if kind not in ("small", "lookup"))
    ring = f"; streaming through {size(schedule.ring_bytes)}" if schedule.ring_bytes else ""
    reach = f"; steps of up to {on_device[-1].max_tokens} tokens" if len(on_device) < len(schedule.tiers) else ""
    return f"{size(schedule.resident_bytes)} resident of {size(schedule.budget_bytes)}: {parts}{ring}{reach}"


def explain(schedule: Schedule, model: ModelFacts) -> str:
    """The one-line summary and a table, tier by kind: how many sub-layers run where.

    A cell ``r12 s3 c15`` is 12 resident, 3 streamed, 15 on the CPU; ``k2`` would be 2 streamed with
    their KV caches; ``-`` is none of that kind.
    """
    kinds = _present(model)
    head = ["tokens", *kinds, "scratch"]
    rows = [[f"<= {t.max_tokens}", *(_cell(t, model, k) for k in kinds), size(t.scratch_bytes)] for t in schedule.tiers]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [head, *rows]
    ]
    memory = (
        f"resident {size(schedule.resident_bytes)} + reserve {size(schedule.reserve_bytes)}"
        f" (ring {size(schedule.ring_bytes)}) <= budget {size(schedule.budget_bytes)}"
    )
    return "\n".join([summarise(schedule, model), *lines, memory])


def _present(model: ModelFacts) -> list[Kind]:
    return [kind for kind in KINDS if any(sub.kind == kind for sub in model.sublayers)]


def _of_kind(tier: Tier, model: ModelFacts, kind: Kind) -> list[int]:
    return [_place(tier, sub) for sub in model.sublayers if sub.kind == kind]


def _place(tier: Tier, sub: SubLayer) -> int:
    return tier.placement[sub.index] if sub.index < len(tier.placement) else CPU


def _share(tier: Tier, model: ModelFacts, kind: Kind) -> str:
    places = _of_kind(tier, model, kind)
    return f"{places.count(RESIDENT)}/{len(places)} {kind}"


def _cell(tier: Tier, model: ModelFacts, kind: Kind) -> str:
    places = _of_kind(tier, model, kind)
    return _counts(places) or "-"


def _counts(places: Iterable[int]) -> str:
    listed = list(places)
    return " ".join(f"{_LETTER[p]}{listed.count(p)}" for p in (RESIDENT, STREAM, STREAM_KV, CPU) if p in listed)
