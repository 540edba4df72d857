"""What was measured, one JSON object a line: a run that was interrupted goes on where it stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final


class OutOfTime(Exception):
    """The time given is used up; what was measured is stored, and the next run goes on behind it."""


class Store:
    """Values by key. A key holds everything the value depends on; a line torn by an interruption is measured again."""

    def __init__(self, path: Path, *, fresh: bool = False, until_s: float = 0.0) -> None:
        """``until_s``: of time.monotonic(); nothing is measured after it. 0: no end."""
        self._path: Final = path
        self._until_s: Final = until_s
        self.n_measured = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        if fresh:
            path.unlink(missing_ok=True)
        self._values: Final[dict[str, Any]] = _read(path)
        if path.exists() and not path.read_bytes().endswith(b"\n"):
            with path.open("ab") as file:
                file.write(b"\n")

    def __len__(self) -> int:
        return len(self._values)

    def get(self, *key: object) -> Any:
        return self._values.get(_text(key))

    def put(self, *key: object, value: Any) -> None:
        text = _text(key)
        self._values[text] = value
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": text, "value": value}) + "\n")

    def once(self, measure: Callable[[], Any], *key: object) -> Any:
        """The stored value, or what ``measure`` gives, stored. None is a value too. OutOfTime."""
        text = _text(key)
        if text not in self._values:
            if 0 < self._until_s < time.monotonic():
                raise OutOfTime
            self.n_measured += 1
            self.put(*key, value=measure())
        return self._values[text]


def _text(key: tuple[object, ...]) -> str:
    return "|".join(str(part) for part in key)


def _read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for line in lines:
        try:
            entry = json.loads(line)
            values[entry["key"]] = entry["value"]
        except (ValueError, KeyError, TypeError):
            continue  # torn
    return values
