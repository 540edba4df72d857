"""Frame pacing: how much of the time the engine may compute, so that games hold their frame times.

A closed loop. Measured: the game's frame time. Actuator: the *duty*, the share of
time that steps take (``link.SetPace``); where that does not do and the game allows
it, the memory budget. The plant, as far as we need to know it:

    frame time = base + coupling x duty + noise        base, coupling >= 0, both unknown

Reports are summed up into windows of at least WINDOW_NS, longer where a low duty
makes steps rare. A window has one figure y: the mean frame time; or, where frames
were late, the target and the mean excess over it, as far as the longest frame of
each report shows it, if that is more

    y = max(mean, target + sum over reports of (max - target) / frames)

It is compared with a reference r: the target, or what the game takes without us,
learned in windows without generation by the smoothed mean and mean deviation of
V. Jacobson, "Congestion Avoidance and Control", SIGCOMM 1988: r = max(target, mean + 2 deviations).
A game that misses its target all by itself is held near what it would be without
us, not starved of its answers. From the overshoot e = y / r - 1, at most 1,

    e > OVERSHOOT      ln duty -= GAIN x e, and so on until e <= SETTLED (where r is the target)
    e < -HEADROOM      ln duty += min(-GAIN x e, RISE)
    in between         nothing; now and then a probe upwards, since with vsync a frame
                       takes the target also where there is room

an integral controller of the logarithm of the duty. Why the logarithm: y changes by
coupling x duty per unit of ln duty, which is at most y itself, whatever the coupling.
So no step crosses the reference: from above y' / r >= (1 + e) exp(-GAIN e) >= 1 for
0 <= e <= 1 and GAIN <= ln 2; from below y' / r <= (1 + e) exp(-GAIN e) < 1 for -1 <= e < 0.
No oscillation follows for any base and coupling; what noise and probes could still
cause is bounded by a hold: after a fall the duty does not rise for HOLD_FIRST_NS, doubled up
to HOLD_MAX_NS by every rise that ended in a fall (exponential back-off, as of Ethernet)
and halved by every doubling of the duty that did not.

No wind-up: the duty is itself the integrator and clamped to [min_duty, 1]; and with
several games, of whom the strictest decides, nobody's is more than one step over the
one in force.

docs/frame-pacing.md says it for users, docs/decisions/0020-frame-pacing.md why.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final

from xlm.protocol import link, messages

from .core import Client, Core
from .settings import MS, PacingSettings, S

OVERSHOOT: Final = 0.05
SETTLED: Final = 0.01
HEADROOM: Final = 0.10
GAIN: Final = 0.6
RISE: Final = 0.3  # of ln duty in one window: by 35 %
PROBE: Final = 0.1  # the first probe's step of ln duty; doubles up to RISE while probes go well
PROBE_NS: Final = 1 * S  # between two steps of a probe
HOLD_FIRST_NS: Final = 500 * MS
HOLD_MAX_NS: Final = 16 * S
WINDOW_NS: Final = 250 * MS  # at a duty of FULL_RATE and more; in inverse proportion below
FULL_RATE: Final = 0.25
STALE_NS: Final = 2 * S  # a game that reports nothing shows nothing: it is left out, and remembered

LEVELS: Final = 4  # steps of the budget from what it was down to nothing
SHRINK_NS: Final = 2 * S  # at the minimum duty, before each step down
GIVE_BACK_DUTY: Final = 0.5  # the duty that must have come back before a step up
GIVE_BACK_NS: Final = 5 * S  # of frames on target before a step up; doubles for one taken back soon
GIVE_BACK_MAX_NS: Final = 80 * S
REGRET_NS: Final = 30 * S  # what "soon" is

MEAN_RATE: Final = 1 / 8  # Jacobson's gains
DEVIATION_RATE: Final = 1 / 4
REFUTED: Final = 0.9


@dataclass(slots=True)
class Window:
    """Reports summed up. ``idle``: no answer was in progress at any time; ``busy``: one was, all the time."""

    began_ns: int
    frames: int = 0
    sum_ms: float = 0.0
    excess_ms: float | None = None  # over the target, at least; None: no frame was late
    idle: bool = True
    busy: bool = True

    def add(self, frame: messages.Frame) -> None:
        """Of one target for all reports."""
        self.frames += frame.frames
        self.sum_ms += frame.frames * frame.mean_ms
        if frame.max_ms > frame.target_ms:
            self.excess_ms = (self.excess_ms or 0.0) + frame.max_ms - frame.target_ms

    def note(self, generating: bool) -> None:
        self.idle &= not generating
        self.busy &= generating

    def figure_ms(self, target_ms: float) -> float:
        """y of the module's text. A window with a late frame never shows headroom."""
        mean_ms = self.sum_ms / self.frames
        if self.excess_ms is None:
            return mean_ms
        return max(mean_ms, target_ms + self.excess_ms / self.frames)


@dataclass(slots=True)
class Baseline:
    """The figure without generation, smoothed."""

    mean_ms: float | None = None
    deviation_ms: float = 0.0

    def learn(self, figure_ms: float) -> None:
        if self.mean_ms is None:
            self.mean_ms = figure_ms
        error_ms = figure_ms - self.mean_ms
        self.mean_ms += MEAN_RATE * error_ms
        self.deviation_ms += DEVIATION_RATE * (abs(error_ms) - self.deviation_ms)

    def bound(self, figure_ms: float) -> None:
        """A figure under load. Without the load it would be no more: one clearly less refutes what was learned."""
        if self.mean_ms is not None and figure_ms < REFUTED * self.mean_ms - 2 * self.deviation_ms:
            self.mean_ms, self.deviation_ms = None, 0.0

    def reference_ms(self, target_ms: float) -> float:
        return max(target_ms, (self.mean_ms or 0.0) + 2 * self.deviation_ms)


@dataclass(frozen=True, slots=True)
class Situation:
    """What holds while a report is judged: ``duty`` and ``budget_bytes`` are those in force."""

    now_ns: int
    duty: float
    budget_bytes: int


@dataclass(slots=True)
class Duty:
    """The controller of the duty, for one game."""

    minimum: float
    value: float = 1.0
    _hold_ns: int = HOLD_FIRST_NS
    _held_until_ns: int = 0
    _moved_ns: int = 0
    _fell_to: float = 1.0
    _rising: bool = False
    _falling: bool = False
    _probe: float = PROBE

    def track(self, in_force: float) -> None:
        """Anti-windup, where another game is stricter."""
        self.value = max(self.minimum, min(self.value, in_force * math.exp(RISE)))

    @property
    def at_floor(self) -> bool:
        return self.value <= self.minimum

    @property
    def tolerance(self) -> float:
        """The overshoot up to which nothing is done. Whoever has begun to fall goes on down to the target itself."""
        return SETTLED if self._falling and not self.at_floor else OVERSHOOT

    def settle(self) -> None:
        self._falling = False

    def fall(self, overshoot: float, at: Situation) -> None:
        self._falling = True
        if self._rising:
            self._hold_ns, self._rising = min(2 * self._hold_ns, HOLD_MAX_NS), False
        before = min(self.value, at.duty)
        self.value = max(self.minimum, before * math.exp(-GAIN * overshoot))
        self._moved_ns, self._held_until_ns = at.now_ns, at.now_ns + self._hold_ns
        self._fell_to, self._probe = self.value, PROBE

    def rise(self, overshoot: float, at: Situation) -> None:
        """Takes room that was seen, or probes for it; not before the hold is over."""
        if self.value >= 1.0 or at.now_ns < self._held_until_ns:
            return
        if overshoot < -HEADROOM:
            self._up(min(-GAIN * overshoot, RISE), at)
        elif overshoot <= OVERSHOOT / 2 and at.now_ns - self._moved_ns >= PROBE_NS:
            self._up(self._probe, at)
            self._probe = min(2 * self._probe, RISE)

    def _up(self, step: float, at: Situation) -> None:
        self.value = min(1.0, self.value * math.exp(step))
        self._moved_ns, self._rising = at.now_ns, True
        if self.value >= 2 * self._fell_to:  # far from the old border: perhaps new circumstances
            self._hold_ns, self._fell_to = max(self._hold_ns // 2, HOLD_FIRST_NS), self.value


@dataclass(slots=True)
class Shrink:
    """The budget's controller, for one game: levels down while the minimum duty does not do, and back up slowly."""

    level: int = 0
    start_bytes: int = 0
    _due_ns: int | None = None
    _calm_ns: int | None = None
    _wait_ns: int = GIVE_BACK_NS
    _returned_ns: int | None = None

    @property
    def limit_bytes(self) -> int | None:
        return self.start_bytes * (LEVELS - self.level) // LEVELS if self.level else None

    def can_help(self, budget_bytes: int) -> bool:
        return self.level < LEVELS and budget_bytes > 0

    def missed(self, at: Situation) -> None:
        """The target was missed at the minimum duty."""
        if self._due_ns is None:
            self._due_ns = at.now_ns + SHRINK_NS
        elif at.now_ns >= self._due_ns and self.can_help(at.budget_bytes):
            self._learn_patience(at.now_ns)
            self.start_bytes = self.start_bytes if self.level else at.budget_bytes
            self.level, self._due_ns, self._calm_ns = self.level + 1, at.now_ns + SHRINK_NS, None

    def _learn_patience(self, now_ns: int) -> None:
        if self._returned_ns is not None and now_ns - self._returned_ns < REGRET_NS:
            self._wait_ns, self._returned_ns = min(2 * self._wait_ns, GIVE_BACK_MAX_NS), None
        elif not self.level:
            self._wait_ns = GIVE_BACK_NS

    def held(self) -> None:
        """The target was met, or the duty still can fall."""
        self._due_ns = None

    def watch(self, calm: bool, now_ns: int) -> None:
        """``calm``: frames on target, at a good duty or without generation."""
        if not (calm and self.level):
            self._calm_ns = None
        elif self._calm_ns is None:
            self._calm_ns = now_ns
        elif now_ns - self._calm_ns >= self._wait_ns:
            self.level, self._calm_ns, self._returned_ns = self.level - 1, now_ns, now_ns


class Reporter:
    """One game's loop: windows, baseline and both controllers. Knows no clock and nothing of other games."""

    def __init__(self, settings: PacingSettings, now_ns: int) -> None:
        self.duty = Duty(settings.min_duty)
        self.shrink = Shrink()
        self.baseline = Baseline()
        self.pacing = "off"
        self.target_ms = 0.0
        self.heard_ns = now_ns
        self.figure_ms: float | None = None  # of the last whole window
        self.overshoot: float | None = None  # of the last one with generation
        self._window = Window(now_ns)

    def note(self, generating: bool) -> None:
        """Whether an answer is in progress; to be told after every event."""
        self._window.note(generating)

    def live(self, now_ns: int) -> bool:
        return now_ns - self.heard_ns < STALE_NS

    @property
    def limit_bytes(self) -> int | None:
        return self.shrink.limit_bytes

    @property
    def holds_back(self) -> bool:
        return self.duty.value < 1.0 or self.shrink.level > 0

    def report(self, frame: messages.Frame, generating: bool, at: Situation) -> None:
        if not self.live(at.now_ns) or (frame.target_ms, frame.pacing) != (self.target_ms, self.pacing):
            self._begin(frame, at.now_ns)
        self.heard_ns = at.now_ns
        self._window.add(frame)
        self._window.note(generating)
        if at.now_ns - self._window.began_ns >= WINDOW_NS * max(1.0, FULL_RATE / at.duty):
            window, self._window = self._window, Window(at.now_ns)
            self._judge(window, at)

    def _begin(self, frame: messages.Frame, now_ns: int) -> None:
        """Other wishes, or the first word after a silence."""
        self._window = Window(now_ns)
        self.target_ms, self.pacing = frame.target_ms, frame.pacing
        if frame.pacing != "shrink":
            self.shrink = Shrink()
        if frame.pacing == "off":
            self.duty = Duty(self.duty.minimum)

    def _judge(self, window: Window, at: Situation) -> None:
        reference_ms = self.baseline.reference_ms(self.target_ms)
        figure_ms = min(window.figure_ms(self.target_ms), 2 * reference_ms)
        self.figure_ms = figure_ms
        if window.idle:
            self.baseline.learn(figure_ms)
        elif self.pacing != "off":
            self.overshoot = figure_ms / reference_ms - 1
            own = reference_ms > self.target_ms
            missed = self.overshoot > (OVERSHOOT if own else self.duty.tolerance)
            self._control(missed, self.overshoot, window.busy, at)
            self._learn_under_load(figure_ms, at)
        on_target = figure_ms <= self.target_ms * (1 + OVERSHOOT)
        self.shrink.watch(on_target and (window.idle or self.duty.value >= GIVE_BACK_DUTY), at.now_ns)

    def _control(self, missed: bool, overshoot: float, busy: bool, at: Situation) -> None:
        if missed and self.duty.at_floor:
            return self.shrink.missed(at) if self.pacing == "shrink" else None
        self.shrink.held()
        if missed:
            return self.duty.fall(overshoot, at)
        self.duty.settle()
        if busy:  # a window that was in part without generation shows room that is not there
            self.duty.rise(overshoot, at)
        return self.duty.track(at.duty)

    def _learn_under_load(self, figure_ms: float, at: Situation) -> None:
        """Where all is done that can be done, what is left is the game's own."""
        can_shrink = self.pacing == "shrink" and self.shrink.can_help(at.budget_bytes)
        if self.duty.at_floor and not can_shrink:
            self.baseline.learn(figure_ms)
        else:
            self.baseline.bound(figure_ms)


@dataclass(slots=True)
class Pacing:
    """All games' loops, and what follows for the engine: the strictest of those who report decides."""

    _core: Core
    duty: float = 1.0
    limit_bytes: int | None = None
    _reporters: dict[bytes, Reporter] = field(default_factory=dict)
    _commanded: float = 1.0
    _generating: bool = False
    _paced_until_ns: int = 0

    # -- what happens ---------------------------------------------------------------

    def report(self, client: Client, frame: messages.Frame, budget_bytes: int) -> None:
        now_ns = self._core.now_ns
        reporter = self._reporters.setdefault(client.identity, Reporter(self._core.settings.pacing, now_ns))
        reporter.report(frame, self._generating, Situation(now_ns, self.duty, budget_bytes))
        self._decide()

    def note(self, generating: bool) -> None:
        """Whether an answer is in progress, after every event."""
        self._generating = generating
        for reporter in self._reporters.values():
            reporter.note(generating)

    def lease_ended(self, client: Client) -> None:
        if self._reporters.pop(client.identity, None) is not None:
            self._decide()

    def lease_moved(self, client: Client, old: bytes) -> None:
        reporter = self._reporters.pop(old, None)
        if reporter is not None:
            self._reporters[client.identity] = reporter

    def engine_loaded(self) -> None:
        """A new engine runs at full pace until it is told otherwise."""
        self._commanded = 1.0

    def pass_time(self) -> None:
        self._decide()

    # -- what follows ---------------------------------------------------------------

    def _decide(self) -> None:
        live = [reporter for reporter in self._reporters.values() if reporter.live(self._core.now_ns)]
        self.duty = min((reporter.duty.value for reporter in live), default=1.0)
        limits = (reporter.limit_bytes for reporter in live)
        self.limit_bytes = min((limit for limit in limits if limit is not None), default=None)

    def order(self, ready: bool) -> None:
        """Tells an engine that is there."""
        if not ready or self.duty == self._commanded:
            return
        self._paced_until_ns = self._core.now_ns + STALE_NS
        self._commanded = self.duty
        self._core.to_engine(link.SetPace(duty=self.duty, max_gap_ns=self._core.settings.pacing.max_gap_ns))
        self._core.log("debug", "pace", duty=round(self.duty, 4))

    @property
    def slows(self) -> bool:
        """The engine's rate of tokens is, or was a moment ago, lowered by us: it tells nothing of the device."""
        return self.duty < 1.0 or self._core.now_ns < self._paced_until_ns

    def next_deadline_ns(self) -> int | None:
        """When a game that holds the engine back, and has fallen silent, is to be left out."""
        now_ns = self._core.now_ns
        holding = (r for r in self._reporters.values() if r.live(now_ns) and r.holds_back)
        return min((reporter.heard_ns + STALE_NS for reporter in holding), default=None)

    def describe(self, client: Client) -> dict[str, Any] | None:
        """For status; None for one that has not reported."""
        reporter = self._reporters.get(client.identity)
        if reporter is None:
            return None
        return {
            "pacing": reporter.pacing,
            "target_ms": reporter.target_ms,
            "figure_ms": reporter.figure_ms,
            "baseline_ms": reporter.baseline.mean_ms,
            "overshoot": reporter.overshoot,
            "duty": reporter.duty.value,
            "limit_bytes": reporter.limit_bytes,
            "reporting": reporter.live(self._core.now_ns),
        }

    def validate(self) -> None:
        minimum = self._core.settings.pacing.min_duty
        assert minimum <= self.duty <= 1.0
        assert set(self._reporters) <= set(self._core.clients), "a loop without a lease"
        for reporter in self._reporters.values():
            assert minimum <= reporter.duty.value <= 1.0
            assert 0 <= reporter.shrink.level <= LEVELS
