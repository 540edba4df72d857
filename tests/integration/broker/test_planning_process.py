"""The planning process with its real program, and with ones that die, hang up or talk nonsense."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from tests.support.processes import ended
from tests.unit.planner.sharding import examples
from xlm.protocol.link import DeviceConfig
from xlm_broker.planner import wire
from xlm_broker.planning_link import COMMAND, MAX_DEATHS, PlanningLink
from xlm_broker.state import actions, events

MODEL, MIB = examples.facts(), examples.MIB
DEADLINE_S = 600.0


class Rig:
    """A link and what it reported."""

    def __init__(self, folder: Path, command: tuple[str, ...], **times_s: float) -> None:
        self.reports: list[events.Planned] = []
        self.standings: list[wire.Standing] = []
        self._news = asyncio.Event()
        self.link = PlanningLink(
            DeviceConfig(kind="sim"), folder / "profile.sqlite", self._report, self.standings.append, command=command,
            **times_s,
        )  # fmt: skip

    def _report(self, event: events.Planned) -> None:
        self.reports.append(event)
        self._news.set()

    def ask(self, request_id: int, budget_bytes: int = 80 * MIB) -> None:
        self.link.ask(actions.FindPlan(request_id, MODEL, examples.SIM, budget_bytes))

    async def final(self, request_id: int) -> events.Planned:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for event in self.reports:
                    if event.request_id == request_id and event.final:
                        return event
                self._news.clear()
                await self._news.wait()


def run(
    folder: Path, play: Callable[[Rig], Awaitable[None]], command: tuple[str, ...] = COMMAND, **times_s: float
) -> Rig:
    async def session() -> Rig:
        rig = Rig(folder, command, **times_s)
        try:
            await play(rig)
        finally:
            await rig.link.close()
        return rig

    rig = asyncio.run(session())
    assert not [c for c in psutil.Process().children(recursive=True) if "planning_process" in " ".join(c.cmdline())]
    return rig


def program(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_plans_and_says_by_what(tmp_path: Path) -> None:
    async def play(rig: Rig) -> None:
        rig.ask(1)
        first = await rig.final(1)
        assert first.schedule is not None
        assert first.schedule.budget_bytes == 80 * MIB
        assert first.schedule.resident_bytes + first.schedule.reserve_bytes <= 80 * MIB
        rig.ask(2, 0)
        second = await rig.final(2)
        assert second.schedule is not None
        assert not any(any(tier.placement) for tier in second.schedule.tiers)

    rig = run(tmp_path, play)
    assert [standing.state for standing in rig.standings] == ["missing"]


def test_a_newer_request_is_answered_whatever_was_asked_before(tmp_path: Path) -> None:
    async def play(rig: Rig) -> None:
        for request_id in range(1, 21):
            rig.ask(request_id, request_id * 8 * MIB)
        found = await rig.final(20)
        assert found.schedule is not None
        assert found.schedule.budget_bytes == 160 * MIB

    run(tmp_path, play)


def test_killed_in_between_it_is_started_again(tmp_path: Path) -> None:
    async def play(rig: Rig) -> None:
        rig.ask(1)
        await rig.final(1)
        (child,) = [c for c in psutil.Process().children() if "planning_process" in " ".join(c.cmdline())]
        child.kill()
        while not ended(child):
            await asyncio.sleep(0.01)
        rig.ask(2)
        assert (await rig.final(2)).schedule is not None

    run(tmp_path, play)


@pytest.mark.parametrize(
    "command",
    [
        program("raise SystemExit(1)"),
        program("import sys; sys.stdout.buffer.write(b'nonsense' * 100); sys.stdout.flush(); sys.stdin.read()"),
        ("/nonexistent/program",),
    ],
    ids=["ends", "nonsense", "missing"],
)
def test_one_that_never_works_is_given_up(tmp_path: Path, command: tuple[str, ...]) -> None:
    async def play(rig: Rig) -> None:
        rig.ask(1)
        found = await rig.final(1)
        assert found.schedule is None
        assert "planning process" in found.problem
        rig.ask(2)
        assert (await rig.final(2)).schedule is None

    rig = run(tmp_path, play, command)
    assert len(rig.reports) == 2
    assert MAX_DEATHS >= 2


def test_one_that_works_again_after_a_rest_is_used_again(tmp_path: Path) -> None:
    """Whatever kept it from running (no memory, somebody who killed it) may be over."""
    cure = tmp_path / "cure"
    words = f"import os, runpy; os.path.exists({str(cure)!r}) or os._exit(1); "
    command = program(words + "runpy.run_module('xlm_broker.planning_process', run_name='__main__')")

    async def play(rig: Rig) -> None:
        rig.ask(1)
        assert (await rig.final(1)).schedule is None
        cure.touch()
        rig.ask(2)
        assert (await rig.final(2)).schedule is not None

    run(tmp_path, play, command, rest_s=0.0)


def test_one_that_is_frozen_is_ended(tmp_path: Path) -> None:
    async def play(rig: Rig) -> None:
        rig.ask(1)
        found = await rig.final(1)
        assert found.schedule is None
        assert "planning process" in found.problem

    run(tmp_path, play, program("import time; time.sleep(1e6)"), silence_s=0.01)


def test_a_model_that_makes_no_sense_is_a_problem_not_a_death(tmp_path: Path) -> None:
    async def play(rig: Rig) -> None:
        twice = examples.facts(sublayers=[*MODEL.sublayers, MODEL.sublayers[1]])
        rig.link.ask(actions.FindPlan(1, twice, examples.SIM, 80 * MIB))
        found = await rig.final(1)
        assert found.schedule is None
        assert "impossible sizes" in found.problem
        rig.ask(2)
        assert (await rig.final(2)).schedule is not None

    run(tmp_path, play)


@pytest.mark.skipif(not hasattr(os, "getpriority"), reason="no priorities here")
def test_it_runs_at_low_priority(tmp_path: Path) -> None:
    async def play(rig: Rig) -> None:
        rig.ask(1)
        await rig.final(1)
        (child,) = [c for c in psutil.Process().children() if "planning_process" in " ".join(c.cmdline())]
        lowest, here = 19, os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, child.pid) > min(here, lowest - 1)

    run(tmp_path, play)
