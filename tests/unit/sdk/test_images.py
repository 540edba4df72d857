"""Images in the SDK: what counts as one, how they are uploaded, and what can go wrong on the way."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as pil

import xlm
from xlm import _images
from xlm._calls import Conversation, Stream
from xlm._uploads import ATTEMPTS, Picture
from xlm.errors import CODES, ImageError, XlmError
from xlm.protocol import messages
from xlm.protocol.images import upload_key
from xlm.protocol.messages import IMAGE_CHUNK_BYTES, IMAGE_WINDOW
from xlm.testing import FakeBroker

from .conftest import ANSWER, LONG
from .test_base import Peer, error_of

RNG = np.random.default_rng(3)
PHOTO = RNG.integers(0, 256, (5, 7, 3), dtype=np.uint8)


def png(array: Any = PHOTO, **options: Any) -> bytes:
    out = io.BytesIO()
    pil.fromarray(array).save(out, "PNG", **options)
    return out.getvalue()


def code(*sources: Any) -> str:
    with pytest.raises(ImageError) as caught:
        _images.pictures(list(sources))
    return caught.value.code


# -- what is an image --------------------------------------------------------------------


def test_paths_and_bytes_are_sent_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(png())
    made = _images.pictures([file, str(file), png(), bytearray(png()), memoryview(png())])
    assert {picture.data for picture in made} == {png()}
    assert len({picture.key for picture in made}) == 1
    assert made[0].key == upload_key(made[0].layout, png())
    with pytest.raises(xlm.ImageError, match="cannot be read: No such file"):
        _images.picture(tmp_path / "none.png")


@pytest.mark.parametrize("channels", [3, 4])
def test_numpy_arrays_of_any_layout(channels: int) -> None:
    array = RNG.integers(0, 256, (6, 8, channels), dtype=np.uint8)
    wide = np.zeros((12, 16, channels), np.uint8)
    wide[::2, ::2] = array
    for given in (array, np.asfortranarray(array), wide[::2, ::2], array[::-1][::-1]):
        made = _images.picture(given)
        assert made.data == array.tobytes()
        assert (made.layout.width, made.layout.height, made.layout.stride) == (8, 6, 8 * channels)
        assert made.layout.encoding == ("rgb8" if channels == 3 else "rgba8")
    read_only = array.copy()
    read_only.flags.writeable = False
    assert _images.picture(read_only).data == array.tobytes()


def test_an_array_may_change_after_the_call() -> None:
    array = PHOTO.copy()
    made = _images.picture(array)
    array[:] = 0
    assert made.data == PHOTO.tobytes()


@pytest.mark.parametrize(
    "array",
    [
        PHOTO.astype(np.float32),
        PHOTO[:, :, 0],
        PHOTO[:, :, :2],
        np.zeros((1, 5, 7, 3), np.uint8),
        PHOTO.astype(np.int8),
    ],
)
def test_other_arrays_are_refused(array: Any) -> None:
    assert code(array) == "image_unsupported"


def test_sizes_are_checked_before_anything_is_sent() -> None:
    assert code(np.zeros((0, 5, 3), np.uint8)) == "image_empty"
    assert code(np.zeros((1, 60_000, 3), np.uint8)) == "image_too_large"
    assert code(np.broadcast_to(np.zeros((1, 1, 3), np.uint8), (16_000, 16_000, 3))) == "image_too_large"
    assert code(b"") == "image_empty"
    assert code(*[b"x"] * 65) == "too_many_images"


def test_pil_images_are_sent_as_pixels_upright() -> None:
    image = pil.fromarray(PHOTO)
    assert _images.picture(image).data == PHOTO.tobytes()
    exif = pil.Exif()
    exif[0x0112] = 6
    turned = pil.open(io.BytesIO(png(exif=exif)))
    assert _images.picture(turned).data == np.ascontiguousarray(np.rot90(PHOTO, -1)).tobytes()
    for mode in ("L", "P", "CMYK", "1"):
        assert _images.picture(image.convert(mode)).layout.encoding == "rgb8"
    assert _images.picture(image.convert("RGBA")).layout.encoding == "rgba8"
    assert _images.picture(image.convert("LA")).layout.encoding == "rgba8"


@pytest.mark.parametrize("source", [5, None, {"a": 1}, object(), [PHOTO]])
def test_what_is_no_image(source: Any) -> None:
    assert code(source) == "image_unsupported"


@pytest.mark.parametrize("sources", ["a.png", b"bytes", PHOTO, Path("a.png"), 5, None])
def test_images_is_a_list(sources: Any) -> None:
    with pytest.raises(ImageError) as caught:
        _images.pictures(sources)
    assert "images=[" in caught.value.hint


def test_neither_numpy_nor_pillow_is_imported() -> None:
    script = (
        "import sys, xlm\n"
        "from xlm._images import pictures\n"
        "assert len(pictures([b'x', __file__ if '__file__' in globals() else sys.executable])) == 2\n"
        "assert not {'numpy', 'PIL', 'PIL.Image'} & set(sys.modules), 'imported'\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=600)


# -- over a socket -----------------------------------------------------------------------


def test_a_turn_with_images(broker: FakeBroker, npc: xlm.Session) -> None:
    assert npc.say("What do you see?", images=[png(), PHOTO, png()]).text == ANSWER
    request = broker.wait_for(messages.Say)
    assert [broker.images[key] for key in request.images] == [png(), PHOTO.tobytes(), png()]
    assert len(broker.images) == 2


def test_a_large_image_goes_in_chunks_and_once(broker: FakeBroker, client: xlm.Client, npc: xlm.Session) -> None:
    frame = RNG.integers(0, 256, (720, 1280, 3), dtype=np.uint8)
    assert npc.say("?", images=[frame]).text == ANSWER
    chunks = [request for request in broker.requests if isinstance(request, messages.ImageChunk)]
    assert len(chunks) == -(-frame.nbytes // IMAGE_CHUNK_BYTES)
    with client.open_session() as other:
        other.say("And you?", images=[frame]).wait(LONG)
    npc.say("Again?", images=[frame]).wait(LONG)
    assert sum(isinstance(request, messages.ImageChunk) for request in broker.requests) == len(chunks)
    assert sum(isinstance(request, messages.ImageBegin) for request in broker.requests) == 3


async def test_async_turns_take_images_too(broker: FakeBroker) -> None:
    async with xlm.aconnect(broker.endpoint, timeout=LONG) as client, client.open_session() as npc:
        assert await npc.say("What do you see?", images=[PHOTO]) == ANSWER
        assert list(broker.images.values()) == [PHOTO.tobytes()]


def test_an_image_the_broker_dropped_is_uploaded_again(broker: FakeBroker, npc: xlm.Session) -> None:
    broker.fail_next("say", "image_unknown")
    assert npc.say("?", images=[png()]).text == ANSWER
    assert sum(isinstance(request, messages.ImageBegin) for request in broker.requests) == 2
    broker.forget_images()
    assert npc.say("?", images=[png()]).text == ANSWER


@pytest.mark.parametrize("kind", ["image_begin", "image_chunk", "image_end", "say"])
@pytest.mark.parametrize("wrong", ["vision_unavailable", "image_store_full", "image_hash_mismatch"])
def test_a_refusal_fails_the_answer_and_not_the_session(
    broker: FakeBroker, npc: xlm.Session, kind: str, wrong: str
) -> None:
    broker.fail_next(kind, wrong)
    with pytest.raises(ImageError) as caught:
        _ = npc.say("?", images=[png()]).text
    assert caught.value.code == wrong
    assert npc.say("And now?", images=[png()]).text == ANSWER


def test_a_broker_from_before_images_says_so(broker: FakeBroker, npc: xlm.Session) -> None:
    broker.fail_next("image_begin", "unknown_type")
    with pytest.raises(ImageError) as caught:
        _ = npc.say("?", images=[png()]).text
    assert caught.value.code == "vision_unavailable"


def test_a_broker_that_dies_in_an_upload(broker: FakeBroker, client: xlm.Client, npc: xlm.Session) -> None:
    broker.freeze()
    reply = npc.say("?", images=[png()])
    broker.kill()
    with pytest.raises(XlmError) as caught:
        reply.wait(LONG)
    assert caught.value.code == "broker_gone"
    broker.freeze(False)
    broker.restart()
    client.wait_connected(LONG)
    assert npc.say("?", images=[png()]).text == ANSWER


def test_every_image_code_is_an_image_error() -> None:
    codes = [name for name in CODES if name.startswith("image_")] + ["too_many_images", "vision_unavailable"]
    assert len(codes) == 11
    assert all(CODES[name].error is ImageError and CODES[name].hint for name in codes)


# -- without a socket --------------------------------------------------------------------


class Uploader(Peer):
    """A peer whose answers to uploads the test gives one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.welcome()
        self.npc = self.open()

    def ask(self, *data: bytes, npc: Conversation | None = None) -> Stream:
        pictures = [_images.picture(one) for one in data]
        say = messages.Say(session_id="s1", text="?", images=[one.key for one in pictures])
        stream = Stream(say, npc or self.npc, pictures)
        self.do(self.connection.submit(stream))
        return stream

    def take(self, kind: type[messages.Message]) -> list[messages.Message]:
        found = [message for message in self.sent if isinstance(message, kind)]
        self.sent = [message for message in self.sent if not isinstance(message, kind)]
        return found

    def one(self, kind: type[messages.Message]) -> Any:
        (message,) = self.take(kind)
        return message

    def progress(self, request: Any, *, ready: bool = False) -> None:
        self.answer(request, messages.Image(key=request.key, ready=ready))

    def refuse(self, request: Any, wrong: str) -> None:
        self.answer(request, messages.Error(code=wrong, message="no"))

    def upload(self) -> bytes:
        """The whole of the upload under way, by a good broker."""
        self.progress(self.one(messages.ImageBegin))
        data = b""
        while chunks := self.take(messages.ImageChunk):
            for chunk in chunks:
                assert isinstance(chunk, messages.ImageChunk)
                assert chunk.offset == len(data)
                data += chunk.data
                self.progress(chunk)
        self.progress(self.one(messages.ImageEnd), ready=True)
        return data


def test_never_more_chunks_under_way_than_the_window() -> None:
    peer = Uploader()
    peer.ask(bytes(10 * IMAGE_CHUNK_BYTES + 5))
    peer.progress(peer.one(messages.ImageBegin))
    under_way = peer.take(messages.ImageChunk)
    assert len(under_way) == IMAGE_WINDOW
    for left in range(11, 0, -1):
        peer.progress(under_way.pop(0))
        under_way += peer.take(messages.ImageChunk)
        assert len(under_way) == min(IMAGE_WINDOW, left - 1)
    assert not peer.take(messages.Say)
    peer.progress(peer.one(messages.ImageEnd), ready=True)
    assert peer.one(messages.Say).images


def test_images_of_two_answers_one_after_the_other_and_each_once() -> None:
    peer = Uploader()
    other = peer.open("s2")
    peer.ask(b"one", b"two")
    peer.ask(b"two", b"three", npc=other)
    assert peer.upload() == b"one"
    assert not peer.take(messages.Say)
    assert peer.upload() == b"two"
    assert len(peer.take(messages.Say)) == 1
    assert peer.upload() == b"three"
    assert len(peer.take(messages.Say)) == 1


def test_a_cancelled_answer_uploads_no_further() -> None:
    peer = Uploader()
    stream = peer.ask(bytes(9 * IMAGE_CHUNK_BYTES))
    peer.progress(peer.one(messages.ImageBegin))
    chunks = peer.take(messages.ImageChunk)
    peer.do(peer.connection.cancel(stream))
    assert (stream.done, stream.finish_reason, stream.pictures) == (True, "cancelled", ())
    for chunk in chunks:
        peer.progress(chunk)
    assert not peer.take(messages.ImageChunk)
    peer.ask(b"next")
    assert peer.upload() == b"next"
    assert peer.one(messages.Say)


def test_a_second_answer_during_an_upload_is_busy_unless_the_first_was_left() -> None:
    peer = Uploader()
    first = peer.ask(b"one")
    assert error_of(peer.ask(b"two")).code == "session_busy"
    peer.do(peer.connection.cancel(first))
    peer.take(messages.ImageBegin)
    peer.ask(b"two")
    assert peer.upload() == b"two"


def test_an_upload_dropped_for_room_is_tried_again_a_few_times() -> None:
    peer = Uploader()
    stream = peer.ask(b"one")
    for attempt in range(ATTEMPTS):
        assert not stream.done, attempt
        peer.progress(peer.one(messages.ImageBegin))
        chunk = peer.one(messages.ImageChunk)
        end = peer.one(messages.ImageEnd)
        peer.refuse(chunk, "image_unknown")
        peer.refuse(end, "image_unknown")  # of an attempt that was given up: no second one
    assert error_of(stream).code == "image_unknown"
    assert not peer.take(messages.ImageBegin)


def test_a_refused_say_uploads_again_once() -> None:
    peer = Uploader()
    stream = peer.ask(b"one")
    peer.upload()
    peer.refuse(peer.one(messages.Say), "image_unknown")
    peer.upload()
    peer.refuse(peer.one(messages.Say), "image_unknown")
    assert error_of(stream).code == "image_unknown"


def test_a_lost_connection_ends_uploads_and_the_next_begins_anew() -> None:
    peer = Uploader()
    stream = peer.ask(b"one")
    peer.progress(peer.one(messages.ImageBegin))
    peer.drop()
    assert error_of(stream).code == "broker_gone"
    peer.welcome()
    peer.answer(peer.last(messages.OpenSession), messages.Session(session_id="s1", resumed=True))
    peer.ask(b"one")
    assert peer.upload() == b"one"


def test_an_answer_of_another_type_fails_the_upload() -> None:
    peer = Uploader()
    stream = peer.ask(b"one")
    peer.answer(peer.one(messages.ImageBegin), messages.Ok())
    assert error_of(stream).code == "bad_request"


def test_a_thousand_images_one_after_the_other_leave_nothing_behind() -> None:
    peer = Uploader()
    for number in range(1000):
        stream = peer.ask(number.to_bytes(2, "little"))
        peer.upload()
        peer.answer(peer.one(messages.Say), messages.Done(finish_reason="stop"))
        assert stream.done
    assert not peer.connection._pending
    assert not peer.connection._uploads._queue


def test_a_picture_is_compared_by_identity() -> None:
    """Uploads are sets of keys; two pictures of one key may be different objects."""
    one, two = _images.picture(b"x"), _images.picture(b"x")
    assert isinstance(one, Picture)
    assert one != two
    assert one.key == two.key
