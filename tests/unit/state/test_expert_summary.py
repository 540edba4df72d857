"""Experts in the status."""

from __future__ import annotations

from xlm.protocol import link
from xlm_broker.state.expert_summary import experts_summary

from .test_status import playing


def layer(index: int, mode: str = "slots", hits: int = 0, misses: int = 0) -> link.ExpertStats:
    return link.ExpertStats(
        index=index, layer=index, mode=mode, n_experts=8, n_slots=3, slot_bytes=300, n_hits=hits, n_misses=misses
    )


def test_layers_are_added_up() -> None:
    found = experts_summary([layer(2, hits=30, misses=10), layer(4, hits=10, misses=30), layer(6, "whole_window")])
    assert found is not None
    assert (found["layers"], found["of_a_layer"], found["n_slots"], found["slot_bytes"]) == (3, 8, 9, 900)
    assert (found["hit_rate"], found["modes"]) == (0.5, {"slots": 2, "whole_window": 1})
    assert "no memory for slots" in found["whole_because"]


def test_a_model_without_experts_and_one_without_steps() -> None:
    assert experts_summary([]) is None
    found = experts_summary([layer(1)])
    assert found is not None
    assert (found["hit_rate"], found["whole_because"]) == (None, "")


def test_the_status_keeps_the_last_figures_told() -> None:
    world = playing()
    assert world.status().device["experts"] is None
    world.engine_says(world.engine.stats(experts=[layer(1, hits=1)]))
    world.engine_says(world.engine.stats())
    assert world.status().device["experts"]["hit_rate"] == 1.0
