"""The sample game: a loop at 60 frames a second with real work in each frame.

It never waits for the model. At the start of a scene it hands the new budget to
``ask_budget`` and goes on drawing; the answer arrives on another thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from xlm_broker.demo.record import Frame, Recorder
from xlm_broker.demo.story import Phase, phase_at

FPS = 60
FRAME_S = 1.0 / FPS
FRAME_MS = 1000.0 / FPS
_PARTICLES = 100_000
_GRAVITY = np.float32(-9.81)


class World:
    """Sparks that fall, bounce and are drawn into a small picture: a few milliseconds of numpy a frame."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self._position: NDArray[np.float32] = random.random((3, _PARTICLES), dtype=np.float32)
        self._velocity: NDArray[np.float32] = random.standard_normal((3, _PARTICLES), dtype=np.float32)
        self.picture: NDArray[np.float32] = np.zeros((72, 128), dtype=np.float32)

    def step(self, dt_s: float) -> None:
        """One frame: move, bounce, light, draw."""
        dt = np.float32(dt_s)
        self._velocity[1] += _GRAVITY * dt
        self._position += self._velocity * dt
        self._bounce()
        self._draw()

    def _bounce(self) -> None:
        outside = (self._position < 0.0) | (self._position > 1.0)
        self._velocity[outside] *= np.float32(-0.9)
        np.clip(self._position, 0.0, 1.0, out=self._position)

    def _draw(self) -> None:
        x, y, z = self._position
        rows, columns = self.picture.shape
        light = np.exp(-z) * np.sqrt(np.square(self._velocity).sum(axis=0) + np.float32(1e-3))
        cell = (y * (rows - 1)).astype(np.int32) * columns + (x * (columns - 1)).astype(np.int32)
        drawn = np.bincount(cell, weights=light, minlength=rows * columns).reshape(rows, columns)
        self.picture = np.tanh(0.9 * self.picture + 0.1 * drawn).astype(np.float32)


class Clock:
    """The monotonic clock. Tests pass one of their own."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def sleep_until(self, due_ns: int) -> None:
        wait_ns = due_ns - self.now_ns()
        if wait_ns > 0:
            time.sleep(wait_ns * 1e-9)


def frame_starts(start_ns: int, seconds: float, now_ns: Callable[[], int]) -> Iterator[int]:
    """When each frame is due, from ``start_ns`` on, in ns. A frame missed altogether is skipped, not made up for."""
    frame_ns = int(FRAME_S * 1e9)
    slot, slots = 0, int(seconds * 1e9) // frame_ns
    while slot < slots:
        yield start_ns + slot * frame_ns
        slot = max(slot + 1, (now_ns() - start_ns) // frame_ns)


def _frame(world: World, due_ns: int, origin_ns: int, clock: Clock) -> Frame:
    clock.sleep_until(due_ns)
    begun_ns = clock.now_ns()
    world.step(FRAME_S)
    ended_ns = clock.now_ns()
    return Frame((due_ns - origin_ns) * 1e-9, (ended_ns - due_ns) * 1e-6, (ended_ns - begun_ns) * 1e-6)


def measure_alone(seconds: float, seed: int, clock: Clock | None = None) -> list[Frame]:
    """The same loop with no model beside it: what frame times are compared with."""
    clock = clock or Clock()
    world, start_ns = World(seed), clock.now_ns()
    return [_frame(world, due_ns, start_ns, clock) for due_ns in frame_starts(start_ns, seconds, clock.now_ns)]


def play(
    record: Recorder,
    seed: int,
    ask_budget: Callable[[Phase], None],
    stop: threading.Event,
    clock: Clock | None = None,
    begin: Callable[[], None] = lambda: None,
) -> None:
    """Plays the story in the calling thread; returns when it is over or ``stop`` is set.

    ``begin``: called as the story starts. What is recorded before that counts from another origin.
    """
    clock = clock or Clock()
    world = World(seed)
    phase: Phase | None = None
    record.origin_ns = clock.now_ns()
    begin()
    for due_ns in frame_starts(record.origin_ns, record.phases[-1].end_s, clock.now_ns):
        if stop.is_set():
            return
        now = phase_at(record.phases, (due_ns - record.origin_ns) * 1e-9)
        if now is not phase:
            phase = now
            ask_budget(phase)
        record.frames.append(_frame(world, due_ns, record.origin_ns, clock))
