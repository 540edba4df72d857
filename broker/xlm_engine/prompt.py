"""From a user turn to tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from xlm_engine import shapes
from xlm_engine.template_render import Template, fill


class Encoder(Protocol):
    def __call__(self, text: str, special: bool, /) -> list[int]: ...


class Prompts:
    """The chat format of one model. ``bos``: a token that every conversation begins with, or None."""

    def __init__(self, template: Template, encode: Encoder, bos: int | None) -> None:
        self._template: Final = template
        self._encode: Final = encode
        self._bos: Final = bos

    def first(self, system: str, text: str, images: Sequence[int] = ()) -> list[int]:
        """The flagged tokens of a conversation's beginning, up to where the model speaks.

        ``images``: entries that go in front of the user's text.
        """
        pieces = self._template.with_system if system else self._template.without_system
        head = fill(pieces.system, {"system": system}, self._encode)
        turn = fill(pieces.first, {"system": system, "user": text}, self._encode, {"user": list(images)})
        if self._bos is not None and (head or turn)[:1] != [self._bos]:
            head.insert(0, self._bos)
        return shapes.given_run(head + turn, turn_at=len(head))

    def later(self, system: str, text: str, images: Sequence[int] = ()) -> list[int]:
        """The flagged tokens that go behind an answer: its closing, and the new user turn."""
        pieces = self._template.with_system if system else self._template.without_system
        closing = fill(pieces.closing, {}, self._encode)
        turn = fill(pieces.later, {"user": text}, self._encode, {"user": list(images)})
        return shapes.given_run(closing + turn, turn_at=len(closing))
