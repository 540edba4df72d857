"""Transfers between host and device: their rates, alone and while the CPU computes, and the load they put on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import numpy as np

from xlm.errors import DeviceError
from xlm_engine.profile.backend import Arena, Backend, Context
from xlm_engine.profile.ggml import Ggml, ggml
from xlm_engine.profile.points import Direction, Load, Memory
from xlm_engine.profile.sampling import Effort, Estimate, estimate, sample

LOAD_BYTES: Final = 16 << 20  # of one copy of the load
_QUEUED: Final = 4  # copies in flight: the link does not wait for the host in between
_DIRECTIONS: Final[dict[Load, tuple[Direction, ...]]] = {
    "idle": (),
    "h2d": ("h2d",),
    "d2h": ("d2h",),
    "both": ("h2d", "d2h"),
}


class Lane:
    """Copies in one direction on a stream of its own, between one host buffer and one device buffer."""

    def __init__(self, backend: Backend, direction: Direction, memory: Memory, size_bytes: int) -> None:
        """Owns its memory; the backend must not be used by anyone else meanwhile."""
        self.g: Final[Ggml] = ggml()
        self.direction: Final = direction
        self._backend: Final = backend
        self._pageable: np.ndarray[Any, Any] | None = None
        with ExitStack() as owned:
            context = owned.enter_context(Context(4))
            # of a type that the virtual GPU in modelled mode does not have to move for real
            self._tensor: Final[Any] = context.tensor("F16", size_bytes // 2)
            self._host: Final[Any] = self._host_memory(owned, memory, size_bytes)
            device = Arena(backend.buffer_type, size_bytes + (1 << 16))
            owned.callback(device.close)
            device.place(self._tensor)
            self._owned: Final = owned.pop_all()

    def _host_memory(self, owned: ExitStack, memory: Memory, size_bytes: int) -> Any:
        """Touched, so that no page fault is timed."""
        if memory == "pinned":
            pinned = Arena(self._backend.pinned_type, size_bytes)
            owned.callback(pinned.close)
            address = pinned.base
        else:
            pageable = np.empty(size_bytes, dtype=np.uint8)
            self._pageable = pageable  # lives as long as the lane
            address = pageable.ctypes.data
        pointer = self.g.ffi.cast("void *", address)
        self.g.ffi.memmove(pointer, bytes(size_bytes), size_bytes)
        return pointer

    def submit(self, size_bytes: int) -> None:
        move = (
            self.g.lib.ggml_backend_tensor_set_async
            if self.direction == "h2d"
            else self.g.lib.ggml_backend_tensor_get_async
        )
        move(self._backend.pointer, self._tensor, self._host, 0, size_bytes)

    def batch(self, size_bytes: int, count: int) -> float:
        """Nanoseconds of ``count`` copies queued at once."""
        start = time.perf_counter_ns()
        for _ in range(count):
            self.submit(size_bytes)
        self._backend.synchronize()
        return float(max(1, time.perf_counter_ns() - start))

    def close(self) -> None:
        self._backend.synchronize()
        self._owned.close()


class Link:
    """All lanes of one device. ``stream`` makes a backend instance: each lane needs its own."""

    def __init__(self, stream: Callable[[], Backend], largest_bytes: int) -> None:
        self._stream: Final = stream
        self._largest_bytes: Final = largest_bytes
        self._streams: Final[dict[Direction, Backend]] = {}

    def _lane(self, direction: Direction, memory: Memory, size_bytes: int) -> Lane:
        if direction not in self._streams:
            self._streams[direction] = self._stream()
        backend = self._streams[direction]
        if memory == "pinned" and backend.pinned_type is None:
            raise DeviceError("the device has no pinned host memory", code="device_not_found")
        return Lane(backend, direction, memory, size_bytes)

    def fits(self, size_bytes: int) -> bool:
        return size_bytes <= self._largest_bytes

    def time(self, direction: Direction, memory: Memory, size_bytes: int, effort: Effort) -> Estimate:
        """Of one copy and its synchronisation, nothing else going on."""
        lane = self._lane(direction, memory, size_bytes)
        try:
            lane.batch(size_bytes, 1)
            return sample(lambda _index: lane.batch(size_bytes, 1), effort)
        finally:
            lane.close()

    @contextmanager
    def busy(self, load: Load) -> Iterator[None]:
        """The link is busy as ``load`` says from here to the end of the block."""
        with ExitStack() as running:
            for direction in _DIRECTIONS[load]:
                runner = Runner(self._lane(direction, "pinned", self._load_bytes()), self._load_bytes())
                running.callback(runner.stop)
                runner.start()
            yield

    def _load_bytes(self) -> int:
        return min(LOAD_BYTES, self._largest_bytes)

    def time_while(self, direction: Direction, size_bytes: int, work: Callable[[], None]) -> Estimate:
        """Of one copy among many queued ones, while ``work`` runs in this thread; ``work`` decides how long."""
        runner = Runner(self._lane(direction, "pinned", size_bytes), size_bytes)
        runner.start()
        try:
            work()
        finally:
            runner.stop()
        return estimate(runner.times_ns)

    def close(self) -> None:
        for backend in self._streams.values():
            backend.close()
        self._streams.clear()


class Runner:
    """Copies without end in a thread, until stopped. Owns its lane from then on."""

    def __init__(self, lane: Lane, size_bytes: int) -> None:
        self._lane: Final = lane
        self._size_bytes: Final = size_bytes
        self._stop: Final = threading.Event()
        self._running: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._run, name=f"copies-{lane.direction}", daemon=True)
        self.times_ns: Final[list[float]] = []
        self._error: BaseException | None = None

    def start(self) -> None:
        """Returns once copies are under way."""
        self._thread.start()
        self._running.wait()

    def _run(self) -> None:
        try:
            self._lane.batch(self._size_bytes, 1)
            self._running.set()
            while not self._stop.is_set() or not self.times_ns:
                self.times_ns.append(self._lane.batch(self._size_bytes, _QUEUED) / _QUEUED)
        except BaseException as error:
            self._error = error
        finally:
            self._running.set()

    def stop(self) -> None:
        """Waits for the copies under way; raises what ended them early."""
        self._stop.set()
        self._thread.join()
        self._lane.close()
        if self._error is not None:
            raise self._error
