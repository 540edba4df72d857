"""Checks a GBNF grammar before llama.cpp sees it. Pure.

llama.cpp refuses most bad grammars politely, but some make it loop for ever or
use up the memory: ``{5,2}``, left recursion through rules that may be empty,
chains of doubled references, nesting thousands deep. A client must not be able
to kill the engine, so those are found here, and each error says where.

Limits: 128 KiB of text, 64 levels of nesting, 4,000 rules, 2,000 repetitions.
"""

from __future__ import annotations

import re
from typing import Final

from xlm.errors import GenerationError
from xlm_engine import gbnf_ambiguity
from xlm_engine.gbnf_item import Item

MAX_TEXT: Final = 128 * 1024
MAX_DEPTH: Final = 64
MAX_RULES: Final = 4000
MAX_REPEAT: Final = 2000
MAX_PATHS: Final = 100_000

_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_LINE_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_NAME = re.compile(r"[A-Za-z0-9-]+")
_RULE = re.compile(r"([A-Za-z0-9-]+)(?:[ \t]|#[^\r\n]*)*::=")
_ESCAPE = r'\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[trn\\"\[\]-])'
_LITERAL = re.compile(rf'"(?:{_ESCAPE}|[^"\\])*"')
_CLASS = re.compile(rf"\[\^?(?:{_ESCAPE}|[^\]\\])*\]")
_TOKEN = re.compile(r"!?<\[\d{1,9}\]>")
_BRACES = re.compile(r"\{[ \t]*(\d{1,6})[ \t]*(?:(,)[ \t]*(\d{1,6})?[ \t]*)?\}")


def _fail(message: str) -> GenerationError:
    return GenerationError(f"grammar: {message}", code="grammar_invalid")


class _Parser:
    """Recursive descent with a depth limit; one instance a grammar."""

    def __init__(self, text: str) -> None:
        self.text: Final = text
        self.at = 0
        self.rules: Final[dict[str, list[list[Item]]]] = {}

    def where(self) -> str:
        line = self.text.count("\n", 0, self.at) + 1
        return f"line {line}, near {self.text[self.at : self.at + 20]!r}"

    def skip(self, *, newlines: bool) -> None:
        match = (_SPACE if newlines else _LINE_SPACE).match(self.text, self.at)
        self.at = match.end() if match else self.at

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.text, self.at)
        if match:
            self.at = match.end()
        return match

    def parse(self) -> dict[str, list[list[Item]]]:
        self.skip(newlines=True)
        while self.at < len(self.text):
            self.rule()
            self.skip(newlines=True)
        return self.rules

    def rule(self) -> None:
        head = self.take(_RULE)
        if head is None:
            raise _fail(f"expected 'name ::=' at {self.where()}")
        self.skip(newlines=True)
        alternates = self.alternates(depth=0)
        if self.at < len(self.text) and self.text[self.at] not in "\r\n":
            raise _fail(f"expected the end of rule {head[1]!r} at {self.where()}")
        self.rules[head[1]] = alternates
        if len(self.rules) > MAX_RULES:
            raise _fail(f"more than {MAX_RULES} rules")

    def alternates(self, depth: int) -> list[list[Item]]:
        if depth > MAX_DEPTH:
            raise _fail(f"nested more than {MAX_DEPTH} deep at {self.where()}")
        found = [self.sequence(depth)]
        while self.text.startswith("|", self.at):
            self.at += 1
            self.skip(newlines=True)
            found.append(self.sequence(depth))
        return found

    def sequence(self, depth: int) -> list[Item]:
        items: list[Item] = []
        while (item := self.item(depth)) is not None:
            self.skip(newlines=depth > 0)
            self.repetitions(item, depth)
            items.append(item)
        return items

    def item(self, depth: int) -> Item | None:
        if literal := self.take(_LITERAL):
            return Item("terminal", literal[0], optional=len(literal[0]) == 2, size=len(literal[0]))
        if chars := self.take(_CLASS):
            if chars[0] in ("[]", "[^]"):
                raise _fail(f"empty character class at {self.where()}")
            return Item("terminal", chars[0], size=len(chars[0]))
        if token := self.take(_TOKEN):
            return Item("terminal", token[0])
        if name := self.take(_NAME):
            return Item("ref", name=name[0])
        return self.group_or_any(depth)

    def group_or_any(self, depth: int) -> Item | None:
        next_char = self.text[self.at : self.at + 1]
        if next_char == ".":
            self.at += 1
            return Item("terminal", ".")
        if next_char == "(":
            self.at += 1
            self.skip(newlines=True)
            alternates = self.alternates(depth + 1)
            if not self.text.startswith(")", self.at):
                raise _fail(f"expected ')' at {self.where()}")
            self.at += 1
            return Item("group", alternates=alternates, size=sum(i.size for a in alternates for i in a) + 1)
        if next_char and next_char not in "|)\r\n":
            raise _fail(f"not understood at {self.where()}")
        return None

    def repetitions(self, item: Item, depth: int) -> None:
        while True:
            sign = self.text[self.at : self.at + 1]
            if sign and sign in "*+?":
                self.at += 1
                item.optional |= sign != "+"
                item.low = item.low if sign == "+" else 0
                item.high = item.high if sign == "?" else None
            elif sign == "{":
                self.braces(item)
            else:
                return
            self.skip(newlines=depth > 0)

    def braces(self, item: Item) -> None:
        match = self.take(_BRACES)
        if match is None:
            raise _fail(f"expected {{n}}, {{n,}} or {{n,m}} at {self.where()}")
        low = int(match[1])
        high = int(match[3]) if match[3] else (max(low, 1) if match[2] else low)
        if high < low or high == 0:
            raise _fail(f"repetition {match[0]} has no meaning")
        item.size *= high
        item.optional |= low == 0
        item.low *= low
        item.high = None if item.high is None or (match[2] and not match[3]) else item.high * high
        if high > MAX_REPEAT or item.size > 64 * MAX_REPEAT:
            raise _fail(f"repetition {match[0]} is too large")


def check(text: str, root: str = "root") -> None:
    """Raises GenerationError ``grammar_invalid`` with the place and reason if llama.cpp must not get this grammar."""
    if len(text) > MAX_TEXT:
        raise _fail(f"longer than {MAX_TEXT} characters")
    if "\0" in text:
        raise _fail("holds a NUL character")
    rules = _Parser(text).parse()
    if root not in rules:
        raise _fail(f"has no rule {root!r}")
    for name, alternates in rules.items():
        for missing in _references(alternates) - rules.keys():
            raise _fail(f"rule {name!r} uses {missing!r}, which is not defined")
    _check_left_edges(rules)
    if ambiguous := gbnf_ambiguity.find(rules):
        raise _fail(f"rule {ambiguous!r} is ambiguous: a short text can be read in too many ways")


def _references(alternates: list[list[Item]]) -> set[str]:
    found: set[str] = set()
    for item in (item for sequence in alternates for item in sequence):
        found |= {item.name} if item.kind == "ref" else _references(item.alternates)
    return found


def _may_be_empty(alternates: list[list[Item]], empty: set[str]) -> bool:
    return any(all(_item_empty(item, empty) for item in sequence) for sequence in alternates)


def _item_empty(item: Item, empty: set[str]) -> bool:
    if item.optional:
        return True
    if item.kind == "ref":
        return item.name in empty
    return item.kind == "group" and _may_be_empty(item.alternates, empty)


def _empty_rules(rules: dict[str, list[list[Item]]]) -> set[str]:
    """Names of the rules that can produce nothing: the least fixed point."""
    empty: set[str] = set()
    while True:
        more = {name for name, alternates in rules.items() if name not in empty and _may_be_empty(alternates, empty)}
        if not more:
            return empty
        empty |= more


def _left_references(alternates: list[list[Item]], empty: set[str]) -> list[str]:
    """References that can stand first, with repeats."""
    found: list[str] = []
    for sequence in alternates:
        for item in sequence:
            found += [item.name] if item.kind == "ref" else _left_references(item.alternates, empty)
            if not _item_empty(item, empty):
                break
    return found


def _check_left_edges(rules: dict[str, list[list[Item]]]) -> None:
    """No left recursion, and not so many ways to begin that llama.cpp's own search for it never ends."""
    empty = _empty_rules(rules)
    edges = {name: _left_references(alternates, empty) for name, alternates in rules.items()}
    paths: dict[str, int] = {}
    for name in rules:
        _count_paths(name, edges, paths)


def _count_paths(start: str, edges: dict[str, list[str]], paths: dict[str, int]) -> None:
    """Depth-first without recursion; ``paths[name]`` is the number of left paths from it."""
    stack: list[tuple[str, int]] = [(start, 0)]
    active = {start}
    while stack:
        name, index = stack.pop()
        following = edges[name]
        while index < len(following) and following[index] in paths:
            index += 1
        if index == len(following):
            paths[name] = 1 + sum(paths[other] for other in following)
            active.discard(name)
            if paths[name] > MAX_PATHS:
                raise _fail(f"rule {name!r} can begin in too many ways")
            continue
        stack.append((name, index))
        _descend(following[index], stack, active)


def _descend(name: str, stack: list[tuple[str, int]], active: set[str]) -> None:
    if name in active:
        raise _fail(f"rule {name!r} is left recursive: it can begin with itself")
    active.add(name)
    stack.append((name, 0))
