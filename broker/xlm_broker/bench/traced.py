"""One step of one case, recorded: what ``xlm bench --trace`` writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from xlm.protocol.link import DeviceFacts, ModelFacts
from xlm_broker.bench.grid import UBATCH, Grid
from xlm_broker.bench.measure import Lazy, card_fields
from xlm_broker.bench.models import bench_model
from xlm_broker.bench.plans import Planned
from xlm_broker.bench.profiles import machine_threads, profiled_cards
from xlm_broker.bench.run import VRAM_BYTES
from xlm_broker.bench.trace import chrome_trace


def traced_step(grid: Grid, folder: Path, threads: int, tokens: int, say: Callable[[str], None]) -> dict[str, Any]:
    """The first model, card, budget and work of the grid; a step of ``tokens`` at its depth. XlmError as ``Bench``."""
    threads = machine_threads(threads)
    model = bench_model(grid.models[0], folder, say)
    cards = profiled_cards(folder / "profiles", grid.cards[:1], [model.path], threads, say)
    (rates,) = cards.rates.values()
    work, share = grid.works()[0], grid.shares[0]
    budget = round(share * model.path.stat().st_size)
    with Lazy("ours", threads, VRAM_BYTES) as ours:
        answer = ours.ask("load", path=str(model.path), n_ctx=work.n_ctx, n_ubatch=UBATCH)
        facts = msgspec.convert(answer["facts"], ModelFacts, strict=False)
        device = msgspec.convert(answer["device"], DeviceFacts)
        schedule = Planned(facts, device, work, cards.profile, rates.card, threads).schedule(budget)
        say(schedule.summary)
        ours.ask("schedule", schedule=schedule, budget_bytes=budget)
        depth = work.depth if tokens == 1 else work.before
        found = ours.ask("trace", depth=depth, tokens=tokens, card=card_fields(rates))
    about = {
        "model": model.name, "card": rates.name, "budget_bytes": budget, "budget_share": share, "depth": depth,
        "tokens": tokens, "plan": schedule.summary,
    }  # fmt: skip
    return chrome_trace(found["events"], found["sublayers"], about)
