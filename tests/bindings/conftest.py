from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bindings.play import STAND_IN
from tests.bindings.toolchain import libxlm
from tests.support.running_broker import RunningBroker, running_broker
from xlm.testing import FakeBroker


@pytest.fixture(scope="session")
def library() -> Path:
    return libxlm()


@pytest.fixture
def fake() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        yield broker


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """A program that tells its process id and its words, and how it was ended."""
    program = tmp_path / "a broker"
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(0o755)
    return program


@pytest.fixture(scope="package")
def broker() -> Iterator[RunningBroker]:
    with running_broker(sim_vram="256MiB") as running:
        yield running
