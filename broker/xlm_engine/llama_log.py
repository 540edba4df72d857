"""llama.cpp's log: kept for explaining a failed load, and passed on as structured lines.

The callback comes on any thread, also out of C; it must not raise.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import llama_cpp.llama_cpp as C

from xlm_engine import logs

WARN, ERROR, CONT = 3, 4, 5  # ggml_log_level
KEPT_LINES: Final = 200


class LlamaLog:
    """Installed once a process; holds the callback alive."""

    def __init__(self) -> None:
        self._errors: Final[deque[str]] = deque(maxlen=KEPT_LINES)
        self._level = 0
        self._logger: Final = logs.logger()
        self.callback: Final[Any] = C.llama_log_callback(self._on_line)  # for libmtmd too

    def install(self) -> None:
        C.llama_log_set(self.callback, None)

    def _on_line(self, level: int, text: bytes | None, _user: object) -> None:
        """libmtmd says several lines an image while it is waited for: what nobody reads is not even decoded."""
        with contextlib.suppress(Exception):
            self._level = self._level if level == CONT else level
            if self._level not in (WARN, ERROR) and not logs.debugging():
                return
            line = (text or b"").decode("utf-8", "replace").strip()
            if line:
                self._pass_on(self._level, line)

    def _pass_on(self, level: int, line: str) -> None:
        if level in (WARN, ERROR):
            self._errors.append(line)
        emit = self._logger.warning if level in (WARN, ERROR) else self._logger.debug
        emit("llama.cpp", text=line)

    @contextlib.contextmanager
    def collecting(self) -> Iterator[deque[str]]:
        """Warnings and errors said from here on."""
        self._errors.clear()
        yield self._errors
