"""When a plan is made, and that flapping costs few of them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from tests.unit.state.world import GAME, MIB, MS, SECOND, World
from xlm.protocol import link, messages
from xlm_broker.planner import PriorityPlanner
from xlm_broker.state import actions, events

LOW, HIGH = 20 * MIB, 60 * MIB


def playing(planner: Any = None) -> World:
    world = World(planner, budget=GAME).boot()
    world.join(b"game")
    world.cap(b"game", LOW)
    world.advance(2 * SECOND)
    world.ping()
    world.to_engine.clear()
    return world


def budgets_planned(world: World) -> list[int]:
    return [message.schedule.budget_bytes for message in world.sent(link.SetSchedule)]


def test_a_grow_after_quiet_is_budget_then_schedule() -> None:
    world = playing()
    world.cap(b"game", HIGH)
    world.settle()
    assert [type(m) for m in world.to_engine] == [link.SetEngineBudget, link.SetSchedule]
    assert budgets_planned(world) == [HIGH]


def test_flapping_ten_times_a_second_for_a_minute() -> None:
    world = playing()
    requests = []
    for turn in range(600):
        requests.append(world.cap(b"game", HIGH if turn % 2 == 0 else LOW))
        world.settle()
        world.advance(100 * MS)
    assert len(world.sent(link.SetEngineBudget)) == 600
    assert len(budgets_planned(world)) <= 4
    assert [len(world.answers(b"game", request)) for request in requests] == [1] * 600
    world.advance(2 * SECOND)
    assert world.status().schedule["budget_bytes"] == LOW


def test_a_still_budget_gets_its_plan_soon() -> None:
    world = playing()
    world.cap(b"game", HIGH)
    world.settle()
    world.cap(b"game", LOW)
    world.settle()
    world.cap(b"game", HIGH)
    world.advance(199 * MS)
    assert budgets_planned(world) == [HIGH, LOW]
    world.advance(2 * MS)
    assert budgets_planned(world) == [HIGH, LOW, HIGH]


def test_a_slow_rise_is_followed_and_ends_at_the_top() -> None:
    world = playing()
    for step in range(1, 81):
        world.cap(b"game", LOW + step * MIB // 2)
        world.advance(100 * MS)
        world.ping()
    planned = budgets_planned(world)
    assert 3 <= len(planned) <= 8
    assert planned == sorted(planned)
    world.advance(SECOND)
    assert budgets_planned(world)[-1] == LOW + 40 * MIB


def test_every_shrink_below_the_plan_is_planned_at_once() -> None:
    world = playing()
    for size in (15, 10, 5):
        world.cap(b"game", size * MIB)
        world.settle()
    assert budgets_planned(world) == [15 * MIB, 10 * MIB, 5 * MIB]


def test_a_tick_that_changes_the_budget_leaves_planning_to_the_next() -> None:
    """A lease ends with a Tick: its order to release is not delayed by planning."""
    world = playing()
    world.advance(2 * SECOND)
    world.now_ns += 2 * SECOND
    made = [a.message for a in world.handle(events.Tick()) if isinstance(a, actions.SendEngine)]
    assert [type(m) for m in made] == [link.SetEngineBudget]
    world.settle()
    assert budgets_planned(world) == [0]


def test_a_rejected_schedule_is_told_and_not_repeated() -> None:
    world = playing()
    world.engine.auto = False
    before = world.status().schedule["schedule_id"]
    world.cap(b"game", HIGH)
    world.settle()
    sent = world.sent(link.SetSchedule)[-1].schedule.schedule_id
    world.engine_says(link.ScheduleApplied(schedule_id=sent, ok=False, message="no memory"))
    world.advance(SECOND)
    world.ping()
    schedule = world.status().schedule
    assert (schedule["in_force_id"], schedule["rejection"]) == (before, "no memory")
    assert len(world.sent(link.SetSchedule)) == 1


def test_settled_is_the_plan_for_this_budget_at_work_and_uploaded() -> None:
    world = playing()
    world.engine_says(world.engine.stats())
    assert world.status().schedule["settled"]
    world.cap(b"game", HIGH)
    assert not world.status().schedule["settled"], "no plan yet"
    world.engine.auto = False
    world.settle()
    sent = world.sent(link.SetSchedule)[-1].schedule
    assert not world.status().schedule["settled"], "a plan that is not taken over"
    for order in world.engine.confirm():
        world.engine_says(order)
    world.engine_says(link.ScheduleApplied(schedule_id=sent.schedule_id))
    assert not world.status().schedule["settled"], "the last report is of the plan before"
    world.engine_says(world.engine.stats(settled=False))
    assert not world.status().schedule["settled"], "uploads are pending"
    world.engine_says(world.engine.stats())
    assert world.status().schedule["settled"]
    world.engine.auto = True
    world.cap(b"game", LOW)
    world.settle()
    world.cap(b"game", HIGH)
    world.engine_says(world.engine.stats())
    assert not world.status().schedule["settled"], "another plan is due"
    world.advance(SECOND)
    world.engine_says(world.engine.stats())
    assert world.status().schedule["settled"]
    world.crash()
    assert not world.status().schedule["settled"]


class Broken(PriorityPlanner):
    """A policy with a fault: raises, or promises more than the budget."""

    def __init__(self, how: str) -> None:
        self.how = how

    def plan(
        self, model: link.ModelFacts, device: link.DeviceFacts, budget_bytes: int, *, schedule_id: int
    ) -> link.Schedule:
        made = super().plan(model, device, budget_bytes, schedule_id=schedule_id)
        if self.how == "raises":
            raise ZeroDivisionError("rate")
        return replace(made, resident_bytes=budget_bytes + 1) if self.how == "greedy" else made


def test_a_planner_with_a_fault_costs_speed_only() -> None:
    for how in ("raises", "greedy"):
        planner = Broken("well")
        world = playing(planner)
        planner.how = how
        world.cap(b"game", LOW // 2)
        world.settle()
        schedule = world.sent(link.SetSchedule)[-1].schedule
        assert schedule.budget_bytes == LOW // 2
        assert 0 < schedule.resident_bytes + schedule.reserve_bytes <= LOW // 2
        assert isinstance(world.inbox[b"game"][-1], messages.Lease)


def test_a_planner_that_never_works_gives_the_cpu() -> None:
    world = World(Broken("raises")).boot()
    schedule = world.sent(link.SetSchedule)[-1].schedule
    assert not any(any(tier.placement) for tier in schedule.tiers)
    assert schedule.resident_bytes == 0
