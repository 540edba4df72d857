"""Times of many steps, in an order that fills the cache once: the deepest first, cards in turn at each depth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

from xlm_broker.bench.cards import Rates
from xlm_broker.bench.child import Child, Side
from xlm_broker.bench.grid import Work, depths_to_time, ttft_ns
from xlm_broker.bench.statics import Times
from xlm_broker.bench.summary import percentile

DECODE_STEPS: Final = 6
QUARTILE: Final = 0.25  # of the steps' times: what disturbs a step can only make it longer
SLOWEST_STEP_S: Final = 30.0
Step = tuple[str, int, int, int]  # decode or prefill, depth, tokens, steps before it
StepTimes = dict[str, dict[str, float]]  # card -> step -> ns; 0: stopped


def steps_of(works: Iterable[Work], n_ubatch: int) -> list[Step]:
    """The deepest first."""
    found: set[Step] = set()
    for work in works:
        found.add(("decode", work.depth, 1, 0))
        tokens = min(work.prompt, n_ubatch)
        found.update(("prefill", depth, tokens, lead) for depth, lead in depths_to_time(work, n_ubatch))
    return sorted(found, key=lambda s: (-(s[1] + s[2] * s[3]), s))


def name_of(step: Step) -> str:
    return "/".join(str(part) for part in step)


def times_of(work: Work, found: Mapping[str, float], n_ubatch: int) -> Times:
    """From the steps of one card; infinite where one was stopped or not taken."""
    tokens = min(work.prompt, n_ubatch)
    steps = [("prefill", depth, tokens, lead) for depth, lead in depths_to_time(work, n_ubatch)]
    ends = [found.get(name_of(step)) or inf for step in steps]
    token = found.get(name_of(("decode", work.depth, 1, 0))) or inf
    return Times(ttft_ns(ends[0], ends[-1], work.ubatches(n_ubatch)), token)


@dataclass
class Lazy:
    """A measuring process that is started when it is first needed."""

    side: Side
    n_threads: int
    vram_bytes: int
    exact: bool = False
    _child: Child | None = field(default=None, repr=False)
    loaded: tuple[Any, ...] = ()

    def ask(self, what: str, **fields: Any) -> dict[str, Any]:
        if self._child is None:
            self._child = Child(self.side, n_threads=self.n_threads, vram_bytes=self.vram_bytes, exact=self.exact)
        return self._child.ask(what, **fields)

    def close(self) -> None:
        if self._child is not None:
            self._child.close()
        self._child, self.loaded = None, ()

    def __enter__(self) -> Lazy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def card_fields(rates: Rates) -> dict[str, float]:
    """xlm_engine.bench.wire.Card."""
    return {
        "link_bytes_per_s": rates.link_bytes_s,
        "link_latency_ns": rates.link_latency_ns,
        "flops_per_s": rates.flops_s,
        "memory_bytes_per_s": rates.memory_bytes_s,
        "op_launch_ns": rates.op_launch_ns,
        "graph_launch_ns": rates.graph_launch_ns,
    }


def time_steps(
    child: Lazy, steps: Sequence[Step], cards: Iterable[Rates], limit_s: Callable[[str, Step], float]
) -> StepTimes:
    """Every step on every card. ``limit_s``: how long a prefill step may take before it is given up."""
    cards = list(cards)
    found: StepTimes = {card.name: {} for card in cards}
    for step in steps:
        for card in cards:
            found[card.name][name_of(step)] = _time_step(child, step, card, limit_s(card.name, step))
    return found


def _time_step(child: Lazy, step: Step, card: Rates, limit_s: float) -> float:
    what, depth, tokens, lead = step
    fields: dict[str, Any] = {"depth": depth, "card": card_fields(card)}
    if what == "decode":
        times = child.ask("decode", steps=DECODE_STEPS, **fields)["ns"]
        return percentile(times, QUARTILE) or 0.0
    if child.side == "stock":  # its steps leave nothing behind for the next: those before need not be run
        depth, lead = depth + lead * tokens, 0
        fields["depth"] = depth
    seconds = limit_s * (1 + lead)
    return float(child.ask("prefill", tokens=tokens, lead=lead, limit_s=seconds, **fields)["ns"])
