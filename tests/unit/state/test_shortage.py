"""A budget with which nothing runs on the device is told, where nobody asked for that."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.state.world import GAME, MIB, BudgetSettings, World
from xlm_broker.state import actions


def fixed(size_bytes: int | None, **more: Any) -> BudgetSettings:
    return BudgetSettings(mode="fixed", fixed_bytes=size_bytes, **more)


def logged(world: World) -> list[dict[str, Any]]:
    return [dict(a.fields) for a in world.acts(actions.Log) if a.event == "budget_below_minimum"]


def minimum_of(world: World) -> int:
    return int(world.status().budget["minimum_bytes"])


def test_a_fixed_budget_below_the_minimum_is_told_once_the_model_is_loaded() -> None:
    world = World(budget=fixed(1000)).boot()
    warning = world.status().budget["warning"]
    assert (warning["code"], warning["minimum_bytes"]) == ("budget_infeasible", minimum_of(world))
    assert "limited by fixed" in warning["message"]
    assert "--budget" in warning["hint"]
    (entry,) = logged(world)
    assert entry["minimum_bytes"] == minimum_of(world)


@pytest.mark.parametrize("budget", [fixed(None), fixed(0), fixed(None, max_bytes=0), fixed(100 * MIB)])
def test_enough_and_none_at_all_on_purpose_are_no_warning(budget: BudgetSettings) -> None:
    world = World(budget=budget).boot()
    assert world.status().budget["warning"] is None
    assert logged(world) == []


def test_a_games_cap_below_the_minimum_is_told_until_it_is_large_enough() -> None:
    world = World(budget=GAME).boot()
    world.join(b"game")
    least = minimum_of(world)
    for cap, told in ((least - 1, True), (least, False), (0, False), (1, True)):
        world.cap(b"game", cap)
        world.settle()
        assert (world.status().budget["warning"] is not None) is told
    assert len(logged(world)) == 2


def test_who_finds_nothing_because_no_game_has_spoken_is_told_so_and_the_log_is_not() -> None:
    world = World(budget=GAME).boot()
    world.join(b"chat")
    warning = world.status().budget["warning"]
    assert "no client has said yet what the model may use" in warning["message"]
    assert "set_budget" in warning["hint"]
    world.cap(b"chat", None)
    world.settle()
    assert world.status().budget["warning"] is None
    assert logged(world) == []


def test_nothing_is_told_before_the_model_is_known() -> None:
    assert World(budget=fixed(1000)).status().budget["warning"] is None
