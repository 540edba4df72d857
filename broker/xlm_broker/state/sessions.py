"""Conversations. The broker's copy of the history is the truth; the engine only caches it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from xlm.protocol import link, messages

from .core import Client, Core
from .engine import Engine

TOKEN_BYTES = 4  # little-endian int32


@dataclass(slots=True)
class Session:
    session_id: str
    name: str  # of its client: only a client of that name may take it up again
    system: str
    overflow: str
    client: bytes | None  # None: its client is gone, it waits until grace_ns
    context: bytes = b""
    turns: int = 0
    gen_id: int | None = None  # the answer in progress
    grace_ns: int | None = None
    images: list[str] = field(default_factory=list)  # keys of those in the context, in order

    @property
    def n_tokens(self) -> int:
        return len(self.context) // TOKEN_BYTES

    def finish(self, delta: bytes, keep: list[tuple[int, int]], images: Iterable[str] = ()) -> None:
        """Takes up a finished turn: the kept ranges of the old context, then the new tokens; the images of both."""
        kept = (self.context[TOKEN_BYTES * max(0, a) : TOKEN_BYTES * max(0, a, b)] for a, b in keep)
        self.context = b"".join(kept) + delta[: len(delta) // TOKEN_BYTES * TOKEN_BYTES]
        self.images = list(images)
        self.turns += 1


class Sessions:
    """``abandon(session, tell)`` ends the answer in progress of a session that goes away."""

    def __init__(self, core: Core, engine: Engine, abandon: Callable[[Session, bool], None]) -> None:
        self._core = core
        self._engine = engine
        self._abandon = abandon
        self.live: dict[str, Session] = {}

    def find(self, client: Client, session_id: str) -> Session | None:
        session = self.live.get(session_id)
        return session if session is not None and session.client == client.identity else None

    # -- requests -------------------------------------------------------------------

    def open(self, client: Client, request: messages.OpenSession) -> None:
        if not self._may_have_another(client, request.resume):
            most = self._core.settings.limits.max_client_sessions
            text = f"{most} sessions of this client are open, and that is the most"
            return self._core.refuse(client.identity, request.id, "too_many_sessions", text)
        session = self._take_up(client, request.resume) if request.resume else self._new(client, request)
        if session is not None:
            self._core.send(
                client.identity,
                messages.Session(
                    id=request.id,
                    cause=self._core.cause,
                    session_id=session.session_id,
                    resumed=bool(request.resume),
                    n_ctx=self._n_ctx(),
                ),
            )
        elif request.resume:
            self._core.refuse(client.identity, request.id, "session_unknown", "this session cannot be resumed")
        else:
            text = f"{len(self.live)} sessions of all clients are open, and that is the most"
            self._core.refuse(client.identity, request.id, "too_many_sessions", text)
        return None

    def _may_have_another(self, client: Client, resume: str) -> bool:
        own = self._of(client)
        resumed = any(session.session_id == resume for session in own)
        return resumed or len(own) < self._core.settings.limits.max_client_sessions

    def _of(self, client: Client) -> list[Session]:
        return [session for session in self.live.values() if session.client == client.identity]

    def _n_ctx(self) -> int:
        return self._engine.model.n_ctx if self._engine.model is not None else self._core.settings.model.n_ctx

    def _take_up(self, client: Client, session_id: str) -> Session | None:
        session = self.live.get(session_id)
        if session is None or session.name != client.name or session.client not in (None, client.identity):
            return None
        session.client, session.grace_ns = client.identity, None
        self._core.log("info", "session_resumed", session=session_id, tokens=session.n_tokens)
        return session

    def _new(self, client: Client, request: messages.OpenSession) -> Session | None:
        if len(self.live) >= self._core.settings.limits.max_sessions and not self._drop_waiting():
            return None
        session_id = self._core.new_id("session")
        session = Session(session_id, client.name, request.system, request.overflow, client.identity)
        self.live[session_id] = session
        self._core.log("info", "session_opened", session=session_id, name=client.name)
        return session

    def _drop_waiting(self) -> bool:
        """Makes room by the session that has waited longest for its lost client."""
        waiting = [session for session in self.live.values() if session.client is None]
        if waiting:
            self.drop(min(waiting, key=lambda session: session.grace_ns or 0), "room", tell=False)
        return bool(waiting)

    def close(self, client: Client, request: messages.CloseSession) -> None:
        session = self.find(client, request.session_id)
        if session is None:
            return self._core.refuse(client.identity, request.id, "session_unknown", "there is no such session")
        self.drop(session, "closed", tell=True)
        return self._core.send(client.identity, messages.Ok(id=request.id, cause=self._core.cause))

    # -- leases ---------------------------------------------------------------------

    def lease_ended(self, client: Client, keep: bool) -> None:
        for session in self._of(client):
            if keep:
                session.client = None
                session.grace_ns = self._core.now_ns + self._core.settings.timing.session_grace_ns
            else:
                self.drop(session, "lease ended", tell=False)

    def lease_moved(self, old: bytes, new: bytes) -> None:
        for session in self.live.values():
            session.client = new if session.client == old else session.client

    def drop(self, session: Session, why: str, *, tell: bool) -> None:
        """``tell``: the client still hears that its answer in progress was cancelled."""
        self._abandon(session, tell)
        del self.live[session.session_id]
        if self._engine.ready:
            self._core.to_engine(link.DropSession(session_id=session.session_id))
        self._core.log("info", "session_dropped", session=session.session_id, why=why)

    def pass_time(self) -> None:
        for session in list(self.live.values()):
            if session.grace_ns is not None and session.grace_ns <= self._core.now_ns:
                self.drop(session, "grace time over", tell=False)

    def next_deadline_ns(self) -> int | None:
        return min((s.grace_ns for s in self.live.values() if s.grace_ns is not None), default=None)

    def validate(self) -> None:
        limits = self._core.settings.limits
        assert len(self.live) <= limits.max_sessions
        assert all(len(self._of(client)) <= limits.max_client_sessions for client in self._core.clients.values())
        for session_id, session in self.live.items():
            assert session.session_id == session_id
            assert (session.client is None) == (session.grace_ns is not None)
            assert session.client is None or session.client in self._core.clients, "a session without a lease"
            assert session.client is None or self._core.clients[session.client].name == session.name
            assert len(session.context) % TOKEN_BYTES == 0
