"""Every error code and every public function is covered by a test that has a name, and codes arrive in C as they are.

The first half reads the tests: a code counts as covered where a test function that
asserts something, or a table of its module, names it. What no part of the product
raises yet needs none.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from xlm import errors
from xlm.testing import FakeBroker
from xlm_native import game
from xlm_native.game import Game, Kind

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "native/tools"))

import xlm_header  # noqa: E402  (the path comes first)

NATIVE = ROOT / "tests/native"
LONG_S = 600.0  # only bounds a failure
CPP_TEST = re.compile(r"^TEST\((\w+)\) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)


def header_codes() -> dict[str, int]:
    """Of xlm.h, by name as the protocol spells it."""
    members = [one for section in xlm_header.read() for item in section.items for one in item.members]
    prefix = "XLM_ERROR_"
    return {one.name.removeprefix(prefix).lower(): one.value for one in members if one.name.startswith(prefix)}


LOCAL = sorted(set(header_codes()) - set(errors.CODES))  # those of the C library alone


@functools.cache
def cpp_tests() -> dict[str, str]:
    """Bodies of the C++ tests of the client, by "file::test"."""
    files = sorted(NATIVE.glob("client_*.cpp"))
    return {f"{path.name}::{name}": body for path in files for name, body in CPP_TEST.findall(path.read_text())}


def _asserts(node: ast.AST) -> bool:
    words = ("raises", "wait_until", "until")
    return any(
        isinstance(one, ast.Assert)
        or (isinstance(one, ast.Call) and getattr(one.func, "attr", getattr(one.func, "id", "")) in words)
        for one in ast.walk(node)
    )


def _strings(node: ast.AST) -> set[str]:
    return {one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)}


def _named(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Test functions, also those of classes; and the module's tables, which parametrise them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name, node
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            yield "its table", node


@functools.cache
def python_tests() -> dict[str, set[str]]:
    """Strings in each test of the product, by "file::test"."""
    found: dict[str, set[str]] = {}
    files = [path for folder in ("unit", "integration") for path in (ROOT / "tests" / folder).rglob("test_*.py")]
    for path in [*files, ROOT / "tests/support/bad_models.py"]:
        for name, node in _named(ast.parse(path.read_text(encoding="utf-8"))):
            if _asserts(node) or name == "its table":
                found.setdefault(f"{path.name}::{name}", set()).update(_strings(node))
    return found


@functools.cache
def product_text() -> str:
    """All that can raise a code; not the table that declares them."""
    python = [path for folder in ("sdk", "broker", "bindings/python") for path in (ROOT / folder).rglob("*.py")]
    native = list((ROOT / "native/src").rglob("*.[ch]pp"))
    declared = {"errors.py", "_game_cdef.py"}
    return "\n".join(path.read_text(encoding="utf-8") for path in [*python, *native] if path.name not in declared)


def covering(code: str) -> list[str]:
    """The tests that name a code."""
    constant = f"XLM_ERROR_{code.upper()}"
    in_cpp = [name for name, body in cpp_tests().items() if re.search(rf"\b{constant}\b", body)]
    return in_cpp + [name for name, strings in python_tests().items() if code in strings]


def raised(code: str) -> bool:
    constant = f"XLM_ERROR_{code.upper()}"
    return re.search(rf"\"{code}\"|\b{constant}\b", product_text()) is not None


def test_the_header_has_every_code_of_the_protocol() -> None:
    assert set(errors.CODES) <= set(header_codes())
    assert len(LOCAL) == 9
    assert all(header_codes()[code] > -100 for code in LOCAL)


@pytest.mark.parametrize("code", sorted(header_codes()))
def test_every_code_is_covered_by_a_named_test(code: str) -> None:
    assert covering(code) or not raised(code), f"{code} is raised by the product, and no test asks for it"


@pytest.mark.parametrize("code", LOCAL)
def test_the_librarys_own_codes_are_met_by_its_tests(code: str) -> None:
    """Those no broker sends: a call of the C API answers with them."""
    assert [name for name in covering(code) if name.startswith("client_")], code


@pytest.mark.parametrize("name", [item.name for item in xlm_header.functions(xlm_header.read())])
def test_every_public_function_is_documented_and_called_by_a_named_test(name: str) -> None:
    callers = [test for test, body in cpp_tests().items() if re.search(rf"\b{name}\(", body)]
    assert callers, f"no test calls {name}()"
    reference = (ROOT / "docs/c-api.md").read_text(encoding="utf-8").split("# Reference", 1)[1]
    assert f"### `{name}" in reference


# -- each code of the wire, through the real library ------------------------------------------------------------------


@pytest.fixture
def client() -> Iterator[tuple[FakeBroker, Game]]:
    with FakeBroker() as broker, Game("codes", broker.endpoint) as client:
        client.wait_ready(LONG_S)
        yield broker, client


@pytest.mark.parametrize("code", sorted(errors.CODES))
def test_a_refusal_arrives_in_c_as_it_was_sent(client: tuple[FakeBroker, Game], code: str) -> None:
    broker, played = client
    broker.fail_next("get_status", code, "scripted")
    ticket = played.request_status()
    seen: list[game.Event] = []
    while not any(event.kind == Kind.STATUS for event in seen):
        assert played.wait_event(LONG_S)
        seen += played.events()
    (event,) = [event for event in seen if event.kind == Kind.STATUS]
    known = errors.from_code(code, "scripted")
    assert event.id == ticket
    assert event.error is not None
    assert (event.error.code, event.error.message) == (code, "scripted")
    assert (event.error.fault, event.error.retryable, event.error.hint) == (known.fault, known.retryable, known.hint)
