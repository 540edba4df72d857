"""A real broker process with a real engine, for integration tests and benchmarks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

import xlm

PATIENCE_S = 600.0  # only to fail instead of hanging for ever
HEARTBEAT_MS = 20_000.0  # no lease ends because a process had to wait for a CPU
N_THREADS = 2  # also of the plain reference: how attention is summed up depends on it, however many cores there are


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S) -> Any:
    """Poll a condition; its first true value. The time-out only bounds a failure."""
    deadline = time.monotonic() + timeout_s
    while True:
        if value := condition():
            return value
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)


class RunningBroker:
    """``xlm-broker`` as a child process. ``endpoint`` is private to it."""

    def __init__(self, folder: Path, options: dict[str, str | bool | None]) -> None:
        self.folder = folder
        self.endpoint = f"ipc://{folder}/broker.sock"
        self.ready_file = folder / "ready.json"
        self.log_path = folder / "broker.log"
        self.options = {"--endpoint": self.endpoint, "--ready-file": str(self.ready_file), **options}
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        words = [sys.executable, "-m", "xlm_broker.cli.broker"]
        for key, value in self.options.items():
            if value is True:
                words.append(key)
            elif value not in (None, False):
                words += [key, str(value)]
        return words

    def start(self, *, wait: bool = True) -> RunningBroker:
        self.ready_file.unlink(missing_ok=True)
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(self.command(), stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self) -> dict[str, Any]:
        def ready() -> dict[str, Any] | None:
            assert self.process is not None
            assert self.process.poll() is None, f"broker exited with {self.process.returncode}:\n{self.log()}"
            return json.loads(self.ready_file.read_text()) if self.ready_file.exists() else None

        state: dict[str, Any] = wait_until(ready, "broker ready")
        return state

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def connect(self, name: str = "test") -> xlm.Client:
        return xlm.connect(self.endpoint, name=name, timeout=PATIENCE_S)

    def engine_pid(self) -> int:
        assert self.process is not None
        children = psutil.Process(self.process.pid).children()
        return int(next(c.pid for c in children if "xlm_engine" in " ".join(c.cmdline())))

    def rss_bytes(self) -> int:
        """Unique memory of broker and engine together."""
        assert self.process is not None
        return sum(psutil.Process(pid).memory_full_info().uss for pid in (self.process.pid, self.engine_pid()))

    def kill(self, sig: int = signal.SIGKILL) -> None:
        assert self.process is not None
        os.kill(self.process.pid, sig)
        self.process.wait()

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@contextmanager
def running_broker(wait: bool = True, **options: str | bool | int | None) -> Iterator[RunningBroker]:
    """Options are those of xlm-broker with ``_`` for ``-``; defaults: demo model, sim, budget from game."""
    named = {f"--{key.replace('_', '-')}": value for key, value in options.items()}
    defaults: dict[str, Any] = {
        "--model": "demo", "--device": "sim", "--sim-vram": "512MiB", "--heartbeat-ms": HEARTBEAT_MS,
        "--threads": N_THREADS,
    }  # fmt: skip
    if "--budget" not in named:
        defaults["--budget-from-game"] = True
    # a short folder: a socket path holds 107 bytes
    with tempfile.TemporaryDirectory(prefix="xlm-") as folder:
        broker = RunningBroker(Path(folder), {**defaults, **named})
        broker.start(wait=wait)
        try:
            yield broker
        finally:
            broker.stop()
