"""Rows of results to figures: ratios, means, who wins. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import exp, isfinite, log
from typing import Any, Final

Row = Mapping[str, Any]
TIMES: Final = "\N{MULTIPLICATION SIGN}"


def geomean(values: Iterable[float]) -> float | None:
    """Of the positive finite ones; None without any."""
    logs = [log(value) for value in values if value > 0 and isfinite(value)]
    return exp(sum(logs) / len(logs)) if logs else None


def percentile(values: Sequence[float], share: float) -> float | None:
    """Linear between the ordered values; None without any."""
    ordered = sorted(values)
    if not ordered:
        return None
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def ratio(row: Row, base: str, figure: str) -> float | None:
    """How many times faster ours is than a baseline; None where one of them has no figure."""
    ours, other = row["ours"].get(figure), (row.get(base) or {}).get(figure)
    return other / ours if ours and other else None


def ratios(rows: Iterable[Row], base: str, figure: str) -> list[float]:
    return [value for row in rows if (value := ratio(row, base, figure)) is not None]


def errors(rows: Iterable[Row], figure: str) -> list[float]:
    """|predicted / measured - 1|."""
    measured = (row for row in rows if not (row.get("given_up") and figure != "token_ms"))
    pairs = [(row.get("predicted", {}).get(figure), row["ours"].get(figure)) for row in measured]
    return [abs(p / m - 1.0) for p, m in pairs if p and m]


def over_limit(rows: Iterable[Row], figure: str) -> list[float]:
    pairs = [(row.get("limit", {}).get(figure), row["ours"].get(figure)) for row in rows]
    return [m / limit for limit, m in pairs if limit and m]


def against_kinds(rows: Iterable[Row]) -> list[float]:
    """Chosen plan over the fastest pure kind, by the whole request; above 1 the choice was slower."""
    found = []
    for row in rows:
        kinds = [ms for k in (row.get("kinds") or {}).values() if (ms := k.get("request_ms"))]
        if kinds:
            found.append(row["ours"]["request_ms"] / min(kinds))
    return found


def groups(rows: Sequence[Row], key: Callable[[Row], tuple[Any, ...]]) -> dict[tuple[Any, ...], list[Row]]:
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def figures(rows: Sequence[Row]) -> dict[str, Any]:
    """All that is said of a set of rows."""
    result: dict[str, Any] = {"rows": len(rows)}
    for figure in ("token_ms", "ttft_ms", "request_ms"):
        for base in ("ngl", "static"):
            found = ratios(rows, base, figure)
            result[f"{figure}.{base}.geomean"] = geomean(found)
            result[f"{figure}.{base}.least"] = min(found, default=None)
            result[f"{figure}.{base}.lost"] = sum(value < 1.0 for value in found)
            result[f"{figure}.{base}.rows"] = len(found)
    for figure in ("token_ms", "ttft_ms"):
        over, off = over_limit(rows, figure), errors(rows, figure)
        bound = [a / b for row in rows if (a := (row.get("ngl") or {}).get(figure)) and (b := row["limit"].get(figure))]
        result[f"{figure}.over_limit.median"] = percentile(over, 0.5)
        result[f"{figure}.within_10_percent"] = sum(value <= 1.1 for value in over)
        result[f"{figure}.limit_over_ngl.geomean"] = geomean(bound)
        result[f"{figure}.error.median"], result[f"{figure}.error.p95"] = percentile(off, 0.5), percentile(off, 0.95)
    kinds = against_kinds(rows)
    result["kinds.rows"], result["kinds.worst"] = len(kinds), max(kinds, default=None)
    result["kinds.within_2_percent"] = sum(value <= 1.02 for value in kinds)
    return result


# -- words -----------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> list[str]:
    """Markdown: one line for each model and card, and one for all."""
    head = [
        "| model, card | rows | tokens/s ÷ best -ngl | least | ÷ best static | least | first token ÷ best -ngl | least "
        "| ÷ best static | least | step ÷ limit | first token ÷ limit |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    by = groups(rows, lambda row: (row["model"], row["card"]))
    lines = [_line(", ".join(map(str, name)), figures(part)) for name, part in by.items()]
    return [*head, *lines, _line("**all**", figures(rows))]


def _line(name: str, f: Mapping[str, Any]) -> str:
    cells = [name, str(f["rows"])]
    for figure in ("token_ms", "ttft_ms"):
        for base in ("ngl", "static"):
            cells += [_times(f[f"{figure}.{base}.geomean"]), _times(f[f"{figure}.{base}.least"])]
    cells += [_times(f["token_ms.over_limit.median"]), _times(f["ttft_ms.over_limit.median"])]
    return "| " + " | ".join(cells) + " |"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} {TIMES}"


def by_budget(rows: Sequence[Row]) -> list[str]:
    """Where what is won: by budget and depth, over all models and cards."""
    head = [
        "| budget | depth | tokens/s ÷ best -ngl | ÷ best static | first token ÷ best -ngl | ÷ best static | lost |"
    ]
    head.append("|---|---|---|---|---|---|---|")
    lines = []
    for (share, depth), part in sorted(groups(rows, lambda r: (r["budget_share"], r["depth"])).items()):
        f = figures(part)
        lost = sum(f[f"{figure}.static.lost"] for figure in ("token_ms", "ttft_ms"))
        cells = [f"{share:.0%}", str(depth), *(_times(f[f"{x}.{b}.geomean"]) for x in ("token_ms", "ttft_ms")
                 for b in ("ngl", "static")), str(lost)]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return head + lines


def losses(rows: Sequence[Row], most: int = 12) -> list[str]:
    """Rows in which a static setting was faster, the worst first, each with the setting and what is known of why."""
    lost = [
        (value, figure, row)
        for row in rows
        for figure in ("token_ms", "ttft_ms")
        if (value := ratio(row, "static", figure)) is not None and value < 1.0
    ]
    lost.sort(key=lambda entry: entry[0])
    lines = [_loss(value, figure, row) for value, figure, row in lost[:most]]
    return [*lines, f"… and {len(lost) - most} more"] if len(lost) > most else lines


def _loss(value: float, figure: str, row: Row) -> str:
    name = "tokens/s" if figure == "token_ms" else "first token"
    case = f"{row['model']}, {row['card']}, {row['budget_share']:.0%}, prompt {row['prompt']}, depth {row['depth']}"
    setting = row["static"][figure.replace("_ms", "_setting")]
    return f"{case}: {name} {value:.2f} {TIMES} of `{_short(setting)}`; {_why(figure, row, setting)}"


def _why(figure: str, row: Row, setting: str) -> str:
    places = row["decode_places" if figure == "token_ms" else "prompt_places"]
    over = row["ours"][figure] / row["limit"][figure]
    reasons = [f"ours has {places['cpu']} sub-layers on the CPU, {places['stream']} streamed"]
    reasons += ["the baseline's CPU weights are repacked, ours cannot be"] if "--no-host" in setting else []
    reasons += ["given up, counted as predicted"] if row.get("given_up") and figure == "ttft_ms" else []
    return ", ".join([*reasons, f"{over:.2f} {TIMES} its limit"])


def _short(setting: str) -> str:
    """Lists of layers are long."""
    return re.sub(r"blk\\\.\(([0-9]+)\|[0-9|]*?([0-9]+)\)", r"blk.(\1-\2)", setting)


def verdicts(rows: Sequence[Row]) -> list[str]:
    """The goals of the project, and whether these rows reach them."""
    f = figures(rows)
    goals = [
        ("tokens/s against the best -ngl, geomean", "token_ms.ngl.geomean", 2.25, "token_ms.limit_over_ngl.geomean"),
        ("first token against the best -ngl, geomean", "ttft_ms.ngl.geomean", 1.82, "ttft_ms.limit_over_ngl.geomean"),
        ("tokens/s against the best static setting, least", "token_ms.static.least", 1.0, ""),
        ("first token against the best static setting, least", "ttft_ms.static.least", 1.0, ""),
    ]
    return [
        *(_goal(what, f[value], goal, f.get(possible)) for what, value, goal, possible in goals),
        f"within 10 % of the limit: {f['token_ms.within_10_percent']} of {f['rows']} rows (tokens/s), "
        f"{f['ttft_ms.within_10_percent']} (first token)",
        f"prediction, error of tokens/s: median {_percent(f['token_ms.error.median'])}, p95 "
        f"{_percent(f['token_ms.error.p95'])}; first token: median {_percent(f['ttft_ms.error.median'])}, p95 "
        f"{_percent(f['ttft_ms.error.p95'])}",
        f"chosen plan against the best pure kind: within 2 % in {f['kinds.within_2_percent']} of {f['kinds.rows']} "
        f"rows, at worst {_times(f['kinds.worst'])}",
    ]  # fmt: skip


def _goal(what: str, value: float | None, goal: float, possible: float | None) -> str:
    if value is None:
        return f"{what}: no rows"
    most = f"; the limit allows {possible:.2f} {TIMES}" if possible is not None else ""
    return f"{what}: {value:.2f} {TIMES} (goal {goal:.2f} {TIMES}, {'reached' if value >= goal else 'missed'}{most})"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
