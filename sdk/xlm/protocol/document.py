"""Writes docs/protocol.md: the prose of ``protocol.template.md`` with tables made from ``messages.py``.

    python -m xlm.protocol.document            # write it
    python -m xlm.protocol.document --check    # exit 1 if it is out of date

For a checkout of the source: an installed package has no docs folder; name the file then.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
from msgspec import inspect as types

from xlm import errors
from xlm.protocol import images, messages

_HERE: Final = Path(__file__).resolve().parent
_TEMPLATE: Final = _HERE / "protocol.template.md"
_DOCUMENT: Final = _HERE.parents[2] / "docs" / "protocol.md"
_LIMITS: Final = {
    "ge": "≥ {}",
    "gt": "> {}",
    "le": "≤ {}",
    "min_length": "of at least {}",
    "max_length": "of at most {} characters",
    "pattern": "like `{}`",
}


def render() -> str:
    """The whole document."""
    parts = {
        "version_min": str(messages.VERSION_MIN),
        "version_max": str(messages.VERSION_MAX),
        "max_frame_bytes": f"{messages.MAX_FRAME_BYTES:,}",
        "chunk_bytes": f"{messages.IMAGE_CHUNK_BYTES:,}",
        "image_window": str(messages.IMAGE_WINDOW),
        "max_side": f"{images.MAX_SIDE:,}",
        "max_pixels": f"{images.MAX_PIXELS:,}",
        "requests": _messages(messages.Request),
        "replies": _messages(messages.Reply),
        "nested": "\n".join(_section(kind, kind.__name__) for kind in (messages.Sampling, messages.Usage)),
        "errors": _errors(),
    }
    text = _TEMPLATE.read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match.group(1)], text)


def _messages(union: Any) -> str:
    return "\n".join(_section(kind, str(kind.__struct_config__.tag)) for kind in get_args(union))


def _section(kind: type[msgspec.Struct], title: str) -> str:
    own = [field for field in _fields(kind) if field.name not in ("id", "cause")]
    prose = inspect.cleandoc(kind.__doc__ or "").replace("``", "`").replace("null", "nil")
    lines = [f"### `{title}`", *(["", prose] if prose else [])]
    if own:
        comments = _comments().get(kind.__name__, {})
        lines += ["", "| key | type | default | |", "|---|---|---|---|"]
        lines += [_row(field, comments.get(field.name, "")) for field in own]
    return "\n".join([*lines, ""])


def _fields(kind: type[msgspec.Struct]) -> tuple[types.Field, ...]:
    described = types.type_info(kind)
    assert isinstance(described, types.StructType)
    return described.fields


def _row(field: types.Field, comment: str) -> str:
    default = "required" if field.required else f"`{_default(field)}`"
    return f"| `{field.encode_name}` | {_type(field.type)} | {default} | {_cell(comment)} |"


def _default(field: types.Field) -> str:
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    if isinstance(value, msgspec.Struct) or value == {}:
        return "{}"
    return "nil" if value is None else msgspec.json.encode(value).decode()


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _type(kind: types.Type) -> str:
    """In words, with limits."""
    if isinstance(kind, types.UnionType):
        return " or ".join(_type(one) for one in kind.types)
    if isinstance(kind, types.LiteralType):
        return " or ".join(f'`"{value}"`' for value in kind.values)
    if isinstance(kind, types.ListType):
        most = f" (at most {kind.max_length})" if kind.max_length is not None else ""
        return f"list of {_type(kind.item_type)}{most}"
    if isinstance(kind, types.StructType):
        return f"map, see [`{kind.cls.__name__}`](#{kind.cls.__name__.lower()})"
    return _plain(kind)


def _plain(kind: types.Type) -> str:
    names = {types.IntType: "integer", types.FloatType: "float", types.StrType: "string", types.BoolType: "bool"}
    names |= {types.NoneType: "nil", types.DictType: "map", types.AnyType: "anything", types.BytesType: "binary"}
    limits = [_limit(kind, name) for name in ("ge", "gt", "le", "min_length", "max_length", "pattern")]
    if isinstance(kind, types.BytesType):
        limits = [limit.replace("characters", "bytes") for limit in limits]
    return " ".join([names[type(kind)], *filter(None, limits)])


def _limit(kind: types.Type, name: str) -> str:
    value = getattr(kind, name, None)
    if value is None:
        return ""
    if isinstance(value, str):
        return _LIMITS[name].format(value)
    shown = f"{value:,}" if abs(value) < 1 << 30 else f"2^{int(value).bit_length()} - 1"
    return _LIMITS[name].format(shown)


def _comments() -> dict[str, dict[str, str]]:
    """The trailing comment of each field, by class: the reason messages.py is written one field a line."""
    source = Path(messages.__file__).read_text(encoding="utf-8")
    lines = source.splitlines()
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = dict(_comments_of(node, lines))
    return found


def _comments_of(node: ast.ClassDef, lines: list[str]) -> list[tuple[str, str]]:
    pairs = []
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            line = lines[(statement.end_lineno or statement.lineno) - 1]
            tail = line.encode()[statement.end_col_offset or 0 :].decode()
            pairs.append((statement.target.id, tail.strip().lstrip("#").strip()))
    return pairs


def _errors() -> str:
    lines = ["| code | error | fault | retry | what to do |", "|---|---|---|---|---|"]
    for name, code in errors.CODES.items():
        retry = "yes" if code.retryable else "no"
        lines.append(f"| `{name}` | `{code.error.__name__}` | {code.error.fault} | {retry} | {_cell(code.hint)} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m xlm.protocol.document", description="Writes docs/protocol.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the file is out of date")
    parser.add_argument("file", nargs="?", type=Path, default=_DOCUMENT)
    options = parser.parse_args(arguments)
    text = render()
    if not options.check:
        options.file.write_text(text, encoding="utf-8")
        return 0
    if options.file.exists() and options.file.read_text(encoding="utf-8") == text:
        return 0
    print(f"{options.file} is out of date: run python -m xlm.protocol.document", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
