"""What the sync and the async client have in common: how they are set up and what they know without asking."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from pathlib import Path

from xlm._base import Connection, Identity, Phase
from xlm._calls import Call, Conversation, Stream
from xlm._frames import Pacing, Sample
from xlm._link import Link
from xlm._requests import SayOptions, say
from xlm._version import __version__
from xlm.errors import BrokerError, EndpointError, RequestError, XlmError
from xlm.protocol import messages
from xlm.protocol.endpoints import Endpoint, parse_endpoint
from xlm.protocol.keys import find_server_key
from xlm.protocol.messages import Notice

OnNotice = Callable[[Notice], None]
DEFAULT_TIMEOUT_S = 5.0
# A broker gives an engine that does not release memory 10 s and then kills it, which does: by then there is an answer.
BUDGET_TIMEOUT_S = 15.0


class BaseClient:
    """State and settings of a client; ``Client`` and ``AsyncClient`` add how to wait."""

    def __init__(
        self,
        endpoint: str | None,
        *,
        name: str,
        timeout: float,
        server_key: str | Path | None,
        on_notice: OnNotice | None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.timeout = timeout
        self.on_notice = on_notice
        self._endpoint = parse_endpoint(endpoint)
        identity = Identity(_name(name), os.getpid(), f"python-{__version__}")
        self._connection = Connection(identity)
        self._link = Link(self._endpoint, _key(self._endpoint, server_key), self._connection, on_change)
        weakref.finalize(self, self._link.request_stop)
        self._link.start()

    @property
    def endpoint(self) -> str:
        """Where the broker is looked for."""
        return self._endpoint.url

    @property
    def connected(self) -> bool:
        """Whether calls are taken now. While it is false they raise at once, and connecting goes on by itself."""
        return self._connection.phase is Phase.READY

    @property
    def lease_id(self) -> str:
        """The broker's name for this connection's lease."""
        return self._connection.lease_id

    @property
    def protocol_version(self) -> int:
        return self._connection.version

    @property
    def broker_version(self) -> str:
        return self._connection.broker_version

    def report_frame(
        self, frame_ns: int, target_ns: int = 16_666_667, *, gpu_ns: int = 0, pacing: Pacing = "steps"
    ) -> None:
        """One frame of the game took ``frame_ns``, begin to begin, and may take ``target_ns``; for every frame.

        The broker then slows its steps down to hold the target (``pacing="steps"``), takes less of the device too
        where that does not do ("shrink"), or only looks on ("off"). ``gpu_ns``: the frame's time on the GPU, if known.

        Never blocks and waits for nothing (no ``await`` either): frames are summed up and sent ten times a second,
        and dropped while there is no connection. Thread-safe. Raises RequestError (``bad_request``).
        """
        self._link.report_frame(Sample(frame_ns, target_ns, gpu_ns, pacing))

    def notices(self) -> list[Notice]:
        """Takes the notices that have come since the last call, oldest first, without waiting.

        At most 1,024 are kept, the newest ones. A notice given to ``on_notice`` is not among them. Thread-safe.
        """
        taken: list[Notice] = []
        while (notice := self._next_notice()) is not None:
            taken.append(notice)
        return taken

    def poll(self) -> int:
        """Gives each waiting notice to ``on_notice``, in this thread; returns how many. Never blocks.

        What ``on_notice`` raises comes out of here. Without ``on_notice`` nothing is taken. Thread-safe.
        """
        count = 0
        while self.on_notice is not None and (notice := self._next_notice()) is not None:
            self.on_notice(notice)
            count += 1
        return count

    def _next_notice(self) -> Notice | None:
        try:
            return self._connection.notices.popleft()
        except IndexError:
            return None

    @property
    def _ended(self) -> bool:
        return self._connection.phase in (Phase.FAILED, Phase.CLOSED)

    def _settled(self) -> bool:
        return self._connection.phase is Phase.READY or self._ended

    def _check_notices_may_come(self) -> None:
        """Whoever waits for one after the end would wait for ever."""
        if self._ended and not self._connection.notices:
            raise self._connection.absence()

    def _check_connected(self, timeout_s: float | None) -> None:
        """After waiting for a connection. Raises what stands against it."""
        if self.connected:
            return
        if self._settled():
            raise self._connection.absence()
        trouble = f": {self._connection.trouble}" if self._connection.trouble else ""
        code = "broker_gone" if self._connection.lease_id else "not_ready"
        raise BrokerError(f"no broker answers at {self.endpoint} within {timeout_s:g} s{trouble}", code=code)

    def _stream(self, conversation: Conversation, text: str, options: SayOptions) -> Stream:
        if conversation.lost is not None:
            raise conversation.lost
        message, pictures = say(conversation.session_id, text, options)
        stream = Stream(message, conversation, pictures)
        self._link.submit(stream)
        if stream.error is not None:  # there is no connection, which is known now
            raise stream.error
        return stream

    def _closing(self, conversation: Conversation) -> Call | None:
        """The request that closes a session, sent; None: nothing to close any more."""
        with self._link.changed:
            call = self._connection.end_conversation(conversation)
        return None if call is None else self._link.submit(call)


def time_limit_s(asked_s: float | None, default_s: float, deadline_ms: float | None) -> float:
    """How long to wait for a budget: what was asked, or the client's time-out beside the deadline itself.

    Who has set no time-out at all waits BUDGET_TIMEOUT_S: not less than a broker may need to answer for sure.
    """
    if asked_s is not None:
        return asked_s
    return (BUDGET_TIMEOUT_S if default_s == DEFAULT_TIMEOUT_S else default_s) + (deadline_ms or 0.0) / 1e3


def timed_out(call: Call, timeout_s: float | None) -> BrokerError:
    what = type(call.message).__name__
    waiting = isinstance(call.message, (messages.SetBudget, messages.Reserve))
    why = ": the engine has not released the memory yet; what was asked for stays in force" if waiting else ""
    return BrokerError(f"no answer to {what} within {timeout_s:g} s{why}", code="timeout")


def is_closed_already(error: XlmError) -> bool:
    """Errors of a close that mean there is nothing left to close."""
    return error.code in ("session_unknown", "broker_gone", "not_ready", "not_connected", "lease_expired")


def _key(endpoint: Endpoint, server_key: str | Path | None) -> str | None:
    if endpoint.scheme == "tcp":
        return find_server_key(server_key)
    if server_key:
        raise EndpointError("a server key is for tcp; an ipc socket is private already", code="endpoint_invalid")
    return None


def _name(name: str) -> str:
    longest = 256  # messages.Name
    program = Path(sys.argv[0] if sys.argv else "").stem.encode("utf-8", "replace").decode()[:longest]
    chosen = name or program or "python"
    if len(chosen) > longest:
        raise RequestError(f"a client name has at most {longest} characters", code="bad_request")
    try:
        chosen.encode("utf-8")
    except UnicodeEncodeError:
        raise RequestError(f"the client name {chosen!r} is no text", code="bad_request") from None
    return chosen
