"""llama.cpp's lines: what is kept of them, and what is passed on."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from xlm_engine import logs
from xlm_engine.llama_log import CONT, ERROR, WARN, LlamaLog

DEBUG = 1


class Lines:
    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def warning(self, _event: str, text: str) -> None:
        self.said.append(("warning", text))

    def debug(self, _event: str, text: str) -> None:
        self.said.append(("debug", text))


@pytest.mark.parametrize("debugging", [False, True])
def test_debug_lines_are_passed_on_to_those_who_read_them(debugging: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "debugging", lambda: debugging)
    lines, log = Lines(), LlamaLog()
    monkeypatch.setattr(log, "_logger", lines)
    spoken: list[tuple[int, Any]] = [
        (DEBUG, b"copying"), (CONT, b" more of it"), (WARN, b"odd"), (CONT, b"and odder"), (ERROR, b"bad"),
    ]  # fmt: skip
    with log.collecting() as kept:
        for level, text in spoken:
            log._on_line(level, text, None)
        assert list(kept) == ["odd", "and odder", "bad"]
    quiet = [("debug", "copying"), ("debug", "more of it")] if debugging else []
    assert lines.said == [*quiet, ("warning", "odd"), ("warning", "and odder"), ("warning", "bad")]


def test_debugging_is_what_was_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structlog, "configure", lambda **_: None)
    monkeypatch.setattr(logs, "_least", 0)
    for level, expected in (("debug", True), ("info", False), ("error", False)):
        logs.configure(level)
        assert logs.debugging() is expected
