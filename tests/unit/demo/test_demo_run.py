from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.processes import ended
from xlm.errors import RequestError, XlmError
from xlm_broker.config import device_and_reason
from xlm_broker.demo import process, run
from xlm_broker.demo.process import PrivateBroker, child_environment, last_words, private_endpoint
from xlm_broker.demo.run import DemoOptions, describe, device_name, model_name
from xlm_broker.devices import Devices


def test_the_brokers_arguments(tmp_path: Path) -> None:
    arguments = DemoOptions(out=tmp_path, model="m.gguf", device="sim", sim_link="8").broker_arguments()
    assert arguments[:5] == ["--budget-from-game", "--model", "m.gguf", "--device", "sim"]
    assert arguments[-2:] == ["--sim-link", "8"]
    assert "--sim-link" not in DemoOptions(out=tmp_path).broker_arguments()


def test_the_device_is_told_at_the_start_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        run, "device_and_reason", partial(device_and_reason, find_devices=lambda: Devices(hardware_gpus=["amdgpu"]))
    )
    told = DemoOptions(out=tmp_path).device_line()
    assert told.startswith("device: sim (virtual GPU: a real GPU is here, but no ggml backend library for it")
    assert DemoOptions(out=tmp_path, device="sim").device_line() == "device: sim (virtual GPU, as asked)"
    with pytest.raises(RequestError, match="abacus"):
        DemoOptions(out=tmp_path, device="abacus").device_line()


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ({"kind": "sim", "description": "sim"}, "virtual GPU (exact mode)"),
        ({"kind": "sim", "modelled": True}, "virtual GPU (modelled time)"),
        ({"kind": "cuda", "description": "RTX 4070"}, "RTX 4070 (CUDA)"),
        ({"kind": "none"}, "CPU only"),
    ],
)
def test_the_device_is_named_plainly(device: dict[str, Any], name: str) -> None:
    assert device_name(device) == name


def test_the_model_is_named_as_people_know_it() -> None:
    assert model_name({"model": {"name": "Mix1 Ep2", "path": "/models/SmolLM2-135M.Q4_1.gguf"}}) == "SmolLM2-135M.Q4_1"
    assert model_name({"model": {"name": "SmolLM2", "path": ""}}) == "SmolLM2"
    assert model_name({"model": None}) == "model"


def test_what_ran_where_is_json() -> None:
    about = describe({"device": {"kind": "sim", "total_bytes": 5}, "engine": {"model": {"name": "m", "n_layer": 3}}})
    assert json.loads(json.dumps(about)) == about
    assert about["model"] == {"name": "m", "n_layer": 3}
    assert about["machine"]["cores"]
    assert about["machine"]["memory_bytes"] > 0


def test_the_replay_tells_each_answer_once() -> None:
    lines: list[str] = []
    show = run._counted(lines.append)
    for done in (0, 0, 1, 1, 3):
        show(done, 5)
    assert lines == ["1 of 5 answers", "3 of 5 answers"]


# -- the private broker -----------------------------------------------------------


STAND_IN = """
import json, pathlib, sys, time
ready = pathlib.Path(sys.argv[sys.argv.index("--ready-file") + 1])
def put(error):  # whole or not at all, as the broker does
    draft = ready.with_suffix(".draft")
    draft.write_text(json.dumps({"error": error}))
    draft.replace(ready)
"""


def stand_in(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that gets the broker's arguments and runs ``script``; ``put(error)`` writes its ready-file."""
    monkeypatch.setattr(process, "broker_command", lambda: [sys.executable, "-c", STAND_IN + script])


def test_a_loaded_broker_is_waited_for_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in("put(None); time.sleep(600)", monkeypatch)
    with PrivateBroker([], tmp_path / "broker.log") as broker:
        broker.wait_until_loaded(lambda _waited_s: None)
        (child,) = [one for one in psutil.Process().children() if "--ready-file" in one.cmdline()]
        folder = Path(broker.endpoint.removeprefix("ipc://")).parent
        if sys.platform != "win32":
            assert folder.stat().st_mode & 0o777 == 0o700
    assert ended(child)
    assert not folder.exists()


def test_a_broker_that_ends_is_told_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in("sys.exit('no such device')", monkeypatch)
    with PrivateBroker([], tmp_path / "broker.log") as broker, pytest.raises(XlmError) as caught:
        broker.wait_until_loaded(lambda _waited_s: None)
    assert caught.value.code == "broker_gone"
    assert "no such device" in caught.value.message
    assert str(tmp_path / "broker.log") in caught.value.hint


def test_a_model_that_cannot_be_loaded_is_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = {"code": "model_truncated", "message": "the file ends at 60 %", "hint": "download it again"}
    stand_in(f"put({error}); time.sleep(600)", monkeypatch)
    with PrivateBroker([], tmp_path / "broker.log") as broker, pytest.raises(XlmError) as caught:
        broker.wait_until_loaded(lambda _waited_s: None)
    assert (caught.value.code, caught.value.fault) == ("model_truncated", "model")
    assert not psutil.Process().children()


def test_an_error_inside_ends_the_broker_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in("time.sleep(600)", monkeypatch)
    with pytest.raises(KeyboardInterrupt), PrivateBroker([], tmp_path / "broker.log"):
        raise KeyboardInterrupt
    assert not psutil.Process().children()


def test_the_real_broker_refuses_a_wrong_option_in_one_line(tmp_path: Path) -> None:
    arguments = ["--model", "demo", "--device", "abacus"]
    with PrivateBroker(arguments, tmp_path / "broker.log") as broker, pytest.raises(XlmError) as caught:
        broker.wait_until_loaded(lambda _waited_s: None)
    assert "'abacus' is none of auto, cuda, vulkan, sim, cpu" in caught.value.message


def test_options_of_another_broker_do_not_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLM_ENDPOINT", "ipc:///elsewhere")
    monkeypatch.setenv("XLM_VULKAN_LIBRARY", "/x.so")
    environment = child_environment()
    assert "XLM_ENDPOINT" not in environment
    assert environment["XLM_VULKAN_LIBRARY"] == "/x.so"


def test_a_private_endpoint_and_a_missing_log(tmp_path: Path) -> None:
    assert private_endpoint(tmp_path).startswith("tcp://127.0.0.1:" if sys.platform == "win32" else "ipc://")
    assert last_words(tmp_path / "none") == ""
