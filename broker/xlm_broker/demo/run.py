"""The whole demo: a broker of its own, the game, the characters, the proof, the picture."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Final

import psutil
from rich.console import Console

from xlm._commands import to_type
from xlm.errors import DeviceError
from xlm_broker import broker_version
from xlm_broker.config import Options, device_and_reason, require_file
from xlm_broker.demo.game import measure_alone, play
from xlm_broker.demo.network import Network
from xlm_broker.demo.process import PrivateBroker
from xlm_broker.demo.record import Recorder
from xlm_broker.demo.story import story
from xlm_broker.demo.summary import summarise
from xlm_broker.demo.verify import Comparison, compare
from xlm_broker.demo.view import choose_view

_ALONE_S: Final = 1.5  # the game without a model beside it
_CONTEXT_TOKENS: Final = 1024  # per conversation
_CONVERSATIONS: Final = 2
_ANSWER_TOKENS: Final = 40
VERIFY_SECONDS: Final = 10.0

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What ``xlm demo`` was asked for. Sizes and names are passed on to xlm-broker, which checks them."""

    out: Path
    seconds: float = 30.0
    device: str = "auto"
    model: str = "demo"
    sim_vram: str = "256MiB"
    sim_link: str = ""
    seed: int = 1
    live: bool = True
    verify: bool = True

    def broker_arguments(self) -> list[str]:
        sizes = ["--ctx", str(_CONTEXT_TOKENS), "--sessions", str(_CONVERSATIONS)]
        arguments = ["--budget-from-game", "--model", self.model, "--device", self.device, *sizes]
        arguments += ["--sim-vram", self.sim_vram, "--threads", str(engine_threads())]
        return arguments + (["--sim-link", self.sim_link] if self.sim_link else [])

    def device_line(self) -> str:
        """Which device will be taken and why; a wrong option is a typed error."""
        options = Options(model=self.model, device=self.device, sim_vram=self.sim_vram)
        return f"device: {to_type(device_and_reason(options))}"


def nothing_to_share() -> DeviceError:
    return DeviceError(
        "there is no device whose memory could be shared (CPU only)",
        code="device_not_found",
        hint="run `xlm demo --device sim` for the virtual GPU",
    )


def engine_threads() -> int:
    """Half of the cores, at most four: the game needs the rest for its frames."""
    return max(1, min(4, (psutil.cpu_count(logical=False) or 2) // 2))


def run_demo(options: DemoOptions, console: Console, tell: Tell) -> dict[str, Any]:
    """Plays the story and returns the summary; also writes summary.json and, with matplotlib, timeline.png.

    ``tell`` gets one line per step. Raises XlmError if the broker cannot start or the model cannot be
    loaded, OSError if the folder cannot be written. The broker is gone afterwards, whatever happens.
    """
    if options.device == "cpu":
        raise nothing_to_share()
    require_file(options.model)
    tell(options.device_line())
    record = Recorder(story(options.seconds))
    options.out.mkdir(parents=True, exist_ok=True)
    tell("measuring the game alone ...")
    record.baseline.extend(measure_alone(_ALONE_S, options.seed))
    tell("starting the broker ...")
    with PrivateBroker(options.broker_arguments(), options.out / "broker.log") as broker:
        _load(broker, console, tell)
        about, comparison = _with_broker(options, record, broker.endpoint, console, tell)
    summary = summarise(record, about, comparison)
    summary["timeline"] = _write(options.out, record, summary, tell)
    return summary


def _with_broker(
    options: DemoOptions, record: Recorder, endpoint: str, console: Console, tell: Tell
) -> tuple[dict[str, Any], Comparison | None]:
    with Network(endpoint, record, _ANSWER_TOKENS) as network:
        about = _prepare(record, network)
        _play(options, record, network, console, about)
        comparison = _verify(record, network, console, tell) if options.verify else None
    return about, comparison


def _prepare(record: Recorder, network: Network) -> dict[str, Any]:
    status = network.status()
    record.device_bytes = int(status["device"].get("total_bytes", 0))
    record.demand_bytes = int(status["budget"].get("demand_bytes") or record.device_bytes)
    if not record.device_bytes:
        raise nothing_to_share()
    return describe(status)


def _load(broker: PrivateBroker, console: Console, tell: Tell) -> None:
    """Waits for the model: one line that counts where there is a terminal, else a line a second."""
    if not console.is_terminal or console.is_dumb_terminal:
        broker.wait_until_loaded(_progress(tell))
        return
    with console.status("loading the model ...") as line:
        broker.wait_until_loaded(lambda waited_s: line.update(f"loading the model ... {waited_s:.0f} s"))


def _progress(tell: Tell) -> Callable[[float], None]:
    """Tells once a second that the model is being loaded."""
    told = -1

    def show(waited_s: float) -> None:
        nonlocal told
        if int(waited_s) > told:
            told = int(waited_s)
            tell(f"loading the model ... {told} s" if told else "loading the model ...")

    return show


def _play(options: DemoOptions, record: Recorder, network: Network, console: Console, about: Mapping[str, Any]) -> None:
    title = f"xlm demo: {about['model']['name']} on {about['device']['description']}"
    with choose_view(record, console, live=options.live, title=title):
        play(record, options.seed, network.ask_budget, network.stop, begin=network.begin)
        network.end()
    record.load_average = load_average()


def load_average() -> float | None:
    """Of the last minute; None on Windows, which counts none."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def _verify(record: Recorder, network: Network, console: Console, tell: Tell) -> Comparison:
    """One line that counts where there is a terminal, else one for each answer."""
    title = f"playing the same lines again with the whole card, for {VERIFY_SECONDS:.0f} s and to the end of an answer"
    if console.is_terminal and not console.is_dumb_terminal:
        with console.status(f"{title} ...") as line:
            replay = network.replay(
                record.turns, VERIFY_SECONDS, lambda done, total: line.update(f"{title}: {done} of {total} answers")
            )
    else:
        tell(f"{title} ...")
        replay = network.replay(record.turns, VERIFY_SECONDS, _counted(tell))
    return compare(record.turns, replay)


def _counted(tell: Tell) -> Callable[[int, int], None]:
    """Tells each time when another answer has ended."""
    told = 0

    def show(done: int, total: int) -> None:
        nonlocal told
        if done > told:
            told = done
            tell(f"{done} of {total} answers")

    return show


def _write(out: Path, record: Recorder, summary: dict[str, Any], tell: Tell) -> str | None:
    picture: Path | None = out / "timeline.png"
    tell("drawing the picture ...")
    try:
        from xlm_broker.demo.picture import draw

        draw(record, summary, out / "timeline.png")
    except ModuleNotFoundError as error:
        tell(f"no picture: {error} (pip install 'xlm[demo]')")
        picture = None
    path = str(picture) if picture else None
    text = json.dumps({**summary, "timeline": path}, indent=2, ensure_ascii=False, allow_nan=False)
    (out / "summary.json").write_text(text + "\n", encoding="utf-8")
    return path


# -- what ran where ------------------------------------------------------------------


def describe(status: Mapping[str, Any]) -> dict[str, Any]:
    """Machine, device, model and versions for the summary."""
    device, engine = status["device"], status["engine"]
    kind, total_bytes = device.get("kind", ""), device.get("total_bytes", 0)
    return {
        "xlm": broker_version(),
        "machine": machine(),
        "device": {"kind": kind, "description": device_name(device), "total_bytes": total_bytes},
        "model": {**_without_path(model_facts(engine)), "name": model_name(engine)},
        "versions": engine.get("versions", {}),
    }


def device_name(device: Mapping[str, Any]) -> str:
    """Says plainly when it is no real card, and when its tokens would mean nothing."""
    kind = str(device.get("kind", ""))
    if kind == "sim":
        return f"virtual GPU ({'modelled time' if device.get('modelled') else 'exact mode'})"
    name = {"cuda": "CUDA", "vulkan": "Vulkan", "none": "CPU only"}.get(kind, kind)
    return f"{device['description']} ({name})" if device.get("description") else name


def model_facts(engine: Mapping[str, Any]) -> dict[str, Any]:
    """What the engine says of its model; an older broker only names it."""
    model = engine.get("model") or {}
    return dict(model) if isinstance(model, Mapping) else {"name": str(model)}


def _without_path(facts: dict[str, Any]) -> dict[str, Any]:
    """A summary may be shown around; where files lie is nobody's business."""
    return {key: value for key, value in facts.items() if key != "path"}


def model_name(engine: Mapping[str, Any]) -> str:
    """The file's name, which people know a model by; else the name inside the file."""
    facts = model_facts(engine)
    return PurePath(str(facts.get("path") or "")).stem or str(facts.get("name") or "model")


def machine() -> dict[str, Any]:
    return {
        "system": f"{platform.system()} {platform.release()}",
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_bytes": int(psutil.virtual_memory().total),
        "python": platform.python_version(),
    }


def cpu_name() -> str:
    """The processor's name as the kernel gives it (Linux), or what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
