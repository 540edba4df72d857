"""Reads native/include/xlm/xlm.h for the tools that make things of it: documentation, cffi, ABI checks.

Not a C parser: it knows the one style that header is written in, and raises
``HeaderError`` for anything else, so that a tool never leaves something out in silence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "native/include/xlm/xlm.h"


class HeaderError(ValueError):
    """The header is not written as the tools expect."""


@dataclass(frozen=True)
class Member:
    """A field of a struct, or a constant of an enum. ``value`` belongs to the latter."""

    name: str
    declaration: str
    comment: str = ""
    value: int = 0


@dataclass(frozen=True)
class Item:
    """A declaration: kind "struct", "enum", "handle", "callback", "alias", "function" or "constant"."""

    kind: str
    name: str
    text: str
    comment: str = ""
    members: tuple[Member, ...] = ()


@dataclass
class Section:
    title: str
    items: list[Item] = field(default_factory=list)


_COMMENT = r"/\*.*?\*/"
_TOKEN = re.compile(
    r"/\* ---- (?P<section>[^-]+?) -+ \*/"
    r"|/\*\*(?P<doc>.*?)\*/"
    r"|typedef struct (?P<struct>\w+) \{(?P<fields>.*?)\n\} (?P=struct);"
    r"|typedef struct (?P<handle>\w+) (?P=handle);"
    r"|typedef \w+ \(\*(?P<callback>\w+)\)\([^;]*\);"
    r"|typedef (?P<of>\w+) +(?P<alias>\w+);"
    rf"|enum \{{(?P<constants>(?:[^}}/]|{_COMMENT})*)\}};"
    r"|#define (?P<constant>XLM_NO_\w+|XLM_RANDOM_SEED) (?P<constant_value>\S+)"
    r"|\nXLM_API (?P<function>[^;]*);",
    re.DOTALL,
)


def read(path: Path = HEADER) -> list[Section]:
    """The header's sections in order. Raises HeaderError."""
    text = path.read_text(encoding="utf-8")
    sections: list[Section] = []
    comment = ""
    for match in _TOKEN.finditer(text):
        if match["section"]:
            sections.append(Section(match["section"].strip()))
        elif match["doc"] is not None:
            comment = clean(match["doc"])
        elif sections:
            sections[-1].items.append(_item(match, comment))
            comment = ""
    _check_complete(text, sections)
    return sections


def clean(comment: str) -> str:
    """A comment without its stars; paragraphs are kept."""
    lines = [re.sub(r"^\s*\*? ?", "", line).rstrip() for line in comment.strip().splitlines()]
    return "\n".join(lines).strip()


def functions(sections: list[Section]) -> list[Item]:
    return [item for section in sections for item in section.items if item.kind == "function"]


def _item(match: re.Match[str], comment: str) -> Item:
    text = match[0]
    if match["struct"]:
        return Item("struct", match["struct"], text, comment, tuple(_fields(match["fields"])))
    if match["handle"]:
        return Item("handle", match["handle"], text, comment)
    if match["callback"]:
        return Item("callback", match["callback"], text, comment)
    if match["alias"]:
        return Item("alias", match["alias"], text, comment)
    if match["constants"] is not None:
        return Item("enum", "", text, comment, tuple(_constants(match["constants"])))
    if match["constant"]:
        return Item("constant", match["constant"], match["constant_value"], comment)
    declaration = " ".join(match["function"].split())
    name = re.search(r"(\w+)\(", declaration)
    if name is None:
        raise HeaderError(f"not a function: {declaration}")
    return Item("function", name[1], declaration + ";", comment)


def _fields(body: str) -> list[Member]:
    members = []
    for match in re.finditer(rf"\s*([^;/]+);[ \t]*((?:{_COMMENT})?)", body, re.DOTALL):
        declaration = " ".join(match[1].split())
        name = re.search(r"\(\*(\w+)\)|(\w+)$", declaration)
        if name is None:
            raise HeaderError(f"not a field: {declaration}")
        members.append(Member(name[1] or name[2], declaration, _inline(match[2])))
    return members


def _constants(body: str) -> list[Member]:
    pattern = rf"(\w+)\s*=\s*(-?\d+)\s*,?[ \t]*((?:{_COMMENT})?)"
    return [
        Member(match[1], f"{match[1]} = {match[2]}", _inline(match[3]), int(match[2]))
        for match in re.finditer(pattern, body, re.DOTALL)
    ]


def _inline(comment: str) -> str:
    return " ".join(comment.removeprefix("/*").removesuffix("*/").split())


def _check_complete(text: str, sections: list[Section]) -> None:
    declared = len(re.findall(r"^XLM_API ", text, re.MULTILINE))
    found = functions(sections)
    if declared != len(found):
        raise HeaderError(f"{declared} functions are declared, {len(found)} understood")
    structs = re.findall(r"^typedef struct (\w+)", text, re.MULTILINE)
    seen = {item.name for section in sections for item in section.items}
    if missing := set(structs) - seen:
        raise HeaderError(f"not understood: {', '.join(sorted(missing))}")
    for item in found:
        for word in ("Ownership:", "Threads:", "Blocking:", "Since:"):
            if word not in item.comment:
                raise HeaderError(f"{item.name} does not say its {word.rstrip(':').lower()}")
