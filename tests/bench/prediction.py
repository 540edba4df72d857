"""Predicted against measured times of steps, over budgets, step sizes and depths: how good the timing model is here.

    python -m tests.bench.prediction [--profile FILE] [--model FILE] [--json FILE] [--quick]

Three machines, each a process of its own with the real engine, from this machine's profile alone:

    cpu       no device
    exact     the virtual GPU, whose kernels are the CPU's
    modelled  the virtual GPU as a card of its own, with its configured rates; tokens mean nothing there

For each the planner's own schedule of every budget is put in force, its copies are uploaded, and steps are timed
(median). Nothing is fitted to these rows. Without ``--profile`` a quick one is measured first.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from xlm.protocol import link

GOAL_MEDIAN, GOAL_P95 = 0.05, 0.15
SHARES = (0.0, 0.15, 0.3, 0.5, 0.75, 1.1)  # budgets, of what the whole model takes
STEPS = (1, 4, 16, 64)
DEPTHS = (64, 1024)
N_CTX, N_UBATCH = 2048, 64
MIN_SAMPLES, SAMPLE_S = 4, 0.25
CARD = {"compute_flops_per_s": 2e12, "memory_bytes_per_s": 150e9}  # of the modelled one: some times this CPU
LINK_BYTES_S = 6e9
MACHINES = ("cpu", "exact", "modelled")


@dataclass(frozen=True)
class Row:
    machine: str
    share: float
    budget_bytes: int
    tokens: int
    depth: int
    predicted_ms: float
    measured_ms: float
    resident: int
    streamed: int
    on_cpu: int
    parts: dict[str, float]

    @property
    def error(self) -> float:
        return self.predicted_ms / self.measured_ms - 1


# -- one machine, in its own process ---------------------------------------------------------


def device_config(machine: str) -> link.DeviceConfig:
    if machine == "cpu":
        return link.DeviceConfig(kind="none")
    extra = dict(CARD) if machine == "modelled" else {}
    sim = link.SimConfig(vram_bytes=2 << 30, link_bytes_per_s=LINK_BYTES_S, modelled=machine == "modelled", extra=extra)
    return link.DeviceConfig(kind="sim", sim=sim)


class Bench:
    """One engine's runtime and a planner for it."""

    def __init__(self, machine: str, model: Path, profile: Path) -> None:
        from xlm_broker.planner.sharding import ShardingPlanner, card_of_sim
        from xlm_broker.profile_store import load_profile
        from xlm_engine import device as devices
        from xlm_engine import warmup
        from xlm_engine.llama_log import LlamaLog
        from xlm_engine.runtime import Runtime

        self.machine, config = machine, device_config(machine)
        threads = devices.n_threads_of(0)
        self.device = devices.open_device(config, 0, threads)
        made = link.ModelConfig(path=str(model), n_ctx=N_CTX, n_sessions=1, n_ubatch=N_UBATCH)
        log = LlamaLog()
        log.install()
        self.runtime = Runtime(self.device, made, threads, log, lambda _done: True)
        self.model = self.runtime.model_facts(warmup.measure_scratch(self.runtime, lambda _done: None))
        self.facts = devices.facts(self.device, config, n_threads=threads)
        card = card_of_sim(config.sim) if machine != "cpu" else None  # exact: planned as for that card, too
        self.planner = ShardingPlanner(profile=load_profile(profile), card=card)

    def close(self) -> None:
        self.runtime.close()
        self.device.close()

    def rows(self, shares: Sequence[float], depths: Sequence[int]) -> Iterator[Row]:
        demand = self.planner.unified_demand(self.model)
        for depth in depths:
            self._fill(depth)
            for share in shares if self.machine != "cpu" else (0.0,):
                yield from self._budget(share, int(share * demand), depth)

    def _fill(self, depth: int) -> None:
        from xlm_engine.runtime import Row as Token

        self.runtime.clear()
        for start in range(0, depth, N_UBATCH):
            end = min(depth, start + N_UBATCH)
            self.device.begin_step(end - start)
            self.runtime.decode([Token(i % 1000, i, 0, i == end - 1) for i in range(start, end)])

    def _budget(self, share: float, budget: int, depth: int) -> Iterator[Row]:
        schedule = self.planner.plan(self.model, self.facts, budget, schedule_id=1)
        if self.machine != "cpu":
            self.device.set_budget(budget, 2_000_000_000)
            self.device.set_schedule(schedule)
            while self.device.settle(64 << 20):
                pass
        for tokens in STEPS:
            yield self._row(share, schedule, tokens, depth)

    def _row(self, share: float, schedule: link.Schedule, tokens: int, depth: int) -> Row:
        from xlm_broker.planner.sharding.modelled import Emulated, Modelled
        from xlm_broker.planner.sharding.predict import modes_of, predicted_step

        planning = self.planner.planning(self.model, self.facts)
        if self.machine == "exact":
            kernels = planning.kernels
            assert isinstance(kernels, Modelled)
            planning = replace(planning, kernels=Emulated(kernels.host))
        trace = predicted_step(planning, schedule, tokens, depth)
        tier = next(t for t in schedule.tiers if tokens <= t.max_tokens)
        modes = modes_of(planning, tier.placement).tolist()
        names = ("compute_cpu", "compute_device", "wait", "hops", "slowed", "link")
        parts = {name: round(getattr(trace, name) / 1e6, 3) for name in names}
        return Row(
            self.machine, share, schedule.budget_bytes, tokens, depth, trace.total / 1e6, self._measure(tokens, depth),
            modes.count(2), modes.count(1), modes.count(0), parts,
        )  # fmt: skip

    def _measure(self, tokens: int, depth: int) -> float:
        """Median of a step's time in ms; the cache is cut back to the depth after each."""
        self._step(tokens, depth)
        self._step(tokens, depth)
        times: list[float] = []
        until = time.perf_counter() + SAMPLE_S
        while len(times) < MIN_SAMPLES or time.perf_counter() < until:
            times.append(self._step(tokens, depth))
        return 1e3 * median(times)

    def _step(self, tokens: int, depth: int) -> float:
        from xlm_engine.runtime import Row as Token

        rows = [Token(7, depth + i, 0, i == tokens - 1) for i in range(tokens)]
        start = time.perf_counter()
        self.device.begin_step(tokens)
        self.runtime.decode(rows)
        taken = time.perf_counter() - start
        self.runtime.forget(0, depth)
        return taken


def child(arguments: argparse.Namespace) -> None:
    bench = Bench(arguments.machine, arguments.model, arguments.profile)
    try:
        found = list(bench.rows(arguments.shares, arguments.depths))
    finally:
        bench.close()
    arguments.json.write_text(json.dumps([asdict(row) for row in found]), encoding="utf-8")


# -- all machines ----------------------------------------------------------------------------


def measure(model: Path, profile: Path, *, quick: bool = False, machines: Sequence[str] = MACHINES) -> list[Row]:
    """Rows of all machines. ``profile``: made by a quick `xlm profile` if it is not there."""
    if not profile.is_file():
        command = [sys.executable, "-m", "xlm_broker.cli.main", "profile", "--quick", "--device", "sim"]
        subprocess.run([*command, "--model", str(model), "--out", str(profile)], check=True, stdout=subprocess.DEVNULL)
    rows: list[Row] = []
    for machine in machines:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "rows.json"
            command = [sys.executable, "-m", "tests.bench.prediction", "--child", "--machine", machine]
            command += ["--model", str(model), "--profile", str(profile), "--json", str(out)]
            subprocess.run(
                [*command, *(["--quick"] if quick else [])], check=True,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            rows += [Row(**row) for row in json.loads(out.read_text(encoding="utf-8"))]
    return rows


def summary(rows: Sequence[Row]) -> dict[str, float]:
    """Absolute errors as shares; ``bias`` the median with its sign."""
    size = sorted(abs(row.error) for row in rows)
    return {
        "rows": len(rows),
        "median_error": median(size),
        "p95_error": size[min(len(size) - 1, int(0.95 * len(size)))],
        "bias": median(row.error for row in rows),
    }


def report(rows: Sequence[Row]) -> dict[str, Any]:
    groups: dict[str, Any] = {m: summary(own) for m in MACHINES if (own := [r for r in rows if r.machine == m])}
    return {"all": summary(rows), **groups, "goal": {"median_error": GOAL_MEDIAN, "p95_error": GOAL_P95}}


def measured(quick: bool) -> dict[str, Any]:
    """For ``make bench``: a quick profile first, then the grid."""
    from xlm_broker.config import demo_model

    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(demo_model()), Path(folder) / "profile.sqlite", quick=quick)
    return {**report(found), "rows": [asdict(row) | {"error": row.error} for row in found]}


def table(result: dict[str, Any]) -> list[str]:
    """Errors by machine, for docs/benchmarks.md."""
    lines = ["| machine | steps | median error | 95th percentile | bias | goal | |", "|---|---|---|---|---|---|---|"]
    for name in ("all", *MACHINES):
        if name not in result:
            continue
        s = result[name]
        met = s["median_error"] <= GOAL_MEDIAN and s["p95_error"] <= GOAL_P95
        lines.append(
            f"| {name} | {s['rows']} | {s['median_error']:.1%} | {s['p95_error']:.1%} | {s['bias']:+.1%}"
            f" | {GOAL_MEDIAN:.0%}, {GOAL_P95:.0%} | {'met' if met else 'not met'} |"
        )
    return lines


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="fewer budgets, one depth")
    parser.add_argument("--machine", choices=MACHINES, help="only this one")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.shares, options.depths = ((0.0, 0.3, 1.1), DEPTHS[:1]) if options.quick else (SHARES, DEPTHS)
    if options.child:
        child(options)
        return 0
    from xlm_broker.config import demo_model

    with tempfile.TemporaryDirectory() as folder:
        profile = options.profile or Path(folder) / "profile.sqlite"
        machines = (options.machine,) if options.machine else MACHINES
        rows = measure(options.model or Path(demo_model()), profile, quick=options.quick, machines=machines)
    for row in rows:
        print(
            f"{row.machine:9} {row.share:4.0%} {row.tokens:3} tokens at {row.depth:5}"
            f"  r{row.resident:<3} s{row.streamed:<3} c{row.on_cpu:<3}"
            f" predicted {row.predicted_ms:8.2f} measured {row.measured_ms:8.2f} ms {row.error:+7.1%}  {row.parts}"
        )
    found = report(rows)
    for name in ("all", *MACHINES):
        if name in found:
            s = found[name]
            print(
                f"{name}: {s['rows']} rows, median {s['median_error']:.1%}, p95 {s['p95_error']:.1%},"
                f" bias {s['bias']:+.1%}"
            )
    if options.json:
        options.json.write_text(
            json.dumps({**found, "rows": [asdict(r) | {"error": r.error} for r in rows]}, indent=1), encoding="utf-8"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
