"""`xlm plan` on facts and on a real file's header."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from xlm.errors import BudgetError, ModelError, ProfileError, RequestError, ShapeError
from xlm_broker.cli.plan import plan

from . import examples

gguf = pytest.importorskip("gguf")
APP = typer.Typer()
APP.command()(plan)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "models.json").write_text(json.dumps({"dense": examples.DENSE, "odd": 3}))
    columns = list(examples.DESKTOP)
    lines = [",".join(columns), ",".join(str(examples.DESKTOP[c]) for c in columns)]
    (tmp_path / "machines.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def shape_arguments(folder: Path, *more: str, budget: str = "4GiB") -> list[str]:
    shape, machine = f"{folder / 'models.json'}#dense", f"{folder / 'machines.csv'}#desktop"
    return ["--shape", shape, "--machine", machine, "--budget", budget, "--context", "1024", *more]


def output(arguments: list[str]) -> str:
    result = CliRunner().invoke(APP, arguments)
    assert result.exception is None, result.exception
    return result.output


def failure(arguments: list[str]) -> BaseException:
    result = CliRunner().invoke(APP, arguments)
    assert result.exception is not None
    return result.exception


def test_json(folder: Path) -> None:
    found: dict[str, Any] = json.loads(output(shape_arguments(folder, "--json", "--explain", "--curve", "-")))
    assert found["decode_tps"] > 1
    assert found["ttft_ms"] > 1
    assert [tier["max_tokens"] for tier in found["tiers"]] == [1, 4, 16, 64, 256, 1024]
    used = found["resident_bytes"] + found["ring_bytes"] + found["scratch_bytes"]
    assert used <= found["budget_bytes"] == 4 << 30
    for tier in found["tiers"]:
        parts = ("compute_cpu", "compute_device", "wait", "hops", "slowed")
        assert tier["step"] == pytest.approx(sum(tier[p] for p in parts) + 0.3, rel=1e-3)  # 0.3: outside the graph
        assert sum(n for kind in tier["placement"].values() for n in kind.values()) == 81
    assert len(found["sublayers"]) == 81
    rates = [point["decode_tps"] for point in found["curve"]]
    assert rates[-1] > rates[0]


def test_text(folder: Path) -> None:
    text = output(shape_arguments(folder, "--explain"))
    for word in ("tokens/s", "ring", "scratch", "why", "one more GiB", "assumed", "attention"):
        assert word in text


def test_picture(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    output(shape_arguments(folder, "--curve", str(folder / "c.png")))
    assert (folder / "c.png").read_bytes().startswith(b"\x89PNG")


def write_model(path: Path) -> None:
    """Two layers of a llama-like model with random weights."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(2)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_context_length(512)
    tensors = {"token_embd": (256, 64), "output_norm": (64,)}
    for layer in range(2):
        sizes = {"attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64)}
        sizes |= {"ffn_gate": (128, 64), "ffn_up": (128, 64), "ffn_down": (64, 128), "attn_norm": (64,)}
        tensors |= {f"blk.{layer}.{name}": shape for name, shape in sizes.items()}
    for name, shape in tensors.items():
        writer.add_tensor(f"{name}.weight", np.zeros(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_model_file(folder: Path) -> None:
    write_model(folder / "m.gguf")
    arguments = ["--model", str(folder / "m.gguf"), "--machine", f"{folder / 'machines.csv'}#desktop"]
    found = json.loads(output([*arguments, "--budget", "1MiB", "--context", "256", "--explain", "--json"]))
    subs = found["sublayers"]
    assert [s["kind"] for s in subs] == ["attention", "ffn"] * 2 + ["output"]  # tied: the embedding again
    assert subs[0]["bytes"] == 4 * (64 * 64 * 2 + 32 * 64 * 2)
    assert subs[0]["kv_bytes"] == 2 * 2 * 16 * 2 * 256
    assert subs[4]["bytes"] == 4 * 256 * 64


def test_errors_are_typed(folder: Path) -> None:
    assert isinstance(failure(["--budget", "1GiB"]), RequestError)
    assert isinstance(failure(shape_arguments(folder, budget="many")), BudgetError)
    missing = failure(["--model", str(folder / "none.gguf"), "--budget", "1GiB"])
    assert isinstance(missing, ModelError)
    assert missing.code == "model_not_found"
    (folder / "bad.gguf").write_bytes(b"GGUF\x03\0\0\0")
    damaged = failure(["--model", str(folder / "bad.gguf"), "--budget", "1GiB"])
    assert isinstance(damaged, ModelError)
    assert damaged.code == "model_truncated"
    assert isinstance(failure(shape_arguments(folder, "--objective", "beauty")), RequestError)
    no_profile = [*shape_arguments(folder)[:2], "--budget", "1GiB", "--profile", str(folder / "none")]
    assert isinstance(failure(no_profile), ProfileError)
    for name in ("none", "odd"):
        assert isinstance(failure(["--shape", f"{folder / 'models.json'}#{name}", "--budget", "1GiB"]), ShapeError)
    no_machine = [*shape_arguments(folder)[:2], "--machine", f"{folder / 'machines.csv'}#moon", "--budget", "1GiB"]
    assert isinstance(failure(no_machine), ShapeError)
