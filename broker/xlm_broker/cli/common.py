"""What the commands of ``xlm`` share: errors as one line and a hint, exit codes, the console."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

from xlm._commands import to_type
from xlm.errors import BrokerError, EngineError, XlmError
from xlm_broker.cli import broker
from xlm_broker.cli.output import output_or_one_line

EXIT_FAILED: Final = 1  # a check failed, a promise was broken
EXIT_INTERRUPTED: Final = 130  # 128 + SIGINT, as shells count
EXIT_UNAVAILABLE: Final = 69  # EX_UNAVAILABLE of sysexits.h: no broker, or its engine is down


def exit_code(error: BaseException) -> int:
    """The exit code an error ends a command with; those of xlm-broker, and 69 for a service that is not there."""
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if isinstance(error, EngineError) or (isinstance(error, BrokerError) and error.retryable):
        return EXIT_UNAVAILABLE
    return broker.exit_code(error) if isinstance(error, XlmError) else EXIT_FAILED


def error_text(error: BaseException) -> str:
    """One line that says what happened, and one that says what to do."""
    if isinstance(error, XlmError):
        hint = f"\nhint:  {to_type(error.hint)}" if error.hint.strip() else ""
        return f"error: {error.message}{hint}"
    if isinstance(error, OSError) and error.strerror:
        where = f" {error.filename}" if error.filename else ""
        return f"error:{where} {error.strerror}"
    return f"error: {error}"


def run_guarded(command: Callable[[], Any]) -> int:
    """Runs a command; expected errors become text on standard error, everything an exit code."""
    try:
        with output_or_one_line():
            command()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_FAILED if end.code else 0
    except KeyboardInterrupt as error:
        return exit_code(error)
    except (XlmError, OSError) as error:
        print(error_text(error), file=sys.stderr)
        return exit_code(error)
    return 0


@contextlib.contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind like Ctrl-C, so that what was started is stopped. Main thread only."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {name: signal.signal(getattr(signal, name), interrupt) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


@contextlib.contextmanager
def interruption_told(line: str) -> Iterator[None]:
    """Ctrl-C prints ``line`` on standard error before it goes on ending the command."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"\n{line}", file=sys.stderr)
        raise


def tolerant_output() -> None:
    """A character the terminal cannot show becomes a question mark, not an exception in mid-sentence."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
