"""The short `xlm status`: what is said of a status, and what is wrong in it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.state.world import GAME, MIB, World
from xlm_broker.cli.status_brief import rows, warnings


def of_a_real_machine() -> dict[str, Any]:
    world = World(budget=GAME).boot()
    world.join(b"game")
    world.cap(b"game", 60 * MIB)
    world.open(b"game")
    world.settle()
    world.engine_says(world.engine.stats(resident_bytes=50 * MIB, kv_bytes=5 * MIB, ring_bytes=3 * MIB))
    status = world.status()
    return {name: getattr(status, name) for name in status.__struct_fields__}


def test_a_calm_broker() -> None:
    said = dict(rows(of_a_real_machine()))
    assert said["budget"].startswith("decided by the games; the model can use ")
    assert said["memory"] == "weights 50MiB, KV 5MiB, ring 3MiB, scratch 0B"
    assert " resident of " in said["placement"]
    assert said["client"] == "game: cap 60MiB, 1 session"
    assert said["session"] == "of game: idle, 0 tokens, 0 turns"
    assert "warning" not in said


@pytest.mark.parametrize(
    ("part", "values", "words"),
    [
        ("engine", {"error": {"message": "no such file", "hint": "check the path"}}, "no such file (check the path)"),
        ("engine", {"restarts": 2}, "started again 2 times"),
        ("device", {"lost": True}, "the device is lost"),
        ("device", {"over_budget_events": 1}, "exceeded 1 time"),
        ("budget", {"settled": False}, "not confirmed"),
        ("budget", {"spill_limit_bytes": 64 * MIB}, "at most 64MiB"),
        ("budget", {"warning": {"message": "too little", "hint": "give more"}}, "too little (give more)"),
        ("budget", {"frame_limit_bytes": 32 * MIB}, "at most 32MiB"),
        ("throughput", {"duty": 0.5}, "50% of the time"),
        ("schedule", {"rejection": "too large"}, "too large"),
        (
            "schedule",
            {"profile": {"state": "missing", "text": "no profile", "advice": "measure"}},
            "no profile (measure)",
        ),
    ],
)
def test_what_is_not_as_it_should_be_is_a_warning(part: str, values: dict[str, Any], words: str) -> None:
    status = of_a_real_machine()
    status[part] = {**status[part], **values}
    (said,) = warnings(status)
    assert words in said
    assert ("warning", said) in rows(status)


def test_a_stalled_client_is_named() -> None:
    status = of_a_real_machine()
    status["clients"] = [{**status["clients"][0], "stalled": True}]
    assert warnings(status) == ["game does not take what is sent to it"]


def test_a_model_that_loads_and_a_broker_that_says_nothing() -> None:
    status = of_a_real_machine()
    status["engine"] = {**status["engine"], "state": "loading", "stage": "weights", "fraction": 0.25}
    assert ("engine", "weights, 25%") in rows(status)
    assert rows({}) == []
