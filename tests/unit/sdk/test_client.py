"""The synchronous client over real sockets, against the fake broker: connections and budgets."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import zmq

import xlm
from xlm._base import Connection, Identity
from xlm._link import Link
from xlm._shell import DEFAULT_TIMEOUT_S, time_limit_s
from xlm.protocol import messages
from xlm.protocol.endpoints import parse_endpoint
from xlm.testing import FakeBroker
from xlm_broker.state.settings import Timing

from .conftest import ANSWER, LONG


def notice_of(client: xlm.Client, kind: str) -> xlm.Notice:
    while True:
        notice = client.wait_notice(LONG)
        assert notice is not None, f"no notice {kind}"
        if notice.kind == kind:
            return notice


# -- connecting ------------------------------------------------------------------------


def test_hello_and_goodbye(broker: FakeBroker) -> None:
    with xlm.connect(broker.endpoint, name="tavern", timeout=LONG) as client:
        assert client.connected
        assert client.lease_id
        assert client.endpoint == broker.endpoint
        assert (client.protocol_version, client.broker_version) == (1, "fake")
        hello = broker.wait_for(messages.Hello)
        assert (hello.name, hello.pid) == ("tavern", os.getpid())
        assert broker.clients == ["tavern"]
    broker.wait_for(messages.Goodbye)
    assert not client.connected
    with pytest.raises(xlm.ProtocolError, match="closed"):
        client.status()
    client.close()


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(xlm.BrokerError, match="xlm-broker --model demo --budget-from-game") as caught:
        xlm.connect(f"ipc://{tmp_path}/none.sock", timeout=0.2)
    assert (caught.value.code, caught.value.retryable) == ("not_ready", True)


def test_a_broker_that_comes_later_is_found(broker: FakeBroker) -> None:
    broker.kill()
    with ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(xlm.connect, broker.endpoint, timeout=LONG)
        broker.restart()
        with connecting.result(LONG) as client:
            assert client.connected


@pytest.mark.parametrize("endpoint", ["tcp://0.0.0.0:1", "ipc:///" + "x" * 200, "nonsense"])
def test_endpoints_are_checked_first(endpoint: str) -> None:
    with pytest.raises(xlm.EndpointError):
        xlm.connect(endpoint)


def test_another_protocol_version() -> None:
    with FakeBroker(versions=(7, 9)) as broker, pytest.raises(xlm.ProtocolError, match="7 to 9") as caught:
        xlm.connect(broker.endpoint, timeout=LONG)
    assert caught.value.code == "protocol_version"
    assert "update the older" in caught.value.hint


def test_a_later_broker_that_still_speaks_ours() -> None:
    with FakeBroker(versions=(1, 9)) as broker, xlm.connect(broker.endpoint, timeout=LONG) as client:
        assert client.protocol_version == messages.VERSION_MAX


def test_a_full_broker(broker: FakeBroker) -> None:
    broker.fail_next("hello", "too_many_clients")
    with pytest.raises(xlm.RequestError) as caught:
        xlm.connect(broker.endpoint, timeout=LONG)
    assert caught.value.code == "too_many_clients"


def test_over_tcp() -> None:
    with FakeBroker(endpoint="tcp://127.0.0.1:*") as broker, xlm.connect(broker.endpoint, timeout=LONG) as client:
        assert client.set_budget("1MiB").granted_bytes == 1 << 20


def test_a_program_that_ends_without_closing_still_says_goodbye(broker: FakeBroker) -> None:
    script = f"import xlm; client = xlm.connect({broker.endpoint!r}, name='careless'); client.set_budget(0)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=LONG)
    broker.wait_for(messages.Goodbye)


def test_a_forgotten_client_says_goodbye(broker: FakeBroker) -> None:
    client = xlm.connect(broker.endpoint, timeout=LONG)
    del client
    gc.collect()
    broker.wait_for(messages.Goodbye)


# -- budgets ---------------------------------------------------------------------------


def test_a_budget_with_a_deadline(broker: FakeBroker, client: xlm.Client) -> None:
    lease = client.set_budget("96MiB", deadline_ms=16)
    request = broker.wait_for(messages.SetBudget)
    assert (request.cap_bytes, request.deadline_ms, request.require) == (96 << 20, 16.0, "any")
    assert (lease.granted_bytes, lease.used_bytes, lease.device_used_bytes) == (96 << 20,) * 3
    assert (lease.cap_bytes, lease.reserved_bytes, lease.deadline_met) == (96 << 20, 0, True)
    assert lease.release_ms == 0.25
    broker.miss_deadlines()
    assert client.set_budget("1.5MiB", deadline_ms=1).deadline_met is False
    assert client.set_budget(None).granted_bytes == broker.device_bytes


def test_a_reservation(client: xlm.Client) -> None:
    lease = client.reserve("56MiB")
    assert (lease.reserved_bytes, lease.granted_bytes) == (56 << 20, 200 << 20)
    assert client.reserve(0).granted_bytes == 256 << 20
    assert client.reserve("1GiB").granted_bytes == 0


def test_a_budget_that_nothing_fits_in(client: xlm.Client) -> None:
    with pytest.raises(xlm.BudgetError) as caught:
        client.set_budget(1, require="device")
    assert (caught.value.code, caught.value.minimum_bytes) == ("budget_infeasible", 16 << 20)
    assert client.set_budget(1).granted_bytes == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.set_budget(-1),
        lambda client: client.set_budget("much"),
        lambda client: client.set_budget(1, deadline_ms=-1),
        lambda client: client.set_budget(1, deadline_ms=float("nan")),
        lambda client: client.set_budget(1, deadline_ms="soon"),
        lambda client: client.set_budget(1, require="gpu"),
        lambda client: client.set_budget_nowait("-5MiB"),
        lambda client: client.reserve(None),
        lambda client: client.reserve(1.5),
    ],
)
def test_wrong_budgets_never_leave_the_process(
    broker: FakeBroker, client: xlm.Client, call: Callable[[Any], Any]
) -> None:
    with pytest.raises(xlm.BudgetError) as caught:
        call(client)
    assert caught.value.code == "budget_invalid"
    client.status()
    assert not [one for one in broker.requests if isinstance(one, messages.SetBudget | messages.Reserve)]


def test_a_ticket_does_not_wait(broker: FakeBroker, client: xlm.Client) -> None:
    broker.freeze()
    ticket = client.set_budget_nowait("32MiB", deadline_ms=16)
    assert not ticket.done()
    with pytest.raises(xlm.BrokerError) as caught:
        ticket.result(timeout=0.01)
    assert caught.value.code == "timeout"
    broker.freeze(False)
    assert ticket.result(LONG).granted_bytes == 32 << 20
    assert ticket.done()
    assert ticket.result().granted_bytes == 32 << 20


def test_a_ticket_carries_the_error(client: xlm.Client) -> None:
    ticket = client.set_budget_nowait(1, require="device")
    for _ in range(2):
        with pytest.raises(xlm.BudgetError):
            ticket.result(LONG)


def test_who_sets_no_time_out_waits_until_a_broker_has_given_up_on_its_engine() -> None:
    timing = Timing()
    surely_s = (timing.release_patience_ns + timing.restart_first_ns) / 1e9
    assert time_limit_s(None, DEFAULT_TIMEOUT_S, None) > surely_s + 2
    assert time_limit_s(None, DEFAULT_TIMEOUT_S, 500.0) == time_limit_s(None, DEFAULT_TIMEOUT_S, None) + 0.5
    assert time_limit_s(None, 1.0, None) == 1.0
    assert time_limit_s(0.25, DEFAULT_TIMEOUT_S, 500.0) == 0.25


def test_a_call_that_takes_too_long(broker: FakeBroker, client: xlm.Client) -> None:
    broker.freeze()
    with pytest.raises(xlm.BrokerError) as caught:
        client.set_budget(1, timeout=0.05)
    assert (caught.value.code, caught.value.retryable) == ("timeout", True)
    assert "the engine has not released the memory yet" in str(caught.value)
    broker.freeze(False)
    assert client.status().device["total_bytes"] == broker.device_bytes


# -- the broker dies -------------------------------------------------------------------


def test_a_dead_broker_is_noticed_at_once_and_found_again(broker: FakeBroker, client: xlm.Client) -> None:
    client.set_budget("96MiB")
    client.reserve("32MiB")
    npc = client.open_session(system="You are Greta.")
    broker.hold(after_pieces=1)
    pieces = iter(npc.say("Can you?"))
    assert next(pieces) == "Aye,"
    broker.kill()
    with pytest.raises(xlm.BrokerError) as caught:
        next(pieces)
    assert (caught.value.code, caught.value.retryable) == ("broker_gone", True)
    for call in (client.status, lambda: npc.say("?"), lambda: client.set_budget("64MiB"), client.open_session):
        with pytest.raises(xlm.BrokerError) as caught:
            call()
        assert caught.value.code == "broker_gone"
    assert not client.connected
    broker.requests.clear()
    broker.restart(remember_sessions=True)
    broker.release()
    client.wait_connected(LONG)
    assert broker.wait_for(messages.SetBudget).cap_bytes == 64 << 20
    assert broker.wait_for(messages.Reserve).bytes == 32 << 20
    assert npc.resumed
    assert npc.say("Are you still there?").text == ANSWER
    assert [notice.kind for notice in client.notices()] == ["broker_gone", "reconnected"]
    npc.close()


def test_a_conversation_the_new_broker_does_not_know_begins_anew(broker: FakeBroker, client: xlm.Client) -> None:
    npc = client.open_session(system="You are Greta.")
    before = npc.id
    broker.restart()
    assert notice_of(client, "session_reset").detail == {"session_id": before}
    client.wait_connected(LONG)
    assert npc.id != before
    assert npc.say("Do you know me?").text == ANSWER
    assert broker.wait_for(messages.OpenSession, 3).system == "You are Greta."


def test_a_frozen_broker_is_given_up_after_the_ttl() -> None:
    with FakeBroker(heartbeat_ms=200.0) as broker, xlm.connect(broker.endpoint, timeout=LONG) as client:
        broker.wait_for(messages.Ping, 3)  # they go out although this thread does nothing
        client.wait_connected(LONG)
        broker.freeze()
        with pytest.raises(xlm.XlmError) as caught:
            client.set_budget("1MiB")
        assert caught.value.code in ("broker_gone", "lease_expired")  # the latter where this process stood still
        broker.freeze(False)
        client.wait_connected(LONG)
        assert client.status().budget["effective_bytes"] == 1 << 20


def test_an_expired_lease_is_taken_out_again(broker: FakeBroker, client: xlm.Client) -> None:
    client.set_budget("96MiB")
    before = client.lease_id
    broker.expire_leases()
    with pytest.raises(xlm.ProtocolError) as caught:
        client.status()
    assert (caught.value.code, caught.value.retryable) == ("lease_expired", True)
    notice_of(client, "reconnected")
    client.wait_connected(LONG)
    assert client.lease_id != before
    assert client.status().clients[0]["cap_bytes"] == 96 << 20


def test_a_broker_of_another_version_after_a_restart(broker: FakeBroker, client: xlm.Client) -> None:
    broker.kill()
    notice_of(client, "broker_gone")
    broker.versions = (5, 6)
    broker.restart()
    for call in (lambda: client.wait_connected(LONG), client.status):
        with pytest.raises(xlm.ProtocolError) as caught:
            call()
        assert caught.value.code == "protocol_version"


def test_garbage_from_the_broker_hurts_nobody(broker: FakeBroker, npc: xlm.Session) -> None:
    for frame in (b"", b"\xc1", b"\x00" * 2_000_000, b"\x81\xa1t\xa4nope", b"\x91" * 100_000):
        broker.send_raw(frame)
    assert npc.say("Can you?").text == ANSWER


# -- threads ---------------------------------------------------------------------------


def test_many_threads_share_one_client(broker: FakeBroker, client: xlm.Client) -> None:
    broker.answer = lambda said: f"You said: {said}"
    n_threads, n_turns = 6, 15

    def talk(number: int) -> list[str]:
        with client.open_session(system=f"NPC {number}") as npc:
            texts = []
            for turn in range(n_turns):
                client.set_budget((number + 1) << 20)
                texts.append("".join(npc.say(f"{number}/{turn}")))
                assert client.status().engine["state"] == "ready"
            return texts

    with ThreadPoolExecutor(n_threads) as pool:
        heard = list(pool.map(talk, range(n_threads), timeout=LONG))
    assert heard == [[f"You said: {number}/{turn}" for turn in range(n_turns)] for number in range(n_threads)]


def test_closing_wakes_who_waits(broker: FakeBroker) -> None:
    client = xlm.connect(broker.endpoint, timeout=LONG)
    npc = client.open_session()
    broker.hold()
    reply = npc.say("Can you?")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: reply.text)
        broker.wait_for(messages.Say)
        client.close()
        with pytest.raises(xlm.ProtocolError, match="closed"):
            waiting.result(LONG)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_is_told_to_connect_itself(broker: FakeBroker) -> None:
    script = (
        "import os, xlm\n"
        f"client = xlm.connect({broker.endpoint!r})\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    try:\n"
        "        client.status()\n"
        "    except xlm.ProtocolError as error:\n"
        "        os._exit(7 if 'fork' in str(error) else 8)\n"
        "    os._exit(9)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
        "client.status()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=LONG)


def test_a_broker_that_does_not_read_stops_taking_work(broker: FakeBroker, client: xlm.Client) -> None:
    broker.freeze()

    def flood() -> None:
        for _ in range(20_000):
            client.set_budget_nowait(1)

    with pytest.raises(xlm.BrokerError) as caught:
        flood()
    assert (caught.value.code, caught.value.retryable) == ("overloaded", True)


# -- keys ------------------------------------------------------------------------------


def curve_echo(context: zmq.Context[zmq.Socket[bytes]], public: bytes, secret: bytes) -> tuple[zmq.Socket[bytes], str]:
    router = context.socket(zmq.ROUTER)
    router.linger = 0
    router.curve_server = True
    router.curve_publickey, router.curve_secretkey = public, secret
    port = router.bind_to_random_port("tcp://127.0.0.1")
    return router, f"tcp://127.0.0.1:{port}"


@pytest.mark.skipif(not zmq.has("curve"), reason="this libzmq has no CURVE")
def test_the_right_key_gets_in_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from xlm.protocol import codec, keys

    monkeypatch.setattr(keys, "key_folder", lambda: tmp_path)
    pair = keys.server_keys()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router, endpoint = curve_echo(context, pair.public.encode(), pair.secret.encode())
    try:
        with ThreadPoolExecutor(1) as pool:
            connecting = pool.submit(xlm.connect, endpoint, timeout=LONG)  # the key is in its default file
            peer, frame = router.recv_multipart()
            hello = codec.decode_request(frame)
            welcome = messages.Welcome(id=hello.id, version=1, lease_id="l", heartbeat_ms=1e3, ttl_ms=6e4)
            router.send_multipart([peer, codec.encode(welcome)])
            connecting.result(LONG).close()
        wrong = zmq.curve_keypair()[0].decode()
        with pytest.raises(xlm.BrokerError) as caught:
            xlm.connect(endpoint, timeout=0.5, server_key=wrong)
        assert caught.value.code == "not_ready"
    finally:
        context.destroy(linger=0)


def test_a_key_for_ipc_is_a_mistake(broker: FakeBroker) -> None:
    with pytest.raises(xlm.EndpointError, match="for tcp"):
        xlm.connect(broker.endpoint, server_key="a" * 40)


def test_a_broker_that_hangs_up_in_the_handshake_is_not_said_to_want_a_key(tmp_path: Path) -> None:
    """Over ipc nothing is encrypted: what shuts the door is a broker with no file left for another connection."""
    path = tmp_path / "full.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        doorman = threading.Thread(target=shut_the_door, args=(listener,), daemon=True)
        doorman.start()
        link = Link(parse_endpoint(f"ipc://{path}"), None, Connection(Identity("npc", os.getpid(), "test")))
        link.start()
        try:
            assert link.wait(lambda: "no place for another" in link.connection.trouble, LONG)
        finally:
            link.stop()
            listener.shutdown(socket.SHUT_RDWR)
            doorman.join(LONG)


def shut_the_door(listener: socket.socket) -> None:
    """Takes each greeting and hangs up, until the listener is shut down."""
    with contextlib.suppress(OSError):
        while True:
            with listener.accept()[0] as connection:
                connection.recv(64)


def test_who_waits_for_a_notice_learns_that_the_client_was_closed(broker: FakeBroker) -> None:
    client = xlm.connect(broker.endpoint, timeout=LONG)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.wait_notice)
        client.close()
        with pytest.raises(xlm.ProtocolError, match="closed"):
            waiting.result(LONG)
    with pytest.raises(xlm.ProtocolError, match="closed"):
        client.wait_notice(LONG)


@pytest.mark.parametrize("name", ["x" * 257, "\udcff"])
def test_a_name_that_is_no_name(broker: FakeBroker, name: str) -> None:
    with pytest.raises(xlm.RequestError, match="client name"):
        xlm.connect(broker.endpoint, name=name)
