"""A card given as numbers: the virtual GPU's configuration, or any card whose rates are known.

The device's times are those of the virtual GPU's own cost model (native/src/sim/cost_model.cpp), so that a plan for a
modelled card is made with the very times it will have; the CPU's come from this machine's profile, or a guess.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from xlm.errors import ShapeError
from xlm.protocol.link import DeviceFacts, SimConfig

from .hardware import Machine
from .kernels import Kernels, Roofline, Where
from .machine import guessed_machine, profiled_machine
from .profile import MachineProfile
from .work import CELL_PAD, F32_BYTES, MASK_BYTES, Attention, Experts, MatMul

MODELLED: Final = "modelled card"  # how the note begins that a prediction is not of the machine at hand
SYNC_NS: Final = 3_000.0  # the virtual GPU's: who waits for it looks at the clock, and pauses of threads are short
# Defaults of xlm_sim.h, for what a configuration does not say.
# Rows that small operations read and write; the virtual GPU counts their tensors. Weights of a norm are not counted.
ROWS_OF_SMALL: Final[dict[str, float]] = {"SWIGLU": 3.0, "ADD": 3.0, "SUM_ROWS": 1.0}
ROWS_OF_OTHERS: Final = 2.0
SIM_FLOPS_S: Final = 1e12
SIM_MEMORY_BYTES_S: Final = 100e9
SIM_OP_LAUNCH_NS: Final = 3_000.0
SIM_GRAPH_LAUNCH_NS: Final = 5_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRates:
    """Rates per second, sizes in bytes, times in ns. The fields of xlm_sim_config in modelled mode.

    ``graph_launch_ns``: for each submission.
    """

    flops_s: float
    memory_bytes_s: float
    link_bytes_s: float
    op_launch_ns: float = SIM_OP_LAUNCH_NS
    graph_launch_ns: float = SIM_GRAPH_LAUNCH_NS
    link_latency_ns: float = 8_000.0
    memory_bytes: int = 0
    name: str = ""

    def __post_init__(self) -> None:
        if min(self.flops_s, self.memory_bytes_s, self.link_bytes_s) <= 0:
            raise ShapeError("a card's rates are above zero", code="machine_invalid")
        if min(self.op_launch_ns, self.graph_launch_ns, self.link_latency_ns, self.memory_bytes) < 0:
            raise ShapeError("a card's times and sizes are not below zero", code="machine_invalid")


def card_of_sim(config: SimConfig) -> CardRates:
    """The card that a virtual GPU models. An unthrottled link counts as fast as the card's memory."""
    extra = config.extra
    memory = extra.get("memory_bytes_per_s", SIM_MEMORY_BYTES_S)
    return CardRates(
        flops_s=extra.get("compute_flops_per_s", SIM_FLOPS_S),
        memory_bytes_s=memory,
        link_bytes_s=config.link_bytes_per_s or memory,
        op_launch_ns=extra.get("op_launch_ns", SIM_OP_LAUNCH_NS),
        graph_launch_ns=extra.get("graph_launch_ns", SIM_GRAPH_LAUNCH_NS),
        link_latency_ns=config.link_latency_ns,
        memory_bytes=config.vram_bytes,
        name="virtual GPU",
    )


def modelled_machine(
    card: CardRates, profile: MachineProfile | None = None, *, threads: int = 0
) -> tuple[Machine, Kernels, tuple[str, ...]]:
    """This CPU with that card: rates, kernels, and what was assumed. ``threads`` 0: as the profile has most."""
    kernels: Kernels | None = None
    if profile is None:
        base, notes = guessed_machine(DeviceFacts(kind="sim", total_bytes=card.memory_bytes), threads)
    else:
        base, kernels, notes = profiled_machine(profile, DeviceFacts(kind="sim"), threads)
    machine = replace(
        base,
        name=card.name or base.name,
        device_memory_bytes=card.memory_bytes,
        device_bandwidth_bytes_s=card.memory_bytes_s,
        device_flops_s=card.flops_s,
        link_bytes_s=card.link_bytes_s,
        link_latency_ns=card.link_latency_ns,
        copy_ns=card.link_latency_ns,  # the virtual link adds it to every copy
        pageable_bytes_s=min(card.link_bytes_s, base.pageable_bytes_s),
        host_wait_ns=SYNC_NS,
        host_sync_ns=SYNC_NS + base.cpu_start_ns / 2.0,
        launch_ns=card.op_launch_ns,
        submit_ns=card.graph_launch_ns,
    )
    return machine, Modelled(card, kernels or Roofline(machine)), notes


@dataclass
class Modelled:
    """``Kernels``: the card's own formulas on the device, ``host``'s times on the CPU."""

    card: CardRates
    host: Kernels

    def fallbacks(self) -> dict[str, int]:
        return self.host.fallbacks()

    def matmul(self, where: Where, op: MatMul, tokens: float) -> float:
        if where != "gpu":
            return self.host.matmul(where, op, tokens)
        return self._ns(op.flops(tokens), op.weight_bytes + F32_BYTES * tokens * (op.k + op.n))

    def experts(self, where: Where, op: Experts, tokens: float) -> float:
        if where != "gpu":
            return self.host.experts(where, op, tokens)
        share = min(1.0, op.n_used * tokens / op.n_expert)  # as if no two tokens shared one
        rows = tokens * op.n_used
        return self._ns(op.flops(tokens), op.weight_bytes * share + F32_BYTES * rows * (op.k + op.n))

    def experts_by_one(self, op: Experts, tokens: float) -> float:
        return self.host.experts_by_one(op, tokens)

    def attention(self, where: Where, op: Attention, tokens: float, context: float) -> float:
        if where != "gpu":
            return self.host.attention(where, op, tokens, context)
        # ``context`` is the mean under the causal mask; the card computes every cell of the padded cache
        cells = CELL_PAD * ceil((context + (tokens - 1) / 2) / CELL_PAD)
        rows = 2 * F32_BYTES * tokens * op.n_head * op.head_dim
        read = op.kv_bytes_per_token * cells + MASK_BYTES * tokens * cells + rows
        return self._ns(op.flops(tokens, cells), read)

    def small(self, where: Where, op: str, row_elements: int, tokens: float) -> float:
        if where != "gpu":
            return self.host.small(where, op, row_elements, tokens)
        rows = ROWS_OF_SMALL.get(op, ROWS_OF_OTHERS) * tokens
        return self._ns(5.0 * row_elements * tokens, rows * F32_BYTES * row_elements)

    def _ns(self, flops: float, read_bytes: float) -> float:
        by_flops, by_bytes = flops / self.card.flops_s, read_bytes / self.card.memory_bytes_s
        return 1e9 * max(by_flops, by_bytes) + self.card.op_launch_ns


@dataclass
class Emulated:
    """``Kernels`` of the virtual GPU in exact mode: it computes with the CPU's own."""

    host: Kernels

    def fallbacks(self) -> dict[str, int]:
        return self.host.fallbacks()

    def matmul(self, where: Where, op: MatMul, tokens: float) -> float:
        return self.host.matmul(_on_host(where), op, tokens)

    def experts(self, where: Where, op: Experts, tokens: float) -> float:
        return self.host.experts(_on_host(where), op, tokens)

    def experts_by_one(self, op: Experts, tokens: float) -> float:
        return self.host.experts_by_one(op, tokens)

    def attention(self, where: Where, op: Attention, tokens: float, context: float) -> float:
        return self.host.attention(_on_host(where), op, tokens, context)

    def small(self, where: Where, op: str, row_elements: int, tokens: float) -> float:
        return self.host.small(_on_host(where), op, row_elements, tokens)


def _on_host(where: Where) -> Where:
    return "cpu" if where == "gpu" else where
