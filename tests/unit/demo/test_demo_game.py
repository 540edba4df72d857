from __future__ import annotations

import threading

import numpy as np

from xlm_broker.demo.game import FRAME_S, Clock, World, frame_starts, measure_alone, play
from xlm_broker.demo.record import Recorder
from xlm_broker.demo.story import Phase, story

FRAME_NS = int(FRAME_S * 1e9)


class SteppedClock(Clock):
    """Time passes by sleeping, and 1 ms at each look."""

    def __init__(self) -> None:
        self.ns = 5_000_000_000

    def now_ns(self) -> int:
        self.ns += 1_000_000
        return self.ns

    def sleep_until(self, due_ns: int) -> None:
        self.ns = max(self.ns, due_ns)


def test_frames_are_due_at_absolute_times() -> None:
    starts = list(frame_starts(1000, 1.0, now_ns=lambda: 1000))
    assert len(starts) == 60
    assert starts == [1000 + slot * FRAME_NS for slot in range(60)]


def test_a_long_hitch_skips_frames_instead_of_rushing_after_them() -> None:
    now = [0]
    due = []
    for start in frame_starts(0, 1.0, now_ns=lambda: now[0]):
        due.append(start // FRAME_NS)
        now[0] = start + (10 * FRAME_NS if len(due) == 3 else FRAME_NS // 2)
    assert due[:4] == [0, 1, 2, 12]
    assert due[-1] == 59


def test_the_world_moves_stays_in_its_box_and_is_the_same_for_a_seed() -> None:
    one, two, other = World(7), World(7), World(8)
    for world in (one, two, other):
        for _ in range(5):
            world.step(FRAME_S)
    assert np.array_equal(one.picture, two.picture)
    assert not np.array_equal(one.picture, other.picture)
    assert np.isfinite(one.picture).all()
    assert one.picture.max() > 0


def test_the_game_asks_once_a_scene_and_does_not_wait() -> None:
    record, asked = Recorder(story(4.0)), list[str]()

    def ask(phase: Phase) -> None:
        asked.append(phase.key)

    play(record, 1, ask, threading.Event(), SteppedClock())
    assert asked == [phase.key for phase in record.phases]
    assert len(record.frames) == 240
    assert all(frame.frame_ms >= frame.work_ms > 0 for frame in record.frames)


def test_what_begins_with_the_story_is_recorded_at_its_times() -> None:
    record, clock, seen = Recorder(story(4.0)), SteppedClock(), list[int]()
    made_ns = record.origin_ns

    def begin() -> None:
        assert not record.frames
        seen.append(record.origin_ns)

    play(record, 1, lambda _phase: None, threading.Event(), clock, begin)
    assert seen == [record.origin_ns]
    assert seen[0] != made_ns


def test_a_story_that_cannot_go_on_stops() -> None:
    record, stop = Recorder(story(3600.0)), threading.Event()

    def ask(_phase: Phase) -> None:
        stop.set()

    play(record, 1, ask, stop, SteppedClock())
    assert len(record.frames) == 1


def test_the_game_alone_is_measured_the_same_way() -> None:
    frames = measure_alone(0.5, 1, SteppedClock())
    assert len(frames) == 30
    assert {round(frame.work_ms, 6) for frame in frames} == {1.0}


def test_no_time_no_frames() -> None:
    assert list(frame_starts(0, 0.0, now_ns=lambda: 0)) == []
