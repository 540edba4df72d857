"""The loop of frame pacing on a simulated game, and in the machine. No clock: time is what the simulation says."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlm.protocol import link, messages
from xlm_broker.state import events
from xlm_broker.state.pacing import (
    GIVE_BACK_NS,
    LEVELS,
    OVERSHOOT,
    STALE_NS,
    Reporter,
    Situation,
)
from xlm_broker.state.settings import PacingSettings

from .world import CARD, MS, SECOND, World

BUDGET = 1000
MIN = PacingSettings().min_duty


@dataclass
class Game:
    """The plant: frame = base + coupling x duty x share of the budget + noise; with vsync a multiple of the target.

    Times in ms. ``coupling_ms``: what a generation at full pace and full budget adds to a frame.
    """

    target_ms: float = 50 / 3
    base_ms: float = 8.0
    coupling_ms: float = 20.0
    noise_ms: float = 0.0
    vsync: bool = False
    shrinks: float = 1.0  # the part of the coupling that goes with the budget
    pacing: Any = "steps"
    dice: random.Random = field(default_factory=lambda: random.Random(7))
    generating: bool = True
    now_ns: int = 1_000_000_000
    reporter: Reporter = field(init=False)
    duties: list[float] = field(default_factory=list)  # after each report
    levels: list[int] = field(default_factory=list)
    means_ms: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reporter = Reporter(PacingSettings(), self.now_ns)

    @property
    def duty(self) -> float:
        return self.reporter.duty.value

    def frame_ms(self) -> float:
        limit = self.reporter.limit_bytes
        share = 1.0 if limit is None else limit / BUDGET
        load = self.coupling_ms * self.duty * (1 - self.shrinks + self.shrinks * share)
        took = max(0.1, self.base_ms + load * self.generating + self.dice.gauss(0.0, 1.0) * self.noise_ms)
        return math.ceil(took / self.target_ms - 1e-9) * self.target_ms if self.vsync else took

    def report(self) -> None:
        """The frames of about 100 ms, reported."""
        frames: list[float] = []
        while sum(frames) < 100.0:
            frames.append(self.frame_ms())
        self.now_ns += int(sum(frames) * MS)
        mean_ms = sum(frames) / len(frames)
        frame = messages.Frame(
            frames=len(frames), mean_ms=mean_ms, max_ms=max(frames), target_ms=self.target_ms, pacing=self.pacing
        )
        self.reporter.note(self.generating)
        self.reporter.report(frame, self.generating, Situation(self.now_ns, self.duty, BUDGET))
        self.duties.append(self.duty)
        self.levels.append(self.reporter.shrink.level)
        self.means_ms.append(mean_ms)

    def run(self, seconds: float) -> Game:
        end_ns = self.now_ns + int(seconds * SECOND)
        while self.now_ns < end_ns:
            self.report()
        return self

    def fresh(self) -> Game:
        """Forgets what was recorded, not what was learned."""
        self.duties, self.levels, self.means_ms = [], [], []
        return self

    @property
    def mean_ms(self) -> float:
        return sum(self.means_ms) / len(self.means_ms)


def turns(values: list[float] | list[int]) -> int:
    """How often the direction changes."""
    steps = [after - before for before, after in pairwise(values) if after != before]
    return sum(1 for before, after in pairwise(steps) if before * after < 0)


GAMES: dict[str, Any] = {
    "target_ms": st.sampled_from([1000 / 144, 1000 / 60, 1000 / 30]),
    "base": st.floats(0.05, 1.4),
    "coupling": st.floats(0.0, 25.0),
    "noise": st.floats(0.0, 0.08),
    "vsync": st.booleans(),
    "seed": st.integers(0, 1000),
}


def game(target_ms: float, base: float, coupling: float, noise: float, vsync: bool, seed: int, **more: Any) -> Game:
    """A plant in units of its target."""
    times = {"base_ms": base * target_ms, "coupling_ms": coupling * target_ms, "noise_ms": noise * target_ms}
    return Game(target_ms, **times, vsync=vsync, dice=random.Random(seed), **more)


class TestLoop:
    @settings(max_examples=60, deadline=None)
    @given(**GAMES)
    def test_bounded_and_without_oscillation(self, **plant: Any) -> None:
        """Whatever the game: the duty stays in its bounds, and turns seldom, as the hold grew."""
        played = game(**plant).run(60)
        assert all(MIN <= duty <= 1.0 for duty in played.duties)
        assert turns(played.fresh().run(32).duties) <= 8

    @settings(max_examples=60, deadline=None)
    @given(st.floats(0.0, 0.95), st.floats(0.0, 25.0))
    def test_from_full_pace_it_falls_monotonously_to_the_target(self, base: float, coupling: float) -> None:
        """Without noise, from any base and coupling: no step too far. Probes only come after."""
        played = game(1000 / 60, base, coupling, 0.0, False, 0)
        while not played.duties or played.reporter.duty.tolerance < OVERSHOOT:
            played.report()
            assert len(played.duties) < 2000, "it never settles"
        assert played.duties == sorted(played.duties, reverse=True)
        needed = (1 - base) / coupling if coupling else 1.0
        assert played.duty >= min(1.0, max(MIN, needed * 0.99))

    @settings(max_examples=40, deadline=None)
    @given(st.floats(0.05, 0.9), st.floats(0.0, 4.0), st.floats(0.0, 0.02), st.integers(0, 99))
    def test_the_target_is_held_where_it_can_be(self, base: float, coupling: float, noise: float, seed: int) -> None:
        played = game(1000 / 60, base, coupling, noise, False, seed).run(30).fresh().run(20)
        reachable = base + coupling * MIN < 1.0
        assert not reachable or played.mean_ms <= played.target_ms * (1 + OVERSHOOT)
        assert base + coupling > 0.9 - 3 * noise or played.duty == 1.0, "room is left unused"

    @settings(max_examples=25, deadline=None)
    @given(**GAMES)
    def test_it_recovers_when_the_load_leaves(self, **plant: Any) -> None:
        """Also behind vsync, where a frame shows no room: probes find it."""
        played = game(**{**plant, "noise": min(plant["noise"], 0.02)}).run(40)
        played.base_ms, played.coupling_ms = 0.3 * played.target_ms, 0.2 * played.target_ms
        assert played.run(60).duty == 1.0

    def test_a_game_that_misses_its_target_by_itself_is_not_starving_generation(self) -> None:
        """40 fps where 60 are wanted: learned while nobody speaks; then held near what it is without us."""
        slow = Game(base_ms=25.0, coupling_ms=5.0, generating=False).run(10)
        slow.generating = True
        slow.run(20).fresh().run(20)
        assert slow.duty > 2 * MIN
        assert slow.mean_ms <= 25.0 * (1 + OVERSHOOT)

    def test_the_same_where_it_never_was_without_us(self) -> None:
        slow = Game(base_ms=25.0, coupling_ms=5.0).run(60)
        assert slow.duty > MIN
        assert slow.mean_ms <= 25.0 + 5.0

    def test_a_game_that_got_faster_is_believed(self) -> None:
        """What a level's load times were is not what its frames may take."""
        loaded = Game(base_ms=120.0, generating=False).run(10)
        loaded.generating, loaded.base_ms = True, 8.0
        loaded.run(20).fresh().run(10)
        assert loaded.mean_ms <= loaded.target_ms * (1 + OVERSHOOT)

    def test_one_hitch_costs_little(self) -> None:
        calm = Game(coupling_ms=2.0).run(5)
        calm.base_ms = 400.0
        calm.report()
        calm.base_ms = 8.0
        assert calm.run(1).duty >= 0.5
        assert calm.run(15).duty == 1.0

    def test_a_single_late_frame_counts_though_the_mean_is_low(self) -> None:
        stutter = Reporter(PacingSettings(), 0)
        for tenth in range(1, 12):
            frame = messages.Frame(frames=10, mean_ms=10.0, max_ms=60.0, target_ms=16.7)
            stutter.report(frame, True, Situation(tenth * 100 * MS, stutter.duty.value, BUDGET))
        assert stutter.duty.value < 0.8

    def test_off_only_measures(self) -> None:
        watched = Game(pacing="off").run(10)
        assert set(watched.duties) == {1.0}
        assert watched.reporter.figure_ms == pytest.approx(28.0)

    def test_switching_off_lets_go_at_once(self) -> None:
        played = Game(base_ms=15.0, coupling_ms=400.0, shrinks=0.2, pacing="shrink").run(20)
        assert played.duty < 2 * MIN
        assert played.reporter.limit_bytes is not None
        played.pacing = "off"
        played.report()
        assert (played.duty, played.reporter.limit_bytes) == (1.0, None)


class TestShrink:
    def test_only_where_allowed_and_only_at_the_minimum_duty(self) -> None:
        heavy = {"base_ms": 8.0, "coupling_ms": 700.0}
        assert Game(**heavy).run(30).reporter.limit_bytes is None
        assert not any(Game(base_ms=8.0, coupling_ms=60.0, pacing="shrink").run(30).levels)
        shrunk = Game(**heavy, pacing="shrink").run(30)
        assert all(level == 0 or duty <= 2 * MIN for level, duty in zip(shrunk.levels, shrunk.duties, strict=True))
        assert shrunk.levels[-1] == 3

    def test_step_by_step_down_to_nothing_and_no_further(self) -> None:
        hopeless = Game(base_ms=8.0, coupling_ms=700.0, shrinks=0.0, pacing="shrink").run(60)
        assert sorted(set(hopeless.levels)) == list(range(LEVELS + 1))
        assert hopeless.levels == sorted(hopeless.levels)
        assert hopeless.reporter.limit_bytes == 0
        assert hopeless.duty >= MIN

    @settings(max_examples=25, deadline=None)
    @given(st.floats(0.1, 0.9), st.floats(1.0, 60.0), st.floats(0.0, 0.03), st.floats(0.0, 1.0), st.integers(0, 99))
    def test_levels_do_not_flap(self, base: float, coupling: float, noise: float, shrinks: float, seed: int) -> None:
        """A quarter too many taken and too few left: tried again, after 5 s, 10 s ... 80 s; down and up each time."""
        played = game(1000 / 60, base, coupling, noise, False, seed, shrinks=shrinks, pacing="shrink").run(200)
        assert turns(played.levels) <= 2 * 5
        assert all(0 <= level <= LEVELS for level in played.levels)
        assert turns(played.fresh().run(160).levels) <= 2 * 2 + 1

    def test_given_back_slowly_when_the_load_leaves(self) -> None:
        played = Game(base_ms=8.0, coupling_ms=700.0, pacing="shrink").run(30)
        assert played.levels[-1] == 3
        played.coupling_ms = 2.0
        played.fresh().run(60)
        assert played.levels[-1] == 0
        assert played.levels == sorted(played.levels, reverse=True)
        reports_per_level = [played.levels.count(level) for level in (2, 1)]
        assert all(count * 100 * MS >= 0.9 * GIVE_BACK_NS for count in reports_per_level)

    def test_given_back_while_nobody_speaks(self) -> None:
        played = Game(base_ms=8.0, coupling_ms=700.0, pacing="shrink").run(30)
        played.generating = False
        assert played.run(30).levels[-1] == 0

    def test_not_given_back_while_the_game_misses_its_target(self) -> None:
        played = Game(base_ms=8.0, coupling_ms=700.0, pacing="shrink").run(30)
        played.generating, played.base_ms = False, 25.0
        assert played.run(30).levels[-1] == 3

    def test_there_is_nothing_to_take_from_an_empty_budget(self) -> None:
        poor = Reporter(PacingSettings(), 0)
        for tenth in range(1, 400):
            frame = messages.Frame(frames=3, mean_ms=40.0, max_ms=40.0, target_ms=16.7, pacing="shrink")
            poor.report(frame, True, Situation(tenth * 100 * MS, poor.duty.value, 0))
        assert poor.limit_bytes is None
        assert poor.duty.value >= MIN


# -- in the machine ------------------------------------------------------------------


def speaking(**changes: Any) -> World:
    """A game that has a conversation going on."""
    world = World(**changes).boot()
    world.join()
    world.say(b"game", world.open())
    return world


def frames(world: World, seconds: float, client: bytes = b"game", **fields: Any) -> None:
    """Reports ten times a second, 30 ms a frame where 16.7 are wanted, unless told otherwise."""
    values = {"frames": 4, "mean_ms": 30.0, "max_ms": 31.0, "target_ms": 16.7, "pacing": "steps", **fields}
    for _ in range(round(10 * seconds)):
        world.advance(100 * MS)
        world.request(client, messages.Frame(id=world.next_id(), **values))


def duty(world: World) -> float:
    return float(world.status().throughput["duty"])


def test_late_frames_slow_the_engine_and_are_never_answered() -> None:
    world = speaking()
    before = len(world.inbox[b"game"])
    frames(world, 3)
    paces = [order.duty for order in world.sent(link.SetPace)]
    assert paces == sorted(paces, reverse=True)
    assert paces[-1] == duty(world) < 0.2
    assert len(world.inbox[b"game"]) == before
    seen = world.status().clients[0]["frames"]
    assert (seen["pacing"], seen["target_ms"], seen["duty"], seen["reporting"]) == ("steps", 16.7, duty(world), True)


def test_nothing_happens_while_nobody_speaks() -> None:
    world = World().boot()
    world.join()
    frames(world, 5)
    assert world.sent(link.SetPace) == []
    assert world.status().clients[0]["frames"]["baseline_ms"] == pytest.approx(30.0)
    assert world.status().clients[0]["frames"]["overshoot"] is None


def test_the_minimum_is_a_setting() -> None:
    world = speaking(pacing=PacingSettings(min_duty=0.25, max_gap_ns=123 * MS))
    frames(world, 10)
    assert min(order.duty for order in world.sent(link.SetPace)) == 0.25
    assert {order.max_gap_ns for order in world.sent(link.SetPace)} == {123 * MS}


@pytest.mark.parametrize("end", ["goodbye", "gone", "expired"])
def test_the_end_of_the_lease_ends_the_pace_and_the_limit(end: str) -> None:
    world = speaking()
    world.join(b"npc")
    world.say(b"npc", world.open(b"npc"))
    frames(world, 20, pacing="shrink")
    assert world.status().budget["limited_by"] == "frame"
    assert 0 <= world.effective < CARD
    world.ping(b"npc")
    if end == "goodbye":
        world.request(b"game", messages.Goodbye(id=1))
    elif end == "gone":
        world.handle(events.ClientGone(b"game"))
    else:
        for _ in range(4):
            world.advance(SECOND)
            world.ping(b"npc")
    assert world.sent(link.SetPace)[-1].duty == duty(world) == 1.0
    assert world.effective == CARD
    assert world.sent(link.SetEngineBudget)[-1].budget_bytes == CARD


def test_the_budget_shrinks_through_the_normal_path() -> None:
    world = speaking()
    frames(world, 20, pacing="shrink")
    budgets = [order.budget_bytes for order in world.sent(link.SetEngineBudget)]
    assert budgets[0] == CARD
    assert budgets[1:] == [CARD * level // LEVELS for level in range(LEVELS - 1, LEVELS - len(budgets), -1)]
    assert "budget_changed" in world.notices(b"game")
    assert world.engine.used_bytes <= world.effective
    assert world.status().budget["frame_limit_bytes"] == world.effective


def test_a_silent_game_is_left_out_and_remembered() -> None:
    world = speaking()
    frames(world, 3)
    slow = duty(world)
    for _ in range(3):
        world.advance(SECOND)
        world.ping()
    assert world.sent(link.SetPace)[-1].duty == duty(world) == 1.0
    frames(world, 0.1)
    assert duty(world) == slow


def test_its_end_of_patience_is_a_deadline() -> None:
    world = speaking()
    frames(world, 3)
    due = world.machine.next_deadline_ns()
    assert due is not None
    assert due <= world.now_ns + STALE_NS


def test_the_strictest_game_decides_and_the_other_does_not_wind_up() -> None:
    world = speaking()
    world.join(b"b")
    for _ in range(50):
        frames(world, 0.1, max_ms=18.0, mean_ms=17.7)
        frames(world, 0.1, b"b", mean_ms=5.0, max_ms=6.0)
    strict, easy = (entry["frames"]["duty"] for entry in world.status().clients)
    assert duty(world) == strict
    assert strict <= easy <= 1.36 * strict
    world.request(b"game", messages.Goodbye(id=1))
    assert duty(world) == easy < 1.0


def test_a_new_engine_is_told_the_pace() -> None:
    world = speaking()
    frames(world, 3)
    slow = duty(world)
    world.crash()
    world.to_engine.clear()
    while not world.sent(link.Start):
        frames(world, 0.1, mean_ms=16.0, max_ms=16.5)
        if world.status().engine["phase"] == "spawning":
            world.start_engine()
    frames(world, 0.1, mean_ms=16.0, max_ms=16.5)
    assert world.sent(link.SetPace)[0].duty == pytest.approx(slow, rel=0.35)
    assert world.sent(link.SetPace)[0].duty == duty(world)


def test_a_game_that_reconnects_keeps_its_loop() -> None:
    world = speaking()
    lease = world.last(b"game", messages.Welcome).lease_id
    frames(world, 3)
    slow = duty(world)
    world.join(b"game2", name="game", lease_id=lease)
    assert duty(world) == slow
    frames(world, 0.1, b"game2")
    assert duty(world) <= slow


def test_a_paced_engine_is_not_taken_for_one_that_spills() -> None:
    world = speaking(device=link.DeviceConfig(kind="vulkan"))
    world.engine.device = link.DeviceFacts(kind="vulkan", total_bytes=CARD)
    world.crash()
    world.advance(SECOND)
    world.start_engine()
    session = world.open()
    world.say(b"game", session)
    for _ in range(20):
        world.engine_says(world.engine.stats(tokens_per_s=60.0))
    frames(world, 5)
    for _ in range(20):
        world.engine_says(world.engine.stats(tokens_per_s=3.0))
    assert "degraded" not in world.notices(b"game")
    assert world.status().budget["spill_limit_bytes"] is None


EXTREME = st.sampled_from([0.0, 5e-324, 1e-9, 16.7, 1e5, 1e14])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(EXTREME, EXTREME, EXTREME, st.integers(0, 5000), st.booleans()), min_size=1, max_size=40))
def test_no_report_however_odd_leaves_the_bounds(reports: list[tuple[float, float, float, int, bool]]) -> None:
    world = speaking()
    for mean_ms, max_ms, target_ms, ms, shrink in reports:
        world.advance(ms * MS)
        pacing: Any = "shrink" if shrink else "steps"
        frame = messages.Frame(
            id=world.next_id(), frames=(1 << 53) - 1, mean_ms=mean_ms, max_ms=max_ms,
            target_ms=target_ms or 1.0, pacing=pacing,
        )  # fmt: skip
        if world.status().clients:
            world.request(b"game", frame)  # validates
        assert MIN <= duty(world) <= 1.0
        assert 0 <= world.effective <= CARD


def test_the_simulated_game_is_the_plant_of_the_text() -> None:
    """Full pace adds the whole coupling, no generation none."""
    assert Game(base_ms=8.0, coupling_ms=20.0).frame_ms() == pytest.approx(28.0)
    assert Game(base_ms=8.0, coupling_ms=20.0, generating=False).frame_ms() == pytest.approx(8.0)
    assert Game(base_ms=8.0, coupling_ms=20.0, vsync=True).frame_ms() == pytest.approx(100 / 3)
