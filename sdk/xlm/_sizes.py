"""Sizes as people write them: 96MiB, 1.5GiB, 512."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from xlm.errors import BudgetError
from xlm.protocol.messages import MAX_BYTES

_SIZE: Final = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([a-z]*)", re.IGNORECASE | re.ASCII)
_UNITS: Final = {
    "": 1, "b": 1,
    "k": 1 << 10, "kib": 1 << 10, "kb": 10**3,
    "m": 1 << 20, "mib": 1 << 20, "mb": 10**6,
    "g": 1 << 30, "gib": 1 << 30, "gb": 10**9,
    "t": 1 << 40, "tib": 1 << 40, "tb": 10**12,
}  # fmt: skip


def parse_size(size: int | str) -> int:
    """Bytes of ``1048576``, ``"512"``, ``"96MiB"`` or ``"1.5GiB"``; fractions are rounded down.

    Raises BudgetError (``budget_invalid``) for anything else: negative, not a number, bool, float, over 4 EiB.
    """
    if isinstance(size, str):
        return _checked(_from_text(size), size)
    if isinstance(size, bool) or not isinstance(size, int):
        raise _invalid(size, "is not a size")
    return _checked(size, size)


def format_size(size_bytes: int) -> str:
    """For people: ``"96MiB"``, ``"1.5GiB"``, ``"512B"``; at most two decimals."""
    if size_bytes < 0:
        return "-" + format_size(-size_bytes)
    for unit, shift in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size_bytes >> shift:
            return f"{size_bytes / (1 << shift):.2f}".rstrip("0").rstrip(".") + unit
    return f"{size_bytes}B"


def _from_text(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(match.group(2).lower()) if match else None
    if match is None or unit is None:
        raise _invalid(text, "is not a size")
    if "." in match.group(1) and unit == 1:
        raise _invalid(text, "is not a whole number of bytes")
    return int(Fraction(match.group(1)) * unit)


def _checked(size_bytes: int, given: object) -> int:
    if size_bytes < 0:
        raise _invalid(given, "is negative")
    if size_bytes > MAX_BYTES:
        raise _invalid(given, "is larger than any memory")
    return size_bytes


def _invalid(given: object, problem: str) -> BudgetError:
    # repr() of an int beyond the interpreter's digit limit raises; such a number is not worth printing anyway.
    shown = "the number" if isinstance(given, int) and abs(given) > 1 << 70 else repr(given)[:80]
    return BudgetError(f"{shown} {problem}", code="budget_invalid")
