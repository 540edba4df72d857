"""The thread that scales, with a projector that does not. Pure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from xlm_engine.vision import scaled
from xlm_engine.vision.image import Image
from xlm_engine.vision.scaled import Scaled

ONE, OTHER = Image(b"one", 1, 1, "1"), Image(b"other", 1, 1, "2")


class FakeProjector:
    """Scales once ``go_on`` is set; says when it began, and what it let go."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.begun: list[bytes] = []
        self.freed: list[bytes] = []

    @contextmanager
    def chunks(self, image: Image, at_work: Callable[[], None]) -> Iterator[list[bytes]]:
        self.begun.append(image.rgb8)
        at_work()
        assert self.go_on.wait(30)
        try:
            yield [image.rgb8]
        finally:
            self.freed.append(image.rgb8)

    def is_image(self, chunk: bytes) -> bool:
        return bool(chunk)


@pytest.fixture
def projector() -> FakeProjector:
    return FakeProjector()


@pytest.fixture
def scaler(projector: FakeProjector) -> Iterator[Scaled]:
    made = Scaled(projector)  # type: ignore[arg-type]
    yield made
    projector.go_on.set()
    made.close()


def test_an_image_is_being_scaled_when_begin_returns(
    projector: FakeProjector, scaler: Scaled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaled, "HANDOVER_S", 30.0)
    scaler.begin(ONE)
    assert projector.begun == [b"one"]
    assert not scaler.done(ONE)
    projector.go_on.set()
    assert scaler.chunk(ONE, 0) == b"one"


def test_nobody_waits_for_an_image_that_another_one_is_in_the_way_of(projector: FakeProjector, scaler: Scaled) -> None:
    scaler.begin(ONE)
    scaler.begin(OTHER)  # libmtmd cannot be stopped
    assert scaler.image is OTHER
    projector.go_on.set()
    assert scaler.chunk(OTHER, 0) == b"other"
    assert projector.freed == [b"one"]
