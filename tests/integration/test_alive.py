"""Whoever dies, the others live on and nothing is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import psutil
import pytest

import xlm
from tests.support.processes import ended
from tests.support.running_broker import RunningBroker, running_broker, wait_until

SYSTEM = "You are Greta, a blacksmith."
MOST_NICE = 19
FIRST, SECOND = "What do you forge today?", "And what will it cost me?"


def conversation(client: xlm.Client) -> list[list[int]]:
    with client.open_session(system=SYSTEM) as npc:
        return [list(npc.say(text, max_tokens=48, temperature=0.0).token_ids) for text in (FIRST, SECOND)]


def test_engine_killed_in_mid_sentence(broker: RunningBroker) -> None:
    with broker.connect() as client:
        client.set_budget("256MiB")
        expected = conversation(client)
        with client.open_session(system=SYSTEM) as npc:
            reply = npc.say(FIRST, max_tokens=48, temperature=0.0)
            pieces = iter(reply)
            text = next(pieces)
            os.kill(broker.engine_pid(), signal.SIGKILL)
            text += "".join(pieces)
            assert list(reply.token_ids) == expected[0]
            assert text == reply.text
            kinds = [notice.kind for notice in client.notices()]
            assert "engine_restarting" in kinds
            again = npc.say(SECOND, max_tokens=48, temperature=0.0)
            assert list(again.token_ids) == expected[1]


@pytest.mark.skipif(sys.platform != "linux", reason="sessions and the nice of threads are Linux'")
def test_threads_that_compute_step_back(broker: RunningBroker) -> None:
    """Within one session, where alone Linux looks at their nice; and Ctrl-C in its terminal is the broker's."""
    assert broker.process is not None
    with broker.connect() as client:
        conversation(client)
    pid, engine = broker.process.pid, broker.engine_pid()
    planning = next(c.pid for c in psutil.Process(pid).children() if "planning_process" in " ".join(c.cmdline()))
    own = os.getpriority(os.PRIO_PROCESS, pid)
    if own > 9:
        pytest.skip("this run itself is so nice that nobody can step back behind it")
    for child in (engine, planning):
        assert os.getsid(child) == os.getsid(pid)
        assert os.getpgid(child) == child
    nices = nice_of_threads(engine)
    least = min(own + 1, MOST_NICE)  # a suite that steps back itself leaves them no further to go
    assert nices.pop(engine) >= least, "llama.cpp computes on the main thread"
    assert own in nices.values(), "the link's threads do not step back"
    assert os.getpriority(os.PRIO_PROCESS, planning) >= min(os.getpriority(os.PRIO_PROCESS, engine) + 1, MOST_NICE)


def nice_of_threads(pid: int) -> dict[int, int]:
    found: dict[int, int] = {}
    for name in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            found[int(name)] = os.getpriority(os.PRIO_PROCESS, int(name))
    return found


GAME = """
import sys, time, xlm
client = xlm.connect(sys.argv[1], name="doomed game", timeout=600)
client.reserve("100MiB"); client.set_budget("8MiB")
print("ready", flush=True)
time.sleep(600)
"""


def test_game_killed_ends_its_lease_and_frees_its_share() -> None:
    """Nobody sends it anything, so that its heartbeats must be missed: they are short here."""
    with running_broker(heartbeat_ms=2000, ctx=512) as broker, broker.connect("survivor") as client:
        before = client.set_budget("200MiB").granted_bytes
        game = subprocess.Popen([sys.executable, "-c", GAME, broker.endpoint], stdout=subprocess.PIPE, text=True)
        assert game.stdout is not None
        assert game.stdout.readline() == "ready\n"
        assert client.status().budget["effective_bytes"] <= 8 << 20
        game.kill()
        game.wait()
        wait_until(lambda: client.status().budget["effective_bytes"] == before, "the dead game's cap is lifted")
        assert "doomed game" not in [c["name"] for c in client.status().clients]


def test_broker_killed_and_started_again_needs_no_cleaning() -> None:
    with running_broker() as broker:
        engine = broker.engine_pid()
        with broker.connect() as client:
            client.set_budget("64MiB")
            expected = conversation(client)
        broker.kill()
        wait_until(lambda: ended(engine), "no orphaned engine")
        broker.start()
        with broker.connect() as client:
            client.set_budget("64MiB")
            assert conversation(client) == expected


FROZEN = """
import sys, xlm
client = xlm.connect(sys.argv[1], name="frozen", timeout=600)
npc = client.open_session(system="You talk.")
replies = [npc.say("Count to one thousand.", max_tokens=1500, temperature=0.0)]
next(iter(replies[0]))
print("streaming", flush=True)
import time; time.sleep(600)
"""


def test_a_stopped_client_is_nobody_elses_business(broker: RunningBroker) -> None:
    """What it costs in memory: test_broker_process.py, where answers are long enough to tell."""
    assert broker.process is not None
    game = subprocess.Popen([sys.executable, "-c", FROZEN, broker.endpoint], stdout=subprocess.PIPE, text=True)
    try:
        assert game.stdout is not None
        assert game.stdout.readline() == "streaming\n"
        game.send_signal(signal.SIGSTOP)
        with broker.connect("other") as client:
            for _ in range(4):
                assert len(conversation(client)[0]) > 0
            assert client.status().broker["queued_bytes"] <= 1 << 20
    finally:
        game.kill()
        game.wait()


def test_commands_of_the_dead_are_not_needed(broker: RunningBroker) -> None:
    """After all of the above the same broker still answers as ever."""
    with broker.connect() as client:
        with pytest.raises(xlm.errors.XlmError):
            client.set_budget(-1)
        assert len(conversation(client)[0]) > 0
