"""Writes native/src/client/error_codes.inc from sdk/xlm/errors.py.

    python native/tools/client_codes.py [--check]

``--check`` writes nothing and fails where the file is stale, or where xlm.h
lacks an enumerator for a code.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "native/include/xlm/xlm.h"
TARGET = ROOT / "native/src/client/error_codes.inc"
sys.path.insert(0, str(ROOT / "sdk"))

from xlm.errors import CODES  # noqa: E402  (the path comes first)


def missing() -> list[str]:
    """Enumerators that xlm.h should have and has not."""
    present = set(re.findall(r"\bXLM_ERROR_\w+", HEADER.read_text(encoding="utf-8")))
    return [name for name in map(_enumerator, CODES) if name not in present]


def render() -> str:
    lines = ["// Made from sdk/xlm/errors.py by native/tools/client_codes.py; do not edit."]
    for code, known in CODES.items():
        retryable = "true" if known.retryable else "false"
        fault = f"XLM_FAULT_{known.error.fault.upper()}"
        hint = json.dumps(known.hint, ensure_ascii=True)
        lines.append(f'{{{_enumerator(code)}, "{code}", {fault}, {retryable}, {hint}}},')
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    if absent := missing():
        print(f"xlm.h lacks {', '.join(absent)}", file=sys.stderr)
        return 1
    if "--check" not in arguments:
        TARGET.write_text(render(), encoding="utf-8")
    elif TARGET.read_text(encoding="utf-8") != render():
        print(f"{TARGET.relative_to(ROOT)} is stale: run native/tools/client_codes.py", file=sys.stderr)
        return 1
    return 0


def _enumerator(code: str) -> str:
    return f"XLM_ERROR_{code.upper()}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
