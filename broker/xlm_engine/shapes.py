"""In which steps a conversation is computed.

A token's hidden state depends, in its last bits, on the shape of the step that
computed it (measured on ggml-cpu: a chunk of 64 against one token, two
sequences against one). So that a conversation gives the same bits however it
was interrupted, its step borders are a pure function of the conversation:

- text that was *given* (template, user) is one run a turn, cut into chunks of
  at most n_ubatch tokens from the run's start;
- tokens that were *generated* are computed one by one.

Context tokens therefore carry flags in their upper bits; to the broker they
are opaque 32-bit numbers. On devices where bits depend on the placement anyway
(real GPUs), ``exact`` is off and generated tokens are recomputed in chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

GENERATED: Final = 1 << 30  # computed in a step of its own
RUN_START: Final = 1 << 29  # first token of a given run
TURN_START: Final = 1 << 28  # first token of a user turn, where a shift may cut; the first of all ends the head
TOKEN_MASK: Final = (1 << 28) - 1


def token_of(flagged: int) -> int:
    return flagged & TOKEN_MASK


def generated(token: int) -> int:
    return token | GENERATED


def given_run(tokens: Sequence[int], turn_at: int | None = None) -> list[int]:
    """A run of given tokens; ``turn_at`` is the index where the user turn begins in it."""
    run = list(tokens)
    if run:
        run[0] |= RUN_START
    if turn_at is not None and turn_at < len(run):
        run[turn_at] |= TURN_START
    return run


def regiven(flagged: Sequence[int]) -> list[int]:
    """The tail of a shift as one given run, to be computed again; turn marks stay.

    It begins with one even if the cut was inside an answer: behind the head stands a mark, always.
    """
    run = [value & (TOKEN_MASK | TURN_START) for value in flagged]
    if run:
        run[0] |= RUN_START | TURN_START
    return run


def step_ends(flagged: Sequence[int], n_ubatch: int, *, exact: bool = True, from_index: int = 0) -> list[int]:
    """End indices of the steps that compute ``flagged[from_index:]``, ascending; the last is len(flagged)."""
    ends: list[int] = []
    start = from_index
    while start < len(flagged):
        end = _step_end(flagged, start, n_ubatch) if exact else min(start + n_ubatch, len(flagged))
        ends.append(end)
        start = end
    return ends


def _step_end(flagged: Sequence[int], start: int, n_ubatch: int) -> int:
    if flagged[start] & GENERATED:
        return start + 1
    end = start + 1
    while end < len(flagged) and end - start < n_ubatch and not flagged[end] & (GENERATED | RUN_START):
        end += 1
    return end


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return min(len(a), len(b))


def reusable_length(
    have: Sequence[int], have_ends: Sequence[int], want: Sequence[int], want_ends: Sequence[int], *, exact: bool = True
) -> int:
    """How many tokens of ``have`` (in the KV cache) serve as the beginning of ``want``.

    At least the last step of ``want`` is left to compute, for its logits.
    """
    last_start = want_ends[-2] if len(want_ends) > 1 else 0
    if not exact:
        plain = common_length([token_of(t) for t in have], [token_of(t) for t in want])
        return min(plain, len(want) - 1)
    same_steps = common_length(have_ends, want_ends)
    same_tokens = common_length(have, want)
    usable = (end for end in want_ends[:same_steps] if end <= same_tokens and end <= last_start)
    return max(usable, default=0)


def head_length(flagged: Sequence[int]) -> int:
    """Tokens before the first user turn: the system prompt."""
    return next((index for index, value in enumerate(flagged) if value & TURN_START), 0)


def shift(flagged: Sequence[int], room: int, must_keep: int) -> tuple[int, int] | None:
    """(head, tail_start): a shift keeps ``flagged[:head]``, the system prompt, and ``flagged[tail_start:]``.

    Together at most ``room`` tokens; the last ``must_keep`` are among them, else None: it cannot be done. The tail
    begins at a user turn if one fits, else anywhere.
    """
    head = head_length(flagged)
    if head + must_keep > room:
        return None
    earliest = max(head, len(flagged) - (room - head))
    latest = len(flagged) - must_keep
    turns = (index for index in range(earliest, latest + 1) if index < len(flagged) and flagged[index] & TURN_START)
    return head, next(turns, earliest)
