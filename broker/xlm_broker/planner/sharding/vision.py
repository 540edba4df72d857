"""The vision phase: what of a tower is resident, streamed or on the CPU, by patches and budget, and how long it takes.

The tower has the device to itself: the language model's copies give way while an image is encoded. Its weights are
uploaded anew for each request, so that resident and streamed ones cost the same for the first image; activations, not
weights, are what a large image needs. Costs are those of the language model's operations (kernels.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from xlm.protocol.link import CPU, RESIDENT, STREAM, Tier

from .hardware import Machine
from .kernels import Kernels, Where
from .tower import WINDOW_KEYS, Tower, TowerUnit

MIB: Final = 1 << 20
ANY_PATCHES: Final = (1 << 32) - 1
RESOLUTIONS: Final = {"480p": (854, 480), "720p": (1280, 720), "1080p": (1920, 1080), "1440p": (2560, 1440)}
# As the backend has them (native/src/backend/patch_runs.hpp): sub-layers go so many patches at a time.
TILE_PATCHES: Final = (512, 256, 128, 64)
MASK_TILE_BYTES: Final = 1 << 20
LAYOUT_SLACK: Final = 1.08  # places that do not join without gaps; measured: 1.02 to 1.06


@dataclass(frozen=True)
class VisionPlan:
    """One tier. Times in ns, of one run of the tower with ``patches``, its weights on the host before."""

    patches: int
    modes: tuple[int, ...]  # by unit: CPU, STREAM, RESIDENT
    scratch_bytes: int
    ring_bytes: int
    resident_bytes: int  # small tensors included
    device_ns: float
    cpu_ns: float
    hops_ns: float
    upload_ns: float

    @property
    def total_ns(self) -> float:
        """Uploads run beside everything else."""
        return max(self.device_ns + self.cpu_ns + self.hops_ns, self.upload_ns)

    @property
    def used(self) -> bool:
        return any(self.modes)

    @property
    def limit(self) -> str:
        if self.upload_ns > self.device_ns + self.cpu_ns + self.hops_ns:
            return "link"
        return "cpu" if self.cpu_ns > self.device_ns else "device"


@dataclass(frozen=True)
class VisionPlanner:
    """Pure; its kernels may count what they assumed."""

    tower: Tower
    machine: Machine
    kernels: Kernels

    def tiers(self) -> list[int]:
        """Patches that have a schedule of their own: those of usual screens, or the one size the tower takes."""
        return sorted({self.tower.patches(*size)[0] for size in RESOLUTIONS.values()})

    def plan(self, patches: int, budget_bytes: int) -> VisionPlan:
        """The fastest of what fits. Nothing fits a budget too small for the activations: then all is on the CPU."""
        found = [self._measured(patches, frozenset(range(len(self.tower.units))), 0, 0)]
        for off in self._choices():
            for tile in TILE_PATCHES:
                scratch = scratch_bytes(self.tower, patches, tile, off_kinds(self.tower, off))
                plan = self._fitted(patches, off, scratch, budget_bytes)
                if plan is not None:
                    found.append(plan)
                    break
        return min(found, key=lambda plan: (plan.total_ns, plan.resident_bytes))

    def _choices(self) -> list[frozenset[int]]:
        """Sets of units for the CPU: none, those outside of the layers, and more and more feed-forward parts."""
        outer = [i for i, unit in enumerate(self.tower.units) if unit.kind not in ("attention", "ffn")]
        ffn = [i for i, unit in enumerate(self.tower.units) if unit.kind == "ffn"]
        counts = sorted({len(ffn) * k // 8 for k in range(9)})
        return [frozenset([*part, *ffn[:n]]) for part in ([], outer) for n in counts]

    def _fitted(self, patches: int, off: frozenset[int], scratch: int, budget: int) -> VisionPlan | None:
        wanted = [unit for i, unit in enumerate(self.tower.units) if i not in off]
        if not wanted:
            return None
        whole = sum(unit.device_bytes for unit in wanted)
        left = budget - scratch - self.tower.small_bytes
        if left >= whole:
            return self._measured(patches, off, scratch, 0, whole)
        ring = ring_bytes(self.tower, budget)
        return self._measured(patches, off, scratch, ring, left - ring) if 0 < ring <= left else None

    def _measured(self, patches: int, off: frozenset[int], scratch: int, ring: int, room: int = 0) -> VisionPlan:
        modes = _modes(self.tower.units, off, room)
        device = sum(self.unit_ns("gpu", u, patches) for u, m in zip(self.tower.units, modes, strict=True) if m)
        cpu = sum(self.unit_ns("cpu", u, patches) for u, m in zip(self.tower.units, modes, strict=True) if not m)
        copied = [unit.device_bytes for unit, mode in zip(self.tower.units, modes, strict=True) if mode]
        kept = sum(u.device_bytes for u, m in zip(self.tower.units, modes, strict=True) if m == RESIDENT)
        upload = 1e9 * (sum(copied) + self.tower.small_bytes) / self.machine.link_bytes_s if copied else 0.0
        return VisionPlan(
            patches=patches, modes=modes, scratch_bytes=scratch if copied else 0, ring_bytes=ring if copied else 0,
            resident_bytes=kept + self.tower.small_bytes if copied else 0, device_ns=device, cpu_ns=cpu,
            hops_ns=self._hops_ns(patches, modes), upload_ns=upload,
        )  # fmt: skip

    def _hops_ns(self, patches: int, modes: Sequence[int]) -> float:
        """The image and the result travel; and two rows of activations a patch wherever the computing side changes."""
        if not any(modes):
            return 0.0
        changes = sum(bool(a) != bool(b) for a, b in pairwise(modes))
        row = 2 * 4.0 * self.tower.width * patches
        image = 12.0 * self.tower.patch**2 * patches if modes[0] else 4.0 * self.tower.width * patches
        moved = changes * row + image + 4.0 * self.tower.width * self.tower.tokens(patches)
        return 1e9 * moved / self.machine.link_bytes_s + (changes + 2) * self.machine.host_sync_ns

    def unit_ns(self, where: Where, unit: TowerUnit, patches: int) -> float:
        """One sub-layer, weights where they are needed."""
        rows = max(1.0, patches * unit.share)
        total = sum(self.kernels.matmul(where, product, rows) for product in unit.products)
        total += sum(self.kernels.small(where, op, width, rows) for op, width in self.tower.small_ops(unit.kind))
        if unit.kind == "attention":
            keys = min(patches, WINDOW_KEYS) if unit.windowed else patches
            total += self.kernels.attention(where, self.tower.attention, patches, keys)
        return total


def _modes(units: Sequence[TowerUnit], off: frozenset[int], room: int) -> tuple[int, ...]:
    """In the order of execution: what is resident first is there when the next image begins."""
    modes: list[int] = []
    for i, unit in enumerate(units):
        fits = i not in off and unit.device_bytes <= room
        room -= unit.device_bytes if fits else 0
        modes.append(CPU if i in off else RESIDENT if fits else STREAM)
    return tuple(modes)


def off_kinds(tower: Tower, off: frozenset[int]) -> frozenset[str]:
    """Kinds of which nothing runs on the device."""
    on = {unit.kind for i, unit in enumerate(tower.units) if i not in off}
    return frozenset(unit.kind for unit in tower.units) - on


def ring_bytes(tower: Tower, budget_bytes: int) -> int:
    """Two of the largest sub-layers, so that one is uploaded while the other is used; at most a quarter of all."""
    largest = max((unit.device_bytes for unit in tower.units), default=0)
    return min(2 * largest, budget_bytes // 4)


def scratch_bytes(tower: Tower, patches: int, tile: int, off: frozenset[str] = frozenset()) -> int:
    """Device memory of activations: rows of all patches that sub-layers hand on, and what one tile makes and uses up.

    Attention: residual, query and result in F32, key and value in F16; feed-forward: residual, its norm, the result.
    """
    width, rows = tower.width, min(tile, patches)
    mask = max(MASK_TILE_BYTES, 256 * patches) if any(unit.windowed for unit in tower.units) else 0
    attention = 16 * width * patches + max(mask, rows * 4 * 5 * width)
    ffn = 12 * width * patches + mask + rows * 4 * (3 * tower.hidden + 2 * width)
    embedding = 12 * width * patches + rows * (15 * tower.patch**2 + 2 * width)
    found = [0 if "attention" in off else attention, 0 if "ffn" in off else ffn]
    found.append(0 if "projector" in off else embedding)
    return int(LAYOUT_SLACK * max(found)) + MIB // 4


def vision_tiers(planner: VisionPlanner, budget_bytes: int) -> tuple[list[Tier], int, dict[str, float]]:
    """Tiers, ring and predicted times (ms, by patches) for a schedule; no tiers without a budget."""
    if budget_bytes <= 0:
        return [], 0, {}
    tower, plans = planner.tower, [planner.plan(patches, budget_bytes) for patches in planner.tiers()]
    tiers = []
    for i, plan in enumerate(plans):
        placement = bytearray(tower.n_sublayers)
        for unit, mode in zip(tower.units, plan.modes, strict=True):
            placement[unit.index] = mode
        for index in tower.small_indices:
            placement[index] = RESIDENT if plan.used else CPU
        limit = ANY_PATCHES if i + 1 == len(plans) else plan.patches
        tiers.append(Tier(max_tokens=limit, placement=bytes(placement), scratch_bytes=plan.scratch_bytes))
    # sub-layers that do not fit beside an image of another size go through the ring too
    ring = ring_bytes(tower, budget_bytes) if any(plan.used for plan in plans) else 0
    return tiers, ring, {f"image_{plan.patches}_patches_ms": plan.total_ns / 1e6 for plan in plans}
