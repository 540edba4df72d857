"""The socket of a client: a DEALER, its monitor, and a way to wake who polls them."""

from __future__ import annotations

import contextlib
import socket
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from xlm.protocol.endpoints import Endpoint

_RECONNECT_MS: Final = 20  # how often ZeroMQ looks whether the broker is back: first, and at most
_RECONNECT_MAX_MS: Final = 500

_EVENTS: Final = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


class Waker:
    """Wakes a thread out of its poll. ``wake`` may be called from any thread, a destructor included; never blocks."""

    def __init__(self) -> None:
        self.reader, self._writer = socket.socketpair()
        self.reader.setblocking(False)
        self._writer.setblocking(False)

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake already; closed: nobody to wake
            self._writer.send(b"x")

    def clear(self) -> None:
        with contextlib.suppress(OSError):
            while self.reader.recv(4096):
                pass

    def close(self) -> None:
        self.reader.close()
        self._writer.close()


class Socket:
    """A DEALER and its monitor; ``dial`` replaces both. For one thread alone."""

    def __init__(self, endpoint: Endpoint, server_key: str | None) -> None:
        self._endpoint = endpoint
        self._server_key = server_key
        self._context = zmq.Context(io_threads=1)
        self._dealer: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None

    @property
    def no_handshake(self) -> str:
        """For people: why a connection may end before it is one."""
        if self._endpoint.path is not None:
            return "it ended in the handshake: the broker ends, has no place for another one, or is no xlm-broker"
        return "the encrypted handshake failed; is the server key right?"

    def dial(self) -> None:
        """A fresh connection in the making. What was queued in the old one is dropped."""
        self._hang_up(linger_ms=0)
        dealer = self._context.socket(zmq.DEALER)
        dealer.linger = 0
        dealer.ipv6 = self._endpoint.is_ipv6
        dealer.reconnect_ivl, dealer.reconnect_ivl_max = _RECONNECT_MS, _RECONNECT_MAX_MS
        if self._server_key:
            self._encrypt(dealer, self._server_key)
        self._monitor = dealer.get_monitor_socket(_EVENTS)
        dealer.connect(self._endpoint.url)
        self._dealer = dealer

    @staticmethod
    def _encrypt(dealer: zmq.Socket[bytes], server_key: str) -> None:
        dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
        dealer.curve_serverkey = server_key.encode("ascii")

    def send(self, frame: bytes) -> bool:
        """False: not now, the queue is full."""
        assert self._dealer is not None
        try:
            self._dealer.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self) -> bytes | None:
        """The next frame, or None. Of a message of several frames, which no broker sends, the last one counts."""
        assert self._dealer is not None
        try:
            return self._dealer.recv_multipart(zmq.NOBLOCK)[-1]
        except zmq.Again:
            return None

    def events(self) -> list[int]:
        """What the monitor saw since the last call."""
        seen: list[int] = []
        while self._monitor is not None and self._monitor.poll(0):
            seen.append(int(recv_monitor_message(self._monitor)["event"]))
        return seen

    def poll(self, waker: Waker, timeout_ms: int | None, writable: bool) -> None:
        """Waits until there is something to do. Level-triggered: what it was is found by trying."""
        poller = zmq.Poller()
        poller.register(waker.reader, zmq.POLLIN)
        if self._dealer is not None:
            poller.register(self._dealer, zmq.POLLIN | (zmq.POLLOUT if writable else 0))
        if self._monitor is not None:
            poller.register(self._monitor, zmq.POLLIN)
        poller.poll(timeout_ms)

    def close(self, linger_ms: int) -> None:
        self._hang_up(linger_ms)
        self._context.term()

    def _hang_up(self, linger_ms: int) -> None:
        if self._dealer is not None:
            self._dealer.disable_monitor()
            self._dealer.close(linger_ms)
        if self._monitor is not None:
            self._monitor.close(0)
        self._dealer = self._monitor = None
