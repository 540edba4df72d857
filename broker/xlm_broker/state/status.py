"""The answer to get_status: what holds now, where each figure comes from in its name.

The keys are listed in docs/protocol.md and are always there; what is not known (yet) is None.
"""

from __future__ import annotations

from typing import Any

from xlm.protocol import images, link, messages
from xlm_broker.planner.report import explain

from .answers import Answers
from .budgets import Budgets
from .core import Client, Core
from .device_watch import DeviceWatch
from .engine import Engine, Problem
from .expert_summary import experts_summary
from .images import Images
from .leases import HEARTBEATS_PER_TTL
from .pacing import Pacing
from .schedules import Schedules
from .sessions import Session, Sessions
from .settings import MS, BudgetSettings, S

_SIZES = ("budget_bytes", "resident_bytes", "ring_bytes", "reserve_bytes")  # of a schedule


class StatusReport:
    """Reads all parts, changes none."""

    def __init__(
        self,
        core: Core,
        engine: Engine,
        budgets: Budgets,
        schedules: Schedules,
        sessions: Sessions,
        answers: Answers,
        watch: DeviceWatch,
        pacing: Pacing,
        images: Images,
    ) -> None:
        self._core, self._engine, self._budgets = core, engine, budgets
        self._schedules, self._sessions, self._answers, self._watch = schedules, sessions, answers, watch
        self._pacing = pacing
        self._images = images
        self._ttl_ns = HEARTBEATS_PER_TTL * core.settings.timing.heartbeat_ns
        self._explained: tuple[link.Schedule | None, dict[str, Any]] = (None, {})

    def make(self, now_ns: int, started_ns: int) -> messages.Status:
        return messages.Status(
            broker=self._broker(now_ns, started_ns),
            engine=self._engine_map(now_ns),
            device=self._device(),
            budget=self._budget(),
            schedule=self._schedule(),
            clients=[self._client(client, now_ns) for client in self._core.clients.values()],
            sessions=[self._session(session) for session in self._sessions.live.values()],
            throughput=self._throughput(),
            vision=self._vision(),
        )

    def _broker(self, now_ns: int, started_ns: int) -> dict[str, Any]:
        return {
            "version": self._core.settings.broker_version,
            "endpoint": self._core.settings.endpoint,
            "uptime_s": (now_ns - started_ns) / S,
            "answers_in_progress": len(self._answers.live),
            "protocol_min": messages.VERSION_MIN,
            "protocol_max": messages.VERSION_MAX,
        }

    def _engine_map(self, now_ns: int) -> dict[str, Any]:
        engine, problem = self._engine, self._engine.problem
        progress = {
            "stage": engine.stage if engine.phase == "loading" else "",
            "fraction": engine.fraction if engine.phase == "loading" else 1.0 * engine.ready,
        }
        return {
            "state": engine.state,
            "phase": engine.phase,
            "progress": progress,
            **progress,
            "pid": engine.pid,
            "restarts": engine.restarts,
            "failures_in_a_row": engine.failures,
            "error": _error_or_none(problem),
            "last_token_s_ago": None if engine.token_ns is None else (now_ns - engine.token_ns) / S,
            "rss_bytes": engine.rss_bytes,
            "model": self._model(),
            "versions": dict(engine.versions),
        }

    def _model(self) -> dict[str, Any]:
        model, path = self._engine.model, self._core.settings.model.path
        if model is None:
            return {"name": "", "path": path}
        names = ("name", "architecture", "quantisation", "n_params", "file_bytes", "n_layer", "n_ctx", "n_ctx_train")
        return {"path": path, **{name: getattr(model, name) for name in names}}

    def _device(self) -> dict[str, Any]:
        device, config = self._engine.device, self._core.settings.device
        stats = self._engine.stats or link.Stats()
        return {
            "kind": config.kind if device is None else device.kind,
            "description": "" if device is None else device.description,
            "total_bytes": self._budgets.card().total_bytes or 0,
            "used_bytes": self._budgets.used_bytes,
            "device_used_bytes": self._budgets.device_used_bytes,
            "foreign_bytes": self._budgets.foreign_bytes,
            "resident_bytes": stats.resident_bytes,
            "kv_bytes": stats.kv_bytes,
            "ring_bytes": stats.ring_bytes,
            "scratch_bytes": stats.scratch_bytes,
            "bytes_streamed": stats.bytes_streamed,
            "experts": experts_summary(self._engine.experts),
            "over_budget_events": stats.over_budget_events,
            "lost": self._engine.lost,
            "degraded": self._engine.lost or (device is not None and device.degraded),
            "modelled": config.kind == "sim" and config.sim.modelled,
            "os_report": self._watch.describe(),
        }

    def _budget(self) -> dict[str, Any]:
        settings, budgets, stats = self._core.settings.budget, self._budgets, self._engine.stats or link.Stats()
        model, clients = self._engine.model, self._core.clients.values()
        unknown = {"minimum_bytes": None, "demand_bytes": None}
        return {
            "mode": _mode(settings),
            "effective_bytes": budgets.current.bytes,
            "limited_by": budgets.current.limited_by,
            "granted_bytes": budgets.granted_bytes,
            "settled": budgets.settled,
            "used_bytes": budgets.used_bytes,
            "resident_bytes": stats.resident_bytes,
            "kv_bytes": stats.kv_bytes,
            "ring_bytes": stats.ring_bytes,
            "scratch_bytes": stats.scratch_bytes,
            "headroom_bytes": settings.headroom_bytes,
            "caps_bytes": [client.cap_bytes for client in clients if client.cap_bytes is not None],
            "reserved_bytes": sum(client.reserved_bytes for client in clients),
            "fixed_bytes": settings.fixed_bytes,
            "idle_bytes": settings.idle_bytes,
            "max_bytes": settings.max_bytes,
            "spill_limit_bytes": budgets.spill_limit_bytes,
            "frame_limit_bytes": budgets.frame_limit_bytes,
            "warning": _error_or_none(budgets.shortage()),
            **(unknown if model is None else budgets.demand(model)),
        }

    def _schedule(self) -> dict[str, Any]:
        sent, in_force = self._schedules.sent, self._schedules.in_force
        if self._explained[0] is not sent or not self._explained[1]:
            self._explained = sent, _explained(sent, self._engine.model)
        return {
            **self._explained[1],
            "in_force_id": None if in_force is None else in_force.schedule_id,
            "settled": self._schedules.settled(self._budgets.current.bytes),
            "plans": self._schedules.plans,
            "rejection": self._schedules.rejection,
        }

    def _client(self, client: Client, now_ns: int) -> dict[str, Any]:
        return {
            "name": client.name,
            "pid": client.pid,
            "cap_bytes": client.cap_bytes,
            "reserved_bytes": client.reserved_bytes,
            "sessions": sum(session.client == client.identity for session in self._sessions.live.values()),
            "age_ms": max(0, now_ns - client.expires_ns + self._ttl_ns) / MS,
            "expires_in_ms": max(0, client.expires_ns - now_ns) / MS,
            "pending": len(client.pending),
            "stalled": client.outbox is not None,
            "frames": self._pacing.describe(client),
        }

    def _session(self, session: Session) -> dict[str, Any]:
        answer = self._answers.live.get(session.gen_id) if session.gen_id is not None else None
        tokens = session.n_tokens + (0 if answer is None else len(answer.delivered))
        return {
            "session_id": session.session_id,
            "client": session.name,
            "name": session.name,
            "turns": session.turns,
            "context_tokens": tokens,
            "tokens": tokens,
            "busy": session.gen_id is not None,
            "answering": session.gen_id is not None,
            "waiting_for_client": session.client is None,
        }

    def _vision(self) -> dict[str, Any]:
        limits, model, path = self._core.settings.limits, self._engine.model, self._core.settings.model.mmproj
        projector = model.projector if model is not None else None
        names = ("name", "kind", "file_bytes", "max_image_tokens")
        facts = {name: getattr(projector, name) for name in names} if projector is not None else {}
        return {
            "available": projector is not None,
            "projector": {"path": path, **facts} if path else None,
            "max_side": images.MAX_SIDE,
            "max_pixels": images.MAX_PIXELS,
            "image_max_bytes": limits.max_image_bytes,
            "images_per_say": limits.max_images_per_say,
            "store_bytes_per_client": limits.max_client_image_bytes,
            "store_bytes": limits.max_image_store_bytes,
            "images": len(self._images.pictures),
            "image_bytes": self._images.stored_bytes,
            "uploads": len(self._images.uploads),
        }

    def _throughput(self) -> dict[str, Any]:
        stats = self._engine.stats or link.Stats()
        return {
            "tokens_per_s": stats.tokens_per_s,
            "tokens_generated": stats.tokens_generated,
            "tokens_prefilled": stats.tokens_prefilled,
            "bytes_streamed": stats.bytes_streamed,
            "active": stats.n_active,
            "duty": self._pacing.duty,
            "paced_ns": stats.detail.get("paced_ns", 0),
            "longest_sublayer_ms": stats.detail.get("sublayer_ns_max", 0) / 1e6,
        }


def _mode(settings: BudgetSettings) -> str:
    if settings.mode == "game":
        return "from_game"
    return "free" if settings.fixed_bytes is None else "fixed"


def _explained(sent: link.Schedule | None, model: link.ModelFacts | None) -> dict[str, Any]:
    """What never changes of a schedule."""
    return {
        "schedule_id": None if sent is None else sent.schedule_id,
        "summary": "" if sent is None else sent.summary,
        "tiers": [] if sent is None else [_tier(tier) for tier in sent.tiers],
        "table": explain(sent, model) if sent is not None and model is not None else "",
        **{name: 0 if sent is None else getattr(sent, name) for name in _SIZES},
        "kv_bytes": _kv_bytes(sent, model) if sent is not None and model is not None else 0,
    }


def _tier(tier: link.Tier) -> dict[str, int]:
    counts = {"n_cpu": link.CPU, "n_stream": link.STREAM, "n_resident": link.RESIDENT}
    found = {name: tier.placement.count(place) for name, place in counts.items()}
    found["n_stream"] += tier.placement.count(link.STREAM_KV)
    return {"max_tokens": tier.max_tokens, **found}


def _kv_bytes(sent: link.Schedule, model: link.ModelFacts) -> int:
    """The part of ``resident_bytes`` set aside for conversations: it is taken up as they are held, not before."""
    kept = (link.RESIDENT, link.STREAM)
    resident = {index for tier in sent.tiers for index, place in enumerate(tier.placement) if place in kept}
    return sum(sub.kv_bytes for sub in model.sublayers if sub.index in resident)


def _error_or_none(problem: Problem | None) -> dict[str, Any] | None:
    if problem is None:
        return None
    error = problem.error()
    return {"code": error.code, "message": error.message, "hint": error.hint, "minimum_bytes": problem.minimum_bytes}
