"""Mixtures of experts on the virtual GPU: whatever is done to the experts changes no token."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.integration.engine.harness import EngineProcess, engine_process
from tests.integration.engine.moe_model import ARCHITECTURES, MoeShape, write_moe_model
from tests.integration.engine.test_engine_sim import SIM, SYSTEM, TEXT, apply, set_budget
from tests.support.model import plain_llama, smollm_prompt
from xlm.protocol import link

N_TOKENS = 40


@dataclass
class Moe:
    engine: EngineProcess
    loaded: link.Loaded
    tokens: list[int]  # of plain llama.cpp on the CPU

    @property
    def layers(self) -> list[link.SubLayer]:
        return [layer for layer in self.loaded.model.sublayers if layer.kind == "experts"]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def moe(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moe]:
    shape = MoeShape(architecture=request.param, quantised=request.param == "qwen3moe")
    path = write_moe_model(tmp_path_factory.mktemp("moe") / "moe.gguf", shape)
    with plain_llama(path, n_ctx=512, n_ubatch=32, n_threads=1) as llama:
        tokens = llama.greedy(smollm_prompt(llama, SYSTEM, TEXT), N_TOKENS)
    with engine_process() as engine:
        yield Moe(engine, engine.load(path, SIM), tokens)


def schedule_of(
    moe: Moe, n_slots: int, schedule_id: int, *, experts: int = link.STREAM, cpu: bool = False
) -> link.Schedule:
    """Experts as told, all else resident. ``cpu``: misses are the CPU's, which is said to take no time."""
    layers = moe.loaded.model.sublayers
    kinds = {"lookup": link.CPU, "experts": experts}
    policy = link.ExpertPolicy(n_slots=n_slots, upload_ns=1000, cpu_ns=int(cpu), cpu_token_ns=int(cpu))
    ring = 8 * max(layer.largest_expert_bytes for layer in moe.layers)
    return link.Schedule(
        schedule_id=schedule_id,
        budget_bytes=moe.loaded.device.total_bytes,
        tiers=[link.Tier(max_tokens=1 << 20, placement=bytes(kinds.get(one.kind, link.RESIDENT) for one in layers))],
        priority=list(range(len(layers))),
        ring_bytes=ring,
        reserve_bytes=ring + max(moe.loaded.model.scratch_bytes.values()),
        experts={layer.index: policy for layer in moe.layers},
    )


def figures(moe: Moe) -> link.Stats:
    """The next report that tells of the experts, and is newer than this call."""
    moe.engine.wait_for(link.Stats, lambda stats: bool(stats.experts))
    return moe.engine.wait_for(link.Stats, lambda stats: bool(stats.experts))


def test_experts_are_described(moe: Moe) -> None:
    assert [layer.n_experts for layer in moe.layers] == [12] * len(moe.layers)
    for layer in moe.layers:
        assert layer.host_bytes == 12 * layer.expert_bytes
        assert 0 < layer.largest_expert_bytes < layer.expert_bytes


@pytest.mark.parametrize("cpu", [False, True], ids=["upload", "cpu"])
@pytest.mark.parametrize("n_slots", [0, 2, 5, 12])
def test_any_number_of_slots_gives_the_tokens_of_plain_llama(moe: Moe, n_slots: int, cpu: bool) -> None:
    number = 100 + 2 * n_slots + cpu
    set_budget(moe.engine, number, moe.loaded.device.total_bytes)
    apply(moe.engine, schedule_of(moe, n_slots, number, cpu=cpu))
    assert moe.engine.say(TEXT, f"slots{number}", max_tokens=N_TOKENS).token_ids == moe.tokens


@pytest.mark.parametrize("experts", [link.CPU, link.STREAM, link.RESIDENT], ids=["cpu", "stream", "resident"])
def test_any_placement_gives_the_tokens_of_plain_llama(moe: Moe, experts: int) -> None:
    set_budget(moe.engine, 200 + experts, moe.loaded.device.total_bytes)
    apply(moe.engine, schedule_of(moe, 0, 200 + experts, experts=experts))
    assert moe.engine.say(TEXT, f"place{experts}", max_tokens=N_TOKENS).token_ids == moe.tokens


def test_figures_of_routing_and_cache(moe: Moe) -> None:
    set_budget(moe.engine, 300, moe.loaded.device.total_bytes)
    apply(moe.engine, schedule_of(moe, 12, 300))
    assert moe.engine.say(TEXT, "figures", max_tokens=N_TOKENS).token_ids == moe.tokens
    stats = figures(moe)
    assert [one.index for one in stats.experts] == [layer.index for layer in moe.layers]
    for one in stats.experts:
        assert (one.mode, one.n_experts, one.n_used, one.n_slots) == ("slots", 12, 3, 12)
        assert one.n_hits > one.n_misses > 0
        assert one.bytes_saved > one.bytes_uploaded > 0
        assert list(one.covered) == sorted(one.covered)
        assert one.covered[-1] == 255
    assert stats.detail["expert_whole"] == 0


def test_budget_changes_in_mid_answer_change_no_token_and_hold(moe: Moe) -> None:
    rng, total = random.Random(6), moe.loaded.device.total_bytes
    set_budget(moe.engine, 1000, total)
    apply(moe.engine, schedule_of(moe, 6, 1000, cpu=True))
    whole = sum(layer.device_bytes for layer in moe.loaded.model.sublayers)
    ids = [moe.engine.generate(TEXT, f"storm{i}", max_tokens=N_TOKENS) for i in range(4)]
    seq = 1000
    while any(moe.engine.answers[gen_id].finished is None for gen_id in ids):
        seq += 1
        budget = rng.choice([0, total, rng.randrange(whole)])
        released = set_budget(moe.engine, seq, budget)
        assert released.used_bytes <= budget
        assert released.device_used_bytes <= budget
        if seq % 7 == 0:
            moe.engine.send(link.SetSchedule(schedule=schedule_of(moe, rng.randrange(13), seq, cpu=rng.random() < 0.5)))
    assert all(moe.engine.answers[gen_id].token_ids == moe.tokens for gen_id in ids)
    assert figures(moe).over_budget_events == 0
