"""Logs and latency figures.

Logs go to standard error: readable on a terminal, one JSON object a line
elsewhere or when asked. Every line carries an event name (``engine_ready``,
``broker_listening`` …), key-value pairs with units in their names and, where there
is one, the causal id ``cause`` that also travels on the wire.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TextIO, cast

import structlog

from xlm_broker.log_stream import LogStream

LogLevel = Literal["debug", "info", "warning", "error"]
LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
Logger = structlog.typing.FilteringBoundLogger
_COLUMNS: Final = 80  # of a terminal that does not tell
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_INDENT: Final = "    "


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    level: LogLevel = "info"
    file: Path | None = None
    json: bool = False


def configure(config: LogConfig, stream: TextIO | None = None) -> TextIO:
    """Sets up structlog for the process and answers the stream it writes to, which the caller owns."""
    out = stream if stream is not None else _open(config)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            _timestamp(config, out),
            structlog.processors.format_exc_info,
            *_renderers(config, out),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[config.level]),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, LogStream(out))),
        cache_logger_on_first_use=False,
    )
    return out


def logger() -> Logger:
    return cast(Logger, structlog.get_logger())


def _open(config: LogConfig) -> TextIO:
    return open(config.file, "a", encoding="utf-8", buffering=1) if config.file else sys.stderr


def readable(config: LogConfig, out: TextIO | None = None) -> bool:
    """Whether the log is for people (a terminal) and not one JSON object a line."""
    if out is None and config.file is not None:
        return False
    return not config.json and (out or sys.stderr).isatty()


def _timestamp(config: LogConfig, out: TextIO) -> structlog.processors.TimeStamper:
    """For people the time of their day."""
    if readable(config, out):
        return structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
    return structlog.processors.TimeStamper(fmt="iso", utc=True)


def _renderers(config: LogConfig, out: TextIO) -> list[structlog.typing.Processor]:
    if readable(config, out):
        pretty = structlog.dev.ConsoleRenderer(0, colors=True, pad_level=False)
        return [lambda logger, name, event: wrapped(str(pretty(logger, name, event)), _columns(out))]
    return [structlog.processors.JSONRenderer(sort_keys=False, default=repr)]


def _columns(out: TextIO) -> int:
    try:
        return os.get_terminal_size(out.fileno()).columns or _COLUMNS
    except (OSError, ValueError):
        return _COLUMNS


def wrapped(text: str, columns: int) -> str:
    """Each line broken between words, where a terminal would break within one; what goes on below is indented."""
    rows: list[str] = []
    for line in text.split("\n"):
        words = line.split(" ")
        rows.append(words[0])
        for word in words[1:]:
            longer = f"{rows[-1]} {word}"
            if len(_COLOUR.sub("", longer)) <= columns:
                rows[-1] = longer
            else:
                rows.append(_INDENT + word)
    return "\n".join(rows)


class Latencies:
    """The last ``capacity`` latencies of one kind, in milliseconds. Fixed memory; not thread-safe."""

    def __init__(self, capacity: int = 1024) -> None:
        self._values = array("d", bytes(8 * capacity))
        self.count = 0
        self._max_ms = 0.0

    def add(self, value_ms: float) -> None:
        self._values[self.count % len(self._values)] = value_ms
        self.count += 1
        self._max_ms = max(self._max_ms, value_ms)

    def quantile(self, share: float) -> float:
        """Nearest-rank quantile of what is kept; 0 where nothing is."""
        kept = sorted(self._values[: min(self.count, len(self._values))])
        return kept[min(len(kept) - 1, int(share * len(kept)))] if kept else 0.0

    def summary(self) -> dict[str, Any]:
        """count and max since the start; p50 and p99 of the last ones kept."""
        return {
            "count": self.count,
            "p50_ms": round(self.quantile(0.50), 3),
            "p99_ms": round(self.quantile(0.99), 3),
            "max_ms": round(self._max_ms, 3),
        }
