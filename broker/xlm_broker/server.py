"""The clients' socket: one ZeroMQ ROUTER, frames in and frames out, nothing about their meaning.

A client that does not read stalls only itself: sends never block, its frames
wait in a bounded queue, and one over the bound is dropped as gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket as unix_socket
import stat
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import zmq

from xlm.errors import EndpointError
from xlm.protocol.endpoints import Endpoint
from xlm.protocol.messages import MAX_FRAME_BYTES
from xlm_broker.folders import prepare_folder
from xlm_broker.lock import EndpointLock, lock_path
from xlm_broker.open_files import Doorman
from xlm_broker.telemetry import logger

# Frames over MAX_FRAME_BYTES get a typed refusal; libzmq cuts the connection only far above, without a word.
_CUT_BYTES: Final = 4 * MAX_FRAME_BYTES
_SEND_QUEUE_FRAMES: Final = 64  # per client, inside libzmq
_RECEIVE_QUEUE_FRAMES: Final = 256  # per client: a flood waits in the sender, not here
_OUTBOX_BYTES: Final = 1 << 20  # per stalled client, here
_OUTBOX_FRAMES: Final = 4096
_FAREWELL_BYTES: Final = 16 << 10  # per stalled client that was forgotten
_RETRY_S: Final = 0.02
_FAREWELL_S: Final = 2.0
_BATCH_FRAMES: Final = 64  # then the engine has a turn
_LINGER_MS: Final = 300


class Receiver(Protocol):
    """What the server tells its owner. All calls come from the event loop's thread."""

    def on_frame(self, client: bytes, frame: bytes) -> None: ...
    def on_bad_envelope(self, client: bytes) -> None: ...
    def on_stalled(self, client: bytes) -> None: ...
    def on_drained(self, client: bytes) -> None: ...
    def on_gone(self, client: bytes) -> None: ...


class _Outbox:
    """Frames of one stalled client, oldest first."""

    def __init__(self) -> None:
        self.frames: deque[bytes] = deque()
        self.bytes = 0
        self.expires_s: float | None = None  # loop time after which nobody cares any more

    def push(self, frame: bytes) -> bool:
        """False when the client's bound is reached."""
        if self.bytes + len(frame) > _OUTBOX_BYTES or len(self.frames) >= _OUTBOX_FRAMES:
            return bool(not self.frames)  # a single large frame always fits
        self.frames.append(frame)
        self.bytes += len(frame)
        return True

    @property
    def forgotten(self) -> bool:
        return self.expires_s is not None

    def push_little(self, frame: bytes) -> None:
        """For a client that is done: if it comes back at once it hears an answer, but it costs next to nothing."""
        if self.bytes + len(frame) <= _FAREWELL_BYTES:
            self.push(frame)

    def pop(self) -> None:
        self.bytes -= len(self.frames.popleft())


class Server:
    """Binds in ``open`` (typed EndpointErrors), works inside a running asyncio loop after ``start``.

    Not thread-safe. Owns the lock, the socket and its file; ``close`` removes all three.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoint: Endpoint, *, most_files: int | None = None
    ) -> None:
        """``most_files``: with so many files open in this process no further connection is taken. None: any number."""
        self._context = context
        self._endpoint = endpoint
        self._lock: EndpointLock | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._receiver: Receiver | None = None
        self._outboxes: dict[bytes, _Outbox] = {}
        self._most_files = most_files
        self._doorman: Doorman | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Handle | None = None
        self._retry: asyncio.Handle | None = None
        self.address = str(endpoint)  # the port is known after open, where the system chose it

    # -- life ------------------------------------------------------------------

    def open(self, configure: Callable[[zmq.Socket[bytes]], None] = lambda _: None) -> None:
        """Takes the lock and binds. ``configure`` sets further socket options (CURVE) before the bind."""
        path, lock_file = self._endpoint.path, lock_path(self._endpoint)
        prepare_folder(lock_file.parent)
        self._lock = EndpointLock(lock_file, str(self._endpoint))
        self._lock.acquire()
        try:
            if path is not None:
                remove_stale_socket(path)
            self._bind(configure)
        except BaseException:
            self.close()
            raise

    def start(self, receiver: Receiver) -> None:
        assert self._socket is not None, "open() first"
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.FD, self._on_readable)
        if self._most_files is not None:
            self._doorman = Doorman(self._socket, self._most_files, self._tell_refused)
        self._schedule()

    def _tell_refused(self, count: int) -> None:
        """From the doorman's thread."""
        tell = partial(logger().error, "connections_refused", count=count, most_files=self._most_files)
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(tell)

    def look_after_file(self) -> None:
        """A socket file that somebody removed (a cleaner of temporary folders) is made anew; connections are kept."""
        path = self._endpoint.path
        if self._socket is None or path is None or os.path.lexists(path):
            return
        logger().warning("socket_file_missing", path=str(path), next="it is made again")
        try:
            prepare_folder(path.parent)
            self._bind_private(self._socket)
        except EndpointError as error:
            logger().error("socket_file_not_made", path=str(path), error=str(error))

    def close(self) -> None:
        """Delivers what is queued for at most 0.3 s, then removes socket, file and lock. Safe to call twice."""
        if self._loop is not None and self._socket is not None:
            self._loop.remove_reader(self._socket.FD)
        if self._doorman is not None:
            self._doorman.close()
            self._doorman = None
        for handle in (self._wake, self._retry):
            if handle is not None:
                handle.cancel()
        if self._socket is not None:
            self._socket.close(linger=_LINGER_MS)
            self._socket = None
            if self._endpoint.path is not None:
                self._endpoint.path.unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _bind(self, configure: Callable[[zmq.Socket[bytes]], None]) -> None:
        socket = self._context.socket(zmq.ROUTER)
        self._socket = socket
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        # A client that reconnects under its old name replaces its dead connection; without this it hangs, ignored.
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        socket.setsockopt(zmq.SNDHWM, _SEND_QUEUE_FRAMES)
        socket.setsockopt(zmq.RCVHWM, _RECEIVE_QUEUE_FRAMES)
        socket.setsockopt(zmq.MAXMSGSIZE, _CUT_BYTES)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, int(self._endpoint.is_ipv6))
        configure(socket)
        self._bind_private(socket)
        if self._endpoint.scheme == "tcp" and self._endpoint.port == 0:
            self.address = socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def _bind_private(self, socket: zmq.Socket[bytes]) -> None:
        previous = os.umask(0o177)  # the socket file is 0600 from its first moment, whatever the folder
        try:
            socket.bind(self._endpoint.url)
        except zmq.ZMQError as error:
            raise _bind_error(error, self._endpoint) from error
        finally:
            os.umask(previous)

    # -- receiving -------------------------------------------------------------

    def _schedule(self) -> None:
        """libzmq's descriptor signals edges only: after any call on the socket its events must be looked at again."""
        if self._wake is None and self._loop is not None:
            self._wake = self._loop.call_soon(self._on_readable)

    def _on_readable(self) -> None:
        self._wake = None
        for _ in range(_BATCH_FRAMES):
            if self._socket is None or not self._receive():
                return
        self._schedule()

    def _receive(self) -> bool:
        assert self._socket is not None
        assert self._receiver is not None
        try:
            parts = self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        if len(parts) == 2:
            self._receiver.on_frame(parts[0], parts[1])
        else:
            self._receiver.on_bad_envelope(parts[0])
        return True

    # -- sending ---------------------------------------------------------------

    def send(self, client: bytes, frame: bytes) -> None:
        """Never blocks. A client that is not there or has filled its bound is reported by ``on_gone``; of what is sent
        to a stalled one after ``forget`` a little is kept, the rest is dropped.
        """
        outbox = self._outboxes.get(client)
        if outbox is not None:
            if outbox.forgotten:
                outbox.push_little(frame)
            elif not outbox.push(frame):
                self._gone(client)
            return
        try:
            self._push(client, frame)
        except zmq.Again:
            self._stall(client, frame)
        except zmq.ZMQError as error:
            self._send_failed(client, error)

    def probe(self, client: bytes, frame: bytes) -> None:
        """Sends a frame that may be lost, to find out by ``on_gone`` whether the client is still there."""
        if client in self._outboxes:
            return  # tried again and again anyway
        try:
            self._push(client, frame)
        except zmq.Again:
            pass  # it does not read, but is connected
        except zmq.ZMQError as error:
            self._send_failed(client, error)

    def forget(self, client: bytes) -> None:
        """The client is done: what is still queued for it is tried for two more seconds, then dropped."""
        outbox = self._outboxes.get(client)
        if outbox is not None and self._loop is not None:
            outbox.expires_s = self._loop.time() + _FAREWELL_S

    @property
    def queued_bytes(self) -> int:
        """What waits for stalled clients."""
        return sum(outbox.bytes for outbox in self._outboxes.values())

    def _push(self, client: bytes, frame: bytes) -> None:
        if self._socket is None:
            return
        try:
            self._socket.send_multipart((client, frame), zmq.NOBLOCK)
        finally:
            # The call may have eaten the edge of something that came in. A round of the loop for nothing costs
            # more than asking, and there is one send for each token.
            if int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                self._schedule()

    def _stall(self, client: bytes, frame: bytes) -> None:
        outbox = self._outboxes[client] = _Outbox()
        outbox.push(frame)
        self._arm_retry()
        if self._receiver is not None:
            self._receiver.on_stalled(client)

    def _arm_retry(self) -> None:
        # A ROUTER is writable while any peer is, so waiting for one peer is a timer.
        if self._retry is None and self._outboxes and self._loop is not None:
            self._retry = self._loop.call_later(_RETRY_S, self._flush_all)

    def _flush_all(self) -> None:
        self._retry = None
        for client in list(self._outboxes):
            self._flush(client)
        self._arm_retry()

    def _flush(self, client: bytes) -> None:
        outbox = self._outboxes.get(client)
        try:
            while outbox is not None and outbox.frames:
                self._push(client, outbox.frames[0])
                outbox.pop()
        except zmq.Again:
            self._expire(client)
            return
        except zmq.ZMQError as error:
            self._send_failed(client, error)
            return
        self._outboxes.pop(client, None)
        if self._receiver is not None:
            self._receiver.on_drained(client)

    def _expire(self, client: bytes) -> None:
        expires_s = self._outboxes[client].expires_s
        if expires_s is not None and self._loop is not None and self._loop.time() >= expires_s:
            del self._outboxes[client]

    def _send_failed(self, client: bytes, error: zmq.ZMQError) -> None:
        if error.errno not in (errno.EHOSTUNREACH, zmq.EHOSTUNREACH):
            raise error
        self._gone(client)

    def _gone(self, client: bytes) -> None:
        self._outboxes.pop(client, None)
        if self._receiver is not None:
            self._receiver.on_gone(client)


# -- the socket file ------------------------------------------------------------------


def remove_stale_socket(path: Path) -> None:
    """Removes what a dead broker left. The caller holds the endpoint's lock, so no live broker of ours is there."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise EndpointError(
            f"{path} exists and is not a socket", code="endpoint_invalid", hint="choose another --endpoint"
        )
    if _answers(path):  # some other program, which knows nothing of our lock
        raise EndpointError(f"another program serves {path}", code="endpoint_in_use")
    path.unlink(missing_ok=True)


def _answers(path: Path) -> bool:
    family: Any = getattr(unix_socket, "AF_UNIX", None)
    if family is None:
        return False
    with unix_socket.socket(family, unix_socket.SOCK_STREAM) as probe:
        probe.settimeout(0.5)
        try:
            probe.connect(str(path))
        except TimeoutError:
            return True  # somebody listens but does not accept: not ours to remove
        except OSError as error:
            return error.errno in (errno.EAGAIN, errno.EACCES)
    return True


def _bind_error(error: zmq.ZMQError, endpoint: Endpoint) -> EndpointError:
    if error.errno in (errno.EADDRINUSE, zmq.EADDRINUSE):
        return EndpointError(f"another program serves {endpoint}", code="endpoint_in_use")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return EndpointError(f"{endpoint} cannot be bound: {error.strerror}", code="endpoint_forbidden")
    if error.errno == errno.ENAMETOOLONG:
        return EndpointError(f"{endpoint} is too long", code="endpoint_too_long")
    return EndpointError(f"{endpoint} cannot be bound: {error.strerror}", code="endpoint_invalid")
