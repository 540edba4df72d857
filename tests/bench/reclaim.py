"""How long a reclaim takes: the game asks, the bytes are released, the game is told."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import xlm
from tests.support.running_broker import RunningBroker, running_broker

LONG_PROMPT = "The dragon flew over the mountains and the river, and the smith looked up at it. " * 60


def quantile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def settled_use(client: xlm.Client, wanted_bytes: int) -> int:
    """Wait until the copies are back on the device; bytes in use then."""
    deadline = time.monotonic() + 5.0
    while True:
        used = int(client.status().device["used_bytes"])
        if used >= wanted_bytes or time.monotonic() > deadline:
            return used
        time.sleep(0.01)


def reclaims(broker: RunningBroker, n: int, busy: Callable[[xlm.Client, threading.Event], None]) -> dict[str, Any]:
    """n drops from everything to a random-looking size (a tenth to zero) while ``busy`` keeps the engine at work."""
    stop = threading.Event()
    waits_ms: list[float] = []
    engine_ms: list[float] = []
    freed_bytes: list[int] = []
    over = 0
    with broker.connect("npc") as npc_client, broker.connect("game") as game:
        total = int(game.status().device["total_bytes"])
        game.set_budget(total)
        worker = threading.Thread(target=busy, args=(npc_client, stop))
        worker.start()
        for _, share in zip(range(n), itertools.cycle((0.0, 0.1, 0.03, 0.05)), strict=False):
            before = settled_use(game, 40 << 20)
            start = time.perf_counter()
            lease = game.set_budget(int(total * share))
            waits_ms.append(1e3 * (time.perf_counter() - start))
            engine_ms.append(lease.release_ms)
            freed_bytes.append(before - lease.used_bytes)
            over += lease.device_used_bytes > lease.granted_bytes
            game.set_budget(total)
        stop.set()
        worker.join()
    return {
        "n": n,
        "client_p50_ms": quantile(waits_ms, 0.50),
        "client_p99_ms": quantile(waits_ms, 0.99),
        "client_max_ms": max(waits_ms),
        "broker_p99_ms": quantile(engine_ms, 0.99),
        "mean_freed_mib": statistics.mean(freed_bytes) / 2**20,
        "over_grant": over,
    }


def decoding(client: xlm.Client, stop: threading.Event) -> None:
    while not stop.is_set():
        with client.open_session(system="You tell long stories.") as npc:
            for _ in npc.say("Tell me about the dragon.", max_tokens=400, temperature=0.0):
                if stop.is_set():
                    break


def prefilling(client: xlm.Client, stop: threading.Event) -> None:
    for turn in itertools.count():
        if stop.is_set():
            return
        with client.open_session(system=f"Turn {turn}: {LONG_PROMPT}") as npc:
            npc.say("Go on.", max_tokens=1, temperature=0.0).text  # noqa: B018  (waits for the answer)


def measure(n: int) -> dict[str, Any]:
    with running_broker(sim_vram="512MiB", ctx=2048) as broker:
        return {"decode": reclaims(broker, n, decoding), "prefill": reclaims(broker, n // 2, prefilling)}
