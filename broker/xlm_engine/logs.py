"""Structured logs: one JSON object a line on stderr. stdout stays unused."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

_least = logging.NOTSET  # what is said below this level is lost


def configure(level: str) -> None:
    """``level``: debug, info, warning or error."""
    global _least
    _least = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_least),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def logger() -> Any:
    return structlog.get_logger("engine")


def debugging() -> bool:
    """Whether anybody reads ``debug`` lines."""
    return _least <= logging.DEBUG
