"""Nothing grows: 200 requests at a fixed budget leave device counter and memory where they were."""

from __future__ import annotations

import xlm
from tests.support.running_broker import running_broker

N_REQUESTS, WARM_UP = 200, 40
RSS_SLACK_BYTES = 8 << 20  # allocator noise of two Python processes; a leak of 64 KiB a request would be over it


def ask(client: xlm.Client, turn: int) -> str:
    """Prompts of one length: scratch is as big as the step."""
    with client.open_session(system="You are Greta, a blacksmith.") as npc:
        return npc.say(f"Order number {turn % 10}?", max_tokens=4, temperature=0.0).text


def test_two_hundred_requests_leave_no_trace() -> None:
    with running_broker(ctx=512, sim_vram="256MiB") as broker, broker.connect() as client:
        client.set_budget("96MiB")
        for turn in range(WARM_UP):
            assert ask(client, turn)
        device, rss = client.status().device["device_used_bytes"], broker.rss_bytes()
        for turn in range(N_REQUESTS):
            ask(client, turn)
        status = client.status()
        assert status.device["device_used_bytes"] <= device
        assert status.sessions == []
        assert broker.rss_bytes() - rss < RSS_SLACK_BYTES
