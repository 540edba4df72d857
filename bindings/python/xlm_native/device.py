"""XLM0, the cache device: Python view of native/include/xlm/xlm_device.h.

All methods may be called from any thread once ``Device.open`` returned, except
``begin_step`` and ``settle``, which belong to the thread that decodes. Every
failure is a ``NativeError`` (a ``DeviceError``). Sizes are bytes, times
nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, Literal

from xlm.protocol import link
from xlm_native._call import ERR_TIMEOUT, check, fields, sized, text
from xlm_native._load import DEVICE, ffi, library_path, open_library

Inner = Literal["none", "sim", "vulkan", "cuda"]

EXPERT_MODES: Final = (
    "unknown",
    "cpu",
    "resident",
    "slots",
    "window",
    "whole_graph",
    "whole_window",
)  # xlm_expert_mode


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """xlm_device_config. ``inner_library`` is needed unless ``inner`` is "none"; 0 means the default."""

    inner: Inner = "none"
    inner_library: Path | None = None
    inner_index: int = 0
    n_threads: int = 0
    budget_bytes: int = 0
    max_sublayers_in_flight_decode: int = 0
    max_sublayers_in_flight_prefill: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """xlm_memory: what the device memory under our control holds now."""

    budget_bytes: int
    used_bytes: int
    resident_bytes: int
    kv_bytes: int
    ring_bytes: int
    scratch_bytes: int
    device_used_bytes: int
    device_total_bytes: int
    peak_used_bytes: int
    over_budget_events: int
    expert_slot_bytes: int  # part of resident_bytes
    expert_window_bytes: int  # part of ring_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """xlm_release: what a budget change released, and how long that took."""

    completed: bool
    budget_bytes: int
    used_bytes: int
    device_used_bytes: int
    released_bytes: int
    release_ns: int


TraceKind = Literal["step", "cpu", "device", "upload", "copy_up", "copy_down", "write_back", "wait"]
TRACE_KINDS: Final[tuple[TraceKind, ...]] = (
    "step", "cpu", "device", "upload", "copy_up", "copy_down", "write_back", "wait",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEvent:
    """xlm_trace_event: what ran or was copied when. Times of the host; the device's own are 0 where it cannot tell."""

    kind: TraceKind
    sublayer: int
    n_sublayers: int
    n_tokens: int
    bytes: int
    begin_ns: int
    end_ns: int
    device_begin_ns: int
    device_end_ns: int


def build_info() -> str:
    """One line: library version and the ggml it was built for. Needs no open device."""
    return text(open_library(DEVICE).xlm_device_build_info())


class Device:
    """The one cache device of this process. ``close`` when all models and contexts are freed."""

    def __init__(self, options: DeviceOptions) -> None:
        self.path: Final = library_path(DEVICE)
        self._lib: Final[Any] = open_library(DEVICE)
        self._open = False
        self._begin(options)

    @classmethod
    def open(cls, options: DeviceOptions) -> Device:
        """Checks the ABI, loads the inner backend and creates XLM0."""
        return cls(options)

    def _begin(self, options: DeviceOptions) -> None:
        config = sized("xlm_device_config")
        inner = ffi().new("char[]", options.inner.encode())
        path = ffi().new("char[]", str(options.inner_library).encode()) if options.inner_library else ffi().NULL
        config.inner, config.inner_library = inner, path
        config.inner_index, config.n_threads = options.inner_index, options.n_threads
        config.budget_bytes = options.budget_bytes
        config.max_sublayers_in_flight_decode = options.max_sublayers_in_flight_decode
        config.max_sublayers_in_flight_prefill = options.max_sublayers_in_flight_prefill
        self._check(self._lib.xlm_device_open(config), f"opening device {options.inner}")
        self._open = True

    def close(self) -> None:
        """Frees the device. Models and contexts must be gone. Safe to call twice."""
        if self._open:
            self._open = False
            self._lib.xlm_device_close()

    def _check(self, status: int, what: str) -> None:
        check(status, what, text(self._lib.xlm_device_last_error()) if status else "")

    # -- what llama.cpp is given

    def ggml_device(self) -> int:
        """Address of the ggml_backend_dev_t for llama_model_params.devices."""
        return int(ffi().cast("uintptr_t", self._lib.xlm_device_ggml_device()))

    def host_buffer_type(self) -> int:
        """Address of the ggml_backend_buffer_type_t for tensor_buft_overrides."""
        return int(ffi().cast("uintptr_t", self._lib.xlm_device_host_buffer_type()))

    def description(self) -> str:
        """Name of the inner device, for people."""
        return text(self._lib.xlm_device_inner_description())

    # -- models

    @contextmanager
    def loading_model(self, name: str) -> Iterator[int]:
        """Around loading a model, on the loading thread; yields the model's id."""
        model_id = ffi().new("uint32_t *")
        self._check(self._lib.xlm_device_model_begin(name.encode(), model_id), "model_begin")
        try:
            yield int(model_id[0])
        finally:
            status = self._lib.xlm_device_model_end(model_id[0])
        self._check(status, "model_end")

    @contextmanager
    def creating_context(self, model_id: int) -> Iterator[None]:
        """Around creating a context of that model, on the creating thread."""
        self._check(self._lib.xlm_device_context_begin(model_id), "context_begin")
        try:
            yield
        finally:
            status = self._lib.xlm_device_context_end(model_id)
        self._check(status, "context_end")

    def sublayers(self) -> list[link.SubLayer]:
        """All units of placement of all live models, by native index."""
        return [self._sublayer(index) for index in range(self._lib.xlm_device_sublayer_count())]

    def _sublayer(self, index: int) -> link.SubLayer:
        info = sized("xlm_sublayer_info")
        self._check(self._lib.xlm_device_sublayer(index, info), f"sub-layer {index}")
        return link.SubLayer(
            index=info.index,
            layer=info.layer,
            kind=link.KINDS[info.kind],
            device_bytes=info.device_bytes,
            host_bytes=info.host_bytes,
            kv_bytes=info.kv_device_bytes,
            largest_piece_bytes=info.largest_piece_bytes,
            model_id=info.model_id,
            n_experts=info.n_experts,
            expert_bytes=info.expert_bytes,
            expert_overhead_bytes=info.expert_overhead_bytes,
            largest_expert_bytes=info.largest_expert_bytes,
        )

    # -- budget and schedule

    def set_budget(self, budget_bytes: int, timeout_ns: int) -> Release:
        """Sets the budget and waits at most ``timeout_ns`` until used <= budget; 0 does not wait.

        Not done in time is no error: the release has ``completed`` False and goes on by itself.
        """
        result = sized("xlm_release")
        status = self._lib.xlm_device_set_budget(budget_bytes, timeout_ns, result)
        if status != ERR_TIMEOUT:
            self._check(status, "set_budget")
        values = fields(result)
        values["completed"] = bool(values["completed"])
        return Release(**{name: values[name] for name in Release.__dataclass_fields__})

    def set_schedule(self, schedule: link.Schedule) -> None:
        """Takes a copy of the schedule; in force from the next step on. A wrong length is a NativeError."""
        count = self._lib.xlm_device_sublayer_count()
        _validate(schedule, count)
        keep: list[Any] = []  # cffi memory lives as long as its owner
        native = sized("xlm_schedule")
        native.n_tiers, native.tiers = len(schedule.tiers), _tiers(schedule.tiers, keep)
        native.n_sublayers = count
        if schedule.priority:
            native.priority = _keep(keep, ffi().new("uint32_t[]", schedule.priority))
        native.ring_bytes, native.reserve_bytes = schedule.ring_bytes, schedule.reserve_bytes
        native.n_vision_tiers, native.vision_ring_bytes = len(schedule.vision_tiers), schedule.vision_ring_bytes
        if schedule.vision_tiers:
            native.vision_tiers = _tiers(schedule.vision_tiers, keep)
        native.schedule_id = schedule.schedule_id
        native.expert_window_bytes = schedule.expert_window_bytes
        if schedule.experts:
            native.experts = _expert_policies(schedule, count, keep)
        self._check(self._lib.xlm_device_set_schedule(native), "set_schedule")

    def settle(self, max_bytes: int) -> bool:
        """Uploads wanted copies, at most ``max_bytes`` (at least one sub-layer). True: more is left."""
        more = ffi().new("uint32_t *")
        self._check(self._lib.xlm_device_settle(max_bytes, more), "settle")
        return bool(more[0])

    def begin_step(self, n_tokens: int) -> None:
        """Announces the next llama_decode of this thread."""
        self._check(self._lib.xlm_device_begin_step(n_tokens), "begin_step")

    def abort_step(self) -> None:
        """Stops the running graph at its next border; its llama_decode returns an error."""
        self._check(self._lib.xlm_device_abort_step(), "abort_step")

    def set_pace(self, duty: float, max_rest_ns: int = 0) -> None:
        """Steps rest at their borders, so that computing takes ``duty`` of the time; 1: no rests. At once in force.

        All rests of a step together are at most ``max_rest_ns``. A duty outside (0, 1] is a NativeError.
        """
        self._check(self._lib.xlm_device_set_pace(duty, max_rest_ns), "set_pace")

    def begin_vision(self) -> None:
        """An image is about to be encoded: the language model makes room, and ``settle`` brings in the tower."""
        self._check(self._lib.xlm_device_begin_vision(), "begin_vision")

    def end_vision(self) -> None:
        """The last image of a request is encoded: drops what the tower has on the device. Settle afterwards."""
        self._check(self._lib.xlm_device_end_vision(), "end_vision")

    def trim(self) -> None:
        """Drops all device memory; keeps budget and schedule."""
        self._check(self._lib.xlm_device_trim(), "trim")

    def recover(self) -> None:
        """Tries a lost device again; returns if it is usable, else NativeError ``device_lost``."""
        self._check(self._lib.xlm_device_recover(), "recover")

    # -- reading

    def experts(self, sublayer: link.SubLayer) -> tuple[link.ExpertStats, list[float]]:
        """Routing and cache of one experts sub-layer, and the part of recent tokens that used each expert."""
        struct = sized("xlm_expert_info")
        share = ffi().new("float[]", max(1, sublayer.n_experts))
        status = self._lib.xlm_device_experts(sublayer.index, struct, share, sublayer.n_experts)
        self._check(status, f"experts of sub-layer {sublayer.index}")
        shares = [float(value) for value in share][: sublayer.n_experts]
        values = {**fields(struct), "mode": EXPERT_MODES[struct.mode]}
        return link.ExpertStats(**values, layer=sublayer.layer, covered=covered(shares)), shares

    def memory(self) -> Memory:
        struct = sized("xlm_memory")
        self._check(self._lib.xlm_device_memory(struct), "memory")
        values = fields(struct)
        return Memory(**{name: values[name] for name in Memory.__dataclass_fields__})

    def stats(self) -> dict[str, int]:
        """xlm_stats by field name."""
        struct = sized("xlm_stats")
        self._check(self._lib.xlm_device_stats(struct), "stats")
        return fields(struct)

    def trace(self, capacity: int) -> None:
        """Records the newest ``capacity`` events from now on; 0 turns it off."""
        self._check(self._lib.xlm_device_trace(capacity), "trace")

    def read_trace(self, most: int = 1 << 16) -> list[TraceEvent]:
        """Takes up to ``most`` events out, oldest first."""
        events = ffi().new("xlm_trace_event[]", max(1, most))
        events[0].struct_size = ffi().sizeof("xlm_trace_event")
        count = ffi().new("uint32_t *")
        self._check(self._lib.xlm_device_trace_read(events, most, count, ffi().NULL), "trace_read")
        return [_trace_event(events[index]) for index in range(count[0])]

    def reset_stats(self) -> None:
        self._check(self._lib.xlm_device_reset_stats(), "reset_stats")


def _trace_event(event: Any) -> TraceEvent:
    names = (name for name in TraceEvent.__dataclass_fields__ if name != "kind")
    return TraceEvent(kind=TRACE_KINDS[event.kind - 1], **{name: getattr(event, name) for name in names})


def _keep(owners: list[Any], pointer: Any) -> Any:
    owners.append(pointer)
    return pointer


def _tiers(tiers: list[link.Tier], owners: list[Any]) -> Any:
    array = _keep(owners, ffi().new("xlm_tier_schedule[]", len(tiers)))
    for native, tier in zip(array, tiers, strict=True):
        native.struct_size = ffi().sizeof("xlm_tier_schedule")
        native.max_tokens, native.scratch_bytes = tier.max_tokens, tier.scratch_bytes
        native.reserve_bytes = tier.reserve_bytes
        native.placement = _keep(owners, ffi().new("uint8_t[]", tier.placement))
    return array


def _expert_policies(schedule: link.Schedule, count: int, owners: list[Any]) -> Any:
    array = _keep(owners, ffi().new("xlm_expert_policy[]", count))
    for index in range(count):
        native, policy = array[index], schedule.experts.get(index, link.ExpertPolicy())
        native.struct_size = ffi().sizeof("xlm_expert_policy")
        for name in policy.__struct_fields__:
            setattr(native, name, getattr(policy, name))
    return array


def covered(shares: list[float]) -> bytes:
    """link.ExpertStats.covered of the part of tokens that use each expert; empty when none was used."""
    total, sums = sum(shares), accumulate(sorted(shares, reverse=True))
    return bytes(min(255, round(255 * value / total)) for value in sums) if total > 0 else b""


def _validate(schedule: link.Schedule, count: int) -> None:
    """Lengths and ranges that C could only read past; the native side checks the rest."""
    problem = ""
    if not schedule.tiers:
        problem = "a schedule needs at least one tier"
    elif any(len(tier.placement) != count for tier in (*schedule.tiers, *schedule.vision_tiers)):
        problem = f"every tier must place {count} sub-layers"
    elif any(not 0 <= index < count for index in schedule.experts):
        problem = f"expert policies name sub-layers beyond the {count} there are"
    elif schedule.priority and sorted(schedule.priority) != list(range(count)):
        problem = f"priority must be a permutation of {count} sub-layers"
    if problem:
        check(1, f"schedule {schedule.schedule_id}", problem)
