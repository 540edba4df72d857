from __future__ import annotations

from dataclasses import replace

from demo_runs import MIB, memory, turn, whole_run

from xlm_broker.demo.record import Memory, Recorder, after_change, memory_from_status
from xlm_broker.demo.story import story


def test_a_status_becomes_a_sample() -> None:
    sample = memory_from_status(
        2.5,
        {
            "budget": {"granted_bytes": 100, "demand_bytes": 500},
            "device": {"used_bytes": 90, "resident_bytes": 50, "kv_bytes": 20, "ring_bytes": 15, "scratch_bytes": 5},
            "throughput": {"bytes_streamed": 7, "tokens_generated": 3},
        },
    )
    assert sample == Memory(2.5, 100, 90, 50, 20, 15, 5, 7, 3, 0, 0)


def test_an_older_split_is_fitted_to_the_newer_total() -> None:
    sample = memory_from_status(
        2.5, {"budget": {"granted_bytes": 40, "used_bytes": 40, "resident_bytes": 60, "kv_bytes": 20, "ring_bytes": 0}}
    )
    assert (sample.used_bytes, sample.kv_bytes, sample.resident_bytes) == (40, 10, 30)


def test_a_status_without_figures_is_zeros_not_an_error() -> None:
    assert memory_from_status(1.0, {"device": {"used_bytes": None, "kv_bytes": float("nan")}}) == Memory(
        1.0, 0, 0, 0, 0, 0, 0, 0, 0, 0
    )


def test_after_a_reclaim_the_split_is_scaled_and_the_total_exact() -> None:
    sample = after_change(memory(1.0, 100 * MIB, 100 * MIB), 2.0, 30 * MIB, 25 * MIB)
    assert sample.used_bytes == 25 * MIB
    assert sample.budget_bytes == 30 * MIB
    parts = sample.resident_bytes + sample.kv_bytes + sample.ring_bytes + sample.scratch_bytes
    assert parts == sample.used_bytes
    assert sample.kv_bytes == 5 * MIB


def test_after_a_change_with_nothing_known_before_everything_counts_as_weights() -> None:
    sample = after_change(None, 0.5, 10, 4)
    assert (sample.used_bytes, sample.resident_bytes, sample.kv_bytes) == (4, 4, 0)


def test_after_a_grow_what_is_held_is_not_scaled_up() -> None:
    sample = after_change(memory(1.0, 10 * MIB, 10 * MIB), 2.0, 100 * MIB, 12 * MIB)
    assert sample.kv_bytes == 2 * MIB
    assert sample.used_bytes == 12 * MIB


def test_over_budget_counts_the_devices_events_and_answers_above_their_grant() -> None:
    record = whole_run()
    assert record.over_budget_events() == 0
    wrong = record.changes[1]
    record.changes.append(replace(wrong, used_bytes=1 << 40))
    assert record.over_budget_events() == 1
    record.memory.append(Memory(9.0, 1, 2, 2, 0, 0, 0, 0, 0, over_budget_events=3))
    assert record.over_budget_events() == 4


def test_speaking_means_in_mid_sentence() -> None:
    record = Recorder(story(30.0))
    assert not record.speaking()
    record.turns.append(turn("Greta", 0, 0.0, 3, ended=False))
    assert record.speaking()
    record.turns[-1].ended_s = 1.0
    assert not record.speaking()
