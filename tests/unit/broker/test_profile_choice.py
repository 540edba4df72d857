"""Which profile plans are made by, and what is said where there is none that can be used."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from xlm.protocol.link import DeviceConfig
from xlm_broker.planner.sharding.profile import KernelPoint, ProfileKey
from xlm_broker.planner.wire import A_MODEL
from xlm_broker.profile_choice import profile_of
from xlm_broker.profile_store import ProfileWriter

KEY = ProfileKey(cpu="a cpu", n_cores=4, isa="AVX2", gpu="a card", driver="1.2", ggml="0.25.3")
HERE = {name: str(value) for name, value in asdict(KEY).items()}
POINT = KernelPoint("cpu", "MUL_MAT", "Q8_0", (1024, 1024, 0, 0), 1, 4, "idle", 100_000)
CUDA, SIM, NONE = DeviceConfig(kind="cuda"), DeviceConfig(kind="sim"), DeviceConfig(kind="none")


def written(path: Path, *, finish: bool = True, quick: bool = True) -> Path:
    writer = ProfileWriter(path, KEY, quick=quick)
    writer.add(kernels=[POINT])
    if finish:
        writer.finish()
    writer.close()
    return path


def test_a_profile_of_this_machine(tmp_path: Path) -> None:
    profile, standing = profile_of(written(tmp_path / "p"), CUDA, HERE)
    assert profile is not None
    assert profile.kernels == (POINT,)
    assert (standing.state, standing.text, standing.advice) == ("measured", "a quick profile of this machine", "")


def test_none_offers_a_quick_one(tmp_path: Path) -> None:
    profile, standing = profile_of(tmp_path / "none", CUDA, HERE)
    assert profile is None
    assert (standing.state, standing.code) == ("missing", "profile_missing")
    assert "careful guesses" in standing.text
    assert f"xlm profile --quick --model {A_MODEL}" in standing.advice


def test_a_corrupt_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(b"no database at all, whatever it is")
    profile, standing = profile_of(tmp_path / "p", CUDA, HERE)
    assert profile is None
    assert (standing.state, standing.code) == ("corrupt", "profile_corrupt")
    assert "--fresh" in standing.advice


@pytest.mark.parametrize(("field", "value"), [("driver", "2.0"), ("ggml", "0.26"), ("cpu", "another"), ("gpu", "no")])
def test_another_driver_ggml_cpu_or_card_is_named(tmp_path: Path, field: str, value: str) -> None:
    profile, standing = profile_of(written(tmp_path / "p"), CUDA, HERE | {field: value})
    assert profile is None
    assert (standing.state, standing.code) == ("stale", "profile_stale")
    assert f"{field}: {value} here, {getattr(KEY, field)} in the profile" in standing.text


@pytest.mark.parametrize("device", [SIM, NONE])
def test_without_a_real_card_only_the_cpu_must_be_the_same(tmp_path: Path, device: DeviceConfig) -> None:
    path = written(tmp_path / "p")
    profile, standing = profile_of(path, device, HERE | {"gpu": "xlm virtual GPU", "driver": "exact"})
    assert profile is not None
    assert standing.state == "measured"
    assert profile_of(path, device, HERE | {"ggml": "0.26"})[0] is None


def test_an_interrupted_one_is_used_and_named(tmp_path: Path) -> None:
    profile, standing = profile_of(written(tmp_path / "p", finish=False), CUDA, HERE)
    assert profile is not None
    assert standing.state == "partly"


@pytest.mark.parametrize("identity", [{}, {**HERE, "n_cores": "many"}])
def test_a_machine_that_cannot_be_told_is_not_taken_for_another(tmp_path: Path, identity: dict[str, str]) -> None:
    profile, standing = profile_of(written(tmp_path / "p"), CUDA, identity)
    assert profile is None
    assert standing.state == "missing"
