"""Logs and latency figures."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from xlm_broker.telemetry import Latencies, LogConfig, configure, logger, readable, wrapped


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    yield
    structlog.reset_defaults()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_json_off_a_terminal_with_all_keys() -> None:
    out = io.StringIO()
    configure(LogConfig(), out)
    logger().info("budget_applied", cause="c-1", budget_bytes=5, client=b"\x00\x01")
    line = json.loads(out.getvalue())
    assert (line["event"], line["cause"], line["budget_bytes"], line["level"]) == ("budget_applied", "c-1", 5, "info")
    assert "timestamp" in line


def test_an_exception_stays_one_json_line() -> None:
    out = io.StringIO()
    configure(LogConfig(), out)
    try:
        raise ValueError("why")
    except ValueError:
        logger().exception("machine_failed")
    assert len(out.getvalue().splitlines()) == 1
    assert "ValueError: why" in json.loads(out.getvalue())["exception"]


def test_readable_on_a_terminal_unless_json_is_asked_for() -> None:
    pretty, asked = Terminal(), Terminal()
    configure(LogConfig(), pretty)
    logger().info("engine_ready")
    configure(LogConfig(json=True), asked)
    logger().info("engine_ready")
    assert not pretty.getvalue().startswith("{")
    assert json.loads(asked.getvalue())["event"] == "engine_ready"


def test_a_long_line_breaks_between_words_on_a_terminal_and_nowhere_else() -> None:
    pretty, plain = Terminal(), io.StringIO()
    text = " ".join(["measure this machine once, in less than a minute:"] * 5)
    for out in (pretty, plain):
        configure(LogConfig(), out)
        logger().warning("planner_profile", text=text)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", pretty.getvalue())
    assert text in " ".join(shown.split())
    assert len(shown.splitlines()) > 2
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert json.loads(plain.getvalue())["text"] == text


def test_wrapping_counts_what_is_seen_and_leaves_what_fits() -> None:
    assert wrapped("\x1b[31mone\x1b[0m two", 7) == "\x1b[31mone\x1b[0m two"
    assert wrapped("one two three", 7) == "one two\n    three"
    assert wrapped("a\n  b", 80) == "a\n  b"
    assert wrapped("unbreakable", 4) == "unbreakable"


def test_who_reads_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", Terminal())
    assert readable(LogConfig())
    assert not readable(LogConfig(json=True))
    assert not readable(LogConfig(file=tmp_path / "log"))
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert not readable(LogConfig())


def test_level_filters() -> None:
    out = io.StringIO()
    configure(LogConfig(level="warning"), out)
    logger().info("quiet")
    logger().warning("loud")
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["loud"]


def test_log_file_is_appended(tmp_path: Path) -> None:
    file = tmp_path / "b.log"
    for event in ("one", "two"):
        stream = configure(LogConfig(file=file))
        logger().info(event)
        stream.close()
    assert [json.loads(line)["event"] for line in file.read_text().splitlines()] == ["one", "two"]


def test_latencies() -> None:
    latencies = Latencies(capacity=100)
    assert latencies.summary() == {"count": 0, "p50_ms": 0.0, "p99_ms": 0.0, "max_ms": 0.0}
    for value in range(1, 101):
        latencies.add(float(value))
    assert latencies.summary() == {"count": 100, "p50_ms": 51.0, "p99_ms": 100.0, "max_ms": 100.0}


def test_latencies_forget_the_oldest_but_not_the_maximum() -> None:
    latencies = Latencies(capacity=4)
    for value in (1000.0, 1.0, 1.0, 1.0, 1.0):
        latencies.add(value)
    assert latencies.summary() == {"count": 5, "p50_ms": 1.0, "p99_ms": 1.0, "max_ms": 1000.0}


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        raise OSError(28, "No space left on device")


def test_a_stream_that_fails_loses_lines_only() -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (Broken(), closed):
        configure(LogConfig(json=True), stream)
        logger().error("engine_exited")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot be asked whether a pipe is full")
def test_a_pipe_that_nobody_reads_holds_nothing_up() -> None:
    """A launcher that pipes the broker's standard error and forgets it must not stop the releasing of memory."""
    reading, writing = os.pipe()
    sent = 3000
    with os.fdopen(reading, "rb", buffering=0) as reader, os.fdopen(writing, "w") as out:
        configure(LogConfig(json=True), out)
        for number in range(sent):
            logger().info("filling", number=number, text="x" * 9 * (number % 1000))  # also longer than a pipe's piece
        os.set_blocking(reading, False)
        before = b"".join(iter(lambda: reader.read(1 << 16) or b"", b""))
        logger().info("again")
        after = reader.read(1 << 16) or b""
    numbers = [json.loads(line)["number"] for line in before.splitlines() if line.endswith(b"}")]
    assert numbers == list(range(len(numbers)))
    lost, again = [json.loads(line) for line in after.splitlines() if line]
    assert (lost["event"], lost["count"]) == ("log_lines_lost", sent - len(numbers))
    assert again["event"] == "again"
