from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from demo_runs import ABOUT, DEVICE_BYTES, MIB, whole_run

from xlm_broker.demo.picture import budget_steps, draw, reclaim_label, tokens_per_second
from xlm_broker.demo.record import Recorder
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


def test_no_text_lies_over_another(tmp_path: Path) -> None:
    """Reclaim labels and scene names, measured by the renderer that drew them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    record = whole_run()
    boxes = []
    saved = Figure.savefig

    def measure(figure: Figure, *args: object, **options: object) -> None:
        saved(figure, *args, **options)
        renderer = FigureCanvasAgg(figure).get_renderer()
        texts = [text for axes in figure.axes for text in axes.texts] + list(figure.texts)
        boxes.extend(text.get_window_extent(renderer) for text in texts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", measure)
        draw(record, summarise(record, ABOUT, Comparison(120, 0, 6)), tmp_path / "timeline.png")
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
