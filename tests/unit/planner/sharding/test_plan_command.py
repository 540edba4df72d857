"""`xlm plan` on facts and on a real file's header."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from importlib import import_module
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from tests.support.vlm import SHAPES, write_mmproj
from xlm.errors import BudgetError, ModelError, ProfileError, RequestError, ShapeError
from xlm.protocol.link import DeviceConfig, SimConfig
from xlm_broker.cli import broker
from xlm_broker.cli.plan import plan
from xlm_broker.config import defaults
from xlm_broker.devices import Devices, NvidiaGpu
from xlm_broker.planner.sharding.explained import LEGEND, explained
from xlm_broker.planner.sharding.profile import KernelPoint, ProfileKey
from xlm_broker.profile_store import ProfileWriter

from . import examples

gguf = pytest.importorskip("gguf")
plan_module = import_module("xlm_broker.cli.plan")
APP = typer.Typer()
MIB = 1 << 20
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
        cells = 256 * ceil((tier["depth"] + tier["max_tokens"]) / 256)
        outside = 0.3 + tier["max_tokens"] * (4e-3 + 0.35e-6 * cells)
        parts = ("compute_cpu", "compute_device", "wait", "hops", "slowed")
        assert tier["step"] == pytest.approx(sum(tier[p] for p in parts) + outside, rel=1e-3)
        assert sum(n for kind in tier["placement"].values() for n in kind.values()) == 81
    assert len(found["sublayers"]) == 81
    rates = [point["decode_tps"] for point in found["curve"]]
    assert rates[-1] > rates[0]


def test_text(folder: Path) -> None:
    text = output(shape_arguments(folder, "--explain"))
    for word in ("tokens/s", "ring", "scratch", "why", "one more GiB", "assumed", "attention"):
        assert word in text


def test_explain_says_in_few_lines_what_runs_where(folder: Path) -> None:
    arguments = shape_arguments(folder, "--explain", budget="1GiB")
    rows = json.loads(output([*arguments, "--json"]))["sublayers"]
    table = output(arguments).split("\nkind ", 1)[1].split("\n\n", 1)[0].splitlines()[1:]
    assert len(table) == len({(row["kind"], row["keeps"], *row["modes"]) for row in rows})
    assert sum(int(line.split()[1]) for line in table) == len(rows) == 81


def test_sublayers_alike_are_one_line_and_tiers_alike_one_column() -> None:
    def row(layer: int, kind: str, keeps: str, *modes: str) -> dict[str, Any]:
        return {"layer": layer, "kind": kind, "bytes": 3 << 19, "kv_bytes": 1 << 20, "keeps": keeps, "modes": [*modes]}

    rows = [row(layer, "attention", "all", "resident", "resident", "stream") for layer in (0, 1, 2, 4, 7, 8)]
    rows += [row(3, "attention", "-", "cpu", "cpu", "stream"), row(-1, "output", "-", "cpu", "cpu", "cpu")]
    lines = explained(rows, (1, 4, 64))
    assert [" ".join(line.split()) for line in lines[:4]] == [
        "kind n MiB KV MiB keeps <=4 <=64 layers",
        "attention 6 9.0 6.0 all resident stream blk.0-2, 4, 7-8",
        "attention 1 1.5 1.0 - cpu stream blk.3",
        "output 1 1.5 1.0 - cpu cpu -",
    ]
    for word in ("keeps:", "resident:", "hops:", "slowed:", "ring:", "scratch:"):
        assert any(word in line for line in LEGEND)
        assert all(line in lines for line in LEGEND)


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
    assert subs[0]["kv_bytes"] == 4 * 2 * 2 * 16 * 2 * 256  # as xlm-broker: four conversations
    assert subs[4]["bytes"] == 4 * 256 * 64


def test_names_and_defaults_are_those_of_the_broker(folder: Path) -> None:
    """What both take, by either name; the plan is for the memory that a broker with the same words has."""
    write_model(folder / "m.gguf")
    plans = inspect.signature(plan).parameters
    for name in ("ctx", "sessions", "ubatch", "kv_type", "threads", "device", "sim_vram", "sim_link"):
        assert "context" if name == "ctx" else name in plans
        assert name in inspect.signature(broker.run).parameters
    for name in ("kv_type", "threads", "device", "sim_vram", "sim_link"):
        assert plans[name].default == defaults()[name]
    both = ["--model", str(folder / "m.gguf"), "--budget", "1MiB"]
    words = ["--kv-type", "q8_0", "--sessions", "2", "--ubatch", "32"]
    for context in ("--ctx", "--context"):
        found = json.loads(output([*both, context, "256", "--machine", f"{folder / 'machines.csv'}#desktop", "--json"]))
        assert (found["context"], found["ubatch"], found["workload"]["prompt_tokens"]) == (256, 64, 512)
        for app in (APP, broker.app):
            arguments = [*both, context, "256", *words, "--help"]
            assert CliRunner().invoke(app, arguments).exit_code == 0
    explained = [*both, "--ctx", "256", *words, "--device", "cpu", "--explain", "--json"]
    attention = json.loads(output(explained))["sublayers"][0]
    assert attention["kv_bytes"] == 2 * (2 * 2 * 16) * 256 * 34 // 32  # two conversations of q8_0


def test_the_virtual_gpu_is_said_to_be_a_modelled_card(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "default_path", lambda: folder / "none.sqlite")
    write_model(folder / "m.gguf")
    words = ["--model", str(folder / "m.gguf"), "--budget", "1MiB", "--ctx", "256", "--device", "sim"]
    lines = output(words).splitlines()
    assert "not measured - modelled card: times of the device are those of a card with 1000 GFLOP/s" in lines[1]
    assert "not measured - no profile: guessed for an unknown machine" in lines[2]
    assert "modelled card" not in output([*words, "--sim-set", "modelled=1"])  # there it takes those times


def test_errors_are_typed(folder: Path) -> None:
    assert isinstance(failure([*shape_arguments(folder), "--kv-type", "f8"]), RequestError)
    assert isinstance(failure([*shape_arguments(folder), "--ubatch", "-1"]), RequestError)
    assert isinstance(failure([*shape_arguments(folder)[:2], "--budget", "1GiB", "--device", "abacus"]), RequestError)
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


def test_numbers_beyond_any_memory_are_refused(folder: Path) -> None:
    endless = shape_arguments(folder)
    endless[endless.index("1024")] = str(1 << 61)
    assert isinstance(failure(endless), ShapeError)
    shapes = json.loads((folder / "models.json").read_text())
    shapes["dense"]["n_layer"] = 1 << 23
    shapes["dense"].pop("file_gib", None)
    (folder / "models.json").write_text(json.dumps(shapes))
    assert isinstance(failure(shape_arguments(folder)), ShapeError)


def test_a_file_whose_numbers_are_no_numbers_is_refused(folder: Path) -> None:
    writer = gguf.GGUFWriter(str(folder / "m.gguf"), "llama")
    writer.add_float32("llama.block_count", float("inf"))
    writer.add_float32("llama.embedding_length", float("nan"))
    writer.add_tensor("token_embd.weight", np.zeros((8, 64), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    machine = f"{folder / 'machines.csv'}#desktop"
    error = failure(["--model", str(folder / "m.gguf"), "--machine", machine, "--budget", "1GiB"])
    assert isinstance(error, (ShapeError, ModelError)), error


# -- this machine's profile ----------------------------------------------------------------

KEY = ProfileKey(cpu="a cpu", n_cores=4, isa="AVX2", gpu="xlm virtual GPU", driver="exact", ggml="0.25.3")


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a profile yet; where it would be."""
    monkeypatch.setattr(plan_module, "identify", lambda _device: KEY)
    monkeypatch.setattr(plan_module, "chosen_device", lambda _here: DeviceConfig(kind="cuda"))
    monkeypatch.setattr(plan_module, "default_path", lambda: folder / "profile.sqlite")
    monkeypatch.setattr(plan_module, "detect", Devices)
    write_model(folder / "m.gguf")
    return folder / "profile.sqlite"


def here_arguments(path: Path, *more: str, budget: str = "1MiB") -> list[str]:
    model = str(path.parent / "m.gguf")
    return ["--model", model, "--budget", budget, "--context", "256", "--ubatch", "16", "--json", *more]


def test_the_demo_model_has_its_name_here_too(here: Path) -> None:
    found = json.loads(output(["--model", "demo", "--budget", "64MiB", "--context", "256", "--json"]))
    assert found["decode_tps"] > 0


def measured(path: Path, key: ProfileKey = KEY) -> Path:
    writer = ProfileWriter(path, key)
    writer.add(kernels=[KernelPoint("cpu", "MUL_MAT", "F32", (1024, 1024, 0, 0), 1, 4, "idle", 100_000)])
    writer.finish()
    writer.close()
    return path


def fallbacks(arguments: list[str]) -> str:
    return " | ".join(json.loads(output(arguments))["fallbacks"])


def test_without_a_profile_the_guess_is_named(here: Path) -> None:
    said = fallbacks(here_arguments(here))
    assert "profile_missing" in said
    assert "xlm profile" in said


def test_a_guess_computes_with_the_physical_cores(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "physical_cores", lambda: 3)
    for device in ("cuda", "sim"):
        monkeypatch.setattr(plan_module, "chosen_device", lambda _here, kind=device: DeviceConfig(kind=kind))
        for more, threads, word in (((), 3, "3 threads"), (("--threads", "1"), 1, "1 thread)")):
            assert json.loads(output(here_arguments(here, *more)))["cpu_threads"] == threads
            assert word in fallbacks(here_arguments(here, *more))


def test_more_than_this_machine_has_is_noted(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def codes(*more: str) -> list[str]:
        return [note["code"] for note in json.loads(output(here_arguments(here, *more)))["notes"]]

    assert codes("--budget", "64GiB") == []  # how much a card has is not known without its driver
    card = NvidiaGpu(index=0, name="a card", total_bytes=8 << 30)
    monkeypatch.setattr(plan_module, "detect", lambda: Devices(nvidia=[card]))
    assert codes("--budget", "8GiB") == []
    assert codes("--budget", "9GiB") == ["budget_above_device"]
    sim = DeviceConfig(kind="sim", sim=SimConfig(vram_bytes=MIB))
    monkeypatch.setattr(plan_module, "chosen_device", lambda _here: sim)
    assert codes("--budget", "1MiB", "--context", "512") == []
    assert codes("--budget", "2MiB", "--context", "513") == ["budget_above_device", "context_above_training"]


def test_with_the_profile_of_this_machine(here: Path) -> None:
    measured(here)
    assert "no profile" not in fallbacks(here_arguments(here))
    assert "no profile" not in fallbacks(here_arguments(here, "--profile", str(here)))


@pytest.mark.parametrize("field", ["driver", "ggml", "cpu"])
def test_a_stale_profile_is_named(here: Path, field: str) -> None:
    """By default a named fallback; an error where that very profile was asked for."""
    measured(here, replace(KEY, **{field: "older"}))
    said = fallbacks(here_arguments(here))
    assert f"{field}: {getattr(KEY, field)} here, older in the profile" in said
    assert "no profile" in said
    error = failure(here_arguments(here, "--profile", str(here)))
    assert isinstance(error, ProfileError)
    assert error.code == "profile_stale"
    assert f"{field}:" in error.message


def test_a_corrupt_profile(here: Path) -> None:
    here.write_bytes(b"SQLite format 3\0" + bytes(200))
    assert "profile_corrupt" in fallbacks(here_arguments(here))
    error = failure(here_arguments(here, "--profile", str(here)))
    assert isinstance(error, ProfileError)
    assert error.code == "profile_corrupt"


def test_a_budget_below_the_minimum_says_so_and_why(here: Path) -> None:
    found = json.loads(output(here_arguments(here, budget="10KiB")))
    assert not found["uses_device"]
    assert found["minimum_bytes"] > 10 << 10
    text = output([a for a in here_arguments(here, budget="10KiB") if a != "--json"])
    assert "0.00 MiB are below the minimum of " in text
    assert f"({found['minimum_bytes']} bytes)" in text
    error = failure(here_arguments(here, "--require-device", budget="10KiB"))
    assert isinstance(error, BudgetError)
    assert error.code == "budget_infeasible"
    assert error.minimum_bytes == found["minimum_bytes"]


def test_a_context_beyond_the_hosts_memory(here: Path) -> None:
    arguments = [*here_arguments(here), "--context", str(1 << 40)]
    error = failure(arguments)
    assert isinstance(error, BudgetError)
    assert "GiB of host memory" in error.message


def test_plans_by_default_what_the_engine_can_do(folder: Path) -> None:
    plain = json.loads(output(shape_arguments(folder, "--json", budget="1GiB")))
    same = json.loads(output(shape_arguments(folder, "--json", "--kv-streaming", budget="1GiB")))
    assert plain["tiers"] == same["tiers"]
    without = json.loads(output(shape_arguments(folder, "--json", "--no-kv-streaming", budget="1GiB")))
    modes = {mode for tier in without["tiers"] for kind in tier["placement"].values() for mode in kind}
    assert "stream with KV" not in modes


def test_the_cpu_alone_is_planned_for_as_such(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is placed on a card that is not there, however large the budget."""
    monkeypatch.setattr(plan_module, "default_path", lambda: folder / "none.sqlite")
    write_model(folder / "m.gguf")
    arguments = ["--model", str(folder / "m.gguf"), "--budget", "64GiB", "--ctx", "256", "--device", "cpu", "--json"]
    found = json.loads(output(arguments))
    assert not found["uses_device"]
    assert all(modes.keys() == {"cpu"} for tier in found["tiers"] for modes in tier["placement"].values())
    assert not any("data sheet" in note for note in found["fallbacks"])
    text = output([a for a in arguments if a != "--json"])
    assert "on the CPU of this machine" in text
    assert "there is no device, and no budget is used" in text
    assert "one more GiB" not in text
    error = failure([*arguments, "--require-device"])
    assert isinstance(error, BudgetError)
    assert "--device sim" in error.hint


def test_the_context_that_is_assumed_is_said_at_the_top(here: Path) -> None:
    arguments = ["--model", str(here.parent / "m.gguf"), "--budget", "1MiB"]
    lines = output([*arguments, "--ctx", "512", "--sessions", "3"]).splitlines()
    assert any(line.startswith("a context of 512 tokens for each of 3 conversations") for line in lines[:4])
    default = defaults()
    assert f"a context of {default['ctx']} tokens for each of {default['sessions']} " in output(arguments)


def test_larger_steps_of_a_modelled_card_are_not_faster(folder: Path) -> None:
    """All resident, with a prompt that is shorter than the context: steps between token and prompt are as deep as the
    answer, and the table says how deep each is."""
    shape = f"{folder / 'models.json'}#dense"
    arguments = ["--shape", shape, "--device", "sim", "--budget", "64GiB", "--ctx", "1024", "--prompt", "512"]
    tiers = json.loads(output([*arguments, "--ubatch", "64", "--json"]))["tiers"]
    assert all(modes.keys() == {"resident"} for tier in tiers for modes in tier["placement"].values())
    assert [tier["depth"] for tier in tiers] == [576, 576, 576, 224]
    assert [tier["step"] for tier in tiers] == sorted(tier["step"] for tier in tiers)
    text = output([*arguments, "--ubatch", "64"])
    assert "<= 4    576 " in text


def test_images_of_a_projector_file(folder: Path) -> None:
    projector = str(write_mmproj(folder / "mmproj.gguf", SHAPES["qwen25vl"]))
    found: dict[str, Any] = json.loads(output(shape_arguments(folder, "--mmproj", projector, "--json")))
    rows = found["images"]
    assert [row["image"] for row in rows] == ["480p", "720p", "1080p", "1440p"]
    assert [row["patches"] for row in rows] == sorted(row["patches"] for row in rows)
    assert all(row["encode_ms"] > 0 for row in rows)
    text = output(shape_arguments(folder, "--mmproj", projector, "--explain"))
    assert "upload ms" in text
    assert "images" not in json.loads(output(shape_arguments(folder, "--json")))
    assert isinstance(failure(shape_arguments(folder, "--mmproj", str(folder / "none.gguf"))), ModelError)
