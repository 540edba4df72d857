"""Images through the engine's own parts on the virtual GPU, against bare llama.cpp and libmtmd on the CPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest

from tests.integration.engine.vision_rig import Rig, rig
from tests.support.stock_vlm import StockVlm, marker, stock_vlm
from tests.support.vlm import Files, frame, write_vlm
from xlm.protocol import link
from xlm_engine import shapes
from xlm_engine.vision.image import Image
from xlm_engine.vision.mtmd import Projector
from xlm_engine.vision.scaled import Scaled
from xlm_engine.vision.tower import Seen, VisionTower
from xlm_native import Sim

FAMILIES = ("qwen25vl", "gemma3")
RESOLUTIONS = ((854, 480), (1280, 720), (1920, 1080), (2560, 1440))
SYSTEM = "You are a test."
MIB = 1 << 20


def picture(width: int, height: int, seed: int = 0) -> Image:
    return Image.from_rgb8(frame(width, height, seed), width, height)


def prompt(text: str, n_images: int) -> str:
    """SmolLM2's chat format, with the images where the engine puts them."""
    images = marker() * n_images
    return (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{images}{text}<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.fixture(scope="module", params=FAMILIES)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Files:
    return write_vlm(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def stock(files: Files) -> Iterator[StockVlm]:
    with stock_vlm(files, n_ctx=4096, n_ubatch=64, n_threads=1) as made:
        yield made


@pytest.fixture(scope="module")
def engine(files: Files) -> Iterator[Rig]:
    with rig(files) as made:
        yield made


@pytest.fixture
def clean(engine: Rig) -> Rig:
    """No conversation, no image, no device memory from the tests before."""
    assert engine.runtime.vision is not None
    engine.runtime.vision._seen.clear()
    for session in list(engine.contexts):
        engine.batcher.drop_session(session)
    engine.contexts.clear()
    engine.messages.clear()
    engine.set_budget(0)
    engine.device.reset_stats()
    return engine


def encode(engine: Rig, image: Image) -> Seen:
    vision = engine.runtime.vision
    assert vision is not None
    vision._seen.clear()
    seen = vision.see(image.key, image)
    while vision.encode_one([seen], 1):
        pass
    return seen


def same(seen: Seen, expected: list[np.ndarray]) -> bool:
    return len(seen.embeddings) == len(expected) and all(
        mine is not None and np.array_equal(mine, theirs)
        for mine, theirs in zip(seen.embeddings, expected, strict=True)
    )


# -- same result


@pytest.mark.parametrize("size", RESOLUTIONS[:2])
def test_embeddings_are_those_of_stock_under_every_budget(clean: Rig, stock: StockVlm, size: tuple[int, int]) -> None:
    image = picture(*size)
    expected = stock.embeddings(image)
    for budget in (0, 1 * MIB, 3 * MIB, 8 * MIB, 64 * MIB):
        clean.set_budget(budget)
        assert same(encode(clean, image), expected), f"budget {budget}"
        memory = clean.device.memory()
        assert memory.used_bytes <= budget
        assert memory.over_budget_events == 0
    assert clean.device.stats()["n_vision_graphs"] >= 5


@pytest.mark.parametrize("size", RESOLUTIONS[2:])
def test_large_images_too(clean: Rig, stock: StockVlm, size: tuple[int, int]) -> None:
    image = picture(*size)
    clean.set_budget(16 * MIB)
    assert same(encode(clean, image), stock.embeddings(image))
    assert clean.device.stats()["n_segments_device"] > 0


@pytest.mark.parametrize("budget", [0, 3 * MIB, 64 * MIB])
def test_the_answer_is_that_of_stock(clean: Rig, stock: StockVlm, budget: int) -> None:
    images = [picture(854, 480), picture(640, 480, 3)]
    clean.set_budget(budget)
    said = clean.say("What do you see?", images, system=SYSTEM)
    assert said == stock.greedy(prompt("What do you see?", 2), images, 12)


def test_budget_changes_in_mid_encode_change_nothing(clean: Rig, stock: StockVlm) -> None:
    image = picture(1280, 720)
    expected = stock.embeddings(image)
    clean.set_budget(64 * MIB)
    stop = threading.Event()
    seen_budgets: list[bool] = []

    def game() -> None:
        budgets = [0, 64 * MIB, 2 * MIB, 9 * MIB, 64 * MIB, 500_000]
        while not stop.is_set():
            budget = budgets[len(seen_budgets) % len(budgets)]
            release = clean.device.set_budget(budget, 10**11)  # no pause: an encoding goes on all the same
            seen_budgets.append(release.completed and release.used_bytes <= budget)

    thread = threading.Thread(target=game)
    thread.start()
    try:
        results = [same(encode(clean, image), expected) for _ in range(6)]
    finally:
        stop.set()
        thread.join()
    assert all(results)
    assert seen_budgets
    assert all(seen_budgets)
    assert clean.device.memory().over_budget_events == 0


# -- conversations


def test_identical_images_of_a_conversation_are_encoded_once(clean: Rig) -> None:
    vision = clean.runtime.vision
    assert vision is not None
    before = vision.n_encoded
    image = picture(640, 480, 7)
    clean.set_budget(64 * MIB)
    clean.say("Look.", [image, image])
    clean.say("And again?", [image])
    assert vision.n_encoded == before + 1


def test_a_conversation_goes_on_like_one_that_is_replayed(clean: Rig, files: Files) -> None:
    """The KV cache is reused across an image, and gives what computing everything again gives."""
    images = [picture(854, 480), picture(640, 480, 3)]
    clean.set_budget(64 * MIB)
    clean.say("What do you see?", [images[0]])
    context, keys = clean.contexts["npc"]
    clean.contexts["other"] = (context, keys)
    follow_up = clean.say("And this?", [images[1]])
    cached = max(m.usage.cached_tokens for m in clean.messages if isinstance(m, link.Finished))
    assert cached > 16  # the whole first turn
    clean.batcher.drop_session("npc")
    assert clean.runtime.vision is not None
    assert clean.say("And this?", [images[1]], session="other") == follow_up


def test_replayed_tokens_behind_an_image_are_taken_over(clean: Rig) -> None:
    """An engine that takes over in mid-answer gets the images again and goes on as the first would have."""
    image = picture(640, 480, 9)
    clean.set_budget(8 * MIB)
    whole = clean.say("What is it?", [image])
    assert clean.runtime.vision is not None
    clean.runtime.vision._seen.clear()  # a new engine knows no image
    gen_id = clean.start("What is it?", [image], session="again", replay=whole[:5])
    clean.finish(gen_id)
    assert whole[:5] + clean.tokens(gen_id) == whole


def test_too_many_images_for_the_context_are_one_error(clean: Rig) -> None:
    image = picture(1920, 1080)
    assert clean.runtime.vision is not None
    count = clean.runtime.config.n_ctx // clean.runtime.vision.n_tokens(image) + 1
    gen_id = clean.start("Look.", [image] * count)
    failed = [m for m in clean.messages if isinstance(m, link.GenerationFailed) and m.gen_id == gen_id]
    assert [m.code for m in failed] == ["context_overflow"]
    assert not clean.batcher.has_work
    assert clean.say("Still there?", [])


def test_a_shift_lets_old_images_go(clean: Rig, files: Files) -> None:
    image = picture(1280, 720)
    assert clean.runtime.vision is not None
    turns = clean.runtime.config.n_ctx // clean.runtime.vision.n_tokens(image) + 2
    if turns > 20:
        turns = 3  # a model of few image tokens: nothing to shift
    for index in range(turns):
        clean.say(f"Turn {index}.", [picture(1280, 720, index)], overflow="shift", max_tokens=2)
    context, keys = clean.contexts["npc"]
    assert len(context) // 4 <= clean.runtime.config.n_ctx
    assert len(keys) == len(set(keys))
    assert keys[-1] == picture(1280, 720, turns - 1).key


# -- ends


def test_cancelling_in_mid_encode_ends_the_turn_and_keeps_the_engine(
    clean: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = picture(2560, 1440)
    clean.set_budget(64 * MIB)
    gen_id = clean.start("Look.", [image])
    vision = clean.runtime.vision
    assert vision is not None
    encodes, interrupted, encode_chunk = threading.Event(), threading.Event(), Projector.encode

    def told(self: Projector, chunk: Any, n_tokens: int) -> np.ndarray:
        encodes.set()
        return encode_chunk(self, chunk, n_tokens)

    monkeypatch.setattr(Projector, "encode", told)

    def cancel_once_it_encodes() -> None:
        encodes.wait()
        while not interrupted.is_set():
            clean.batcher.interrupt(gen_id)
            if vision._aborted:
                interrupted.set()

    thread = threading.Thread(target=cancel_once_it_encodes)
    thread.start()
    while clean.batcher.has_work and not interrupted.is_set():  # text before the image comes first
        clean.batcher.step()
    interrupted.set()
    thread.join()
    clean.batcher.cancel(gen_id)
    assert clean.finish(gen_id).finish_reason == "cancelled"
    assert vision._aborted
    assert clean.say("Still there?", [picture(320, 240)])


def test_a_device_lost_in_mid_encode_costs_time_only(clean: Rig, stock: StockVlm) -> None:
    image = picture(1280, 720)
    clean.set_budget(64 * MIB)
    encode(clean, picture(320, 240))
    Sim().lose_device(3)
    try:
        assert same(encode(clean, image), stock.embeddings(image))
        assert clean.device.stats()["device_lost"] == 1
        assert clean.device.memory().used_bytes == 0
    finally:
        Sim().restore_device()
        clean.batcher.recover()
    assert clean.device.stats()["device_lost"] == 0


# -- side by side


@pytest.fixture
def scaling(clean: Rig, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Images are scaled once this is set."""
    go_on, chunks = threading.Event(), Projector.chunks
    assert clean.runtime.vision is not None
    clean.runtime.vision.end_phase()

    def waiting(self: Projector, image: Image, *at_work: Callable[[], None]) -> AbstractContextManager[list[Any]]:
        assert not image.rgb8 or go_on.wait(30), "everybody waits for the image"
        return chunks(self, image, *at_work)

    monkeypatch.setattr(Projector, "chunks", waiting)
    return go_on


def test_text_before_an_image_is_computed_while_it_is_scaled(
    clean: Rig, stock: StockVlm, scaling: threading.Event
) -> None:
    image = picture(320, 240)
    gen_id = clean.start("Look.", [image], system=SYSTEM)
    clean.batcher.step()
    sequence = next(iter(clean.batcher._active.values())).sequence
    assert sequence is not None
    assert sequence.tokens
    scaling.set()
    clean.finish(gen_id)
    assert clean.tokens(gen_id) == stock.greedy(prompt("Look.", 1), [image], 12)


def test_others_speak_while_an_image_is_scaled(clean: Rig, scaling: threading.Event) -> None:
    looks, speaks = clean.start("Look.", [picture(320, 240)], "a"), clean.start("Hello.", [], "b")
    while not any(isinstance(m, link.Finished) for m in clean.messages):
        clean.batcher.step()
    assert clean.tokens(speaks)
    assert not clean.tokens(looks)
    scaling.set()
    assert clean.finish(looks).text == clean.finish(clean.start("Look.", [picture(320, 240)], "c")).text


def test_a_turn_cancelled_while_its_image_is_scaled_lets_it_go(clean: Rig, scaling: threading.Event) -> None:
    gen_id = clean.start("Look.", [picture(320, 240)])
    clean.batcher.step()
    clean.batcher.cancel(gen_id)
    assert clean.finish(gen_id).finish_reason == "cancelled"
    assert clean.runtime.vision is not None
    assert clean.runtime.vision._scaled.image is None
    scaling.set()
    assert clean.say("Look.", [picture(320, 240)])


def test_an_image_is_computed_where_the_device_was_lost_before(
    clean: Rig, stock: StockVlm, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean.set_budget(64 * MIB)
    encode(clean, picture(320, 240))
    assert clean.runtime.vision is not None
    clean.runtime.vision.end_phase()
    monkeypatch.setattr(Scaled, "done", lambda *_: False)  # scaling takes as long as anything else
    Sim().lose_device(1)
    try:
        image = picture(320, 240, 1)
        assert clean.say("Look.", [image], system=SYSTEM) == stock.greedy(prompt("Look.", 1), [image], 12)
        assert clean.device.stats()["device_lost"] == 1
    finally:
        Sim().restore_device()
        clean.batcher.recover()


def test_a_turn_that_is_cancelled_while_everybody_waits_for_its_image_is_not_encoded(
    clean: Rig, scaling: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring_in, encoded = VisionTower._bring_in, []

    def interrupted(self: VisionTower, seen: Seen) -> None:
        clean.batcher.interrupt(gen_id)
        scaling.set()
        bring_in(self, seen)

    monkeypatch.setattr(VisionTower, "_bring_in", interrupted)
    monkeypatch.setattr(Projector, "encode", lambda *_: encoded.append(1))
    gen_id = clean.start("Look.", [picture(320, 240)])
    while not scaling.is_set():
        clean.batcher.step()
    clean.batcher.cancel(gen_id)
    assert clean.finish(gen_id).finish_reason == "cancelled"
    assert not encoded


def test_the_tower_comes_in_while_the_next_image_is_scaled(
    clean: Rig, stock: StockVlm, scaling: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean.set_budget(64 * MIB)
    bring_in, encode_chunk = VisionTower._bring_in, Projector.encode
    uploaded: list[int] = []

    def brought(self: VisionTower, seen: Seen) -> None:
        bring_in(self, seen)
        scaling.set()

    def counted(self: Projector, chunk: Any, n_tokens: int) -> np.ndarray:
        before = clean.device.stats()["bytes_resident_uploaded"]
        found = encode_chunk(self, chunk, n_tokens)
        uploaded.append(clean.device.stats()["bytes_resident_uploaded"] - before)
        return found

    monkeypatch.setattr(VisionTower, "_bring_in", brought)
    monkeypatch.setattr(Projector, "encode", counted)
    for seed in (0, 1):
        scaling.clear()
        image = picture(320, 240, seed)
        answer = clean.say("Look.", [image], session=str(seed), system=SYSTEM)
        assert answer == stock.greedy(prompt("Look.", 1), [image], 12)
    assert uploaded[0] > 0
    assert set(uploaded[len(uploaded) // 2 :]) == {0}


def test_the_language_model_begins_to_come_back_with_the_end_of_the_phase(clean: Rig) -> None:
    clean.set_budget(64 * MIB)
    clean.say("Words.", [], session="words")
    clean.device.trim()
    encode(clean, picture(320, 240))
    assert clean.runtime.vision is not None
    clean.runtime.vision.end_phase()
    resident = sum(sub.device_bytes for sub in clean.runtime.language_sublayers() if sub.kind != "lookup")
    assert clean.device.memory().resident_bytes == resident
    uploaded = clean.device.stats()["bytes_resident_uploaded"]
    clean.set_budget(0)  # while they may be on their way
    assert clean.device.memory().used_bytes == 0
    assert uploaded > 0


def sent_up(engine: Rig) -> tuple[int, int]:
    """Bytes since the trace was read last: what went up, and what of it belongs to copies that are whole."""
    sent = sum(event.bytes for event in engine.device.read_trace(1 << 12) if event.kind == "upload")
    whole = engine.device.stats()["bytes_resident_uploaded"]
    engine.device.reset_stats()
    return sent, whole


def test_an_output_matrix_begins_to_come_back_with_the_phase_and_nothing_of_it_goes_up_twice(
    clean: Rig, stock: StockVlm
) -> None:
    clean.set_budget(64 * MIB)
    clean.say("Words.", [], session="words")
    clean.device.trim()
    image = picture(320, 240)
    encode(clean, image)
    assert clean.runtime.vision is not None
    clean.device.trace(1 << 12)
    clean.device.reset_stats()
    clean.runtime.vision.end_phase()
    sent, whole = sent_up(clean)
    clean.batcher.budget_changed()
    while not clean.batcher.settle(1 << 40):
        pass
    rest, rest_whole = sent_up(clean)
    clean.device.trace(0)
    padding = sent + rest - whole - rest_whole  # of the small tensors' copy
    output = sum(sub.device_bytes for sub in clean.runtime.language_sublayers() if sub.kind == "output")
    assert 0 <= padding < 1 << 16
    assert padding < sent - whole <= padding + output
    assert clean.say("Look.", [image], system=SYSTEM) == stock.greedy(prompt("Look.", 1), [image], 12)


def test_the_step_of_image_tokens_follows_the_encoding_at_once(clean: Rig, scaling: threading.Event) -> None:
    gen_id = clean.start("Look.", [picture(320, 240)], system=SYSTEM)
    clean.batcher.step()  # the text before it
    sequence = next(iter(clean.batcher._active.values())).sequence
    assert sequence is not None
    scaling.set()
    clean.batcher.step()
    assert any(map(shapes.is_image, sequence.tokens))
    clean.finish(gen_id)


# -- memory


def test_the_peak_is_the_larger_of_vision_and_language(clean: Rig) -> None:
    budget = 64 * MIB
    image = picture(1280, 720)
    clean.set_budget(budget)
    while clean.batcher.settle(1 << 40):
        pass
    clean.say("Warm up.", [], session="words")
    language = peak_of(clean, lambda: clean.say("Only words.", [], session="words"))
    encode_alone = alone(clean, image)
    clean.set_budget(budget)
    clean.say("Words first.", [], session="both")
    both = peak_of(clean, lambda: clean.say("Look.", [image], session="both"))
    assert both <= 1.05 * max(language, encode_alone)
    assert both <= budget


def peak_of(engine: Rig, work: object) -> int:
    engine.device.reset_stats()
    assert callable(work)
    work()
    return engine.device.memory().peak_used_bytes


def alone(engine: Rig, image: Image) -> int:
    """What the tower takes with nothing else on the device."""
    engine.device.trim()
    peak = peak_of(engine, lambda: encode(engine, image))
    assert engine.runtime.vision is not None
    engine.runtime.vision.end_phase()
    return peak


def test_after_the_last_image_the_device_is_the_language_models_again(clean: Rig) -> None:
    clean.set_budget(64 * MIB)
    clean.say("Look.", [picture(1280, 720)])
    while clean.batcher.settle(1 << 40):
        pass
    subs = clean.runtime.language_sublayers()
    resident = sum(sub.device_bytes for sub in subs if sub.kind != "lookup")
    memory = clean.device.memory()
    assert memory.resident_bytes == resident
    clean.device.trim()
    assert clean.device.memory().used_bytes == 0


def test_fifty_images_leave_nothing_behind(clean: Rig) -> None:
    clean.set_budget(8 * MIB)
    peaks, after = [], []
    for index in range(50):
        peaks.append(peak_of(clean, lambda seed=index: encode(clean, picture(320, 240, seed))))
        assert clean.runtime.vision is not None
        clean.runtime.vision.end_phase()
        after.append(clean.device.memory().device_used_bytes)
    assert len(set(peaks[1:])) == 1
    assert set(after[1:]) == {after[1]}
