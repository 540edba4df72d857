from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from demo_runs import ABOUT, DEVICE_BYTES, MIB, whole_run

from xlm_broker.demo.picture import budget_steps, draw, reclaim_label, tokens_per_second
from xlm_broker.demo.record import Frame, Recorder
from xlm_broker.demo.story import story
from xlm_broker.demo.summary import summarise
from xlm_broker.demo.verify import Comparison

matplotlib = pytest.importorskip("matplotlib")


def pixels(path: Path) -> np.ndarray:
    from matplotlib.image import imread

    return np.asarray(imread(path))[..., :3]


def share_near(picture: np.ndarray, colour: str) -> float:
    from matplotlib.colors import to_rgb

    return float((np.abs(picture - np.array(to_rgb(colour))).max(axis=-1) < 0.02).mean())


def test_the_picture_shows_the_card_its_parts_and_both_voices(tmp_path: Path) -> None:
    record = whole_run()
    path = tmp_path / "new" / "timeline.png"
    draw(record, summarise(record, ABOUT, Comparison(120, 0, 6)), path)
    picture = pixels(path)
    assert picture.shape[0] > 800
    assert picture.shape[1] > 1200
    assert share_near(picture, "#d5d9de") > 0.05  # the game's share
    assert share_near(picture, "#0072B2") > 0.03  # weights
    assert share_near(picture, "#56B4E9") > 0.005  # KV
    assert share_near(picture, "#D55E00") > 0.002  # Greta
    assert share_near(picture, "#CC79A7") > 0.002  # Odo
    assert picture.std() > 0.1


def test_a_run_that_was_stopped_at_once_can_be_drawn(tmp_path: Path) -> None:
    record = Recorder(story(30.0))
    draw(record, summarise(record, ABOUT, None), tmp_path / "timeline.png")
    assert pixels(tmp_path / "timeline.png").std() > 0.01


def drawn(record: Recorder, path: Path) -> tuple[Any, list[Any]]:
    """The figure, and the boxes of its texts and legends as the renderer that drew them measures them, in pixels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figures: list[Any] = []
    saved = Figure.savefig

    def keep(figure: Figure, *args: object, **options: object) -> None:
        saved(figure, *args, **options)
        figures.append(figure)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", keep)
        draw(record, summarise(record, ABOUT, Comparison(120, 0, 6)), path)
    renderer = FigureCanvasAgg(figures[0]).get_renderer()
    texts = [text for axes in figures[0].axes for text in axes.texts] + list(figures[0].texts)
    legends = [axes.get_legend() for axes in figures[0].axes]
    return figures[0], [shown.get_window_extent(renderer) for shown in [*texts, *legends]]


@pytest.mark.parametrize("worst_ms", [5.0, 20.0, 45.0, 400.0])
def test_no_text_lies_over_a_frame_or_a_token(tmp_path: Path, worst_ms: float) -> None:
    """Frames of all heights at all times, so that no place inside the axes is free."""
    record = whole_run()
    heights = np.linspace(0.5, worst_ms, 23)
    record.frames = [Frame(n / 60, float(heights[n * 7 % 23]), 2.0) for n in range(1800)]
    figure, boxes = drawn(record, tmp_path / "timeline.png")
    _, speech, frames = figure.axes
    points = [frames.transData.transform(xy) for line in frames.lines[:-1] for xy in line.get_xydata()]
    assert len(points) == 1800
    assert all(frames.bbox.contains(*point) for point in points)  # nothing is cut off
    assert not any(box.contains(*point) for box in boxes for point in points)
    bars = [bar.get_window_extent() for bar in speech.patches if bar.get_height() > 0 and bar.get_width() < 1]
    assert len(bars) > 20
    assert not any(box.overlaps(bar) for box in boxes for bar in bars)


def test_late_frames_stand_at_their_height(tmp_path: Path) -> None:
    record = whole_run()
    record.frames = [Frame(0.0, 3.0, 2.0), Frame(1.0, 30.0, 2.0), Frame(2.0, 400.0, 2.0)]
    figure, _ = drawn(record, tmp_path / "timeline.png")
    marked = {line.get_label(): line.get_xydata().tolist() for line in figure.axes[2].lines[:-1]}
    assert marked.keys() == {"one frame", "late frame", "above 50 ms"}
    assert marked["late frame"] == [[1.0, 30.0]]
    assert marked["above 50 ms"][0][0] == 2.0


def test_no_text_lies_over_another(tmp_path: Path) -> None:
    """Reclaim labels, scene names and legends."""
    record = whole_run()
    _, boxes = drawn(record, tmp_path / "timeline.png")
    assert len(boxes) > len(record.phases) + 4
    for index, one in enumerate(boxes):
        assert not any(one.overlaps(other) for other in boxes[index + 1 :])


def test_the_budget_line_steps_where_the_answers_came() -> None:
    record = whole_run()
    times, values = budget_steps(record)
    assert times[0] == 0.0
    assert times[-1] == record.phases[-1].end_s
    assert times == sorted(times)
    assert max(values) == DEVICE_BYTES / MIB
    assert 0.0 in values[1:]


def test_tokens_per_second_keeps_every_token() -> None:
    record = whole_run()
    assert sum(tokens_per_second(record, "Greta")) * 0.5 == pytest.approx(140)


def test_a_late_reclaim_says_so() -> None:
    change = whole_run().changes[1]
    assert "late" not in reclaim_label(change)
    late = replace(change, deadline_met=False)
    assert reclaim_label(late).endswith("\n(late)")
