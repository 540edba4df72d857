"""Opens XLM0 over the wanted inner device, and tells what it is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

import xlm_native
from xlm.errors import DeviceError
from xlm.protocol import link
from xlm_native import Device, DeviceOptions, Sim

# llama-cpp-python built with that backend brings the library; a variable names another
_BACKENDS: Final = {
    "vulkan": ("XLM_VULKAN_LIBRARY", "libggml-vulkan.so", "ggml-vulkan.dll"),
    "cuda": ("XLM_CUDA_LIBRARY", "libggml-cuda.so", "ggml-cuda.dll"),
}


def n_threads_of(wanted: int) -> int:
    """Threads for computing: ``wanted``, or the physical cores this process may use."""
    if wanted > 0:
        return wanted
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


def backend_library(kind: str, named: str = "") -> Path:
    """The ggml backend library of a real device. DeviceError ``device_not_found`` says where it was looked for."""
    variable, *names = _BACKENDS[kind]
    for source, value in (("the configuration", named), (variable, os.environ.get(variable, ""))):
        if value and not Path(value).is_file():
            raise DeviceError(f"{source} names {value}, which does not exist", code="device_not_found")
        if value:
            return Path(value)
    folder = xlm_native.llama_library_dir()
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if found is None:
        raise DeviceError(
            f"no ggml {kind} library: neither {variable} nor {folder} has one",
            code="device_not_found",
            hint=f"install llama-cpp-python built for {kind}, or set {variable}",
        )
    return found


def open_device(config: link.DeviceConfig, budget_bytes: int, n_threads: int) -> Device:
    """Opens the device. DeviceError ``device_not_found``, ``abi_mismatch`` or what the inner device says."""
    options = DeviceOptions(
        inner=config.kind,
        inner_library=_inner_library(config, n_threads),
        inner_index=config.index,
        n_threads=n_threads,
        budget_bytes=budget_bytes if config.kind != "none" else 0,
    )
    return Device.open(options)


def _inner_library(config: link.DeviceConfig, n_threads: int) -> Path | None:
    if config.kind == "none":
        return None
    if config.kind == "sim":
        return _configure_sim(config.sim, n_threads)
    return backend_library(config.kind, config.library)


def _configure_sim(config: link.SimConfig, n_threads: int) -> Path:
    """The virtual GPU computes with as many threads as the CPU: ggml-cpu's results depend on that number."""
    sim = Sim()
    extra = {"n_threads": float(n_threads), **config.extra}
    sim.configure(
        link.SimConfig(
            vram_bytes=config.vram_bytes,
            link_bytes_per_s=config.link_bytes_per_s,
            link_latency_ns=config.link_latency_ns,
            modelled=config.modelled,
            extra=extra,
        )
    )
    return sim.path


def facts(
    device: Device, config: link.DeviceConfig, *, n_threads: int = 0, identity: Mapping[str, str] | None = None
) -> link.DeviceFacts:
    """What the planner may know of the device. ``identity``: what a profile depends on."""
    known = dict(identity or {})
    if config.kind == "none":
        return link.DeviceFacts(kind="none", description="CPU only", n_threads=n_threads, identity=known)
    memory = device.memory()
    return link.DeviceFacts(
        kind=config.kind,
        description=device.description(),
        total_bytes=memory.device_total_bytes,
        link_bytes_per_s=config.sim.link_bytes_per_s if config.kind == "sim" else 0.0,
        capabilities=list(link.ENGINE_CAPABILITIES),
        identity=known,
        n_threads=n_threads,
    )
