from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlm.errors import GenerationError
from xlm_engine import gbnf, schema

GOOD = [
    'root ::= "a"',
    'root ::= [a-z]+ ("," [^0-9]*)? # comment\n\nx ::= "unused"',
    'root ::= item{2,5} "\\n"\nitem ::= "x" | "\\u00e9" | .',
    'root ::= expr\nexpr ::= term (("+" | "-") term)*\nterm ::= [0-9]+ | "(" expr ")"',
    'root ::= ("a" |\n "b")\n',
    "root ::= ",
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
    ],
)
def test_schemas_become_grammars_that_pass(value: object) -> None:
    gbnf.check(schema.to_gbnf(json.dumps(value)))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "no JSON"),
        ("[]", "must be an object"),
        ('{"$ref": "https://example.com/x"}', "references into the schema"),
        ('{"$ref": "file:///etc/passwd"}', "references into the schema"),
        ('{"type": "array", "items": {}, "minItems": 1000000000}', "minItems"),
        ('{"type": "string", "pattern": "^a{1,1000000000}$"}', "repeats"),
        ('{"type": "string", "pattern": "unanchored"}', "not understood"),
        ('{"a":' * 60 + "1" + "}" * 60, "nested"),
        (json.dumps({"properties": {str(i): {} for i in range(500)}}), "properties"),
        ('{"type": "nonsense"}', "not understood"),
    ],
)
def test_bad_schemas_say_why(text: str, reason: str) -> None:
    with pytest.raises(GenerationError, match=reason) as caught:
        schema.to_gbnf(text)
    assert caught.value.code == "grammar_invalid"
