"""Streamed caches in the ring, on the modelled timeline: the next one comes while the device computes. No clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from xlm.protocol.link import RESIDENT, STREAM_KV, ModelFacts, Schedule, Tier
from xlm_broker.bench.cards import Rates
from xlm_broker.bench.measure import Lazy, card_fields
from xlm_broker.bench.models import bench_model
from xlm_broker.planner.memory import scratch_bytes

pytest.importorskip("gguf")
UBATCH, N_CTX, DEPTH = 64, 768, 512
# slow enough that the device, not the host, decides when something runs
CARD = Rates("slow", link_bytes_s=0.2e9, flops_s=50e9, memory_bytes_s=10e9)


def schedule_of(facts: ModelFacts, places: int, matrices: int) -> Schedule:
    """All is streamed, through a ring of so many caches and of the largest matrices."""
    modes = bytes(RESIDENT if sub.kind == "small" else STREAM_KV for sub in facts.sublayers)
    layers = [sub for sub in facts.sublayers if sub.kind in ("attention", "ffn")]
    ring = places * max(sub.kv_bytes for sub in layers) + matrices * max(sub.largest_piece_bytes for sub in layers)
    scratch = scratch_bytes(facts, UBATCH)
    tier = Tier(max_tokens=UBATCH, placement=modes, scratch_bytes=scratch)
    return Schedule(
        schedule_id=1, budget_bytes=1 << 30, tiers=[tier], priority=list(range(len(modes))), ring_bytes=ring,
        reserve_bytes=ring + scratch,
    )  # fmt: skip


def traced(tmp_path: Path, places: int, matrices: int) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """(sub-layer by name, events of a step of a prompt)"""
    model = bench_model("tiny", tmp_path, lambda _text: None)
    with Lazy("ours", 1, 1 << 30) as ours:
        answer = ours.ask("load", path=str(model.path), n_ctx=N_CTX, n_ubatch=UBATCH)
        facts = msgspec.convert(answer["facts"], ModelFacts, strict=False)
        ours.ask("schedule", schedule=schedule_of(facts, places, matrices), budget_bytes=1 << 30)
        events = ours.ask("trace", depth=DEPTH, tokens=UBATCH, card=card_fields(CARD))["events"]
        assert ours.ask("memory")["n_fallback_cpu"] == 0
    return {f"{sub.kind} {sub.layer}": sub.index for sub in facts.sublayers}, events


@pytest.mark.parametrize(("places", "matrices", "beside"), [(1, 2, "ffn"), (2, 6, "attention")])
def test_the_next_cache_comes_while_the_device_computes(
    tmp_path: Path, places: int, matrices: int, beside: str
) -> None:
    index, events = traced(tmp_path, places, matrices)

    def of(kind: str, name: str) -> list[dict[str, Any]]:
        return [event for event in events if (event["kind"], event["sublayer"]) == (kind, index[name])]

    for layer in range(2):
        computed = max(event["device_end_ns"] for event in of("device", f"{beside} {layer}"))
        cache = max(of("upload", f"attention {layer + 1}"), key=lambda event: event["bytes"])
        assert cache["device_begin_ns"] < computed
