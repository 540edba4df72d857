"""Nothing grows: 200 requests at a fixed budget leave device counter and memory where they were."""

from __future__ import annotations

from itertools import pairwise

import xlm
from tests.support.running_broker import running_broker

ROUNDS, ROUND, WARM_UP = 4, 50, 40
LEAK_BYTES = 64 << 10  # a request that leaves so much behind is a leak


def ask(client: xlm.Client, turn: int) -> str:
    """Prompts of one length: scratch is as big as the step."""
    with client.open_session(system="You are Greta, a blacksmith.") as npc:
        return npc.say(f"Order number {turn % 10}?", max_tokens=4, temperature=0.0).text


def test_two_hundred_requests_leave_no_trace() -> None:
    with running_broker(ctx=512, sim_vram="256MiB") as broker, broker.connect() as client:
        client.set_budget("96MiB")
        for turn in range(WARM_UP):
            assert ask(client, turn)
        device, sizes = client.status().device["device_used_bytes"], [broker.rss_bytes()]
        for _ in range(ROUNDS):
            for turn in range(ROUND):
                ask(client, turn)
            sizes.append(broker.rss_bytes())
        status = client.status()
        assert status.device["device_used_bytes"] <= device
        assert status.sessions == []
        # A leak shows in each round, what the allocators of two Python processes keep of a burst in one.
        assert min(after - before for before, after in pairwise(sizes)) < ROUND * LEAK_BYTES
