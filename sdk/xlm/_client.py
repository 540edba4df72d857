"""The synchronous client."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar, Unpack

from xlm import _requests
from xlm._calls import Call, Conversation, expect
from xlm._link import Link
from xlm._requests import Overflow, Require, SayOptions
from xlm._shell import DEFAULT_TIMEOUT_S, BaseClient, OnNotice, is_closed_already, time_limit_s, timed_out
from xlm._status import Status
from xlm._stream import Reply
from xlm.errors import XlmError
from xlm.protocol import messages
from xlm.protocol.messages import Lease, Message, Notice

_log: Final = logging.getLogger("xlm")
M = TypeVar("M", bound=Message)


class Ticket:
    """A budget on its way: the game goes on, and looks when it likes. Thread-safe."""

    def __init__(self, client: Client, call: Call) -> None:
        self._client = client
        self._call = call

    def done(self) -> bool:
        """Whether ``result()`` would answer without waiting. Never blocks."""
        return self._call.done

    def result(self, timeout: float | None = None) -> Lease:
        """The lease; waits for it at most ``timeout`` seconds (None: as long as it takes).

        Raises what ``set_budget`` raises; after a time-out it may be asked again.
        """
        if not self._client._until(lambda: self._call.done, timeout):
            raise timed_out(self._call, timeout)
        return expect(self._call, Lease)


class Session:
    """A conversation with one NPC. Close it, or use it in a ``with`` block. Thread-safe.

    It outlives a lost connection: the client takes it up again by itself. One
    answer at a time: a second ``say`` meanwhile is a SessionError (``session_busy``).
    """

    def __init__(self, client: Client, link: Link, conversation: Conversation) -> None:
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

    def say(self, text: str, **options: Unpack[SayOptions]) -> Reply:
        """The player says something; returns at once with the answer to come.

        Options: ``max_tokens`` (256), ``temperature`` (0.8; 0 is greedy), ``top_k`` (40), ``top_p`` (0.95),
        ``min_p`` (0.05), ``repeat_penalty`` (1.0), ``repeat_last_n`` (64), ``seed``, ``stop`` (a string or up
        to 16), ``grammar`` (GBNF), ``json_schema`` (a dict, or JSON text), ``priority`` (-100 … 100; higher
        goes first), ``images``.

        ``images``: what the model sees before the text: paths, bytes (a PNG, JPEG, WebP, BMP or GIF file), PIL
        images, or numpy arrays (height x width x 3 or 4, uint8: RGB or RGBA). They are read, copied and hashed here
        (some 20 ms for raw 1440p), and uploaded in the background; one the broker has already is not sent again.

        Raises GenerationError (``sampling_invalid``, ``grammar_invalid``), ProtocolError (``frame_too_large``),
        ImageError (``image_unsupported``, ``image_empty``, ``image_too_large``), BrokerError
        (``broker_gone``, ``overloaded``), SessionError; what goes wrong later is raised by the Reply, as ImageError
        (``image_corrupt``, ``image_animated``, ``too_many_images``, ``vision_unavailable`` …) too.
        """
        return Reply(self._client, self._link, self._client._stream(self._conversation, text, options))

    def close(self) -> None:
        """Ends the conversation and an answer in progress. May be called twice."""
        call = self._client._closing(self._conversation)
        if call is None:
            return
        try:
            self._client._answer(call, messages.Ok, None)
        except XlmError as error:
            if not is_closed_already(error):
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()


class Client(BaseClient):
    """A connection to the broker on this machine. Every method may be called from any thread.

    One background thread does the I/O: it sends heartbeats while the game
    computes, and connects again after a loss, with the same cap, reservation and
    sessions. None of your code runs on it: ``on_notice`` is called inside
    ``poll()``, and while one of your calls waits, on the thread that waits.

    While the broker is away every call raises BrokerError (``broker_gone``) at
    once; what was under way where this program stood still (a debugger), ProtocolError (``lease_expired``). A cap or
    reservation asked for meanwhile is remembered and sent later.
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
        """Connects, waiting at most ``timeout`` seconds, which also is how long later calls wait.

        ``endpoint``: ``ipc:///path`` or ``tcp://127.0.0.1:PORT``; None: ``$XLM_ENDPOINT`` or the default socket.
        ``name``: what status and logs call this client; default: the program's. ``server_key``: for tcp, the
        broker's key or its file (default: ``$XLM_SERVER_KEY``, or the file of this user's broker, if there is one).

        Raises EndpointError, BrokerError (``not_ready``: nobody answers), ProtocolError (``protocol_version``).
        """
        self._dispatching = threading.local()
        super().__init__(endpoint, name=name, timeout=timeout, server_key=server_key, on_notice=on_notice)
        try:
            self.wait_connected(timeout)
        except BaseException:
            self.close()
            raise

    def wait_connected(self, timeout: float | None = None) -> None:
        """Waits until there is a connection, at most ``timeout`` seconds (None: for ever).

        Raises BrokerError (``not_ready``, ``broker_gone``) where there is none by then, or what is against it for good.
        """
        self._until(self._settled, timeout)
        self._check_connected(timeout)

    def set_budget(
        self,
        size: int | str | None,
        deadline_ms: float | None = None,
        require: Require = "any",
        *,
        timeout: float | None = None,
    ) -> Lease:
        """The model may use at most ``size`` of the device; None lifts this client's cap.

        Returns once the bytes are really released. ``deadline_ms``: by when you need them; it is tried hard, and
        ``deadline_met`` tells. ``require="device"`` refuses a cap too small to run anything on the device, instead
        of running on the CPU alone. ``timeout`` seconds: default is the client's (15 where it has none of
        its own: then the broker has given up on an engine that hangs), beside the deadline.

        Raises BudgetError (``budget_invalid``; ``budget_infeasible`` with ``minimum_bytes``), BrokerError
        (``broker_gone``, ``timeout``: the cap stays asked for).
        """
        call = self._link.submit(Call(_requests.set_budget(size, deadline_ms, require)))
        return self._answer(call, Lease, time_limit_s(timeout, self.timeout, deadline_ms))

    def set_budget_nowait(
        self, size: int | str | None, deadline_ms: float | None = None, require: Require = "any"
    ) -> Ticket:
        """As ``set_budget``, for a game thread: never blocks; the Ticket has the answer. Raises ``budget_invalid``."""
        return Ticket(self, self._link.submit(Call(_requests.set_budget(size, deadline_ms, require))))

    def reserve(self, size: int | str, deadline_ms: float | None = None, *, timeout: float | None = None) -> Lease:
        """Keeps ``size`` of the device free for this client, until it closes; 0 ends it. Errors: as ``set_budget``."""
        call = self._link.submit(Call(_requests.reserve(size, deadline_ms)))
        return self._answer(call, Lease, time_limit_s(timeout, self.timeout, deadline_ms))

    def open_session(self, system: str = "", overflow: Overflow = "error", resume: str | None = None) -> Session:
        """A conversation. ``system``: who the NPC is. ``overflow``: when the context is full, a ContextOverflow
        ("error"), or forget the oldest turns and keep ``system`` ("shift"). ``resume``: the ``id`` of an earlier
        session of a client of this name, to go on with it; see ``Session.resumed``.

        Raises SessionError (``too_many_sessions``; ``session_unknown``: not to be resumed), BrokerError,
        ProtocolError (``frame_too_large``).
        """
        call = self._link.submit(Call(_requests.open_session(system, overflow, resume or "")))
        self._answer(call, messages.Session, None)
        assert call.conversation is not None  # made by the connection for every SESSION answer
        return Session(self, self._link, call.conversation)

    def status(self) -> Status:
        """A snapshot of broker, engine, device, budget, schedule, clients and sessions. Raises BrokerError."""
        call = self._link.submit(Call(messages.GetStatus()))
        return Status.from_message(self._answer(call, messages.Status, None))

    def wait_notice(self, timeout: float | None = None) -> Notice | None:
        """The next notice, waiting for it at most ``timeout`` seconds; None: there is none. Not with ``on_notice``.

        Raises like any call once the client is closed, or failed for good, and the last notice was taken.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while (notice := self._next_notice()) is None:
            left = None if until is None else max(0.0, until - time.monotonic())
            self._check_notices_may_come()
            if not self._link.wait(lambda: bool(self._connection.notices) or self._ended, left):
                return None
        return notice

    def close(self) -> None:
        """Says goodbye: cap, reservation and sessions end. Calls in other threads raise. May be called twice."""
        self._link.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    # -- waiting -------------------------------------------------------------------

    def _answer(self, call: Call, kind: type[M], timeout_s: float | None) -> M:
        limit_s = self.timeout if timeout_s is None else timeout_s
        try:
            in_time = self._until(lambda: call.done, limit_s)
        except BaseException:
            self._link.forget(call)
            raise
        if not in_time:
            self._link.forget(call)
            raise timed_out(call, limit_s)
        return expect(call, kind)

    def _until(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Blocks until ``ready``, handing out notices meanwhile; False: not within ``timeout_s``."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._hand_out_notices()
            left = None if until is None else max(0.0, until - time.monotonic())
            woken = self._link.wait(lambda: ready() or self._has_notices(), left)
            if ready():
                return True
            if not woken:
                return False

    def _has_notices(self) -> bool:
        busy = getattr(self._dispatching, "busy", False)  # a callback that itself calls and waits
        return self.on_notice is not None and not busy and bool(self._connection.notices)

    def _hand_out_notices(self) -> None:
        if not self._has_notices():
            return
        self._dispatching.busy = True
        try:
            self.poll()
        except Exception:  # the call that waits has nothing to do with it
            _log.exception("on_notice raised an error")
        finally:
            self._dispatching.busy = False


def connect(
    endpoint: str | None = None,
    *,
    name: str = "",
    timeout: float = DEFAULT_TIMEOUT_S,
    server_key: str | Path | None = None,
    on_notice: OnNotice | None = None,
) -> Client:
    """Connects to the broker on this machine; see ``Client``. Use it in a ``with`` block, or ``close()`` it."""
    return Client(endpoint, name=name, timeout=timeout, server_key=server_key, on_notice=on_notice)
