"""Both sides measured again: who meets whom, and what counts."""

from __future__ import annotations

from math import inf

from xlm_broker.bench.duel import Met, in_turn, is_near, meet_the_best, with_met
from xlm_broker.bench.statics import Best, Measured, Setting, Times

A, B, C = (Setting(n_gpu_layers=n) for n in (1, 2, 3))


def meetings(stock: dict[Setting, float]) -> tuple[list[Setting], list[Met]]:
    """The sweep said A 10, B 11, C 30; now they take what ``stock`` says."""
    met: list[Setting] = []

    def meet(setting: Setting) -> Met:
        met.append(setting)
        return Met(setting, 10.0, stock[setting])

    return met, meet_the_best([(30.0, C), (11.0, B), (10.0, A)], meet)


def test_only_who_is_near_the_other_meets_it() -> None:
    assert is_near(10.0, 19.0)
    assert is_near(19.0, 10.0)
    assert not is_near(10.0, 21.0)
    assert not is_near(inf, 10.0)


def test_the_best_of_the_sweep_stands_where_no_other_was_faster_than_it_is_now() -> None:
    met, found = meetings({A: 10.5})
    assert met == [A]
    assert [(one.setting, one.stock_ns) for one in found] == [(A, 10.5)]


def test_a_lucky_best_gives_way_to_the_next() -> None:
    met, found = meetings({A: 14.0, B: 12.0})
    assert met == [A, B]
    assert [(one.setting, one.stock_ns) for one in found] == [(B, 12.0), (A, 14.0)]
    met, found = meetings({A: 14.0, B: 15.0})
    assert met == [A, B]
    assert found[0].setting == A


def test_a_meeting_that_was_stopped_counts_for_nobody() -> None:
    met, found = meetings({A: inf, B: 12.0})
    assert met == [A, B]
    assert [one.setting for one in found] == [B]


def test_of_each_step_the_faster_round_counts_and_one_that_was_stopped_is_none() -> None:
    ours = iter([{"mid": {"x": 5.0, "y": 0.0}}, {"mid": {"x": 4.0, "y": 9.0}}])
    stock = iter([{"mid": {"x": 3.0, "y": 0.0}}, {"mid": {"x": 7.0, "y": 0.0}}])
    assert in_turn(lambda: next(ours), lambda: next(stock)) == {
        "ours": {"mid": {"x": 4.0, "y": 9.0}},
        "stock": {"mid": {"x": 3.0, "y": inf}},
    }


def test_a_row_shows_what_the_meetings_gave() -> None:
    first = Measured(A, True, 0, Times(100.0, 10.0))
    again = {"token_ns": [Met(C, 9.0, 12.0), Met(B, 9.0, 13.0)]}
    static = with_met(Best(first, first, first), again, plain=False)
    assert static is not None
    assert (static.token.setting, static.token.times.token_ns, static.ttft) == (C, 12.0, first)


def test_another_baseline_keeps_its_choice_with_what_it_took_when_it_was_met() -> None:
    first, second = (Measured(s, True, 0, Times(100.0, 10.0)) for s in (A, B))
    again = {"token_ns": [Met(C, 9.0, 12.0), Met(B, 9.0, 13.0)]}
    ngl = with_met(Best(first, second, second), again, plain=True)
    assert ngl is not None
    assert (ngl.token.setting, ngl.token.times.token_ns, ngl.request.times) == (B, 13.0, Times(100.0, 13.0))
    assert with_met(Best(first, first, first), again, plain=True) == Best(first, first, first)
