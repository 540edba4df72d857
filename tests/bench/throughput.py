"""Tokens/s through SDK, broker and engine, everything resident, over a bare llama.cpp loop on the same device."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from typing import Any

import xlm
from tests.support.running_broker import running_broker

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


def measure(rounds: int) -> dict[str, Any]:
    bare = BareLoop()
    try:
        with running_broker(budget="1GiB", sim_vram="1GiB", ctx=N_CTX) as broker, broker.connect("bench") as client:
            through_broker(client)
            bare.round()
            pairs = [(through_broker(client), bare.round()) for _ in range(rounds)]
    finally:
        bare.close()
    ratios = [ours / theirs for ours, theirs in pairs]
    return {
        "rounds": rounds,
        "tokens": N_TOKENS,
        "xlm_tokens_per_s": statistics.median(p[0] for p in pairs),
        "bare_tokens_per_s": statistics.median(p[1] for p in pairs),
        "ratio_median": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
    }
