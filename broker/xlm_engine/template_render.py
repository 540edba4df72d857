"""Takes a chat template apart into what is put before, between and after the texts.

A template is a program that came with a model file (CVE-2024-34359: such a
program once ran shell commands), so it is never run where the model lives. It
is rendered once, at load, in a child process (``template_child``) with limits
on time and memory, inside Jinja's immutable sandbox, with *marks* in place of
the texts. What comes out are the pieces; from then on a prompt is these pieces
with the real texts between them. User text never passes through a template,
and is tokenised apart from it, so it cannot forge control tokens.

The pieces of a turn after the first are found by rendering [system], user,
assistant, user and taking what follows the assistant's mark: what was said
before is never rendered again, so the conversation's tokens stay as they are.
"""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final

import jinja2
import jinja2.sandbox
from msgspec import Struct

MAX_TEMPLATE: Final = 256 * 1024
MAX_OUTPUT: Final = 256 * 1024

FALLBACK: Final = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)  # ChatML, for files without a template


class TemplateProblem(Exception):
    """Why a template cannot be used; the message is for people."""


class Slot(Struct, frozen=True):
    """Where a text goes. ``strip``: the template removes white space at that side of it."""

    name: str  # "system" or "user"
    lstrip: bool = False
    rstrip: bool = False


class Pieces(Struct, frozen=True):
    """A prompt's parts, in order: literal strings and slots."""

    system: list[str | Slot]  # before the first user turn; kept when a context is shifted
    first: list[str | Slot]  # the first user turn, up to where the model speaks
    closing: list[str | Slot]  # after an answer
    later: list[str | Slot]  # a later user turn


class Template(Struct, frozen=True):
    with_system: Pieces
    without_system: Pieces


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def make_environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """The sandbox, with the helpers that published templates expect."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    return environment


class _Renderer:
    """Renders message lists with marks in place of their texts."""

    def __init__(self, source: str, bos: str, eos: str) -> None:
        if len(source) > MAX_TEMPLATE:
            raise TemplateProblem(f"the chat template is longer than {MAX_TEMPLATE} characters")
        try:
            self._template: Final = make_environment().from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise TemplateProblem(f"the chat template is no valid Jinja: {error}") from error
        self._tokens: Final = {"bos_token": bos, "eos_token": eos}
        nonce = secrets.token_hex(8)
        self.marks: Final = {name: f"XLM{name.upper()}{nonce}X" for name in ("system", "user", "assistant", "next")}

    def padded(self, name: str) -> str:
        """A mark with white space around, to see whether the template strips it."""
        return f" {self.marks[name]} "

    def render(self, messages: Sequence[tuple[str, str]], *, generate: bool) -> str:
        rows = [{"role": role, "content": content} for role, content in messages]
        out: list[str] = []
        size = 0
        for chunk in self._chunks(rows, generate):
            out.append(chunk)
            size += len(chunk)
            if size > MAX_OUTPUT:
                raise TemplateProblem(f"the chat template makes more than {MAX_OUTPUT} characters")
        return "".join(out)

    def _chunks(self, rows: list[dict[str, str]], generate: bool) -> Any:
        try:
            yield from self._template.generate(messages=rows, add_generation_prompt=generate, **self._tokens)
        except TemplateProblem:
            raise
        except Exception as error:  # templates can fail in every way Python code can
            raise TemplateProblem(f"the chat template fails: {error}") from error

    def split(self, text: str, names: dict[str, str]) -> list[str | Slot]:
        """Literals and slots of a rendered text. ``names``: mark name -> slot name, in their order."""
        parts: list[str | Slot] = []
        for mark_name, slot_name in names.items():
            mark = self.marks[mark_name]
            if text.count(mark) != 1:
                raise TemplateProblem(f"the chat template does not put the {slot_name} text in once, as it is")
            before, text = text.split(mark)
            lstrip, rstrip = not before.endswith(" "), not text.startswith(" ")
            parts += [before if lstrip else before[:-1], Slot(slot_name, lstrip, rstrip)]
            text = text if rstrip else text[1:]
        return [part for part in [*parts, text] if part]


def take_apart(source: str, bos: str = "", eos: str = "") -> Template:
    """The pieces of a template. TemplateProblem says why it cannot be used."""
    renderer = _Renderer(source or FALLBACK, bos, eos)
    without = _pieces(renderer, [], {})
    try:
        with_system = _pieces(renderer, [("system", renderer.padded("system"))], {"system": "system"})
    except TemplateProblem:
        with_system = _merged(without)  # the template knows no system role
    return Template(with_system=with_system, without_system=without)


def _pieces(renderer: _Renderer, head: list[tuple[str, str]], names: dict[str, str]) -> Pieces:
    user, assistant = ("user", renderer.padded("user")), ("assistant", renderer.padded("assistant"))
    first_text = renderer.render([*head, user], generate=True)
    system_text = _system_part(renderer, head, first_text)
    system = renderer.split(system_text, names) if system_text else []
    rest = {"user": "user"} if system or not names else {**names, "user": "user"}
    closing, later = _later_turn(renderer, [*head, user, assistant])
    first = renderer.split(first_text[len(system_text) :], rest)
    return Pieces(system=system, first=first, closing=closing, later=later)


def _system_part(renderer: _Renderer, head: list[tuple[str, str]], first_text: str) -> str:
    """What the template makes of the system message alone, if the first turn's text begins with just that."""
    if not head:
        return ""
    try:
        alone = renderer.render(head, generate=False)
    except TemplateProblem:
        return ""
    return alone if first_text.startswith(alone) and renderer.marks["system"] in alone else ""


def _later_turn(renderer: _Renderer, said: list[tuple[str, str]]) -> tuple[list[str | Slot], list[str | Slot]]:
    mark = renderer.marks["assistant"]
    text = renderer.render([*said, ("user", renderer.padded("next"))], generate=True)
    if text.count(mark) != 1:
        raise TemplateProblem("the chat template does not put an earlier answer in once, as it is")
    tail = text.split(mark)[1].removeprefix(" ")
    closing = _closing(renderer, said, tail)
    later = renderer.split(tail[len(closing) :], {"next": "user"})
    return ([closing] if closing else []), later


def _closing(renderer: _Renderer, said: list[tuple[str, str]], tail: str) -> str:
    """What ends an answer, if it can be told from what begins the next turn."""
    try:
        ended = renderer.render(said, generate=False)
    except TemplateProblem:
        return ""
    closing = ended.rpartition(renderer.marks["assistant"])[2].removeprefix(" ")
    return closing if tail.startswith(closing) else ""


def _merged(without: Pieces) -> Pieces:
    """For templates without a system role: the system text goes before the first user text."""
    index = next(i for i, part in enumerate(without.first) if isinstance(part, Slot))
    slot = without.first[index]
    assert isinstance(slot, Slot)
    both: list[str | Slot] = [Slot("system", slot.lstrip, True), "\n\n", slot]
    first = [*without.first[:index], *both, *without.first[index + 1 :]]
    return Pieces(system=[], first=first, closing=without.closing, later=without.later)


def fill(
    parts: Sequence[str | Slot],
    texts: dict[str, str],
    encode: Callable[[str, bool], list[int]],
    before: dict[str, list[int]] | None = None,
) -> list[int]:
    """The tokens of the parts. ``encode(text, special)``: only template text may become control tokens.

    ``before``: what goes in front of a slot's text (the entries of images).
    """
    tokens: list[int] = []
    for part in parts:
        if isinstance(part, str):
            tokens += encode(part, True)
            continue
        text = texts[part.name]
        tokens += (before or {}).get(part.name, [])
        text = text.lstrip() if part.lstrip else text
        text = text.rstrip() if part.rstrip else text
        tokens += encode(text, False) if text else []
    return tokens
