"""Frame times of a game beside a model that speaks: pacing off, pacing on, over nobody speaking. And shrinking.

**The load.** A game in C (frame_loop.c) whose jobs take 11 of 16.7 ms on every core.
The virtual GPU computes on the same cores, so a model that speaks is in its way. Three
arms are played in turn, several times. What other programs take of the machine
meanwhile is measured too, and the rounds with least of it count. Twice: with the game's threads
at the priority of those that compute for the model, as on a GPU, which knows none (`equal`);
and with those of the model behind them, as they are (decision 24).

**Shrinking.** A game whose textures do not fit beside the model's copies: a frame takes
longer by what has to come over the bus. That game is simulated (it only tells frame
times that follow from what the model really holds); broker, engine and releases are
real. Slower speech is no help there, and a smaller budget is.

usage: python -m tests.bench.pacing [--quick] [--plot FILE] [--data FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil

import xlm
from tests.support.installed_xlm import ROOT, installed_xlm
from tests.support.running_broker import RunningBroker, running_broker
from xlm._threads import COMPUTING_NICE

TARGET_NS = 16_666_667
WORK_MS = 11.0
LATE = 1.05  # a frame over the target by more than this part is late
Arm = Literal["none", "off", "steps"]
ARMS: tuple[Arm, ...] = ("none", "off", "steps")
NAMES = {"none": "nobody speaks", "off": "one speaks, pacing off", "steps": "one speaks, pacing on"}
SETTLE_S = {"none": 1.0, "off": 1.0, "steps": 8.0}  # the loop of pacing needs some seconds
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


@contextmanager
def talking(broker: RunningBroker) -> Iterator[None]:
    """Somebody speaks without end, in a process of its own."""
    process = subprocess.Popen([sys.executable, "-c", TALKER, broker.endpoint], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.wait()


class Foreign:
    """What programs that are not ours take of the machine."""

    def __init__(self) -> None:
        self._ours_s, self._all_s, self._wall_s = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float]:
        ours = 0.0
        me = psutil.Process()
        for process in [me, *me.children(recursive=True)]:
            try:
                times = process.cpu_times()
                ours += times.user + times.system
            except psutil.Error:  # it has just ended
                continue
        total = psutil.cpu_times()
        return ours, sum(total) - total.idle - getattr(total, "iowait", 0.0), time.monotonic()

    def cores(self) -> float:
        """Cores in use by others since this was made."""
        ours_s, all_s, wall_s = self._now()
        used_s = (all_s - self._all_s) - (ours_s - self._ours_s)
        return max(0.0, used_s / max(1e-9, wall_s - self._wall_s))


class Game:
    """frame_loop.c as a child process."""

    def __init__(self, folder: Path, endpoint: str, nice: int) -> None:
        xlm_here = installed_xlm()
        source = ROOT / "tests/bench/frame_loop.c"
        binary = xlm_here.compile(folder / "frame_loop", [source], "-O2", "-pthread")
        self.threads = os.cpu_count() or 1
        words = [str(self.threads), str(round(WORK_MS * 1000)), str(TARGET_NS)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            ["nice", "-n", str(nice), str(binary), endpoint, *words],
            stdin=pipe,
            stdout=pipe,
            text=True,
            env=xlm_here.environment,
        )
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the game has ended"
        return line.strip()

    def frames(self, seconds: float, pacing: str) -> list[float]:
        """Plays; each frame's time in ms, begin to begin."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{pacing} {seconds}\n")
        self._process.stdin.flush()
        return [int(word) / 1000 for word in self._line().split()]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@dataclass(frozen=True)
class Played:
    """One arm, once."""

    times_ms: list[float]
    tokens_per_s: float
    duty: float
    foreign_cores: float


def play(game: Game, observer: xlm.Client, arm: Arm, seconds: float) -> Played:
    pacing = "steps" if arm == "steps" else "off"
    game.frames(SETTLE_S[arm], pacing)
    foreign, start = Foreign(), time.perf_counter()
    before = observer.status().throughput["tokens_generated"]
    times_ms = game.frames(seconds, pacing)
    status = observer.status().throughput
    rate = (status["tokens_generated"] - before) / (time.perf_counter() - start)
    return Played(times_ms, rate, status["duty"], foreign.cores())


def one_round(broker: RunningBroker, game: Game, observer: xlm.Client, seconds: float) -> dict[Arm, Played]:
    found: dict[Arm, Played] = {}
    for arm in ARMS:
        while observer.status().throughput["active"]:  # a killed talker is noticed a moment later
            time.sleep(0.05)
        if arm == "none":
            found[arm] = play(game, observer, arm, seconds)
        else:
            with talking(broker):
                found[arm] = play(game, observer, arm, seconds)
    return found


def summary(rounds: list[Played]) -> dict[str, Any]:
    """All rounds of one arm together."""
    times_ms = np.concatenate([one.times_ms for one in rounds])
    return {
        "frames": len(times_ms),
        "p50_ms": float(np.percentile(times_ms, 50)),
        "p99_ms": float(np.percentile(times_ms, 99)),
        "max_ms": float(times_ms.max()),
        "late_share": float(np.mean(times_ms > LATE * TARGET_NS / 1e6)),
        "tokens_per_s": statistics.mean(one.tokens_per_s for one in rounds),
        "duty": statistics.mean(one.duty for one in rounds),
        "foreign_cores": max(one.foreign_cores for one in rounds),
        "times_ms": [round(float(value), 2) for value in times_ms],
    }


def measure_load(n_rounds: int, n_kept: int, seconds: float, *, equal: bool) -> dict[str, Any]:
    """Interleaved rounds of the three arms; the ``n_kept`` that others disturbed least."""
    with (
        tempfile.TemporaryDirectory(prefix="xlm-bench-") as folder,
        running_broker(budget="512MiB", ctx=2048) as broker,
        broker.connect("observer") as observer,
    ):
        game = Game(Path(folder), broker.endpoint, COMPUTING_NICE if equal else 0)
        try:
            game.frames(2.0, "off")
            rounds = [one_round(broker, game, observer, seconds) for _ in range(n_rounds)]
        finally:
            game.close()
    rounds.sort(key=lambda one: max(arm.foreign_cores for arm in one.values()))
    arms: dict[str, Any] = {arm: summary([one[arm] for one in rounds[:n_kept]]) for arm in ARMS}
    ratios = {f"ratio_{arm}": arms[arm]["p99_ms"] / arms["none"]["p99_ms"] for arm in ("off", "steps")}
    shape = {"target_ms": TARGET_NS / 1e6, "work_ms": WORK_MS, "threads": game.threads}
    return {**arms, **ratios, **shape, "rounds": n_rounds, "kept": n_kept}


# -- shrinking ------------------------------------------------------------------------

BASE_MS, FITS_MIB, BUS_MS_PER_MIB = 14.0, 72.0, 0.25
NEEDS_LESS_AT = 0.5  # of the run: the scene changes, and all fits


def spilling_frame_ms(used_bytes: int, relieved: bool) -> float:
    """A frame of the simulated game, by what the model holds."""
    over_mib = 0.0 if relieved else max(0.0, used_bytes / 2**20 - FITS_MIB)
    return BASE_MS + BUS_MS_PER_MIB * over_mib


def look(client: xlm.Client, at_s: float, relieved: bool) -> dict[str, float]:
    """Tells the frames that follow from what is used now."""
    status = client.status()
    frame_ms = spilling_frame_ms(status.device["used_bytes"], relieved)
    for _ in range(6):
        client.report_frame(int(frame_ms * 1e6), TARGET_NS, pacing="shrink")
    return {
        "at_s": at_s,
        "frame_ms": frame_ms,
        "duty": status.throughput["duty"],
        "budget_mib": status.budget["effective_bytes"] / 2**20,
        "used_mib": status.device["used_bytes"] / 2**20,
    }


def measure_shrink(seconds: float) -> list[dict[str, float]]:
    """Ten looks a second at a game that allows shrinking."""
    looks: list[dict[str, float]] = []
    with (
        running_broker(budget="256MiB", ctx=1024, sessions=2) as broker,
        broker.connect("spilling") as client,
        talking(broker),
    ):
        start = time.monotonic()
        while (at_s := time.monotonic() - start) < seconds:
            looks.append(look(client, at_s, relieved=at_s > NEEDS_LESS_AT * seconds))
            time.sleep(0.1)
    return looks


def measure(quick: bool) -> dict[str, Any]:
    """``ratio_*``: p99 over that of the arm where nobody speaks. ``game_first``: with the model's threads behind."""
    size = (1, 1, 3.0) if quick else (5, 3, 6.0)
    load = measure_load(*size, equal=True)
    return {
        **load,
        "game_first": measure_load(*size, equal=False),
        "shrink": measure_shrink(10.0 if quick else 45.0),
    }


# -- what is shown --------------------------------------------------------------------


def rows(result: dict[str, Any]) -> list[str]:
    """Markdown tables."""
    return [
        "With equal rights, as on a GPU, which knows no priorities:",
        "",
        *table(result),
        "",
        "With the model's threads behind the game's, as they are:",
        "",
        *table(result["game_first"]),
    ]


def table(result: dict[str, Any]) -> list[str]:
    lines = [
        "| while | frames | p50 ms | p99 ms | max ms | p99 ÷ p99 without | late frames | tokens/s | duty at the end |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for arm, name in NAMES.items():
        r = result[arm]
        lines.append(
            f"| {name} | {r['frames']} | {r['p50_ms']:.1f} | {r['p99_ms']:.1f} | {r['max_ms']:.1f} "
            f"| {result.get(f'ratio_{arm}', 1.0):.2f} | {100 * r['late_share']:.1f} % "
            f"| {r['tokens_per_s']:.1f} | {r['duty']:.2f} |"
        )
    foreign = max(result[arm]["foreign_cores"] for arm in NAMES)
    about = (
        f"{result['work_ms']:g} ms of work a frame on each of {result['threads']} cores, target "
        f"{result['target_ms']:.1f} ms. {result['kept']} of {result['rounds']} rounds, those in which other programs "
        f"took least of the machine (at most {foreign:.2f} cores)."
    )
    return [*lines, "", about]


def plot(result: dict[str, Any], path: Path) -> None:
    """Above: how often frames take how long. Below: the run that shrinks."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, figsize=(9, 7.5))
    colours = {"none": "#555555", "off": "#d1495b", "steps": "#2a7f62"}
    for arm, name in NAMES.items():
        times_ms = np.sort(result[arm]["times_ms"])
        share = 100 * (1 - np.arange(len(times_ms)) / len(times_ms))
        p99 = f"p99 {result[arm]['p99_ms']:.1f} ms, {result[arm]['tokens_per_s']:.1f} tokens/s"
        above.plot(times_ms, share, color=colours[arm], label=f"{name}: {p99}", linewidth=1.8)
    above.axvline(result["target_ms"], color="#999999", linestyle=":", linewidth=1)
    above.axhline(1, color="#bbbbbb", linestyle=":", linewidth=1)
    most_ms = 1.15 * max(result[arm]["p99_ms"] for arm in NAMES)
    above.set(
        yscale="log",
        ylim=(0.1, 120),
        xlim=(0.9 * result["target_ms"], most_ms),
        xlabel="frame time in ms",
        ylabel="% of frames that take longer",
    )
    foreign = max(result[arm]["foreign_cores"] for arm in NAMES)
    above.set_title(
        f"{result['work_ms']:g} of {result['target_ms']:.1f} ms of work on every core, and a model on them with equal "
        f"rights (others: up to {foreign:.2f} cores)"
    )
    above.legend(loc="upper right", fontsize=9)
    looks = result["shrink"]
    at_s = [one["at_s"] for one in looks]
    below.step(
        at_s, [look["budget_mib"] for look in looks], color="#3c6ec8", label="budget in force, MiB", where="post"
    )
    below.plot(at_s, [look["used_mib"] for look in looks], color="#f0962b", label="used by the model, MiB")
    below.set(xlabel="seconds", ylabel="MiB")
    right = below.twinx()
    right.plot(at_s, [one["frame_ms"] for one in looks], color="#d1495b", linewidth=1, label="frame, ms")
    right.plot(at_s, [20 * one["duty"] for one in looks], color="#2a7f62", linewidth=1, label="duty × 20")
    right.axhline(result["target_ms"], color="#999999", linestyle=":", linewidth=1)
    right.set(ylabel="frame time in ms, duty × 20", ylim=(0, None))
    below.set_title('a game that spills (simulated), pacing "shrink"; from the middle of the run on all fits')
    handles = [axis.get_legend_handles_labels() for axis in (below, right)]
    below.legend(handles[0][0] + handles[1][0], handles[0][1] + handles[1][1], loc="upper center", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--plot", type=Path, help="a PNG file")
    parser.add_argument("--data", type=Path, help="figures as JSON")
    options = parser.parse_args()
    result = measure(options.quick)
    print("\n".join(rows(result)))
    if options.data:
        options.data.write_text(json.dumps(result))
    if options.plot:
        plot(result, options.plot)


if __name__ == "__main__":
    main()
