"""Leases: who is connected, and until when.

A lease lives three heartbeats after the last message of its client. What a
client asked for (cap, reservation, sessions) hangs on the lease and ends with
it; an expired lease is never revived, the client has to say HELLO again.
"""

from __future__ import annotations

from collections.abc import Callable

from xlm.protocol import messages

from .actions import ProbeClients
from .core import Client, Core
from .outbox import Outbox
from .settings import MS

HEARTBEATS_PER_TTL = 3
PROBE_PAUSE_NS = 100 * MS  # between two looks for peers that have gone: a flood of HELLOs is not multiplied


class Leases:
    """``on_end(client, keep_sessions)`` is called for every lease that ends, after it was removed."""

    def __init__(self, core: Core, on_end: Callable[[Client, bool], None], on_move: Callable[[Client, bytes], None]):
        self._core = core
        self._on_end = on_end
        self._on_move = on_move
        self._expired: dict[bytes, None] = {}  # ordered: the oldest is dropped first
        self._next_probe_ns = 0

    @property
    def ttl_ns(self) -> int:
        return HEARTBEATS_PER_TTL * self._core.settings.timing.heartbeat_ns

    # -- admission --------------------------------------------------------------

    def admit(self, identity: bytes, request_id: int) -> Client | None:
        """The live client behind a request, renewed; None after a refusal."""
        client = self._core.clients.get(identity)
        if client is not None:
            client.expires_ns = self._core.now_ns + self.ttl_ns
            client.warned = False
            return client
        if identity in self._expired:
            self._core.refuse(identity, request_id, "lease_expired", "the lease has ended: nobody was heard for long")
        else:
            self._core.refuse(identity, request_id, "not_connected", "HELLO has to come first")
        return None

    def hello(self, identity: bytes, hello: messages.Hello, probed: bool = False) -> None:
        """``probed``: there was no room for it before, and who has gone since was found out."""
        version = min(hello.version_max, messages.VERSION_MAX)
        if version < max(hello.version_min, messages.VERSION_MIN):
            return self._refuse_version(identity, hello)
        client = self._holder(hello)
        if client is not None:
            self._resume(client, identity, hello)
        elif self._full(identity) and not probed and self._core.now_ns >= self._next_probe_ns:
            return self._look_for_gone(identity, hello)
        else:
            client = self._new(identity, hello, version)
        if client is not None:
            self._welcome(client, hello, version, resumed=bool(hello.lease_id) and client.lease_id == hello.lease_id)
        return None

    def _full(self, identity: bytes) -> bool:
        clients = self._core.clients
        return identity not in clients and len(clients) >= self._core.settings.limits.max_clients

    def _look_for_gone(self, identity: bytes, hello: messages.Hello) -> None:
        """A peer that closed its connection without GOODBYE keeps its lease for the TTL, but nobody out."""
        self._next_probe_ns = self._core.now_ns + PROBE_PAUSE_NS
        self._core.do(ProbeClients(tuple(self._core.clients), identity, hello))

    def _refuse_version(self, identity: bytes, hello: messages.Hello) -> None:
        ours = f"{messages.VERSION_MIN} to {messages.VERSION_MAX}"
        theirs = f"{hello.version_min} to {hello.version_max}"
        self._core.refuse(
            identity, hello.id, "protocol_version", f"the broker speaks versions {ours}, the client {theirs}"
        )

    def _holder(self, hello: messages.Hello) -> Client | None:
        """The live client whose lease this HELLO takes up: same lease id, same name."""
        if not hello.lease_id:
            return None
        found = (c for c in self._core.clients.values() if c.lease_id == hello.lease_id and c.name == hello.name)
        return next(found, None)

    def _resume(self, client: Client, identity: bytes, hello: messages.Hello) -> None:
        if client.identity != identity:
            self._displace(identity, but=client)
            self._move(client, identity)
        client.pid = hello.pid
        client.expires_ns = self._core.now_ns + self.ttl_ns
        self._core.log("info", "lease_resumed", lease=client.lease_id, name=client.name)

    def _move(self, client: Client, identity: bytes) -> None:
        old = client.identity
        del self._core.clients[old]
        self._core.forget(old)
        client.identity, client.outbox = identity, None
        self._core.clients[identity] = client
        self._expired.pop(identity, None)
        self._on_move(client, old)

    def _displace(self, identity: bytes, but: Client | None = None) -> None:
        """A HELLO on an identity in use starts over: the lease that was there ends."""
        elder = self._core.clients.get(identity)
        if elder is not None and elder is not but:
            self.end(elder, "replaced", keep_sessions=True)

    def _new(self, identity: bytes, hello: messages.Hello, version: int) -> Client | None:
        self._displace(identity)
        if self._full(identity):
            self._core.refuse(
                identity, hello.id, "too_many_clients", f"{len(self._core.clients)} clients are connected"
            )
            return None
        now = self._core.now_ns
        client = Client(identity, hello.name, hello.pid, self._core.new_id("lease"), version, now + self.ttl_ns, now)
        self._core.clients[identity] = client
        self._expired.pop(identity, None)
        self._core.log("info", "client_connected", lease=client.lease_id, name=client.name, pid=client.pid)
        return client

    def _welcome(self, client: Client, hello: messages.Hello, version: int, *, resumed: bool) -> None:
        welcome = messages.Welcome(
            id=hello.id,
            cause=self._core.cause,
            version=version,
            lease_id=client.lease_id,
            heartbeat_ms=self._core.settings.timing.heartbeat_ns / MS,
            ttl_ms=self.ttl_ns / MS,
            broker_version=self._core.settings.broker_version,
            resumed=resumed,
        )
        self._core.send(client.identity, welcome)

    # -- end --------------------------------------------------------------------

    def end(self, client: Client, why: str, *, keep_sessions: bool) -> None:
        """Ends a lease with its cap and reservation; its sessions wait for it if ``keep_sessions``."""
        if self._core.clients.pop(client.identity, None) is None:
            return
        self._core.log("info", "lease_ended", lease=client.lease_id, name=client.name, why=why)
        self._on_end(client, keep_sessions)
        self._core.forget(client.identity)

    def goodbye(self, client: Client, request: messages.Goodbye) -> None:
        self._core.send(client.identity, messages.Ok(id=request.id, cause=self._core.cause))
        self.end(client, "goodbye", keep_sessions=False)

    def gone(self, identity: bytes) -> None:
        client = self._core.clients.get(identity)
        if client is not None:
            self._remember(identity)
            self.end(client, "gone", keep_sessions=True)

    def forgive(self, late_ns: int) -> None:
        """So long nobody could be heard."""
        for client in self._core.clients.values():
            client.expires_ns += late_ns

    def pass_time(self) -> None:
        for client in list(self._core.clients.values()):
            if client.expires_ns <= self._core.now_ns:
                self._remember(client.identity)
                self.end(client, "expired", keep_sessions=True)
            elif not client.warned and self._warning_ns(client) <= self._core.now_ns:
                self._warn(client)

    def drop_overflowed(self) -> None:
        """Clients that read nothing while more is due than may be kept."""
        while self._core.overflowed:
            client = self._core.clients.get(self._core.overflowed.pop())
            if client is not None:
                self._remember(client.identity)
                self.end(client, "outbox_full", keep_sessions=True)

    def _warning_ns(self, client: Client) -> int:
        return client.expires_ns - self._core.settings.timing.heartbeat_ns

    def _warn(self, client: Client) -> None:
        client.warned = True
        notice = messages.Notice(cause=self._core.cause, kind="lease_expiring", text="two heartbeats are missing")
        self._core.send(client.identity, notice)

    def _remember(self, identity: bytes) -> None:
        self._expired[identity] = None
        while len(self._expired) > self._core.settings.limits.max_expired:
            del self._expired[next(iter(self._expired))]

    def next_deadline_ns(self) -> int | None:
        clients = self._core.clients.values()
        return min((c.expires_ns if c.warned else self._warning_ns(c) for c in clients), default=None)

    # -- back-pressure ------------------------------------------------------------

    def stalled(self, identity: bytes) -> None:
        client = self._core.clients.get(identity)
        if client is None:  # it asks without a lease, and does not read the refusals: nothing more is kept for it
            self._core.forget(identity)
        elif client.outbox is None:
            limits = self._core.settings.limits
            client.outbox = Outbox(limits.max_outbox, limits.max_outbox_bytes)
            self._core.log("warning", "client_stalled", lease=client.lease_id, name=client.name)

    def drained(self, identity: bytes) -> None:
        client = self._core.clients.get(identity)
        if client is None or client.outbox is None:
            return
        kept, client.outbox = client.outbox.items, None
        for message in kept:
            self._core.send(identity, message)
        self._core.log("info", "client_drained", lease=client.lease_id, messages=len(kept))

    def validate(self) -> None:
        for identity, client in self._core.clients.items():
            assert client.identity == identity
            assert client.expires_ns > self._core.now_ns, "an expired lease is still there"
            assert identity not in self._expired
            assert client.reserved_bytes >= 0
            assert client.cap_bytes is None or client.cap_bytes >= 0
            assert client.outbox is None or client.outbox.sound()
        leases = [client.lease_id for client in self._core.clients.values()]
        assert len(set(leases)) == len(leases)
        assert len(self._core.clients) <= self._core.settings.limits.max_clients
        assert len(self._expired) <= self._core.settings.limits.max_expired
