"""Models that cut an image into a grid of slices, each a run of the tower of its own, with text between: Idefics 3."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest

from tests.integration.engine.vision_rig import Rig, rig
from tests.support.stock_vlm import marker, stock_vlm
from tests.support.vlm import Files, frame, write_vlm
from xlm_engine.vision.image import Image
from xlm_engine.vision.mtmd import Projector

MIB = 1 << 20
SIZE = (854, 480)
SYSTEM, TEXT = "You are a test.", "What do you see?"
PROMPT = (
    f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{marker()}{TEXT}<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return write_vlm(tmp_path_factory.mktemp("idefics3"), "idefics3")


def encoded(engine: Rig, image: Image) -> list[np.ndarray | None]:
    vision = engine.runtime.vision
    assert vision is not None
    vision._seen.clear()
    seen = vision.see(image.key, image)
    while vision.encode_one([seen], 1):
        pass
    vision.end_phase()
    return list(seen.embeddings)


def test_an_image_is_scaled_once_for_all_its_slices(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    image, chunks = Image.from_rgb8(frame(*SIZE), *SIZE), Projector.chunks
    scaled: list[bytes] = []

    def counted(self: Projector, image: Image, *at_work: Callable[[], None]) -> AbstractContextManager[list[Any]]:
        scaled.extend([image.rgb8] if image.rgb8 else [])
        return chunks(self, image, *at_work)

    monkeypatch.setattr(Projector, "chunks", counted)
    with rig(files) as engine:
        assert len(encoded(engine, image)) > 4
        assert scaled == [image.rgb8]
        encoded(engine, image)  # let go of, not kept for ever
        assert scaled == [image.rgb8] * 2


def test_slices_and_answers_are_those_of_stock(files: Files) -> None:
    image = Image.from_rgb8(frame(*SIZE), *SIZE)
    with stock_vlm(files, n_ctx=4096, n_ubatch=64, n_threads=1) as stock:
        expected, answer = stock.embeddings(image), stock.greedy(PROMPT, [image], 12)
    assert len(expected) > 4
    with rig(files) as engine:
        for budget in (0, MIB // 2, 64 * MIB):
            engine.set_budget(budget)
            engine.device.reset_stats()
            found = encoded(engine, image)
            assert len(found) == len(expected)
            assert all(
                mine is not None and np.array_equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True)
            ), budget
            assert engine.say(TEXT, [image], session=f"s{budget}", system=SYSTEM) == answer
            assert engine.device.memory().over_budget_events == 0
        assert engine.device.stats()["n_segments_device"] > 0
