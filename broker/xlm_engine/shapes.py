"""In which steps a conversation is computed.

A token's hidden state depends, in its last bits, on the shape of the step that
computed it (measured on ggml-cpu: a chunk of 64 against one token, two
sequences against one). So that a conversation gives the same bits however it
was interrupted, its step borders are a pure function of the conversation:

- text that was *given* (template, user) is one run a turn, cut into chunks of
  at most n_ubatch tokens from the run's start;
- tokens that were *generated* are computed one by one.

An image is a run of its own: as many entries as it has tokens in the cache, each with 24 bits of the image's
name in place of a token, but for the second one, which holds how many positions the run takes.

Context tokens therefore carry flags in their upper bits; to the broker they
are opaque 32-bit numbers. On devices where bits depend on the placement anyway
(real GPUs), ``exact`` is off and generated tokens are recomputed in chunks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

GENERATED: Final = 1 << 30  # computed in a step of its own
RUN_START: Final = 1 << 29  # first token of a given run
TURN_START: Final = 1 << 28  # first token of a user turn, where a shift may cut; the first of all ends the head
IMAGE: Final = 1 << 27  # of an image: no token of the vocabulary
IMAGE_START: Final = 1 << 26  # first of a run
IMAGE_END: Final = 1 << 25  # last of a run
IMAGE_WHOLE: Final = 1 << 24  # on the first of a run: one step computes all of it
TOKEN_MASK: Final = (1 << 24) - 1
FIRST_PART: Final = 1 << 23  # in the payload of a run's first entry: here an image begins; it may have further runs

_IMAGE_FLAGS: Final = IMAGE | IMAGE_START | IMAGE_END | IMAGE_WHOLE
_BEGINS_IMAGE: Final = IMAGE | IMAGE_START | FIRST_PART


def token_of(flagged: int) -> int:
    return flagged & TOKEN_MASK


def generated(token: int) -> int:
    return token | GENERATED


def image_run(key: str, part: int, n_tokens: int, n_pos: int, *, whole: bool) -> list[int]:
    """The entries of one run of image tokens. ``key`` names the image, ``part`` counts its runs from 0."""
    digest = hashlib.shake_256(f"{key}/{part}".encode()).digest(3 * n_tokens)
    run = [IMAGE | int.from_bytes(digest[3 * i : 3 * i + 3], "little") for i in range(n_tokens)]
    run[0] = (run[0] & ~FIRST_PART) | IMAGE_START | (FIRST_PART if part == 0 else 0) | (IMAGE_WHOLE if whole else 0)
    if n_tokens > 1:
        run[1] = IMAGE | n_pos
    run[-1] |= IMAGE_END
    return run


def is_image(flagged: int) -> bool:
    return bool(flagged & IMAGE)


def begins_image(flagged: int) -> bool:
    """Whether an image, not only a further run of one, begins here."""
    return flagged & _BEGINS_IMAGE == _BEGINS_IMAGE


def begins_run(flagged: int) -> bool:
    """Whether a run of image tokens begins here."""
    return bool(flagged & IMAGE and flagged & IMAGE_START)


def image_starts(flagged: Sequence[int]) -> list[int]:
    """Where images begin. Asked in each step of one, of all its entries: so without a call for each."""
    return [index for index, value in enumerate(flagged) if value & _BEGINS_IMAGE == _BEGINS_IMAGE]


def run_start(flagged: Sequence[int], index: int) -> int:
    """Where the run of image entries begins that ``index`` is inside of; ``index`` itself between runs."""
    if index >= len(flagged):
        if not flagged or not is_image(flagged[-1]) or flagged[-1] & IMAGE_END:
            return index
        index = len(flagged) - 1
    while is_image(flagged[index]) and not flagged[index] & IMAGE_START:
        index -= 1
    return index


def n_positions(flagged: Sequence[int]) -> int:
    """Positions that a conversation takes: one a token, as many as it says for a finished image run."""
    count, index = 0, 0
    while index < len(flagged):
        if not is_image(flagged[index]):
            count, index = count + 1, index + 1
            continue
        end = _run_end(flagged, index)
        if flagged[end - 1] & IMAGE_END:
            count += token_of(flagged[index + 1]) if end - index > 1 else 1
        index = end
    return count


def _run_end(flagged: Sequence[int], start: int) -> int:
    end = start
    while end < len(flagged) and not flagged[end] & IMAGE_END:
        end += 1
    return min(end + 1, len(flagged))


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
    run = [value & (TOKEN_MASK | TURN_START | (_IMAGE_FLAGS if is_image(value) else 0)) for value in flagged]
    if run:
        run[0] |= RUN_START | TURN_START
    return run


def step_ends(flagged: Sequence[int], n_ubatch: int, *, exact: bool = True, from_index: int = 0) -> list[int]:
    """End indices of the steps that compute ``flagged[from_index:]``, ascending; the last is len(flagged)."""
    ends: list[int] = []
    start = from_index
    while start < len(flagged):
        end = _step_end(flagged, start, n_ubatch, exact=exact)
        ends.append(end)
        start = end
    return ends


def _step_end(flagged: Sequence[int], start: int, n_ubatch: int, *, exact: bool) -> int:
    if flagged[start] & IMAGE:
        end = _run_end(flagged, start)
        return end if flagged[start] & IMAGE_WHOLE and flagged[start] & IMAGE_START else min(end, start + n_ubatch)
    if exact and flagged[start] & GENERATED:
        return start + 1
    borders = IMAGE | GENERATED | RUN_START if exact else IMAGE
    end = start + 1
    while end < len(flagged) and end - start < n_ubatch and not flagged[end] & borders:
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
        kept = TOKEN_MASK | _IMAGE_FLAGS
        plain = common_length([t & kept for t in have], [t & kept for t in want])
        return run_start(want, min(plain, len(want) - 1))
    same_steps = common_length(have_ends, want_ends)
    same_tokens = common_length(have, want)
    usable = (end for end in want_ends[:same_steps] if end <= same_tokens and end <= last_start)
    return run_start(want, max(usable, default=0))


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
    earliest = _outside_images(flagged, max(head, len(flagged) - (room - head)))
    latest = len(flagged) - must_keep
    turns = (index for index in range(earliest, latest + 1) if index < len(flagged) and flagged[index] & TURN_START)
    return (head, next(turns, earliest)) if earliest <= latest else None


def _outside_images(flagged: Sequence[int], index: int) -> int:
    """``index``, or the first place behind it that no image reaches across."""
    while True:
        if index < len(flagged) and is_image(flagged[index]) and not begins_image(flagged[index]):
            index = _run_end(flagged, index)
            continue
        following = next((v for v in flagged[index:] if v & IMAGE_START and is_image(v)), None)
        if following is None or begins_image(following):
            return index
        index = flagged.index(following, index)
