"""timeline.png: one picture of a demo run, for people who have read nothing else.

Three panels over one time axis: the card (the game's part, the model's part and
what it holds), tokens per second, frame times. Colours are Okabe and Ito's,
which colour-blind readers can tell apart ("Color Universal Design", 2008).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from xlm_broker.demo.game import FRAME_MS
from xlm_broker.demo.record import BudgetChange, Memory, Recorder
from xlm_broker.demo.summary import MIB, TROUBLE, reclaim_words, token_words, troubles

_INK: Final = "#222222"
_MUTED: Final = "#5f6770"
_TROUBLE: Final = "#a50026"
_LATE: Final = "#D55E00"
_GAME: Final = "#d5d9de"
_BAND: Final = "#f1f3f5"
_PARTS: Final = (
    ("resident_bytes", "weights", "#0072B2"),
    ("kv_bytes", "conversation (KV)", "#56B4E9"),
    ("scratch_bytes", "scratch", "#E69F00"),
    ("ring_bytes", "streaming ring", "#009E73"),
)
_VOICES: Final = ("#D55E00", "#CC79A7", "#F0E442", "#000000")
_BUDGET: Final = "the model's budget"
_SHARE: Final = "the game's share"
_DEMAND: Final = "all the model can use"
_SIM_NOTE: Final = "the virtual GPU computes on this machine's CPU: the words are real, their speed is not a card's"
_BIN_S: Final = 0.5
_LABEL_GAP_S: Final = 0.004  # of the whole time axis, between an edge and its label


def draw(record: Recorder, summary: Mapping[str, Any], path: Path) -> None:
    """Writes the picture. Raises ModuleNotFoundError without matplotlib, OSError if the file cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 9.2), dpi=110, facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(
        3, 1, height_ratios=(3.3, 1.35, 1.35), hspace=0.2, left=0.07, right=0.845, top=0.845, bottom=0.065
    )
    card = figure.add_subplot(grid[0])
    speech = figure.add_subplot(grid[1], sharex=card)
    frames = figure.add_subplot(grid[2], sharex=card)
    _title(figure, record, summary)
    for axes in (card, speech, frames):
        _dress(axes, record)
    _draw_card(card, record)
    _draw_speech(speech, record, summary)
    _draw_frames(frames, record, summary)
    _mark_troubles(card, summary)
    card.tick_params(labelbottom=False)
    speech.tick_params(labelbottom=False)
    frames.set_xlabel("seconds", color=_MUTED)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _title(figure: Any, record: Recorder, summary: Mapping[str, Any]) -> None:
    words = f"{reclaim_words(summary)};\n{token_words(summary)}."
    figure.text(0.07, 0.982, words, fontsize=15.5, fontweight="bold", color=_INK, va="top", linespacing=1.25)
    device, model = summary.get("device", {}), summary.get("model", {})
    who = f"{model.get('name', 'model')} on {device.get('description', 'device')}"
    about = f"{who}; two characters talk while the game changes the model's budget."
    figure.text(0.07, 0.903, about, fontsize=11.5, color=_MUTED)


def _dress(axes: Any, record: Recorder) -> None:
    axes.set_xlim(0, record.phases[-1].end_s)
    for index, phase in enumerate(record.phases):
        if index % 2:
            axes.axvspan(phase.start_s, phase.end_s, color=_BAND, zorder=0, linewidth=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#9aa1a8")
    axes.tick_params(colors=_MUTED, labelsize=10)
    axes.set_axisbelow(False)


# -- the card ----------------------------------------------------------------------


def budget_steps(record: Recorder) -> tuple[list[float], list[float]]:
    """Times and MiB of the budget line, for a step drawn after each point."""
    first = record.changes[0].from_bytes if record.changes else 0
    times, values = [0.0], [first / MIB]
    for change in record.changes:
        times.append(max(change.answered_s, times[-1]))
        values.append(change.to_bytes / MIB)
    end = record.phases[-1].end_s
    return [*times, max(end, times[-1])], [*values, values[-1]]


def _within(samples: Sequence[Memory], end_s: float) -> list[Memory]:
    return sorted((sample for sample in samples if 0.0 <= sample.t_s <= end_s), key=lambda sample: sample.t_s)


def _draw_card(axes: Any, record: Recorder) -> None:
    top = max(record.device_bytes, record.demand_bytes, MIB) / MIB
    times, budget = budget_steps(record)
    axes.fill_between(times, budget, top, step="post", color=_GAME, linewidth=0, zorder=1, label=_SHARE)
    end_s = record.phases[-1].end_s
    _stack(axes, _within(record.memory, end_s), end_s)
    axes.step(times, budget, where="post", color=_INK, linewidth=2.4, zorder=5, label=_BUDGET)
    if record.demand_bytes:
        axes.axhline(record.demand_bytes / MIB, color=_MUTED, linewidth=1.1, linestyle=":", zorder=2, label=_DEMAND)
    axes.set_ylim(0, 1.012 * top)
    axes.set_ylabel("video memory (MiB)", color=_INK, fontsize=11)
    _name_phases(axes, record)
    _label_reclaims(axes, record, top)
    by_label = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    order = [name for name in (_BUDGET, _SHARE, _DEMAND, *(label for _, label, _ in _PARTS)) if name in by_label]
    _legend(axes, [by_label[name] for name in order], order, "the card")


def _stack(axes: Any, samples: Sequence[Memory], end_s: float) -> None:
    if not samples:
        return
    times = [*(sample.t_s for sample in samples), end_s]
    floor = [0.0] * len(times)
    for name, label, colour in _PARTS:
        held = [getattr(sample, name) / MIB for sample in (*samples, samples[-1])]
        ceiling = [low + part for low, part in zip(floor, held, strict=True)]
        axes.fill_between(times, floor, ceiling, step="post", color=colour, linewidth=0, zorder=3, label=label)
        floor = ceiling


def _name_phases(axes: Any, record: Recorder) -> None:
    for phase in record.phases:
        middle = (phase.start_s + phase.end_s) / 2
        axes.text(
            middle,
            1.025,
            phase.title,
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="bottom",
            fontsize=11,
            color=_INK,
        )


def reclaim_label(change: BudgetChange) -> str:
    late = "" if change.deadline_met else "\n(late)"
    return f"\N{MINUS SIGN}{change.released_bytes / MIB:.0f} MiB\nin {change.answered_ms:.1f} ms{late}"


def _label_reclaims(axes: Any, record: Recorder, top: float) -> None:
    gap = _LABEL_GAP_S * record.phases[-1].end_s
    for change in record.changes:
        if not change.is_reclaim or not change.released_bytes:
            continue
        above = change.to_bytes / MIB + 0.045 * top
        axes.text(
            change.answered_s + gap,
            min(above, 0.9 * top),
            reclaim_label(change),
            fontsize=10,
            fontweight="bold",
            color=_INK,
            va="bottom",
            ha="left",
            linespacing=1.15,
            zorder=6,
        )


def _mark_troubles(axes: Any, summary: Mapping[str, Any]) -> None:
    for t_s, kind in troubles(summary):
        axes.axvline(t_s, color=_TROUBLE, linewidth=1.4, linestyle=(0, (2, 2)), zorder=7)
        axes.text(
            t_s,
            0.985,
            f" {TROUBLE[kind]}",
            transform=axes.get_xaxis_transform(),
            fontsize=9.5,
            color=_TROUBLE,
            va="top",
            rotation=90,
            ha="right",
            zorder=7,
        )


# -- speech and frames ---------------------------------------------------------------


def tokens_per_second(record: Recorder, name: str, bin_s: float = _BIN_S) -> list[float]:
    """Tokens of one character per second, in bins of ``bin_s`` over the story."""
    bins = max(1, math.ceil(record.phases[-1].end_s / bin_s))
    counts = [0.0] * bins
    for turn in record.turns:
        if turn.npc != name:
            continue
        for t_s, count in turn.arrivals:
            if 0 <= t_s < bins * bin_s:
                counts[int(t_s / bin_s)] += count / bin_s
    return counts


def _draw_speech(axes: Any, record: Recorder, summary: Mapping[str, Any]) -> None:
    names = list(dict.fromkeys(turn.npc for turn in record.turns))
    floor: list[float] = []
    for name, colour in zip(names, _VOICES, strict=False):
        rates = tokens_per_second(record, name)
        floor = floor or [0.0] * len(rates)
        left = [index * _BIN_S for index in range(len(rates))]
        axes.bar(left, rates, width=_BIN_S * 0.92, bottom=floor, align="edge", color=colour, zorder=3, label=name)
        floor = [low + rate for low, rate in zip(floor, rates, strict=True)]
    axes.set_ylim(0, max([*floor, 1.0]) * 1.35)
    if summary.get("device", {}).get("kind") == "sim":
        _note(axes, _SIM_NOTE, 0.9)
    axes.set_ylabel("tokens / s", color=_INK, fontsize=11)
    handles, labels = axes.get_legend_handles_labels()
    _legend(axes, handles, labels, "who speaks")


def _draw_frames(axes: Any, record: Recorder, summary: Mapping[str, Any]) -> None:
    points = [(frame.due_s, frame.frame_ms) for frame in record.frames]
    top = frames_top(record)
    in_time = [(t, v) for t, v in points if v <= FRAME_MS]
    late = [(t, v) for t, v in points if FRAME_MS < v <= top]
    above = [(t, 0.97 * top) for t, v in points if v > top]
    axes.plot(*_columns(in_time), ".", markersize=3, color="#0072B2", zorder=3, label="one frame")
    if late:
        axes.plot(*_columns(late), "o", markersize=3.5, color=_LATE, zorder=4, label="late frame")
    if above:
        axes.plot(*_columns(above), "^", markersize=5, color=_LATE, zorder=4, label=f"above {top:.0f} ms")
    axes.axhline(FRAME_MS, color=_INK, linewidth=1.2, linestyle=(0, (4, 3)), zorder=4, label="limit for 60 fps")
    axes.set_ylim(0, top)
    axes.set_ylabel("frame time (ms)", color=_INK, fontsize=11)
    handles, labels = axes.get_legend_handles_labels()
    _legend(axes, handles, labels, "the game's frames")
    axes.text(0.012, 1.05, _frame_note(summary), transform=axes.transAxes, fontsize=10.5, color=_INK, va="bottom")


def frames_top(record: Recorder) -> float:
    """Where the axis ends: above all frames, but for those of more than three frames' time."""
    worst = max((frame.frame_ms for frame in record.frames), default=0.0)
    return min(max(1.35 * FRAME_MS, 1.08 * worst), 3.0 * FRAME_MS)


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [t for t, _ in points], [value for _, value in points]


def _frame_note(summary: Mapping[str, Any]) -> str:
    with_model, alone = summary["frames"]["with_model"], summary["frames"]["without_model"]
    notes = []
    for title, figures in (("beside the model", with_model), ("the game alone", alone)):
        if figures["p50_ms"] is not None:
            notes.append(f"{title}: p50 {figures['p50_ms']:.1f} ms, p99 {figures['p99_ms']:.1f} ms")
    return "    ".join(notes)


def _note(axes: Any, text: str, height: float) -> None:
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2.0}
    axes.text(0.012, height, text, transform=axes.transAxes, fontsize=10.5, color=_INK, va="center", bbox=box, zorder=6)


def _legend(axes: Any, handles: Sequence[Any], labels: Sequence[str], title: str) -> None:
    if not handles:
        return
    legend = axes.legend(
        handles,
        labels,
        title=title,
        loc="upper left",
        bbox_to_anchor=(1.012, 1.03),
        frameon=False,
        fontsize=10.5,
        title_fontproperties={"weight": "bold", "size": 11},
        alignment="left",
        borderaxespad=0.0,
    )
    legend.get_title().set_color(_INK)
