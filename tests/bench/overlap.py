"""How well copies hide behind computing: step time over max(compute, copy), over a range of link speeds.

usage: python -m tests.bench.overlap [--work DIR] [--json FILE] [--quick]

A dense model of 600 MB on the virtual GPU in modelled time, two schedules: everything streamed, and every other
feed-forward part left to the CPU. For each link, in turn in one process:

    step      as it is
    compute   the same schedule with a link that takes no time: device, CPU and all host work
    copy      bytes streamed in a step / link + pieces x latency

Compute and copy cannot both be hidden, so max(compute, copy) bounds a step; goal: at most 5 % above it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from xlm.protocol.link import CPU, RESIDENT, STREAM, ModelFacts, Schedule, Tier
from xlm_broker.bench.cards import Rates
from xlm_broker.bench.measure import Lazy, card_fields
from xlm_broker.bench.models import bench_model
from xlm_broker.bench.summary import percentile
from xlm_broker.planner.memory import scratch_bytes

CARD = Rates("overlap", link_bytes_s=0.0, flops_s=8e12, memory_bytes_s=60e9)
LINKS = (2.5e9, 5e9, 10e9, 20e9, 40e9, 80e9)
DEPTH, N_CTX, UBATCH = 512, 1024, 512
ROUNDS = 3
GOAL = 1.05


@dataclass(frozen=True)
class Case:
    name: str
    on_cpu: bool  # every other feed-forward part
    tokens: int


CASES = (
    Case("decode, all streamed", False, 1),
    Case("decode, CPU and stream", True, 1),
    Case("prompt of 512, all streamed", False, 512),
)


def schedule_of(facts: ModelFacts, on_cpu: bool, ring_bytes: int) -> Schedule:
    """One tier; nothing but norms and KV stays on the device."""
    places = bytearray(1 + max(s.index for s in facts.sublayers))
    for sub in facts.sublayers:
        skipped = on_cpu and sub.kind == "ffn" and sub.layer % 2 == 0
        streams = sub.kind not in ("small", "lookup") and not skipped
        places[sub.index] = RESIDENT if sub.kind == "small" else STREAM if streams else CPU
    scratch = scratch_bytes(facts, UBATCH)
    tier = Tier(max_tokens=UBATCH, placement=bytes(places), scratch_bytes=scratch)
    return Schedule(
        schedule_id=1, budget_bytes=0, tiers=[tier], priority=list(range(len(places))), ring_bytes=ring_bytes,
        reserve_bytes=ring_bytes + scratch,
    )  # fmt: skip


def measure(folder: Path, links: tuple[float, ...], threads: int) -> Iterator[dict[str, Any]]:
    model = bench_model("dense", folder, lambda text: print(text, file=sys.stderr))
    with Lazy("ours", threads, 4 << 30) as ours:
        answer = ours.ask("load", path=str(model.path), n_ctx=N_CTX, n_ubatch=UBATCH)
        facts = msgspec.convert(answer["facts"], ModelFacts, strict=False)
        largest = max(s.largest_piece_bytes for s in facts.sublayers)
        for case in CASES:
            schedule = schedule_of(facts, case.on_cpu, 6 * largest)
            ours.ask("schedule", schedule=schedule, budget_bytes=3 << 30)
            for link in links:
                yield {
                    "case": case.name,
                    "link_gb_s": link / 1e9,
                    **_ratio(ours, case, replace(CARD, link_bytes_s=link)),
                }


def _ratio(ours: Lazy, case: Case, card: Rates) -> dict[str, Any]:
    free = replace(card, link_bytes_s=0.0, link_latency_ns=0.0)
    steps, computes, copies = [], [], []
    for _ in range(ROUNDS):
        computes.append(_step_ms(ours, case, free))
        ours.ask("memory")
        steps.append(_step_ms(ours, case, card))
        copies.append(_copy_ms(ours.ask("memory"), card))
    step, compute, copy = (percentile(values, 0.5) or 0.0 for values in (steps, computes, copies))
    return {"step_ms": step, "compute_ms": compute, "copy_ms": copy, "ratio": step / max(compute, copy)}


def _step_ms(ours: Lazy, case: Case, card: Rates) -> float:
    """Of steps one after the other: a ring that is filled for the next step counts for it."""
    fields: dict[str, Any] = {"depth": DEPTH, "card": card_fields(card)}
    if case.tokens == 1:
        return (percentile(ours.ask("decode", steps=6, **fields)["ns"], 0.5) or 0.0) / 1e6
    found = ours.ask("prefill", tokens=case.tokens, lead=1, **{**fields, "depth": 0})
    return float(found["ns"]) / 1e6


def _copy_ms(memory: dict[str, int], card: Rates) -> float:
    per_step = 1.0 / max(1, memory["n_graphs"])
    link_s = memory["bytes_streamed"] / card.link_bytes_s + memory["n_pieces_streamed"] * card.link_latency_ns / 1e9
    return 1e3 * link_s * per_step


def rows(results: list[dict[str, Any]]) -> list[str]:
    head = ["| schedule | link GB/s | compute ms | copy ms | step ms | step ÷ max | |", "|---|---|---|---|---|---|---|"]
    return head + [
        f"| {r['case']} | {r['link_gb_s']:g} | {r['compute_ms']:.1f} | {r['copy_ms']:.1f} | {r['step_ms']:.1f} "
        f"| {r['ratio']:.3f} | {'met' if r['ratio'] <= GOAL else '**missed**'} |"
        for r in results
    ]


def measured(quick: bool, folder: Path = Path("build/bench"), threads: int = 0) -> list[dict[str, Any]]:
    """``threads`` 0: all cores."""
    return list(measure(folder.absolute(), LINKS[1::2] if quick else LINKS, threads or os.cpu_count() or 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("build/bench"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="three links")
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    results = measured(options.quick, options.work, options.threads)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    print("\n".join(rows(results)))


if __name__ == "__main__":
    main()
