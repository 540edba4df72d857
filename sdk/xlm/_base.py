"""The client side of a connection, without sockets, threads or clocks.

``Connection`` takes events (a call of the user, a frame, the passing of time, a
lost peer) with the time ``now`` in seconds of any monotonic clock, and returns
what the shell must do: ``Send`` a frame, or ``Dial``, that is drop the socket
and open a fresh one. Both clients share it; ``_transport.py`` carries it out.

    CONNECTING --welcome--> RESTORING --sessions resumed--> READY
        ^                                                     |
        +------------- nothing heard for ttl, peer lost ------+
    FAILED: refused for good (wrong version). CLOSED: the user closed it.

Not thread-safe: the shell holds a lock around each call.
"""

from __future__ import annotations

import enum
import itertools
import secrets
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from xlm import errors
from xlm._calls import Call, Conversation, Stream, UploadCall, Wishes, again, unexpected
from xlm._uploads import Uploads
from xlm.errors import BrokerError, ImageError, ProtocolError, RequestError, SessionError, XlmError
from xlm.protocol import codec, messages
from xlm.protocol.messages import Message

MAX_NOTICES: Final = 1024  # kept for a client that never looks; the oldest go first
FIRST_ATTEMPT_S: Final = 1.0  # how long one HELLO may stay unanswered; doubles up to
LONGEST_ATTEMPT_S: Final = 8.0
_LEASE_CODES: Final = ("lease_expired", "not_connected")  # to connect again; the request itself was not judged
_UPLOAD_AGAIN: Final = ("image_unknown", "image_upload_invalid")  # dropped meanwhile, to make room
_SHORTEST_HEARTBEAT_S: Final = 0.01  # whatever a broker asks for: no busy loop


class Phase(enum.Enum):
    CONNECTING = enum.auto()
    RESTORING = enum.auto()
    READY = enum.auto()
    FAILED = enum.auto()
    CLOSED = enum.auto()


@dataclass(frozen=True, slots=True)
class Send:
    frame: bytes


@dataclass(frozen=True, slots=True)
class Dial:
    """Drop the socket with all that is queued in it, and open a fresh one."""


Action = Send | Dial


@dataclass(slots=True)
class _Timing:
    """When something is due, in seconds of the shell's clock."""

    attempt_ends: float = 0.0
    attempt_s: float = FIRST_ATTEMPT_S
    heartbeat_s: float = 1.0
    ttl_s: float = 3.0
    next_ping: float = 0.0
    last_tick: float = 0.0
    # How long nothing has been heard while this process ran: one that was stopped, or got no CPU, did not listen, and
    # has asked nothing. So no step counts for more than a heartbeat.
    silence_s: float = 0.0

    def next_attempt(self, now: float) -> None:
        self.attempt_ends = now + self.attempt_s
        self.attempt_s = min(2 * self.attempt_s, LONGEST_ATTEMPT_S)

    def welcome(self, now: float, message: messages.Welcome) -> None:
        self.attempt_s = FIRST_ATTEMPT_S
        self.heartbeat_s = max(message.heartbeat_ms / 1e3, _SHORTEST_HEARTBEAT_S)
        self.ttl_s = max(message.ttl_ms / 1e3, 2 * self.heartbeat_s)
        self.heard(now)
        self.next_ping = now + self.heartbeat_s

    def pass_time(self, now: float) -> None:
        self.silence_s += min(max(now - self.last_tick, 0.0), self.heartbeat_s)
        self.last_tick = now

    def heard(self, now: float) -> None:
        self.last_tick, self.silence_s = now, 0.0

    @property
    def silent_at(self) -> float:
        return self.last_tick + max(self.ttl_s - self.silence_s, 0.0)


@dataclass(slots=True)
class Identity:
    """What HELLO says of this client."""

    name: str
    pid: int = 0
    sdk: str = ""


@dataclass(slots=True)
class Connection:
    """One client's side of the protocol; see the module's text."""

    identity: Identity
    phase: Phase = Phase.CONNECTING
    error: XlmError | None = None  # why it FAILED
    lease_id: str = ""
    version: int = 0
    broker_version: str = ""
    trouble: str = ""  # what the transport saw while connecting
    notices: deque[messages.Notice] = field(default_factory=lambda: deque(maxlen=MAX_NOTICES))
    conversations: list[Conversation] = field(default_factory=list)
    wishes: Wishes = field(default_factory=Wishes)
    timing: _Timing = field(default_factory=_Timing)
    _uploads: Uploads[Stream] = field(default_factory=Uploads)
    _pending: dict[int, Call] = field(default_factory=dict)
    _restoring: set[int] = field(default_factory=set)
    _ids: Any = field(default_factory=lambda: itertools.count(1))
    _hello_id: int = 0
    _report_id: int = 0  # of the last frame report
    _takes_reports: bool = True  # a broker of before them says it does not know them
    _cause: str = field(default_factory=lambda: secrets.token_hex(3))

    # -- events ------------------------------------------------------------------

    def start(self, now: float) -> list[Action]:
        """The first attempt to connect."""
        return self._dial(now)

    def submit(self, call: Call) -> list[Action]:
        """A call of the user. Where there is no connection the call fails at once; a wish is remembered even so."""
        self.wishes.record(call)
        if self.phase is not Phase.READY:
            call.fail(self.absence())
            return []
        return self._say(call) if isinstance(call, Stream) else self._request(call)

    def report(self, frames: messages.Frame) -> list[Action]:
        """Never answered, and worth nothing later: left out where there is no connection."""
        if self.phase is not Phase.READY or not self._takes_reports:
            return []
        send = self._send(frames)
        self._report_id = frames.id
        return [send]

    def cancel(self, stream: Stream) -> list[Action]:
        """The user wants no more of this answer; it ends with DONE, which may come any time."""
        stream.unwanted = True
        if stream.conversation is not None and stream in stream.conversation.held:
            stream.conversation.held.remove(stream)
            stream.take(messages.Done(finish_reason="cancelled"))
        if stream in self._uploads:
            self._uploads.drop(stream)
            stream.take(messages.Done(finish_reason="cancelled"))
            return self._go_on(stream.conversation)
        if stream.done or stream.cancelled or self._pending.get(stream.message.id) is not stream:
            return []
        stream.cancelled = True
        return [self._send(messages.Cancel(say_id=stream.message.id))]

    def forget(self, call: Call) -> list[Action]:
        """Nobody waits for this call any more (a time-out); what comes for it is ignored."""
        if isinstance(call, Stream):
            return self.cancel(call)
        self._pending.pop(call.message.id, None)
        return []

    def end_conversation(self, conversation: Conversation) -> Call | None:
        """Forgets a session; the call that closes it, or None where the broker has forgotten it too."""
        if conversation in self.conversations:
            self.conversations.remove(conversation)
        if conversation.lost or self.phase is not Phase.READY:
            return None
        return Call(messages.CloseSession(session_id=conversation.session_id))

    def receive(self, frame: bytes, now: float) -> list[Action]:
        """A frame from the broker. One that is not understood fails the call it is for, and nothing else."""
        self.timing.heard(now)
        try:
            message: Message = codec.decode_reply(frame)
        except ProtocolError as error:
            return self._failed(error.request_id, error)
        if isinstance(message, messages.Notice):
            self.notices.append(message)
            return []
        if isinstance(message, messages.Error):
            return self._refused(message, now)
        if isinstance(message, messages.Welcome):
            return self._welcomed(message, now)
        return self._answered(message)

    def tick(self, now: float) -> list[Action]:
        """Time passed: a HELLO to repeat, a heartbeat to send, or a peer that fell silent."""
        timing = self.timing
        if self.phase is Phase.CONNECTING:
            return self._dial(now) if now >= timing.attempt_ends else []
        if self.phase not in (Phase.READY, Phase.RESTORING):
            return []
        timing.pass_time(now)
        if timing.silence_s >= timing.ttl_s:
            return self.lost(now, f"the broker has been silent for {timing.ttl_s:.3g} s")
        if now < timing.next_ping:
            return []
        timing.next_ping = now + timing.heartbeat_s
        return [self._send(messages.Ping())]

    def lost(self, now: float, why: str, code: str = "broker_gone") -> list[Action]:
        """The peer is gone, or the lease: everything in flight fails with ``code``, and connecting begins anew."""
        if self.phase is Phase.CONNECTING:
            # No WELCOME yet, and perhaps HELLO went down with the peer: do not wait long.
            self.trouble = self.trouble or why
            self.timing.attempt_ends = min(self.timing.attempt_ends, now + self.timing.attempt_s / 4)
            return []
        if self.phase not in (Phase.READY, Phase.RESTORING):
            return []
        self._fail_pending(errors.from_code(code, f"the connection to the broker was lost: {why}"))
        self._notice("broker_gone", f"{why}; connecting again in the background")
        self.phase, self.trouble = Phase.CONNECTING, why
        return self._dial(now)

    def close(self) -> list[Action]:
        """The user is done. GOODBYE ends lease, cap, reservation and sessions at once."""
        actions: list[Action] = []
        if self.phase in (Phase.READY, Phase.RESTORING):
            actions = [self._send(messages.Goodbye())]
        self.phase = Phase.CLOSED
        self._fail_pending(self.absence())
        return actions

    def fail(self, error: XlmError) -> None:
        """For good: every call, now and later, raises ``error``."""
        if self.phase is not Phase.CLOSED:
            self.phase, self.error = Phase.FAILED, error
        self._fail_pending(error)

    # -- what holds --------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When ``tick`` has something to do next, in seconds of the shell's clock; None: never."""
        timing = self.timing
        if self.phase is Phase.CONNECTING:
            return timing.attempt_ends
        if self.phase in (Phase.READY, Phase.RESTORING):
            return min(timing.next_ping, timing.silent_at)
        return None

    def absence(self) -> XlmError:
        """Why there is no connection, as a fresh error."""
        if self.phase is Phase.CLOSED:
            return ProtocolError("the client was closed", code="not_connected", hint="connect again with xlm.connect()")
        if self.phase is Phase.FAILED and self.error is not None:
            return again(self.error)
        why = f": {self.trouble}" if self.trouble else ""
        code = "broker_gone" if self.lease_id else "not_ready"
        return BrokerError(f"there is no connection to the broker{why}", code=code)

    # -- parts -------------------------------------------------------------------

    def _dial(self, now: float) -> list[Action]:
        self.timing.next_attempt(now)
        hello = messages.Hello(
            version_min=messages.VERSION_MIN,
            version_max=messages.VERSION_MAX,
            name=self.identity.name,
            pid=self.identity.pid,
            sdk=self.identity.sdk,
            lease_id=self.lease_id,
        )
        send = self._send(hello)
        self._hello_id = hello.id
        return [Dial(), send]

    def _send(self, message: Message) -> Send:
        message.id = next(self._ids)
        message.cause = f"{self._cause}-{message.id}"
        return Send(codec.encode(message))

    def _say(self, stream: Stream) -> list[Action]:
        """Who leaves an answer may speak again at once: the next SAY waits until the cancelled answer has ended."""
        conversation = stream.conversation
        before = conversation.speaking if conversation else None
        if conversation is None or before is None or before.done:
            return self._prepare(stream)
        if not before.unwanted and before in self._uploads:  # the broker does not know of it yet
            stream.fail(SessionError("this session is still answering", code="session_busy"))
            return []
        if not before.unwanted:
            return self._prepare(stream)
        conversation.held.append(stream)
        return self.cancel(before)

    def _prepare(self, stream: Stream) -> list[Action]:
        """Uploads the images of an answer first, then asks for it."""
        if not stream.pictures:
            return self._request(stream)
        if stream.conversation is not None:
            stream.conversation.speaking = stream
        self._uploads.add(stream, stream.pictures)
        return self._upload()

    def _upload(self) -> list[Action]:
        upload, due = self._uploads.due()
        return [action for message in due if upload for action in self._request(UploadCall(message, upload))]

    def _uploaded(self, call: UploadCall, message: Message) -> list[Action]:
        del self._pending[call.message.id]
        if not isinstance(message, messages.Image):
            return self._upload_failed(call, unexpected(call.message, message))
        ready = self._uploads.answered(call.upload, call.message, message)
        return [action for stream in ready for action in self._request(stream)] + self._upload()

    def _upload_failed(self, call: UploadCall, error: XlmError) -> list[Action]:
        self._pending.pop(call.message.id, None)
        if error.code == "unknown_type":
            error = ImageError("this broker takes no images", code="vision_unavailable")
        actions: list[Action] = []
        for stream in self._uploads.refused(call.upload, again=error.code in _UPLOAD_AGAIN):
            stream.fail(again(error))
            actions += self._go_on(stream.conversation)
        return actions + self._upload()

    def _request(self, call: Call) -> list[Action]:
        try:
            send = self._send(call.message)
        except ProtocolError as error:
            self.wishes.refused(call)
            call.fail(error)
            return []
        self._pending[call.message.id] = call
        if isinstance(call, Stream) and call.conversation is not None:
            call.conversation.speaking = call
        return [send]

    def _welcomed(self, message: messages.Welcome, now: float) -> list[Action]:
        if self.phase is not Phase.CONNECTING or message.id != self._hello_id:
            return []
        if not messages.VERSION_MIN <= message.version <= messages.VERSION_MAX:
            text = f"the broker chose protocol version {message.version}, which this SDK does not know"
            self.fail(ProtocolError(text, code="protocol_version"))
            return []
        again = bool(self.lease_id)
        self.lease_id, self.version, self.broker_version = message.lease_id, message.version, message.broker_version
        self.timing.welcome(now, message)
        self.phase, self.trouble, self._takes_reports = Phase.RESTORING, "", True
        actions = self._restore()
        if again:
            self._notice("reconnected", "connected to the broker again", resumed=message.resumed)
        self._ready_if_restored()
        return actions

    def _restore(self) -> list[Action]:
        """Asks again for what held. Only sessions are waited for: a budget may take its time, calls need not."""
        actions: list[Action] = []
        for wish in self.wishes.messages():
            call = Call(wish)
            call.restores = True
            actions += self._request(call)
        for conversation in self.conversations:
            actions += self._reopen(conversation, conversation.session_id)
        return actions

    def _reopen(self, conversation: Conversation, resume: str) -> list[Action]:
        opening = conversation.request
        call = Call(messages.OpenSession(system=opening.system, overflow=opening.overflow, resume=resume))
        call.conversation = conversation
        actions = self._request(call)
        self._restoring.add(call.message.id)
        return actions

    def _ready_if_restored(self) -> None:
        if self.phase is Phase.RESTORING and not self._restoring:
            self.phase = Phase.READY

    def _answered(self, message: Message) -> list[Action]:
        call = self._pending.get(message.id)
        if call is None:
            return []  # PONG, OK to a CANCEL, or something nobody waits for any more
        if isinstance(call, UploadCall):
            return self._uploaded(call, message)
        if isinstance(message, messages.Session):
            self._opened(call, message)
        call.take(message)
        broken = isinstance(call, Stream) and call.error is not None
        cancel: list[Action] = [self._send(messages.Cancel(say_id=message.id))] if broken else []
        return cancel + self._settle(call)

    def _opened(self, call: Call, message: messages.Session) -> None:
        conversation = call.conversation
        if conversation is None and isinstance(call.message, messages.OpenSession):
            conversation = call.conversation = Conversation(call.message, message.session_id)
            self.conversations.append(conversation)
        elif conversation is not None and not message.resumed:
            self._notice("session_reset", "a conversation began anew", session_id=conversation.session_id)
        if conversation is not None:
            conversation.session_id, conversation.n_ctx = message.session_id, message.n_ctx
            conversation.resumed = message.resumed

    def _refused(self, message: messages.Error, now: float) -> list[Action]:
        error = errors.from_code(message.code, message.message, hint=message.hint, minimum_bytes=message.minimum_bytes)
        if message.id == self._hello_id and self.phase is Phase.CONNECTING:
            return self._hello_refused(error)
        if message.id == self._report_id:
            self._takes_reports = message.code != "unknown_type"
        actions = self._failed(message.id, error)
        if message.code == "lease_expired":
            actions += self.lost(now, error.message, "lease_expired")
        elif message.code == "not_connected":
            actions += self.lost(now, "the broker does not know this client any more")
        return actions

    def _hello_refused(self, error: XlmError) -> list[Action]:
        self.trouble = error.message
        if not (error.retryable and self.lease_id):  # a first connection tells its user at once
            self.fail(error)
        return []

    def _failed(self, request_id: int, error: XlmError) -> list[Action]:
        call = self._pending.get(request_id)
        if call is None:
            return []
        if isinstance(call, UploadCall):
            return self._upload_failed(call, error)
        if isinstance(call, Stream) and error.code == "image_unknown" and not call.repeated:
            call.repeated = True
            del self._pending[request_id]
            return self._prepare(call)
        if isinstance(error, RequestError) and error.code not in _LEASE_CODES:
            self.wishes.refused(call)
            if call.restores:
                self._notice("restore_failed", f"not granted again: {error.message}", code=error.code)
        actions: list[Action] = []
        if request_id in self._restoring and call.conversation is not None:
            actions = self._not_resumed(call, call.conversation, error)
        call.fail(error)
        return actions + self._settle(call)

    def _not_resumed(self, call: Call, conversation: Conversation, error: XlmError) -> list[Action]:
        """A broker that does not know it any more gets it anew; any other refusal ends it."""
        resume = isinstance(call.message, messages.OpenSession) and call.message.resume
        if resume and error.code == "session_unknown":
            return self._reopen(conversation, "")
        lost = SessionError(f"the conversation was lost: {error.message}", code="session_unknown")
        conversation.lost = lost
        self.conversations.remove(conversation)
        self._notice("session_lost", lost.message, session_id=conversation.session_id)
        return []

    def _settle(self, call: Call) -> list[Action]:
        if not call.done:
            return []
        self._pending.pop(call.message.id, None)
        self._restoring.discard(call.message.id)
        self._ready_if_restored()
        return self._go_on(call.conversation) if isinstance(call, Stream) else []

    def _go_on(self, conversation: Conversation | None) -> list[Action]:
        if conversation is None or not conversation.held:
            return []
        held, conversation.held = conversation.held, []
        return [action for stream in held for action in self._prepare(stream)]

    def _fail_pending(self, error: XlmError) -> None:
        calls: list[Call] = [*self._pending.values(), *self._uploads.clear()]
        for conversation in self.conversations:
            calls += conversation.held
            conversation.held = []
        self._pending.clear()
        self._restoring.clear()
        for call in calls:
            call.fail(again(error))

    def _notice(self, kind: str, text: str, **detail: Any) -> None:
        self.notices.append(messages.Notice(kind=kind, text=text, detail=detail))
