"""Frame feedback through a real broker and a real engine. Frame times are told, not taken: no test asks a clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import xlm
from tests.support.running_broker import RunningBroker, wait_until

SYSTEM = "You are Greta, a blacksmith who tells long stories."
LATE, GOOD, TARGET = 30_000_000, 8_000_000, 16_666_667


def told(client: xlm.Client, frame_ns: int, pacing: Any = "steps") -> dict[str, Any]:
    """A frame of this length; what status says then of the pace."""
    client.report_frame(frame_ns, TARGET, pacing=pacing)
    return dict(client.status().throughput)


def slow_down(client: xlm.Client, duty: float, pacing: Any = "steps") -> None:
    wait_until(lambda: told(client, LATE, pacing)["duty"] <= duty, f"a duty of {duty}")


@contextmanager
def endless(npc: xlm.Session) -> Iterator[xlm.Reply]:
    """An answer under way that cannot end by itself, for its grammar has no last letter; cancelled at the end."""
    with npc.say("Go on.", max_tokens=3000, temperature=0.0, grammar="root ::= [a-z ] root") as reply:
        pieces = iter(reply)  # held: who lets go of it leaves the answer
        next(pieces)
        yield reply


@pytest.fixture
def game(broker: RunningBroker) -> Any:
    with broker.connect("game") as client:
        client.set_budget("256MiB")
        yield client


def test_late_frames_hold_the_engine_back_and_good_ones_let_it_go(broker: RunningBroker, game: xlm.Client) -> None:
    with broker.connect("npc") as talker, talker.open_session(system=SYSTEM) as npc, endless(npc):
        slow_down(game, 0.3)
        held_ns = wait_until(lambda: told(game, LATE)["paced_ns"], "steps are held back")
        wait_until(lambda: told(game, LATE)["paced_ns"] > held_ns, "and again")
        seen = next(client for client in game.status().clients if client["name"] == "game")["frames"]
        assert seen["overshoot"] > 0
        assert seen["figure_ms"] >= 16.7
        wait_until(lambda: told(game, GOOD)["duty"] == 1.0, "full pace again")


def test_words_are_the_same_at_any_pace(broker: RunningBroker, game: xlm.Client) -> None:
    def answer(npc: xlm.Session) -> list[int]:
        reply = npc.say("What do you forge?", max_tokens=24, temperature=0.0)
        for _ in reply:
            told(game, TARGET)
        return list(reply.token_ids)

    with broker.connect("npc") as talker:
        with talker.open_session(system=SYSTEM) as npc:
            expected = answer(npc)
        with talker.open_session(system=SYSTEM) as other, endless(other):
            slow_down(game, 0.3)
        held_ns = told(game, TARGET)["paced_ns"]
        with talker.open_session(system=SYSTEM) as npc:
            assert answer(npc) == expected
        wait_until(lambda: told(game, TARGET)["paced_ns"] > held_ns, "it was said slowly")


def test_cancel_and_budget_do_not_wait_for_a_gap(broker: RunningBroker, game: xlm.Client) -> None:
    """At the lowest pace there is much more gap than step: all this happens in gaps."""
    with broker.connect("npc") as talker, talker.open_session(system=SYSTEM) as npc, endless(npc) as reply:
        slow_down(game, 0.06)
        for size in ("0", "64MiB", "8MiB", "256MiB"):
            lease = game.set_budget(size)
            assert lease.device_used_bytes <= lease.granted_bytes
        reply.cancel()
        assert reply.finish_reason == "cancelled"


def test_shrinks_where_it_may_and_gives_all_back_with_the_lease(broker: RunningBroker) -> None:
    with broker.connect("npc") as talker, talker.open_session(system=SYSTEM) as npc:
        whole = talker.set_budget("256MiB").granted_bytes
        with broker.connect("shrinker") as game, endless(npc):
            slow_down(game, 0.05, "shrink")

            def budget() -> dict[str, Any]:
                told(game, LATE, "shrink")
                return dict(game.status().budget)

            wait_until(lambda: budget()["frame_limit_bytes"] is not None, "a smaller budget")
            found = wait_until(lambda: (now := budget())["settled"] and now, "it is released")
            assert found["limited_by"] == "frame"
            assert found["used_bytes"] <= found["effective_bytes"] < whole
        wait_until(lambda: talker.status().budget["effective_bytes"] == whole, "all is given back")
        assert talker.status().throughput["duty"] == 1.0
