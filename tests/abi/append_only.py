"""Every released header lives on in today's: constants keep their values, structs grow only at their end.

python tests/abi/append_only.py
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "native/tools"))

import xlm_header  # noqa: E402  (the path comes first)
from xlm_header import Item  # noqa: E402

OPEN = {"xlm_str"}  # passed by value: may not even grow


def items(path: Path) -> list[Item]:
    return [item for section in xlm_header.read(path) for item in section.items]


def constants(of: list[Item]) -> dict[str, str]:
    named = {one.name: str(one.value) for item in of if item.kind == "enum" for one in item.members}
    return named | {item.name: item.text for item in of if item.kind == "constant"}


def structs(of: list[Item]) -> dict[str, list[str]]:
    return {item.name: [one.declaration for one in item.members] for item in of if item.kind == "struct"}


def declarations(of: list[Item]) -> dict[str, str]:
    kinds = ("function", "callback", "alias", "handle")
    return {item.name: " ".join(item.text.split()) for item in of if item.kind in kinds}


def problems(old: list[Item], new: list[Item]) -> list[str]:
    found = []
    for before, after, what in (
        (constants(old), constants(new), "constant"),
        (declarations(old), declarations(new), "declaration"),
    ):
        found += [f"the {what} {name} was {text}" for name, text in before.items() if after.get(name) != text]
    grown = structs(new)
    for name, fields in structs(old).items():
        now = grown.get(name, [])
        kept = now == fields if name in OPEN else now[: len(fields)] == fields
        if not kept:
            found.append(f"struct {name} was {fields}")
    return found


def main() -> int:
    current = items(xlm_header.HEADER)
    released = sorted(HERE.glob("v*/xlm.h"))
    status = 0 if released else 1
    for header in released:
        for problem in problems(items(header), current):
            print(f"{header.parent.name}: {problem}", file=sys.stderr)
            status = 1
    print(f"{len(released)} released headers")
    return status


if __name__ == "__main__":
    sys.exit(main())
