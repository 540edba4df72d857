"""An engine child without a model: real process, real link, canned tokens.

Lets the broker's I/O be tested in seconds. What it answers is a pure function of
the conversation, like greedy decoding, so a replay after a kill can be checked.
It fetches the images of a turn and of its history each time, and answers by their bytes.
Environment: FAKE_ENGINE_MODE = good | dies | fails, FAKE_TOKEN_MS, FAKE_PIECE_BYTES (pads each piece).
"""

from __future__ import annotations

import argparse
import os
import struct
import sys
import time
import zlib
from dataclasses import dataclass, field

import msgspec
import zmq

from xlm.protocol import link
from xlm.protocol.images import upload_key
from xlm.protocol.messages import Usage

MODE = os.environ.get("FAKE_ENGINE_MODE", "good")
TOKEN_S = float(os.environ.get("FAKE_TOKEN_MS", "2")) / 1000
PADDING = "." * int(os.environ.get("FAKE_PIECE_BYTES", "0"))
PIECE_BYTES = int(os.environ.get("FAKE_IMAGE_PIECE", str(256 << 10)))
WEIGHTS_BYTES = 1 << 20


def facts(start: link.Start) -> link.ModelFacts:
    kinds: list[link.Kind] = ["attention", "ffn"] * 4
    sublayers = [
        link.SubLayer(index=index, layer=index // 2, kind=kind, device_bytes=WEIGHTS_BYTES, largest_piece_bytes=4096)
        for index, kind in enumerate(kinds)
    ]
    return link.ModelFacts(
        name="fake", sublayers=sublayers, n_ctx=start.model.n_ctx, n_ubatch=start.model.n_ubatch,
        scratch_bytes={1: 4096, start.model.n_ubatch: 65536}, architecture="fake", n_layer=4, n_vocab=1000,
        projector=link.Projector(name="fake eyes", kind="fake") if start.model.mmproj else None,
    )  # fmt: skip


def answer_token(context: bytes, text: str, index: int, seen: bytes = b"") -> int:
    """``seen``: the bytes of all images, those of the history first."""
    return zlib.crc32(context + text.encode() + struct.pack("<i", index) + seen) % 50_000


@dataclass
class Answer:
    request: link.Generate
    tokens: list[int] = field(default_factory=list)
    due_s: float = 0.0
    missing: list[str] = field(default_factory=list)  # images still to be fetched
    seen: dict[str, bytearray] = field(default_factory=dict)

    @property
    def pictures(self) -> bytes:
        return b"".join(self.seen[key] for key in [*self.request.context_images, *self.request.images])


class FakeEngine:
    def __init__(self, address: str) -> None:
        self.socket = zmq.Context.instance().socket(zmq.PAIR)
        self.socket.setsockopt(zmq.LINGER, 500)
        self._secure(self.socket)
        self.socket.connect(address)
        self.encode = msgspec.msgpack.Encoder().encode
        self.decode = msgspec.msgpack.Decoder(link.BrokerToEngine).decode
        self.answers: dict[int, Answer] = {}
        self.budget_bytes = 0
        self.schedule_id = 0
        self.running = True
        self.next_stats_s = 0.0

    @staticmethod
    def _secure(socket: zmq.Socket[bytes]) -> None:
        key = os.environ.get("XLM_LINK_KEY", "")
        if key:
            socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
            socket.curve_serverkey = key.encode()

    def send(self, message: link.FromEngine) -> None:
        self.socket.send(self.encode(message))

    def run(self) -> None:
        print("fake engine: hello", file=sys.stderr)
        self.send(link.Started(pid=os.getpid()))
        while self.running:
            if self.socket.poll(self._wait_ms()):
                self.handle(self.decode(self.socket.recv()))
            self.step()

    def _wait_ms(self) -> int:
        if not self.answers:
            return 250
        ready = [answer.due_s for answer in self.answers.values() if not answer.missing]
        return max(0, int(1000 * (min(ready) - time.monotonic()))) if ready else 250

    def handle(self, message: link.BrokerToEngine) -> None:
        match message:
            case link.Start():
                self.start(message)
            case link.SetEngineBudget():
                self.budget_bytes = message.budget_bytes
                used = min(self.budget_bytes, 8 * WEIGHTS_BYTES)
                self.send(
                    link.Released(
                        seq=message.seq,
                        budget_bytes=self.budget_bytes,
                        used_bytes=used,
                        device_used_bytes=used,
                        release_ns=1000,
                        cause=message.cause,
                    )
                )
            case link.SetSchedule():
                self.schedule_id = message.schedule.schedule_id
                self.send(link.ScheduleApplied(schedule_id=self.schedule_id))
            case link.Generate():
                keys = list(dict.fromkeys([*message.context_images, *message.images]))
                self.answers[message.gen_id] = answer = Answer(message, list(message.replay), missing=keys)
                self.fetch(answer)
            case link.ImagePart():
                self.take_part(message)
            case link.CancelGeneration():
                self.finish(message.gen_id, "cancelled")
            case link.Probe():
                self.stats()
            case link.Stop():
                self.running = False
            case link.DropSession():
                pass

    def start(self, message: link.Start) -> None:
        if MODE == "dies":
            print("GGML_ASSERT(false) failed", file=sys.stderr, flush=True)
            os._exit(134)
        if MODE == "fails":
            self.send(link.Failed(code="model_bad_magic", message="not a GGUF file"))
            return
        self.budget_bytes = message.budget_bytes
        self.send(link.Progress(stage="load", fraction=0.5))
        device = link.DeviceFacts(kind=message.device.kind, total_bytes=message.device.sim.vram_bytes)
        self.send(link.Loaded(model=facts(message), device=device))

    def fetch(self, answer: Answer) -> None:
        if answer.missing:
            offset = len(answer.seen.setdefault(answer.missing[0], bytearray()))
            self.send(link.WantImage(key=answer.missing[0], offset=offset, max_bytes=PIECE_BYTES))

    def take_part(self, part: link.ImagePart) -> None:
        for answer in list(self.answers.values()):
            if answer.missing[:1] != [part.key] or part.offset != len(answer.seen[part.key]):
                continue
            answer.seen[part.key] += part.data
            if not part.total_bytes:
                del self.answers[answer.request.gen_id]
                failure = {"code": "image_unknown", "message": "the broker has no such image"}
                self.send(link.GenerationFailed(gen_id=answer.request.gen_id, **failure))
            elif len(answer.seen[part.key]) == part.total_bytes:
                assert upload_key(part, answer.seen[part.key]) == part.key
                answer.missing.pop(0)
            self.fetch(answer)

    def step(self) -> None:
        now = time.monotonic()
        if now >= self.next_stats_s:
            self.next_stats_s = now + 0.25
            self.stats()
        for answer in [one for one in self.answers.values() if one.due_s <= now and not one.missing]:
            self.next_token(answer)
            answer.due_s = now + TOKEN_S

    def next_token(self, answer: Answer) -> None:
        request = answer.request
        if len(answer.tokens) >= request.max_tokens:
            self.finish(request.gen_id, "length")
            return
        token = answer_token(request.context, request.text, len(answer.tokens), answer.pictures)
        answer.tokens.append(token)
        self.send(link.Piece(gen_id=request.gen_id, text=f"t{token} {PADDING}", token_ids=[token]))

    def finish(self, gen_id: int, reason: str) -> None:
        answer = self.answers.pop(gen_id, None)
        if answer is None:
            return
        turn = [zlib.crc32(answer.request.text.encode()) % 50_000, *answer.tokens]
        kept = len(answer.request.context) // 4
        self.send(
            link.Finished(
                gen_id=gen_id,
                finish_reason=reason,
                usage=Usage(completion_tokens=len(answer.tokens)),
                context_delta=struct.pack(f"<{len(turn)}i", *turn),
                context_keep=[(0, kept)] if kept else [],
                context_images=[*answer.request.context_images, *answer.request.images],
            )
        )

    def stats(self) -> None:
        used = min(self.budget_bytes, 8 * WEIGHTS_BYTES)
        self.send(
            link.Stats(
                budget_bytes=self.budget_bytes,
                used_bytes=used,
                device_used_bytes=used,
                schedule_id=self.schedule_id,
                n_active=len(self.answers),
            )
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--link", required=True)
    FakeEngine(parser.parse_known_args()[0].link).run()


if __name__ == "__main__":
    main()
