"""One answer in the making: its tokens, its text, and what the broker is told of it.

Knows nothing of llama.cpp. ``conversation`` is every token from the start of
the context to the newest one, flagged (see shapes.py); the KV cache follows it.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from typing import Final, Literal, Protocol

from xlm.errors import ContextOverflow
from xlm.protocol import link
from xlm.protocol.messages import Usage
from xlm_engine import shapes
from xlm_engine.sessions import Sequence
from xlm_engine.utf8 import AnswerText, Part
from xlm_engine.vision.tower import Seen

FinishReason = Literal["stop", "length", "cancelled"]


PIECE_GAP_S: Final = 1 / 60  # a frame: tokens that come faster go out together


class Chooser(Protocol):
    """The sampler of one answer."""

    def accept(self, token: int, /) -> None: ...
    def close(self) -> None: ...


def unpack_context(data: bytes) -> list[int]:
    """int32 little-endian, as Finished.context_delta packed them."""
    values = array("i")
    values.frombytes(data[: len(data) // 4 * 4])
    return values.tolist()


def pack_context(tokens: list[int]) -> bytes:
    return array("i", tokens).tobytes()


class Generation:
    """State of one Generate. Raises ContextOverflow if the turn does not fit."""

    def __init__(
        self,
        request: link.Generate,
        prompt: list[int],
        n_ctx: int,
        now: Callable[[], float] = time.perf_counter,
        images: list[tuple[str, Seen]] | None = None,
    ) -> None:
        """``images``: upload key and image of all that are in the conversation, in order."""
        self.request: Final = request
        self._n_ctx: Final = n_ctx
        self._now: Final = now
        self._received: Final = now()
        self._first_token: float | None = None
        self._last_token = self._received
        self._last_piece: float | None = None
        context = unpack_context(request.context)
        self._n_context: Final = len(context)
        self.n_prompt: Final = len(context) + len(prompt)
        self.n_cached = 0
        self.conversation = context + prompt
        self._kept = len(context)  # conversation[:_kept] is the beginning of the old context
        self.answer: Final = AnswerText(request.stop)
        self.n_sampled = 0
        self.sampler: Chooser | None = None
        self.sequence: Sequence | None = None
        self.ends: list[int] = []  # borders of the steps to come
        self.reflow = True  # the cache must be made a beginning of the conversation before the next step
        self.turn = 0  # when it was last served
        self._images: Final = images or []
        self._make_room(len(prompt))

    # -- the context's limit

    def _make_room(self, n_prompt: int) -> None:
        if len(self.conversation) < self._n_ctx:
            return
        head = shapes.head_length(self.conversation)
        room = max(self._n_ctx // 2, min(self._n_ctx - 1, head + n_prompt))
        must_keep = n_prompt if self._n_context else n_prompt - head
        if self.request.overflow != "shift" or not self._shift(room, must_keep):
            raise ContextOverflow(
                f"the conversation has {len(self.conversation)} tokens, the context holds {self._n_ctx}",
                code="context_overflow",
            )

    def _shift(self, room: int, must_keep: int) -> bool:
        """Drops the oldest turns but the system prompt; what stays is computed again. False: not possible."""
        kept = shapes.shift(self.conversation, room, must_keep)
        if kept is None:
            return False
        head, tail = kept
        self.conversation = self.conversation[:head] + shapes.regiven(self.conversation[tail:])
        self._kept = min(self._kept, head)
        self.reflow = True
        return True

    def overflowed(self) -> bool:
        """Whether the context is full and stays so. A shift, where allowed, is carried out here."""
        if len(self.conversation) < self._n_ctx:
            return False
        return self.request.overflow != "shift" or not self._shift(self._n_ctx // 2, self._n_ctx // 8)

    # -- images

    def image_keys(self, conversation: list[int]) -> list[str]:
        """Upload keys of the images that a beginning or all of the conversation holds, in order."""
        dropped = len(self._images) - len(shapes.image_starts(self.conversation))
        count = len(shapes.image_starts(conversation))
        return [key for key, _ in self._images[dropped : dropped + count]]

    def images_to_come(self) -> list[Seen]:
        """Those that steps to come will compute."""
        assert self.sequence is not None
        if not self._images:
            return []
        ahead = len(shapes.image_starts(self.conversation[len(self.sequence.tokens) :]))
        return [seen for _, seen in self._images[len(self._images) - ahead :]] if ahead else self._partly_computed()

    def _partly_computed(self) -> list[Seen]:
        """The image whose further runs are still to come."""
        assert self.sequence is not None
        rest = self.conversation[len(self.sequence.tokens) :]
        return [self._images[-1][1]] if any(map(shapes.is_image, rest)) else []

    @property
    def waits_for_image(self) -> bool:
        """Whether the next step is one of image tokens that are not encoded yet."""
        tokens = self.next_tokens()
        if not tokens or not shapes.is_image(tokens[0]):
            return False
        seen, run, _ = self.image_step()
        return seen.embeddings[run] is None

    def image_step(self) -> tuple[Seen, int, int]:
        """(image, its run, first token inside that run) of the next step, which is one of image tokens."""
        assert self.sequence is not None
        at = len(self.sequence.tokens)
        start = shapes.run_start(self.conversation, at)
        starts = shapes.image_starts(self.conversation)
        n_begun = sum(begin <= start for begin in starts)
        run = sum(map(shapes.begins_run, self.conversation[starts[n_begun - 1] : start + 1])) - 1
        return self._images[len(self._images) - len(starts) + n_begun - 1][1], run, at - start

    # -- tokens

    def append(self, token: int, piece: bytes) -> None:
        """Takes a chosen token: conversation and text."""
        self.n_sampled += 1
        self.conversation.append(shapes.generated(token))
        self.answer.feed(token, piece)
        self._last_token = self._now()
        if self._first_token is None:
            self._first_token = self._last_token

    def replay(self, piece_of: Callable[[int], bytes]) -> None:
        """Takes the tokens that an earlier engine generated and delivered."""
        assert self.sampler is not None
        for token in self.request.replay:
            self.sampler.accept(token)
            self.append(token, piece_of(token))
            if self.overflowed():
                break
        self.answer.skip()
        self._first_token = None

    @property
    def exhausted(self) -> bool:
        """max_tokens is reached."""
        return self.n_sampled >= self.request.max_tokens

    def next_tokens(self) -> list[int]:
        """The flagged tokens of the next step; empty when the conversation is in the cache."""
        assert self.sequence is not None
        return self.conversation[len(self.sequence.tokens) : self.ends[0]] if self.ends else []

    @property
    def wants_logits(self) -> bool:
        """Whether the next step is the last before a choice."""
        return len(self.ends) == 1

    # -- messages

    @property
    def piece_due(self) -> bool:
        """Whether what was chosen last goes out by itself: a message wakes six threads on its way."""
        return self._last_piece is None or self._last_token - self._last_piece >= PIECE_GAP_S

    def piece(self, part: Part) -> link.Piece | None:
        if not part.text and not part.token_ids:
            return None
        self._last_piece = self._last_token
        return link.Piece(gen_id=self.request.gen_id, text=part.text, token_ids=part.token_ids)

    def finished(self, reason: FinishReason) -> link.Finished:
        """Call after ``answer.finish()``."""
        token_ids = self.answer.token_ids
        unspoken = self.n_sampled - len(token_ids)  # of a stop string
        conversation = self.conversation[: len(self.conversation) - unspoken] if unspoken else self.conversation
        if reason == "cancelled" and not token_ids:
            conversation, kept = [], self._n_context  # nothing was heard: the turn did not happen
        else:
            kept = self._kept
        return link.Finished(
            gen_id=self.request.gen_id,
            finish_reason=reason,
            usage=self._usage(len(token_ids)),
            context_delta=pack_context(conversation[kept:]),
            context_keep=[(0, kept)] if kept else [],
            text=self.answer.text,
            context_images=self.image_keys(self._whole_context(conversation, kept)),
        )

    def _whole_context(self, conversation: list[int], kept: int) -> list[int]:
        """The context as the broker will hold it."""
        return conversation if conversation else self.conversation[:kept]

    def _usage(self, n_completion: int) -> Usage:
        first = self._first_token if self._first_token is not None else self._last_token
        after_first = self.n_sampled - 1 - len(self.request.replay)
        return Usage(
            prompt_tokens=self.n_prompt,
            cached_tokens=self.n_cached,
            completion_tokens=n_completion,
            ttft_ms=(first - self._received) * 1e3,
            tpot_ms=(self._last_token - first) * 1e3 / after_first if after_first > 0 else 0.0,
        )
