"""Turns wait here until the images they need are decoded; then they go on to the batcher. The decode thread's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from xlm.errors import ImageError, XlmError
from xlm.protocol import link
from xlm_engine.images.source import Images
from xlm_engine.vision.image import Image

MAX_TURN_BYTES: Final = 1 << 30  # of the decoded pixels of one turn


class Turns(Protocol):
    """The batcher."""

    def images_needed(self, request: link.Generate) -> list[str]: ...
    def generate(self, request: link.Generate, images: Mapping[str, Image]) -> None: ...


@dataclass(slots=True)
class _Held:
    request: link.Generate
    needed: list[str]
    images: dict[str, Image] = field(default_factory=dict)


class Gate:
    """``send`` takes messages for the broker."""

    def __init__(self, images: Images, turns: Turns, send: Callable[[link.FromEngine], None]) -> None:
        self._images: Final = images
        self._turns: Final = turns
        self._send: Final = send
        self._held: Final[list[_Held]] = []

    @property
    def has_work(self) -> bool:
        return bool(self._held)

    def generate(self, request: link.Generate) -> None:
        """Takes a turn; it reaches the batcher at once if it needs no image that is not here."""
        self._held.append(_Held(request, list(dict.fromkeys(self._turns.images_needed(request)))))
        self.pump()

    def pump(self) -> None:
        """After a turn came or an image is there. Asks for what is missing."""
        for held in list(self._held):
            try:
                ready = self._collect(held)
            except XlmError as error:
                self._held.remove(held)
                self._fail(held.request, error)
                continue
            if ready:
                self._held.remove(held)
                self._turns.generate(held.request, held.images)
                self._forget(held)
        request = self._images.next_request()
        if request is not None:
            self._send(request)

    def _forget(self, done: _Held) -> None:
        """The model has them now: pixels that no other turn waits for are not kept beside it."""
        wanted = {key for held in self._held for key in held.needed}
        for key in done.needed:
            if key not in wanted:
                self._images.forget(key)

    def _collect(self, held: _Held) -> bool:
        for key in held.needed:
            image = held.images.get(key) or self._images.get(key)
            if image is not None:
                held.images[key] = image
        if sum(len(image.rgb8) for image in held.images.values()) > MAX_TURN_BYTES:
            raise ImageError(f"the images of this turn take more than {MAX_TURN_BYTES} bytes", code="image_too_large")
        return len(held.images) == len(held.needed)

    def cancel(self, gen_id: int) -> bool:
        """Whether the turn waited here; it did not happen then."""
        return self._drop(lambda request: request.gen_id == gen_id)

    def drop_session(self, session_id: str) -> None:
        self._drop(lambda request: request.session_id == session_id)

    def _drop(self, fits: Callable[[link.Generate], bool]) -> bool:
        found = [held for held in self._held if fits(held.request)]
        for held in found:
            self._held.remove(held)
            self._send(_not_happened(held.request))
        return bool(found)

    def _fail(self, request: link.Generate, error: XlmError) -> None:
        self._send(
            link.GenerationFailed(gen_id=request.gen_id, code=error.code, message=error.message, hint=error.hint)
        )


def _not_happened(request: link.Generate) -> link.Finished:
    n_context = len(request.context) // 4
    return link.Finished(
        gen_id=request.gen_id,
        finish_reason="cancelled",
        context_keep=[(0, n_context)] if n_context else [],
        context_images=list(request.context_images),
    )
