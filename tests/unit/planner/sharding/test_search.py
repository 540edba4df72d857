"""Plans against enumeration, bounds against both, and the rules that every plan obeys."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlm_broker.planner.sharding.costs import EVERYTHING, RESIDENT, Capabilities
from xlm_broker.planner.sharding.counts import counted_states
from xlm_broker.planner.sharding.plan import SMALLER, long_plan, make_plan
from xlm_broker.planner.sharding.planner import engine_capabilities
from xlm_broker.planner.sharding.problem import (
    EFFORT,
    LONG_EFFORT,
    Solution,
    Task,
    on_cpu,
    ring_for,
    state_bytes,
    stream_mode,
)
from xlm_broker.planner.sharding.report import tier_reports
from xlm_broker.planner.sharding.search import _Order, _Proposal, _starts, search

from . import examples
from .cases import better_than, make_task, optimum, sets_and_bounds, tasks

GOAL = 0.01  # above the optimum, at most


def used_bytes(task: Task, plan: Solution) -> int:
    if not plan.reach:
        return 0
    scratch = int(task.scratch_bytes[plan.reach - 1])
    return task.fixed_bytes + state_bytes(task.costs, plan.state) + plan.ring_bytes + scratch


@settings(max_examples=25, deadline=None)
@given(task=tasks(max_units=6))
def test_within_a_hundredth_of_the_optimum(task: Task) -> None:
    plan = search(task)
    assert plan.objective <= optimum(task, plan.objective) * (1 + GOAL)


@pytest.mark.parametrize(
    ("layers", "share", "entry"),
    [
        (4, 0.2, examples.DENSE), (4, 0.45, examples.DENSE), (4, 0.8, examples.DENSE), (5, 0.6, examples.DENSE),
        (4, 0.2, examples.SPARSE), (4, 0.45, examples.SPARSE), (5, 0.8, examples.SPARSE),
    ],
)  # fmt: skip
def test_within_a_hundredth_on_real_shapes(layers: int, share: float, entry: dict[str, object]) -> None:
    """9 and 11 sub-layers of real proportions; all assignments and resident sets."""
    planning = examples.planning(examples.small(entry, layers), examples.DESKTOP)
    whole = planning.work.weight_bytes + int(planning.costs.kv_bytes.sum())
    plan = make_plan(planning, int(share * whole))
    assert better_than(plan.task, plan.solution.objective / (1 + GOAL)) is None


SWEEP = [(n, seed, bool(seed % 2)) for n in range(7, 13) for seed in range(6)]


@pytest.mark.parametrize(("n_units", "seed", "kv"), SWEEP)
def test_within_a_hundredth_of_the_optimum_up_to_twelve(n_units: int, seed: int, kv: bool) -> None:
    """A fixed sweep: ratios of CPU, device and link over two decades, all sub-layers alike in a third of the cases."""
    task = make_task(1000 * n_units + seed, n_units, kv_streaming=kv, alike=seed % 3 == 0)
    plan = search(task)
    assert better_than(task, plan.objective / (1 + GOAL)) is None


@settings(max_examples=12, deadline=None)
@given(task=tasks(max_units=5))
def test_bounds_of_resident_sets_are_bounds(task: Task) -> None:
    """Of every set, with and without what the ring keeps over steps: the search prunes by them."""
    lasting = replace(task.costs.capabilities, ring_across_steps=True)
    for one in (task, replace(task, costs=replace(task.costs, capabilities=lasting))):
        for bound, least in sets_and_bounds(one, reach=2):
            assert bound <= least * (1 + 1e-9)


@settings(max_examples=15, deadline=None)
@given(task=tasks(max_units=5))
def test_the_bound_is_one(task: Task) -> None:
    plan = search(task)
    assert 0 < plan.bound <= optimum(task) * (1 + 1e-9)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), n_units=st.integers(1, 40), kv=st.booleans(), share=st.floats(0, 1.2))
def test_never_above_the_budget(seed: int, n_units: int, kv: bool, share: float) -> None:
    task = make_task(seed, n_units, kv_streaming=kv, n_tiers=3)
    task = replace(task, budget_bytes=int(share * task.budget_bytes), effort=8_000)
    plan = search(task)
    assert used_bytes(task, plan) <= task.budget_bytes
    assert np.isfinite(plan.times).all()


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31), n_units=st.integers(1, 30), kv=st.booleans())
def test_modes_agree_with_the_resident_set(seed: int, n_units: int, kv: bool) -> None:
    task = replace(make_task(seed, n_units, kv_streaming=kv, n_tiers=3), effort=8_000)
    plan = search(task)
    allowed = stream_mode(task.costs, plan.state, ring_for(task, plan.state, max(1, plan.reach)))
    for tier, modes in enumerate(plan.modes):
        assert tier < plan.reach or not modes.any()
        assert not ((modes == RESIDENT) & (plan.state != EVERYTHING)).any()
        streamed = (modes != RESIDENT) & (modes != 0)
        assert (modes[streamed] == allowed[streamed]).all()


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31), n_units=st.integers(2, 12))
def test_deterministic_and_better_than_the_cpu(seed: int, n_units: int) -> None:
    task = replace(make_task(seed, n_units), effort=8_000)
    one, two = search(task), search(task)
    assert np.array_equal(one.modes, two.modes)
    assert one.objective == two.objective
    host = task.costs.compute[:, 0].sum(axis=1) + task.costs.step
    assert one.objective <= float(host @ task.weights) * (1 + 1e-9)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31), n_units=st.integers(2, 12))
def test_keep_keeps_the_set(seed: int, n_units: int) -> None:
    task = replace(make_task(seed, n_units), effort=8_000)
    first = search(task)
    again = search(task, keep=first.state)
    assert used_bytes(task, again) <= task.budget_bytes
    assert not ((again.state != first.state) & (again.state > 0)).any()  # what is unused may be let go


def test_everything_resident_where_it_fits() -> None:
    planning = examples.planning(examples.DENSE, examples.DESKTOP)
    plan = make_plan(planning, 20 << 30)
    assert (plan.solution.modes == RESIDENT).all()
    assert plan.solution.ring_bytes == 0
    assert plan.solution.gap < 0.01


def test_pure_kinds_are_never_better() -> None:
    """GPU-only streaming, static and CPU-only with the same memory."""
    for budget in (2, 4, 8):
        plan = make_plan(examples.planning(examples.DENSE, examples.LAPTOP), budget << 30)
        for report in tier_reports(plan):
            assert report.step <= min(report.alternatives.values()) * 1.02


def test_filling_is_greedy_by_the_order() -> None:
    """Against the same one copy after the other: whatever still fits is taken."""
    rng = np.random.default_rng(7)
    for n in (0, 1, 5, 40):
        extra = rng.choice([0, 2, 3, 7, 20], n).astype(np.int64)
        order = _Order(rng.permutation(n), np.full(n, EVERYTHING, dtype=np.int8), extra)
        for room in (-1, 0, 1, 9, 30, 500):
            taken, left = np.zeros(n, dtype=np.int8), room
            for unit, size in zip(order.unit, extra, strict=True):
                if size <= left:
                    taken[unit], left = EVERYTHING, left - int(size)
            assert np.array_equal(order.filled(n, room), taken)


def test_of_plans_as_good_the_one_with_the_longest_ring_is_improved_too() -> None:
    task = make_task(3, 20)
    host = on_cpu(task)
    found = [(1.0, 5), (1.0 + 1e-15, 7), (1.0, 9), (1.0 + 1e-15, 8), (1.001, 99)]
    solutions = [replace(host, objective=objective, ring_bytes=ring) for objective, ring in found]
    proposals = [_Proposal(host.state, spared, 0, 1) for spared in range(len(found))]
    assert [s.ring_bytes for s in _starts(task, proposals, solutions)] == [5, 9]
    assert [s.ring_bytes for s in _starts(task, proposals[3:], solutions[3:])] == [8]


def test_more_memory_is_not_slower_by_more_than_the_search_misses() -> None:
    planning = examples.planning(examples.SPARSE, examples.DESKTOP)
    times = [make_plan(planning, gib << 30).solution.objective for gib in (1, 2, 4, 8, 16, 32)]
    assert all(later <= earlier * 1.03 for earlier, later in pairwise(times))


def test_streaming_a_cache_is_only_another_option() -> None:
    for row in (examples.DESKTOP, examples.LAPTOP):
        for gib in (1, 2, 4):
            plain = make_plan(examples.planning(examples.SPARSE, row), gib << 30)
            able = examples.planning(examples.SPARSE, row, capabilities=Capabilities(kv_streaming=True))
            assert make_plan(able, gib << 30).solution.objective <= plain.solution.objective * 1.03


def test_a_larger_budget_is_never_worth_less() -> None:
    """A small model whose output matrix and caches weigh as much as its layers: no cache kept is best there."""
    planning = examples.planning(examples.TINY, examples.DESKTOP, n_ctx=2048, capabilities=engine_capabilities())
    found = [make_plan(planning, budget * examples.MIB).solution.objective for budget in range(16, 160, 8)]
    assert all(after <= before * (1 + GOAL) for before, after in pairwise(found))


def test_a_long_search_is_never_worse_than_brief_ones_at_smaller_budgets() -> None:
    planning = examples.planning(examples.TINY, examples.DESKTOP, n_ctx=2048, capabilities=engine_capabilities())
    for budget in (90 * examples.MIB, 96 * examples.MIB, 104 * examples.MIB):
        plan = long_plan(planning, budget, LONG_EFFORT)
        assert plan.resident_bytes + plan.reserve_bytes <= budget == plan.task.budget_bytes
        smaller = [make_plan(planning, int(share * budget), effort=EFFORT).solution for share in (1.0, *SMALLER)]
        assert plan.solution.objective <= min(solution.objective for solution in smaller)
        assert plan.solution.bound <= min(solution.bound for solution in smaller)


def test_sets_are_counted_of_what_there_is_several_times_with_its_caches() -> None:
    """Ten times attention and feed-forward part, and one output matrix that is heavier than all attention weights."""
    attention, ffn, output = 100, 300, 2000
    weights, kv = np.array([attention, ffn] * 10 + [output]), np.array([500, 0] * 10 + [0])
    alike = np.array([0, 1] * 10 + [2])
    costs = make_task(1, 21, kv_streaming=True).costs
    costs = replace(costs, weight_bytes=weights, kv_bytes=kv, alike=alike)
    room = 5 * (attention + 500)
    sets = [state for _, state in counted_states(costs, [room], long=True)]
    kept = [((state == EVERYTHING) & (alike == 0)).sum() for state in sets if not state[-1] and (state != 1).all()]
    assert max(kept) == 5  # as many with their caches as fit
    evenly = next(s for s in sets if ((s == EVERYTHING) & (alike == 0)).sum() == 5 and not s[1::2].any())
    assert np.flatnonzero(evenly[::2]).tolist() == [0, 2, 4, 6, 8]
