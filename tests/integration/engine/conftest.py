from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from llama_cpp._logger import set_verbose

from tests.integration.engine.harness import EngineProcess, engine_process
from tests.integration.engine.tiny_model import write_tiny_model

set_verbose(False)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[EngineProcess]:
    """One engine with the tiny model on the CPU, for a test module."""
    with engine_process() as process:
        process.load(tiny_model)
        yield process
