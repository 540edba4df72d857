"""Which devices this machine offers, told without loading any GPU library.

The broker must not be able to crash in a driver, so it looks at files and at
NVML (a management library that creates no GPU context) only. The engine opens
the device and has the last word.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from xlm_broker.nvml import Nvml, NvmlError, load_pynvml

DeviceKind = Literal["none", "sim", "vulkan", "cuda"]

# Kernel drivers of display devices that compute nothing, or that emulate a card on the CPU.
_SOFTWARE_DRIVERS: Final = frozenset(
    {"virtio-pci", "virtio_gpu", "vgem", "vkms", "bochs-drm", "cirrus", "qxl", "vmwgfx", "simple-framebuffer", "ast",
     "mgag200", "hyperv_drm", "vboxvideo", "simpledrm", "efi-framebuffer", "udl"}
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaGpu:
    """One card as NVML reports it; ``total_bytes`` None where the driver does not say."""

    index: int
    name: str
    total_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """What was found. A library is the ggml backend library that would drive the device."""

    nvidia: list[NvidiaGpu] = field(default_factory=list)
    nvidia_error: str = ""  # why NVML could not be asked
    cuda_library: Path | None = None
    vulkan_library: Path | None = None
    hardware_gpus: list[str] = field(default_factory=list)  # real display devices, by kernel driver
    problems: list[str] = field(default_factory=list)  # settings that name something that is not there

    def best(self) -> tuple[DeviceKind, str]:
        """The kind ``--device auto`` takes and one line that says why."""
        if self.nvidia and self.cuda_library:
            return "cuda", f"{self.nvidia[0].name}, driven by {self.cuda_library}"
        if self.vulkan_library and self.hardware_gpus:
            return "vulkan", f"{self.hardware_gpus[0]}, driven by {self.vulkan_library}"
        return "sim", self._why_sim()

    def _why_sim(self) -> str:
        if self.nvidia or self.hardware_gpus:
            return "virtual GPU: a real GPU is here, but no ggml backend library for it (run `xlm doctor`)"
        return "virtual GPU: no real GPU was found"


def library_name(backend: str, platform: str = sys.platform) -> str:
    """File name of a ggml backend library, like libggml-cuda.so."""
    if platform == "win32":
        return f"ggml-{backend}.dll"
    return f"libggml-{backend}.dylib" if platform == "darwin" else f"libggml-{backend}.so"


def llama_library_folder() -> Path | None:
    """Folder of llama-cpp-python's libraries, found without importing (and so loading) them."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "lib"


def detect(
    environ: Mapping[str, str] = os.environ,
    *,
    nvml_loader: Callable[[], Nvml] = load_pynvml,
    drm_root: Path = Path("/sys/class/drm"),
    search: list[Path] | None = None,
) -> Devices:
    """Looks at everything; never raises. The keyword arguments are for tests and for `xlm doctor`."""
    folders = _library_folders() if search is None else search
    problems: list[str] = []
    nvidia, nvidia_error = _nvidia_gpus(nvml_loader)
    return Devices(
        nvidia=nvidia,
        nvidia_error=nvidia_error,
        cuda_library=_find_library("cuda", environ, folders, problems),
        vulkan_library=_find_library("vulkan", environ, folders, problems),
        hardware_gpus=_hardware_gpus(drm_root),
        problems=problems,
    )


def _library_folders() -> list[Path]:
    llama = llama_library_folder()
    return [*([llama] if llama else []), Path("build/vulkan"), Path("build/cuda")]


def _find_library(backend: str, environ: Mapping[str, str], folders: list[Path], problems: list[str]) -> Path | None:
    variable = f"XLM_{backend.upper()}_LIBRARY"
    named = environ.get(variable, "")
    if named:
        if Path(named).is_file():
            return Path(named).absolute()
        problems.append(f"{variable} names {named}, which is not a file")
        return None
    for folder in folders:
        found = _search(folder, library_name(backend))
        if found:
            return found
    return None


def _search(folder: Path, name: str) -> Path | None:
    try:
        return next((path.absolute() for path in sorted(folder.rglob(name)) if path.is_file()), None)
    except OSError:
        return None


def _nvidia_gpus(nvml_loader: Callable[[], Nvml]) -> tuple[list[NvidiaGpu], str]:
    try:
        nvml = nvml_loader()
    except NvmlError as error:
        return [], str(error)
    try:
        return [_describe(nvml, index) for index in range(nvml.device_count())], ""
    except NvmlError as error:
        return [], str(error)
    finally:
        nvml.close()


def _describe(nvml: Nvml, index: int) -> NvidiaGpu:
    try:
        total_bytes = nvml.memory(index).total_bytes
    except NvmlError:  # integrated parts answer "not supported"
        total_bytes = None
    return NvidiaGpu(index=index, name=nvml.name(index), total_bytes=total_bytes)


def _hardware_gpus(drm_root: Path) -> list[str]:
    """Kernel drivers of the real GPUs (Linux). On Windows, an installed Vulkan loader comes with a GPU driver."""
    if sys.platform == "win32":
        loader = Path(os.environ.get("SYSTEMROOT", r"C:\Windows")) / "System32" / "vulkan-1.dll"
        return ["a GPU with a Vulkan driver"] if loader.is_file() else []
    drivers = (_driver(card) for card in sorted(drm_root.glob("renderD*")))
    return [driver for driver in drivers if driver and driver not in _SOFTWARE_DRIVERS]


def _driver(card: Path) -> str:
    try:
        return (card / "device" / "driver").resolve(strict=True).name
    except OSError:
        return ""
