"""The broker's pure brain: events in, actions out. Knows no sockets, threads, processes or clocks."""

from . import actions, events
from .machine import Machine
from .ports import Planner
from .settings import BudgetSettings, Limits, MachineSettings, Timing

__all__ = ["BudgetSettings", "Limits", "Machine", "MachineSettings", "Planner", "Timing", "actions", "events"]
