"""Tokens that come fast share a piece: none that was chosen stays behind when something else comes in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.engine.vision_rig import Rig, rig
from tests.support.vlm import Files
from xlm.protocol import link
from xlm_engine import generation
from xlm_engine.runtime import Runtime, StepFailed


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[Rig]:
    with rig(Files(tiny_model, Path()), n_ubatch=32, mmproj="") as made:
        yield made


@pytest.fixture
def patient(engine: Rig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """Only the first token of an answer goes out by itself."""
    for session in ("npc", "other"):
        engine.batcher.drop_session(session)
    monkeypatch.setattr(generation, "PIECE_GAP_S", 1e9)
    engine.messages.clear()
    return engine


def until_held(rig: Rig, gen_id: int, count: int = 6) -> list[int]:
    """The tokens chosen so far, all but the first of them held back."""
    while True:
        rig.batcher.step()
        one = next(g for g in [*rig.batcher._waiting, *rig.batcher._active.values()] if g.request.gen_id == gen_id)
        if one.n_sampled == count:
            assert len(rig.tokens(gen_id)) == 1
            return one.answer.token_ids


def failed_step(self: Runtime, rows: object) -> list[object]:
    raise StepFailed(-3)


def test_an_answer_that_fails_was_told_all_that_was_chosen(patient: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    gen_id = patient.start("Hello.", [], max_tokens=24)
    chosen = until_held(patient, gen_id)
    monkeypatch.setattr(Runtime, "decode", failed_step)
    patient.batcher.step()
    assert isinstance(patient.messages[-1], link.GenerationFailed)
    assert patient.tokens(gen_id) == chosen


@pytest.mark.parametrize("end", [lambda rig, gen_id: rig.batcher.cancel(gen_id),
                                 lambda rig, _: rig.batcher.drop_session("npc")])  # fmt: skip
def test_an_answer_that_is_ended_was_told_all_that_was_chosen(patient: Rig, end: Callable[[Rig, int], None]) -> None:
    gen_id = patient.start("Hello.", [], max_tokens=24)
    chosen = until_held(patient, gen_id)
    end(patient, gen_id)
    assert isinstance(patient.messages[-1], link.Finished)
    assert patient.tokens(gen_id) == chosen


def test_a_step_that_is_tried_again_holds_nothing_up(patient: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    gen_id = patient.start("Hello.", [], max_tokens=24)
    chosen = until_held(patient, gen_id)
    decode, told = Runtime.decode, []

    def fails_once(self: Runtime, rows: list[object]) -> list[object]:
        told.append(patient.tokens(gen_id))
        if len(told) == 1:
            raise StepFailed(-3)
        return decode(self, rows)  # type: ignore[arg-type, return-value]

    monkeypatch.setattr(Runtime, "decode", fails_once)
    patient.batcher.step()
    assert told[1] == chosen
    patient.finish(gen_id)


def test_a_long_prompt_of_somebody_else_holds_nothing_up(patient: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    gen_id = patient.start("Hello.", [], max_tokens=24)
    chosen = until_held(patient, gen_id)
    told, decode = [], Runtime.decode

    def watched(self: Runtime, rows: list[object]) -> list[object]:
        if len(rows) > 1:
            told.append(patient.tokens(gen_id))
        return decode(self, rows)  # type: ignore[arg-type, return-value]

    monkeypatch.setattr(Runtime, "decode", watched)
    other = patient.start("Tell me of the sea. " * 8, [], session="other")
    patient.finish(other)
    assert told
    assert told[0][: len(chosen)] == chosen
    patient.finish(gen_id)
