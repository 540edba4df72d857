"""The demo's line to the broker: one thread with an event loop, so that the game's thread never waits.

Here run the two conversations, the budget requests and the status samples.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import xlm
from xlm.errors import XlmError
from xlm_broker.demo.npc import CHARACTERS, Conversation
from xlm_broker.demo.record import BudgetChange, Memory, Recorder, Turn, after_change, memory_from_status
from xlm_broker.demo.story import Phase, cap_bytes

_SAMPLE_S: Final = 0.125  # twice as often as the engine reports
_ANSWER_PATIENCE_S: Final = 15.0
_LAST_WORDS_S: Final = 4.0  # an answer in progress may end after the story

_REPORT_S: Final = 0.2

T = TypeVar("T")
Report = Callable[[int, int], None]


class Network:
    """Entered: connected. All methods are called from the game's thread. Errors of the loop stop the story."""

    def __init__(self, endpoint: str, record: Recorder, max_tokens: int, timeout_s: float = 10.0) -> None:
        self.stop = threading.Event()  # set when the story cannot go on
        self.error: BaseException | None = None
        self._endpoint, self._timeout_s = endpoint, timeout_s
        self._record, self._max_tokens = record, max_tokens
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="xlm-demo-network", daemon=True)
        self._client: xlm.AsyncClient | None = None
        self.tasks: list[concurrent.futures.Future[None]] = []
        self._talks: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._quiet: asyncio.Event | None = None
        self._in_order = asyncio.Lock()

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._client = self._wait(self._connect())
        except BaseException:
            self._end_loop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(XlmError, TimeoutError, concurrent.futures.CancelledError):
            self._wait(self._leave(), timeout_s=3.0)
        self._end_loop()

    async def _connect(self) -> xlm.AsyncClient:
        return await xlm.aconnect(self._endpoint, name="xlm demo", timeout=self._timeout_s)

    async def _leave(self) -> None:
        own = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not own and task.get_name().startswith("demo:")]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> concurrent.futures.Future[None]:
        task = asyncio.run_coroutine_threadsafe(self._guarded(work, name), self._loop)
        self.tasks.append(task)
        return task

    async def _guarded(self, work: Awaitable[None], name: str) -> None:
        task = asyncio.current_task()
        if task is not None:
            task.set_name(f"demo:{name}")
        try:
            await work
        except Exception as error:
            self.error = self.error or error
            self.stop.set()

    def raise_error(self) -> None:
        """Raises what ended the story, if anything did."""
        if self.error is not None:
            raise self.error

    @property
    def client(self) -> xlm.AsyncClient:
        assert self._client is not None, "not entered"
        return self._client

    def status(self) -> dict[str, Any]:
        return self._wait(self._status(), timeout_s=10.0)

    async def _status(self) -> dict[str, Any]:
        return dict(await self.client.status())

    # -- the story -------------------------------------------------------------------

    def begin(self) -> None:
        """Starts the conversations and the samples."""
        self._start(self._sample(), "sample")
        self._talks = self._start(self._talk(self._record.turns), "talk")

    async def _sample(self) -> None:
        while True:
            await self._sample_once()
            await asyncio.sleep(_SAMPLE_S)

    async def _sample_once(self) -> None:
        record, changes = self._record, len(self._record.changes)
        maps = await self._status()
        now_s = record.now_s()
        if len(record.changes) == changes:  # else a budget was answered meanwhile, and this status may be older
            record.memory.append(memory_from_status(now_s, maps))
        record.notices += [(now_s, notice.kind, notice.text) for notice in self.client.notices()]

    async def _talk(self, turns: list[Turn], **options: Any) -> None:
        self._quiet = asyncio.Event()
        limits = options.pop("limits", {})
        talks = [
            Conversation(person, self._max_tokens, self._record.now_s, turns, self._quiet, **options)
            for person in CHARACTERS
        ]
        await asyncio.gather(*(talk.run(self.client, limits.get(talk.character.name)) for talk in talks))

    def ask_budget(self, phase: Phase) -> None:
        """Sends the scene's budget and returns at once."""
        self._start(self._change(phase, self._record.now_s()), f"budget {phase.key}")

    async def _change(self, phase: Phase, asked_s: float) -> None:
        record = self._record
        speaking = record.speaking()
        cap = cap_bytes(phase, record.demand_bytes, record.device_bytes)
        ticket = self.client.set_budget_nowait(cap, deadline_ms=phase.deadline_ms)
        async with self._in_order:  # sent at once; written down in the order of sending
            before = record.memory[-1] if record.memory else None
            lease = await ticket.result(_ANSWER_PATIENCE_S)
            now_s = record.now_s()
            record.memory.append(after_change(before, now_s, lease.granted_bytes, lease.used_bytes))
            record.changes.append(answered(phase, asked_s, now_s, before, lease, speaking))

    def end(self) -> None:
        """Lets the sentences in progress end (for a few seconds) and stops the samples."""
        self._loop.call_soon_threadsafe(self._hush)
        with contextlib.suppress(TimeoutError, concurrent.futures.CancelledError):
            self._talks.result(_LAST_WORDS_S)
        self._wait(self._cancel_tasks())
        self.raise_error()

    def _hush(self) -> None:
        if self._quiet is not None:
            self._quiet.set()

    async def _cancel_tasks(self) -> None:
        own = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not own and task.get_name().startswith("demo:")]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- after the story ---------------------------------------------------------------

    def replay(self, story: Sequence[Turn], seconds: float, report: Report = lambda _done, _total: None) -> list[Turn]:
        """The story's finished turns once more, without pauses, with the whole card; those in progress after
        ``seconds`` are the last. ``report`` is told how many have ended, of how many."""
        turns: list[Turn] = []
        finished = [turn.npc for turn in story if turn.ended_s is not None]
        counts = {person.name: finished.count(person.name) for person in CHARACTERS}
        self._wait(self.client.set_budget(None))
        timer = threading.Timer(seconds, lambda: self._loop.call_soon_threadsafe(self._hush))
        timer.daemon = True
        timer.start()
        try:
            talk = asyncio.run_coroutine_threadsafe(self._talk(turns, pauses=False, limits=counts), self._loop)
            while not concurrent.futures.wait([talk], _REPORT_S).done:
                report(sum(turn.ended_s is not None for turn in turns), sum(counts.values()))
            talk.result()
        finally:
            timer.cancel()
        return turns


def answered(
    phase: Phase, asked_s: float, now_s: float, before: Memory | None, lease: xlm.Lease, speaking: bool
) -> BudgetChange:
    """The record of one answered budget request."""
    return BudgetChange(
        phase=phase.key,
        asked_s=asked_s,
        answered_s=now_s,
        from_bytes=before.budget_bytes if before else 0,
        to_bytes=lease.granted_bytes,
        used_before_bytes=before.used_bytes if before else 0,
        used_bytes=lease.used_bytes,
        device_used_bytes=lease.device_used_bytes,
        release_ms=lease.release_ms,
        deadline_ms=phase.deadline_ms,
        deadline_met=lease.deadline_met,
        speaking=speaking,
    )
