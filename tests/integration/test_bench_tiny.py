"""`xlm bench` end to end on a tiny model and a modelled card: rows, budgets kept, resumed, traced. No clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from xlm.protocol.link import DeviceConfig
from xlm_broker import profiler
from xlm_broker.bench import run as bench_run
from xlm_broker.bench import sweep as bench_sweep
from xlm_broker.bench.cards import FEW, MANY, SIDE
from xlm_broker.cli.bench import bench
from xlm_broker.planner.sharding.profile import KernelPoint
from xlm_broker.profile_store import ProfileWriter

pytest.importorskip("gguf")
APP = typer.Typer()
APP.command()(bench)

THREADS = 1
CASE = ["--models", "tiny,tiny_moe", "--cards", "mid", "--budgets", "0.3,1.1", "--prompts", "64", "--depths", "512"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CPU profile with what scales the cards, so that only a few seconds of measuring are left."""
    monkeypatch.setattr(profiler, "QUICK_SECONDS", 3.0)
    key = profiler.identify(DeviceConfig(kind="none"))
    writer = ProfileWriter(tmp_path / "profiles" / "cpu.sqlite", key, quick=True)
    shape = (SIDE, SIDE, 0, 0)
    times = {FEW: 1_000_000, MANY: 20_000_000}
    writer.add([KernelPoint("cpu", "MUL_MAT", "Q4_0", shape, n, THREADS, "idle", ns) for n, ns in times.items()])
    writer.close()
    return tmp_path


def invoke(folder: Path, *more: str) -> str:
    result = CliRunner().invoke(APP, [*CASE, "--threads", str(THREADS), "--work", str(folder), "--no-exact", *more])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def check_row(row: dict[str, Any]) -> None:
    assert row["budget_bytes"] == round(row["budget_share"] * row["model_bytes"])
    assert row["memory"]["peak_used_bytes"] <= row["budget_bytes"]
    assert row["memory"]["over_budget_events"] == 0
    for name in ("ours", "ngl", "static", "limit"):
        assert row[name]["ttft_ms"] > 0
        assert row[name]["token_ms"] > 0
    assert row["static"]["token_ms"] <= row["ngl"]["token_ms"]
    assert row["static"]["ttft_ms"] <= row["ngl"]["ttft_ms"]
    assert sum(row["decode_places"].values()) == sum(row["prompt_places"].values())
    assert row["static"]["token_setting"]


def test_a_tiny_case_end_to_end_and_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, picture = folder / "rows.json", folder / "rows.png"
    with pytest.raises(SystemExit, match="75"):  # out of time at once: nothing measured, nothing lost
        invoke(folder, "--json", str(rows), "--for-at-most-s", "0.001")
    assert (json.loads(rows.read_text())["complete"], json.loads(rows.read_text())["rows"]) == (False, [])
    printed = invoke(folder, "--json", str(rows), "--picture", str(picture))
    result = json.loads(rows.read_text())
    assert len(result["rows"]) == 4
    for row in result["rows"]:
        check_row(row)
    assert "tiny, mid" in printed
    assert "tiny_moe, mid" in printed
    assert picture.read_bytes().startswith(b"\x89PNG")

    def nothing_is_measured_again(*_: object, **__: object) -> None:
        raise AssertionError("measured again")

    # The profile was cut short: how far it has come is a matter of the machine, and more of it would change the plans.
    monkeypatch.setattr(profiler, "measure", lambda *_: None)
    monkeypatch.setattr(bench_run, "time_steps", nothing_is_measured_again)
    monkeypatch.setattr(bench_sweep, "time_steps", nothing_is_measured_again)
    invoke(folder, "--json", str(rows))
    again = json.loads(rows.read_text())
    figures = [(row["ours"], row["ngl"], row["static"]) for row in result["rows"]]
    assert [(row["ours"], row["ngl"], row["static"]) for row in again["rows"]] == figures


def test_a_step_is_traced(folder: Path) -> None:
    trace = folder / "step.json"
    invoke(folder, "--trace", str(trace))
    found = json.loads(trace.read_text())
    shown = [event for event in found["traceEvents"] if event["ph"] == "X"]
    assert sum(event["args"]["kind"] == "step" for event in shown) == 1
    assert any(event["args"]["kind"] in ("cpu", "device") for event in shown)
    assert all(event["dur"] >= 0 for event in shown)
    assert found["otherData"]["tokens"] == 1
