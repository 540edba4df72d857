"""Continuous batching: turns Generate requests into steps of llama.cpp and into Pieces.

One thread. Between two steps everything may change: requests come and are
cancelled, a schedule is taken over, copies are uploaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from xlm.errors import DeviceError, EngineError, GenerationError, ImageError, SessionError, XlmError
from xlm.protocol import link
from xlm_engine import logs, shapes
from xlm_engine.generation import FinishReason, Generation
from xlm_engine.meter import Meter
from xlm_engine.policy import Policy, Ready
from xlm_engine.prompt import Prompts
from xlm_engine.runtime import Logits, Row, Runtime, StepFailed
from xlm_engine.sampling import Candidates, Sampler
from xlm_engine.sessions import Sequences
from xlm_engine.vision.image import Image
from xlm_engine.vision.mtmd import EncodeAborted
from xlm_engine.vision.tower import Seen, VisionTower

SETTLE_BUSY_BYTES: Final = 8 << 20  # between two steps: under a millisecond on a PCIe 3 link
SETTLE_IDLE_BYTES: Final = 32 << 20

_STEP_STATUS: Final = {
    1: ("context_overflow", "no room in the KV cache"),
    -1: ("internal", "llama.cpp refused the step"),
    -2: ("device_out_of_memory", "an allocation failed in the step"),
}


class Batcher:
    """All answers in the making. ``send`` is called on this thread, and ``deliver`` before it computes: what was sent
    since may go out then."""

    def __init__(
        self,
        runtime: Runtime,
        prompts: Prompts,
        policy: Policy,
        meter: Meter,
        send: Callable[[link.FromEngine], None],
        deliver: Callable[[], None] = lambda: None,
    ) -> None:
        config = runtime.config
        self._runtime: Final = runtime
        self._prompts: Final = prompts
        self._policy: Final = policy
        self._meter: Final = meter
        self._send: Final = send
        self._deliver: Final = deliver
        self._candidates: Final = Candidates(runtime.n_vocab)
        self._sequences: Final = Sequences(
            config.n_sessions, config.n_ubatch, exact=policy.batching == "exact", forget=runtime.forget
        )
        self._waiting: Final[list[Generation]] = []
        self._active: Final[dict[int, Generation]] = {}  # by sequence id
        self._clock = 0
        self._unsettled = False

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._active)

    @property
    def has_uploads(self) -> bool:
        return self._unsettled

    # -- messages

    def images_needed(self, request: link.Generate) -> list[str]:
        """Upload keys of the images whose pixels ``generate`` needs; empty for a model that takes no images."""
        vision = self._runtime.vision
        if vision is None:
            return []
        wanted = dict.fromkeys([*request.context_images, *request.images])
        return [key for key in wanted if not vision.has(key)]

    def generate(self, request: link.Generate, images: Mapping[str, Image]) -> None:
        """Takes a request; every failure is answered by GenerationFailed.

        ``images``: by upload key, those of the request (new and within its context) that ``images_needed`` named.
        """
        try:
            self._waiting.append(self._new_generation(request, images))
        except XlmError as error:
            self._fail_request(request, error)
        except Exception as error:  # whatever one request does, the others go on
            logs.logger().exception("a request failed", gen_id=request.gen_id)
            self._fail_request(request, EngineError(f"{type(error).__name__}: {error}", code="internal"))
        self._count()

    def _see(self, request: link.Generate, images: Mapping[str, Image]) -> list[tuple[str, Seen]]:
        """All images of the conversation, the new ones last."""
        keys = [*request.context_images, *request.images]
        vision = self._runtime.vision
        if keys and vision is None:
            raise ImageError("the model was started without a projector", code="vision_unavailable")
        return [(key, vision.see(key, images.get(key))) for key in keys] if vision is not None else []

    def _new_generation(self, request: link.Generate, images: Mapping[str, Image]) -> Generation:
        others = [*self._waiting, *self._active.values()]
        if any(other.request.session_id == request.session_id for other in others):
            raise SessionError("this session is still answering", code="session_busy")
        make = self._prompts.later if request.context else self._prompts.first
        seen = self._see(request, images)
        self._scale_first([image for _, image in seen])
        entries = [entry for _, image in seen[len(request.context_images) :] for entry in image.entries()]
        prompt = make(request.system, request.text, entries)
        generation = Generation(request, prompt, self._runtime.config.n_ctx, images=seen)
        sampler = Sampler(self._runtime.vocab, self._candidates, request.sampling)
        generation.sampler = sampler
        try:
            conversation = generation.conversation
            sampler.prime([shapes.token_of(value) for value in conversation if not shapes.is_image(value)])
            generation.replay(self._runtime.piece)
        except BaseException:
            sampler.close()
            raise
        return generation

    def cancel(self, gen_id: int) -> None:
        """Ends an answer; an unknown id is ignored (it may have ended by itself)."""
        for generation in [*self._waiting, *self._active.values()]:
            if generation.request.gen_id == gen_id:
                self._finish(generation, "cancelled")

    def drop_session(self, session_id: str) -> None:
        for generation in [*self._waiting, *self._active.values()]:
            if generation.request.session_id == session_id:
                self._finish(generation, "cancelled")
        self._sequences.drop(session_id)

    def set_schedule(self, schedule: link.Schedule) -> None:
        try:
            self._runtime.set_schedule(schedule)
            self.budget_changed()
            self._send(link.ScheduleApplied(schedule_id=schedule.schedule_id))
        except DeviceError as error:
            self._send(link.ScheduleApplied(schedule_id=schedule.schedule_id, ok=False, message=str(error)))

    def recover(self) -> None:
        """Tries a lost device again."""
        try:
            self._runtime.device.recover()
            self.budget_changed()
        except DeviceError as error:
            logs.logger().warning("the device is still lost", error=str(error))

    def budget_changed(self) -> None:
        """There may be copies to upload now."""
        self._unsettled = True
        self._meter.settled = False

    # -- one round

    def step(self) -> None:
        """Admits who waits, computes one step, uploads a bounded amount."""
        self._admit()
        self._reflow()
        if self._encode():
            return
        ready = [self._ready(seq_id, one) for seq_id, one in self._active.items() if not one.waits_for_image]
        chosen = self._policy.next_step(ready)
        if chosen:
            self._compute([self._active[one.seq_id] for one in chosen])
        self.settle(SETTLE_BUSY_BYTES)

    def settle(self, max_bytes: int = SETTLE_IDLE_BYTES) -> bool:
        """Uploads wanted copies, at most that many bytes. True: these were the last."""
        if not self._unsettled:
            return False
        try:
            self._unsettled = self._runtime.device.settle(max_bytes)
        except DeviceError as error:
            self._unsettled = False
            logs.logger().warning("upload failed", code=error.code, error=str(error))
        self._meter.settled = not self._unsettled
        return self._meter.settled

    def _ready(self, seq_id: int, generation: Generation) -> Ready:
        tokens = generation.next_tokens()
        alone = bool(tokens) and shapes.is_image(tokens[0])  # a step of image tokens holds nothing else
        return Ready(seq_id, len(tokens) + alone, generation.turn, generation.request.priority)

    def _admit(self) -> None:
        self._waiting.sort(key=lambda generation: -generation.request.priority)  # stable: first come, first served
        while self._waiting:
            sequence = self._sequences.acquire(self._waiting[0].request.session_id)
            if sequence is None:
                return
            generation = self._waiting.pop(0)
            generation.sequence = sequence
            generation.turn = self._clock
            self._active[sequence.seq_id] = generation
            if generation.exhausted or generation.overflowed():  # an earlier engine came this far
                self._finish(generation, "length")

    def _reflow(self) -> None:
        """Makes each cache a beginning of its conversation, after admission and after a shift."""
        for generation in self._active.values():
            if generation.reflow and generation.sequence is not None:
                reused, generation.ends = self._sequences.prepare(generation.sequence, generation.conversation)
                generation.n_cached = generation.n_cached or reused
                generation.reflow = False

    # -- images

    def _scale_first(self, images: list[Seen]) -> None:
        """Of a request that nobody is served before: its scaling need not wait for the next step."""
        if self._runtime.vision is not None and not self.has_work:
            self._runtime.vision.scale_first(images)

    def interrupt(self, gen_id: int | None) -> None:
        """From any thread: an answer is about to be cancelled (None: all of them). Ends the encoding of its image."""
        if self._runtime.vision is not None:
            self._runtime.vision.interrupt(gen_id)

    def _encode(self) -> bool:
        """Encodes one part of an image that somebody waits for; while it is scaled, others and text before it go on.

        From its encoding on all images of a request come before its next step, which follows on the last at once.
        """
        vision = self._runtime.vision
        if vision is None:
            return False
        coming = [(one, images) for one in self._active.values() if (images := one.images_to_come())]
        vision.scale_first([seen for _, images in coming for seen in images])
        later = False
        for generation, images in coming:
            if vision.is_scaling(images) and self._has_text:
                later = True
            elif self._encode_one(vision, generation, images):
                if any(not seen.encoded for _, others in coming for seen in others):
                    return True
                break
        if not later and vision.end_phase():
            self.budget_changed()
        return False

    def _encode_one(self, vision: VisionTower, generation: Generation, images: list[Seen]) -> bool:
        self.hand_over()
        self._deliver()
        try:
            return vision.encode_one(images, generation.request.gen_id)
        except EncodeAborted:
            return True  # whoever asked for it says what is next
        except XlmError as error:
            self._fail(generation, error)
            return False

    @property
    def _has_text(self) -> bool:
        return any(one.next_tokens() and not one.waits_for_image for one in self._active.values())

    def _decode_image(self, generation: Generation) -> list[Logits]:
        seen, run, first = generation.image_step()
        embeddings, part, sequence = seen.embeddings[run], seen.runs[run], generation.sequence
        assert embeddings is not None
        assert sequence is not None
        chosen = slice(first, first + len(generation.next_tokens()))
        self._runtime.decode_image(
            embeddings[chosen],
            part.positions(sequence.position)[:, chosen],
            sequence.seq_id,
            non_causal=part.non_causal,
        )
        return []

    # -- computing

    def _compute(self, generations: list[Generation]) -> None:
        try:
            logits = self._decode(generations)
        except StepFailed as failure:
            self._fail_step(generations, failure)
            return
        wanting = iter(logits)
        self._clock += 1
        for generation in generations:
            generation.turn = self._clock
            self._advance(generation, wanting)

    def _decode(self, generations: list[Generation]) -> list[Logits]:
        """One step; a failed one is tried again, by then without the device if it was lost."""
        image = shapes.is_image(generations[0].next_tokens()[0])
        rows = [] if image else [row for generation in generations for row in _rows(generation)]
        n_tokens = len(generations[0].next_tokens()) if image else len(rows)
        if n_tokens > len(generations):  # given text: it may take a while
            self.hand_over()
        for last_try in (False, True):
            try:
                self._runtime.device.begin_step(n_tokens)
                self._deliver()
                return self._decode_image(generations[0]) if image else self._runtime.decode(rows)
            except StepFailed as failure:
                logs.logger().warning("step failed", status=failure.status, n_tokens=n_tokens, again=not last_try)
                whole = self._rewind(generations)
                if last_try or failure.status in (1, -1) or not whole:
                    raise
                self._compute_on_cpu()
                self.hand_over()
        raise AssertionError("unreachable")

    def _compute_on_cpu(self) -> None:
        """Until the broker sends the next schedule. A lost device has gone over to the CPU by itself."""
        device = self._runtime.device
        count = len(device.sublayers())
        everything = link.Tier(max_tokens=self._runtime.config.n_ubatch, placement=bytes(count))
        try:
            device.set_schedule(link.Schedule(schedule_id=0, budget_bytes=0, tiers=[everything], priority=[]))
        except DeviceError as error:
            logs.logger().warning("no schedule for the CPU", error=str(error))

    def _rewind(self, generations: list[Generation]) -> bool:
        """Removes what the failed step may have left. False: a cache had to be dropped and must be computed again."""
        whole = True
        for generation in generations:
            sequence = generation.sequence
            if sequence is not None:
                length = len(sequence.tokens)
                self._sequences.rewind(sequence, length)
                if len(sequence.tokens) < length:
                    whole, generation.reflow = False, True
        return whole

    def _fail_step(self, generations: list[Generation], failure: StepFailed) -> None:
        lost = bool(self._runtime.device.stats()["device_lost"])
        code, words = _STEP_STATUS.get(failure.status, ("internal", "a step could not be computed"))
        if lost:
            code, words = "device_lost", "the device failed in the step"
        for generation in generations:
            self._fail(generation, EngineError(f"{words} (status {failure.status})", code=code))

    def _advance(self, generation: Generation, logits: Iterator[Logits]) -> None:
        """The step is computed: the cache holds it; the answer's next token is chosen if it was the last."""
        assert generation.sequence is not None
        tokens, wanted = generation.next_tokens(), generation.wants_logits
        generation.sequence.append(tokens)
        generation.ends.pop(0)
        if not tokens[0] & shapes.GENERATED:
            self._meter.prefilled += len(tokens)
        if wanted:
            self._choose(generation, next(logits))

    def _choose(self, generation: Generation, logits: Logits) -> None:
        sampler = generation.sampler
        assert isinstance(sampler, Sampler)
        try:
            token = sampler.choose(logits)
            if self._runtime.is_end(token):
                self._finish(generation, "stop")
                return
            sampler.accept(token)
        except GenerationError as error:
            self._fail(generation, error)
            return
        self._meter.generated += 1
        generation.append(token, self._runtime.piece(token))
        self._after_token(generation)

    def _after_token(self, generation: Generation) -> None:
        reason: FinishReason | None = "stop" if generation.answer.stopped else None
        if reason is None and (generation.exhausted or generation.overflowed()):
            reason = "length"
        if reason is not None:
            self._finish(generation, reason)
            return
        if generation.piece_due:
            self._hand_over(generation)
        generation.ends = [len(generation.conversation)]

    def hand_over(self) -> None:
        """Where the next token will take a while: nothing that was chosen waits for it."""
        for generation in self._active.values():
            self._hand_over(generation)

    def _hand_over(self, generation: Generation) -> None:
        """What is chosen and was held back goes out."""
        piece = generation.piece(generation.answer.take())
        if piece is not None:
            self._send(piece)

    # -- ends

    def _finish(self, generation: Generation, reason: FinishReason) -> None:
        piece = generation.piece(generation.answer.finish())
        if piece is not None:
            self._send(piece)
        self._send(generation.finished(reason))
        self._leave(generation)

    def _fail(self, generation: Generation, error: XlmError) -> None:
        self._hand_over(generation)
        self._fail_request(generation.request, error)
        self._leave(generation)

    def _fail_request(self, request: link.Generate, error: XlmError) -> None:
        self._send(
            link.GenerationFailed(gen_id=request.gen_id, code=error.code, message=error.message, hint=error.hint)
        )
        self._scale_first([])

    def _leave(self, generation: Generation) -> None:
        if generation.sampler is not None:
            generation.sampler.close()
        if generation in self._waiting:
            self._waiting.remove(generation)
        if generation.sequence is not None:
            self._active.pop(generation.sequence.seq_id, None)
            self._sequences.release(generation.sequence)
            generation.sequence = None
        vision = self._runtime.vision
        if vision is not None and not self.has_work and vision.end_phase():  # a cancelled turn's
            self.budget_changed()
        self._count()

    def _count(self) -> None:
        self._meter.n_active = len(self._active) + len(self._waiting)


def _rows(generation: Generation) -> list[Row]:
    """The rows of a generation's next step; only the very last before a choice wants logits."""
    assert generation.sequence is not None
    start, seq_id = generation.sequence.position, generation.sequence.seq_id
    tokens = generation.next_tokens()
    last = len(tokens) - 1
    return [
        Row(shapes.token_of(value), start + index, seq_id, generation.wants_logits and index == last)
        for index, value in enumerate(tokens)
    ]
