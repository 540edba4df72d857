from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Like tmp_path, but short: a socket path holds 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="xlm-") as folder:
        yield Path(folder)
