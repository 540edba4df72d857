"""The ready-file is written once, whole, and only when there is news."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from xlm.protocol.messages import Status
from xlm_broker.ready import ReadyFile


def status(state: str, error: dict[str, Any] | None = None) -> Status:
    return Status(engine={"state": state, "model": {"name": "m"}, "error": error}, device={"kind": "sim"})


def test_ready(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    ready = ReadyFile(path, "ipc:///x")
    for state in ("starting", "loading", "restarting"):
        ready.offer(status(state))
    assert not path.exists()
    ready.offer(status("ready"))
    assert json.loads(path.read_text()) == {
        "endpoint": "ipc:///x",
        "pid": os.getpid(),
        "model": {"name": "m"},
        "device": {"kind": "sim"},
        "error": None,
    }
    ready.offer(status("failed", {"code": "engine_failed"}))
    assert json.loads(path.read_text())["error"] is None
    ready.remove()
    assert list(tmp_path.iterdir()) == []


def test_failure(tmp_path: Path) -> None:
    ready = ReadyFile(tmp_path / "r", "ipc:///x")
    ready.offer(status("failed", {"code": "model_empty", "message": "m", "hint": "h"}))
    assert json.loads((tmp_path / "r").read_text())["error"]["code"] == "model_empty"


def test_a_stale_file_is_cleared(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("old")
    ReadyFile(tmp_path / "r", "ipc:///x").clear()
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("content", ["old", "{}", '{"pid": "x"}', "[]", '{"pid": 99999999999}', '{"pid": -1}'])
def test_only_the_file_of_a_dead_broker_is_stale(tmp_path: Path, content: str) -> None:
    path = tmp_path / "r"
    path.write_text(json.dumps({"pid": os.getppid()}))
    ReadyFile(path, "").clear_stale()
    assert path.exists()
    path.write_text(content)
    ReadyFile(path, "").clear_stale()
    assert not path.exists()
    ReadyFile(path, "").clear_stale()
    ReadyFile(None, "").clear_stale()


def test_a_file_that_cannot_be_written_is_an_os_error_once(tmp_path: Path) -> None:
    ready = ReadyFile(tmp_path / "gone" / "r", "ipc:///x")
    with pytest.raises(OSError, match="No such file"):
        ready.offer(status("ready"))
    ready.offer(status("ready"))


def test_no_file_asked_for() -> None:
    ready = ReadyFile(None, "ipc:///x")
    ready.offer(status("ready"))
    ready.remove()


def test_a_draft_that_cannot_take_its_place_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    path.mkdir()
    with pytest.raises(OSError, match=r"ready\.json"):
        ReadyFile(path, "ipc:///x").offer(status("ready"))
    assert list(tmp_path.iterdir()) == [path]
