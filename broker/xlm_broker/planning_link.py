"""The broker's end of the planning process: started, asked, restarted, ended. Decides nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from xlm.protocol.link import DeviceConfig, DeviceFacts, ModelFacts
from xlm_broker.child_guard import PARENT_VARIABLE
from xlm_broker.planner import wire
from xlm_broker.planner.sharding import Workload
from xlm_broker.state import actions, events
from xlm_broker.telemetry import logger

COMMAND: Final = (sys.executable, "-m", "xlm_broker.child_guard", "xlm_broker.planning_process")
MAX_DEATHS: Final = 3  # in a row, without an answer between them
REST_S: Final = 60.0  # after so many, before it is started again
SILENCE_S: Final = 60.0  # a process that is asked and says nothing for so long is ended
_END_S: Final = 1.0


class PlanningLink:
    """Runs inside one asyncio loop; not thread-safe. Every request is answered through ``report``, come what may."""

    def __init__(
        self,
        device: DeviceConfig,
        profile: Path,
        report: Callable[[events.Planned], None],
        say: Callable[[wire.Standing], None],
        *,
        command: tuple[str, ...] = COMMAND,
        rest_s: float = REST_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        work = Workload()
        self._setup = wire.Setup(
            device=device, profile=str(profile), prompt_tokens=work.prompt_tokens, decode_tokens=work.decode_tokens
        )
        self._report = report
        self._say = say
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._told: tuple[ModelFacts, DeviceFacts] | None = None
        self._waiting: actions.FindPlan | None = None  # the last request, until its final answer
        self._deaths = 0
        self._rest_s, self._silence_s = rest_s, silence_s
        self._rests_until_s = 0.0  # by the loop's clock; counts once it died too often
        self._silence: asyncio.TimerHandle | None = None
        self._closed = False

    def start(self) -> None:
        """Starts the process, so that it is there when the first plan is wanted. Does nothing if it runs."""
        loop = asyncio.get_running_loop()
        rested = self._deaths < MAX_DEATHS or loop.time() >= self._rests_until_s
        if self._task is None and not self._closed and rested:
            self._task = loop.create_task(self._run())

    def ask(self, request: actions.FindPlan) -> None:
        """Takes the place of a request before it."""
        self._waiting = request
        self.start()
        if self._task is None:
            self._fail("the planning process does not run")
        elif self._process is not None:
            self._pass_on(request)

    async def close(self) -> None:
        """Ends the process and waits for it."""
        self._closed = True
        self._listen(False)
        task, process = self._task, self._process
        if task is None:
            return
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        done, _ = await asyncio.wait({task}, timeout=_END_S)
        if not done:
            if process is not None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await asyncio.wait({task}, timeout=_END_S)

    # -- one process -------------------------------------------------------------------

    async def _run(self) -> None:
        detail = ""
        try:
            await self._live()
        except (OSError, ValueError, msgspec.DecodeError, asyncio.IncompleteReadError) as error:
            detail = f": {error}"
        finally:
            await self._bury()
        self._ended(detail)

    async def _live(self) -> None:
        environment = {**os.environ, PARENT_VARIABLE: str(os.getpid()), "OPENBLAS_NUM_THREADS": "1"}
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=environment, **_own_group(),
        )  # fmt: skip
        self._process, self._told = process, None
        if self._closed:
            return
        self._write(self._setup)
        if self._waiting is not None:
            self._pass_on(self._waiting)
        assert process.stdout is not None
        while True:
            head = await process.stdout.readexactly(wire.LENGTH_BYTES)
            self._take(wire.from_planning(await process.stdout.readexactly(wire.length(head))))

    async def _bury(self) -> None:
        process, self._process = self._process, None
        self._listen(False)
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    def _ended(self, detail: str) -> None:
        self._task = None
        if self._closed:
            return
        self._deaths += 1
        logger().warning("planning_process_ended", deaths=self._deaths, detail=detail.lstrip(": "))
        if self._deaths >= MAX_DEATHS:
            self._rests_until_s = asyncio.get_running_loop().time() + self._rest_s
            self._fail(f"the planning process ended{detail}")
        elif self._waiting is not None:
            self.start()

    def _fail(self, problem: str) -> None:
        request, self._waiting = self._waiting, None
        if request is not None:  # not at once: who asked is still carrying out its orders
            report = events.Planned(request.request_id, problem=problem)
            asyncio.get_running_loop().call_soon(self._report, report)

    # -- messages ----------------------------------------------------------------------

    def _listen(self, waits: bool) -> None:
        """An answer is due from now on, or none is: who neither answers nor dies must not be waited for."""
        if self._silence is not None:
            self._silence.cancel()
        self._silence = asyncio.get_running_loop().call_later(self._silence_s, self._end_silent) if waits else None

    def _end_silent(self) -> None:
        logger().warning("planning_process_silent", after_s=self._silence_s)
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def _pass_on(self, request: actions.FindPlan) -> None:
        if self._told is None or self._told[0] is not request.model or self._told[1] != request.device:
            self._told = (request.model, request.device)
            self._write(wire.Facts(model=request.model, device=request.device))
        asked = wire.Ask(
            request_id=request.request_id, budget_bytes=request.budget_bytes, current=request.current,
            routing=list(request.routing),
        )  # fmt: skip
        self._write(asked)
        if self._silence is None:  # else a storm of requests would keep a frozen process alive
            self._listen(True)

    def _write(self, message: wire.Message) -> None:
        process = self._process
        if process is not None and process.stdin is not None and not process.stdin.is_closing():
            process.stdin.write(wire.pack(message))

    def _take(self, message: wire.FromPlanning) -> None:
        if isinstance(message, wire.Standing):
            self._say(message)
            return
        self._deaths = 0
        if message.final and self._waiting is not None and self._waiting.request_id == message.request_id:
            self._waiting = None
        self._listen(self._waiting is not None)
        self._report(events.Planned(message.request_id, message.schedule, message.final, message.problem))


def _own_group() -> dict[str, Any]:
    """So that Ctrl-C in a terminal reaches the broker alone. Its session stays: see the supervisor."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"process_group": 0}
