"""Three modelled cards. Only ratios carry over: this machine's CPU stands for the reference machine's.

The machines are those of the paper (arXiv 2604.26334): processor, memory bandwidth and link as its authors state them;
cards and kernel efficiencies from the table of hardware classes (docs/timing-model.md). One and the same product,
4096 x 4096 in Q4_0, gives every ratio: the card takes on it as much less time than this CPU as the reference card
takes less than the reference CPU, at one token (memory) and at 64 tokens (arithmetic). The link is scaled like
memory. Overheads of launches and copies are not scaled: the models are as much smaller as this CPU is slower.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from xlm.errors import ProfileError
from xlm_broker.planner.sharding.hardware import GPU_LAUNCH_NS, LINK_LATENCY_NS, Machine, machine_from_row
from xlm_broker.planner.sharding.kernels import Kernels, Roofline
from xlm_broker.planner.sharding.modelled import CardRates
from xlm_broker.planner.sharding.profile import MachineProfile
from xlm_broker.planner.sharding.work import MatMul

# The client machines of arXiv 2604.26334: name, card, VRAM, processor threads used, RAM, its bandwidth, link to device.
MACHINES: Final[tuple[Mapping[str, Any], ...]] = (
    {"machine": "laptop", "gpu": "RTX 3500 Ada laptop", "gpu_vram_gib": 12, "cpu_threads_used": 16, "ram_gib": 64,
     "ram_bandwidth_gb_s": 119.5, "pcie_h2d_gb_s": 13},
    {"machine": "mid", "gpu": "RTX 5070 Ti", "gpu_vram_gib": 16, "cpu_threads_used": 8, "ram_gib": 128,
     "ram_bandwidth_gb_s": 57.6, "pcie_h2d_gb_s": 50},
    {"machine": "top", "gpu": "RTX 5090", "gpu_vram_gib": 32, "cpu_threads_used": 16, "ram_gib": 256,
     "ram_bandwidth_gb_s": 153.6, "pcie_h2d_gb_s": 50},
)  # fmt: skip

SIDE: Final = 4096
FEW, MANY = 1, 64  # tokens: bound by memory, bound by arithmetic
GRAPH_LAUNCH_NS: Final = 5_000.0
_PRODUCT: Final = MatMul("Q4_0", SIDE, SIDE, SIDE * SIDE * 18 / 32)


@dataclass(frozen=True, slots=True)
class Rates:
    """Of a modelled card, in units per second."""

    name: str
    link_bytes_s: float
    flops_s: float
    memory_bytes_s: float
    link_latency_ns: float = LINK_LATENCY_NS
    op_launch_ns: float = GPU_LAUNCH_NS
    graph_launch_ns: float = GRAPH_LAUNCH_NS

    @property
    def card(self) -> CardRates:
        return CardRates(
            flops_s=self.flops_s, memory_bytes_s=self.memory_bytes_s, link_bytes_s=self.link_bytes_s,
            op_launch_ns=self.op_launch_ns, graph_launch_ns=self.graph_launch_ns,
            link_latency_ns=self.link_latency_ns, name=self.name,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """ns of the product on this machine's CPU."""

    few_ns: float
    many_ns: float


def cpu_times(profile: MachineProfile, threads: int) -> CpuTimes:
    """From a profile. ProfileError profile_incomplete where the product was not measured."""
    found = {
        p.tokens: float(p.ns)
        for p in profile.kernels
        if (p.device, p.op, p.type, p.load) == ("cpu", "MUL_MAT", "Q4_0", "idle")
        and p.shape[:2] == (SIDE, SIDE)
        and p.threads == threads
    }
    if FEW not in found or MANY not in found:
        raise ProfileError("the profile lacks the product that scales the cards", code="profile_missing")
    return CpuTimes(found[FEW], found[MANY])


def scaled(row: Mapping[str, Any], cpu: CpuTimes) -> Rates:
    """The card of a reference machine beside this machine's CPU."""
    machine = machine_from_row(row)
    reference = Roofline(machine)
    few_ns = cpu.few_ns * _faster(reference, machine, FEW)
    many_ns = cpu.many_ns * _faster(reference, machine, MANY)
    link_ns = cpu.few_ns * (_PRODUCT.weight_bytes / machine.link_bytes_s * 1e9) / _cpu_ns(reference, FEW)
    return Rates(
        name=str(row["machine"]),
        link_bytes_s=_PRODUCT.weight_bytes / link_ns * 1e9,
        flops_s=_PRODUCT.flops(MANY) / many_ns * 1e9,
        memory_bytes_s=_PRODUCT.weight_bytes / few_ns * 1e9,
    )


def _cpu_ns(reference: Kernels, tokens: int) -> float:
    return reference.matmul("cpu", _PRODUCT, tokens)


def _faster(reference: Kernels, machine: Machine, tokens: int) -> float:
    """Time on the reference card over time on its CPU; without the launch, which the modelled card adds itself."""
    return (reference.matmul("gpu", _PRODUCT, tokens) - machine.launch_ns) / _cpu_ns(reference, tokens)
