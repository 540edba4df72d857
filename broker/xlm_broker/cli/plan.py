"""``xlm plan``: what would run where with how much memory, and how fast; for this machine or one that is not here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args

import psutil
import typer

from xlm._commands import to_type
from xlm._sizes import parse_size
from xlm.errors import ProfileError, RequestError, XlmError
from xlm.protocol.link import DeviceConfig, DeviceFacts, SimConfig
from xlm_broker.cli.plan_files import machine_row, model_entry
from xlm_broker.config import KvType, Options, defaults, demo_model, device_of
from xlm_broker.cores import physical_cores
from xlm_broker.devices import detect
from xlm_broker.gguf_facts import read_header, work_from_gguf
from xlm_broker.planner.sharding import engine_capabilities
from xlm_broker.planner.sharding.costs import Capabilities
from xlm_broker.planner.sharding.explained import explained
from xlm_broker.planner.sharding.hardware import Machine, machine_from_row
from xlm_broker.planner.sharding.kernels import Kernels
from xlm_broker.planner.sharding.machine import guessed_machine, profiled_machine
from xlm_broker.planner.sharding.modelled import MODELLED, card_of_sim, modelled_machine
from xlm_broker.planner.sharding.plan import Planning, check_host_memory, prepare, settled_plan
from xlm_broker.planner.sharding.plan import require_device as plan_required
from xlm_broker.planner.sharding.profile import MachineProfile
from xlm_broker.planner.sharding.report import GIB, CurvePoint, as_json, as_text, curve, curve_budgets, sublayer_rows
from xlm_broker.planner.sharding.shapes import model_work, shape_from_entry
from xlm_broker.planner.sharding.tower import tower_from_header
from xlm_broker.planner.sharding.vision import VisionPlanner
from xlm_broker.planner.sharding.vision_report import image_lines, image_rows
from xlm_broker.planner.sharding.work import ModelWork, with_sessions
from xlm_broker.planner.sharding.workload import DECODE_TOKENS, PROMPT_TOKENS, Objective, Workload
from xlm_broker.profile_choice import expected_key
from xlm_broker.profile_store import check_profile, default_path, load_profile
from xlm_broker.profiler import identify

_BROKER = defaults()  # the names and defaults of xlm-broker: the plan shown is about the one it will come to
# A model from its numbers: one conversation, a long prompt.
_OF_A_SHAPE = {"ubatch": 1024, "sessions": 1, "prompt": 0}
OBJECTIVES: tuple[Objective, ...] = ("interactive", "throughput")


def plan(
    budget: Annotated[str, typer.Option(help="Device memory to use: bytes, 512MiB, 2GiB.")],
    model: Annotated[str, typer.Option(help="A GGUF file (only its header is read), or 'demo'.")] = "",
    mmproj: Annotated[str, typer.Option(help="The model's projector: also plan images.")] = "",
    shape: Annotated[str, typer.Option(help="models.json#NAME: a model from its numbers.")] = "",
    machine: Annotated[str, typer.Option(help="machines.csv#NAME: another machine. Empty: this one's profile.")] = "",
    profile: Annotated[str, typer.Option(help="Profile of this machine. Empty: where `xlm profile` puts it.")] = "",
    context: Annotated[int, typer.Option("--context", "--ctx", help="Tokens of context for each session.")] = _BROKER[
        "ctx"
    ],
    sessions: Annotated[
        int | None, typer.Option(help="Conversations kept at once.  [default: as xlm-broker; 1 with --shape]")
    ] = None,
    kv_type: Annotated[str, typer.Option(help="f16 or q8_0.")] = _BROKER["kv_type"],
    prompt: Annotated[
        int | None,
        typer.Option(
            help="Tokens of the expected prompt; 0: the whole context.  [default: as xlm-broker; 0 with --shape]"
        ),
    ] = None,
    decode: Annotated[int, typer.Option(help="Tokens of the expected answer.")] = DECODE_TOKENS,
    ubatch: Annotated[
        int | None, typer.Option(help="Tokens of the largest step.  [default: as xlm-broker; 1024 with --shape]")
    ] = None,
    device: Annotated[str, typer.Option(help="This machine's: auto, cuda, vulkan, sim or cpu.")] = _BROKER["device"],
    sim_vram: Annotated[str, typer.Option(help="Memory of the virtual GPU.")] = _BROKER["sim_vram"],
    sim_link: Annotated[str, typer.Option(help="Its link to the host in GB/s.")] = _BROKER["sim_link"],
    sim_set: Annotated[list[str] | None, typer.Option(help="NAME=NUMBER, a field of xlm_sim_config.")] = None,
    objective: Annotated[str, typer.Option(help="interactive or throughput.")] = "interactive",
    threads: Annotated[int, typer.Option(help="CPU threads. 0: as measured, else the physical cores.")] = 0,
    kv_streaming: Annotated[
        bool | None,
        typer.Option(help="Attention whose KV cache is copied for each step.  [default: what the engine can do]"),
    ] = None,
    require_device: Annotated[bool, typer.Option(help="An error if nothing would run on the device.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Also list the sub-layers, with a legend.")] = False,
    as_json_: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
    curve_file: Annotated[str, typer.Option("--curve", help="Also plan a range of budgets; a PNG file, or -.")] = "",
) -> None:
    """Prints the plan for a budget: placement by token tier, memory, predicted times, and why.

    Names and defaults of model, memory and device are those of xlm-broker, so that the plan shown is about the one it
    will come to with the same words: it knows what its engine measured, and keeps copies that it has.

    Examples:

      xlm plan --model model.gguf --budget 2GiB --context 8192 --explain

      xlm plan --model model.gguf --mmproj mmproj.gguf --budget 1GiB --explain

      xlm plan --shape models.json#NAME --machine machines.csv#NAME --budget 2048MiB --context 1024 --json
    """
    usual = _OF_A_SHAPE if shape else {**_BROKER, "prompt": PROMPT_TOKENS}
    prompt = usual["prompt"] if prompt is None else prompt
    workload = _workload(prompt or max(1, context), decode, objective)
    memory = _Memory(context, sessions or usual["sessions"], kv_type, ubatch or usual["ubatch"])
    work = _work(model, shape, memory)
    here = _Here(device, sim_vram, sim_link, tuple(sim_set or ()))
    planning = _planning(work, machine, profile, threads, workload, _capabilities(kv_streaming), here)
    check_host_memory(planning)
    budget_bytes = parse_size(budget)
    found, more = (settled_plan(planning, size) for size in (budget_bytes, budget_bytes + GIB))
    if require_device:
        plan_required(planning, found)
    points = curve(planning, curve_budgets(planning)) if curve_file else []
    images = image_rows(_vision(planning, Path(mmproj)), found.task.budget_bytes) if mmproj else []
    if curve_file not in ("", "-"):
        _draw(points, planning, Path(curve_file))
    if as_json_:
        result = as_json(found, more, points)
        result = {**result, "images": images} if mmproj else result
        print(json.dumps({**result, "sublayers": sublayer_rows(found)} if explain else result, indent=1))
        return
    print(to_type(as_text(found, more, points)))
    if mmproj:
        print("\n" + "\n".join(image_lines(images, explain=explain)))
    if explain:
        print("\n" + "\n".join(explained(sublayer_rows(found), planning.tiers)))


class _Memory(NamedTuple):
    """What decides the size of KV cache and scratch."""

    context: int
    sessions: int
    kv_type: str
    ubatch: int


class _Here(NamedTuple):
    """Which device of this machine, as xlm-broker is told."""

    device: str
    sim_vram: str
    sim_link: str
    sim_set: tuple[str, ...]

    def options(self) -> Options:
        return Options(
            model="demo", device=self.device, sim_vram=self.sim_vram, sim_link=self.sim_link, sim_set=self.sim_set
        )


def _vision(planning: Planning, path: Path) -> VisionPlanner:
    """ModelError, ShapeError for a file that is no projector."""
    return VisionPlanner(tower_from_header(path.name, read_header(path)), planning.machine, planning.kernels)


def _capabilities(kv_streaming: bool | None) -> Capabilities:
    able = engine_capabilities()
    return able if kv_streaming is None else replace(able, kv_streaming=kv_streaming)


def _workload(prompt: int, decode: int, objective: str) -> Workload:
    if objective not in OBJECTIVES:
        raise RequestError(f"--objective {objective} is none of {', '.join(OBJECTIVES)}", code="option_invalid")
    if prompt < 1 or decode < 1:
        raise RequestError("--prompt and --decode are at least 1", code="option_invalid")
    return Workload(prompt_tokens=prompt, decode_tokens=decode, objective=objective)


def _work(model: str, shape: str, memory: _Memory) -> ModelWork:
    if bool(model) == bool(shape):
        raise RequestError("give --model or --shape", code="option_invalid")
    if memory.kv_type not in get_args(KvType):
        raise RequestError(
            f"--kv-type {memory.kv_type} is none of {', '.join(get_args(KvType))}", code="option_invalid"
        )
    if min(memory.sessions, memory.ubatch) < 1:
        raise RequestError("--sessions and --ubatch are at least 1", code="option_invalid")
    sizes: dict[str, Any] = {"n_ctx": memory.context, "n_ubatch": memory.ubatch, "kv_type": memory.kv_type.upper()}
    if model:
        path = demo_model() if model == "demo" else Path(model)
        return with_sessions(work_from_gguf(path, **sizes), memory.sessions)
    name, entry = model_entry(shape)
    return with_sessions(model_work(shape_from_entry(name, entry), **sizes), memory.sessions)


def _planning(
    work: ModelWork,
    machine: str,
    profile: str,
    threads: int,
    workload: Workload,
    capabilities: Capabilities,
    here: _Here,
) -> Planning:
    kernels: Kernels | None = None
    notes: tuple[str, ...] = ()
    if machine:
        rates = machine_from_row(machine_row(machine))
        rates = replace(rates, cpu_threads=threads or rates.cpu_threads)
    else:
        rates, kernels, notes = _this_machine(profile, threads, here)
    work = replace(work, fallbacks=(*work.fallbacks, *notes))
    return prepare(work, rates, workload, kernels=kernels, capabilities=capabilities)


def _this_machine(profile: str, threads: int, here: _Here) -> tuple[Machine, Kernels | None, tuple[str, ...]]:
    """A profile that was asked for must be there, sound and of this machine; without one, careful guesses. The
    virtual GPU is planned for as the broker does it: with the card that it models.

    ProfileError profile_missing, profile_corrupt or profile_stale, which names every difference.
    """
    device = chosen_device(here)
    found, missing = _profile(profile, device)
    if device.kind == "sim":
        guessed = physical_cores() if found is None else 0
        machine, kernels, notes = modelled_machine(card_of_sim(device.sim), found, threads=threads or guessed)
        notes = (*_of_the_card(device.sim), *notes)
    elif found is not None:
        machine, kernels, notes = profiled_machine(found, _card(device), threads)
    else:
        (machine, notes), kernels = guessed_machine(_card(device), threads or physical_cores()), None
        notes = notes if device.kind != "none" else notes[:1]  # not what is known of its card
    machine = replace(machine, host_memory_bytes=psutil.virtual_memory().total, has_device=device.kind != "none")
    return machine, kernels, (*notes, *missing)


def _card(device: DeviceConfig) -> DeviceFacts:
    """What is known of it without opening it."""
    cards = detect().nvidia if device.kind == "cuda" else []
    found = next((card for card in cards if card.index == device.index), None)
    return DeviceFacts(kind="unknown", total_bytes=(found.total_bytes or 0) if found else 0)


def _profile(profile: str, device: DeviceConfig) -> tuple[MachineProfile | None, tuple[str, ...]]:
    """The profile, or why there is none."""
    try:
        found = load_profile(Path(profile) if profile else default_path())
        check_profile(found, expected_key(found, device, identify(device)))
    except ProfileError as error:
        if profile:
            raise
        return None, (f"{error.message} [{error.code}]",)
    return found, ()


def _of_the_card(sim: SimConfig) -> tuple[str, ...]:
    """In modelled mode the virtual GPU takes the card's times; else it computes on this CPU, which is slower."""
    if sim.modelled:
        return ()
    card = card_of_sim(sim)
    rates = f"{card.flops_s / 1e9:.0f} GFLOP/s, memory {card.memory_bytes_s / 1e9:.0f} GB/s"
    return (
        f"{MODELLED}: times of the device are those of a card with {rates}, link {card.link_bytes_s / 1e9:.0f} GB/s. "
        "This machine has no such card: its virtual GPU computes on the CPU, and is slower",
    )


def chosen_device(here: _Here) -> DeviceConfig:
    """What xlm-broker takes with the same words."""
    return device_of(here.options())


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
