"""The samples and the quick start's script, run as a user runs them, against the fake broker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import xlm
from xlm.protocol import messages
from xlm.testing import FakeBroker

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(answer="Aye, I can. 🔨") as broker:
        yield broker


Run = Callable[..., str]


@pytest.fixture
def run(broker: FakeBroker) -> Run:
    def run(script: Path, *arguments: str, lines: str = "") -> str:
        package = str(Path(xlm.__file__).resolve().parents[1])
        environment = {**os.environ, "PYTHONPATH": package, "PYTHONUTF8": "1", "XLM_ENDPOINT": broker.endpoint}
        done = subprocess.run(
            [sys.executable, str(script), *arguments],
            input=lines,
            capture_output=True,
            text=True,
            encoding="utf-8",
            env=environment,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_the_quick_start_script(broker: FakeBroker, run: Run, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "quickstart-python.md").read_text(encoding="utf-8")
    script = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    assert len([line for line in script.splitlines() if line]) == 10
    (tmp_path / "npc.py").write_text(script, encoding="utf-8")
    shown = run(tmp_path / "npc.py")
    assert "Aye, I can. 🔨\n4 tokens, stop" in shown
    assert "budget in force: 96MiB" in shown
    assert broker.wait_for(messages.SetBudget).cap_bytes == 96 << 20


def test_dialogue(broker: FakeBroker, run: Run) -> None:
    lines = "Hello\n/budget 64MiB\n/budget much\nStill there?\n\n"
    shown = run(ROOT / "samples" / "python" / "npc_dialogue.py", broker.endpoint, lines=lines)
    assert shown.count("Greta: Aye, I can. 🔨") == 2
    assert "budget 64MiB, used 64MiB" in shown
    assert "'much' is not a size" in shown


def test_actions(broker: FakeBroker, run: Run) -> None:
    broker.answer = ['{"action": "refuse", "mood": "wary",', ' "says": "Halt! 🛡"}']
    shown = run(ROOT / "samples" / "python" / "npc_actions.py", broker.endpoint)
    assert shown.count("-> refuse (wary): Halt! 🛡") == 3
    assert "open_gate" in broker.wait_for(messages.Say).sampling.json_schema
