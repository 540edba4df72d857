"""What a client asks for, and what becomes of it: requests and their answers, conversations, wishes.

Nothing here knows of a connection: ``_base.py`` sends what is asked, and hands
the answers back.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from xlm._uploads import Picture, Upload
from xlm.errors import ProtocolError, XlmError
from xlm.protocol import messages
from xlm.protocol.messages import Message

M = TypeVar("M", bound=Message)


class Call:
    """A request and the one answer to it. ``done`` is set last: who reads it as true may read the rest."""

    def __init__(self, message: Message) -> None:
        self.message = message
        self.answer: Message | None = None
        self.error: XlmError | None = None
        self.done = False
        self.previous: Message | None = None  # the wish this one replaces (caps, reservations)
        self.conversation: Conversation | None = None  # the session it opens or belongs to
        self.restores = False  # the client asks again by itself, after a reconnection

    def take(self, message: Message) -> None:
        self.answer = message
        self.done = True

    def fail(self, error: XlmError) -> None:
        self.error = error
        self.done = True


class Stream(Call):
    """A SAY and its answer in the making.

    The pieces are kept without a limit of their own: an answer never has more
    than ``max_tokens`` tokens, so a user who does not read holds no more memory
    than one who asks for ``reply.text``; and reading on keeps the broker's
    queues short.
    """

    def __init__(self, message: Message, conversation: Conversation, pictures: Sequence[Picture] = ()) -> None:
        super().__init__(message)
        self.conversation = conversation
        self.pictures = pictures  # uploaded before the SAY is sent
        self.repeated = False  # the broker had dropped an image between upload and SAY
        self.pieces: list[str] = []
        self.token_ids: list[int] = []
        self.usage = messages.Usage()
        self.finish_reason: Literal["stop", "length", "cancelled"] | None = None
        self.unwanted = False  # the user left it; set at once, by any thread
        self.cancelled = False  # CANCEL was sent
        self._next_seq = 0

    def take(self, message: Message) -> None:
        if isinstance(message, messages.Tokens):
            self._piece(message)
        elif isinstance(message, messages.Done):
            self.usage, self.finish_reason = message.usage, message.finish_reason
            self.pictures = ()  # a reply may be kept for long
            self.done = True
        else:
            self.fail(unexpected(self.message, message))

    def fail(self, error: XlmError) -> None:
        self.pictures = ()
        super().fail(error)

    def _piece(self, message: messages.Tokens) -> None:
        if message.seq < self._next_seq:
            return  # delivered before: a broker that replays may repeat itself
        if message.seq > self._next_seq:
            return self.fail(ProtocolError(f"piece {self._next_seq} of an answer is missing", code="bad_request"))
        self._next_seq += 1
        self.token_ids.extend(message.token_ids)
        if message.text:
            self.pieces.append(message.text)


class UploadCall(Call):
    """A message of an upload."""

    def __init__(self, message: Message, upload: Upload) -> None:
        super().__init__(message)
        self.upload = upload


@dataclass(eq=False, slots=True)
class Conversation:
    """An open session, as far as it outlives a connection. ``lost``: why it cannot go on."""

    request: messages.OpenSession
    session_id: str
    n_ctx: int = 0
    resumed: bool = False
    lost: XlmError | None = None
    speaking: Stream | None = None  # the last answer asked for
    held: list[Stream] = field(default_factory=list)  # asked for while a cancelled answer had not ended yet


@dataclass(slots=True)
class Wishes:
    """What this client asked for last; asked for again after a reconnection."""

    cap: Message | None = None
    reservation: Message | None = None

    def record(self, call: Call) -> None:
        if isinstance(call.message, messages.SetBudget):
            call.previous, self.cap = self.cap, call.message
        elif isinstance(call.message, messages.Reserve):
            call.previous, self.reservation = self.reservation, call.message

    def refused(self, call: Call) -> None:
        if self.cap is call.message:
            self.cap = call.previous
        if self.reservation is call.message:
            self.reservation = call.previous

    def messages(self) -> list[Message]:
        """Fresh requests for what still holds: a lifted cap or an ended reservation needs none."""
        wanted: list[Message] = []
        if isinstance(self.cap, messages.SetBudget) and self.cap.cap_bytes is not None:
            wanted.append(messages.SetBudget(cap_bytes=self.cap.cap_bytes, require=self.cap.require))
        if isinstance(self.reservation, messages.Reserve) and self.reservation.bytes:
            wanted.append(messages.Reserve(bytes=self.reservation.bytes))
        return wanted


def again(error: XlmError) -> XlmError:
    """A copy: an exception raised twice would carry both tracebacks."""
    return copy.copy(error)


def expect(call: Call, kind: type[M]) -> M:
    """The answer of a call that is done. Raises the call's error, or ProtocolError for an answer of another type."""
    if call.error is not None:
        raise again(call.error)
    if not isinstance(call.answer, kind):
        raise unexpected(call.message, call.answer)
    return call.answer


def unexpected(request: Message, answer: Message | None) -> ProtocolError:
    asked, got = (type(message).__name__ for message in (request, answer))
    return ProtocolError(f"the broker answered {asked} with {got}", code="bad_request")
