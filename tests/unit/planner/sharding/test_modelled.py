"""A card given as numbers: its times by hand, and plans for a model on it."""

from __future__ import annotations

import pytest

from xlm.errors import ShapeError
from xlm.protocol.link import RESIDENT, DeviceFacts, SimConfig
from xlm_broker.planner.sharding import CardRates, ShardingPlanner, card_of_sim, modelled_machine
from xlm_broker.planner.sharding.machine import guessed_machine
from xlm_broker.planner.sharding.modelled import Emulated, Modelled
from xlm_broker.planner.sharding.profile import KernelPoint, MachineProfile, ProfileKey
from xlm_broker.planner.sharding.work import Attention, Experts, MatMul

from . import examples
from .examples import MIB, SIM

CARD = CardRates(flops_s=10e12, memory_bytes_s=400e9, link_bytes_s=8e9, op_launch_ns=1000, graph_launch_ns=4000)


def test_times_of_the_virtual_gpus_cost_model() -> None:
    _, kernels, _ = modelled_machine(CARD)
    product = MatMul("Q8_0", 1024, 2048, 2_000_000.0)
    read = 2_000_000 + 4 * (1024 + 2048)
    assert kernels.matmul("gpu", product, 1) == pytest.approx(1000 + read / 400)
    assert kernels.matmul("gpu", product, 512) == pytest.approx(1000 + 2 * 1024 * 2048 * 512 / 1e4)
    experts = Experts("Q8_0", 256, 512, 8, 2, 8_000_000.0)
    assert kernels.experts("gpu", experts, 1) == pytest.approx(1000 + (2_000_000 + 4 * 2 * (256 + 512)) / 400)
    attention = Attention("F16", 64, 8, 2, 512.0)
    assert kernels.small("gpu", "ADD", 1000, 4) == pytest.approx(1000 + 3 * 4 * 4000 / 400)
    assert kernels.small("gpu", "RMS_NORM", 1000, 4) == pytest.approx(1000 + 2 * 4 * 4000 / 400)
    cells = 512  # 300 and the one of the step, padded
    assert kernels.attention("gpu", attention, 1, 301.0) == pytest.approx(1000 + (514 * cells + 2 * 4 * 512) / 400)


def test_a_virtual_gpus_configuration_is_a_card() -> None:
    config = SimConfig(vram_bytes=MIB, link_bytes_per_s=5e9, modelled=True, extra={"compute_flops_per_s": 3e12})
    card = card_of_sim(config)
    assert (card.flops_s, card.memory_bytes_s, card.link_bytes_s, card.memory_bytes) == (3e12, 100e9, 5e9, MIB)
    machine, _, notes = modelled_machine(card, threads=3)
    assert (machine.link_bytes_s, machine.device_flops_s, machine.cpu_threads) == (5e9, 3e12, 3)
    assert any(note.startswith("no profile") for note in notes)


def test_a_guess_names_the_threads_it_computes_with() -> None:
    for facts, wanted, threads in ((DeviceFacts(kind="sim", n_threads=6), 0, 6), (DeviceFacts(kind="sim"), 1, 1)):
        machine, notes = guessed_machine(facts, wanted)
        assert machine.cpu_threads == threads
        assert f"{threads} thread{'s' * (threads > 1)})" in notes[0]
    _, _, notes = modelled_machine(CARD, threads=3)
    assert "3 threads" in notes[0]


def test_rates_of_nothing_are_refused() -> None:
    with pytest.raises(ShapeError, match="above zero"):
        CardRates(flops_s=0, memory_bytes_s=1e9, link_bytes_s=1e9)
    with pytest.raises(ShapeError, match="not below zero"):
        CardRates(flops_s=1e9, memory_bytes_s=1e9, link_bytes_s=1e9, op_launch_ns=-1)


def test_a_planner_for_a_card() -> None:
    """A faster card is predicted to be faster with the same memory, and everything fits a large one."""
    model = examples.facts()
    slow = ShardingPlanner(card=CARD).plan(model, SIM, 60 * MIB, schedule_id=1)
    fast_card = CardRates(flops_s=40e12, memory_bytes_s=1600e9, link_bytes_s=8e9, op_launch_ns=1000)
    fast = ShardingPlanner(card=fast_card).plan(model, SIM, 60 * MIB, schedule_id=1)
    assert fast.predicted["decode_tps"] > slow.predicted["decode_tps"]
    whole = ShardingPlanner(card=CARD).plan(model, SIM, 1 << 30, schedule_id=1)
    placed = [sub.index for sub in model.sublayers if sub.kind != "lookup"]
    assert all(tier.placement[index] == RESIDENT for tier in whole.tiers for index in placed)


def test_the_summary_says_whose_speed_it_is() -> None:
    model = examples.facts()
    modelled = ShardingPlanner(card=CARD).plan(model, SIM, 60 * MIB, schedule_id=1).summary
    assert "tokens/s on the card that is modelled" in modelled
    here = ShardingPlanner().plan(model, SIM, 60 * MIB, schedule_id=1).summary
    assert "tokens/s (" in here
    assert "modelled" not in here


def test_the_cpus_start_is_the_machines_also_beside_a_modelled_card() -> None:
    start = KernelPoint("cpu", "GRAPH", "F32", (0, 0, 0, 0), 1, 2, "idle", 80_000)
    profile = MachineProfile(ProfileKey("here", 2, "", "", "", ""), kernels=(start,))
    without, with_start = (modelled_machine(CARD, found)[0] for found in (None, profile))
    assert with_start.host_sync_ns - without.host_sync_ns == 40_000.0
    assert with_start.host_wait_ns == without.host_wait_ns


def test_an_exact_virtual_gpu_takes_the_cpus_times() -> None:
    _, kernels, _ = modelled_machine(CARD)
    assert isinstance(kernels, Modelled)
    emulated, product = Emulated(kernels.host), MatMul("Q8_0", 1024, 2048, 2_000_000.0)
    assert emulated.matmul("gpu", product, 4) == kernels.host.matmul("cpu", product, 4)
    assert emulated.small("gpu", "ADD", 576, 4) == kernels.host.small("cpu", "ADD", 576, 4)
