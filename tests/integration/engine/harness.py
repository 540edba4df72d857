"""A real engine process, driven over a real link socket."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import zmq

from xlm.protocol import link
from xlm.protocol.messages import Sampling

M = TypeVar("M", bound=link.FromEngine)

PATIENCE_S = 600.0  # only to fail instead of hanging for ever
GREEDY = Sampling(temperature=0.0)


@dataclass
class Answer:
    """What came back for one Generate."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    pieces: list[link.Piece] = field(default_factory=list)
    finished: link.Finished | None = None
    failed: link.GenerationFailed | None = None

    @property
    def done(self) -> link.Finished:
        assert self.finished is not None, self.failed
        return self.finished

    def take(self, message: link.FromEngine) -> None:
        if isinstance(message, link.Piece):
            self.pieces.append(message)
            self.text += message.text
            self.token_ids += message.token_ids
        elif isinstance(message, link.Finished):
            self.finished = message
        elif isinstance(message, link.GenerationFailed):
            self.failed = message


def next_context(context: bytes, finished: link.Finished) -> bytes:
    """What the broker keeps of a conversation after an answer."""
    kept = b"".join(context[4 * start : 4 * end] for start, end in finished.context_keep)
    return kept + finished.context_delta


def _program(before: str) -> list[str]:
    if not before:
        return ["-m", "xlm_engine"]
    return ["-c", f"{before}\nimport sys\nfrom xlm_engine.__main__ import main\nsys.exit(main())"]


class EngineProcess:
    """The broker's end of the link."""

    def __init__(self, folder: Path, environment: dict[str, str] | None = None, before: str = "") -> None:
        """``before``: Python that runs in the engine process first, to set faults of the virtual GPU."""
        self._context: zmq.Context[Any] = zmq.Context()
        self.socket = self._context.socket(zmq.PAIR)
        self.socket.linger = 0
        self.socket.set_hwm(0)
        endpoint = f"ipc://{folder}/link"
        self.socket.bind(endpoint)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(link.EngineToBroker)
        self._gen_ids = count(1)
        self.answers: dict[int, Answer] = {}
        self.other: list[link.FromEngine] = []
        self.log = (folder / "engine.log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, *_program(before), "--link", endpoint],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **(environment or {})},
        )

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.log.close()
        self._context.destroy(linger=0)

    def log_text(self) -> str:
        return Path(self.log.name).read_text(errors="replace")

    # -- messages

    def send(self, message: link.ToEngine) -> None:
        self.socket.send(self._encoder.encode(message))

    def receive(self) -> link.FromEngine:
        """The next message; it is also sorted into ``answers`` or ``other``."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.socket.poll(200):
            assert time.monotonic() < deadline, f"the engine says nothing\n{self.log_text()[-3000:]}"
            assert self.process.poll() is None, f"the engine died ({self.process.poll()})\n{self.log_text()[-3000:]}"
        message: link.FromEngine = self._decoder.decode(self.socket.recv())
        if isinstance(message, link.Piece | link.Finished | link.GenerationFailed):
            self.answers.setdefault(message.gen_id, Answer()).take(message)
        else:
            self.other.append(message)
        return message

    def wait_for(self, kind: type[M], condition: Callable[[M], bool] = lambda _: True) -> M:
        """The next message of a kind; only those that come from now on."""
        while True:
            message = self.receive()
            if isinstance(message, kind) and condition(message):
                return message

    # -- conversation

    def start(self, model: Path, device: link.DeviceConfig | None = None, budget_bytes: int = 0, **config: Any) -> None:
        settings = {"n_ctx": 512, "n_sessions": 2, "n_ubatch": 32, "n_threads": 1, **config}
        self.send(
            link.Start(
                device=device or link.DeviceConfig(),
                model=link.ModelConfig(path=str(model), **settings),
                budget_bytes=budget_bytes,
            )
        )

    def load(self, model: Path, device: link.DeviceConfig | None = None, **config: Any) -> link.Loaded:
        self.start(model, device, **config)
        message = self.wait_for(link.FromEngine, lambda m: isinstance(m, link.Loaded | link.Failed))
        assert isinstance(message, link.Loaded), message
        return message

    def generate(self, text: str, session: str = "npc", **options: Any) -> int:
        """Sends a Generate; its gen_id."""
        gen_id = next(self._gen_ids)
        settings = {"system": "You are a test.", "max_tokens": 24, "sampling": GREEDY, **options}
        self.answers[gen_id] = Answer()
        self.send(link.Generate(gen_id=gen_id, session_id=session, text=text, **settings))
        return gen_id

    def result(self, gen_id: int) -> Answer:
        answer = self.answers[gen_id]
        while answer.finished is None and answer.failed is None:
            self.receive()
        return answer

    def say(self, text: str, session: str = "npc", **options: Any) -> Answer:
        return self.result(self.generate(text, session, **options))


@contextmanager
def engine_process(environment: dict[str, str] | None = None, before: str = "") -> Iterator[EngineProcess]:
    with tempfile.TemporaryDirectory(prefix="xlm-") as folder:
        process = EngineProcess(Path(folder), environment, before)
        try:
            yield process
        finally:
            process.close()
