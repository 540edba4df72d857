"""Time of one operation on one device: interpolated between measured points, else a roofline.

Both models answer the same questions (``Kernels``). The profiled one interpolates in log space between points of
the same operation, type and head layout; what it has no points for goes to the roofline and is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log
from typing import Final, Literal, Protocol

from .hardware import (
    CPU_CORE_ATTENTION_FLOPS_S,
    CPU_SHORT_READ_SHARE,
    GPU_ATTENTION_BANDWIDTH_SHARE,
    GPU_ATTENTION_FLOPS_SHARE,
    GPU_EFFICIENCY,
    GPU_EXPERT_GEMM_SHARE,
    Machine,
)
from .profile import DeviceName, KernelPoint, MachineProfile, Shape
from .quant import family
from .work import Attention, Experts, MatMul

Where = Literal["cpu", "cpu_busy", "gpu"]  # cpu_busy: while the link copies to the device


class Kernels(Protocol):
    """Nanoseconds of one operation, its share of launch and barrier included."""

    def matmul(self, where: Where, op: MatMul, tokens: float) -> float: ...

    def experts(self, where: Where, op: Experts, tokens: float) -> float: ...

    def experts_by_one(self, op: Experts, tokens: float) -> float:
        """On the CPU by one thread, which waits for no other."""
        ...

    def attention(self, where: Where, op: Attention, tokens: float, context: float) -> float: ...

    def small(self, where: Where, op: str, row_elements: int, tokens: float) -> float: ...

    def fallbacks(self) -> dict[str, int]:
        """How often each assumption was used, by name."""


@dataclass
class Roofline:
    """max(bytes / bandwidth, flops / peak) + overhead (Williams, Waterman, Patterson: Roofline, CACM 2009)."""

    machine: Machine
    _used: Counter[str] = field(default_factory=Counter)

    def fallbacks(self) -> dict[str, int]:
        return dict(self._used)

    def matmul(self, where: Where, op: MatMul, tokens: float) -> float:
        self._used[f"roofline {op.type} product"] += 1
        if where == "gpu":
            return self._gpu_product(op.type, op.weight_bytes, op.flops(tokens), 1.0)
        return self._cpu_product(where, op.type, op.weight_bytes, op.flops(tokens), tokens)

    def experts(self, where: Where, op: Experts, tokens: float) -> float:
        self._used[f"roofline {op.type} experts"] += 1
        used_bytes = op.weight_bytes * op.used_share(tokens)
        if where == "gpu":
            return self._gpu_product(op.type, used_bytes, op.flops(tokens), GPU_EXPERT_GEMM_SHARE)
        # threads share one expert after the other: until many tokens meet at each, reads are short
        return self._cpu_product(where, op.type, used_bytes / CPU_SHORT_READ_SHARE, op.flops(tokens), tokens)

    def experts_by_one(self, op: Experts, tokens: float) -> float:
        self._used[f"roofline {op.type} experts by one thread"] += 1
        read_bytes = op.weight_bytes * op.used_share(tokens) / CPU_SHORT_READ_SHARE
        alone = Roofline(replace(self.machine, cpu_threads=1))
        return alone._cpu_product("cpu", op.type, read_bytes, op.flops(tokens), tokens)

    def attention(self, where: Where, op: Attention, tokens: float, context: float) -> float:
        self._used["roofline attention"] += 1
        m, flops = self.machine, op.flops(tokens, context)
        cache_bytes = op.kv_bytes_per_token * context
        if where == "gpu":
            by_bytes = cache_bytes / (m.device_bandwidth_bytes_s * GPU_ATTENTION_BANDWIDTH_SHARE)
            by_flops = flops / (m.device_flops_s * GPU_ATTENTION_FLOPS_SHARE)
            return 1e9 * max(by_bytes, by_flops) + 2 * m.launch_ns
        # each query head reads the cache rows of its KV head anew
        read_bytes = cache_bytes * op.n_head / op.n_head_kv
        by_bytes = read_bytes / (self._cpu_bandwidth(where) * CPU_SHORT_READ_SHARE)
        by_flops = flops / (CPU_CORE_ATTENTION_FLOPS_S * m.cpu_threads)
        return 1e9 * max(by_bytes, by_flops) + m.cpu_op_ns

    def small(self, where: Where, op: str, row_elements: int, tokens: float) -> float:
        moved = 3.0 * 4.0 * row_elements * tokens  # two rows read, one written, float32
        if where == "gpu":
            return 1e9 * moved / self.machine.device_bandwidth_bytes_s + self.machine.launch_ns
        return 1e9 * moved / self._cpu_bandwidth(where) + self.machine.cpu_op_ns

    def _cpu_bandwidth(self, where: Where) -> float:
        busy = where == "cpu_busy"
        return self.machine.cpu_bandwidth_busy_bytes_s if busy else self.machine.cpu_bandwidth_bytes_s

    def _gpu_product(self, type_name: str, read_bytes: float, flops: float, share: float) -> float:
        m, efficiency = self.machine, GPU_EFFICIENCY[family(type_name)]
        by_bytes = read_bytes / (m.device_bandwidth_bytes_s * efficiency.gemv)
        by_flops = flops / (m.device_flops_s * efficiency.gemm * share)
        return 1e9 * max(by_bytes, by_flops) + m.launch_ns

    def _cpu_product(self, where: Where, type_name: str, read_bytes: float, flops: float, tokens: float) -> float:
        by_bytes = read_bytes / self._cpu_bandwidth(where)
        by_flops = flops / self.machine.cpu_flops_s(type_name, tokens)
        return 1e9 * max(by_bytes, by_flops) + self.machine.cpu_op_ns


# -- measured ----------------------------------------------------------------------


@dataclass(frozen=True)
class _Curve:
    """Times over one growing quantity, log-log between the points; outside, the last slope within [0, 1]."""

    at: tuple[float, ...]  # logs, ascending
    ns: tuple[float, ...]  # logs

    @classmethod
    def of(cls, points: Iterable[tuple[float, float]]) -> _Curve:
        ordered = sorted({max(1e-9, x): max(1.0, ns) for x, ns in points}.items())
        return cls(tuple(log(x) for x, _ in ordered), tuple(log(ns) for _, ns in ordered))

    def __call__(self, x: float) -> float:
        return exp(self.log_at(log(max(x, 1e-9))))

    def log_at(self, x: float) -> float:
        if len(self.at) == 1:
            return self.ns[0] + max(0.0, x - self.at[0])  # beyond a single point: in proportion, never faster
        right = next((i for i, at in enumerate(self.at) if at >= x), len(self.at) - 1)
        left = max(0, right - 1)
        right = left + 1
        slope = (self.ns[right] - self.ns[left]) / (self.at[right] - self.at[left])
        if not self.at[0] <= x <= self.at[-1]:
            slope = min(1.0, max(0.0, slope))
        anchor = left if x < self.at[-1] else right
        return self.ns[anchor] + slope * (x - self.at[anchor])


@dataclass(frozen=True)
class _Surface:
    """Times over size and tokens: at each measured number of tokens a line in logs between sizes, and between those a
    curve over tokens that never falls."""

    sizes: tuple[float, ...]
    curves: tuple[_Curve, ...]  # over tokens, for each size
    steps: tuple[float, ...]  # tokens that were measured
    _found: dict[tuple[float, float], _Curve] = field(default_factory=dict)

    @classmethod
    def of(cls, points: Iterable[tuple[float, float, float]]) -> _Surface:
        by_size: dict[float, list[tuple[float, float]]] = {}
        for size, tokens, ns in points:
            by_size.setdefault(size, []).append((tokens, ns))
        sizes = tuple(sorted(by_size))
        steps = sorted({tokens for found in by_size.values() for tokens, _ in found})
        return cls(sizes, tuple(_Curve.of(by_size[size]) for size in sizes), tuple(steps))

    def __call__(self, size: float, tokens: float, growth: float = 0.0) -> float:
        """``size`` is that of a step of one token; it grows by ``growth`` with each more."""
        key = (size, growth)
        if key not in self._found:
            steps = _halved(self.steps) if growth else self.steps
            self._found[key] = _never_falling((n, self._measured(size + growth * (n - 1), n)) for n in steps)
        return self._found[key](tokens)

    def _measured(self, size: float, tokens: float) -> float:
        return _Curve.of((s, curve(tokens)) for s, curve in zip(self.sizes, self.curves, strict=True))(size)


def _halved(steps: Sequence[float]) -> list[float]:
    """With others between, so that neighbours are at most doubled: a size that grows with them is no line in logs."""
    between = {steps[-1] / 2**n for n in range(24)}
    return sorted({*steps, *(n for n in between if n > steps[0])})


def _never_falling(points: Iterable[tuple[float, float]]) -> _Curve:
    """A step that was measured to be faster than one of fewer tokens is noise: such neighbours get their mean (Ayer,
    Brunk, Ewing, Reid, Silverman: isotonic regression by pooling, Annals of Mathematical Statistics 26, 1955)."""
    curve = _Curve.of(points)
    pools: list[tuple[float, int]] = []
    for ns in curve.ns:
        mean, count = ns, 1
        while pools and pools[-1][0] > mean:
            before, n = pools.pop()
            mean, count = (before * n + mean * count) / (n + count), n + count
        pools.append((mean, count))
    return replace(curve, ns=tuple(mean for mean, count in pools for _ in range(count)))


_STAND_INS: Final = {"ARGSORT": "SOFT_MAX"}  # operations that are not measured are taken for additions, but these


@dataclass
class Profiled:
    """Measured kernels of one machine for one CPU thread count. Not safe to share between threads."""

    profile: MachineProfile
    threads: int
    fallback: Kernels
    _surfaces: dict[tuple[str, str, str, Shape], _Surface | None] = field(default_factory=dict)
    _used: Counter[str] = field(default_factory=Counter)

    def fallbacks(self) -> dict[str, int]:
        return {**self.fallback.fallbacks(), **self._used}

    def matmul(self, where: Where, op: MatMul, tokens: float) -> float:
        surface = self._surface(where, "MUL_MAT", op.type, (0, 0, 0, 0))
        if surface is None:
            return self._missing(f"no points: {op.type} product", self.fallback.matmul(where, op, tokens))
        return surface(op.k * op.n, tokens)

    def experts(self, where: Where, op: Experts, tokens: float) -> float:
        surface = self._surface(where, "MUL_MAT_ID", op.type, (0, 0, op.n_expert, op.n_used))
        if surface is None:
            return self._missing(f"no points: {op.type} experts", self.fallback.experts(where, op, tokens))
        return surface(op.k * op.n, tokens)

    def experts_by_one(self, op: Experts, tokens: float) -> float:
        points = [
            p for p in self.profile.kernels if (p.device, p.op, p.type, p.threads) == ("cpu", "MUL_MAT_ID", op.type, 1)
        ]
        fits = [p for p in points if _layout(p) == (0, 0, op.n_expert, op.n_used) and p.load == "idle"]
        if not fits:  # not faster than all of them
            ns = max(self.experts("cpu", op, tokens), self.fallback.experts_by_one(op, tokens))
            return self._missing(f"no points: {op.type} experts by one thread", ns)
        return _Surface.of((_size(p), p.tokens, p.ns) for p in fits)(op.k * op.n, tokens)

    def attention(self, where: Where, op: Attention, tokens: float, context: float) -> float:
        heads = (op.head_dim, op.n_head, op.n_head_kv, 0)
        surface = self._surface(where, "FLASH_ATTN_EXT", op.kv_type, heads)
        if surface is None:
            return self._missing("no points: attention", self.fallback.attention(where, op, tokens, context))
        # points are by the cells there are, one more for each token; ``context`` is the mean that a token sees of them
        return surface(context - (tokens - 1) / 2, tokens, growth=1.0)

    def small(self, where: Where, op: str, row_elements: int, tokens: float) -> float:
        for name in (op, _STAND_INS.get(op, "ADD"), "RMS_NORM"):
            surface = self._surface(where, name, "F32", (0, 0, 0, 0))
            if surface is not None:
                return surface(row_elements, tokens)
        ns = self.fallback.small(where, op, row_elements, tokens)
        return self._missing("no points: small operations", ns)

    def _missing(self, name: str, ns: float) -> float:
        self._used[name] += 1
        return ns

    def _surface(self, where: Where, op: str, type_name: str, layout: Shape) -> _Surface | None:
        key = (where, op, type_name, layout)
        if key not in self._surfaces:
            self._surfaces[key] = self._build(where, op, type_name, layout)
        return self._surfaces[key]

    def _build(self, where: Where, op: str, type_name: str, layout: Shape) -> _Surface | None:
        device: DeviceName = "gpu" if where == "gpu" else "cpu"
        same = [p for p in self.profile.kernels if (p.device, p.op, p.type) == (device, op, type_name)]
        fits = [p for p in self._threads(same) if _layout(p) == layout]
        idle = {(_size(p), p.tokens): p.ns for p in fits if p.load == "idle"}
        if not idle:
            return None
        scale = 1.0
        if where == "cpu_busy":
            scale = self._slowdown(op, type_name, idle, fits)
        return _Surface.of((size, tokens, ns * scale) for (size, tokens), ns in idle.items())

    def _threads(self, points: list[KernelPoint]) -> list[KernelPoint]:
        """Those of the nearest measured thread count (in ratio); the gpu has none."""
        counts = {p.threads for p in points if p.threads > 0}
        if not counts:
            return points
        nearest = min(sorted(counts), key=lambda n: abs(log(n / max(1, self.threads))))
        if nearest != self.threads:
            self._used[f"times of {nearest} threads for {self.threads}"] += 1
        return [p for p in points if p.threads == nearest]

    def _slowdown(
        self, op: str, type_name: str, idle: dict[tuple[float, int], int], points: list[KernelPoint]
    ) -> float:
        """Geometric mean of loaded / idle over points measured both ways; never below 1."""
        ratios = [p.ns / idle[_size(p), p.tokens] for p in points if p.load == "h2d" and (_size(p), p.tokens) in idle]
        if not ratios:
            self._used[f"no points under load: {type_name} {op}"] += 1
            return 1.0
        return max(1.0, exp(sum(log(r) for r in ratios) / len(ratios)))


def _size(point: KernelPoint) -> float:
    """The growing quantity of an operation: weights of a product, context of attention, elements of a row."""
    first, second, _, last = point.shape
    if point.op == "FLASH_ATTN_EXT":
        return float(last)
    return float(first * second) if point.op.startswith("MUL_MAT") else float(first)


def _layout(point: KernelPoint) -> Shape:
    """The part of the shape that must be equal."""
    a, b, c, d = point.shape
    if point.op == "FLASH_ATTN_EXT":
        return (a, b, c, 0)
    return (0, 0, c, d) if point.op == "MUL_MAT_ID" else (0, 0, 0, 0)
