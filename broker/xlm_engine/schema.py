"""JSON schema to GBNF, through llama-cpp-python's converter, with its dangers fenced off.

The converter trusts its input: repetition counts become text, so a schema of a
few bytes could ask for gigabytes, and remote references would be fetched. Its
"up to 100" is a hundred groups, one in the other; here it is ``{0,100}``.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

from xlm.errors import GenerationError
from xlm_engine import gbnf

MAX_TEXT: Final = 64 * 1024
MAX_NODES: Final = 4096
MAX_DEPTH: Final = 32
MAX_COUNT: Final = 256  # of minItems, maxLength and the like
MAX_PROPERTIES: Final = 128
MAX_DIGITS: Final = 12  # of a count in a pattern

_QUANTIFIER = re.compile(r"\{\s*(\d*)\s*,?\s*(\d*)\s*\}")
_COUNTS: Final = (("minItems", "maxItems"), ("minLength", "maxLength"))
_BOUNDS: Final = (
    ("minimum", "maximum"),
    ("exclusiveMinimum", "maximum"),
    ("minimum", "exclusiveMaximum"),
    ("exclusiveMinimum", "exclusiveMaximum"),
)


def _fail(message: str) -> GenerationError:
    return GenerationError(f"JSON schema: {message}", code="grammar_invalid")


def to_gbnf(text: str) -> str:
    """The grammar of a schema. GenerationError ``grammar_invalid`` says what is wrong with it."""
    schema = _parse(text)
    _check(schema)
    grammar = _convert(schema)
    try:
        gbnf.check(grammar)
    except GenerationError as error:  # whoever wrote a schema knows nothing of the lines of its grammar
        reason = error.message.removeprefix("grammar: ")
        raise _fail(f"cannot be followed token by token: {reason}") from error
    return grammar


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
    for low, high in _COUNTS:
        _check_counts(low, node.get(low), high, node.get(high))
    _check_bounds(node)
    reference = node.get("$ref")
    if isinstance(reference, str) and not reference.startswith("#/"):
        raise _fail(f"only references into the schema itself work, not {reference!r}")
    properties = node.get("properties")
    if isinstance(properties, dict) and len(properties) > MAX_PROPERTIES:
        raise _fail(f"more than {MAX_PROPERTIES} properties")
    _check_pattern(node.get("pattern"))


def _check_counts(low_name: str, low: Any, high_name: str, high: Any) -> None:
    """Where they are numbers at all: a map under such a name is the schema of a property called so."""
    for name, value in ((low_name, low), (high_name, high)):
        if isinstance(value, int | float) and not (0 <= value <= MAX_COUNT and float(value).is_integer()):
            raise _fail(f"{name} must be a whole number from 0 to {MAX_COUNT}, not {value}")
    if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
        raise _fail(f"{low_name} {low} is more than {high_name} {high}")


def _check_bounds(node: dict[str, Any]) -> None:
    """Bounds between which there is no number: an answer could only break them."""
    for low_name, high_name in _BOUNDS:
        low, high = node.get(low_name), node.get(high_name)
        if isinstance(low, bool) or isinstance(high, bool):  # an old way to write "exclusive"
            continue
        if not isinstance(low, int | float) or not isinstance(high, int | float):
            continue
        if low > high or (low == high and (low_name, high_name) != _BOUNDS[0]):
            raise _fail(f"{low_name} {low} leaves nothing up to {high_name} {high}")


def _check_pattern(pattern: Any) -> None:
    if not isinstance(pattern, str):
        return
    total = 1
    for low, high in _QUANTIFIER.findall(pattern):
        if max(len(low), len(high)) > MAX_DIGITS:
            raise _fail(f"pattern has a count of more than {MAX_DIGITS} digits")
        total *= max(int(low or 1), int(high or 1), 1)
    if total > MAX_COUNT:
        raise _fail(f"pattern repeats more than {MAX_COUNT} times")


def _repeated(item: str, low: int, high: int | None) -> str:
    """``item`` from ``low`` to ``high`` times (None: any number), in the signs of GBNF; empty for none at all."""
    signs = {(0, 1): "?", (0, None): "*", (1, None): "+", (1, 1): ""}
    if high == 0:
        return ""
    bounds = f"{low}" if low == high else f"{low},{'' if high is None else high}"
    return item + signs.get((low, high), f"{{{bounds}}}")


def _build_repetition(
    item_rule: str,
    min_items: float,
    max_items: float | None,
    separator_rule: str = "",
    item_rule_is_literal: bool = False,
) -> str:
    """Takes the place of the converter's function of that name. ValueError for counts that have no meaning."""
    low, high = int(min_items), None if max_items is None else int(max_items)
    if low < 0 or (high is not None and high < low):
        raise ValueError(f"from {low} to {high} times")
    if not separator_rule:
        return _repeated(item_rule, low, high)
    if high == 0:
        return ""
    further = _repeated(f"({separator_rule} {item_rule})", max(0, low - 1), None if high is None else high - 1)
    return f"{item_rule} {further}".rstrip() if low else f"({item_rule} {further})?"


@functools.cache
def _converter_module() -> ModuleType:
    """A copy of the converter's module of our own, so that what is changed in it is changed for nobody else."""
    spec = importlib.util.find_spec("llama_cpp.llama_grammar")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module)["_build_repetition"] = _build_repetition
    return module


def _convert(schema: dict[str, Any]) -> str:
    base: Any = vars(_converter_module())["SchemaConverter"]

    class Converter(base):  # type: ignore[misc]
        def _format_literal(self, literal: str) -> str:
            """The original forgets backslashes, which every quote inside a JSON string brings."""
            return str(super()._format_literal(literal.replace("\\", "\\\\")))

    converter: Any = Converter(prop_order={}, allow_fetch=False, dotall=False, raw_pattern=False)
    if "$ref" in schema:  # the converter looks at nothing beside a reference: not even into $defs
        schema = {**schema, "anyOf": [{"$ref": schema["$ref"]}]}
        del schema["$ref"]
    try:
        converter.visit(converter.resolve_refs(schema, "schema"), "")
        return str(converter.format_grammar())
    except KeyError as error:
        raise _fail(f"not understood: {error}; references beside or within references are not supported") from error
    except Exception as error:  # the converter signals bad schemas by asserts, KeyErrors and more
        reason = str(error) or type(error).__name__
        raise _fail(f"not understood: {reason}") from error
