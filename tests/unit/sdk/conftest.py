"""A fake broker, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import xlm
from xlm.testing import FakeBroker

LONG = 600.0  # seconds no test ever waits for, unless it fails
ANSWER = "Aye, I can mend it. 🔨 Come back tomorrow, 友よ."


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(answer=ANSWER) as broker:
        yield broker


@pytest.fixture
def client(broker: FakeBroker) -> Iterator[xlm.Client]:
    with xlm.connect(broker.endpoint, name="tavern", timeout=LONG) as client:
        yield client


@pytest.fixture
def npc(client: xlm.Client) -> Iterator[xlm.Session]:
    with client.open_session(system="You are Greta.") as npc:
        yield npc
