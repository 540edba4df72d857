from __future__ import annotations

from xlm.protocol.messages import Done, Error, Lease, Notice, Pong, Tokens
from xlm_broker.state.outbox import MERGED_CHARS, Outbox

MIB = 1 << 20


def test_text_of_an_answer_grows_in_one_message() -> None:
    box = Outbox(4, MIB)
    assert box.put(Tokens(id=7, seq=3, text="a", token_ids=[1]))
    assert box.put(Tokens(id=8, seq=0, text="x", token_ids=[9]))
    assert box.extend(7, "b", [2, 3])
    assert [(m.id, m.text, m.token_ids) for m in box.items if isinstance(m, Tokens)] == [
        (7, "ab", [1, 2, 3]),
        (8, "x", [9]),
    ]


def test_an_ended_answer_is_not_extended() -> None:
    box = Outbox(4, MIB)
    box.put(Tokens(id=7, seq=0, text="a"))
    box.put(Done(id=7, finish_reason="stop"))
    assert not box.extend(7, "b", [1])
    assert not box.extend(5, "b", [1])


def test_merged_text_stays_below_a_frame() -> None:
    box = Outbox(4, MIB)
    box.put(Tokens(id=7, seq=0, text="a" * (MERGED_CHARS - 1)))
    assert not box.extend(7, "bc", [1])
    assert box.extend(7, "b", [1])


def test_news_replace_their_elders_and_answers_do_not() -> None:
    box = Outbox(6, MIB)
    for size in (1, 2, 3):
        box.put(Notice(kind="budget_changed", detail={"granted_bytes": size}))
        box.put(Pong(id=size))
        box.put(Lease(id=size, granted_bytes=0, used_bytes=0, device_used_bytes=0))
    box.put(Notice(kind="engine_ready"))
    assert [m.id for m in box.items if isinstance(m, Lease)] == [1, 2, 3]
    assert [m.detail for m in box.items if isinstance(m, Notice)] == [{"granted_bytes": 3}, {}]
    assert [m.id for m in box.items if isinstance(m, Pong)] == [3]


def test_full_means_no() -> None:
    box = Outbox(1, MIB)
    assert box.put(Error(id=1, code="internal", message=""))
    assert not box.put(Error(id=2, code="internal", message=""))
    assert len(box.items) == 1


def test_it_is_bounded_in_bytes_too() -> None:
    box = Outbox(1000, 8000)
    kept = sum(box.put(Tokens(id=number, seq=0, text="é" * 100, token_ids=[1])) for number in range(100))
    assert 1 <= kept <= 8
    assert not box.extend(0, "x" * 8000, [1])
    assert box.sound()
    assert box.size_bytes <= 8000
