"""Whole characters, whatever way tokens cut them, and stop strings that never show."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from xlm_engine.utf8 import AnswerText, Part, Utf8Stream, find_stop, held_back

CHARACTERS = st.text(alphabet=st.sampled_from("abc \n€é世界🗡️👩‍🚀"), max_size=40)


def cut(data: bytes, borders: list[int]) -> list[bytes]:
    edges = [0, *sorted(border % (len(data) + 1) for border in borders), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@given(CHARACTERS, st.lists(st.integers(0, 500), max_size=20))
def test_any_text_cut_at_any_bytes_comes_out_whole(text: str, borders: list[int]) -> None:
    answer = AnswerText()
    parts: list[Part] = []
    for index, piece in enumerate(cut(text.encode(), borders)):
        answer.feed(index, piece)
        parts.append(answer.take())
    parts.append(answer.finish())
    assert "".join(part.text for part in parts) == text
    assert all("\ufffd" not in part.text for part in parts)
    assert [token for part in parts for token in part.token_ids] == list(range(len(answer.token_ids)))


@given(st.lists(st.binary(max_size=6), max_size=20))
def test_invalid_bytes_are_replaced_as_python_does(pieces: list[bytes]) -> None:
    stream = Utf8Stream()
    text = "".join(stream.feed(piece) for piece in pieces)
    assert text + "\ufffd" * stream.pending == b"".join(pieces).decode("utf-8", "replace")


@given(CHARACTERS, st.integers(0, 500), st.lists(st.integers(0, 500), max_size=20))
def test_an_answer_cut_within_a_character_ends_before_it(text: str, end: int, borders: list[int]) -> None:
    data = text.encode()[:end]
    answer = AnswerText()
    parts: list[Part] = []
    pieces = cut(data, borders)
    for index, piece in enumerate(pieces):
        answer.feed(index, piece)
        parts.append(answer.take())
    parts.append(answer.finish())
    assert "".join(part.text for part in parts) == answer.text == data.decode("utf-8", "ignore")
    assert [token for part in parts for token in part.token_ids] == list(range(len(pieces)))


@given(CHARACTERS, st.lists(st.integers(0, 500), max_size=20), st.lists(st.text("abc €", min_size=1, max_size=3)))
def test_stop_strings_never_show_and_cut_at_the_first(text: str, borders: list[int], stops: list[str]) -> None:
    answer = AnswerText(stops)
    shown = ""
    for index, piece in enumerate(cut(text.encode(), borders)):
        answer.feed(index, piece)
        if answer.stopped:
            break
        shown += answer.take().text
    shown += answer.finish().text
    assert not any(stop in shown for stop in stops)
    assert text.startswith(shown)
    assert answer.stopped == any(stop in text for stop in stops)
    if answer.stopped:
        assert any(text[len(shown) :].startswith(stop) for stop in stops)


@given(CHARACTERS, st.lists(st.integers(0, 500), max_size=20), st.lists(st.text("abc €", min_size=1, max_size=3)))
def test_an_answer_taken_up_again_goes_on_where_it_was(text: str, borders: list[int], stops: list[str]) -> None:
    """After each delivery: a new process that knows only the delivered tokens sends exactly the rest."""
    pieces = cut(text.encode(), borders)
    whole = run(AnswerText(stops), pieces)
    heard, tokens = "", 0
    for part in whole[:-1]:
        heard += part.text
        tokens += len(part.token_ids)
        again = AnswerText(stops)
        for index in range(tokens):
            again.feed(index, pieces[index])
        again.skip()
        rest = run(again, pieces, tokens)
        assert heard + "".join(p.text for p in rest) == "".join(p.text for p in whole)


def run(answer: AnswerText, pieces: list[bytes], start: int = 0) -> list[Part]:
    parts: list[Part] = []
    for index in range(start, len(pieces)):
        answer.feed(index, pieces[index])
        if answer.stopped:
            break
        part = answer.take()
        if part.text:
            parts.append(part)
    return [*parts, answer.finish()]


def test_tokens_of_a_stop_string_are_dropped_and_shared_ones_stay() -> None:
    answer = AnswerText(["\nUser:"])
    for token, piece in enumerate([b"Hello", b"!\n", b"User", b":", b" x"]):
        answer.feed(token, piece)
        if answer.stopped:
            break
    assert answer.token_ids == [0, 1]
    assert answer.finish().text == "Hello!"


def test_held_back_is_the_longest_beginning_of_a_stop() -> None:
    assert held_back("abc<|i", ["<|im_end|>", "c<"]) == 3
    assert held_back("abc", ["x"]) == 0
    assert held_back("", ["x"]) == 0


def test_find_stop_takes_the_first() -> None:
    assert find_stop("one two", ["two", "ne"], 0) == 1
    assert find_stop("one two", ["zzz"], 0) == -1
