"""The kernels really are what they are called: computed by ggml, compared with numpy."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from xlm_engine.profile import measure
from xlm_engine.profile.backend import Arena, Backend
from xlm_engine.profile.ggml import ggml
from xlm_engine.profile.grid import KernelTask
from xlm_engine.profile.kernels import Kernel, Memory, Step, Unmeasurable, causal_mask, expert_ids
from xlm_engine.profile.measure import Limits, Meter, with_idle
from xlm_engine.profile.points import KernelId, Shape
from xlm_engine.profile.sampling import Effort, Estimate

MIB = 1 << 20
OPS: list[tuple[str, str, Shape]] = [
    ("MUL_MAT", "Q4_K", (256, 64, 0, 0)),
    ("MUL_MAT", "IQ2_XXS", (256, 64, 0, 0)),
    ("MUL_MAT_ID", "Q8_0", (64, 32, 8, 2)),
    ("FLASH_ATTN_EXT", "F16", (64, 8, 2, 128)),
    ("FLASH_ATTN_EXT", "Q8_0", (64, 8, 2, 128)),
    ("RMS_NORM", "F32", (128, 0, 0, 0)),
    ("ADD", "F32", (128, 0, 0, 0)),
    ("MUL", "F32", (128, 0, 0, 0)),
    ("SILU", "F32", (128, 0, 0, 0)),
    ("SWIGLU", "F32", (128, 0, 0, 0)),
    ("ROPE", "F32", (128, 0, 0, 0)),
    ("SOFT_MAX", "F32", (128, 0, 0, 0)),
    ("GRAPH", "F32", (0, 0, 0, 0)),
]


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    cpu = Backend.cpu()
    cpu.set_threads(2)
    yield cpu
    cpu.close()


@pytest.fixture
def memory(backend: Backend) -> Iterator[Memory]:
    made = Memory(Arena(backend.buffer_type, 8 * MIB), Arena(backend.buffer_type, 4 * MIB), 1 * MIB)
    yield made
    made.close()


def output(step: Step, count: int) -> np.ndarray[Any, Any]:
    """What the last graph left in the place all results share."""
    assert step._output_at is not None
    raw = ctypes.string_at(step.kernel.memory.work.base + step._output_at, 4 * count)
    return np.frombuffer(raw, dtype=np.float32)


def data(step: Step, tensor: Any, dtype: Any, count: int) -> np.ndarray[Any, Any]:
    address = int(step.kernel.g.ffi.cast("uintptr_t", step.kernel.g.lib.ggml_get_data(tensor)))
    return np.frombuffer(ctypes.string_at(address, count * np.dtype(dtype).itemsize), dtype=dtype)


@pytest.mark.parametrize(("op", "type_", "shape"), OPS)
@pytest.mark.parametrize("tokens", [1, 5])
def test_every_operation_computes_finite_numbers(
    backend: Backend, memory: Memory, op: str, type_: str, shape: Shape, tokens: int
) -> None:
    with Kernel(backend, memory, op, type_, shape) as kernel, Step(kernel, tokens, 3) as step:
        for index in range(4):
            step.compute(index)
        result = output(step, 32)
        assert np.isfinite(result).all()
        assert np.abs(result).max() > 0


def test_the_product_is_a_product(backend: Backend, memory: Memory) -> None:
    with Kernel(backend, memory, "MUL_MAT", "F32", (64, 32, 0, 0)) as kernel, Step(kernel, 3, 1) as step:
        step.compute(0)
        weights = data(step, step.weights(0)[0], np.float32, 64 * 32).reshape(32, 64)
        x = data(step, step.input("x", "F32"), np.float32, 3 * 64).reshape(3, 64)
        assert np.allclose(output(step, 96).reshape(3, 32), x @ weights.T, atol=1e-3)


def test_attention_is_causal_attention(backend: Backend, memory: Memory) -> None:
    d, heads, kv_heads, context, tokens = 64, 4, 2, 64, 3
    shape = (d, heads, kv_heads, context)
    with Kernel(backend, memory, "FLASH_ATTN_EXT", "F16", shape) as kernel, Step(kernel, tokens, 1) as step:
        step.compute(0)
        q = data(step, step.input("q", "F32"), np.float32, d * heads * tokens).reshape(tokens, heads, d)
        k, v = (
            data(step, tensor, np.float16, d * kv_heads * context).reshape(context, kv_heads, d).astype(np.float32)
            for tensor in step.weights(0)
        )
        mask = causal_mask(context, tokens).astype(np.float32)
        for head in range(heads):
            scores = q[:, head] @ k[:, head // 2].T / np.sqrt(d) + mask
            share = np.exp(scores - scores.max(axis=1, keepdims=True))
            expected = share / share.sum(axis=1, keepdims=True) @ v[:, head // 2]
            found = output(step, d * heads * tokens).reshape(tokens, heads, d)[:, head]
            assert np.allclose(found, expected, atol=2e-2)


def test_cold_weights_leave_the_cache_and_are_all_used(backend: Backend, memory: Memory) -> None:
    with Kernel(backend, memory, "MUL_MAT", "Q8_0", (256, 256, 0, 0)) as kernel, Step(kernel, 1, 7) as step:
        one = 256 * 256 * 34 // 32
        assert kernel.n_copies * one > 2 * memory.cache_bytes
        assert step.n_graphs * step.n_nodes >= kernel.n_copies
        places = {int(kernel.g.ffi.cast("uintptr_t", kernel.g.lib.ggml_get_data(copy[0]))) for copy in kernel.copies}
        assert len(places) == kernel.n_copies
        with Step(kernel, 1, 7, copies=1) as warm:
            assert warm.n_graphs == 1
            assert warm.weights(0) is warm.weights(5)


@pytest.mark.parametrize(
    ("op", "type_", "shape", "tokens"),
    [
        ("MUL_MAT", "Q4_K", (250, 64, 0, 0), 1),  # no whole blocks
        ("MUL_MAT", "NOSUCH", (256, 64, 0, 0), 1),
        ("MUL_MAT", "F32", (4096, 4096, 0, 0), 1),  # does not fit
        ("RMS_NORM", "F32", (4096, 0, 0, 0), 4096),  # its results do not
        ("ROPE", "F32", (7, 0, 0, 0), 1),
    ],
)
def test_what_cannot_be_measured_is_no_crash(
    backend: Backend, memory: Memory, op: str, type_: str, shape: Shape, tokens: int
) -> None:
    with (
        pytest.raises(Unmeasurable),
        Kernel(backend, memory, op, type_, shape) as kernel,
        Step(kernel, tokens, 1) as step,
    ):
        step.compute(0)


def test_experts_are_distinct_and_choices_walk_through_all() -> None:
    seen: set[int] = set()
    for choice in range(4):
        ids = expert_ids(8, 2, 5, choice)
        assert ids.shape == (5, 2)
        assert all(len(set(row)) == 2 for row in ids.tolist())
        assert ids.min() >= 0
        assert ids.max() < 8
        seen.update(ids[0].tolist())
    assert seen == set(range(8))


def test_the_mask_shows_each_token_what_was_before_it() -> None:
    seen = np.isfinite(causal_mask(6, 2).astype(np.float32))
    assert seen.sum(axis=1).tolist() == [5, 6]


def test_a_task_gives_its_points_and_only_the_wanted(backend: Backend, memory: Memory) -> None:
    meter = Meter(backend, memory, Limits(Effort(1e5, at_least=2, at_most=3)), lambda _load: nullcontext())
    task = KernelTask("cpu", "MUL_MAT", "Q4_0", (256, 64, 0, 0), (1, 4), (1, 2))
    points = list(meter.points(task, lambda point: point.tokens == 4))
    assert [(p.tokens, p.threads) for p in points] == [(4, 1), (4, 2)]
    assert all(p.ns > 0 for p in points)
    assert meter.counts.measured == 2
    assert meter.warm_ratio(task) > 0


def test_the_middle_one_of_some_looks_counts_where_threads_meet_often(
    backend: Backend, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = Meter(backend, memory, Limits(Effort(1e5, 1, 1)), lambda _load: nullcontext())
    looks = iter([900.0, 400.0, 500.0, 2000.0, 3000.0])
    monkeypatch.setattr(meter, "time", lambda *_a, **_k: Estimate(next(looks), 0.0, 1, False))
    task = KernelTask("cpu", "MUL_MAT_ID", "Q4_0", (256, 64, 8, 2), (1, 16), (2,))
    few, many = meter.points(task, lambda _point: True)
    assert (few.ns, many.ns) == (500, 2000)


def test_threads_sleep_before_each_smallest_step_and_no_other(
    backend: Backend, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("xlm_engine.profile.measure.time.sleep", slept.append)
    meter = Meter(backend, memory, Limits(Effort(1e9, 3, 3)), lambda _load: nullcontext())
    (start,) = meter.points(KernelTask("cpu", "GRAPH", "F32", (0, 0, 0, 0), (1,), (2,)), lambda _point: True)
    assert start.ns > 0
    assert slept == [measure.ASLEEP_S] * 6  # two trials, one to warm up, three samples
    slept.clear()
    assert list(meter.points(KernelTask("cpu", "ADD", "F32", (64, 0, 0, 0), (1,), (2,)), lambda _point: True))
    assert not slept


def test_too_slow_steps_are_left_out_and_counted(backend: Backend, memory: Memory) -> None:
    meter = Meter(backend, memory, Limits(Effort(1e5, 2, 3), longest_ns=1.0), lambda _load: nullcontext())
    task = KernelTask("cpu", "MUL_MAT", "Q4_0", (256, 64, 0, 0), (1, 4, 16), (2,))
    assert [p.tokens for p in meter.points(task, lambda _point: True)] == [1]
    assert meter.counts.too_slow == 2


def test_an_unmeasurable_task_is_counted(backend: Backend, memory: Memory) -> None:
    meter = Meter(backend, memory, Limits(Effort(1e5, 2, 3)), lambda _load: nullcontext())
    task = KernelTask("cpu", "MUL_MAT", "Q4_K", (250, 64, 0, 0), (1, 4), (2,))
    assert list(meter.points(task, lambda _point: True)) == []
    assert meter.counts.not_here == 2


def test_idle_is_measured_again_beside_its_load() -> None:
    idle = KernelId("cpu", "ADD", "F32", (1, 0, 0, 0), 1, 2, "idle")
    busy, other = idle._replace(load="h2d"), idle._replace(tokens=4)
    assert with_idle([idle, busy, other], lambda point: point == busy) == [idle, busy]
    assert with_idle([idle, busy, other], lambda point: point == other) == [other]


def test_all_types_of_the_issue_are_ggmls() -> None:
    for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q4_K", "Q5_K", "Q6_K", "Q2_K", "IQ4_NL", "I32"):
        assert name in ggml().types
    assert "." in ggml().version
