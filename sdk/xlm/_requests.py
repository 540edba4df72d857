"""From a user's arguments to checked messages, for both clients.

The limits are those of ``xlm.protocol.messages``, checked by decoding the very
frame that would be sent, so that a wrong argument is a typed error at the call
and never a round trip.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict, TypeVar, cast

from xlm import _sizes
from xlm._images import ImageSource, pictures
from xlm._uploads import Picture
from xlm.errors import BudgetError, GenerationError, ProtocolError, XlmError
from xlm.protocol import codec, messages
from xlm.protocol.messages import Message

Require = Literal["any", "device"]
Overflow = Literal["error", "shift"]
JsonSchema = Mapping[str, Any] | str
M = TypeVar("M", bound=Message)


class SayOptions(TypedDict, total=False):
    """How to answer; what is left out has the default of ``xlm.protocol.messages.Say`` and ``Sampling``."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    repeat_last_n: int
    seed: int | None
    stop: str | Sequence[str]
    grammar: str
    json_schema: JsonSchema
    priority: int
    images: Sequence[ImageSource]


_SAMPLING = frozenset(messages.Sampling.__struct_fields__) - {"json_schema"}


def set_budget(size: int | str | None, deadline_ms: float | None, require: Require) -> messages.SetBudget:
    """Raises BudgetError (``budget_invalid``)."""
    cap_bytes = None if size is None else _sizes.parse_size(size)
    return _checked(messages.SetBudget(cap_bytes=cap_bytes, deadline_ms=deadline_ms, require=require), BudgetError)


def reserve(size: int | str, deadline_ms: float | None) -> messages.Reserve:
    """Raises BudgetError (``budget_invalid``)."""
    return _checked(messages.Reserve(bytes=_sizes.parse_size(size), deadline_ms=deadline_ms), BudgetError)


def open_session(system: str, overflow: Overflow, resume: str) -> messages.OpenSession:
    """Raises ProtocolError (``bad_request``, ``frame_too_large``)."""
    return _checked(messages.OpenSession(system=system, overflow=overflow, resume=resume), ProtocolError)


def say(session_id: str, text: str, options: SayOptions) -> tuple[messages.Say, list[Picture]]:
    """The message, and the images to be uploaded before it.

    Raises GenerationError (``sampling_invalid``, ``grammar_invalid``), ProtocolError (``frame_too_large``), ImageError.
    """
    given: dict[str, Any] = dict(options)
    images = pictures(given.pop("images", ()))
    given["images"] = [picture.key for picture in images]
    sampling = {name: given.pop(name) for name in list(given) if name in _SAMPLING}
    sampling["json_schema"] = _schema(given.pop("json_schema", ""))
    if sampling["json_schema"] and sampling.get("grammar"):
        raise GenerationError("grammar and json_schema exclude each other", code="grammar_invalid")
    if "stop" in given:
        given["stop"] = _stop(given["stop"])
    try:
        message = messages.Say(session_id=session_id, text=text, sampling=messages.Sampling(**sampling), **given)
    except TypeError:
        raise TypeError(
            f"say() knows no option {_unknown(given)}; it knows {', '.join(SayOptions.__annotations__)}"
        ) from None
    return _checked(message, GenerationError), images


def _unknown(given: dict[str, Any]) -> str:
    known = messages.Say.__struct_fields__
    return ", ".join(repr(name) for name in given if name not in known)


def _stop(stop: object) -> list[Any]:
    if isinstance(stop, str):
        return [stop]
    if isinstance(stop, Sequence):
        return list(stop)
    raise GenerationError("stop is a string or a list of strings", code="sampling_invalid")


def _schema(schema: object) -> str:
    if schema in ("", None):
        return ""
    try:
        parsed = json.loads(schema) if isinstance(schema, str) else schema
        text = json.dumps(parsed, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise GenerationError(f"json_schema is no JSON: {error}", code="grammar_invalid") from None
    if not isinstance(parsed, (Mapping, bool)):
        raise GenerationError("json_schema is no JSON object", code="grammar_invalid")
    return text


_CODES: dict[type[XlmError], str] = {
    BudgetError: "budget_invalid",
    GenerationError: "sampling_invalid",
    ProtocolError: "bad_request",
}


def _checked(message: M, wrong: type[XlmError]) -> M:
    frame = codec.encode(message)
    try:
        return cast(M, codec.decode_request(frame))
    except ProtocolError as error:
        expected, _, place = error.message.partition(" - at ")
        argument = place.strip("`$.").removeprefix("sampling.")
        raise wrong(f"{argument}: {expected}", code=_CODES[wrong], hint=f"check the argument {argument}") from None
