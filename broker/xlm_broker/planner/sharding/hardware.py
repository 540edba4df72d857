"""Rates of machines that are not here, from public facts: the table of hardware classes.

Every number is either a specification (bandwidth, tensor throughput), or an efficiency of ggml's kernels that
holds for a whole class of cards and is known from public measurements. docs/timing-model.md names each source.
Nothing in here comes from, or is fitted to, a row of a published result for one machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from xlm.errors import ShapeError

from .quant import family


@dataclass(frozen=True, slots=True)
class CardSpec:
    """From the maker's data sheet. ``tensor_flops_s``: dense FP16 with FP32 accumulation."""

    bandwidth_bytes_s: float
    tensor_flops_s: float


# GeForce tensor cores run FP16 with FP32 accumulation at twice the FP32 shader rate (Ada and Blackwell white papers,
# appendix tables); laptop and workstation parts by the same rule at their own clocks.
CARDS: Final[Mapping[str, CardSpec]] = {
    "RTX 5090": CardSpec(1792e9, 209.5e12),
    "RTX 5080": CardSpec(960e9, 112.6e12),
    "RTX 5070 Ti": CardSpec(896e9, 87.9e12),
    "RTX 5070": CardSpec(672e9, 61.7e12),
    "RTX 5060 Ti": CardSpec(448e9, 47.4e12),
    "RTX 5060": CardSpec(448e9, 38.4e12),
    "RTX 4090": CardSpec(1008e9, 165.2e12),
    "RTX 4080": CardSpec(717e9, 97.5e12),
    "RTX 4070 Ti": CardSpec(504e9, 80.2e12),
    "RTX 4070": CardSpec(504e9, 58.3e12),
    "RTX 4060 Ti": CardSpec(288e9, 44.1e12),
    "RTX 4060": CardSpec(272e9, 30.2e12),
    "RTX 3500 Ada laptop": CardSpec(432e9, 46.0e12),
    "RTX 3090": CardSpec(936e9, 71.0e12),
    "RTX 3080": CardSpec(760e9, 59.5e12),
    "RTX 3070": CardSpec(448e9, 40.6e12),
    "RTX 3060": CardSpec(360e9, 25.5e12),
}


@dataclass(frozen=True, slots=True)
class KernelEfficiency:
    """Share of a device's bandwidth that a matrix-vector product reaches, and of its peak that a large one does."""

    gemv: float
    gemm: float


# GPU, by family of weight types. Quantised products run on int8 tensor cores (nominally twice FP16), hence the
# higher share of the FP16 peak; unpacking of K and codebook types costs part of it.
GPU_EFFICIENCY: Final[Mapping[str, KernelEfficiency]] = {
    "float": KernelEfficiency(0.72, 0.60),
    "legacy": KernelEfficiency(0.68, 0.80),
    "k": KernelEfficiency(0.62, 0.65),
    "lookup": KernelEfficiency(0.55, 0.55),
}
GPU_LAUNCH_NS: Final = 2_500.0  # one kernel inside a CUDA graph
GPU_ATTENTION_FLOPS_SHARE: Final = 0.50  # flash attention, prefill: of the tensor peak
GPU_ATTENTION_BANDWIDTH_SHARE: Final = 0.55  # flash attention, one token: of the memory bandwidth
GPU_EXPERT_GEMM_SHARE: Final = 0.15  # products of many small experts, many tokens: of the dense product's rate

CPU_DRAM_SHARE: Final = 0.72  # one consumer of DRAM, all cores reading: of the nominal bandwidth
CPU_DRAM_TOTAL_SHARE: Final = 0.85  # several consumers together (cores and DMA)
# flop/s of one core in ggml-cpu's products (AVX2, about 3 GHz), by family; one for many tokens, one for a single one
CPU_CORE_GEMM_FLOPS_S: Final[Mapping[str, float]] = {"float": 35e9, "legacy": 70e9, "k": 60e9, "lookup": 30e9}
CPU_CORE_GEMV_FLOPS_S: Final[Mapping[str, float]] = {"float": 12e9, "legacy": 30e9, "k": 30e9, "lookup": 15e9}
CPU_CORE_ATTENTION_FLOPS_S: Final = 7e9  # flash attention of ggml-cpu 0.25.3, one token; measured on one core (AVX2)
CPU_SHORT_READ_SHARE: Final = 0.5  # heads of a cache row, rows of one small expert: of the sequential rate
CPU_OP_NS: Final = 2_000.0  # an operation of a graph: dispatch ...
CPU_OP_THREAD_NS: Final = 400.0  # ... and its barrier, for each thread

LINK_LATENCY_NS: Final = 10_000.0  # a small copy and its synchronisation with the host
LINK_UNDER_CPU_SHARE: Final = 0.95  # DMA has priority at the memory controller
PAGEABLE_BYTES_S: Final = 12e9  # staging through a pinned buffer is bound by one core's memcpy
COPY_NS: Final = 2_000.0  # a copy of many that are queued, besides its bytes: a descriptor, and a gap on the bus
HOST_SYNC_NS: Final = 15_000.0  # a change between CPU and device: launch, event, wake-up
STEP_NS: Final = 300_000.0  # outside the graph: sampling, batch set-up ...
STEP_TOKEN_NS: Final = 4_000.0  # ... of each token, with its embedding
STEP_CELL_NS: Final = 0.35  # ... and of each token and cell of the cache, for the causal mask


@dataclass(frozen=True)
class Machine:
    """Rates of a CPU, a device and the link between them. Rates in units per second, times in ns."""

    name: str
    device_memory_bytes: int
    host_memory_bytes: int
    device_bandwidth_bytes_s: float
    device_flops_s: float
    cpu_threads: int
    cpu_bandwidth_bytes_s: float
    cpu_bandwidth_busy_bytes_s: float  # left to the CPU while the link is busy
    link_bytes_s: float
    link_under_cpu_share: float = LINK_UNDER_CPU_SHARE
    link_latency_ns: float = LINK_LATENCY_NS
    copy_ns: float = COPY_NS  # of each copy, where many are queued
    pageable_bytes_s: float = PAGEABLE_BYTES_S
    host_sync_ns: float = HOST_SYNC_NS  # the mean of both directions: half of them start the CPU's threads
    host_wait_ns: float = HOST_SYNC_NS  # the host waits for the device, and goes on by one thread
    cpu_start_ns: float = 0.0  # more where it goes on by all of them
    launch_ns: float = GPU_LAUNCH_NS
    submit_ns: float = 0.0  # of each graph that the device is given
    step_ns: float = STEP_NS
    step_token_ns: float = STEP_TOKEN_NS
    step_cell_ns: float = STEP_CELL_NS
    has_device: bool = True  # else everything is computed on the CPU, whatever the budget

    @property
    def cpu_op_ns(self) -> float:
        return CPU_OP_NS + CPU_OP_THREAD_NS * self.cpu_threads

    def cpu_flops_s(self, type_name: str, tokens: float) -> float:
        """A single token's rate is multiplied by the tokens that share what was read, up to that of many."""
        one, many = CPU_CORE_GEMV_FLOPS_S[family(type_name)], CPU_CORE_GEMM_FLOPS_S[family(type_name)]
        return min(many, one * max(1.0, tokens)) * self.cpu_threads


def card(name: str) -> CardSpec:
    """The card of that name. ShapeError machine_invalid for one that is not in the table."""
    wanted = _plain(name)
    known = [key for key in sorted(CARDS, key=len, reverse=True) if _plain(key) in wanted]
    if not known:
        raise _invalid(f"no specification is known of the card {name!r}", f"known are {', '.join(sorted(CARDS))}")
    return CARDS[known[0]]


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower().replace("geforce", "").replace("nvidia", ""))


def machine_from_row(row: Mapping[str, Any]) -> Machine:
    """From the columns of a machines.csv row. ShapeError machine_invalid for what is missing or cannot be."""
    spec = card(str(row.get("gpu") or ""))
    ram = _rate(row, "ram_bandwidth_gb_s") * 1e9
    link = _rate(row, "pcie_h2d_gb_s") * 1e9
    alone = ram * CPU_DRAM_SHARE
    return Machine(
        name=str(row.get("machine", "")),
        device_memory_bytes=int(_rate(row, "gpu_vram_gib") * 2**30),
        host_memory_bytes=int(_rate(row, "ram_gib") * 2**30),
        device_bandwidth_bytes_s=spec.bandwidth_bytes_s,
        device_flops_s=spec.tensor_flops_s,
        cpu_threads=_whole(row, "cpu_threads_used"),
        cpu_bandwidth_bytes_s=alone,
        cpu_bandwidth_busy_bytes_s=min(alone, max(0.1 * alone, ram * CPU_DRAM_TOTAL_SHARE - link)),
        link_bytes_s=link,
        pageable_bytes_s=min(link, PAGEABLE_BYTES_S),
    )


def _whole(row: Mapping[str, Any], column: str) -> int:
    value = _rate(row, column)
    if value != int(value):
        raise _invalid(f"{column} = {value} is no whole number")
    return int(value)


def _rate(row: Mapping[str, Any], column: str) -> float:
    text = row.get(column)
    if text in (None, ""):
        raise _invalid(f"{column} is missing")
    try:
        value = float(str(text))
    except ValueError as error:
        raise _invalid(f"{column} = {text!r} is no number") from error
    if not 0.0 < value < 1e6:
        raise _invalid(f"{column} = {value} cannot be")
    return value


def _invalid(text: str, hint: str = "docs/plan.md has the columns of a machine") -> ShapeError:
    return ShapeError(text, code="machine_invalid", hint=hint)
