"""Times kernels: how many operations a graph, how often, under which load."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from xlm_engine.profile.backend import Backend
from xlm_engine.profile.grid import FEW_TOKENS, KernelTask
from xlm_engine.profile.kernels import Kernel, Memory, Step, Unmeasurable
from xlm_engine.profile.points import KernelId, KernelPoint, Load
from xlm_engine.profile.sampling import Effort, Estimate, sample

GRAPH_NS: Final = 2e6  # a graph should last so long: launch and clock are then below a percent
MAX_NODES: Final = 256
WARM_TOKENS: Final = 1
LOOKS: Final = 3  # at a point whose threads meet often
LOOK_AGAIN_S: Final = 0.03
ASLEEP_S: Final = 0.0002  # behind a graph its threads sleep by then


@dataclass(frozen=True, slots=True)
class Limits:
    """``longest_ns``: one operation that is expected to take longer is left out, 0 for none."""

    effort: Effort
    longest_ns: float = 0.0


@dataclass
class Counts:
    """What became of the points of the grid."""

    measured: int = 0
    noisy: int = 0
    too_slow: int = 0
    not_here: int = 0


def with_idle(points: list[KernelId], wanted: Callable[[KernelId], bool]) -> list[KernelId]:
    """The wanted ones; and the idle one again where its time under load is wanted: they are compared."""
    asked = [point for point in points if wanted(point)]
    loaded = {point._replace(load="idle") for point in asked if point.load != "idle"}
    return [point for point in points if point in asked or point in loaded]


LoadMaker = Callable[[Load], contextlib.AbstractContextManager[object]]


class Meter:
    """Measures kernel tasks on one backend. ``under`` makes the link busy for a while."""

    def __init__(self, backend: Backend, memory: Memory, limits: Limits, under: LoadMaker) -> None:
        self.backend: Final = backend
        self.memory: Final = memory
        self.limits = limits
        self.counts: Final = Counts()
        self._under: Final = under

    def points(self, task: KernelTask, wanted: Callable[[KernelId], bool]) -> Iterator[KernelPoint]:
        """Those of the task's points that are wanted, in order. Stops where the operation becomes too slow."""
        todo = with_idle(list(task.points()), wanted)
        if not todo:
            return
        try:
            with Kernel(self.backend, self.memory, task.op, task.type, task.shape) as kernel:
                yield from self._steps(kernel, todo)
        except Unmeasurable:
            self.counts.not_here += len(todo)

    def _steps(self, kernel: Kernel, todo: list[KernelId]) -> Iterator[KernelPoint]:
        """By thread count, then by growing steps: the last time tells what to expect of the next."""
        for threads in dict.fromkeys(point.threads for point in todo):
            self.backend.set_threads(threads)
            expected = (0.0, 1)
            for tokens in dict.fromkeys(point.tokens for point in todo if point.threads == threads):
                points = [point for point in todo if (point.threads, point.tokens) == (threads, tokens)]
                if self._too_slow(expected[0] * tokens / expected[1]):
                    self.counts.too_slow += len(points)
                    continue
                for point in self._measured(kernel, points, tokens):
                    expected = (float(point.ns), tokens) if point.load == "idle" else expected
                    yield point

    def _too_slow(self, ns: float) -> bool:
        return 0 < self.limits.longest_ns < ns

    def _measured(self, kernel: Kernel, points: list[KernelId], tokens: int) -> Iterator[KernelPoint]:
        try:
            once = self._trial(kernel, tokens)
            with Step(kernel, tokens, _nodes(kernel, once)) as step:
                for name in points:
                    with self._under(name.load):
                        found = self._looked(step, name, warm_up=once < self.limits.effort.budget_ns)
                    self.counts.measured += 1
                    self.counts.noisy += found.noisy
                    yield KernelPoint.of(name, found.ns)
        except Unmeasurable:
            self.counts.not_here += len(points)

    def _trial(self, kernel: Kernel, tokens: int) -> float:
        """Time of one operation, roughly. A device may have to prepare its first run, the CPU has not."""
        with Step(kernel, tokens, 1) as trial:
            first = self._run(trial, 0)
            if self.backend.device == "cpu" and first > self.limits.effort.budget_ns:
                return first
            return min(first, self._run(trial, 1))

    def _looked(self, step: Step, point: KernelId, *, warm_up: bool) -> Estimate:
        """Where threads meet and sleep after little work the scheduler may keep two of them on one core for longer
        than all samples take: the middle one of some looks."""
        looks = [self.time(step, warm_up=warm_up)]
        meet_often = (point.device, point.op) == ("cpu", "MUL_MAT_ID") and point.threads > 1
        for _ in range(LOOKS - 1 if meet_often and point.tokens <= FEW_TOKENS[-1] else 0):
            time.sleep(LOOK_AGAIN_S)
            looks.append(self.time(step, warm_up=False))
        return sorted(looks, key=lambda look: look.ns)[len(looks) // 2]

    def time(self, step: Step, *, warm_up: bool = True) -> Estimate:
        """Time of one operation. ``warm_up``: the first graph runs once before the clock counts."""
        if warm_up:
            self._run(step, 0)
        found = sample(lambda index: self._run(step, index + 1), self.limits.effort)
        return Estimate(found.ns / step.n_nodes, found.spread, found.n_samples, found.noisy)

    def _run(self, step: Step, index: int) -> float:
        graph = step.graph(index)
        if (self.backend.device, step.kernel.op) == ("cpu", "GRAPH"):
            time.sleep(ASLEEP_S)  # what comes behind work of the device has to wake them, too
        start = time.perf_counter_ns()
        self.backend.compute(graph)
        return float(max(1, time.perf_counter_ns() - start))

    def warm_ratio(self, task: KernelTask) -> float:
        """Time with weights in the cache as a part of that with weights in memory, for one token."""
        self.backend.set_threads(task.threads[-1])
        with Kernel(self.backend, self.memory, task.op, task.type, task.shape) as kernel:
            nodes = _nodes(kernel, self._trial(kernel, WARM_TOKENS))
            times = []
            for copies in (1, None):
                with Step(kernel, WARM_TOKENS, nodes, copies) as step:
                    times.append(self.time(step).ns)
        return times[0] / times[1]


def _nodes(kernel: Kernel, once_ns: float) -> int:
    """Operations a graph."""
    return 1 if kernel.op == "GRAPH" else int(min(MAX_NODES, max(1, GRAPH_NS // once_ns)))
