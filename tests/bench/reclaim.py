"""How long a reclaim takes: the game asks, the bytes are released, the game is told.

Three clocks: the client's, the broker's (``release_ms`` of the lease) and the engine's (``release_ns`` of the device
call). What other processes of the machine did meanwhile is measured too: on a busy machine the tail is theirs.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil

import xlm
from tests.support.running_broker import RunningBroker, running_broker

LONG_PROMPT = "The dragon flew over the mountains and the river, and the smith looked up at it. " * 60


def quantile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def busy_cpus() -> float:
    """Seconds of CPU time that anybody used since the machine started, over all CPUs."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + getattr(times, "steal", 0.0))


def own_seconds(broker: RunningBroker) -> float:
    """The same of this process, the broker, the engine and the planning process."""
    assert broker.process is not None
    started = psutil.Process(broker.process.pid)
    times = [process.cpu_times() for process in (psutil.Process(), started, *started.children())]
    return float(sum(t.user + t.system for t in times))


def settled_use(client: xlm.Client, wanted_bytes: int) -> int:
    """Wait until the copies are back on the device; bytes in use then."""
    deadline = time.monotonic() + 5.0
    while True:
        used = int(client.status().device["used_bytes"])
        if used >= wanted_bytes or time.monotonic() > deadline:
            return used
        time.sleep(0.01)


def reclaims(broker: RunningBroker, n: int, busy: Callable[[xlm.Client, threading.Event], None]) -> dict[str, Any]:
    """``n`` drops from everything to a random-looking size (a tenth to zero) while ``busy`` goes on."""
    stop = threading.Event()
    waits_ms: list[float] = []
    broker_ms: list[float] = []
    freed_bytes: list[int] = []
    over = 0
    began, all_s, own_s = time.monotonic(), busy_cpus(), own_seconds(broker)
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
            broker_ms.append(lease.release_ms)
            freed_bytes.append(before - lease.used_bytes)
            over += lease.device_used_bytes > lease.granted_bytes
            game.set_budget(total)
        throughput = game.status().throughput
        elapsed_s = time.monotonic() - began
        others_s = busy_cpus() - all_s - (own_seconds(broker) - own_s)
        stop.set()
        worker.join()
    return {
        "n": n,
        "client_p50_ms": quantile(waits_ms, 0.50),
        "client_p99_ms": quantile(waits_ms, 0.99),
        "client_max_ms": max(waits_ms),
        "broker_p99_ms": quantile(broker_ms, 0.99),
        "engine_p99_ms": throughput["release"]["p99_ms"],
        "longest_sublayer_ms": throughput["longest_sublayer_ms"],
        "others_cpus": max(0.0, others_s / elapsed_s),
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
    """Each with an engine of its own: the engine's figures count from its start."""
    phases: dict[str, tuple[int, Callable[[xlm.Client, threading.Event], None]]] = {
        "decode": (n, decoding),
        "prefill": (n // 2, prefilling),
    }
    found: dict[str, Any] = {}
    for phase, (count, busy) in phases.items():
        with running_broker(sim_vram="512MiB", ctx=2048) as broker:
            found[phase] = reclaims(broker, count, busy)
    return found
