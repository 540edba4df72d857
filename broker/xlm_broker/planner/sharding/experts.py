"""Single experts: how often K slots of a layer hold what a token wants, what a miss costs, and how many slots pay.

A layer that is not resident as a whole can keep K of its E experts in slots. Of the u experts a token uses a part
h(K), the hit rate, is there; each other one is uploaded after the router ran, or computed on the CPU, whichever is
shorter. The device computes the products of an expert while the next ones are uploaded.
h is measured: the part of recent routing that the K most used experts take (ExpertStats.covered); without
figures an even router is assumed, h(K) = K / E. The best static set is what eviction by decayed frequency tends to.

A step of t tokens wants e(t) = E (1 - (1 - u/E)^t) different experts. For one token the part 1 - h of them is missing;
once all are wanted it is 1 - K/E, as slots are then no better than any other place; between, in proportion to e(t).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Final

import numpy as np
from numpy.typing import NDArray

from xlm.protocol.link import ExpertPolicy, ExpertStats, ModelFacts, SubLayer

from .costs import RESIDENT, RING_PIECES, STREAM, STREAM_KV, Costs, FloatArray, TierPoint, tokens_of
from .hardware import CPU_OP_NS, CPU_OP_THREAD_NS, Machine
from .kernels import Kernels
from .work import F32_BYTES, Experts, ModelWork, Unit

FEW_TOKENS: Final = 4  # steps of up to so many may compute misses on the CPU
PART_PADDING_BYTES: Final = 4096  # alignment, and what kernels read beyond a matrix
COPIES_OF_A_PART: Final = 1.25  # more than of all rows of a result: some of them lie apart
WINDOW_PARTS: Final = 4  # experts in the window at once: one computes while the next ones are uploaded


@dataclass(frozen=True)
class Layer:
    """An experts sub-layer. ``coverage`` [K]: hit rate with K slots, from K = 0; ``at``: its place in work.units."""

    at: int
    unit: Unit
    facts: SubLayer
    coverage: FloatArray

    @property
    def count(self) -> int:
        return self.facts.n_experts

    def bytes_of(self, slots: int) -> int:
        """VRAM of so many slots."""
        return slots * self.facts.expert_bytes + self.facts.expert_overhead_bytes if slots else 0


def layers(model: ModelFacts, work: ModelWork, routing: Sequence[ExpertStats] = ()) -> list[Layer]:
    """The sub-layers whose experts the engine can keep one by one."""
    measured = {stats.index: stats for stats in routing}
    facts = {sub.index: sub for sub in model.sublayers if sub.n_experts > 1 and sub.expert_bytes > 0}
    found = ((at, unit) for at, unit in enumerate(work.units) if unit.experts and unit.index in facts)
    return [Layer(at, u, facts[u.index], coverage(facts[u.index], measured.get(u.index))) for at, u in found]


def coverage(sub: SubLayer, stats: ExpertStats | None) -> FloatArray:
    """[K from 0 to E] hit rates; never falling, 0 without slots and 1 with all."""
    even = np.linspace(0.0, 1.0, sub.n_experts + 1)
    if stats is None or len(stats.covered) != sub.n_experts:
        return even
    seen = np.concatenate([[0.0], np.frombuffer(stats.covered, dtype=np.uint8) / 255.0])
    seen[-1] = 1.0
    return np.maximum(np.maximum.accumulate(seen), even)  # the most used experts take at least their even share


def missing(op: Experts, tokens: float, hit: float, slots: int) -> float:
    """Experts that a step of so many tokens has to bring."""
    wanted = op.n_expert * op.used_share(tokens)
    few = (op.n_expert - wanted) / max(1, op.n_expert - op.n_used)  # 1 for a token, 0 where all are wanted
    return float(wanted * (few * (1.0 - hit) + (1.0 - few) * (1.0 - slots / op.n_expert)))


@dataclass(frozen=True)
class Rates:
    """Of one expert of a layer, ns; the fields of ExpertPolicy. ``joined``: its upload right behind its neighbour's.
    ``cpu_threads``: that compute misses; 0: all. ``cpu_part``: more where the device computes others of the layer."""

    upload: float
    joined: float
    cpu: float
    cpu_token: float
    cpu_fixed: float
    cpu_threads: int = 0
    cpu_part: float = 0.0

    def policy(self, slots: int) -> ExpertPolicy:
        return ExpertPolicy(
            n_slots=slots, upload_ns=round(self.upload), cpu_ns=round(self.cpu), cpu_token_ns=round(self.cpu_token),
            cpu_fixed_ns=round(self.cpu_fixed), cpu_threads=self.cpu_threads, cpu_part_ns=round(self.cpu_part),
        )  # fmt: skip


def rates(layer: Layer, kernels: Kernels, machine: Machine, hop_ns: float) -> Rates:
    """What the native part decides by: an expert over the link, matrix by matrix, or on the CPU, from where rows of
    the result go to the device, neighbours together. On the CPU by all threads or one, whichever does a token's share
    sooner: all meet at a barrier after every operation, and one at none."""
    ops = layer.unit.experts
    joined = 1e9 * layer.facts.expert_bytes / machine.link_bytes_s
    upload = joined + len(ops) * machine.link_latency_ns
    row = 1e9 * F32_BYTES * ops[-1].n / machine.link_bytes_s

    def found(products: _OnCpu, threads: int) -> Rates:
        # the layer's input comes to the host, and the way back; half of waking the threads is in each hop
        start_ns = machine.cpu_start_ns * (-0.5 if threads else 0.5)
        fixed = max(0.0, hop_ns + start_ns) + products.fixed + machine.link_latency_ns
        part = products.part + COPIES_OF_A_PART * machine.link_latency_ns
        return Rates(upload, joined, max(1.0, products.one) + row, products.more + row, fixed, threads, part)

    ways = [found(_by_all(layer.unit, kernels), 0), found(_by_one(layer.unit, kernels), 1)]
    return min(ways, key=lambda way: split_ns(way, upload, ops[0].n_used, 1.0))


@dataclass(frozen=True)
class _OnCpu:
    """ns of an expert's products for one token and for each further one, and of what is done once for all of them.
    ``part``: more for some of a layer's experts: each product gathers its rows and puts its results in their places."""

    one: float
    more: float
    fixed: float
    part: float


def _by_all(unit: Unit, kernels: Kernels) -> _OnCpu:
    """Each product was measured with the experts of a token together, that is with one barrier for all of them, which
    lasts about as long as the least operation does."""
    barriers = [
        min(kernels.small("cpu", "ADD", op.n, 1.0), kernels.experts("cpu", op, 1.0) / 2.0) for op in unit.experts
    ]
    one = sum((kernels.experts("cpu", op, 1.0) - b) / op.n_used for op, b in zip(unit.experts, barriers, strict=True))
    four = sum((kernels.experts("cpu", op, 4.0) - b) / op.n_used for op, b in zip(unit.experts, barriers, strict=True))
    gate = sum(kernels.small("cpu", op, row, 1.0) for op, row in unit.small_ops if op == "SWIGLU")
    moves = sum(
        kernels.small("cpu", "GET_ROWS", op.k, 1.0) + kernels.small("cpu", "CPY", op.n, 1.0) for op in unit.experts
    )
    return _OnCpu(one, max(0.0, (four - one) / 3.0), sum(barriers) + gate, moves)


def _by_one(unit: Unit, kernels: Kernels) -> _OnCpu:
    one, four = (sum(kernels.experts_by_one(op, t) / op.n_used for op in unit.experts) for t in (1.0, 4.0))
    small, count = CPU_OP_NS + CPU_OP_THREAD_NS, len(unit.experts)
    return _OnCpu(one, max(0.0, (four - one) / 3.0), (count + 1) * small, 2 * count * small)


def wait_ns(machine: Machine) -> float:
    """Once a layer and step: the router's ids come to the host, which wakes and says what is where. Nothing of the
    layer's experts can begin before."""
    return machine.host_wait_ns + 2.0 * machine.link_latency_ns


def split_ns(rates_: Rates, upload: float, count: int, tokens: float, *, alone: bool = True) -> float:
    """Shortest way to so many missing experts, each of them uploaded or, beside that, computed on the CPU: what the
    native part does (n_to_upload). ``alone``: the device has no others to compute."""
    on_cpu = rates_.cpu + (tokens - 1.0) * rates_.cpu_token
    fixed = [rates_.cpu_fixed + (rates_.cpu_part if n or not alone else 0.0) for n in range(count)]
    splits = (max(n * upload, fixed[n] + (count - n) * on_cpu) for n in range(count))
    return min(count * upload, *splits) if count else 0.0


def miss_ns(rates_: Rates, count: float, tokens: float, share: float, *, alone: bool = True) -> float:
    """Shortest way to a mean of ``count`` missing experts. ``share`` of all: so often an expert's neighbour comes
    too, and one copy brings both. ``alone``: all that are used are missing."""
    upload = share * rates_.joined + (1.0 - share) * rates_.upload
    if tokens > FEW_TOKENS:
        return count * upload
    whole, part = int(count), count % 1.0
    fewer = split_ns(rates_, upload, whole, tokens, alone=alone)
    return fewer + part * (split_ns(rates_, upload, whole + 1, tokens, alone=alone) - fewer) if part else fewer


def layer_ns(layer: Layer, rates_: Rates, point: TierPoint, slots: int, wait: float, core: float) -> float:
    """What a layer's misses add to its time on the device. ``wait``: ns for the router's ids, once a layer. ``core``:
    ns of all products of its experts on the device, of which those of the missing ones run beside their uploads; only
    of the last one the products come after."""
    if slots >= layer.count:
        return 0.0
    op, tokens = layer.unit.experts[0], tokens_of(layer.unit, point)
    absent = missing(op, tokens, float(layer.coverage[slots]), slots)
    misses = miss_ns(rates_, absent, tokens, absent / layer.count, alone=slots == 0)
    beside = core * absent / (op.n_expert * op.used_share(tokens))
    return wait + max(misses, beside) + min(misses, beside) / max(1.0, absent) - beside


def core_ns(layer: Layer, kernels: Kernels, tokens: float) -> float:
    return sum(kernels.experts("gpu", op, tokens) for op in layer.unit.experts)


def with_slots(
    costs: Costs, found: Sequence[Layer], slots: Mapping[int, int], rates_: Sequence[Rates], wait: float,
    kernels: Kernels,
) -> Costs:  # fmt: skip
    """Costs in which streamed experts come one by one: nothing is known of them before the router, so that nothing is
    uploaded ahead; their misses are part of their own time."""
    compute, busy, upload, share = (a.copy() for a in (costs.compute, costs.busy, costs.upload, costs.link_share))
    for layer, rate in zip(found, rates_, strict=True):
        for t, point in enumerate(costs.points):
            alone, core = compute[t, RESIDENT, layer.at], core_ns(layer, kernels, tokens_of(layer.unit, point))
            whole = alone + layer_ns(layer, rate, point, slots.get(layer.unit.index, 0), wait, core)
            for mode in (STREAM, STREAM_KV):
                compute[t, mode, layer.at] = busy[t, mode, layer.at] = whole
                upload[t, mode, layer.at] = 0.0
                # the misses have the link meanwhile
                share[t, mode, layer.at] = min(1.0, max(0.05, alone / max(whole, 1e-9)))
    pieces = costs.piece_bytes.copy()
    for layer in found:  # the ring needs room for the window, not for whole matrices
        pieces[layer.at] = WINDOW_PARTS // 2 * (layer.facts.largest_expert_bytes + PART_PADDING_BYTES)
    sparse = [layer.at for layer in found]
    window = np.full(costs.n_units, RING_PIECES * int(pieces[sparse].max(initial=0)), dtype=np.int64)
    window[sparse] = 0  # it is their own
    return replace(
        costs, compute=compute, busy=busy, upload=upload, link_share=share, piece_bytes=pieces,
        alike=_alike(costs.alike, found, slots), window_bytes=window,
    )  # fmt: skip


def _alike(alike: NDArray[np.int64], found: Sequence[Layer], slots: Mapping[int, int]) -> NDArray[np.int64]:
    """Layers with other numbers of slots or other routing are not alike any more."""
    keys: list[tuple[int, int, bytes]] = [(int(number), -1, b"") for number in alike]
    for layer in found:
        keys[layer.at] = (int(alike[layer.at]), slots.get(layer.unit.index, 0), layer.coverage.tobytes())
    numbers: dict[tuple[int, int, bytes], int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def shared_out(
    found: Sequence[Layer], rates_: Sequence[Rates], points: Sequence[TierPoint], weights: FloatArray, room_bytes: int,
    kernels: Kernels,
) -> dict[int, int]:  # fmt: skip
    """Slots by sub-layer index for so many bytes: one after the other where it saves most time a byte.

    Greedy is best for one layer where hit rates grow ever more slowly, as those of the most used experts do. A layer
    begins with as many as a token uses: fewer hold no step.
    """
    slots = {layer.unit.index: 0 for layer in found}
    left, heap = room_bytes, []
    cores = [[core_ns(layer, kernels, tokens_of(layer.unit, point)) for point in points] for layer in found]
    for i, (layer, rate) in enumerate(zip(found, rates_, strict=True)):
        heap.append(_next(i, layer, rate, points, weights, 0, cores[i]))
    heapify(heap)
    while heap:
        _, i, more, size = heappop(heap)
        layer = found[i]
        if size > left:
            continue
        left -= size
        slots[layer.unit.index] += more
        if slots[layer.unit.index] < layer.count:
            heappush(heap, _next(i, layer, rates_[i], points, weights, slots[layer.unit.index], cores[i]))
    return slots


def _next(
    i: int, layer: Layer, rate: Rates, points: Sequence[TierPoint], weights: FloatArray, have: int,
    cores: Sequence[float],
) -> tuple[float, int, int, int]:  # fmt: skip
    """(minus ns saved a byte, layer, slots more, bytes more)."""
    more = min(layer.count - have, layer.unit.experts[0].n_used if have == 0 else max(1, layer.count // 64))
    size = layer.bytes_of(have + more) - layer.bytes_of(have)
    saved = sum(
        w * (layer_ns(layer, rate, p, have, 0.0, core) - layer_ns(layer, rate, p, have + more, 0.0, core))
        for p, w, core in zip(points, weights.tolist(), cores, strict=True)
        if w > 0
    )
    return -saved / max(1, size), i, more, size
