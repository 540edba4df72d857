"""The benchmark: profiles, the sweep over stock llama.cpp's settings, our plans, the rows."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, Final

import msgspec

from xlm.protocol.link import DeviceFacts, ModelFacts, Schedule
from xlm_broker import broker_version
from xlm_broker.bench.cards import Rates
from xlm_broker.bench.duel import NEAR, Met, in_turn, is_near, meet_the_best, with_met
from xlm_broker.bench.exact import exact_check
from xlm_broker.bench.grid import DECODE_TOKENS, UBATCH, Case, Grid, Work
from xlm_broker.bench.measure import Lazy, StepTimes, card_fields, name_of, steps_of, time_steps, times_of
from xlm_broker.bench.models import BenchModel, bench_model
from xlm_broker.bench.plans import KINDS, Planned, fingerprint, placements
from xlm_broker.bench.profiles import Cards, machine_threads, profiled_cards
from xlm_broker.bench.statics import Best, Measured, Setting, Times, best
from xlm_broker.bench.store import OutOfTime, Store
from xlm_broker.bench.sweep import LEAST_LIMIT_S, PATIENCE, SLOWEST_S, Candidate, Sweep

VRAM_BYTES: Final = 8 << 30  # of the virtual card: never what limits; budgets are
NS_PER_MS: Final = 1e6
FIGURES: Final = ("ttft_ns", "token_ns")  # of Times, in its order
STORED_S: Final = 0.3  # a row that takes less was measured before
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Options:
    grid: Grid
    folder: Path
    threads: int = 0
    fresh: bool = False
    exact: bool = True
    for_at_most_s: float = 0.0  # 0: to the end
    kinds: frozenset[tuple[int, int]] = frozenset({(512, 4096)})  # works for which the pure kinds are measured too


@dataclass
class Bench:
    """One run. ``rows`` grows as models are done; ``result`` is what --json writes."""

    options: Options
    say: Say
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    exact: dict[str, Any] | None = None
    complete: bool = False
    _started: float = field(default_factory=time.monotonic)
    _row_seconds: list[float] = field(default_factory=list)

    def run(self, done: Callable[[Bench], None] = lambda _bench: None) -> None:
        """``done`` is called after each model. XlmError where a model or a device is missing.

        Out of time, it ends with the rows there are, ``complete`` False; what was measured is kept for the next run.
        """
        try:
            self._run(done)
            self.complete = True
        except OutOfTime:
            self._tell(f"out of time after {self.store.n_measured} measurements; start again to go on")

    def _run(self, done: Callable[[Bench], None]) -> None:
        options = self.options
        self.threads = machine_threads(options.threads)
        models = [bench_model(name, options.folder, self._tell) for name in options.grid.models]
        self.cards = profiled_cards(
            options.folder / "profiles", options.grid.cards, [m.path for m in models], self.threads, self._tell
        )  # fmt: skip
        until_s = self._started + options.for_at_most_s if options.for_at_most_s > 0 else 0.0
        self.store = Store(options.folder / "measured.jsonl", fresh=options.fresh, until_s=until_s)
        for model in models:
            for row in ModelBench(self, model).run():
                self.rows.append(row)
            done(self)
        if options.exact:
            self.exact = self.store.once(
                lambda: exact_check(options.folder, self.threads, self._tell), *self.key("exact")
            )
            done(self)

    def note_row(self, took_s: float, rows_of_model: int) -> None:
        """Tells after a measured row how far the run is, and how long its other rows will take."""
        if took_s < STORED_S:
            return
        self._row_seconds.append(took_s)
        done, total = len(self.rows) + 1, len(self.options.grid.models) * rows_of_model
        left_s = sum(self._row_seconds) / len(self._row_seconds) * (total - done)
        self._tell(f"row {done} of {total}; about {left_s / 60:.0f} min for the others, and what stock's settings take")

    def _tell(self, text: str) -> None:
        self.say(f"[{time.monotonic() - self._started:5.0f} s] {text}")

    def key(self, *parts: object) -> tuple[object, ...]:
        """With everything else a measurement depends on."""
        rates = [f"{r.name}:{r.link_bytes_s:.4g}:{r.flops_s:.4g}:{r.memory_bytes_s:.4g}" for r in self._rates()]
        return (broker_version(), self.cards.profile.key.ggml, self.threads, ",".join(rates), *parts)

    def _rates(self) -> Iterable[Rates]:
        return self.cards.rates.values()

    def result(self) -> dict[str, Any]:
        return {
            "date": datetime.now(UTC).date().isoformat(),
            "cpu": self.cards.profile.key.cpu,
            "threads": self.threads,
            "system": platform.system(),
            "ggml": self.cards.profile.key.ggml,
            "seconds": round(time.monotonic() - self._started),
            "n_ubatch": UBATCH,
            "decode_tokens": DECODE_TOKENS,
            "cards": {name: msgspec.to_builtins(rates) for name, rates in self.cards.rates.items()},
            "notes": self.notes,
            "exact": self.exact,
            "complete": self.complete,
            "rows": self.rows,
        }


@dataclass
class ModelBench:
    """All cases of one model."""

    bench: Bench
    model: BenchModel

    def __post_init__(self) -> None:
        self.grid: Grid = self.bench.options.grid
        self.cards: Cards = self.bench.cards
        self.rates: list[Rates] = list(self.cards.rates.values())
        self.store: Store = self.bench.store
        self.cases: list[Case] = list(self.grid.cases(self.model.name, self.model.path.stat().st_size))
        self.sweep = Sweep(
            self.grid, self.model, self.rates, self.bench.threads, self.store, self._key, self.bench._tell
        )

    def run(self) -> Iterator[dict[str, Any]]:
        with (
            Lazy("stock", self.bench.threads, VRAM_BYTES) as self.stock,
            Lazy("ours", self.bench.threads, VRAM_BYTES) as self.ours,
        ):
            candidates = self.sweep.run(self.stock, self.cases)
            for n_ctx in self.grid.contexts():
                yield from self._rows_of_context(self.ours, n_ctx, candidates[n_ctx])

    def _key(self, *parts: object) -> tuple[object, ...]:
        return self.bench.key(self.model.name, self.model.path.stat().st_size, *parts)

    # -- ours

    def _rows_of_context(self, ours: Lazy, n_ctx: int, candidates: list[Candidate]) -> Iterable[dict[str, Any]]:
        facts, device = self._facts(ours, n_ctx)
        for rates in self.rates:
            self.bench._tell(f"{self.model.name}: our plans on {rates.name}, context {n_ctx}")
            for work in [work for work in self.grid.works() if work.n_ctx == n_ctx]:
                planned = Planned(facts, device, work, self.cards.profile, rates.card, self.bench.threads)
                timed = (candidate.on(rates.name, work) for candidate in candidates)
                measured = [one for one in timed if one is not None]
                for case in self.cases:
                    if (case.card, case.work) == (rates.name, work):
                        began_s = time.monotonic()
                        row = self._row(ours, case, planned, measured, n_ctx, rates)
                        self.bench.note_row(time.monotonic() - began_s, len(self.cases))
                        yield row

    def _facts(self, ours: Lazy, n_ctx: int) -> tuple[ModelFacts, DeviceFacts]:
        found = self.store.once(lambda: self._loaded(ours, n_ctx), *self._key("facts", n_ctx))
        return msgspec.convert(found["facts"], ModelFacts, strict=False), msgspec.convert(found["device"], DeviceFacts)

    def _loaded(self, ours: Lazy, n_ctx: int) -> dict[str, Any]:
        if ours.loaded[:1] != (n_ctx,):
            ours.loaded = ()
            answer = ours.ask("load", path=str(self.model.path), n_ctx=n_ctx, n_ubatch=UBATCH)
            ours.loaded = (n_ctx, answer)
        return dict(ours.loaded[1])

    def _row(
        self, ours: Lazy, case: Case, planned: Planned, measured: list[Measured], n_ctx: int, rates: Rates
    ) -> dict[str, Any]:
        schedule = planned.schedule(case.budget_bytes)
        said = planned.predicted(schedule, UBATCH)
        times, memory = self._measured_plan(ours, schedule, case, n_ctx, rates)
        fitting = [one for one in measured if one.used_bytes <= case.budget_bytes]
        again = self._met_again(case, schedule, rates, fitting, times)
        times = Times(*(again[name][0].ours_ns if name in again else getattr(times, name) for name in FIGURES))
        given_up = not isfinite(times.ttft_ns)
        if given_up:  # a loss must count as one: what was predicted, and at least what it was waited for
            times = Times(max(said.ttft_ns, self._waited_ns(case.work, rates)), times.token_ns)
        row: dict[str, Any] = {
            "model": case.model, "card": case.card, "model_bytes": self.model.path.stat().st_size,
            "budget_share": case.share, "budget_bytes": case.budget_bytes,
            "prompt": case.work.prompt, "depth": case.work.depth, "n_ctx": n_ctx,
            "ours": _figures(times), "plan": schedule.summary, "memory": memory,
            "decode_places": placements(schedule, 1), "prompt_places": placements(schedule, case.work.prompt),
            "limit": _figures(planned.limits(case.budget_bytes, UBATCH)),
            "predicted": _figures(said), "given_up": given_up,
        }  # fmt: skip
        for name, plain in (("ngl", True), ("static", False)):
            row[name] = _best_figures(
                with_met(best(measured, case.budget_bytes, DECODE_TOKENS, plain=plain), again, plain=plain)
            )
        row["again"] = sorted(again)
        if (case.work.prompt, case.work.depth) in self.bench.options.kinds:
            row["kinds"] = self._kinds(ours, case, planned, n_ctx, rates, times)
        return row

    # -- both sides again, where they are near each other

    def _met_again(
        self, case: Case, schedule: Schedule, rates: Rates, fitting: list[Measured], times: Times
    ) -> dict[str, list[Met]]:
        """By figure; the fastest of stock's first."""
        found: dict[str, list[Met]] = {}
        for name in FIGURES:
            ours_ns = getattr(times, name)
            swept = [(getattr(one.times, name), one.setting) for one in fitting]
            if swept and is_near(ours_ns, min(ns for ns, _ in swept)):
                meet = partial(self._meet, case, schedule, rates, name, ours_ns)
                if mets := meet_the_best(swept, meet):
                    found[name] = mets
        return found

    def _meet(self, case: Case, schedule: Schedule, rates: Rates, name: str, ours_ns: float, setting: Setting) -> Met:
        what = "decode" if name == "token_ns" else "prefill"
        steps = [step for step in steps_of([case.work], UBATCH) if step[0] == what]
        limit_s = max(LEAST_LIMIT_S, PATIENCE * NEAR * ours_ns / 1e9)  # far beyond what it can take

        def turn(side: Lazy) -> StepTimes:
            return time_steps(side, steps, [rates], lambda _card, _step: limit_s)

        def measure() -> dict[str, Any]:
            n_ctx = case.work.n_ctx
            self.sweep.opened(self.stock, setting, n_ctx)
            self._loaded(self.ours, n_ctx)
            self.ours.ask("schedule", schedule=schedule, budget_bytes=case.budget_bytes, card=card_fields(rates))
            return in_turn(lambda: turn(self.ours), lambda: turn(self.stock))

        names = ",".join(name_of(step) for step in steps)
        key = self._key("again", rates.name, fingerprint(schedule), setting.words, case.work.n_ctx, names)
        found = self.store.once(measure, *key)
        ours, stock = (
            getattr(times_of(case.work, found[side][rates.name], UBATCH), name) for side in ("ours", "stock")
        )
        return Met(setting, ours, stock)

    def _waited_ns(self, work: Work, rates: Rates) -> float:
        """How long a prompt that was given up took at least."""
        limits = [self.sweep.limit_s(rates.name, step) for step in steps_of([work], UBATCH) if step[0] == "prefill"]
        return 1e9 * max(limits)

    def _kinds(
        self, ours: Lazy, case: Case, planned: Planned, n_ctx: int, rates: Rates, chosen: Times
    ) -> dict[str, Any]:
        """Pure kinds of plans; one that takes so much longer than the chosen one is given up."""
        step_s = chosen.ttft_ns / case.work.ubatches(UBATCH) / 1e9
        limit_s = max(LEAST_LIMIT_S, min(SLOWEST_S, PATIENCE * step_s))
        found: dict[str, Any] = {}
        for name in KINDS:
            schedule = planned.kind(name, case.budget_bytes)
            if schedule is not None:
                found[name] = _figures(self._measured_plan(ours, schedule, case, n_ctx, rates, limit_s)[0])
        return found

    def _measured_plan(
        self, ours: Lazy, schedule: Schedule, case: Case, n_ctx: int, rates: Rates, limit_s: float = 0.0
    ) -> tuple[Times, dict[str, int]]:
        steps = steps_of([case.work], UBATCH)

        def measure() -> dict[str, Any]:
            self._loaded(ours, n_ctx)
            ours.ask("schedule", schedule=schedule, budget_bytes=case.budget_bytes, card=card_fields(rates))
            ours.ask("memory")
            found = time_steps(ours, steps, [rates], lambda card, step: limit_s or self.sweep.limit_s(card, step))
            return {"steps": found, "memory": ours.ask("memory")}

        names = ",".join(name_of(step) for step in steps)
        key = self._key("plan", rates.name, fingerprint(schedule), n_ctx, names)
        found = self.store.once(measure, *key)
        return times_of(case.work, found["steps"][rates.name], UBATCH), dict(found["memory"])


def _ms(ns: float) -> float | None:
    return ns / NS_PER_MS if isfinite(ns) else None


def _figures(times: Times) -> dict[str, Any]:
    token, request = times.token_ns, times.request_ns(DECODE_TOKENS)
    return {
        "ttft_ms": _ms(times.ttft_ns),
        "token_ms": _ms(token),
        "tokens_per_s": 1e9 / token if isfinite(token) and token > 0 else None,
        "request_ms": _ms(request),
    }


def _best_figures(found: Best | None) -> dict[str, Any] | None:
    """Each figure from the setting that is best at it."""
    if found is None:
        return None
    token = found.token.times.token_ns
    return {
        "ttft_ms": _ms(found.ttft.times.ttft_ns),
        "token_ms": _ms(token),
        "tokens_per_s": 1e9 / token if isfinite(token) else None,
        "request_ms": _ms(found.request.times.request_ns(DECODE_TOKENS)),
        "ttft_setting": found.ttft.setting.words,
        "token_setting": found.token.setting.words,
        "request_setting": found.request.setting.words,
    }
