"""A broker for your own tests: no GPU, no model, no process to start.

    from xlm.testing import FakeBroker

    def test_my_game():
        with FakeBroker(answer="Aye, I can. 🔨") as broker:
            with xlm.connect(broker.endpoint) as client, client.open_session() as npc:
                assert npc.say("Can you?").text == "Aye, I can. 🔨"

It speaks the real protocol over a real socket, on a thread of its own; only the
answers are made up. ``answer`` may be a text, a list of pieces, or a function of
what was said. ``fail_next`` and ``hold`` play what goes wrong, ``kill`` and
``restart`` a broker that dies. As a pytest fixture:

    @pytest.fixture
    def broker():
        with FakeBroker() as broker:
            yield broker
"""

from __future__ import annotations

import itertools
import secrets
import shutil
import sys
import tempfile
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import zmq

from xlm import _fake_status, errors
from xlm._sizes import format_size
from xlm._transport import Waker
from xlm.errors import ProtocolError
from xlm.protocol import codec, messages
from xlm.protocol.images import upload_key
from xlm.protocol.messages import Message, Say

Answer = str | Sequence[str] | Callable[[str], str | Sequence[str]]
R = TypeVar("R", bound=Message)
_WAIT_S = 60.0  # only bounds a failure


@dataclass(slots=True)
class _Lease:
    name: str
    peer: bytes
    cap_bytes: int | None = None
    reserved_bytes: int = 0


@dataclass(slots=True)
class _Speech:
    """An answer in progress."""

    peer: bytes
    request: Say
    pieces: Iterator[str]
    seq: int = 0


@dataclass(slots=True)
class _Memory:
    """What a broker remembers; ``restart`` decides how much of it survives."""

    leases: dict[str, _Lease] = field(default_factory=dict)
    greeted: set[bytes] = field(default_factory=set)  # peers that have said HELLO
    sessions: dict[str, str] = field(default_factory=dict)  # session id -> client name
    speeches: dict[tuple[bytes, int], _Speech] = field(default_factory=dict)
    images: dict[str, bytes] = field(default_factory=dict)  # whole ones, by key
    uploads: dict[str, tuple[messages.ImageBegin, bytearray]] = field(default_factory=dict)


class FakeBroker:
    """See the module's text. All methods are thread-safe; use it in a ``with`` block, or call ``stop()``."""

    def __init__(
        self,
        answer: Answer = "Greetings, traveller.",
        *,
        device_bytes: int = 256 << 20,
        minimum_bytes: int = 16 << 20,
        heartbeat_ms: float = 20_000.0,
        versions: tuple[int, int] = (messages.VERSION_MIN, messages.VERSION_MAX),
        endpoint: str | None = None,
    ) -> None:
        """``minimum_bytes``: least cap that ``require="device"`` takes. ``versions``: lowest and highest protocol.

        ``heartbeat_ms`` is long, so that on a busy machine no client takes this broker for gone; ``freeze()`` and a
        short one play that.
        """
        self.answer = answer
        self.device_bytes = device_bytes
        self.minimum_bytes = minimum_bytes
        self.heartbeat_ms = heartbeat_ms
        self.versions = versions
        self.requests: list[Message] = []  # everything received, oldest first; pings too
        self._folder = Path(tempfile.mkdtemp(prefix="xlm-fake-"))
        self._given_endpoint = endpoint
        self._endpoint = ""
        self._lock = threading.Condition(threading.RLock())
        self._memory = _Memory()
        self._failures: dict[str, deque[messages.Error]] = {}
        self._outbox: deque[tuple[bytes, bytes]] = deque()
        self._gate: int | None = None  # pieces an answer may have while held
        self._deadlines_met = True
        self._deaf = False
        self._running = False
        self._numbers = itertools.count(1)
        self._context = zmq.Context(io_threads=1)
        self._thread: threading.Thread | None = None
        self._waker = Waker()
        self.restart()

    # -- for tests -----------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        """What to give to ``xlm.connect``. The same after a restart."""
        return self._endpoint

    @property
    def clients(self) -> list[str]:
        """Names of the clients that hold a lease."""
        with self._lock:
            return [lease.name for lease in self._memory.leases.values()]

    @property
    def budget_bytes(self) -> int:
        """The budget in force: the device less all reservations, under every cap. Never below zero."""
        with self._lock:
            leases = list(self._memory.leases.values())
        free = self.device_bytes - sum(lease.reserved_bytes for lease in leases)
        return max(0, min([free, *(lease.cap_bytes for lease in leases if lease.cap_bytes is not None)]))

    @property
    def images(self) -> dict[str, bytes]:
        """The images that were uploaded, by the keys that ``say`` requests name: bytes as they were sent."""
        with self._lock:
            return dict(self._memory.images)

    def forget_images(self) -> None:
        """As a broker that needed the room: the next ``say`` with images uploads them again."""
        with self._lock:
            self._memory.images.clear()

    def wait_for(self, kind: type[R], count: int = 1, timeout: float = _WAIT_S) -> R:
        """Waits until ``count`` requests of a kind have come; returns the last of them. Raises TimeoutError."""

        def found() -> list[R]:
            return [request for request in self.requests if isinstance(request, kind)]

        with self._lock:
            if not self._lock.wait_for(lambda: len(found()) >= count, timeout):
                raise TimeoutError(f"{len(found())} of {count} {kind.__name__} requests came")
            return found()[count - 1]

    def fail_next(self, request: str, code: str, message: str = "scripted failure", **fields: Any) -> None:
        """The next request of a type ("say", "set_budget", "hello" …) is refused with a code of xlm.errors.CODES."""
        known = errors.from_code(code, message)
        hint = fields.pop("hint", known.hint)
        error = messages.Error(
            code=code, message=message, fault=known.fault, retryable=known.retryable, hint=hint, **fields
        )
        with self._lock:
            self._failures.setdefault(request, deque()).append(error)

    def hold(self, after_pieces: int = 0) -> None:
        """Answers stop after so many pieces, until ``release()``. Budgets go on."""
        with self._lock:
            self._gate = after_pieces

    def release(self) -> None:
        """Lets held answers go on."""
        with self._lock:
            self._gate = None
        self._waker.wake()

    def miss_deadlines(self, missed: bool = True) -> None:
        """Leases say that their deadline was not met."""
        self._deadlines_met = not missed

    def notify(self, kind: str, text: str = "", **detail: Any) -> None:
        """Sends a notice to every client."""
        with self._lock:
            for lease in self._memory.leases.values():
                self._send(lease.peer, messages.Notice(kind=kind, text=text, detail=detail))
        self._waker.wake()

    def fail_answers(self, code: str, message: str = "scripted failure") -> None:
        """Every answer in progress fails, as when the engine dies for good."""
        with self._lock:
            for speech in list(self._memory.speeches.values()):
                self._finish(speech, messages.Error(code=code, message=message))
        self._waker.wake()

    def expire_leases(self) -> None:
        """Forgets every client, as after missed heartbeats; their next message is refused with ``lease_expired``."""
        with self._lock:
            self._memory.leases.clear()

    def freeze(self, frozen: bool = True) -> None:
        """A broker that hangs: it keeps its socket and answers nothing. ``freeze(False)`` ends it."""
        with self._lock:
            self._deaf = frozen
        self._waker.wake()

    def send_raw(self, frame: bytes) -> None:
        """Sends any bytes to every client."""
        with self._lock:
            self._outbox.extend((lease.peer, frame) for lease in self._memory.leases.values())
        self._waker.wake()

    def kill(self) -> None:
        """Dies without a word. Clients see their connection close."""
        self._running = False
        self._waker.wake()
        if self._thread is not None:
            self._thread.join(_WAIT_S)
            self._thread = None

    def restart(self, *, remember_sessions: bool = False) -> None:
        """Starts again on the same endpoint; leases are gone, and sessions unless they are remembered."""
        self.kill()
        with self._lock:
            sessions = dict(self._memory.sessions) if remember_sessions else {}
            self._memory = _Memory(sessions=sessions)
            self._outbox.clear()
        self._running = True
        router = self._bind()
        self._thread = threading.Thread(target=self._run, args=(router,), name="xlm-fake-broker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """The end: dies, and removes its folder. May be called twice."""
        self.kill()
        self._context.destroy(linger=0)
        self._waker.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()

    # -- on the broker's thread ------------------------------------------------------

    def _bind(self) -> zmq.Socket[bytes]:
        router = self._context.socket(zmq.ROUTER)
        router.linger = 0
        ipc = f"ipc://{self._folder / 'broker.sock'}"
        wanted = self._endpoint or self._given_endpoint or ("tcp://127.0.0.1:*" if sys.platform == "win32" else ipc)
        router.bind(wanted)
        self._endpoint = router.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        return router

    def _run(self, router: zmq.Socket[bytes]) -> None:
        poller = zmq.Poller()
        poller.register(self._waker.reader, zmq.POLLIN)
        try:
            while self._running:
                if self._deaf:
                    zmq.select([self._waker.reader], [], [])
                else:
                    poller.register(router, zmq.POLLIN)
                    poller.poll()
                self._waker.clear()
                self._turn(router)
        finally:
            router.close(0)

    def _turn(self, router: zmq.Socket[bytes]) -> None:
        with self._lock:
            while self._running and not self._deaf and router.poll(0):
                peer, frame = router.recv_multipart()
                self._take(peer, frame)
            for speech in list(self._memory.speeches.values()):
                self._speak(speech)
            while self._outbox:
                router.send_multipart(self._outbox.popleft(), zmq.NOBLOCK)
            self._lock.notify_all()

    def _take(self, peer: bytes, frame: bytes) -> None:
        try:
            request: Any = codec.decode_request(frame)
        except ProtocolError as error:
            self._refuse(peer, error.request_id, error.code, error.message)
            return
        self.requests.append(request)
        tag = str(type(request).__struct_config__.tag)
        if self._failures.get(tag):
            self._send(peer, self._failures[tag].popleft(), request)
        elif isinstance(request, messages.Hello):
            self._hello(peer, request)
        elif (lease := self._lease_of(peer)) is None:
            code = "lease_expired" if peer in self._memory.greeted else "not_connected"
            self._refuse(peer, request.id, code, "no lease: say HELLO")
        else:
            getattr(self, f"_on_{tag}")(lease, request)

    def _send(self, peer: bytes, message: Message, request: Message | None = None) -> None:
        if request is not None:
            message.id, message.cause = request.id, request.cause
        self._outbox.append((peer, codec.encode(message)))

    def _refuse(self, peer: bytes, request_id: int, code: str, text: str, **fields: Any) -> None:
        known = errors.from_code(code, text)
        refusal = {"fault": known.fault, "retryable": known.retryable, "hint": known.hint, **fields}
        self._send(peer, messages.Error(id=request_id, code=code, message=text, **refusal))

    def _lease_of(self, peer: bytes) -> _Lease | None:
        return next((lease for lease in self._memory.leases.values() if lease.peer == peer), None)

    def _hello(self, peer: bytes, request: messages.Hello) -> None:
        version = min(request.version_max, self.versions[1])
        if version < max(request.version_min, self.versions[0]):
            low, high = self.versions
            self._refuse(peer, request.id, "protocol_version", f"this broker speaks versions {low} to {high}")
            return
        lease = self._memory.leases.get(request.lease_id)
        resumed = lease is not None
        lease_id = request.lease_id if resumed else secrets.token_hex(8)
        lease = lease or _Lease(request.name, peer)
        lease.peer = peer
        self._memory.leases[lease_id] = lease
        self._memory.greeted.add(peer)
        welcome = messages.Welcome(
            version=version,
            lease_id=lease_id,
            heartbeat_ms=self.heartbeat_ms,
            ttl_ms=3 * self.heartbeat_ms,
            broker_version="fake",
            resumed=resumed,
        )
        self._send(peer, welcome, request)

    def _on_ping(self, lease: _Lease, request: messages.Ping) -> None:
        self._send(lease.peer, messages.Pong(), request)

    def _on_frame(self, lease: _Lease, request: messages.Frame) -> None:
        """Never answered; ``requests`` has them."""

    def _on_goodbye(self, lease: _Lease, _: messages.Goodbye) -> None:
        memory = self._memory
        memory.leases = {key: other for key, other in memory.leases.items() if other is not lease}
        memory.sessions = {key: name for key, name in memory.sessions.items() if name != lease.name}

    def _on_set_budget(self, lease: _Lease, request: messages.SetBudget) -> None:
        cap = request.cap_bytes
        if request.require == "device" and cap is not None and cap < self.minimum_bytes:
            text = f"{format_size(cap)} hold no part of the model"
            self._refuse(lease.peer, request.id, "budget_infeasible", text, minimum_bytes=self.minimum_bytes)
            return
        lease.cap_bytes = cap
        self._grant(lease, request)

    def _on_reserve(self, lease: _Lease, request: messages.Reserve) -> None:
        lease.reserved_bytes = request.bytes
        self._grant(lease, request)

    def _grant(self, lease: _Lease, request: messages.SetBudget | messages.Reserve) -> None:
        granted = self.budget_bytes
        answer = messages.Lease(
            granted_bytes=granted,
            used_bytes=granted,
            device_used_bytes=granted,
            cap_bytes=lease.cap_bytes,
            reserved_bytes=lease.reserved_bytes,
            release_ms=0.25,
            deadline_met=self._deadlines_met,
        )
        self._send(lease.peer, answer, request)

    def _on_open_session(self, lease: _Lease, request: messages.OpenSession) -> None:
        resumed = bool(request.resume)
        if resumed and self._memory.sessions.get(request.resume) != lease.name:
            self._refuse(lease.peer, request.id, "session_unknown", "this session cannot be resumed")
            return
        session_id = request.resume if resumed else f"session-{next(self._numbers)}-{secrets.token_hex(2)}"
        self._memory.sessions[session_id] = lease.name
        self._send(lease.peer, messages.Session(session_id=session_id, resumed=resumed, n_ctx=4096), request)

    def _on_close_session(self, lease: _Lease, request: messages.CloseSession) -> None:
        if self._memory.sessions.pop(request.session_id, None) is None:
            self._refuse(lease.peer, request.id, "session_unknown", f"no session {request.session_id!r}")
            return
        for speech in self._speeches_of(request.session_id):
            self._finish(speech, messages.Done(finish_reason="cancelled"))
        self._send(lease.peer, messages.Ok(), request)

    def _speeches_of(self, session_id: str) -> list[_Speech]:
        return [one for one in self._memory.speeches.values() if one.request.session_id == session_id]

    def _on_say(self, lease: _Lease, request: Say) -> None:
        if request.session_id not in self._memory.sessions:
            self._refuse(lease.peer, request.id, "session_unknown", f"no session {request.session_id!r}")
        elif self._speeches_of(request.session_id):
            self._refuse(lease.peer, request.id, "session_busy", "an answer is in progress")
        elif not set(request.images) <= set(self._memory.images):
            self._refuse(lease.peer, request.id, "image_unknown", "an image was not uploaded")
        else:
            pieces = iter(_pieces(self.answer, request.text))
            self._memory.speeches[lease.peer, request.id] = _Speech(lease.peer, request, pieces)

    def _on_image_begin(self, lease: _Lease, request: messages.ImageBegin) -> None:
        known = request.key in self._memory.images
        if not known:
            self._memory.uploads[request.key] = request, bytearray()
        self._send(lease.peer, messages.Image(key=request.key, ready=known), request)

    def _on_image_chunk(self, lease: _Lease, request: messages.ImageChunk) -> None:
        layout, data = self._memory.uploads.get(request.key, (None, bytearray()))
        if layout is None:
            self._refuse(lease.peer, request.id, "image_unknown", "no such upload was begun")
        elif request.offset != len(data):
            self._refuse(lease.peer, request.id, "image_upload_invalid", f"the next byte is {len(data)}")
        else:
            data += request.data
            self._send(lease.peer, messages.Image(key=request.key, received_bytes=len(data)), request)

    def _on_image_end(self, lease: _Lease, request: messages.ImageEnd) -> None:
        layout, data = self._memory.uploads.pop(request.key, (None, bytearray()))
        if layout is None:
            self._refuse(lease.peer, request.id, "image_unknown", "no such upload was begun")
        elif len(data) != layout.total_bytes or upload_key(layout, data) != request.key:
            self._refuse(lease.peer, request.id, "image_hash_mismatch", "other bytes than those of the key came")
        else:
            self._memory.images[request.key] = bytes(data)
            answer = messages.Image(key=request.key, received_bytes=len(data), ready=True)
            self._send(lease.peer, answer, request)

    def _on_cancel(self, lease: _Lease, request: messages.Cancel) -> None:
        speech = self._memory.speeches.get((lease.peer, request.say_id))
        if speech is not None:
            self._finish(speech, messages.Done(finish_reason="cancelled", usage=self._usage(speech)))

    def _on_get_status(self, lease: _Lease, request: messages.GetStatus) -> None:
        memory = self._memory
        standing = _fake_status.Standing(
            endpoint=self._endpoint,
            heartbeat_ms=self.heartbeat_ms,
            device_bytes=self.device_bytes,
            minimum_bytes=self.minimum_bytes,
            budget_bytes=self.budget_bytes,
            answering=frozenset(one.request.session_id for one in memory.speeches.values()),
            images=len(memory.images),
            image_bytes=sum(map(len, memory.images.values())),
            clients=[(one.name, one.cap_bytes, one.reserved_bytes) for one in memory.leases.values()],
            sessions=list(memory.sessions.items()),
        )
        self._send(lease.peer, _fake_status.status(standing), request)

    def _speak(self, speech: _Speech) -> None:
        """Says what may be said now: up to the gate, up to max_tokens. One piece counts as one token."""
        while self._gate is None or speech.seq < self._gate:
            if speech.seq >= speech.request.max_tokens:
                return self._finish(speech, messages.Done(finish_reason="length", usage=self._usage(speech)))
            piece = next(speech.pieces, None)
            if piece is None:
                return self._finish(speech, messages.Done(finish_reason="stop", usage=self._usage(speech)))
            token = zlib.crc32(piece.encode()) % 32_000  # a stand-in: the same text has the same id
            self._send(speech.peer, messages.Tokens(seq=speech.seq, text=piece, token_ids=[token]), speech.request)
            speech.seq += 1

    @staticmethod
    def _usage(speech: _Speech) -> messages.Usage:
        words = len(speech.request.text.split())
        return messages.Usage(prompt_tokens=words, completion_tokens=speech.seq, ttft_ms=1.0, tpot_ms=1.0)

    def _finish(self, speech: _Speech, end: Message) -> None:
        self._memory.speeches.pop((speech.peer, speech.request.id), None)
        self._send(speech.peer, end, speech.request)


def _pieces(answer: Answer, said: str) -> Iterable[str]:
    """Word by word, each with the space before it; a list is taken as it is."""
    made = answer(said) if callable(answer) else answer
    if not isinstance(made, str):
        return list(made)
    words = made.split(" ")
    return [words[0], *(f" {word}" for word in words[1:])]
