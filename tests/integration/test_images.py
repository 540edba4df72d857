"""Images from a game to a model that sees, through a real broker and engine: seen, once, after a kill, refused."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as pil

import xlm
from tests.support.running_broker import RunningBroker, running_broker, wait_until
from tests.support.vlm import Files, frame, write_vlm
from xlm_native.game import Game, ImageBytes, Kind

WIDTH, HEIGHT = 448, 336
LONG_S = 600.0  # only bounds a failure
TEXT = "What do you see?"
GREEDY: dict[str, Any] = {"max_tokens": 12, "temperature": 0.0}


def pixels(seed: int = 0) -> Any:
    return np.frombuffer(frame(WIDTH, HEIGHT, seed), np.uint8).reshape(HEIGHT, WIDTH, 3)


def saved(image: pil.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return write_vlm(tmp_path_factory.mktemp("vlm"), "qwen25vl")


@pytest.fixture(scope="module")
def eyes(files: Files) -> Iterator[RunningBroker]:
    with running_broker(model=str(files.model), mmproj=str(files.mmproj), ctx=512, budget="64MiB") as broker:
        yield broker


@pytest.fixture
def client(eyes: RunningBroker) -> Iterator[xlm.Client]:
    with xlm.connect(eyes.endpoint, timeout=LONG_S) as client:
        yield client


def asked(client: xlm.Client, *images: Any, text: str = TEXT) -> list[int]:
    with client.open_session() as npc:
        return npc.say(text, images=list(images), **GREEDY).token_ids


def code(client: xlm.Client, *images: Any) -> str:
    with pytest.raises(xlm.XlmError) as caught:
        asked(client, *images)
    return caught.value.code


def test_every_way_to_give_an_image_is_the_same_image(eyes: RunningBroker, client: xlm.Client, tmp_path: Path) -> None:
    array = pixels()
    file = tmp_path / "frame.png"
    pil.fromarray(array).save(file)
    expected = asked(client, array)
    assert len(expected) > 0
    rgba = np.dstack([array, np.full(array.shape[:2], 255, np.uint8)])
    for same in (file, file.read_bytes(), pil.fromarray(array), rgba, array[::-1][::-1]):
        assert asked(client, same) == expected
    assert asked(client, pixels(seed=1)) != expected, "the model does not see"
    with Game("test", eyes.endpoint) as game:
        game.wait_ready(LONG_S)
        flipped = np.ascontiguousarray(np.dstack([array[::-1, :, ::-1], rgba[::-1, :, 3]]))
        shown = [ImageBytes(flipped.tobytes(), "bgrx8", WIDTH, HEIGHT, bottom_up=True)]
        game.open_session().say(TEXT, images=shown, max_tokens=12, temperature=0.0)
        tokens: list[int] = []
        while True:
            assert game.wait_event(LONG_S)
            for event in game.events():
                assert event.error is None, event
                tokens += event.token_ids
                if event.kind == Kind.DONE:
                    assert tokens == expected
                    return


def test_later_turns_know_what_was_shown(client: xlm.Client) -> None:
    with client.open_session() as npc:
        npc.say(TEXT, images=[pixels()], **GREEDY).wait(LONG_S)
        second = npc.say("And now?", images=[pixels(seed=1), pixels()], **GREEDY)
        assert second.wait(LONG_S)
        assert second.usage.cached_tokens > 0
        with client.open_session() as other:
            other.say(TEXT, images=[pixels(seed=1)], **GREEDY).wait(LONG_S)
            third = other.say("And now?", images=[pixels(seed=1), pixels()], **GREEDY)
            assert third.token_ids != second.token_ids
    assert client.status().vision["images"] == 2


def test_the_engine_is_killed_while_it_answers_about_an_image(eyes: RunningBroker, client: xlm.Client) -> None:
    def talk(kill: bool) -> list[list[int]]:
        with client.open_session() as npc:
            first = npc.say(TEXT, images=[pixels(seed=2)], **GREEDY)
            if kill:  # while the image is fetched or encoded: no token has come yet
                os.kill(eyes.engine_pid(), signal.SIGKILL)
            told = [first.token_ids]
            second = npc.say("And this?", images=[pixels(seed=3)], max_tokens=12, temperature=0.0)
            if kill:
                next(iter(pieces := iter(second)))
                os.kill(eyes.engine_pid(), signal.SIGKILL)
                list(pieces)
            return [*told, second.token_ids]

    assert talk(kill=True) == talk(kill=False)


def test_each_bad_image_is_a_typed_error_and_the_broker_stays_up(client: xlm.Client) -> None:
    small = pil.fromarray(pixels()).resize((64, 64))
    frames = [small, small.rotate(90)]
    assert code(client, saved(small, "PNG")[:500]) == "image_corrupt"
    assert code(client, b"no image at all") == "image_corrupt"
    assert code(client, saved(frames[0], "GIF", save_all=True, append_images=frames[1:])) == "image_animated"
    assert code(client, saved(small.convert("CMYK"), "JPEG")) == "image_unsupported"
    assert code(client, saved(small, "TIFF")) == "image_unsupported"
    wide = saved(pil.new("L", (60_000, 1)), "PNG")
    assert code(client, wide) == "image_too_large"
    empty = bytearray(saved(small, "GIF"))
    empty[6:10] = bytes(4)
    assert code(client, bytes(empty)) == "image_empty"
    assert code(client, *[small] * 9) == "too_many_images"
    big = [pixels(seed=n).repeat(3, 0).repeat(3, 1) for n in range(2)]
    assert code(client, *big) == "context_overflow"
    assert len(asked(client, small)) > 0
    assert client.status().engine["restarts"] <= 2, "an image brought the engine down"


@pytest.mark.parametrize("what", ["missing", "corrupt", "other"])
def test_a_projector_that_is_none(files: Files, tmp_path: Path, what: str) -> None:
    projector = tmp_path / "mmproj.gguf"
    if what == "corrupt":
        projector.write_bytes(files.mmproj.read_bytes()[:5000])
    elif what == "other":
        other = write_vlm(tmp_path / "other", "qwen25vl", text_embd=128)
        projector = other.mmproj
    expected = {"missing": "projector_not_found", "corrupt": "projector_invalid", "other": "projector_mismatch"}[what]
    with (
        running_broker(wait=False, model=str(files.model), mmproj=str(projector)) as broker,
        xlm.connect(broker.endpoint, timeout=LONG_S) as client,
    ):
        error = wait_until(lambda: client.status().engine["error"], "the engine fails", LONG_S)
        assert error["code"] == expected
        assert client.status().engine["state"] == "failed"
        if what == "missing":  # it appears: the broker tries again
            projector.write_bytes(files.mmproj.read_bytes())
            wait_until(lambda: client.status().engine["state"] == "ready", "the engine is ready", LONG_S)
            assert len(asked(client, pixels())) > 0
