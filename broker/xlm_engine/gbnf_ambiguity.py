"""Finds grammars that can be read in exponentially many ways at once. Pure.

llama.cpp follows every reading of the text so far, each with a stack of what
must still come. ``root ::= "a" root "b" | "a" root "c" | "a"`` has two to the
power of n of them after n letters: the sampler would never come back. Here the
same stacks are followed over short texts, from each rule, with a limit on
stacks and on work: one character repeated, and the text that leaves the most
stacks at each step. It is a net with holes (not every text is tried); the
broker's watch over a hanging engine is behind it.
"""

from __future__ import annotations

import functools
import re
import string
from collections.abc import Iterator
from typing import Final

from xlm_engine.gbnf_item import Item

MAX_STACKS: Final = 1024  # and a few for each terminal: a long enumeration is wide, but not ambiguous
STACKS_PER_TERMINAL: Final = 4
N_CHARS: Final = 24
MAX_WORK: Final = 60_000  # stacks looked at in all, about a tenth of a second; what is not found by then passes
MAX_SAMPLES: Final = 16  # characters tried from one rule

_ESCAPED = re.compile(r"\\(?:x(..)|u(.{4})|U(.{8})|(.))|(.)", re.DOTALL)
_CONTROL: Final = {"t": "\t", "r": "\r", "n": "\n"}
_SAMPLES: Final = string.ascii_lowercase + string.digits + string.punctuation + " \n\té" + string.ascii_uppercase

_Symbol = tuple[str, str] | tuple[str, int, int, int | None]


class _OutOfWork(Exception):
    """The search has taken long enough."""


def _literal_chars(text: str) -> list[str]:
    """The characters of a quoted literal."""
    found: list[str] = []
    for *codes, escape, plain in _ESCAPED.findall(text[1:-1]):
        code = "".join(codes)
        number = int(code, 16) if code else 0
        if code:
            found.append(chr(number) if number < 0x110000 else "\ufffd")
        else:
            found.append(plain or _CONTROL.get(escape, escape))
    return found


@functools.lru_cache(4096)
def _class_pattern(text: str) -> re.Pattern[str] | None:
    """A character class of GBNF as Python's; None if nothing matches it."""
    try:
        return re.compile("[" + re.sub(r"(\\.)|([\[&~|])", _escape_set, text[1:]))
    except (re.error, OverflowError):
        return None


def _escape_set(match: re.Match[str]) -> str:
    return match[1] or "\\" + match[2]


class Stacks:
    """Interned stacks: number 0 is the empty one, any other a symbol upon a stack."""

    def __init__(self, rules: dict[str, list[list[Item]]]) -> None:
        self._rules: Final = rules
        self._cells: Final[list[tuple[_Symbol, int]]] = [(("", ""), 0)]
        self._numbers: Final[dict[tuple[_Symbol, int], int]] = {}
        self._items: Final[list[Item]] = []
        self._item_numbers: Final[dict[int, int]] = {}
        self.work = 0

    def start(self, rule: str) -> set[int]:
        return self._settle([self._push(("rule", rule), 0)])

    def tops(self, stacks: set[int]) -> list[_Symbol]:
        return [self._cells[stack][0] for stack in stacks if stack]

    def after(self, stacks: set[int], char: str) -> set[int]:
        """The stacks that are left when ``char`` was read."""
        self.work += len(stacks)
        return self._settle([self._cells[s][1] for s in stacks if s and matches(self._cells[s][0], char)])

    def _push(self, symbol: _Symbol, below: int) -> int:
        cell = (symbol, below)
        number = self._numbers.get(cell)
        if number is None:
            number = self._numbers[cell] = len(self._cells)
            self._cells.append(cell)
        return number

    def _push_sequence(self, sequence: list[Item], below: int) -> int:
        for item in reversed(sequence):
            below = self._push_item(item, below)
        return below

    def _push_item(self, item: Item, below: int) -> int:
        if (item.low, item.high) == (1, 1):
            return self._push_once(item, below)
        return self._push(("repeat", self._number_of(item), item.low, item.high), below)

    def _push_once(self, item: Item, below: int) -> int:
        if item.kind == "ref":
            return self._push(("rule", item.name), below)
        if item.kind == "group":
            return self._push(("group", self._number_of(item), 0, 0), below)
        if not item.name.startswith('"'):
            return self._push(("class", item.name), below)
        for char in reversed(_literal_chars(item.name)):
            below = self._push(("char", char), below)
        return below

    def _number_of(self, item: Item) -> int:
        number = self._item_numbers.setdefault(id(item), len(self._items))
        if number == len(self._items):
            self._items.append(item)
        return number

    def _settle(self, stacks: list[int]) -> set[int]:
        """Replaces what is no terminal on top until only terminals are: the same set that llama.cpp keeps."""
        seen, settled = set(stacks), set[int]()
        while stacks:
            self.work += 1
            if self.work > MAX_WORK:
                raise _OutOfWork
            stack = stacks.pop()
            if stack == 0 or self._cells[stack][0][0] in ("char", "class"):
                settled.add(stack)
                continue
            new = [other for other in self._unfold(stack) if other not in seen]
            seen.update(new)
            stacks += new
        return settled

    def _unfold(self, stack: int) -> Iterator[int]:
        symbol, below = self._cells[stack]
        if symbol[0] == "repeat":
            yield from self._unfold_repeat(symbol, below)
            return
        key = symbol[1]
        alternates = self._rules[key] if isinstance(key, str) else self._items[key].alternates
        for sequence in alternates:
            yield self._push_sequence(sequence, below)

    def _unfold_repeat(self, symbol: _Symbol, below: int) -> Iterator[int]:
        assert len(symbol) == 4
        _, number, low, high = symbol
        if low == 0:
            yield below
        if high is None or high > 0:
            rest: _Symbol = ("repeat", number, max(low - 1, 0), None if high is None else high - 1)
            yield self._push_once(self._items[number], self._push(rest, below) if high != 1 else below)


def matches(symbol: _Symbol, char: str) -> bool:
    kind, text = symbol[0], str(symbol[1])
    if kind == "char":
        return text == char
    if text == ".":
        return True
    pattern = _class_pattern(text) if text.startswith("[") else None
    return pattern is not None and pattern.match(char) is not None


def _sample(symbol: _Symbol) -> str:
    """A character that fits; empty for none known."""
    if symbol[0] == "char":
        return str(symbol[1])
    return next((char for char in _SAMPLES if matches(symbol, char)), "")


def _count_terminals(alternates: list[list[Item]]) -> int:
    items = [item for sequence in alternates for item in sequence]
    return sum(_count_terminals(item.alternates) if item.kind == "group" else 1 for item in items)


def find(rules: dict[str, list[list[Item]]]) -> str:
    """The name of a rule with too many readings; empty if none was found."""
    limit = MAX_STACKS + STACKS_PER_TERMINAL * sum(_count_terminals(alternates) for alternates in rules.values())
    stacks = Stacks(rules)
    try:
        return next((name for name in rules if _explodes(stacks, name, limit)), "")
    except _OutOfWork:
        return ""


def _explodes(stacks: Stacks, rule: str, limit: int) -> bool:
    first = stacks.start(rule)
    repeated = any(_explodes_on(stacks, first, char, limit) for char in _samples(stacks, first))
    return repeated or _explodes_on(stacks, first, "", limit)


def _samples(stacks: Stacks, current: set[int]) -> list[str]:
    return sorted({_sample(symbol) for symbol in set(stacks.tops(current))} - {""})[:MAX_SAMPLES]


def _explodes_on(stacks: Stacks, current: set[int], char: str, limit: int) -> bool:
    """With ``char`` again and again; if it is empty, with whatever leaves the most stacks each time."""
    for _ in range(N_CHARS):
        if char:
            current = stacks.after(current, char)
        else:
            current = max((stacks.after(current, one) for one in _samples(stacks, current)), key=len, default=set())
        if not current or len(current) > limit:
            break
    return len(current) > limit
