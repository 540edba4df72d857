"""Frame times of a game beside a model that speaks: pacing off, pacing on, over none speaking.

The game is a 60 fps loop with a few milliseconds of numpy work a frame. On the
virtual GPU game and engine share the CPU, so what they fight for are its cores.
The model speaks in a process of its own, as the game's own Python would hold
up its frames.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

import xlm
from tests.support.running_broker import RunningBroker, running_broker

TARGET_NS = 16_666_667
WORK_MS = 5.0
LATE = 1.05  # a frame over the target by more than this part is late
Arm = Literal["none", "off", "steps"]
ARMS: tuple[Arm, ...] = ("none", "off", "steps")
TALKER = """
import sys, xlm

def talk(client):
    with client.open_session(system="You tell long stories.") as npc:
        for _ in npc.say("Tell me of the dragon.", max_tokens=1000, temperature=0.0):
            if told:
                print(told.pop(), flush=True)

client, told = xlm.connect(sys.argv[1], name="npc", timeout=60), ["talking"]
while True:
    try:
        talk(client)
    except xlm.XlmError as error:  # on a machine under load a lease may run out
        print(error, file=sys.stderr)
        client.wait_connected(60)
"""


def work(repeats: int, values: np.ndarray[Any, np.dtype[np.float32]]) -> None:
    """One frame's work, on one core, with the interpreter lock let go as in a real game."""
    for _ in range(repeats):
        np.sqrt(values, out=values)


def calibrate(values: np.ndarray[Any, np.dtype[np.float32]]) -> int:
    """Repeats that take WORK_MS here, with nothing else going on."""
    samples = []
    for _ in range(20):
        start = time.perf_counter()
        work(50, values)
        samples.append((time.perf_counter() - start) / 50)
    return max(1, round(WORK_MS / 1e3 / statistics.median(samples)))


class Game:
    """A loop that begins a frame each TARGET_NS, or at once where the last one took longer."""

    def __init__(self, client: xlm.Client) -> None:
        self.client = client
        self._values = np.linspace(1.0, 2.0, 1 << 16, dtype=np.float32)
        self._repeats = calibrate(self._values)

    def frames(self, seconds: float, pacing: Literal["off", "steps"]) -> list[float]:
        """Plays; each frame's time in ms, begin to begin."""
        times_ms: list[float] = []
        began = time.perf_counter_ns()
        end = began + int(seconds * 1e9)
        while began < end:
            work(self._repeats, self._values)
            left_ns = began + TARGET_NS - time.perf_counter_ns()
            if left_ns > 0:
                time.sleep(left_ns / 1e9)
            now = time.perf_counter_ns()
            self.client.report_frame(now - began, TARGET_NS, pacing=pacing)
            times_ms.append((now - began) / 1e6)
            began = now
        return times_ms


@contextmanager
def talking(broker: RunningBroker) -> Iterator[None]:
    """Somebody speaks without end."""
    process = subprocess.Popen([sys.executable, "-c", TALKER, broker.endpoint], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.wait()


def play(game: Game, arm: Arm, settle_s: float, seconds: float) -> dict[str, Any]:
    pacing: Literal["off", "steps"] = "steps" if arm == "steps" else "off"
    game.frames(settle_s, pacing)
    before, start = game.client.status().throughput["tokens_generated"], time.perf_counter()
    times_ms = game.frames(seconds, pacing)
    status = game.client.status().throughput
    tokens = status["tokens_generated"] - before
    rate = tokens / (time.perf_counter() - start)
    return {"times_ms": times_ms, "tokens_per_s": rate, "duty": status["duty"]}


def quiet(game: Game) -> None:
    """Until nobody speaks any more: a killed talker is noticed a moment later."""
    while game.client.status().throughput["active"]:
        time.sleep(0.05)


def one_round(broker: RunningBroker, game: Game, settle_s: float, seconds: float) -> dict[Arm, dict[str, Any]]:
    found: dict[Arm, dict[str, Any]] = {}
    for arm in ARMS:
        quiet(game)
        if arm == "none":
            found[arm] = play(game, arm, 1.0, seconds)
        else:
            with talking(broker):
                found[arm] = play(game, arm, settle_s, seconds)
    return found


def summary(rounds: list[dict[str, Any]]) -> dict[str, float]:
    """All rounds of one arm together."""
    times_ms = np.concatenate([one["times_ms"] for one in rounds])
    return {
        "frames": len(times_ms),
        "p50_ms": float(np.percentile(times_ms, 50)),
        "p99_ms": float(np.percentile(times_ms, 99)),
        "max_ms": float(times_ms.max()),
        "late_share": float(np.mean(times_ms > LATE * TARGET_NS / 1e6)),
        "tokens_per_s": statistics.mean(one["tokens_per_s"] for one in rounds),
        "duty": statistics.mean(one["duty"] for one in rounds),
    }


def measure(quick: bool) -> dict[str, Any]:
    """Interleaved rounds of the three arms. ``ratio_*``: p99 over that of the arm where nobody speaks."""
    n_rounds, settle_s, seconds = (1, 4.0, 4.0) if quick else (4, 6.0, 15.0)
    with running_broker(budget="512MiB", ctx=2048) as broker, broker.connect("game") as client:
        game = Game(client)
        rounds = [one_round(broker, game, settle_s, seconds) for _ in range(n_rounds)]
    arms: dict[str, Any] = {arm: summary([one[arm] for one in rounds]) for arm in ARMS}
    ratios = {f"ratio_{arm}": arms[arm]["p99_ms"] / arms["none"]["p99_ms"] for arm in ("off", "steps")}
    return {**arms, **ratios, "rounds": n_rounds, "target_ms": TARGET_NS / 1e6, "work_ms": WORK_MS}


def rows(result: dict[str, Any]) -> list[str]:
    """A Markdown table."""
    names = {"none": "nobody speaks", "off": "one speaks, pacing off", "steps": "one speaks, pacing on"}
    lines = [
        "| while | frames | p50 ms | p99 ms | max ms | p99 ÷ p99 without | late frames | tokens/s | duty at the end |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for arm, name in names.items():
        r = result[arm]
        lines.append(
            f"| {name} | {r['frames']} | {r['p50_ms']:.1f} | {r['p99_ms']:.1f} | {r['max_ms']:.1f} "
            f"| {result.get(f'ratio_{arm}', 1.0):.2f} | {100 * r['late_share']:.1f} % "
            f"| {r['tokens_per_s']:.1f} | {r['duty']:.2f} |"
        )
    about = f"{result['work_ms']:g} ms of work a frame, target {result['target_ms']:.1f} ms, {result['rounds']} rounds."
    return [*lines, "", about]
