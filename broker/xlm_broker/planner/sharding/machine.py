"""The machine this broker runs on: rates from its profile, or careful guesses that are named."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import log
from typing import Final

from xlm.errors import ShapeError
from xlm.protocol.link import DeviceFacts

from .hardware import CPU_DRAM_TOTAL_SHARE, LINK_UNDER_CPU_SHARE, Machine, card
from .kernels import Kernels, Profiled, Roofline
from .profile import Direction, LinkPoint, MachineProfile, Memory

# An unknown machine, on the careful side: a laptop card of some years ago on PCIe 3.0 x8, dual-channel DDR4
UNKNOWN_DEVICE_BYTES_S: Final = 192e9
UNKNOWN_DEVICE_FLOPS_S: Final = 12e12
UNKNOWN_LINK_BYTES_S: Final = 6e9
UNKNOWN_RAM_BYTES_S: Final = 25e9
UNKNOWN_THREADS: Final = 4  # where nobody knows the cores
NO_PROFILE: Final = "no profile"  # how the note begins that says so


def guessed_machine(device: DeviceFacts, threads: int = 0) -> tuple[Machine, tuple[str, ...]]:
    """Without a profile: the card's data sheet if its name is known, and what was assumed. ``threads`` 0: the
    engine's, as many as it has physical cores."""
    threads = threads or device.n_threads or UNKNOWN_THREADS
    rates = f"CPU with {UNKNOWN_RAM_BYTES_S / 1e9:.0f} GB/s of memory, {threads} thread{'s' * (threads != 1)}"
    notes = [f"{NO_PROFILE}: guessed for an unknown machine ({rates}), not this one (measure it once: xlm profile)"]
    bandwidth, flops = UNKNOWN_DEVICE_BYTES_S, UNKNOWN_DEVICE_FLOPS_S
    try:
        spec = card(device.description)
        bandwidth, flops = spec.bandwidth_bytes_s, spec.tensor_flops_s
        notes.append(f"rates of {device.description} from its data sheet")
    except ShapeError:
        notes.append(f"no data sheet of {device.description or device.kind!r}")
    link = device.link_bytes_per_s or UNKNOWN_LINK_BYTES_S
    machine = Machine(
        name="this machine",
        device_memory_bytes=device.total_bytes,
        host_memory_bytes=0,
        device_bandwidth_bytes_s=bandwidth,
        device_flops_s=flops,
        cpu_threads=threads,
        cpu_bandwidth_bytes_s=UNKNOWN_RAM_BYTES_S,
        cpu_bandwidth_busy_bytes_s=max(0.3 * UNKNOWN_RAM_BYTES_S, CPU_DRAM_TOTAL_SHARE * UNKNOWN_RAM_BYTES_S - link),
        link_bytes_s=link,
    )
    return machine, tuple(notes)


def profiled_machine(
    profile: MachineProfile, device: DeviceFacts, threads: int = 0
) -> tuple[Machine, Kernels, tuple[str, ...]]:
    """Rates and kernels of a profile. ``threads`` 0: the largest count that was measured."""
    base, _ = guessed_machine(device)
    counts = {p.threads for p in profile.kernels if p.device == "cpu" and p.threads > 0}
    threads = threads or max(counts, default=profile.key.n_cores)
    machine = _with_changes(_with_link(replace(base, cpu_threads=max(1, threads)), profile, threads), profile)
    notes = [] if profile.complete else ["the profile is not complete: xlm profile goes on where it stopped"]
    notes += ["a quick profile: coarse"] if profile.quick else []
    return machine, Profiled(profile, machine.cpu_threads, Roofline(machine)), tuple(notes)


def _with_link(machine: Machine, profile: MachineProfile, threads: int) -> Machine:
    alone = _fastest(profile.links, "h2d", "pinned", 0) or _fastest(profile.links, "h2d", "pageable", 0)
    if alone is None:
        return machine
    busy = [p for p in profile.links if p.cpu_threads > 0]
    nearest = min({p.cpu_threads for p in busy}, key=lambda n: abs(log(n / threads)), default=0)
    loaded = _fastest(busy, "h2d", "pinned", nearest) if nearest else None
    share = min(1.0, loaded / alone) if loaded else LINK_UNDER_CPU_SHARE
    return replace(
        machine,
        link_bytes_s=alone,
        link_under_cpu_share=max(0.05, share),
        pageable_bytes_s=_fastest(profile.links, "h2d", "pageable", 0) or machine.pageable_bytes_s,
        link_latency_ns=float(min((p.ns for p in profile.links if p.size_bytes <= 1 << 16), default=10_000)),
        copy_ns=_queued_copy(profile.links, machine.copy_ns),
    )


def _with_changes(machine: Machine, profile: MachineProfile) -> Machine:
    """Each way to the device has one back, behind which the CPU's threads are woken: what its smallest graph takes."""
    graphs = [p for p in profile.kernels if p.op == "GRAPH"]
    device = min((float(p.ns) for p in graphs if p.device == "gpu"), default=machine.host_wait_ns)
    start = {p.threads: float(p.ns) for p in graphs if p.device == "cpu"}
    nearest = min(start, key=lambda n: abs(log(n / machine.cpu_threads)), default=0)
    cpu_ns = start.get(nearest, 0.0)
    return replace(machine, host_wait_ns=device, host_sync_ns=device + cpu_ns / 2.0, cpu_start_ns=cpu_ns)


def _queued_copy(points: Iterable[LinkPoint], default: float) -> float:
    """What each copy of a queue costs besides its bytes: those of two sizes were timed while the CPU computed."""
    found = []
    for threads in {p.cpu_threads for p in points if p.cpu_threads > 0}:
        queue = sorted((p.size_bytes, p.ns) for p in points if (p.direction, p.cpu_threads) == ("h2d", threads))
        if len(queue) > 1:
            (small, small_ns), (large, large_ns) = queue[0], queue[-1]
            found.append((small_ns * large - large_ns * small) / (large - small))
    return max(0.0, min(found)) if found else default


def _fastest(points: Iterable[LinkPoint], direction: Direction, memory: Memory, cpu_threads: int) -> float | None:
    """Bytes per second at the best size, which is the rate of long transfers."""
    wanted = (direction, memory, cpu_threads)
    rates = [1e9 * p.size_bytes / p.ns for p in points if (p.direction, p.memory, p.cpu_threads) == wanted]
    return max(rates, default=None)
