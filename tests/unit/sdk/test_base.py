"""The sans-I/O connection: events in, actions out, with a clock of our own."""

from __future__ import annotations

from typing import TypeVar

import pytest

from xlm._base import (
    FIRST_ATTEMPT_S,
    LONGEST_ATTEMPT_S,
    MAX_NOTICES,
    Action,
    Connection,
    Dial,
    Identity,
    Phase,
    Send,
)
from xlm._calls import Call, Conversation, Stream
from xlm.errors import BrokerError, BudgetError, ProtocolError, RequestError, SessionError, XlmError
from xlm.protocol import codec, messages
from xlm.protocol.messages import Message

M = TypeVar("M", bound=Message)


class Peer:
    """Drives a connection, and reads what it sends."""

    def __init__(self) -> None:
        self.connection = Connection(Identity("tavern", 7, "test"))
        self.now = 100.0
        self.sent: list[Message] = []
        self.dials = 0
        self.do(self.connection.start(self.now))

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Dial):
                self.dials += 1
                self.sent.clear()  # a fresh socket: what was queued is gone
            else:
                assert isinstance(action, Send)
                self.sent.append(codec.decode_request(action.frame))

    def sent_of(self, kind: type[M]) -> list[M]:
        return [message for message in self.sent if isinstance(message, kind)]

    def last(self, kind: type[M]) -> M:
        return self.sent_of(kind)[-1]

    def answer(self, request: Message, reply: Message) -> None:
        reply.id = request.id
        self.do(self.connection.receive(codec.encode(reply), self.now))

    def welcome(self, **fields: object) -> None:
        given = {"version": 1, "lease_id": "lease", "heartbeat_ms": 1000.0, "ttl_ms": 3000.0, **fields}
        self.answer(self.last(messages.Hello), messages.Welcome(**given))  # type: ignore[arg-type]

    def submit(self, message: Message) -> Call:
        call = Call(message)
        self.do(self.connection.submit(call))
        return call

    def open(self, session_id: str = "s1") -> Conversation:
        call = self.submit(messages.OpenSession(system="Greta", overflow="shift"))
        self.answer(call.message, messages.Session(session_id=session_id, n_ctx=64))
        assert call.conversation is not None
        return call.conversation

    def say(self, conversation: Conversation) -> Stream:
        stream = Stream(messages.Say(session_id=conversation.session_id, text="Hi"), conversation)
        self.do(self.connection.submit(stream))
        return stream

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.do(self.connection.tick(self.now))

    def drop(self) -> None:
        self.do(self.connection.lost(self.now, "gone"))

    def is_in(self, phase: Phase) -> bool:
        return self.connection.phase is phase

    def kinds(self) -> list[str]:
        return [notice.kind for notice in self.connection.notices]


@pytest.fixture
def peer() -> Peer:
    peer = Peer()
    peer.welcome()
    return peer


def error_of(call: Call) -> XlmError:
    assert call.done
    assert call.error is not None
    return call.error


# -- connecting ------------------------------------------------------------------------


def test_hello_says_who_and_which_versions() -> None:
    peer = Peer()
    hello = peer.last(messages.Hello)
    assert (peer.dials, hello.name, hello.pid, hello.sdk, hello.lease_id) == (1, "tavern", 7, "test", "")
    assert (hello.version_min, hello.version_max) == (messages.VERSION_MIN, messages.VERSION_MAX)
    assert peer.is_in(Phase.CONNECTING)
    peer.welcome(broker_version="9")
    assert peer.is_in(Phase.READY)
    assert (peer.connection.lease_id, peer.connection.version, peer.connection.broker_version) == ("lease", 1, "9")


def test_an_unanswered_hello_is_repeated_ever_more_rarely() -> None:
    peer = Peer()
    waits = []
    for _ in range(6):
        due = peer.connection.next_deadline()
        assert due is not None
        waits.append(due - peer.now)
        peer.pass_time(waits[-1] - 0.001)
        dials = peer.dials
        peer.pass_time(0.001)
        assert peer.dials == dials + 1
        assert len(peer.sent_of(messages.Hello)) == 1
    assert waits[0] == pytest.approx(FIRST_ATTEMPT_S)
    assert waits[1] == pytest.approx(2 * waits[0])
    assert waits[-1] == pytest.approx(LONGEST_ATTEMPT_S)


def test_a_late_answer_to_an_earlier_hello_is_none() -> None:
    peer = Peer()
    first = peer.last(messages.Hello)
    peer.pass_time(FIRST_ATTEMPT_S)
    peer.answer(first, messages.Welcome(version=1, lease_id="old", heartbeat_ms=1.0, ttl_ms=3.0))
    assert peer.is_in(Phase.CONNECTING)
    peer.welcome()
    assert peer.connection.lease_id == "lease"


def test_a_refused_version_is_final() -> None:
    peer = Peer()
    peer.answer(peer.last(messages.Hello), messages.Error(code="protocol_version", message="too old"))
    assert peer.is_in(Phase.FAILED)
    assert peer.connection.next_deadline() is None
    assert error_of(peer.submit(messages.GetStatus())).code == "protocol_version"
    peer.pass_time(1000.0)
    assert peer.dials == 1


def test_a_version_nobody_offered_is_refused() -> None:
    peer = Peer()
    peer.welcome(version=messages.VERSION_MAX + 1)
    assert error_of(peer.submit(messages.GetStatus())).code == "protocol_version"


def test_a_full_broker_is_final_at_first_and_tried_again_later(peer: Peer) -> None:
    full = Peer()
    full.answer(full.last(messages.Hello), messages.Error(code="too_many_clients", message="full"))
    assert full.is_in(Phase.FAILED)
    peer.drop()
    peer.answer(peer.last(messages.Hello), messages.Error(code="too_many_clients", message="full"))
    assert peer.is_in(Phase.CONNECTING)
    peer.pass_time(FIRST_ATTEMPT_S)
    peer.welcome()
    assert peer.is_in(Phase.READY)


# -- heartbeats ------------------------------------------------------------------------


def test_a_heartbeat_goes_out_on_time_whatever_else_is_said(peer: Peer) -> None:
    assert peer.connection.next_deadline() == pytest.approx(peer.now + 1.0)
    for beat in range(1, 6):
        peer.pass_time(0.999)
        assert len(peer.sent_of(messages.Ping)) == beat - 1
        peer.pass_time(0.001)
        ping = peer.last(messages.Ping)
        assert len(peer.sent_of(messages.Ping)) == beat
        peer.answer(ping, messages.Pong())
    assert peer.is_in(Phase.READY)


def test_a_silent_broker_is_gone_after_the_ttl(peer: Peer) -> None:
    call = peer.submit(messages.GetStatus())
    peer.pass_time(1.0)
    peer.pass_time(1.0)
    peer.pass_time(0.999)
    assert not call.done
    due = peer.connection.next_deadline()
    assert due is not None
    peer.pass_time(due - peer.now)
    assert error_of(call).code == "broker_gone"
    assert error_of(call).retryable
    assert peer.is_in(Phase.CONNECTING)
    assert peer.dials == 2
    assert peer.last(messages.Hello).lease_id == "lease"


def test_a_process_that_was_stopped_does_not_hold_the_broker_for_gone(peer: Peer) -> None:
    """It has asked nothing meanwhile, and may not have read yet what has come."""
    call = peer.submit(messages.GetStatus())
    peer.pass_time(0.999)
    peer.pass_time(3600.0)
    ping = peer.last(messages.Ping)  # it asks first
    peer.pass_time(1.0)
    assert not call.done
    peer.answer(ping, messages.Pong())
    for _ in range(2):
        peer.pass_time(3600.0)
    assert not call.done
    peer.pass_time(3600.0)  # three times it looked, and there was nothing
    assert error_of(call).code == "broker_gone"


def test_anything_heard_proves_that_the_broker_lives(peer: Peer) -> None:
    for _ in range(10):
        peer.pass_time(2.5)
        peer.do(peer.connection.receive(codec.encode(messages.Notice(kind="degraded")), peer.now))
    assert peer.is_in(Phase.READY)


def test_a_broker_that_asks_for_no_pause_gets_one_all_the_same() -> None:
    peer = Peer()
    peer.welcome(heartbeat_ms=0.0, ttl_ms=0.0)
    due = peer.connection.next_deadline()
    assert due is not None
    assert due > peer.now


def test_after_a_long_sleep_the_connection_is_made_anew(peer: Peer) -> None:
    """SIGSTOP, suspend: the lease may be gone; the broker says so to the heartbeat."""
    peer.pass_time(1.0)
    peer.answer(peer.last(messages.Ping), messages.Error(code="lease_expired", message="expired"))
    assert peer.is_in(Phase.CONNECTING)
    assert peer.dials == 2
    assert peer.kinds() == ["broker_gone"]


def test_who_stood_still_is_told_that_the_lease_ended(peer: Peer) -> None:
    """Stopped in a debugger: nothing is wrong with the broker."""
    call = peer.submit(messages.GetStatus())
    peer.pass_time(60.0)
    peer.answer(peer.last(messages.Ping), messages.Error(code="lease_expired", message="expired"))
    assert error_of(call).code == "lease_expired"
    assert error_of(call).retryable
    assert peer.is_in(Phase.CONNECTING)


def test_before_the_first_connection_nothing_is_gone() -> None:
    peer = Peer()
    assert error_of(peer.submit(messages.GetStatus())).code == "not_ready"
    peer.welcome()
    peer.drop()
    assert error_of(peer.submit(messages.GetStatus())).code == "broker_gone"


# -- calls -----------------------------------------------------------------------------


def test_answers_find_their_calls_in_any_order(peer: Peer) -> None:
    first, second = peer.submit(messages.GetStatus()), peer.submit(messages.SetBudget(cap_bytes=5))
    peer.answer(second.message, messages.Lease(granted_bytes=5, used_bytes=0, device_used_bytes=0))
    assert second.done
    assert not first.done
    peer.answer(first.message, messages.Status())
    assert isinstance(first.answer, messages.Status)
    assert first.message.id != second.message.id
    assert first.message.cause
    assert first.message.cause != second.message.cause


def test_errors_become_typed(peer: Peer) -> None:
    call = peer.submit(messages.SetBudget(cap_bytes=5))
    refusal = messages.Error(code="budget_infeasible", message="too small", hint="ask for more", minimum_bytes=77)
    peer.answer(call.message, refusal)
    error = error_of(call)
    assert isinstance(error, BudgetError)
    assert (error.minimum_bytes, error.hint, error.fault) == (77, "ask for more", "caller")


def test_an_error_of_a_later_version_keeps_its_code(peer: Peer) -> None:
    call = peer.submit(messages.GetStatus())
    peer.answer(call.message, messages.Error(code="from_the_future", message="?"))
    assert isinstance(error_of(call), BrokerError)
    assert error_of(call).code == "from_the_future"


def test_an_answer_that_is_not_understood_fails_its_call_alone(peer: Peer) -> None:
    broken, other = peer.submit(messages.GetStatus()), peer.submit(messages.GetStatus())
    frame = codec.encode(messages.Ok(id=broken.message.id)).replace(b"\xa2ok", b"\xa2zz")
    peer.do(peer.connection.receive(frame, peer.now))
    peer.do(peer.connection.receive(b"\xc1garbage", peer.now))
    assert isinstance(error_of(broken), ProtocolError)
    assert not other.done
    assert peer.is_in(Phase.READY)


def test_what_nobody_waits_for_is_ignored(peer: Peer) -> None:
    call = peer.submit(messages.GetStatus())
    peer.do(peer.connection.forget(call))
    peer.answer(call.message, messages.Status())
    assert not call.done
    peer.do(peer.connection.receive(codec.encode(messages.Error(id=999, code="internal", message="?")), peer.now))
    assert peer.is_in(Phase.READY)


def test_calls_fail_at_once_while_the_broker_is_away(peer: Peer) -> None:
    peer.drop()
    assert error_of(peer.submit(messages.GetStatus())).code == "broker_gone"


def test_a_message_that_is_too_large_fails_its_call_alone(peer: Peer) -> None:
    call = peer.submit(messages.OpenSession(system="🔨" * 400_000))
    assert error_of(call).code == "frame_too_large"
    assert peer.is_in(Phase.READY)


def test_closing_says_goodbye_and_fails_what_waits(peer: Peer) -> None:
    call = peer.submit(messages.GetStatus())
    peer.do(peer.connection.close())
    assert peer.sent_of(messages.Goodbye)
    assert error_of(call).code == "not_connected"
    assert error_of(peer.submit(messages.GetStatus())).code == "not_connected"
    peer.do(peer.connection.lost(peer.now, "later"))
    assert peer.is_in(Phase.CLOSED)
    assert peer.connection.next_deadline() is None


# -- answers ---------------------------------------------------------------------------


def test_an_answer_grows_and_ends(peer: Peer) -> None:
    stream = peer.say(peer.open())
    peer.answer(stream.message, messages.Tokens(seq=0, text="Aye", token_ids=[1]))
    peer.answer(stream.message, messages.Tokens(seq=1, text="", token_ids=[2]))  # half a character: no text yet
    peer.answer(stream.message, messages.Tokens(seq=2, text="🔨", token_ids=[3]))
    assert (stream.pieces, stream.token_ids, stream.done) == (["Aye", "🔨"], [1, 2, 3], False)
    peer.answer(stream.message, messages.Done(finish_reason="stop", usage=messages.Usage(completion_tokens=3)))
    assert (stream.done, stream.finish_reason, stream.usage.completion_tokens) == (True, "stop", 3)


def test_a_piece_sent_twice_counts_once(peer: Peer) -> None:
    stream = peer.say(peer.open())
    for seq in (0, 0, 1, 0, 1, 2):
        peer.answer(stream.message, messages.Tokens(seq=seq, text=str(seq), token_ids=[seq]))
    assert (stream.pieces, stream.token_ids) == (["0", "1", "2"], [0, 1, 2])


def test_a_missing_piece_fails_the_answer_and_cancels_it(peer: Peer) -> None:
    stream = peer.say(peer.open())
    peer.answer(stream.message, messages.Tokens(seq=1, text="b"))
    assert isinstance(error_of(stream), ProtocolError)
    assert peer.last(messages.Cancel).say_id == stream.message.id
    peer.answer(stream.message, messages.Tokens(seq=2, text="c"))
    assert stream.pieces == []


def test_cancel_is_sent_once_and_only_while_it_matters(peer: Peer) -> None:
    stream = peer.say(peer.open())
    for _ in range(3):
        peer.do(peer.connection.cancel(stream))
    assert [cancel.say_id for cancel in peer.sent_of(messages.Cancel)] == [stream.message.id]
    peer.answer(stream.message, messages.Done(finish_reason="cancelled"))
    assert stream.finish_reason == "cancelled"
    peer.do(peer.connection.cancel(stream))
    assert len(peer.sent_of(messages.Cancel)) == 1


def test_who_leaves_an_answer_may_speak_again_at_once(peer: Peer) -> None:
    conversation = peer.open()
    first = peer.say(conversation)
    first.unwanted = True  # left, but the CANCEL has not been sent yet
    second = peer.say(conversation)
    assert peer.last(messages.Cancel).say_id == first.message.id
    assert len(peer.sent_of(messages.Say)) == 1
    peer.answer(first.message, messages.Done(finish_reason="cancelled"))
    assert peer.last(messages.Say).id == second.message.id
    assert len(peer.sent_of(messages.Cancel)) == 1
    third = peer.say(conversation)  # the second is wanted: the broker says that it is busy
    assert peer.last(messages.Say).id == third.message.id


def test_an_answer_that_waits_can_be_left_too(peer: Peer) -> None:
    conversation = peer.open()
    first = peer.say(conversation)
    peer.do(peer.connection.cancel(first))
    second = peer.say(conversation)
    peer.do(peer.connection.cancel(second))
    assert (second.done, second.finish_reason) == (True, "cancelled")
    third = peer.say(conversation)
    peer.drop()
    assert error_of(third).code == "broker_gone"
    assert len(peer.sent_of(messages.Say)) == 0
    assert not second.error


def test_an_answer_in_progress_fails_with_the_connection(peer: Peer) -> None:
    stream = peer.say(peer.open())
    peer.answer(stream.message, messages.Tokens(seq=0, text="Aye"))
    peer.drop()
    assert error_of(stream).code == "broker_gone"
    assert stream.pieces == ["Aye"]


# -- coming back -----------------------------------------------------------------------


def lease(granted_bytes: int = 0) -> messages.Lease:
    return messages.Lease(granted_bytes=granted_bytes, used_bytes=0, device_used_bytes=0)


def test_cap_and_reservation_are_asked_for_again(peer: Peer) -> None:
    for wish in (messages.SetBudget(cap_bytes=5, deadline_ms=16.0, require="device"), messages.Reserve(bytes=9)):
        peer.answer(peer.submit(wish).message, lease())
    peer.drop()
    peer.welcome(lease_id="new")
    budget, reserve = peer.last(messages.SetBudget), peer.last(messages.Reserve)
    assert (budget.cap_bytes, budget.deadline_ms, budget.require) == (5, None, "device")
    assert reserve.bytes == 9
    assert peer.is_in(Phase.READY)  # it need not wait for the bytes
    assert peer.kinds() == ["broker_gone", "reconnected"]


def test_what_was_lifted_is_not_asked_for_again(peer: Peer) -> None:
    for wish in (
        messages.SetBudget(cap_bytes=5),
        messages.SetBudget(cap_bytes=None),
        messages.Reserve(bytes=9),
        messages.Reserve(bytes=0),
    ):
        peer.answer(peer.submit(wish).message, lease())
    peer.drop()
    peer.welcome()
    assert not peer.sent_of(messages.SetBudget)
    assert not peer.sent_of(messages.Reserve)


def test_a_refused_cap_leaves_the_one_before(peer: Peer) -> None:
    peer.answer(peer.submit(messages.SetBudget(cap_bytes=50)).message, lease())
    call = peer.submit(messages.SetBudget(cap_bytes=1, require="device"))
    peer.answer(call.message, messages.Error(code="budget_infeasible", message="too small"))
    peer.drop()
    peer.welcome()
    assert peer.last(messages.SetBudget).cap_bytes == 50


def test_a_cap_asked_for_while_the_broker_is_away_is_remembered(peer: Peer) -> None:
    peer.drop()
    assert error_of(peer.submit(messages.SetBudget(cap_bytes=7))).code == "broker_gone"
    peer.welcome()
    assert peer.last(messages.SetBudget).cap_bytes == 7


def test_a_cap_that_met_an_expired_lease_is_asked_for_again(peer: Peer) -> None:
    call = peer.submit(messages.SetBudget(cap_bytes=7))
    peer.answer(call.message, messages.Error(code="lease_expired", message="expired"))
    assert error_of(call).code == "lease_expired"
    peer.welcome()
    assert peer.last(messages.SetBudget).cap_bytes == 7


def test_a_cap_refused_on_the_way_back_is_told(peer: Peer) -> None:
    peer.answer(peer.submit(messages.SetBudget(cap_bytes=7, require="device")).message, lease())
    peer.drop()
    peer.welcome()
    refusal = messages.Error(code="budget_infeasible", message="too small")
    peer.answer(peer.last(messages.SetBudget), refusal)
    assert peer.kinds()[-1] == "restore_failed"
    peer.drop()
    peer.welcome()
    assert peer.last(messages.SetBudget).cap_bytes == 7  # still what the user wants: another broker may grant it


def test_sessions_are_taken_up_before_calls_are_taken(peer: Peer) -> None:
    conversation = peer.open("s1")
    peer.drop()
    peer.welcome(lease_id="new")
    opening = peer.last(messages.OpenSession)
    assert (opening.resume, opening.system, opening.overflow) == ("s1", "Greta", "shift")
    assert error_of(peer.submit(messages.GetStatus())).code == "broker_gone"
    peer.answer(opening, messages.Session(session_id="s1", resumed=True, n_ctx=64))
    assert peer.is_in(Phase.READY)
    assert (conversation.session_id, conversation.resumed) == ("s1", True)
    assert peer.kinds() == ["broker_gone", "reconnected"]


def test_a_broker_without_the_session_begins_it_anew_and_says_so(peer: Peer) -> None:
    conversation = peer.open("s1")
    peer.drop()
    peer.welcome()
    peer.answer(peer.last(messages.OpenSession), messages.Session(session_id="s9", resumed=False))
    assert (conversation.session_id, conversation.resumed, conversation.lost) == ("s9", False, None)
    assert peer.kinds()[-1] == "session_reset"
    peer.drop()
    peer.welcome()
    assert peer.last(messages.OpenSession).resume == "s9"


def test_a_session_that_is_unknown_is_opened_anew(peer: Peer) -> None:
    conversation = peer.open("s1")
    peer.drop()
    peer.welcome()
    peer.answer(peer.last(messages.OpenSession), messages.Error(code="session_unknown", message="no such session"))
    opening = peer.last(messages.OpenSession)
    assert (opening.resume, opening.system, opening.overflow) == ("", "Greta", "shift")
    assert not peer.is_in(Phase.READY)
    peer.answer(opening, messages.Session(session_id="s9"))
    assert peer.is_in(Phase.READY)
    assert (conversation.session_id, conversation.resumed) == ("s9", False)
    assert peer.kinds()[-1] == "session_reset"


def test_a_session_that_cannot_be_opened_again_is_lost(peer: Peer) -> None:
    conversation = peer.open("s1")
    peer.drop()
    peer.welcome()
    peer.answer(peer.last(messages.OpenSession), messages.Error(code="session_unknown", message="no such session"))
    peer.answer(peer.last(messages.OpenSession), messages.Error(code="too_many_sessions", message="full"))
    assert peer.is_in(Phase.READY)
    assert isinstance(conversation.lost, SessionError)
    assert peer.kinds()[-1] == "session_lost"
    assert peer.connection.end_conversation(conversation) is None


def test_a_closed_session_is_not_taken_up(peer: Peer) -> None:
    conversation = peer.open("s1")
    closing = peer.connection.end_conversation(conversation)
    assert closing is not None
    assert peer.connection.end_conversation(conversation) is not None  # the broker will say session_unknown
    peer.drop()
    peer.welcome()
    assert not peer.sent_of(messages.OpenSession)


def test_losing_the_broker_again_while_restoring(peer: Peer) -> None:
    peer.open("s1")
    peer.drop()
    peer.welcome()
    peer.drop()
    peer.welcome()
    peer.answer(peer.last(messages.OpenSession), messages.Session(session_id="s1", resumed=True))
    assert peer.is_in(Phase.READY)


# -- notices ---------------------------------------------------------------------------


def test_notices_are_bounded(peer: Peer) -> None:
    for number in range(MAX_NOTICES + 10):
        notice = messages.Notice(kind="budget_changed", detail={"n": number})
        peer.do(peer.connection.receive(codec.encode(notice), peer.now))
    assert len(peer.connection.notices) == MAX_NOTICES
    assert peer.connection.notices[-1].detail == {"n": MAX_NOTICES + 9}


def test_a_failure_for_good_fails_everything(peer: Peer) -> None:
    call = peer.submit(messages.GetStatus())
    peer.connection.fail(RequestError("over", code="internal"))
    assert error_of(call).message == "over"
    assert error_of(peer.submit(messages.GetStatus())) is not call.error
