"""Single experts: hit rates, misses, and how many slots a plan gives them."""

from __future__ import annotations

import dataclasses
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from xlm.protocol.link import CPU, RESIDENT, STREAM, STREAM_KV, DeviceFacts, ExpertStats, ModelFacts, Schedule, SubLayer
from xlm_broker.planner.sharding import CardRates, ShardingPlanner
from xlm_broker.planner.sharding.costs import TierPoint
from xlm_broker.planner.sharding.experts import (
    Rates,
    coverage,
    layer_ns,
    layers,
    miss_ns,
    missing,
    rates,
    split_ns,
    wait_ns,
)
from xlm_broker.planner.sharding.kernels import Roofline, Where
from xlm_broker.planner.sharding.predict import predicted_step
from xlm_broker.planner.sharding.work import Experts

from . import examples
from .examples import MIB, kept_bytes

E, USED, LAYERS = 64, 8, 6
CARD = CardRates(flops_s=20e12, memory_bytes_s=400e9, link_bytes_s=6e9)
DEVICE = DeviceFacts(kind="sim", total_bytes=4 << 30, capabilities=["ring_across_steps", "expert_slots"])
HPARAMS = {"n_embd": 1024, "n_head": 16, "n_head_kv": 4, "head_dim": 64, "n_expert": E, "n_expert_used": USED}


def sparse() -> ModelFacts:
    """Experts of 1 MiB each, as an engine tells of them."""
    facts = examples.facts(LAYERS, experts=True, hparams=HPARAMS)
    one = {"n_experts": E, "expert_bytes": MIB, "expert_overhead_bytes": 4096, "largest_expert_bytes": MIB // 2}
    return replace(facts, sublayers=[replace(s, **one) if s.kind == "experts" else s for s in facts.sublayers])


MODEL = sparse()
LAYER = next(s for s in MODEL.sublayers if s.kind == "experts")


def skewed(model: ModelFacts, power: float) -> list[ExpertStats]:
    """Routing in which the n-th expert is used as n**-power."""
    use = np.cumsum(np.arange(1, E + 1, dtype=np.float64) ** -power)
    covered = np.round(255 * use / use[-1]).astype(np.uint8).tobytes()
    subs = [s for s in model.sublayers if s.kind == "experts"]
    return [ExpertStats(index=s.index, layer=s.layer, mode="slots", n_experts=E, covered=covered) for s in subs]


@cache
def plan(budget_bytes: int, power: float | None = None) -> Schedule:
    planner = ShardingPlanner(card=CARD)
    return planner.plan(
        MODEL, DEVICE, budget_bytes, schedule_id=1, routing=[] if power is None else skewed(MODEL, power)
    )


def slot_bytes(schedule: Schedule) -> int:
    subs = {s.index: s for s in MODEL.sublayers}
    kept = [(subs[i], p.n_slots) for i, p in schedule.experts.items() if p.n_slots]
    return sum(n * sub.expert_bytes + sub.expert_overhead_bytes for sub, n in kept)


def held_bytes(schedule: Schedule) -> int:
    """Counted from the tables alone: between large steps, and while only small ones run."""
    large = [t for t in schedule.tiers if not t.reserve_bytes]
    small = max((t.reserve_bytes for t in schedule.tiers), default=0)
    held = schedule.reserve_bytes + kept_bytes(MODEL, large)
    lent = small + kept_bytes(MODEL, schedule.tiers) if small else 0
    return max(held, lent) + slot_bytes(schedule)


def test_hit_rates_even_and_measured() -> None:
    even = coverage(LAYER, None)
    assert even[0] == 0
    assert even[E // 2] == pytest.approx(0.5)
    steep = coverage(LAYER, skewed(MODEL, 1.5)[0])
    assert steep[8] > 0.7 > even[8]
    assert steep[-1] == 1.0
    assert (np.diff(steep) >= 0).all()
    short = ExpertStats(index=LAYER.index, layer=0, mode="slots", n_experts=E, covered=b"\x10")
    assert (coverage(LAYER, short) == even).all(), "figures of another model say nothing"


def test_misses_of_small_and_large_steps() -> None:
    op = Experts("Q8_0", 1024, 512, E, USED, 1e6)
    assert missing(op, 1, 0.75, 16) == pytest.approx(USED * 0.25)
    assert missing(op, 4096, 0.75, 16) == pytest.approx(E - 16, rel=0.01)  # every expert is wanted
    assert missing(op, 1, 1.0, E) == 0
    many = [missing(op, t, 0.75, 16) for t in (1, 4, 16, 64)]
    assert many == sorted(many)


def test_a_miss_pays_for_each_of_its_copies() -> None:
    planning = ShardingPlanner(card=CARD).planning(MODEL, DEVICE)
    layer, machine = layers(MODEL, planning.work)[0], planning.machine
    later = dataclasses.replace(machine, link_latency_ns=machine.link_latency_ns + 1000.0)
    quick, slow = (rates(layer, planning.kernels, one, hop_ns=0.0) for one in (machine, later))
    assert slow.upload - quick.upload == pytest.approx(1000 * len(layer.unit.experts))  # its matrices
    assert slow.joined == quick.joined
    assert slow.cpu == quick.cpu
    assert slow.cpu_fixed - quick.cpu_fixed == pytest.approx(1000)  # all rows of the result in one
    assert slow.cpu_part - quick.cpu_part == pytest.approx(1250)  # in about one more where they lie apart
    assert wait_ns(later) - wait_ns(machine) == pytest.approx(2000)
    many = E * slow.upload
    assert miss_ns(slow, E, 512, share=0.0) == pytest.approx(many)
    assert miss_ns(slow, E, 512, share=1.0) == pytest.approx(E * slow.joined)


class Barriers(Roofline):
    """Every operation of all threads ends with a barrier of so many ns; threads share products evenly."""

    barrier_ns = 0.0

    def small(self, where: Where, op: str, row_elements: int, tokens: float) -> float:
        return super().small(where, op, row_elements, tokens) + (self.barrier_ns if where == "cpu" else 0.0)

    def experts(self, where: Where, op: Experts, tokens: float) -> float:
        return super().experts(where, op, tokens) + (self.barrier_ns if where == "cpu" else 0.0)

    def experts_by_one(self, op: Experts, tokens: float) -> float:
        return self.machine.cpu_threads * super().experts("cpu", op, tokens)


def test_one_thread_computes_what_is_little_against_its_barriers() -> None:
    planning = ShardingPlanner(card=CARD).planning(MODEL, DEVICE)
    layer, machine = layers(MODEL, planning.work)[0], planning.machine
    kernels = Barriers(machine)
    together = rates(layer, kernels, machine, hop_ns=0.0)
    kernels.barrier_ns = 200_000.0
    alone = rates(layer, kernels, machine, hop_ns=0.0)
    assert together.cpu_threads == 0
    assert alone.cpu_threads == alone.policy(3).cpu_threads == 1
    assert alone.cpu > together.cpu, "one thread takes longer for an expert"
    assert alone.cpu_fixed < kernels.barrier_ns, "and waits for nobody"


def test_all_threads_are_woken_for_misses_and_one_is_awake() -> None:
    planning = ShardingPlanner(card=CARD).planning(MODEL, DEVICE)
    layer, machine, kernels = layers(MODEL, planning.work)[0], planning.machine, Barriers(planning.machine)
    asleep = dataclasses.replace(machine, cpu_start_ns=8_000.0)
    more = [rates(layer, kernels, one, hop_ns=20_000.0).cpu_fixed for one in (machine, asleep)]
    assert more[1] - more[0] == pytest.approx(4_000.0), "the other half is in the hop"
    kernels.barrier_ns = 200_000.0
    less = [rates(layer, kernels, one, hop_ns=20_000.0).cpu_fixed for one in (machine, asleep)]
    assert less[1] - less[0] == pytest.approx(-4_000.0)


@given(
    upload=st.floats(1, 100), cpu=st.floats(1, 100), fixed=st.floats(0, 300), part=st.floats(0, 100),
    count=st.integers(0, 12),
)  # fmt: skip
def test_misses_are_split_as_the_engine_splits_them(
    upload: float, cpu: float, fixed: float, part: float, count: int
) -> None:
    rate = Rates(upload, upload / 2, cpu, cpu, fixed, cpu_part=part)
    on_cpu = [fixed + (part if n else 0.0) + (count - n) * cpu if n < count else 0.0 for n in range(count + 1)]
    ways = [max(n * upload, on_cpu[n]) for n in range(count + 1)]
    assert split_ns(rate, upload, count, 1.0) == pytest.approx(min(ways))
    beside = [max(n * upload, on_cpu[n] + (part if n == 0 < count else 0.0)) for n in range(count + 1)]
    assert split_ns(rate, upload, count, 1.0, alone=False) == pytest.approx(min(beside))
    assert miss_ns(rate, count, 1, share=0.0) == pytest.approx(min(ways))
    between = miss_ns(rate, count + 0.5, 1, share=0.0)
    assert between == pytest.approx((min(ways) + split_ns(rate, upload, count + 1, 1.0)) / 2)


@settings(max_examples=8, deadline=None)
@given(share=st.floats(0.0, 1.2), power=st.one_of(st.none(), st.floats(0.0, 2.0)))
def test_never_above_the_budget(share: float, power: float | None) -> None:
    whole = sum(s.device_bytes + s.kv_bytes for s in MODEL.sublayers)
    budget = int(share * whole)
    schedule = plan(budget, power)
    assert held_bytes(schedule) <= budget
    assert schedule.resident_bytes + schedule.reserve_bytes <= budget
    assert schedule.expert_window_bytes <= schedule.ring_bytes
    for index, policy in schedule.experts.items():
        assert any(tier.placement[index] == STREAM for tier in schedule.tiers)
        assert 0 <= policy.n_slots <= E
        assert policy.upload_ns > 0
        assert policy.cpu_ns > 0


@pytest.mark.parametrize(("budget_mib", "power"), [(130, 1.2), (190, 0.5), (190, 1.2)])
def test_beside_the_experts_window_the_ring_takes_whole_matrices(budget_mib: int, power: float) -> None:
    schedule = plan(budget_mib * MIB, power)
    streamed = {i for tier in schedule.tiers for i, place in enumerate(tier.placement) if place == STREAM}
    plain = [s.largest_piece_bytes for s in MODEL.sublayers if s.index in streamed and s.kind != "experts"]
    assert 2 * max(plain, default=0) <= schedule.ring_bytes


def test_the_experts_window_leaves_caches_the_places_that_the_plan_counts_on() -> None:
    """By the rule of the native part: as many as leave two of the largest matrices that stream, two at most."""
    device, seen = replace(DEVICE, capabilities=[*DEVICE.capabilities, "kv_streaming"]), set()
    for kv_mib, budget_mib in product((3, 6), (30, 40, 60, 90)):
        subs = [replace(s, kv_bytes=kv_mib * MIB) if s.kind == "attention" else s for s in MODEL.sublayers]
        model = replace(MODEL, sublayers=subs)
        schedule = ShardingPlanner(card=CARD).plan(model, device, budget_mib * MIB, schedule_id=1)
        window = 4 * (subs[2].largest_expert_bytes + 4096)
        for tier in schedule.tiers:
            streamed = [s for s in subs if tier.placement[s.index] in (STREAM, STREAM_KV) and s.kind != "experts"]
            if not any(tier.placement[s.index] == STREAM_KV for s in streamed):
                continue
            weights = 2 * max(s.largest_piece_bytes for s in streamed)
            counted = schedule.ring_bytes + schedule.expert_window_bytes - window
            places = min(2, (counted - weights) // (kv_mib * MIB))
            assert min(2, (schedule.ring_bytes - weights) // (kv_mib * MIB)) == places
            seen.add(places)
    assert seen


def test_a_ring_takes_two_pieces_where_one_alone_is_streamed() -> None:
    attention = SubLayer(index=1, layer=0, kind="attention", device_bytes=MIB, largest_piece_bytes=MIB)
    experts = SubLayer(
        index=2, layer=0, kind="experts", device_bytes=3_200_000, largest_piece_bytes=1_066_666, n_experts=E,
        expert_bytes=50_000, expert_overhead_bytes=4096, largest_expert_bytes=16_666,
    )  # fmt: skip
    output = SubLayer(index=3, layer=-1, kind="output", device_bytes=4 * MIB, largest_piece_bytes=4 * MIB)
    small = SubLayer(index=0, layer=-1, kind="small", device_bytes=1)
    model = replace(MODEL, sublayers=[small, attention, experts, output], scratch_bytes={1: 1000, 256: 12 * MIB})
    schedule = ShardingPlanner().plan(model, replace(DEVICE, link_bytes_per_s=12e9), 6_874_930, schedule_id=1)
    assert [tier.placement[1] for tier in schedule.tiers if any(tier.placement)] == [STREAM]
    assert schedule.ring_bytes >= 2 * attention.largest_piece_bytes


def test_slots_where_few_experts_do_most_of_the_work() -> None:
    steep = plan(160 * MIB, 1.5)
    assert slot_bytes(steep) > 0
    assert all(policy.n_slots >= USED for policy in steep.experts.values() if policy.n_slots)
    even = plan(160 * MIB, 0.0)
    assert steep.predicted["decode_tps"] > 1.2 * even.predicted["decode_tps"]


def test_a_step_by_a_schedule_with_slots_is_predicted_with_them() -> None:
    planner, schedule = ShardingPlanner(card=CARD), plan(160 * MIB)
    planning = planner.planning(MODEL, DEVICE)
    step = next(t for t in schedule.tiers if any(t.placement[i] == STREAM for i in schedule.experts))
    fewer = replace(schedule, experts={i: replace(p, n_slots=0) for i, p in schedule.experts.items()})
    more = replace(schedule, experts={i: replace(p, n_slots=E - 1) for i, p in schedule.experts.items()})
    slow, fast = (predicted_step(planning, one, step.max_tokens, 64, MODEL).total for one in (fewer, more))
    assert fast < slow


def test_uploads_and_products_run_beside_each_other() -> None:
    planner = ShardingPlanner(card=CARD)
    planning = planner.planning(MODEL, DEVICE)
    layer = layers(MODEL, planning.work)[0]
    rate = Rates(upload=100.0, joined=100.0, cpu=1.0, cpu_token=1.0, cpu_fixed=50.0)
    many, one = TierPoint(512, 0.0), TierPoint(1, 0.0)
    no_products = layer_ns(layer, rate, many, 0, 7.0, 0.0)
    assert no_products == pytest.approx(7 + 100 * E, rel=0.001)  # all are wanted
    for core in (50.0 * E, 200.0 * E):  # the device waits for the link; the link waits for the device
        longer, shorter = max(core, 100.0 * E), min(core, 100.0 * E)
        assert layer_ns(layer, rate, many, 0, 7.0, core) == pytest.approx(7 + longer + shorter / E - core, rel=0.001)
    alone = layer_ns(layer, rate, one, 0, 7.0, 40.0)
    assert alone == pytest.approx(7 + 50 + USED + 40 / USED - 40)  # nothing of the core is the device's


def test_everything_resident_needs_no_slots() -> None:
    schedule = plan(2 << 30, 1.5)
    assert schedule.experts == {}
    assert all(tier.placement[LAYER.index] == RESIDENT for tier in schedule.tiers)


def test_an_engine_without_slots_gets_none() -> None:
    device = replace(DEVICE, capabilities=[])
    schedule = ShardingPlanner(card=CARD).plan(MODEL, device, 160 * MIB, schedule_id=1, routing=skewed(MODEL, 1.5))
    assert schedule.experts == {}
    assert schedule.expert_window_bytes == 0


@settings(max_examples=8, deadline=None)
@given(share=st.floats(0.0, 1.0))
def test_a_shrink_gives_up_slots_alike(share: float) -> None:
    planner, old = ShardingPlanner(card=CARD), plan(160 * MIB, 1.5)
    budget = int(share * 160 * MIB)
    fewer = planner.shrink_plan(MODEL, DEVICE, old, budget, schedule_id=2)
    assert held_bytes(fewer) <= budget
    for index, policy in fewer.experts.items():
        assert policy.n_slots <= old.experts[index].n_slots
    if share == 0.0:
        assert all(place == CPU for tier in fewer.tiers for place in tier.placement)
