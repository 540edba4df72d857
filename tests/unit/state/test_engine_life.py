"""Birth, death, restart and the end of patience."""

from __future__ import annotations

import pytest

from tests.unit.state.world import CARD, GAME, MIB, MS, SECOND, BudgetSettings, World
from xlm.protocol import link, messages
from xlm_broker.state import actions, events


def kills(world: World) -> list[str]:
    return [action.reason for action in world.acts(actions.KillEngine)]


def state(world: World) -> str:
    return str(world.status().engine["state"])


def test_the_first_start() -> None:
    world = World()
    assert world.handle(events.BrokerStarted()) == [actions.SpawnEngine(1)]
    world.handle(events.EngineSpawned(1, 77))
    assert (state(world), world.status().engine["pid"]) == ("spawning", 77)
    world.engine.auto = False
    world.engine_says(link.Started(pid=78, versions={"ggml": "0.25.3"}))
    assert [type(message) for message in world.to_engine] == [link.Start]
    world.engine_says(link.Progress(stage="load", fraction=0.5))
    status = world.status().engine
    assert (status["state"], status["stage"], status["fraction"], status["pid"]) == ("loading", "load", 0.5, 78)
    assert status["versions"] == {"ggml": "0.25.3"}


def test_a_second_start_of_the_broker_is_nothing() -> None:
    world = World().boot()
    assert world.handle(events.BrokerStarted()) == []


def test_restarts_back_off_and_are_given_up_after_five_deaths_in_a_row() -> None:
    world = World().boot()
    world.join(b"game")
    waits = []
    for death in range(1, 6):
        world.crash(signal=6)
        if death < 5:
            waits.append(world.last(b"game", messages.Notice).detail["wait_ms"])
            world.advance(int(waits[-1]) * MS - 1)
            assert len(world.acts(actions.SpawnEngine)) == death
            world.advance(1)
            world.ping()
            world.start_engine()
    assert waits == [200, 400, 800, 1600]
    engine = world.status().engine
    assert (engine["state"], engine["error"]["code"], engine["failures_in_a_row"]) == ("failed", "engine_failed", 5)
    assert "signal 6" in engine["error"]["message"]
    assert world.notices(b"game").count("engine_failed") == 1
    assert len(world.acts(actions.SpawnEngine)) == 5
    session = world.open(b"game")
    say = world.say(b"game", session)
    (error,) = world.answers(b"game", say)
    assert isinstance(error, messages.Error)
    assert (error.code, error.retryable) == ("engine_failed", False)
    request = world.cap(b"game", 64 * MIB)
    assert [m.used_bytes for m in world.answers(b"game", request) if isinstance(m, messages.Lease)] == [0]


def test_health_is_a_generated_token() -> None:
    world = World().boot()
    world.join(b"game")
    session = world.open(b"game")
    for _ in range(12):
        world.crash()
        world.advance(SECOND)
        world.ping()
        world.start_engine()
        world.say(b"game", session)
        (gen_id,) = world.engine.generating
        world.engine_says(link.Piece(gen_id=gen_id, text="x", token_ids=[1]))
        for message in world.engine.finish(gen_id):
            world.engine_says(message)
    status = world.status().engine
    assert (status["state"], status["restarts"], status["failures_in_a_row"], status["error"]) == ("ready", 12, 0, None)
    assert status["last_token_s_ago"] == 0


@pytest.mark.parametrize(
    "code", ["model_not_found", "model_truncated", "model_unknown_architecture", "model_too_large", "abi_mismatch"]
)
def test_a_bad_model_file_is_final_typed_and_leaves_the_broker_up(code: str) -> None:
    world = World()
    world.handle(events.BrokerStarted())
    world.join(b"game")
    session = world.open(b"game")
    waiting = world.say(b"game", session)
    world.engine.auto = False
    world.start_engine()
    world.engine_says(link.Failed(code=code, message="the file is bad", hint="another file"))
    world.handle(events.EngineExited(1, exit_code=1))
    for _ in range(30):
        world.advance(2 * SECOND)
        world.ping()
    assert len(world.acts(actions.SpawnEngine)) == 1
    error = world.status().engine["error"]
    assert (state(world), error["code"], error["message"], error["hint"]) == (
        "failed",
        code,
        "the file is bad",
        "another file",
    )
    for say in (waiting, world.say(b"game", session)):
        assert [m.code for m in world.answers(b"game", say) if isinstance(m, messages.Error)] == [code]


def test_a_repaired_model_file_is_tried_again() -> None:
    world = World()
    world.handle(events.BrokerStarted())
    world.engine.auto = False
    world.start_engine()
    world.engine_says(link.Failed(code="model_not_found", message="no such file"))
    assert world.handle(events.ModelFileChanged()) == []  # the failed process still ends
    made = world.handle(events.EngineExited(1, exit_code=1))
    assert actions.SpawnEngine(2) in made
    world.engine.auto = True
    world.start_engine()
    assert (state(world), world.status().engine["error"]) == ("ready", None)
    assert world.handle(events.ModelFileChanged()) == []


def test_another_failure_at_the_start_is_tried_again_and_keeps_its_code() -> None:
    world = World()
    world.handle(events.BrokerStarted())
    world.engine.auto = False
    for attempt in range(1, 6):
        world.start_engine()
        world.engine_says(link.Failed(code="device_out_of_memory", message="the card is full"))
        world.handle(events.EngineExited(attempt, exit_code=1))
        world.advance(10 * SECOND)
    assert len(world.acts(actions.SpawnEngine)) == 5
    assert (state(world), world.status().engine["error"]["code"]) == ("failed", "device_out_of_memory")


def test_an_engine_that_cannot_be_started_is_a_death_like_others() -> None:
    world = World()
    world.handle(events.BrokerStarted())
    for attempt in range(1, 6):
        world.handle(events.EngineExited(attempt, detail="no such program"))
        world.advance(10 * SECOND)
    error = world.status().engine["error"]
    assert error["code"] == "engine_failed"
    assert "no such program" in error["message"]


def test_a_required_device_that_is_missing_is_final() -> None:
    world = World(require_device=True, device=link.DeviceConfig(kind="cuda"))
    world.engine.device = link.DeviceFacts(kind="none", description="CPU")
    world.boot()
    assert (state(world), world.status().engine["error"]["code"]) == ("failed", "device_not_found")
    assert kills(world)


def test_a_required_device_with_a_fixed_budget_below_the_minimum_states_it() -> None:
    world = World(require_device=True, budget=BudgetSettings(fixed_bytes=4096)).boot()
    error = world.status().engine["error"]
    assert (state(world), error["code"]) == ("failed", "budget_infeasible")
    assert error["minimum_bytes"] > 4096
    assert str(error["minimum_bytes"]) in error["message"]
    fits = World(require_device=True, budget=BudgetSettings(fixed_bytes=error["minimum_bytes"])).boot()
    assert state(fits) == "ready"
    assert state(World(require_device=True, budget=GAME).boot()) == "ready"


@pytest.mark.parametrize(
    ("phase", "wait_s", "reason"),
    [("spawning", 60, "start"), ("loading", 300, "loading"), ("generating", 30, "generating")],
)
def test_a_hung_engine_is_killed(phase: str, wait_s: int, reason: str) -> None:
    world = World()
    world.handle(events.BrokerStarted())
    world.join(b"game")
    world.engine.auto = phase == "generating"
    if phase != "spawning":
        world.start_engine()
    if phase == "generating":
        world.say(b"game", world.open(b"game"))
    for _ in range(wait_s - 1):
        world.advance(SECOND)
        world.ping()
    assert kills(world) == []
    world.advance(SECOND)
    assert len(kills(world)) == 1
    assert reason in kills(world)[0]
    world.advance(60 * SECOND)  # the kill is repeated now and then, not spun on
    assert 2 <= len(kills(world)) <= 14
    world.crash()
    assert "killed" in world.status().engine["error"]["message"]


def test_news_of_any_kind_keep_a_generating_engine_alive() -> None:
    world = World().boot()
    world.join(b"game")
    world.say(b"game", world.open(b"game"))
    for _ in range(100):
        world.advance(SECOND)
        world.ping()
        world.engine_says(world.engine.stats())
    assert kills(world) == []


def test_an_idle_engine_may_be_silent() -> None:
    world = World().boot()
    world.advance(3600 * SECOND)
    assert kills(world) == []


def test_after_a_restart_budget_and_schedule_are_said_again() -> None:
    world = World(budget=GAME).boot()
    world.join(b"game")
    world.cap(b"game", 48 * MIB)
    world.crash()
    assert world.status().budget["used_bytes"] == 0
    world.cap(b"game", 24 * MIB)
    world.to_engine.clear()
    world.advance(200 * MS)
    world.start_engine()
    assert [type(message) for message in world.to_engine] == [link.Start, link.SetEngineBudget, link.SetSchedule]
    assert world.sent(link.SetEngineBudget)[0].budget_bytes == 24 * MIB
    assert world.engine.used_bytes <= 24 * MIB
    assert world.notices(b"game")[-1] == "engine_ready"


def test_stale_exits_and_messages_of_an_earlier_engine_are_nothing() -> None:
    world = World().boot()
    world.crash()
    world.advance(SECOND)
    world.start_engine()
    assert world.handle(events.EngineExited(1, signal=9)) == []
    assert world.handle(events.EngineMessage(1, link.Stats(used_bytes=CARD * 2))) == []
    assert world.handle(events.EngineSpawned(1, 1)) == []
    assert state(world) == "ready"


def test_a_failure_in_mid_life_is_a_kill_and_a_restart() -> None:
    world = World().boot()
    world.engine_says(link.Failed(code="internal", message="assertion"))
    assert kills(world) == ["it failed: internal"]
    world.crash()
    world.advance(SECOND)
    world.start_engine()
    assert state(world) == "ready"


# -- shutdown ----------------------------------------------------------------------


def test_shutdown_asks_the_engine_and_stops_after_its_exit() -> None:
    world = World().boot()
    world.join(b"game")
    say = world.say(b"game", world.open(b"game"))
    world.engine.auto = False
    request = world.cap(b"game", MIB)
    made = world.handle(events.ShutdownRequested("SIGTERM"))
    assert actions.SendEngine(link.Stop()) in made
    assert world.notices(b"game")[-1:] == ["shutdown"]
    for asked in (say, request):
        assert [m.code for m in world.answers(b"game", asked) if isinstance(m, messages.Error)] == ["broker_gone"]
    world.ping()
    assert world.last(b"game", messages.Error).code == "broker_gone"
    assert world.crash()[-1] == actions.StopBroker(0, "SIGTERM")


def test_shutdown_without_an_engine_stops_at_once() -> None:
    world = World()
    made = world.handle(events.ShutdownRequested("SIGINT"))
    assert made[-1] == actions.StopBroker(0, "SIGINT")


def test_an_engine_that_does_not_stop_is_killed_and_sooner_when_asked_twice() -> None:
    world = World().boot()
    world.handle(events.ShutdownRequested("SIGTERM"))
    world.advance(5 * SECOND)
    assert len(kills(world)) == 1
    world = World().boot()
    world.handle(events.ShutdownRequested("SIGTERM"))
    world.handle(events.ShutdownRequested("SIGTERM"))
    assert len(kills(world)) == 1
    world.crash()
    assert len(world.acts(actions.StopBroker)) == 1
    world.handle(events.ShutdownRequested("again"))
    world.advance(3600 * SECOND)
    assert len(world.acts(actions.StopBroker)) == 1
