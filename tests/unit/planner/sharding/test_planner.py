"""The planner as the state machine uses it: schedules, budgets, errors, hysteresis, shrinking."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from xlm.errors import BudgetError
from xlm.protocol.link import CPU, ENGINE_CAPABILITIES, RESIDENT, STREAM, STREAM_KV, ModelFacts, Schedule
from xlm_broker.planner import PriorityPlanner
from xlm_broker.planner.sharding import ShardingPlanner
from xlm_broker.planner.sharding import planner as planner_module
from xlm_broker.planner.sharding.plan import check_host_memory, make_plan, minimum_bytes
from xlm_broker.state.ports import Planner

from . import examples
from .examples import MIB, SIM

PLANNER = ShardingPlanner()
MODEL = examples.facts()
SPARSE = examples.facts(experts=True)


def plan(budget_bytes: int, model: ModelFacts = MODEL, current: Schedule | None = None) -> Schedule:
    return PLANNER.plan(model, SIM, budget_bytes, schedule_id=7, current=current)


def held_bytes(model: ModelFacts, schedule: Schedule) -> int:
    """What a schedule may hold at most, counted from its tables alone: between large steps, and while only small ones
    run."""
    large = [t for t in schedule.tiers if not t.reserve_bytes]
    small = max((t.reserve_bytes for t in schedule.tiers), default=0) or schedule.reserve_bytes
    phases = [(large, schedule.reserve_bytes), (schedule.tiers, small)]
    return max(reserve + examples.kept_bytes(model, tiers) for tiers, reserve in phases)


def check(model: ModelFacts, schedule: Schedule, budget_bytes: int) -> None:
    count = 1 + max(sub.index for sub in model.sublayers)
    assert held_bytes(model, schedule) <= budget_bytes
    assert sorted(schedule.priority) == list(range(count))
    assert all(len(tier.placement) == count for tier in schedule.tiers)
    assert [tier.max_tokens for tier in schedule.tiers] == sorted({t.max_tokens for t in schedule.tiers})
    assert schedule.tiers[-1].max_tokens == model.n_ubatch
    assert schedule.reserve_bytes == schedule.ring_bytes + max(t.scratch_bytes for t in schedule.tiers)
    streams = any({STREAM, STREAM_KV} & set(tier.placement) for tier in schedule.tiers)
    assert streams == (schedule.ring_bytes > 0)


def test_it_is_a_planner() -> None:
    planner: Planner = PLANNER
    assert planner.unified_demand(MODEL) > planner.minimum_device_bytes(MODEL) > 0


@settings(max_examples=30, deadline=None)
@given(budget=st.integers(0, 300 * MIB), sparse=st.booleans())
def test_schedules_keep_their_budget(budget: int, sparse: bool) -> None:
    model = SPARSE if sparse else MODEL
    schedule = plan(budget, model)
    check(model, schedule, budget)
    assert schedule.budget_bytes == budget
    assert schedule.schedule_id == 7
    assert schedule.summary
    assert schedule.predicted["decode_tps"] > 0
    assert schedule.predicted["ttft_ms"] > 0
    assert 0 <= schedule.predicted["resident_share"] <= 1


@settings(max_examples=30, deadline=None)
@given(first=st.integers(0, 300 * MIB), share=st.floats(0, 1.2), sparse=st.booleans())
def test_shrinking_keeps_the_budget_and_adds_nothing(first: int, share: float, sparse: bool) -> None:
    model, second = SPARSE if sparse else MODEL, int(share * first)
    before = plan(first, model)
    after = PLANNER.shrink_plan(model, SIM, before, second, schedule_id=8)
    check(model, after, second)
    for old, new in zip(before.tiers, after.tiers, strict=True):
        assert all(place in (CPU, was) for was, place in zip(old.placement, new.placement, strict=True))


def check_rings(model: ModelFacts, schedule: Schedule) -> None:
    """The ring takes what is streamed, beside the experts' window, within what is reserved."""
    window = schedule.expert_window_bytes if schedule.expert_window_bytes != schedule.ring_bytes else 0
    scratch = max(t.scratch_bytes for t in schedule.tiers)
    assert schedule.ring_bytes + window + scratch <= schedule.reserve_bytes
    for sub in model.sublayers:
        places = {tier.placement[sub.index] for tier in schedule.tiers}
        if STREAM_KV in places or (STREAM in places and sub.kind != "experts"):
            kv_bytes = sub.kv_bytes if STREAM_KV in places else 0
            assert kv_bytes + 2 * sub.largest_piece_bytes <= schedule.ring_bytes


@settings(max_examples=20, deadline=None)
@given(budget=st.integers(0, 300 * MIB), share=st.floats(0, 1.0), sparse=st.booleans())
def test_streamed_caches_have_a_ring_that_takes_them(budget: int, share: float, sparse: bool) -> None:
    model, able = SPARSE if sparse else MODEL, replace(SIM, capabilities=list(ENGINE_CAPABILITIES))
    schedule = PLANNER.plan(model, able, budget, schedule_id=7)
    assert held_bytes(model, schedule) <= budget
    check_rings(model, schedule)
    after = PLANNER.shrink_plan(model, able, schedule, int(share * budget), schedule_id=8)
    assert held_bytes(model, after) <= int(share * budget)
    check_rings(model, after)


def test_a_small_budget_streams_the_caches_of_a_long_context() -> None:
    able = replace(SIM, capabilities=list(ENGINE_CAPABILITIES))
    schedules = [PLANNER.plan(MODEL, able, budget * MIB, schedule_id=7) for budget in range(20, 300, 10)]
    assert any(STREAM_KV in schedule.tiers[-1].placement for schedule in schedules)
    plain = [plan(budget * MIB) for budget in range(20, 300, 10)]
    assert not any(STREAM_KV in tier.placement for schedule in plain for tier in schedule.tiers)


def test_shrinking_what_fits_changes_nothing() -> None:
    before = plan(120 * MIB)
    after = PLANNER.shrink_plan(MODEL, SIM, before, 120 * MIB, schedule_id=8)
    assert [t.placement for t in after.tiers] == [t.placement for t in before.tiers]


def test_shrinking_another_models_schedule_gives_none_on_the_device() -> None:
    after = PLANNER.shrink_plan(MODEL, SIM, plan(200 * MIB, examples.facts(3)), 200 * MIB, schedule_id=8)
    assert not any(any(tier.placement) for tier in after.tiers)


def test_shrinking_evicts_what_is_worth_least() -> None:
    before = plan(200 * MIB)
    after = PLANNER.shrink_plan(MODEL, SIM, before, 120 * MIB, schedule_id=8)
    rank = {index: place for place, index in enumerate(before.priority)}
    kept = [i for i, p in enumerate(after.tiers[0].placement) if p == RESIDENT]
    lost = [i for i, p in enumerate(before.tiers[0].placement) if p == RESIDENT and i not in kept]
    assert lost
    assert max(rank[i] for i in kept) < min(rank[i] for i in lost)


def test_too_small_a_budget_states_the_minimum() -> None:
    with pytest.raises(BudgetError) as caught:
        PLANNER.plan(MODEL, SIM, 1000, schedule_id=1, require=True)
    assert caught.value.code == "budget_infeasible"
    assert caught.value.minimum_bytes is not None
    assert caught.value.minimum_bytes > 1000
    told = caught.value.message.partition("minimum of ")[2]
    assert f"({caught.value.minimum_bytes} bytes): scratch " in told
    assert 0 <= float(told.split(" MiB")[0]) * MIB - caught.value.minimum_bytes < MIB / 100 + 1
    assert not any(any(tier.placement) for tier in plan(1000).tiers)


def test_without_a_usable_device_everything_is_on_the_cpu() -> None:
    for device in (replace(SIM, kind="none"), replace(SIM, degraded=True)):
        schedule = PLANNER.plan(MODEL, device, 1 << 30, schedule_id=1)
        assert not any(any(tier.placement) for tier in schedule.tiers)


def test_a_set_stays_where_a_better_one_is_not_worth_its_upload(monkeypatch: pytest.MonkeyPatch) -> None:
    before = plan(150 * MIB)
    monkeypatch.setattr(planner_module, "HORIZON_REQUESTS", 1e-6)
    after = plan(170 * MIB, current=before)
    assert [held for held in resident(after) if held not in resident(before)] == []


def test_a_change_pays_for_itself() -> None:
    before = plan(150 * MIB)
    kept = plan(170 * MIB, current=before)
    free = plan(170 * MIB)
    uploaded = sum(MODEL.sublayers[i].device_bytes for i in set(resident(free)) - set(resident(before)))
    gain_ms = (kept.predicted["objective_ms"] - free.predicted["objective_ms"]) * planner_module.HORIZON_REQUESTS
    assert gain_ms <= 1e3 * uploaded / SIM.link_bytes_per_s


def resident(schedule: Schedule) -> list[int]:
    return [i for i, place in enumerate(schedule.tiers[0].placement) if place == RESIDENT]


def test_the_same_budget_changes_nothing() -> None:
    before = plan(150 * MIB)
    assert [t.placement for t in plan(150 * MIB, current=before).tiers] == [t.placement for t in before.tiers]


def test_a_set_that_is_much_worse_goes() -> None:
    before = plan(40 * MIB)
    after = plan(400 * MIB, current=before)
    assert after.resident_bytes > 2 * before.resident_bytes


def test_without_a_profile_the_summary_says_so() -> None:
    assert "no profile" in plan(150 * MIB).summary


def test_a_context_that_the_host_cannot_hold() -> None:
    planning = examples.planning(examples.DENSE, examples.DESKTOP | {"ram_gib": 20}, n_ctx=65536)
    with pytest.raises(BudgetError, match="host memory"):
        check_host_memory(planning)


def test_one_resident_set_serves_all_tiers() -> None:
    planning = examples.planning(examples.DENSE, examples.DESKTOP)
    found = make_plan(planning, 6 << 30)
    resident = found.solution.state == 2
    for modes in found.solution.modes[: found.solution.reach]:
        assert not (modes[~resident] == 2).any()


@pytest.mark.parametrize("model", [MODEL, SPARSE])
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_the_minimum_that_is_told_is_the_planners_own(model: ModelFacts, parts: int) -> None:
    pieces = [replace(s, largest_piece_bytes=-(-s.device_bytes // parts)) for s in model.sublayers]
    model = replace(model, sublayers=pieces)
    least = minimum_bytes(PLANNER.planning(model, SIM))
    assert PLANNER.minimum_device_bytes(model) == PriorityPlanner().minimum_device_bytes(model) == least
