"""The link to the broker: one thread that owns the socket.

Budget changes are carried out on this thread, beside a running step; all else
goes into the inbox, which the decode thread reads between steps. What the decode
thread sends it puts down here, so only one thread touches the socket.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec
import zmq

from xlm.errors import XlmError
from xlm.protocol import link
from xlm_engine import logs
from xlm_engine.doorbell import Doorbell

POLL_MS: Final = 100
PATIENCE_NS: Final = 100_000_000  # of one wait for a release; a later one follows
BUSY_STATS_S: Final = 0.25
IDLE_STATS_S: Final = 1.0

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(link.BrokerToEngine)


@dataclass(frozen=True, slots=True)
class Wake:
    """In the inbox: something changed that the decode thread should look at (a budget grew)."""


@dataclass(frozen=True, slots=True)
class ImagesChanged:
    """In the inbox: an image that a turn may wait for was decoded, or has failed."""


Message = link.BrokerToEngine | Wake | ImagesChanged


class BudgetTarget(Protocol):
    """What a budget change is carried out on; thread safe."""

    def set_budget(self, request: link.SetEngineBudget, timeout_ns: int) -> link.Released: ...

    def hurry(self) -> None:
        """The step under way rests no more."""


class ImageSink(Protocol):
    """Takes pieces of images; thread safe. What it answers is sent to the broker."""

    def take_part(self, part: link.ImagePart) -> link.WantImage | None: ...


class Channel:
    """Connects at once; ``start`` runs the thread. ``send`` is for the thread that made the channel."""

    def __init__(
        self, endpoint: str, parent_pid: int, stats: Callable[[], link.Stats], on_orphaned: Callable[[], None]
    ) -> None:
        self.inbox: Final[queue.SimpleQueue[Message]] = queue.SimpleQueue()
        self.busy = False  # set by the decode thread; sets the pace of Stats
        self._stats: Final = stats
        self._on_orphaned: Final = on_orphaned
        self._context: Final = zmq.Context()
        self._socket: Final = self._connect(endpoint)
        self._outbox: Final[queue.SimpleQueue[bytes]] = queue.SimpleQueue()
        self._bell: Final = Doorbell()
        self._parent: Final = parent_pid
        self._closing: Final = threading.Event()
        self._target: BudgetTarget | None = None
        self._images: ImageSink | None = None
        self._interrupt: Callable[[int | None], None] | None = None
        self._waiting: link.SetEngineBudget | None = None
        self._told = False  # that the waiting release is not complete
        self._next_stats = 0.0
        self._thread: Final = threading.Thread(target=self._run, name="link", daemon=True)

    def _connect(self, endpoint: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.PAIR)
        socket.setsockopt(zmq.LINGER, 1000)
        socket.set_hwm(0)
        socket.connect(endpoint)
        return socket

    def start(self) -> None:
        self._thread.start()

    def send(self, message: link.FromEngine) -> None:
        """From the decode thread. Never blocks."""
        self.put(message)
        self._bell.ring()

    def put(self, message: link.FromEngine) -> None:
        """Sent by the next ``deliver`` or ``send``: the link thread then takes the interpreter, so best where the
        decode thread is about to compute or to wait."""
        self._outbox.put(_ENCODER.encode(message))

    def deliver(self) -> None:
        """From the decode thread: what was put goes out."""
        if not self._outbox.empty():
            self._bell.ring()

    def report(self) -> None:
        """From the decode thread: Stats go out now and not only when they are due."""
        self._next_stats = 0.0
        self._bell.ring()

    def attach(self, target: BudgetTarget) -> None:
        """The device is open: budgets are carried out from now on, also one that came before."""
        self._target = target

    def attach_images(self, sink: ImageSink) -> None:
        """Pieces of images go there, beside a running step."""
        self._images = sink

    def attach_interrupt(self, interrupt: Callable[[int | None], None]) -> None:
        """Hears, beside a running step, of an answer that is to end (its gen_id; None: any may be meant)."""
        self._interrupt = interrupt

    def close(self) -> None:
        """Sends what is queued and stops the thread."""
        self._closing.set()
        self._bell.ring()
        self._thread.join(timeout=3.0)
        self._context.destroy(linger=1000)

    # -- the link thread

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._bell.fileno(), zmq.POLLIN)
        try:
            while not self._closing.is_set():
                ready = dict(poller.poll(self._wait_ms()))
                if self._bell.fileno() in ready:
                    self._bell.silence()
                self._forward()
                if self._socket in ready:
                    self._receive()
                self._work_on_budget()
                self._send_stats_if_due()
                self._check_parent()
            self._forward()
        except Exception:
            logs.logger().exception("the link thread failed")
            self._on_orphaned()

    def _wait_ms(self) -> int:
        return 0 if self._waiting is not None and self._target is not None else POLL_MS

    def _forward(self) -> None:
        """Passes on what the decode thread sent, in order."""
        while True:
            try:
                frame = self._outbox.get_nowait()
            except queue.Empty:
                return
            self._socket.send(frame)

    def _receive(self) -> None:
        while True:
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                self._dispatch(_DECODER.decode(frame))
            except msgspec.DecodeError as error:
                logs.logger().error("message from the broker not understood", error=str(error))

    def _dispatch(self, message: link.BrokerToEngine) -> None:
        if isinstance(message, link.SetEngineBudget):
            self._supersede()
            self._waiting, self._told = message, False
        elif isinstance(message, link.Probe) and not message.recover:
            self._send(self._stats())
        elif isinstance(message, link.ImagePart):
            self._take_part(message)
        else:
            self.inbox.put(message)
            if self._target is not None and not isinstance(message, link.SetPace):
                self._target.hurry()  # it is read after the step
            self._interrupt_encoding(message)

    def _interrupt_encoding(self, message: link.BrokerToEngine) -> None:
        """Encoding an image may take seconds; what ends an answer does not wait for it."""
        if self._interrupt is None:
            return
        if isinstance(message, link.CancelGeneration):
            self._interrupt(message.gen_id)
        elif isinstance(message, link.DropSession | link.Stop):
            self._interrupt(None)

    def _take_part(self, part: link.ImagePart) -> None:
        request = self._images.take_part(part) if self._images is not None else None
        if request is not None:
            self._send(request)

    # -- budgets

    def _work_on_budget(self) -> None:
        """One slice of waiting for the newest budget; each gets its Released."""
        request, target = self._waiting, self._target
        if request is None or target is None:
            return
        released = self._try_budget(target, request)
        if released is None:
            return
        if released.completed:
            self._waiting = None
        if released.completed or not self._told:
            self._told = True
            self._send(released)
            self.inbox.put(Wake())

    def _try_budget(self, target: BudgetTarget, request: link.SetEngineBudget) -> link.Released | None:
        try:
            return target.set_budget(request, PATIENCE_NS)
        except XlmError as error:
            logs.logger().error("budget not set", budget_bytes=request.budget_bytes, code=error.code, error=str(error))
            self._send(link.Released(seq=request.seq, budget_bytes=request.budget_bytes, used_bytes=-1,
                                     device_used_bytes=-1, completed=False, cause=request.cause))  # fmt: skip
            self._waiting = None
            return None

    def _supersede(self) -> None:
        """A newer budget came while one waits: it is set once more without waiting, for an honest last word."""
        if self._waiting is not None and self._target is not None:
            released = self._try_budget_once(self._target, self._waiting)
            if released is not None:
                self._send(released)

    @staticmethod
    def _try_budget_once(target: BudgetTarget, request: link.SetEngineBudget) -> link.Released | None:
        with contextlib.suppress(XlmError):
            return target.set_budget(request, 0)
        return None

    def _send(self, message: link.FromEngine) -> None:
        self._socket.send(_ENCODER.encode(message))

    # -- time

    def _send_stats_if_due(self) -> None:
        now = time.monotonic()
        if now >= self._next_stats:
            self._next_stats = now + (BUSY_STATS_S if self.busy else IDLE_STATS_S)
            self._send(self._stats())

    def _check_parent(self) -> None:
        if os.getppid() != self._parent:
            self._on_orphaned()
