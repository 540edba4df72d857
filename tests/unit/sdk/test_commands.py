"""Hints name commands as they are typed here: bare where the shell finds them, else by path."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from xlm import _commands
from xlm.errors import BrokerError


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment's folder of scripts that is not on PATH."""
    folder = tmp_path / "env" / "bin"
    folder.mkdir(parents=True)
    for name in ("xlm", "xlm-broker"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(folder) if name == "scripts" else "")
    monkeypatch.setenv("PATH", str(tmp_path))
    return folder


def test_a_command_on_the_path_keeps_its_name(scripts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(scripts))
    assert _commands.to_type("run `xlm doctor`") == "run `xlm doctor`"


def test_a_command_beside_the_interpreter_is_named_by_its_path(scripts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _commands.to_type("run `xlm doctor`") == f"run `{scripts}/xlm doctor`"
    assert _commands.to_type("see xlm-broker --help") == f"see {scripts}/xlm-broker --help"
    monkeypatch.chdir(scripts.parent.parent)
    assert _commands.to_type("start `xlm-broker --model m`, or `xlm chat`") == (
        "start `env/bin/xlm-broker --model m`, or `env/bin/xlm chat`"
    )
    assert "env/bin/xlm-broker --model demo" in str(BrokerError("nobody answers", code="not_ready"))


def test_a_path_with_a_space_is_quoted(scripts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spaced = scripts.parent / "my bin"
    scripts.rename(spaced)
    monkeypatch.setattr(sysconfig, "get_path", lambda _name: str(spaced))
    assert _commands.command("xlm") == f"'{spaced}/xlm'"


def test_without_such_a_script_the_name_has_to_do(scripts: Path) -> None:
    for script in scripts.iterdir():
        script.unlink()
    assert _commands.to_type("run `xlm doctor`") == "run `xlm doctor`"


@pytest.mark.parametrize("text", ["it is no xlm-broker", "pip install 'xlm[demo]'", "/opt/xlm-broker --help", "xlm"])
def test_what_is_no_command_line_stays(scripts: Path, text: str) -> None:
    assert _commands.to_type(text) == text
