from __future__ import annotations

import io
from dataclasses import replace

import pytest
from demo_runs import ABOUT, DEVICE_BYTES, MIB, memory, whole_run
from rich.console import Console

from xlm_broker.cli.demo import teller
from xlm_broker.demo.record import Memory
from xlm_broker.demo.summary import headline, summarise
from xlm_broker.demo.verify import Comparison
from xlm_broker.demo.view import (
    LiveView,
    PlainView,
    bar_cells,
    change_line,
    choose_view,
    spoken_per_s,
    streamed_per_s,
)


def console(width: int = 100, height: int = 40, terminal: bool = True) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, height=height, color_system=None)


@pytest.mark.parametrize("width", [20, 57, 200])
def test_the_bar_fills_its_width_whatever_is_held(width: int) -> None:
    samples = [None, memory(0.0, 0, 0), memory(0.0, 100 * MIB, 60 * MIB), memory(0.0, DEVICE_BYTES, DEVICE_BYTES)]
    for sample in samples:
        assert sum(cells for _, cells in bar_cells(sample, DEVICE_BYTES, width)) == width


def test_the_bar_is_to_scale() -> None:
    sample = Memory(0.0, DEVICE_BYTES // 2, DEVICE_BYTES // 4, DEVICE_BYTES // 4, 0, 0, 0, 0, 0, 0)
    cells = dict(bar_cells(sample, DEVICE_BYTES, 100))
    assert (cells["blue"], cells["free"], cells["game"]) == (25, 25, 50)


def test_rates() -> None:
    samples = [memory(t, 1, 1, streamed=int(t * 10 * MIB)) for t in (0.0, 1.0, 2.0, 3.0)]
    assert streamed_per_s(samples, 3.0) == 10 * MIB
    assert streamed_per_s(samples[:1], 3.0) == 0.0
    assert spoken_per_s(whole_run().turns, 28.0) > 0.0
    assert spoken_per_s([], 1.0) == 0.0


@pytest.mark.parametrize(("width", "height"), [(100, 40), (60, 16), (30, 8)])
def test_the_live_page_draws_at_every_size(width: int, height: int) -> None:
    screen = console(width, height)
    view = LiveView(whole_run(), screen, "xlm demo")
    screen.print(view.page())
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "xlm demo" in text
    assert text.count("boss ") <= 1
    if width >= 60:
        assert "Greta" in text
        assert "tokens/s" in text
    assert max(len(line) for line in text.splitlines()) <= width


def test_a_terminal_without_unicode_gets_plain_characters() -> None:
    screen = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"), force_terminal=True, width=90, height=30)
    screen.print(LiveView(whole_run(), screen, "xlm demo").page())
    screen.file.flush()
    assert b"#" in screen.file.buffer.getvalue()  # type: ignore[attr-defined]


def test_plain_lines_tell_each_thing_once() -> None:
    screen, record = console(terminal=False), whole_run()
    view = PlainView(record, screen)
    view.tell(0.1)
    view.tell(0.2)
    view.tell(29.9)
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert text.count("-- main menu") == 1
    assert text.count("-- back") == 1
    assert text.count("boss      budget") == 1
    assert text.count("Greta: word") == sum(turn.npc == "Greta" for turn in record.turns)


def test_without_a_terminal_there_is_no_live_page() -> None:
    record = whole_run()
    assert isinstance(choose_view(record, console(terminal=False), live=True, title=""), PlainView)
    assert isinstance(choose_view(record, console(), live=False, title=""), PlainView)
    assert isinstance(choose_view(record, console(), live=True, title=""), LiveView)


def test_a_missed_deadline_is_named() -> None:
    change = whole_run().changes[1]
    assert change_line(change).endswith(", in time")
    missed = replace(change, deadline_met=False)
    assert "TOO LATE, 16 ms" in change_line(missed)
    assert "back in 1.50 ms (broker: 0.50)" in change_line(missed)


@pytest.mark.parametrize("terminal", [False, True])
def test_lines_too_long_for_a_terminal_go_on_between_words(terminal: bool) -> None:
    shown = console(width=80, terminal=terminal)
    line = headline(summarise(whole_run(), ABOUT, Comparison(120, 0, 6)))
    teller(shown)(line)
    assert isinstance(shown.file, io.StringIO)
    text = shown.file.getvalue()
    assert len(line) > 80
    assert text.split() == line.split()
    assert (max(len(row) for row in text.splitlines()) <= 80) is terminal
