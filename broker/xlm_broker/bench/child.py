"""A measuring process (xlm_engine.bench): started, asked, ended. It loads llama.cpp and the devices; we do not."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from typing import Any, Final, Literal

import msgspec

from xlm.errors import CODES, EngineError, XlmError, from_code
from xlm_broker.child_guard import PARENT_VARIABLE

Side = Literal["stock", "ours"]
_TAIL: Final = 2000


class Child:
    """One at a time is asked: the other side sleeps while one is timed. Ends with the block or with this process."""

    def __init__(self, side: Side, *, n_threads: int, vram_bytes: int, exact: bool = False) -> None:
        environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
        command = [sys.executable, "-m", "xlm_broker.child_guard", "xlm_engine.bench", side]
        self._stderr: Final = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        self._process: Final = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, env=environment
        )
        self.ask("open", n_threads=n_threads, vram_bytes=vram_bytes, exact=exact)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, what: str, **fields: Any) -> dict[str, Any]:
        """XlmError of the code the process names; EngineError where it died."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(msgspec.json.encode({"do": what, **fields}) + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = b""
        if not line:
            raise self._died(what)
        answer = msgspec.json.decode(line)
        if answer.get("error"):
            code = answer["code"] if answer["code"] in CODES else "internal"
            raise from_code(code, answer["error"])
        return dict(answer.get("value", {}))

    def _died(self, what: str) -> XlmError:
        status = self._process.wait()
        self._stderr.seek(0)
        said = self._stderr.read()[-_TAIL:].decode("utf-8", "replace").strip().splitlines()
        return EngineError(
            f"the measuring process ended (status {status}) at {what}" + (f": {said[-1]}" if said else ""),
            code="internal",
        )

    def close(self) -> None:
        """Safe to call twice."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()
