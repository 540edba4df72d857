"""The broker's planning process: ``python -m xlm_broker.planning_process``, messages on stdin and stdout.

A process of its own, at low priority: a search of some tenths of a second would otherwise hold up frames of the game
and orders to release, and a fault in it would end the broker. It ends with its standard input.

For each Ask a quick plan within a frame's time, then, where a longer search may pay, a second answer.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final, cast

import msgspec

from xlm._threads import step_back
from xlm.errors import XlmError
from xlm_broker.planner import wire
from xlm_broker.planner.sharding import ShardingPlanner, Workload, card_of_sim
from xlm_broker.planner.sharding.workload import Objective
from xlm_broker.profile_choice import profile_of

_NICE: Final = 5  # behind the threads that compute, too
_MAX_CHARS: Final = 300


class Planning:
    """Serves one broker. ``tell`` sends; ``newer`` says whether another message waits (the search ends early then)."""

    def __init__(self, tell: Callable[[wire.Message], None], newer: Callable[[], bool]) -> None:
        self._tell = tell
        self._newer = newer
        self._setup: wire.Setup | None = None
        self._facts: wire.Facts | None = None
        self._planner = ShardingPlanner()

    def take(self, message: wire.ToPlanning) -> None:
        match message:
            case wire.Setup():
                self._setup = message
            case wire.Facts():
                self._facts = message
                self._prepare(message)
            case wire.Ask():
                self._answer(message)

    def _prepare(self, facts: wire.Facts) -> None:
        setup = self._setup
        assert setup is not None, "Setup comes first"
        profile, standing = profile_of(Path(setup.profile), setup.device, facts.device.identity)
        workload = Workload(setup.prompt_tokens, setup.decode_tokens, objective=cast(Objective, setup.objective))
        card = card_of_sim(setup.device.sim) if setup.device.kind == "sim" else None
        self._planner = ShardingPlanner(profile=profile, card=card, workload=workload)
        self._tell(standing)

    def _answer(self, ask: wire.Ask) -> None:
        try:
            self._search(ask)
        except Exception as error:  # whatever it is, the broker gets its answer and goes on with what it has
            words = error.message if isinstance(error, XlmError) else f"{type(error).__name__}: {error}"
            self._tell(wire.Answer(request_id=ask.request_id, problem=words[:_MAX_CHARS]))

    def _search(self, ask: wire.Ask) -> None:
        facts = self._facts
        assert facts is not None, "Facts come first"
        found = self._planner.plans(
            facts.model, facts.device, ask.budget_bytes, current=ask.current, routing=ask.routing, enough=self._newer
        )
        for schedule, final in found:
            self._tell(wire.Answer(request_id=ask.request_id, schedule=schedule, final=final))


def main() -> None:
    step_back()
    with contextlib.suppress(OSError, AttributeError):
        os.nice(_NICE)
    out = sys.stdout.buffer
    inbox: queue.SimpleQueue[wire.ToPlanning | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, inbox), daemon=True).start()

    def tell(message: wire.Message) -> None:
        out.write(wire.pack(message))
        out.flush()

    planning = Planning(tell, lambda: not inbox.empty())
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        while (message := inbox.get()) is not None:
            planning.take(message)


def _read(stream: IO[bytes], inbox: queue.SimpleQueue[wire.ToPlanning | None]) -> None:
    """Until the end of the stream, or a message that is none: then this process has no broker any more."""
    try:
        while len(head := stream.read(wire.LENGTH_BYTES)) == wire.LENGTH_BYTES:
            size = wire.length(head)
            body = stream.read(size)
            if len(body) < size:
                break
            inbox.put(wire.to_planning(body))
    except (OSError, ValueError, msgspec.DecodeError):
        pass
    inbox.put(None)


if __name__ == "__main__":
    main()
