"""The names libxlm shows: those of xlm.h, of native/exports/xlm.map and of the library are the same.

python tests/abi/exports.py LIBRARY
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "native/tools"))

import xlm_header  # noqa: E402  (the path comes first)


def declared() -> set[str]:
    return {function.name for function in xlm_header.functions(xlm_header.read())}


def listed() -> set[str]:
    text = (ROOT / "native/exports/xlm.map").read_text(encoding="utf-8")
    return set(re.findall(r"^\s+(\w+);$", text, re.MULTILINE))


def shown(library: str) -> set[str]:
    """Defined dynamic symbols, without the version's own name."""
    out = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    symbols = (line.split() for line in out.splitlines())
    return {name.split("@")[0] for _, kind, name in symbols if kind != "A"}


def main(library: str) -> int:
    names = declared()
    problems = 0
    for where, others in (("native/exports/xlm.map", listed()), (library, shown(library))):
        for name in sorted(names ^ others):
            problems += 1
            print(f"{name} is {'not ' if name in names else 'only '}in {where}", file=sys.stderr)
    print(f"{len(names)} functions")
    return 1 if problems or not names else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
