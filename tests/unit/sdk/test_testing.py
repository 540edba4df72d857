"""The fake broker that users test with: what a bare socket sees of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

import xlm
from xlm.protocol import codec, messages
from xlm.protocol.messages import Message
from xlm.testing import FakeBroker


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        yield broker


@pytest.fixture
def dealer(broker: FakeBroker) -> Iterator[zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.rcvtimeo = 20_000
    dealer.connect(broker.endpoint)
    yield dealer
    context.destroy(linger=0)


def ask(dealer: zmq.Socket[bytes], message: Message) -> Message:
    dealer.send(codec.encode(message))
    return codec.decode_reply(dealer.recv())


def test_it_speaks_the_protocol(dealer: zmq.Socket[bytes]) -> None:
    before = ask(dealer, messages.Ping(id=1))
    assert isinstance(before, messages.Error)
    assert (before.id, before.code) == (1, "not_connected")
    welcome = ask(dealer, messages.Hello(id=2, version_min=1, version_max=9, name="bare", cause="why"))
    assert isinstance(welcome, messages.Welcome)
    assert (welcome.id, welcome.version, welcome.cause) == (2, 1, "why")
    assert ask(dealer, messages.Ping(id=3)) == messages.Pong(id=3)


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"\xc1", "bad_request"),
        (codec.encode(messages.Ok(id=5)), "unknown_type"),
        (b"\0" * ((1 << 20) + 1), "frame_too_large"),
    ],
)
def test_it_refuses_what_it_does_not_understand(dealer: zmq.Socket[bytes], frame: bytes, code: str) -> None:
    dealer.send(frame)
    refusal = codec.decode_reply(dealer.recv())
    assert isinstance(refusal, messages.Error)
    assert refusal.code == code


def test_a_lease_taken_up_again_keeps_its_cap(broker: FakeBroker, dealer: zmq.Socket[bytes]) -> None:
    welcome = ask(dealer, messages.Hello(id=1, version_min=1, version_max=1, name="bare"))
    assert isinstance(welcome, messages.Welcome)
    ask(dealer, messages.SetBudget(id=2, cap_bytes=5))
    hello = messages.Hello(id=3, version_min=1, version_max=1, name="bare", lease_id=welcome.lease_id)
    again = ask(dealer, hello)
    assert isinstance(again, messages.Welcome)
    assert (again.resumed, again.lease_id, broker.budget_bytes) == (True, welcome.lease_id, 5)


@pytest.mark.parametrize(
    ("answer", "pieces"),
    [
        ("one two", ["one", " two"]),
        ("", []),
        (["a", "bc", "🔨"], ["a", "bc", "🔨"]),
        (lambda said: said.upper(), ["HI", " YOU"]),
        (lambda said: [said] * 2, ["hi you", "hi you"]),
    ],
)
def test_answers(broker: FakeBroker, answer: object, pieces: list[str]) -> None:
    broker.answer = answer  # type: ignore[assignment]
    with xlm.connect(broker.endpoint) as client, client.open_session() as npc:
        assert list(npc.say("hi you")) == pieces


def test_it_leaves_nothing_behind() -> None:
    broker = FakeBroker()
    socket_file = Path(broker.endpoint.removeprefix("ipc://"))
    assert socket_file.exists()
    broker.stop()
    broker.stop()
    assert not socket_file.parent.exists()


def test_wait_for_gives_up(broker: FakeBroker) -> None:
    with pytest.raises(TimeoutError, match="0 of 1 Ping"):
        broker.wait_for(messages.Ping, timeout=0.01)
