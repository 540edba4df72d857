"""How long planning takes: all tiers of a dense and of a 94-layer sparse model, one core, by CPU time.

    python -m tests.bench.plan_time [--repeat N] [--json FILE]

Shapes and machines are examples of their class (tests/unit/planner/sharding/examples.py). The goal is 16.7 ms, one
frame at 60 Hz. Costs are computed once for a model and counted apart. The fastest of the repeats is reported: what
the machine does beside adds to the others.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.unit.planner.sharding import examples
from xlm_broker.planner.sharding.plan import Planning, make_plan
from xlm_broker.planner.sharding.planner import engine_capabilities

GOAL_MS = 16.7
BUDGETS_GIB = (1, 2, 4, 8, 16, 24)
MODELS = {"dense, 40 layers": examples.DENSE, "sparse, 94 layers": examples.SPARSE}
MACHINES = {"desktop": examples.DESKTOP, "laptop": examples.LAPTOP}


def least_ms(call: Callable[[], Any], repeat: int) -> tuple[float, Any]:
    best, result = float("inf"), None
    for _ in range(repeat):
        start = time.process_time()
        result = call()
        best = min(best, time.process_time() - start)
    return 1e3 * best, result


def prepared(entry: dict[str, Any], row: dict[str, Any]) -> Planning:
    return examples.planning(entry, row, capabilities=engine_capabilities())


def measure(repeat: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for model, entry in MODELS.items():
        for machine, row in MACHINES.items():
            prepare_ms, planning = least_ms(lambda e=entry, r=row: prepared(e, r), repeat)  # type: ignore[misc]
            for budget in BUDGETS_GIB:
                ms, plan = least_ms(lambda p=planning, b=budget: make_plan(p, b << 30), repeat)  # type: ignore[misc]
                case = {"model": model, "machine": machine, "budget_gib": budget, "tiers": len(planning.tiers)}
                rows.append({**case, "prepare_ms": prepare_ms, "plan_ms": ms, "gap": plan.solution.gap})
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    rows = measure(options.repeat)
    for row in rows:
        print(
            f"{row['model']:18} {row['machine']:8} {row['budget_gib']:3} GiB  {row['tiers']} tiers"
            f"  costs {row['prepare_ms']:5.2f} ms  plan {row['plan_ms']:6.2f} ms  gap to the bound {row['gap']:6.1%}"
        )
    slow = sum(row["plan_ms"] > GOAL_MS for row in rows)
    print(f"{len(rows) - slow} of {len(rows)} within {GOAL_MS} ms")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
