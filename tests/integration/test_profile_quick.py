"""``xlm profile --quick`` as a process, on real kernels and the virtual GPU in modelled mode.

Times are only held against what the virtual GPU was told to take at least; nothing depends on how fast this machine is.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.processes import ended
from xlm.errors import ProfileError
from xlm_broker.planner.sharding.profile import KernelPoint, MachineProfile
from xlm_broker.profile_store import MAX_FILE_BYTES, load_profile

FLOPS_PER_S, MEMORY_BYTES_PER_S, LINK_BYTES_PER_S = 1e13, 3e11, 12e9
DEVICE = (
    "--device", "sim", "--sim-link", "12", "--sim-set", "modelled=1",
    "--sim-set", f"compute_flops_per_s={FLOPS_PER_S}", "--sim-set", f"memory_bytes_per_s={MEMORY_BYTES_PER_S}",
)  # fmt: skip
ENOUGH_POINTS = 25


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "xlm_broker.cli.tools", "profile", *arguments]


def xlm_profile(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, encoding="utf-8", timeout=1200, check=False
    )


@dataclass(frozen=True)
class Measured:
    path: Path
    interrupted: MachineProfile
    answer: dict[str, Any]

    @property
    def profile(self) -> MachineProfile:
        return load_profile(self.path)


def stored(path: Path) -> int:
    try:
        return len(load_profile(path).kernels)
    except ProfileError:
        return 0


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """Measured in two goes: the first is killed on the way."""
    path = tmp_path_factory.mktemp("profile") / "p.sqlite"
    arguments = ("--quick", "--seconds", "0", *DEVICE, "--model", "demo", "--out", str(path))
    first = subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while stored(path) < ENOUGH_POINTS and first.poll() is None:
        time.sleep(0.05)
    children = psutil.Process(first.pid).children(recursive=True) if first.poll() is None else []
    os.kill(first.pid, signal.SIGTERM)
    first.wait(600)
    psutil.wait_procs(children, timeout=600)
    assert all(ended(child) for child in children)
    interrupted = load_profile(path)
    done = xlm_profile(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return Measured(path, interrupted, json.loads(done.stdout))


def test_what_was_measured_before_the_interruption_is_kept(measured: Measured) -> None:
    assert len(measured.interrupted.kernels) >= ENOUGH_POINTS
    assert not measured.interrupted.complete
    again = set(measured.profile.kernels)
    kept = [point for point in measured.interrupted.kernels if point in again]
    assert len(kept) >= ENOUGH_POINTS - 3  # an idle point is measured again beside its load
    assert measured.answer["measured"] < measured.answer["kernels"] + measured.answer["links"]


def test_the_file_is_small_and_says_what_it_is(measured: Measured) -> None:
    found = measured.profile
    assert found.quick
    assert found.complete
    assert measured.path.stat().st_size < MAX_FILE_BYTES
    assert found.key.gpu
    assert found.key.driver.startswith("modelled,")
    assert "." in found.key.ggml
    assert found.notes["threads"] == str(found.key.n_cores)
    assert found.notes["device_total_bytes"] == str(256 << 20)
    assert "configured link" in found.notes["link"]
    assert measured.answer["skipped"] == []


def test_the_models_own_kernels_are_there(measured: Measured) -> None:
    own = {(p.device, p.op, p.type, p.shape) for p in measured.profile.kernels}
    for device in ("cpu", "gpu"):
        assert (device, "MUL_MAT", "Q4_1", (576, 1536, 0, 0)) in own
        assert (device, "MUL_MAT", "Q8_0", (576, 49152, 0, 0)) in own
        assert (device, "FLASH_ATTN_EXT", "F16", (64, 9, 3, 1024)) in own


def least_ns(point: KernelPoint) -> float:
    """What the virtual GPU takes at least: the flops of a product at its peak."""
    k, n, *_ = point.shape
    return 1e9 * 2 * k * n * point.tokens / FLOPS_PER_S


def test_the_virtual_gpu_takes_what_it_was_told_to(measured: Measured) -> None:
    products = [p for p in measured.profile.kernels if p.device == "gpu" and p.op == "MUL_MAT"]
    assert len(products) > 20
    assert all(p.threads == 0 and p.load == "idle" for p in products)
    assert all(p.ns >= 0.99 * least_ns(p) for p in products)
    copies = [p for p in measured.profile.links if p.cpu_threads == 0]
    assert {(p.direction, p.memory) for p in copies} == {(d, m) for d in ("h2d", "d2h") for m in ("pinned", "pageable")}
    assert all(p.ns >= 0.99 * 1e9 * p.size_bytes / LINK_BYTES_PER_S for p in copies)


def test_under_load_both_ways(measured: Measured) -> None:
    assert measured.answer["left_out"] == 0
    found = measured.profile
    loaded = {(p.op, p.load) for p in found.kernels if p.load != "idle"}
    assert loaded >= {(op, load) for op in ("MUL_MAT", "FLASH_ATTN_EXT") for load in ("h2d", "d2h", "both")}
    idle = {(p.device, p.op, p.type, p.shape, p.tokens, p.threads) for p in found.kernels if p.load == "idle"}
    for point in found.kernels:  # a time under load means something beside the idle one only
        assert (point.device, point.op, point.type, point.shape, point.tokens, point.threads) in idle
    assert {p.direction for p in found.links if p.cpu_threads == found.key.n_cores} == {"h2d", "d2h"}


def test_check_accepts_it_here_and_names_what_differs_elsewhere(measured: Measured) -> None:
    good = xlm_profile("--check", *DEVICE, "--out", str(measured.path), "--json")
    assert good.returncode == 0, good.stderr
    assert json.loads(good.stdout)["quick"] is True
    other = xlm_profile("--check", "--device", "cpu", "--out", str(measured.path))
    assert other.returncode == 2
    assert "of another machine" in other.stderr
    assert "gpu:" in other.stderr
    assert "Traceback" not in other.stderr


def test_missing_profiles_and_models_are_typed_errors(tmp_path: Path) -> None:
    missing = xlm_profile("--check", "--device", "cpu", "--out", str(tmp_path / "none.sqlite"))
    assert missing.returncode == 2
    assert "there is no profile" in missing.stderr
    assert "xlm profile" in missing.stderr
    no_model = xlm_profile(
        "--quick", "--device", "cpu", "--model", str(tmp_path / "m.gguf"), "--out", str(tmp_path / "p")
    )
    assert no_model.returncode == 4
    assert "m.gguf" in no_model.stderr
    assert not (tmp_path / "p").exists()
