"""Nothing grows: 200 requests at a fixed budget leave device counter and memory where they were.

With the smallest model: what a request leaves behind is of broker, engine and cache device, whatever is computed.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import xlm
from tests.integration.engine.tiny_model import write_tiny_model
from tests.support.running_broker import running_broker

ROUNDS, ROUND, WARM_UP = 4, 50, 40
LEAK_BYTES = 64 << 10  # a request that leaves so much behind is a leak


def ask(client: xlm.Client, turn: int) -> str:
    """Prompts of one length: scratch is as big as the step."""
    with client.open_session(system="You are Greta, a blacksmith.") as npc:
        return npc.say(f"Order number {turn % 10}?", max_tokens=4, temperature=0.0).text


def least_growth(sizes: list[int]) -> int:
    """A leak shows in each round; what allocators keep of a burst, or a better plan that was found, in one."""
    return min(after - before for before, after in pairwise(sizes))


def test_two_hundred_requests_leave_no_trace(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model.gguf")
    with running_broker(model=str(model), ctx=512, sim_vram="64MiB") as broker, broker.connect() as client:
        client.set_budget("4MiB")  # a part of it
        for turn in range(WARM_UP):
            assert ask(client, turn)
        device, memory = [client.status().device["device_used_bytes"]], [broker.rss_bytes()]
        for _ in range(ROUNDS):
            for turn in range(ROUND):
                ask(client, turn)
            device.append(client.status().device["device_used_bytes"])
            memory.append(broker.rss_bytes())
        assert 0 < max(device) <= 4 << 20
        assert least_growth(device) <= 0
        assert client.status().sessions == []
        assert least_growth(memory) < ROUND * LEAK_BYTES
