"""Tokens/s through SDK, broker and engine, everything resident, over a bare llama.cpp loop on the same device.

The virtual GPU computes on this machine's cores. Where it takes them all, what broker and client do slows the device
itself down, as on no card; so it is measured three times: a device with a core of its own, one that takes all cores,
and a modelled one that takes none and is far faster.
"""

from __future__ import annotations

import json
import os
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
N_TOKENS = 64
N_CTX = 2048


@dataclass(frozen=True)
class Setting:
    """The same virtual GPU for both sides: as XLM_SIM says it, and as options of xlm-broker."""

    title: str
    sim: str
    n_threads: int
    options: dict[str, str | int]


ALL_CORES = os.cpu_count() or 1
SETTINGS = {
    "apart": Setting("one core for the device", "threads=1", 1, {"threads": 1, "sim_set": "n_threads=1"}),
    "shared": Setting("all cores for the device", f"threads={ALL_CORES}", ALL_CORES, {"threads": ALL_CORES}),
    "modelled": Setting("modelled: no core, 1 TFLOP/s", "mode=modelled", ALL_CORES, {"sim_set": "modelled=1"}),
}


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
    def __init__(self, setting: Setting) -> None:
        numbers = [str(number) for number in (N_TOKENS, N_CTX, setting.n_threads)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.bare_loop", SYSTEM, QUESTION, *numbers],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "XLM_SIM": f"vram=1GiB,{setting.sim}"},
        )  # fmt: skip

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
    return {name: measure_on(setting, rounds) for name, setting in SETTINGS.items()}


def measure_on(setting: Setting, rounds: int) -> dict[str, Any]:
    """Pairs in turn about. Those with least of other programs count: a busy machine scatters a pair by a quarter."""
    bare = BareLoop(setting)
    try:
        options = {"budget": "1GiB", "sim_vram": "1GiB", "ctx": N_CTX, **setting.options}
        with running_broker(**options) as broker, broker.connect("bench") as client:
            through_broker(client)
            bare.round()
            pairs = [play(broker, client, bare, index % 2 == 0) for index in range(rounds)]
    finally:
        bare.close()
    return {"title": setting.title, **figures(pairs)}


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
