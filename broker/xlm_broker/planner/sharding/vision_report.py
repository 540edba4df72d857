"""What images cost, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from xlm.protocol.link import CPU, RESIDENT, STREAM

from .plan import NS_PER_MS
from .tower import SLICED
from .vision import MIB, RESOLUTIONS, TILE_PATCHES, VisionPlan, VisionPlanner, scratch_bytes

_MODES: Final = {CPU: "cpu", STREAM: "stream", RESIDENT: "resident"}


def image_rows(planner: VisionPlanner, budget_bytes: int) -> list[dict[str, Any]]:
    """One row a resolution; bytes and ms in the names. ``runs``: times that the tower runs for the image."""
    return [_row(planner, name, *size, budget_bytes) for name, size in RESOLUTIONS.items()]


def _row(planner: VisionPlanner, name: str, width: int, height: int, budget_bytes: int) -> dict[str, Any]:
    tower = planner.tower
    patches, runs = tower.patches(width, height)
    plan = planner.plan(patches, budget_bytes)
    return {
        "image": name, "width": width, "height": height, "patches": patches, "runs": runs,
        "tokens": tower.tokens(patches) * runs, "encode_ms": runs * plan.total_ns / NS_PER_MS,
        "compute_device_ms": runs * plan.device_ns / NS_PER_MS, "compute_cpu_ms": runs * plan.cpu_ns / NS_PER_MS,
        "hops_ms": runs * plan.hops_ns / NS_PER_MS, "upload_ms": plan.upload_ns / NS_PER_MS,
        "limit": plan.limit, "scratch_bytes": plan.scratch_bytes, "ring_bytes": plan.ring_bytes,
        "resident_bytes": plan.resident_bytes, "placement": _placement(planner, plan),
        "least_device_bytes": least_device_bytes(planner, patches),
        "one_slice_only": tower.kind in SLICED and runs == 1,
    }  # fmt: skip


def least_device_bytes(planner: VisionPlanner, patches: int) -> int:
    """The budget from which on an image of so many patches is encoded on the device, weights streamed."""
    tower = planner.tower
    largest = max((unit.device_bytes for unit in tower.units), default=0)
    return scratch_bytes(tower, patches, TILE_PATCHES[-1]) + tower.small_bytes + 2 * largest


def _placement(planner: VisionPlanner, plan: VisionPlan) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for unit, mode in zip(planner.tower.units, plan.modes, strict=True):
        of_kind = counts.setdefault(unit.kind, {})
        of_kind[_MODES[mode]] = of_kind.get(_MODES[mode], 0) + 1
    return counts


def image_lines(rows: Sequence[dict[str, Any]], *, explain: bool) -> list[str]:
    head = ["image", "patches", "tokens", "encode ms", "bound by", "scratch MiB", "weights MiB", "whole from MiB"]
    kinds = list(rows[0]["placement"]) if explain else []
    more = ["cpu ms", "device ms", "upload ms", "hops ms", *kinds] if explain else []
    table = [[*head, *more], *(_cells(row, kinds, explain=explain) for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in table]
    notes = ["(predicted; the language model's copies give way meanwhile; r resident, s streamed, c on the CPU)"]
    if any(row["one_slice_only"] for row in rows):
        notes.append("(of one slice: this family cuts an image into several, as many as its own rules say)")
    return ["images", *lines, *notes]


def _cells(row: dict[str, Any], kinds: Sequence[str], *, explain: bool) -> list[str]:
    patches = f"{row['patches']}" + (f" x {row['runs']}" if row["runs"] > 1 else "")
    cells = [row["image"], patches, str(row["tokens"]), f"{row['encode_ms']:.1f}", row["limit"]]
    cells += [f"{row[name] / MIB:.1f}" for name in ("scratch_bytes", "resident_bytes", "least_device_bytes")]
    if not explain:
        return cells
    cells += [f"{row[name]:.1f}" for name in ("compute_cpu_ms", "compute_device_ms", "upload_ms", "hops_ms")]
    return [*cells, *(" ".join(f"{m[0]}{n}" for m, n in row["placement"][kind].items()) for kind in kinds)]
