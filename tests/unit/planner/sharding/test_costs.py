"""What a step costs besides kernels and bytes: copies, submissions, inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from xlm_broker.planner.sharding.costs import CPU, RESIDENT, STREAM, STREAM_KV, Costs, TierPoint, build_costs
from xlm_broker.planner.sharding.machine import profiled_machine
from xlm_broker.planner.sharding.profile import DeviceName, KernelPoint, LinkPoint, MachineProfile, ProfileKey

from . import examples
from .examples import MIB

KEY = ProfileKey("cpu", 4, "", "gpu", "1", "x")


def costs_with(tokens: int = 1, depth: float = 1000.0, **rates: Any) -> Costs:
    plan = examples.planning(examples.small(examples.DENSE, 2), examples.LAPTOP)
    machine = replace(plan.machine, **{"copy_ns": 0.0, "submit_ns": 0.0, **rates})
    return build_costs(plan.work, machine, plan.kernels, [TierPoint(tokens, depth)], plan.costs.capabilities)


def test_each_matrix_and_each_cache_is_a_copy_of_its_own() -> None:
    more = costs_with(copy_ns=1000.0).upload[0] - costs_with().upload[0]
    attention, ffn = 0, 1
    assert more[STREAM, [attention, ffn]] == pytest.approx([4000.0, 3000.0])  # q, k, v, output; gate, up, down
    assert more[STREAM_KV, [attention, ffn]] == pytest.approx([6000.0, 3000.0])
    assert not more[[CPU, RESIDENT]].any()


def test_what_is_streamed_is_submitted_in_parts() -> None:
    more = costs_with(submit_ns=1000.0).compute[0] - costs_with().compute[0]
    assert more[:, 0] == pytest.approx([0.0, 2000.0, 500.0, 3000.0])
    assert more[:, 1] == pytest.approx([0.0, 2000.0, 500.0, 2000.0])


def test_the_cost_of_a_queued_copy_is_what_two_sizes_do_not_have_in_proportion() -> None:
    def link(size: int, threads: int, ns: float) -> LinkPoint:
        return LinkPoint("h2d", "pinned", size, threads, round(ns))

    alone = [link(1 << 16, 0, 15_000), link(16 * MIB, 0, 1_600_000)]
    queued = [link(MIB, 4, 3_000 + 100_000), link(16 * MIB, 4, 3_000 + 1_600_000)]
    machine, _, _ = profiled_machine(MachineProfile(KEY, links=(*alone, *queued)), examples.SIM)
    assert machine.copy_ns == pytest.approx(3_000)
    fast = [link(MIB, 4, 100_000), link(16 * MIB, 4, 1_700_000)]  # noise: a copy never gives time back
    assert profiled_machine(MachineProfile(KEY, links=(*alone, *fast)), examples.SIM)[0].copy_ns == 0.0
    assert profiled_machine(MachineProfile(KEY, links=tuple(alone)), examples.SIM)[0].copy_ns == 2_000.0


def test_each_change_takes_half_of_what_the_cpus_threads_take_to_start() -> None:
    def graph(device: DeviceName, threads: int, ns: int) -> KernelPoint:
        return KernelPoint(device, "GRAPH", "F32", (0, 0, 0, 0), 1, threads, "idle", ns)

    on_cpu = (graph("cpu", 1, 10_000), graph("cpu", 4, 80_000))
    machine, _, _ = profiled_machine(MachineProfile(KEY, kernels=on_cpu), examples.SIM, threads=4)
    assert (machine.host_wait_ns, machine.host_sync_ns, machine.cpu_start_ns) == (15_000.0, 55_000.0, 80_000.0)
    machine, _, _ = profiled_machine(MachineProfile(KEY, kernels=on_cpu), examples.SIM, threads=1)
    assert machine.host_sync_ns == 20_000.0
    both = (*on_cpu, graph("gpu", 0, 30_000))
    machine, _, _ = profiled_machine(MachineProfile(KEY, kernels=both), examples.SIM, threads=4)
    assert (machine.host_wait_ns, machine.host_sync_ns) == (30_000.0, 70_000.0)


def test_of_a_streamed_cache_all_cells_come_that_a_step_looks_at() -> None:
    at = {depth: costs_with(1, depth).upload[0, STREAM_KV, 0] for depth in (0.0, 255.0, 256.0, 511.0)}
    assert at[0.0] == at[255.0] < at[256.0] == at[511.0]
    costs = costs_with(1, 1e6)
    whole = costs.weight_bytes[0] + costs.kv_bytes[0]
    assert costs.upload[0, STREAM_KV, 0] == pytest.approx(whole / costs.link_bytes_ns)  # never more than there is


def test_two_rows_a_token_cross_each_border_but_the_first_and_those_of_outputs() -> None:
    rates = {"copy_ns": 100.0, "link_latency_ns": 10.0, "host_sync_ns": 1.0}
    (hops,) = (costs := costs_with(7, **rates)).hop_down
    row = 4.0 * examples.DENSE["n_embd"] / costs.link_bytes_ns
    assert hops[0] == pytest.approx(7 * row + 11.0)
    assert hops[1:-2] == pytest.approx(2 * 7 * row + 111.0)
    assert hops[-2] == pytest.approx(2 * row + 111.0)
    assert hops[-1] == pytest.approx(row + 11.0)
    assert (costs.hop_up[0] == hops[:-1]).all()


def test_new_rows_of_a_cache_and_the_mask() -> None:
    costs = costs_with(7, 1000.0, copy_ns=100.0)
    row = costs.kv_bytes[0] / 4096
    assert costs.home[0] == pytest.approx(2 * 100.0 + 7 * row / costs.link_bytes_ns)
    assert costs.mask[0] == pytest.approx(2 * 7 * 1024 / costs.link_bytes_ns)


def test_outside_of_the_graph_each_token_counts_and_each_cell_of_the_mask() -> None:
    rates = {"step_ns": 1000.0, "step_token_ns": 10.0, "step_cell_ns": 0.5}
    assert costs_with(7, 1000.0, **rates).step[0] == pytest.approx(1000.0 + 7 * (10.0 + 0.5 * 1024))


def test_behind_the_last_attention_only_outputs_are_computed() -> None:
    one, many = costs_with(1).compute[0], costs_with(64).compute[0]
    assert [bool(same) for same in (one == many).all(axis=0)] == [False, False, False, True, True]
