"""Commands in the docs can be typed as they stand, in the folder of a checkout."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = ["README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]
_BARE = re.compile(r"^ *(?:until |\$ )?(?:xlm-broker|xlm) ")


def test_the_pages_are_found_and_a_bare_command_is_known() -> None:
    assert {"README.md", "docs/plan.md", "docs/profile.md"} <= set(PAGES)
    assert _BARE.search("xlm plan --model m.gguf")
    assert not _BARE.search(".venv/bin/xlm plan --model m.gguf")


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_blocks_have_their_path(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^ *```(?:sh|bash)?\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines() if "──" not in line]  # but for drawings
    assert [line for line in lines if _BARE.search(line)] == []
