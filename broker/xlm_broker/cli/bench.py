"""``xlm bench``: ours against stock llama.cpp, side by side on modelled cards."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import platformdirs
import typer

from xlm.errors import RequestError
from xlm_broker.bench.cards import MACHINES
from xlm_broker.bench.grid import QUICK, UBATCH, Grid
from xlm_broker.bench.picture import draw
from xlm_broker.bench.run import Bench, Options
from xlm_broker.bench.summary import by_budget, losses, table, verdicts
from xlm_broker.bench.traced import traced_step
from xlm_broker.cli.common import ended_like_ctrl_c

UNFINISHED: Final = 75  # status where --for-at-most-s ended the run: start again
_CARDS: Final = tuple(str(row["machine"]) for row in MACHINES)


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="One card, two budgets: some minutes.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the rows, one a case, to this file.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw ratios over the budget as a PNG.")] = None,
    models: Annotated[str, typer.Option(help="dense, moe, real, or GGUF files; with commas.  [all three]")] = "",
    cards: Annotated[str, typer.Option(help="laptop, mid, top; with commas.  [all three]")] = "",
    budgets: Annotated[str, typer.Option(help="Parts of the model file, as 0.1,0.5.  [0.1 to 1.1]")] = "",
    prompts: Annotated[str, typer.Option(help="Tokens of the prompt.  [64,512,4096]")] = "",
    depths: Annotated[str, typer.Option(help="Positions in the cache behind it.  [512,4096,16384]")] = "",
    thin: Annotated[int, typer.Option(min=1, max=8, help="Only every so many-th case, in diagonals.")] = 1,
    for_at_most_s: Annotated[
        float, typer.Option(min=0, help="End after so many seconds; the next run goes on there.  [0: no end]")
    ] = 0.0,
    threads: Annotated[int, typer.Option(min=0, max=1024, help="CPU threads of both sides.  [0: cores]")] = 0,
    work: Annotated[Path | None, typer.Option(help="Folder for models, profiles and what was measured.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what was measured before.")] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Only record one step of the first case, for chrome://tracing or Perfetto.")
    ] = None,
    trace_tokens: Annotated[int, typer.Option(min=1, max=UBATCH, help="Tokens of that step.")] = 1,
    exact: Annotated[bool, typer.Option(help="Also compare tokens with exact compute (the real model).")] = True,
) -> None:
    """Compares the planner's schedules with the best settings of stock llama.cpp, found by sweep.

    Both run the same model on the same virtual card with the same budget, threads and step size; the card's time is
    modelled, the CPU's is real. Close everything else first. An interrupted run goes on where it was;
    one that --for-at-most-s ended has status 75.

    Examples:

      xlm bench --quick

      xlm bench --json rows.json --picture rows.png

      xlm bench --quick --trace step.json

      until xlm bench --thin 4 --for-at-most-s 270 --json rows.json; do [ $? = 75 ] || break; done
    """
    grid = replace(_grid(QUICK if quick else Grid(), models, cards, budgets, prompts, depths), thin=thin)
    if not grid.works():
        raise RequestError("no prompt is as short as a depth", code="option_invalid")
    folder = (work or Path(platformdirs.user_cache_path("xlm")) / "bench").absolute()
    if trace is not None:
        with ended_like_ctrl_c():
            _write_json(traced_step(grid, folder, threads, trace_tokens, _say), trace)
        return
    run = Bench(
        Options(grid=grid, folder=folder, threads=threads, fresh=fresh, exact=exact, for_at_most_s=for_at_most_s), _say
    )
    with ended_like_ctrl_c():
        run.run(lambda now: _write(now, json_file))
    _write(run, json_file)
    if picture is not None and run.rows:
        draw(run.rows, picture)
    print("\n".join(document(run)))
    if not run.complete:
        raise typer.Exit(UNFINISHED)


def document(run: Bench) -> list[str]:
    """What is printed: tables and verdicts, in Markdown."""
    lines = [*table(run.rows), "", *by_budget(run.rows), ""]
    lines += [f"- {line}" for line in [*verdicts(run.rows), *losses(run.rows)]]
    for row in (run.exact or {}).get("rows", []):
        equal = "equal tokens" if row["tokens_equal"] else "DIFFERENT TOKENS"
        lines.append(f"- exact compute, budget {row['budget_share']:.0%}: {equal}, {row['ratio']:.2f} of stock's speed")
    return lines


def _grid(grid: Grid, models: str, cards: str, budgets: str, prompts: str, depths: str) -> Grid:
    chosen = tuple(cards.split(",")) if cards else grid.cards
    if unknown := set(chosen) - set(_CARDS):
        raise RequestError(
            f"--cards {', '.join(sorted(unknown))}: known are {', '.join(_CARDS)}", code="option_invalid"
        )
    return replace(
        grid,
        models=tuple(models.split(",")) if models else grid.models,
        cards=chosen,
        shares=tuple(_numbers("--budgets", budgets)) or grid.shares,
        prompts=tuple(int(n) for n in _numbers("--prompts", prompts)) or grid.prompts,
        depths=tuple(int(n) for n in _numbers("--depths", depths)) or grid.depths,
    )


def _numbers(option: str, text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",") if part]
    except ValueError as error:
        raise RequestError(f"{option} {text} is no list of numbers", code="option_invalid") from error
    if any(not 0 < value < 1e6 for value in values):
        raise RequestError(f"{option} {text}: numbers above zero are wanted", code="option_invalid")
    return values


def _write(run: Bench, path: Path | None) -> None:
    if path is not None:
        _write_json(run.result(), path)


def _write_json(value: Any, path: Path) -> None:
    """Beside and renamed: a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(value, indent=1, allow_nan=False), encoding="utf-8")
    part.replace(path)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
