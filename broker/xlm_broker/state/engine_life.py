"""Birth, death and rebirth of the engine child.

spawn -> Started -> Start -> Progress ... -> Loaded -> budget, schedule, answers.
A death is followed by a restart with back-off; five in a row without a single
generated token between them, a fault of the model file, or a device that was
never there, and it is given up. The broker stays up and says why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xlm.errors import CODES, XlmError, from_code
from xlm.protocol import link

from .actions import KillEngine, Level, SpawnEngine, StopBroker
from .core import Core
from .engine import Engine, Phase, Problem
from .events import EngineExited

LOADING_LOG_NS = 2_000_000_000  # between two log lines about the same stage of loading
_HUNG = "it stands still while generating"
_KILLED = (9, 15)  # SIGKILL, SIGTERM: from outside, and no sign of a crash


@dataclass(slots=True)
class LifeHooks:
    """What the rest of the machine does at the turns of an engine's life."""

    acceptable: Callable[[link.Loaded], Problem | None]  # why what was loaded cannot be worked with, if so
    loaded: Callable[[], None]  # model and device are known, phase is "ready"
    dead: Callable[[], None]  # the process was reaped
    failed: Callable[[XlmError], None]  # no engine will come any more


class EngineLife:
    def __init__(self, core: Core, engine: Engine, hooks: LifeHooks) -> None:
        self._core = core
        self._engine = engine
        self._hooks = hooks
        self._spawn_ns: int | None = None
        self._stop_reason = ""
        self._retry = False  # once the failed process is gone
        self._load_crashes = 0  # in a row
        self._told: tuple[str, int] = ("", 0)  # the stage of loading last logged, and when

    def _enter(self, phase: Phase) -> None:
        self._engine.phase, self._engine.since_ns = phase, self._core.now_ns

    # -- start ----------------------------------------------------------------------

    def spawn(self) -> None:
        if self._engine.alive or self._engine.phase != "down":
            return
        self._engine.incarnation += 1
        self._engine.alive, self._engine.heard_ns = True, self._core.now_ns
        self._engine.stats, self._engine.experts, self._engine.lost = None, [], False
        self._engine.steps, self._engine.hung, self._engine.stage = 0, False, ""
        self._spawn_ns = None
        self._told = "", self._core.now_ns
        self._enter("spawning")
        self._core.do(SpawnEngine(self._engine.incarnation))

    def spawned(self, incarnation: int, pid: int) -> None:
        if incarnation == self._engine.incarnation:
            self._engine.pid = pid

    def message(self, message: link.FromEngine) -> None:
        """Messages that concern the life itself; called for the running incarnation only."""
        if self._gets_on(message):
            self._engine.heard_ns = self._core.now_ns
        match message:
            case link.Started():
                self._started(message)
            case link.Progress():
                self._progressed(message)
            case link.Loaded():
                self._loaded(message)
            case link.Failed():
                self._failed(message)

    def _gets_on(self, message: link.FromEngine) -> bool:
        """Whether the thread that computes has moved. Budgets and Stats are another thread's: it outlives a hang."""
        if not isinstance(message, link.Stats):
            return not isinstance(message, (link.Released, link.ScheduleApplied))
        moved, self._engine.steps = message.steps != self._engine.steps, message.steps
        return moved

    def _started(self, message: link.Started) -> None:
        if self._engine.phase != "spawning":
            return
        self._engine.pid, self._engine.versions = message.pid, message.versions
        self._enter("loading")
        # Budget 0: while it loads the engine holds no device memory, so no reclaim has to wait for a load.
        settings = self._core.settings
        self._core.to_engine(link.Start(device=settings.device, model=settings.model, budget_bytes=0))

    def _progressed(self, message: link.Progress) -> None:
        self._engine.stage, self._engine.fraction = message.stage, message.fraction
        stage, since_ns = self._told
        if message.stage != stage or self._core.now_ns - since_ns >= LOADING_LOG_NS:
            self._told = message.stage, self._core.now_ns
            self._core.log("info", "engine_loading", stage=message.stage, percent=round(100 * message.fraction))

    def _loaded(self, message: link.Loaded) -> None:
        if self._engine.phase != "loading":
            return
        self._engine.model, self._engine.device = message.model, message.device
        self._engine.rss_bytes, self._engine.problem = message.host_rss_bytes, self._hooks.acceptable(message)
        if self._engine.problem is not None:
            self._give_up()
            return self.kill("what it loaded cannot be worked with")
        self._enter("ready")
        self._core.log("info", "engine_ready", model=message.model.name, device=message.device.description)
        return self._hooks.loaded()

    def token_generated(self) -> None:
        self._engine.token_ns = self._core.now_ns
        self._engine.failures = 0

    # -- death ----------------------------------------------------------------------

    def _failed(self, message: link.Failed) -> None:
        self._engine.problem = problem = Problem(message.code, message.message, message.hint)
        if self._engine.phase == "loading" and self._final(message.code):
            self._give_up()
        else:
            self._core.log("error", "engine_failed", **_described(problem))
        self.kill(f"it failed: {message.code}", problem, asked=True)

    def _final(self, code: str) -> bool:
        """A device that was never found is not waited for; one that is missing after a restart may come back."""
        return _final(code) or (code == "device_not_found" and self._engine.model is None)

    def kill(self, reason: str, problem: Problem | None = None, *, asked: bool = False) -> None:
        """Ends a process that cannot go on; what it held counts as held until its exit is reported.

        ``asked``: by itself, it ends anyway, and what there is to say of it was logged.
        """
        if not self._engine.alive:
            return
        if self._engine.phase not in ("failed", "stopping", "killing"):
            self._engine.problem = problem or Problem("engine_restarting", f"the engine was killed: {reason}")
            self._enter("killing")
        self._core.log("debug" if asked else "warning", "engine_killed", reason=reason)
        self._core.do(KillEngine(self._engine.incarnation, reason))

    def exited(self, event: EngineExited) -> None:
        if event.incarnation != self._engine.incarnation or not self._engine.alive:
            return
        engine = self._engine
        engine.alive, engine.pid, engine.stats, engine.lost = False, 0, None, False
        self._log_exit(event)
        self._hooks.dead()
        if engine.phase == "stopping":
            self._stopped()
        elif engine.phase != "failed":
            self._after_death(event)
        elif self._retry:
            self.retry()

    def _log_exit(self, event: EngineExited) -> None:
        """Its last words only where nothing else has told why it ended."""
        engine = self._engine
        told = engine.phase == "killing" and engine.problem is not None and engine.problem.code != "engine_restarting"
        expected = told or engine.phase == "failed" or (engine.phase == "stopping" and event.exit_code == 0)
        words = {} if expected or not event.detail else {"last_words": event.detail.splitlines()}
        level: Level = "info" if expected else "warning"
        self._core.log(level, "engine_exited", code=event.exit_code, signal=event.signal, **words)

    def _after_death(self, event: EngineExited) -> None:
        engine = self._engine
        engine.failures += 1
        self._load_crashes = self._load_crashes + 1 if self._crashed_loading(event) else 0
        if engine.phase != "killing" or engine.problem is None:
            engine.problem = Problem("engine_restarting", _obituary(event))
        if event.code:
            engine.problem = Problem(event.code, event.detail)
        text = engine.problem.message
        self._enter("down")
        if event.code or engine.failures >= self._core.settings.max_engine_failures:
            return self._give_up()
        timing = self._core.settings.timing
        wait_ns = min(timing.restart_first_ns << (engine.failures - 1), timing.restart_max_ns)
        engine.restarts += 1
        self._spawn_ns = self._core.now_ns + wait_ns
        self._core.notify("engine_restarting", text, attempt=engine.failures, wait_ms=wait_ns / 1e6)
        return None

    def _crashed_loading(self, event: EngineExited) -> bool:
        """A crash of its own while it reads the model: not a kill, and not while it opens the device."""
        engine = self._engine
        return engine.phase == "loading" and engine.stage != "device" and event.signal not in (0, *_KILLED)

    def _give_up(self) -> None:
        problem = self._engine.problem or Problem("engine_failed", "the engine has failed")
        if problem.code == "engine_restarting":
            problem = self._verdict(problem)
        self._engine.problem, self._spawn_ns = problem, None
        self._enter("failed")
        self._core.log("error", "engine_given_up", **_described(problem), next=self._outlook(problem))
        self._core.notify("engine_failed", problem.message, code=problem.code)
        self._hooks.failed(problem.error())

    def _verdict(self, last: Problem) -> Problem:
        failures = self._engine.failures
        if failures and self._load_crashes == failures:
            text = f"llama.cpp crashed {failures} times in a row while it loaded this model; last: {last.message}"
            return Problem("model_invalid", text)
        return Problem("engine_failed", f"the engine died {failures} times in a row; last: {last.message}")

    def _outlook(self, problem: Problem) -> str:
        model = self._core.settings.model
        path = model.mmproj if problem.code.startswith("projector_") else model.path
        if _of_model(problem.code):
            return f"the broker stays up, and loads {path} as soon as that file appears or changes"
        return "the broker stays up and refuses to generate until it is started again"

    def retry(self) -> None:
        """The model's file is another one now: a fault of the old one is no longer final."""
        problem = self._engine.problem
        if self._engine.phase != "failed" or problem is None or not _of_model(problem.code):
            return
        self._retry = self._engine.alive
        if not self._engine.alive:
            self._engine.failures = self._load_crashes = 0
            self._enter("down")
            self.spawn()

    # -- shutdown -------------------------------------------------------------------

    def shutdown(self, reason: str) -> None:
        """Asks the engine to stop, kills it when asked twice; StopBroker follows its exit."""
        if self._engine.phase in ("stopping", "stopped"):
            return self.kill("second shutdown request")
        self._stop_reason, self._spawn_ns = reason, None
        dying = self._engine.phase in ("killing", "failed")
        self._enter("stopping")
        self._core.notify("shutdown", reason)
        self._hooks.failed(from_code("broker_gone", "the broker is shutting down"))
        if not self._engine.alive:
            return self._stopped()
        return self.kill("shutdown") if dying else self._core.to_engine(link.Stop())

    def _stopped(self) -> None:
        self._enter("stopped")
        self._core.do(StopBroker(0, self._stop_reason))

    def forgive(self, late_ns: int) -> None:
        """So long the engine could not be heard."""
        self._engine.heard_ns += late_ns
        self._engine.since_ns += late_ns

    # -- watchdogs ------------------------------------------------------------------

    def pass_time(self, release_deadline_ns: int | None, generating: bool) -> None:
        if self._spawn_ns is not None and self._spawn_ns <= self._core.now_ns:
            self.spawn()
        deadline = self._patience(release_deadline_ns, generating)
        if deadline is not None and deadline[0] <= self._core.now_ns:
            self._engine.hung = self._engine.hung or deadline[1] == _HUNG
            self.kill(deadline[1])
            self._engine.since_ns = self._core.now_ns  # a kill that is not answered is repeated, not spun on

    def _patience(self, release_deadline_ns: int | None, generating: bool) -> tuple[int, str] | None:
        """Until when the present state is believed, and what a later moment means."""
        engine, timing = self._engine, self._core.settings.timing
        match engine.phase:
            case "spawning":
                return engine.since_ns + timing.spawn_patience_ns, "it does not start"
            case "loading":
                return engine.heard_ns + timing.load_patience_ns, "it is silent while loading"
            case "killing" | "stopping" | "failed" if engine.alive:
                return engine.since_ns + timing.stop_patience_ns, "it does not end"
            case "ready":
                return self._ready_patience(release_deadline_ns, generating)
        return None

    def _ready_patience(self, release_deadline_ns: int | None, generating: bool) -> tuple[int, str] | None:
        candidates = []
        if release_deadline_ns is not None:
            candidates.append((release_deadline_ns, "it does not release memory"))
        if generating:
            patience = self._core.settings.timing.hang_patience_ns
            candidates.append((self._engine.heard_ns + patience, _HUNG))
        return min(candidates, default=None)

    def next_deadline_ns(self, release_deadline_ns: int | None, generating: bool) -> int | None:
        patience = self._patience(release_deadline_ns, generating)
        times = [self._spawn_ns, patience[0] if patience is not None else None]
        return min((at for at in times if at is not None), default=None)

    def validate(self) -> None:
        engine = self._engine
        assert engine.alive or not engine.holds, "a dead engine holds device memory"
        assert engine.alive == (engine.phase in ("spawning", "loading", "ready", "killing")) or (
            engine.phase in ("failed", "stopping")
        )
        assert (self._spawn_ns is not None) == (engine.phase == "down" and engine.incarnation > 0)
        assert engine.failures <= self._core.settings.max_engine_failures
        assert not engine.ready or (engine.model is not None and engine.device is not None and engine.holds)
        assert engine.phase != "failed" or engine.problem is not None


def _final(code: str) -> bool:
    """Faults no restart can cure: the model file, and libraries that do not fit each other."""
    return code in ("abi_mismatch", "template_invalid") or _of_model(code)


def _of_model(code: str) -> bool:
    known = CODES.get(code)
    return known is not None and known.error.fault == "model"


def _described(problem: Problem) -> dict[str, str]:
    """For the log: what clients are told, with the hint that belongs to the code."""
    error = problem.error()
    return {"code": error.code, "message": error.message, "hint": error.hint}


def _obituary(event: EngineExited) -> str:
    if event.exit_code is None and not event.signal:
        return f"the engine could not be started: {event.detail or 'unknown reason'}"
    how = f"signal {event.signal}" if event.signal else f"exit code {event.exit_code}"
    return f"the engine ended with {how}"
