"""The bytes of images in the broker: verified, handed out in pieces, and no more memory than bytes that came."""

from __future__ import annotations

import pytest

from xlm.protocol import messages
from xlm.protocol.images import upload_key
from xlm_broker.image_store import MAX_PART_BYTES, ImageStore


def layout_of(data: bytes, announced: int | None = None) -> messages.ImageBegin:
    made = messages.ImageBegin(key="0" * 64, total_bytes=len(data) if announced is None else announced)
    made.key = upload_key(made, data)
    return made


def stored(data: bytes) -> tuple[ImageStore, messages.ImageBegin]:
    store, layout = ImageStore(), layout_of(data)
    store.begin(1, layout)
    store.add(1, data)
    assert store.end(1, layout.key)
    return store, layout


def test_pieces_put_together_are_the_image() -> None:
    data = bytes(range(251)) * 5000
    store, layout = stored(data)
    pieces = []
    while (part := store.part(layout, sum(map(len, pieces)), 1 << 30)).data:
        assert len(part.data) <= MAX_PART_BYTES
        pieces.append(part.data)
    assert b"".join(pieces) == data
    assert part.total_bytes == len(data)


@pytest.mark.parametrize(("offset", "count"), [(-1, 5), (3, 0), (3, -4), (99, 5)])
def test_a_piece_that_is_none_has_no_bytes(offset: int, count: int) -> None:
    store, layout = stored(b"abc")
    assert store.part(layout, offset, count).data == b""


def test_an_image_that_is_gone_says_so() -> None:
    store, layout = stored(b"abc")
    store.drop(layout.key)
    store.drop(layout.key)
    assert (store.part(layout, 0, 5).total_bytes, store.held_bytes) == (0, 0)


def test_wrong_bytes_are_forgotten() -> None:
    store, layout = ImageStore(), layout_of(b"abc")
    store.begin(1, layout)
    store.add(1, b"abd")
    assert not store.end(1, layout.key)
    assert not store.end(1, layout.key)
    assert store.held_bytes == 0


def test_an_announced_size_costs_nothing() -> None:
    store = ImageStore()
    for number in range(1000):
        store.begin(number, layout_of(b"", announced=messages.MAX_BYTES))
    assert store.held_bytes == 0
    store.add(5, b"abc")
    store.add(5000, b"of no upload")
    assert store.held_bytes == 3
    store.forget_upload(5)
    store.forget_upload(5)
    assert store.held_bytes == 0
