"""Generates ``_game_cdef.py`` from xlm.h: ``python -m xlm_native._generate_game [--check]``.

Beside the declarations it takes the defaults of option structs from their
``*_INIT`` macros, which cffi, knowing no preprocessor, would not see.
"""

from __future__ import annotations

import argparse
import pprint
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEADER = HERE.parents[2] / "native" / "include" / "xlm" / "xlm.h"
TARGET = HERE / "_game_cdef.py"
_CONSTANTS = {"UINT64_MAX": (1 << 64) - 1}


def strip_header(text: str) -> str:
    """The declarations, in the subset of C that cffi reads."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r"^\s*#(?:.*\\\n)*.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^static inline .*?^\}", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r'extern "C" \{(.*)^\}', r"\1", text, flags=re.DOTALL | re.MULTILINE)
    text = text.replace("XLM_API ", "")
    lines = (re.sub(r"[ \t]+", " ", line).strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def defaults(text: str) -> dict[str, dict[str, int | float]]:
    """Of each struct with an ``*_INIT``: its fields whose default is a number other than zero."""
    plain = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    constants = _CONSTANTS | {name: int(value) for name, value in re.findall(r"(XLM_\w+)\s*=\s*(-?\d+)", plain)}
    constants |= {name: constants[value] for name, value in re.findall(r"#define (XLM_\w+) (UINT64_MAX)$", plain, re.M)}
    macros = re.findall(r"#define XLM_\w+_INIT\s*\\?\s*\{ XLM_SIZE_OF\((\w+)\), (.*?) \}$", plain, re.S | re.M)
    return {struct: _values(_field_names(plain, struct), initializer, constants) for struct, initializer in macros}


def _field_names(text: str, struct: str) -> list[str]:
    body = re.search(rf"typedef struct {struct} \{{(.*?)\n\}} {struct};", text, re.DOTALL)
    if body is None:
        raise ValueError(f"no struct {struct}")
    declarations = [one.strip() for one in body[1].split(";") if one.strip()]
    names = [re.search(r"\(\*(\w+)\)|(\w+)$", one) for one in declarations]
    return [name[1] or name[2] for name in names if name][1:]


def _values(names: list[str], initializer: str, constants: dict[str, int]) -> dict[str, int | float]:
    values: dict[str, int | float] = {}
    words = [word.strip(" \\\n") for word in initializer.split(",")]
    if len(words) != len(names):
        raise ValueError(f"{len(names)} fields, {len(words)} initial values: {initializer}")
    for name, word in zip(names, words, strict=True):
        value = constants.get(word, word)
        number = float(value) if isinstance(value, str) and re.fullmatch(r"\d+\.\d+", value) else value
        number = int(number) if isinstance(number, str) and number.isdecimal() else number
        if not isinstance(number, str) and number:
            values[name] = number
    return values


def generate(header: Path = HEADER) -> str:
    """The whole text of ``_game_cdef.py``."""
    text = header.read_text(encoding="utf-8")
    table = pprint.pformat(defaults(text), width=110, sort_dicts=False, underscore_numbers=True).replace("'", '"')
    parts = [
        '"""Generated from native/include/xlm/xlm.h by `python -m xlm_native._generate_game`. Do not edit."""',
        "",
        "from typing import Final",
        "",
        'XLM: Final = """',
        strip_header(text),
        '"""',
        "",
        "# fmt: off",
        f"DEFAULTS: Final[dict[str, dict[str, int | float]]] = \\\n{table}",
    ]
    return "\n".join(parts) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when _game_cdef.py is out of date")
    check: bool = parser.parse_args(argv).check
    text = generate()
    if not check:
        TARGET.write_text(text, encoding="utf-8")
        return 0
    fresh = TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text
    print("_game_cdef.py is up to date" if fresh else "stale: run python -m xlm_native._generate_game")
    return 0 if fresh else 1


if __name__ == "__main__":
    sys.exit(main())
