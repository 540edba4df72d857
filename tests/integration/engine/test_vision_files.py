"""Projector files that are wrong: one typed error each, and the engine's parts are freed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.engine.vision_rig import rig
from tests.support.vlm import Files, write_vlm
from xlm.errors import ModelError
from xlm.protocol import link

CPU = link.DeviceConfig()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return write_vlm(tmp_path_factory.mktemp("vlm"), "gemma3")


def code_of(files: Files) -> str:
    with pytest.raises(ModelError) as raised, rig(files, device=CPU):
        pass
    return raised.value.code


def test_a_projector_of_another_model(files: Files, tmp_path: Path) -> None:
    other = write_vlm(tmp_path, "gemma3", text_embd=128)
    assert code_of(Files(files.model, other.mmproj)) == "projector_mismatch"


def test_a_projector_whose_marks_the_model_lacks(files: Files, tmp_path: Path) -> None:
    other = write_vlm(tmp_path, "idefics3")
    assert code_of(Files(files.model, other.mmproj)) == "projector_mismatch"


@pytest.mark.parametrize("kept_bytes", [0, 3, 4 << 10, 40 << 10])
def test_a_file_that_ends_early(files: Files, tmp_path: Path, kept_bytes: int) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(files.mmproj.read_bytes()[:kept_bytes])
    assert code_of(Files(files.model, damaged)) == "projector_invalid"


def test_a_language_model_in_its_place(files: Files) -> None:
    assert code_of(Files(files.model, files.model)) == "projector_invalid"


def test_no_file_at_all(files: Files, tmp_path: Path) -> None:
    assert code_of(Files(files.model, tmp_path / "nowhere.gguf")) == "projector_not_found"
    assert code_of(Files(files.model, tmp_path)) == "projector_not_found"
