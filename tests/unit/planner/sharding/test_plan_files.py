"""Models and machines given as numbers: the examples of docs/plan.md plan, and what is wrong is said in one line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.unit.planner.sharding import examples
from xlm.errors import RequestError, ShapeError
from xlm_broker.cli.common import exit_code
from xlm_broker.cli.plan import plan
from xlm_broker.planner.sharding.hardware import CARDS, machine_from_row
from xlm_broker.planner.sharding.shapes import FIELDS, shape_from_entry

DOCUMENT = (Path(__file__).parents[4] / "docs" / "plan.md").read_text(encoding="utf-8")
APP = typer.Typer()
APP.command()(plan)


def example(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)
    assert found is not None
    return found[1]


MODELS: dict[str, dict[str, Any]] = json.loads(example("json"))
COLUMNS, ROW = (line.split(",") for line in example("csv").splitlines())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "models.json").write_text(example("json"), encoding="utf-8")
    (tmp_path / "machines.csv").write_text(example("csv"), encoding="utf-8")
    return tmp_path


def arguments(folder: Path, *more: str, model: str = "tavern", machine: str = "attic") -> list[str]:
    shape, row = f"{folder / 'models.json'}#{model}", f"{folder / 'machines.csv'}#{machine}"
    return ["--shape", shape, "--machine", row, "--budget", "1GiB", "--context", "1024", *more]


def planned(given: list[str]) -> dict[str, Any]:
    result = CliRunner().invoke(APP, [*given, "--json"])
    assert result.exception is None, result.exception
    return dict(json.loads(result.output))


def refused(given: list[str]) -> RequestError:
    error = CliRunner().invoke(APP, given).exception
    assert isinstance(error, RequestError), error
    assert "\n" not in error.message
    return error


@pytest.mark.parametrize("model", list(MODELS))
def test_the_documents_examples_plan(folder: Path, model: str) -> None:
    found = planned(arguments(folder, model=model))
    assert (found["model"], found["machine"], found["cpu_threads"], found["notes"]) == (model, "attic", 6, [])
    assert found["decode_tps"] > 0
    assert not any("ignored" in note for note in found["fallbacks"])


def test_the_document_names_every_field_column_and_card() -> None:
    tables = "".join(line.split("|")[1] for line in DOCUMENT.splitlines() if line.startswith("| `"))
    for name in (*FIELDS, *COLUMNS):
        assert f"`{name}`" in tables, name
    cards = DOCUMENT.split("Known cards: ", 1)[1].split(".", 1)[0].split(", ")
    assert sorted(cards) == sorted(CARDS)


@pytest.mark.parametrize("field", [f for f in MODELS["tavern"] if f.startswith("n_") and f != "n_ctx_train"])
def test_a_missing_field_is_named(field: str) -> None:
    entry = {name: value for name, value in MODELS["tavern"].items() if name != field}
    with pytest.raises(ShapeError, match=f"^{field} is missing"):
        shape_from_entry("m", entry)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"n_layer": -1}, "n_layer = -1 is no sensible count"),
        ({"n_embd": float("nan")}, "n_embd = nan is no sensible count"),
        ({"n_head_kv": 5}, "16 heads cannot share 5 KV heads evenly"),
        ({"n_expert": 4, "n_expert_used": 8, "n_ff_expert": 64}, "8 experts used of 4"),
        ({"n_ctx_train": "8k"}, "n_ctx_train = '8k' is no sensible count"),
        ({"gated_ffn": "no"}, "gated_ffn = 'no' is neither true nor false"),
        ({"file_gib": 3.0}, "tavern: these shapes make 0.8 GiB, the file is said to have 3.0 GiB"),
        ({"file_gib": float("nan")}, "file_gib = nan cannot be"),
        ({"file_gib": float("inf")}, "file_gib = inf cannot be"),
        ({"file_gib": -1}, "file_gib = -1 cannot be"),
        ({"file_gib": "0.8"}, "file_gib = '0.8' cannot be"),
        ({"weights": 4}, "weights = 4 is no text"),
        ({"weights": "Q9_X"}, "weights = 'Q9_X' is no type of ggml: give one, or file_gib for the size of a weight"),
        ({"weights": "Q4_K (output Q9_X)"}, "weights = 'Q4_K (output Q9_X)' is no type of ggml"),
    ],
)
def test_impossible_numbers_of_a_model(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ShapeError) as caught:
        shape_from_entry("tavern", MODELS["tavern"] | change)
    assert caught.value.message.startswith(said)
    assert caught.value.code == "shape_invalid"


def test_what_is_assumed_of_a_model_is_named() -> None:
    unknown = shape_from_entry("m", MODELS["tavern"] | {"weights": "Q9_X", "file_gib": 0.8})
    assert any("unknown quantisation 'Q9_X'" in note for note in unknown.fallbacks)
    assert any("every weight as Q4_K" in note for note in shape_from_entry("m", MODELS["tavern"] | MIX).fallbacks)
    odd = shape_from_entry("m", MODELS["tavern"] | {"n_heads": 3, "rope": 1})
    assert "ignored, as of no known name: n_heads, rope" in odd.fallbacks
    assert shape_from_entry("m", MODELS["tavern"] | {"n_expert": 0}).n_ff == 5632


MIX = {"weights": "Q4_K mix"}


@pytest.mark.parametrize("column", [c for c in COLUMNS if c not in ("machine", "cpu", "gpu")])
@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "is missing"), ("", "is missing"), ("nan", "= nan cannot be"), ("-2", "= -2.0 cannot be"),
     ("0", "= 0.0 cannot be"), ("inf", "= inf cannot be"), ("much", "= 'much' is no number")],
)  # fmt: skip
def test_impossible_numbers_of_a_machine(column: str, text: str | None, said: str) -> None:
    row: dict[str, Any] = dict(zip(COLUMNS, ROW, strict=True)) | {column: text}
    with pytest.raises(ShapeError) as caught:
        machine_from_row(row)
    assert (caught.value.message, caught.value.code) == (f"{column} {said}", "machine_invalid")


def test_threads_are_whole_and_a_card_is_known() -> None:
    row = dict(zip(COLUMNS, ROW, strict=True))
    with pytest.raises(ShapeError, match=r"cpu_threads_used = 0.5 is no whole number"):
        machine_from_row(row | {"cpu_threads_used": "0.5"})
    for card in ("Voodoo 2", None):
        with pytest.raises(ShapeError, match="no specification is known") as caught:
            machine_from_row(row | {"gpu": card})
        assert "RTX 3060" in caught.value.hint


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("models.json", b"{", "is not JSON: "),
        ("models.json", b"\xff", "is not UTF-8"),
        ("models.json", b"[1]", "is no object of models by name"),
        ("models.json", b'{"tavern": 3}', "is no object"),
        ("models.json", b"{}", "has no model 'tavern'"),
        ("machines.csv", b"", "has no column 'machine'"),
        ("machines.csv", b"machine;gpu\nattic;RTX 3060\n", "has no column 'machine'"),
        ("machines.csv", b"gpu,machine\nRTX 3060,\xff\n", "is not UTF-8"),
        ("machines.csv", b"machine,gpu\ncellar,RTX 3060\n", "has no machine 'attic'"),
        ("machines.csv", b"machine,gpu\nattic,RTX 3060\n", "ram_bandwidth_gb_s is missing"),
        ("machines.csv", b"machine,gpu\nattic\n", "no specification is known of the card ''"),
    ],
)
def test_a_file_of_another_kind(folder: Path, file: str, content: bytes, said: str) -> None:
    (folder / file).write_bytes(content)
    error = refused(arguments(folder))
    assert said in error.message
    assert error.code == ("shape_invalid" if file == "models.json" else "machine_invalid")
    assert error.hint


@pytest.mark.parametrize("file", ["models.json", "machines.csv"])
def test_a_file_that_is_not_there(folder: Path, file: str) -> None:
    """Bad input, like any other of these."""
    (folder / file).unlink()
    error = refused(arguments(folder))
    assert error.message == f"{folder / file}: No such file or directory"
    assert exit_code(error) == 2


def test_a_spreadsheets_mark_at_the_beginning_is_no_part_of_a_name(folder: Path) -> None:
    for file in ("models.json", "machines.csv"):
        (folder / file).write_bytes(b"\xef\xbb\xbf" + (folder / file).read_bytes())
    assert planned(arguments(folder))["machine"] == "attic"


def test_other_names_are_listed(folder: Path) -> None:
    assert "tavern, tavern-moe" in refused(arguments(folder, model="inn")).hint
    assert "attic" in refused(arguments(folder, machine="cellar")).hint
    assert "FILE#NAME" in refused(["--shape", "models.json", "--budget", "1GiB"]).message


# -- notes -----------------------------------------------------------------------------


def test_more_than_there_is_is_planned_and_noted(folder: Path) -> None:
    above = [*arguments(folder)[:4], "--budget", "13GiB", "--context", "16384"]
    found = planned(above)
    assert [note["code"] for note in found["notes"]] == ["budget_above_device", "context_above_training"]
    assert (found["budget_bytes"], found["context"]) == (13 << 30, 16384)
    text = CliRunner().invoke(APP, above).output
    assert "note budget_above_device: the budget of 13.00 GiB is more than the card's 12.00 GiB" in text
    assert "note context_above_training: the context of 16384 is more than the 8192" in text
    assert "`budget_above_device`" in DOCUMENT
    assert "`context_above_training`" in DOCUMENT


def test_what_there_is_is_not_noted(folder: Path) -> None:
    exactly = [*arguments(folder)[:4], "--budget", "12GiB", "--context", "8192"]
    assert planned(exactly)["notes"] == []
    assert "note " not in CliRunner().invoke(APP, exactly).output
    unsaid = MODELS["tavern"] | examples.small(examples.DENSE, 2) | {"n_ctx_train": 1}
    del unsaid["n_ctx_train"]
    (folder / "models.json").write_text(json.dumps({"tavern": unsaid}))
    assert planned(exactly)["notes"] == []
