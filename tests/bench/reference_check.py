"""Predictions of the timing model against published measurements, row by row.

    python -m tests.bench.reference_check FOLDER [--json FILE]

FOLDER holds machines.csv, models.json, llama_cpp_ngl_baseline_*.csv and pipelined_sharding_*.csv (not part of this
repository). Two questions, answered apart:

  stock    llama.cpp with a known n_gpu_layers: the plan is given, so the error is the timing model's alone.
  sharding the paper's planner at a budget: its plan is not known; ours is compared, so that the difference holds the
           timing model's error and that of the plans. A prediction above the measurement may be either.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import median

from tests.bench.stock_model import stock_times
from xlm_broker.planner.sharding.costs import Capabilities
from xlm_broker.planner.sharding.hardware import Machine, machine_from_row
from xlm_broker.planner.sharding.plan import Planning, make_plan, prepare
from xlm_broker.planner.sharding.shapes import model_work, shape_from_entry
from xlm_broker.planner.sharding.workload import Workload

PAPER_UBATCH = 1024
CAPABILITIES = Capabilities(kv_streaming=True)


@dataclass(frozen=True)
class Row:
    kind: str
    case: str
    predicted_tps: float
    measured_tps: float
    predicted_ttft_ms: float
    measured_ttft_ms: float

    @property
    def tps_error(self) -> float:
        return self.predicted_tps / self.measured_tps - 1

    @property
    def ttft_error(self) -> float:
        return self.predicted_ttft_ms / self.measured_ttft_ms - 1


class Reference:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._models = json.loads((folder / "models.json").read_text(encoding="utf-8"))
        self._machines = {row["machine"]: machine_from_row(row) for row in _rows(folder / "machines.csv")}

    @cache  # noqa: B019 - one instance, as long as the program
    def planning(self, machine: str, model: str, context: int, prompt: int, ubatch: int) -> Planning:
        shape = shape_from_entry(model, self._models[model])
        work = model_work(shape, n_ctx=context, n_ubatch=ubatch)
        return prepare(work, self.machine(machine), Workload(prompt_tokens=prompt), capabilities=CAPABILITIES)

    def machine(self, name: str) -> Machine:
        return self._machines[name]

    def stock(self) -> Iterator[Row]:
        for path in sorted(self._folder.glob("llama_cpp_ngl_baseline_*.csv")):
            yield from (self._stock_row(row) for row in _rows(path))

    def _stock_row(self, row: Mapping[str, str]) -> Row:
        prompt, ubatch = int(row["prompt_tokens"]), int(row["ubatch"])
        planning = self.planning(row["machine"], row["model"], int(row["context_tokens"]), prompt, ubatch)
        tps, ttft_ms = stock_times(planning, int(row["n_gpu_layers"]))
        case = f"{row['model']} context {row['context_tokens']} ubatch {ubatch} ngl {row['n_gpu_layers']}"
        return Row("stock", case, tps, float(row["decode_tps"]), ttft_ms, 1e3 * prompt / float(row["prompt_tps"]))

    def sharding(self) -> Iterator[Row]:
        for path in sorted(self._folder.glob("pipelined_sharding_*.csv")):
            yield from (self._sharding_row(row) for row in _rows(path))

    def _sharding_row(self, row: Mapping[str, str]) -> Row:
        context, budget = int(row["context_tokens"]), int(row["budget_mib"]) << 20
        plan = make_plan(self.planning(row["machine"], row["model"], context, context, PAPER_UBATCH), budget)
        case = f"{row['model']} context {context} budget {row['budget_mib']} MiB"
        return Row("sharding", case, plan.decode_tps, float(row["tps"]), plan.ttft_ms, float(row["ttft_ms"]))


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _print(rows: list[Row]) -> None:
    for row in rows:
        print(
            f"{row.kind:9}{row.case:55}"
            f"{row.predicted_tps:8.2f} of {row.measured_tps:7.2f} t/s {row.tps_error:+7.1%}"
            f"{row.predicted_ttft_ms:10.0f} of {row.measured_ttft_ms:7.0f} ms {row.ttft_error:+7.1%}"
        )


def _summary(kind: str, rows: list[Row]) -> dict[str, float | str | int]:
    result: dict[str, float | str | int] = {"kind": kind, "rows": len(rows)}
    for name, errors in (("tps", [r.tps_error for r in rows]), ("ttft", [r.ttft_error for r in rows])):
        size = sorted(abs(error) for error in errors)
        result[f"{name}_median_error"] = median(size)
        result[f"{name}_p95_error"] = size[min(len(size) - 1, int(0.95 * len(size)))]
        result[f"{name}_median_bias"] = median(errors)
    return result


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, help="write every row and the summaries there")
    options = parser.parse_args(arguments)
    reference = Reference(options.folder)
    groups = {"stock": list(reference.stock()), "sharding": list(reference.sharding())}
    for rows in groups.values():
        _print(rows)
    summaries = [_summary(kind, rows) for kind, rows in groups.items() if rows]
    for summary in summaries:
        print(", ".join(f"{k} {v:.1%}" if isinstance(v, float) else f"{k} {v}" for k, v in summary.items()))
    if options.json:
        every = [
            {**asdict(r), "tps_error": r.tps_error, "ttft_error": r.ttft_error} for g in groups.values() for r in g
        ]
        options.json.write_text(json.dumps({"rows": every, "summaries": summaries}, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
