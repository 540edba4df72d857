"""Writes the reference part of docs/c-api.md from xlm.h; what stands above its marker is written by hand.

python native/tools/c_api_docs.py [--check]
"""

from __future__ import annotations

import re
import sys

import xlm_header
from xlm_header import Item, Section

PAGE = xlm_header.ROOT / "docs/c-api.md"
MARKER = "<!-- Made from native/include/xlm/xlm.h by native/tools/c_api_docs.py: below this line, change that. -->"


def render() -> str:
    parts = [MARKER, "", "# Reference", ""]
    for section in xlm_header.read():
        parts += [f"## {section.title.capitalize()}", ""]
        parts += _section(section)
    return "\n".join(parts).rstrip() + "\n"


def _section(section: Section) -> list[str]:
    lines: list[str] = []
    alias: Item | None = None
    for item in section.items:
        if item.kind == "alias":
            alias = item
        elif item.kind == "enum":
            lines += _enum(alias, item)
        else:
            lines += _KINDS[item.kind](item)
    return lines


def _enum(alias: Item | None, enum: Item) -> list[str]:
    name, comment = (alias.name, alias.comment) if alias else ("constants", "")
    rows = [f"| `{one.name}` | {one.value} | {_cell(one.comment)} |" for one in enum.members]
    return [f"### `{name}`", "", comment, "", "| constant | value | |", "|---|---|---|", *rows, ""]


def _struct(item: Item) -> list[str]:
    rows = [f"| `{_cell(one.declaration)}` | {_cell(one.comment)} |" for one in item.members]
    return [f"### `struct {item.name}`", "", item.comment, "", "| field | |", "|---|---|", *rows, ""]


def _function(item: Item) -> list[str]:
    return [f"### `{item.name}`", "", "```c", _wrapped(item.text), "```", "", *_prose(item.comment), ""]


def _plain(item: Item) -> list[str]:
    return [f"### `{item.name}`", "", "```c", item.text, "```", "", *_prose(item.comment), ""]


_KINDS = {
    "struct": _struct,
    "function": _function,
    "handle": _plain,
    "callback": _plain,
    "constant": _plain,
}


def _prose(comment: str) -> list[str]:
    """Paragraphs; @param and @return become a list, the contract a line of its own."""
    lines: list[str] = []
    for paragraph in comment.split("\n\n"):
        text = " ".join(paragraph.split())
        if text.startswith("@"):
            lines += [_tag(tag) for tag in re.split(r" (?=@)", text)]
        elif "Since:" in text:
            lines += ["", re.sub(r"(Ownership|Threads|Blocking|Since):", r"**\1:**", text)]
        else:
            lines += [text, ""]
    return lines


def _tag(text: str) -> str:
    if text.startswith("@param"):
        _, name, rest = text.split(" ", 2)
        return f"- `{name}`: {rest.strip()}"
    codes = re.sub(r"(?<![\w`])(XLM_\w+|_[A-Z][A-Z0-9_]+)", r"`\1`", text.removeprefix("@return").strip())
    return f"- returns {codes}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _wrapped(declaration: str, width: int = 100) -> str:
    if len(declaration) <= width:
        return declaration
    head, _, arguments = declaration.partition("(")
    lines, line = [], head + "("
    indent = " " * len(line)
    for argument in arguments.split(", "):
        piece = argument if line.endswith("(") else f", {argument}"
        if len(line + piece) > width:
            lines.append(line + ",")
            line, piece = indent, argument
        line += piece
    return "\n".join([*lines, line])


def main(arguments: list[str]) -> int:
    text = PAGE.read_text(encoding="utf-8")
    guide, found, _ = text.partition(MARKER)
    if not found:
        print(f"{PAGE.name} has no marker line", file=sys.stderr)
        return 1
    wanted = guide + render()
    if "--check" in arguments:
        if wanted != text:
            print(f"{PAGE.name} is stale: run native/tools/c_api_docs.py", file=sys.stderr)
        return int(wanted != text)
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
