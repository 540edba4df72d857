"""Stock llama.cpp uses the virtual GPU like any card: same tokens, honest limits, no aborts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import _stock

ROOMY = "vram=1GiB,link=0"
# Fast enough that a step costs no noticeable time.
MODELLED = "mode=modelled,vram=1GiB,link=1e12,latency=0,flops=1e15,membw=1e14,op_launch=0,graph_launch=0"


@pytest.fixture(scope="module")
def plain() -> list[int]:
    """Greedy tokens of plain llama.cpp on the CPU."""
    outcome = _stock.run(_stock.Run(settings=None))
    assert outcome.stage == "done"
    assert len(set(outcome.tokens)) > 4
    return outcome.tokens


@pytest.fixture(scope="module")
def all_layers() -> _stock.Outcome:
    return _stock.run(_stock.Run(settings=ROOMY, n_gpu_layers=999))


@pytest.mark.parametrize("n_gpu_layers", [0, 15])
def test_exact_mode_gives_the_tokens_of_the_cpu(plain: list[int], n_gpu_layers: int) -> None:
    outcome = _stock.run(_stock.Run(settings=ROOMY, n_gpu_layers=n_gpu_layers))
    assert outcome.tokens == plain
    assert (outcome.model_bytes > 0) == (n_gpu_layers > 0)
    assert outcome.counters["used_bytes"] == 0  # all of it given back


def test_exact_mode_with_all_layers(plain: list[int], all_layers: _stock.Outcome) -> None:
    assert all_layers.tokens == plain
    assert all_layers.counters["n_graphs"] >= len(plain)
    assert all_layers.counters["h2d_bytes"] > all_layers.model_bytes * 0.9
    assert all_layers.counters["n_frees_in_use"] == 0
    assert all_layers.counters["peak_bytes"] >= all_layers.context_bytes > all_layers.model_bytes


@pytest.mark.parametrize("n_gpu_layers", [0, 15, 999])
def test_modelled_mode_runs_without_meaning(n_gpu_layers: int) -> None:
    outcome = _stock.run(_stock.Run(settings=MODELLED, n_gpu_layers=n_gpu_layers))
    assert outcome.stage == "done"
    assert len(outcome.tokens) == 16
    assert (outcome.counters["compute_ns"] > 0) == (n_gpu_layers > 0)


def test_a_model_over_the_cap_is_an_error_code(all_layers: _stock.Outcome) -> None:
    vram = all_layers.model_bytes - 1
    outcome = _stock.run(_stock.Run(settings=f"vram={vram},link=0", n_gpu_layers=999))
    assert outcome.stage == "model"
    assert outcome.counters["n_alloc_failed"] > 0
    assert outcome.counters["used_bytes"] == 0


@pytest.mark.parametrize("short_bytes", [1, 1 << 20, 1 << 22])
def test_a_context_over_the_cap_is_an_error_code(all_layers: _stock.Outcome, short_bytes: int) -> None:
    vram = all_layers.context_bytes - short_bytes
    outcome = _stock.run(_stock.Run(settings=f"vram={vram},link=0", n_gpu_layers=999))
    assert outcome.stage == "context"
    assert outcome.counters["n_alloc_failed"] > 0


@pytest.mark.parametrize("mode", [ROOMY, MODELLED])
def test_a_lost_device_is_an_error_code(mode: str) -> None:
    outcome = _stock.run(_stock.Run(settings=mode, n_gpu_layers=15, lose_after_graphs=3))
    assert outcome.stage == "decode"
    assert outcome.counters["n_graphs_failed"] > 0
    assert outcome.counters["lost"] == 1


def test_bad_settings_do_not_become_a_device() -> None:
    assert _stock.run(_stock.Run(settings="vram=lots")).stage == "registry"
