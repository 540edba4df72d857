"""A budget with which nothing runs on the device, where nobody asked for that. Pure."""

from __future__ import annotations

from xlm_broker.planner.report import below_minimum, mib

from .budget import Effective, Wishes
from .engine import Problem
from .settings import BudgetSettings

CODE = "budget_infeasible"

_ADVICE = {
    "fixed": "start the broker with a larger --budget, or without one for all of the device",
    "max": "start the broker with a larger --budget-max",
    "cap": "let the game allow at least that; 0 is for the CPU alone",
    "reservation": "let the games reserve less",
    "device": "a smaller model, context or --headroom leaves more",
    "os": "close other programs that hold memory of the device",
}
_UNDECIDED = "a game calls set_budget; or start the broker with a larger --budget-idle, or with --budget"


def shortage(settings: BudgetSettings, found: Effective, wishes: Wishes, minimum_bytes: int) -> Problem | None:
    """As the error that a client would get; None where something runs on the device, or 0 was asked for."""
    if found.bytes >= minimum_bytes or _meant(settings, found, wishes):
        return None
    if found.limited_by == "idle":
        text = (
            f"no client has said yet what the model may use: until then that is {mib(found.bytes)} (--budget-from-game)"
        )
        return Problem(CODE, text, _UNDECIDED, minimum_bytes)
    if found.limited_by not in _ADVICE:  # what comes and goes by itself is told apart
        return None
    text = f"the CPU alone works: {below_minimum(found.bytes, minimum_bytes)}; limited by {found.limited_by}"
    return Problem(CODE, text, _ADVICE[found.limited_by], minimum_bytes)


def _meant(settings: BudgetSettings, found: Effective, wishes: Wishes) -> bool:
    asked = {"fixed": settings.fixed_bytes, "max": settings.max_bytes, "cap": min(wishes.caps, default=None)}
    return asked.get(found.limited_by) == 0
