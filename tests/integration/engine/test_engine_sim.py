"""The engine on the virtual GPU: budgets, schedules and faults change no token."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.engine.harness import EngineProcess, engine_process
from tests.support.model import plain_llama, smollm_prompt
from xlm.protocol import link

SYSTEM = "You are a test."
TEXT = "Tell me of the sea. " * 6
N_TOKENS = 60
SIM = link.DeviceConfig(kind="sim", sim=link.SimConfig(vram_bytes=64 << 20, link_bytes_per_s=0.0))


@pytest.fixture(scope="module")
def plain_tokens(tiny_model: Path) -> list[int]:
    with plain_llama(tiny_model, n_ctx=512, n_ubatch=32, n_threads=1) as llama:
        return llama.greedy(smollm_prompt(llama, SYSTEM, TEXT), N_TOKENS)


@pytest.fixture(scope="module")
def sim_engine(tiny_model: Path) -> Iterator[tuple[EngineProcess, link.Loaded]]:
    with engine_process() as engine:
        yield engine, engine.load(tiny_model, SIM)


def schedule_of(loaded: link.Loaded, kind: int, schedule_id: int) -> link.Schedule:
    """All sub-layers that may be on the device get ``kind``."""
    layers = loaded.model.sublayers
    placement = bytes(link.CPU if layer.kind == "lookup" else kind for layer in layers)
    scratch = max(loaded.model.scratch_bytes.values())
    ring = 2 * max(layer.largest_piece_bytes for layer in layers) if kind in (link.STREAM, link.STREAM_KV) else 0
    ring += max(layer.kv_bytes for layer in layers) if kind == link.STREAM_KV else 0
    return link.Schedule(
        schedule_id=schedule_id,
        budget_bytes=loaded.device.total_bytes,
        tiers=[link.Tier(max_tokens=n, placement=placement, scratch_bytes=scratch) for n in (1, 1 << 20)],
        priority=list(range(len(layers))),
        ring_bytes=ring,
        reserve_bytes=ring + scratch,
    )


def set_budget(engine: EngineProcess, seq: int, budget_bytes: int) -> link.Released:
    engine.send(link.SetEngineBudget(seq=seq, budget_bytes=budget_bytes))
    return engine.wait_for(link.Released, lambda released: released.seq == seq and released.completed)


def apply(engine: EngineProcess, schedule: link.Schedule) -> None:
    engine.send(link.SetSchedule(schedule=schedule))
    applied = engine.wait_for(link.ScheduleApplied)
    assert (applied.schedule_id, applied.ok) == (schedule.schedule_id, True), applied.message


def test_facts_of_the_virtual_gpu(sim_engine: tuple[EngineProcess, link.Loaded]) -> None:
    loaded = sim_engine[1]
    assert (loaded.device.kind, loaded.device.total_bytes) == ("sim", 64 << 20)
    kinds = {layer.kind for layer in loaded.model.sublayers}
    assert {"attention", "ffn", "output"} <= kinds
    assert all(layer.kv_bytes > 0 for layer in loaded.model.sublayers if layer.kind == "attention")
    assert all(need > 0 for need in loaded.model.scratch_bytes.values())


def test_an_idle_engine_uploads_all_weights_of_a_new_schedule_and_says_so(
    sim_engine: tuple[EngineProcess, link.Loaded],
) -> None:
    engine, loaded = sim_engine
    set_budget(engine, 90, loaded.device.total_bytes)
    apply(engine, schedule_of(loaded, link.CPU, 90))
    engine.wait_for(link.Stats, lambda stats: stats.schedule_id == 90 and stats.settled)
    apply(engine, schedule_of(loaded, link.RESIDENT, 91))
    stats = engine.wait_for(link.Stats, lambda stats: stats.schedule_id == 91 and stats.settled)
    weights = sum(layer.device_bytes for layer in loaded.model.sublayers if layer.kind != "lookup")
    assert stats.resident_bytes == weights
    assert stats.kv_bytes == 0  # nobody speaks


@pytest.mark.parametrize("kind", [link.CPU, link.STREAM, link.RESIDENT, link.STREAM_KV])
def test_every_schedule_gives_the_tokens_of_plain_llama(
    sim_engine: tuple[EngineProcess, link.Loaded], plain_tokens: list[int], kind: int
) -> None:
    engine, loaded = sim_engine
    set_budget(engine, 100 + kind, loaded.device.total_bytes)
    apply(engine, schedule_of(loaded, kind, 100 + kind))
    assert engine.say(TEXT, f"kind{kind}", max_tokens=N_TOKENS).token_ids == plain_tokens
    engine.send(link.Probe())
    stats = engine.wait_for(link.Stats)
    assert stats.schedule_id == 100 + kind
    assert (stats.used_bytes > 0) == (kind != link.CPU)
    assert stats.detail["n_segments_device"] > 0 or kind == link.CPU
    assert (stats.detail["bytes_kv_streamed"] > 0) == (kind == link.STREAM_KV)
    assert (stats.kv_bytes > 0) == (kind in (link.STREAM, link.RESIDENT))


def test_budget_changes_in_mid_answer_change_no_token_and_hold(
    sim_engine: tuple[EngineProcess, link.Loaded], plain_tokens: list[int]
) -> None:
    engine, loaded = sim_engine
    set_budget(engine, 1000, loaded.device.total_bytes)
    apply(engine, schedule_of(loaded, link.RESIDENT, 1000))
    rng, total = random.Random(5), loaded.device.total_bytes
    ids = [engine.generate(TEXT, f"storm{i}", max_tokens=N_TOKENS) for i in range(6)]
    seq = 1000
    while any(engine.answers[gen_id].finished is None for gen_id in ids):
        seq += 1
        budget = rng.choice([0, total, rng.randrange(total)])
        released = set_budget(engine, seq, budget)
        assert released.used_bytes <= budget
        assert released.device_used_bytes <= budget
    assert all(engine.answers[gen_id].token_ids == plain_tokens for gen_id in ids)
    engine.send(link.Probe())
    assert engine.wait_for(link.Stats).over_budget_events == 0


def test_zero_budget_leaves_nothing_on_the_device(sim_engine: tuple[EngineProcess, link.Loaded]) -> None:
    engine, loaded = sim_engine
    set_budget(engine, 5000, loaded.device.total_bytes)
    apply(engine, schedule_of(loaded, link.RESIDENT, 5000))
    engine.say(TEXT, "zero")
    released = set_budget(engine, 5001, 0)
    assert (released.used_bytes, released.device_used_bytes) == (0, 0)
    assert released.released_bytes > 0


FAULTS = {"lost": "lose_device(40)", "no memory": "fail_allocations(6, 1000)"}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failing_device_costs_no_token(tiny_model: Path, plain_tokens: list[int], fault: str) -> None:
    with engine_process(before=f"from xlm_native import Sim; Sim().{FAULTS[fault]}") as engine:
        loaded = engine.load(tiny_model, SIM)
        set_budget(engine, 1, loaded.device.total_bytes)
        apply(engine, schedule_of(loaded, link.RESIDENT, 1))
        answers = [engine.say(TEXT, f"fault{i}", max_tokens=N_TOKENS) for i in range(2)]
        assert [answer.token_ids for answer in answers] == [plain_tokens] * 2
        engine.send(link.Probe())
        stats = engine.wait_for(link.Stats)
        assert stats.device_lost == (fault == "lost")
        assert stats.used_bytes <= loaded.device.total_bytes
