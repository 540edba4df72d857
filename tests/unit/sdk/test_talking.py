"""The synchronous client over real sockets, against the fake broker: conversations and notices."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

import xlm
from xlm.protocol import messages
from xlm.testing import FakeBroker

from .conftest import ANSWER, LONG

# -- talking ---------------------------------------------------------------------------


def test_an_answer_piece_by_piece(npc: xlm.Session) -> None:
    reply = npc.say("Can you repair my sword?", max_tokens=64, temperature=0.0)
    pieces = list(reply)
    assert len(pieces) > 5
    assert "".join(pieces) == ANSWER == reply.text
    assert list(reply) == pieces
    assert len(reply.token_ids) == len(pieces) == reply.usage.completion_tokens
    assert (reply.usage.prompt_tokens, reply.finish_reason, reply.done) == (5, "stop", True)


def test_an_answer_as_a_whole(npc: xlm.Session) -> None:
    assert npc.say("Can you?").text == ANSWER
    reply = npc.say("Can you?", max_tokens=2)
    assert (reply.text, reply.finish_reason) == ("Aye, I", "length")


def test_every_option_arrives(broker: FakeBroker, npc: xlm.Session) -> None:
    options: dict[str, Any] = {
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.25,
        "min_p": 0.125,
        "repeat_penalty": 1.5,
        "repeat_last_n": 9,
        "seed": 5,
    }
    npc.say("a", max_tokens=7, stop=["x", "y"], priority=3, grammar='root ::= "a"', **options).wait(LONG)
    request = broker.wait_for(messages.Say)
    assert {name: getattr(request.sampling, name) for name in options} == options
    assert (request.max_tokens, request.stop, request.priority) == (7, ["x", "y"], 3)
    assert request.sampling.grammar == 'root ::= "a"'
    npc.say("a", json_schema={"type": "object", "title": "ö"}, stop="z").wait(LONG)
    request = broker.wait_for(messages.Say, 2)
    assert (request.sampling.json_schema, request.stop) == ('{"type": "object", "title": "ö"}', ["z"])
    npc.say("a", json_schema='{"type":"string"}').wait(LONG)
    assert broker.wait_for(messages.Say, 3).sampling.json_schema == '{"type": "string"}'


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"temperature": -1}, "sampling_invalid"),
        ({"temperature": float("nan")}, "sampling_invalid"),
        ({"top_p": 1.5}, "sampling_invalid"),
        ({"seed": -1}, "sampling_invalid"),
        ({"max_tokens": 0}, "sampling_invalid"),
        ({"max_tokens": 10**30}, "bad_request"),
        ({"stop": ""}, "sampling_invalid"),
        ({"stop": 5}, "sampling_invalid"),
        ({"stop": ["a"] * 17}, "sampling_invalid"),
        ({"priority": 101}, "sampling_invalid"),
        ({"json_schema": "{"}, "grammar_invalid"),
        ({"json_schema": "[]"}, "grammar_invalid"),
        ({"json_schema": {"a": {1}}}, "grammar_invalid"),
        ({"json_schema": {"a": float("nan")}}, "grammar_invalid"),
        ({"json_schema": {}, "grammar": "root ::= x"}, "grammar_invalid"),
    ],
)
def test_wrong_options_never_leave_the_process(npc: xlm.Session, options: dict[str, Any], code: str) -> None:
    with pytest.raises(xlm.RequestError) as caught:
        npc.say("a", **options)
    assert caught.value.code == code
    assert npc.say("a").text == ANSWER


def test_an_option_nobody_knows(npc: xlm.Session) -> None:
    with pytest.raises(TypeError, match="temprature"):
        npc.say("a", temprature=1.0)  # type: ignore[call-arg]


def test_text_that_cannot_be_sent(npc: xlm.Session) -> None:
    with pytest.raises(xlm.ProtocolError):
        npc.say("\ud800")
    with pytest.raises(xlm.ProtocolError) as caught:
        npc.say("🔨" * 300_000)
    assert caught.value.code == "frame_too_large"


def leave_by_break(reply: xlm.Reply) -> None:
    for _ in reply:
        break


def leave_by_error(reply: xlm.Reply) -> None:
    def stumble() -> None:
        for _ in reply:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stumble()


def leave_by_close(reply: xlm.Reply) -> None:
    pieces = iter(reply)
    next(pieces)
    pieces.close()


def leave_by_with(reply: xlm.Reply) -> None:
    with reply:
        assert not reply.done


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_error, leave_by_close, leave_by_with, xlm.Reply.cancel])
def test_leaving_early_cancels(broker: FakeBroker, npc: xlm.Session, leave: Callable[[xlm.Reply], None]) -> None:
    broker.hold(after_pieces=2)
    reply = npc.say("Can you?")
    leave(reply)
    assert broker.wait_for(messages.Cancel).say_id == broker.wait_for(messages.Say).id
    assert reply.wait(LONG)
    assert reply.finish_reason == "cancelled"
    assert "Aye, I".startswith(reply.text)
    broker.release()
    assert npc.say("And now?").text == ANSWER  # the session is free again


def test_leaving_and_speaking_again_at_once(broker: FakeBroker, npc: xlm.Session) -> None:
    for _ in range(50):
        for _ in npc.say("Can you?"):
            break
    broker.hold(after_pieces=1)
    for _ in npc.say("Can you?"):
        break
    broker.release()
    assert npc.say("And now?").text == ANSWER


def test_a_forgotten_answer_is_cancelled(broker: FakeBroker, npc: xlm.Session) -> None:
    broker.hold()
    npc.say("Can you?")
    gc.collect()
    assert broker.wait_for(messages.Cancel).say_id == broker.wait_for(messages.Say).id


def test_a_finished_answer_is_not_cancelled(broker: FakeBroker, client: xlm.Client, npc: xlm.Session) -> None:
    for _ in npc.say("Can you?"):
        pass
    gc.collect()
    client.status()
    client.status()
    assert not [one for one in broker.requests if isinstance(one, messages.Cancel)]


def test_waiting_with_a_limit(broker: FakeBroker, npc: xlm.Session) -> None:
    broker.hold()
    reply = npc.say("Can you?")
    assert reply.wait(0.01) is False
    broker.release()
    assert reply.wait(LONG) is True


def test_errors_of_an_answer_come_after_its_pieces(broker: FakeBroker, npc: xlm.Session) -> None:
    broker.hold(after_pieces=1)
    reply = npc.say("Can you?")
    pieces = iter(reply)
    assert next(pieces) == "Aye,"
    broker.fail_answers("engine_failed", "it died five times")
    with pytest.raises(xlm.EngineError, match="five times"):
        next(pieces)
    with pytest.raises(xlm.EngineError):
        _ = reply.text


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("context_overflow", xlm.ContextOverflow),
        ("grammar_invalid", xlm.GenerationError),
        ("cancelled", xlm.Cancelled),
        ("engine_restarting", xlm.EngineError),
        ("model_truncated", xlm.ModelError),
        ("device_lost", xlm.DeviceError),
        ("session_busy", xlm.SessionError),
        ("overloaded", xlm.BrokerError),
        ("budget_infeasible", xlm.BudgetError),
        ("never_heard_of", xlm.BrokerError),
    ],
)
def test_errors_from_the_broker_are_typed(
    broker: FakeBroker, npc: xlm.Session, code: str, kind: type[xlm.XlmError]
) -> None:
    broker.fail_next("say", code, "as scripted")
    with pytest.raises(kind, match="as scripted") as caught:
        _ = npc.say("Can you?").text
    assert type(caught.value) is kind
    assert caught.value.code == code
    assert caught.value.fault == kind.fault
    assert npc.say("And now?").text == ANSWER


def test_one_answer_at_a_time(broker: FakeBroker, npc: xlm.Session) -> None:
    broker.hold()
    first = npc.say("Can you?")
    with pytest.raises(xlm.SessionError) as caught:
        npc.say("Hello?").wait(LONG)
    assert (caught.value.code, caught.value.retryable) == ("session_busy", True)
    broker.release()
    assert first.text == ANSWER


# -- sessions and status ---------------------------------------------------------------


def test_sessions_close_once(broker: FakeBroker, client: xlm.Client) -> None:
    with client.open_session(system="You are Odo.", overflow="shift") as npc:
        request = broker.wait_for(messages.OpenSession)
        assert (request.system, request.overflow) == ("You are Odo.", "shift")
        assert (npc.n_ctx, npc.resumed) == (4096, False)
        broker.hold()
        reply = npc.say("Hi")
    assert reply.finish_reason == "cancelled"
    npc.close()
    with pytest.raises(xlm.SessionError) as caught:
        npc.say("Hi?").wait(LONG)
    assert caught.value.code == "session_unknown"


def test_a_session_can_be_gone_on_with(client: xlm.Client) -> None:
    first = client.open_session()
    second = client.open_session(resume=first.id)
    assert (second.id, second.resumed) == (first.id, True)
    with pytest.raises(xlm.SessionError) as caught:
        client.open_session(resume="never heard of")
    assert caught.value.code == "session_unknown"


def test_too_many_sessions(broker: FakeBroker, client: xlm.Client) -> None:
    broker.fail_next("open_session", "too_many_sessions")
    with pytest.raises(xlm.SessionError):
        client.open_session()


def test_status_reads_both_ways(client: xlm.Client) -> None:
    client.set_budget("1MiB")
    status = client.status()
    assert status.budget["effective_bytes"] == status["budget"]["effective_bytes"] == 1 << 20
    assert status.clients[0]["name"] == "tavern"
    assert "engine" in status
    assert "message" not in status
    assert set(dict(status)) == {
        "broker",
        "engine",
        "device",
        "budget",
        "schedule",
        "clients",
        "sessions",
        "throughput",
        "vision",
    }
    with pytest.raises(KeyError):
        status["nothing"]


# -- notices ---------------------------------------------------------------------------


def test_notices_are_drained(broker: FakeBroker, client: xlm.Client) -> None:
    broker.notify("device_lost", "the GPU is gone", seconds=3)
    notice = client.wait_notice(LONG)
    assert notice is not None
    assert (notice.kind, notice.text, notice.detail) == ("device_lost", "the GPU is gone", {"seconds": 3})
    for kind in ("degraded", "device_restored"):
        broker.notify(kind)
    client.status()  # answers come in order: the notices are here
    assert [one.kind for one in client.notices()] == ["degraded", "device_restored"]
    assert client.notices() == []
    assert client.wait_notice(0.01) is None


def test_on_notice_fires_in_poll_and_in_waiting_calls_of_this_thread(broker: FakeBroker) -> None:
    seen: list[tuple[str, threading.Thread]] = []
    with xlm.connect(
        broker.endpoint, timeout=LONG, on_notice=lambda notice: seen.append((notice.kind, threading.current_thread()))
    ) as client:
        broker.notify("degraded")
        client.status()
        client.poll()
        assert seen == [("degraded", threading.current_thread())]
        assert client.poll() == 0
        with client.open_session() as npc:
            broker.hold()
            reply = npc.say("Can you?")
            broker.notify("budget_changed")
            threading.Timer(0.05, broker.release).start()
            assert reply.text == ANSWER
        assert [kind for kind, _ in seen] == ["degraded", "budget_changed"]
        assert {thread for _, thread in seen} == {threading.current_thread()}


def test_a_callback_may_call_and_may_fail(broker: FakeBroker, client: xlm.Client, caplog: Any) -> None:
    budgets: list[int] = []

    def shrink(notice: xlm.Notice) -> None:
        budgets.append(client.set_budget("1MiB").granted_bytes)
        raise ValueError("a bug of the game")

    client.on_notice = shrink
    broker.notify("degraded")
    with client.open_session() as npc:
        assert npc.say("Can you?").text == ANSWER  # it fails beside this call, not within it
    assert budgets == [1 << 20]
    assert "on_notice raised" in caplog.text
    broker.freeze()
    client.on_notice = None
    broker.notify("degraded")
    broker.freeze(False)
    client.status()
    client.on_notice = shrink
    with pytest.raises(ValueError, match="a bug of the game"):
        client.poll()
