"""Everything that can happen to the broker, as data.

The driver turns sockets, timers, child processes and NVML into these and hands
each to ``Machine.handle(event, now_ns)``. Events are facts: they never carry a
wish of the driver, and the machine never refuses one. An event that comes late
or twice (a message of an engine that is gone, a client gone already) is ignored.

``client`` is the opaque ZeroMQ identity of a peer. ``incarnation`` is the number
of the engine process, as given by ``SpawnEngine``: it keeps the last messages of
a dead process apart from those of its successor.
"""

from __future__ import annotations

from dataclasses import dataclass

from xlm.errors import XlmError
from xlm.protocol import link, messages


@dataclass(frozen=True, slots=True)
class BrokerStarted:
    """The first event: sockets are bound. The machine answers with SpawnEngine."""


@dataclass(frozen=True, slots=True)
class ClientMessage:
    """A well-formed request. Its ``cause`` is kept; an empty one is replaced by a generated id.

    ``probed``: a HELLO that comes again, after ProbeClients was carried out for its sake.
    """

    client: bytes
    message: messages.Request
    probed: bool = False


@dataclass(frozen=True, slots=True)
class ClientFault:
    """A frame the codec refused. ``request_id`` and ``cause`` as far as they could be read.

    The machine answers with ERROR, so that refusals obey the same back-pressure as replies.
    """

    client: bytes
    error: XlmError
    request_id: int = 0
    cause: str = ""


@dataclass(frozen=True, slots=True)
class ClientGone:
    """The peer cannot be reached any more (host unreachable, connection closed)."""

    client: bytes


@dataclass(frozen=True, slots=True)
class SendStalled:
    """The peer's send queue is full. From now on the machine keeps one bounded message per answer."""

    client: bytes


@dataclass(frozen=True, slots=True)
class SendDrained:
    """The peer's send queue has room again."""

    client: bytes


@dataclass(frozen=True, slots=True)
class EngineSpawned:
    """The child process exists. Its first message will be link.Started."""

    incarnation: int
    pid: int


@dataclass(frozen=True, slots=True)
class EngineMessage:
    """A message of the engine child."""

    incarnation: int
    message: link.FromEngine


@dataclass(frozen=True, slots=True)
class EngineExited:
    """The child was waited for: it is dead, and the driver gave its device memory back.

    Also sent when the process could not be started at all. ``exit_code`` is None
    then; ``signal`` is the number of the signal that killed it, 0 if none.
    """

    incarnation: int
    exit_code: int | None = None
    signal: int = 0
    detail: str = ""  # for people: last lines of stderr, or why it could not start
    code: str = ""  # of xlm.errors, where another start would end the same way


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """What the operating system or NVML says of the card, about once a second. None: not known.

    ``foreign_bytes`` is what processes other than the engine hold. Where only
    ``free_bytes`` is known, the machine adds what the engine holds by its own ledger.
    An answer of "not supported" is a report with all three None.
    """

    source: str  # nvml | os | none
    total_bytes: int | None = None
    free_bytes: int | None = None
    foreign_bytes: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Planned:
    """What FindPlan found. ``schedule`` None: nothing, because of ``problem``. ``final``: no better one will follow."""

    request_id: int
    schedule: link.Schedule | None = None
    final: bool = True
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ModelFileChanged:
    """The model's file appeared, or is another one than before: an engine that failed for it may try again."""


@dataclass(frozen=True, slots=True)
class ImageVerified:
    """The store has compared an upload with its key: ``good``, and kept, or forgotten."""

    upload_id: int
    good: bool


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed; due at ``Machine.next_deadline_ns()`` at the latest, harmless at any time."""


@dataclass(frozen=True, slots=True)
class ShutdownRequested:
    """SIGTERM, SIGINT or the end of the parent. A second one kills the engine at once."""

    reason: str = ""


Event = (
    BrokerStarted
    | ClientMessage
    | ClientFault
    | ClientGone
    | SendStalled
    | SendDrained
    | EngineSpawned
    | EngineMessage
    | EngineExited
    | DeviceReport
    | Planned
    | ModelFileChanged
    | ImageVerified
    | Tick
    | ShutdownRequested
)
