"""The device as the engine and the operating system see it: lost, taken by others, or spilling.

Spill rule. A driver that runs out of memory moves buffers to host memory
without an error, and generation gets several times slower. So: while the budget
is at least NEAR of what the card has for us, everything wanted is uploaded and
tokens are generated, a rate below COLLAPSE of the best seen with the same number
of answers, STRIKES reports in a row, is taken for spilling: the budget is lowered
to RETREAT of itself for ``spill_hold_ns``, clients are told, and a new schedule is made.
A smaller schedule is rightly slower, so a lower budget forgets the rates seen before.
"""

from __future__ import annotations

from xlm.protocol import link

from .budget import Card
from .core import Core
from .engine import Engine
from .events import DeviceReport

NEAR = 0.9
COLLAPSE = 0.25
STRIKES = 4
RETREAT = 0.85
DECAY = 0.99  # of the best rate, per report: a growing context makes tokens slower
MAX_RATES = 256
# Readings of other processes' memory jitter: rounded up to a step, and a fall below a few steps is not followed.
FOREIGN_STEP_BYTES = 1 << 20
FOREIGN_SLACK_BYTES = 4 << 20


class DeviceWatch:
    def __init__(self, core: Core, engine: Engine) -> None:
        self._core = core
        self._engine = engine
        self.report: DeviceReport | None = None
        self.foreign_bytes: int | None = None  # held by others, rounded up; None where nobody can say
        self.spill_limit_bytes: int | None = None
        self.replan = False  # the device came or went: a new schedule is due
        self.recommand = False  # a restored device has to hear its budget again
        self._last_estimate = 0
        self._spill_until_ns: int | None = None
        self._rates: dict[int, float] = {}  # answers at once -> best tokens/s
        self._strikes = 0
        self._last_budget_bytes = 0
        self._probe_ns: int | None = None
        self._probe_wait_ns = 0
        self._probed = False

    # -- other programs -------------------------------------------------------------

    def reported(self, report: DeviceReport, used_bytes: int, bound_bytes: int, *, steady: bool) -> None:
        """``used_bytes``: what the engine holds by its last report; ``bound_bytes``: the most it may hold by now;
        ``steady``: nothing is being uploaded or released, so that the first is as new as the card's reading.
        """
        if self.report is None or self.report.source != report.source:
            self._core.log("info", "device_report", source=report.source, detail=report.detail)
        self.report = report
        found = self._foreign(report, used_bytes if steady else None, bound_bytes)
        if found is None or self.foreign_bytes is None or not 0 <= self.foreign_bytes - found <= FOREIGN_SLACK_BYTES:
            self.foreign_bytes = found

    @property
    def reported_total_bytes(self) -> int | None:
        total = self.report.total_bytes if self.report is not None else None
        return total if total is not None and total > 0 else None

    def _foreign(self, report: DeviceReport, used_bytes: int | None, bound_bytes: int) -> int | None:
        foreign = report.foreign_bytes
        if foreign is None and report.free_bytes is not None and report.total_bytes is not None:
            taken = report.total_bytes - report.free_bytes
            # While the engine uploads, its figure is older than the card's: only what exceeds all it may hold
            # is surely someone else's, and what was known of others before stays.
            known = self.foreign_bytes or 0
            found = taken - used_bytes if used_bytes is not None else max(taken - bound_bytes, known)
            # A reading may be older than a release that is already in our ledger: believed when seen twice.
            foreign, self._last_estimate = min(found, self._last_estimate), found
        return None if foreign is None else -(-max(0, foreign) // FOREIGN_STEP_BYTES) * FOREIGN_STEP_BYTES

    # -- what the engine counts -------------------------------------------------------

    def stats(self, stats: link.Stats, budget_bytes: int, card: Card, *, slowed: bool = False) -> None:
        """``slowed``: on purpose (frame pacing), so that the rate of tokens tells nothing of the driver."""
        self._engine.stats, self._engine.rss_bytes = stats, stats.host_rss_bytes
        self._engine.experts = stats.experts or self._engine.experts
        if stats.device_lost and not self._engine.lost:
            self._lose("device_lost", "the device is lost; generation goes on on the CPU")
        elif not stats.device_lost and self._engine.lost and self._probed:
            self._restore()
        if slowed:
            self._strikes = 0
        else:
            self._watch_rate(stats, budget_bytes, card)

    def loaded(self) -> None:
        self._rates.clear()
        self._strikes, self._probe_ns, self._probed = 0, None, False
        if self._engine.device is not None and self._engine.device.degraded:
            self._lose("degraded", "the device could not be opened; generation runs on the CPU")

    def engine_dead(self) -> None:
        self._probe_ns, self.replan, self.recommand = None, False, False

    # -- lost and restored ------------------------------------------------------------

    def _lose(self, kind: str, text: str) -> None:
        self._engine.lost, self.replan, self._probed = True, True, False
        self._probe_wait_ns = self._core.settings.timing.probe_first_ns
        self._probe_ns = self._core.now_ns + self._probe_wait_ns
        self._core.log("error", kind)
        self._core.notify(kind, text)

    def _restore(self) -> None:
        self._engine.lost, self.replan, self.recommand, self._probe_ns = False, True, True, None
        self._core.log("info", "device_restored")
        self._core.notify("device_restored", "the device is back")

    # -- spilling -----------------------------------------------------------------------

    def _watch_rate(self, stats: link.Stats, budget_bytes: int, card: Card) -> None:
        if budget_bytes < self._last_budget_bytes:
            self._rates.clear()
        self._last_budget_bytes = budget_bytes
        if not self._can_spill() or stats.tokens_per_s <= 0 or stats.n_active <= 0 or not stats.settled:
            return
        best = self._rates.get(stats.n_active, 0.0) * DECAY
        if len(self._rates) < MAX_RATES or stats.n_active in self._rates:
            self._rates[stats.n_active] = max(best, stats.tokens_per_s)
        collapsed = stats.tokens_per_s < COLLAPSE * best and self._near(budget_bytes, card)
        self._strikes = self._strikes + 1 if collapsed else 0
        if self._strikes >= STRIKES:
            self._spilled(stats, budget_bytes)

    def _can_spill(self) -> bool:
        """Only a driver spills: the virtual GPU refuses what is over its cap, and slowness there means a busy CPU."""
        facts = self._engine.device
        return not self._engine.lost and facts is not None and facts.kind not in ("none", "sim")

    def _near(self, budget_bytes: int, card: Card) -> bool:
        room = (card.total_bytes or 0) - (card.foreign_bytes or 0)
        return budget_bytes > 0 and budget_bytes >= NEAR * room

    def _spilled(self, stats: link.Stats, budget_bytes: int) -> None:
        self.spill_limit_bytes = int(budget_bytes * RETREAT)
        self._spill_until_ns = self._core.now_ns + self._core.settings.timing.spill_hold_ns
        self._strikes = 0
        self._rates.clear()
        text = "the driver seems to spill device memory to host memory; using less"
        self._core.log("warning", "spill", tokens_per_s=stats.tokens_per_s, limit_bytes=self.spill_limit_bytes)
        self._core.notify("degraded", text, tokens_per_s=stats.tokens_per_s, limit_bytes=self.spill_limit_bytes)

    # -- time ---------------------------------------------------------------------------

    def pass_time(self) -> None:
        now = self._core.now_ns
        if self._probe_ns is not None and self._probe_ns <= now and self._engine.ready:
            self._core.to_engine(link.Probe(recover=True))
            self._probed = True
            self._probe_wait_ns = min(2 * self._probe_wait_ns, self._core.settings.timing.probe_max_ns)
            self._probe_ns = now + self._probe_wait_ns
        if self._spill_until_ns is not None and self._spill_until_ns <= now:
            self._spill_until_ns = self.spill_limit_bytes = None

    def next_deadline_ns(self) -> int | None:
        probe = self._probe_ns if self._engine.ready else None
        return min((at for at in (probe, self._spill_until_ns) if at is not None), default=None)

    def describe(self) -> dict[str, object]:
        """The last report of the operating system, for status."""
        if self.report is None:
            return {}
        return {"source": self.report.source, **{k: v for k, v in _fields(self.report) if v is not None}}

    def validate(self) -> None:
        assert (self.spill_limit_bytes is None) == (self._spill_until_ns is None)
        assert self._probe_ns is None or self._engine.lost
        assert not self.replan
        assert not self.recommand


def _fields(report: DeviceReport) -> list[tuple[str, object]]:
    names = ("total_bytes", "free_bytes", "foreign_bytes")
    return [(name, getattr(report, name)) for name in names]
