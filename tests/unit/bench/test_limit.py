"""The lower bound: equal to enumeration where shares do not matter, never above any schedule."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlm_broker.bench.limit import limit_ns

Row = tuple[float, float, float, float, float, float]  # cpu, device, link of weights and KV, bytes of both


def limit(rows: list[Row], memory: float) -> float:
    return limit_ns(*(np.array(column, dtype=np.float64) for column in zip(*rows, strict=True)), memory_bytes=memory)


def enumerated(rows: list[Row], memory: float) -> float:
    """The best assignment of whole sub-layers, overlap being perfect."""
    best = float("inf")
    for ways in itertools.product(range(4), repeat=len(rows)):
        compute = sum(row[0] if way == 0 else row[1] for row, way in zip(rows, ways, strict=True))
        link = sum((0.0, row[2] + row[3], row[2], 0.0)[way] for row, way in zip(rows, ways, strict=True))
        kept = sum((0.0, 0.0, row[5], row[4] + row[5])[way] for row, way in zip(rows, ways, strict=True))
        if kept <= memory:
            best = min(best, max(compute, link))
    return best


def test_without_memory_everything_is_on_the_cpu() -> None:
    assert limit([(10, 1, 5, 0, 100, 0), (20, 1, 5, 0, 100, 0)], 0) == 30


def test_with_all_memory_everything_is_resident() -> None:
    assert limit([(10, 1, 5, 1, 100, 10), (20, 2, 5, 1, 100, 10)], 220) == pytest.approx(3, rel=1e-6)


def test_the_link_bounds_a_step_that_streams_everything() -> None:
    rows: list[Row] = [(1000, 1, 50, 0, 100, 0)] * 4
    # on the device: 4 ns of compute, 200 ns of link; a share on the CPU balances both
    found = limit(rows, 1)
    share = (200 - 4) / (200 + 999 * 4)  # of all work, on the CPU: 4 + 999 * 4 x = 200 (1 - x)
    assert found == pytest.approx(200 * (1 - share), rel=0.01)


def test_a_cache_that_is_kept_makes_streaming_cheaper() -> None:
    rows: list[Row] = [(1000, 1, 10, 90, 100, 10)]
    assert limit(rows, 10) == pytest.approx(10, rel=0.02)
    assert limit(rows, 1e-9) > 90


numbers = st.floats(min_value=1, max_value=1000)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(numbers, numbers, numbers, numbers, numbers, numbers), min_size=1, max_size=4),
    st.floats(min_value=0.1, max_value=3000),
)
def test_no_assignment_is_below_the_limit(rows: list[Row], memory: float) -> None:
    assert limit(rows, memory) <= enumerated(rows, memory) * (1 + 1e-9)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(numbers, numbers, numbers, numbers, numbers, numbers), min_size=1, max_size=4))
def test_more_memory_never_raises_the_limit(rows: list[Row]) -> None:
    found = [limit(rows, memory) for memory in (1.0, 50.0, 500.0, 5000.0)]
    assert all(later <= earlier * 1.0001 for earlier, later in itertools.pairwise(found))
