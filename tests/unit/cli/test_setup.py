"""What .ci/setup.py does again, and what it does not."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, list[str]]:
    """The script with all its steps empty, and the extras that it would have installed the project with."""
    spec = spec_from_file_location("xlm_setup", ROOT / ".ci/setup.py")
    assert spec is not None
    assert spec.loader is not None
    script, extras = module_from_spec(spec), []
    spec.loader.exec_module(script)
    for name in ("make_venv", "install_llama", "install_model", "fetch_headers", "fetch_vulkan"):
        monkeypatch.setattr(script, name, lambda: None)
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    for name, value in {"LOGS": tmp_path, "FLAGS_USED": tmp_path / "llama.flags", "PYTHON": python}.items():
        monkeypatch.setattr(script, name, value)
    monkeypatch.setattr(script, "missing_packages", lambda _for_test: [])
    monkeypatch.setattr(script, "native_inputs", list)
    monkeypatch.setattr(script, "install_project", extras.append)
    return script, extras


def set_up(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["setup.py", *words])
    script.main()


@pytest.mark.parametrize(
    ("order", "wanted"),
    [
        (("demo", "demo"), ["picture"]),
        (("test", "demo", "test"), ["picture,dev"]),  # a set-up for tests has all that the demo needs
        (("demo", "test", "demo"), ["picture", "picture,dev"]),
    ],
)
def test_nothing_is_built_twice(
    installed: tuple[ModuleType, list[str]],
    monkeypatch: pytest.MonkeyPatch,
    order: tuple[str, ...],
    wanted: list[str],
) -> None:
    script, extras = installed
    for purpose in order:
        set_up(script, monkeypatch, "--for", purpose)
    assert extras == wanted


def test_changed_sources_are_built_for_the_demo_alone(
    installed: tuple[ModuleType, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    script, extras = installed
    set_up(script, monkeypatch, "--for", "test")
    monkeypatch.setattr(script, "native_inputs", lambda: [ROOT / "pyproject.toml"])
    set_up(script, monkeypatch, "--for", "demo")
    assert extras == ["picture,dev", "picture"]
