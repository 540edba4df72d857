"""The broker's loop: what happens on sockets, child, timer and NVML goes into the machine, its actions come out.

Nothing is decided here. A reclaim takes no detour: frame, decode, handle and
send to the engine happen in one call, and log lines come after.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import secrets
import shlex
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import platformdirs
import psutil
import zmq

from xlm._commands import to_type
from xlm._threads import answer_quickly
from xlm.errors import ProtocolError, XlmError
from xlm.protocol import codec, link, messages
from xlm.protocol.keys import server_keys
from xlm_broker import broker_version
from xlm_broker.config import Config
from xlm_broker.image_store import ImageStore
from xlm_broker.nvml import GpuMemory, NvmlWatcher, Reading
from xlm_broker.open_files import most_files, raise_file_limit
from xlm_broker.planner import PriorityPlanner, wire
from xlm_broker.planning_link import PlanningLink
from xlm_broker.profile_store import default_path
from xlm_broker.ready import ReadyFile
from xlm_broker.server import Server
from xlm_broker.state import actions, events, settings
from xlm_broker.state.machine import Machine
from xlm_broker.supervisor import ENGINE_COMMAND, Supervisor
from xlm_broker.telemetry import Latencies, Logger, logger, readable

_SHUTDOWN_SIGNALS: Final = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)]
_FILE_POLL_S: Final = 1.0
_PROBE: Final = codec.encode(messages.Pong())  # a frame that no client minds
_SHORTEST_TICK_S: Final = 0.001
# A terminal and a parent process often signal together; only a later signal means "now, without waiting".
_ONE_REQUEST_S: Final = 1.0
_SHUTDOWN_S: Final = 15.0  # the machine ends sooner by itself; this is for a machine that does not


class Driver:
    """One broker. ``run`` blocks its thread until the broker ends; everything happens in that thread."""

    def __init__(
        self,
        config: Config,
        *,
        timing: settings.Timing | None = None,
        make_machine: Callable[[settings.MachineSettings], Machine] | None = None,
    ) -> None:
        self._config = config
        self._log: Logger = logger()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        files = most_files(raise_file_limit(), config.max_clients)  # before libzmq opens any
        self._server = Server(self._context, config.endpoint, most_files=files)
        self._timing = timing or machine_timing(config)
        # by simple rules, where a schedule is needed at once; the best one comes from the planning process
        self._make_machine = make_machine or (lambda made: Machine(made, PriorityPlanner()))
        self._images = ImageStore()
        self._pending: deque[events.Event] = deque()
        self._handling = False
        self._reclaims = Latencies()
        self._releases = Latencies()  # the engine's part of them
        self._process = psutil.Process()
        self._exit_code: int | None = None
        self._standing: wire.Standing | None = None
        self._said_ready = False
        self._signalled_s = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ns: int | None = None

    def run(self) -> int:
        """Serves until SIGTERM, SIGINT or the machine's StopBroker; the exit code. Raises EndpointError."""
        answer_quickly()  # those of the sockets too, which start from here
        try:
            self._server.open(self._configure_curve)
            return asyncio.run(self._serve())
        finally:
            self._server.close()
            self._context.destroy(linger=0)

    # -- life ------------------------------------------------------------------------

    async def _serve(self) -> int:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._ready = ReadyFile(self._config.ready_file, self._server.address)
        self._ready.clear()
        self._machine = self._make_machine(self._machine_settings())
        self._supervisor = Supervisor(
            self._context, self._config.endpoint, self, command=self._engine_command(), crash_log=_crash_log()
        )
        self._planning = PlanningLink(self._config.device, default_path(), self._dispatch, self._on_standing)
        self._announce()
        self._install_signals()
        self._planning.start()
        self._server.start(self)
        watcher = self._start_nvml()
        self._dispatch(events.BrokerStarted())
        self._model_state = self._model_stat()
        self._loop.call_later(_FILE_POLL_S, self._poll_files)
        gc.freeze()  # what was imported is never garbage: collections stay short
        try:
            await self._stopped.wait()
        finally:
            await self._finish(watcher)
        return self._exit_code or 0

    async def _finish(self, watcher: NvmlWatcher | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if watcher is not None:
            watcher.stop()
        await asyncio.gather(self._supervisor.close(), self._planning.close())
        self._ready.remove()
        self._server.close()  # here, while signals are still ours: nothing is left behind by an impatient second one

    def _engine_command(self) -> tuple[str, ...]:
        return self._config.engine_command or (*ENGINE_COMMAND, "--log-level", self._config.log.level)

    def _announce(self) -> None:
        config = self._config
        for warning in config.warnings:
            self._log.warning("config_warning", text=warning)
        self._log.info("device_chosen", kind=config.device.kind, reason=config.device_reason)
        self._log.info(
            "broker_listening", endpoint=self._server.address, pid=os.getpid(), version=broker_version(),
            model=config.model.path,
        )  # fmt: skip

    def _install_signals(self) -> None:
        for number in _SHUTDOWN_SIGNALS:
            if sys.platform == "win32":
                signal.signal(number, lambda got, _: self._loop.call_soon_threadsafe(self._shut_down, got))
            else:
                self._loop.add_signal_handler(number, self._shut_down, number)

    def _shut_down(self, number: int) -> None:
        now_s = self._loop.time()
        if now_s - self._signalled_s < _ONE_REQUEST_S:
            return
        self._signalled_s = now_s
        self._loop.call_later(_SHUTDOWN_S, self._stop, 1)
        self._dispatch(events.ShutdownRequested(signal.Signals(number).name))

    def _stop(self, exit_code: int) -> None:
        if self._exit_code is None:
            self._exit_code = exit_code
        self._stopped.set()

    def _configure_curve(self, socket: zmq.Socket[bytes]) -> None:
        if not self._config.curve:
            return
        keys = server_keys()
        socket.curve_server = True
        socket.curve_publickey = keys.public.encode("ascii")
        socket.curve_secretkey = keys.secret.encode("ascii")
        self._log.info("curve_on", server_key=keys.public)

    def _machine_settings(self) -> settings.MachineSettings:
        config, budget = self._config, self._config.budget
        return settings.MachineSettings(
            device=config.device,
            model=config.model,
            id_seed=secrets.token_bytes(32),
            budget=settings.BudgetSettings(
                mode="game" if budget.mode == "game" else "fixed",
                fixed_bytes=budget.initial_bytes,
                idle_bytes=budget.idle_bytes,
                max_bytes=budget.max_bytes,
                headroom_bytes=budget.headroom_bytes,
            ),
            limits=settings.Limits(
                max_clients=config.max_clients,
                max_image_bytes=config.images.max_bytes,
                max_images_per_say=config.images.per_say,
                max_client_image_bytes=config.images.client_bytes,
                max_image_store_bytes=config.images.store_bytes,
            ),
            timing=self._timing,
            broker_version=broker_version(),
            endpoint=self._server.address,
            pacing=settings.PacingSettings(min_duty=config.pace_min_duty),
            require_device=config.require_gpu,
            find_plans=config.device.kind != "none",
        )

    # -- events in -------------------------------------------------------------------

    def on_frame(self, client: bytes, frame: bytes) -> None:
        try:
            message = codec.decode_request(frame)
        except ProtocolError as error:
            self._dispatch(events.ClientFault(client, error, request_id=error.request_id))
            return
        self._dispatch(events.ClientMessage(client, message))

    def on_bad_envelope(self, client: bytes) -> None:
        error = ProtocolError("a message is exactly one frame", code="bad_request")
        self._dispatch(events.ClientFault(client, error))

    def on_stalled(self, client: bytes) -> None:
        self._dispatch(events.SendStalled(client))

    def on_drained(self, client: bytes) -> None:
        self._dispatch(events.SendDrained(client))

    def on_gone(self, client: bytes) -> None:
        self._dispatch(events.ClientGone(client))

    def on_engine_spawned(self, incarnation: int, pid: int) -> None:
        self._dispatch(events.EngineSpawned(incarnation, pid))

    def on_engine_message(self, incarnation: int, message: link.FromEngine) -> None:
        self._dispatch(events.EngineMessage(incarnation, message))
        if isinstance(message, link.Released) and message.completed and message.released_bytes > 0:
            self._releases.add(message.release_ns / 1e6)
        if isinstance(message, (link.Loaded, link.Failed, link.ScheduleApplied)):
            self._look_whether_ready()
        if isinstance(message, link.Loaded):
            self._say_ready()

    def on_engine_exited(
        self, incarnation: int, exit_code: int | None, signal_number: int, detail: str, code: str
    ) -> None:
        self._dispatch(events.EngineExited(incarnation, exit_code, signal_number, detail, code))
        self._look_whether_ready()

    def _on_standing(self, standing: wire.Standing) -> None:
        """By which times plans are made: said once, and again when it is another."""
        advice = standing.advice.replace(wire.A_MODEL, shlex.quote(self._config.model.path))
        standing = msgspec.structs.replace(standing, advice=advice)
        if standing == self._standing:
            return
        self._standing = standing
        level = "info" if standing.state == "measured" else "warning"
        getattr(self._log, level)("planner_profile", state=standing.state, text=standing.text, advice=to_type(advice))

    # -- the machine -----------------------------------------------------------------

    def _dispatch(self, event: events.Event) -> None:
        """Events that arise while actions are carried out wait until those are done."""
        self._pending.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._pending:
                self._handle(self._pending.popleft())
        finally:
            self._handling = False
        self._arm_timer()

    def _handle(self, event: events.Event) -> None:
        try:
            wanted = self._machine.handle(event, time.monotonic_ns())
        except Exception:
            self._log.exception("machine_failed", event_type=type(event).__name__)
            self._apologise(event)
            return
        for action in wanted:
            self._carry_out(action)

    def _apologise(self, event: events.Event) -> None:
        if isinstance(event, events.ClientMessage):
            error = XlmError("the broker failed on this message", code="internal")
            self._send_client(event.client, error_reply(error, event.message.id, event.message.cause))

    def _carry_out(self, action: actions.Action) -> None:
        try:
            self._perform(action)
        except Exception:
            self._log.exception("action_failed", action=type(action).__name__)

    def _perform(self, action: actions.Action) -> None:
        match action:
            case actions.SendEngine():
                self._supervisor.send(action.message)
            case actions.SendClient():
                self._send_client(action.client, action.message)
            case actions.Log():
                self._write_log(action)
            case actions.ForgetClient():
                self._server.forget(action.client)
            case actions.ProbeClients():
                self._probe(action)
            case actions.SpawnEngine():
                self._supervisor.spawn(action.incarnation)
            case actions.KillEngine():
                self._supervisor.kill(action.incarnation)
            case actions.FindPlan():
                self._planning.ask(action)
            case actions.StopBroker():
                self._log.info("broker_stopping", reason=action.reason, exit_code=action.exit_code)
                self._stop(action.exit_code)
            case _:
                self._perform_image(action)

    def _probe(self, action: actions.ProbeClients) -> None:
        for client in action.clients:
            self._server.probe(client, _PROBE)
        self._pending.append(events.ClientMessage(action.client, action.hello, probed=True))

    def _perform_image(self, action: actions.ImageAction) -> None:
        match action:
            case actions.BeginUpload():
                self._images.begin(action.upload_id, action.layout)
            case actions.StoreChunk():
                self._images.add(action.upload_id, action.data)
            case actions.EndUpload():
                good = self._images.end(action.upload_id, action.key)
                self._pending.append(events.ImageVerified(action.upload_id, good))
            case actions.DropUpload():
                self._images.forget_upload(action.upload_id)
            case actions.DropImage():
                self._images.drop(action.key)
            case actions.SendImagePart():
                self._supervisor.send(self._images.part(action.layout, action.offset, action.max_bytes))

    def _write_log(self, action: actions.Log) -> None:
        fields = {**action.fields, "cause": action.cause} if action.cause else action.fields
        getattr(self._log, action.level)(action.event, **fields)

    def _send_client(self, client: bytes, message: messages.Message) -> None:
        if isinstance(message, messages.Lease):
            self._reclaims.add(message.release_ms)
        elif isinstance(message, messages.Status):
            self._complete(message)
        try:
            frame = codec.encode(message)
        except ProtocolError as error:
            self._log.error("reply_not_encodable", message_type=type(message).__name__, error=str(error))
            frame = codec.encode(error_reply(XlmError(str(error)[:512], code="internal"), message.id, message.cause))
        self._server.send(client, frame)

    def _complete(self, status: messages.Status) -> None:
        """Adds what only the process itself knows."""
        status.throughput.setdefault("reclaim", self._reclaims.summary())
        status.throughput.setdefault("release", self._releases.summary())
        status.broker.setdefault("pid", os.getpid())
        status.broker.setdefault("rss_bytes", self._process.memory_info().rss)
        status.broker.setdefault("queued_bytes", self._server.queued_bytes)
        status.broker.setdefault("device_reason", self._config.device_reason)
        standing = self._standing
        profile = {"state": "", "text": "", "advice": ""} if standing is None else msgspec.to_builtins(standing)
        status.schedule.setdefault("profile", {name: profile.get(name, "") for name in ("state", "text", "advice")})

    # -- time ------------------------------------------------------------------------

    def _arm_timer(self) -> None:
        due_ns = self._machine.next_deadline_ns()
        if due_ns == self._timer_due_ns and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_due_ns = due_ns
        if due_ns is not None:
            delay_s = max(_SHORTEST_TICK_S, (due_ns - time.monotonic_ns()) / 1e9)
            self._timer = self._loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._dispatch(events.Tick())

    # -- the model's file, NVML, the ready-file ----------------------------------------

    def _model_stat(self) -> list[tuple[int, int] | None]:
        """Of the model and its projector."""
        model = self._config.model
        return [_file_stat(path) for path in (model.path, model.mmproj) if path]

    def _poll_files(self) -> None:
        self._server.look_after_file()
        found = self._model_stat()
        if found != self._model_state:
            self._model_state = found
            self._dispatch(events.ModelFileChanged())
        self._loop.call_later(_FILE_POLL_S, self._poll_files)

    def _start_nvml(self) -> NvmlWatcher | None:
        if self._config.device.kind != "cuda":
            return None
        watcher = NvmlWatcher(self._hand_reading, index=self._config.device.index)
        watcher.start()
        return watcher

    def _hand_reading(self, reading: Reading) -> None:
        """Called in the watcher's thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know any more
            self._loop.call_soon_threadsafe(self._on_reading, reading)

    def _on_reading(self, reading: Reading) -> None:
        if isinstance(reading, GpuMemory):
            self._dispatch(events.DeviceReport("nvml", reading.total_bytes, reading.free_bytes))
        else:
            self._log.warning("nvml_failed", error=str(reading))
            self._dispatch(events.DeviceReport("nvml", detail=str(reading)))

    def _say_ready(self) -> None:
        """The last line of the start, for whoever sits before a terminal and wonders whether it has come up."""
        if not self._said_ready and readable(self._config.log) and self._engine_state() == "ready":
            self._said_ready = True
            self._log.info(f"ready: connect at {self._server.address}")

    def _engine_state(self) -> object:
        return self._machine.status(time.monotonic_ns()).engine.get("state")

    def _look_whether_ready(self) -> None:
        if self._ready.written:
            return
        try:
            self._ready.offer(self._machine.status(time.monotonic_ns()))
        except Exception:
            self._log.exception("ready_file_failed", path=str(self._config.ready_file))


def _file_stat(path: str) -> tuple[int, int] | None:
    try:
        info = os.stat(path)
    except (OSError, ValueError):
        return None
    return info.st_size, info.st_mtime_ns


def error_reply(error: XlmError, request_id: int, cause: str) -> messages.Error:
    """The wire form of an error."""
    return messages.Error(
        id=request_id, cause=cause, code=error.code, message=error.message, fault=error.fault,
        retryable=error.retryable, hint=error.hint,
    )  # fmt: skip


def machine_timing(config: Config) -> settings.Timing:
    return settings.Timing(heartbeat_ns=int(config.heartbeat_ms * settings.MS))


def _crash_log() -> Path:
    return platformdirs.user_log_path("xlm") / "engine_log"
