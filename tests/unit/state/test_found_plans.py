"""Schedules found beside everything else: nothing waits for them, and late, wrong or missing ones do no harm."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace as struct_replace

from tests.unit.state.world import GAME, MIB, SECOND, BudgetSettings, World
from xlm.protocol import link
from xlm_broker.planner import PriorityPlanner
from xlm_broker.planner.sharding import ShardingPlanner
from xlm_broker.state import actions, events

LOW, HIGH = 20 * MIB, 40 * MIB  # of about 48 that the model takes
FINDER = ShardingPlanner()


def playing(budget_bytes: int = LOW) -> World:
    """A game with a budget, and the plan for it found and taken."""
    world = World(budget=GAME, find_plans=True).boot()
    world.join(b"game")
    world.cap(b"game", budget_bytes)
    world.advance(10_000_000)
    answer(world)
    world.advance(2 * SECOND)
    world.ping()
    world.to_engine.clear()
    return world


def asked(world: World) -> actions.FindPlan:
    return [action for action in world.done if isinstance(action, actions.FindPlan)][-1]


def answer(world: World, request: actions.FindPlan | None = None, **changes: Any) -> link.Schedule:
    """Finds the plan that was asked for (last), as the planner's process does."""
    request = request or asked(world)
    found = FINDER.plan(request.model, request.device, request.budget_bytes, schedule_id=0, current=request.current)
    found = struct_replace(found, **changes)
    world.handle(events.Planned(request.request_id, found))
    return found


def sent(world: World) -> list[link.Schedule]:
    return [message.schedule for message in world.sent(link.SetSchedule)]


def test_a_first_schedule_at_once_and_then_the_better_one() -> None:
    world = World(find_plans=True, budget=BudgetSettings(fixed_bytes=LOW)).boot()
    (first,) = sent(world)
    assert any(any(tier.placement) for tier in first.tiers)
    assert asked(world).current is None
    assert not world.status().schedule["settled"]
    found = answer(world)
    assert [schedule.schedule_id for schedule in sent(world)] == [1, 2]
    assert sent(world)[-1].tiers == found.tiers
    world.engine_says(world.engine.stats())
    assert world.status().schedule["settled"]


def test_a_shrink_evicts_at_once_whatever_the_search_does() -> None:
    world = playing(HIGH)
    before = world.engine.schedule
    world.cap(b"game", LOW)
    world.settle()
    (shrunk,) = sent(world)
    assert shrunk.budget_bytes == LOW
    assert before is not None
    kept = [i for tier in shrunk.tiers for i, place in enumerate(tier.placement) if place == link.RESIDENT]
    had = [i for tier in before.tiers for i, place in enumerate(tier.placement) if place == link.RESIDENT]
    assert kept
    assert set(kept) < set(had), "evicts, adds nothing"
    assert (asked(world).budget_bytes, asked(world).current) == (LOW, shrunk)


def test_no_search_takes_the_cpu_while_memory_is_being_released() -> None:
    world = playing(HIGH)
    before = asked(world)
    world.engine.auto = False
    world.cap(b"game", LOW)
    world.advance(10_000_000)
    assert [schedule.budget_bytes for schedule in sent(world)] == [LOW], "evicted all the same"
    assert asked(world) is before, "the search waits"
    made = world.engine_says(world.engine.confirm()[0])
    kinds = [type(action) for action in made if isinstance(action, actions.SendClient | actions.FindPlan)]
    assert kinds == [actions.SendClient, actions.FindPlan], "the game is answered first"
    assert asked(world).budget_bytes == LOW


def test_a_search_that_was_held_back_dies_with_its_engine() -> None:
    world = playing(HIGH)
    before = asked(world)
    world.engine.auto = False
    world.cap(b"game", LOW)
    world.advance(10_000_000)
    world.engine.die()
    world.handle(events.EngineExited(world.incarnation, 1, 0, "", ""))
    world.advance(10_000_000)
    assert asked(world) is before


def test_a_grow_keeps_what_is_there_until_its_plan_is_found() -> None:
    world = playing(LOW)
    world.cap(b"game", HIGH)
    world.settle()
    assert sent(world) == []
    answer(world)
    assert [schedule.budget_bytes for schedule in sent(world)] == [HIGH]


def test_a_search_that_never_ends_is_not_waited_for() -> None:
    world = playing(LOW)
    world.cap(b"game", HIGH)
    world.settle()
    request = asked(world)
    world.advance(2 * SECOND)
    assert [schedule.budget_bytes for schedule in sent(world)] == [HIGH]
    assert sent(world)[0].tiers == PriorityPlanner().plan(request.model, request.device, HIGH, schedule_id=0).tiers
    answer(world, request)
    assert len(sent(world)) == 2, "late, but welcome"


def test_an_answer_for_another_budget_is_ignored() -> None:
    world = playing(LOW)
    world.cap(b"game", HIGH)
    world.settle()
    old = asked(world)
    world.cap(b"game", LOW // 2)
    world.settle()
    count = len(sent(world))
    answer(world, old)
    assert len(sent(world)) == count
    answer(world)
    assert all(schedule.budget_bytes == LOW // 2 for schedule in sent(world))


def test_an_answer_that_changes_nothing_is_not_sent() -> None:
    world = playing(LOW)
    world.cap(b"game", HIGH)
    world.settle()
    request = asked(world)
    found = answer(world)
    count = len(sent(world))
    world.handle(events.Planned(request.request_id, found))
    assert len(sent(world)) == count


def test_better_ones_may_follow_until_the_final_one() -> None:
    world = playing(LOW)
    world.cap(b"game", HIGH)
    world.settle()
    request = asked(world)
    found = FINDER.plan(request.model, request.device, HIGH, schedule_id=0)
    world.handle(events.Planned(request.request_id, found, final=False))
    better = struct_replace(found, priority=found.priority[::-1])
    world.handle(events.Planned(request.request_id, better))
    assert [schedule.priority for schedule in sent(world)] == [found.priority, better.priority]


def test_plans_that_do_not_fit_and_searches_that_fail() -> None:
    for wrong in ({"resident_bytes": HIGH + 1}, {"budget_bytes": HIGH + MIB}, {"tiers": []}, None):
        world = playing(LOW)
        world.cap(b"game", HIGH)
        world.settle()
        if wrong is None:
            world.handle(events.Planned(asked(world).request_id, problem="the planner's process ended"))
        else:
            answer(world, **wrong)
        assert [schedule.budget_bytes for schedule in sent(world)] == [HIGH], "made by simple rules"
        assert any(isinstance(a, actions.Log) and a.event == "planner_failed" for a in world.done)


def test_an_engine_that_died_gets_no_old_plan() -> None:
    world = playing(LOW)
    world.cap(b"game", HIGH)
    world.settle()
    request = asked(world)
    world.crash()
    count = len(sent(world))
    answer(world, request)
    assert len(sent(world)) == count


def test_flapping_asks_rarely() -> None:
    world = playing(LOW)
    before = sum(isinstance(action, actions.FindPlan) for action in world.done)
    for turn in range(200):
        world.cap(b"game", HIGH if turn % 2 == 0 else LOW)
        world.settle()
        world.advance(100_000_000)
    searches = sum(isinstance(action, actions.FindPlan) for action in world.done) - before
    assert searches <= 8
    world.advance(2 * SECOND)
    answer(world)
    assert world.engine.schedule is not None
    assert world.engine.schedule.budget_bytes == LOW


def test_a_lost_device_is_seen_by_the_search() -> None:
    world = World(find_plans=True).boot()
    world.engine_says(world.engine.stats(device_lost=True))
    assert asked(world).device.degraded


def test_a_search_that_failed_is_asked_for_again_ever_more_rarely() -> None:
    world = World(find_plans=True, budget=BudgetSettings(fixed_bytes=LOW)).boot()
    waits = []
    for _ in range(4):
        world.handle(events.Planned(asked(world).request_id, problem="the planning process does not run"))
        searches, began_ns = len(plans_asked(world)), world.now_ns
        while len(plans_asked(world)) == searches:
            world.advance(10 * SECOND)
        waits.append((world.now_ns - began_ns) // (10 * SECOND))
    assert waits == [6, 12, 24, 48]
    found = answer(world)
    assert world.engine.schedule is not None
    assert world.engine.schedule.tiers == found.tiers
    world.advance(10_000 * SECOND)
    assert len(plans_asked(world)) == searches + 1, "found: nothing is asked for again"


def plans_asked(world: World) -> list[actions.FindPlan]:
    return [action for action in world.done if isinstance(action, actions.FindPlan)]
