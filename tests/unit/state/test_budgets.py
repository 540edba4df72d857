"""Caps, reservations, the order to the engine, the verified answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.state.world import CARD, GAME, MIB, MS, SECOND, BudgetSettings, Limits, World
from xlm.protocol import link, messages
from xlm_broker.state import actions, events


def playing(**changes: Any) -> World:
    """Budget from game, one game that allows everything."""
    world = World(**{"budget": GAME, **changes}).boot()
    world.join(b"game")
    world.cap(b"game", None)
    world.settle()
    return world


def test_a_shrink_is_one_order_at_once_and_the_plan_comes_after() -> None:
    world = playing()
    world.engine.auto = False
    made = world.request(b"game", messages.SetBudget(id=9, cause="boss fight", cap_bytes=32 * MIB, deadline_ms=16))
    orders = [action for action in made if not isinstance(action, actions.Log)]
    assert orders == [
        actions.SendEngine(link.SetEngineBudget(seq=3, budget_bytes=32 * MIB, cause="boss fight")),
    ]
    assert world.machine.next_deadline_ns() == world.now_ns
    plans = [a for a in world.handle(events.Tick()) if isinstance(a, actions.SendEngine)]
    assert [type(plan.message) for plan in plans] == [link.SetSchedule]
    schedule = world.sent(link.SetSchedule)[-1].schedule
    assert schedule.budget_bytes == 32 * MIB
    assert world.answers(b"game", 9) == []  # nothing is released yet


def test_the_answer_waits_for_the_release_and_tells_the_truth() -> None:
    world = playing()
    used = world.engine.used_bytes
    assert used > 32 * MIB
    world.engine.auto = False
    request = world.cap(b"game", 32 * MIB, deadline_ms=16)
    world.advance(10 * MS)
    for message in world.engine.confirm():
        world.engine_says(message)
    (lease,) = world.answers(b"game", request)
    assert isinstance(lease, messages.Lease)
    assert (lease.granted_bytes, lease.cap_bytes) == (32 * MIB, 32 * MIB)
    assert lease.used_bytes <= 32 * MIB
    assert lease.device_used_bytes <= 32 * MIB
    assert (lease.release_ms, lease.deadline_met) == (10.0, True)


def test_a_late_release_says_that_the_deadline_was_missed() -> None:
    world = playing()
    world.engine.auto = False
    request = world.cap(b"game", MIB, deadline_ms=16)
    world.advance(17 * MS)
    world.engine_says(world.engine.confirm()[0])
    (lease,) = world.answers(b"game", request)
    assert isinstance(lease, messages.Lease)
    assert (lease.release_ms, lease.deadline_met) == (17.0, False)


@pytest.mark.parametrize(
    "lie",
    [
        {"completed": False},
        {"used_bytes": 32 * MIB + 1},
        {"device_used_bytes": 32 * MIB + 1},
    ],
)
def test_memory_said_to_be_freed_is_believed_when_the_counters_fell(lie: dict[str, object]) -> None:
    world = playing()
    world.engine.auto = False
    request = world.cap(b"game", 32 * MIB)
    truth = world.engine.confirm()[0]
    world.engine_says(world.engine.released(3, **lie))
    assert world.answers(b"game", request) == []
    assert [a.event for a in world.acts(actions.Log) if a.event == "release_not_verified"]
    world.engine_says(truth)
    assert [type(m) for m in world.answers(b"game", request)] == [messages.Lease]


def test_a_later_reading_can_verify_a_release() -> None:
    world = playing()
    world.engine.auto = False
    request = world.cap(b"game", 32 * MIB)
    world.engine.confirm()
    world.engine_says(world.engine.released(3, device_used_bytes=40 * MIB))
    assert world.sent(link.Probe) == [link.Probe()]
    world.engine_says(world.engine.stats())
    (lease,) = world.answers(b"game", request)
    assert isinstance(lease, messages.Lease)
    assert lease.device_used_bytes <= 32 * MIB


def test_the_whole_card_counter_of_a_real_gpu_is_not_held_against_us() -> None:
    world = playing(device=link.DeviceConfig(kind="vulkan"))
    world.engine.auto = False
    request = world.cap(b"game", 32 * MIB)
    world.engine.confirm()
    world.engine_says(world.engine.released(3, device_used_bytes=200 * MIB))
    assert [type(m) for m in world.answers(b"game", request)] == [messages.Lease]


def test_a_later_release_answers_earlier_requests_each_once() -> None:
    world = playing()
    world.engine.auto = False
    requests = [world.cap(b"game", size * MIB) for size in (90, 60, 30)]
    while world.engine.unconfirmed:
        last = world.engine.confirm()
    world.engine_says(last[0])
    leases = [world.answers(b"game", request) for request in requests]
    assert [[m.granted_bytes for m in found if isinstance(m, messages.Lease)] for found in leases] == [[30 * MIB]] * 3
    world.engine_says(world.engine.released(3))
    world.engine_says(world.engine.released(5))
    assert [len(world.answers(b"game", request)) for request in requests] == [1, 1, 1]


def test_reclaim_during_a_grow() -> None:
    """The game takes the memory again before the grow is confirmed: no schedule for the grow is made."""
    world = playing()
    world.cap(b"game", 32 * MIB)
    world.advance(2 * SECOND)
    world.ping()
    world.engine.auto = False
    plans = len(world.sent(link.SetSchedule))
    grow, shrink = world.cap(b"game", 200 * MIB), world.cap(b"game", 16 * MIB)
    assert [m.budget_bytes for m in world.sent(link.SetEngineBudget)[-2:]] == [200 * MIB, 16 * MIB]
    world.settle()
    assert [m.schedule.budget_bytes for m in world.sent(link.SetSchedule)[plans:]] == [16 * MIB]
    for _ in range(2):
        world.engine_says(world.engine.confirm()[0])
    assert [type(m) for m in world.answers(b"game", grow)] == [messages.Lease]
    (lease,) = world.answers(b"game", shrink)
    assert isinstance(lease, messages.Lease)
    assert lease.device_used_bytes <= lease.granted_bytes == 16 * MIB


def test_unchanged_budget_is_answered_at_once() -> None:
    world = playing()
    world.cap(b"game", 64 * MIB)
    orders = len(world.sent(link.SetEngineBudget))
    request = world.cap(b"game", 64 * MIB)
    assert len(world.sent(link.SetEngineBudget)) == orders
    assert [type(m) for m in world.answers(b"game", request)] == [messages.Lease]


def test_130_percent_of_the_card_offers_nothing_and_wraps_nowhere() -> None:
    world = World(budget=BudgetSettings(headroom_bytes=10 * MIB)).boot()
    for name in (b"a", b"b"):
        world.join(name)
        world.reserve(name, CARD * 65 // 100)
    lease = world.last(b"b", messages.Lease)
    assert (lease.granted_bytes, lease.used_bytes, lease.device_used_bytes) == (0, 0, 0)
    world.reserve(b"b", messages.MAX_BYTES)
    assert world.effective == 0
    world.cap(b"a", messages.MAX_BYTES)
    assert all(0 <= m.budget_bytes <= CARD for m in world.sent(link.SetEngineBudget))
    world.handle(events.ClientGone(b"b"))
    assert world.effective == CARD - 10 * MIB - CARD * 65 // 100


def test_negative_sizes_are_refused_and_change_nothing() -> None:
    world = playing()
    for request in (messages.SetBudget(id=5, cap_bytes=-1), messages.Reserve(id=6, bytes=-1)):
        world.request(b"game", request)
        assert world.last(b"game", messages.Error).code == "budget_invalid"
    assert world.effective == CARD


def test_budget_from_game_follows_who_has_spoken() -> None:
    world = World(budget=replace(GAME, idle_bytes=5 * MIB)).boot()
    assert world.effective == 5 * MIB
    world.join(b"watcher")  # somebody who only looks, such as `xlm status`
    assert world.effective == 5 * MIB
    world.join(b"game")
    world.cap(b"game", None)
    assert world.effective == CARD
    world.request(b"game", messages.Goodbye(id=1))
    assert world.effective == 5 * MIB


def test_fixed_budget_needs_no_client_and_obeys_lower_caps() -> None:
    world = World(budget=BudgetSettings(fixed_bytes=100 * MIB)).boot()
    assert world.engine.budget_bytes == 100 * MIB
    world.join(b"game")
    world.cap(b"game", 50 * MIB)
    assert world.effective == 50 * MIB
    world.cap(b"game", 150 * MIB)
    assert world.effective == 100 * MIB


def test_without_an_engine_nothing_is_held_and_the_answer_is_immediate() -> None:
    world = World(budget=GAME)
    world.handle(events.BrokerStarted())
    world.join(b"game")
    request = world.cap(b"game", 32 * MIB)
    (lease,) = world.answers(b"game", request)
    assert isinstance(lease, messages.Lease)
    assert (lease.granted_bytes, lease.used_bytes) == (32 * MIB, 0)
    assert world.to_engine == []


def test_the_engine_starts_with_nothing_and_hears_its_budget_when_loaded() -> None:
    world = World(budget=BudgetSettings(fixed_bytes=64 * MIB)).boot()
    assert [type(m) for m in world.to_engine] == [link.Start, link.SetEngineBudget, link.SetSchedule]
    assert world.sent(link.Start)[0].budget_bytes == 0
    assert world.sent(link.SetEngineBudget)[0].budget_bytes == 64 * MIB
    assert world.sent(link.SetSchedule)[0].schedule.budget_bytes == 64 * MIB


def test_a_dead_engine_has_released_once_its_exit_is_confirmed() -> None:
    world = playing()
    world.engine.auto = False
    request = world.cap(b"game", 32 * MIB)
    for _ in range(4):
        world.advance(2500 * MS)
        world.ping()
    assert [a for a in world.done if isinstance(a, actions.KillEngine)]  # it did not release in ten seconds
    assert world.answers(b"game", request) == []
    second = world.cap(b"game", 16 * MIB)
    assert world.answers(b"game", second) == []
    world.crash()
    for asked in (request, second):
        (lease,) = world.answers(b"game", asked)
        assert isinstance(lease, messages.Lease)
        assert (lease.used_bytes, lease.device_used_bytes) == (0, 0)


def test_require_device_below_the_minimum_states_it_and_changes_nothing() -> None:
    world = playing()
    minimum = int(world.status().budget["minimum_bytes"])
    before = len(world.to_engine)
    world.cap(b"game", minimum - 1, require="device")
    error = world.last(b"game", messages.Error)
    assert (error.code, error.minimum_bytes, error.fault) == ("budget_infeasible", minimum, "caller")
    assert len(world.to_engine) == before
    assert world.effective == CARD
    world.cap(b"game", minimum, require="device")
    assert world.last(b"game", messages.Lease).granted_bytes == minimum


def test_require_device_counts_what_others_keep_free() -> None:
    world = playing()
    world.join(b"other")
    world.reserve(b"other", CARD)
    world.cap(b"game", 100 * MIB, require="device")
    error = world.last(b"game", messages.Error)
    assert error.code == "budget_infeasible"
    assert "reservation" in error.message


def test_require_device_before_the_model_is_known_can_be_retried() -> None:
    world = World()
    world.handle(events.BrokerStarted())
    world.join(b"game")
    world.cap(b"game", 100 * MIB, require="device")
    error = world.last(b"game", messages.Error)
    assert (error.code, error.retryable) == ("engine_starting", True)


def test_others_hear_of_a_changed_budget_once() -> None:
    world = playing()
    world.join(b"npc")
    world.cap(b"game", 40 * MIB)
    world.handle(events.Tick())
    notices = [m for m in world.inbox[b"npc"] if isinstance(m, messages.Notice)]
    assert [(n.kind, n.detail["granted_bytes"], n.detail["limited_by"]) for n in notices] == [
        ("budget_changed", 40 * MIB, "cap")
    ]
    assert "budget_changed" not in world.notices(b"game")


def test_too_many_unanswered_requests_are_refused() -> None:
    world = playing(limits=Limits(max_budget_requests=3))
    world.engine.auto = False
    requests = [world.cap(b"game", size * MIB) for size in (9, 8, 7, 6)]
    assert world.last(b"game", messages.Error).code == "overloaded"
    assert world.effective == 7 * MIB
    while world.engine.unconfirmed:
        world.engine_says(world.engine.confirm()[0])
    assert [len(world.answers(b"game", request)) for request in requests] == [1, 1, 1, 1]


def test_causes_are_echoed_or_made() -> None:
    world = playing()
    world.cap(b"game", 50 * MIB, cause="cut-scene")
    assert world.sent(link.SetEngineBudget)[-1].cause == "cut-scene"
    assert world.last(b"game", messages.Lease).cause == "cut-scene"
    world.cap(b"game", 40 * MIB)
    made = world.sent(link.SetEngineBudget)[-1].cause
    assert made
    assert world.last(b"game", messages.Lease).cause == made


def test_who_waits_for_a_silent_engine_hears_so_before_it_is_killed() -> None:
    world = playing()
    world.join(b"other")
    world.engine.auto = False
    request = world.cap(b"game", MIB)
    world.advance(1999 * MS)
    assert "engine_unresponsive" not in world.notices(b"game")
    world.advance(1 * MS)
    notice = world.last(b"game", messages.Notice)
    assert (notice.kind, notice.detail) == ("engine_unresponsive", {"waiting_ms": 2000.0, "killed_after_ms": 10_000.0})
    for _ in range(8):
        world.ping(b"game")
        world.advance(1000 * MS)
    assert world.notices(b"game").count("engine_unresponsive") == 1
    assert "engine_unresponsive" not in world.notices(b"other")  # it waits for nothing
    assert world.acts(actions.KillEngine)
    world.crash()
    (lease,) = world.answers(b"game", request)
    assert isinstance(lease, messages.Lease)
    assert (lease.granted_bytes, lease.used_bytes) == (MIB, 0)
