"""``xlm plan --explain``: the sub-layers, those alike in one line, and what the words of a plan mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from .vision import MIB

LEGEND: Final = (
    "n, MiB, KV MiB: how many sub-layers are alike, and what all of them have. layers: blk.N of the model's file",
    "keeps: what stays on the device between steps (all: weights and KV cache; KV: the cache alone; lent: while"
    " only short steps run, in the scratch of long ones; -: nothing)",
    "<=N: where they run in a step of up to N tokens. resident: on the device, from copies that are there;",
    "  stream: on the device, weights copied for the step; stream with KV: the cache copied too; cpu: on the CPU",
    "further up, ms of one step: cpu, device: computing; link: copying, beside that; wait: for the link; hops: going",
    "  between CPU and device; slowed: by copies that use the same memory. ring: where copies for a step pass through;",
    "  scratch: intermediate results; why: the same memory with all on the CPU, with nothing streamed (static), and",
    "  with nothing on the CPU (streaming)",
)

Row = dict[str, Any]


def explained(rows: Sequence[Row], tiers: Sequence[int]) -> list[str]:
    """A table of ``sublayer_rows`` and the legend."""
    columns = list(_columns(rows, len(tiers)))
    head = ["kind", "n", "MiB", "KV MiB", "keeps", *(f"<={tiers[tier]}" for tier in columns), "layers"]
    table = [head, *(_cells(group, columns) for group in _groups(rows))]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return [*lines, "", *LEGEND]


def _columns(rows: Sequence[Row], n_tiers: int) -> Iterator[int]:
    """The last of each run of tiers with the same places."""
    places = [[row["modes"][tier] for row in rows] for tier in range(n_tiers)]
    return (tier for tier in range(n_tiers) if tier + 1 == n_tiers or places[tier] != places[tier + 1])


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Sub-layers of one kind and place; in the order of the first of each."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["kind"], row["keeps"], *row["modes"]), []).append(row)
    return list(groups.values())


def _cells(group: Sequence[Row], columns: Sequence[int]) -> list[str]:
    sizes = [f"{sum(row[name] for row in group) / MIB:.1f}" for name in ("bytes", "kv_bytes")]
    places = [group[0]["modes"][tier] for tier in columns]
    return [group[0]["kind"], str(len(group)), *sizes, group[0]["keeps"], *places, _layers(group)]


def _layers(group: Sequence[Row]) -> str:
    """Ranges: ``blk.0-3, 5, 7-11``; ``-`` where they are in no layer."""
    runs: list[list[int]] = []
    for layer in sorted({row["layer"] for row in group if row["layer"] >= 0}):
        if runs and runs[-1][1] + 1 == layer:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return "blk." + ", ".join(f"{a}-{b}" if a < b else str(a) for a, b in runs) if runs else "-"
