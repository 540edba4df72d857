"""JSON schema to GBNF, through llama-cpp-python's converter, with its dangers fenced off.

The converter trusts its input: repetition counts become text, so a schema of a
few bytes could ask for gigabytes, and remote references would be fetched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from xlm.errors import GenerationError

MAX_TEXT: Final = 64 * 1024
MAX_NODES: Final = 4096
MAX_DEPTH: Final = 32
MAX_COUNT: Final = 256  # of minItems, maxLength and the like
MAX_PROPERTIES: Final = 128

_QUANTIFIER = re.compile(r"\{\s*(\d*)\s*,?\s*(\d*)\s*\}")
_COUNTS: Final = ("minItems", "maxItems", "minLength", "maxLength")


def _fail(message: str) -> GenerationError:
    return GenerationError(f"JSON schema: {message}", code="grammar_invalid")


def to_gbnf(text: str) -> str:
    """The grammar of a schema. GenerationError ``grammar_invalid`` says what is wrong with it."""
    schema = _parse(text)
    _check(schema)
    return _convert(schema)


def _parse(text: str) -> dict[str, Any]:
    if len(text) > MAX_TEXT:
        raise _fail(f"longer than {MAX_TEXT} characters")
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _fail(f"is no JSON: {error}") from error
    if not isinstance(schema, dict):
        raise _fail("must be an object")
    return schema


def _walk(node: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    if depth > MAX_DEPTH:
        raise _fail(f"nested more than {MAX_DEPTH} deep")
    if isinstance(node, dict):
        yield node
        children: Any = node.values()
    else:
        children = node if isinstance(node, list) else ()
    for child in children:
        yield from _walk(child, depth + 1)


def _check(schema: dict[str, Any]) -> None:
    for count, node in enumerate(_walk(schema)):
        if count >= MAX_NODES:
            raise _fail(f"more than {MAX_NODES} nodes")
        _check_node(node)


def _check_node(node: dict[str, Any]) -> None:
    for name in _COUNTS:
        value = node.get(name)
        if isinstance(value, int | float) and not 0 <= value <= MAX_COUNT:
            raise _fail(f"{name} must be from 0 to {MAX_COUNT}, not {value}")
    reference = node.get("$ref")
    if isinstance(reference, str) and not reference.startswith("#/"):
        raise _fail(f"only references into the schema itself work, not {reference!r}")
    properties = node.get("properties")
    if isinstance(properties, dict) and len(properties) > MAX_PROPERTIES:
        raise _fail(f"more than {MAX_PROPERTIES} properties")
    _check_pattern(node.get("pattern"))


def _check_pattern(pattern: Any) -> None:
    if not isinstance(pattern, str):
        return
    total = 1
    for low, high in _QUANTIFIER.findall(pattern):
        total *= max(int(low or 1), int(high or 1), 1)
    if total > MAX_COUNT:
        raise _fail(f"pattern repeats more than {MAX_COUNT} times")


def _convert(schema: dict[str, Any]) -> str:
    from llama_cpp import llama_grammar

    base: Any = llama_grammar.SchemaConverter

    class Converter(base):  # type: ignore[misc]
        def _format_literal(self, literal: str) -> str:
            """The original forgets backslashes, which every quote inside a JSON string brings."""
            return str(super()._format_literal(literal.replace("\\", "\\\\")))

    converter: Any = Converter(prop_order={}, allow_fetch=False, dotall=False, raw_pattern=False)
    try:
        converter.visit(converter.resolve_refs(schema, "schema"), "")
        return str(converter.format_grammar())
    except Exception as error:  # the converter signals bad schemas by asserts, KeyErrors and more
        reason = str(error) or type(error).__name__
        raise _fail(f"not understood: {reason}") from error
