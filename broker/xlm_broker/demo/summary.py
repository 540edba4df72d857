"""What a demo run showed, as figures (summary.json) and as a page to read. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from xlm_broker.demo.game import FRAME_MS
from xlm_broker.demo.record import BudgetChange, Frame, Memory, Recorder, Turn
from xlm_broker.demo.story import Phase
from xlm_broker.demo.verify import Comparison

FORMAT_VERSION: Final = 1
MIB: Final = 1 << 20
_SPEAKING_GAP_S: Final = 0.5  # a longer silence between two pieces of one answer is not counted as speaking


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Nearest-rank percentile; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100.0 * len(ordered)) - 1)]


def _rounded(value: float | None, digits: int = 2) -> float | None:
    return None if value is None else round(value, digits)


def frame_times(frames: Sequence[Frame]) -> dict[str, Any]:
    """Milliseconds from when a frame was due to its end; ``late``: frames that took longer than one frame."""
    times = [frame.frame_ms for frame in frames]
    return {
        "count": len(times),
        "p50_ms": _rounded(percentile(times, 50)),
        "p99_ms": _rounded(percentile(times, 99)),
        "max_ms": _rounded(max(times, default=None)),
        "late": sum(time > FRAME_MS for time in times),
        "work_p50_ms": _rounded(percentile([frame.work_ms for frame in frames], 50)),
    }


def speaking_seconds(turns: Sequence[Turn], start_s: float, end_s: float) -> float:
    """How long at least one character was speaking in [start_s, end_s)."""
    spans = sorted(_spans(turns))
    total, reached = 0.0, start_s
    for begin, finish in spans:
        low, high = max(begin, reached), min(finish, end_s)
        if high > low:
            total += high - low
            reached = high
    return total


def _spans(turns: Sequence[Turn]) -> list[tuple[float, float]]:
    spans = []
    for turn in turns:
        times = [turn.asked_s, *(t_s for t_s, _ in turn.arrivals)]
        spans += [(a, b) for a, b in itertools.pairwise(times) if b - a <= _SPEAKING_GAP_S]
    return spans


def tokens_between(turns: Sequence[Turn], start_s: float, end_s: float) -> int:
    return sum(count for turn in turns for t_s, count in turn.arrivals if start_s <= t_s < end_s)


def phase_figures(phase: Phase, record: Recorder) -> dict[str, Any]:
    """One scene: its budget, tokens and frames. ``tokens_per_s`` counts only the time somebody was speaking."""
    start_s, end_s = phase.start_s, phase.end_s
    tokens = tokens_between(record.turns, start_s, end_s)
    speaking_s = speaking_seconds(record.turns, start_s, end_s)
    changes = [change for change in record.changes if change.phase == phase.key]
    in_force_s = changes[0].answered_s if changes else start_s  # until then the scene before it still counts
    samples = [sample for sample in record.memory if in_force_s <= sample.t_s < end_s]
    frames = [frame.frame_ms for frame in record.frames if start_s <= frame.due_s < end_s]
    return {
        "key": phase.key,
        "title": phase.title,
        "happens": phase.happens,
        "start_s": round(start_s, 3),
        "end_s": round(end_s, 3),
        "budget_bytes": changes[-1].to_bytes if changes else None,
        "used_bytes_max": max((sample.used_bytes for sample in samples), default=None),
        "bytes_streamed": _grown(samples, "bytes_streamed"),
        "tokens": tokens,
        "speaking_s": round(speaking_s, 2),
        "tokens_per_s": _rounded(tokens / speaking_s) if speaking_s > 0 else None,
        "frame_p50_ms": _rounded(percentile(frames, 50)),
        "frame_p99_ms": _rounded(percentile(frames, 99)),
    }


def _grown(samples: Sequence[Memory], counter: str) -> int:
    if not samples:
        return 0
    return max(0, int(getattr(samples[-1], counter)) - int(getattr(samples[0], counter)))


def change_figures(change: BudgetChange) -> dict[str, Any]:
    figures: dict[str, Any] = {
        key: round(value, 4) if isinstance(value, float) else value for key, value in asdict(change).items()
    }
    figures["reclaim"] = change.is_reclaim
    figures["released_bytes"] = change.released_bytes
    figures["answered_ms"] = round(change.answered_ms, 2)
    return figures


def release_figures(changes: Sequence[BudgetChange], frames: Sequence[Frame] = ()) -> dict[str, Any]:
    """``empty``: reclaims that found nothing to take, and said so in time. They count for nothing else.

    ``release_*`` is what the broker says, ``answered_*`` what the game waited.
    """
    asked = [change for change in changes if change.is_reclaim]
    reclaims = [change for change in asked if change.released_bytes or not change.deadline_met]
    late = [change for change in reclaims if not change.deadline_met]
    times = [change.release_ms for change in reclaims]
    answered = [change.answered_ms for change in reclaims]
    return {
        "count": len(reclaims),
        "while_speaking": sum(change.speaking for change in reclaims),
        "release_p50_ms": _rounded(percentile(times, 50)),
        "release_max_ms": _rounded(max(times, default=None)),
        "answered_p50_ms": _rounded(percentile(answered, 50)),
        "answered_max_ms": _rounded(max(answered, default=None)),
        "deadlines_met": sum(change.deadline_met for change in reclaims),
        "released_bytes": sum(change.released_bytes for change in reclaims),
        "empty": len(asked) - len(reclaims),
        "late_with_late_frames": sum(_frames_were_late(frames, change) for change in late),
    }


def _frames_were_late(frames: Sequence[Frame], change: BudgetChange) -> bool:
    """Whether the game itself missed a frame while it waited for this answer."""
    late = [frame for frame in frames if frame.frame_ms > FRAME_MS]
    return any(f.due_s <= change.answered_s and f.due_s + f.frame_ms * 1e-3 >= change.asked_s for f in late)


def _dialogue(turn: Turn) -> dict[str, Any]:
    return {
        "npc": turn.npc,
        "asked_s": round(turn.asked_s, 3),
        "ended_s": _rounded(turn.ended_s, 3),
        "player": turn.player,
        "answer": turn.spoken(),
        "tokens": len(turn.token_ids),
        "finish_reason": turn.finish_reason,
        "ttft_ms": _rounded(turn.ttft_ms),
    }


def _tokens_by_npc(turns: Sequence[Turn]) -> dict[str, int]:
    names = dict.fromkeys(turn.npc for turn in turns)
    return {name: sum(len(turn.token_ids) for turn in turns if turn.npc == name) for name in names}


def lossless_figures(comparison: Comparison | None) -> dict[str, Any] | None:
    return None if comparison is None else asdict(comparison)


def summarise(record: Recorder, about: Mapping[str, Any], comparison: Comparison | None) -> dict[str, Any]:
    """The whole summary. ``about``: machine, device, model and versions, taken over as they are."""
    return {
        "format": FORMAT_VERSION,
        **about,
        "seconds": round(record.phases[-1].end_s, 2),
        "demand_bytes": record.demand_bytes,
        "device_bytes": record.device_bytes,
        "frames": {"with_model": frame_times(record.frames), "without_model": frame_times(record.baseline)},
        "tokens": {"total": sum(len(turn.token_ids) for turn in record.turns), **_tokens_by_npc(record.turns)},
        "reclaims": release_figures(record.changes, record.frames),
        "load_average": _rounded(record.load_average, 1),
        "over_budget_events": record.over_budget_events(),
        "lossless": lossless_figures(comparison),
        "phases": [phase_figures(phase, record) for phase in record.phases],
        "budget_changes": [change_figures(change) for change in record.changes],
        "notices": [{"t_s": round(t_s, 3), "kind": kind, "text": text} for t_s, kind, text in record.notices],
        "dialogues": [_dialogue(turn) for turn in record.turns],
    }


# Notices that say something went wrong; the rest is routine.
TROUBLE: Final = {
    "engine_restarting": "the engine died and was restarted",
    "engine_failed": "the engine failed",
    "device_lost": "the device was lost",
    "degraded": "the device works badly",
}


# -- for people ------------------------------------------------------------------

SIM_LINES: Final = (
    "The virtual GPU computes on this machine's CPU: the words are real, their speed is not",
    "a card's, and tokens/s do not grow with the budget as they would on one.",
)


def mib(size_bytes: float | None) -> str:
    return "?" if size_bytes is None else f"{size_bytes / MIB:.1f} MiB" if size_bytes else "0"


def headline(summary: Mapping[str, Any]) -> str:
    """What the run stands for, with its own figures."""
    return f"{reclaim_words(summary)}; {token_words(summary)}."


def token_words(summary: Mapping[str, Any]) -> str:
    """How many tokens were spoken, and of how many it was checked that none changed: the replay is shorter."""
    lossless, spoken = summary["lossless"], summary["tokens"]["total"]
    if not lossless or not lossless["compared"]:
        return f"{spoken} tokens were spoken meanwhile"
    return f"{spoken} tokens spoken, {lossless['different']} of the {lossless['compared']} replayed changed"


def reclaim_words(summary: Mapping[str, Any]) -> str:
    """How often the game took memory back, and how fast; "each" only where every single one was in time.

    Times are the game's own, from request to answer, with the broker's beside them.
    """
    reclaims = summary["reclaims"]
    count, met, worst = reclaims["count"], reclaims["deadlines_met"], reclaims["answered_max_ms"]
    start = f"The game took its VRAM back {count} times"
    if worst is None:
        return start
    broker = f"broker: {_up(reclaims['release_max_ms'])}"
    if met == count:
        return f"{start}, each within {_up(worst)} ms ({broker})"
    return f"{start}, {met} of {count} within {_deadlines(summary)} (worst {_up(worst)} ms; {broker})"


def _up(value_ms: float) -> str:
    """One decimal, rounded up: "within 15.9 ms" is not said of 15.94 ms."""
    return f"{math.ceil(value_ms * 10 - 1e-6) / 10:.1f}"


def _deadlines(summary: Mapping[str, Any]) -> str:
    """What the reclaims were allowed: a 16 ms frame, unless a story asked for something else."""
    allowed = {change["deadline_ms"] for change in summary["budget_changes"] if change["reclaim"]}
    return f"a {allowed.pop():.0f} ms frame" if len(allowed) == 1 else "their deadlines"


def verdicts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What should hold after a run: ("ok" | "late" | "FAILED", text). Only speed can be late."""
    reclaims, lossless = summary["reclaims"], summary["lossless"]
    over, met, count = summary["over_budget_events"], reclaims["deadlines_met"], reclaims["count"]
    lines = [
        ("FAILED" if over else "ok", f"over budget: {over} times"),
        ("ok" if met == count else "late", f"{met} of {count} reclaims met their deadline"),
    ]
    return lines if lossless is None else [*lines, _lossless_verdict(lossless)]


def _lossless_verdict(lossless: Mapping[str, Any]) -> tuple[str, str]:
    different, compared = lossless["different"], lossless["compared"]
    if not compared:
        return "late", "lossless: no answer was complete in both runs, so nothing was compared"
    text = f"lossless: {different} of the {compared} tokens replayed at a fixed budget differ"
    return ("FAILED", f"{text} (first: {lossless['first_difference']})") if different else ("ok", text)


def busy_words(summary: Mapping[str, Any]) -> str:
    """That the machine had other things to do, where reclaims were late and something measured says so; else empty."""
    reclaims, load, cores = summary["reclaims"], summary["load_average"], summary["machine"]["cores"]
    late, beside = reclaims["count"] - reclaims["deadlines_met"], reclaims["late_with_late_frames"]
    if not late:
        return ""
    signs = [f"load {load:.1f} on {cores} cores"] if load and cores and load > cores else []
    signs += [f"game frames late at {beside} of {late} late reclaims"] if beside else []
    return f"this machine was busy: {'; '.join(signs)}" if signs else ""


def troubles(summary: Mapping[str, Any]) -> list[tuple[float, str]]:
    """When something went wrong that the run survived, and its kind."""
    return [(notice["t_s"], notice["kind"]) for notice in summary["notices"] if notice["kind"] in TROUBLE]


def failed(summary: Mapping[str, Any]) -> bool:
    """A promise that does not depend on the machine's speed was broken: budget exceeded, or a token changed."""
    lossless = summary["lossless"]
    return bool(summary["over_budget_events"]) or bool(lossless and lossless["different"])


def page(summary: Mapping[str, Any], out: str) -> list[str]:
    """The summary as lines to read in a terminal."""
    frames, tokens = summary["frames"], summary["tokens"]
    lines = [headline(summary), ""]
    lines += [f"  {state:<6}  {text}" for state, text in verdicts(summary)]
    if busy := busy_words(summary):
        lines += [f"  note    {busy}", "          (close other programs and run it again)"]
    lines += [f"  note    {TROUBLE[kind]} at {t_s:.1f} s" for t_s, kind in troubles(summary)]
    lines += ["", "  scene         budget      used max    tokens/s   frame p50 / p99"]
    lines += [_phase_line(phase) for phase in summary["phases"]]
    if summary["device"].get("kind") == "sim":
        lines += ["", *(f"  {line}" for line in SIM_LINES)]
    said = ", ".join(f"{name} {count}" for name, count in tokens.items() if name != "total")
    lines += ["", f"  spoken: {tokens['total']} tokens ({said})"]
    for name, key in (("game beside the model", "with_model"), ("game alone", "without_model")):
        lines.append(f"  {name}: {_frame_line(frames[key])}")
    lines += ["", f"  {summary['model']['name']} on {summary['device']['description']}; {summary['machine']['cpu']}"]
    lines.append(f"  {out}/summary.json" + (f"  {summary['timeline']}" if summary.get("timeline") else ""))
    return lines


def _phase_line(phase: Mapping[str, Any]) -> str:
    rate = "-" if phase["tokens_per_s"] is None else f"{phase['tokens_per_s']:.0f}"
    frame = "-" if phase["frame_p50_ms"] is None else f"{phase['frame_p50_ms']:.1f} / {phase['frame_p99_ms']:.1f} ms"
    budget, used = mib(phase["budget_bytes"]), mib(phase["used_bytes_max"])
    return f"  {phase['title']:<12}  {budget:<10}  {used:<10}  {rate:>8}   {frame}"


def _frame_line(figures: Mapping[str, Any]) -> str:
    if not figures["count"]:
        return "no frames"
    return (
        f"{figures['count']} frames, p50 {figures['p50_ms']:.1f} ms, p99 {figures['p99_ms']:.1f} ms, "
        f"worst {figures['max_ms']:.1f} ms, {figures['late']} over {FRAME_MS:.1f} ms"
    )
