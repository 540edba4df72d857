"""The findings of ``xlm doctor``. Each check answers one question and says what to do about a gap."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import psutil

from xlm.errors import XlmError
from xlm.protocol.endpoints import Endpoint, parse_endpoint
from xlm.protocol.link import DeviceConfig
from xlm_broker.config import demo_model
from xlm_broker.devices import Devices, detect
from xlm_broker.open_files import ENOUGH_FILES, file_limits
from xlm_broker.planner.wire import Standing
from xlm_broker.profile_choice import ADVICE, profile_of
from xlm_broker.profile_store import default_path
from xlm_broker.profiler import identify

State = Literal["ok", "warn", "fail"]

_PROBE_PATIENCE_S: Final = 60.0
_LEAST_FREE_BYTES: Final = 1 << 30
_REQUIREMENT: Final = re.compile(r"^(?P<name>[A-Za-z0-9_.-]+)")
# Imported by every start; (distribution, what it is for).
_PACKAGES: Final = (
    ("pyzmq", "messages between game, broker and engine"),
    ("msgspec", "the wire protocol"),
    ("cffi", "the native libraries"),
    ("numpy", "the planner"),
    ("jinja2", "chat templates"),
    ("structlog", "logs"),
    ("psutil", "memory and processes"),
    ("platformdirs", "folders"),
    ("pillow", "images"),
)
LLAMA_CPP_PYTHON: Final = "0.3.36"  # the only one the native libraries are built for (pyproject.toml)


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. ``fail``: something needed is broken; ``warn``: it works, but not as it could."""

    name: str
    state: State
    detail: str
    advice: str = ""
    data: dict[str, Any] = field(default_factory=dict)


Probe = Callable[[str], dict[str, Any]]


def run_probe(name: str) -> dict[str, Any]:
    """What a native part says in a process of its own; {"error": …} if it cannot, however it dies."""
    command = [sys.executable, "-m", "xlm_broker.cli.probe", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {_PROBE_PATIENCE_S:.0f} s"}
    if done.returncode < 0:
        return {"error": f"it crashed with signal {-done.returncode}", "crashed": True, "stderr": done.stderr[-500:]}
    try:
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {"error": (done.stderr.strip().splitlines() or ["it said nothing"])[-1]}
    return answer if isinstance(answer, dict) else {"error": f"it said {answer!r}"}


def all_checks(
    endpoint: str = "",
    *,
    probe: Probe = run_probe,
    find_devices: Callable[[], Devices] = detect,
    find_profile: Callable[[Devices], Standing] | None = None,
) -> Iterator[Check]:
    """Every check in the order a reader wants them; none raises."""
    yield python_version()
    yield packages()
    yield from llama_build(probe("llama"))
    yield vision(probe("vision"))
    yield native_library("cache device", probe("device"))
    yield native_library("virtual GPU", probe("sim"))
    devices = find_devices()
    yield nvidia(devices)
    yield cuda(devices)
    yield vulkan(devices, probe("vulkan"))
    yield device_choice(devices)
    yield machine_profile((find_profile or profile_standing)(devices))
    yield from endpoint_checks(endpoint)
    yield free_memory()
    yield open_files(file_limits())
    yield demo_model_file()


def python_version() -> Check:
    version = platform.python_version()
    good = sys.version_info >= (3, 11)
    return Check(
        "python", "ok" if good else "fail", f"{version} ({sys.executable})", "" if good else "use Python 3.11+"
    )


def packages() -> Check:
    found, missing = {}, []
    for name, purpose in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(f"{name} ({purpose})")
    if missing:
        return Check(
            "packages", "fail", f"missing: {', '.join(missing)}", "make setup, or pip install xlm", dict(found)
        )
    detail = ", ".join(f"{name} {version}" for name, version in found.items())
    return Check("packages", "ok", detail, data={**found, "libzmq": _libzmq()})


def _libzmq() -> str:
    import zmq

    return zmq.zmq_version()


# -- native parts --------------------------------------------------------------------


def llama_build(answer: dict[str, Any]) -> Iterator[Check]:
    """llama-cpp-python: there, the right version, not crashing; and what its build can do."""
    if "error" in answer:
        yield Check("llama.cpp", "fail", _llama_problem(answer), _llama_advice(answer), answer)
        return
    version = str(answer["version"])
    detail = f"llama-cpp-python {version}, ggml {answer['ggml_version']} ({answer['ggml_commit']})"
    if version != LLAMA_CPP_PYTHON:
        advice = f"pip install llama-cpp-python=={LLAMA_CPP_PYTHON}: ggml has no stable ABI"
        yield Check("llama.cpp", "fail", detail, advice, answer)
    else:
        yield Check("llama.cpp", "ok", detail, data=answer)
    yield cpu_features(str(answer["system_info"]))


def _llama_problem(answer: dict[str, Any]) -> str:
    return f"llama-cpp-python cannot be used: {answer['error']}"


def _llama_advice(answer: dict[str, Any]) -> str:
    if answer.get("crashed"):
        return (
            "it was built for another CPU: make setup builds it with GGML_NATIVE=OFF, or "
            "CMAKE_ARGS=-DGGML_NATIVE=OFF pip install --force-reinstall --no-binary llama-cpp-python "
            f"llama-cpp-python=={LLAMA_CPP_PYTHON}"
        )
    return str(answer.get("hint") or f"make setup, or pip install llama-cpp-python=={LLAMA_CPP_PYTHON}")


def cpu_features(system_info: str) -> Check:
    """AMX code in ggml was seen to crash on some virtual machines; a build without AVX2 is slow."""
    features = set(re.findall(r"([A-Z0-9_]+) = 1", system_info))
    detail = ", ".join(sorted(features)) or "none reported"
    if any(feature.startswith("AMX") for feature in features):
        advice = "if the engine crashes, rebuild llama-cpp-python with CMAKE_ARGS=-DGGML_NATIVE=OFF"
        return Check("cpu features", "warn", f"{detail}: AMX is known to crash on some virtual machines", advice)
    intel = platform.machine().lower() in ("x86_64", "amd64")
    if intel and "AVX2" not in features:
        advice = "rebuild llama-cpp-python on this machine with -DGGML_AVX2=ON if its CPU has AVX2"
        return Check("cpu features", "warn", f"{detail}: no AVX2, CPU sub-layers are slow", advice)
    return Check("cpu features", "ok", detail)


def vision(answer: dict[str, Any]) -> Check:
    """What models that see need: libmtmd of the same llama-cpp-python, and decoders for the usual formats."""
    if "error" in answer:
        advice = str(answer.get("hint") or _llama_advice(answer))
        return Check("vision", "warn", f"images cannot be used: {answer['error']}", advice, answer)
    detail = f"libmtmd found, Pillow {answer['pillow']} decodes {', '.join(answer['formats'])}"
    missing = sorted({"PNG", "JPEG", "WEBP"} - set(answer["formats"]))
    if missing:
        return Check("vision", "warn", detail, f"this Pillow lacks {', '.join(missing)}: pip install pillow", answer)
    return Check("vision", "ok", detail, data=answer)


def native_library(name: str, answer: dict[str, Any]) -> Check:
    """libggml-xlm and the virtual GPU: found, the same ABI, and a toy graph ran."""
    if "error" in answer:
        advice = str(answer.get("hint") or "rebuild the native libraries: make setup")
        return Check(name, "fail", str(answer["error"]), advice, answer)
    detail = str(answer.get("build") or answer.get("description") or "found")
    return Check(name, "ok", f"{detail} ({answer.get('path', '')})", data=answer)


# -- devices ---------------------------------------------------------------------------


def nvidia(devices: Devices) -> Check:
    data = {"gpus": [{"index": gpu.index, "name": gpu.name, "total_bytes": gpu.total_bytes} for gpu in devices.nvidia]}
    if devices.nvidia:
        names = ", ".join(f"{gpu.name} ({_gib(gpu.total_bytes)})" for gpu in devices.nvidia)
        return Check("nvidia", "ok", f"driver {_driver_version()}: {names}", data=data)
    return Check("nvidia", "ok", f"no NVIDIA card ({devices.nvidia_error or 'none listed'})", data=data)


def _driver_version() -> str:
    try:
        import pynvml

        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
        pynvml.nvmlShutdown()
    except Exception:
        return "of unknown version"
    return version.decode() if isinstance(version, bytes) else str(version)


def cuda(devices: Devices) -> Check:
    if devices.cuda_library:
        return Check("cuda backend", "ok", str(devices.cuda_library))
    advice = "install llama-cpp-python built with CUDA, or name a ggml CUDA backend in XLM_CUDA_LIBRARY"
    if devices.nvidia:
        return Check("cuda backend", "warn", "an NVIDIA card is here, but no ggml CUDA backend library", advice)
    return Check("cuda backend", "ok", "none, and no NVIDIA card that would need it")


def vulkan(devices: Devices, answer: dict[str, Any]) -> Check:
    loader = answer.get("loader")
    detail = f"loader {loader} (API {answer.get('api')})" if loader else "no Vulkan loader"
    if "error" in answer:
        detail = f"Vulkan loader: {answer['error']}"
    if devices.vulkan_library:
        state: State = "ok" if loader else "warn"
        advice = "" if loader else "install the Vulkan loader: apt-get install libvulkan1"
        return Check("vulkan backend", state, f"{devices.vulkan_library}, {detail}", advice, answer)
    if devices.hardware_gpus:
        advice = "name a ggml Vulkan backend library in XLM_VULKAN_LIBRARY (see docs)"
        return Check("vulkan backend", "warn", f"a GPU is here, but no ggml Vulkan backend; {detail}", advice, answer)
    return Check("vulkan backend", "ok", f"none, and no GPU that would need it; {detail}", data=answer)


def device_choice(devices: Devices) -> Check:
    """What ``--device auto`` takes here."""
    kind, reason = devices.best()
    data = {"kind": kind, "reason": reason}
    if devices.problems:
        return Check("device", "warn", f"{kind}: {reason}; {'; '.join(devices.problems)}", "correct the setting", data)
    return Check("device", "ok", f"--device auto takes {kind}: {reason}", data=data)


def profile_standing(devices: Devices) -> Standing:
    """Of the profile that the broker would plan by. Asks ggml who this machine is, in a process of its own."""
    kind, _ = devices.best()
    config = DeviceConfig(kind=kind)
    path = default_path()
    if not path.is_file():
        return profile_of(path, config, {})[1]
    try:
        here = {name: str(value) for name, value in asdict(identify(config)).items()}
    except XlmError as error:
        return Standing(state="partly", text=f"{path}: not compared with this machine: {error.message}", advice=ADVICE)
    return profile_of(path, config, here)[1]


def machine_profile(standing: Standing) -> Check:
    """Whether plans are made by measured times; without a profile they are careful, so slower than they could be."""
    data = {"state": standing.state, "code": standing.code}
    if standing.state == "measured":
        return Check("profile", "ok", standing.text, data=data)
    return Check("profile", "warn", standing.text, standing.advice or ADVICE, data)


# -- endpoint and machine ------------------------------------------------------------


def endpoint_checks(text: str) -> Iterator[Check]:
    """The socket's folder, and whether a broker serves it already."""
    try:
        endpoint = parse_endpoint(text or None)
    except XlmError as error:
        yield Check("endpoint", "fail", error.message, error.hint)
        return
    if endpoint.path is not None:
        yield socket_folder(endpoint.path.parent)
    yield endpoint_use(endpoint)


def socket_folder(folder: Path) -> Check:
    """Ours, and closed to others: who can write there can pose as the broker."""
    try:
        found = folder.stat()
    except FileNotFoundError:
        return Check("socket folder", "ok", f"{folder} (xlm-broker will create it)")
    except OSError as error:
        return Check("socket folder", "fail", f"{folder}: {error.strerror}", "choose another --endpoint")
    if not stat.S_ISDIR(found.st_mode):
        return Check("socket folder", "fail", f"{folder} is no folder", "move it away, or choose another --endpoint")
    if hasattr(os, "getuid") and found.st_uid != os.getuid():
        return Check("socket folder", "fail", f"{folder} belongs to another user", "choose another --endpoint")
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        return Check("socket folder", "warn", f"{folder} is open to others (mode {mode:o})", f"chmod 700 {folder}")
    return Check("socket folder", "ok", f"{folder} (mode {mode:o})")


def endpoint_use(endpoint: Endpoint) -> Check:
    url = str(endpoint)
    if endpoint.path is not None and not endpoint.path.exists():
        return Check("endpoint", "ok", f"{url}: free, no broker runs there", data={"in_use": False})
    if _answers(endpoint):
        return Check("endpoint", "ok", f"{url}: a broker serves it (see `xlm status`)", data={"in_use": True})
    left = " (a socket file of a broker that died is cleaned up at the next start)" if endpoint.path else ""
    return Check("endpoint", "ok", f"{url}: nobody listens{left}", data={"in_use": False})


def _answers(endpoint: Endpoint) -> bool:
    family = socket.AF_INET6 if endpoint.is_ipv6 else socket.AF_INET
    if endpoint.path is not None:
        family = socket.AF_UNIX
    address: Any = str(endpoint.path) if endpoint.path is not None else (endpoint.host, endpoint.port)
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(address) == 0


def free_memory() -> Check:
    memory = psutil.virtual_memory()
    detail = f"{_gib(memory.available)} of {_gib(memory.total)} free, {os.cpu_count()} cores"
    data = {"available_bytes": int(memory.available), "total_bytes": int(memory.total)}
    if memory.available < _LEAST_FREE_BYTES:
        return Check(
            "memory", "warn", detail, "weights live in host memory: close something, or take a small model", data
        )
    return Check("memory", "ok", detail, data=data)


def open_files(limits: tuple[int, int] | None) -> Check:
    """``limits``: soft and hard; the broker raises the first to the second by itself."""
    if limits is None:
        return Check("open files", "ok", "no limit that matters here")
    soft, hard = limits
    detail = f"at most {hard} (now {soft}; the broker raises it); at most half of them are for connections"
    data = {"soft": soft, "hard": hard}
    if hard < ENOUGH_FILES:
        return Check("open files", "warn", detail, f"raise the hard limit: ulimit -Hn {ENOUGH_FILES}, as root", data)
    return Check("open files", "ok", detail, data=data)


def demo_model_file() -> Check:
    try:
        path = demo_model()
    except XlmError as error:
        return Check("demo model", "warn", error.message, error.hint)
    return Check("demo model", "ok", str(path), data={"bytes": path.stat().st_size})


def _gib(size_bytes: int | None) -> str:
    return "size not reported" if size_bytes is None else f"{size_bytes / (1 << 30):.1f} GiB"
