"""The image to be encoded next, scaled by libmtmd on a thread of its own: text can be computed meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

from xlm_engine.vision.image import Image
from xlm_engine.vision.mtmd import Projector

HANDOVER_S: Final = 0.002  # the most that is waited until libmtmd has the image, lest another one is in its way


class _Chunks(NamedTuple):
    held: ExitStack
    chunks: list[Any]  # one for each part of the image


class Scaled:
    """One image at a time, kept for all of its parts: scaling it again takes as long again. Used by one thread."""

    def __init__(self, projector: Projector) -> None:
        self._projector: Final = projector
        # started by the thread that computes, so it steps back as that does
        self._worker: Final = ThreadPoolExecutor(1, thread_name_prefix="scale")
        self._work: Future[_Chunks] | None = None
        self.image: Image | None = None  # which one

    def begin(self, image: Image) -> None:
        """Lets another image go.

        Waits until libmtmd is at work, which takes a copy of the pixels: else the worker would wait for this thread to
        let go of the interpreter, again and again.
        """
        if self.image is image:
            return
        self.let_go()
        at_work = threading.Event()
        self.image, self._work = image, self._worker.submit(self._scale, image, at_work.set)
        at_work.wait(HANDOVER_S)

    def done(self, image: Image) -> bool:
        return self.image is image and self._work is not None and self._work.done()

    def chunk(self, image: Image, run: int) -> Any:
        """libmtmd's chunk of a part, valid until ``let_go`` or another image. Waits; raises what scaling raised."""
        self.begin(image)
        assert self._work is not None
        return self._work.result().chunks[run]

    def let_go(self) -> None:
        work, self.image, self._work = self._work, None, None
        if work is not None and not work.cancel():
            work.add_done_callback(_free)

    def close(self) -> None:
        """Before the projector is."""
        self.let_go()
        self._worker.shutdown()

    def _scale(self, image: Image, at_work: Callable[[], None]) -> _Chunks:
        held = ExitStack()
        chunks = held.enter_context(self._projector.chunks(image, at_work))
        return _Chunks(held, [chunk for chunk in chunks if self._projector.is_image(chunk)])


def _free(work: Future[_Chunks]) -> None:
    if work.exception() is None:
        work.result().held.close()
