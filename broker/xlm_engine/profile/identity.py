"""What a profile depends on: processor, its features, the device and its driver, ggml."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib
import platform
import sys
from pathlib import Path
from typing import Any, Final

from xlm.errors import XlmError
from xlm.protocol.link import DeviceConfig
from xlm_engine.device import n_threads_of
from xlm_engine.profile.ggml import Ggml, ggml
from xlm_engine.profile.wire import Identity

DEFAULT_CACHE_BYTES: Final = 32 << 20
_VK_MAX_DEVICES: Final = 16


def identity(g: Ggml, config: DeviceConfig, description: str) -> Identity:
    """``description``: the device's own name; "" without one."""
    return Identity(
        cpu=cpu_name(),
        n_cores=n_threads_of(0),
        isa=g.cpu_features(),
        gpu=description,
        driver=driver(config, description),
        ggml=g.version,
    )


def identity_of_engine(config: DeviceConfig, description: str) -> dict[str, str]:
    """The same as text, from within the engine; empty where ggml does not say: then no profile is taken for ours."""
    try:
        found = identity(ggml(), config, description)
    except (XlmError, OSError, AttributeError):
        return {}
    return {name: str(getattr(found, name)) for name in ("cpu", "n_cores", "isa", "gpu", "driver", "ggml")}


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The model name the system reports."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    keys = ("model name", "Model", "Hardware")  # x86; then those of ARM boards
    for key in keys:
        found = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith(key)]
        if found and found[0]:
            return found[0]
    return platform.processor() or platform.machine()


def last_level_cache_bytes(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Size of the largest cache of the first core; a usual size where the system does not tell."""
    sizes = [_size(path) for path in root.glob("index*/size")]
    return max(sizes, default=0) or DEFAULT_CACHE_BYTES


def _size(path: Path) -> int:
    """Bytes of "32768K"."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return 0
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    digits = text.rstrip("KMG")
    return int(digits) * factor if digits.isdigit() else 0


def driver(config: DeviceConfig, description: str) -> str:
    """Version of the device's driver; for the virtual GPU its settings, which are what its times depend on."""
    if config.kind == "sim":
        return _sim_settings(config)
    if config.kind == "cuda":
        return _nvidia_driver()
    return _vulkan_driver(description) if config.kind == "vulkan" else ""


def _sim_settings(config: DeviceConfig) -> str:
    sim = config.sim
    numbers = {"link": sim.link_bytes_per_s, "latency": sim.link_latency_ns, **sim.extra}
    numbers.pop("n_threads", None)
    text = ",".join(f"{name}={value:g}" for name, value in sorted(numbers.items()))
    return f"{'modelled' if sim.modelled else 'exact'},{text}"


def _nvidia_driver() -> str:
    """From the management library; empty if it does not say."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        try:
            version = nvml.nvmlSystemGetDriverVersion()
        finally:
            nvml.nvmlShutdown()
    except Exception:  # its own exceptions, and OSError or AttributeError of old drivers
        return ""
    return version.decode("utf-8", "replace") if isinstance(version, bytes) else str(version)


def _vulkan_driver(description: str) -> str:
    """driverVersion of the device of that name, as the driver counts; empty if Vulkan does not say."""
    name = ctypes.util.find_library("vulkan-1" if sys.platform == "win32" else "vulkan")
    try:
        return _vulkan_driver_version(ctypes.CDLL(name), description) if name else ""
    except (OSError, AttributeError):
        return ""


def _vulkan_driver_version(vulkan: Any, description: str) -> str:
    """vulkan_core.h: VkInstanceCreateInfo is 64 bytes; VkPhysicalDeviceProperties begins with apiVersion,
    driverVersion, vendorID, deviceID and deviceType, then the name, and is below 1 KiB."""
    create = (ctypes.c_uint64 * 8)(1)  # sType VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, the rest zero
    instance = ctypes.c_void_p()
    if vulkan.vkCreateInstance(ctypes.byref(create), None, ctypes.byref(instance)) != 0:
        return ""
    try:
        count = ctypes.c_uint32(_VK_MAX_DEVICES)
        devices = (ctypes.c_void_p * _VK_MAX_DEVICES)()
        vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), devices)
        for device in devices[: count.value]:
            properties = ctypes.create_string_buffer(4096)
            vulkan.vkGetPhysicalDeviceProperties(ctypes.c_void_p(device), properties)
            if properties.raw[20:276].split(b"\0")[0].decode("utf-8", "replace") in (description, ""):
                return str(int.from_bytes(properties.raw[4:8], sys.byteorder))
    finally:
        vulkan.vkDestroyInstance(instance, None)
    return ""
