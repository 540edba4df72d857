"""Who is connected, and until when."""

from __future__ import annotations

import pytest

from tests.unit.state.world import CARD, GAME, MIB, MS, SECOND, Limits, World
from xlm.errors import ProtocolError
from xlm.protocol import link, messages
from xlm_broker.state import actions, events


def code(message: messages.Message) -> str:
    assert isinstance(message, messages.Error)
    return message.code


@pytest.mark.parametrize(
    "request_",
    [
        messages.Ping(id=3),
        messages.SetBudget(id=3, cap_bytes=1),
        messages.Reserve(id=3, bytes=1),
        messages.OpenSession(id=3),
        messages.Say(id=3, session_id="s", text="x"),
        messages.GetStatus(id=3),
        messages.Goodbye(id=3),
        messages.Cancel(id=3, say_id=1),
    ],
)
def test_nothing_before_hello(request_: messages.Request) -> None:
    world = World().boot()
    made = world.request(b"x", request_)
    assert [type(action) for action in made] == [actions.SendClient]
    assert code(world.inbox[b"x"][-1]) == "not_connected"
    assert world.inbox[b"x"][-1].id == 3
    assert world.status().clients == []


def test_hello_takes_the_highest_common_version() -> None:
    world = World()
    world.request(b"x", messages.Hello(id=9, cause="c1", version_min=1, version_max=99, name="later"))
    welcome = world.last(b"x", messages.Welcome)
    assert (welcome.version, welcome.id, welcome.cause, welcome.resumed) == (messages.VERSION_MAX, 9, "c1", False)
    assert welcome.ttl_ms == 3 * welcome.heartbeat_ms == 3000


@pytest.mark.parametrize(("low", "high"), [(2, 9), (0, 0), (5, 1)])
def test_no_common_version_is_said_and_not_hung(low: int, high: int) -> None:
    world = World()
    world.request(b"x", messages.Hello(id=9, version_min=low, version_max=high, name="other"))
    assert code(world.inbox[b"x"][-1]) == "protocol_version"
    assert world.status().clients == []


def test_a_refused_frame_is_answered_and_the_lease_lives_on() -> None:
    world = World()
    world.join(b"x")
    world.handle(events.ClientFault(b"x", ProtocolError("what?", code="bad_request"), request_id=8, cause="mine"))
    error = world.last(b"x", messages.Error)
    assert (error.code, error.id, error.cause) == ("bad_request", 8, "mine")
    assert isinstance(world.ping(b"x"), messages.Pong)


def test_a_message_that_is_no_request_is_refused() -> None:
    world = World()
    world.join(b"x")
    world.handle(events.ClientMessage(b"x", messages.Pong(id=4)))  # type: ignore[arg-type]
    assert code(world.inbox[b"x"][-1]) == "unknown_type"


def test_heartbeats_keep_a_lease() -> None:
    world = World()
    world.join(b"x")
    for _ in range(10):
        world.advance(2900 * MS)
        assert isinstance(world.ping(b"x"), messages.Pong)
    assert "lease_expiring" in world.notices(b"x")


def test_ping_does_not_revive_an_expired_lease() -> None:
    world = World().boot()
    lease = world.join(b"x").lease_id
    world.advance(3 * SECOND)
    assert code(world.ping(b"x")) == "lease_expired"
    assert code(world.ping(b"x")) == "lease_expired"
    again = world.join(b"x", lease_id=lease)
    assert not again.resumed
    assert again.lease_id != lease


def test_a_ping_that_comes_with_the_expiry_is_too_late() -> None:
    """No Tick in between: the event itself first lets time pass."""
    world = World()
    world.join(b"x")
    world.advance(3 * SECOND - 1)
    world.now_ns += 1
    assert code(world.ping(b"x")) == "lease_expired"


def test_the_holder_dies_and_its_cap_and_reservation_end() -> None:
    world = World(budget=GAME).boot()
    world.join(b"doomed")
    world.join(b"other")
    world.cap(b"other", 100 * MIB)
    world.cap(b"doomed", 8 * MIB)
    world.reserve(b"doomed", 200 * MIB)
    assert world.effective == 8 * MIB
    world.advance(2900 * MS)
    world.ping(b"other")
    world.advance(200 * MS)
    assert world.effective == 100 * MIB
    assert world.engine.budget_bytes == 100 * MIB
    assert [client["name"] for client in world.status().clients] == ["other"]
    assert world.last(b"other", messages.Notice).detail["granted_bytes"] == 100 * MIB


@pytest.mark.parametrize("how", [events.ClientGone(b"x"), events.ClientMessage(b"x", messages.Goodbye(id=5))])
def test_gone_or_goodbye_ends_the_lease_at_once(how: events.Event) -> None:
    world = World(budget=GAME).boot()
    world.join(b"x")
    world.cap(b"x", 64 * MIB)
    made = world.handle(how)
    assert actions.ForgetClient(b"x") in made
    assert world.effective == 0
    assert world.engine.budget_bytes == 0


def test_goodbye_is_answered_and_drops_the_sessions() -> None:
    world = World().boot()
    world.join(b"x")
    session = world.open(b"x")
    world.request(b"x", messages.Goodbye(id=5))
    assert isinstance(world.inbox[b"x"][-1], messages.Ok)
    assert world.sent(link.DropSession) == [link.DropSession(session_id=session)]
    assert world.status().sessions == []


def test_events_of_unknown_clients_are_nothing() -> None:
    world = World().boot()
    for event in (events.ClientGone(b"?"), events.SendDrained(b"?")):
        assert world.handle(event) == []


def test_hello_on_an_identity_in_use_starts_over() -> None:
    world = World(budget=GAME).boot()
    first = world.join(b"x")
    world.cap(b"x", 64 * MIB)
    second = world.join(b"x")
    assert second.lease_id != first.lease_id
    assert world.effective == 0
    assert len(world.status().clients) == 1


def test_a_live_lease_can_be_taken_up_on_a_new_socket() -> None:
    world = World(budget=GAME).boot()
    lease = world.join(b"old", name="game").lease_id
    world.cap(b"old", 64 * MIB)
    session = world.open(b"old")
    say = world.say(b"old", session)
    (gen_id,) = world.engine.generating
    world.engine_says(link.Piece(gen_id=gen_id, text="On", token_ids=[1]))
    world.engine.auto = False
    welcome = world.join(b"new", name="game", lease_id=lease)
    assert (welcome.resumed, welcome.lease_id) == (True, lease)
    assert world.effective == 64 * MIB
    assert actions.ForgetClient(b"old") in world.done
    # Tokens may be lost in the old socket: the answer ends without a stream that starts in its middle.
    world.engine_says(link.Piece(gen_id=gen_id, text="ce", token_ids=[2]))
    for message in world.engine.finish(gen_id, "cancelled"):
        world.engine_says(message)
    assert [type(m) for m in world.answers(b"new", say)] == [messages.Done]
    world.say(b"new", session)
    assert len(world.sent(link.Generate)) == 2


def test_a_lease_id_of_another_name_is_worth_nothing() -> None:
    world = World()
    lease = world.join(b"x", name="game").lease_id
    assert not world.join(b"y", name="thief", lease_id=lease).resumed
    assert len(world.status().clients) == 2


def test_too_many_clients() -> None:
    world = World(limits=Limits(max_clients=2))
    world.join(b"a")
    world.join(b"b")
    world.request(b"c", messages.Hello(id=1, version_min=1, version_max=1, name="c"))
    assert code(world.inbox[b"c"][-1]) == "too_many_clients"
    world.handle(events.ClientGone(b"a"))
    assert not world.join(b"c").resumed


def test_who_left_without_a_word_keeps_nobody_out() -> None:
    world = World(limits=Limits(max_clients=2))
    world.join(b"here")
    world.join(b"left", name="left")
    session = world.open(b"left")
    world.unreachable.add(b"left")
    assert not world.join(b"new").resumed
    assert [entry["name"] for entry in world.status().clients] == ["here", "new"]
    assert isinstance(world.ping(b"here"), messages.Pong)
    assert code(world.ping(b"left")) == "lease_expired"
    assert [entry["session_id"] for entry in world.status().sessions] == [session]  # it may come back


def test_a_full_house_of_live_clients_is_probed_now_and_then_and_stays() -> None:
    world = World(limits=Limits(max_clients=2))
    world.join(b"a")
    world.join(b"b")
    hello = messages.Hello(id=1, version_min=1, version_max=1, name="c")
    for number in range(1, 4):
        world.request(b"c", hello)
        world.request(b"c", hello)  # at once again: refused without another look
        assert code(world.inbox[b"c"][-1]) == "too_many_clients"
        assert len(world.inbox[b"c"]) == 2 * number
        assert len(world.acts(actions.ProbeClients)) == number
        world.advance(100 * MS)
    assert [entry["name"] for entry in world.status().clients] == ["a", "b"]


def test_who_takes_up_a_lease_needs_no_room() -> None:
    world = World(limits=Limits(max_clients=1))
    lease = world.join(b"a", name="game").lease_id
    assert world.join(b"a2", name="game", lease_id=lease).resumed
    assert not world.join(b"a2", name="other").resumed  # the same peer starts over
    assert world.acts(actions.ProbeClients) == []


def test_remembered_expired_identities_are_bounded() -> None:
    world = World(limits=Limits(max_expired=2))
    for name in (b"a", b"b", b"c"):
        world.join(name)
        world.handle(events.ClientGone(name))
    assert code(world.ping(b"a")) == "not_connected"
    assert code(world.ping(b"c")) == "lease_expired"


def test_a_frozen_client_costs_bounded_memory_and_loses_its_lease_only() -> None:
    world = World(limits=Limits(max_outbox=8)).boot()
    world.join(b"frozen")
    world.join(b"other")
    world.handle(events.SendStalled(b"frozen"))
    for _ in range(9):  # a peer that goes on asking while it reads nothing
        world.reserve(b"frozen", 0)
    assert [client["name"] for client in world.status().clients] == ["other"]
    assert isinstance(world.ping(b"other"), messages.Pong)
    assert world.effective == CARD


def test_a_frozen_client_with_endless_answers_is_let_go_and_its_answers_end() -> None:
    world = World(limits=Limits(max_outbox_bytes=1 << 16)).boot()
    world.join(b"frozen")
    session = world.open(b"frozen")
    world.say(b"frozen", session)
    world.handle(events.SendStalled(b"frozen"))
    (gen_id,) = world.engine.generating
    for _ in range(20):
        world.engine_says(link.Piece(gen_id=gen_id, text="x" * 4000, token_ids=[1]))
    assert world.status().clients == []
    assert world.sent(link.CancelGeneration) == [link.CancelGeneration(gen_id=gen_id)]
    assert [entry["session_id"] for entry in world.status().sessions] == [session]  # it may come back
    assert world.status().broker["answers_in_progress"] == 0


def test_a_broker_that_could_not_run_ends_no_lease_for_it() -> None:
    world = World().boot()
    world.join(b"game")
    session = world.open(b"game")
    say = world.say(b"game", session)
    world.advance(1000 * MS)
    world.now_ns += 60 * SECOND  # stopped, swapped out: no Tick, nothing read
    world.handle(events.Tick())
    assert isinstance(world.ping(b"game"), messages.Pong)
    assert world.answers(b"game", say) == []  # still in progress
    assert world.acts(actions.KillEngine) == []
    world.advance(3 * SECOND)  # from here on time counts again
    assert code(world.ping(b"game")) == "lease_expired"


def test_an_engine_has_its_time_to_release_beside_a_broker_that_could_not_run() -> None:
    world = World().boot()
    world.join(b"game")
    world.engine.auto = False
    request = world.cap(b"game", MIB)
    world.advance(1500 * MS)
    world.ping(b"game")
    world.now_ns += 60 * SECOND
    world.handle(events.Tick())
    assert world.acts(actions.KillEngine) == []
    for message in world.engine.confirm():
        world.engine_says(message)
    (lease,) = world.answers(b"game", request)
    assert isinstance(lease, messages.Lease)
    assert lease.release_ms == 61_500.0  # but what it took is told as it was


def test_nothing_is_kept_for_a_stranger_who_does_not_read() -> None:
    world = World()
    assert code(world.ping(b"stranger")) == "not_connected"
    assert actions.ForgetClient(b"stranger") in world.handle(events.SendStalled(b"stranger"))
    world.join(b"game")
    assert actions.ForgetClient(b"game") not in world.handle(events.SendStalled(b"game"))
