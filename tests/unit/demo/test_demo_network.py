"""Conversations, budgets and samples against the SDK's fake broker: the real protocol over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import xlm
from xlm.protocol import messages
from xlm.testing import FakeBroker
from xlm_broker.demo.network import Network
from xlm_broker.demo.npc import CHARACTERS, GRETA, Conversation
from xlm_broker.demo.record import Recorder, Turn
from xlm_broker.demo.story import story
from xlm_broker.demo.verify import compare

MIB = 1 << 20


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(answer=lambda said: f"You said: {said} ⚒") as fake:
        yield fake


@pytest.fixture
def record() -> Recorder:
    return Recorder(story(30.0), device_bytes=256 * MIB, demand_bytes=100 * MIB)


def talk(endpoint: str, turns: list[Turn], limit: int) -> None:
    async def run() -> None:
        async with xlm.aconnect(endpoint, name="player") as client:
            conversation = Conversation(GRETA, 40, lambda: 1.5, turns, asyncio.Event(), pauses=False)
            await conversation.run(client, limit)

    asyncio.run(run())


def test_a_conversation_records_every_piece(broker: FakeBroker) -> None:
    turns: list[Turn] = []
    talk(broker.endpoint, turns, 12)
    assert [turn.player for turn in turns] == [*GRETA.lines, *GRETA.lines][:12]
    assert turns[0].text == f"You said: {GRETA.lines[0]} ⚒"
    assert all(sum(count for _, count in turn.arrivals) == len(turn.token_ids) > 0 for turn in turns)
    assert {turn.finish_reason for turn in turns} == {"stop"}
    opened = broker.wait_for(messages.OpenSession)
    assert opened.system == GRETA.persona
    said = broker.wait_for(messages.Say)
    assert said.sampling.temperature == 0.0  # greedy: a second run can be compared


def test_a_budget_is_asked_without_waiting_and_recorded_when_answered(broker: FakeBroker, record: Recorder) -> None:
    with Network(broker.endpoint, record, 40) as network:
        for phase in record.phases:
            network.ask_budget(phase)
        for ticket in list(network.tasks):
            ticket.result(10.0)
    assert [change.phase for change in record.changes] == [phase.key for phase in record.phases]
    by_key = {change.phase: change for change in record.changes}
    assert by_key["menu"].to_bytes == 100 * MIB
    assert by_key["last"].to_bytes == 0
    assert by_key["alttab"].to_bytes == 256 * MIB
    assert by_key["boss"].is_reclaim
    assert by_key["boss"].used_bytes <= by_key["boss"].to_bytes
    assert broker.wait_for(messages.SetBudget).deadline_ms == 16.0


def test_the_replay_says_the_same_lines_at_a_lifted_cap(broker: FakeBroker, record: Recorder) -> None:
    first: list[Turn] = []
    told: list[tuple[int, int]] = []
    talk(broker.endpoint, first, 3)
    with Network(broker.endpoint, record, 40) as network:
        again = network.replay(first, 60.0, lambda done, total: told.append((done, total)))
    assert {turn.npc for turn in again} == {GRETA.name}  # the other one had said nothing
    comparison = compare(first, again)
    assert (comparison.turns, comparison.different) == (3, 0)
    assert {total for _, total in told} <= {3}
    assert told == sorted(told)
    assert comparison.compared == sum(len(turn.token_ids) for turn in first)
    assert broker.wait_for(messages.SetBudget).cap_bytes is None


def test_both_characters_talk_until_the_story_ends(broker: FakeBroker, record: Recorder) -> None:
    with Network(broker.endpoint, record, 40) as network:
        network.begin()
        for number in range(1, 5):
            broker.wait_for(messages.Say, number)
        network.end()
    assert {turn.npc for turn in record.turns} == {person.name for person in CHARACTERS}
    assert record.memory
    assert record.memory[0].budget_bytes == 256 * MIB
    assert len([one for one in broker.requests if isinstance(one, messages.CloseSession)]) == 2


def test_an_answer_that_fails_stops_the_story_with_its_error(broker: FakeBroker, record: Recorder) -> None:
    broker.fail_next("say", "engine_failed", "the engine died")
    with Network(broker.endpoint, record, 40) as network:
        network.begin()
        assert network.stop.wait(600.0)
        with pytest.raises(xlm.EngineError, match="the engine died"):
            network.end()


def test_no_broker_is_one_typed_error(tmp_path: object, record: Recorder) -> None:
    network = Network(f"ipc://{tmp_path}/nobody.sock", record, 40, timeout_s=0.2)
    with pytest.raises(xlm.BrokerError) as caught, network:
        pytest.fail("entered without a broker")
    assert caught.value.code == "not_ready"
