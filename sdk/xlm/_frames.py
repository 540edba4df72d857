"""Frames summed up into reports, about ten a second: what ``report_frame`` sends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from xlm.errors import RequestError
from xlm.protocol import messages

Pacing = Literal["off", "steps", "shrink"]
INTERVAL_S: Final = 0.1
_PACINGS: Final = get_args(Pacing)
_MAX_NS: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Sample:
    """One frame. Raises RequestError (``bad_request``) for what is none."""

    frame_ns: int
    target_ns: int
    gpu_ns: int = 0
    pacing: Pacing = "steps"

    def __post_init__(self) -> None:
        times = 0 <= self.frame_ns <= _MAX_NS and 0 < self.target_ns <= _MAX_NS and 0 <= self.gpu_ns <= _MAX_NS
        if not times:
            raise RequestError("frame_ns, target_ns or gpu_ns is no time in nanoseconds", code="bad_request")
        if self.pacing not in _PACINGS:
            raise RequestError(f"pacing is one of {', '.join(_PACINGS)}", code="bad_request")


class FrameReports:
    """Not thread safe. Target and pacing of a report are those of its last frame."""

    def __init__(self) -> None:
        self._sent_s = float("-inf")
        self._clear()

    def _clear(self) -> None:
        self._frames = self._sum_ns = self._max_ns = self._gpu_ns = self._over = 0

    def add(self, sample: Sample, now_s: float) -> messages.Frame | None:
        """Counts the frame; the report that is due, if one is."""
        self._frames += 1
        self._sum_ns += sample.frame_ns
        self._max_ns = max(self._max_ns, sample.frame_ns)
        self._gpu_ns += sample.gpu_ns
        self._over += sample.frame_ns > sample.target_ns
        if now_s - self._sent_s < INTERVAL_S:
            return None
        self._sent_s = now_s
        report = self._report(sample)
        self._clear()
        return report

    def _report(self, last: Sample) -> messages.Frame:
        return messages.Frame(
            frames=self._frames,
            mean_ms=self._sum_ns / self._frames / 1e6,
            max_ms=self._max_ns / 1e6,
            target_ms=last.target_ns / 1e6,
            gpu_ms=self._gpu_ns / self._frames / 1e6,
            over_target=self._over,
            pacing=last.pacing,
        )
