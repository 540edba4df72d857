"""A broker of one's own: started on a private endpoint, and gone again with whoever started it.

Used by ``xlm demo`` and ``xlm chat --model``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

from xlm.errors import BrokerError, XlmError, from_code

LOAD_PATIENCE_S: Final = 600.0  # a large model from a slow disk; a broker that ends is noticed at once
_STOP_PATIENCE_S: Final = 5.0
_POLL_S: Final = 0.02
_TAIL_LINES: Final = 12

Tell = Callable[[float], None]


class PrivateBroker:
    """``with PrivateBroker(arguments, log) as broker:`` - started inside; ``wait_until_loaded`` for its model.

    ``arguments`` are those of ``xlm-broker`` but --endpoint and --ready-file. Its log goes to ``log``.
    Not thread-safe; enter it in the main thread, which the child's life is tied to on Linux.
    """

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self._arguments = list(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self._ready = Path()
        self.log = log
        self.endpoint = ""

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="xlm-"))  # 0700: the socket is ours alone
        self._ready = self._folder / "ready.json"
        self.endpoint = private_endpoint(self._folder)
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        own = ["--endpoint", self.endpoint, "--ready-file", str(self._ready)]
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*broker_command(), *self._arguments, *own],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,  # Ctrl-C is for us; we stop the broker in order. Not a session: see the supervisor
                env=child_environment(),
            )

    def wait_until_loaded(self, tell: Tell) -> None:
        """Waits for the model, telling how long so far (s). Raises the typed error that stands against it."""
        begun = time.monotonic()
        while not self._is_loaded():
            self.check()
            waited_s = time.monotonic() - begun
            if waited_s > LOAD_PATIENCE_S:
                raise self._error(f"the model is not loaded after {waited_s:.0f} s")
            tell(waited_s)
            time.sleep(_POLL_S)

    def _is_loaded(self) -> bool:
        """The ready-file is there (it is written whole) and tells of no error."""
        try:
            content = json.loads(self._ready.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return False
        error = content.get("error")
        if error:
            raise from_code(str(error.get("code")), str(error.get("message")), hint=str(error.get("hint") or ""))
        return True

    def check(self) -> None:
        """Raises BrokerError with the broker's last words if it has ended."""
        if self._process is not None and self._process.poll() is not None:
            raise self._error(f"the broker ended with code {self._process.returncode}")

    def _error(self, what: str) -> XlmError:
        words = last_words(self.log)
        text = f"{what}:\n{words}" if words else what
        return BrokerError(text, code="broker_gone", hint=f"the whole log is in {self.log}")

    def close(self) -> None:
        """Stops the broker (gently, then firmly) and removes its folder. Safe to repeat."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    children = _descendants(process.pid)
    process.terminate()
    try:
        process.wait(_STOP_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in children:  # its engine ends by itself; this is for one that hangs
        with contextlib.suppress(psutil.Error):
            child.wait(1.0)
        with contextlib.suppress(psutil.Error):
            child.kill()


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return []


def broker_command() -> list[str]:
    """``xlm-broker`` of this very installation, tied to our life where the system can do that."""
    return [sys.executable, "-m", "xlm_broker.child_guard", "xlm_broker.cli.broker"]


def child_environment() -> dict[str, str]:
    """Ours, with our pid for the guard, without the options that would contradict ours."""
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    return {**kept, "XLM_BROKER_PID": str(os.getpid()), "PYTHONUNBUFFERED": "1"}


_NOT_INHERITED: Final = frozenset(
    f"XLM_{name}"
    for name in ("ENDPOINT", "BUDGET", "BUDGET_FROM_GAME", "BUDGET_IDLE", "READY_FILE", "LOG_FILE", "CURVE")
)


def private_endpoint(folder: Path) -> str:
    """An endpoint only this user can reach: a socket in ``folder``, or a free loopback port on Windows."""
    if sys.platform != "win32":
        return f"ipc://{folder / 'broker.sock'}"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def last_words(log: Path) -> str:
    """The end of a log, for an error message; empty if there is none."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(line for line in lines[-_TAIL_LINES:] if line.strip())
