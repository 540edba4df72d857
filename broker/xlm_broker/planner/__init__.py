"""The planner: (model, device, budget) -> Schedule. Pure numpy, no state, no I/O, deterministic.

``PriorityPlanner`` is the first policy; another one replaces it by offering the same methods
(``xlm_broker.state.ports.Planner``).
"""

from .memory import minimum_device_bytes, scratch_bytes, tier_tokens, unified_demand
from .priority import Objective, PriorityPlanner, plan, shrink_plan
from .report import explain

__all__ = [
    "Objective",
    "PriorityPlanner",
    "explain",
    "minimum_device_bytes",
    "plan",
    "scratch_bytes",
    "shrink_plan",
    "tier_tokens",
    "unified_demand",
]
