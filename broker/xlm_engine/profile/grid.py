"""Which points to measure, most useful first. Pure: facts in, tasks out.

A task is one kernel with one set of weights over several step sizes and thread counts: its weights are placed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from xlm_engine.profile.points import NO_SHAPE, DeviceName, Direction, KernelId, LinkId, Load, Memory, Shape

TYPES: Final = ("Q4_K", "Q8_0", "F16", "Q4_0", "Q6_K", "Q4_1", "Q5_K", "Q5_0", "Q2_K", "BF16", "F32")
QUICK_TYPES: Final = TYPES[:5]
TOKENS: Final = (1, 4, 16, 64, 256, 512, 1024)
QUICK_TOKENS: Final = (1, 4, 16, 64, 256)
FEW_TOKENS: Final = (1, 4)  # of steps in which one thread may compute what is missing on the device
OUTPUT_TOKENS: Final = (1, 4, 16)  # the output matrix sees the tokens that are sampled from, not the whole step
SIZES: Final = ((1024, 1024), (4096, 4096))
LARGE_SIZE: Final = (4096, 14336)  # few tokens: what many cost follows from the smaller ones
LARGE_TOKENS: Final = TOKENS[:4]
EXPERT_SHAPES: Final[tuple[Shape, ...]] = ((2048, 768, 64, 8), (4096, 2048, 8, 2))
EXPERT_TYPES: Final = ("Q4_K", "Q8_0", "F16", "Q4_0", "Q6_K")
HEADS: Final = ((128, 32, 8), (64, 32, 8), (128, 16, 16))
KV_TYPES: Final = ("F16", "Q8_0")
CONTEXTS: Final = (256, 1024, 4096, 16384)
QUICK_CONTEXTS: Final = (256, 1024, 4096)
ATTENTION_TOKENS: Final = (1, 16, 64, 512)
QUICK_ATTENTION_TOKENS: Final = (1, 64)
QUICK_OWN_ATTENTION_TOKENS: Final = (1, 64, 512)  # the model's: a whole step of a prompt
SMALL_OPS: Final = ("RMS_NORM", "ADD", "MUL", "SILU", "SWIGLU", "ROPE", "SOFT_MAX")
ROWS: Final = (1024, 4096, 14336)
QUICK_ROWS: Final = (1024, 4096)
SMALL_TOKENS: Final = (1, 16, 64, 512)
QUICK_SMALL_TOKENS: Final = (1, 64)

KIB: Final = 1 << 10
MIB: Final = 1 << 20
LINK_SIZES: Final = (64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
QUICK_LINK_SIZES: Final = (64 * KIB, MIB, 16 * MIB)
LOADED_LINK_SIZES: Final = (MIB, 16 * MIB)
_GUESSED_FLOPS_S: Final = 25e9  # of a thread
LOADED_SIZE: Final = (4096, 4096)
LOADED_TOKENS: Final = (1, 64)
# idle again, right before: what matters is the ratio, and other programs come and go
LOADS: Final[tuple[Load, ...]] = ("idle", "h2d", "d2h", "both")


@dataclass(frozen=True)
class ModelNeeds:
    """What a model computes with. ``products``: (type, k, n, is the output matrix)."""

    products: tuple[tuple[str, int, int, bool], ...] = ()
    experts: tuple[tuple[str, Shape], ...] = ()
    heads: tuple[int, int, int] | None = None
    n_embd: int = 0
    n_ff: int = 0
    n_ctx: int = 0

    @property
    def types(self) -> tuple[str, ...]:
        """Those of its matrices, the most frequent first."""
        names = [type_ for type_, *_ in self.products] + [type_ for type_, _ in self.experts]
        return tuple(sorted(set(names), key=lambda name: (-names.count(name), name)))


@dataclass(frozen=True)
class Facts:
    """``gpu``: kernels of the device are measured. ``link``: so are its transfers."""

    n_threads: int
    quick: bool = False
    gpu: bool = False
    link: bool = False
    model: ModelNeeds = field(default_factory=ModelNeeds)


@dataclass(frozen=True, slots=True)
class KernelTask:
    """One kernel over steps of ``tokens`` and, on the cpu, ``threads``; under each of ``loads``."""

    device: DeviceName
    op: str
    type: str
    shape: Shape
    tokens: tuple[int, ...]
    threads: tuple[int, ...]
    loads: tuple[Load, ...] = ("idle",)
    warm: bool = False  # measure also with weights in the cache, for the notes

    @property
    def name(self) -> str:
        numbers = "x".join(str(number) for number in self.shape if number)
        under = "" if self.loads == ("idle",) else " while the link is busy"
        by = " by one thread" if self.threads == (1,) else ""
        return f"{self.device} {self.op} {self.type} {numbers}{by}{under}".replace("  ", " ").strip()

    def points(self) -> Iterator[KernelId]:
        for tokens in self.tokens:
            for threads in self.threads:
                for load in self.loads:
                    yield KernelId(self.device, self.op, self.type, self.shape, tokens, threads, load)


@dataclass(frozen=True, slots=True)
class LinkTask:
    """Transfers with an idle CPU."""

    direction: Direction
    memory: Memory
    sizes: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"link {self.direction} {self.memory}"

    def points(self) -> Iterator[LinkId]:
        for size in self.sizes:
            yield LinkId(self.direction, self.memory, size, 0)


@dataclass(frozen=True, slots=True)
class BusyLinkTask:
    """Transfers while the CPU computes products that read their weights from memory."""

    direction: Direction
    type: str
    sizes: tuple[int, ...]
    threads: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"link {self.direction} while the CPU computes"

    def points(self) -> Iterator[LinkId]:
        for size in self.sizes:
            for threads in self.threads:
                yield LinkId(self.direction, "pinned", size, threads)


Task = KernelTask | LinkTask | BusyLinkTask


def thread_counts(n_threads: int, quick: bool) -> tuple[int, ...]:
    """All, and without ``quick`` also one, a quarter and a half of them."""
    if quick:
        return (n_threads,)
    return tuple(sorted({1, max(1, n_threads // 4), max(1, n_threads // 2), n_threads}))


def tasks(facts: Facts) -> list[Task]:
    """Everything to measure, each point once. A run that is cut short has the most useful part."""
    ordered = [*_overheads(facts), *_links(facts), *_model(facts), *_products(facts), *_attention(facts)]
    ordered += [*_loaded(facts), *_small(facts), *_experts(facts)]
    return _once(ordered)


def repeated(facts: Facts) -> list[KernelTask]:
    """What is measured again at the end: the given model's own kernels on the CPU, of which its plans are made, and
    what it takes to start them."""
    again = [*_overheads(facts), *_model(facts), *_small_of(facts, _own_rows(facts), QUICK_SMALL_TOKENS)]
    return [task for task in again if isinstance(task, KernelTask) and task.device == "cpu"]


def cost_s(point: KernelId | LinkId, effort_s: float) -> float:
    """Rough time that measuring a point takes: a guess that only has to be right in proportion."""
    if isinstance(point, LinkId):
        return effort_s
    trial_and_sample = 2 * flops(point) / (_GUESSED_FLOPS_S * max(1, point.threads))
    return effort_s + (trial_and_sample if point.device == "cpu" else 0.0)


def flops(point: KernelId) -> float:
    a, b, _, d = point.shape
    if point.op == "MUL_MAT":
        return 2.0 * a * b * point.tokens
    if point.op == "MUL_MAT_ID":
        return 2.0 * a * b * d * point.tokens
    return 4.0 * a * b * d * point.tokens if point.op == "FLASH_ATTN_EXT" else 0.0


def _once(ordered: Iterable[Task]) -> list[Task]:
    seen: set[tuple[object, ...]] = set()
    kept = []
    for task in ordered:
        fresh = [point for point in task.points() if tuple(point) not in seen]
        seen.update(tuple(point) for point in fresh)
        if fresh:
            kept.append(task)
    return kept


def _on(
    facts: Facts, op: str, type_: str, shape: Shape, tokens: Sequence[int], *, warm: bool = False
) -> Iterator[Task]:
    """The kernel on the CPU and, where there is one, on the device."""
    steps = tuple(tokens)
    yield KernelTask("cpu", op, type_, shape, steps, thread_counts(facts.n_threads, facts.quick), warm=warm)
    if facts.gpu:
        yield KernelTask("gpu", op, type_, shape, steps, (0,))


def _overheads(facts: Facts) -> Iterator[Task]:
    yield from _on(facts, "GRAPH", "F32", NO_SHAPE, (1,))


def _links(facts: Facts) -> Iterator[Task]:
    if not facts.link:
        return
    sizes = QUICK_LINK_SIZES if facts.quick else LINK_SIZES
    memories: tuple[Memory, ...] = ("pinned", "pageable")
    directions: tuple[Direction, ...] = ("h2d", "d2h")
    for memory in memories:
        for direction in directions:
            yield LinkTask(direction, memory, sizes)


def _model(facts: Facts) -> Iterator[Task]:
    model, tokens = facts.model, QUICK_TOKENS if facts.quick else TOKENS
    for type_, k, n, is_output in model.products:
        yield from _on(facts, "MUL_MAT", type_, (k, n, 0, 0), OUTPUT_TOKENS if is_output else tokens)
    for type_, shape in model.experts:
        yield from _on(facts, "MUL_MAT_ID", type_, shape, tokens)
        if 1 not in thread_counts(facts.n_threads, facts.quick):
            yield KernelTask("cpu", "MUL_MAT_ID", type_, shape, FEW_TOKENS, (1,))
    if model.heads:
        yield from _heads(facts, model.heads, QUICK_OWN_ATTENTION_TOKENS)


def _products(facts: Facts) -> Iterator[Task]:
    tokens = QUICK_TOKENS if facts.quick else TOKENS
    types = QUICK_TYPES if facts.quick else TYPES
    for type_ in dict.fromkeys((*facts.model.types, *types)):
        for k, n in SIZES:
            yield from _on(facts, "MUL_MAT", type_, (k, n, 0, 0), tokens, warm=(k, n) == SIZES[0])
        if not facts.quick:
            yield from _on(facts, "MUL_MAT", type_, (*LARGE_SIZE, 0, 0), LARGE_TOKENS)


def _experts(facts: Facts) -> Iterator[Task]:
    tokens = QUICK_TOKENS[:4] if facts.quick else TOKENS[:6]
    types = EXPERT_TYPES[:2] if facts.quick else EXPERT_TYPES
    shapes = EXPERT_SHAPES[:1] if facts.quick else EXPERT_SHAPES
    for type_ in types:
        for shape in shapes:
            yield from _on(facts, "MUL_MAT_ID", type_, shape, tokens)


def _attention(facts: Facts) -> Iterator[Task]:
    for heads in HEADS[:1] if facts.quick else HEADS:
        yield from _heads(facts, heads, QUICK_ATTENTION_TOKENS)


def _heads(facts: Facts, heads: tuple[int, int, int], quick_tokens: Sequence[int]) -> Iterator[Task]:
    tokens = quick_tokens if facts.quick else ATTENTION_TOKENS
    contexts = QUICK_CONTEXTS if facts.quick else CONTEXTS
    for kv_type in KV_TYPES[:1] if facts.quick else KV_TYPES:
        for context in contexts:
            steps = [count for count in tokens if count <= context]
            yield from _on(facts, "FLASH_ATTN_EXT", kv_type, (*heads, context), steps)


def _small(facts: Facts) -> Iterator[Task]:
    rows = (*_own_rows(facts), *(QUICK_ROWS if facts.quick else ROWS))
    yield from _small_of(facts, rows, QUICK_SMALL_TOKENS if facts.quick else SMALL_TOKENS)


def _own_rows(facts: Facts) -> list[int]:
    return [row for row in (facts.model.n_embd, facts.model.n_ff) if row]


def _small_of(facts: Facts, rows: Sequence[int], tokens: Sequence[int]) -> Iterator[Task]:
    for op in SMALL_OPS:
        for row in dict.fromkeys(rows):
            yield from _on(facts, op, "F32", (row, 0, 0, 0), tokens)


def _loaded(facts: Facts) -> Iterator[Task]:
    """CPU kernels while the link is busy, and the link while the CPU is."""
    if not facts.link:
        return
    threads = thread_counts(facts.n_threads, facts.quick)
    types = list(dict.fromkeys((*facts.model.types, *QUICK_TYPES)))
    product: Shape = (*LOADED_SIZE, 0, 0)
    for type_ in types[:2] if facts.quick else types:
        yield KernelTask("cpu", "MUL_MAT", type_, product, LOADED_TOKENS, threads, LOADS)
    heads = facts.model.heads or HEADS[0]
    yield KernelTask("cpu", "FLASH_ATTN_EXT", "F16", (*heads, 4096), (1,), threads, LOADS)
    yield KernelTask("cpu", "RMS_NORM", "F32", (4096, 0, 0, 0), (64,), threads, LOADS)
    directions: tuple[Direction, ...] = ("h2d", "d2h")
    for direction in directions:
        yield BusyLinkTask(direction, types[0], LOADED_LINK_SIZES, threads)
