"""Every mistake gets one typed, readable error, and the broker stays up."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import xlm
from tests.support.bad_models import BAD_MODELS
from tests.support.model import model_path
from tests.support.running_broker import RunningBroker, running_broker, wait_until


@pytest.fixture(scope="module")
def bad_models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("models")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("code", sorted(BAD_MODELS))
def test_bad_model_file(bad_models: Path, code: str) -> None:
    path = BAD_MODELS[code](bad_models)
    with running_broker(wait=False, model=str(path)) as broker:
        state = broker.wait_ready()
        assert state["error"]["code"] == code
        with broker.connect() as client:
            status = client.status()
            assert status.engine["state"] == "failed"
            assert status.engine["error"]["code"] == code
            with pytest.raises(xlm.errors.ModelError) as caught, client.open_session() as npc:
                npc.say("Hello?").text  # noqa: B018  (text waits for the answer)
            assert caught.value.code == code
            assert str(caught.value)
            assert client.set_budget("1MiB").used_bytes == 0
        assert broker.process is not None
        assert broker.process.poll() is None


def test_a_bad_setting_of_the_virtual_gpu_is_told_to_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLM_SIM", "vrma=1GiB")
    with running_broker(wait=False, require_gpu=True) as broker:
        error = broker.wait_ready()["error"]
        assert error["code"] == "device_not_found"
        assert "XLM_SIM" in error["message"]
        assert "vrma" in error["message"]
        with broker.connect() as client:
            assert "vrma" in client.status().engine["error"]["message"]


def test_without_a_needed_device_it_is_told_in_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLM_SIM", "vrma=1GiB")
    with running_broker(wait=False) as broker:
        broker.wait_ready()
        with broker.connect() as client:
            status = client.status()
            assert "vrma" in f"{status.engine['error']} {status.device['description']}"


def run_broker(broker: RunningBroker) -> subprocess.CompletedProcess[str]:
    return subprocess.run(broker.command(), capture_output=True, text=True, timeout=600)


def test_second_broker_on_the_same_endpoint(broker: RunningBroker) -> None:
    second = run_broker(broker)
    assert second.returncode != 0
    assert "another broker" in second.stderr
    assert "Traceback" not in second.stderr
    with broker.connect() as client:
        assert client.status().engine["state"] == "ready"


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        ("ipc:///tmp/" + "x" * 120, "107"),
        ("tcp://0.0.0.0:5555", "this machine"),
        ("tcp://192.168.1.2:5555", "this machine"),
        ("tcp://*:5555", "this machine"),
        ("http://localhost", "ipc://"),
        ("", "ipc://"),
    ],
)
def test_bad_endpoints(tmp_path: Path, endpoint: str, words: str) -> None:
    broker = RunningBroker(tmp_path, {"--model": "demo", "--device": "cpu", "--endpoint": endpoint})
    result = run_broker(broker)
    assert result.returncode != 0
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_budget_below_the_minimum_states_it(broker: RunningBroker) -> None:
    with broker.connect() as client:
        with pytest.raises(xlm.errors.BudgetError) as caught:
            client.set_budget(4096, require="device")
        assert caught.value.code == "budget_infeasible"
        minimum = caught.value.minimum_bytes
        assert minimum is not None
        assert minimum > 4096
        assert client.set_budget(minimum, require="device").granted_bytes == minimum


def test_broker_refuses_a_fixed_budget_below_the_minimum() -> None:
    with running_broker(wait=False, budget="4KiB", require_gpu=True) as broker:
        state = broker.wait_ready()
        assert state["error"]["code"] == "budget_infeasible"


def test_a_repaired_model_file_loads_without_a_new_broker(tmp_path: Path) -> None:
    """The broker outlives the file: once it is there, asking again loads it."""
    path = tmp_path / "später 模型.gguf"
    with running_broker(wait=False, model=str(path)) as broker:
        assert broker.wait_ready()["error"]["code"] == "model_not_found"
        os.link(model_path(), path) if path.parent.stat().st_dev == model_path().stat().st_dev else shutil.copy(
            model_path(), path
        )
        with broker.connect() as client:
            wait_until(lambda: client.status().engine["state"] == "ready", "model loaded after it appeared")
            with client.open_session() as npc:
                assert npc.say("Hi", max_tokens=4, temperature=0.0).text
