"""``xlm plan``: what would run where with how much memory, and how fast; for this machine or one that is not here."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer

from xlm._sizes import parse_size
from xlm.errors import ProfileError, RequestError, ShapeError, XlmError
from xlm.protocol.link import DeviceConfig, DeviceFacts
from xlm_broker.config import demo_model
from xlm_broker.devices import detect
from xlm_broker.gguf_facts import work_from_gguf
from xlm_broker.planner.sharding import engine_capabilities
from xlm_broker.planner.sharding.costs import Capabilities
from xlm_broker.planner.sharding.hardware import Machine, machine_from_row
from xlm_broker.planner.sharding.kernels import Kernels
from xlm_broker.planner.sharding.machine import guessed_machine, profiled_machine
from xlm_broker.planner.sharding.plan import Planning, check_host_memory, make_plan, prepare
from xlm_broker.planner.sharding.plan import require_device as plan_required
from xlm_broker.planner.sharding.report import GIB, CurvePoint, as_json, as_text, curve, curve_budgets, sublayer_rows
from xlm_broker.planner.sharding.shapes import model_work, shape_from_entry
from xlm_broker.planner.sharding.work import ModelWork
from xlm_broker.planner.sharding.workload import DECODE_TOKENS, Objective, Workload
from xlm_broker.profile_choice import expected_key
from xlm_broker.profile_store import check_profile, default_path, load_profile
from xlm_broker.profiler import identify

DEFAULT_CONTEXT = 4096
OBJECTIVES: tuple[Objective, ...] = ("interactive", "throughput")


def plan(
    budget: Annotated[str, typer.Option(help="Device memory to use: bytes, 512MiB, 2GiB.")],
    model: Annotated[str, typer.Option(help="A GGUF file (only its header is read), or 'demo'.")] = "",
    shape: Annotated[str, typer.Option(help="models.json#NAME: a model from its numbers.")] = "",
    machine: Annotated[str, typer.Option(help="machines.csv#NAME: another machine. Empty: this one's profile.")] = "",
    profile: Annotated[str, typer.Option(help="Profile of this machine. Empty: where `xlm profile` puts it.")] = "",
    context: Annotated[int, typer.Option(help="Positions of the KV cache.")] = DEFAULT_CONTEXT,
    prompt: Annotated[int, typer.Option(help="Tokens of the expected prompt. 0: the whole context.")] = 0,
    decode: Annotated[int, typer.Option(help="Tokens of the expected answer.")] = DECODE_TOKENS,
    ubatch: Annotated[int, typer.Option(help="Tokens of the largest step.")] = 1024,
    objective: Annotated[str, typer.Option(help="interactive or throughput.")] = "interactive",
    threads: Annotated[int, typer.Option(help="CPU threads. 0: as measured.")] = 0,
    kv_streaming: Annotated[
        bool | None,
        typer.Option(help="Attention whose KV cache is copied for each step.  [default: what the engine can do]"),
    ] = None,
    require_device: Annotated[bool, typer.Option(help="An error if nothing would run on the device.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Also list every sub-layer.")] = False,
    as_json_: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
    curve_file: Annotated[str, typer.Option("--curve", help="Also plan a range of budgets; a PNG file, or -.")] = "",
) -> None:
    """Prints the plan for a budget: placement by token tier, memory, predicted times, and why.

    Example:  xlm plan --model model.gguf --budget 2GiB --context 8192 --explain
    Example:  xlm plan --shape models.json#NAME --machine machines.csv#NAME --budget 2048MiB --context 1024 --json
    """
    workload = _workload(prompt or max(1, context), decode, objective)
    work = _work(model, shape, context, ubatch)
    planning = _planning(work, machine, profile, threads, workload, _capabilities(kv_streaming))
    check_host_memory(planning)
    budget_bytes = parse_size(budget)
    found, more = make_plan(planning, budget_bytes), make_plan(planning, budget_bytes + GIB)
    if require_device:
        plan_required(planning, found)
    points = curve(planning, curve_budgets(planning)) if curve_file else []
    if curve_file not in ("", "-"):
        _draw(points, planning, Path(curve_file))
    if as_json_:
        result = as_json(found, more, points)
        print(json.dumps({**result, "sublayers": sublayer_rows(found)} if explain else result, indent=1))
        return
    print(as_text(found, more, points))
    if explain:
        print("\n" + "\n".join(_sublayer_lines(sublayer_rows(found), planning.tiers)))


def _capabilities(kv_streaming: bool | None) -> Capabilities:
    able = engine_capabilities()
    return able if kv_streaming is None else replace(able, kv_streaming=kv_streaming)


def _workload(prompt: int, decode: int, objective: str) -> Workload:
    if objective not in OBJECTIVES:
        raise RequestError(f"--objective {objective} is none of {', '.join(OBJECTIVES)}", code="option_invalid")
    if prompt < 1 or decode < 1:
        raise RequestError("--prompt and --decode are at least 1", code="option_invalid")
    return Workload(prompt_tokens=prompt, decode_tokens=decode, objective=objective)


def _work(model: str, shape: str, context: int, ubatch: int) -> ModelWork:
    if bool(model) == bool(shape):
        raise RequestError("give --model or --shape", code="option_invalid")
    if model:
        return work_from_gguf(demo_model() if model == "demo" else Path(model), n_ctx=context, n_ubatch=ubatch)
    path, name = _named(shape, "--shape")
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        entry = entries[name]
    except (ValueError, KeyError, TypeError) as error:
        raise ShapeError(f"{path} has no model {name!r}", code="shape_invalid") from error
    if not isinstance(entry, dict):
        raise ShapeError(f"{name} in {path} is no object", code="shape_invalid")
    return model_work(shape_from_entry(name, entry), n_ctx=context, n_ubatch=ubatch)


def _named(text: str, option: str) -> tuple[Path, str]:
    path, _, name = text.rpartition("#")
    if not path or not name:
        raise RequestError(f"{option} {text} is not FILE#NAME", code="option_invalid")
    return Path(path), name


def _planning(
    work: ModelWork, machine: str, profile: str, threads: int, workload: Workload, capabilities: Capabilities
) -> Planning:
    kernels: Kernels | None = None
    notes: tuple[str, ...] = ()
    if machine:
        rates = _machine(machine)
        rates = replace(rates, cpu_threads=threads or rates.cpu_threads)
    else:
        rates, kernels, notes = _this_machine(profile, threads)
    work = replace(work, fallbacks=(*work.fallbacks, *notes))
    return prepare(work, rates, workload, kernels=kernels, capabilities=capabilities)


def _machine(text: str) -> Machine:
    path, name = _named(text, "--machine")
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("machine") == name]
    if not rows:
        raise ShapeError(f"{path} has no machine {name!r}", code="machine_invalid")
    return machine_from_row(rows[0])


def _this_machine(profile: str, threads: int) -> tuple[Machine, Kernels | None, tuple[str, ...]]:
    """A profile that was asked for must be there, sound and of this machine; without one, careful guesses.

    ProfileError profile_missing, profile_corrupt or profile_stale, which names every difference.
    """
    path = Path(profile) if profile else default_path()
    rates: tuple[Machine, Kernels | None, tuple[str, ...]]
    try:
        found = load_profile(path)
        device = detected_device()
        check_profile(found, expected_key(found, device, identify(device)))
        rates = profiled_machine(found, DeviceFacts(kind="unknown"), threads)
    except ProfileError as error:
        if profile:
            raise
        machine, notes = guessed_machine(DeviceFacts(kind="unknown"))
        rates = machine, None, (f"{error.message} [{error.code}]", *notes)
    machine, kernels, notes = rates
    return replace(machine, host_memory_bytes=psutil.virtual_memory().total), kernels, notes


def detected_device() -> DeviceConfig:
    """What ``--device auto`` takes here."""
    kind, _ = detect().best()
    return DeviceConfig(kind=kind)


def _sublayer_lines(rows: Sequence[dict[str, Any]], tiers: Sequence[int]) -> list[str]:
    head = f"{'layer':>5}  {'kind':15}{'MiB':>9}{'KV MiB':>9}  {'keeps':6}" + "".join(f"{f'<={t}':>15}" for t in tiers)
    return [head, *(_sublayer_line(row) for row in rows)]


def _sublayer_line(row: dict[str, Any]) -> str:
    layer = str(row["layer"]) if row["layer"] >= 0 else "-"
    sizes = f"{row['bytes'] / 2**20:9.1f}{row['kv_bytes'] / 2**20:9.1f}"
    return f"{layer:>5}  {row['kind']:15}{sizes}  {row['keeps']:6}" + "".join(f"{mode:>15}" for mode in row["modes"])


def _draw(points: Sequence[CurvePoint], planning: Planning, path: Path) -> None:
    """tokens/s and time to the first token over the budget."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        hint = "pip install 'xlm[picture]'"
        raise XlmError("a picture needs matplotlib", code="option_invalid", hint=hint) from error
    figure = Figure(figsize=(8, 5), layout="constrained")
    left = figure.subplots()
    gib = [point.budget_bytes / GIB for point in points]
    left.plot(gib, [p.decode_tps for p in points], marker="o", color="tab:blue", label="tokens/s")
    title = f"{planning.work.name} on {planning.machine.name}, predicted"
    left.set(xlabel="budget, GiB", ylabel="tokens/s", title=title)
    right = left.twinx()
    right.plot(gib, [p.ttft_ms for p in points], marker="s", color="tab:orange", label="first token")
    right.set(ylabel="first token, ms", yscale="log")
    lines = [*left.get_lines(), *right.get_lines()]
    left.legend(lines, [str(line.get_label()) for line in lines], loc="center right")
    figure.savefig(path, dpi=120)
