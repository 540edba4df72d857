"""Host memory of broker and engine over model file + KV: there must be no second copy of the weights."""

from __future__ import annotations

from typing import Any

from tests.support.model import model_path
from tests.support.running_broker import running_broker

N_CTX, N_SESSIONS = 2048, 2
# SmolLM2-135M: 30 layers, K and V rows of 3 heads x 64, F16
KV_BYTES = 30 * 2 * 3 * 64 * 2 * N_CTX * N_SESSIONS
ALLOWANCE_BYTES = 300 << 20


def measure() -> dict[str, Any]:
    """At budget zero: the virtual GPU's memory lives in the engine process, a real card's does not."""
    with running_broker(budget="0", ctx=N_CTX, sessions=N_SESSIONS) as broker, broker.connect("bench") as client:
        with client.open_session(system="You are Greta.") as npc:
            npc.say("Tell me a story.", max_tokens=64, temperature=0.0).text  # noqa: B018
        used = broker.rss_bytes()
    file_bytes = model_path().stat().st_size
    return {
        "used_mib": used / 2**20,
        "model_file_mib": file_bytes / 2**20,
        "kv_mib": KV_BYTES / 2**20,
        "over_file_and_kv_mib": (used - file_bytes - KV_BYTES) / 2**20,
        "ratio_to_allowed": used / (file_bytes + KV_BYTES + ALLOWANCE_BYTES),
    }
