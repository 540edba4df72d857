"""A device that is taken by others, lost, or spilling."""

from __future__ import annotations

import pytest

from tests.unit.state.world import CARD, GAME, MIB, SECOND, BudgetSettings, World
from xlm.protocol import link, messages
from xlm_broker.state import actions, events


def report(
    total_bytes: int | None = None, free_bytes: int | None = None, foreign_bytes: int | None = None
) -> events.DeviceReport:
    return events.DeviceReport("nvml", total_bytes, free_bytes, foreign_bytes)


def uses_the_device(schedule: link.Schedule) -> bool:
    return any(any(tier.placement) for tier in schedule.tiers)


def test_another_process_takes_memory_in_steps_and_the_headroom_holds() -> None:
    world = World(budget=BudgetSettings(headroom_bytes=16 * MIB)).boot()
    for foreign in range(0, 300, 25):
        world.handle(report(total_bytes=CARD, foreign_bytes=foreign * MIB))
        expected = max(0, CARD - 16 * MIB - foreign * MIB)
        assert world.effective == expected
        assert world.engine.used_bytes <= expected
    assert world.status().budget["limited_by"] == "os"
    world.handle(report(total_bytes=CARD, foreign_bytes=0))
    assert world.effective == CARD - 16 * MIB


def test_from_free_memory_the_others_are_what_is_not_ours() -> None:
    world = World().boot()
    world.settle()
    used = world.engine.used_bytes
    assert used > 0
    world.engine_says(world.engine.stats())
    for _ in range(2):  # believed when seen twice
        world.handle(report(total_bytes=CARD, free_bytes=CARD - used - 100 * MIB))
    assert world.status().device["foreign_bytes"] == 100 * MIB
    assert world.effective == CARD - 100 * MIB


def test_a_reading_older_than_a_release_shrinks_nothing() -> None:
    world = World(budget=GAME).boot()
    world.join(b"game")
    world.cap(b"game", CARD)
    world.settle()
    before = world.engine.used_bytes
    assert before > 0
    for _ in range(3):  # not yet told what it uploaded, then told
        world.handle(report(total_bytes=CARD, free_bytes=CARD - before))
        assert world.status().device["foreign_bytes"] == 0
        world.engine_says(world.engine.stats())
    world.cap(b"game", 0)
    world.settle()
    world.engine_says(world.engine.stats())
    world.handle(report(total_bytes=CARD, free_bytes=CARD - before))
    assert world.status().device["foreign_bytes"] == 0


def test_while_the_engine_uploads_only_the_certain_part_counts() -> None:
    world = World(budget=BudgetSettings(fixed_bytes=80 * MIB)).boot()
    world.engine_says(world.engine.stats(used_bytes=10 * MIB, settled=False))
    for _ in range(3):
        world.handle(report(total_bytes=CARD, free_bytes=CARD - 70 * MIB))
    assert world.effective == 80 * MIB
    for _ in range(3):
        world.handle(report(total_bytes=CARD, free_bytes=CARD - 250 * MIB))
    assert world.status().device["foreign_bytes"] == 170 * MIB


@pytest.mark.parametrize(
    "unsupported",
    [events.DeviceReport("nvml", detail="Not Supported"), events.DeviceReport("none"), report(total_bytes=0)],
)
def test_not_supported_means_not_known(unsupported: events.DeviceReport) -> None:
    world = World().boot()
    world.handle(unsupported)
    assert world.effective == CARD
    assert world.status().device["foreign_bytes"] is None


def test_jitter_of_other_processes_is_not_followed() -> None:
    world = World().boot()
    orders = len(world.sent(link.SetEngineBudget))
    for jitter in range(20):
        world.handle(report(total_bytes=CARD, foreign_bytes=50 * MIB + (jitter % 3) * 300_000))
    assert len(world.sent(link.SetEngineBudget)) == orders + 2  # 50 MiB, then once 51
    assert world.effective == CARD - 51 * MIB


def test_an_unknown_card_is_known_from_the_report() -> None:
    world = World(device=link.DeviceConfig(kind="cuda"))
    world.handle(events.BrokerStarted())
    assert world.effective == 0
    world.handle(report(total_bytes=CARD, foreign_bytes=0))
    assert world.effective == CARD


def test_no_device_offers_nothing() -> None:
    world = World(device=link.DeviceConfig(kind="none"))
    world.engine.device = link.DeviceFacts(kind="none")
    world.boot()
    assert world.effective == 0
    assert not uses_the_device(world.sent(link.SetSchedule)[-1].schedule)


def test_a_lost_device_is_said_planned_around_and_tried_again() -> None:
    world = World().boot()
    world.join(b"game")
    world.engine_says(world.engine.stats(device_lost=True))
    world.engine_says(world.engine.stats(device_lost=True))
    assert world.notices(b"game").count("device_lost") == 1
    assert not uses_the_device(world.sent(link.SetSchedule)[-1].schedule)
    assert world.status().device["lost"]
    probes: list[int] = []
    for second in range(1, 70):
        world.advance(SECOND)
        world.ping()
        world.engine_says(world.engine.stats(device_lost=True))
        probes += [second] * (len(world.sent(link.Probe)) - len(probes))
    assert probes == [1, 3, 7, 15, 31, 61]
    orders = len(world.sent(link.SetEngineBudget))
    world.engine_says(world.engine.stats())
    assert world.notices(b"game")[-1] == "device_restored"
    assert len(world.sent(link.SetEngineBudget)) == orders + 1
    assert uses_the_device(world.sent(link.SetSchedule)[-1].schedule)
    world.advance(100 * SECOND)
    assert len(world.sent(link.Probe)) == 6


def test_requests_are_answered_while_the_device_is_lost() -> None:
    world = World(budget=GAME).boot()
    world.join(b"game")
    world.engine_says(world.engine.stats(device_lost=True))
    request = world.cap(b"game", 30 * MIB)
    assert [type(m) for m in world.answers(b"game", request)] == [messages.Lease]
    world.cap(b"game", 100 * MIB, require="device")
    assert world.last(b"game", messages.Error).code == "budget_infeasible"


def test_a_device_that_did_not_open_is_degraded_and_tried_again() -> None:
    world = World()
    world.engine.device = link.DeviceFacts(kind="sim", total_bytes=CARD, degraded=True)
    world.handle(events.BrokerStarted())
    world.join(b"game")
    world.start_engine()
    assert "degraded" in world.notices(b"game")
    assert not uses_the_device(world.sent(link.SetSchedule)[-1].schedule)
    world.engine_says(world.engine.stats())
    assert "device_restored" not in world.notices(b"game")  # nobody has tried it yet
    world.advance(SECOND)
    assert world.sent(link.Probe) == [link.Probe(recover=True)]
    world.engine_says(world.engine.stats())
    assert "device_restored" in world.notices(b"game")


def generate(world: World, rate: float, times: int = 1, **fields: object) -> None:
    for _ in range(times):
        values: dict[str, object] = {"tokens_per_s": rate, "settled": True, **fields}
        world.engine_says(link.Stats(budget_bytes=world.engine.budget_bytes, n_active=1, **values))  # type: ignore[arg-type]


def on_real_card(world: World) -> World:
    world.engine.device = link.DeviceFacts(kind="cuda", total_bytes=CARD)
    return world


def test_the_virtual_gpu_does_not_spill() -> None:
    world = World().boot()
    generate(world, 40.0, 5)
    generate(world, 4.0, 20)
    assert world.effective == CARD


def test_spilling_is_named_and_the_budget_retreats() -> None:
    world = on_real_card(World()).boot()
    world.join(b"game")
    generate(world, 40.0, 5)
    generate(world, 4.0, 3)
    assert world.effective == CARD
    generate(world, 4.0)
    assert world.effective == int(CARD * 0.85)
    assert world.status().budget["limited_by"] == "spill"
    assert world.notices(b"game").count("degraded") == 1
    world.settle()
    assert world.sent(link.SetSchedule)[-1].schedule.budget_bytes == int(CARD * 0.85)
    for _ in range(150):
        world.advance(2 * SECOND)
        world.ping()
    assert world.effective == CARD


def test_slow_for_another_reason_is_not_spilling() -> None:
    cases: list[tuple[dict[str, object], BudgetSettings]] = [
        ({"settled": False}, BudgetSettings()),  # still uploading
        ({}, BudgetSettings(fixed_bytes=CARD // 2)),  # far from the card's size
        ({"n_active": 0}, BudgetSettings()),
    ]
    for fields, budget in cases:
        world = on_real_card(World(budget=budget)).boot()
        before = world.effective
        for rate in [40.0] * 5 + [4.0] * 20:
            values: dict[str, object] = {"n_active": 1, "tokens_per_s": rate, **fields}
            world.engine_says(link.Stats(**values))  # type: ignore[arg-type]
        assert world.effective == before
        assert not [a for a in world.acts(actions.Log) if a.event == "spill"]


def test_a_smaller_budget_is_rightly_slower() -> None:
    world = World(budget=GAME).boot()
    world.join(b"game")
    world.cap(b"game", CARD)
    generate(world, 40.0, 5)
    world.cap(b"game", CARD * 95 // 100)
    generate(world, 4.0, 20)
    assert world.effective == CARD * 95 // 100
