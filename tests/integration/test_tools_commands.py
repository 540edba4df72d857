"""``xlm demo``, ``xlm chat --model`` and ``xlm doctor`` as processes, on the real model and the virtual GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest


def xlm(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "xlm_broker.cli.tools", *arguments]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=900, check=False)


def brokers_of(folder: Path) -> list[psutil.Process]:
    """Processes whose log went to ``folder``: none may be left behind."""
    log = str(folder / "broker.log")
    found = []
    for process in psutil.process_iter(["open_files"]):
        files = process.info["open_files"] or []
        if any(file.path == log for file in files):
            found.append(process)
    return found


def test_the_demo_keeps_its_promises(tmp_path: Path) -> None:
    done = xlm("demo", "--seconds", "12", "--device", "sim", "--json", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary == json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert summary["over_budget_events"] == 0
    assert summary["lossless"]["different"] == 0
    assert summary["tokens"]["Greta"] > 0
    assert summary["tokens"]["Odo"] > 0
    assert [change["phase"] for change in summary["budget_changes"]] == [phase["key"] for phase in summary["phases"]]
    for change in summary["budget_changes"]:
        assert change["device_used_bytes"] <= change["to_bytes"]
    assert not any(notice["kind"].startswith("engine_re") for notice in summary["notices"])
    assert "virtual GPU (exact mode)" in summary["device"]["description"]
    if summary["timeline"]:  # matplotlib is an extra
        assert (tmp_path / "timeline.png").stat().st_size > 20_000
    assert brokers_of(tmp_path) == []


def test_a_model_that_is_not_there_is_one_typed_error(tmp_path: Path) -> None:
    done = xlm("demo", "--model", str(tmp_path / "none.gguf"), "--seconds", "4", "--out", str(tmp_path))
    assert done.returncode == 4  # as xlm-broker: the model's fault
    assert "error: " in done.stderr
    assert "none.gguf" in done.stderr
    assert "Traceback" not in done.stderr
    assert brokers_of(tmp_path) == []


def test_a_demo_without_a_device_says_what_to_do(tmp_path: Path) -> None:
    done = xlm("demo", "--device", "cpu", "--seconds", "4", "--out", str(tmp_path))
    assert done.returncode == 5
    assert "--device sim" in done.stderr


@pytest.mark.parametrize("device", ["sim", "cpu"])
def test_chat_with_a_private_broker_answers_once(device: str) -> None:
    options = ["--once", "Say hello.", "--max-tokens", "8", "--temperature", "0"]
    done = xlm("chat", "--model", "demo", "--device", device, *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "error" not in done.stderr


def test_the_doctor_finds_what_the_other_tests_use() -> None:
    done = xlm("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    for name in ("python", "packages", "llama.cpp", "cache device", "virtual GPU"):
        assert checks[name]["state"] == "ok", checks[name]
    assert checks["llama.cpp"]["data"]["ggml_commit"]
