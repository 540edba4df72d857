"""Cases, contexts and steps; what was measured survives an interruption."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from xlm_broker.bench.cards import MACHINES, CpuTimes, scaled
from xlm_broker.bench.grid import QUICK, Grid, Work, depths_to_time, ttft_ns
from xlm_broker.bench.measure import name_of, steps_of, times_of
from xlm_broker.bench.store import OutOfTime, Store


def test_the_full_grid_has_six_budgets_and_every_prompt_that_fits_its_depth() -> None:
    grid = Grid()
    works = grid.works()
    assert len(works) == 8
    assert Work(4096, 512) not in works
    cases = list(grid.cases("dense", 1000))
    assert len(cases) == 3 * 6 * 8
    assert {case.budget_bytes for case in cases} == {100, 300, 500, 700, 900, 1100}
    assert grid.contexts() == [768, 4352, 16640]


def test_the_survey_is_of_both_ends() -> None:
    assert Grid().survey() == [Work(512, 512), Work(512, 16384)]
    assert QUICK.survey() == QUICK.works()


def test_the_quick_grid_is_a_part_of_the_full_one() -> None:
    full = Grid()
    assert set(QUICK.works()) <= set(full.works())
    assert set(QUICK.shares) <= set(full.shares)


def test_a_long_prompt_is_timed_at_both_ends_and_averaged() -> None:
    work = Work(4096, 16384)
    assert list(depths_to_time(work, 512)) == [(12288, 0), (15360, 1)]
    assert ttft_ns(10.0, 30.0, work.ubatches(512)) == 160.0
    assert ttft_ns(10.0, 10.0, 1) == 10.0


def test_steps_are_ordered_so_that_the_cache_is_filled_once() -> None:
    steps = steps_of([Work(64, 512), Work(512, 4096)], 512)
    deepest = [depth + tokens * lead for _, depth, tokens, lead in steps]
    assert deepest == sorted(deepest, reverse=True)
    assert ("decode", 512, 1, 0) in steps


def test_a_step_that_was_given_up_makes_its_figure_infinite() -> None:
    work = Work(512, 512)
    found = {name_of(("prefill", 0, 512, 0)): 0.0, name_of(("decode", 512, 1, 0)): 5.0}
    times = times_of(work, found, 512)
    assert (times.ttft_ns, times.token_ns) == (inf, 5.0)


def test_what_was_measured_is_measured_once(tmp_path: Path) -> None:
    calls: list[int] = []

    def measure() -> int:
        calls.append(1)
        return 7

    store = Store(tmp_path / "a" / "store.jsonl")
    assert [store.once(measure, "x", 1), store.once(measure, "x", 1)] == [7, 7]
    again = Store(tmp_path / "a" / "store.jsonl")
    assert again.once(measure, "x", 1) == 7
    assert again.once(measure, "x", 2) == 7
    assert len(calls) == 2


def test_a_torn_line_is_forgotten_and_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "store.jsonl"
    Store(path).put("kept", value={"a": 1})
    with path.open("a") as file:
        file.write('{"key": "torn", "val')
    store = Store(path)
    assert (len(store), store.get("torn")) == (1, None)
    store.put("next", value=None)
    assert len(Store(path)) == 2
    assert Store(path).get("kept") == {"a": 1}


def test_out_of_time_what_is_known_is_still_told(tmp_path: Path) -> None:
    path = tmp_path / "store.jsonl"
    Store(path).put("known", value=7)
    late = Store(path, until_s=1e-9)  # of a clock that is long past it
    assert late.once(lambda: 8, "known") == 7
    with pytest.raises(OutOfTime):
        late.once(lambda: 8, "new")
    assert Store(path).once(lambda: 8, "new") == 8  # with time it goes on there


def test_a_thin_grid_has_every_card_with_every_budget_and_work() -> None:
    whole, thin = Grid(), replace(Grid(), thin=3)
    cases = list(thin.cases("dense", 1000))
    assert set(cases) < set(whole.cases("dense", 1000))
    assert len(cases) * 3 == len(list(whole.cases("dense", 1000)))
    assert {(c.card, c.share) for c in cases} == {(c.card, c.share) for c in whole.cases("dense", 1000)}
    assert {(c.card, c.work) for c in cases} == {(c.card, c.work) for c in whole.cases("dense", 1000)}


def test_fresh_forgets(tmp_path: Path) -> None:
    path = tmp_path / "store.jsonl"
    Store(path).put("old", value=1)
    assert len(Store(path, fresh=True)) == 0


@pytest.mark.parametrize("row", MACHINES, ids=lambda row: str(row["machine"]))
def test_scaling_keeps_the_reference_machines_ratios(row: dict[str, object]) -> None:
    """Twice as slow a CPU, twice as slow a card and link."""
    one, two = scaled(row, CpuTimes(1e6, 1e8)), scaled(row, CpuTimes(2e6, 2e8))
    for name in ("link_bytes_s", "flops_s", "memory_bytes_s"):
        assert getattr(one, name) == pytest.approx(2 * getattr(two, name))


def test_cards_differ_as_their_machines_do() -> None:
    laptop, mid, top = (scaled(row, CpuTimes(1e6, 1e8)) for row in MACHINES)
    # 13 GB/s beside 119.5, 50 beside 57.6, 50 beside 153.6 GB/s of memory
    assert mid.link_bytes_s / laptop.link_bytes_s == pytest.approx((50 / 57.6) / (13 / 119.5), rel=0.1)
    assert mid.link_bytes_s / top.link_bytes_s == pytest.approx(153.6 / 57.6, rel=0.1)
    assert laptop.memory_bytes_s < min(mid.memory_bytes_s, top.memory_bytes_s)
