from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.running_broker import RunningBroker, running_broker


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    """One broker a test module, with the real model on the virtual GPU (exact mode)."""
    with running_broker() as running:
        yield running
