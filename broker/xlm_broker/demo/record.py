"""Everything that happened in a demo run, as it happened.

Times are seconds since the story began. One ``Recorder`` is written by the game
thread (frames) and the network thread (the rest) and read by the view: appends
to a list are atomic in CPython and nothing is ever removed, so a reader that
takes ``len`` first sees a consistent prefix without a lock.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from xlm_broker.demo.story import Phase


@dataclass(frozen=True, slots=True)
class Frame:
    """``due_s``: when it had to start. ``frame_ms``: from then to its end, so waking late counts."""

    due_s: float
    frame_ms: float
    work_ms: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Device memory the model holds; used = resident + kv + ring + scratch."""

    t_s: float
    budget_bytes: int
    used_bytes: int
    resident_bytes: int
    kv_bytes: int
    ring_bytes: int
    scratch_bytes: int
    bytes_streamed: int  # counter
    tokens_generated: int  # counter
    over_budget_events: int  # counter
    device_used_bytes: int = 0


@dataclass(frozen=True, slots=True)
class BudgetChange:
    """One answered ``set_budget``. ``from_bytes``/``to_bytes``: the budget in force before and after.

    ``release_ms`` and ``deadline_met`` are the broker's; ``answered_ms`` is the game's own.
    """

    phase: str
    asked_s: float
    answered_s: float
    from_bytes: int
    to_bytes: int
    used_before_bytes: int
    used_bytes: int
    device_used_bytes: int
    release_ms: float
    deadline_ms: float
    deadline_met: bool
    speaking: bool  # a character was in mid-sentence

    @property
    def is_reclaim(self) -> bool:
        return self.to_bytes < self.from_bytes

    @property
    def answered_ms(self) -> float:
        """From the game's request to the answer that the bytes are free."""
        return (self.answered_s - self.asked_s) * 1e3

    @property
    def released_bytes(self) -> int:
        return max(0, self.used_before_bytes - self.used_bytes)


@dataclass(slots=True)
class Turn:
    """One question and its answer. ``arrivals``: (time, tokens) of each piece."""

    npc: str
    index: int
    asked_s: float
    player: str
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    ended_s: float | None = None
    finish_reason: str = ""
    ttft_ms: float = 0.0

    def spoken(self) -> str:
        """The answer on one line; one that ``max_tokens`` cut off ends with "…"."""
        text = " ".join(self.text.split())
        return f"{text} …" if self.finish_reason == "length" else text


@dataclass(slots=True)
class Recorder:
    """The run so far. ``origin_ns`` is the story's start on the monotonic clock."""

    phases: tuple[Phase, ...]
    device_bytes: int = 0
    demand_bytes: int = 0
    origin_ns: int = field(default_factory=time.monotonic_ns)
    frames: list[Frame] = field(default_factory=list)
    baseline: list[Frame] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    changes: list[BudgetChange] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    notices: list[tuple[float, str, str]] = field(default_factory=list)
    load_average: float | None = None  # of the machine at the story's end, over a minute; None where nobody counts it

    def now_s(self) -> float:
        return (time.monotonic_ns() - self.origin_ns) * 1e-9

    def speaking(self) -> bool:
        """A character is in mid-sentence: has said something and is not done."""
        return any(turn.ended_s is None and turn.token_ids for turn in self.turns[-4:])

    def over_budget_events(self) -> int:
        """What the device layer counted, plus answers whose own figures are above their grant."""
        counted = max((sample.over_budget_events for sample in self.memory), default=0)
        return counted + sum(change.used_bytes > change.to_bytes for change in self.changes)


def _whole(values: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = values.get(name)
        if isinstance(value, (int, float)) and value == value:
            return int(value)
    return 0


def memory_from_status(t_s: float, parts: Mapping[str, Any]) -> Memory:
    """A sample out of the maps of a STATUS message; what a broker does not report counts as zero.

    The total is the broker's ledger, the split the engine's last report, which may be older: the total wins.
    """
    merged: dict[str, Any] = {}
    for part in ("engine", "device", "throughput", "budget"):
        merged.update(parts.get(part) or {})
    split = Memory(
        t_s=t_s,
        budget_bytes=_whole(merged, "granted_bytes", "effective_bytes"),
        used_bytes=_whole(merged, "used_bytes"),
        resident_bytes=_whole(merged, "resident_bytes"),
        kv_bytes=_whole(merged, "kv_bytes"),
        ring_bytes=_whole(merged, "ring_bytes"),
        scratch_bytes=_whole(merged, "scratch_bytes"),
        bytes_streamed=_whole(merged, "bytes_streamed"),
        tokens_generated=_whole(merged, "tokens_generated"),
        over_budget_events=_whole(merged, "over_budget_events"),
        device_used_bytes=_whole(merged, "device_used_bytes"),
    )
    return _fitted(split, split.used_bytes)


def _fitted(old: Memory, used_bytes: int) -> Memory:
    """The same split for another total: everything but weights is scaled down where it must be."""
    total = old.resident_bytes + old.kv_bytes + old.ring_bytes + old.scratch_bytes
    scale = min(1.0, used_bytes / total) if total else 0.0
    kv, ring, scratch = (int(part * scale) for part in (old.kv_bytes, old.ring_bytes, old.scratch_bytes))
    weights = max(0, used_bytes - kv - ring - scratch)
    return replace(
        old, used_bytes=used_bytes, resident_bytes=weights, kv_bytes=kv, ring_bytes=ring, scratch_bytes=scratch
    )


def after_change(last: Memory | None, t_s: float, budget_bytes: int, used_bytes: int) -> Memory:
    """The sample a budget answer stands for: its total is exact, its split is the last one known, scaled.

    The engine reports its split a few times a second; without this sample the
    picture would show old bytes above a new, lower budget.
    """
    old = _fitted(last or Memory(t_s, 0, 0, 0, 0, 0, 0, 0, 0, 0), used_bytes)
    return replace(old, t_s=t_s, budget_bytes=budget_bytes, device_used_bytes=used_bytes)
