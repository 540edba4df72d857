"""Counters and rates for Stats. Written by the decode thread, read by the link thread."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

WINDOW_S: Final = 1.0


class Meter:
    """Plain integers that only grow: readable from any thread."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now: Final = now
        self.generated = 0
        self.prefilled = 0
        self.n_active = 0
        self.steps = 0  # signs of life of the decode thread
        self.settled = True
        self._samples: Final[deque[tuple[float, int]]] = deque()

    def tokens_per_s(self) -> float:
        """Generated tokens a second over the last second or so. For one reading thread."""
        now = self._now()
        self._samples.append((now, self.generated))
        while len(self._samples) > 2 and self._samples[1][0] <= now - WINDOW_S:
            self._samples.popleft()
        (start, before), (end, after) = self._samples[0], self._samples[-1]
        return (after - before) / (end - start) if end > start else 0.0
