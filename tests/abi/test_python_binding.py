"""xlm_native.game: the C ABI through cffi, against the fake broker."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from xlm import errors
from xlm.errors import BrokerError, BudgetError, DeviceError, EndpointError, GenerationError, ImageError, XlmError
from xlm.protocol import messages
from xlm.testing import FakeBroker
from xlm_native import _generate_game, game
from xlm_native.game import Event, Game, ImageBytes, Kind

LONG_S = 600.0  # only bounds a failure


@pytest.fixture(scope="session", autouse=True)
def _built() -> None:
    try:
        game.library()
    except DeviceError as error:
        pytest.fail(f"libxlm is not built, run `make setup`: {error}")


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(answer="Aye. 🔨 鍛冶屋") as broker:
        yield broker


@pytest.fixture
def client(broker: FakeBroker) -> Iterator[Game]:
    with Game("test", broker.endpoint) as client:
        client.wait_ready(LONG_S)
        yield client


def until(client: Game, kind: Kind) -> list[Event]:
    """Everything up to the first event of a kind."""
    seen: list[Event] = []
    while not seen or seen[-1].kind != kind:
        assert client.wait_event(LONG_S), f"no {kind!r} among {seen}"
        for event in client.events():
            seen.append(event)
            if event.kind == kind:
                break
    return seen


def test_generated_declarations_are_current() -> None:
    assert _generate_game.main(["--check"]) == 0


def test_defaults_are_those_of_the_protocol() -> None:
    from xlm.protocol import messages

    ours = _generate_game.defaults(_generate_game.HEADER.read_text(encoding="utf-8"))["xlm_say_options"]
    sampling = messages.Sampling()
    for name in ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n"):
        assert ours[name] == getattr(sampling, name), name
    assert ours["max_tokens"] == messages.Say(session_id="", text="").max_tokens


def test_every_code_has_the_sdks_meaning() -> None:
    lib, described = game.library(), 0
    for code, known in errors.CODES.items():
        result = getattr(lib, f"XLM_ERROR_{code.upper()}")
        error = game.struct("xlm_error")
        assert lib.xlm_result_describe(result, error) == 0
        assert game._text(error.name) == code
        assert game._text(error.hint) == known.hint
        assert bool(error.retryable) == known.retryable
        assert error.fault == getattr(lib, f"XLM_FAULT_{known.error.fault.upper()}")
        described += 1
    assert described == len(errors.CODES)


def test_images(client: Game, broker: FakeBroker) -> None:
    session = client.open_session()
    until(client, Kind.SESSION_OPENED)
    frame = bytearray(b"BGRxBGRx....BGRxBGRx")
    shown = [ImageBytes(b"a file"), ImageBytes(frame, "bgrx8", 2, 2, stride_bytes=12, bottom_up=True)]
    session.say("What do you see?", images=shown)
    frame[:] = bytes(len(frame))  # copied at the call
    assert until(client, Kind.DONE)[-1].text == "Aye. 🔨 鍛冶屋"
    keys = broker.wait_for(messages.Say).images
    assert [broker.images[key] for key in keys] == [b"a file", b"BGRxBGRxBGRxBGRx"]
    with pytest.raises(ImageError) as caught:
        session.say("?", images=[ImageBytes(b"", "rgba8")])
    assert caught.value.code == "image_empty"


def test_a_conversation(client: Game) -> None:
    assert client.set_budget_wait(64 << 20, timeout_s=LONG_S).granted_bytes == 64 << 20
    greta = client.open_session("You are Greta.")
    answer = greta.say("Hello", stop=["END"], temperature=0.0, max_tokens=8)
    seen = until(client, Kind.DONE)
    pieces = [event for event in seen if event.kind == Kind.TOKENS]
    assert "".join(event.text for event in pieces) == "Aye. 🔨 鍛冶屋"
    assert seen[-1].text == "Aye. 🔨 鍛冶屋"
    assert {event.id for event in pieces} == {answer}
    assert all(event.session is greta for event in pieces)
    assert greta.id.startswith("session-")
    assert client.lease.cap_bytes == 64 << 20


def test_what_was_asked_arrives(client: Game, broker: FakeBroker) -> None:
    from xlm.protocol.messages import Say

    greta = client.open_session()
    greta.say("Hm", stop=["a", "b"], seed=3, priority=7, json_schema="{}")
    said = broker.wait_for(Say)
    assert (said.stop, said.sampling.seed, said.priority, said.sampling.json_schema) == (["a", "b"], 3, 7, "{}")


def test_status_is_json(client: Game) -> None:
    ticket = client.request_status()
    status = until(client, Kind.STATUS)[-1]
    assert status.id == ticket
    assert json.loads(status.detail)["engine"]["state"] == "ready"


def test_reservation(client: Game) -> None:
    assert client.reserve_wait(100 << 20, timeout_s=LONG_S).reserved_bytes == 100 << 20


def test_errors_are_typed(client: Game, broker: FakeBroker) -> None:
    with pytest.raises(EndpointError) as wrong_host:
        Game("test", "tcp://192.168.0.1:1")
    assert wrong_host.value.code == "endpoint_not_local"
    with pytest.raises(BudgetError):
        client.set_budget(1 << 62)
    session = client.open_session()
    with pytest.raises(GenerationError) as hot:
        session.say("x", temperature=11.0)
    assert hot.value.code == "sampling_invalid"
    session.close()
    with pytest.raises(XlmError) as closed:
        session.say("x")
    assert closed.value.code == "invalid_handle"


def test_without_a_broker_calls_fail_at_once(client: Game, broker: FakeBroker) -> None:
    broker.kill()
    until(client, Kind.STATE)  # READY was first
    while client.ready:
        client.wait_event(LONG_S)
        list(client.events())
    with pytest.raises(BrokerError) as gone:
        client.set_budget(5)
    assert gone.value.code == "broker_gone"
    broker.restart()
    client.wait_ready(LONG_S)
    assert client.set_budget_wait(None, timeout_s=LONG_S).cap_bytes is None
