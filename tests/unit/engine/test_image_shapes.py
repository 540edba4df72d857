"""Images in a conversation's entries: steps, positions, reuse, shifts. Pure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from xlm_engine import shapes
from xlm_engine.sessions import Sequences

KEY, OTHER = "a" * 64, "b" * 64


def image(n_tokens: int, n_pos: int, key: str = KEY, part: int = 0, *, whole: bool = False) -> list[int]:
    return shapes.image_run(key, part, n_tokens, n_pos, whole=whole)


def turn(*runs: list[int]) -> list[int]:
    return shapes.given_run([entry for run in runs for entry in run], turn_at=0)


def test_a_run_says_what_it_is() -> None:
    run = image(9, 4)
    assert len(run) == 9
    assert all(map(shapes.is_image, run))
    assert [shapes.begins_image(value) for value in run] == [True] + [False] * 8
    further = image(9, 4, part=1)
    assert [shapes.begins_run(value) for value in further] == [True] + [False] * 8
    assert shapes.image_starts([7, *run, 7, *further, *image(3, 1)]) == [1, 20]
    assert shapes.n_positions(run) == 4
    assert run == image(9, 4)


def test_other_pixels_other_parts_and_other_sizes_are_other_entries() -> None:
    runs = [image(9, 4), image(9, 4, OTHER), image(9, 4, part=1), image(9, 5), image(8, 4)]
    assert len({tuple(run) for run in runs}) == len(runs)


def test_entries_fit_the_signed_numbers_of_a_context() -> None:
    assert max(image(300, 300, whole=True)) < 1 << 31


def test_steps_end_where_images_begin_and_end() -> None:
    conversation = turn([1] * 5, image(10, 4), [2] * 3, image(3, 2, OTHER), image(2, 2, KEY), [3])
    assert shapes.step_ends(conversation, 4) == [4, 5, 9, 13, 15, 18, 21, 23, 24]
    assert shapes.step_ends(conversation, 4, exact=False) == [4, 5, 9, 13, 15, 18, 21, 23, 24]


def test_tokens_that_see_each_other_are_one_step() -> None:
    conversation = turn([1], image(10, 10, whole=True), [2])
    assert shapes.step_ends(conversation, 4) == [1, 11, 12]


def test_an_image_is_reused_whole_or_not_at_all() -> None:
    want = turn([1], image(10, 4), [2], [5])
    ends = shapes.step_ends(want, 4)
    assert ends == [1, 5, 9, 11, 13]
    for exact in (True, False):
        assert shapes.reusable_length(want[:9], ends[:3], want, ends, exact=exact) == 1
        assert shapes.reusable_length(want[:11], ends[:4], want, ends, exact=exact) == 11


def test_another_image_ends_the_common_beginning() -> None:
    have, want = turn([1], image(6, 3), [2]), turn([1], image(6, 3, OTHER), [2])
    ends = shapes.step_ends(want, 4)
    for exact in (True, False):
        assert shapes.reusable_length(have, ends, want, ends, exact=exact) == 1


def test_a_text_token_is_never_taken_for_an_image_entry() -> None:
    run = image(3, 3)
    lookalike = turn([1], [shapes.token_of(value) for value in run], [2])
    want = turn([1], run, [2])
    ends = shapes.step_ends(want, 4)
    assert shapes.reusable_length(lookalike, ends, want, ends, exact=False) == 1


def test_positions_follow_what_runs_take() -> None:
    conversation = turn([1] * 5, image(10, 4), [2] * 3)
    sequences = Sequences(1, 4, exact=True, forget=lambda seq_id, start: True)
    sequence = sequences.acquire("a")
    assert sequence is not None
    start, seen = 0, []
    for end in shapes.step_ends(conversation, 4):
        seen.append(sequence.position)
        sequence.append(conversation[start:end])
        start = end
    assert seen == [0, 4, 5, 5, 5, 9]  # every step of the image begins where the image does
    assert sequence.position == 12 == shapes.n_positions(conversation)


def test_rewinding_into_an_image_drops_it() -> None:
    forgotten: list[int] = []
    sequences = Sequences(1, 4, exact=True, forget=lambda _, start: forgotten.append(start) is None)
    sequence = sequences.acquire("a")
    assert sequence is not None
    forgotten.clear()
    conversation = turn([1] * 5, image(10, 4), [2] * 3)
    sequence.append(conversation[:5])
    sequence.append(conversation[5:9])
    sequences.rewind(sequence, 9)
    assert (sequence.tokens, sequence.position, forgotten) == (conversation[:5], 5, [5])


def test_a_shift_never_cuts_an_image() -> None:
    first, second = image(10, 4), [*image(4, 4, OTHER), 7, *image(4, 4, OTHER, part=1)]
    conversation = [9, *turn([1], first, [2] * 4), *turn([3], second, [4] * 6)]
    for room in range(8, len(conversation)):
        cut = shapes.shift(conversation, room, must_keep=5)
        if cut is None:
            continue
        tail = conversation[cut[1] :]
        runs = [value for value in tail if shapes.is_image(value) and value & shapes.IMAGE_START]
        assert not runs or shapes.begins_image(runs[0])
        assert not tail or not shapes.is_image(tail[0]) or shapes.begins_image(tail[0])
        assert shapes.n_positions(shapes.regiven(tail)) == shapes.n_positions(tail)


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12), st.booleans()), max_size=8), st.integers(1, 9))
def test_steps_cover_everything_once_and_never_mix(pieces: list[tuple[int, int, bool]], n_ubatch: int) -> None:
    parts = [image(n, pos) if is_image else [1] * n for n, pos, is_image in pieces]
    conversation = turn(*parts)
    for exact in (True, False):
        start = 0
        for end in shapes.step_ends(conversation, n_ubatch, exact=exact):
            assert start < end <= start + n_ubatch
            assert len({shapes.is_image(value) for value in conversation[start:end]}) == 1
            start = end
        assert start == len(conversation)
