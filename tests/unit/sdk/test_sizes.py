from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import xlm
from xlm.protocol.messages import MAX_BYTES


@pytest.mark.parametrize(
    ("given_size", "size_bytes"),
    [
        (0, 0),
        (512, 512),
        ("512", 512),
        ("0", 0),
        ("96MiB", 96 << 20),
        ("96 MiB", 96 << 20),
        (" 96mib ", 96 << 20),
        ("1.5GiB", 3 << 29),
        ("2G", 2 << 30),
        ("1KB", 1000),
        ("0.1GiB", 107374182),
        ("7B", 7),
        (MAX_BYTES, MAX_BYTES),
    ],
)
def test_sizes_as_people_write_them(given_size: int | str, size_bytes: int) -> None:
    assert xlm.parse_size(given_size) == size_bytes


@pytest.mark.parametrize(
    "wrong",
    [
        -1,
        "-1",
        "-1MiB",
        True,
        False,
        None,
        1.5,
        math.nan,
        math.inf,
        "nan",
        "inf",
        "",
        " ",
        "MiB",
        "1.5",
        "1e9",
        "1.5B",
        "96 MiBs",
        "96MiB\0",
        "٣MiB",
        "1_000",
        "0x10",
        MAX_BYTES + 1,
        "5000000TiB",
        "9" * 5000,
        1 << 200,
        b"96MiB",
        [],
    ],
)
def test_anything_else_is_refused(wrong: Any) -> None:
    with pytest.raises(xlm.BudgetError) as caught:
        xlm.parse_size(wrong)
    assert caught.value.code == "budget_invalid"
    assert caught.value.fault == "caller"
    assert len(str(caught.value)) < 300


@given(st.text(max_size=30))
def test_no_text_does_anything_worse(text: str) -> None:
    with contextlib.suppress(xlm.BudgetError):
        assert 0 <= xlm.parse_size(text) <= MAX_BYTES


@given(st.integers(min_value=0, max_value=1 << 50))
def test_a_shown_size_reads_back_within_one_percent(size_bytes: int) -> None:
    shown = xlm.format_size(size_bytes)
    assert abs(xlm.parse_size(shown) - size_bytes) <= size_bytes * 0.01


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [(0, "0B"), (96 << 20, "96MiB"), (3 << 29, "1.5GiB"), (1023, "1023B"), (-(1 << 20), "-1MiB")],
)
def test_shown(size_bytes: int, shown: str) -> None:
    assert xlm.format_size(size_bytes) == shown


def test_a_number_beyond_printing_is_refused() -> None:
    with pytest.raises(xlm.BudgetError, match="larger than any memory"):
        xlm.parse_size(10**5000)
