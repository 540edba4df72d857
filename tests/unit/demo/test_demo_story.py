from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlm_broker.demo.story import MIN_SECONDS, cap_bytes, phase_at, story

MIB = 1 << 20


@given(st.floats(min_value=MIN_SECONDS, max_value=3600.0))
def test_scenes_fill_the_time_without_gaps(seconds: float) -> None:
    phases = story(seconds)
    assert phases[0].start_s == 0.0
    assert phases[-1].end_s == pytest.approx(seconds)
    for earlier, later in itertools.pairwise(phases):
        assert earlier.end_s == later.start_s
        assert earlier.seconds > 0


@pytest.mark.parametrize("seconds", [0.0, -1.0, MIN_SECONDS - 0.1, math.nan, math.inf])
def test_a_time_no_scene_fits_in_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="at least 4 seconds"):
        story(seconds)


def test_the_story_takes_back_releases_and_asks_for_everything() -> None:
    shares = [phase.share for phase in story(30.0)]
    assert None in shares  # alt-tab: the whole card
    assert 0.0 in shares  # the very last byte
    falls = sum((later or 0.0) < (1.0 if earlier is None else earlier) for earlier, later in itertools.pairwise(shares))
    assert falls >= 4
    assert all(phase.deadline_ms == 16.0 for phase in story(30.0))


def test_each_scene_fits_a_terminal_of_80_columns() -> None:
    for phase in story(120.0):  # in a frame of two, after "120.0 of 120 s  "
        assert len(f"120.0 of 120 s  {phase.title}  {phase.happens}") <= 76


def test_phase_at_borders_and_beyond() -> None:
    phases = story(30.0)
    assert phase_at(phases, 0.0) is phases[0]
    assert phase_at(phases, phases[1].start_s) is phases[1]
    assert phase_at(phases, math.nextafter(phases[1].start_s, 0.0)) is phases[0]
    assert phase_at(phases, 1e9) is phases[-1]


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_caps_are_whole_never_above_the_device_and_follow_the_share(demand: int, device: int) -> None:
    for phase in story(30.0):
        cap = cap_bytes(phase, demand, device)
        if phase.share is None:
            assert cap is None
            continue
        assert cap is not None
        assert 0 <= cap <= device
        assert cap == device or cap % (64 * 1024) == 0
        assert cap == device or phase.share * demand <= cap < phase.share * demand + 64 * 1024 + 1


def test_no_budget_at_all_in_the_last_stand() -> None:
    last = next(phase for phase in story(30.0) if phase.key == "last")
    assert cap_bytes(last, 150 * MIB, 256 * MIB) == 0
