from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from xlm.protocol.endpoints import parse_endpoint
from xlm.testing import FakeBroker
from xlm_broker.cli import checks, doctor, tools
from xlm_broker.cli.checks import Check
from xlm_broker.devices import Devices, NvidiaGpu
from xlm_broker.planner.wire import Standing

LLAMA = {
    "version": checks.LLAMA_CPP_PYTHON,
    "ggml_version": "0.25.3",
    "ggml_commit": "0c1e570",
    "system_info": "CPU : AVX2 = 1 | FMA = 1 | AMX_INT8 = 0 |",
}
MEASURED = Standing(state="measured", text="the profile of this machine")
GOOD = {
    "llama": LLAMA,
    "device": {"build": "xlm 0.1 for ggml 0.25.3", "path": "/x/libggml-xlm.so"},
    "vision": {"marker": "<__media__>", "pillow": "12.0.0", "formats": ["PNG", "JPEG", "WEBP", "BMP", "GIF"]},
    "sim": {"description": "virtual GPU", "path": "/x/libggml-xlm-sim.so"},
    "vulkan": {"loader": "libvulkan.so.1", "api": "1.3"},
}


def found(answers: dict[str, Any], devices: Devices, endpoint: str) -> dict[str, Check]:
    probe: Callable[[str], dict[str, Any]] = answers.__getitem__
    made = checks.all_checks(
        endpoint, probe=probe, find_devices=lambda: devices, find_profile=lambda _: answers.get("profile", MEASURED)
    )
    return {check.name: check for check in made}


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    tmp_path.chmod(0o700)
    return f"ipc://{tmp_path}/broker.sock"


def test_a_sound_machine_has_no_failure(endpoint: str) -> None:
    result = found(GOOD, Devices(), endpoint)
    assert {check.state for check in result.values()} <= {"ok", "warn"}
    assert result["llama.cpp"].state == result["cache device"].state == result["socket folder"].state == "ok"
    assert "sim" in result["device"].detail


def test_the_report_has_a_stable_shape(endpoint: str) -> None:
    report = doctor.report(list(found(GOOD, Devices(), endpoint).values()))
    assert json.loads(json.dumps(report)) == report
    assert report["ok"] is True
    for check in report["checks"]:
        assert set(check) == {"name", "state", "detail", "advice", "data"}
        assert check["state"] in ("ok", "warn", "fail")
        assert check["advice"] or check["state"] == "ok", "every gap says what to do"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"error": "it crashed with signal 4", "crashed": True}, "GGML_NATIVE=OFF"),
        ({"error": "ModuleNotFoundError: No module named 'llama_cpp'"}, "pip install llama-cpp-python=="),
        ({**LLAMA, "version": "0.3.1"}, "no stable ABI"),
    ],
    ids=["crash", "missing", "version"],
)
def test_a_broken_llama_build_says_what_to_do(answer: dict[str, Any], words: str, endpoint: str) -> None:
    check = found({**GOOD, "llama": answer}, Devices(), endpoint)["llama.cpp"]
    assert check.state == "fail"
    assert words in check.advice


def test_an_abi_mismatch_is_a_failure(endpoint: str) -> None:
    answer = {"error": "built for ggml 0.25.2, here is 0.25.3", "hint": "rebuild the native libraries: make setup"}
    result = found({**GOOD, "device": answer}, Devices(), endpoint)
    assert result["cache device"].state == "fail"
    assert result["cache device"].advice == answer["hint"]
    assert doctor.conclusion(list(result.values())) == "Broken: cache device."


def test_cpu_features() -> None:
    assert checks.cpu_features("AVX2 = 1 | FMA = 1").state == "ok"
    amx = checks.cpu_features("AVX2 = 1 | AMX_INT8 = 1")
    assert (amx.state, "AMX is known to crash" in amx.detail) == ("warn", True)


def test_a_card_without_a_backend_is_a_warning_with_the_way_out(endpoint: str) -> None:
    devices = Devices(nvidia=[NvidiaGpu(index=0, name="RTX", total_bytes=8 << 30)], hardware_gpus=["amdgpu"])
    result = found(GOOD, devices, endpoint)
    assert result["cuda backend"].state == "warn"
    assert "XLM_CUDA_LIBRARY" in result["cuda backend"].advice
    assert result["vulkan backend"].state == "warn"
    assert "RTX (8.0 GiB)" in result["nvidia"].detail


def test_a_vulkan_backend_without_a_loader_is_a_warning(endpoint: str) -> None:
    result = found({**GOOD, "vulkan": {"loader": None}}, Devices(vulkan_library=Path("/x/v.so")), endpoint)
    assert "libvulkan1" in result["vulkan backend"].advice


def test_a_setting_that_names_nothing_is_a_warning(endpoint: str) -> None:
    result = found(GOOD, Devices(problems=["XLM_CUDA_LIBRARY names /nowhere"]), endpoint)
    assert result["device"].state == "warn"
    assert "/nowhere" in result["device"].detail


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX file modes")
def test_the_socket_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert "will create" in checks.socket_folder(folder).detail
    folder.mkdir(mode=0o700)
    assert checks.socket_folder(folder).state == "ok"
    folder.chmod(0o755)
    assert checks.socket_folder(folder).advice == f"chmod 700 {folder}"
    file = tmp_path / "file"
    file.touch()
    assert checks.socket_folder(file).state == "fail"
    assert checks.socket_folder(file / "below").state == "fail"


def test_an_endpoint_in_use_free_and_left_over(tmp_path: Path) -> None:
    with FakeBroker() as broker:
        assert checks.endpoint_use(parse_endpoint(broker.endpoint)).data == {"in_use": True}
    gone = checks.endpoint_use(parse_endpoint(broker.endpoint))
    assert gone.data == {"in_use": False}
    left = tmp_path / "broker.sock"
    left.touch()
    assert "cleaned up at the next start" in checks.endpoint_use(parse_endpoint(f"ipc://{left}")).detail


def test_a_wrong_endpoint_is_a_failure() -> None:
    (check,) = checks.endpoint_checks("http://somewhere")
    assert check.state == "fail"
    assert check.advice


def test_a_probe_that_crashes_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_arguments: Any, **_options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], -11, "", "Segmentation fault")

    monkeypatch.setattr(subprocess, "run", run)
    answer = checks.run_probe("llama")
    assert answer["crashed"] is True
    assert "signal 11" in answer["error"]


def test_a_probe_that_says_nothing_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.CompletedProcess([], 1, "", "Traceback\nImportError: no module")
    monkeypatch.setattr(subprocess, "run", lambda *_a, **_o: done)
    assert checks.run_probe("llama") == {"error": "ImportError: no module"}


def test_a_real_probe_answers_json() -> None:
    answer = checks.run_probe("vulkan")
    assert "loader" in answer or "error" in answer
    assert "error" in checks.run_probe("no such probe")


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_only_failures_are_an_exit_code(state: Any, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "all_checks", lambda _endpoint: iter([Check("thing", state, "detail", "do this")]))
    result = CliRunner().invoke(tools.app, ["doctor", "--json"])
    assert result.exit_code == code
    assert json.loads(result.output)["ok"] is (code == 0)
    text = CliRunner().invoke(tools.app, ["doctor"]).output
    assert "do: do this" in text


@pytest.mark.parametrize("state", ["missing", "corrupt", "stale", "partly"])
def test_a_profile_that_cannot_be_planned_by_is_named(endpoint: str, state: str) -> None:
    standing = Standing(state=state, text="why", code=f"profile_{state}")
    check = found({**GOOD, "profile": standing}, Devices(), endpoint)["profile"]
    assert (check.state, check.detail) == ("warn", "why")
    assert "xlm profile --quick" in check.advice


def test_without_a_profile_nobody_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checks, "default_path", lambda: tmp_path / "none.sqlite")
    monkeypatch.setattr(checks, "identify", lambda _config: pytest.fail("asked"))
    assert checks.profile_standing(Devices()).state == "missing"


@pytest.mark.parametrize(
    ("limits", "state"), [(None, "ok"), ((1024, 1 << 20), "ok"), ((1024, 1024), "warn"), ((256, 4096), "ok")]
)
def test_too_few_open_files_are_told(limits: tuple[int, int] | None, state: str) -> None:
    check = checks.open_files(limits)
    assert check.state == state
    assert limits is None or str(limits[1]) in check.detail
    assert ("ulimit" in check.advice) == (state == "warn")


def test_vision_without_a_decoder_or_library_is_a_gap_and_no_failure(endpoint: str) -> None:
    assert found(GOOD, Devices(), endpoint)["vision"].state == "ok"
    poor = {**GOOD["vision"], "formats": ["PNG", "BMP"]}
    check = found({**GOOD, "vision": poor}, Devices(), endpoint)["vision"]
    assert check.state == "warn"
    assert "JPEG, WEBP" in check.advice
    check = found({**GOOD, "vision": {"error": "no libmtmd"}}, Devices(), endpoint)["vision"]
    assert (check.state, "no libmtmd" in check.detail) == ("warn", True)


def test_the_vision_probe_finds_what_this_machine_has() -> None:
    answer = checks.run_probe("vision")
    assert set(answer["formats"]) >= {"PNG", "JPEG", "WEBP"}
