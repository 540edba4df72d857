"""The engine child: started, spoken to, killed, and its end noticed. Decides nothing.

One process at a time. Each gets a fresh link socket in a private folder, so a
dead engine's last messages can never be taken for its successor's.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import zmq

from xlm.errors import EndpointError
from xlm.protocol.endpoints import MAX_PATH_BYTES, Endpoint
from xlm.protocol.link import EngineToBroker, FromEngine, ToEngine
from xlm_broker.child_guard import PARENT_VARIABLE
from xlm_broker.folders import runtime_folder
from xlm_broker.link_folder import LinkFolder
from xlm_broker.telemetry import logger

LINK_KEY_VARIABLE: Final = "XLM_LINK_KEY"  # CURVE server key of a tcp link (Windows)
ENGINE_COMMAND: Final = (sys.executable, "-m", "xlm_broker.child_guard", "xlm_engine")

_STDERR_LINES: Final = 200
_DETAIL_LINES: Final = 20
_LINE_BYTES: Final = 4096
_BATCH_MESSAGES: Final = 64
# An engine that is faster than the broker waits with what is over that; here it would only weigh.
_RECEIVE_QUEUE_MESSAGES: Final = 512
_TERMINATE_S: Final = 1.0
# After a child's death its last messages may still be on their way through libzmq's thread.
_DRAIN_S: Final = 0.02


class EngineOwner(Protocol):
    """What the supervisor reports. All calls come from the event loop's thread."""

    def on_engine_spawned(self, incarnation: int, pid: int) -> None: ...
    def on_engine_message(self, incarnation: int, message: FromEngine) -> None: ...
    def on_engine_exited(
        self, incarnation: int, exit_code: int | None, signal_number: int, detail: str, code: str
    ) -> None: ...  # code: of xlm.errors where no other start can do better, else empty


@dataclass(slots=True)
class _Child:
    incarnation: int
    socket: zmq.Socket[bytes]
    stderr: deque[str]
    process: asyncio.subprocess.Process | None = None
    kill_wanted: bool = False
    unsayable: str = ""  # why a message to it could not be encoded
    connected: bool = False
    backlog: list[bytes] = field(default_factory=list)  # until the child has connected there is no one to send to
    wake: asyncio.Handle | None = None


class Supervisor:
    """Runs inside one asyncio loop; not thread-safe. Owns the child process, its link socket and the link's folder."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: Endpoint,
        owner: EngineOwner,
        *,
        command: tuple[str, ...] = ENGINE_COMMAND,
        crash_log: Path | None = None,
        use_tcp: bool = sys.platform == "win32",
    ) -> None:
        self._context = context
        self._owner = owner
        self._command = command or ENGINE_COMMAND
        self._crash_log = crash_log
        self._use_tcp = use_tcp
        self._folder = LinkFolder(private_folder(endpoint), str(endpoint))
        self._child: _Child | None = None
        self._task: asyncio.Task[None] | None = None
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(EngineToBroker)

    @property
    def pid(self) -> int | None:
        child = self._child
        return child.process.pid if child is not None and child.process is not None else None

    # -- commands ----------------------------------------------------------------

    def spawn(self, incarnation: int) -> None:
        """Starts a child; what comes of it is reported to the owner, failure to start included."""
        assert self._child is None, "one engine at a time"
        try:
            socket, link, environment = self._listen(incarnation)
        except Exception as error:
            self._report_stillborn(incarnation, error)
            return
        child = self._child = _Child(incarnation, socket, deque(maxlen=_STDERR_LINES))
        self._task = asyncio.get_running_loop().create_task(self._run(child, link, environment))

    def _report_stillborn(self, incarnation: int, error: Exception) -> None:
        """Later, as of any other child: whoever asked for it is still carrying out its orders."""
        code, detail = "", f"its link cannot be made: {error}"
        if isinstance(error, EndpointError):
            code, detail = error.code, error.message
        report = self._owner.on_engine_exited
        asyncio.get_running_loop().call_soon(report, incarnation, None, 0, detail, code)

    def send(self, message: ToEngine) -> bool:
        """False when there is no child to take it, or one that has stopped reading (it is killed then)."""
        child = self._child
        if child is None:
            return False
        try:
            frame = self._encoder.encode(message)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            # The next engine would be sent the same.
            child.unsayable = f"{type(message).__name__} cannot be sent to the engine: {error}"
            logger().error("engine_message_not_encodable", message_type=type(message).__name__, error=str(error))
            self.kill(child.incarnation)
            return False
        if not child.connected:
            child.backlog.append(frame)
            return True
        return self._send(child, frame)

    def kill(self, incarnation: int) -> None:
        """SIGKILL to the child and all it started. Safe at any time, for any incarnation."""
        child = self._child
        if child is None or child.incarnation != incarnation:
            return
        child.kill_wanted = True
        if child.process is not None:
            _signal_group(child.process, getattr(signal, "SIGKILL", signal.SIGTERM))

    async def close(self) -> None:
        """Ends a child that still runs (SIGTERM, then SIGKILL), waits for it, removes the link's folder."""
        if self._task is not None and self._child is not None:
            await self._end(self._child, self._task)
        self._folder.remove()

    # -- one child's life ----------------------------------------------------------

    async def _end(self, child: _Child, task: asyncio.Task[None]) -> None:
        if child.process is not None:
            _signal_group(child.process, signal.SIGTERM)
        done, _ = await asyncio.wait({task}, timeout=_TERMINATE_S)
        if not done:
            self.kill(child.incarnation)
            await asyncio.wait({task}, timeout=_TERMINATE_S * 5)

    async def _run(self, child: _Child, link: str, environment: dict[str, str]) -> None:
        exit_code, detail = None, ""
        try:
            exit_code = await self._live(child, link, environment)
        except OSError as error:
            detail = f"cannot start {self._command[0]}: {error.strerror or error}"
        except Exception as error:
            logger().exception("engine_supervision_failed", incarnation=child.incarnation)
            detail = f"{type(error).__name__}: {error}"
        finally:
            await self._bury(child)
        self._report_exit(child, exit_code, detail)

    async def _live(self, child: _Child, link: str, environment: dict[str, str]) -> int:
        process = await asyncio.create_subprocess_exec(
            *self._command, "--link", link,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=environment, **_own_group(),
        )  # fmt: skip
        child.process = process
        if child.kill_wanted:
            self.kill(child.incarnation)
        asyncio.get_running_loop().add_reader(child.socket.FD, self._on_readable, child)
        self._owner.on_engine_spawned(child.incarnation, process.pid)
        self._schedule(child)
        assert process.stdout is not None
        reader = asyncio.create_task(_read_lines(process.stdout, child.stderr))
        exit_code = await process.wait()
        # A grandchild may hold the pipe open: its lines are not waited for.
        await asyncio.wait({reader}, timeout=_DRAIN_S)
        reader.cancel()
        await self._drain(child)
        return exit_code

    async def _drain(self, child: _Child) -> None:
        await asyncio.sleep(_DRAIN_S)
        while self._receive(child):
            pass

    async def _bury(self, child: _Child) -> None:
        if child.process is not None:
            _signal_group(child.process, getattr(signal, "SIGKILL", signal.SIGTERM))
            await child.process.wait()
            asyncio.get_running_loop().remove_reader(child.socket.FD)
        if child.wake is not None:
            child.wake.cancel()
        child.socket.close(linger=0)
        self._child = None

    def _report_exit(self, child: _Child, exit_code: int | None, detail: str) -> None:
        signal_number = -exit_code if exit_code is not None and exit_code < 0 else 0
        lines = list(child.stderr)
        if exit_code != 0:
            self._save(lines)
        last_words = child.unsayable or detail or "\n".join(readable(line) for line in lines[-_DETAIL_LINES:])
        code = "internal" if child.unsayable else ""
        self._owner.on_engine_exited(child.incarnation, exit_code, signal_number, last_words, code)

    def _save(self, lines: list[str]) -> None:
        if self._crash_log is None or not lines:
            return
        try:
            self._crash_log.parent.mkdir(parents=True, exist_ok=True)
            self._crash_log.write_text("\n".join(lines) + "\n", encoding="utf-8")
        except OSError as error:
            logger().warning("engine_crash_log_failed", path=str(self._crash_log), error=str(error))

    # -- the link --------------------------------------------------------------------

    def _listen(self, incarnation: int) -> tuple[zmq.Socket[bytes], str, dict[str, str]]:
        socket = self._context.socket(zmq.PAIR)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 10_000)
        socket.setsockopt(zmq.RCVHWM, _RECEIVE_QUEUE_MESSAGES)
        environment = _environment()
        try:
            link = _bind_tcp(socket, environment) if self._use_tcp else self._bind_ipc(socket, incarnation)
        except BaseException:
            socket.close()
            raise
        return socket, link, environment

    def _bind_ipc(self, socket: zmq.Socket[bytes], incarnation: int) -> str:
        self._folder.take()
        path = self._folder.path / f"engine-{incarnation}.sock"
        path.unlink(missing_ok=True)
        socket.bind(f"ipc://{path}")
        return f"ipc://{path}"

    def _send(self, child: _Child, frame: bytes) -> bool:
        try:
            child.socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            self.kill(child.incarnation)
            return False
        self._schedule(child)
        return True

    def _schedule(self, child: _Child) -> None:
        if child.wake is None and child.process is not None:
            child.wake = asyncio.get_running_loop().call_soon(self._on_readable, child)

    def _on_readable(self, child: _Child) -> None:
        child.wake = None
        for _ in range(_BATCH_MESSAGES):
            if child.socket.closed or not self._receive(child):
                return
        self._schedule(child)

    def _receive(self, child: _Child) -> bool:
        try:
            frame = child.socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return False
        self._flush_backlog(child)
        try:
            message = self._decoder.decode(frame)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            # Broker and engine are one release: this is a broken engine, and a new one may do better.
            self.kill(child.incarnation)
            logger().error("engine_bad_message", incarnation=child.incarnation, error=str(error))
            return True
        self._owner.on_engine_message(child.incarnation, message)
        return True

    def _flush_backlog(self, child: _Child) -> None:
        child.connected = True
        backlog, child.backlog = child.backlog, []
        for frame in backlog:
            self._send(child, frame)


def private_folder(endpoint: Endpoint) -> Path:
    """The link's folder: always the same for one endpoint, so that a killed broker's leftovers are reused."""
    name = hashlib.blake2s(str(endpoint).encode(), digest_size=6).hexdigest()
    if endpoint.port == 0 and endpoint.path is None:
        name = f"{name}-{os.getpid()}"
    folder = runtime_folder() / f"engine-{name}"
    if len(os.fsencode(folder / "engine-1000000000.sock")) <= MAX_PATH_BYTES:
        return folder
    return Path("/tmp", f"xlm-{os.getuid()}", folder.name) if sys.platform != "win32" else folder


def _environment() -> dict[str, str]:
    """The child's environment. How OpenMP's threads wait the child decides itself, unless the user did (decision 6).

    ggml's backtrace at a failed assertion forks a process that has threads, and was seen to hang there for ever;
    without it the process aborts at once, and Python's fault handler says where.
    """
    return {
        **os.environ,
        PARENT_VARIABLE: str(os.getpid()),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "GGML_NO_BACKTRACE": "1",
    }


def _bind_tcp(socket: zmq.Socket[bytes], environment: dict[str, str]) -> str:
    """A loopback port is open to every program, so the link is encrypted under a key only the child is told."""
    public, secret = zmq.curve_keypair()
    socket.curve_server = True
    socket.curve_publickey = public
    socket.curve_secretkey = secret
    environment[LINK_KEY_VARIABLE] = public.decode("ascii")
    socket.bind("tcp://127.0.0.1:*")
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def _own_group() -> dict[str, Any]:
    """A Ctrl-C in the terminal is the broker's business only.

    Not a session of its own: Linux shares the CPU equally among sessions (autogroup), whatever the nice within.
    """
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"process_group": 0}


def _signal_group(process: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            process.terminate()
        else:
            os.killpg(process.pid, number)


async def _read_lines(stream: asyncio.StreamReader, lines: deque[str]) -> None:
    """Keeps the last lines, whatever the child writes: a line without end is cut."""
    rest = b""
    while chunk := await stream.read(65536):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            _keep(line, lines)
        if len(rest) > _LINE_BYTES:
            _keep(rest, lines)
            rest = b""
    if rest:
        _keep(rest, lines)


def _keep(line: bytes, lines: deque[str]) -> None:
    text = line[:_LINE_BYTES].decode("utf-8", "replace").rstrip("\r")
    lines.append(text)
    logger().debug("engine_stderr", line=readable(text))


def readable(line: str) -> str:
    """A line of the child for a log of our own: its JSON log lines as plain text, all else (asserts) as it is."""
    try:
        fields = json.loads(line) if line.startswith("{") else None
    except (ValueError, RecursionError):
        return line
    if not isinstance(fields, dict) or "event" not in fields:
        return line
    head = f"{fields.pop('level', '')} {fields.pop('event')}".strip()
    fields.pop("timestamp", None)
    return " ".join([head, *(f"{name}={value}" for name, value in fields.items())])
