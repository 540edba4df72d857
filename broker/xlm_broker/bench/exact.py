"""The same comparison with exact compute: nothing is won by skipping work, so the tokens must be equal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from xlm.protocol.link import DeviceFacts, ModelFacts
from xlm_broker.bench.measure import Lazy
from xlm_broker.bench.models import bench_model
from xlm_broker.bench.statics import Setting
from xlm_broker.bench.summary import percentile
from xlm_broker.planner.sharding.planner import ShardingPlanner

N_CTX: Final = 512
N_UBATCH: Final = 64
N_TOKENS: Final = 32
SHARES: Final = (0.1, 0.5, 1.1)
VRAM_BYTES: Final = 1 << 30
PROMPT: Final = [1, 504, 338, 260, 3241, 281, 253, 2466, 1343, 28, 253, 29, 3241, 11, 260, 1096]


def exact_check(folder: Path, threads: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Greedy tokens of the real model: stock with everything on the card, ours at three budgets; interleaved."""
    model = bench_model("real", folder, say)
    file_bytes = model.path.stat().st_size
    with (
        Lazy("stock", threads, VRAM_BYTES, exact=True) as stock,
        Lazy("ours", threads, VRAM_BYTES, exact=True) as ours,
    ):
        stock.ask("load", path=str(model.path), setting=Setting(n_gpu_layers=model.n_layer + 1))
        stock.ask("context", n_ctx=N_CTX, n_ubatch=N_UBATCH, n_threads=threads)
        answer = ours.ask("load", path=str(model.path), n_ctx=N_CTX, n_ubatch=N_UBATCH)
        facts = msgspec.convert(answer["facts"], ModelFacts, strict=False)
        device = msgspec.convert(answer["device"], DeviceFacts)
        rows = []
        for share in SHARES:
            say(f"exact compute, budget {share:.0%}")
            budget = round(share * file_bytes)
            schedule = ShardingPlanner().plan(facts, device, budget, schedule_id=1)
            ours.ask("schedule", schedule=schedule, budget_bytes=budget)
            rows.append({"budget_share": share, "plan": schedule.summary, **_compared(stock, ours)})
    return {"tokens": N_TOKENS, "rows": rows}


def _compared(stock: Lazy, ours: Lazy) -> dict[str, Any]:
    fields = {"prompt": PROMPT, "steps": N_TOKENS, "card": {"link_bytes_per_s": 12e9, "link_latency_ns": 8000.0}}
    theirs, own = stock.ask("greedy", **fields), ours.ask("greedy", **fields)
    return {
        "tokens_equal": theirs["tokens"] == own["tokens"],
        "ratio": (percentile(theirs["ns"], 0.5) or 0.0) / (percentile(own["ns"], 0.5) or 1.0),
    }
