"""What the parts of the machine share: the time of the event, the list of actions, clients, ids."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from xlm.errors import XlmError, from_code
from xlm.protocol import link, messages

from .actions import Action, ForgetClient, Level, Log, SendClient, SendEngine, StopBroker
from .outbox import Outbox
from .settings import MachineSettings


@dataclass(slots=True)
class BudgetRequest:
    """A set_budget or reserve that waits until the engine confirmed ``seq``."""

    request_id: int
    cause: str
    received_ns: int
    deadline_ms: float | None
    seq: int | None = None  # None: not yet arbitrated


@dataclass(slots=True)
class Client:
    """A connected peer and its lease."""

    identity: bytes
    name: str
    pid: int
    lease_id: str
    version: int
    expires_ns: int
    since_ns: int
    cap_bytes: int | None = None
    reserved_bytes: int = 0
    speaks_budget: bool = False  # has sent set_budget or reserve: counts for "budget from game"
    told_bytes: int | None = None  # the granted budget it last heard of
    warned: bool = False  # lease_expiring was sent
    pending: list[BudgetRequest] = field(default_factory=list)
    outbox: Outbox | None = None  # set while its send queue is full


class Core:
    """State shared by the parts. ``begin`` opens an event, ``take`` closes it."""

    def __init__(self, settings: MachineSettings) -> None:
        self.settings = settings
        self.clients: dict[bytes, Client] = {}
        self.overflowed: list[bytes] = []  # clients whose outbox is full: their leases end with this event
        self.now_ns = 0
        self.cause = ""
        self._actions: list[Action] = []
        self._count = 0

    def begin(self, now_ns: int, cause: str) -> None:
        self.now_ns = max(self.now_ns, now_ns)
        self.cause = cause or f"b{self.count()}"

    def take(self) -> list[Action]:
        """The actions in order; StopBroker comes last, whatever was still to be said after it was decided."""
        actions, self._actions = self._actions, []
        return sorted(actions, key=lambda action: isinstance(action, StopBroker))

    def count(self) -> int:
        self._count += 1
        return self._count

    def new_id(self, prefix: str) -> str:
        """An id nobody can guess who does not know the seed."""
        digest = blake2b(str(self.count()).encode(), key=self.settings.id_seed[:64], digest_size=12)
        return f"{prefix}-{digest.hexdigest()}"

    # -- actions ----------------------------------------------------------------

    def do(self, action: Action) -> None:
        self._actions.append(action)

    def log(self, level: Level, event: str, **fields: Any) -> None:
        self.do(Log(level, event, self.cause, fields))

    def to_engine(self, message: link.ToEngine) -> None:
        self.do(SendEngine(message))

    def send(self, identity: bytes, message: messages.Message) -> None:
        """To the peer, or to its outbox while it is stalled."""
        client = self.clients.get(identity)
        if client is None or client.outbox is None:
            self.do(SendClient(identity, message))
        elif not client.outbox.put(message):
            self.overflowed.append(identity)

    def fail(self, identity: bytes, request_id: int, error: XlmError, cause: str = "") -> None:
        """Answers a request with a typed error."""
        self.send(
            identity,
            messages.Error(
                id=request_id,
                cause=cause or self.cause,
                code=error.code,
                message=error.message,
                fault=error.fault,
                retryable=error.retryable,
                hint=error.hint,
                minimum_bytes=getattr(error, "minimum_bytes", None),
            ),
        )

    def refuse(self, identity: bytes, request_id: int, code: str, text: str) -> None:
        self.fail(identity, request_id, from_code(code, text))

    def notify(self, kind: str, text: str, **detail: Any) -> None:
        """A notice to every client."""
        for identity in list(self.clients):
            self.send(identity, messages.Notice(cause=self.cause, kind=kind, text=text, detail=detail))

    def forget(self, identity: bytes) -> None:
        self.do(ForgetClient(identity))
