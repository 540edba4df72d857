"""When to plan, and for which budget.

A shrink below the plan in force is planned in the very next Tick (the driver
ticks as soon as the order to release is out). A grow is planned at once after a
quiet time; else when the budget was still for a while, or at the end of a
window for the *lowest* budget seen in it. So a budget that flaps ten times a
second costs one plan, not one per flap, and a slow rise is followed.

Where plans are found beside everything else (``find_plans``) nothing waits for
one. A shrink evicts at once in the order of the schedule in force, a first
schedule is made by simple rules; the better one follows. A grow keeps what is
in force until its plan is found, or patience ends.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from xlm.protocol import link

from .actions import FindPlan
from .core import Core
from .engine import Engine
from .events import Planned
from .ports import Planner

_ROUTED_TOKENS: Final = 256  # so many say enough of a model's routing for a plan ...
_ROUTED_GROWTH: Final = 4  # ... and so many times more, for another one
_MOST_RETRIES: Final = 6  # the wait doubles so often


class Schedules:
    def __init__(self, core: Core, engine: Engine, planner: Planner) -> None:
        self._core = core
        self._engine = engine
        self._planner = planner
        self.sent: link.Schedule | None = None  # the last one, applied or not
        self.in_force: link.Schedule | None = None
        self.rejection = ""
        self.plans = 0
        self._ids = 0
        self._due_ns: int | None = None
        self._target_bytes = 0
        self._changed_ns: int | None = None
        self._window_since_ns: int | None = None
        self._window_low_bytes = 0
        self._goal_bytes: int | None = None  # the budget that was planned for, or is being planned for
        self._asked: FindPlan | None = None
        self._held = False  # what was asked has not been passed on yet
        self._routed_tokens = 0  # how many had shown their experts when a plan was last asked for because of it
        self._patient_until_ns: int | None = None  # None: an answer is welcome, but nothing waits for it
        self._retry_ns: int | None = None  # when a search that failed is asked for again
        self._failures = 0  # in a row

    # -- triggers -------------------------------------------------------------------

    def budget_changed(self, budget_bytes: int) -> None:
        now, timing = self._core.now_ns, self._core.settings.timing
        quiet = self._changed_ns is None or now - self._changed_ns >= timing.grow_quiet_ns
        self._changed_ns, self._target_bytes = now, budget_bytes
        planned = self._goal_bytes or 0
        if budget_bytes < planned or (quiet and budget_bytes > planned):
            self._due_ns, self._window_since_ns = now, None
        else:
            self._defer(budget_bytes, now)

    def _defer(self, budget_bytes: int, now: int) -> None:
        timing = self._core.settings.timing
        if self._window_since_ns is None:
            self._window_since_ns, self._window_low_bytes = now, budget_bytes
        self._window_low_bytes = min(self._window_low_bytes, budget_bytes)
        self._due_ns = min(now + timing.grow_stable_ns, self._window_since_ns + timing.grow_window_ns)

    def plan_now(self, budget_bytes: int) -> None:
        """Plans whatever is in force: a new engine, a device lost or restored."""
        self._target_bytes, self._due_ns, self._window_since_ns = budget_bytes, None, None
        self._plan(budget_bytes)
        self._ask(budget_bytes, None)

    def pass_time(self) -> None:
        self._lose_patience()
        self._retry()
        if self._due_ns is None or self._due_ns > self._core.now_ns:
            return
        self._due_ns = None
        if self._engine.ready:
            self._planned_time()

    def _planned_time(self) -> None:
        target, since = self._choose(), self._window_since_ns
        self._window_since_ns = None
        if target != self._target_bytes and since is not None:
            self._defer(self._target_bytes, self._core.now_ns)
        if self.sent is None or self._goal_bytes != target:
            self._follow(target)

    def _follow(self, target: int) -> None:
        """Brings the schedule to another budget."""
        if not self._core.settings.find_plans or self.sent is None:
            self._plan(target)
            self._ask(target, None)
            return
        if target < self.sent.budget_bytes:
            self._shrink(target)
        self._ask(target, self.sent)

    def _choose(self) -> int:
        """The budget now if it is still, or lower than planned; else the lowest of the window."""
        still_ns = self._core.now_ns - (self._changed_ns or 0)
        if self._window_since_ns is None or still_ns >= self._core.settings.timing.grow_stable_ns:
            return self._target_bytes
        return self._window_low_bytes

    def next_deadline_ns(self) -> int | None:
        ends = (self._due_ns, self._patient_until_ns, self._retry_ns)
        return min((at for at in ends if at is not None), default=None)

    # -- planning -------------------------------------------------------------------

    def _seen(self) -> tuple[link.ModelFacts, link.DeviceFacts] | None:
        """Model and device as a planner is told them; None before the first load."""
        model, device = self._engine.model, self._engine.device
        if model is None or device is None:
            return None
        return model, replace(device, degraded=device.degraded or self._engine.lost)

    def _plan(self, budget_bytes: int) -> None:
        seen = self._seen()
        if seen is None:
            return
        self._ids += 1
        self.plans += 1
        self._send(self._sound(*seen, budget_bytes) or self._fallback(*seen, budget_bytes))

    def _shrink(self, budget_bytes: int) -> None:
        seen = self._seen()
        if seen is None:
            return
        self._ids += 1
        self.plans += 1
        self._send(self._fallback(*seen, budget_bytes))

    def _send(self, schedule: link.Schedule) -> None:
        self.sent, self._goal_bytes = schedule, schedule.budget_bytes
        self._core.to_engine(link.SetSchedule(schedule=schedule))
        self._core.log("info", "schedule", schedule_id=schedule.schedule_id, summary=schedule.summary)

    def _sound(self, model: link.ModelFacts, device: link.DeviceFacts, budget_bytes: int) -> link.Schedule | None:
        """The planner's schedule; None where it raised or broke the budget. A planner cannot take the broker down."""
        try:
            made = self._planner.plan(model, device, budget_bytes, schedule_id=self._ids)
        except Exception as error:
            self._core.log("error", "planner_failed", error=f"{type(error).__name__}: {error}")
            return None
        if made.resident_bytes + made.reserve_bytes <= budget_bytes:
            return made
        self._core.log("error", "planner_over_budget", budget_bytes=budget_bytes, summary=made.summary)
        return None

    def _fallback(self, model: link.ModelFacts, device: link.DeviceFacts, budget_bytes: int) -> link.Schedule:
        before = self.sent if self.sent is not None else _on_cpu(model, self._ids, budget_bytes)
        return self._planner.shrink_plan(model, device, before, budget_bytes, schedule_id=self._ids)

    # -- plans that are found beside everything else ----------------------------------

    def _ask(self, budget_bytes: int, current: link.Schedule | None) -> None:
        """``current``: what is held; None where nothing that was uploaded would be lost by another set."""
        seen, settings = self._seen(), self._core.settings
        if seen is None or not settings.find_plans:
            return
        self._goal_bytes, self._retry_ns = budget_bytes, None
        routing = tuple(stats for stats in self._engine.experts if stats.covered)
        self._asked, self._held = FindPlan(self._core.count(), *seen, budget_bytes, current, routing), True
        self._patient_until_ns = self._core.now_ns + settings.timing.plan_patience_ns

    def pass_on(self) -> None:
        """Nothing is being released: the search may take its CPU now."""
        if self._held and self._asked is not None:
            self._core.do(self._asked)
        self._held = False

    def routing_measured(self) -> None:
        """Which experts are used is known better than when the plan was made: another one may keep others."""
        seen = max((stats.n_tokens for stats in self._engine.experts if stats.covered), default=0)
        if self.sent is None or self._asked is not None or self._due_ns is not None:
            return
        if seen >= max(_ROUTED_TOKENS, _ROUTED_GROWTH * self._routed_tokens):
            self._routed_tokens = seen
            self._ask(self.sent.budget_bytes, self.sent)

    def planned(self, event: Planned) -> None:
        """A schedule was found; one for another budget, or of an engine that is gone, comes too late."""
        asked = self._asked
        if asked is None or event.request_id != asked.request_id:
            return
        if event.final:
            self._asked = self._patient_until_ns = None
        if not self._engine.ready:
            return
        if event.schedule is None or not self._fits(event.schedule, asked):
            self._core.log("error", "planner_failed", error=event.problem or "its schedule does not fit")
            self._asked = self._patient_until_ns = None
            self._without(asked.budget_bytes)
            self._retry_later()
        else:
            self._failures = 0
            self._take(event.schedule)

    def _retry_later(self) -> None:
        """What kept the planner from answering may pass: too little memory, a process that was killed."""
        wait_ns = self._core.settings.timing.plan_retry_ns << min(self._failures, _MOST_RETRIES)
        self._failures += 1
        self._retry_ns = self._core.now_ns + wait_ns

    def _retry(self) -> None:
        if self._retry_ns is None or self._core.now_ns < self._retry_ns:
            return
        self._retry_ns = None
        if self._engine.ready and self.sent is not None and self._asked is None and self._due_ns is None:
            self._ask(self.sent.budget_bytes, self.sent)

    def _fits(self, found: link.Schedule, asked: FindPlan) -> bool:
        count = 1 + max((sub.index for sub in asked.model.sublayers), default=-1)
        shaped = bool(found.tiers) and all(len(tier.placement) == count for tier in found.tiers)
        return shaped and found.resident_bytes + found.reserve_bytes <= found.budget_bytes == asked.budget_bytes

    def _take(self, found: link.Schedule) -> None:
        """Sends it, unless it is what the engine works by already: then only what is said of it is news."""
        if self.sent is not None and _same(self.sent, found):
            known = replace(self.sent, summary=found.summary, predicted=found.predicted)
            self.in_force = known if self.in_force is self.sent else self.in_force
            self.sent = known
            return
        self._ids += 1
        self.plans += 1
        self._send(replace(found, schedule_id=self._ids))

    def _without(self, budget_bytes: int) -> None:
        """No plan was found: a schedule for this budget is made by simple rules, if there is none."""
        if self.sent is None or self.sent.budget_bytes != budget_bytes:
            self._plan(budget_bytes)

    def _lose_patience(self) -> None:
        asked, until_ns = self._asked, self._patient_until_ns
        if asked is None or until_ns is None or self._core.now_ns < until_ns:
            return
        self._patient_until_ns = None
        if self._engine.ready and (self.sent is None or self.sent.budget_bytes != asked.budget_bytes):
            self._core.log("warning", "planner_slow", budget_bytes=asked.budget_bytes)
            self._without(asked.budget_bytes)

    def applied(self, report: link.ScheduleApplied) -> None:
        if self.sent is None or report.schedule_id != self.sent.schedule_id:
            return
        if report.ok:
            self.in_force, self.rejection = self.sent, ""
        else:
            # The engine keeps what it had; the next change of budget tries again.
            self.rejection = report.message
            self._core.log("error", "schedule_rejected", schedule_id=report.schedule_id, message=report.message)

    def settled(self, budget_bytes: int) -> bool:
        """Whether the engine works by the last plan, that is the one for this budget, and has uploaded what it asks."""
        stats = self._engine.stats
        waits = self._due_ns is not None or self._patient_until_ns is not None
        if stats is None or self.sent is None or not self._engine.ready or waits:
            return False
        at_work = self.sent is self.in_force and stats.schedule_id == self.sent.schedule_id
        return at_work and self.sent.budget_bytes == budget_bytes and stats.settled

    def engine_dead(self) -> None:
        self.sent = self.in_force = self._due_ns = self._window_since_ns = None
        self._goal_bytes = self._asked = self._patient_until_ns = self._retry_ns = None
        self._routed_tokens = 0

    def validate(self) -> None:
        if self.sent is not None:
            assert self.sent.resident_bytes + self.sent.reserve_bytes <= self.sent.budget_bytes
        assert self._window_since_ns is None or self._due_ns is not None
        assert self._asked is not None or self._patient_until_ns is None


def _on_cpu(model: link.ModelFacts, schedule_id: int, budget_bytes: int) -> link.Schedule:
    count = 1 + max((sub.index for sub in model.sublayers), default=-1)
    tier = link.Tier(max_tokens=max(1, model.n_ubatch), placement=bytes(count))
    return link.Schedule(schedule_id=schedule_id, budget_bytes=budget_bytes, tiers=[tier], priority=list(range(count)))


def _same(one: link.Schedule, other: link.Schedule) -> bool:
    """Whether an engine would do the same by both."""
    same_memory = (one.ring_bytes, one.reserve_bytes, one.budget_bytes) == (
        other.ring_bytes, other.reserve_bytes, other.budget_bytes,
    )  # fmt: skip
    same_experts = (one.experts, one.expert_window_bytes) == (other.experts, other.expert_window_bytes)
    same_vision = (one.vision_tiers, one.vision_ring_bytes) == (other.vision_tiers, other.vision_ring_bytes)
    return same_memory and same_experts and same_vision and one.tiers == other.tiers and one.priority == other.priority
