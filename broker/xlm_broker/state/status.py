"""The answer to get_status: what holds now, where each figure comes from in its name."""

from __future__ import annotations

from typing import Any

from xlm.protocol import link, messages

from .answers import Answers
from .budgets import Budgets
from .core import Client, Core
from .device_watch import DeviceWatch
from .engine import Engine, Problem
from .schedules import Schedules
from .sessions import Session, Sessions
from .settings import S


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
    ) -> None:
        self._core, self._engine, self._budgets = core, engine, budgets
        self._schedules, self._sessions, self._answers, self._watch = schedules, sessions, answers, watch

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
        return {
            "state": engine.phase,
            "stage": engine.stage if engine.phase == "loading" else "",
            "fraction": engine.fraction if engine.phase == "loading" else 1.0 * engine.ready,
            "pid": engine.pid,
            "restarts": engine.restarts,
            "failures_in_a_row": engine.failures,
            "error": None if problem is None else _error(problem),
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
            "over_budget_events": stats.over_budget_events,
            "lost": self._engine.lost,
            "modelled": config.kind == "sim" and config.sim.modelled,
            "os_report": self._watch.describe(),
        }

    def _budget(self) -> dict[str, Any]:
        settings, budgets, stats = self._core.settings.budget, self._budgets, self._engine.stats or link.Stats()
        model = self._engine.model
        return {
            "mode": settings.mode,
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
            "reserved_bytes": sum(client.reserved_bytes for client in self._core.clients.values()),
            "spill_limit_bytes": budgets.spill_limit_bytes,
            **({} if model is None else budgets.demand(model)),
        }

    def _schedule(self) -> dict[str, Any]:
        sent, in_force = self._schedules.sent, self._schedules.in_force
        if sent is None:
            return {"schedule_id": None, "summary": "", "plans": self._schedules.plans}
        return {
            "schedule_id": sent.schedule_id,
            "in_force_id": None if in_force is None else in_force.schedule_id,
            "summary": sent.summary,
            "budget_bytes": sent.budget_bytes,
            "resident_bytes": sent.resident_bytes,
            "ring_bytes": sent.ring_bytes,
            "reserve_bytes": sent.reserve_bytes,
            "settled": self._engine.stats is not None and self._engine.stats.settled,
            "plans": self._schedules.plans,
            "rejection": self._schedules.rejection,
        }

    def _client(self, client: Client, now_ns: int) -> dict[str, Any]:
        return {
            "name": client.name,
            "pid": client.pid,
            "cap_bytes": client.cap_bytes,
            "reserved_bytes": client.reserved_bytes,
            "expires_in_ms": max(0, client.expires_ns - now_ns) / 1e6,
            "pending": len(client.pending),
            "stalled": client.outbox is not None,
        }

    def _session(self, session: Session) -> dict[str, Any]:
        return {
            "session_id": session.session_id,
            "name": session.name,
            "tokens": session.n_tokens,
            "turns": session.turns,
            "answering": session.gen_id is not None,
            "waiting_for_client": session.client is None,
        }

    def _throughput(self) -> dict[str, Any]:
        stats = self._engine.stats or link.Stats()
        return {
            "tokens_per_s": stats.tokens_per_s,
            "tokens_generated": stats.tokens_generated,
            "tokens_prefilled": stats.tokens_prefilled,
            "bytes_streamed": stats.bytes_streamed,
            "active": stats.n_active,
        }


def _error(problem: Problem) -> dict[str, Any]:
    error = problem.error()
    return {"code": error.code, "message": error.message, "hint": error.hint, "minimum_bytes": problem.minimum_bytes}
