"""`xlm bench` as a part of `make bench`: ours against stock llama.cpp, into build/bench/ and docs/benchmarks.md."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from xlm_broker.bench.grid import QUICK, Grid
from xlm_broker.bench.picture import draw
from xlm_broker.bench.run import Bench, Options
from xlm_broker.bench.summary import by_budget, losses, table, verdicts

EQUAL = {True: "equal", False: "**differ**"}
FOLDER = Path(__file__).resolve().parents[2] / "build" / "bench"


def measure(quick: bool) -> dict[str, Any]:
    """Resumes what an interrupted run left in build/bench."""
    run = Bench(Options(grid=QUICK if quick else Grid(), folder=FOLDER), lambda text: print(text, file=sys.stderr))
    run.run()
    draw(run.rows, FOLDER / "against-stock.png")
    return run.result()


def rows(result: dict[str, Any]) -> list[str]:
    exact = [
        f"- exact compute, budget {row['budget_share']:.0%}: tokens {EQUAL[row['tokens_equal']]}, "
        f"{row['ratio']:.2f} of stock's speed"
        for row in (result["exact"] or {}).get("rows", [])
    ]
    cases = result["rows"]
    return [
        *table(cases),
        "",
        *by_budget(cases),
        "",
        *(f"- {line}" for line in [*verdicts(cases), *losses(cases)]),
        *exact,
    ]
