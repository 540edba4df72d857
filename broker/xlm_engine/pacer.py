"""Idle time between steps, so that a game's frames get their share of the machine.

A step of t takes t / duty of the time: the next one is due that much after this
one was. Deadlines follow from deadlines and not from when a sleep ended, so that
late wake-ups do not add up; what was lost for another reason is not made up for.
Prefill chunks are steps as any other: they load the machine most.

Steps rest at their own borders as well (``Device.set_pace``): a game sees many short
bursts instead of one that is longer than its frame. What a step has rested is no
computing; what it has rested too little is left to the gap after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

MAX_GAP_NS: Final = 1_000_000_000
CATCH_UP_NS: Final = 2_000_000  # a late wake-up up to this is made up for: a sleep is rarely later


class Pacer:
    """For the decode thread; ``duty`` and ``idle_ns`` may be read on any. Starts at full pace."""

    def __init__(self, rested_ns: Callable[[], int] = lambda: 0, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """``rested_ns``: how long steps have rested within themselves so far."""
        self._rested_ns: Final = rested_ns
        self._now_ns: Final = now_ns
        self.duty = 1.0
        self.idle_ns = 0  # held back in all, since the engine started
        self.max_gap_ns = MAX_GAP_NS
        self._start_ns = 0  # of the last step, as counted
        self._busy_ns = 0
        self._end_ns = 0

    def set(self, duty: float, max_gap_ns: int = MAX_GAP_NS) -> None:
        """At once in force, also for a gap under way. A duty that is none, not in (0, 1], means full pace."""
        self.duty = duty if 0.0 < duty <= 1.0 else 1.0
        self.max_gap_ns = max(0, max_gap_ns)

    @property
    def _due_ns(self) -> int:
        """When the next step may begin; before the end of the last one where that began late."""
        if self.duty >= 1.0:
            return self._end_ns
        return min(self._start_ns + int(self._busy_ns / self.duty), self._end_ns + self.max_gap_ns)

    def wait_ns(self) -> int:
        """How long the next step has to wait; 0: not at all."""
        return max(0, self._due_ns - self._now_ns())

    def step(self, run: Callable[[], None]) -> None:
        """Runs one step and counts it. What ``run`` raises comes out; the step counts all the same."""
        paced = self.duty < 1.0
        began_ns, rested_ns = self._now_ns(), self._rested_ns() if paced else 0
        due_ns = self._due_ns
        self.idle_ns += max(0, min(began_ns, due_ns) - self._end_ns)
        try:
            run()
        finally:
            self._end_ns = self._now_ns()
            rested_ns = self._rested_ns() - rested_ns if paced else 0
            self.idle_ns += rested_ns
            self._start_ns = due_ns if began_ns - due_ns <= CATCH_UP_NS else began_ns
            self._busy_ns = max(0, self._end_ns - began_ns - rested_ns)
