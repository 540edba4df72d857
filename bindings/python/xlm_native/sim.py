"""The virtual GPU: Python view of native/include/xlm/xlm_sim.h.

Thread safe. ``configure`` comes before the device is opened; counters and
faults may be used at any time. Failures are ``NativeError``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from xlm.protocol import link
from xlm_native._call import check, fields, sized, text
from xlm_native._load import SIM, ffi, library_path, open_library


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """xlm_sim_counters."""

    lost: int
    used_bytes: int
    peak_bytes: int
    vram_bytes: int
    n_alloc: int
    n_alloc_failed: int
    n_graphs: int
    n_ops: int
    compute_ns: int
    n_h2d: int
    h2d_bytes: int
    h2d_ns: int
    n_d2h: int
    d2h_bytes: int
    d2h_ns: int
    n_host_syncs: int
    host_sync_wait_ns: int
    n_graphs_failed: int
    n_dropped: int
    foreign_bytes: int
    n_frees_in_use: int  # buffers freed under running work: a caller's bug on a real card
    n_losses: int  # how often the device was lost, also where that was undone


class Sim:
    """The one virtual GPU of this process."""

    def __init__(self) -> None:
        self.path: Final[Path] = library_path(SIM)
        self._lib: Final[Any] = open_library(SIM)

    def _check(self, status: int, what: str) -> None:
        check(status, what, text(self._lib.xlm_sim_last_error()) if status else "")

    def configure(self, config: link.SimConfig) -> None:
        """Sets size, link and mode. ``config.extra`` names further fields of xlm_sim_config."""
        native = sized("xlm_sim_config")
        self._lib.xlm_sim_default_config(native)
        native.struct_size = ffi().sizeof("xlm_sim_config")
        native.mode = int(config.modelled)
        native.vram_bytes = config.vram_bytes
        native.link_bytes_per_s = config.link_bytes_per_s
        native.link_latency_ns = config.link_latency_ns
        for name, value in config.extra.items():
            self._set(native, name, value)
        self._check(self._lib.xlm_sim_configure(native), "configuring the virtual GPU")

    def _set(self, native: Any, name: str, value: float) -> None:
        known = dict(ffi().typeof("xlm_sim_config").fields)
        if name not in known or name == "struct_size":
            check(1, "configuring the virtual GPU", f"xlm_sim_config has no field {name!r}")
        is_float = known[name].type.cname in ("double", "float")
        try:
            setattr(native, name, value if is_float else int(value))
        except (OverflowError, ValueError) as error:
            check(1, "configuring the virtual GPU", f"{name} = {value}: {error}")

    def counters(self) -> Counters:
        struct = sized("xlm_sim_counters")
        self._check(self._lib.xlm_sim_get_counters(struct), "counters")
        values = fields(struct)
        return Counters(**{name: values[name] for name in Counters.__dataclass_fields__})

    def reset_counters(self) -> None:
        self._check(self._lib.xlm_sim_reset_counters(), "reset_counters")

    def fail_allocations(self, skip: int, n: int) -> None:
        """After ``skip`` good allocations the next ``n`` fail; n = 0 clears."""
        self._check(self._lib.xlm_sim_fail_allocations(skip, n), "fail_allocations")

    def lose_device(self, after_submissions: int = 0) -> None:
        self._check(self._lib.xlm_sim_lose_device(after_submissions), "lose_device")

    def restore_device(self) -> None:
        self._check(self._lib.xlm_sim_restore_device(), "restore_device")

    def set_foreign_bytes(self, n_bytes: int) -> None:
        """Another process takes (or gives back) memory of the virtual card."""
        self._check(self._lib.xlm_sim_set_foreign_bytes(n_bytes), "set_foreign_bytes")

    def registry(self) -> int:
        """Address of its ggml_backend_reg_t."""
        return int(ffi().cast("uintptr_t", self._lib.xlm_sim_registry()))
