"""Images in the broker's state: uploads that go wrong, who holds what, and what conversations keep."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.state.world import MS, Limits, World
from xlm.protocol import link, messages
from xlm.protocol.images import upload_key
from xlm_broker.state import events

KIB = 1 << 10
MODEL = link.ModelConfig(path="model.gguf", n_ctx=1024, mmproj="projector.gguf")
CHUNK = messages.IMAGE_CHUNK_BYTES


def world(**limits: Any) -> World:
    made = World(model=MODEL, limits=Limits(**limits)).boot()
    made.join(b"game")
    return made


def begin(data: bytes, **fields: Any) -> messages.ImageBegin:
    made = messages.ImageBegin(key="0" * 64, total_bytes=len(data), **fields)
    made.key = upload_key(made, data)
    return made


def code(answer: messages.Message) -> str:
    assert isinstance(answer, messages.Error), answer
    return answer.code


def progress(answer: messages.Message) -> tuple[int, bool]:
    assert isinstance(answer, messages.Image), answer
    return answer.received_bytes, answer.ready


def finish(made: World, say_id: int) -> None:
    gen_id = next(iter(made.engine.generating))
    for message in made.engine.finish(gen_id, "stop", b"\1\0\0\0"):
        made.engine_says(message)
    assert isinstance(made.answers(b"game", say_id)[-1], messages.Done)


# -- uploads -----------------------------------------------------------------------------


def test_an_upload_in_chunks_is_ready_after_its_end() -> None:
    made, data = world(), bytes(range(256)) * 2048 + b"end"
    image = begin(data)
    assert progress(made.image(b"game", image)) == (0, False)
    for offset in range(0, len(data), CHUNK):
        piece = data[offset : offset + CHUNK]
        answer = made.image(b"game", messages.ImageChunk(key=image.key, offset=offset, data=piece))
        assert progress(answer) == (offset + len(piece), False)
    assert progress(made.image(b"game", messages.ImageEnd(key=image.key))) == (len(data), True)
    assert progress(made.image(b"game", begin(data))) == (len(data), True)  # known: nothing to send
    assert made.images.held_bytes == len(data)


def test_a_wrong_hash_ends_the_upload_and_keeps_nothing() -> None:
    made = world()
    image = begin(b"abc")
    made.image(b"game", image)
    made.image(b"game", messages.ImageChunk(key=image.key, offset=0, data=b"abd"))
    assert code(made.image(b"game", messages.ImageEnd(key=image.key))) == "image_hash_mismatch"
    assert made.images.held_bytes == 0
    assert code(made.image(b"game", messages.ImageEnd(key=image.key))) == "image_unknown"


def test_the_same_bytes_in_another_shape_are_another_image() -> None:
    made = world()
    wide = begin(bytes(12), encoding="rgb8", width=4, height=1, stride=12)
    tall = begin(bytes(12), encoding="rgb8", width=1, height=4, stride=3)
    assert wide.key != tall.key
    made.image(b"game", wide)
    made.image(b"game", messages.ImageChunk(key=wide.key, offset=0, data=bytes(12)))
    assert progress(made.image(b"game", messages.ImageEnd(key=wide.key))) == (12, True)
    lie = messages.ImageBegin(key=wide.key, total_bytes=12, encoding="rgb8", width=1, height=4, stride=3)
    made.image(b"game", messages.ImageBegin(key="1" * 64, total_bytes=5))  # of another name: not in the way
    assert progress(made.image(b"game", lie)) == (12, True)  # the key decides: it is the wide one


@pytest.mark.parametrize(
    ("offset", "data"),
    [(1, b"x"), (5, b"x"), (2, b"x"), (3, b"12345678"), (1 << 40, b"x")],
    ids=["overlap", "gap", "over itself", "too many bytes", "far away"],
)
def test_a_misplaced_chunk_ends_the_upload(offset: int, data: bytes) -> None:
    made = world()
    image = begin(b"0123456789")
    made.image(b"game", image)
    made.image(b"game", messages.ImageChunk(key=image.key, offset=0, data=b"012"))
    wrong = messages.ImageChunk(key=image.key, offset=offset, data=data)
    assert code(made.image(b"game", wrong)) == "image_upload_invalid"
    again = messages.ImageChunk(key=image.key, offset=3, data=b"3")
    assert code(made.image(b"game", again)) == "image_unknown"
    assert made.images.held_bytes == 0


def test_an_end_too_early() -> None:
    made = world()
    image = begin(b"0123456789")
    made.image(b"game", image)
    assert code(made.image(b"game", messages.ImageEnd(key=image.key))) == "image_upload_invalid"


def test_a_second_begin_starts_over() -> None:
    made = world()
    image = begin(b"0123456789")
    made.image(b"game", image)
    made.image(b"game", messages.ImageChunk(key=image.key, offset=0, data=b"012"))
    assert progress(made.image(b"game", begin(b"0123456789"))) == (0, False)
    made.image(b"game", messages.ImageChunk(key=image.key, offset=0, data=b"0123456789"))
    assert progress(made.image(b"game", messages.ImageEnd(key=image.key))) == (10, True)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"total_bytes": 0}, "image_empty"),
        ({"total_bytes": 65 << 20}, "image_too_large"),
        ({"total_bytes": messages.MAX_BYTES}, "image_too_large"),
        ({"total_bytes": 5, "width": 7}, "image_upload_invalid"),
        ({"total_bytes": 1, "encoding": "rgb8"}, "image_empty"),
        (
            {"total_bytes": 180_000, "encoding": "rgb8", "width": 60_000, "height": 1, "stride": 180_000},
            "image_too_large",
        ),
        ({"total_bytes": 11, "encoding": "rgb8", "width": 2, "height": 2, "stride": 6}, "image_upload_invalid"),
        ({"total_bytes": 12, "encoding": "rgba8", "width": 2, "height": 2, "stride": 6}, "image_upload_invalid"),
    ],
)
def test_what_cannot_be_an_image_is_refused_before_a_byte_is_sent(fields: dict[str, Any], expected: str) -> None:
    made = world()
    assert code(made.image(b"game", messages.ImageBegin(key="a" * 64, **fields))) == expected
    assert made.status().vision["uploads"] == 0


def test_a_model_without_projector_takes_none() -> None:
    made = World().boot()
    made.join(b"game")
    assert code(made.image(b"game", begin(b"abc"))) == "vision_unavailable"
    session = made.open()
    say = made.say(b"game", session, images=["a" * 64])
    assert code(made.answers(b"game", say)[0]) == "vision_unavailable"


# -- memory ------------------------------------------------------------------------------


def test_begin_without_end_and_a_disconnect_leave_nothing() -> None:
    made = world()
    for number in range(16):
        image = begin(bytes([number]) * 1000)
        made.image(b"game", image)
        made.image(b"game", messages.ImageChunk(key=image.key, offset=0, data=bytes([number]) * 999))
    assert progress(made.image(b"game", begin(b"one more"))) == (0, False)  # in the place of the oldest
    assert made.images.held_bytes == 15 * 999
    made.advance(4000 * MS)  # no heartbeat: the lease ends
    assert made.images.held_bytes == 0
    assert made.status().vision["image_bytes"] == 0


def test_announced_bytes_are_counted_before_they_come() -> None:
    made = world(max_client_image_bytes=100, max_image_bytes=80)
    key = made.upload(b"game", b"a" * 41)
    finish(made, made.say(b"game", made.open(), images=[key]))
    assert code(made.image(b"game", begin(bytes(60)))) == "image_store_full"
    assert progress(made.image(b"game", begin(bytes(59)))) == (0, False)
    assert made.status().vision["image_bytes"] == 100
    assert made.images.held_bytes == 41


def test_an_unfinished_upload_makes_room_for_the_next() -> None:
    made = world(max_client_image_bytes=100, max_image_bytes=80)
    given_up = begin(bytes(60))
    made.image(b"game", given_up)
    assert progress(made.image(b"game", begin(bytes(59)))) == (0, False)
    assert code(made.image(b"game", messages.ImageEnd(key=given_up.key))) == "image_unknown"


def test_what_was_used_longest_ago_goes_first() -> None:
    made = world(max_client_image_bytes=30)
    first, second, third = (made.upload(b"game", bytes([n]) * 10) for n in range(3))
    made.image(b"game", begin(bytes([0]) * 10))  # used again
    made.upload(b"game", b"n" * 10)
    session = made.open()
    assert code(made.answers(b"game", made.say(b"game", session, images=[second]))[0]) == "image_unknown"
    assert not made.answers(b"game", made.say(b"game", session, images=[first, third]))
    assert made.images.held_bytes == 30


def test_a_thousand_images_stay_within_the_store() -> None:
    made = world(max_client_image_bytes=64 * KIB, max_client_images=50)
    for number in range(1000):
        made.upload(b"game", number.to_bytes(2, "little") * KIB)
        assert made.images.held_bytes <= 64 * KIB
    assert made.status().vision["images"] == 32


def test_many_tiny_images_are_bounded_by_their_number() -> None:
    made = world(max_client_images=20)
    for number in range(100):
        made.upload(b"game", number.to_bytes(2, "little"))
    assert made.status().vision["images"] == 20


def test_the_store_of_all_clients_is_bounded_and_one_client_cannot_keep_another_out() -> None:
    made = world(max_image_bytes=40, max_client_image_bytes=60, max_image_store_bytes=100)
    made.join(b"other")
    made.upload(b"game", b"a" * 40)
    made.upload(b"game", b"b" * 20)
    made.upload(b"other", b"c" * 40)
    made.upload(b"other", b"d" * 20)
    assert made.images.held_bytes <= 100
    assert made.status().vision["images"] == 3


def test_two_clients_share_the_bytes_of_an_image() -> None:
    made = world()
    made.join(b"other")
    key = made.upload(b"game", b"a" * 100)
    session = made.open(b"other")
    assert code(made.answers(b"other", made.say(b"other", session, images=[key]))[0]) == "image_unknown"
    assert progress(made.image(b"other", begin(b"a" * 100))) == (100, True)
    made.request(b"game", messages.Goodbye(id=made.next_id()))
    assert made.images.held_bytes == 100
    assert not made.answers(b"other", made.say(b"other", session, images=[key]))


# -- conversations -----------------------------------------------------------------------


def test_a_turn_names_its_images_and_later_ones_its_history() -> None:
    made = world()
    one, two = made.upload(b"game", b"one"), made.upload(b"game", b"two")
    session = made.open()
    finish(made, made.say(b"game", session, images=[one, one]))
    finish(made, made.say(b"game", session, images=[two]))
    made.say(b"game", session)
    turns = made.sent(link.Generate)
    assert [(turn.images, turn.context_images) for turn in turns] == [
        ([one, one], []),
        ([two], [one, one]),
        ([], [one, one, two]),
    ]


def test_images_of_a_conversation_outlive_the_lease_and_go_with_the_session() -> None:
    made = world()
    seen, unseen = made.upload(b"game", b"seen"), made.upload(b"game", b"unseen")
    session = made.open()
    finish(made, made.say(b"game", session, images=[seen]))
    made.handle(events.ClientGone(b"game"))
    assert made.images.held_bytes == len(b"seen")
    made.join(b"game")
    made.request(b"game", messages.OpenSession(id=made.next_id(), resume=session))
    made.say(b"game", session)
    assert made.sent(link.Generate)[-1].context_images == [seen]
    assert code(made.answers(b"game", made.say(b"game", made.open(), images=[unseen]))[0]) == "image_unknown"
    made.handle(events.ClientGone(b"game"))
    made.advance(61_000 * MS)  # nobody takes it up again
    assert made.images.held_bytes == 0


def test_images_of_a_conversation_are_not_dropped_for_room() -> None:
    made = world(max_client_image_bytes=20)
    key = made.upload(b"game", b"a" * 15)
    session = made.open()
    finish(made, made.say(b"game", session, images=[key]))
    assert code(made.image(b"game", begin(b"b" * 10))) == "image_store_full"
    made.request(b"game", messages.CloseSession(id=made.next_id(), session_id=session))
    assert progress(made.image(b"game", begin(b"b" * 10))) == (0, False)


def test_a_turn_is_sent_again_with_its_images_when_the_engine_dies() -> None:
    made = world()
    key = made.upload(b"game", b"pixels")
    session = made.open()
    say = made.say(b"game", session, images=[key])
    made.engine_says(link.WantImage(key=key, offset=0, max_bytes=4))  # in the middle of the transfer
    made.crash()
    _revive(made)
    turn = made.sent(link.Generate)[-1]
    assert turn.images == [key]
    made.engine_says(link.WantImage(key=key, offset=0, max_bytes=4))
    made.engine_says(link.WantImage(key=key, offset=4, max_bytes=4))
    assert [part.data for part in made.parts] == [b"pixe", b"pixe", b"ls"]
    finish(made, say)


def test_the_engine_is_told_of_an_image_that_is_not_there() -> None:
    made = world()
    made.engine_says(link.WantImage(key="a" * 64))
    assert made.sent(link.ImagePart) == [link.ImagePart(key="a" * 64)]


def test_an_engine_cannot_name_images_into_a_conversation() -> None:
    made = world()
    session = made.open()
    made.say(b"game", session)
    gen_id = next(iter(made.engine.generating))
    made.engine.generating.clear()
    made.engine_says(link.Finished(gen_id=gen_id, finish_reason="stop", context_images=["b" * 64]))
    made.say(b"game", session)
    assert made.sent(link.Generate)[-1].context_images == []


def test_too_many_images_in_a_turn() -> None:
    made = world(max_images_per_say=2)
    keys = [made.upload(b"game", bytes([n])) for n in range(3)]
    assert code(made.answers(b"game", made.say(b"game", made.open(), images=keys))[0]) == "too_many_images"


def _revive(made: World) -> None:
    """Through the back-off, with heartbeats."""
    for _ in range(10):
        made.advance(100 * MS)
        made.ping()
    made.start_engine()
