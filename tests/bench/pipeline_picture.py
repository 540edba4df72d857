"""Draws docs/pictures/pipeline.png from a recorded step.

usage: xlm bench --trace step.json … ; python -m tests.bench.pipeline_picture step.json docs/pictures/pipeline.png
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Okabe and Ito: told apart by colour-blind readers too
COLOURS = {"attention": "#0072B2", "ffn": "#D55E00", "experts": "#E69F00", "output": "#009E73", "": "#9aa1a9"}
SHOWN = ("CPU", "device", "link to device")
WORDS = {"CPU": "CPU\ncomputes", "device": "card\ncomputes", "link to device": "link carries\nweights"}
ZOOM_SHARE = 0.3


def rows_of(trace: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Events by the name of their row; those of no length are left out."""
    names = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in names.values()}
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["dur"] > 0:
            rows[names[event["tid"]]].append(event)
    return rows


def draw(trace: dict[str, Any], path: Path) -> None:
    rows = rows_of(trace)
    (step,) = rows["step"][-1:]
    begin, length = step["ts"], step["dur"]
    figure = Figure(figsize=(13, 6.2), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    whole, near = figure.subplots(2, 1)
    _panel(whole, rows, begin, begin + length, labels=False)
    middle = begin + length * 0.35
    _panel(near, rows, middle, middle + length * ZOOM_SHARE, labels=True)
    about = trace["otherData"]
    tokens = f"{about['tokens']} token" + ("s" if about["tokens"] > 1 else "")
    whole.set_title(
        f"One step of {tokens} at depth {about['depth']}: {about['model']} model on the modelled {about['card']} card, "
        f"budget {about['budget_share']:.0%} of the model ({length / 1e3:.1f} ms)",
        fontsize=11,
    )
    near.set_title("The same, a part of it", fontsize=10)
    near.set_xlabel("milliseconds from the step's begin")
    _legend(near)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _panel(axes: Any, rows: dict[str, list[dict[str, Any]]], begin: float, end: float, *, labels: bool) -> None:
    for height, name in enumerate(reversed(SHOWN)):
        for event in rows[name]:
            _bar(axes, event, height, begin, end, labels=labels)
    axes.set_yticks(range(len(SHOWN)), labels=[WORDS[name] for name in reversed(SHOWN)])
    axes.set_xlim(0, (end - begin) / 1e3)
    axes.set_ylim(-0.55, len(SHOWN) - 0.45)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _bar(axes: Any, event: dict[str, Any], height: int, begin: float, end: float, *, labels: bool) -> None:
    left, right = max(event["ts"], begin), min(event["ts"] + event["dur"], end)
    if right <= left:
        return
    kind = event["args"]["sublayer"].split(" ")[0]
    colour = COLOURS.get(kind, COLOURS[""])
    width = (right - left) / 1e3
    axes.barh(height, width, left=(left - begin) / 1e3, height=0.72, color=colour, edgecolor="white", linewidth=0.4)
    if labels and width > 0.045 * (end - begin) / 1e3:
        name = event["args"]["sublayer"] or event["name"]
        more = event["args"]["sublayers"] - 1
        text = name.replace("attention", "attn") + (f" +{more}" if more > 0 else "")
        axes.text((left - begin) / 1e3 + width / 2, height, text, ha="center", va="center", fontsize=7, color="white")


def _legend(axes: Any) -> None:
    for kind in ("attention", "ffn", "output"):
        axes.barh(0, 0, color=COLOURS[kind], label={"ffn": "feed-forward"}.get(kind, kind))
    axes.legend(loc="upper right", bbox_to_anchor=(1.0, 1.16), ncols=3, fontsize=8, frameon=False)


def main(arguments: Sequence[str]) -> None:
    draw(json.loads(Path(arguments[0]).read_text(encoding="utf-8")), Path(arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
