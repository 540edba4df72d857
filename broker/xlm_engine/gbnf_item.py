"""What a rule of a grammar is made of, once it has been read."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Item:
    kind: str  # "terminal", "ref", "group"
    name: str = ""  # of a terminal: as it is written
    alternates: list[list[Item]] = field(default_factory=list)
    optional: bool = False
    size: int = 1
    low: int = 1  # how often it stands there
    high: int | None = 1  # None: any number
