"""``python -m xlm_engine.bench stock|ours`` answers requests on stdin (wire.py); ``write NAME FILE`` makes a model."""

from __future__ import annotations

import faulthandler
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from xlm._threads import share_cores
from xlm.errors import XlmError
from xlm_engine.bench.wire import Answer, Request


def _private_stdout() -> int:
    """Keeps stdout for answers: whatever llama.cpp prints goes to stderr instead."""
    own = os.dup(1)
    os.dup2(2, 1)
    return own


def main(arguments: list[str]) -> int:
    faulthandler.enable()
    share_cores()  # as the engine does; the same for both sides
    if arguments[0] == "write":
        from xlm_engine.bench.models import write_model

        write_model(arguments[1], Path(arguments[2]))
        return 0
    decoder, encoder = msgspec.json.Decoder(Request), msgspec.json.Encoder()
    side: Any = None
    with os.fdopen(_private_stdout(), "wb") as sink:
        for line in sys.stdin.buffer:
            request = decoder.decode(line)
            try:
                side = _opened(arguments[0], request) if side is None else side
                answer = Answer(value=_answer(side, request))
            except XlmError as error:
                answer = Answer(error=error.message, code=error.code)
            sink.write(encoder.encode(answer) + b"\n")
            sink.flush()
    if side is not None:
        side.close()
    return 0


def _opened(name: str, request: Request) -> Any:
    if name == "stock":
        from xlm_engine.bench.stock import StockSide

        return StockSide(request)
    from xlm_engine.bench.ours import OurSide

    return OurSide(request)


def _answer(side: Any, request: Request) -> dict[str, Any]:
    match request.do:
        case "open":
            return {}
        case "load" | "context" | "schedule":
            return dict(getattr(side, request.do)(request))
        case "memory":
            return dict(side.memory())
        case "trace":
            side.sim.free_of_charge()
            side.steps.rewind(request.depth)
            side.prepare(request)
            return dict(side.trace(request))
        case "greedy":
            side.sim.charge(request.card)
            tokens, times = side.steps.greedy(request.prompt, request.steps)
            return {"tokens": tokens, "ns": times}
        case "decode" | "prefill":
            return {"ns": _timed(side, request)}
    raise XlmError(f"{request.do} is not a request", code="bad_request")


def _timed(side: Any, request: Request) -> Any:
    """Filling, and what it makes necessary, is free of charge."""
    side.sim.free_of_charge()
    side.steps.rewind(request.depth)
    side.prepare(request)
    side.sim.charge(request.card)
    return side.steps.decode(request.depth, request.steps) if request.do == "decode" else side.prefill(request)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
