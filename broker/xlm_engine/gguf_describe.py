"""``python -m xlm_engine.gguf_describe FILE``: a GGUF file's header as one JSON object on standard output.

For the broker's planning commands: they never read a model file in their own process. Result, exit status 0:
``{"metadata": {key: number or text}, "tensors": [[name, type, n_columns, n_elements, n_bytes], ...],
"file_bytes": n}``; or, exit status 1, ``{"error": {"code", "message", "hint"}}``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from xlm.errors import ModelError, XlmError

from .gguf_header import parse


def describe(path: Path) -> dict[str, Any]:
    """ModelError model_not_found, model_is_directory, model_empty, model_unreadable and those of ``parse``."""
    header = parse(_checked(path))
    plain = {k: v for k, v in header.metadata.items() if isinstance(v, int | float | str)}
    counts = {k: header.number(k) for k, v in header.metadata.items() if isinstance(v, list) and header.number(k)}
    tensors = [[t.name, t.type, t.n_columns, t.n_elements, t.n_bytes] for t in header.tensors]
    # text such as a chat template or licence is of no use here and may be long
    short = {k: v for k, v in plain.items() if not isinstance(v, str) or len(v) <= 256}
    return {"metadata": {**counts, **short}, "tensors": tensors, "file_bytes": path.stat().st_size}


def _checked(path: Path) -> Path:
    if not path.exists():
        raise ModelError(f"there is no {path}", code="model_not_found")
    if path.is_dir():
        raise ModelError(f"{path} is a folder", code="model_is_directory")
    try:
        if path.stat().st_size == 0:
            raise ModelError(f"{path} is empty", code="model_empty")
        path.open("rb").close()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}", code="model_unreadable") from error
    return path


def main(arguments: list[str]) -> int:
    try:
        print(json.dumps(describe(Path(arguments[0]))))
    except XlmError as error:
        print(json.dumps({"error": {"code": error.code, "message": error.message, "hint": error.hint}}))
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
