"""Pipelined sharding: which sub-layers stay on the device, are streamed to it or run on the CPU, by token tier.

Pure numpy and standard library: no I/O, no clock. docs/timing-model.md has the formulas. From facts to a plan:

    shapes | facts       a model's sub-layers as operations and bytes (work)
    hardware | profile   rates of a machine: data sheets, or what was measured on it (machine)
    modelled             the same CPU with a card given as numbers: a virtual GPU, or one that is not here
    kernels, costs       times of every sub-layer in every tier and mode
    pipeline             one step simulated: a chain of two computing resources, a link, a ring between
    relax, orders, streaming, search, improve, exact     the plan
    plan, report         predictions, tables, curves
    planner, shrink      as the state machine's Planner
"""

from .costs import Capabilities
from .modelled import CardRates, card_of_sim, modelled_machine
from .planner import ShardingPlanner, engine_capabilities
from .workload import Workload

__all__ = [
    "Capabilities",
    "CardRates",
    "ShardingPlanner",
    "Workload",
    "card_of_sim",
    "engine_capabilities",
    "modelled_machine",
]
