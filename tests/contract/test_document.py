"""docs/protocol.md says what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from xlm.errors import CODES
from xlm.protocol import codec, document

ROOT = Path(__file__).resolve().parents[2]


def test_the_document_is_up_to_date() -> None:
    assert document.main(["--check", str(ROOT / "docs" / "protocol.md")]) == 0


def test_drift_is_found_and_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "protocol.md"
    assert document.main(["--check", str(file)]) == 1
    assert document.main([str(file)]) == 0
    assert document.main(["--check", str(file)]) == 0
    file.write_text(file.read_text(encoding="utf-8") + "x", encoding="utf-8")
    assert document.main(["--check", str(file)]) == 1
    assert "out of date" in capsys.readouterr().err


def test_it_names_every_message_and_every_code() -> None:
    text = document.render()
    for name in codec.REQUEST_TYPES | codec.REPLY_TYPES:
        assert f"### `{name}`" in text
    for code in CODES:
        assert f"| `{code}` |" in text
    assert "{{" not in text


def test_limits_and_comments_come_from_the_definition() -> None:
    text = document.render()
    assert "| `cap_bytes` | integer ≥ 0 ≤ 2^62 - 1 or nil | required |  |" in text
    assert "| `used_bytes` | integer ≥ 0 ≤ 2^62 - 1 | required | device memory the model holds, by our ledger |" in text
