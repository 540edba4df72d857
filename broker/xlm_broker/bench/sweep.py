"""Measures stock llama.cpp: a survey at both ends of each family of settings, then what can win at each budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

from xlm.errors import ModelError
from xlm_broker.bench.cards import Rates
from xlm_broker.bench.grid import UBATCH, Case, Grid, Work
from xlm_broker.bench.measure import Lazy, Step, StepTimes, name_of, steps_of, time_steps, times_of
from xlm_broker.bench.models import BenchModel
from xlm_broker.bench.statics import (
    Family,
    Measured,
    Setting,
    Surveyed,
    Times,
    families,
    shortlist,
    without_device,
)
from xlm_broker.bench.store import Store

PATIENCE: Final = 3.0  # a prefill step is given up when it takes so many times the best known
SLOWEST_S: Final = 20.0
LEAST_LIMIT_S: Final = 0.5
NEVER_FITS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Candidate:
    """A setting in a context, with the device memory it takes and its steps on each card."""

    setting: Setting
    plain: bool
    used_bytes: int
    steps: StepTimes

    def on(self, card: str, work: Work) -> Measured | None:
        """None where it was not timed: no case of these could choose it."""
        if any(name_of(step) not in self.steps.get(card, {}) for step in steps_of([work], UBATCH)):
            return None
        return Measured(self.setting, self.plain, self.used_bytes, times_of(work, self.steps[card], UBATCH))


@dataclass
class Sweep:
    """One model. ``key`` makes keys of the store; ``known`` holds the least ns of each (card, step) so far."""

    grid: Grid
    model: BenchModel
    rates: list[Rates]
    threads: int
    store: Store
    key: Callable[..., tuple[object, ...]]
    say: Callable[[str], None]
    known: dict[tuple[str, str], float] = field(default_factory=dict)

    def run(self, stock: Lazy, cases: Sequence[Case]) -> dict[int, list[Candidate]]:
        """By context."""
        surveyed = [self._survey(stock, family) for family in families(self.model.n_layer, self.model.n_expert > 0)]
        return {
            n_ctx: self._context(stock, surveyed, n_ctx, [case for case in cases if case.work.n_ctx == n_ctx])
            for n_ctx in self.grid.contexts()
        }

    def limit_s(self, card: str, step: Step) -> float:
        least = self.known.get((card, name_of(step)), inf)
        return max(LEAST_LIMIT_S, min(SLOWEST_S, PATIENCE * least / 1e9))

    # -- survey

    def _survey(self, stock: Lazy, family: Family) -> Surveyed:
        """Timed in the longest context: a step's time depends on the depth, not on the context's length."""
        self.say(f"{self.model.name}: survey of {family.name}")
        low, high = (self._end(stock, family.make(k)) for k in (0, family.top))
        return Surveyed(family, (low[0], high[0]), (low[1], high[1]))

    def _end(self, stock: Lazy, setting: Setting) -> tuple[dict[int, int], Mapping[tuple[str, object], Times]]:
        used = {n_ctx: self._used_bytes(stock, setting, n_ctx) for n_ctx in self.grid.contexts()}
        works = self.grid.survey()
        steps = self._steps(stock, setting, max(used), works, self.rates)
        at: dict[tuple[str, object], Times] = {
            (card.name, work): times_of(work, steps[card.name], UBATCH) for card in self.rates for work in works
        }
        return used, at

    # -- what can win

    def _context(self, stock: Lazy, surveyed: list[Surveyed], n_ctx: int, cases: Sequence[Case]) -> list[Candidate]:
        """Each setting is timed on the cards and in the works of the cases with a budget it was chosen for."""
        near = min(self.grid.survey(), key=lambda work: abs(work.n_ctx - n_ctx))
        at: list[tuple[str, object]] = [(card.name, near) for card in self.rates]
        budgets = sorted({case.budget_bytes for case in cases})
        wanted = [(f, k, budget) for budget in budgets for f, k in shortlist(surveyed, n_ctx, budget, at)]
        self.say(f"{self.model.name}: up to {len(wanted)} settings of stock llama.cpp in context {n_ctx}")
        plain = {True: 0, False: 1}
        fitted: dict[Setting, tuple[bool, set[int]]] = {}
        for family, k, budget in sorted(wanted, key=lambda entry: plain[entry[0].plain]):
            if (setting := self._fitted(stock, family, k, n_ctx, budget)) is not None:
                fitted.setdefault(setting, (family.plain, set()))[1].add(budget)
        fitted |= {setting: (True, set(budgets)) for setting in without_device()}
        return [
            self._candidate(stock, setting, plain, n_ctx, [c for c in cases if c.budget_bytes in chosen_for])
            for setting, (plain, chosen_for) in fitted.items()
        ]

    def _fitted(self, stock: Lazy, family: Family, k: int, n_ctx: int, budget: int) -> Setting | None:
        """With the largest k that really fits: the line between the ends may be off by one."""
        k = min(family.top, k + 1)
        while k >= 0 and self._used_bytes(stock, family.make(k), n_ctx) > budget:
            k -= 1
        return family.make(k) if k >= 0 else None

    def _candidate(self, stock: Lazy, setting: Setting, plain: bool, n_ctx: int, cases: Sequence[Case]) -> Candidate:
        used, steps = self._used_bytes(stock, setting, n_ctx), dict[str, dict[str, float]]()
        for card in self.rates:
            works = [case.work for case in cases if case.card == card.name or not setting.device]
            if works:
                steps |= self._steps(stock, setting, n_ctx, works, [card] if setting.device else self.rates)
        return Candidate(setting, plain, used, steps)

    # -- measuring

    def _used_bytes(self, stock: Lazy, setting: Setting, n_ctx: int) -> int:
        def measure() -> int:
            try:
                return int(self.opened(stock, setting, n_ctx)["used_bytes"])
            except ModelError:
                return NEVER_FITS

        return int(self.store.once(measure, *self.key("used", setting.words, n_ctx)))

    def opened(self, stock: Lazy, setting: Setting, n_ctx: int) -> dict[str, Any]:
        if stock.loaded[:1] != (setting,):
            stock.loaded = ()
            stock.ask("load", path=str(self.model.path), setting=setting)
            stock.loaded = (setting,)
        if stock.loaded[1:2] != (n_ctx,):
            answer = stock.ask("context", n_ctx=n_ctx, n_ubatch=UBATCH, n_threads=self.threads)
            stock.loaded = (setting, n_ctx, answer)
        return dict(stock.loaded[2])

    def _steps(
        self, stock: Lazy, setting: Setting, n_ctx: int, works: Iterable[Work], cards: Sequence[Rates]
    ) -> StepTimes:
        steps = steps_of(works, UBATCH)

        def measure() -> StepTimes:
            self.opened(stock, setting, n_ctx)
            if setting.device:
                return time_steps(stock, steps, cards, self.limit_s)
            once = time_steps(stock, steps, cards[:1], self.limit_s)  # no card, the same on all
            return {card.name: once[cards[0].name] for card in cards}

        names = ",".join([*(card.name for card in cards), *(name_of(step) for step in steps)])
        found: StepTimes = self.store.once(measure, *self.key("steps", setting.words, n_ctx, names))
        self._learn(found)
        return found

    def _learn(self, found: StepTimes) -> None:
        for card, steps in found.items():
            for step, ns in steps.items():
                if ns > 0:
                    self.known[card, step] = min(ns, self.known.get((card, step), inf))
