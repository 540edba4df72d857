"""The short form of ``xlm status``: what fits one screen. Rows of a title and a text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import xlm
from xlm._commands import to_type

Row = tuple[str, str]
Map = Mapping[str, Any]

_MOST_ROWS: Final = 5  # of clients, and of sessions
_MODES: Final = {"from_game": "decided by the games", "fixed": "fixed", "free": "all the device has"}


def rows(status: Map) -> list[Row]:
    """Budget, memory, where the work runs, who is there, and what is not as it should be."""
    parts = {name: status.get(name) or {} for name in ("budget", "schedule")}
    return [
        *_progress(status.get("engine") or {}),
        *_budget(parts["budget"]),
        *_memory(parts["budget"]),
        *_placement(parts["schedule"]),
        *_some("client", status.get("clients") or [], _client),
        *_some("session", status.get("sessions") or [], _session),
        *(("warning", to_type(text)) for text in warnings(status)),
    ]


def size(value: object) -> str:
    return xlm.format_size(int(value)) if isinstance(value, (int, float)) else "?"


def _progress(engine: Map) -> Iterator[Row]:
    if engine.get("stage"):
        yield "engine", f"{engine['stage']}, {engine.get('fraction', 0.0):.0%}"


def _budget(budget: Map) -> Iterator[Row]:
    if not budget:
        return
    words = [_MODES.get(str(budget.get("mode")), str(budget.get("mode") or "?"))]
    if budget.get("demand_bytes") is not None:
        least = f"below {size(budget['minimum_bytes'])} the CPU alone works"
        words += [f"the model can use {size(budget['demand_bytes'])}", least]
    for name in ("reserved", "headroom"):
        if value := budget.get(f"{name}_bytes"):
            words.append(f"{name} {size(value)}")
    yield "budget", "; ".join(words)


def _memory(budget: Map) -> Iterator[Row]:
    if budget.get("resident_bytes") is None:
        return
    parts = [f"{name} {size(budget.get(f'{name.lower()}_bytes'))}" for name in ("KV", "ring", "scratch")]
    yield "memory", f"weights {size(budget['resident_bytes'])}, {', '.join(parts)}"


def _placement(schedule: Map) -> Iterator[Row]:
    if schedule.get("summary"):
        yield "placement", str(schedule["summary"])


def _some(title: str, entries: Sequence[Map], line: Callable[[Map], str]) -> Iterator[Row]:
    yield from ((title, line(entry)) for entry in entries[:_MOST_ROWS])
    if len(entries) > _MOST_ROWS:
        yield title, f"... and {len(entries) - _MOST_ROWS} more"


def _client(client: Map) -> str:
    cap = "no cap" if client.get("cap_bytes") is None else f"cap {size(client['cap_bytes'])}"
    words = [cap, _count(client.get("sessions", 0), "session")]
    words += [f"reserves {size(client['reserved_bytes'])}"] if client.get("reserved_bytes") else []
    return f"{client.get('name', '')}: {', '.join(words)}"


def _session(session: Map) -> str:
    doing = "waits for its client" if session.get("waiting_for_client") else "idle"
    doing = "answers" if session.get("busy") else doing
    counts = [_count(session.get(f"{word}s", 0), word) for word in ("token", "turn")]
    return f"of {session.get('client', '')}: {', '.join([doing, *counts])}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


# -- what is not as it should be -------------------------------------------------------


def warnings(status: Map) -> list[str]:
    """One line each; none where all is well."""
    parts = (_of_engine, _of_device, _of_budget, _of_schedule, _of_clients)
    return [text for part in parts for text in part(status)]


def _of_engine(status: Map) -> Iterator[str]:
    engine = status.get("engine") or {}
    if error := engine.get("error"):
        yield f"{error.get('message', '')}{_to_do(error.get('hint'))}"
    if engine.get("restarts"):
        yield f"the engine was started again {_count(engine['restarts'], 'time')}"


def _of_device(status: Map) -> Iterator[str]:
    device = status.get("device") or {}
    if device.get("lost") or device.get("degraded"):
        yield "the device is lost: answers come from the CPU until it is back"
    if device.get("over_budget_events"):
        yield f"the budget was exceeded {_count(device['over_budget_events'], 'time')}"


def _of_budget(status: Map) -> Iterator[str]:
    budget, throughput = status.get("budget") or {}, status.get("throughput") or {}
    if warning := budget.get("warning"):
        yield f"{warning.get('message', '')}{_to_do(warning.get('hint'))}"
    if budget.get("settled") is False and (status.get("engine") or {}).get("state") == "ready":
        yield "the engine has not confirmed the last change of the budget yet"
    if budget.get("spill_limit_bytes") is not None:
        yield f"the driver moved memory off the card: at most {size(budget['spill_limit_bytes'])} until there is room"
    if budget.get("frame_limit_bytes") is not None:
        yield f"a game's frames were late: at most {size(budget['frame_limit_bytes'])} for now"
    if throughput.get("duty", 1.0) < 1.0:
        yield f"a game's frames are late: generation has {throughput['duty']:.0%} of the time"


def _of_schedule(status: Map) -> Iterator[str]:
    schedule = status.get("schedule") or {}
    if schedule.get("rejection"):
        yield f"the engine refused a schedule: {schedule['rejection']}"
    profile = schedule.get("profile") or {}
    if profile.get("state") not in (None, "", "measured"):
        yield f"{profile.get('text', '')}{_to_do(profile.get('advice'))}"


def _of_clients(status: Map) -> Iterator[str]:
    for client in status.get("clients") or []:
        if client.get("stalled"):
            yield f"{client.get('name', '')} does not take what is sent to it"


def _to_do(advice: object) -> str:
    return f" ({advice})" if advice else ""
