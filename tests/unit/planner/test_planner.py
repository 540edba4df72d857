"""The first policy: its memory arithmetic holds for every model and budget, and its choices are the stated ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlm.errors import BudgetError
from xlm.protocol.link import CPU, KINDS, RESIDENT, STREAM, DeviceFacts, Kind, ModelFacts, Schedule, SubLayer
from xlm_broker.planner import (
    Objective,
    PriorityPlanner,
    explain,
    minimum_device_bytes,
    plan,
    scratch_bytes,
    shrink_plan,
    tier_tokens,
    unified_demand,
)
from xlm_broker.planner.priority import RING_PIECES

MIB = 1 << 20
SIM = DeviceFacts(kind="sim", total_bytes=1 << 30)
NONE = DeviceFacts(kind="none")


def dense(n_layer: int = 4, n_ubatch: int = 64, tied: bool = False) -> ModelFacts:
    """A layer is 1 MiB of attention with 1 MiB of KV and 3 MiB of FFN; the output matrix is 8 MiB."""
    subs = [sub(0, "small", 64 << 10)]
    for layer in range(n_layer):
        subs += [sub(len(subs), "attention", MIB, layer, kv=MIB), sub(len(subs) + 1, "ffn", 3 * MIB, layer)]
    subs += [sub(len(subs), "output", 8 * MIB), sub(len(subs) + 1, "lookup", 0 if tied else 8 * MIB)]
    return ModelFacts(
        name="dense", sublayers=subs, n_ctx=512, n_ubatch=n_ubatch, scratch_bytes={1: 128 << 10, 64: 2 * MIB}
    )


def sub(index: int, kind: Kind, size: int, layer: int = -1, kv: int = 0) -> SubLayer:
    return SubLayer(
        index=index, layer=layer, kind=kind, device_bytes=size, kv_bytes=kv, largest_piece_bytes=max(1, size // 3)
    )


SIZES = st.integers(0, 4 * MIB)
NO_UNITS = ("lookup", "projector")  # which the schedule of a language model never places


@st.composite
def models(draw: st.DrawFn) -> ModelFacts:
    """Any mixture of kinds in any order, with gaps in the indices."""
    indices = draw(st.lists(st.integers(0, 40), unique=True, max_size=24))
    subs = [
        SubLayer(
            index=index,
            layer=draw(st.integers(-1, 8)),
            kind=draw(st.sampled_from(KINDS)),
            device_bytes=draw(SIZES),
            kv_bytes=draw(st.sampled_from([0, 0, 1, MIB])),
            largest_piece_bytes=draw(SIZES),
        )
        for index in indices
    ]
    scratch = draw(st.dictionaries(st.integers(1, 600), SIZES, max_size=4))
    ubatch = draw(st.sampled_from([1, 2, 4, 5, 64, 512]))
    return ModelFacts(name="any", sublayers=subs, n_ctx=64, n_ubatch=ubatch, scratch_bytes=scratch, n_vocab=10)


def kinds_where(schedule: Schedule, model: ModelFacts, tier: int, place: int) -> list[str]:
    return [s.kind for s in model.sublayers if schedule.tiers[tier].placement[s.index] == place]


def check(schedule: Schedule, model: ModelFacts, budget: int) -> None:
    """What every schedule has to fulfil, recomputed from the facts."""
    by_index = {s.index: s for s in model.sublayers}
    count = 1 + max(by_index, default=-1)
    held: set[int] = set()
    streamed: set[int] = set()
    for tier in schedule.tiers:
        assert len(tier.placement) == count
        placed = {i: p for i, p in enumerate(tier.placement) if p != CPU}
        held |= {i for i, p in placed.items() if p == RESIDENT}
        streamed |= {i for i, p in placed.items() if p == STREAM}
        assert tier.max_tokens > 4 or STREAM not in tier.placement
        assert all(i in by_index and by_index[i].kind not in NO_UNITS for i in placed)
        assert not placed or tier.scratch_bytes >= scratch_bytes(model, tier.max_tokens)
    assert not held & streamed
    assert not (held | streamed) or {s.index for s in model.sublayers if s.kind == "small"} <= held
    assert all(
        RING_PIECES * (by_index[i].largest_piece_bytes or by_index[i].device_bytes) <= schedule.ring_bytes
        for i in streamed
    )
    resident = sum(by_index[i].device_bytes + by_index[i].kv_bytes for i in held)
    resident += sum(by_index[i].kv_bytes for i in streamed)
    largest = max((t.scratch_bytes for t in schedule.tiers if any(t.placement)), default=0)
    assert schedule.resident_bytes == resident
    assert schedule.reserve_bytes == schedule.ring_bytes + largest
    assert schedule.resident_bytes + schedule.reserve_bytes <= budget == schedule.budget_bytes
    assert [t.max_tokens for t in schedule.tiers] == tier_tokens(model.n_ubatch)
    assert sorted(schedule.priority) == list(range(count))


def on_device(schedule: Schedule, model: ModelFacts) -> bool:
    return any(RESIDENT in kinds for kinds in [t.placement for t in schedule.tiers]) and any(
        t.placement[s.index] != CPU for t in schedule.tiers for s in model.sublayers if s.kind != "small"
    )


@settings(deadline=None, max_examples=100)
@given(model=models(), budget=st.integers(0, 60 * MIB), smaller=st.integers(0, 60 * MIB), data=st.data())
def test_no_plan_is_over_its_budget(model: ModelFacts, budget: int, smaller: int, data: st.DataObject) -> None:
    objectives: list[Objective] = ["balanced", "decode", "prefill"]
    objective = data.draw(st.sampled_from(objectives))
    made = plan(model, SIM, budget, schedule_id=7, objective=objective)
    check(made, model, budget)
    assert made.schedule_id == 7
    assert made == plan(model, SIM, budget, schedule_id=7, objective=objective)
    shrunk = shrink_plan(model, SIM, made, smaller)
    check(shrunk, model, smaller)
    assert residents(shrunk) <= residents(made) | residents_small(model)


def residents(schedule: Schedule) -> set[int]:
    return {i for t in schedule.tiers for i, p in enumerate(t.placement) if p == RESIDENT}


def residents_small(model: ModelFacts) -> set[int]:
    return {s.index for s in model.sublayers if s.kind == "small"}


@settings(deadline=None, max_examples=100)
@given(model=models(), below=st.integers(1, MIB), above=st.integers(0, 30 * MIB))
def test_the_minimum_is_exact(model: ModelFacts, below: int, above: int) -> None:
    minimum = minimum_device_bytes(model)
    if all(s.kind in ("small", *NO_UNITS) for s in model.sublayers):
        assert minimum == 0
        return
    assert on_device(plan(model, SIM, minimum + above, require_device=True), model)
    too_small = minimum - below
    assert not on_device(plan(model, SIM, too_small), model)
    with pytest.raises(BudgetError) as caught:
        plan(model, SIM, too_small, require_device=True)
    assert (caught.value.code, caught.value.minimum_bytes) == ("budget_infeasible", minimum)
    assert f"({minimum} bytes)" in caught.value.message


@settings(deadline=None, max_examples=100)
@given(model=models(), spare=st.integers(0, MIB))
def test_the_unified_demand_is_enough_for_everything(model: ModelFacts, spare: int) -> None:
    made = plan(model, SIM, unified_demand(model) + spare)
    wanted = {s.index for s in model.sublayers if s.kind not in NO_UNITS}
    if minimum_device_bytes(model):
        for tier in made.tiers:
            assert {i for i, p in enumerate(tier.placement) if p == RESIDENT} == wanted
    assert made.ring_bytes == 0


def test_attention_first_then_ffn_then_output() -> None:
    model = dense()
    fixed = 64 << 10
    expected = [
        (fixed + 8 * MIB, {"attention": 4, "ffn": 0, "output": 0}),
        (fixed + 14 * MIB, {"attention": 4, "ffn": 2, "output": 0}),
        (fixed + 20 * MIB, {"attention": 4, "ffn": 4, "output": 0}),
        (fixed + 28 * MIB, {"attention": 4, "ffn": 4, "output": 1}),
    ]
    for residence, counts in expected:
        held = kinds_where(plan(with_ubatch(model, 1), SIM, residence + (128 << 10)), model, 0, RESIDENT)
        assert {kind: held.count(kind) for kind in counts} == counts
    made = plan(model, SIM, 64 * MIB)
    kinds = {s.index: s.kind for s in model.sublayers}
    assert [kinds[i] for i in made.priority] == ["small"] + ["attention"] * 4 + ["ffn"] * 4 + ["output", "lookup"]
    assert [i for i in made.priority if kinds[i] == "ffn"] == [2, 4, 6, 8]


def with_ubatch(model: ModelFacts, n_ubatch: int) -> ModelFacts:
    return dense(4, n_ubatch) if model.name == "dense" else model


def test_shared_experts_come_before_ffn_and_experts_after() -> None:
    order: list[Kind] = ["experts", "output", "ffn", "shared_experts", "extras", "attention", "lookup", "small"]
    subs = [sub(index, kind, MIB, 0) for index, kind in enumerate(order)]
    model = ModelFacts(name="moe", sublayers=subs, n_ctx=64, n_ubatch=1, scratch_bytes={1: 0})
    kinds = [order[i] for i in plan(model, SIM, 0).priority]
    assert kinds == ["small", "attention", "extras", "shared_experts", "ffn", "experts", "output", "lookup"]


def test_what_is_not_resident_streams_in_prefill_and_decodes_on_the_cpu() -> None:
    model = dense(8)
    made = plan(model, SIM, 26 * MIB)
    assert made.ring_bytes > 0
    decode, prefill = 0, len(made.tiers) - 1
    assert kinds_where(made, model, decode, RESIDENT) == kinds_where(made, model, prefill, RESIDENT)
    assert kinds_where(made, model, decode, STREAM) == []
    streamed = kinds_where(made, model, prefill, STREAM)
    assert "ffn" in streamed
    assert "ffn" in kinds_where(made, model, decode, CPU)
    assert kinds_where(made, model, 1, STREAM) == []  # up to four tokens is decoding
    assert made.tiers[1].max_tokens == 4


def test_tiers() -> None:
    assert tier_tokens(1) == [1]
    assert tier_tokens(4) == [1, 4]
    assert tier_tokens(48) == [1, 4, 16, 48]
    assert tier_tokens(512) == [1, 4, 16, 64, 256, 512]
    assert tier_tokens(0) == [1]


def test_scratch_between_and_beyond_measurements() -> None:
    model = ModelFacts(name="m", sublayers=[], n_ctx=1, n_ubatch=1, scratch_bytes={1: 100, 11: 1100, 21: 900})
    assert [scratch_bytes(model, n) for n in (1, 2, 11, 16, 21, 42)] == [100, 200, 1100, 1100, 1100, 2200]
    unmeasured = ModelFacts(name="m", sublayers=[], n_ctx=1, n_ubatch=1, n_vocab=1000)
    assert scratch_bytes(unmeasured, 2) > scratch_bytes(unmeasured, 1) > 4000


def test_a_large_prefill_step_does_not_push_the_layers_out() -> None:
    """Scratch of a 512-token step would take most of this budget: such steps run on the CPU, decoding does not."""
    facts = {f: getattr(dense(8), f) for f in ("name", "sublayers", "n_ctx")}
    model = ModelFacts(n_ubatch=512, scratch_bytes={1: 128 << 10, 512: 20 * MIB}, **facts)
    made = plan(model, SIM, 24 * MIB)
    assert not any(made.tiers[-1].placement)
    assert "attention" in kinds_where(made, model, 0, RESIDENT)
    assert "steps of up to" in made.summary
    assert any(plan(model, SIM, 200 * MIB).tiers[-1].placement)


@pytest.mark.parametrize("device", [NONE, DeviceFacts(kind="sim", total_bytes=MIB, degraded=True)])
def test_without_a_usable_device_everything_is_on_the_cpu(device: DeviceFacts) -> None:
    model = dense()
    made = plan(model, device, 1 << 40)
    assert not any(any(tier.placement) for tier in made.tiers)
    assert (made.resident_bytes, made.reserve_bytes) == (0, 0)
    with pytest.raises(BudgetError, match="no usable device"):
        plan(model, device, 1 << 40, require_device=True)
    assert not any(any(t.placement) for t in shrink_plan(model, device, plan(model, SIM, 64 * MIB), 64 * MIB).tiers)


def test_tied_and_untied_models_of_one_size_on_the_device() -> None:
    """The look-up table is never on the device: file size is no guide to its memory."""
    assert unified_demand(dense(tied=True)) == unified_demand(dense(tied=False))


def test_negative_and_huge_budgets() -> None:
    model = dense()
    assert plan(model, SIM, -5).budget_bytes == 0
    assert plan(model, SIM, 1 << 62).resident_bytes == unified_demand(model) - 2 * MIB


def test_shrinking_evicts_from_the_end_of_the_priority_list() -> None:
    model = dense(8)
    before = plan(model, SIM, 64 * MIB)
    held = residents(before)
    for budget in range(60 * MIB, 0, -4 * MIB):
        after = residents(shrink_plan(model, SIM, before, budget))
        kept = [index in after for index in before.priority if index in held]
        assert kept == sorted(kept, reverse=True)


def test_a_schedule_of_another_model_shrinks_to_the_cpu() -> None:
    other = plan(dense(2), SIM, 64 * MIB)
    made = shrink_plan(dense(8), SIM, other, 64 * MIB)
    check(made, dense(8), 64 * MIB)
    assert residents(made) == set()


def test_explained_to_people() -> None:
    model = dense(8)
    text = explain(plan(model, SIM, 26 * MIB), model)
    first, head, *rows, memory = text.splitlines()
    assert "8/8 attention" in first
    assert "streaming through" in first
    assert head.split() == ["tokens", "small", "attention", "ffn", "output", "lookup", "scratch"]
    assert [row.split()[1] for row in rows] == ["1", "4", "16", "64"]
    assert "r8" in rows[0]
    assert "26.0 MiB" in memory
    assert explain(plan(model, NONE, 0), model).startswith("everything on the CPU")


def test_a_model_of_a_thousand_sublayers() -> None:
    model = dense(500, 512)
    for budget in (0, 100 * MIB, 1 << 40):
        check(PriorityPlanner().plan(model, SIM, budget, schedule_id=1), model, budget)
    assert PriorityPlanner().minimum_device_bytes(model) == minimum_device_bytes(model, RING_PIECES)
    assert PriorityPlanner().unified_demand(model) == unified_demand(model)
