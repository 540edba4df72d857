"""A model's kernels are measured in several passes, of which the fastest counts. No kernel runs here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from xlm.protocol.link import DeviceConfig
from xlm_engine.profile import session as session_module
from xlm_engine.profile.grid import Facts, KernelTask, ModelNeeds, repeated, tasks
from xlm_engine.profile.points import KernelId, KernelPoint
from xlm_engine.profile.session import PASSES, Session
from xlm_engine.profile.wire import Known, Points, Request

NEEDS = ModelNeeds(products=(("Q4_0", 64, 32, False),), heads=(64, 9, 3), n_embd=64, n_ff=96, n_ctx=512)


class Channel:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def points(self) -> list[KernelPoint]:
        return [point for message in self.sent if isinstance(message, Points) for point in message.kernels]


class Meter:
    """``ns`` of one pass after the other; the last one goes on."""

    def __init__(self, ns: list[int]) -> None:
        self.ns, self.asked = ns, dict[tuple[object, ...], int]()

    def points(self, task: KernelTask, wanted: Callable[[KernelId], bool]) -> Iterator[KernelPoint]:
        for point in filter(wanted, task.points()):
            turn = self.asked[point] = self.asked.get(point, -1) + 1
            yield KernelPoint.of(point, self.ns[min(turn, len(self.ns) - 1)])


def session_with(monkeypatch: pytest.MonkeyPatch, meter: Meter) -> tuple[Session, Channel]:
    channel = Channel()
    made = Session(Request(device=DeviceConfig(kind="none"), quick=True, n_threads=2), channel)  # type: ignore[arg-type]
    monkeypatch.setattr(made, "needs", NEEDS)
    monkeypatch.setattr(made, "_open", lambda: made._meters.update(cpu=meter))  # type: ignore[arg-type]
    for name in ("_say_conditions", "_say_counts", "_warm"):
        monkeypatch.setattr(made, name, lambda *_: None)
    return made, channel


def own_points() -> set[tuple[object, ...]]:
    facts = Facts(n_threads=2, quick=True, model=NEEDS)
    return {tuple(point) for task in repeated(facts) for point in task.points()}


@pytest.mark.parametrize(("ns", "kept"), [([300, 200, 250], 200), ([200, 300, 250], 200), ([300, 250, 200], 200)])
def test_the_fastest_pass_counts(monkeypatch: pytest.MonkeyPatch, ns: list[int], kept: int) -> None:
    meter = Meter(ns)
    session, channel = session_with(monkeypatch, meter)
    session.run(Known())
    last = {(p.device, p.op, p.type, p.shape, p.tokens, p.threads, p.load): p.ns for p in channel.points()}
    own = own_points()
    assert own
    assert {last[point] for point in own} == {kept}
    assert {meter.asked[point] + 1 for point in own} == {PASSES}
    assert {meter.asked[point] + 1 for point in last if point not in own} == {1}


def test_what_an_earlier_run_measured_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = Meter([300, 200])
    session, channel = session_with(monkeypatch, meter)
    session.run(Known(kernels=sorted(own_points())))  # type: ignore[arg-type]
    assert not any(point in meter.asked for point in own_points())
    assert channel.points()


def test_no_pass_begins_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = Meter([300, 200])
    session, _ = session_with(monkeypatch, meter)
    monkeypatch.setattr(session_module.Clock, "over", property(lambda _clock: bool(meter.asked) and done()))
    n_points = sum(1 for task in tasks(Facts(n_threads=2, quick=True, model=NEEDS)) for _ in task.points())

    def done() -> bool:
        return len(meter.asked) >= n_points

    session.run(Known())
    assert set(meter.asked.values()) == {0}
