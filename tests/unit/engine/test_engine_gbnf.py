from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlm.errors import GenerationError
from xlm_engine import gbnf, schema

SAMPLES = Path(__file__).parents[3] / "samples" / "python"

GOOD = [
    'root ::= "a"',
    'root ::= [a-z]+ ("," [^0-9]*)? # comment\n\nx ::= "unused"',
    'root ::= item{2,5} "\\n"\nitem ::= "x" | "\\u00e9" | .',
    'root ::= expr\nexpr ::= term (("+" | "-") term)*\nterm ::= [0-9]+ | "(" expr ")"',
    'root ::= ("a" |\n "b")\n',
    "root ::= ",
    'root ::= "q" (("a" | "a" "a") "b"?)*',
    'root ::= "[" x ("," x)* "]"\nx ::= ' + " | ".join(f'"a{i}"' for i in range(2000)),
    'root ::= object\nvalue ::= object | array | string | [0-9]+ | "true"\nobject ::= "{" (string ":" value '
    '("," string ":" value)*)? "}"\narray ::= "[" (value ("," value)*)? "]"\n'
    'string ::= "\\"" ([^"\\\\] | "\\\\" .){0,256} "\\""',
]
BAD = {
    "": "no rule 'root'",
    'root ::= "a': "not understood",
    'root "a"': "expected 'name ::='",
    'root ::= ("a"': "expected '\\)'",
    "root ::= *": "not understood",
    'root ::= "a"{5,2}': "no meaning",
    'root ::= "a"{0}': "no meaning",
    'root ::= "a"{999999}': "too large",
    'root ::= (("a"{1000}){1000}){1000}': "too large",
    "root ::= missing": "not defined",
    'root ::= root "a"': "left recursive",
    'root ::= x root "a"\nx ::= y\ny ::= "z"?': "left recursive",
    'root ::= a "x"\na ::= b?\nb ::= c\nc ::= ("q" | a) "w"': "left recursive",
    'root ::= "a" root "b" | "a" root "c" | "a"': "rule 'root' is ambiguous",
    'root ::= "x" y\ny ::= [a-c\\]] y "b" | [^b] y "c" | "\\x61"': "rule 'root' is ambiguous",
    'root ::= "a" y "b" | "a" y "c" | "a"\ny ::= "x" root': "rule 'root' is ambiguous",
    'root ::= ("a"{0,60}){0,60}': "rule 'root' is ambiguous",
    "root ::= []": "empty character class",
    'root ::= "\\q"': "not understood",
    "root ::= " + "(" * 100 + '"a"' + ")" * 100: "nested",
    'root ::= "\0"': "NUL",
    "root ::= " + "a" * 200_000: "longer than",
}


@pytest.mark.parametrize("text", GOOD)
def test_good_grammars_pass(text: str) -> None:
    gbnf.check(text)


@pytest.mark.parametrize("text", BAD, ids=list(BAD.values()))
def test_bad_grammars_say_why(text: str) -> None:
    with pytest.raises(GenerationError, match=BAD[text]) as caught:
        gbnf.check(text)
    assert caught.value.code == "grammar_invalid"


def test_doubled_references_do_not_multiply_for_ever() -> None:
    rules = ["root ::= r0"] + [f"r{i} ::= r{i + 1} | r{i + 1}" for i in range(40)] + ['r40 ::= "a"']
    with pytest.raises(GenerationError, match="too many ways"):
        gbnf.check("\n".join(rules))


def test_a_chain_of_thousands_of_rules_needs_no_recursion() -> None:
    rules = ["root ::= r0"] + [f"r{i} ::= r{i + 1}" for i in range(3000)] + ['r3000 ::= "a"']
    gbnf.check("\n".join(rules))


@given(st.text(alphabet='root:=ab"[]()*+?{}|,0129<>!\\. \n#-', max_size=60))
def test_nothing_else_than_a_typed_error_comes_out(text: str) -> None:
    with contextlib.suppress(GenerationError):
        gbnf.check("root ::= " + text)


@pytest.mark.parametrize(
    "value",
    [
        {"type": "object", "properties": {"a": {"type": "string", "maxLength": 5}}, "required": ["a"]},
        {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
        {"enum": ["x", 1, None]},
        {"const": 'with "quotes"'},
        {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        {"$defs": {"n": {"type": "number"}}, "type": "array", "items": {"$ref": "#/$defs/n"}},
        {"type": "string", "pattern": "^[a-c]{2,3}$"},
        {"type": "string", "pattern": "^(ab){0,20}c{4}[0-9]{3,}$"},
        {"type": "string", "minLength": 0, "maxLength": 0},
        {"type": "array", "items": {"type": "string", "maxLength": 256}, "maxItems": 256},
    ],
)
def test_schemas_become_grammars_that_pass(vocab: Any, value: object) -> None:
    text = schema.to_gbnf(json.dumps(value))
    gbnf.check(text)
    assert accepted(vocab, text)


@pytest.fixture(scope="module")
def vocab() -> Iterator[Any]:
    """The demo model's vocabulary, without its weights."""
    import llama_cpp.llama_cpp as C

    from tests.support.model import model_path

    C.llama_log_set(SILENT, ctypes.c_void_p(0))
    params = C.llama_model_default_params()
    params.vocab_only = True
    model = C.llama_model_load_from_file(os.fsencode(model_path()), params)
    assert model
    yield C.llama_model_get_vocab(model)
    C.llama_model_free(model)


def _silent(_level: int, _text: bytes, _user: Any) -> None:
    pass


SILENT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(_silent)


def accepted(vocab: Any, text: str) -> bool:
    """Whether llama.cpp's own parser takes a grammar."""
    import llama_cpp.llama_cpp as C

    sampler = C.llama_sampler_init_grammar(vocab, text.encode(), b"root")
    if sampler:
        C.llama_sampler_free(sampler)
    return bool(sampler)


def test_the_schema_of_the_sample_is_taken_by_our_check_and_by_llama(vocab: Any) -> None:
    spec = importlib.util.spec_from_file_location("npc_actions", SAMPLES / "npc_actions.py")
    assert spec is not None
    assert spec.loader is not None
    sample = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sample)
    text = schema.to_gbnf(json.dumps(sample.ACTION))
    gbnf.check(text)
    assert "char{0,60}" in text
    assert accepted(vocab, text)


@pytest.mark.parametrize(
    ("counts", "rule"),
    [
        ({"minLength": 0, "maxLength": 256}, "char{0,256}"),
        ({"minLength": 3, "maxLength": 256}, "char{3,256}"),
        ({"minLength": 7, "maxLength": 7}, "char{7}"),
        ({"minLength": 7}, "char{7,}"),
        ({"minLength": 1}, "char+"),
        ({"maxLength": 1}, "char?"),
        ({"minLength": 1, "maxLength": 1}, "char"),
        ({"maxLength": 2.0}, "char{0,2}"),
        ({"maxLength": 0}, ""),
    ],
)
def test_lengths_become_repetitions(counts: dict[str, float], rule: str) -> None:
    root = next(
        line for line in schema.to_gbnf(json.dumps({"type": "string", **counts})).splitlines() if "root" in line
    )
    assert root.split() == ["root", "::=", '"\\""', *rule.split(), '"\\""', "space"]


@pytest.mark.parametrize(
    ("counts", "rule"),
    [
        ({}, '(item ("," space item)*)?'),
        ({"minItems": 1}, 'item ("," space item)*'),
        ({"minItems": 2, "maxItems": 200}, 'item ("," space item){1,199}'),
        ({"maxItems": 3}, '(item ("," space item){0,2})?'),
        ({"maxItems": 1}, "(item )?"),
        ({"minItems": 1, "maxItems": 1}, "item"),
        ({"maxItems": 0}, ""),
    ],
)
def test_counts_of_items_become_repetitions(counts: dict[str, int], rule: str) -> None:
    text = schema.to_gbnf(json.dumps({"type": "array", "items": {"enum": ["x"]}, **counts}))
    root = next(line for line in text.splitlines() if line.startswith("root"))
    assert root.split() == ["root", "::=", '"["', "space", *rule.split(), '"]"', "space"]


def test_a_schema_may_refer_to_itself_also_from_its_root() -> None:
    tree = {"type": "object", "properties": {"x": {"$ref": "#/$defs/tree"}}}
    text = schema.to_gbnf(json.dumps({"$defs": {"tree": tree}, "$ref": "#/$defs/tree"}))
    assert "tree-x ::= tree" in text


def test_the_original_converter_stays_as_it_was() -> None:
    from llama_cpp import llama_grammar

    schema.to_gbnf('{"type": "string", "maxLength": 3}')
    original: Any = llama_grammar
    assert original._build_repetition("x", 0, 3) == "(x (x (x)?)?)?"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "no JSON"),
        ("[]", "must be an object"),
        ('{"$ref": "https://example.com/x"}', "references into the schema"),
        ('{"$ref": "file:///etc/passwd"}', "references into the schema"),
        ('{"type": "array", "items": {}, "minItems": 1000000000}', "minItems"),
        ('{"type": "string", "pattern": "^a{1,1000000000}$"}', "repeats"),
        ('{"type": "string", "pattern": "^a{' + "9" * 5000 + '}$"}', "digits"),
        ('{"type": "integer", "minimum": 5, "maximum": 2}', "minimum 5 leaves nothing up to maximum 2"),
        ('{"type": "number", "minimum": 1, "exclusiveMaximum": 1}', "leaves nothing"),
        ('{"type": "string", "pattern": "unanchored"}', "not understood"),
        ('{"a":' * 60 + "1" + "}" * 60, "nested"),
        (json.dumps({"properties": {str(i): {} for i in range(500)}}), "properties"),
        ('{"type": "nonsense"}', "not understood"),
        ('{"type": "string", "maxLength": 257}', "maxLength must be a whole number from 0 to 256, not 257"),
        ('{"type": "string", "maxLength": 2.5}', "whole number"),
        ('{"type": "string", "minLength": 3, "maxLength": 2}', "minLength 3 is more than maxLength 2"),
        ('{"type": "string", "pattern": "^a{3,2}$"}', "from 3 to 2 times"),
        ('{"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}', "left recursive"),
        ('{"not": {"$ref": "#/x"}, "anyOf": [{"$ref": "#/y", "z": {"$ref": "#/y"}}], "y": {"$ref": "#/q"}}', "JSON "),
        ('{"type": "string", "pattern": "^' + "(" * 80 + "a" + ")" * 80 + '$"}', "JSON schema: cannot be followed"),
    ],
)
def test_bad_schemas_say_why(text: str, reason: str) -> None:
    with pytest.raises(GenerationError, match=reason) as caught:
        schema.to_gbnf(text)
    assert caught.value.code == "grammar_invalid"
    assert caught.value.message.startswith("JSON schema: ")
