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


PAGES = ("README.md", "docs/quickstart-python.md")


def first_script(page: str) -> str:
    text = (ROOT / page).read_text(encoding="utf-8")
    return str(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0])


def test_the_script_of_the_first_page_is_that_of_the_quick_start() -> None:
    assert first_script(PAGES[0]) == first_script(PAGES[1])


def test_the_script_of_the_first_page(broker: FakeBroker, run: Run, tmp_path: Path) -> None:
    broker.answer = [f"{number} " for number in range(20)]
    script = first_script(PAGES[0])
    assert len([line for line in script.splitlines() if line]) <= 10
    (tmp_path / "greta.py").write_text(script, encoding="utf-8")
    shown = run(tmp_path / "greta.py")
    assert re.fullmatch(r"0 1 .* 10  \[down to 32 MiB in [\d.]+ ms\]11 12 .* 19 \n", shown)
    caps = [request.cap_bytes for request in broker.requests if isinstance(request, messages.SetBudget)]
    assert caps == [160 << 20, 32 << 20]


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
