"""Kernels as ggml graphs. A kernel places its weights once (many copies, so that a rotation through them leaves the
caches); a step builds graphs of many operations of one size over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, sqrt
from types import TracebackType
from typing import Any, Final

import numpy as np

from xlm.errors import DeviceError
from xlm_engine.profile.backend import Arena, Backend, Context, Patterns, put
from xlm_engine.profile.ggml import Ggml, ggml
from xlm_engine.profile.points import Shape

MAX_COPIES: Final = 1024  # of a small matrix
MAX_GRAPHS: Final = 256
_EPSILON: Final = 1e-5
_ROPE_BASE: Final = 10000.0
_VIEWS_PER_NODE: Final = 6  # tensors a node may bring along


class Unmeasurable(Exception):
    """This kernel cannot run here: an operation the backend lacks, or memory it does not have. Not an error."""


@dataclass
class Memory:
    """``weights``: rotated through; ``work``: activations. ``cache_bytes``: what a rotation has to exceed."""

    weights: Arena
    work: Arena
    cache_bytes: int
    patterns: Patterns = field(default_factory=Patterns)

    def close(self) -> None:
        self.weights.close()
        self.work.close()


class Kernel:
    """One operation with its weights placed. Use as a context manager; the memory is the next kernel's afterwards."""

    def __init__(self, backend: Backend, memory: Memory, op: str, type_: str, shape: Shape) -> None:
        self.g: Final[Ggml] = ggml()
        self.backend: Final = backend
        self.memory: Final = memory
        self.op: Final = op
        self.type: Final = type_
        self.shape: Final = shape
        self._context: Final = Context(2 * MAX_COPIES + 8)
        self.copies: list[tuple[Any, ...]] = []
        memory.weights.reset()
        try:
            self._place()
        except BaseException:
            self.close()
            raise

    @property
    def n_copies(self) -> int:
        """Sets of weights to rotate through; 0 for an operation that has none."""
        return len(self.copies)

    def _place(self) -> None:
        """One set, then as many more as it takes to leave the caches."""
        sizes = _weight_sizes(self.op, self.shape)
        if not sizes:
            return
        if self.type not in self.g.types:
            raise Unmeasurable(f"ggml has no type {self.type}")
        if sizes[0][0] % self.g.lib.ggml_blck_size(self.g.types[self.type]):
            raise Unmeasurable(f"rows of {sizes[0][0]} are no whole blocks of {self.type}")
        while len(self.copies) < MAX_COPIES and self._place_one(sizes):
            if self.memory.weights.used_bytes > 2 * self.memory.cache_bytes and len(self.copies) > 1:
                break
        if not self.copies:
            raise Unmeasurable(f"{self.op} {self.shape}: its weights do not fit the memory for measuring")

    def _place_one(self, sizes: list[tuple[int, ...]]) -> bool:
        tensors = tuple(self._context.tensor(self.type, *size) for size in sizes)
        arena = self.memory.weights
        if arena.next_offset() + sum(arena.need(t) + 512 for t in tensors) > arena.size_bytes:
            return False
        for tensor in tensors:
            arena.place(tensor)
            self.memory.patterns.fill(tensor, self.type)
        self.copies.append(tensors)
        return True

    def close(self) -> None:
        self._context.__exit__(None, None, None)

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _weight_sizes(op: str, shape: Shape) -> list[tuple[int, ...]]:
    """What is read from memory anew each time: matrices, or the K and V rows of one layer as llama.cpp lays them."""
    a, b, c, d = shape
    if op == "MUL_MAT":
        return [(a, b)]
    if op == "MUL_MAT_ID":
        return [(a, b, c)]
    return [(a, c, d), (a, c, d)] if op == "FLASH_ATTN_EXT" else []


class Step:
    """Graphs of one kernel at one number of tokens. The results of all operations share one place."""

    def __init__(self, kernel: Kernel, tokens: int, n_nodes: int, copies: int | None = None) -> None:
        """``n_nodes`` operations a graph. ``copies``: rotate through so many sets only (1: warm weights)."""
        self.kernel: Final = kernel
        self.tokens: Final = tokens
        self.n_nodes: Final = n_nodes
        self._rotation: Final = max(1, kernel.n_copies if copies is None else min(copies, kernel.n_copies))
        self.n_graphs: Final = min(MAX_GRAPHS, max(1, ceil(self._rotation / n_nodes)))
        n_tensors = self.n_graphs * n_nodes * _VIEWS_PER_NODE + 64
        self._context: Final = Context(n_tensors, self.n_graphs, n_nodes * _VIEWS_PER_NODE + 64)
        self._graphs: dict[int, Any] = {}
        self._inputs: dict[str, Any] = {}
        self._output_at: int | None = None
        kernel.memory.work.reset()

    def compute(self, index: int) -> None:
        """Computes the index-th graph of the rotation, without waiting for anything else."""
        self.kernel.backend.compute(self.graph(index))

    def graph(self, index: int) -> Any:
        """Built when it is needed first: call it before the clock is started."""
        slot = index % self.n_graphs
        if slot not in self._graphs:
            self._graphs[slot] = self._build(slot * self.n_nodes)
        return self._graphs[slot]

    def _build(self, first: int) -> Any:
        g, pointer = self.kernel.g, self._context.pointer
        graph = g.lib.ggml_new_graph_custom(pointer, self.n_nodes * _VIEWS_PER_NODE + 64, False)
        make = _MAKERS[self.kernel.op]
        for index in range(first, first + self.n_nodes):
            node = make(self, index)
            self._place_output(node)
            if not self.kernel.backend.supports(node):
                raise Unmeasurable(f"the {self.kernel.backend.device} has no {self.kernel.op} of {self.kernel.type}")
            g.lib.ggml_build_forward_expand(graph, node)
        return graph

    def _place_output(self, node: Any) -> None:
        if self._output_at is not None:
            self.kernel.memory.work.place_at(node, self._output_at)
            return
        self._output_at = self.kernel.memory.work.next_offset()
        self._place_in_work(node)

    def _place_in_work(self, tensor: Any) -> None:
        try:
            self.kernel.memory.work.place(tensor)
        except DeviceError as error:
            raise Unmeasurable(f"{self.tokens} tokens: {error.message}") from error

    # -- what the makers use

    @property
    def pointer(self) -> Any:
        return self._context.pointer

    def weights(self, index: int) -> tuple[Any, ...]:
        return self.kernel.copies[index % self._rotation]

    def input(self, name: str, type_: str, *ne: int, data: Callable[[], np.ndarray[Any, Any]] | None = None) -> Any:
        """An input all operations share, made once: normal numbers, or ``data``."""
        if name not in self._inputs:
            tensor = self._context.tensor(type_, *ne)
            self._place_in_work(tensor)
            if data is None:
                self.kernel.memory.patterns.fill(tensor, type_)
            else:
                put(tensor, data())
            self._inputs[name] = tensor
        return self._inputs[name]

    def permuted(self, tensor: Any) -> Any:
        """Heads before rows, as llama.cpp hands them to the attention kernel."""
        view = self.kernel.g.lib.ggml_permute(self.pointer, tensor, 0, 2, 1, 3)
        self.kernel.g.lib.ggml_backend_view_init(view)
        return view

    def close(self) -> None:
        self._context.__exit__(None, None, None)

    def __enter__(self) -> Step:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _mul_mat(step: Step, index: int) -> Any:
    (matrix,) = step.weights(index)
    x = step.input("x", "F32", step.kernel.shape[0], step.tokens)
    return step.kernel.g.lib.ggml_mul_mat(step.pointer, matrix, x)


def _mul_mat_id(step: Step, index: int) -> Any:
    k, _, n_expert, n_used = step.kernel.shape
    (matrices,) = step.weights(index)
    x = step.input("x", "F32", k, 1, step.tokens)
    # enough different choices that a single set of experts does not stay in the cache either
    choice = index % max(1, min(64, n_expert // n_used))
    ids = step.input(
        f"ids{choice}", "I32", n_used, step.tokens, data=lambda: expert_ids(n_expert, n_used, step.tokens, choice)
    )
    return step.kernel.g.lib.ggml_mul_mat_id(step.pointer, matrices, x, ids)


def expert_ids(n_expert: int, n_used: int, tokens: int, choice: int) -> np.ndarray[Any, Any]:
    """Distinct experts a token. The first token of successive choices walks through all experts; others are random."""
    random = np.random.default_rng(choice)
    rows = [np.roll(np.arange(n_expert), -choice * n_used)[:n_used]]
    rows += [random.permutation(n_expert)[:n_used] for _ in range(tokens - 1)]
    return np.array(rows, dtype=np.int32)


def _flash_attn(step: Step, index: int) -> Any:
    head_dim, n_head, _, context = step.kernel.shape
    keys, values = (step.permuted(tensor) for tensor in step.weights(index))
    query = step.permuted(step.input("q", "F32", head_dim, n_head, step.tokens))
    mask = step.input("mask", "F16", context, step.tokens, data=lambda: causal_mask(context, step.tokens))
    scale = 1.0 / sqrt(head_dim)
    return step.kernel.g.lib.ggml_flash_attn_ext(step.pointer, query, keys, values, mask, scale, 0.0, 0.0)


def causal_mask(context: int, tokens: int) -> np.ndarray[Any, Any]:
    """The step's tokens are the last ones of the context: each sees what was before it."""
    position = np.arange(context - tokens, context)[:, None]
    return np.where(np.arange(context)[None, :] <= position, 0.0, -np.inf).astype(np.float16)


def _row_inputs(step: Step) -> tuple[Any, Any]:
    row = step.kernel.shape[0]
    return step.input("a", "F32", row, step.tokens), step.input("b", "F32", row, step.tokens)


def _rms_norm(step: Step, _index: int) -> Any:
    return step.kernel.g.lib.ggml_rms_norm(step.pointer, _row_inputs(step)[0], _EPSILON)


def _add(step: Step, _index: int) -> Any:
    return step.kernel.g.lib.ggml_add(step.pointer, *_row_inputs(step))


def _mul(step: Step, _index: int) -> Any:
    return step.kernel.g.lib.ggml_mul(step.pointer, *_row_inputs(step))


def _silu(step: Step, _index: int) -> Any:
    return step.kernel.g.lib.ggml_silu(step.pointer, _row_inputs(step)[0])


def _swiglu(step: Step, _index: int) -> Any:
    return step.kernel.g.lib.ggml_swiglu_split(step.pointer, *_row_inputs(step))


def _soft_max(step: Step, _index: int) -> Any:
    return step.kernel.g.lib.ggml_soft_max(step.pointer, _row_inputs(step)[0])


def _rope(step: Step, _index: int) -> Any:
    row = step.kernel.shape[0]
    head_dim = next((width for width in (128, 64, 32, 2) if row % width == 0), 0)
    if not head_dim:
        raise Unmeasurable(f"a row of {row} has no whole pairs to rotate")
    x = step.input("x", "F32", head_dim, row // head_dim, step.tokens)
    at = step.input("at", "I32", step.tokens, data=lambda: np.arange(step.tokens, dtype=np.int32))
    none, base = step.kernel.g.ffi.NULL, _ROPE_BASE
    return step.kernel.g.lib.ggml_rope_ext(step.pointer, x, at, none, head_dim, 0, 0, base, 1.0, 0.0, 1.0, 32.0, 1.0)


def _smallest(step: Step, _index: int) -> Any:
    return step.kernel.g.lib.ggml_add(step.pointer, step.input("a", "F32", 32), step.input("b", "F32", 32))


_MAKERS: Final[dict[str, Callable[[Step, int], Any]]] = {
    "MUL_MAT": _mul_mat,
    "MUL_MAT_ID": _mul_mat_id,
    "FLASH_ATTN_EXT": _flash_attn,
    "RMS_NORM": _rms_norm,
    "ADD": _add,
    "MUL": _mul,
    "SILU": _silu,
    "SWIGLU": _swiglu,
    "SOFT_MAX": _soft_max,
    "ROPE": _rope,
    "GRAPH": _smallest,
}
