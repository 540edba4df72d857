"""The recurrence against a simulation that is written differently: piece by piece, event by event."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlm_broker.planner.sharding.costs import CPU, RESIDENT, ROWS_AT_ONCE, STREAM, STREAM_KV, Capabilities, Costs
from xlm_broker.planner.sharding.pipeline import cache_places, hop_times, step_times, trace_step

from . import examples
from .cases import make_task

PIECES = 16


def costs_of(seed: int, n_units: int, *, contention: bool) -> Costs:
    costs = make_task(seed, n_units).costs
    costs = replace(costs, kv_bytes=np.zeros(n_units, dtype=np.int64), piece_share=np.full(n_units, 1 / PIECES))
    if contention:
        return costs
    return replace(costs, busy=costs.compute.copy(), link_share=np.ones_like(costs.compute))


def no_hops(n_units: int) -> dict[str, Any]:
    return {"hop_up": np.zeros((2, n_units)), "hop_down": np.zeros((2, n_units + 1))}


def random_modes(seed: int, costs: Costs) -> np.ndarray:
    choices = np.array([CPU, STREAM, RESIDENT], dtype=np.uint8)
    return np.random.default_rng(seed).choice(choices, costs.n_units)


def piece_by_piece(costs: Costs, tier: int, modes: np.ndarray, ring_ns: float) -> float:
    """Uploads piece after piece; a piece needs its room in the ring until it has been computed with."""
    unit = range(costs.n_units)
    wanted = deque((i, float(costs.upload[tier, STREAM, i]) / PIECES) for i in unit if modes[i] == STREAM)
    ended: list[tuple[float, float]] = []  # when a piece was done with, and its length in the ring
    arrived: dict[int, list[float]] = {}
    now, link_free, on_device, held = float(costs.step[tier]), 0.0, False, 0.0
    pending = list(wanted)

    def upload_until(i: int, count: int) -> float:
        """When the ``count``-th piece of unit i has arrived; uploads in order, as the ring has room."""
        nonlocal link_free, held
        while len(arrived.get(i, [])) < count:
            owner, length = pending[0]
            if len(arrived.get(owner, [])) == PIECES - 1:
                pending.pop(0)
            while held + length > ring_ns * (1 + 1e-9):
                freed, size = ended.pop(0)
                link_free, held = max(link_free, freed), held - size
            link_free, held = link_free + length, held + length
            arrived.setdefault(owner, []).append(link_free)
        return arrived[i][count - 1]

    for i in unit:
        device = modes[i] != CPU
        now += 0.0 if device == on_device else float(costs.hop_up[tier, i])
        on_device = bool(device)
        compute = float(costs.compute[tier, modes[i], i])
        if modes[i] != STREAM:
            now += compute
            continue
        for piece in range(PIECES):
            now = max(now, upload_until(i, piece + 1)) + compute / PIECES
            ended.append((now, float(costs.upload[tier, STREAM, i]) / PIECES))
    return now + (float(costs.hop_down[tier, -1]) if on_device else 0.0)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), n_units=st.integers(1, 12), rings=st.integers(1, 3))
def test_agrees_with_piece_by_piece(seed: int, n_units: int, rings: int) -> None:
    costs = replace(costs_of(seed, n_units, contention=False), **no_hops(n_units))
    modes = random_modes(seed, costs)
    largest = float(costs.upload[0, STREAM].max())
    ring_ns = rings * largest
    (fluid,) = step_times(costs, np.array([0]), modes[None], np.array([ring_ns]))
    exact = piece_by_piece(costs, 0, modes, ring_ns)
    # within a few pieces: the fluid neither invents time nor loses it
    assert abs(fluid - exact) <= 3 * largest / PIECES + 0.02 * exact


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), n_units=st.integers(1, 70), contention=st.booleans(), lasting=st.booleans())
def test_rows_and_trace_are_the_same_recurrence(seed: int, n_units: int, contention: bool, lasting: bool) -> None:
    costs = costs_of(seed, n_units, contention=contention)
    costs = replace(costs, capabilities=replace(costs.capabilities, ring_across_steps=lasting))
    modes = np.array([random_modes(seed + i, costs) for i in range(5)])
    ring_ns = float(costs.upload[0, STREAM].max()) * 1.5
    times = step_times(costs, np.array([0, 1, 0, 1, 0]), modes, np.full(5, ring_ns))
    for row, tier in enumerate((0, 1, 0, 1, 0)):
        trace = trace_step(costs, tier, modes[row], ring_ns)
        assert trace.total == pytest.approx(times[row], rel=1e-12, abs=1e-3)  # rounded to that
        parts = trace.compute_cpu + trace.compute_device + trace.wait + trace.hops + trace.slowed + costs.step[tier]
        assert trace.total == pytest.approx(parts, rel=1e-9)


@pytest.mark.parametrize("entry", [examples.DENSE, examples.SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("granular", [False, True])
def test_what_is_uploaded_ahead_runs_on_a_device_that_the_link_does_not_slow(
    entry: dict[str, Any], granular: bool
) -> None:
    capabilities = Capabilities(kv_streaming=True, expert_granular=granular)
    costs = examples.planning(entry, examples.LAPTOP, capabilities=capabilities).costs
    ahead = costs.upload > 0
    assert ahead.any()
    assert (costs.busy[ahead] == costs.compute[ahead]).all()
    assert (costs.link_share[ahead] == 1.0).all()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), n_units=st.integers(1, 20))
def test_never_below_chain_and_link(seed: int, n_units: int) -> None:
    costs = costs_of(seed, n_units, contention=True)
    modes = random_modes(seed, costs)
    (time,) = step_times(costs, np.array([0]), modes[None], np.array([1e12]))
    index = np.arange(n_units)
    chain = costs.compute[0, modes, index].sum() + hop_times(costs, np.array([0]), modes[None])[0] + costs.step[0]
    assert time >= chain - 1e-3
    assert time >= costs.upload[0, modes, index].sum() - 1e-3


def test_nothing_streamed_is_a_sum() -> None:
    costs = costs_of(1, 6, contention=True)
    modes = np.array([CPU, RESIDENT, RESIDENT, CPU, RESIDENT, CPU], dtype=np.uint8)
    (time,) = step_times(costs, np.array([1]), modes[None], np.array([0.0]))
    chain = costs.compute[1, modes, np.arange(6)].sum()
    assert time == pytest.approx(costs.step[1] + chain + 2 * costs.hop_up[1, 0] + 2 * costs.hop_down[1, 0])


def test_a_step_may_begin_with_what_the_last_one_left_in_the_ring() -> None:
    costs = costs_of(5, 8, contention=False)
    kept = replace(costs, capabilities=replace(costs.capabilities, ring_across_steps=True))
    modes = np.full((1, 8), STREAM, dtype=np.uint8)
    modes[0, -1] = CPU  # time at the end in which the link would rest
    ring = np.array([float(costs.upload[0, STREAM].max())])
    assert step_times(kept, np.array([0]), modes, ring)[0] < step_times(costs, np.array([0]), modes, ring)[0]


@pytest.mark.parametrize(("places", "overlaps"), [(0.9, False), (1.0, False), (1.9, False), (2.0, True), (5.0, True)])
def test_a_streamed_cache_waits_for_a_place_of_its_own(places: float, overlaps: bool) -> None:
    """Sub-layers that only read a cache: the next one is uploaded meanwhile where the ring has two places for them."""
    n, compute, upload = 5, 3e5, 2e5
    costs = make_task(1, n, kv_streaming=True).costs
    only_caches = np.zeros(n, dtype=np.int64)
    costs = replace(
        costs, compute=np.full_like(costs.compute, compute), busy=np.full_like(costs.busy, compute), step=np.zeros(2),
        upload=np.full_like(costs.upload, upload), piece_bytes=only_caches, **no_hops(n),
        kv_bytes=np.full(n, round(upload * costs.link_bytes_ns)), cache_read=np.full((2, n), compute),
        cache_first=np.full(n, 1e-6),
    )  # fmt: skip
    modes, ring_ns = np.full((1, n), STREAM_KV, dtype=np.uint8), places * upload * (1 + 1e-6)
    (time,) = step_times(costs, np.array([0]), modes, np.array([ring_ns]))
    alone = n * (upload + compute)
    assert time == pytest.approx(alone - (n - 1) * upload if overlaps else alone, rel=1e-6)
    assert trace_step(costs, 0, modes[0], ring_ns).total == pytest.approx(time, rel=1e-9)


def test_places_for_caches_are_what_weights_leave() -> None:
    costs = make_task(3, 4, kv_streaming=True).costs
    costs = replace(costs, kv_bytes=np.array([0, 1000, 0, 900]), piece_bytes=np.array([100, 50, 400, 50]))
    modes = np.array([[STREAM, STREAM_KV, CPU, STREAM_KV]], dtype=np.uint8)
    for ring_bytes, places in ((1150, 0), (1200, 1), (2150, 1), (2200, 2), (9000, 2)):
        assert cache_places(costs, modes, np.array([ring_bytes / costs.link_bytes_ns])) == [places]


# -- what a step does besides its sub-layers


def test_beside_the_cpu_only_what_was_queued_is_copied() -> None:
    """A sub-layer of the CPU, and one that streams behind it."""
    compute, upload, times = 4e5, 4e5, []
    for ahead_ns in (0.0, 1e5, 3e5, np.inf):
        costs = make_task(1, 2).costs
        costs = replace(
            costs, compute=np.full_like(costs.compute, compute), busy=np.full_like(costs.busy, compute),
            upload=np.full_like(costs.upload, upload), link_share=np.ones_like(costs.compute), step=np.zeros(2),
            piece_share=np.ones(2), capabilities=Capabilities(ahead_ns=ahead_ns), **no_hops(2),
        )  # fmt: skip
        modes = np.array([[CPU, STREAM]], dtype=np.uint8)
        uploads = costs.upload.copy()
        uploads[:, CPU] = 0.0
        costs = replace(costs, upload=uploads)
        (time,) = step_times(costs, np.array([0]), modes, np.array([1e9]))
        assert trace_step(costs, 0, modes[0], 1e9).total == pytest.approx(time)
        times.append(float(time))
    assert times == pytest.approx([compute + upload + compute - ahead for ahead in (0.0, 1e5, 3e5, 4e5)])


def cache_times(costs: Costs, tier: np.ndarray, modes: np.ndarray) -> np.ndarray:
    without = replace(costs, home=np.zeros(2), mask=np.zeros(2))
    return np.round(hop_times(costs, tier, modes) - hop_times(without, tier, modes), 3)


def attending(seed: int, n_units: int, **able: bool) -> Costs:
    costs = make_task(seed, n_units, kv_streaming=True).costs
    return replace(
        costs, home=np.array([7e3, 9e3]), mask=np.array([2e3, 5e4]), capabilities=replace(costs.capabilities, **able)
    )


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), n_units=st.integers(1, 40), lasting=st.booleans())
def test_rows_and_trace_agree_on_caches(seed: int, n_units: int, lasting: bool) -> None:
    costs = attending(seed, n_units, ring_across_steps=lasting)
    modes = np.array([random_modes(seed + i, costs) for i in range(3)])
    modes[(modes == STREAM) & costs.cached] = STREAM_KV
    ring_ns = float(costs.upload[0, STREAM_KV].max()) * 2.5
    times = step_times(costs, np.array([0, 1, 0]), modes, np.full(3, ring_ns))
    for row, tier in enumerate((0, 1, 0)):
        assert trace_step(costs, tier, modes[row], ring_ns).total == pytest.approx(times[row], rel=1e-12, abs=1e-3)


def test_new_rows_of_caches_go_home_before_the_cpu_goes_on() -> None:
    n = ROWS_AT_ONCE + 4
    costs = replace(attending(2, n), kv_bytes=np.full(n, 1000))
    device = np.full((1, n), RESIDENT, dtype=np.uint8)
    (left,) = cache_times(costs, np.array([1]), device)
    assert left == costs.mask[1] + 4 * costs.home[1]  # twelve went home beside what follows them
    apart = device.copy()
    apart[0, 3] = CPU
    (left,) = cache_times(costs, np.array([1]), apart)
    assert left == costs.mask[1] + (3 + 0) * costs.home[1]
    (left,) = cache_times(costs, np.array([1]), np.full((1, n), CPU, dtype=np.uint8))
    assert left == 0.0


def test_at_the_end_rows_go_home_beside_the_output_matrix() -> None:
    costs = attending(4, 3)
    compute = np.full_like(costs.compute, 1e4)
    costs = replace(costs, kv_bytes=np.array([1000, 1000, 0]), compute=compute)
    modes = np.full((1, 3), RESIDENT, dtype=np.uint8)
    (left,) = cache_times(costs, np.array([0]), modes)
    assert left == costs.mask[0] + 2 * costs.home[0] - 1e4
