"""What was measured, one JSON object a line: a run that was interrupted goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final


class Store:
    """Values by key. A key holds everything the value depends on; a line torn by an interruption is measured again."""

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self._path: Final = path
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
        """The stored value, or what ``measure`` gives, stored. None is a value too."""
        text = _text(key)
        if text not in self._values:
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
