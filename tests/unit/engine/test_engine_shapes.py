"""Step borders are a function of the conversation alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from xlm_engine import shapes
from xlm_engine.sessions import MAX_EXACT_STEPS, Sequences

TURNS = st.lists(st.tuples(st.integers(1, 90), st.integers(0, 30)), min_size=1, max_size=6)


def conversation(turns: list[tuple[int, int]]) -> list[int]:
    """Turns of (given, generated) tokens."""
    flagged: list[int] = []
    for index, (n_given, n_generated) in enumerate(turns):
        flagged += shapes.given_run(range(n_given), turn_at=min(3, n_given - 1) if index == 0 else 0)
        flagged += [shapes.generated(token) for token in range(n_generated)]
    return flagged


def simulated(flagged: list[int], n_ubatch: int = 16) -> Sequences:
    return Sequences(2, n_ubatch, exact=True, forget=lambda _seq, _start: True)


def compute(sequences: Sequences, session: str, want: list[int]) -> tuple[int, list[int]]:
    """What a batcher does: prepare, then a step after the other. (reused, ends of all steps in the cache)."""
    sequence = sequences.acquire(session)
    assert sequence is not None
    reused, ends = sequences.prepare(sequence, want)
    for end in ends:
        sequence.append(want[len(sequence.tokens) : end])
    assert sequence.tokens == want
    sequences.release(sequence)
    return reused, list(sequence.ends)


@given(TURNS, st.integers(1, 64))
def test_steps_cover_everything_in_order(turns: list[tuple[int, int]], n_ubatch: int) -> None:
    flagged = conversation(turns)
    ends = shapes.step_ends(flagged, n_ubatch)
    starts = [0, *ends[:-1]]
    assert ends[-1] == len(flagged)
    for start, end in zip(starts, ends, strict=True):
        assert 0 < end - start <= n_ubatch
        assert end - start == 1 or not any(value & shapes.GENERATED for value in flagged[start:end])
        assert not any(value & shapes.RUN_START for value in flagged[start + 1 : end])


@given(TURNS)
def test_turn_by_turn_makes_the_same_steps_as_all_at_once(turns: list[tuple[int, int]]) -> None:
    flagged = conversation(turns)
    at_once = compute(simulated(flagged), "s", flagged)[1]
    stepwise = simulated(flagged)
    for n_turns in range(1, len(turns) + 1):
        ends = compute(stepwise, "s", conversation(turns[:n_turns]))[1]
    assert ends == at_once


@given(TURNS, st.data())
def test_reuse_never_changes_the_steps(turns: list[tuple[int, int]], data: st.DataObject) -> None:
    """Whatever the cache held before (a conversation that went another way), the steps end up the same."""
    flagged = conversation(turns)
    other = list(flagged)
    at = data.draw(st.integers(0, len(flagged) - 1))
    other[at] ^= 1
    sequences = simulated(flagged)
    compute(sequences, "s", other)
    reused, ends = compute(sequences, "s", flagged)
    assert reused <= at
    assert ends == shapes.step_ends(flagged, 16)


@given(TURNS)
def test_the_same_again_still_computes_its_last_step(turns: list[tuple[int, int]]) -> None:
    flagged = conversation(turns)
    sequences = simulated(flagged)
    compute(sequences, "s", flagged)
    assert compute(sequences, "s", flagged)[0] < len(flagged)


def test_very_long_answers_are_recomputed_in_chunks_and_reused_afterwards() -> None:
    flagged = conversation([(10, MAX_EXACT_STEPS + 10)])
    sequences = simulated(flagged)
    ends = compute(sequences, "s", flagged)[1]
    assert len(ends) < MAX_EXACT_STEPS
    longer = flagged + shapes.given_run(range(5))
    assert compute(sequences, "s", longer)[0] == len(flagged)


def test_idle_sequence_longest_unused_is_given_away() -> None:
    sequences = simulated([])
    flagged = conversation([(20, 5)])
    for session in ("a", "b", "a"):
        compute(sequences, session, flagged)
    compute(sequences, "c", flagged)
    assert compute(sequences, "a", flagged)[0] > 0
    assert compute(sequences, "b", flagged)[0] == 0


def test_no_sequence_while_all_are_busy_and_a_dropped_one_is_free() -> None:
    sequences = simulated([])
    held = [sequences.acquire(session) for session in "ab"]
    assert sequences.acquire("c") is None
    assert held[0] is not None
    sequences.release(held[0])
    sequences.drop("a")
    assert sequences.acquire("c") is held[0]


def test_a_model_that_cannot_rewind_starts_over() -> None:
    sequences = Sequences(1, 16, exact=True, forget=lambda _seq, start: start == 0)
    flagged = conversation([(20, 5)])
    compute(sequences, "a", flagged)
    assert compute(sequences, "a", [*flagged[:-1], 7]) == (0, shapes.step_ends([*flagged[:-1], 7], 16))


@given(TURNS, st.integers(8, 200), st.integers(1, 40))
def test_shift_keeps_head_and_newest_and_fits(turns: list[tuple[int, int]], room: int, must_keep: int) -> None:
    flagged = conversation(turns)
    kept = shapes.shift(flagged, room, min(must_keep, len(flagged)))
    if kept is None:
        assert shapes.head_length(flagged) + must_keep > room or must_keep > len(flagged)
        return
    head, tail = kept
    assert head == shapes.head_length(flagged)
    assert head <= tail
    assert head + len(flagged) - tail <= max(room, len(flagged)) if tail == head else room
    assert len(flagged) - tail >= min(must_keep, len(flagged) - head)


def test_regiven_keeps_turn_marks_sets_the_first_and_clears_the_rest() -> None:
    flagged = [shapes.generated(1), 2 | shapes.RUN_START | shapes.TURN_START, shapes.generated(3)]
    assert shapes.regiven(flagged) == [
        1 | shapes.RUN_START | shapes.TURN_START,
        2 | shapes.TURN_START,
        3,
    ]
