"""What the NVIDIA driver says about a GPU's memory, through the NVML bindings ``pynvml``.

Every way this fails in the field is one exception, NvmlError: no driver, "not
supported" (integrated parts), a GPU that fell off the bus, a driver that was
replaced under us. NVML creates no GPU context and uses no device memory.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

PERIOD_S: Final = 0.25


class NvmlError(Exception):
    """NVML is not there or did not answer. Internal to the broker: reported, never raised to a client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """One reading, all processes together."""

    total_bytes: int
    free_bytes: int
    used_bytes: int


class Nvml:
    """A started NVML. One thread at a time; ``close`` ends it."""

    def __init__(self, module: ModuleType | Any) -> None:
        self._module = module
        self._call("nvmlInit")

    def device_count(self) -> int:
        return int(self._call("nvmlDeviceGetCount"))

    def name(self, index: int) -> str:
        name = self._call("nvmlDeviceGetName", self._handle(index))
        return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)

    def memory(self, index: int) -> GpuMemory:
        """Raises NvmlError also for answers that cannot be true (N/A, zero or negative sizes)."""
        info = self._call("nvmlDeviceGetMemoryInfo", self._handle(index))
        try:
            total, free, used = int(info.total), int(info.free), int(info.used)
        except (AttributeError, TypeError, ValueError) as error:
            raise NvmlError(f"the driver does not report memory sizes ({info!r})") from error
        if total <= 0 or not 0 <= free <= total or used < 0:
            raise NvmlError(f"the driver reports impossible memory sizes (total {total}, free {free}, used {used})")
        return GpuMemory(total_bytes=total, free_bytes=free, used_bytes=used)

    def close(self) -> None:
        try:
            self._call("nvmlShutdown")
        except NvmlError:
            return  # a driver that is gone cannot be shut down

    def _handle(self, index: int) -> Any:
        return self._call("nvmlDeviceGetHandleByIndex", index)

    def _call(self, function: str, *arguments: Any) -> Any:
        try:
            return getattr(self._module, function)(*arguments)
        except Exception as error:  # pynvml raises its own tree, and OSError/AttributeError on old drivers
            raise NvmlError(f"{function}: {error}") from error


def load_pynvml() -> Nvml:
    """NVML of this machine; raises NvmlError when there is none."""
    try:
        module = importlib.import_module("pynvml")
    except ImportError as error:
        raise NvmlError("the Python package nvidia-ml-py is not installed") from error
    return Nvml(module)


Reading = GpuMemory | NvmlError


class NvmlWatcher:
    """Reads one GPU every ``period_s`` in its own thread and hands each reading, or the reason for none, on.

    ``report`` is called in that thread. After an error NVML is started anew at
    each period, so a driver that comes back is noticed. An error is reported
    once, until the next good reading or another error.
    """

    def __init__(
        self,
        report: Callable[[Reading], None],
        *,
        index: int = 0,
        period_s: float = PERIOD_S,
        loader: Callable[[], Nvml] = load_pynvml,
    ) -> None:
        self._report = report
        self._index = index
        self._period_s = period_s
        self._loader = loader
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)
        self._nvml: Nvml | None = None
        self._last_error = ""

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Ends the thread; one that hangs inside a driver call is left behind (it is a daemon)."""
        self._stop.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._read_once()
            self._stop.wait(self._period_s)
        self._close()

    def _read_once(self) -> None:
        try:
            if self._nvml is None:
                self._nvml = self._loader()
            reading = self._nvml.memory(self._index)
        except NvmlError as error:
            self._close()
            self._failed(error)
        else:
            self._last_error = ""
            self._report(reading)

    def _failed(self, error: NvmlError) -> None:
        if str(error) != self._last_error:
            self._last_error = str(error)
            self._report(error)

    def _close(self) -> None:
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None
