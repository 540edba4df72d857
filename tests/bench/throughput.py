"""Tokens/s through SDK, broker and engine, everything resident, over a bare llama.cpp loop on the same device."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import psutil

import xlm
from tests.bench.reclaim import busy_cpus, own_seconds
from tests.support.running_broker import RunningBroker, running_broker

SYSTEM = "You are Greta, a blacksmith."
QUESTION = "Tell me a long story about the sword you forged for the king, and the dragon it was made for."
N_TOKENS = 128
N_CTX = 2048


def through_broker(npc_client: xlm.Client) -> float:
    """Tokens/s of decode, first token excluded, as a user of the SDK sees them."""
    with npc_client.open_session(system=SYSTEM) as npc:
        reply = npc.say(QUESTION, max_tokens=N_TOKENS, temperature=0.0)
        pieces = iter(reply)
        next(pieces)
        start = time.perf_counter()
        for _ in pieces:
            pass
        return (len(reply.token_ids) - 1) / (time.perf_counter() - start)


class BareLoop:
    def __init__(self) -> None:
        words = [sys.executable, "-m", "tests.bench.bare_loop", SYSTEM, QUESTION, str(N_TOKENS), str(N_CTX)]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def round(self) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        result = json.loads(self.process.stdout.readline())
        return float(result["tokens"] / result["seconds"])

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass(frozen=True)
class Pair:
    """One round of each side, right after each other, and the CPUs that other programs took meanwhile."""

    ours: float
    bare: float
    others_cpus: float

    @property
    def ratio(self) -> float:
        return self.ours / self.bare


def play(broker: RunningBroker, client: xlm.Client, bare: BareLoop, ours_first: bool) -> Pair:
    def own() -> float:
        times = psutil.Process(bare.process.pid).cpu_times()
        return own_seconds(broker) + times.user + times.system

    began_s, all_s, own_s = time.monotonic(), busy_cpus(), own()
    if ours_first:
        ours, theirs = through_broker(client), bare.round()
    else:
        theirs, ours = bare.round(), through_broker(client)
    others_s = busy_cpus() - all_s - (own() - own_s)
    return Pair(ours, theirs, max(0.0, others_s / (time.monotonic() - began_s)))


def measure(rounds: int) -> dict[str, Any]:
    """Pairs in turn about. Those with least of other programs count: a busy machine scatters a pair by a quarter."""
    bare = BareLoop()
    try:
        with running_broker(budget="1GiB", sim_vram="1GiB", ctx=N_CTX) as broker, broker.connect("bench") as client:
            through_broker(client)
            bare.round()
            pairs = [play(broker, client, bare, index % 2 == 0) for index in range(rounds)]
    finally:
        bare.close()
    return figures(pairs)


def figures(pairs: list[Pair]) -> dict[str, Any]:
    quiet = sorted(pairs, key=lambda pair: pair.others_cpus)[: (len(pairs) + 1) // 2]
    return {
        "rounds": len(pairs),
        "tokens": N_TOKENS,
        "quiet_rounds": len(quiet),
        "others_cpus": max(pair.others_cpus for pair in quiet),
        "xlm_tokens_per_s": statistics.median(pair.ours for pair in quiet),
        "bare_tokens_per_s": statistics.median(pair.bare for pair in quiet),
        "ratio_median": statistics.median(pair.ratio for pair in quiet),
        "ratio_min": min(pair.ratio for pair in quiet),
        "ratio_max": max(pair.ratio for pair in quiet),
        "ratio_median_of_all": statistics.median(pair.ratio for pair in pairs),
    }
