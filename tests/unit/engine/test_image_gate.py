"""Turns that wait for their images: fetched in pieces, decoded once, bounded, cancelled, refused."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from xlm.errors import ImageError
from xlm.protocol import link
from xlm_engine.images.gate import Gate
from xlm_engine.images.source import MAX_UNDECODED, Images
from xlm_engine.vision.image import Image

PIECE = 256 << 10


class Broker:
    """Answers WantImage, and counts what was asked for."""

    def __init__(self, **images: bytes) -> None:
        self.images = images
        self.asked: list[link.WantImage] = []

    def answer(self, want: link.WantImage) -> link.ImagePart:
        self.asked.append(want)
        data = self.images.get(want.key, b"")
        piece = data[want.offset : want.offset + want.max_bytes]
        return link.ImagePart(key=want.key, total_bytes=len(data), offset=want.offset, data=piece)


def one_pixel(layout: link.ImagePart, data: bytes | bytearray) -> Image:
    if data.startswith(b"bad"):
        raise ImageError("bad bytes", code="image_corrupt")
    if data.startswith(b"crash"):
        raise RuntimeError("a bug in a decoder")
    side = int(data[:3])
    return Image.from_rgb8(bytes(3 * side), side, 1)


class Rig:
    """Gate and source, with the link's thread and the engine's loop played by ``run``."""

    def __init__(self, broker: Broker, **options: Any) -> None:
        self.broker = broker
        self.news = threading.Semaphore(0)
        self.images = Images(self.news.release, decoder=one_pixel, **options)
        self.sent: list[link.FromEngine] = []
        self.wants: list[link.WantImage] = []
        self.generated: list[tuple[link.Generate, Mapping[str, Image]]] = []
        self.gate = Gate(self.images, self, self.send)

    def images_needed(self, request: link.Generate) -> list[str]:
        return [*request.images, *request.context_images]

    def generate(self, request: link.Generate, images: Mapping[str, Image]) -> None:
        self.generated.append((request, images))

    def send(self, message: link.FromEngine) -> None:
        (self.wants if isinstance(message, link.WantImage) else self.sent).append(message)  # type: ignore[arg-type]

    def say(self, *keys: str, gen_id: int = 1, **fields: Any) -> None:
        self.gate.generate(link.Generate(gen_id=gen_id, session_id=f"s{gen_id}", images=list(keys), **fields))

    def run(self) -> None:
        """Until nothing waits."""
        while self.gate.has_work:
            while self.wants:
                want: link.WantImage | None = self.wants.pop(0)
                while want is not None:
                    want = self.images.take_part(self.broker.answer(want))
            if self.gate.has_work:
                assert self.news.acquire(timeout=600), "nothing happens any more"
                self.gate.pump()


def failure(rig: Rig) -> str:
    (message,) = rig.sent
    assert isinstance(message, link.GenerationFailed)
    return message.code


def test_a_turn_without_images_passes_at_once() -> None:
    rig = Rig(Broker())
    rig.say()
    assert len(rig.generated) == 1
    assert not rig.gate.has_work


def test_pieces_come_one_at_a_time_and_an_image_is_fetched_once() -> None:
    data = b"005" + bytes(3 * PIECE)
    rig = Rig(Broker(a=data))
    rig.say("a", "a")
    rig.say("a", gen_id=2)
    assert len(rig.wants) == 1
    rig.run()
    assert [want.offset for want in rig.broker.asked] == [0, PIECE, 2 * PIECE, 3 * PIECE]
    assert [images["a"].width for _, images in rig.generated] == [5, 5]


def test_pixels_that_the_model_has_taken_are_not_kept_beside_it() -> None:
    rig = Rig(Broker(a=b"005", b=b"006"))
    rig.say("a")
    rig.run()
    assert rig.images.held_bytes == 0
    rig.say("b", "a", gen_id=2)  # not asked for where the model knows what it made of it
    rig.run()
    assert set(rig.generated[1][1]) == {"a", "b"}
    assert rig.images.held_bytes == 0


def test_images_of_the_history_are_waited_for_too() -> None:
    rig = Rig(Broker(a=b"001", b=b"002"))
    rig.say("b", context_images=["a"])
    rig.run()
    assert set(rig.generated[0][1]) == {"a", "b"}


@pytest.mark.parametrize(("data", "code"), [(b"bad", "image_corrupt"), (b"crash", "image_corrupt")])
def test_a_bad_image_fails_its_turn_and_no_other(data: bytes, code: str) -> None:
    rig = Rig(Broker(a=data, b=b"002"))
    rig.say("a")
    rig.say("b", gen_id=2)
    rig.run()
    assert failure(rig) == code
    assert [request.gen_id for request, _ in rig.generated] == [2]
    rig.sent.clear()
    rig.say("a", gen_id=3)  # known to be bad: not fetched again
    assert failure(rig) == code


def test_an_image_the_broker_lost_may_come_back() -> None:
    rig = Rig(Broker())
    rig.say("a")
    rig.run()
    assert failure(rig) == "image_unknown"
    rig.broker.images["a"] = b"003"
    rig.say("a", gen_id=2)
    rig.run()
    assert rig.generated[0][1]["a"].width == 3


def test_pieces_that_nobody_asked_for_are_ignored() -> None:
    rig = Rig(Broker(a=b"004" + bytes(PIECE)))
    rig.say("a")
    for part in (
        link.ImagePart(key="b", total_bytes=3, data=b"001"),
        link.ImagePart(key="a", total_bytes=9, offset=5, data=b"001"),
    ):
        assert rig.images.take_part(part) is None
    rig.run()
    assert rig.generated[0][1]["a"].width == 4


def test_decoded_pixels_are_kept_within_bounds() -> None:
    rig = Rig(Broker(**{f"k{n}": b"100" for n in range(20)}), kept_bytes=1000)
    for n in range(20):
        rig.say(f"k{n}", gen_id=n)
        rig.run()
        assert rig.images.held_bytes <= 1000
    rig.say(*(f"k{n}" for n in range(20)), gen_id=99)  # more than is kept: the turn holds them itself
    rig.run()
    assert len(rig.generated[-1][1]) == 20


def test_undecoded_uploads_are_bounded() -> None:
    gate = threading.Event()
    rig = Rig(Broker(**{f"k{n}": b"001" for n in range(6)}))

    def slow(layout: link.ImagePart, data: bytes | bytearray) -> Image:
        assert gate.wait(600)
        return one_pixel(layout, data)

    rig.images._decoder = slow  # type: ignore[misc]
    rig.say(*(f"k{n}" for n in range(6)))
    fetched = 0
    while rig.wants:
        assert rig.images.take_part(rig.broker.answer(rig.wants.pop())) is None
        fetched += 1
        rig.gate.pump()
    assert fetched == MAX_UNDECODED
    gate.set()
    rig.run()
    assert len(rig.generated[0][1]) == 6


def test_a_cancelled_turn_did_not_happen() -> None:
    rig = Rig(Broker(a=b"001"))
    rig.say("a", context=bytes(8), context_images=["h"])
    assert rig.gate.cancel(1)
    assert not rig.gate.cancel(1)
    (finished,) = rig.sent
    assert isinstance(finished, link.Finished)
    assert (finished.finish_reason, finished.context_keep) == ("cancelled", [(0, 2)])
    assert finished.context_images == ["h"]
    rig.say("a", gen_id=2)
    rig.gate.drop_session("s2")
    assert not rig.gate.has_work
