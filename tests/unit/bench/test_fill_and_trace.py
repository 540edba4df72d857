"""A filled cache state, a written model, a trace in the viewers' format."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xlm.errors import EngineError, RequestError
from xlm_broker.bench.trace import ROWS, chrome_trace
from xlm_engine.bench.fill import filled_state
from xlm_engine.bench.models import SHAPES, write_model


def state(n_layer: int, row_bytes: int, *, cells: int = 1, transposed: int = 0, kind: int = 1) -> bytes:
    head = struct.pack("<IiII", 77, 0, 1, cells) + struct.pack("<iIi", 0, 1, 0)
    rows = struct.pack("<iQ", kind, row_bytes) + bytes(row_bytes)
    return head + struct.pack("<II", transposed, n_layer) + rows * (2 * n_layer)


def test_a_state_of_one_cell_becomes_one_of_many() -> None:
    found = filled_state(state(3, 128), 100).tobytes()
    assert struct.unpack_from("<IiII", found) == (77, 0, 1, 100)
    positions = np.frombuffer(found, dtype="<i4", count=300, offset=16).reshape(100, 3)
    assert positions[:, 0].tolist() == list(range(100))
    assert (positions[:, 1] == 1).all()
    assert len(found) == 16 + 100 * 12 + 8 + 6 * (12 + 100 * 128)


def test_values_are_normal_numbers() -> None:
    found = filled_state(state(1, 64), 2000).tobytes()
    values = np.frombuffer(found[16 + 2000 * 12 + 8 + 12 :][: 2000 * 64], dtype=np.float16)
    assert np.isfinite(values).all()
    assert (np.abs(values) > 1e-3).all()


@pytest.mark.parametrize("bad", [state(1, 64, cells=2), state(1, 64, transposed=1), state(1, 64, kind=8)])
def test_another_layout_is_refused(bad: bytes) -> None:
    with pytest.raises(EngineError):
        filled_state(bad, 10)


def test_trailing_bytes_are_refused() -> None:
    with pytest.raises(EngineError):
        filled_state(state(1, 64) + b"more", 10)


def test_a_model_of_an_unknown_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError):
        write_model("none", tmp_path / "x.gguf")


def test_models_have_real_proportions() -> None:
    """At least 500 MB each, as Q4_0 takes 18 bytes for 32 weights."""
    for name in ("dense", "moe"):
        shape = SHAPES[name]
        experts = max(1, shape.n_expert)
        layer = 3 * shape.n_embd * shape.n_ff * experts + 2 * shape.n_embd * shape.n_embd
        assert (shape.n_layer * layer + shape.n_vocab * shape.n_embd) * 18 / 32 > 500e6


def event(kind: str, **values: Any) -> dict[str, Any]:
    base = {"kind": kind, "sublayer": -1, "n_sublayers": 0, "n_tokens": 0, "bytes": 0, "begin_ns": 1000,
            "end_ns": 3000, "device_begin_ns": 0, "device_end_ns": 0}  # fmt: skip
    return {**base, **values}


def test_a_trace_has_a_row_for_each_resource() -> None:
    events = [
        event("step", n_tokens=1),
        event("cpu", sublayer=4, n_sublayers=2),
        event("upload", sublayer=5, n_sublayers=1, bytes=10, device_begin_ns=2000, device_end_ns=9000),
        event("wait"),
    ]
    found = chrome_trace(
        events, [{"index": 4, "layer": 1, "kind": "ffn"}, {"index": 5, "layer": -1, "kind": "output"}], {}
    )
    json.dumps(found, allow_nan=False)
    shown = [e for e in found["traceEvents"] if e["ph"] == "X"]
    assert [ROWS[e["tid"]] for e in shown] == ["step", "CPU", "link to device", "host waits"]
    assert [e["name"] for e in shown] == ["1 tokens", "ffn 1 + 1", "weights output", "wait"]
    assert (shown[2]["ts"], shown[2]["dur"]) == (1.0, 7.0)


def test_without_device_times_those_of_the_call_are_shown() -> None:
    (shown,) = (e for e in chrome_trace([event("device")], [], {})["traceEvents"] if e["ph"] == "X")
    assert (shown["ts"], shown["dur"]) == (0.0, 2.0)
