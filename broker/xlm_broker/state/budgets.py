"""The budget in force: arbitration, the order to the engine, and the verified answer.

A change goes to the engine at once and with a sequence number. A client's
request is answered when the engine confirmed that number (or a later one) *and*
the counters it reports are at or under the grant; without an engine process
nothing can be held, so the answer is immediate.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from xlm.errors import BudgetError, XlmError, from_code
from xlm.protocol import link, messages
from xlm_broker.planner.report import below_minimum, mib

from .budget import Card, Effective, Wishes, effective
from .core import BudgetRequest, Client, Core
from .engine import Engine, Problem
from .ports import Planner
from .settings import MS
from .shortage import shortage


@dataclass(slots=True)
class _Ledger:
    """What the engine was told and what it confirmed, by its own counters."""

    seq: int = 0
    ordered: dict[int, int] = field(default_factory=dict)  # seq -> bytes, not confirmed yet
    commanded_bytes: int = 0
    confirmed_seq: int = 0
    confirmed_bytes: int = 0
    used_bytes: int = 0
    device_used_bytes: int = 0
    waiting_since_ns: int | None = None
    told_waiting: bool = False  # who waits has heard so


class Budgets:
    def __init__(self, core: Core, engine: Engine, planner: Planner) -> None:
        self._core = core
        self._engine = engine
        self._planner = planner
        self._ledger = _Ledger()
        self.reported_total_bytes: int | None = None
        self.foreign_bytes: int | None = None
        self.spill_limit_bytes: int | None = None
        self.frame_limit_bytes: int | None = None
        self.current = Effective(0, "device")
        self.changed = False  # by the last arbitrate(): a new order went to the engine

    # -- the clients' wishes ------------------------------------------------------

    def set_budget(self, client: Client, request: messages.SetBudget) -> None:
        if (request.cap_bytes or 0) < 0:
            error = from_code("budget_invalid", f"{request.cap_bytes} bytes are no size")
            return self._core.fail(client.identity, request.id, error)
        refusal = self._refusal(client, request) if request.require == "device" else None
        if refusal is not None:
            return self._core.fail(client.identity, request.id, refusal)
        if self._queue(client, request):
            client.cap_bytes, client.speaks_budget = request.cap_bytes, True
        return None

    def reserve(self, client: Client, request: messages.Reserve) -> None:
        if request.bytes < 0:
            return self._core.refuse(client.identity, request.id, "budget_invalid", f"{request.bytes} is no size")
        if self._queue(client, request):
            client.reserved_bytes, client.speaks_budget = request.bytes, True
        return None

    def _queue(self, client: Client, request: messages.SetBudget | messages.Reserve) -> bool:
        if len(client.pending) >= self._core.settings.limits.max_budget_requests:
            self._core.refuse(client.identity, request.id, "overloaded", "too many budget requests are unanswered")
            return False
        client.pending.append(BudgetRequest(request.id, self._core.cause, self._core.now_ns, request.deadline_ms))
        return True

    def _refusal(self, client: Client, request: messages.SetBudget) -> XlmError | None:
        """Why nothing could run on the device under this cap; nothing is changed by asking."""
        if self._engine.model is None:
            if self._engine.problem is not None and self._engine.phase == "failed":
                return self._engine.problem.error()
            return from_code("engine_starting", "the minimum is not known until the model is loaded")
        minimum = self._planner.minimum_device_bytes(self._engine.model)
        asked = replace(client, cap_bytes=request.cap_bytes, speaks_budget=True)
        found = effective(self._core.settings.budget, self.card(), self._wishes(instead=asked))
        if found.bytes >= minimum > 0 and not self._engine.lost:
            return None
        error = from_code("budget_infeasible", self._why_infeasible(found, minimum), minimum_bytes=minimum)
        assert isinstance(error, BudgetError)
        return error

    def _why_infeasible(self, found: Effective, minimum: int) -> str:
        if self._engine.lost or (self._engine.ready and not self.card().total_bytes):
            return "there is no usable device"
        return f"{below_minimum(found.bytes, minimum)}; limited by {found.limited_by}"

    def unusable(self, loaded: link.Loaded) -> Problem | None:
        """Why a broker that has to use the device cannot: no device, or a fixed budget below the minimum."""
        if loaded.device.kind == "none" or loaded.device.degraded or not loaded.device.total_bytes:
            return Problem("device_not_found", f"no usable device: {loaded.device.description or loaded.device.kind}")
        settings, minimum = self._core.settings.budget, self._planner.minimum_device_bytes(loaded.model)
        offered = effective(settings, Card(loaded.device.total_bytes, self.foreign_bytes), Wishes(spoken=True))
        if settings.mode == "game" or offered.bytes >= minimum:
            return None
        return Problem("budget_infeasible", self._why_infeasible(offered, minimum), minimum_bytes=minimum)

    def _wishes(self, instead: Client | None = None) -> Wishes:
        clients = [c for c in self._core.clients.values() if instead is None or c.identity != instead.identity]
        clients += [instead] if instead is not None else []
        return Wishes(
            caps=tuple(c.cap_bytes for c in clients if c.cap_bytes is not None),
            reservations=tuple(c.reserved_bytes for c in clients if c.reserved_bytes),
            spoken=any(c.speaks_budget for c in clients),
            frame_limit_bytes=self.frame_limit_bytes,
        )

    def card(self) -> Card:
        total = self._engine.known_total_bytes(self._core.settings.device, self.reported_total_bytes)
        return Card(total, self.foreign_bytes, self.spill_limit_bytes)

    # -- arbitration ----------------------------------------------------------------

    def arbitrate(self) -> None:
        """Brings the engine to the budget that holds now, and answers what can be answered. Cheap; idempotent."""
        self.current = effective(self._core.settings.budget, self.card(), self._wishes())
        self.changed = self._engine.ready and self._ledger.commanded_bytes != self.current.bytes
        if self.changed:
            self._command()
        self._number_requests()
        self._answer()
        self._watch()

    def restart(self) -> None:
        """A freshly loaded engine (or a restored device): says the budget in any case."""
        self.current = effective(self._core.settings.budget, self.card(), self._wishes())
        self._engine.holds = True
        self._command()

    def _command(self) -> None:
        ledger = self._ledger
        ledger.seq += 1
        ledger.commanded_bytes = self.current.bytes
        ledger.ordered[ledger.seq] = self.current.bytes
        order = link.SetEngineBudget(seq=ledger.seq, budget_bytes=self.current.bytes, cause=self._core.cause)
        self._core.to_engine(order)
        self._core.log("info", "budget", bytes=self.current.bytes, limited_by=self.current.limited_by, seq=ledger.seq)

        self._log_shortage()

    def _log_shortage(self) -> None:
        """Not of a broker that no game has spoken to yet: that is how it starts."""
        problem = self.shortage()
        if problem is not None and self.current.limited_by != "idle":
            text, minimum = problem.message, problem.minimum_bytes
            self._core.log("warning", "budget_below_minimum", text=text, hint=problem.hint, minimum_bytes=minimum)

    def shortage(self) -> Problem | None:
        """Why the CPU alone works though there is a device, where nobody asked for that."""
        model, device = self._engine.model, self._engine.device
        if model is None or device is None or device.kind == "none" or device.degraded or self._engine.lost:
            return None
        minimum = self._planner.minimum_device_bytes(model)
        return shortage(self._core.settings.budget, self.current, self._wishes(), minimum)

    def _number_requests(self) -> None:
        # An engine that is being killed takes no more orders: its exit answers these.
        seq = self._ledger.seq + (0 if self._engine.ready or not self._engine.holds else 1)
        for client in self._core.clients.values():
            for request in client.pending:
                request.seq = seq if request.seq is None else request.seq

    # -- what the engine says ---------------------------------------------------------

    def released(self, report: link.Released) -> None:
        ledger = self._ledger
        if not ledger.confirmed_seq <= report.seq <= ledger.seq:
            return
        progress = report.used_bytes < ledger.used_bytes or report.seq > ledger.confirmed_seq
        self._measured(report.used_bytes, report.device_used_bytes)
        if report.completed and report.seq in ledger.ordered:
            ledger.confirmed_seq, ledger.confirmed_bytes = report.seq, ledger.ordered[report.seq]
            ledger.ordered = {seq: size for seq, size in ledger.ordered.items() if seq > report.seq}
        if progress:
            ledger.waiting_since_ns = None
        if not (report.completed and self._fits()):
            self._unverified(report)

    def _unverified(self, report: link.Released) -> None:
        level = "error" if report.completed else "warning"
        self._core.log(
            "error" if level == "error" else "warning",
            "release_not_verified",
            seq=report.seq,
            budget_bytes=report.budget_bytes,
            used_bytes=report.used_bytes,
            device_used_bytes=report.device_used_bytes,
        )
        if report.completed:
            self._core.to_engine(link.Probe())

    def measured(self, stats: link.Stats) -> None:
        if self._engine.holds:
            self._measured(stats.used_bytes, stats.device_used_bytes)

    def _measured(self, used_bytes: int, device_used_bytes: int) -> None:
        self._ledger.used_bytes, self._ledger.device_used_bytes = used_bytes, device_used_bytes

    def engine_dead(self) -> None:
        """The process was reaped: it holds nothing. Sequence numbers go on, so that late reports fit nothing."""
        self._engine.holds = False
        self._ledger = _Ledger(seq=self._ledger.seq, confirmed_seq=self._ledger.seq)

    def _fits(self) -> bool:
        """The counters are at or under what was confirmed. Other devices count the whole card, sim only us."""
        ledger = self._ledger
        counted = ledger.device_used_bytes if self._core.settings.device.kind == "sim" else 0
        return max(ledger.used_bytes, counted) <= ledger.confirmed_bytes

    # -- answers ------------------------------------------------------------------------

    @property
    def granted_bytes(self) -> int:
        return self._ledger.confirmed_bytes if self._engine.holds else self.current.bytes

    @property
    def used_bytes(self) -> int:
        return self._ledger.used_bytes if self._engine.holds else 0

    @property
    def bound_bytes(self) -> int:
        """The most the engine may hold: what it was granted or is about to grow to."""
        return max(self._ledger.confirmed_bytes, *self._ledger.ordered.values(), 0) if self._engine.holds else 0

    @property
    def device_used_bytes(self) -> int:
        return self._ledger.device_used_bytes if self._engine.holds else 0

    @property
    def settled(self) -> bool:
        """Nothing is under way: the engine confirmed the last order, or there is none to ask."""
        return not self._engine.holds or (not self._ledger.ordered and self._fits())

    def _due(self, request: BudgetRequest) -> bool:
        if not self._engine.holds:
            return True
        return request.seq is not None and self._ledger.confirmed_seq >= request.seq and self._fits()

    def _answer(self) -> None:
        for client in list(self._core.clients.values()):
            due = [request for request in client.pending if self._due(request)]
            client.pending = [request for request in client.pending if request not in due]
            for request in due:
                self._core.send(client.identity, self._lease(client, request))
                client.told_bytes = self.granted_bytes
        if self.settled:
            self._tell_others()

    def _lease(self, client: Client, request: BudgetRequest) -> messages.Lease:
        release_ms = (self._core.now_ns - request.received_ns) / MS
        return messages.Lease(
            id=request.request_id,
            cause=request.cause,
            granted_bytes=self.granted_bytes,
            used_bytes=self.used_bytes,
            device_used_bytes=self.device_used_bytes,
            cap_bytes=client.cap_bytes,
            reserved_bytes=client.reserved_bytes,
            release_ms=release_ms,
            deadline_met=request.deadline_ms is None or release_ms <= request.deadline_ms,
        )

    def _tell_others(self) -> None:
        """Who did not ask hears of a changed budget; who has just connected only remembers it."""
        for client in list(self._core.clients.values()):
            before, client.told_bytes = client.told_bytes, self.granted_bytes
            if before is not None and before != self.granted_bytes:
                detail = {"granted_bytes": self.granted_bytes, "limited_by": self.current.limited_by}
                text = f"the model may use {mib(self.granted_bytes)}"
                notice = messages.Notice(cause=self._core.cause, kind="budget_changed", text=text, detail=detail)
                self._core.send(client.identity, notice)

    def demand(self, model: link.ModelFacts) -> dict[str, int]:
        """What the model needs at least to use the device, and for everything to be resident."""
        minimum, unified = self._planner.minimum_device_bytes(model), self._planner.unified_demand(model)
        return {"minimum_bytes": minimum, "demand_bytes": unified}

    def refuse_all(self, code: str, text: str) -> None:
        for client in list(self._core.clients.values()):
            requests, client.pending = client.pending, []
            for request in requests:
                self._core.fail(client.identity, request.request_id, from_code(code, text), request.cause)

    # -- patience -----------------------------------------------------------------------

    def _watch(self) -> None:
        waiting = bool(self._ledger.ordered) or any(client.pending for client in self._core.clients.values())
        ledger = self._ledger
        if not (waiting and self._engine.holds):
            ledger.waiting_since_ns = None
        elif ledger.waiting_since_ns is None:
            ledger.waiting_since_ns, ledger.told_waiting = self._core.now_ns, False

    def impatient_at_ns(self) -> int | None:
        """When an engine that has not released is taken for hung."""
        since = self._ledger.waiting_since_ns
        return None if since is None else since + self._core.settings.timing.release_patience_ns

    def forgive(self, late_ns: int) -> None:
        """So long the engine could not be heard."""
        if self._ledger.waiting_since_ns is not None:
            self._ledger.waiting_since_ns += late_ns

    def pass_time(self) -> None:
        due_ns = self.next_deadline_ns()
        if due_ns is not None and due_ns <= self._core.now_ns:
            self._ledger.told_waiting = True
            self._tell_waiting()

    def next_deadline_ns(self) -> int | None:
        """When those who wait for an engine that is silent hear of it."""
        since = self._ledger.waiting_since_ns
        if since is None or self._ledger.told_waiting:
            return None
        return since + self._core.settings.timing.release_notice_ns

    def _tell_waiting(self) -> None:
        timing, since = self._core.settings.timing, self._ledger.waiting_since_ns or 0
        waited, limit = (self._core.now_ns - since) / MS, timing.release_patience_ns / MS
        text = f"the engine has not released memory for {waited / 1e3:.1f} s; after {limit / 1e3:.0f} s it is killed"
        detail = {"waiting_ms": waited, "killed_after_ms": limit}
        self._core.log("warning", "engine_unresponsive", **detail)
        for client in [client for client in self._core.clients.values() if client.pending]:
            notice = messages.Notice(cause=self._core.cause, kind="engine_unresponsive", text=text, detail=detail)
            self._core.send(client.identity, notice)

    def validate(self) -> None:
        card, wishes, current = self.card(), self._wishes(), self.current.bytes
        total = max(0, card.total_bytes or 0)
        assert 0 <= current <= total
        assert current == 0 or current + wishes.reserved_bytes + self._core.settings.budget.headroom_bytes <= total
        assert all(current <= cap for cap in wishes.caps)
        ledger = self._ledger
        assert not self._engine.ready or ledger.commanded_bytes == current, "the engine does not know its budget"
        assert all(ledger.confirmed_seq < seq <= ledger.seq for seq in ledger.ordered)
        for client in self._core.clients.values():
            assert len(client.pending) <= self._core.settings.limits.max_budget_requests
            assert not client.pending or self._engine.holds, "a request waits for nobody"
            assert all(request.seq is not None and not self._due(request) for request in client.pending)
            assert not client.pending or ledger.waiting_since_ns is not None
