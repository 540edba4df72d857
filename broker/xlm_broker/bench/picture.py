"""Ratios over the budget as one PNG: a panel for tokens/s, one for the time to the first token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from xlm.errors import XlmError
from xlm_broker.bench.summary import Row, geomean, groups, ratios

# Okabe and Ito: told apart by colour-blind readers too
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_PANELS: Final = (("token_ms", "tokens/s"), ("ttft_ms", "time to the first token"))


def draw(rows: Sequence[Row], path: Path) -> None:
    """XlmError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise XlmError("a picture needs matplotlib", code="option_invalid", hint="pip install 'xlm[picture]'") from (
            error
        )
    figure = Figure(figsize=(12, 8), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(2, 2, sharex=True)
    for column, (figure_name, words) in enumerate(_PANELS):
        for line, base in enumerate(("ngl", "static")):
            _panel(grid[line][column], rows, base, figure_name)
        grid[0][column].set_title(f"{words}: times faster than the best -ngl")
        grid[1][column].set_title(f"{words}: times faster than the best static setting")
        grid[1][column].set_xlabel("budget, part of the model file")
    grid[0][0].legend(fontsize=8, ncols=2)
    figure.suptitle(
        "xlm against stock llama.cpp, modelled cards: geometric means over prompts and depths, with the limit"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _panel(axes: Any, rows: Sequence[Row], base: str, figure: str) -> None:
    names = list(groups(rows, lambda row: (row["model"], row["card"])))
    for index, name in enumerate(names):
        part = [row for row in rows if (row["model"], row["card"]) == name]
        by = sorted(groups(part, lambda row: (row["budget_share"],)).items())
        points = [(share, geomean(ratios(some, base, figure))) for (share,), some in by]
        limits = [(share, geomean(_limits(some, base, figure))) for (share,), some in by]
        colour, mark = _COLOURS[index % len(_COLOURS)], "os^Dvx"[index // len(_COLOURS) % 6]
        _plot(axes, points, colour, mark, "-", ", ".join(name))
        _plot(axes, limits, colour, "", ":", None)
    axes.axhline(1.0, color="#5f6770", linewidth=1)
    axes.set_yscale("log")
    axes.set_yticks([0.5, 1, 1.5, 2, 3, 5, 10], labels=["0.5", "1", "1.5", "2", "3", "5", "10"])
    axes.grid(axis="y", alpha=0.3)


def _plot(
    axes: Any, points: Sequence[tuple[float, float | None]], colour: str, mark: str, style: str, label: str | None
) -> None:
    known = [(x, y) for x, y in points if y is not None]
    axes.plot(
        [x for x, _ in known], [y for _, y in known], color=colour, marker=mark, markersize=4, linestyle=style,
        label=label, linewidth=1.4,
    )  # fmt: skip


def _limits(rows: Sequence[Row], base: str, figure: str) -> list[float]:
    pairs = [((row.get(base) or {}).get(figure), row["limit"].get(figure)) for row in rows]
    return [other / limit for other, limit in pairs if other and limit]
