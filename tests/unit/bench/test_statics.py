"""Settings of stock llama.cpp: families, what fits, which are worth measuring, which is best."""

from __future__ import annotations

import re

from xlm_broker.bench.statics import (
    Family,
    Measured,
    Setting,
    Surveyed,
    Times,
    best,
    families,
    shortlist,
    without_device,
)

HERE = ("mid", "work")


def surveyed(name: str, low: Times, high: Times, *, plain: bool = False, used: tuple[int, int] = (0, 100)) -> Surveyed:
    family = Family(name, 10, lambda k: Setting(n_gpu_layers=k), plain=plain)
    return Surveyed(family, ({256: used[0]}, {256: used[1]}), ({HERE: low}, {HERE: high}))


def test_every_family_ends_with_everything_on_the_card() -> None:
    for family in families(22, experts=False) + families(24, experts=True):
        last = family.make(family.top)
        assert last.n_gpu_layers in (23, 25)
        assert last.on_cpu == ""


def test_overrides_name_the_feed_forward_weights_of_the_first_layers_only() -> None:
    family = next(f for f in families(4, experts=False) if f.name.startswith("-ot"))
    pattern = re.compile(family.make(2).on_cpu)
    assert pattern.search("blk.0.ffn_gate.weight")
    assert pattern.search("blk.1.ffn_down.weight")
    assert not pattern.search("blk.2.ffn_down.weight")
    assert not pattern.search("blk.0.attn_q.weight")


def test_overrides_of_a_mixture_leave_the_router_on_the_card() -> None:
    family = next(f for f in families(4, experts=True) if f.name.startswith("-ot"))
    pattern = re.compile(family.make(0).on_cpu)
    assert pattern.search("blk.3.ffn_up_exps.weight")
    assert not pattern.search("blk.3.ffn_gate_inp.weight")


def test_only_plain_settings_count_for_the_papers_baseline() -> None:
    fast = Measured(Setting(n_gpu_layers=3, repack=True), False, 10, Times(10, 1))
    plain = Measured(Setting(n_gpu_layers=3), True, 10, Times(20, 2))
    assert (found := best([fast, plain], 100, 64, plain=True)) is not None
    assert found.token is plain
    assert (found := best([fast, plain], 100, 64, plain=False)) is not None
    assert found.token is fast


def test_the_best_is_found_for_each_figure_apart_and_within_the_budget() -> None:
    candidates = [
        Measured(Setting(n_gpu_layers=1), True, 10, Times(10, 9)),
        Measured(Setting(n_gpu_layers=2), True, 20, Times(50, 5)),
        Measured(Setting(n_gpu_layers=3), True, 30, Times(1, 1)),
    ]
    found = best(candidates, 20, 64, plain=True)
    assert found is not None
    assert (found.ttft.setting.n_gpu_layers, found.token.setting.n_gpu_layers) == (1, 2)
    assert found.request.setting.n_gpu_layers == 2
    assert best(candidates, 5, 64, plain=True) is None


def test_memory_and_times_lie_on_the_line_between_the_ends() -> None:
    one = surveyed("a", Times(100, 10), Times(0, 0), used=(20, 120))
    assert [one.fitting(256, budget) for budget in (10, 20, 75, 120, 999)] == [-1, 0, 5, 10, 10]
    assert one.expected(5, HERE) == Times(50, 5)


def test_shortlist_has_plain_settings_and_whoever_is_near_the_best() -> None:
    plain = surveyed("plain", Times(100, 100), Times(50, 50), plain=True)
    near = surveyed("near", Times(100, 80), Times(50, 40))
    far = surveyed("far", Times(900, 900), Times(800, 800))
    no_room = surveyed("no room", Times(1, 1), Times(1, 1), used=(500, 900))
    names = [family.name for family, _ in shortlist([plain, near, far, no_room], 256, 100, [HERE])]
    assert names == ["plain", "near"]


def test_settings_read_as_options() -> None:
    assert Setting(n_gpu_layers=7, kv_on_device=False, offload=False, repack=True).words == (
        "-ngl 7 --no-kv-offload --no-op-offload --no-host"
    )
    assert len({setting.words for setting in without_device()}) == 2
