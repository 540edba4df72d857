"""Frame reports: summed up by a clock of our own, and sent by both clients without an answer."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import xlm
from xlm._base import Connection, Identity, Send
from xlm._frames import INTERVAL_S, FrameReports, Sample
from xlm.protocol import codec, messages
from xlm.testing import FakeBroker

from .conftest import LONG

MS = 1_000_000


def test_the_first_frame_goes_at_once_and_then_ten_a_second() -> None:
    reports = FrameReports()
    assert reports.add(Sample(20 * MS, 16 * MS), 5.0) == messages.Frame(
        frames=1, mean_ms=20.0, max_ms=20.0, target_ms=16.0, over_target=1
    )
    assert reports.add(Sample(10 * MS, 16 * MS, 4 * MS), 5.01) is None
    assert reports.add(Sample(16 * MS, 16 * MS, 4 * MS), 5.05) is None
    assert reports.add(Sample(34 * MS, 17 * MS, 1 * MS, "shrink"), 5.0 + 2 * INTERVAL_S) == messages.Frame(
        frames=3, mean_ms=20.0, max_ms=34.0, target_ms=17.0, gpu_ms=3.0, over_target=1, pacing="shrink"
    )


@given(st.lists(st.integers(0, (1 << 64) - 1), min_size=1, max_size=50))
def test_no_frame_is_lost_and_every_report_is_valid(frames_ns: list[int]) -> None:
    reports, now_s, seen = FrameReports(), 0.0, 0
    for frame_ns in [*frames_ns, 0]:
        now_s += 0.03 if frame_ns else 2 * INTERVAL_S
        report = reports.add(Sample(frame_ns, 1), now_s)
        if report is not None:
            again = codec.decode_request(codec.encode(report))
            assert again == report
            assert report.mean_ms <= report.max_ms
            seen += report.frames
    assert seen == len(frames_ns) + 1


def test_what_libxlm_sends_is_understood() -> None:
    """The very map of its encode_report (its own test, client_codec.cpp, pins it down)."""
    sent = {
        "t": "frame", "id": 6, "frames": 4, "mean_ms": 20.0, "max_ms": 50.0, "gpu_ms": 0.0,
        "target_ms": 16.0, "over_target": 1, "pacing": "shrink",
    }  # fmt: skip
    assert codec.decode_request(msgspec.msgpack.encode(sent)) == messages.Frame(
        id=6, frames=4, mean_ms=20.0, max_ms=50.0, target_ms=16.0, over_target=1, pacing="shrink"
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"frame_ns": -1},
        {"frame_ns": math.nan},
        {"frame_ns": 1 << 64},
        {"target_ns": 0},
        {"target_ns": math.inf},
        {"gpu_ns": -5},
        {"pacing": "please"},
    ],
)
def test_what_is_no_frame(client: xlm.Client, wrong: dict[str, Any]) -> None:
    with pytest.raises(xlm.RequestError) as caught:
        client.report_frame(**{"frame_ns": 16 * MS, **wrong})
    assert caught.value.code == "bad_request"


def test_a_report_arrives_and_nothing_comes_back(broker: FakeBroker, client: xlm.Client) -> None:
    client.report_frame(21 * MS, 16 * MS, gpu_ns=5 * MS, pacing="shrink")
    frame = broker.wait_for(messages.Frame)
    assert (frame.frames, frame.max_ms, frame.target_ms, frame.gpu_ms, frame.pacing) == (1, 21.0, 16.0, 5.0, "shrink")
    client.status()  # whatever an answer to it would have done is done
    assert not client._connection._pending


async def test_the_same_without_await(broker: FakeBroker) -> None:
    async with xlm.aconnect(broker.endpoint, timeout=LONG) as client:
        client.report_frame(21 * MS)
        frame = await asyncio.to_thread(broker.wait_for, messages.Frame)
        assert (frame.max_ms, frame.target_ms, frame.pacing) == (21.0, 16.666667, "steps")


def test_a_broker_that_is_away_is_no_error(broker: FakeBroker, client: xlm.Client) -> None:
    broker.kill()
    for _ in range(3):
        client.report_frame(16 * MS)
    assert not client._connection._pending


# -- the connection ------------------------------------------------------------------


def connected() -> Connection:
    connection = Connection(Identity("tavern"))
    hello = connection.start(0.0)[1]
    assert isinstance(hello, Send)
    welcome(connection, hello)
    return connection


def welcome(connection: Connection, hello: Send) -> None:
    asked = codec.decode_request(hello.frame)
    answer = messages.Welcome(id=asked.id, version=1, lease_id="l", heartbeat_ms=1e3, ttl_ms=3e3)
    connection.receive(codec.encode(answer), 0.0)


def report(connection: Connection) -> int | None:
    """Sends one; its id, or None if it was left out."""
    actions = connection.report(messages.Frame(frames=1, mean_ms=1.0, max_ms=1.0, target_ms=1.0))
    for action in actions:
        assert isinstance(action, Send)
        return codec.decode_request(action.frame).id
    return None


def refuse(connection: Connection, request_id: int, code: str) -> list[Any]:
    return list(connection.receive(codec.encode(messages.Error(id=request_id, code=code, message="no")), 0.0))


def test_a_broker_that_knows_no_reports_gets_no_more() -> None:
    connection = connected()
    first = report(connection)
    assert first is not None
    refuse(connection, first, "unknown_type")
    assert report(connection) is None
    redial = connection.lost(1.0, "gone")
    assert report(connection) is None, "there is no connection"
    assert isinstance(redial[1], Send)
    welcome(connection, redial[1])
    assert report(connection) is not None, "it may be another broker now"


def test_another_refusal_ends_nothing() -> None:
    connection = connected()
    first = report(connection)
    assert first is not None
    refuse(connection, first, "bad_request")
    assert report(connection) is not None
    assert not connection.notices
