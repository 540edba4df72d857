"""What the state machine needs of the planner. The driver injects an implementation."""

from __future__ import annotations

from typing import Protocol

from xlm.protocol.link import DeviceFacts, ModelFacts, Schedule


class Planner(Protocol):
    """Pure, deterministic, and fast enough to be called from ``handle`` (a millisecond or two).

    The best schedule takes longer: where MachineSettings.find_plans is set, it is asked for with FindPlan.
    """

    def plan(self, model: ModelFacts, device: DeviceFacts, budget_bytes: int, *, schedule_id: int) -> Schedule:
        """The schedule for a budget. A budget too small for the device gives the all-CPU schedule."""

    def shrink_plan(
        self, model: ModelFacts, device: DeviceFacts, schedule: Schedule, budget_bytes: int, *, schedule_id: int
    ) -> Schedule:
        """What remains of ``schedule`` within ``budget_bytes``: evicts, never adds. Never raises."""

    def minimum_device_bytes(self, model: ModelFacts) -> int:
        """The smallest budget with which at least one sub-layer runs on the device."""

    def unified_demand(self, model: ModelFacts) -> int:
        """The budget with which everything is resident."""
