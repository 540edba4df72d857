"""Generates ``_cdef.py`` from the C headers: ``python -m xlm_native._generate [--check]``.

cffi's parser knows no preprocessor, so comments, ``#`` lines, the C++ guards
and the export macro are removed; the rest is taken as it is. The headers stay
the one definition: ``--check`` fails when ``_cdef.py`` is out of date.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEADERS = HERE.parents[2] / "native" / "include" / "xlm"
TARGET = HERE / "_cdef.py"


def strip_header(text: str) -> str:
    """The declarations of one header, in the subset of C that cffi reads."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r"^\s*#.*(?:\\\n.*)*$", "", text, flags=re.MULTILINE)
    text = re.sub(r'extern "C" \{(.*)^\}', r"\1", text, flags=re.DOTALL | re.MULTILINE)
    text = text.replace("XLM_DEVICE_API", "")
    lines = (re.sub(r"[ \t]+", " ", line).strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def generate(headers: Path = HEADERS) -> str:
    """The whole text of ``_cdef.py``."""
    parts = [
        '"""Generated from native/include/xlm by `python -m xlm_native._generate`. Do not edit."""',
        "",
        "from typing import Final",
    ]
    for name in ("xlm_device", "xlm_sim"):
        body = strip_header((headers / f"{name}.h").read_text(encoding="utf-8"))
        parts += ["", f'{name.upper()}: Final = """', body, '"""']
    return "\n".join(parts) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when _cdef.py is out of date")
    check: bool = parser.parse_args(argv).check
    text = generate()
    if check:
        fresh = TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text
        print("_cdef.py is up to date" if fresh else "_cdef.py is out of date: run python -m xlm_native._generate")
        return 0 if fresh else 1
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
