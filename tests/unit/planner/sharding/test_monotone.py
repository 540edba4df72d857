"""More tokens never take less time: of an operation by any model of it, and of a step with the same placement."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlm_broker.planner.sharding import CardRates, modelled_machine
from xlm_broker.planner.sharding.costs import CPU, RESIDENT, STREAM, STREAM_KV, Capabilities
from xlm_broker.planner.sharding.kernels import Kernels, Profiled, Roofline, Where
from xlm_broker.planner.sharding.pipeline import trace_step
from xlm_broker.planner.sharding.plan import Planning, prepare
from xlm_broker.planner.sharding.predict import costs_at
from xlm_broker.planner.sharding.profile import DeviceName, KernelPoint, MachineProfile, ProfileKey, Shape
from xlm_broker.planner.sharding.shapes import model_work, shape_from_entry
from xlm_broker.planner.sharding.work import Attention, Experts, MatMul
from xlm_broker.planner.sharding.workload import Workload, tier_points

from . import examples

TOKENS = (1, 2, 3, 4, 7, 16, 50, 64, 200, 256, 512, 1000, 1024, 4096)
HEADS = (64, 8, 2)
OPERATIONS: tuple[tuple[str, str, tuple[Shape, ...]], ...] = (
    ("MUL_MAT", "Q4_0", ((256, 256, 0, 0), (1024, 1024, 0, 0), (1024, 4096, 0, 0))),
    ("MUL_MAT_ID", "Q4_0", ((256, 512, 16, 2), (1024, 512, 16, 2))),
    ("FLASH_ATTN_EXT", "F16", ((*HEADS, 256), (*HEADS, 1024), (*HEADS, 4096))),
    ("ADD", "F32", ((512, 0, 0, 0), (4096, 0, 0, 0))),
)


@st.composite
def profiles(draw: st.DrawFn) -> Profiled:
    """Times that grow with the work, and noise on them of up to two thirds."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    devices: tuple[tuple[DeviceName, int], ...] = (("cpu", 8), ("gpu", 0))
    points = [
        KernelPoint(device, op, kind, shape, tokens, threads, "idle", int(ns * random.uniform(0.6, 1.7)))
        for op, kind, shapes in OPERATIONS
        for shape in shapes
        for tokens in sorted(random.choice([1, 4, 16, 64, 256, 512], random.integers(1, 6), replace=False).tolist())
        for ns in [5_000 + 1e-3 * np.prod([n for n in shape if n]) * tokens ** random.uniform(0.1, 1.0)]
        for device, threads in devices
    ]
    machine = examples.machine(examples.DESKTOP)
    key = ProfileKey("cpu", 8, "AVX2", "card", "1", "ggml 1")
    return Profiled(MachineProfile(key, tuple(points)), 8, Roofline(machine))


def times(kernels: Kernels, where: Where, size: int, depth: float) -> list[list[float]]:
    """Of each operation, over TOKENS."""
    product = MatMul("Q4_0", size, 512, 512 * size * 0.5625)
    experts = Experts("Q4_0", size, 512, 16, 2, 16 * 512 * size * 0.5625)
    attention = Attention("F16", *HEADS, 4.0 * HEADS[0] * HEADS[2])
    return [
        [kernels.matmul(where, product, n) for n in TOKENS],
        [kernels.experts(where, experts, n) for n in TOKENS],
        [kernels.attention(where, attention, n, depth + (n + 1) / 2) for n in TOKENS],
        [kernels.small(where, "ADD", size, n) for n in TOKENS],
    ]


def check(found: list[float]) -> None:
    assert all(after >= before * (1 - 1e-9) for before, after in pairwise(found)), found


@settings(max_examples=60, deadline=None)
@given(kernels=profiles(), size=st.integers(16, 50_000), depth=st.integers(0, 100_000))
def test_of_measured_operations(kernels: Profiled, size: int, depth: int) -> None:
    wheres: tuple[Where, ...] = ("cpu", "cpu_busy", "gpu")
    for where in wheres:
        for found in times(kernels, where, size, depth):
            check(found)
    assert not any(name.startswith("no points:") for name in kernels.fallbacks())


@pytest.mark.parametrize("type_name", ["F16", "Q4_0", "Q4_K", "IQ4_NL"])
@pytest.mark.parametrize("where", ["cpu", "cpu_busy", "gpu"])
def test_of_assumed_operations(where: Where, type_name: str) -> None:
    """Small ones with fast memory are bound by what the cores compute, already at one token."""
    machine = examples.machine({**examples.DESKTOP, "ram_bandwidth_gb_s": 2000, "cpu_threads_used": 1})
    card = CardRates(flops_s=1e12, memory_bytes_s=100e9, link_bytes_s=12e9)
    for kernels in (Roofline(machine), modelled_machine(card, threads=1)[1]):
        for size in (16, 576, 50_000):
            product = MatMul(type_name, size, 576, 0.5625 * size * 576)
            check([kernels.matmul(where, product, n) for n in TOKENS])
            for depth in (0, 100, 60_000):
                for found in times(kernels, where, size, depth):
                    check(found)


@st.composite
def plannings(draw: st.DrawFn) -> Planning:
    """A small model on a card given as numbers, or of the table; a GPU or not."""
    entry: dict[str, Any] = examples.small(examples.DENSE, draw(st.integers(1, 3)))
    entry["weights"] = draw(st.sampled_from(["F16", "Q4_0", "Q4_K"]))
    work = model_work(shape_from_entry("example", entry), n_ctx=4096, n_ubatch=512)
    able = Capabilities(kv_streaming=True, ring_across_steps=draw(st.booleans()))
    if draw(st.booleans()):
        return prepare(
            work, examples.machine(draw(st.sampled_from([examples.DESKTOP, examples.LAPTOP]))), capabilities=able
        )
    card = CardRates(
        flops_s=draw(st.floats(1e11, 1e14)), memory_bytes_s=draw(st.floats(2e10, 2e12)),
        link_bytes_s=draw(st.floats(1e9, 6e10)),
    )  # fmt: skip
    machine, kernels, _ = modelled_machine(card, threads=draw(st.integers(1, 16)))
    return prepare(work, machine, kernels=kernels, capabilities=able)


@settings(max_examples=60, deadline=None)
@given(planning=plannings(), seed=st.integers(0, 2**32 - 1), depth=st.integers(0, 3000), pieces=st.floats(2, 40))
def test_of_a_step_with_the_same_placement(planning: Planning, seed: int, depth: int, pieces: float) -> None:
    random = np.random.default_rng(seed)
    cached = planning.costs.cached
    modes = random.choice(np.array([CPU, STREAM, RESIDENT], dtype=np.uint8), planning.costs.n_units)
    modes[cached & (random.random(len(modes)) < 0.3)] = STREAM_KV
    ring_bytes = int(pieces * planning.costs.kv_ring_bytes.max())
    found = []
    for tokens in TOKENS[:11]:
        costs = costs_at(planning, tokens, depth)
        found.append(trace_step(costs, 0, modes, costs.ring_ns(ring_bytes)).total)
    check(found)


@settings(max_examples=100, deadline=None)
@given(
    prompt=st.integers(1, 5000), decode=st.integers(1, 2000), depth=st.integers(0, 5000), ubatch=st.integers(1, 1024)
)
def test_only_steps_of_the_prompt_are_less_deep(prompt: int, decode: int, depth: int, ubatch: int) -> None:
    """Steps of a plan can be compared: they differ in depth only where a prompt is read."""
    tiers = [n for n in (1, 4, 16, 64, 256) if n < ubatch] + [ubatch]
    workload = Workload(prompt_tokens=prompt, decode_tokens=decode, depth=depth)
    points = tier_points(workload, tiers)
    assert points[0].depth == workload.decode_depth
    full, rest = divmod(prompt, ubatch)
    of_the_prompt = {ubatch} if full else set()
    of_the_prompt |= {next(n for n in tiers if rest <= n)} if rest else set()
    for point in points[1:]:
        assert (point.depth == workload.decode_depth) == (point.tokens not in of_the_prompt)
        assert depth <= point.depth <= workload.decode_depth


def test_a_prompts_steps_are_as_deep_as_they_are() -> None:
    tiers = [1, 4, 16, 64, 256, 512]
    points = tier_points(Workload(prompt_tokens=1124, decode_tokens=128), tiers)
    assert [(p.tokens, p.depth) for p in points[3:]] == [(64, 1188), (256, 1024), (512, 256)]
    both = replace(Workload(), prompt_tokens=900)  # the rest is a step of the largest tier too
    assert tier_points(both, tiers)[-1].depth == 256
