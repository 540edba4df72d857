"""What the fake broker answers to get_status: every key of a real broker's status, with figures of a calm one."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from xlm.protocol import messages


@dataclass(frozen=True, slots=True)
class Standing:
    """What a fake broker knows of itself. ``clients``: name, cap, reservation; ``sessions``: id and client's name."""

    endpoint: str
    heartbeat_ms: float
    device_bytes: int
    minimum_bytes: int
    budget_bytes: int
    answering: frozenset[str] = frozenset()  # ids of sessions
    images: int = 0
    image_bytes: int = 0
    clients: list[tuple[str, int | None, int]] = field(default_factory=list)
    sessions: list[tuple[str, str]] = field(default_factory=list)


def status(now: Standing) -> messages.Status:
    """The answer, without id and cause."""
    return messages.Status(
        broker=_broker(now),
        engine=_engine(),
        device=_device(now),
        budget=_budget(now),
        schedule=_schedule(now),
        clients=[_client(now, *one) for one in now.clients],
        sessions=[_session(now, *one) for one in now.sessions],
        throughput=_throughput(now),
        vision=_vision(now),
    )


def _broker(now: Standing) -> dict[str, Any]:
    return {
        "version": "fake",
        "endpoint": now.endpoint,
        "uptime_s": 0.0,
        "answers_in_progress": len(now.answering),
        "protocol_min": messages.VERSION_MIN,
        "protocol_max": messages.VERSION_MAX,
        "pid": os.getpid(),
        "rss_bytes": 0,
        "queued_bytes": 0,
        "device_reason": "this broker is a fake",
    }


def _engine() -> dict[str, Any]:
    progress = {"stage": "", "fraction": 1.0}
    numbers = dict.fromkeys(("n_params", "file_bytes", "n_layer", "n_ctx_train"), 0)
    model = {"path": "", "name": "fake", "architecture": "", "quantisation": "", "n_ctx": 4096, **numbers}
    return {
        "state": "ready",
        "phase": "ready",
        "progress": progress,
        **progress,
        "pid": 0,
        "restarts": 0,
        "failures_in_a_row": 0,
        "error": None,
        "last_token_s_ago": None,
        "rss_bytes": 0,
        "model": model,
        "versions": {},
    }


def _held(now: Standing) -> dict[str, Any]:
    """All that is granted is taken, and all of it by resident weights."""
    return {"resident_bytes": now.budget_bytes, "kv_bytes": 0, "ring_bytes": 0, "scratch_bytes": 0}


def _device(now: Standing) -> dict[str, Any]:
    return {
        "kind": "none",
        "description": "none: this broker is a fake",
        "total_bytes": now.device_bytes,
        "used_bytes": now.budget_bytes,
        "device_used_bytes": now.budget_bytes,
        "foreign_bytes": None,
        **_held(now),
        "bytes_streamed": 0,
        "experts": None,
        "over_budget_events": 0,
        "lost": False,
        "degraded": False,
        "modelled": False,
        "os_report": {},
    }


def _budget(now: Standing) -> dict[str, Any]:
    caps = [cap for _, cap, _ in now.clients if cap is not None]
    return {
        "mode": "free",
        "effective_bytes": now.budget_bytes,
        "limited_by": "cap" if now.budget_bytes in caps else "device",
        "granted_bytes": now.budget_bytes,
        "settled": True,
        "used_bytes": now.budget_bytes,
        **_held(now),
        "headroom_bytes": 0,
        "caps_bytes": caps,
        "reserved_bytes": sum(reserved for _, _, reserved in now.clients),
        "fixed_bytes": None,
        "idle_bytes": 0,
        "max_bytes": None,
        "spill_limit_bytes": None,
        "frame_limit_bytes": None,
        "warning": None,
        "minimum_bytes": now.minimum_bytes,
        "demand_bytes": now.device_bytes,
    }


def _schedule(now: Standing) -> dict[str, Any]:
    return {
        "schedule_id": 1,
        "summary": "none: this broker is a fake",
        "tiers": [{"max_tokens": 1, "n_cpu": 0, "n_stream": 0, "n_resident": 1}],
        "table": "",
        "budget_bytes": now.budget_bytes,
        "resident_bytes": now.budget_bytes,
        "ring_bytes": 0,
        "reserve_bytes": 0,
        "kv_bytes": 0,
        "in_force_id": 1,
        "settled": True,
        "plans": 1,
        "rejection": "",
        "profile": {"state": "", "text": "", "advice": ""},
    }


def _client(now: Standing, name: str, cap_bytes: int | None, reserved_bytes: int) -> dict[str, Any]:
    return {
        "name": name,
        "pid": 0,
        "cap_bytes": cap_bytes,
        "reserved_bytes": reserved_bytes,
        "sessions": sum(owner == name for _, owner in now.sessions),
        "age_ms": 0.0,
        "expires_in_ms": 3 * now.heartbeat_ms,
        "pending": 0,
        "stalled": False,
        "frames": None,
    }


def _session(now: Standing, session_id: str, client: str) -> dict[str, Any]:
    busy = session_id in now.answering
    return {
        "session_id": session_id,
        "client": client,
        "name": client,
        "turns": 0,
        "context_tokens": 0,
        "tokens": 0,
        "busy": busy,
        "answering": busy,
        "waiting_for_client": False,
    }


def _throughput(now: Standing) -> dict[str, Any]:
    counts = dict.fromkeys(("tokens_generated", "tokens_prefilled", "bytes_streamed", "paced_ns"), 0)
    latencies = {"count": 0, "p50_ms": 0.0, "p99_ms": 0.0, "max_ms": 0.0}
    return {
        "tokens_per_s": 0.0,
        **counts,
        "active": len(now.answering),
        "duty": 1.0,
        "longest_sublayer_ms": 0.0,
        "reclaim": latencies,
        "release": dict(latencies),
    }


def _vision(now: Standing) -> dict[str, Any]:
    return {
        "available": True,
        "projector": None,
        "max_side": 16_384,
        "max_pixels": 40_000_000,
        "image_max_bytes": 64 << 20,
        "images_per_say": 8,
        "store_bytes_per_client": 256 << 20,
        "store_bytes": 1 << 30,
        "images": now.images,
        "image_bytes": now.image_bytes,
        "uploads": 0,
    }
