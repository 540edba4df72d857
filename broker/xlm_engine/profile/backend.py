"""A ggml backend and its memory: buffers in which tensors of one measurement are placed one after the other."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xlm.errors import DeviceError
from xlm_engine.profile.ggml import Ggml, check, ggml
from xlm_engine.profile.points import DeviceName

Bytes = npt.NDArray[np.uint8]

_PATTERN_ROWS: Final = 256  # of 256 elements: every block size divides them
_PATTERN_ROW: Final = 256
_PATTERN_BYTES: Final = 1 << 20
_USAGE_WEIGHTS: Final = 1


class Backend:
    """One stream. Belongs to one thread at a time."""

    def __init__(self, pointer: Any, device: DeviceName, pinned_type: Any = None) -> None:
        """Takes ownership of a ggml_backend_t."""
        self.g: Final[Ggml] = ggml()
        if not pointer:
            raise DeviceError("the backend cannot be started", code="device_not_found")
        self.pointer: Final = pointer
        self.device: Final = device
        self.buffer_type: Final[Any] = self.g.lib.ggml_backend_get_default_buffer_type(pointer)
        self.pinned_type: Final[Any] = pinned_type

    @classmethod
    def cpu(cls) -> Backend:
        return cls(ggml().cpu.ggml_backend_cpu_init(), "cpu")

    @classmethod
    def of_device(cls, device: Any) -> Backend:
        g = ggml()
        pinned = g.lib.ggml_backend_dev_host_buffer_type(device)
        return cls(g.lib.ggml_backend_dev_init(device, g.ffi.NULL), "gpu", pinned or None)

    def set_threads(self, count: int) -> None:
        """On the CPU; a device has no such setting."""
        if self.device == "cpu":
            self.g.cpu.ggml_backend_cpu_set_n_threads(self.pointer, count)

    def compute(self, graph: Any) -> None:
        """Computes and waits. EngineError if ggml says so."""
        check(self.g.lib.ggml_backend_graph_compute(self.pointer, graph), "computing")

    def synchronize(self) -> None:
        self.g.lib.ggml_backend_synchronize(self.pointer)

    def supports(self, node: Any) -> bool:
        return bool(self.g.lib.ggml_backend_supports_op(self.pointer, node))

    def close(self) -> None:
        self.g.lib.ggml_backend_free(self.pointer)


class Context:
    """Descriptions of tensors and graphs, without their data."""

    def __init__(self, n_tensors: int, n_graphs: int = 0, nodes_per_graph: int = 0) -> None:
        self.g: Final = ggml()
        graph_bytes = self.g.lib.ggml_graph_overhead_custom(max(1, nodes_per_graph), False) + 64
        size = n_tensors * (self.g.lib.ggml_tensor_overhead() + 32) + n_graphs * graph_bytes + 4096
        params = self.g.ffi.new("ggml_init_params *", {"mem_size": size, "no_alloc": True})
        self.pointer: Final[Any] = self.g.lib.ggml_init(params[0])

    def tensor(self, type_: str, *ne: int) -> Any:
        full = (*ne, *(1 for _ in range(4 - len(ne))))
        return self.g.lib.ggml_new_tensor_4d(self.pointer, self.g.types[type_], *full)

    def __enter__(self) -> Context:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.g.lib.ggml_free(self.pointer)


class Arena:
    """One buffer in which tensors are placed in a row. ``reset`` forgets them all."""

    def __init__(self, buffer_type: Any, size_bytes: int, *, weights: bool = False) -> None:
        """DeviceError ``device_out_of_memory`` if there is no such memory."""
        self.g: Final = ggml()
        self.size_bytes: Final = size_bytes
        self._type: Final = buffer_type
        self._buffer: Final[Any] = self.g.lib.ggml_backend_buft_alloc_buffer(buffer_type, size_bytes)
        if not self._buffer:
            raise DeviceError(f"no {size_bytes >> 20} MiB for measuring", code="device_out_of_memory")
        if weights:
            self.g.lib.ggml_backend_buffer_set_usage(self._buffer, _USAGE_WEIGHTS)
        self.base: Final[int] = int(self.g.ffi.cast("uintptr_t", self.g.lib.ggml_backend_buffer_get_base(self._buffer)))
        self._alignment: Final[int] = self.g.lib.ggml_backend_buft_get_alignment(buffer_type)
        self.used_bytes = 0

    def reset(self) -> None:
        self.used_bytes = 0

    def room_for(self, tensor: Any) -> bool:
        return self._aligned() + self.need(tensor) <= self.size_bytes

    def need(self, tensor: Any) -> int:
        """Bytes the tensor takes here, padding of its rows included."""
        return int(self.g.lib.ggml_backend_buft_get_alloc_size(self._type, tensor))

    def place(self, tensor: Any) -> None:
        """DeviceError ``device_out_of_memory`` if it does not fit."""
        offset = self._aligned()
        if offset + self.need(tensor) > self.size_bytes:
            raise DeviceError("the memory for measuring is too small", code="device_out_of_memory")
        self.place_at(tensor, offset)
        self.used_bytes = offset + self.need(tensor)

    def place_at(self, tensor: Any, offset: int) -> None:
        address = self.g.ffi.cast("void *", self.base + offset)
        check(self.g.lib.ggml_backend_tensor_alloc(self._buffer, tensor, address), "placing a tensor")

    def next_offset(self) -> int:
        return self._aligned()

    def _aligned(self) -> int:
        at = self.base + self.used_bytes
        return (at + self._alignment - 1) // self._alignment * self._alignment - self.base

    def close(self) -> None:
        self.g.lib.ggml_backend_buffer_free(self._buffer)


class Patterns:
    """Plausible data of each type, made once: random normal numbers, quantised by ggml."""

    def __init__(self) -> None:
        self.g: Final = ggml()
        self._made: Final[dict[str, Bytes]] = {}

    def of(self, type_: str) -> Bytes:
        if type_ not in self._made:
            self._made[type_] = self._make(type_)
        return self._made[type_]

    def _make(self, type_: str) -> Bytes:
        random = np.random.default_rng(1).standard_normal(_PATTERN_ROWS * _PATTERN_ROW, dtype=np.float32)
        number, ffi = self.g.types[type_], self.g.ffi
        out = np.zeros(_PATTERN_ROWS * self.g.lib.ggml_row_size(number, _PATTERN_ROW), dtype=np.uint8)
        even = np.ones(_PATTERN_ROW, dtype=np.float32)
        importance = ffi.NULL
        if self.g.lib.ggml_quantize_requires_imatrix(number):
            importance = ffi.cast("const float *", even.ctypes.data)
        self.g.lib.ggml_quantize_chunk(
            number,
            ffi.cast("const float *", random.ctypes.data),
            ffi.cast("void *", out.ctypes.data),
            0,
            _PATTERN_ROWS,
            _PATTERN_ROW,
            importance,
        )
        return np.tile(out, max(1, _PATTERN_BYTES // out.size))

    def fill(self, tensor: Any, type_: str) -> None:
        """The whole tensor, blocks whole."""
        data, total = self.of(type_), int(self.g.lib.ggml_nbytes(tensor))
        for start in range(0, total, data.size):
            put(tensor, data[: min(data.size, total - start)], start)


def put(tensor: Any, data: npt.NDArray[Any], offset: int = 0) -> None:
    """Copies an array's bytes into a tensor and waits."""
    g = ggml()
    source = np.ascontiguousarray(data)
    g.lib.ggml_backend_tensor_set(tensor, g.ffi.cast("void *", source.ctypes.data), offset, source.nbytes)
