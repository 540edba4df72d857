"""Means, percentiles, ratios and verdicts of rows."""

from __future__ import annotations

from typing import Any

import pytest

from xlm_broker.bench.summary import (
    against_kinds,
    by_budget,
    errors,
    figures,
    geomean,
    losses,
    over_limit,
    percentile,
    ratios,
    table,
    verdicts,
)


def row(token_ms: float, stock_ms: float | None, **more: Any) -> dict[str, Any]:
    other = None if stock_ms is None else {"token_ms": stock_ms, "ttft_ms": 2 * stock_ms, "request_ms": 3 * stock_ms}
    ours = {"token_ms": token_ms, "ttft_ms": token_ms, "request_ms": token_ms}
    base: dict[str, Any] = {
        "model": "dense", "card": "mid", "budget_share": 0.5, "depth": 512, "ours": ours, "ngl": other, "static": other,
        "limit": {"token_ms": token_ms / 2, "ttft_ms": token_ms / 1.05}, "predicted": {"token_ms": token_ms * 1.1},
    }  # fmt: skip
    return {**base, **more}


def test_geomean_of_a_ratio_and_its_inverse_is_one() -> None:
    assert geomean([4.0, 0.25]) == pytest.approx(1.0)
    assert geomean([]) is None
    assert geomean([2.0, float("inf"), 0.0]) == pytest.approx(2.0)


def test_percentiles_lie_between_the_ordered_values() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([0.0, 10.0], 0.95) == pytest.approx(9.5)
    assert percentile([], 0.5) is None


def test_a_baseline_that_fits_nowhere_gives_no_ratio() -> None:
    assert ratios([row(10, 20), row(10, None)], "ngl", "token_ms") == [2.0]


def test_a_figure_that_was_given_up_gives_no_ratio() -> None:
    stopped = row(10, 20)
    stopped["static"]["ttft_ms"] = None
    assert ratios([stopped], "static", "ttft_ms") == []


def test_errors_and_limits_are_relative_to_what_was_measured() -> None:
    rows = [row(10, 20)]
    assert errors(rows, "token_ms") == [pytest.approx(0.1)]
    assert errors(rows, "ttft_ms") == []
    assert over_limit(rows, "token_ms") == [2.0]


def test_the_chosen_plan_is_compared_with_the_fastest_pure_kind() -> None:
    kinds = {"static": {"request_ms": 8.0}, "gpu-only": {"request_ms": 12.0}}
    assert against_kinds([row(10, 20, kinds=kinds), row(10, 20)]) == [1.25]


def test_figures_count_what_was_lost_and_what_is_near_the_limit() -> None:
    found = figures([row(10, 20), row(10, 5)])
    assert (found["token_ms.static.lost"], found["token_ms.static.least"]) == (1, 0.5)
    assert (found["token_ms.within_10_percent"], found["ttft_ms.within_10_percent"]) == (0, 2)


def test_tables_and_verdicts_are_written_even_without_any_baseline() -> None:
    rows = [row(10, None)]
    assert all(line.count("|") == table(rows)[0].count("|") for line in table(rows))
    assert len(by_budget(rows)) == 3
    assert any("no rows" in line for line in verdicts(rows))


def test_losses_name_the_setting_and_what_is_known_of_why() -> None:
    places = {"cpu": 3, "stream": 2, "resident": 1}
    row_ = row(10, 5, prompt=64, decode_places=places, prompt_places=places, given_up=True)
    row_["static"] |= {"token_setting": r"-ngl 9 -ot blk\.(0|1|2|13)\.ffn_up=CPU --no-host", "ttft_setting": "-ngl 9"}
    words = losses([row_, row(10, 50)])
    assert len(words) == 1
    assert "0.50" in words[0]
    assert "blk.(0-13)" in words[0]
    assert "repacked" in words[0]
    assert "3 sub-layers on the CPU" in words[0]


def test_only_the_worst_losses_are_listed() -> None:
    places = {"cpu": 0, "stream": 0, "resident": 1}
    many = [row(10, 5, prompt=64, decode_places=places, prompt_places=places) for _ in range(20)]
    for lost in many:
        lost["static"] |= {"token_setting": "-ngl 1", "ttft_setting": "-ngl 1"}
    assert losses(many, most=3)[-1] == "… and 17 more"


def test_verdicts_say_reached_and_missed() -> None:
    words = verdicts([row(10, 30)])
    assert "3.00" in words[0]
    assert "reached" in words[0]
    assert "missed" in verdicts([row(10, 11)])[0]
