"""libxlm against a real broker with a real model: what the fake broker cannot show."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

import xlm
from tests.support.running_broker import RunningBroker, running_broker, wait_until
from xlm.errors import DeviceError
from xlm_native import game
from xlm_native.game import Game, Kind

LONG_S = 600.0  # only bounds a failure
MIB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    try:
        game.library()
    except DeviceError as error:
        pytest.fail(f"libxlm is not built, run `make setup`: {error}")


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with running_broker() as broker:
        yield broker


def until(client: Game, *kinds: Kind) -> list[game.Event]:
    """Everything up to the first event of one of the kinds."""
    seen: list[game.Event] = []
    while not any(event.kind in kinds for event in seen):
        assert client.wait_event(LONG_S), f"none of {kinds} among {seen}"
        seen += client.events()
    return seen


def test_a_conversation_under_changing_budgets(broker: RunningBroker) -> None:
    with Game("abi", broker.endpoint) as client:
        client.wait_ready(LONG_S)
        greta = client.open_session("You are Greta, a blacksmith.")
        answers = []
        for cap in (256 * MIB, 64 * MIB, 0):
            lease = client.set_budget_wait(cap, deadline_ns=10_000_000_000, timeout_s=LONG_S)
            assert lease.device_used_bytes <= lease.granted_bytes <= cap
            greta.say("Say a word.", max_tokens=8, temperature=0.0)
            answers.append(until(client, Kind.DONE, Kind.FAILED)[-1])
        assert all(answer.kind == Kind.DONE and answer.text for answer in answers)


def test_grammar_bounds_the_answer(broker: RunningBroker) -> None:
    with Game("grammar", broker.endpoint) as client:
        client.wait_ready(LONG_S)
        npc = client.open_session("You answer.")
        npc.say("Yes or no?", grammar='root ::= "yes" | "no"', max_tokens=8)
        assert until(client, Kind.DONE, Kind.FAILED)[-1].text in ("yes", "no")


def test_a_broker_killed_in_mid_sentence(broker: RunningBroker) -> None:
    with Game("abi", broker.endpoint) as client:
        client.wait_ready(LONG_S)
        client.set_budget_wait(100 * MIB, timeout_s=LONG_S)
        greta = client.open_session("You are Greta, a blacksmith.")
        answer = greta.say("Tell me a long story.", max_tokens=400)
        until(client, Kind.TOKENS)
        broker.kill(signal.SIGKILL)
        failed = until(client, Kind.FAILED)[-1]
        assert failed.id == answer
        assert failed.error is not None
        assert failed.error.code == "broker_gone"
        assert not client.ready
        broker.start()
        seen = until(client, Kind.SESSION_RESET, Kind.SESSION_RESUMED, Kind.SESSION_LOST)
        assert [e.kind for e in seen if e.session is greta][-1] != Kind.SESSION_LOST
        client.wait_ready(LONG_S)
        greta.say("And now?", max_tokens=8)
        assert until(client, Kind.DONE, Kind.FAILED)[-1].kind == Kind.DONE
        with broker.connect("observer") as observer:
            caps = {one["name"]: one["cap_bytes"] for one in observer.status().clients}
        assert caps["abi"] == 100 * MIB  # asked for again without the game's doing


def answering(observer: xlm.Client, name: str) -> bool:
    """Whether tokens are made for a client; its session itself waits a while for it to come back."""
    return any(one["name"] == name and one["answering"] for one in observer.status().sessions)


def test_a_killed_game_leaves_nothing(broker: RunningBroker) -> None:
    script = (
        "import sys, time; from xlm_native.game import Game\n"
        f"client = Game('victim', {broker.endpoint!r}); client.wait_ready(600)\n"
        "client.set_budget_wait(50 << 20, timeout_s=60); session = client.open_session('x')\n"
        "session.say('Tell me a long story.', max_tokens=400); print('up', flush=True); time.sleep(600)\n"
    )
    victim = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=os.environ)
    assert victim.stdout is not None
    assert victim.stdout.readline() == b"up\n"
    victim.kill()
    victim.wait()
    victim.stdout.close()
    with broker.connect("observer") as observer:
        wait_until(lambda: "victim" not in [one["name"] for one in observer.status().clients], "its lease ends")
        wait_until(lambda: not answering(observer, "victim"), "nothing is generated for it")
