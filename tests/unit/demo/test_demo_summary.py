from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from demo_runs import ABOUT, DEMAND_BYTES, MIB, turn, whole_run

from xlm_broker.demo.record import Frame
from xlm_broker.demo.summary import (
    busy_words,
    failed,
    frame_times,
    headline,
    mib,
    page,
    percentile,
    speaking_seconds,
    summarise,
    tokens_between,
    verdicts,
)
from xlm_broker.demo.verify import Comparison, compare


def test_percentiles_are_nearest_rank() -> None:
    values = [float(n) for n in range(1, 101)]
    assert percentile(values, 50) == 50.0
    assert percentile(values, 99) == 99.0
    assert percentile(values, 0) == 1.0
    assert percentile([7.0], 99) == 7.0
    assert percentile([], 50) is None


def test_frame_times_count_late_frames() -> None:
    frames = [Frame(0.0, 3.0, 2.0)] * 98 + [Frame(0.0, 17.0, 16.0)] * 2
    figures = frame_times(frames)
    assert figures == {"count": 100, "p50_ms": 3.0, "p99_ms": 17.0, "max_ms": 17.0, "late": 2, "work_p50_ms": 2.0}


def test_speaking_time_counts_overlaps_once_and_silence_not_at_all() -> None:
    one, two = turn("Greta", 0, 0.0, 10), turn("Odo", 0, 0.5, 10)  # 0.0 to 1.0 and 0.5 to 1.5
    assert speaking_seconds([one, two], 0.0, 10.0) == pytest.approx(1.5)
    assert speaking_seconds([one, two], 1.0, 1.2) == pytest.approx(0.2)
    slow = turn("Greta", 0, 0.0, 3, every_s=5.0)  # five seconds between tokens is silence
    assert speaking_seconds([slow], 0.0, 20.0) == 0.0


def test_tokens_between_takes_the_start_and_not_the_end() -> None:
    turns = [turn("Greta", 0, 0.0, 4, every_s=0.25)]  # at 0.25, 0.5, 0.75, 1.0
    assert tokens_between(turns, 0.25, 1.0) == 3


def test_the_summary_has_every_figure_and_is_strict_json() -> None:
    summary = summarise(whole_run(), ABOUT, Comparison(120, 0, 6))
    text = json.dumps(summary, allow_nan=False)
    assert json.loads(text) == summary
    assert summary["over_budget_events"] == 0
    assert summary["lossless"]["different"] == 0
    assert summary["frames"]["with_model"]["late"] == 1
    assert summary["frames"]["without_model"]["p50_ms"] == 2.0
    assert summary["tokens"] == {"total": 280, "Greta": 140, "Odo": 140}
    reclaims = [change for change in summary["budget_changes"] if change["reclaim"]]
    assert summary["reclaims"]["count"] == len(reclaims) == 4
    assert summary["reclaims"]["release_max_ms"] == 0.5
    assert summary["reclaims"]["answered_max_ms"] == summary["reclaims"]["answered_p50_ms"] == 1.5
    assert all({"from_bytes", "to_bytes", "release_ms", "deadline_met"} <= change.keys() for change in reclaims)
    assert summary["dialogues"][0]["answer"].startswith("word word")


def test_phase_figures() -> None:
    summary = summarise(whole_run(), ABOUT, None)
    menu, load = summary["phases"][:2]
    assert menu["budget_bytes"] == menu["used_bytes_max"] == DEMAND_BYTES
    assert menu["tokens_per_s"] == pytest.approx(10.0, rel=0.5)
    assert load["budget_bytes"] < menu["budget_bytes"]
    assert load["bytes_streamed"] == 4 * MIB
    assert sum(phase["tokens"] for phase in summary["phases"]) == summary["tokens"]["total"]


@pytest.mark.parametrize(
    ("over", "different", "bad"), [(0, 0, False), (1, 0, True), (0, 5, True)], ids=["good", "over", "changed"]
)
def test_broken_promises_fail_the_run(over: int, different: int, bad: bool) -> None:
    summary = summarise(whole_run(), ABOUT, Comparison(120, different, 6, "Odo, turn 2" if different else ""))
    summary["over_budget_events"] = over
    assert failed(summary) is bad
    assert ("FAILED" in [state for state, _ in verdicts(summary)]) is bad


def test_a_missed_deadline_is_late_and_no_failure() -> None:
    record = whole_run()
    record.changes[1] = replace(record.changes[1], deadline_met=False)
    summary = summarise(record, ABOUT, None)
    assert ("late", "3 of 4 reclaims met their deadline") in verdicts(summary)
    assert not failed(summary)


def test_a_replay_that_compared_nothing_proves_nothing() -> None:
    summary = summarise(whole_run(), ABOUT, Comparison(0, 0, 0))
    assert ("late", "lossless: no answer was complete in both runs, so nothing was compared") in verdicts(summary)
    assert "changed" not in headline(summary)


def test_headline_and_page_tell_the_figures() -> None:
    summary = summarise(whole_run(), ABOUT, Comparison(120, 0, 6))
    summary["timeline"] = "out/timeline.png"
    assert headline(summary) == (
        "The game took its VRAM back 4 times, each within 1.5 ms (broker: 0.5); 280 tokens spoken, "
        "0 of the 120 replayed changed."
    )
    text = "\n".join(page(summary, "out"))
    for words in ("boss fight", "0 of the 120 tokens replayed", "out/summary.json", "virtual GPU (exact mode)"):
        assert words in text
    assert "280 tokens (Greta 140, Odo 140)" in text
    assert "worst 20.0 ms, 1 over 16.7 ms" in text


def test_a_reclaim_that_found_nothing_to_take_is_not_counted_as_memory_taken_back() -> None:
    record = whole_run()
    first = next(number for number, change in enumerate(record.changes) if change.is_reclaim)
    record.changes[first] = replace(record.changes[first], used_before_bytes=0, used_bytes=0)
    summary = summarise(record, ABOUT, None)
    assert summary["reclaims"]["count"] == 3
    assert summary["reclaims"]["empty"] == 1
    assert headline(summary).startswith("The game took its VRAM back 3 times, each within ")
    assert ("ok", "3 of 3 reclaims met their deadline") in verdicts(summary)
    record.changes[first] = replace(record.changes[first], deadline_met=False)  # the game waited all the same
    summary = summarise(record, ABOUT, None)
    assert ("late", "3 of 4 reclaims met their deadline") in verdicts(summary)
    assert headline(summary).startswith("The game took its VRAM back 4 times, 3 of 4 within ")


def a_late_run(*, late_frame: bool, load: float | None) -> dict[str, Any]:
    record = whole_run()
    number = next(number for number, change in enumerate(record.changes) if change.is_reclaim)
    late = replace(record.changes[number], deadline_met=False)
    record.changes[number], record.load_average = late, load
    if late_frame:
        record.frames.append(Frame(late.asked_s - 0.01, 25.0, 24.0))  # still being drawn when the answer comes
    return summarise(record, ABOUT, None)


@pytest.mark.parametrize(
    ("late_frame", "load", "said"),
    [
        (False, 1.5, ""),
        (False, None, ""),
        (True, None, "this machine was busy: game frames late at 1 of 1 late reclaims"),
        (False, 3.26, "this machine was busy: load 3.3 on 2 cores"),
        (True, 3.26, "this machine was busy: load 3.3 on 2 cores; game frames late at 1 of 1 late reclaims"),
    ],
)
def test_a_busy_machine_is_named_where_reclaims_were_late(late_frame: bool, load: float | None, said: str) -> None:
    summary = a_late_run(late_frame=late_frame, load=load)
    assert busy_words(summary) == said
    lines = page(summary, "out")
    assert lines.count(f"  note    {said}") == bool(said)
    assert ("busy" in "".join(lines)) == bool(said)


def test_a_busy_machine_without_late_reclaims_is_no_news() -> None:
    record = whole_run()
    record.load_average = 9.0
    assert busy_words(summarise(record, ABOUT, None)) == ""


def test_the_headline_says_each_only_where_every_reclaim_was_in_time() -> None:
    record = whole_run()
    reclaims = [number for number, change in enumerate(record.changes) if change.is_reclaim]
    for number, late_ms in zip(reclaims[:2], (18.0, 31.26), strict=True):
        record.changes[number] = replace(record.changes[number], release_ms=late_ms, deadline_met=False)
        asked_s = record.changes[number].answered_s - late_ms * 1e-3 - 1.5e-3
        record.changes[number] = replace(record.changes[number], asked_s=asked_s)
    words = headline(summarise(record, ABOUT, None))
    start = "The game took its VRAM back 4 times, 2 of 4 within a 16 ms frame"
    assert words.startswith(f"{start} (worst 32.8 ms; broker: 31.3); ")
    assert "each" not in words


def test_times_are_never_told_better_than_they_were() -> None:
    record = whole_run()
    record.changes = [replace(change, release_ms=15.91) for change in record.changes]
    assert "(broker: 16.0)" in headline(summarise(record, ABOUT, None))


@pytest.mark.parametrize("kind", ["sim", "cuda"])
def test_only_the_virtual_gpu_excuses_its_speed(kind: str) -> None:
    about = {**ABOUT, "device": {"kind": kind, "description": "a device"}}
    text = "\n".join(page(summarise(whole_run(), about, None), "out"))
    assert ("virtual GPU computes on this machine's CPU" in text) is (kind == "sim")
    assert max(len(line) for line in text.splitlines()[1:]) < 100


def test_an_answer_that_was_cut_off_says_so() -> None:
    cut = replace(turn("Greta", 0, 0.0, 2), text=" one\n two ", finish_reason="length")
    assert cut.spoken() == "one two …"
    assert replace(cut, finish_reason="stop").spoken() == "one two"


def test_a_restart_is_told_and_routine_notices_are_not() -> None:
    record = whole_run()
    record.notices = [(3.0, "budget_changed", ""), (24.5, "engine_restarting", "signal 11")]
    summary = summarise(record, ABOUT, Comparison(120, 0, 6))
    text = "\n".join(page(summary, "out"))
    assert "the engine died and was restarted at 24.5 s" in text
    assert text.count("  note  ") == 1
    assert not failed(summary)


def test_sizes_for_people() -> None:
    assert [mib(None), mib(0), mib(3 * MIB // 2)] == ["?", "0", "1.5 MiB"]


def test_compare_counts_by_position_over_finished_turns() -> None:
    story = [turn("Greta", 0, 0.0, 4), turn("Odo", 0, 0.0, 4), turn("Odo", 1, 5.0, 4, ended=False)]
    again = [turn("Greta", 0, 0.0, 4), turn("Odo", 0, 0.0, 4), turn("Odo", 1, 5.0, 4)]
    assert compare(story, again) == Comparison(8, 0, 2)
    again[1].token_ids = [0, 1, 9]
    assert compare(story, again) == Comparison(8, 2, 2, "Odo, turn 1")
