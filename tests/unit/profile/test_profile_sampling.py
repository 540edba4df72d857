"""Robust numbers from repeated times; all on made-up times, none on a clock."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlm_engine.profile.sampling import Effort, estimate, quantile, relative_spread, sample, without_outliers


def replay(times: Sequence[float]):  # type: ignore[no-untyped-def]
    """A run that takes the given times in turn, and says which it was asked for."""
    asked: list[int] = []

    def run(index: int) -> float:
        asked.append(index)
        return times[index]

    return run, asked


def test_one_slow_sample_does_not_move_the_estimate() -> None:
    calm = [100.0, 101.0, 99.0, 100.0, 102.0]
    assert estimate([*calm, 5000.0]).ns == pytest.approx(median(calm))
    assert 5000.0 not in without_outliers([*calm, 5000.0])
    assert not estimate([*calm, 5000.0]).noisy


def test_equal_samples_with_a_rounding_error_are_no_outliers() -> None:
    assert without_outliers([100.0, 100.0, 100.0, 100.5]) == [100.0, 100.0, 100.0, 100.5]


def test_when_the_machine_is_shared_the_quick_samples_count() -> None:
    """Every second sample was preempted: the median would lie between, which is no time the kernel ever took."""
    found = estimate([100.0, 300.0, 101.0, 310.0, 102.0, 290.0, 100.0, 305.0])
    assert found.noisy
    assert found.ns == pytest.approx(100.0, rel=0.02)


@given(st.lists(st.floats(1.0, 1e12), min_size=1, max_size=60))
def test_the_estimate_is_one_of_the_times_range(times: list[float]) -> None:
    found = estimate(times)
    assert min(times) <= found.ns * (1 + 1e-9)
    assert found.ns <= median(times) * (1 + 1e-9)
    assert found.spread >= 0.0
    assert found.n_samples == len(times)


@given(st.lists(st.floats(1.0, 1e9), min_size=1), st.floats(0.0, 1.0))
def test_quantiles_lie_within_and_grow(times: list[float], share: float) -> None:
    assert min(times) <= quantile(times, share) <= max(times)
    assert quantile(times, 0.0) == min(times)
    assert quantile(times, 1.0) == max(times)


def test_sampling_ends_when_the_times_agree() -> None:
    run, asked = replay([100.0] * 100)
    assert sample(run, Effort(budget_ns=1e9, at_least=3)).n_samples == 6
    assert asked == list(range(6))


def test_sampling_ends_at_the_budget_and_at_twice_of_it_when_noisy() -> None:
    run, _ = replay([100.0, 109.0, 118.0] * 30)  # neither steady nor noisy
    assert sample(run, Effort(budget_ns=2000.0, at_least=3)).n_samples == 19
    run, asked = replay([100.0 * (1 + index % 7) for index in range(100)])
    found = sample(run, Effort(budget_ns=2000.0, at_least=3))
    assert found.noisy
    assert 4000.0 <= sum(100.0 * (1 + index % 7) for index in asked) <= 4000.0 + 700.0


def test_at_least_so_many_even_beyond_the_budget() -> None:
    run, asked = replay([100.0] * 10)
    sample(run, Effort(budget_ns=150.0, at_least=3))
    assert len(asked) == 3


def test_what_takes_far_longer_than_the_budget_is_done_once() -> None:
    run, asked = replay([1e9] * 10)
    assert sample(run, Effort(budget_ns=1e8)).ns == 1e9
    assert len(asked) == 1


def test_never_more_than_asked_for() -> None:
    run, asked = replay([100.0 * (1 + index % 7) for index in range(1000)])
    sample(run, Effort(budget_ns=1e12, at_least=3, at_most=12))
    assert len(asked) == 12


def test_spread_of_one_sample_is_zero() -> None:
    assert relative_spread([5.0]) == 0.0
