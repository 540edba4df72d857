"""Steps and gaps, by a clock of our own."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlm_engine.pacer import CATCH_UP_NS, MAX_GAP_NS, Pacer

MS = 1_000_000


class Engine:
    """Steps of a given length; sleeps as long as the pacer says, and a little longer if told so."""

    def __init__(self, duty: float = 1.0, max_gap_ns: int = MAX_GAP_NS) -> None:
        self.now_ns = 5_000 * MS
        self.rested_ns = 0
        self.pacer = Pacer(lambda: self.rested_ns, lambda: self.now_ns)
        self.pacer.set(duty, max_gap_ns)

    def step(self, ns: int) -> None:
        self.pacer.step(lambda: self.pass_time(ns))

    def pass_time(self, ns: int) -> None:
        self.now_ns += ns

    def run(self, steps_ns: list[int], late_ns: int = 0) -> tuple[int, list[int]]:
        """Time taken in all, first step to the end of the last gap; and the gaps."""
        began_ns, gaps = self.now_ns, []
        for ns in steps_ns:
            self.step(ns)
            gap = self.pacer.wait_ns()
            gaps.append(gap)
            self.pass_time(gap + (late_ns if gap else 0))
        return self.now_ns - began_ns, gaps


STEPS = st.lists(st.integers(MS, 40 * MS), min_size=2, max_size=30)
DUTIES = st.floats(0.05, 1.0)


@given(STEPS)
def test_full_pace_never_waits(steps: list[int]) -> None:
    engine = Engine(1.0)
    taken, gaps = engine.run(steps)
    assert taken == sum(steps)
    assert not any(gaps)
    assert engine.pacer.idle_ns == 0


@given(STEPS, DUTIES)
def test_the_duty_is_kept(steps: list[int], duty: float) -> None:
    taken, _ = Engine(duty).run(steps)
    assert sum(steps) / taken == pytest.approx(duty, rel=1e-3)


@given(STEPS, st.floats(0.05, 0.5), st.integers(0, CATCH_UP_NS))
def test_late_wake_ups_do_not_add_up(steps: list[int], duty: float, late_ns: int) -> None:
    taken, _ = Engine(duty).run(steps, late_ns)
    assert -len(steps) <= taken - sum(steps) / duty <= late_ns + MS  # whole nanoseconds


def test_a_long_delay_is_not_made_up_for() -> None:
    engine = Engine(0.5)
    engine.step(10 * MS)
    engine.pass_time(10_000 * MS)  # nobody asked for anything
    assert engine.pacer.wait_ns() == 0
    engine.step(10 * MS)
    assert engine.pacer.wait_ns() >= 8 * MS


def test_generation_is_never_starved() -> None:
    engine = Engine(0.001, max_gap_ns=300 * MS)
    _, gaps = engine.run([500 * MS, 20 * MS, MS])
    assert max(gaps) == 300 * MS


def test_another_pace_holds_within_the_gap() -> None:
    engine = Engine(0.1)
    engine.step(10 * MS)
    assert engine.pacer.wait_ns() == 90 * MS
    engine.pass_time(30 * MS)
    engine.pacer.set(0.2)
    assert engine.pacer.wait_ns() == 10 * MS
    engine.pacer.set(0.05)
    assert engine.pacer.wait_ns() == 160 * MS
    engine.pacer.set(1.0)
    assert engine.pacer.wait_ns() == 0


@pytest.mark.parametrize("nonsense", [0.0, -1.0, 1.5, math.nan, math.inf])
def test_what_is_no_duty_is_full_pace(nonsense: float) -> None:
    engine = Engine(nonsense, max_gap_ns=-5)
    engine.step(10 * MS)
    assert (engine.pacer.duty, engine.pacer.wait_ns()) == (1.0, 0)


def test_the_first_step_is_at_once() -> None:
    assert Engine(0.05).pacer.wait_ns() == 0


def test_idling_is_counted_without_the_time_nobody_asked() -> None:
    engine = Engine(0.5)
    engine.step(10 * MS)
    engine.pass_time(500 * MS)
    engine.step(10 * MS)
    assert engine.pacer.idle_ns == 10 * MS


@given(STEPS, st.floats(0.05, 0.99), st.floats(0.0, 1.2))
def test_what_a_step_rested_within_itself_is_not_asked_for_again(steps: list[int], duty: float, share: float) -> None:
    """``share`` of the gap is rested within; the rest comes after. The duty is kept, unless more was rested."""
    engine = Engine(duty)

    def run(busy_ns: int) -> None:
        rest_ns = int(share * (busy_ns / duty - busy_ns))
        engine.rested_ns += rest_ns
        engine.pass_time(busy_ns + rest_ns)

    began_ns = engine.now_ns
    for busy_ns in steps:
        engine.pacer.step(lambda busy_ns=busy_ns: run(busy_ns))
        engine.pass_time(engine.pacer.wait_ns())
    taken_ns = engine.now_ns - began_ns
    assert taken_ns == pytest.approx(sum(steps) / duty, rel=1e-3) or (share > 1 and taken_ns > sum(steps) / duty)
    assert engine.pacer.idle_ns >= min(engine.rested_ns, 1)


def test_a_failed_step_counts() -> None:
    engine = Engine(0.5)

    def fails() -> None:
        engine.pass_time(20 * MS)
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        engine.pacer.step(fails)
    assert engine.pacer.wait_ns() == 20 * MS
