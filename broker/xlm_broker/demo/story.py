"""What the sample game does, and how much of the card it leaves to the model.

Pure: no clock, no sockets. A story is two minutes of play told in about thirty
seconds. Budgets are shares of the model's *demand* (the bytes it would use if
it were offered the whole card), so that the same story works for other models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

STORY_SECONDS: Final = 120.0  # length of the story in the game's own time
MIN_SECONDS: Final = 4.0  # shorter than this, phases become shorter than an answer
FRAME_DEADLINE_MS: Final = 16.0  # one frame at 60 fps
_ALIGN_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Phase:
    """One scene. ``share``: part of the model's demand it may keep; None lifts the cap (the whole card)."""

    key: str
    title: str
    happens: str
    start_s: float
    end_s: float
    share: float | None
    deadline_ms: float = FRAME_DEADLINE_MS

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class _Scene:
    key: str
    title: str
    happens: str
    story_s: float
    share: float | None
    deadline_ms: float = FRAME_DEADLINE_MS


_SCENES: Final = (
    _Scene("menu", "main menu", "nothing to draw yet: all for the model", 12, 1.0),
    _Scene("load", "level load", "textures come in: the game takes most of it", 16, 0.18),
    _Scene("explore", "exploration", "open world: about half for each", 22, 0.55),
    _Scene("cutscene", "cut-scene", "a small stage: memory for the model", 14, 1.0),
    _Scene("boss", "boss fight", "all is on screen: next to nothing left", 16, 0.08),
    _Scene("last", "last stand", "the game takes the very last byte", 12, 0.0),
    _Scene("alttab", "alt-tab", "reading mail: the whole card for the model", 14, None),
    _Scene("back", "back", "the player returns: memory back in a frame", 14, 0.40),
)


def story(seconds: float) -> tuple[Phase, ...]:
    """The scenes, scaled so that they fill ``seconds``. Raises ValueError for a time no scene fits in."""
    if not math.isfinite(seconds) or seconds < MIN_SECONDS:
        raise ValueError(f"the story needs at least {MIN_SECONDS:.0f} seconds")
    scale = seconds / sum(scene.story_s for scene in _SCENES)
    phases: list[Phase] = []
    start = 0.0
    for scene in _SCENES:
        end = start + scene.story_s * scale
        phases.append(Phase(scene.key, scene.title, scene.happens, start, end, scene.share, scene.deadline_ms))
        start = end
    return tuple(phases)


def phase_at(phases: tuple[Phase, ...], t_s: float) -> Phase:
    """The scene playing ``t_s`` seconds into the story; the last one from its start on."""
    for phase in phases:
        if t_s < phase.end_s:
            return phase
    return phases[-1]


def cap_bytes(phase: Phase, demand_bytes: int, device_bytes: int) -> int | None:
    """The cap the game asks for in this scene: whole 64 KiB, never above the device; None lifts the cap."""
    if phase.share is None:
        return None
    whole = math.ceil(phase.share * demand_bytes / _ALIGN_BYTES) * _ALIGN_BYTES
    return max(0, min(whole, device_bytes))
