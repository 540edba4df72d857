"""The ready-file: tells whoever started the broker, once, whether its model is loaded or why it is not.

JSON: ``{"endpoint", "pid", "model", "device", "error": null | {"code", "message", "hint"}}``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import psutil

from xlm.protocol.messages import Status


class ReadyFile:
    """Written whole or not at all. ``remove`` takes away what this process wrote. Not thread-safe."""

    def __init__(self, path: Path | None, endpoint: str) -> None:
        self._path = path
        self._endpoint = endpoint
        self.written = path is None

    def clear(self) -> None:
        """Removes what an earlier broker left there."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def clear_stale(self) -> None:
        """The same, only if that broker is dead: for before we know that no other one serves our endpoint."""
        if self._path is not None and self._path.is_file() and not _writer_lives(self._path):
            self.clear()

    def offer(self, status: Status) -> None:
        """Writes the file if the engine is ready or has finally failed. Raises OSError where it cannot be written."""
        state = status.engine.get("state")
        if self._path is None or self.written or state not in ("ready", "failed"):
            return
        self.written = True
        write_atomically(self._path, json.dumps(self._content(status)))

    def remove(self) -> None:
        if self._path is not None and self.written:
            self._path.unlink(missing_ok=True)

    def _content(self, status: Status) -> dict[str, Any]:
        return {
            "endpoint": self._endpoint,
            "pid": os.getpid(),
            "model": status.engine.get("model"),
            "device": status.device,
            "error": status.engine.get("error"),
        }


def _writer_lives(path: Path) -> bool:
    try:
        return bool(psutil.pid_exists(int(json.loads(path.read_text(encoding="utf-8"))["pid"])))
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return False


def write_atomically(path: Path, text: str) -> None:
    """A reader sees nothing or all of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
