"""The GPU kit, all of it but the CUDA calls: packed, and run on the virtual GPU with the libraries of this checkout."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from xlm_native._load import DEVICE, SIM, library_path, llama_library_dir

ROOT = Path(__file__).resolve().parents[2]
KIT = ROOT / "build" / "gpu-kit"
ARCHIVE = KIT / "xlm-gpu-kit.tar.gz"
OUT = ROOT / "build" / "gpu-check-test"  # kept: a second run compiles nothing
MAX_BYTES = 60 * 1024 * 1024
# Only guards against hanging: what is asserted does not depend on how long it took.
MINUTES = "20"
pytestmark = pytest.mark.timeout(1500)


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # cmake and ninja of the virtual environment come first, as they do for `make setup`.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    env = {**os.environ, "PATH": path, **environment}
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=1400, check=False)


@pytest.fixture(scope="module")
def archive() -> Path:
    done = run(sys.executable, str(ROOT / "tests" / "gpu" / "pack.py"), str(KIT))
    assert done.returncode == 0, done.stderr
    return ARCHIVE


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both native libraries in one folder; fails with what to do when they are not built."""
    folder = tmp_path_factory.mktemp("native")
    for name in (DEVICE, SIM):
        path = library_path(name)  # raises, and says `make setup`
        (folder / path.name).symlink_to(path)
    return folder


@pytest.fixture(scope="module")
def result(archive: Path, libraries: Path) -> dict[str, Any]:
    report = OUT / "xlm-gpu-check.json"
    report.unlink(missing_ok=True)
    script = str(ROOT / "tests" / "gpu" / "run.sh")
    done = run(
        *("sh", script, "--device", "sim", "--quick", "--minutes", MINUTES, "--no-group-limits", "--out", str(OUT)),
        XLM_LLAMA_LIB_DIR=str(llama_library_dir()),
        XLM_NATIVE_LIB_DIR=str(libraries),
    )
    assert report.is_file(), f"no report:\n{done.stdout}{done.stderr}"
    found: dict[str, Any] = json.loads(report.read_text())
    found["summary"] = report.with_suffix(".md").read_text()
    return found


def checks(result: dict[str, Any], verdict: str) -> dict[str, dict[str, Any]]:
    return {c["check"]: c for group in result["groups"] for c in group["checks"] if c["verdict"] == verdict}


def test_archive_holds_what_is_built_there_and_is_small(archive: Path) -> None:
    with tarfile.open(archive) as tar:
        names = {name.removeprefix("xlm-gpu-kit/") for name in tar.getnames()}
        assert tar.getmember("xlm-gpu-kit/tests/gpu/run.sh").mode & 0o100
    parts = ("CMakeLists.txt", "src/llama.cpp", "ggml/src/ggml-cuda/ggml-cuda.cu", "vendor/nlohmann/json.hpp")
    llama = {f"vendor/llama.cpp/{name}" for name in parts}
    ours = {"native/CMakeLists.txt", "native/include/xlm/xlm_device.h", "tests/gpu/src/main.cpp", "LICENSE"}
    assert llama | ours <= names
    assert archive.stat().st_size <= MAX_BYTES


def test_archive_is_the_same_for_the_same_input(archive: Path, tmp_path: Path) -> None:
    done = run(sys.executable, str(ROOT / "tests" / "gpu" / "pack.py"), str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / archive.name).read_bytes() == archive.read_bytes()


def test_nothing_fails_on_the_virtual_gpu(result: dict[str, Any]) -> None:
    bad = {name: check for verdict in ("fail", "error") for name, check in checks(result, verdict).items()}
    assert not bad, json.dumps(bad, indent=1)
    assert result["failure"] is None


def test_every_group_ran_to_its_end(result: dict[str, Any]) -> None:
    assert [group["group"] for group in result["groups"]] == [
        *("environment", "lossless", "kv", "changes", "reclaim", "speed", "bandwidth")
    ]
    assert not checks(result, "not_run")


def test_losslessness_is_bit_for_bit_here(result: dict[str, Any]) -> None:
    passed = checks(result, "pass")
    for model in ("dense-q4_0", "dense-q8_0", "dense-f16", "dense-q4_K", "experts-q4_0"):
        assert passed[f"{model}-quick: streamed = resident, bit for bit"]["bytes_streamed"] > 0
        assert passed[f"{model}-quick: resident, within the bound of the CPU"]["bits_equal"]
    changed = passed["tokens under budget changes = those of the fixed schedule"]
    assert changed["changes"] > 50
    assert changed["evictions"] > 0


def test_reclaims_are_measured(result: dict[str, Any]) -> None:
    passed = checks(result, "pass")
    for what in ("decode", "prefill"):
        found = passed[f"reclaim in {what}"]
        assert found["request_to_release"]["n"] == found["asked"] == 24
        assert passed[f"reclaim in {what}: released memory can be allocated"]["tried"] > 0


def test_speed_table_and_summary_are_there(result: dict[str, Any]) -> None:
    notes = checks(result, "note")
    for row in ("stock, all on the device", "XLM0, all resident", "CPU only"):
        assert notes[f"tokens/s: {row}"]["decode_tokens_s"] > 0
    assert notes["overlap: everything streamed"]["bytes_streamed_per_step"] > 0
    assert "## Tokens per second" in result["summary"]
    assert "the virtual GPU computes with the CPU" in result["summary"]


def test_a_crash_keeps_what_was_found_and_the_rest_goes_on(libraries: Path, tmp_path: Path) -> None:
    """A runner that dies by a signal after its first line."""
    runner = tmp_path / "runner"
    runner.write_text(
        '#!/bin/sh\nfor a in "$@"; do case $a in out=*) o=${a#out=};; esac; done\n'
        """echo '{"group":"g","check":"before the crash","verdict":"pass"}' >> "$o"; echo boom >&2; kill -SEGV $$\n"""
    )
    runner.chmod(0o755)
    sys.path.insert(0, str(ROOT / "tests" / "gpu" / "kit"))
    build: Any = importlib.import_module("build")
    driver: Any = importlib.import_module("driver")
    arguments = argparse.Namespace(device="sim", out=tmp_path, minutes=20.0, quick=True, jobs=1, no_group_limits=True)
    under_test = driver.Driver(arguments)
    under_test.build = lambda: build.Libraries(tmp_path, libraries, runner, libraries / "libggml-xlm-sim.so")
    assert under_test.run() == 1
    found = json.loads((tmp_path / "xlm-gpu-check.json").read_text())
    assert len(found["groups"]) == len(driver.GROUPS)
    assert "before the crash" in checks(found, "pass")
    assert "SIGSEGV" in checks(found, "error")["group lossless"]["why"]
    assert "boom" in checks(found, "error")["group lossless"]["why"]


def test_without_a_card_the_report_says_so(libraries: Path, tmp_path: Path) -> None:
    script = str(ROOT / "tests" / "gpu" / "run.sh")
    nowhere = tmp_path / "empty"
    nowhere.mkdir()
    (nowhere / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    (nowhere / "nvidia-smi").chmod(0o755)
    path = os.pathsep.join([str(nowhere), str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = run(
        *("sh", script, "--device", "cuda", "--quick", "--out", str(OUT)),
        PATH=path,
        XLM_LLAMA_LIB_DIR=str(llama_library_dir()),
        XLM_NATIVE_LIB_DIR=str(libraries),
    )
    assert done.returncode == 1
    found = json.loads((OUT / "xlm-gpu-check.json").read_text())
    assert "nvidia-smi" in found["failure"]
    assert len(checks(found, "not_run")) == 7
