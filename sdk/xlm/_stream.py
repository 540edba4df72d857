"""Answers as they arrive.

An answer that nobody wants any more is cancelled: leaving a loop over it early,
leaving its ``with`` block, ``cancel()``, or dropping the last reference to it.
(CPython notices the last at once; other Pythons at their next collection.)
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from types import TracebackType
from typing import Protocol, Self

from xlm._calls import Stream
from xlm._link import Link
from xlm.protocol.messages import Usage


class SyncWaiter(Protocol):
    def _until(self, ready: Callable[[], bool], timeout_s: float | None) -> bool: ...


class AsyncWaiter(Protocol):
    def _until(self, ready: Callable[[], bool], timeout_s: float | None) -> Awaitable[bool]: ...


class _Answer:
    """What both kinds of reply know without waiting."""

    def __init__(self, link: Link, stream: Stream) -> None:
        self._link = link
        self._answer = stream

    @property
    def done(self) -> bool:
        """Whether the answer is complete, cancelled or failed. Never blocks."""
        return self._answer.done

    def cancel(self) -> None:
        """Stops the answer: it ends soon, with what it has, and ``finish_reason`` "cancelled".

        Never blocks; does nothing to an answer that is done. Thread-safe.
        """
        if not self._answer.done:
            self._link.cancel(self._answer)

    def _raise_if_failed(self) -> None:
        if self._answer.error is not None:
            raise copy.copy(self._answer.error)

    def __del__(self) -> None:
        self.cancel()


class Reply(_Answer):
    """An answer. Iterate for its pieces (each whole UTF-8 text), or read ``text`` for all of it.

    Each loop begins at the first piece; leaving it before the end cancels the
    answer. Waiting raises the answer's error: ``EngineError``, ``BrokerError``,
    ``ContextOverflow``, ``GenerationError``, ``SessionError`` … Thread-safe.
    """

    def __init__(self, client: SyncWaiter, link: Link, stream: Stream) -> None:
        super().__init__(link, stream)
        self._client = client

    def __iter__(self) -> Pieces:
        return Pieces(self._client, self, self._answer)

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until the answer is done, at most ``timeout`` seconds; False: it is not. Raises its error."""
        finished = self._client._until(lambda: self._answer.done, timeout)
        self._raise_if_failed()
        return finished

    @property
    def text(self) -> str:
        """The whole answer; blocks until it is done. Of a cancelled answer: what it has."""
        self.wait()
        return "".join(self._answer.pieces)

    @property
    def token_ids(self) -> list[int]:
        """Every token of the answer; blocks until it is done."""
        self.wait()
        return list(self._answer.token_ids)

    @property
    def usage(self) -> Usage:
        """Token counts and times (``ttft_ms``, ``tpot_ms``); blocks until the answer is done."""
        self.wait()
        return self._answer.usage

    @property
    def finish_reason(self) -> str:
        """``"stop"``, ``"length"`` or ``"cancelled"``; blocks until the answer is done."""
        self.wait()
        return self._answer.finish_reason or ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.cancel()


class _Reading:
    """A place in an answer. Closing it, or dropping it, before the end cancels the answer."""

    def __init__(self, reply: _Answer, stream: Stream) -> None:
        self._reply = reply
        self._source = stream
        self._at = 0

    def _ready(self) -> bool:
        return self._at < len(self._source.pieces) or self._source.done

    def _take(self) -> str | None:
        """The next piece; None at the end. Raises the answer's error after its last piece."""
        if self._at < len(self._source.pieces):
            self._at += 1
            return self._source.pieces[self._at - 1]
        self._reply._raise_if_failed()
        return None

    def close(self) -> None:
        self._reply.cancel()

    def __del__(self) -> None:
        self.close()


class Pieces(_Reading, Iterator[str]):
    """The iterator of a ``Reply``."""

    def __init__(self, client: SyncWaiter, reply: _Answer, stream: Stream) -> None:
        super().__init__(reply, stream)
        self._client = client

    def __next__(self) -> str:
        self._client._until(self._ready, None)
        piece = self._take()
        if piece is None:
            raise StopIteration
        return piece


class AsyncReply(_Answer):
    """An answer. ``async for`` its pieces, or ``await`` it for its whole text.

    ``text``, ``token_ids``, ``usage`` and ``finish_reason`` never wait: they tell
    what has arrived. Leaving a loop before the end cancels the answer. To be used on
    the event loop of its client, except ``cancel()``, which is thread-safe.
    """

    def __init__(self, client: AsyncWaiter, link: Link, stream: Stream) -> None:
        super().__init__(link, stream)
        self._client = client

    def __aiter__(self) -> AsyncPieces:
        return AsyncPieces(self._client, self, self._answer)

    def __await__(self) -> Generator[None, None, str]:
        return self._whole().__await__()

    async def _whole(self) -> str:
        await self.wait()
        return self.text

    async def wait(self, timeout: float | None = None) -> bool:
        """Waits until the answer is done, at most ``timeout`` seconds; False: it is not. Raises its error."""
        finished = await self._client._until(lambda: self._answer.done, timeout)
        self._raise_if_failed()
        return finished

    @property
    def text(self) -> str:
        """What has arrived so far."""
        return "".join(self._answer.pieces)

    @property
    def token_ids(self) -> list[int]:
        """The tokens that have arrived so far."""
        return list(self._answer.token_ids)

    @property
    def usage(self) -> Usage:
        """Token counts and times; zeros until the answer is done."""
        return self._answer.usage

    @property
    def finish_reason(self) -> str:
        """``"stop"``, ``"length"`` or ``"cancelled"``; empty until the answer is done."""
        return self._answer.finish_reason or ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.cancel()


class AsyncPieces(_Reading, AsyncIterator[str]):
    """The iterator of an ``AsyncReply``. An object, not a generator: those are closed late, by the event loop."""

    def __init__(self, client: AsyncWaiter, reply: _Answer, stream: Stream) -> None:
        super().__init__(reply, stream)
        self._client = client

    async def __anext__(self) -> str:
        await self._client._until(self._ready, None)
        piece = self._take()
        if piece is None:
            raise StopAsyncIteration
        return piece
