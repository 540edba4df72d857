"""The I/O thread of a client: one socket, and a ``Connection`` that decides.

Why a thread, for the async client too: heartbeats must go out while a game
computes a long frame or an event loop is blocked, and a ZeroMQ socket belongs
to one thread. So this thread alone touches the socket; everyone else hands over
frames under one lock and wakes it. No code of the user ever runs on it.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Final

import zmq

from xlm._base import Action, Connection, Dial, Phase
from xlm._calls import Call, Stream
from xlm._frames import FrameReports, Sample
from xlm._threads import answer_quickly
from xlm._transport import Socket, Waker
from xlm.errors import BrokerError, ProtocolError
from xlm.protocol.endpoints import Endpoint

_log: Final = logging.getLogger("xlm")
_LINGER_MS: Final = 500  # how long close() waits for GOODBYE to leave
_MAX_OUTBOX: Final = 1024  # frames waiting for a broker that does not read
_BATCH: Final = 256  # frames taken in one go before waiters are woken


class Link:
    """A running connection. All methods are thread-safe; ``changed`` is its lock and wakes who waits.

    ``on_change`` is called on the I/O thread after something arrived, with the lock held: it must not block.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        server_key: str | None,
        connection: Connection,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.endpoint = endpoint
        self.connection = connection
        self.changed = threading.Condition(threading.RLock())
        self._on_change = on_change
        self._socket = Socket(endpoint, server_key)
        self._waker = Waker()
        self._outbox: deque[bytes] = deque()
        self._frames = FrameReports()
        self._abandoned: deque[Stream] = deque()  # appended to without the lock, by destructors
        self._stopping = False
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="xlm-io", daemon=True)

    def start(self) -> None:
        _live.add(self)
        self._thread.start()

    def submit(self, call: Call) -> Call:
        """Sends a request; the call tells when it is done. Raises BrokerError (``overloaded``), ProtocolError."""
        self._check_process()
        with self.changed:
            if len(self._outbox) >= _MAX_OUTBOX:
                raise BrokerError("the broker does not read what it is sent", code="overloaded")
            self._carry_out(self.connection.submit(call))
        self._waker.wake()
        return call

    def report_frame(self, sample: Sample) -> None:
        """Counts a frame, and sends what has come together when it is time. Raises ProtocolError after a fork."""
        self._check_process()
        with self.changed:
            report = self._frames.add(sample, time.monotonic())
            actions = self.connection.report(report) if report and len(self._outbox) < _MAX_OUTBOX else []
            self._carry_out(actions)
        if actions:
            self._waker.wake()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ProtocolError("a client does not survive fork()", code="not_connected", hint="connect in the child")

    def cancel(self, stream: Stream) -> None:
        """Asks for the end of an answer. Takes no lock and never blocks: destructors call it, at any moment."""
        stream.unwanted = True
        self._abandoned.append(stream)
        self._waker.wake()

    def forget(self, call: Call) -> None:
        with self.changed:
            self._carry_out(self.connection.forget(call))
        self._waker.wake()

    def wait(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Blocks the calling thread until ``ready``; False: it is not within ``timeout_s``."""
        with self.changed:
            return self.changed.wait_for(ready, timeout_s)

    def request_stop(self) -> None:
        """Asks the thread to say goodbye and end. Never blocks."""
        self._stopping = True
        self._waker.wake()

    def stop(self) -> None:
        """Says goodbye and waits for the thread, for about a second at most. May be called twice."""
        self.request_stop()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_LINGER_MS / 1e3 + 1.0)
        _live.discard(self)

    # -- on the I/O thread ---------------------------------------------------------

    def _run(self) -> None:
        answer_quickly()  # those of the socket too, which start from here
        try:
            with self.changed:
                self._carry_out(self.connection.start(time.monotonic()))
            while not self._stopping:
                self._flush()
                self._socket.poll(self._waker, self._timeout_ms(), bool(self._outbox))
                self._turn()
        except Exception as error:
            _log.exception("the connection thread of xlm failed")
            self._give_up(error)
        finally:
            self._end()

    def _turn(self) -> None:
        self._waker.clear()
        with self.changed:
            heard = self._receive()
            heard |= self._watch()
            while self._abandoned:
                self._carry_out(self.connection.cancel(self._abandoned.popleft()))
            before = self.connection.phase
            self._carry_out(self.connection.tick(time.monotonic()))
            if heard or before is not self.connection.phase:
                self._announce()

    def _receive(self) -> bool:
        for count in range(_BATCH):
            frame = self._socket.receive()
            if frame is None:
                return count > 0
            self._carry_out(self.connection.receive(frame, time.monotonic()))
        return True

    def _watch(self) -> bool:
        events = self._socket.events()
        for event in events:
            if event == zmq.EVENT_DISCONNECTED:
                self._carry_out(self.connection.lost(time.monotonic(), "it closed the connection"))
            else:
                self.connection.trouble = self._socket.no_handshake
        return bool(events)

    def _carry_out(self, actions: list[Action]) -> None:
        # Calls of the user lead to Send alone; Dial comes of the events of this thread, which owns the socket.
        for action in actions:
            if isinstance(action, Dial):
                self._outbox.clear()
                self._socket.dial()
            else:
                self._outbox.append(action.frame)

    def _flush(self) -> None:
        with self.changed:
            while self._outbox and self._socket.send(self._outbox[0]):
                self._outbox.popleft()

    def _timeout_ms(self) -> int | None:
        with self.changed:
            due = self.connection.next_deadline()
        return None if due is None else max(0, int((due - time.monotonic()) * 1e3) + 1)

    def _announce(self) -> None:
        self.changed.notify_all()
        self._on_change()

    def _give_up(self, error: Exception) -> None:
        with self.changed:
            self.connection.fail(BrokerError(f"the connection failed: {error}", code="internal"))

    def _end(self) -> None:
        with self.changed:
            was_ready = self.connection.phase is Phase.READY
            self._carry_out(self.connection.close())
            self._announce()
        if was_ready:
            self._flush()
        self._socket.close(_LINGER_MS if was_ready else 0)
        self._waker.close()


_live: weakref.WeakSet[Link] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """A program that ends without close() still says goodbye, so that its budget does not hold until the TTL."""
    for link in list(_live):
        link.stop()
