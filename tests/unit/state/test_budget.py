"""The arithmetic alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlm.protocol.messages import MAX_BYTES
from xlm_broker.state.budget import Card, Wishes, effective
from xlm_broker.state.settings import BudgetSettings

SIZES = st.integers(0, MAX_BYTES)
MAYBE = st.none() | SIZES


@given(
    total=MAYBE,
    foreign=MAYBE,
    spill=MAYBE,
    headroom=SIZES,
    caps=st.lists(SIZES, max_size=4),
    reservations=st.lists(SIZES, max_size=4),
    fixed=MAYBE,
    most=MAYBE,
    mode=st.sampled_from(["fixed", "game"]),
    spoken=st.booleans(),
)
def test_no_limit_is_ever_exceeded(total, foreign, spill, headroom, caps, reservations, fixed, most, mode, spoken):  # type: ignore[no-untyped-def]
    settings = BudgetSettings(mode, fixed, 0, most, headroom)
    found = effective(settings, Card(total, foreign, spill), Wishes(tuple(caps), tuple(reservations), spoken)).bytes
    assert 0 <= found <= (total or 0)
    assert found == 0 or found + headroom + sum(reservations) <= (total or 0)
    assert found == 0 or found + headroom + (foreign or 0) <= (total or 0)
    assert all(found <= limit for limit in [*caps, spill, most] if limit is not None)
    assert mode == "game" or fixed is None or found <= fixed
    assert mode == "fixed" or spoken or found == 0


@pytest.mark.parametrize(
    ("settings", "card", "wishes", "expected"),
    [
        (BudgetSettings(), Card(100), Wishes(), (100, "device")),
        (BudgetSettings(headroom_bytes=10), Card(100), Wishes(), (90, "device")),
        (BudgetSettings(headroom_bytes=10), Card(100), Wishes(caps=(40, 60)), (40, "cap")),
        (BudgetSettings(), Card(100), Wishes(reservations=(30, 20)), (50, "reservation")),
        (BudgetSettings(), Card(100), Wishes(reservations=(70, 60)), (0, "reservation")),  # 130 % of the card
        (BudgetSettings(headroom_bytes=200), Card(100), Wishes(), (0, "device")),
        (BudgetSettings(max_bytes=25), Card(100), Wishes(), (25, "max")),
        (BudgetSettings(), Card(100, foreign_bytes=80), Wishes(), (20, "os")),
        (BudgetSettings(headroom_bytes=15), Card(100, foreign_bytes=90), Wishes(), (0, "os")),
        (BudgetSettings(fixed_bytes=1 << 62), Card(100), Wishes(), (100, "device")),
        (BudgetSettings(mode="game", idle_bytes=7), Card(100), Wishes(), (7, "idle")),
        (BudgetSettings(mode="game", idle_bytes=7), Card(100), Wishes(spoken=True), (100, "device")),
        (BudgetSettings(mode="game", fixed_bytes=7), Card(100), Wishes(spoken=True), (100, "device")),
        (BudgetSettings(), Card(None), Wishes(caps=(40,)), (0, "device")),  # nobody knows the card: nothing is offered
        (BudgetSettings(), Card(100, spill_limit_bytes=85), Wishes(), (85, "spill")),
    ],
)
def test_examples(settings: BudgetSettings, card: Card, wishes: Wishes, expected: tuple[int, str]) -> None:
    found = effective(settings, card, wishes)
    assert (found.bytes, found.limited_by) == expected
