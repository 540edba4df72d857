"""Sessions and answers: one stream for the client, whatever happens behind."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tests.unit.state.world import MIB, SECOND, Limits, Timing, World
from xlm.protocol import link, messages
from xlm_broker.state import events
from xlm_broker.state.sessions import Session


def tokens(*ids: int) -> bytes:
    return struct.pack(f"<{len(ids)}i", *ids)


def talking(**changes: Any) -> tuple[World, str]:
    world = World(**changes).boot()
    world.join(b"game")
    return world, world.open(b"game", system="You are Greta.", overflow="shift")


def piece(world: World, text: str, *ids: int) -> None:
    gen_id = next(reversed(world.engine.generating))
    world.engine_says(link.Piece(gen_id=gen_id, text=text, token_ids=list(ids)))


def finish(world: World, delta: bytes, reason: str = "stop") -> None:
    gen_id = next(reversed(world.engine.generating))
    for message in world.engine.finish(gen_id, reason, delta):
        world.engine_says(message)


def test_a_turn_from_say_to_done() -> None:
    world, session = talking()
    sampling = messages.Sampling(temperature=0.0)
    say = world.say(b"game", session, "Hello", max_tokens=9, sampling=sampling, stop=["END"], priority=3, cause="c7")
    assert world.sent(link.Generate) == [
        link.Generate(
            gen_id=world.sent(link.Generate)[0].gen_id,
            session_id=session,
            system="You are Greta.",
            text="Hello",
            max_tokens=9,
            sampling=sampling,
            stop=["END"],
            priority=3,
            overflow="shift",
            cause="c7",
        )
    ]
    piece(world, "Good ", 5)
    piece(world, "day", 6, 7)
    finish(world, tokens(1, 2, 5, 6, 7))
    assert world.answers(b"game", say) == [
        messages.Tokens(id=say, cause="c7", seq=0, text="Good ", token_ids=[5]),
        messages.Tokens(id=say, cause="c7", seq=1, text="day", token_ids=[6, 7]),
        messages.Done(id=say, cause="c7", finish_reason="stop"),
    ]
    world.say(b"game", session, "And then?")
    assert world.sent(link.Generate)[-1].context == tokens(1, 2, 5, 6, 7)


def test_a_context_shift_keeps_the_ranges_the_engine_kept() -> None:
    session = Session("s", "n", "", "shift", b"c", context=tokens(0, 1, 2, 3, 4, 5))
    session.finish(tokens(9), [(0, 2), (4, 6)])
    assert session.context == tokens(0, 1, 4, 5, 9)
    session.finish(tokens(8), [])
    assert session.context == tokens(8)
    session.finish(tokens(7) + b"xx", [(-5, 99), (3, 1)])  # nonsense is clipped, never a crash
    assert session.context == tokens(8, 7)


def test_one_answer_at_a_time_in_a_session() -> None:
    world, session = talking()
    first = world.say(b"game", session)
    second = world.say(b"game", session)
    assert [m.code for m in world.answers(b"game", second) if isinstance(m, messages.Error)] == ["session_busy"]
    finish(world, tokens(1))
    assert [type(m) for m in world.answers(b"game", first)] == [messages.Done]
    assert [type(m) for m in world.answers(b"game", world.say(b"game", session))] == []


def test_sessions_belong_to_their_client() -> None:
    world, session = talking()
    world.join(b"thief")
    for request in (
        messages.Say(id=50, session_id=session, text="x"),
        messages.CloseSession(id=51, session_id=session),
        messages.OpenSession(id=52, resume=session),
    ):
        world.request(b"thief", request)
        assert world.last(b"thief", messages.Error).code == "session_unknown"
    world.request(b"game", messages.Say(id=53, session_id="nonsense", text="x"))
    assert world.last(b"game", messages.Error).code == "session_unknown"


def test_a_request_id_in_use_is_refused() -> None:
    world, session = talking()
    say = world.say(b"game", session)
    world.request(b"game", messages.Say(id=say, session_id=world.open(b"game"), text="x"))
    assert world.last(b"game", messages.Error).code == "bad_request"


def test_cancel_ends_with_done_and_the_history_keeps_what_was_said() -> None:
    world, session = talking()
    world.engine.auto = False
    say = world.say(b"game", session)
    piece(world, "Once", 5)
    world.request(b"game", messages.Cancel(id=90, say_id=say))
    world.request(b"game", messages.Cancel(id=91, say_id=say))
    world.request(b"game", messages.Cancel(id=92, say_id=4242))
    assert len(world.sent(link.CancelGeneration)) == 1
    finish(world, tokens(1, 5), "cancelled")
    assert [type(m) for m in world.answers(b"game", say)] == [messages.Tokens, messages.Done]
    world.say(b"game", session)
    assert world.sent(link.Generate)[-1].context == tokens(1, 5)


def test_before_the_model_is_loaded_answers_wait_and_can_be_cancelled() -> None:
    world = World()
    world.handle(events.BrokerStarted())
    world.join(b"game")
    first = world.say(b"game", world.open(b"game"))
    second = world.say(b"game", world.open(b"game"))
    world.request(b"game", messages.Cancel(id=9, say_id=first))
    assert [m.finish_reason for m in world.answers(b"game", first) if isinstance(m, messages.Done)] == ["cancelled"]
    world.start_engine()
    assert len(world.sent(link.Generate)) == 1
    finish(world, tokens(1))
    assert [type(m) for m in world.answers(b"game", second)] == [messages.Done]


def test_too_many_answers_are_refused() -> None:
    world, session = talking(limits=Limits(max_answers=1))
    world.say(b"game", session)
    refused = world.say(b"game", world.open(b"game"))
    assert [m.code for m in world.answers(b"game", refused) if isinstance(m, messages.Error)] == ["overloaded"]


def test_a_failed_generation_is_a_typed_error_and_the_session_lives() -> None:
    world, session = talking()
    say = world.say(b"game", session)
    gen_id = world.sent(link.Generate)[-1].gen_id
    world.engine_says(link.GenerationFailed(gen_id=gen_id, code="grammar_invalid", message="line 1", hint="see line 1"))
    (error,) = world.answers(b"game", say)
    assert isinstance(error, messages.Error)
    assert (error.code, error.message, error.hint, error.fault) == (
        "grammar_invalid",
        "line 1",
        "see line 1",
        "caller",
    )
    assert world.answers(b"game", world.say(b"game", session)) == []


def test_messages_for_answers_nobody_knows_are_nothing() -> None:
    world, _ = talking()
    for message in (
        link.Piece(gen_id=999, text="x", token_ids=[1]),
        link.Finished(gen_id=999, finish_reason="stop"),
        link.GenerationFailed(gen_id=999, code="internal", message=""),
        link.ScheduleApplied(schedule_id=999),
        link.Released(seq=999, budget_bytes=0, used_bytes=0, device_used_bytes=0),
    ):
        assert world.engine_says(message) == []


def test_closing_a_session_in_mid_answer() -> None:
    world, session = talking()
    say = world.say(b"game", session)
    world.engine.auto = False
    world.request(b"game", messages.CloseSession(id=70, session_id=session))
    assert [type(m) for m in world.answers(b"game", say)] == [messages.Done]
    assert [type(m) for m in world.answers(b"game", 70)] == [messages.Ok]
    assert [type(m) for m in world.to_engine[-2:]] == [link.CancelGeneration, link.DropSession]


def test_too_many_sessions_and_waiting_ones_make_room() -> None:
    world, session = talking(limits=Limits(max_sessions=1))
    world.request(b"game", messages.OpenSession(id=60))
    assert world.last(b"game", messages.Error).code == "too_many_sessions"
    world.handle(events.ClientGone(b"game"))
    world.join(b"other")
    assert world.open(b"other") != session
    assert world.sent(link.DropSession) == [link.DropSession(session_id=session)]


def test_a_second_client_is_told_that_the_first_has_all_sessions() -> None:
    world, session = talking(limits=Limits(max_sessions=1))
    world.join(b"other")
    world.request(b"other", messages.OpenSession(id=60))
    error = world.last(b"other", messages.Error)
    assert (error.code, error.retryable) == ("too_many_sessions", True)
    assert "1 sessions of all clients" in error.message
    world.request(b"game", messages.CloseSession(id=70, session_id=session))
    assert world.open(b"other")


def test_one_client_has_a_limit_of_its_own_and_the_others_find_room() -> None:
    world, session = talking(limits=Limits(max_sessions=4, max_client_sessions=2))
    assert world.open(b"game")
    world.request(b"game", messages.OpenSession(id=60))
    error = world.last(b"game", messages.Error)
    assert (error.code, error.retryable) == ("too_many_sessions", True)
    assert "2 sessions of this client" in error.message
    world.join(b"other")
    assert world.open(b"other")
    world.request(b"game", messages.CloseSession(id=70, session_id=session))
    assert world.open(b"game")


def test_sessions_taken_up_again_count_towards_the_clients_limit() -> None:
    world, session = talking(limits=Limits(max_sessions=4, max_client_sessions=1))
    world.handle(events.ClientGone(b"game"))
    world.join(b"again", name="game")
    world.request(b"again", messages.OpenSession(id=60))
    world.request(b"again", messages.OpenSession(id=61, resume=session))
    assert world.answers(b"again", 61)[0].code == "too_many_sessions"  # type: ignore[attr-defined]
    opened = world.answers(b"again", 60)[0]
    assert isinstance(opened, messages.Session)
    world.request(b"again", messages.CloseSession(id=62, session_id=opened.session_id))
    world.request(b"again", messages.OpenSession(id=63, resume=session))
    assert isinstance(world.answers(b"again", 63)[0], messages.Session)
    world.request(b"again", messages.OpenSession(id=64, resume=session))  # its own already
    assert isinstance(world.answers(b"again", 64)[0], messages.Session)


def test_a_lost_client_finds_its_conversation_again() -> None:
    world, session = talking()
    say = world.say(b"game", session)
    piece(world, "Once", 5)
    world.engine.auto = False
    world.handle(events.ClientGone(b"game"))
    assert world.sent(link.CancelGeneration)
    finish(world, tokens(1, 5), "cancelled")
    assert [type(m) for m in world.answers(b"game", say)] == [messages.Tokens]
    world.join(b"again", name="game")
    world.request(b"again", messages.OpenSession(id=61, resume=session))
    assert world.last(b"again", messages.Session).resumed
    world.say(b"again", session, "Where were we?")
    assert world.sent(link.Generate)[-1].context == tokens(1, 5)


def test_a_session_nobody_comes_back_for_is_dropped() -> None:
    world, session = talking(timing=Timing(session_grace_ns=10 * SECOND))
    world.handle(events.ClientGone(b"game"))
    world.advance(9 * SECOND)
    assert [s["session_id"] for s in world.status().sessions] == [session]
    world.advance(1 * SECOND)
    assert world.status().sessions == []
    world.join(b"again", name="game")
    world.request(b"again", messages.OpenSession(id=61, resume=session))
    assert world.last(b"again", messages.Error).code == "session_unknown"


# -- engine deaths ---------------------------------------------------------------


def test_an_answer_survives_the_engine_and_the_client_sees_one_stream() -> None:
    world, session = talking()
    world.say(b"game", session, "first")
    finish(world, tokens(1, 2, 3))
    say = world.say(b"game", session, "second")
    piece(world, "Once ", 5)
    piece(world, "upon", 6)
    world.crash()
    assert "engine_restarting" in world.notices(b"game")
    world.advance(SECOND)
    world.start_engine()
    again = world.sent(link.Generate)[-1]
    assert (again.text, again.context, again.replay) == ("second", tokens(1, 2, 3), [5, 6])
    piece(world, " a time", 7)
    finish(world, tokens(4, 5, 6, 7))
    found = world.answers(b"game", say)
    assert [m.text for m in found if isinstance(m, messages.Tokens)] == ["Once ", "upon", " a time"]
    assert [m.seq for m in found if isinstance(m, messages.Tokens)] == [0, 1, 2]
    assert [type(m) for m in found].count(messages.Done) == 1
    world.say(b"game", session)
    assert world.sent(link.Generate)[-1].context == tokens(1, 2, 3, 4, 5, 6, 7)


def test_late_words_of_a_dead_engine_are_not_heard() -> None:
    world, session = talking()
    say = world.say(b"game", session)
    gen_id = world.sent(link.Generate)[-1].gen_id
    world.crash()
    world.engine_says(link.Piece(gen_id=gen_id, text="ghost", token_ids=[9]))
    world.advance(SECOND)
    world.handle(events.EngineMessage(1, link.Piece(gen_id=gen_id, text="ghost", token_ids=[9])))
    assert world.answers(b"game", say) == []


def test_a_cancelled_answer_is_cancelled_again_after_a_restart() -> None:
    world, session = talking()
    say = world.say(b"game", session)
    piece(world, "Once", 5)
    world.engine.auto = False
    world.request(b"game", messages.Cancel(id=90, say_id=say))
    world.crash()
    world.engine.auto = True
    world.advance(SECOND)
    world.start_engine()
    assert [type(m) for m in world.to_engine[-2:]] == [link.Generate, link.CancelGeneration]
    assert [m.finish_reason for m in world.answers(b"game", say) if isinstance(m, messages.Done)] == ["cancelled"]


def test_a_request_that_kills_the_engine_each_time_is_given_up_before_the_engine_is() -> None:
    world, session = talking()
    say = world.say(b"game", session, "poison")
    for _ in range(3):
        world.crash()
        world.advance(SECOND)
        world.ping()
        world.start_engine()
    (error,) = world.answers(b"game", say)
    assert isinstance(error, messages.Error)
    assert error.code == "engine_failed"
    assert world.status().engine["state"] == "ready"
    assert len(world.sent(link.Generate)) == 3


# -- back-pressure -----------------------------------------------------------------


def test_while_a_client_is_stalled_one_message_per_answer_grows() -> None:
    world, session = talking()
    say = world.say(b"game", session)
    piece(world, "a", 1)
    world.handle(events.SendStalled(b"game"))
    for number in range(500):
        piece(world, "b", number)
    finish(world, tokens(1))
    assert len(world.answers(b"game", say)) == 1
    world.handle(events.SendDrained(b"game"))
    first, rest, done = world.answers(b"game", say)
    assert isinstance(first, messages.Tokens)
    assert isinstance(rest, messages.Tokens)
    assert isinstance(done, messages.Done)
    assert (first.seq, rest.seq) == (0, 1)
    assert (rest.text, rest.token_ids) == ("b" * 500, list(range(500)))
    world.handle(events.SendDrained(b"game"))
    assert len(world.answers(b"game", say)) == 3


def test_a_stalled_client_keeps_its_other_answers() -> None:
    world, _ = talking()
    world.handle(events.SendStalled(b"game"))
    request = world.cap(b"game", 10 * MIB)
    assert world.answers(b"game", request) == []
    world.handle(events.SendDrained(b"game"))
    assert [type(m) for m in world.answers(b"game", request)] == [messages.Lease]


@pytest.mark.parametrize("n", [1, 5])
def test_several_npcs_speak_at_once(n: int) -> None:
    world, _ = talking()
    says = {world.say(b"game", world.open(b"game"), f"npc {i}"): i for i in range(n)}
    by_text = {message.text: message.gen_id for message in world.sent(link.Generate)}
    for say, i in says.items():
        world.engine_says(link.Piece(gen_id=by_text[f"npc {i}"], text=str(i), token_ids=[i]))
        assert [m.text for m in world.answers(b"game", say) if isinstance(m, messages.Tokens)] == [str(i)]
