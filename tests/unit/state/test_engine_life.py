"""Birth, death, restart and the end of patience."""

from __future__ import annotations

import pytest

from tests.unit.state.world import CARD, GAME, MIB, MS, SECOND, BudgetSettings, World
from xlm.protocol import link, messages
from xlm_broker.state import actions, events


def kills(world: World) -> list[str]:
    return [action.reason for action in world.acts(actions.KillEngine)]


def state(world: World) -> str:
    return str(world.status().engine["phase"])


def logged(world: World, name: str) -> list[actions.Log]:
    return [action for action in world.acts(actions.Log) if action.event == name]


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
    assert status["progress"] == {"stage": "load", "fraction": 0.5}


def test_states_for_clients() -> None:
    """The six of docs/protocol.md, whatever the phases inside."""
    world, seen = World(), []
    world.engine.auto = False

    def note() -> None:
        seen.append(world.status().engine["state"])

    note()
    world.handle(events.BrokerStarted())
    note()
    world.start_engine()
    note()
    world.engine_says(link.Loaded(model=world.engine.model, device=world.engine.device))
    note()
    world.engine_says(link.Failed(code="internal", message="assertion"))
    note()
    world.crash()
    note()
    world.advance(SECOND)
    note()
    world.start_engine()
    note()
    world.handle(events.ShutdownRequested("SIGTERM"))
    note()
    world.crash()
    note()
    assert seen == [
        "starting", "starting", "loading", "ready", "restarting", "restarting", "restarting", "loading", "stopped",
        "stopped",
    ]  # fmt: skip


def test_loading_is_logged_by_stage_and_not_by_step() -> None:
    world = World()
    world.handle(events.BrokerStarted())
    world.engine.auto = False
    world.start_engine()
    world.engine_says(link.Progress(stage="device"))
    for step in range(101):
        world.engine_says(link.Progress(stage="load", fraction=step / 100))
    assert [line.fields for line in logged(world, "engine_loading")] == [
        {"stage": "device", "percent": 0},
        {"stage": "load", "percent": 0},
    ]
    world.advance(2 * SECOND)
    world.engine_says(link.Progress(stage="load", fraction=0.876))
    assert logged(world, "engine_loading")[-1].fields == {"stage": "load", "percent": 88}


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
    (line,) = [action for action in world.acts(actions.Log) if action.level in ("warning", "error")]
    assert (line.event, line.fields["code"], line.fields["hint"]) == ("engine_given_up", code, "another file")
    assert ("as soon as that file appears" in line.fields["next"]) == code.startswith("model_")
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


def test_a_device_that_was_never_found_is_final_and_one_gone_later_is_tried_again() -> None:
    missing = link.Failed(code="device_not_found", message="no ggml cuda library", hint="install one")
    world = World(device=link.DeviceConfig(kind="cuda"))
    world.handle(events.BrokerStarted())
    world.engine.auto = False
    world.start_engine()
    world.engine_says(missing)
    world.handle(events.EngineExited(1, exit_code=3, detail="error: cannot go on"))
    world.advance(60 * SECOND)
    assert (state(world), len(world.acts(actions.SpawnEngine))) == ("failed", 1)
    (line,) = [action for action in world.acts(actions.Log) if action.level in ("warning", "error")]
    assert (line.fields["message"], line.fields["hint"]) == ("no ggml cuda library", "install one")
    world = World().boot()
    world.crash()
    world.advance(SECOND)
    world.engine.auto = False
    world.start_engine()
    world.engine_says(missing)
    world.handle(events.EngineExited(2, exit_code=3))
    world.advance(SECOND)
    assert len(world.acts(actions.SpawnEngine)) == 3


def test_last_words_are_logged_where_nothing_else_tells_why() -> None:
    world = World().boot()
    world.handle(events.EngineExited(1, exit_code=134, signal=6, detail="first\nGGML_ASSERT"))
    (line,) = logged(world, "engine_exited")
    assert (line.level, line.fields["last_words"]) == ("warning", ["first", "GGML_ASSERT"])
    world.advance(SECOND)
    world.start_engine()
    world.engine_says(link.Failed(code="internal", message="assertion"))
    world.handle(events.EngineExited(2, exit_code=3, detail="error: assertion"))
    assert (logged(world, "engine_exited")[-1].level, logged(world, "engine_failed")[-1].level) == ("info", "error")
    assert "last_words" not in logged(world, "engine_exited")[-1].fields


@pytest.mark.parametrize(("exit_code", "level"), [(0, "info"), (3, "warning")])
def test_a_clean_end_at_shutdown_is_no_warning(exit_code: int, level: str) -> None:
    world = World().boot()
    world.handle(events.ShutdownRequested("SIGTERM"))
    world.handle(events.EngineExited(1, exit_code=exit_code, detail="info: bye"))
    assert [line.level for line in logged(world, "engine_exited")] == [level]


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
    assert "0.00 MiB are below the minimum of " in error["message"]
    assert f"({error['minimum_bytes']} bytes); limited by fixed" in error["message"]
    told = float(error["message"].partition("minimum of ")[2].split(" MiB")[0])
    assert 0 <= told * MIB - error["minimum_bytes"] < MIB / 100 + 1
    fits = World(require_device=True, budget=BudgetSettings(fixed_bytes=error["minimum_bytes"])).boot()
    assert state(fits) == "ready"
    assert state(World(require_device=True, budget=GAME).boot()) == "ready"


@pytest.mark.parametrize(
    ("phase", "wait_s", "reason"),
    [("spawning", 60, "start"), ("loading", 300, "loading"), ("generating", 60, "generating")],
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


def test_steps_keep_a_generating_engine_alive() -> None:
    world = World().boot()
    world.join(b"game")
    world.say(b"game", world.open(b"game"))
    for _ in range(100):
        world.advance(SECOND)
        world.ping()
        world.engine_says(world.engine.stats())
    assert kills(world) == []


def hang(world: World, seconds: int) -> None:
    world.engine.hangs = True
    for _ in range(seconds):
        world.advance(SECOND)
        for client in world.status().clients:
            world.ping(client["name"].encode())
        world.engine_says(world.engine.stats())
        world.engine_says(world.engine.released(0))


def test_reports_of_the_link_thread_do_not_hide_a_hang() -> None:
    world = World().boot()
    world.join(b"game")
    world.say(b"game", world.open(b"game"))
    world.engine_says(world.engine.stats())
    hang(world, 59)
    assert kills(world) == []
    hang(world, 2)
    assert kills(world) == ["it stands still while generating"]


def errors(world: World, say: int) -> list[str]:
    return [m.code for m in world.answers(b"game", say) if isinstance(m, messages.Error)]


def restart(world: World) -> list[link.Generate]:
    """The engine was killed and comes again; what it is sent."""
    world.crash()
    world.ping(b"game")
    world.advance(SECOND)
    world.ping(b"game")
    world.to_engine.clear()
    world.start_engine()
    return world.sent(link.Generate)


def finish(world: World, gen_id: int) -> None:
    for answer in world.engine.finish(gen_id):
        world.engine_says(answer)


def test_an_answer_an_engine_hung_over_alone_fails_at_once() -> None:
    world = World().boot()
    world.join(b"game")
    deadly = world.say(b"game", world.open(b"game"))
    hang(world, 61)
    assert restart(world) == []
    assert errors(world, deadly) == ["engine_failed"]
    world.say(b"game", world.open(b"game"))
    world.crash()  # of another kind: nothing is blamed for it
    assert [m.code for m in world.inbox[b"game"] if isinstance(m, messages.Error)] == ["engine_failed"]


def test_of_several_answers_none_is_blamed_until_it_stood_still_over_one_of_them_again() -> None:
    world = World().boot()
    world.join(b"game")
    deadly, spoken, other = (world.say(b"game", world.open(b"game")) for _ in range(3))
    deadly_id, spoken_id, other_id = world.engine.generating
    world.engine_says(link.Piece(gen_id=spoken_id, text="x", token_ids=[5]))
    hang(world, 61)
    again = restart(world)
    assert [errors(world, say) for say in (deadly, spoken, other)] == [[], [], []]
    assert [(m.gen_id, m.replay) for m in again] == [(spoken_id, [5])]  # the least likely first, and alone
    fresh = world.say(b"game", world.open(b"game"))  # nobody else has to wait
    fresh_id = world.sent(link.Generate)[-1].gen_id
    finish(world, spoken_id)
    assert list(world.engine.generating) == [fresh_id, deadly_id]
    hang(world, 61)
    again = restart(world)
    assert [errors(world, say) for say in (deadly, fresh, other)] == [["engine_failed"], [], []]
    assert {m.gen_id for m in again} == {fresh_id, other_id}
    finish(world, fresh_id)
    finish(world, other_id)
    for say in (spoken, fresh, other):
        assert isinstance(world.answers(b"game", say)[-1], messages.Done)


def test_a_suspect_that_waits_for_its_turn_can_be_given_up() -> None:
    world = World().boot()
    world.join(b"game")
    says = [world.say(b"game", world.open(b"game")) for _ in range(3)]
    first, _, third = world.engine.generating
    hang(world, 61)
    assert [m.gen_id for m in restart(world)] == [first]
    world.request(b"game", messages.Cancel(id=900, say_id=says[1]))  # it has not begun: it ends here
    assert world.last(b"game", messages.Done).finish_reason == "cancelled"
    world.request(b"game", messages.Cancel(id=901, say_id=says[0]))
    assert list(world.engine.generating) == [third]
    finish(world, third)
    assert isinstance(world.answers(b"game", says[2])[-1], messages.Done)


def test_what_came_after_the_last_sign_of_life_has_no_part_in_a_hang() -> None:
    world = World().boot()
    world.join(b"game")
    say = world.say(b"game", world.open(b"game"))
    (gen_id,) = world.engine.generating
    world.engine_says(link.Piece(gen_id=gen_id, text="x", token_ids=[5]))
    hang(world, 10)
    late = world.say(b"game", world.open(b"game"))  # it waits behind the hang and has no part in it
    hang(world, 51)
    world.crash()
    assert (errors(world, say), errors(world, late)) == (["engine_failed"], [])


def test_an_idle_engine_may_be_silent() -> None:
    world = World().boot()
    world.advance(3600 * SECOND)
    assert kills(world) == []
    world.join(b"game")
    world.say(b"game", world.open(b"game"))
    world.advance(2 * SECOND)
    assert kills(world) == []  # its time runs from the request on


def crash_while_loading(world: World, stage: str, signal: int) -> None:
    world.handle(events.BrokerStarted())
    world.engine.auto = False
    for _ in range(5):
        world.start_engine()
        world.engine_says(link.Progress(stage=stage, fraction=0.25))
        world.crash(signal)
        world.advance(10 * SECOND)


def test_a_model_that_crashes_the_load_is_invalid_and_tried_again_when_its_file_changes() -> None:
    world = World()
    crash_while_loading(world, "load", 6)
    error = world.status().engine["error"]
    assert (state(world), error["code"]) == ("failed", "model_invalid")
    assert "signal 6" in error["message"]
    assert actions.SpawnEngine(6) in world.handle(events.ModelFileChanged())
    world.crash(6)  # and it counts from one again
    assert state(world) == "down"


@pytest.mark.parametrize(("stage", "signal"), [("device", 6), ("load", 9)])
def test_a_crash_of_the_device_and_a_kill_say_nothing_of_the_model(stage: str, signal: int) -> None:
    world = World()
    crash_while_loading(world, stage, signal)
    assert (state(world), world.status().engine["error"]["code"]) == ("failed", "engine_failed")


def test_a_start_that_can_never_succeed_is_tried_once() -> None:
    world = World()
    world.handle(events.BrokerStarted())
    world.handle(events.EngineExited(1, detail="the folder is a file", code="endpoint_forbidden"))
    world.advance(60 * SECOND)
    error = world.status().engine["error"]
    assert (state(world), error["code"], error["message"]) == ("failed", "endpoint_forbidden", "the folder is a file")
    assert len(world.acts(actions.SpawnEngine)) == 1


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
