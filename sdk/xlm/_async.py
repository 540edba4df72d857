"""The asynchronous client. The same I/O thread serves it, so that a blocked event loop misses no heartbeat."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeVar, Unpack

from xlm import _requests
from xlm._calls import Call, Conversation, expect
from xlm._link import Link
from xlm._requests import Overflow, Require, SayOptions
from xlm._shell import DEFAULT_TIMEOUT_S, BaseClient, OnNotice, is_closed_already, time_limit_s, timed_out
from xlm._status import Status
from xlm._stream import AsyncReply
from xlm.errors import XlmError
from xlm.protocol import messages
from xlm.protocol.messages import Lease, Message, Notice

_log: Final = logging.getLogger("xlm")
M = TypeVar("M", bound=Message)


class _Closable(Protocol):
    async def close(self) -> None: ...


T = TypeVar("T", bound=_Closable)


class Opening(Generic[T]):
    """Something to ``await``, or to use in ``async with``, which closes it at the end."""

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._made: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._make().__await__()

    async def __aenter__(self) -> T:
        self._made = await self._make()
        return self._made

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._made is not None:
            await self._made.close()


class _Waiters:
    """Wakes coroutines from the I/O thread. It knows no client, so that a forgotten client can be collected."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: set[asyncio.Future[None]] = set()

    def wake(self) -> None:
        """On the I/O thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._wake_all)

    def _wake_all(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def next_change(self) -> None:
        future = self._loop.create_future()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)


class AsyncTicket:
    """A budget on its way. ``await`` it for the Lease, or look at ``done()`` once a frame."""

    def __init__(self, client: AsyncClient, call: Call) -> None:
        self._client = client
        self._call = call

    def done(self) -> bool:
        """Whether the answer is there."""
        return self._call.done

    async def result(self, timeout: float | None = None) -> Lease:
        """The lease; waits at most ``timeout`` seconds (None: as long as it takes). Raises as ``set_budget``."""
        if not await self._client._until(lambda: self._call.done, timeout):
            raise timed_out(self._call, timeout)
        return expect(self._call, Lease)

    def __await__(self) -> Generator[Any, None, Lease]:
        return self.result().__await__()


class AsyncSession:
    """A conversation with one NPC; see ``xlm.Session``."""

    def __init__(self, client: AsyncClient, link: Link, conversation: Conversation) -> None:
        self._client = client
        self._link = link
        self._conversation = conversation

    @property
    def id(self) -> str:
        """The broker's name for it, to go on with it later: ``open_session(resume=...)``."""
        return self._conversation.session_id

    @property
    def n_ctx(self) -> int:
        """How many tokens the conversation may hold; 0 where the broker does not say."""
        return self._conversation.n_ctx

    @property
    def resumed(self) -> bool:
        """Whether the broker still knew the conversation when it was opened last."""
        return self._conversation.resumed

    def say(self, text: str, **options: Unpack[SayOptions]) -> AsyncReply:
        """The player says something; returns at once (no ``await``) with the answer to come.

        Options and errors: ``xlm.Session.say``.
        """
        return AsyncReply(self._client, self._link, self._client._stream(self._conversation, text, options))

    async def close(self) -> None:
        """Ends the conversation and an answer in progress. May be called twice."""
        call = self._client._closing(self._conversation)
        if call is None:
            return
        try:
            await self._client._answer(call, messages.Ok, None)
        except XlmError as error:
            if not is_closed_already(error):
                raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.close()


class AsyncClient(BaseClient):
    """A connection to the broker on this machine, for one event loop. Get it with ``xlm.aconnect()``.

    Its methods belong to the loop it was made on. What ``xlm.Client`` says of the
    I/O thread, reconnection and ``on_notice`` holds here too: the callback runs on
    the event loop, inside ``poll()`` or while a call is awaited.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        name: str = "",
        timeout: float = DEFAULT_TIMEOUT_S,
        server_key: str | Path | None = None,
        on_notice: OnNotice | None = None,
    ) -> None:
        """Begins to connect, in the background; ``wait_connected()`` waits. Arguments: as ``xlm.Client``."""
        self._waiters = _Waiters()
        self._dispatching = False
        super().__init__(
            endpoint,
            name=name,
            timeout=timeout,
            server_key=server_key,
            on_notice=on_notice,
            on_change=self._waiters.wake,
        )

    async def wait_connected(self, timeout: float | None = None) -> None:
        """Waits until there is a connection, at most ``timeout`` seconds (None: for ever).

        Raises BrokerError (``not_ready``, ``broker_gone``) where there is none by then, or what is against it for good.
        """
        await self._until(self._settled, timeout)
        self._check_connected(timeout)

    async def set_budget(
        self,
        size: int | str | None,
        deadline_ms: float | None = None,
        require: Require = "any",
        *,
        timeout: float | None = None,
    ) -> Lease:
        """The model may use at most ``size`` of the device; see ``xlm.Client.set_budget``."""
        call = self._link.submit(Call(_requests.set_budget(size, deadline_ms, require)))
        return await self._answer(call, Lease, time_limit_s(timeout, self.timeout, deadline_ms))

    def set_budget_nowait(
        self, size: int | str | None, deadline_ms: float | None = None, require: Require = "any"
    ) -> AsyncTicket:
        """As ``set_budget``, sent at once and awaited later, or never."""
        return AsyncTicket(self, self._link.submit(Call(_requests.set_budget(size, deadline_ms, require))))

    async def reserve(
        self, size: int | str, deadline_ms: float | None = None, *, timeout: float | None = None
    ) -> Lease:
        """Keeps ``size`` of the device free for this client; see ``xlm.Client.reserve``."""
        call = self._link.submit(Call(_requests.reserve(size, deadline_ms)))
        return await self._answer(call, Lease, time_limit_s(timeout, self.timeout, deadline_ms))

    def open_session(
        self, system: str = "", overflow: Overflow = "error", resume: str | None = None
    ) -> Opening[AsyncSession]:
        """A conversation, to ``await`` or for ``async with``; see ``xlm.Client.open_session``."""
        return Opening(lambda: self._open(system, overflow, resume))

    async def status(self) -> Status:
        """A snapshot; see ``xlm.Client.status``."""
        call = self._link.submit(Call(messages.GetStatus()))
        return Status.from_message(await self._answer(call, messages.Status, None))

    async def wait_notice(self, timeout: float | None = None) -> Notice | None:
        """The next notice, waiting for it at most ``timeout`` seconds; None: there is none. Not with ``on_notice``.

        Raises like any call once the client is closed, or failed for good, and the last notice was taken.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while (notice := self._next_notice()) is None:
                    self._check_notices_may_come()
                    await self._waiters.next_change()
                return notice
        return None

    async def close(self) -> None:
        """Says goodbye: cap, reservation and sessions end. May be called twice."""
        await asyncio.to_thread(self._link.stop)

    async def __aenter__(self) -> Self:
        await self.wait_connected(self.timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.close()

    # -- waiting -------------------------------------------------------------------

    async def _open(self, system: str, overflow: Overflow, resume: str | None) -> AsyncSession:
        call = self._link.submit(Call(_requests.open_session(system, overflow, resume or "")))
        await self._answer(call, messages.Session, None)
        assert call.conversation is not None  # made by the connection for every SESSION answer
        return AsyncSession(self, self._link, call.conversation)

    async def _answer(self, call: Call, kind: type[M], timeout_s: float | None) -> M:
        limit_s = self.timeout if timeout_s is None else timeout_s
        try:
            in_time = await self._until(lambda: call.done, limit_s)
        except BaseException:  # cancelled
            self._link.forget(call)
            raise
        if not in_time:
            self._link.forget(call)
            raise timed_out(call, limit_s)
        return expect(call, kind)

    async def _until(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Waits until ``ready``, handing out notices meanwhile; False: not within ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                while not ready():
                    self._hand_out_notices()
                    await self._waiters.next_change()
        except TimeoutError:
            return ready()
        self._hand_out_notices()
        return True

    def _hand_out_notices(self) -> None:
        if self._dispatching:
            return
        self._dispatching = True
        try:
            self.poll()
        except Exception:  # the call that waits has nothing to do with it
            _log.exception("on_notice raised an error")
        finally:
            self._dispatching = False


def aconnect(
    endpoint: str | None = None,
    *,
    name: str = "",
    timeout: float = DEFAULT_TIMEOUT_S,
    server_key: str | Path | None = None,
    on_notice: OnNotice | None = None,
) -> Opening[AsyncClient]:
    """Connects: ``client = await xlm.aconnect()``, or ``async with xlm.aconnect() as client``. See ``xlm.connect``."""

    async def make() -> AsyncClient:
        client = AsyncClient(endpoint, name=name, timeout=timeout, server_key=server_key, on_notice=on_notice)
        try:
            await client.wait_connected(timeout)
        except BaseException:
            await client.close()
            raise
        return client

    return Opening(make)
