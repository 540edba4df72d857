"""Ours and stock's best setting measured again, in turn, where they are near each other.

The best of many settings that were measured once each is the luckiest too, and its figures were taken long before ours,
on a machine that others use as well. So whoever is near the other meets it: the same steps, in turn, within a
minute, and the faster of each side's rounds. A setting that came second counts too if it was faster than the first is
now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any, Final

from xlm_broker.bench.measure import StepTimes
from xlm_broker.bench.statics import Best, Measured, Setting

ROUNDS: Final = 2
NEAR: Final = 2.0
MOST_SETTINGS: Final = 3
Turn = Callable[[], StepTimes]


@dataclass(frozen=True, slots=True)
class Met:
    """ns of one figure, from the same minute."""

    setting: Setting
    ours_ns: float
    stock_ns: float


def is_near(ours_ns: float, stock_ns: float) -> bool:
    return isfinite(ours_ns) and isfinite(stock_ns) and max(ours_ns, stock_ns) <= NEAR * min(ours_ns, stock_ns)


def meet_the_best(settings: Sequence[tuple[float, Setting]], meet: Callable[[Setting], Met]) -> list[Met]:
    """``settings`` with their ns in the sweep. Meetings, the fastest of stock's first; none that was stopped."""
    found: list[Met] = []
    for swept_ns, setting in sorted(settings, key=lambda one: one[0])[:MOST_SETTINGS]:
        if found and swept_ns >= found[0].stock_ns:
            break
        met = meet(setting)
        if isfinite(met.ours_ns) and isfinite(met.stock_ns):
            found = sorted([*found, met], key=lambda one: one.stock_ns)
    return found


def with_met(found: Best | None, again: Mapping[str, Sequence[Met]], *, plain: bool) -> Best | None:
    """The best with the figures they had when they were met. ``plain``: of another baseline, which keeps its choice."""
    if found is None:
        return None
    if not plain:
        found = replace(found, **{_FIELDS[figure]: _winner(found, figure, mets[0]) for figure, mets in again.items()})
    return Best(*(_met(one, again) for one in (found.ttft, found.token, found.request)))


_FIELDS: Final = {"ttft_ns": "ttft", "token_ns": "token"}  # figure -> field of Best


def _winner(found: Best, figure: str, met: Met) -> Measured:
    one: Measured = getattr(found, _FIELDS[figure])
    return replace(one, setting=met.setting)


def _met(one: Measured, again: Mapping[str, Sequence[Met]]) -> Measured:
    times = {figure: met.stock_ns for figure, mets in again.items() for met in mets if met.setting == one.setting}
    return replace(one, times=replace(one.times, **times))


def in_turn(ours: Turn, stock: Turn, rounds: int = ROUNDS) -> dict[str, Any]:
    """{"ours": steps by card, "stock": the same}; of each step the faster round, a step that was stopped being none."""
    found: dict[str, StepTimes] = {}
    for _ in range(rounds):
        for name, turn in (("ours", ours), ("stock", stock)):
            found[name] = faster(found.get(name, {}), turn())
    return dict(found)


def faster(one: StepTimes, other: StepTimes) -> StepTimes:
    return {
        card: {step: min(ns or inf, one.get(card, {}).get(step) or inf) for step, ns in steps.items()}
        for card, steps in other.items()
    }
