"""Images through a real engine process over the link: pulled, encoded, replayed by another engine after a kill."""

from __future__ import annotations

import hashlib

import pytest

from tests.integration.engine.harness import Answer, EngineProcess, engine_process, next_context
from tests.support.stock_vlm import marker, stock_vlm
from tests.support.vlm import Files, frame, write_vlm
from xlm.protocol import link
from xlm_engine.vision.image import Image

SIM = link.DeviceConfig(kind="sim", sim=link.SimConfig(vram_bytes=256 << 20))
SYSTEM, TEXT = "You are a test.", "What do you see?"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return write_vlm(tmp_path_factory.mktemp("vlm"), "qwen25vl")


class Uploads:
    """The broker's store of images, for one engine."""

    def __init__(self, *sizes: tuple[int, int]) -> None:
        self.images = {self._key(frame(*size)): (size, frame(*size)) for size in sizes}
        self.keys = list(self.images)

    @staticmethod
    def _key(pixels: bytes) -> str:
        return hashlib.sha256(pixels).hexdigest()

    def serve(self, engine: EngineProcess, message: link.FromEngine) -> None:
        if not isinstance(message, link.WantImage):
            return
        (width, height), pixels = self.images[message.key]
        part = link.ImagePart(
            key=message.key,
            total_bytes=len(pixels),
            encoding="rgb8",
            width=width,
            height=height,
            stride=3 * width,
            offset=message.offset,
            data=pixels[message.offset : message.offset + message.max_bytes],
        )
        engine.send(part)

    def result(self, engine: EngineProcess, gen_id: int) -> Answer:
        answer = engine.answers[gen_id]
        while answer.finished is None and answer.failed is None:
            self.serve(engine, engine.receive())
        return answer


def start(engine: EngineProcess, files: Files, budget_bytes: int = 8 << 20) -> link.Loaded:
    return engine.load(files.model, SIM, budget_bytes=budget_bytes, mmproj=str(files.mmproj), n_ctx=4096, n_ubatch=64)


def expected(files: Files, uploads: Uploads) -> list[int]:
    prompt = (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
        f"{marker() * len(uploads.keys)}{TEXT}<|im_end|>\n<|im_start|>assistant\n"
    )
    images = [Image.from_rgb8(pixels, *size) for size, pixels in uploads.images.values()]
    with stock_vlm(files, n_ctx=4096, n_ubatch=64, n_threads=1) as stock:
        return stock.greedy(prompt, images, 24)


def test_a_turn_with_images_and_one_after_it(files: Files) -> None:
    uploads = Uploads((854, 480), (320, 240))
    with engine_process() as engine:
        loaded = start(engine, files)
        assert loaded.model.projector is not None
        assert loaded.model.projector.kind == "qwen2.5vl_merger"
        assert len({sub.model_id for sub in loaded.model.sublayers}) == 1  # the planner's are the language model's
        first = uploads.result(engine, engine.generate(TEXT, system=SYSTEM, images=uploads.keys))
        assert first.token_ids == expected(files, uploads)
        assert first.done.context_images == uploads.keys
        context = next_context(b"", first.done)
        again = engine.generate("And now?", context=context, context_images=uploads.keys)
        later = uploads.result(engine, again)
        assert later.done.usage.cached_tokens > 100
        assert later.done.context_images == uploads.keys


def test_another_engine_takes_over_after_a_kill_in_mid_encode(files: Files) -> None:
    uploads = Uploads((1920, 1080))
    with engine_process() as engine:
        start(engine, files)
        engine.generate(TEXT, system=SYSTEM, images=uploads.keys)
        while not isinstance(message := engine.receive(), link.Stats) or not message.detail.get("n_vision_graphs"):
            uploads.serve(engine, message)
        engine.process.kill()
        engine.process.wait()
    with engine_process() as other:
        start(other, files)
        replayed = uploads.result(other, other.generate(TEXT, system=SYSTEM, images=uploads.keys))
    assert replayed.token_ids == expected(files, uploads)


def test_a_cancelled_turn_with_an_image_leaves_the_engine_well(files: Files) -> None:
    uploads = Uploads((2560, 1440), (320, 240))
    with engine_process() as engine:
        start(engine, files)
        gen_id = engine.generate(TEXT, system=SYSTEM, images=uploads.keys[:1], max_tokens=4000)
        while engine.answers[gen_id].finished is None:
            message = engine.receive()
            uploads.serve(engine, message)
            if isinstance(message, link.Stats) and message.detail.get("n_vision_graphs"):
                engine.send(link.CancelGeneration(gen_id=gen_id))
        assert engine.answers[gen_id].done.finish_reason == "cancelled"
        well = uploads.result(engine, engine.generate(TEXT, system=SYSTEM, images=uploads.keys[1:]))
        assert well.token_ids


def test_an_image_for_a_model_without_projector_is_one_error(files: Files) -> None:
    uploads = Uploads((64, 64))
    with engine_process() as engine:
        engine.load(files.model)
        answer = uploads.result(engine, engine.generate(TEXT, images=uploads.keys))
        assert answer.failed is not None
        assert answer.failed.code == "vision_unavailable"
        assert engine.say("Still there?").token_ids
