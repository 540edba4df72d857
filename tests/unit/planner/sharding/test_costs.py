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
    assert (machine.host_wait_ns, machine.host_sync_ns) == (15_000.0, 55_000.0)
    machine, _, _ = profiled_machine(MachineProfile(KEY, kernels=on_cpu), examples.SIM, threads=1)
    assert machine.host_sync_ns == 20_000.0
    both = (*on_cpu, graph("gpu", 0, 30_000))
    machine, _, _ = profiled_machine(MachineProfile(KEY, kernels=both), examples.SIM, threads=4)
    assert (machine.host_wait_ns, machine.host_sync_ns) == (30_000.0, 70_000.0)
