"""Everything the broker's brain can ask for, as data.

The driver carries the actions of one ``handle`` call out in order and without
waiting between them; what comes of an action returns as an event. None of them
may fail loudly: a peer that is gone becomes ClientGone, an engine that does not
start becomes EngineExited.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from xlm.protocol import link, messages

Level = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class SendClient:
    """Send one message to a peer. If its queue is full, send SendStalled and *keep* this message."""

    client: bytes
    message: messages.Message


@dataclass(frozen=True, slots=True)
class SendEngine:
    """Send one message to the running engine child. Dropped if the child is gone: EngineExited follows."""

    message: link.ToEngine


@dataclass(frozen=True, slots=True)
class SpawnEngine:
    """Start the engine child now; answered by EngineSpawned, then EngineMessage(Started), or EngineExited.

    The machine holds the back-off itself, and asks only after the child before was confirmed dead.
    """

    incarnation: int


@dataclass(frozen=True, slots=True)
class KillEngine:
    """SIGKILL the engine child (TerminateProcess on Windows). Answered by EngineExited. Safe to repeat."""

    incarnation: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ForgetClient:
    """The peer has no lease any more: drop what the driver keeps for it after its last message was sent."""

    client: bytes


@dataclass(frozen=True, slots=True)
class ProbeClients:
    """Which of these peers have closed their connections without a word? A ClientGone for each such, then
    ``hello`` of ``client`` once more, as a ClientMessage that says ``probed``. Peers that are there notice nothing.
    """

    clients: tuple[bytes, ...]
    client: bytes
    hello: messages.Hello


@dataclass(frozen=True, slots=True)
class Log:
    """One structured log line; ``fields`` are plain values, ``cause`` the causal id of the event."""

    level: Level
    event: str
    cause: str = ""
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FindPlan:
    """Look for the best schedule beside everything else. Answered by Planned, one or more times, whatever happens.

    A later request takes the place of an earlier one, whose answers are not wanted any more. ``current``: what the
    engine works by, so that a change that is not worth its upload is not proposed; None: nothing is held yet.
    """

    request_id: int
    model: link.ModelFacts
    device: link.DeviceFacts
    budget_bytes: int
    current: link.Schedule | None = None
    routing: tuple[link.ExpertStats, ...] = ()  # of experts, as far as it was measured


@dataclass(frozen=True, slots=True)
class StopBroker:
    """Everything is done: flush the sockets, close, exit with this code."""

    exit_code: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class BeginUpload:
    """The bytes of an image will come under this number. The layout is part of what its key names."""

    upload_id: int
    layout: messages.ImageBegin


@dataclass(frozen=True, slots=True)
class StoreChunk:
    """The next bytes of an upload."""

    upload_id: int
    data: bytes


@dataclass(frozen=True, slots=True)
class EndUpload:
    """Keep the bytes under ``key`` if they are what it names, else forget them. Answered by ImageVerified."""

    upload_id: int
    key: str


@dataclass(frozen=True, slots=True)
class DropUpload:
    """Forget the bytes of an unfinished upload. Safe to repeat."""

    upload_id: int


@dataclass(frozen=True, slots=True)
class DropImage:
    """Forget the bytes of an image."""

    key: str


@dataclass(frozen=True, slots=True)
class SendImagePart:
    """Send the engine some bytes of an image, as a link.ImagePart."""

    layout: messages.ImageBegin
    offset: int
    max_bytes: int


ImageAction = BeginUpload | StoreChunk | EndUpload | DropUpload | DropImage | SendImagePart
EngineAction = SendEngine | SpawnEngine | KillEngine | FindPlan
Action = SendClient | EngineAction | ForgetClient | ProbeClients | Log | StopBroker | ImageAction
