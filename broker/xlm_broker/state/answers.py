"""Answers in progress: say -> Generate -> Piece ... -> Finished, across engine deaths.

An answer keeps every token that was delivered. When the engine dies it is sent
again with those tokens as ``replay``, and the client sees one stream.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from xlm.errors import XlmError, from_code
from xlm.protocol import link, messages

from .core import Client, Core
from .engine import Engine
from .images import Images
from .sessions import Session, Sessions

MAX_DEATHS = 3  # of the engine under one answer without a new token: the answer is the likely reason


@dataclass(slots=True)
class Answer:
    gen_id: int
    client: bytes | None  # None: nobody listens any more
    request: messages.Say
    session: Session
    cause: str
    received_ns: int
    seq: int = 0  # of the next TOKENS
    delivered: list[int] = field(default_factory=list)  # token ids, for replay
    sent: bool = False  # to the engine that runs now
    sent_ns: int = 0
    cancelled: bool = False
    broken: bool = False  # tokens may be missing on the client's side: it gets no more of them, only the end
    deaths: int = 0
    moving: bool = False  # the engine that runs now has said something of it
    suspicion: int = 0  # it was in work when an engine stood still: 1, and 2 if that engine had said nothing of it


class Answers:
    def __init__(self, core: Core, engine: Engine) -> None:
        self._core = core
        self._engine = engine
        self.live: dict[int, Answer] = {}

    # -- requests -------------------------------------------------------------------

    def say(self, client: Client, request: messages.Say, sessions: Sessions, images: Images) -> None:
        session = sessions.find(client, request.session_id)
        refusal = self._refusal(client, request, session) or images.check_say(client, request.images)
        if refusal is not None or session is None:
            return self._core.fail(client.identity, request.id, refusal or from_code("session_unknown", ""))
        answer = Answer(self._core.count(), client.identity, request, session, self._core.cause, self._core.now_ns)
        self.live[answer.gen_id] = answer
        session.gen_id = answer.gen_id
        return self.pump()

    def _refusal(self, client: Client, request: messages.Say, session: Session | None) -> XlmError | None:
        if session is None:
            return from_code("session_unknown", "there is no such session")
        if any(a.client == client.identity and a.request.id == request.id for a in self.live.values()):
            return from_code("bad_request", f"request id {request.id} is in use by an answer in progress")
        if session.gen_id is not None:
            return from_code("session_busy", "this session is still answering")
        if self._engine.phase == "failed":
            return self._why_failed()
        if len(self.live) >= self._core.settings.limits.max_answers:
            return from_code("overloaded", f"{len(self.live)} answers are in progress")
        return None

    def _why_failed(self) -> XlmError:
        problem = self._engine.problem
        return problem.error() if problem is not None else from_code("engine_failed", "the engine has failed")

    def cancel(self, client: Client, request: messages.Cancel) -> None:
        for answer in list(self.live.values()):
            if answer.client == client.identity and answer.request.id == request.say_id:
                self._cancel(answer)

    def _cancel(self, answer: Answer) -> None:
        """The engine ends it with Finished, so that the conversation keeps what was said; an unsent one ends here."""
        if answer.cancelled:
            return
        answer.cancelled = True
        if answer.sent:
            self._core.to_engine(link.CancelGeneration(gen_id=answer.gen_id))
        elif not answer.delivered:
            self._end(answer, messages.Done(finish_reason="cancelled"))

    def abandon(self, session: Session, tell: bool) -> None:
        """The session goes away: its answer ends now, whatever the engine still says of it."""
        answer = self.live.get(session.gen_id) if session.gen_id is not None else None
        if answer is None:
            return
        if answer.sent and not answer.cancelled:
            self._core.to_engine(link.CancelGeneration(gen_id=answer.gen_id))
        answer.client = answer.client if tell else None
        usage = messages.Usage(completion_tokens=len(answer.delivered))
        self._end(answer, messages.Done(finish_reason="cancelled", usage=usage))

    def lease_ended(self, client: Client) -> None:
        """Nobody listens: cancelled, but the session may be taken up again and must know what was said."""
        for answer in [a for a in self.live.values() if a.client == client.identity]:
            answer.client = None
            self._cancel(answer)

    def lease_moved(self, client: Client, old: bytes) -> None:
        """The peer reconnected on a new socket and may have missed tokens: the answer ends, and it hears so."""
        for answer in [a for a in self.live.values() if a.client == old]:
            answer.client, answer.broken = client.identity, True
            self._cancel(answer)

    # -- engine ---------------------------------------------------------------------

    def pump(self) -> None:
        """Sends what waits; the engine batches and queues by priority itself."""
        if not self._engine.ready:
            return
        for answer in sorted(self.live.values(), key=lambda answer: answer.suspicion):
            if not answer.sent and not (answer.suspicion and self._suspect_at_work):
                self._generate(answer)

    @property
    def _suspect_at_work(self) -> bool:
        """One suspect at a time: should the engine stand still again, it is known over which."""
        return any(answer.sent and answer.suspicion for answer in self.live.values())

    def _generate(self, answer: Answer) -> None:
        request, session = answer.request, answer.session
        if self.oldest_sent is None:  # from here on it has to get on
            self._engine.heard_ns = self._core.now_ns
        answer.sent, answer.sent_ns = True, self._core.now_ns
        self._core.to_engine(
            link.Generate(
                gen_id=answer.gen_id,
                session_id=session.session_id,
                system=session.system,
                context=session.context,
                text=request.text,
                max_tokens=request.max_tokens,
                sampling=request.sampling,
                stop=list(request.stop),
                priority=request.priority,
                overflow="shift" if session.overflow == "shift" else "error",
                replay=list(answer.delivered),
                cause=answer.cause,
                images=list(request.images),
                context_images=list(session.images),
            )
        )
        if answer.cancelled:
            self._core.to_engine(link.CancelGeneration(gen_id=answer.gen_id))

    def piece(self, piece: link.Piece) -> None:
        answer = self.live.get(piece.gen_id)
        if answer is None or not answer.sent:
            return
        answer.deaths, answer.moving = 0, True
        answer.delivered.extend(piece.token_ids)
        if answer.client is not None and not answer.broken and not self._merged(answer, piece):
            self._tokens(answer, piece)

    def _merged(self, answer: Answer, piece: link.Piece) -> bool:
        client = self._core.clients.get(answer.client or b"")
        if client is None or client.outbox is None:
            return False
        return client.outbox.extend(answer.request.id, piece.text, piece.token_ids)

    def _tokens(self, answer: Answer, piece: link.Piece) -> None:
        tokens = messages.Tokens(
            id=answer.request.id, cause=answer.cause, seq=answer.seq, text=piece.text, token_ids=piece.token_ids
        )
        answer.seq += 1
        self._core.send(answer.client or b"", tokens)

    def finished(self, report: link.Finished) -> None:
        answer = self.live.get(report.gen_id)
        if answer is None or not answer.sent:
            return
        known = {*answer.session.images, *answer.request.images}
        images = [key for key in report.context_images if key in known]
        answer.session.finish(report.context_delta, report.context_keep, images)
        self._end(answer, messages.Done(finish_reason=report.finish_reason, usage=report.usage))

    def generation_failed(self, report: link.GenerationFailed) -> None:
        answer = self.live.get(report.gen_id)
        if answer is not None and answer.sent:
            self._fail(answer, from_code(report.code, report.message, hint=report.hint))

    def engine_dead(self) -> None:
        if self._engine.hung:
            self._blame()
        for answer in list(self.live.values()):
            if answer.sent:
                answer.sent, answer.moving, answer.deaths = False, False, answer.deaths + 1
            if answer.deaths >= MAX_DEATHS:
                text = f"the engine died {answer.deaths} times under this request"
                self._fail(answer, from_code("engine_failed", text))

    def _blame(self) -> None:
        """The answer it stood still over is not tried again. Of several that were in work none is blamed the first
        time: they are tried again one after the other, the likeliest last, beside whatever else is asked for.

        What was sent after the last sign of life was never begun.
        """
        begun = [a for a in self.live.values() if a.sent and a.sent_ns <= self._engine.heard_ns]
        guilty = begun if len(begun) == 1 else [answer for answer in begun if answer.suspicion]
        for answer in guilty:
            self._fail(answer, from_code("engine_failed", "the engine stood still over this request and was killed"))
        for answer in begun if not guilty else []:
            answer.suspicion = 1 if answer.moving else 2

    def fail_all(self, error: XlmError) -> None:
        for answer in list(self.live.values()):
            self._fail(answer, error)

    # -- end ------------------------------------------------------------------------

    def _fail(self, answer: Answer, error: XlmError) -> None:
        self._close(answer)
        if answer.client is not None:
            self._core.fail(answer.client, answer.request.id, error, answer.cause)

    def _end(self, answer: Answer, done: messages.Done) -> None:
        self._close(answer)
        if answer.client is not None:
            done.id, done.cause = answer.request.id, answer.cause
            self._core.send(answer.client, done)

    def _close(self, answer: Answer) -> None:
        del self.live[answer.gen_id]
        answer.session.gen_id = None
        if answer.sent and answer.suspicion:  # the next one's turn
            self.pump()

    def images(self) -> set[str]:
        """Keys of the images that answers in progress were asked about."""
        return {key for answer in self.live.values() for key in answer.request.images}

    @property
    def oldest_sent(self) -> Answer | None:
        return next((answer for answer in self.live.values() if answer.sent), None)

    def validate(self, sessions: Sessions) -> None:
        assert len(self.live) <= self._core.settings.limits.max_answers
        for gen_id, answer in self.live.items():
            assert sessions.live.get(answer.session.session_id) is answer.session, "an answer without a session"
            assert answer.session.gen_id == gen_id
            assert answer.client is None or answer.client == answer.session.client
            waits = not answer.sent and answer.suspicion and self._suspect_at_work
            assert answer.sent == self._engine.ready or waits or self._engine.phase in ("killing", "stopping")
            assert self._engine.phase not in ("failed", "stopped"), "an answer that nobody will give"
        for session in sessions.live.values():
            assert session.gen_id is None or session.gen_id in self.live
