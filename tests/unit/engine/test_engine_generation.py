"""One answer's bookkeeping: what the broker is told to keep."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from xlm.errors import ContextOverflow
from xlm.protocol import link
from xlm_engine import shapes
from xlm_engine.generation import PIECE_GAP_S, Generation, pack_context, unpack_context


def generation(
    n_context: int = 0,
    n_prompt: int = 10,
    n_ctx: int = 100,
    now: Callable[[], float] = time.perf_counter,
    **options: Any,
) -> Generation:
    context = shapes.given_run(range(n_context), turn_at=3) if n_context else []
    prompt = shapes.given_run(range(n_prompt), turn_at=2)
    request = link.Generate(gen_id=1, session_id="s", context=pack_context(context), **options)
    return Generation(request, prompt, n_ctx, now)


def keep(old: bytes, finished: link.Finished) -> list[int]:
    kept = b"".join(old[4 * start : 4 * end] for start, end in finished.context_keep)
    return unpack_context(kept + finished.context_delta)


def test_context_survives_packing() -> None:
    values = [0, 1, shapes.generated(5), 7 | shapes.RUN_START | shapes.TURN_START]
    assert unpack_context(pack_context(values)) == values
    assert len(pack_context(values)) == 16


def test_finished_appends_the_turn_to_the_context() -> None:
    one = generation(n_context=20)
    one.append(42, b"yes")
    one.answer.finish()
    finished = one.finished("stop")
    assert finished.context_keep == [(0, 20)]
    assert keep(one.request.context, finished) == one.conversation
    assert unpack_context(finished.context_delta)[-1] == shapes.generated(42)


def test_tokens_of_a_stop_string_are_not_kept() -> None:
    one = generation(stop=["END"])
    for token, piece in ((1, b"x"), (2, b"EN"), (3, b"D")):
        one.append(token, piece)
    one.answer.finish()
    assert one.answer.stopped
    assert unpack_context(one.finished("stop").context_delta)[-1] == shapes.generated(1)


def test_tokens_that_come_fast_go_out_together() -> None:
    clock = iter([0.0, 1.0, 1.0 + PIECE_GAP_S / 4, 1.0 + 2 * PIECE_GAP_S, 3.0])  # received, then each token
    one = generation(now=lambda: next(clock))
    sent = []
    for token in range(4):
        one.append(token, b"x")
        if one.piece_due:
            piece = one.piece(one.answer.take())
            assert piece is not None
            sent.append(piece.token_ids)
    assert sent == [[0], [1, 2], [3]]


def test_what_is_held_back_goes_out_with_the_end() -> None:
    clock = iter([0.0, 1.0, 1.0, 1.0])
    one = generation(now=lambda: next(clock))
    one.append(1, b"x")
    assert one.piece_due
    one.piece(one.answer.take())
    one.append(2, b"y")
    assert not one.piece_due
    last = one.piece(one.answer.finish())
    assert last is not None
    assert (last.text, last.token_ids) == ("y", [2])


def test_cancelled_before_a_word_the_turn_did_not_happen() -> None:
    one = generation(n_context=20)
    one.answer.finish()
    finished = one.finished("cancelled")
    assert (finished.context_keep, finished.context_delta) == ([(0, 20)], b"")


def test_overflow_is_refused_or_shifted_as_asked() -> None:
    with pytest.raises(ContextOverflow):
        generation(n_context=95)
    shifted = generation(n_context=95, overflow="shift")
    assert len(shifted.conversation) <= 50
    shifted.append(9, b"x")
    shifted.answer.finish()
    finished = shifted.finished("length")
    assert finished.context_keep == [(0, 3)]
    assert keep(shifted.request.context, finished) == shifted.conversation


def test_a_prompt_too_long_even_alone_is_refused() -> None:
    for overflow in ("error", "shift"):
        with pytest.raises(ContextOverflow):
            generation(n_prompt=100, overflow=overflow)


def test_a_full_context_in_mid_answer() -> None:
    ends = generation(n_prompt=98)
    ends.append(1, b"a")
    assert not ends.overflowed()
    ends.append(2, b"b")
    assert ends.overflowed()
    goes_on = generation(n_prompt=98, overflow="shift")
    for token in range(2):
        goes_on.append(token, b"a")
    goes_on.reflow = False
    assert not goes_on.overflowed()
    assert goes_on.reflow
    assert len(goes_on.conversation) <= 50
    assert [shapes.token_of(value) for value in goes_on.conversation[-2:]] == [0, 1]


def answer_with_shifts(one: Generation, count: int) -> int:
    """Appends ``count`` tokens; how often the context was shifted meanwhile."""
    shifts = 0
    for token in range(count):
        one.append(5000 + token, b"a")
        length = len(one.conversation)
        assert not one.overflowed()
        shifts += len(one.conversation) < length
    one.answer.finish()
    return shifts


@pytest.mark.parametrize("n_system", [0, 1, 20])
def test_every_shift_keeps_the_system_prompt_in_one_answer_and_over_many_turns(n_system: int) -> None:
    system, turn = list(range(1000, 1000 + n_system)), list(range(2000, 2030))
    context = b""
    shifts = []
    for n_answer in (400, 3, 90, 250, 7, 7, 7, 120):
        prompt = shapes.given_run(turn, turn_at=2) if context else shapes.given_run(system + turn, turn_at=n_system)
        request = link.Generate(gen_id=1, session_id="s", context=context, overflow="shift", max_tokens=999)
        one = Generation(request, prompt, 128)
        shifts.append(answer_with_shifts(one, n_answer))
        context = pack_context(keep(context, one.finished("length")))
        assert context == pack_context(one.conversation)
        assert [shapes.token_of(value) for value in one.conversation[:n_system]] == system
        assert shapes.head_length(one.conversation) == n_system
    assert shifts[0] >= 4


def test_usage_counts_and_times() -> None:
    clock = iter([0.0, 1.0, 1.5, 2.0])
    request = link.Generate(gen_id=1, session_id="s")
    one = Generation(request, shapes.given_run(range(5)), 100, now=lambda: next(clock))
    for token in range(3):
        one.append(token, b"a")
    one.answer.finish()
    usage = one.finished("length").usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (5, 3)
    assert (usage.ttft_ms, usage.tpot_ms) == (1000.0, 500.0)
