"""Costs of every sub-layer in every tier and mode, as arrays: what planner and simulation calculate with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from xlm.errors import ShapeError

from .hardware import Machine
from .kernels import Kernels, Where
from .work import CELL_PAD, MASK_BYTES, ModelWork, Unit

# Modes of a sub-layer in a step. LINK_MODES turns them into link.Tier placements.
CPU, STREAM, RESIDENT, STREAM_KV = 0, 1, 2, 3  # STREAM_KV: weights and KV cache are copied for the step
N_MODES = 4
RING_PIECES = 2  # one piece computes while the next is copied
# What a sub-layer keeps on the device, for all tiers: nothing, its KV cache, everything.
NOTHING, KV, EVERYTHING = 0, 1, 2

CACHE_COPIES: Final = 2  # K and V
ROWS_AT_ONCE: Final = 12  # attention sub-layers whose new rows of the cache go home together
CACHE_PLACES: Final = 2  # the most that the ring has for caches alone: one is read while the next one is uploaded
# Graphs that a sub-layer is submitted as: the parts of what is streamed come apart where the ring is short, attention
# whose cache is in the ring has one for what reads it, and of resident ones neighbours are joined.
STREAM_SUBMISSIONS: Final = 2.0
CACHE_SUBMISSIONS: Final = 3.0
RESIDENT_SUBMISSIONS: Final = 0.5
BORDER_ROWS: Final = 2  # that cross between CPU and device, a copy each: the residual, and what the next one works on

MAX_BYTES: Final = 1 << 62  # of a whole model; what the arrays below hold

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the engine can do. ``kv_streaming``: device attention without a lasting KV copy.

    ``expert_granular``: a miss of a few experts uploads those only (after the router, so it cannot be prefetched).
    ``ring_across_steps``: what is prefetched at the end of a step is still there in the next. ``ahead_ns``: of uploads
    that are queued when the CPU begins with a sub-layer; until it is done nobody queues more.
    """

    kv_streaming: bool = False
    expert_granular: bool = False
    ring_across_steps: bool = False
    ahead_ns: float = inf


@dataclass(frozen=True, slots=True)
class TierPoint:
    """A tier and the KV depth before its step at which it is costed."""

    tokens: int
    depth: float


@dataclass(frozen=True)
class Costs:
    """Arrays over [tier, mode, unit] (ns, link times at the idle rate) and over [unit] (bytes).

    ``busy``: the time on the CPU while the link copies. ``upload``: 0 where nothing is copied ahead.
    ``link_share``: part of the link's rate that prefetching has while the unit runs. Where something is uploaded ahead
    the unit runs on the device: as fast as without, and with all of the link (``busy`` = ``compute``, share 1).
    ``piece_share``: last piece over all bytes of a streamed unit.
    """

    points: tuple[TierPoint, ...]
    compute: FloatArray
    busy: FloatArray
    upload: FloatArray
    link_share: FloatArray
    piece_share: FloatArray
    hop_up: FloatArray  # [tier, unit] host -> device, before it
    hop_down: FloatArray  # [tier, unit] device -> host, before it, and behind the last
    home: FloatArray  # [tier] new rows of a cache to the host, before the CPU goes on
    mask: FloatArray  # [tier] the causal mask to the device, once in a step that attends there
    step: FloatArray  # [tier] outside of the graph
    weight_bytes: NDArray[np.int64]
    kv_bytes: NDArray[np.int64]
    piece_bytes: NDArray[np.int64]
    link_bytes_ns: float  # bytes per ns
    capabilities: Capabilities
    alike: NDArray[np.int64]  # [unit] equal numbers: equal in everything above
    window_bytes: NDArray[np.int64] | int = 0  # [unit] of the ring, for experts: what a unit streams lies beside it
    cache_read: FloatArray | float = 0.0  # [tier, unit] of STREAM_KV: computed once its cache is there
    cache_first: FloatArray | float = 0.0  # [unit] uploaded before the cache, and behind it
    cache_last: FloatArray | float = 0.0

    @cached_property
    def slowdown(self) -> FloatArray:
        """[tier, mode, unit] how much longer a unit takes while the link is busy; at least 1."""
        return np.asarray(np.maximum(self.busy / np.maximum(self.compute, 1e-9), 1.0), dtype=np.float64)

    @cached_property
    def lead(self) -> FloatArray:
        """[tier, mode, unit] from its place in the uploads to where the link is at its end at least, ns; -infinity
        where nothing is uploaded: its last piece, or all but its first one, still has to be computed."""
        piece = self.piece_share
        lead = np.maximum(self.compute - self.upload * (1.0 - piece), self.compute * piece)
        kv, first = np.asarray(self.compute[:, STREAM_KV]), np.asarray(self.cache_first)
        behind = np.maximum(kv - self.upload[:, STREAM_KV] + first, self.cache_read - self.cache_last)
        lead[:, STREAM_KV] = np.where(first > 0, behind, lead[:, STREAM_KV])
        return np.where(self.upload > 0, lead, -np.inf)

    @cached_property
    def alone(self) -> FloatArray:
        """[tier, mode, unit] what the link copies beside a unit that waits for nothing, in ns of the idle link."""
        beside = self.compute * self.slowdown
        beside[:, CPU] = np.minimum(beside[:, CPU], self.capabilities.ahead_ns)
        return np.asarray(beside * self.link_share, dtype=np.float64)

    @cached_property
    def pace_cost(self) -> FloatArray:
        """[tier, mode, unit] ns that a unit takes longer for each ns of the idle link that is copied beside it."""
        return np.asarray((1.0 - 1.0 / self.slowdown) / self.link_share, dtype=np.float64)

    @cached_property
    def kv_ring_bytes(self) -> NDArray[np.int64]:
        """[unit] the least ring that takes its pieces and its cache."""
        return self.plain_ring_bytes + self.kv_bytes

    @cached_property
    def ring_of_most(self) -> int:
        """The least ring that takes the pieces of any sub-layer that others are alike."""
        first, count = self.classes
        usual = first[count > 1] if (count > 1).any() else first
        return int(self.plain_ring_bytes[usual].max(initial=0))

    @cached_property
    def plain_ring_bytes(self) -> NDArray[np.int64]:
        """[unit] the least ring that takes its pieces."""
        return np.asarray(RING_PIECES * self.piece_bytes + self.window_bytes, dtype=np.int64)

    @cached_property
    def beside_caches_bytes(self) -> NDArray[np.int64]:
        """[unit] the least part of the ring that its weights need beside places for caches; none for experts, which go
        through the window."""
        by_window = (np.asarray(self.window_bytes) == 0) & bool(np.any(self.window_bytes))
        return np.asarray(np.where(by_window, 0, RING_PIECES * self.piece_bytes), dtype=np.int64)

    @cached_property
    def ring_needs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The different least rings, ascending: for units without their caches, and with those that have one, with one
        or two places beside the weights of other sub-layers."""
        beside = [n * self.kv_bytes[self.cached] + self.ring_of_most for n in (1, CACHE_PLACES)]
        return np.unique(self.plain_ring_bytes), np.unique(np.concatenate([self.kv_ring_bytes[self.cached], *beside]))

    @cached_property
    def cached(self) -> NDArray[np.bool_]:
        """[unit] whether it has a KV cache."""
        return np.asarray(self.kv_bytes > 0)

    @cached_property
    def classes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[class] the first unit of those alike, and how many they are."""
        _, first, count = np.unique(self.alike, return_index=True, return_counts=True)
        return first, count

    @cached_property
    def without_kv_streaming(self) -> Costs:
        return replace(self, capabilities=replace(self.capabilities, kv_streaming=False))

    @property
    def n_units(self) -> int:
        return len(self.weight_bytes)

    @property
    def n_tiers(self) -> int:
        return len(self.points)

    def ring_ns(self, ring_bytes: NDArray[np.int64] | int) -> FloatArray:
        """Of the link, for what of a ring of so many bytes is not the experts' window."""
        window = int(np.max(self.window_bytes, initial=0))
        return np.asarray(np.maximum(ring_bytes - window, 0) / self.link_bytes_ns, dtype=np.float64)


def build_costs(
    work: ModelWork, machine: Machine, kernels: Kernels, points: Sequence[TierPoint], capabilities: Capabilities
) -> Costs:
    """Costs of a model on a machine. Asks the kernels once for each distinct sub-layer.

    ShapeError where the numbers make a model larger than any memory.
    """
    total = sum(unit.device_bytes + unit.kv_bytes for unit in work.units)
    if total > MAX_BYTES:
        raise ShapeError(f"weights and KV cache would take {total / 2**60:.0f} EiB", code="shape_invalid")
    distinct, which = _distinct(work.units)
    filled = [_tier(distinct, point, machine, kernels, capabilities) for point in points]
    compute, busy, upload, link_share = (np.stack([tier[a] for tier in filled])[:, :, which] for a in range(4))
    weights = np.array([u.device_bytes for u in work.units], dtype=np.int64)
    pieces = np.minimum(np.array([u.piece_bytes or u.device_bytes for u in work.units], dtype=np.int64), weights)
    hops = np.array([_hops(work, machine, point) for point in points])
    behind = np.array([_behind_cache(unit, machine) for unit in distinct])
    before = np.where(behind > 0, np.maximum(filled[0][2][STREAM] - behind, 0.0), 0.0)
    read = np.array([[_cache_read(unit, point, kernels) for unit in distinct] for point in points])
    return Costs(
        points=tuple(points), compute=compute, busy=busy, upload=upload, link_share=link_share,
        piece_share=pieces / np.maximum(weights, 1), hop_up=hops[:, :-1], hop_down=hops,
        step=np.array([_step(machine, point) for point in points]),
        weight_bytes=weights, kv_bytes=np.array([u.kv_bytes for u in work.units], dtype=np.int64), piece_bytes=pieces,
        link_bytes_ns=machine.link_bytes_s / 1e9, capabilities=capabilities, alike=which,
        cache_read=read[:, which], cache_first=before[which], cache_last=behind[which],
        home=np.array([_home(work, machine, point) for point in points]),
        mask=np.array([_mask(machine, point) for point in points]),
    )  # fmt: skip


def _distinct(units: Sequence[Unit]) -> tuple[list[Unit], NDArray[np.int64]]:
    """Sub-layers that differ in work, and for each unit which of them it is."""
    seen: dict[tuple[object, ...], int] = {}
    which = [seen.setdefault(_work_of(unit), len(seen)) for unit in units]
    first = {place: unit for unit, place in zip(reversed(units), reversed(which), strict=True)}
    return [first[place] for place in range(len(seen))], np.array(which, dtype=np.int64)


def _work_of(u: Unit) -> tuple[object, ...]:
    sizes = (u.device_bytes, u.kv_bytes, u.piece_bytes, u.small_ops, u.last_token_only)
    return (*sizes, u.matmuls, u.experts, u.attention)


def _hops(work: ModelWork, machine: Machine, point: TierPoint) -> list[float]:
    """ns before each unit and behind the last. A step's inputs are one copy; what only looks at outputs gets theirs."""
    found, rows = [], 1
    for unit in work.units:
        copy = 1e9 * work.activation_bytes(1.0 if unit.kind == "output" else point.tokens) / machine.link_bytes_s
        found.append(rows * (copy + machine.copy_ns) - machine.copy_ns)
        rows = BORDER_ROWS
    result = 1e9 * work.activation_bytes(1.0) / machine.link_bytes_s
    return [ns + machine.link_latency_ns + machine.host_sync_ns for ns in (*found, result)]


def _step(machine: Machine, point: TierPoint) -> float:
    return machine.step_ns + point.tokens * (machine.step_token_ns + machine.step_cell_ns * cells(point))


def _home(work: ModelWork, machine: Machine, point: TierPoint) -> float:
    """Of one attention sub-layer, ns."""
    rows = max((unit.attention.kv_bytes_per_token for unit in work.units if unit.attention), default=0.0)
    return 1e9 * rows * point.tokens / machine.link_bytes_s + machine.copy_ns * CACHE_COPIES


def _mask(machine: Machine, point: TierPoint) -> float:
    return 1e9 * MASK_BYTES * point.tokens * cells(point) / machine.link_bytes_s


def cells(point: TierPoint) -> int:
    """Of the cache that a step touches."""
    return CELL_PAD * ceil((point.depth + point.tokens) / CELL_PAD)


def _tier(
    units: Sequence[Unit], point: TierPoint, machine: Machine, kernels: Kernels, capabilities: Capabilities
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """compute, busy, upload and link share of one tier, each [mode, distinct unit]."""
    shape = (N_MODES, len(units))
    compute, busy, upload, link_share = np.zeros(shape), np.zeros(shape), np.zeros(shape), np.ones(shape)
    for i, unit in enumerate(units):
        compute[:, i] = unit_ns(unit, point, kernels, "gpu") + machine.submit_ns * _submissions(unit)
        busy[:, i] = compute[:, i]
        compute[CPU, i] = unit_ns(unit, point, kernels, "cpu")
        busy[CPU, i] = max(float(compute[CPU, i]), unit_ns(unit, point, kernels, "cpu_busy"))
        link_share[CPU, i] = machine.link_under_cpu_share
        _fill_uploads(compute, busy, upload, link_share, i, unit, point, machine, capabilities)
    return compute, busy, upload, link_share


def tokens_of(unit: Unit, point: TierPoint) -> float:
    """That the unit computes."""
    return 1.0 if unit.last_token_only else float(point.tokens)


def unit_ns(unit: Unit, point: TierPoint, kernels: Kernels, where: Where) -> float:
    """Time of one sub-layer: its operations one after the other."""
    tokens = tokens_of(unit, point)
    total = sum(kernels.matmul(where, op, tokens) for op in unit.matmuls)
    total += sum(kernels.experts(where, op, tokens) for op in unit.experts)
    if unit.attention is not None:
        # causal: a token sees the cache before the step and, on average, half of the step
        total += kernels.attention(where, unit.attention, tokens, point.depth + (tokens + 1.0) / 2.0)
    return total + sum(kernels.small(where, op, row, tokens) for op, row in unit.small_ops)


def _fill_uploads(
    compute: FloatArray, busy: FloatArray, upload: FloatArray, link_share: FloatArray, i: int, unit: Unit,
    point: TierPoint, machine: Machine, capabilities: Capabilities,
) -> None:  # fmt: skip
    whole = 1e9 * unit.device_bytes / machine.link_bytes_s + machine.copy_ns * _matrices(unit)
    share = unit.experts[0].used_share(tokens_of(unit, point)) if unit.experts else 1.0
    upload[STREAM, i] = whole
    if capabilities.expert_granular and share < 0.5:  # which ones is known only after the router: the step waits
        alone = compute[STREAM, i]
        compute[STREAM, i] += whole * share + machine.link_latency_ns
        busy[STREAM, i], upload[STREAM, i] = compute[STREAM, i], 0.0
        link_share[STREAM, i] = alone / compute[STREAM, i]
    if unit.attention is None:
        for array in (compute, busy, link_share, upload):
            array[STREAM_KV, i] = array[STREAM, i]
        return
    cache = min(unit.attention.kv_bytes_per_token * cells(point), unit.kv_bytes)
    upload[STREAM_KV, i] = whole + 1e9 * cache / machine.link_bytes_s + machine.copy_ns * CACHE_COPIES


def _behind_cache(unit: Unit, machine: Machine) -> float:
    """Of a streamed cache's unit, ns of the link: the matrix that is applied to what was read."""
    if unit.attention is None or not unit.matmuls:
        return 0.0
    return 1e9 * unit.matmuls[-1].weight_bytes / machine.link_bytes_s + machine.copy_ns


def _cache_read(unit: Unit, point: TierPoint, kernels: Kernels) -> float:
    """ns on the device for which the cache is needed, and of what follows."""
    if unit.attention is None:
        return 0.0
    tokens = float(point.tokens)
    reading = kernels.attention("gpu", unit.attention, tokens, point.depth + (tokens + 1.0) / 2.0)
    return reading + sum(kernels.matmul("gpu", op, tokens) for op in unit.matmuls[-1:])


def _matrices(unit: Unit) -> int:
    """Copies that its weights take."""
    return max(1, len(unit.matmuls) + len(unit.experts))


def _submissions(unit: Unit) -> FloatArray:
    """[mode]"""
    apart = min(STREAM_SUBMISSIONS, _matrices(unit))
    found = np.array([0.0, apart, RESIDENT_SUBMISSIONS, apart])
    found[STREAM_KV] = CACHE_SUBMISSIONS if unit.attention else apart
    return found
