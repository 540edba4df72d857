"""Standard output that cannot be written: a full disk, a reader that has left."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Final

EXIT_UNWRITTEN: Final = 1


@contextlib.contextmanager
def output_or_one_line() -> Iterator[None]:
    """What is printed inside has been written at the end; else one line on standard error, and the process ends with
    status 1. Without the line where a reader has left (``xlm plan … | head``)."""
    try:
        yield
    except OSError as error:
        if error.filename is None:  # of a write; a large one that fails leaves nothing behind that could be flushed
            _end_if_unwritten("\n")
        raise
    finally:
        _end_if_unwritten("")


def _end_if_unwritten(trial: str) -> None:
    problem = _unwritten(trial)
    if problem is None:
        return
    if not isinstance(problem, BrokenPipeError):
        print(f"error: standard output: {problem.strerror or problem}", file=sys.stderr)
    raise SystemExit(EXIT_UNWRITTEN)


def _unwritten(trial: str) -> OSError | None:
    """Why ``trial`` and what was printed cannot be written, if so. It is thrown away then: Python would try again."""
    try:
        if sys.stdout is not None:
            sys.stdout.write(trial)
            sys.stdout.flush()
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        return error
    return None
