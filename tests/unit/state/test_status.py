"""What get_status says, against the table in the protocol's document."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import pytest

import xlm.protocol
from tests.unit.state.world import GAME, MIB, BudgetSettings, World
from xlm.protocol import link, messages
from xlm_broker.state import events

TEMPLATE = Path(xlm.protocol.__file__).parent / "protocol.template.md"
BY_THE_DRIVER = {"broker": {"pid"}, "throughput": {"reclaim", "release"}, "schedule": {"profile"}}


def documented() -> dict[str, set[str]]:
    """Top-level keys of each map: what stands in backticks outside of parentheses."""
    section = TEMPLATE.read_text(encoding="utf-8").split("### Status", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| `(\w+)`(?: \(list\))? \| (.*) \|$", section, re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)`", _outside_parentheses(text))) for name, text in rows}


def _outside_parentheses(text: str) -> str:
    while (shorter := re.sub(r"\([^()]*\)", "", text)) != text:
        text = shorter
    return text


def playing() -> World:
    world = World(budget=GAME).boot()
    world.join(b"game")
    world.cap(b"game", 60 * MIB)
    world.settle()
    world.engine_says(world.engine.stats())
    return world


def maps(status: messages.Status) -> dict[str, list[dict[str, Any]]]:
    parts = {name: getattr(status, name) for name in documented()}
    return {name: parts[name] if isinstance(parts[name], list) else [parts[name]] for name in documented()}


@pytest.mark.parametrize("when", ["before anything", "while loading", "ready", "dead", "failed"])
def test_every_documented_key_is_always_there(when: str) -> None:
    world = playing() if when in ("ready", "dead") else World(budget=GAME)
    if when in ("while loading", "failed"):
        world.engine.auto = False
        world.handle(events.BrokerStarted())
        world.start_engine()
        world.join(b"game")
    if when == "failed":
        world.engine_says(link.Failed(code="model_empty", message="no bytes"))
    if when == "dead":
        world.crash()
    if when != "before anything":
        world.open(b"game")
    found = maps(world.status())
    assert set(documented()) == {
        "broker", "engine", "device", "budget", "schedule", "clients", "sessions", "throughput", "vision",
    }  # fmt: skip
    for name, keys in documented().items():
        assert found[name] or when == "before anything"
        for entry in found[name]:
            assert keys - BY_THE_DRIVER.get(name, set()) <= set(entry), name


def test_a_schedule_is_told_whole() -> None:
    world = playing()
    schedule, sent = world.status().schedule, world.sent(link.SetSchedule)[-1].schedule
    assert (schedule["schedule_id"], schedule["in_force_id"]) == (sent.schedule_id, sent.schedule_id)
    assert [tier["max_tokens"] for tier in schedule["tiers"]] == [tier.max_tokens for tier in sent.tiers]
    n_sublayers = len(world.engine.model.sublayers)
    assert {tier["n_cpu"] + tier["n_stream"] + tier["n_resident"] for tier in schedule["tiers"]} == {n_sublayers}
    assert schedule["tiers"][0]["n_resident"] > 0
    assert schedule["table"].startswith(sent.summary)
    assert 0 < schedule["kv_bytes"] < schedule["resident_bytes"] == sent.resident_bytes


def test_what_is_not_known_is_none() -> None:
    status = World().status()
    assert (status.budget["demand_bytes"], status.budget["minimum_bytes"]) == (None, None)
    assert (status.schedule["schedule_id"], status.schedule["tiers"], status.schedule["table"]) == (None, [], "")
    assert status.schedule["settled"] is False
    known = playing().status().budget
    assert 0 < known["minimum_bytes"] < known["demand_bytes"]


@pytest.mark.parametrize(
    ("settings", "mode"),
    [(GAME, "from_game"), (BudgetSettings(), "free"), (BudgetSettings(fixed_bytes=MIB), "fixed")],
)
def test_who_decides_the_budget(settings: BudgetSettings, mode: str) -> None:
    assert World(budget=settings).status().budget["mode"] == mode


def test_clients_and_their_sessions() -> None:
    world = playing()
    world.join(b"other")
    session = world.open(b"game")
    world.open(b"game")
    world.say(b"game", session)
    world.now_ns += 250_000_000
    status = world.status()
    game, other = status.clients
    assert (game["sessions"], other["sessions"]) == (2, 0)
    assert (game["age_ms"], game["expires_in_ms"]) == (250.0, 2750.0)
    assert status.budget["caps_bytes"] == [60 * MIB]
    assert [(one["client"], one["busy"], one["context_tokens"]) for one in status.sessions] == [
        ("game", True, 0),
        ("game", False, 0),
    ]
    assert "lease_id" not in game, "whoever knows it could take the lease over"


def test_a_session_counts_what_its_answer_in_progress_has_said() -> None:
    world = playing()
    session = world.open(b"game")

    def counted() -> tuple[int, int, int, bool]:
        (one,) = world.status().sessions
        return one["turns"], one["context_tokens"], one["tokens"], one["busy"]

    world.say(b"game", session)
    gen_id = world.sent(link.Generate)[-1].gen_id
    world.engine_says(link.Piece(gen_id=gen_id, text="Good day", token_ids=[5, 6]))
    assert counted() == (0, 2, 2, True)
    world.engine_says(link.Piece(gen_id=gen_id, text="!", token_ids=[7]))
    assert counted() == (0, 3, 3, True)
    whole = struct.pack("<5i", 1, 2, 5, 6, 7)  # with what was asked
    for message in world.engine.finish(gen_id, "stop", whole):
        world.engine_says(message)
    assert counted() == (1, 5, 5, False)


def test_the_device_tells_what_it_holds() -> None:
    world = playing()
    sizes = {"resident_bytes": 5, "kv_bytes": 4, "ring_bytes": 3, "scratch_bytes": 2, "bytes_streamed": 9}
    world.engine_says(world.engine.stats(**sizes))
    device = world.status().device
    assert {name: device[name] for name in sizes} == sizes
    assert not device["degraded"]
    world.engine_says(world.engine.stats(device_lost=True))
    assert (world.status().device["lost"], world.status().device["degraded"]) == (True, True)
