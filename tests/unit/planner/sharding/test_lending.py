"""Scratch that small steps do not need holds further copies: within the budget, beside a common set that stays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from msgspec.structs import replace as struct_replace

from xlm.protocol.link import CPU, RESIDENT, Schedule
from xlm_broker.planner.sharding import ShardingPlanner
from xlm_broker.planner.sharding.costs import EVERYTHING
from xlm_broker.planner.sharding.costs import RESIDENT as MODE_RESIDENT
from xlm_broker.planner.sharding.lending import MOST_TOKENS, _bound, _small_task, lending
from xlm_broker.planner.sharding.plan import make_plan, with_lending
from xlm_broker.planner.sharding.planner import held_state
from xlm_broker.planner.sharding.problem import Task, kept_bytes
from xlm_broker.planner.sharding.report import as_json, as_text
from xlm_broker.planner.sharding.search import search
from xlm_broker.planner.sharding.shrink import shrunk_schedule

from . import examples
from .cases import make_task, optimum
from .examples import MIB, SIM

PLANNER = ShardingPlanner()
MODEL = examples.facts()
FULL_BYTES = sum(sub.device_bytes + sub.kv_bytes for sub in MODEL.sublayers)


def lent_schedule() -> Schedule:
    """A schedule that lends, at the first budget where one does."""
    for share in range(20, 100, 5):
        schedule = PLANNER.plan(MODEL, SIM, FULL_BYTES * share // 100, schedule_id=1)
        if any(tier.reserve_bytes for tier in schedule.tiers):
            return schedule
    raise AssertionError("no budget at which scratch is lent")


def roomy(seed: int, n_units: int) -> Task:
    """A problem whose large tier needs far more scratch than its small one."""
    task = make_task(seed, n_units, kv_streaming=bool(seed % 2), alike=seed % 3 == 0)
    return replace(task, scratch_bytes=np.array([MIB, 80 * MIB]), budget_bytes=task.budget_bytes + 80 * MIB)


def test_only_small_tiers_change_and_no_byte_is_too_much() -> None:
    n_lent = 0
    for seed in range(40):
        task = roomy(seed, 2 + seed % 6)
        solution = search(task)
        found = lending(task, solution)
        if found is None:
            continue
        faster, lent = found
        n_lent += 1
        assert faster.objective < solution.objective
        assert _bound(task, lent.n_tiers) <= faster.objective * (1 + 1e-9)
        assert faster.bound <= solution.bound * (1 + 1e-9)  # of more freedom than one set has
        assert (faster.modes[lent.n_tiers :] == solution.modes[lent.n_tiers :]).all()
        assert (faster.state == solution.state).all()
        assert faster.ring_bytes == solution.ring_bytes
        assert (lent.state >= solution.state).all()
        held = task.fixed_bytes + int(kept_bytes(task.costs, lent.state)) + solution.ring_bytes + lent.scratch_bytes
        assert held <= task.budget_bytes
        copies = (faster.modes[: lent.n_tiers] == MODE_RESIDENT).any(axis=0)
        assert (lent.state[copies] == EVERYTHING).all(), "what a small tier computes with is kept by somebody"
    assert n_lent > 10


def test_what_is_lent_is_within_a_percent_of_the_best() -> None:
    n_lent = 0
    for seed in range(36):
        task = roomy(seed, 2 + seed % 4)
        solution = search(task)
        if solution.reach < 2:
            continue
        small = _small_task(task, solution, 1, MIB, [], lambda: False)
        if small.room(1) > 0:
            best = search(small).objective
            assert best <= optimum(small, best) * 1.01
            n_lent += 1
    assert n_lent > 5


def test_nothing_is_lent_where_all_fits_or_no_large_step_uses_the_device() -> None:
    planning = PLANNER.planning(MODEL, SIM)
    assert with_lending(make_plan(planning, 4 * FULL_BYTES)).lent is None
    assert with_lending(make_plan(planning, 0)).lent is None


def test_a_schedule_tells_the_engine_what_each_tier_keeps_free() -> None:
    schedule = lent_schedule()
    small = [tier for tier in schedule.tiers if tier.reserve_bytes]
    assert {tier.max_tokens <= MOST_TOKENS for tier in small} == {True}
    assert all(schedule.ring_bytes < tier.reserve_bytes < schedule.reserve_bytes for tier in small)
    core = [tier for tier in schedule.tiers if not tier.reserve_bytes]
    assert examples.kept_bytes(MODEL, schedule.tiers) > examples.kept_bytes(MODEL, core)
    kept = {i for tier in core for i, place in enumerate(tier.placement) if place == RESIDENT}
    lent = {i for tier in small for i, place in enumerate(tier.placement) if place == RESIDENT} - kept
    rank = {index: at for at, index in enumerate(schedule.priority)}
    assert max(rank[i] for i in kept) < min(rank[i] for i in lent), "what is lent is the first to go"


def test_what_is_lent_is_not_held_by_later_plans() -> None:
    planning, schedule = PLANNER.planning(MODEL, SIM), lent_schedule()
    core = struct_replace(schedule, tiers=[tier for tier in schedule.tiers if not tier.reserve_bytes])
    assert (held_state(planning, schedule) == held_state(planning, core)).all()


@pytest.mark.parametrize("share", [0.99, 0.9, 0.6])
def test_a_shrunk_schedule_lends_nothing_and_streams_what_was_lent(share: float) -> None:
    schedule = lent_schedule()
    budget = int(share * schedule.budget_bytes)
    shrunk = shrunk_schedule(MODEL, schedule, budget, schedule_id=2)
    assert not any(tier.reserve_bytes for tier in shrunk.tiers)
    assert shrunk.resident_bytes + shrunk.reserve_bytes <= budget
    core = [tier for tier in schedule.tiers if not tier.reserve_bytes]
    kept = {i for tier in core for i, place in enumerate(tier.placement) if place == RESIDENT}
    for before, after in zip(schedule.tiers, shrunk.tiers, strict=True):
        lent = [i for i, place in enumerate(before.placement) if place == RESIDENT and i not in kept]
        first = core[0].placement  # what it may stream there, through this ring and by this engine
        assert all(after.placement[i] in (CPU, first[i]) for i in lent)


def test_the_plan_says_what_it_lends() -> None:
    planning, schedule = PLANNER.planning(MODEL, SIM), lent_schedule()
    plan = with_lending(make_plan(planning, schedule.budget_bytes))
    assert plan.lent is not None
    assert plan.lent.lent_bytes >= MIB
    bare = make_plan(planning, schedule.budget_bytes)
    assert plan.decode_tps > bare.decode_tps
    assert as_json(plan)["lent_bytes"] == plan.lent.lent_bytes
    assert as_json(bare)["lent_bytes"] == 0
    assert "lent: while steps of at most 16 tokens run" in as_text(plan)
    assert "lent:" not in as_text(bare)
