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


def meet_the_best(settings: Sequence[tuple[float, Setting]], meet: Callable[[Setting], Met]) -> Met | None:
    """``settings`` with their ns in the sweep. The meeting with the one that is fastest when it is met."""
    found: Met | None = None
    for swept_ns, setting in sorted(settings, key=lambda one: one[0])[:MOST_SETTINGS]:
        if found is not None and swept_ns >= found.stock_ns:
            break
        met = meet(setting)
        if found is None or met.stock_ns < found.stock_ns:
            found = met
    return found


def with_met(found: Best | None, again: Mapping[str, Met], *, plain: bool) -> Best | None:
    """The best with the figures it had when it was met. ``plain``: of another baseline, which may have another best."""
    if found is None:
        return None
    changes: dict[str, Measured] = {}
    for figure, field in (("ttft_ns", "ttft"), ("token_ns", "token")):
        met, one = again.get(figure), getattr(found, field)
        if met is not None and (not plain or one.setting == met.setting):
            changes[field] = replace(one, setting=met.setting, times=replace(one.times, **{figure: met.stock_ns}))
    return replace(found, **changes)


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
