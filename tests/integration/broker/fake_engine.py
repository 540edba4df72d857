"""An engine child without a model: real process, real link, canned tokens.

Lets the broker's I/O be tested in seconds. What it answers is a pure function of
the conversation, like greedy decoding, so a replay after a kill can be checked.
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
from xlm.protocol.messages import Usage

MODE = os.environ.get("FAKE_ENGINE_MODE", "good")
TOKEN_S = float(os.environ.get("FAKE_TOKEN_MS", "2")) / 1000
PADDING = "." * int(os.environ.get("FAKE_PIECE_BYTES", "0"))
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
    )  # fmt: skip


def answer_token(context: bytes, text: str, index: int) -> int:
    return zlib.crc32(context + text.encode() + struct.pack("<i", index)) % 50_000


@dataclass
class Answer:
    request: link.Generate
    tokens: list[int] = field(default_factory=list)
    due_s: float = 0.0


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
        return max(0, int(1000 * (min(answer.due_s for answer in self.answers.values()) - time.monotonic())))

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
                self.answers[message.gen_id] = Answer(message, list(message.replay))
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

    def step(self) -> None:
        now = time.monotonic()
        if now >= self.next_stats_s:
            self.next_stats_s = now + 0.25
            self.stats()
        for answer in [answer for answer in self.answers.values() if answer.due_s <= now]:
            self.next_token(answer)
            answer.due_s = now + TOKEN_S

    def next_token(self, answer: Answer) -> None:
        request = answer.request
        if len(answer.tokens) >= request.max_tokens:
            self.finish(request.gen_id, "length")
            return
        token = answer_token(request.context, request.text, len(answer.tokens))
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
