"""Images through a broker process to its engine (a fake one): whole, once, bounded, and again after a kill."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broker_rig import DEADLINE_S, Broker, RawClient, connected, eventually, running
from fake_engine import answer_token

import xlm
from xlm.protocol import messages
from xlm.protocol.images import upload_key

MIB = 1 << 20
CHUNK = messages.IMAGE_CHUNK_BYTES
SIGKILL = getattr(signal, "SIGKILL", signal.SIGTERM)


def some_bytes(seed: int, count: int) -> bytes:
    return random.Random(seed).randbytes(count)


def begin(data: bytes) -> messages.ImageBegin:
    made = messages.ImageBegin(key="0" * 64, total_bytes=len(data))
    made.key = upload_key(made, data)
    return made


def upload(client: RawClient, data: bytes) -> str:
    layout = begin(data)
    if client.ask(layout, messages.Image).ready:
        return layout.key
    for offset in range(0, len(data), CHUNK):
        chunk = messages.ImageChunk(key=layout.key, offset=offset, data=data[offset : offset + CHUNK])
        client.ask(chunk, messages.Image)
    assert client.ask(messages.ImageEnd(key=layout.key), messages.Image).ready
    return layout.key


def refusal(client: RawClient, message: messages.Message) -> str:
    return client.ask(message, messages.Error).code


@pytest.fixture
def eyes(short_path: Path) -> Iterator[Callable[..., Broker]]:
    """Starts brokers whose model has a projector."""
    brokers: list[Broker] = []

    def start(*options: str, **environment: str) -> Broker:
        (short_path / "model.gguf").write_bytes(b"GGUF")
        broker = Broker(short_path, "--mmproj", str(short_path / "eyes.gguf"), *options, **environment)
        brokers.append(broker)
        broker.ready()
        return broker

    yield start
    for broker in brokers:
        broker.stop(SIGKILL)


def test_the_engine_sees_the_bytes_and_the_history(eyes: Callable[..., Broker]) -> None:
    one, two = some_bytes(1, 3 * MIB + 7), some_bytes(2, 5)
    broker = eyes()
    with xlm.connect(broker.endpoint, timeout=DEADLINE_S) as client:
        with client.open_session() as npc:
            first = npc.say("What is this?", images=[one], max_tokens=3)
            assert first.token_ids == [answer_token(b"", "What is this?", n, one) for n in range(3)]
            second = npc.say("And this?", images=[two, one], max_tokens=1).token_ids
            status = client.status()
            assert status.vision["available"]
            assert status.vision["projector"]["name"] == "fake eyes"
            assert (status.vision["images"], status.vision["image_bytes"]) == (2, len(one) + len(two))
        with client.open_session() as other:
            assert other.say("And this?", images=[two, one], max_tokens=1).token_ids != second


def test_a_turn_is_given_again_with_its_images_when_the_engine_is_killed(eyes: Callable[..., Broker]) -> None:
    data = some_bytes(3, MIB)
    broker = eyes(FAKE_TOKEN_MS="30", FAKE_IMAGE_PIECE="4096")
    with xlm.connect(broker.endpoint, timeout=DEADLINE_S) as client, client.open_session() as npc:
        npc.say("Before.", images=[data], max_tokens=1).wait(DEADLINE_S)
        reply = npc.say("Now?", images=[data[::-1]], max_tokens=12)
        pieces = iter(reply)
        next(pieces)
        os.kill(client.status().engine["pid"], SIGKILL)
        assert client.wait_notice(DEADLINE_S) is not None
        assert len(reply.token_ids) == 12
        restarts = client.status().engine["restarts"]
        after = npc.say("After?", max_tokens=2).token_ids
    assert restarts == 1
    with xlm.connect(broker.endpoint, timeout=DEADLINE_S) as client, client.open_session() as npc:  # undisturbed
        npc.say("Before.", images=[data], max_tokens=1).wait(DEADLINE_S)
        assert npc.say("Now?", images=[data[::-1]], max_tokens=12).token_ids == reply.token_ids
        assert npc.say("After?", max_tokens=2).token_ids == after


def test_killed_in_mid_transfer(eyes: Callable[..., Broker]) -> None:
    """The engine dies as soon as it has the first piece of an image; the next one gets all of it."""
    data = some_bytes(4, 2 * MIB)
    broker = eyes(FAKE_IMAGE_PIECE="1024")  # 2,048 pieces
    with connected(broker) as client:
        session = client.open_session()
        key = upload(client, data)
        pid = client.status().engine["pid"]
        say = client.send(messages.Say(session_id=session, text="?", images=[key], max_tokens=2))
        os.kill(pid, SIGKILL)
        assert client.collect(say)[0] == [answer_token(b"", "?", n, data) for n in range(2)]


def test_images_outlive_a_lost_client_with_their_conversation(eyes: Callable[..., Broker]) -> None:
    data = some_bytes(5, 1000)
    broker = eyes()
    with connected(broker, "tavern") as client:
        session = client.open_session()
        key, loose = upload(client, data), upload(client, some_bytes(6, 1000))
        client.collect(client.send(messages.Say(session_id=session, text="?", images=[key], max_tokens=1)))
    with connected(broker, "other") as other:
        eventually(lambda: not [c for c in other.status().clients if c["name"] == "tavern"], "the lease ends")
        assert other.status().vision["images"] == 1
    with connected(broker, "tavern") as client:
        client.ask(messages.OpenSession(resume=session), messages.Session)
        assert refusal(client, messages.Say(session_id=session, text="?", images=[loose])) == "image_unknown"
        client.collect(client.send(messages.Say(session_id=session, text="!", max_tokens=1)))
        client.ask(messages.CloseSession(session_id=session), messages.Ok)
        assert client.status().vision["images"] == 0


def test_hostile_uploads_change_nothing_for_others(eyes: Callable[..., Broker]) -> None:
    broker = eyes("--image-max", "1MiB", "--image-store", "2MiB", "--image-store-all", "4MiB")
    data = some_bytes(7, 300_000)
    with connected(broker, "good") as good, connected(broker, "bad") as bad:
        session = good.open_session()
        layout = begin(data)
        bad.ask(layout, messages.Image)
        for offset, piece in ((5, b"x"), (1 << 40, b"x")):
            bad.ask(begin(data), messages.Image)
            assert (
                refusal(bad, messages.ImageChunk(key=layout.key, offset=offset, data=piece)) == "image_upload_invalid"
            )
        assert refusal(bad, messages.ImageEnd(key=layout.key)) == "image_unknown"
        bad.ask(begin(data), messages.Image)
        wrong = messages.ImageChunk(key=layout.key, offset=0, data=bytes(CHUNK))
        bad.ask(wrong, messages.Image)
        bad.ask(messages.ImageChunk(key=layout.key, offset=CHUNK, data=bytes(300_000 - CHUNK)), messages.Image)
        assert refusal(bad, messages.ImageEnd(key=layout.key)) == "image_hash_mismatch"
        huge = messages.ImageBegin(key="a" * 64, total_bytes=messages.MAX_BYTES)
        assert refusal(bad, huge) == "image_too_large"
        key = upload(good, data)
        tokens, _ = good.collect(good.send(messages.Say(session_id=session, text="?", images=[key], max_tokens=1)))
        assert tokens == [answer_token(b"", "?", 0, data)]


def test_memory_is_bounded_whatever_is_begun(eyes: Callable[..., Broker]) -> None:
    """1,000 uploads that are never ended, 1,000 images, and peers that vanish: the store stays under its limit."""
    limits = ("--image-max", "1MiB", "--image-store", "4MiB", "--image-store-all", "8MiB")
    broker = eyes(*limits, "--heartbeat-ms", "2000")
    with xlm.connect(broker.endpoint, name="watch", timeout=DEADLINE_S) as watch:
        for number in range(4):
            with connected(broker, f"begins-{number}") as client:
                for seed in range(250):
                    layout = begin(some_bytes(seed, MIB))
                    client.ask(layout, messages.Image)
                    chunk = messages.ImageChunk(key=layout.key, offset=0, data=bytes(CHUNK))
                    client.ask(chunk, messages.Image)
                assert watch.status().vision["image_bytes"] <= 8 * MIB
                client.ask(messages.Goodbye(), messages.Ok)  # else it would have to wait for the lease to end
        with connected(broker, "uploads") as client:
            for seed in range(1000):
                upload(client, some_bytes(seed, 20_000))
            assert watch.status().vision["image_bytes"] <= 8 * MIB
        eventually(lambda: watch.status().vision["image_bytes"] == 0, "all of it goes with the leases")
        assert watch.status().vision["uploads"] == 0


def test_a_budget_in_the_middle_of_an_upload(eyes: Callable[..., Broker]) -> None:
    """With a whole window of chunks under way, the budget comes next."""
    data = some_bytes(8, messages.IMAGE_WINDOW * CHUNK + 1)
    broker = eyes()
    with connected(broker) as client:
        layout = begin(data)
        client.ask(layout, messages.Image)
        for offset in range(0, messages.IMAGE_WINDOW * CHUNK, CHUNK):
            client.send(messages.ImageChunk(key=layout.key, offset=offset, data=data[offset : offset + CHUNK]))
        assert client.ask(messages.SetBudget(cap_bytes=2 * MIB), messages.Lease).granted_bytes == 2 * MIB
        client.ask(messages.ImageChunk(key=layout.key, offset=len(data) - 1, data=data[-1:]), messages.Image)
        assert client.ask(messages.ImageEnd(key=layout.key), messages.Image).ready


def test_a_model_without_projector(short_path: Path) -> None:
    with running(short_path) as broker:
        broker.ready()
        with xlm.connect(broker.endpoint, timeout=DEADLINE_S) as client, client.open_session() as npc:
            with pytest.raises(xlm.ImageError) as caught:
                npc.say("?", images=[b"x"]).wait(DEADLINE_S)
            assert caught.value.code == "vision_unavailable"
            assert "--mmproj" in caught.value.hint
            assert len(npc.say("And without?", max_tokens=2).token_ids) == 2
            assert client.status().vision["available"] is False


def test_options_that_contradict_each_other(short_path: Path) -> None:
    with running(short_path, "--image-max", "2GiB") as broker:
        assert broker.process.wait(timeout=DEADLINE_S) == 2
        assert "--image-store" in broker.log()
