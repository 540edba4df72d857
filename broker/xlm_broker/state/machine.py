"""The broker's brain: one event in, a list of actions out.

Every event passes the same four stages

    1. time       what is overdue happens first: a lease that has run out is not renewed by the event
    2. the event  changes leases, sessions, answers, the engine's state
    3. budget     one arbitration over what holds now; an order to the engine is a few microseconds' work
    4. plan       decided here, made in the next Tick: planning never delays an order to release

so no part has to tell another that the budget may have changed.
"""

from __future__ import annotations

from xlm.errors import from_code
from xlm.protocol import link, messages

from .actions import Action
from .answers import Answers
from .budgets import Budgets
from .core import Client, Core
from .device_watch import DeviceWatch
from .engine import Engine, Problem
from .engine_life import EngineLife, LifeHooks
from .events import (
    BrokerStarted,
    ClientFault,
    ClientGone,
    ClientMessage,
    DeviceReport,
    EngineExited,
    EngineMessage,
    EngineSpawned,
    Event,
    ImageVerified,
    ModelFileChanged,
    Planned,
    SendDrained,
    SendStalled,
    ShutdownRequested,
    Tick,
)
from .images import Images
from .leases import Leases
from .pacing import Pacing
from .ports import Planner
from .schedules import Schedules
from .sessions import Sessions
from .settings import MachineSettings
from .status import StatusReport


class Machine:
    """Not thread safe; knows no clock: ``now_ns`` is any steady count of nanoseconds (it may not run back)."""

    def __init__(self, settings: MachineSettings, planner: Planner) -> None:
        self._core = Core(settings)
        self._engine = Engine()
        self._budgets = Budgets(self._core, self._engine, planner)
        self._schedules = Schedules(self._core, self._engine, planner)
        self._answers = Answers(self._core, self._engine)
        self._sessions = Sessions(self._core, self._engine, lambda session, tell: self._answers.abandon(session, tell))
        self._images = Images(self._core, self._needed_images)
        self._watch = DeviceWatch(self._core, self._engine)
        self._pacing = Pacing(self._core)
        self._leases = Leases(self._core, self._lease_ended, self._lease_moved)
        self._life = EngineLife(
            self._core,
            self._engine,
            LifeHooks(self._acceptable, self._engine_loaded, self._engine_dead, self._answers.fail_all),
        )
        self._started_ns: int | None = None
        self._status = StatusReport(
            self._core,
            self._engine,
            self._budgets,
            self._schedules,
            self._sessions,
            self._answers,
            self._watch,
            self._pacing,
            self._images,
        )

    # -- the interface --------------------------------------------------------------

    def handle(self, event: Event, now_ns: int) -> list[Action]:
        """Takes one event, returns what to do, in order. Never raises for what a peer sent."""
        if self._started_ns is None:
            self._started_ns = now_ns
        self._forgive_lateness(now_ns)
        self._core.begin(now_ns, event.message.cause if isinstance(event, ClientMessage) else "")
        self._pass_time()
        self._dispatch(event)
        self._leases.drop_overflowed()
        self._pacing.note(self._generating)
        self._arbitrate()
        self._pacing.order(self._engine.ready)
        self._leases.drop_overflowed()
        self._images.sweep()
        if isinstance(event, Tick) and not self._budgets.changed:
            self._schedules.pass_time()
        if self._budgets.settled:
            self._schedules.pass_on()
        return self._core.take()

    def next_deadline_ns(self) -> int | None:
        """When a Tick is due at the latest (may be in the past: tick at once, after the actions); None: never."""
        times = (
            self._leases.next_deadline_ns(),
            self._sessions.next_deadline_ns(),
            self._schedules.next_deadline_ns() if self._engine.ready else None,
            self._watch.next_deadline_ns(),
            self._pacing.next_deadline_ns(),
            self._budgets.next_deadline_ns(),
            self._life.next_deadline_ns(self._budgets.impatient_at_ns(), self._generating),
        )
        return min((at for at in times if at is not None), default=None)

    def status(self, now_ns: int) -> messages.Status:
        """What get_status answers, without id and cause."""
        return self._status.make(now_ns, self._started_ns if self._started_ns is not None else now_ns)

    def validate(self) -> None:
        """Raises AssertionError where the ledger contradicts itself. For tests and --debug; after ``handle``."""
        self._leases.validate()
        self._budgets.validate()
        self._schedules.validate()
        self._sessions.validate()
        self._answers.validate(self._sessions)
        self._life.validate()
        self._watch.validate()
        self._pacing.validate()
        self._images.validate()

    def _forgive_lateness(self, now_ns: int) -> None:
        """A broker that could not run (stopped, swapped out) has read nothing either: nobody else pays for that."""
        before_ns, least_ns = self._core.now_ns, self._core.settings.timing.heartbeat_ns // 2
        due_ns = self.next_deadline_ns() if now_ns - before_ns > least_ns else None
        late_ns = 0 if due_ns is None else now_ns - max(due_ns, before_ns)
        if late_ns > least_ns:
            self._leases.forgive(late_ns)
            self._life.forgive(late_ns)
            self._budgets.forgive(late_ns)

    # -- stages ---------------------------------------------------------------------

    @property
    def _generating(self) -> bool:
        return self._answers.oldest_sent is not None

    def _pass_time(self) -> None:
        self._leases.pass_time()
        self._sessions.pass_time()
        self._watch.pass_time()
        self._pacing.pass_time()
        self._budgets.pass_time()
        self._life.pass_time(self._budgets.impatient_at_ns(), self._generating)

    def _dispatch(self, event: Event) -> None:
        match event:
            case ClientMessage():
                self._request(event.client, event.message, event.probed)
            case ClientFault():
                self._core.fail(event.client, event.request_id, event.error, event.cause)
            case ClientGone():
                self._leases.gone(event.client)
            case SendStalled():
                self._leases.stalled(event.client)
            case SendDrained():
                self._leases.drained(event.client)
            case Planned():
                self._schedules.planned(event)
            case DeviceReport():
                self._device_report(event)
            case ImageVerified():
                self._images.verified(event.upload_id, good=event.good)
            case _:
                self._engine_event(event)

    def _device_report(self, report: DeviceReport) -> None:
        stats, sent, budgets = self._engine.stats, self._schedules.sent, self._budgets
        filled = stats is not None and stats.settled and sent is not None and stats.schedule_id == sent.schedule_id
        steady = not self._engine.holds or (filled and budgets.settled)
        self._watch.reported(report, budgets.used_bytes, budgets.bound_bytes, steady=steady)

    def _engine_event(self, event: Event) -> None:
        match event:
            case BrokerStarted():
                self._life.spawn()
            case EngineSpawned():
                self._life.spawned(event.incarnation, event.pid)
            case EngineMessage():
                self._from_engine(event)
            case ModelFileChanged():
                self._life.retry()
            case EngineExited():
                self._life.exited(event)
            case ShutdownRequested():
                self._life.shutdown(event.reason)
                self._budgets.refuse_all("broker_gone", "the broker is shutting down")

    def _arbitrate(self) -> None:
        budgets, watch = self._budgets, self._watch
        budgets.reported_total_bytes = watch.reported_total_bytes
        budgets.foreign_bytes = watch.foreign_bytes
        budgets.spill_limit_bytes = watch.spill_limit_bytes
        budgets.frame_limit_bytes = self._pacing.limit_bytes
        if watch.recommand:
            budgets.restart()
        budgets.arbitrate()
        if watch.replan:
            self._schedules.plan_now(budgets.current.bytes)
        elif budgets.changed:
            self._schedules.budget_changed(budgets.current.bytes)
        watch.replan = watch.recommand = False

    # -- clients --------------------------------------------------------------------

    def _request(self, identity: bytes, request: messages.Message, probed: bool) -> None:
        if self._engine.phase in ("stopping", "stopped"):
            return self._core.refuse(identity, request.id, "broker_gone", "the broker is shutting down")
        if isinstance(request, messages.Hello):
            return self._leases.hello(identity, request, probed)
        client = self._leases.admit(identity, request.id)
        return self._admitted(client, request) if client is not None else None

    def _admitted(self, client: Client, request: messages.Message) -> None:
        match request:
            case messages.Ping():
                self._core.send(client.identity, messages.Pong(id=request.id, cause=self._core.cause))
            case messages.Goodbye():
                self._leases.goodbye(client, request)
            case messages.SetBudget():
                self._budgets.set_budget(client, request)
            case messages.Reserve():
                self._budgets.reserve(client, request)
            case messages.Frame():
                self._pacing.report(client, request, self._budgets.current.bytes)
            case messages.GetStatus():
                status = self.status(self._core.now_ns)
                status.id, status.cause = request.id, self._core.cause
                self._core.send(client.identity, status)
            case _:
                self._conversation(client, request)

    def _conversation(self, client: Client, request: messages.Message) -> None:
        match request:
            case messages.OpenSession():
                self._sessions.open(client, request)
            case messages.CloseSession():
                self._sessions.close(client, request)
            case messages.Say():
                self._answers.say(client, request, self._sessions, self._images)
            case messages.Cancel():
                self._answers.cancel(client, request)
            case messages.ImageBegin():
                self._images.begin(client, request)
            case messages.ImageChunk():
                self._images.chunk(client, request)
            case messages.ImageEnd():
                self._images.end(client, request)
            case _:
                text = f"{type(request).__name__} is no request"
                self._core.fail(client.identity, request.id, from_code("unknown_type", text))

    def _needed_images(self) -> set[str]:
        history = {key for session in self._sessions.live.values() for key in session.images}
        return history | self._answers.images()

    def _lease_ended(self, client: Client, keep_sessions: bool) -> None:
        self._images.lease_ended(client)
        self._pacing.lease_ended(client)
        self._answers.lease_ended(client)
        self._sessions.lease_ended(client, keep_sessions)

    def _lease_moved(self, client: Client, old: bytes) -> None:
        self._pacing.lease_moved(client, old)
        self._answers.lease_moved(client, old)
        self._sessions.lease_moved(old, client.identity)

    # -- engine ---------------------------------------------------------------------

    def _from_engine(self, event: EngineMessage) -> None:
        if event.incarnation != self._engine.incarnation or not self._engine.alive:
            return
        self._life.message(event.message)
        if self._engine.holds:
            self._working(event.message)

    def _working(self, message: link.FromEngine) -> None:
        match message:
            case link.Released():
                self._budgets.released(message)
            case link.ScheduleApplied():
                self._schedules.applied(message)
            case link.Piece():
                self._life.token_generated()
                self._answers.piece(message)
            case link.Finished():
                self._answers.finished(message)
            case link.GenerationFailed():
                self._answers.generation_failed(message)
            case link.WantImage():
                self._images.want(message)
            case link.Stats():
                self._budgets.measured(message)
                budgets, slowed = self._budgets, self._pacing.slows
                self._watch.stats(message, budgets.current.bytes, budgets.card(), slowed=slowed)
                self._schedules.routing_measured()

    def _acceptable(self, loaded: link.Loaded) -> Problem | None:
        return self._budgets.unusable(loaded) if self._core.settings.require_device else None

    def _engine_loaded(self) -> None:
        """Budget, then schedule, then what waits to be answered."""
        self._pacing.engine_loaded()
        self._watch.loaded()
        self._watch.replan = False  # planned right here
        self._budgets.restart()
        self._schedules.plan_now(self._budgets.current.bytes)
        self._core.notify("engine_ready", "the model is loaded")
        self._answers.pump()

    def _engine_dead(self) -> None:
        self._watch.engine_dead()
        self._schedules.engine_dead()
        self._budgets.engine_dead()
        self._answers.engine_dead()
