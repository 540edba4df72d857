"""One measurement from beginning to end: tasks in order, points to the parent as they come, time kept."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final

import psutil

from xlm.errors import XlmError
from xlm_engine.device import n_threads_of
from xlm_engine.profile import identity
from xlm_engine.profile.backend import Arena, Backend
from xlm_engine.profile.device import InnerDevice, open_inner
from xlm_engine.profile.ggml import ggml
from xlm_engine.profile.grid import BusyLinkTask, Facts, KernelTask, LinkTask, ModelNeeds, Task, cost_s, repeated, tasks
from xlm_engine.profile.kernels import Kernel, Memory, Step, Unmeasurable
from xlm_engine.profile.measure import Limits, Meter
from xlm_engine.profile.model import model_needs
from xlm_engine.profile.points import KernelId, KernelPoint, LinkId, LinkPoint, Load
from xlm_engine.profile.sampling import Effort
from xlm_engine.profile.transfers import Link
from xlm_engine.profile.wire import Begin, Channel, Done, Known, Note, Points, Progress, Request

MIB: Final = 1 << 20
FULL: Final = Limits(Effort(budget_ns=80e6, at_least=3), longest_ns=1.5e9)
QUICK: Final = Limits(Effort(budget_ns=60e6, at_least=3, at_most=30), longest_ns=0.25e9)
PASSES: Final = 3  # over a model's own kernels
_BUSY_S: Final = 0.3  # how long the CPU computes while a link point is taken
_LOOK_S: Final = 0.3  # how long the machine is watched before the first measurement
_SHARE_OF_FREE: Final = 3  # device memory taken for measuring: one part in so many, for weights and for activations
_LEAST_WEIGHTS: Final = {True: 128 * MIB, False: 256 * MIB}  # by quick
_MOST_WEIGHTS: Final = 1024 * MIB
_WORK: Final = 192 * MIB


@dataclass
class Clock:
    """How long it took, and how long it will take."""

    seconds: float
    start: float = field(default_factory=time.monotonic)

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self.start

    @property
    def over(self) -> bool:
        return 0 < self.seconds <= self.spent_s

    def left_s(self, done: float, total: float) -> float:
        """In proportion to the guessed costs, and never beyond the limit."""
        guess = self.spent_s / done * (total - done) if done else total
        return min(guess, self.seconds - self.spent_s) if self.seconds else guess


class Session:
    """Runs once. ``close`` gives memory and streams back."""

    def __init__(self, request: Request, channel: Channel) -> None:
        """Opens the device and reads the model's header. Raises DeviceError or ModelError."""
        self._request: Final = request
        self._channel: Final = channel
        self._clock: Final = Clock(request.seconds)
        self._n_threads: Final = n_threads_of(request.n_threads)
        self._limits: Final = QUICK if request.quick else FULL
        self.device: Final[InnerDevice | None] = open_inner(request.device, self._n_threads)
        self.needs: Final = model_needs(request.model) if request.model else ModelNeeds()
        self.identity: Final = identity.identity(ggml(), request.device, self.device.description if self.device else "")
        self._meters: Final[dict[str, Meter]] = {}
        self._link: Link | None = None
        self._known: set[tuple[object, ...]] = set()
        self._measured: Final[dict[tuple[object, ...], int]] = {}  # ns, of kernels in this run
        self._cache_bytes: Final = identity.last_level_cache_bytes()

    # -- set-up

    def _open(self) -> None:
        cpu = Backend.cpu()
        self._meters["cpu"] = Meter(cpu, self._cpu_memory(cpu), self._limits, self._under)
        if self.device is None:
            return
        self._link = Link(self.device.stream, self.device.free_bytes // (2 * _SHARE_OF_FREE))
        if self.device.computes_itself:
            gpu = self.device.stream()
            self._meters["gpu"] = Meter(gpu, self._gpu_memory(gpu, self.device), self._limits, self._under)

    def _cpu_memory(self, backend: Backend) -> Memory:
        wanted = max(_LEAST_WEIGHTS[self._request.quick], 2 * self._cache_bytes + 16 * MIB)
        size = min(wanted, _MOST_WEIGHTS, psutil.virtual_memory().available // 4)
        weights = Arena(backend.buffer_type, size)
        return Memory(weights, Arena(backend.buffer_type, _WORK), min(self._cache_bytes, size // 2))

    def _gpu_memory(self, backend: Backend, device: InnerDevice) -> Memory:
        """Rotates through what exceeds the cache of any card there is, if the device has that much."""
        share = device.free_bytes // _SHARE_OF_FREE
        weights = Arena(backend.buffer_type, min(2 * _LEAST_WEIGHTS[self._request.quick], share), weights=True)
        return Memory(weights, Arena(backend.buffer_type, min(_WORK, share)), weights.size_bytes // 3)

    def _under(self, load: Load) -> AbstractContextManager[None]:
        if load == "idle" or self._link is None:
            return nullcontext()
        return self._link.busy(load)

    def _facts(self) -> Facts:
        return Facts(
            n_threads=self._n_threads,
            quick=self._request.quick,
            gpu="gpu" in self._meters,
            link=self._link is not None,
            model=self.needs,
        )

    def plan(self) -> list[Task]:
        return [task for task in tasks(self._facts()) if task.name not in self._request.skip]

    # -- the run

    def run(self, known: Known) -> None:
        """Everything that is not known yet, until it is done or the time is over."""
        self._known = {*map(tuple, known.kernels), *map(tuple, known.links)}
        self._open()
        self._say_conditions()
        todo = [(task, self._n_missing(task)) for task in self.plan()]
        costs = [self._cost_s(task) for task, _ in todo]
        total, done = sum(count for _, count in todo), 0
        for index, (task, count) in enumerate(todo):
            if count and not self._clock.over:
                left_s = self._clock.left_s(sum(costs[:index]), sum(costs))
                self._channel.send(Progress(done=done, total=total, left_s=left_s, what=task.name))
                self._do(task)
                done += count - self._cut_short(task)
        for _ in range(PASSES - 1):
            self._look_again([task for task in repeated(self._facts()) if task.name not in self._request.skip])
        self._say_counts()
        self._channel.send(Done(measured=done, left_out=total - done))

    def _cost_s(self, task: Task) -> float:
        effort_s = 1.5 * self._limits.effort.budget_ns / 1e9
        return sum(cost_s(point, effort_s) for point in task.points() if tuple(point) not in self._known)

    def _n_missing(self, task: Task) -> int:
        return sum(tuple(point) not in self._known for point in task.points())

    def _cut_short(self, task: Task) -> int:
        """Points of a task that the time limit ended; 0 for one that ran to its end."""
        return self._n_missing(task) if self._clock.over else 0

    def _do(self, task: Task) -> None:
        self._channel.send(Begin(task=task.name))
        try:
            if isinstance(task, KernelTask):
                self._kernels(task)
            elif isinstance(task, LinkTask):
                self._links(task)
            else:
                self._busy_link(task)
        except XlmError as error:  # of this task: the others may do
            self._channel.send(Note(name=f"failed.{task.name}", text=error.message))

    def _wanted(self, point: KernelId | LinkId) -> bool:
        return tuple(point) not in self._known and not self._clock.over

    def _kernels(self, task: KernelTask) -> None:
        meter = self._meters[task.device]
        for point in meter.points(task, self._wanted):
            self._known.add(_name(point))
            self._measured[_name(point)] = point.ns
            self._channel.send(Points(kernels=[point]))
            if self._clock.over:
                return
        if task.warm and task.device == "cpu" and not self._clock.over:
            self._warm(meter, task)

    def _look_again(self, again: list[KernelTask]) -> None:
        """Others may have had the cores all the while a point was taken, and rarely have them each time: of passes that
        lie some time apart the fastest counts. What an earlier run measured stays."""
        for task in again:
            if self._clock.over or not any(tuple(point) in self._measured for point in task.points()):
                continue
            self._channel.send(Begin(task=task.name))
            for point in self._meters["cpu"].points(task, self._may_repeat):
                if point.ns < self._measured[_name(point)]:
                    self._measured[_name(point)] = point.ns
                    self._channel.send(Points(kernels=[point]))

    def _may_repeat(self, point: KernelId) -> bool:
        return tuple(point) in self._measured and not self._clock.over

    def _warm(self, meter: Meter, task: KernelTask) -> None:
        try:
            ratio = meter.warm_ratio(task)
        except Unmeasurable:
            return
        self._channel.send(Note(name=f"warm.{task.type}", text=f"{ratio:.2f}"))

    def _links(self, task: LinkTask) -> None:
        link = self._link
        assert link is not None, "planned with a link only"
        for point in task.points():
            if self._wanted(point) and link.fits(point.size_bytes):
                found = link.time(point.direction, point.memory, point.size_bytes, self._limits.effort)
                self._add_link(point, found.ns)

    def _busy_link(self, task: BusyLinkTask) -> None:
        """The CPU's work is the product of one token: nothing reads more memory."""
        link, meter = self._link, self._meters["cpu"]
        assert link is not None, "planned with a link only"
        with (
            Kernel(meter.backend, meter.memory, "MUL_MAT", task.type, (4096, 4096, 0, 0)) as kernel,
            Step(kernel, 1, max(1, kernel.n_copies)) as step,
        ):
            for point in task.points():
                if self._wanted(point) and link.fits(point.size_bytes):
                    meter.backend.set_threads(point.cpu_threads)
                    found = link.time_while(point.direction, point.size_bytes, lambda: _compute_for(step, _BUSY_S))
                    self._add_link(point, found.ns)

    def _add_link(self, point: LinkId, ns: float) -> None:
        self._known.add(tuple(point))
        self._channel.send(Points(links=[LinkPoint.of(point, ns)]))

    # -- notes

    def _say_conditions(self) -> None:
        kind = self._request.device.kind
        for name, text in self._conditions(kind):
            self._channel.send(Note(name=name, text=text))

    def _conditions(self, kind: str) -> Iterator[tuple[str, str]]:
        yield "threads", str(self._n_threads)
        yield "others_busy_percent", f"{psutil.cpu_percent(_LOOK_S):.0f}"
        yield "last_level_cache_bytes", str(self._cache_bytes)
        yield "cold_weights_bytes", str(self._meters["cpu"].memory.weights.size_bytes)
        if self.device is not None:
            yield "device_total_bytes", str(self.device.total_bytes)
        if self.needs.products:
            yield "model", self._request.model.replace("\\", "/").rsplit("/", 1)[-1]
        if kind == "sim":
            yield "link", "virtual GPU: the configured link, not a measured bus; pinned and pageable memory are alike"
            mode = "modelled: the configured rates" if self._request.device.sim.modelled else "exact: not measured"
            yield "gpu", f"virtual GPU, kernels {mode}"
            if not self._request.device.sim.modelled:
                yield "contention", "copies of the virtual GPU in exact mode are made by the cores of the CPU"
            else:
                yield "contention", "the virtual GPU in modelled mode charges contention to waits, not to CPU kernels"

    def _say_counts(self) -> None:
        for name, meter in self._meters.items():
            counts = meter.counts
            text = f"{counts.measured} measured, {counts.noisy} noisy, {counts.too_slow} too slow to measure"
            self._channel.send(Note(name=f"counts.{name}", text=f"{text}, {counts.not_here} not possible here"))

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
        for meter in self._meters.values():
            meter.memory.close()
            meter.backend.close()
        self._meters.clear()


def _name(point: KernelPoint) -> tuple[object, ...]:
    return (point.device, point.op, point.type, point.shape, point.tokens, point.threads, point.load)


def _compute_for(step: Step, seconds: float) -> None:
    end, index = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        step.compute(index)
        index += 1
