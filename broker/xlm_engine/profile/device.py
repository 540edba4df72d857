"""Opens the inner device of a measurement directly, without XLM0 around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xlm.protocol.link import DeviceConfig, SimConfig
from xlm_engine.device import backend_library
from xlm_engine.profile.backend import Backend
from xlm_engine.profile.ggml import ggml
from xlm_native import Sim


@dataclass(frozen=True)
class InnerDevice:
    """A ggml device. ``computes_itself`` is False where its kernels are the CPU's (virtual GPU in exact mode)."""

    handle: Any
    description: str
    free_bytes: int
    total_bytes: int
    computes_itself: bool

    def stream(self) -> Backend:
        """A new backend instance. DeviceError if the device refuses."""
        return Backend.of_device(self.handle)


def open_inner(config: DeviceConfig, n_threads: int) -> InnerDevice | None:
    """None for a machine without one. DeviceError ``device_not_found`` or ``abi_mismatch``."""
    if config.kind == "none":
        return None
    g = ggml()
    registry = _sim(config.sim, n_threads) if config.kind == "sim" else _library(config)
    handle = g.device(registry, config.index)
    free, total = g.ffi.new("size_t *"), g.ffi.new("size_t *")
    g.lib.ggml_backend_dev_memory(handle, free, total)
    return InnerDevice(
        handle=handle,
        description=g.text(g.lib.ggml_backend_dev_description(handle)),
        free_bytes=int(free[0]),
        total_bytes=int(total[0]),
        computes_itself=config.kind != "sim" or config.sim.modelled,
    )


def _library(config: DeviceConfig) -> Any:
    return ggml().registry(backend_library(config.kind, config.library))


def _sim(config: SimConfig, n_threads: int) -> Any:
    sim = Sim()
    sim.configure(
        SimConfig(
            vram_bytes=config.vram_bytes,
            link_bytes_per_s=config.link_bytes_per_s,
            link_latency_ns=config.link_latency_ns,
            modelled=config.modelled,
            extra={"n_threads": float(n_threads), **config.extra},
        )
    )
    return ggml().ffi.cast("void *", sim.registry())
