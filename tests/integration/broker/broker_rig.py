"""A broker process with the fake engine, and a client of bare frames."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil
import zmq

from xlm.protocol import codec, messages

HERE = Path(__file__).parent
FAKE_ENGINE = f"{sys.executable} -m xlm_broker.child_guard fake_engine"
DEADLINE_S = 600.0  # only to fail instead of hanging for ever
HEARTBEAT_MS = 20_000.0  # no lease ends because this process had to wait for a CPU
_POLL_S = 0.1

M = TypeVar("M", bound=messages.Message)
T = TypeVar("T")


def eventually(probe: Callable[[], T], what: str, deadline_s: float = DEADLINE_S) -> T:
    """The first true answer of the probe."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        found = probe()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"did not happen within {deadline_s} s: {what}")


class Broker:
    """One ``xlm-broker`` process on its own endpoint, configuration and runtime folders."""

    def __init__(self, folder: Path, *options: str, endpoint: str = "", patch: str = "", **environment: str) -> None:
        """``patch``: Python code run in the broker before it starts."""
        self.folder = folder
        self.endpoint = endpoint or f"ipc://{folder}/s/b.sock"
        self.ready_file = folder / "ready.json"
        self.log_file = folder / "broker.log"
        code = f"{patch}\nfrom xlm_broker.cli.broker import main\nmain()"
        self.command = [
            sys.executable, "-c", code, "--model", str(folder / "model.gguf"), "--device", "sim", "--endpoint",
            self.endpoint, "--ready-file", str(self.ready_file), "--heartbeat-ms", str(HEARTBEAT_MS), *options,
        ]  # fmt: skip
        path = os.pathsep.join([str(HERE), *sys.path])
        homes = {name: str(folder / "x") for name in ("XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_STATE_HOME")}
        (folder / "x").mkdir(mode=0o700, exist_ok=True)
        self.environment = {
            **os.environ, "PYTHONPATH": path, "XLM_ENGINE_COMMAND": FAKE_ENGINE, **homes, **environment,
        }  # fmt: skip
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log_file.open("ab") as log:
            return subprocess.Popen(self.command, env=self.environment, stdout=log, stderr=log)

    def restart(self) -> None:
        self.process = self._start()

    def ready(self) -> dict[str, Any]:
        """The ready-file, once it is there."""

        def read() -> dict[str, Any] | None:
            assert self.process.poll() is None, f"the broker ended: {self.log()}"
            return json.loads(self.ready_file.read_text()) if self.ready_file.exists() else None

        found = eventually(read, "ready-file")
        assert found is not None
        self.endpoint = found["endpoint"]
        return found

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def rss_bytes(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout=DEADLINE_S)


class RawClient:
    """A DEALER that speaks frames; it keeps what it received and did not yet look for."""

    def __init__(self, endpoint: str, *, name: str = "test", receive_queue: int = 1000) -> None:
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVHWM, receive_queue)
        self.socket.connect(endpoint)
        self.name = name
        self.kept: list[messages.Message] = []
        self.next_id = 1

    def hello(self, **more: Any) -> messages.Welcome:
        return self.ask(
            messages.Hello(
                version_min=messages.VERSION_MIN, version_max=messages.VERSION_MAX, name=self.name,
                pid=os.getpid(), **more,
            ),
            messages.Welcome,
        )  # fmt: skip

    def send(self, message: messages.Message) -> int:
        message.id = self.next_id
        self.next_id += 1
        self.socket.send(codec.encode(message))
        return message.id

    def send_raw(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames)

    def ask(self, message: messages.Message, kind: type[M]) -> M:
        """Sends, and answers the reply; an Error that was not expected fails the test with its text."""
        request_id = self.send(message)
        reply = self.wait(lambda got: got.id == request_id and not isinstance(got, messages.Tokens | messages.Notice))
        assert isinstance(reply, kind), reply
        return reply

    def wait(self, fits: Callable[[messages.Message], bool], deadline_s: float = DEADLINE_S) -> messages.Message:
        """The first message that fits, kept or new; others are kept. Sends heartbeats meanwhile."""
        for number, message in enumerate(self.kept):
            if fits(message):
                return self.kept.pop(number)
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            received = self.receive(_POLL_S)
            if received is None:
                self.ping()
            elif fits(received):
                return received
            else:
                self.kept.append(received)
        raise AssertionError(f"no such message within {deadline_s} s; kept: {self.kept[-20:]}")

    def receive(self, timeout_s: float) -> messages.Message | None:
        if not self.socket.poll(int(timeout_s * 1000)):
            return None
        message = codec.decode_reply(self.socket.recv())
        return self.receive(timeout_s) if isinstance(message, messages.Pong) else message

    def ping(self) -> None:
        self.socket.send(codec.encode(messages.Ping()))

    def wait_kind(self, kind: type[M], request_id: int | None = None) -> M:
        found = self.wait(lambda got: isinstance(got, kind) and request_id in (None, got.id))
        assert isinstance(found, kind)
        return found

    def open_session(self) -> str:
        return self.ask(messages.OpenSession(system="You are Greta."), messages.Session).session_id

    def say(self, session_id: str, text: str, max_tokens: int = 8) -> tuple[list[int], str]:
        """Token ids and text of a whole answer."""
        return self.collect(self.send(messages.Say(session_id=session_id, text=text, max_tokens=max_tokens)))

    def collect(self, say_id: int) -> tuple[list[int], str]:
        tokens: list[int] = []
        text = ""
        expected_seq = 0
        while True:
            message = self.wait(lambda got: got.id == say_id)
            assert not isinstance(message, messages.Error), message
            if isinstance(message, messages.Done):
                return tokens, text
            assert isinstance(message, messages.Tokens)
            assert message.seq == expected_seq
            expected_seq += 1
            tokens += message.token_ids
            text += message.text

    def status(self) -> messages.Status:
        return self.ask(messages.GetStatus(), messages.Status)

    def close(self) -> None:
        self.socket.close()


@contextmanager
def running(folder: Path, *options: str, patch: str = "", **environment: str) -> Iterator[Broker]:
    (folder / "model.gguf").write_bytes(b"GGUF")
    broker = Broker(folder, *options, patch=patch, **environment)
    try:
        yield broker
    finally:
        broker.stop(signal.SIGKILL)


@contextmanager
def connected(broker: Broker, name: str = "test") -> Iterator[RawClient]:
    client = RawClient(broker.endpoint, name=name)
    try:
        client.hello()
        yield client
    finally:
        client.close()
