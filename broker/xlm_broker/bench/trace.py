"""A step as Chrome and Perfetto show it: one row each for CPU, device, the link's two directions, and the host's waits.

Format: the JSON object of the Trace Event format ("X" events, microseconds), which both viewers read. Times of device
and link are those of the modelled card where it tells them; of a real card, which cannot, those of submission.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

ROWS: Final = ("step", "CPU", "device", "link to device", "link to host", "host waits")
_ROW_OF: Final[Mapping[str, str]] = {
    "step": "step",
    "cpu": "CPU",
    "device": "device",
    "upload": "link to device",
    "copy_up": "link to device",
    "copy_down": "link to host",
    "write_back": "link to host",
    "wait": "host waits",
}
_WHAT: Final[Mapping[str, str]] = {
    "upload": "weights",
    "copy_up": "activations",
    "copy_down": "results",
    "write_back": "KV rows",
    "wait": "wait",
}
_ON_DEVICE: Final = frozenset({"device", "upload", "copy_up", "copy_down", "write_back"})


def chrome_trace(
    events: Sequence[Mapping[str, Any]], sublayers: Iterable[Mapping[str, Any]], about: Mapping[str, Any]
) -> dict[str, Any]:
    """``events``: TraceEvent as dictionaries; ``sublayers``: index, layer, kind; ``about``: kept as metadata."""
    names = {int(s["index"]): sublayer_name(s) for s in sublayers}
    origin = min((_span(event)[0] for event in events), default=0)
    rows = [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "xlm"}}]
    for number, row in enumerate(ROWS):
        rows.append({"ph": "M", "pid": 1, "tid": number, "name": "thread_name", "args": {"name": row}})
        rows.append({"ph": "M", "pid": 1, "tid": number, "name": "thread_sort_index", "args": {"sort_index": number}})
    shown = (_event(event, names, origin) for event in events)
    return {"traceEvents": [*rows, *shown], "displayTimeUnit": "ms", "otherData": dict(about)}


def sublayer_name(sublayer: Mapping[str, Any]) -> str:
    layer = int(sublayer["layer"])
    return f"{sublayer['kind']} {layer}" if layer >= 0 else str(sublayer["kind"])


def _span(event: Mapping[str, Any]) -> tuple[int, int]:
    """ns. Where the device tells no times, those of the call."""
    if event["kind"] in _ON_DEVICE and event["device_end_ns"]:
        return int(event["device_begin_ns"]), int(event["device_end_ns"])
    return int(event["begin_ns"]), int(event["end_ns"])


def _event(event: Mapping[str, Any], names: Mapping[int, str], origin: int) -> dict[str, Any]:
    begin, end = _span(event)
    kind, place = str(event["kind"]), names.get(int(event["sublayer"]), "")
    more = int(event["n_sublayers"]) - 1
    where = f"{place} + {more}" if more > 0 else place
    words = (
        f"{event['n_tokens']} tokens" if kind == "step" else " ".join(part for part in (_WHAT.get(kind), where) if part)
    )
    arguments = {"sublayer": place, "sublayers": event["n_sublayers"], "bytes": event["bytes"], "kind": kind}
    return {
        "ph": "X",
        "pid": 1,
        "tid": ROWS.index(_ROW_OF[kind]),
        "name": words or kind,
        "ts": (begin - origin) / 1e3,
        "dur": max(0, end - begin) / 1e3,
        "args": arguments,
    }
