"""Which session's tokens are in which sequence of the KV cache.

A sequence is given to a session for one answer at a time and keeps its tokens
afterwards, so the next turn computes only what is new. When all are taken, the
one idle longest is given away; its session loses nothing but time, since the
broker sends the whole conversation with each turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from xlm_engine import shapes

# More single-token steps than this are not worth their bits: then the conversation is recomputed in chunks.
MAX_EXACT_STEPS: Final = 512


@dataclass(slots=True)
class Sequence:
    """A KV sequence: ``tokens`` (flagged) are cached, ``ends`` are the borders of the steps that put them there."""

    seq_id: int
    session_id: str = ""
    tokens: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    exact: bool = True  # the borders are those of shapes.step_ends
    busy: bool = False
    last_used: int = 0
    position: int = 0  # of the next token; inside a run of image tokens, of the run's first

    def cut(self, length: int) -> None:
        """Keeps the first ``length`` tokens."""
        del self.tokens[length:]
        self.ends = [end for end in self.ends if end <= length]
        self.position = shapes.n_positions(self.tokens)

    def append(self, tokens: list[int]) -> None:
        """A step put these into the cache."""
        self.tokens += tokens
        self.ends.append(len(self.tokens))
        if not shapes.is_image(tokens[0]):
            self.position += len(tokens)
        elif tokens[-1] & shapes.IMAGE_END:
            self.position += shapes.n_positions(self.tokens[shapes.run_start(self.tokens, len(self.tokens) - 1) :])


class Sequences:
    """All sequences of the context.

    ``forget(seq_id, position)`` drops cells from a position on; False: all of the sequence's are gone.
    """

    def __init__(self, count: int, n_ubatch: int, *, exact: bool, forget: Callable[[int, int], bool]) -> None:
        self._all: Final = [Sequence(seq_id) for seq_id in range(count)]
        self._n_ubatch: Final = n_ubatch
        self._exact: Final = exact
        self._forget: Final = forget
        self._clock = 0

    def acquire(self, session_id: str) -> Sequence | None:
        """An idle sequence, best the session's own; None if all are busy. It is busy until ``release``."""
        idle = [sequence for sequence in self._all if not sequence.busy]
        if not idle:
            return None
        own = next((s for s in idle if s.session_id == session_id), None)
        sequence = own or min(idle, key=lambda s: (bool(s.session_id), s.last_used, s.seq_id))
        if own is None:
            self._empty(sequence)
            sequence.session_id = session_id
        sequence.busy = True
        return sequence

    def release(self, sequence: Sequence) -> None:
        self._clock += 1
        sequence.busy, sequence.last_used = False, self._clock

    def drop(self, session_id: str) -> None:
        """The session is over; its sequence is free at once (not while it is busy)."""
        for sequence in self._all:
            if sequence.session_id == session_id and not sequence.busy:
                self._empty(sequence)

    def _empty(self, sequence: Sequence) -> None:
        self.rewind(sequence, 0)
        sequence.session_id, sequence.exact = "", True

    def rewind(self, sequence: Sequence, length: int) -> None:
        """Keeps the first ``length`` tokens of a sequence, or none where the model cannot do that."""
        length = shapes.run_start(sequence.tokens, min(length, len(sequence.tokens)))  # an image stays whole or goes
        position = shapes.n_positions(sequence.tokens[:length])
        sequence.cut(length if self._forget(sequence.seq_id, position) else 0)

    def prepare(self, sequence: Sequence, want: list[int]) -> tuple[int, list[int]]:
        """Makes the sequence a beginning of ``want``. (tokens reused, ends of the steps still to compute)."""
        exact = self._exact and sequence.exact
        ends = shapes.step_ends(want, self._n_ubatch, exact=exact)
        keep = shapes.reusable_length(sequence.tokens, sequence.ends, want, ends, exact=exact)
        self.rewind(sequence, keep)
        keep = len(sequence.tokens)
        if keep == 0:
            sequence.exact = self._exact
        rest = shapes.step_ends(want, self._n_ubatch, exact=self._exact, from_index=keep)
        if len(rest) > MAX_EXACT_STEPS:
            sequence.exact = False
            rest = shapes.step_ends(want, self._n_ubatch, exact=False, from_index=keep)
        return keep, rest
