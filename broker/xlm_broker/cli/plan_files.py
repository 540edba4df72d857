"""Files of models and machines that are not here, as ``xlm plan`` reads them: docs/plan.md has their fields."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from xlm.errors import RequestError, ShapeError

DOCUMENT: Final = "docs/plan.md has the fields"


def model_entry(text: str) -> tuple[str, Mapping[str, Any]]:
    """Name and numbers of FILE#NAME. RequestError option_invalid; ShapeError shape_invalid."""
    path, name = _named(text, "--shape")
    try:
        entries = json.loads(_text(path, "shape_invalid"))
    except ValueError as error:
        raise ShapeError(f"{path} is not JSON: {error}", code="shape_invalid", hint=DOCUMENT) from error
    if not isinstance(entries, dict):
        raise ShapeError(f"{path} is no object of models by name", code="shape_invalid", hint=DOCUMENT)
    if name not in entries:
        raise ShapeError(f"{path} has no model {name!r}", code="shape_invalid", hint=_names(entries))
    if not isinstance(entries[name], dict):
        raise ShapeError(f"{name} in {path} is no object", code="shape_invalid", hint=DOCUMENT)
    return name, entries[name]


def machine_row(text: str) -> Mapping[str, Any]:
    """The columns of FILE#NAME, by name. RequestError option_invalid; ShapeError machine_invalid."""
    path, name = _named(text, "--machine")
    try:
        rows = list(csv.DictReader(_text(path, "machine_invalid").splitlines()))
    except csv.Error as error:
        raise ShapeError(f"{path} is not CSV: {error}", code="machine_invalid", hint=DOCUMENT) from error
    if not any("machine" in row for row in rows):
        raise ShapeError(
            f"{path} has no column 'machine': its first line names the columns, separated by commas",
            code="machine_invalid", hint=DOCUMENT,
        )  # fmt: skip
    found = next((row for row in rows if row["machine"] == name), None)
    if found is None:
        names = _names(str(row["machine"]) for row in rows)
        raise ShapeError(f"{path} has no machine {name!r}", code="machine_invalid", hint=names)
    return found


def _named(text: str, option: str) -> tuple[Path, str]:
    path, _, name = text.rpartition("#")
    if not path or not name:
        raise RequestError(f"{option} {text} is not FILE#NAME", code="option_invalid")
    return Path(path), name


def _text(path: Path, code: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ShapeError(f"{path} is not UTF-8", code=code, hint=DOCUMENT) from error
    except OSError as error:
        raise ShapeError(f"{path}: {error.strerror or error}", code=code, hint="check the path") from error


def _names(found: Iterable[str]) -> str:
    return f"it has {', '.join(found) or 'none'}"
