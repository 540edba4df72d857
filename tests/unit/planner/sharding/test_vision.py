"""The vision phase of a plan: what of a tower runs where, by patches and budget. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.planner.test_planner import dense
from xlm.errors import ShapeError
from xlm.protocol.link import CPU, RESIDENT, STREAM, DeviceFacts, Kind, Projector, SubLayer
from xlm_broker.planner.sharding.kernels import Roofline
from xlm_broker.planner.sharding.machine import guessed_machine
from xlm_broker.planner.sharding.planner import ShardingPlanner
from xlm_broker.planner.sharding.tower import Tower, tower_from_facts, tower_from_header
from xlm_broker.planner.sharding.vision import ANY_PATCHES, RESOLUTIONS, VisionPlanner, scratch_bytes, vision_tiers
from xlm_broker.planner.sharding.vision_report import image_lines, image_rows

MIB = 1 << 20
LAYERS, FIRST = 32, 100  # of the tower; where its sub-layers begin
# Qwen2.5-VL's tower
SHAPE = {
    "embedding_length": 1280, "feed_forward_length": 3420, "block_count": LAYERS, "attention.head_count": 16,
    "image_size": 560, "patch_size": 14, "n_wa_pattern": 8,
}  # fmt: skip


def sub(index: int, kind: Kind, size: int, layer: int = -1) -> SubLayer:
    return SubLayer(
        index=FIRST + index, layer=layer, kind=kind, device_bytes=size, largest_piece_bytes=size, model_id=2
    )


def projector(kind: str = "qwen2.5vl_merger", first: int = FIRST) -> Projector:
    subs = [sub(0, "projector", 6 * MIB), sub(1, "small", MIB)]
    for layer in range(LAYERS):
        subs += [sub(2 + 2 * layer, "attention", 13 * MIB, layer), sub(3 + 2 * layer, "ffn", 25 * MIB, layer)]
    subs.append(sub(2 + 2 * LAYERS, "projector", 85 * MIB))
    moved = [replace_index(s, s.index - FIRST + first) for s in subs]
    return Projector(name="tower", kind=kind, sublayers=moved, hparams=SHAPE)


def replace_index(one: SubLayer, index: int) -> SubLayer:
    return SubLayer(
        index=index, layer=one.layer, kind=one.kind, device_bytes=one.device_bytes,
        largest_piece_bytes=one.largest_piece_bytes, model_id=one.model_id,
    )  # fmt: skip


def tower(kind: str = "qwen2.5vl_merger") -> Tower:
    found = tower_from_facts(projector(kind), FIRST)
    assert found is not None
    return found


def planner(**rates: Any) -> VisionPlanner:
    machine, _ = guessed_machine(DeviceFacts(kind="sim"))
    machine = replace(machine, **rates)
    return VisionPlanner(tower(), machine, Roofline(machine))


@pytest.mark.parametrize(("name", "patches"), [("480p", 2108), ("720p", 4784), ("1080p", 10764)])
def test_patches_are_those_of_libmtmd(name: str, patches: int) -> None:
    assert tower().patches(*RESOLUTIONS[name]) == (patches, 1)


def test_a_large_image_has_at_most_the_models_tokens() -> None:
    patches, _ = tower().patches(16_384, 2_400)
    assert 0.95 * 4096 < tower().tokens(patches) <= 4096


def test_other_families_have_one_size_or_slices() -> None:
    assert tower("gemma3").patches(2560, 1440) == (40 * 40, 1)
    sliced = replace(tower("idefics3"), shape={**SHAPE, "preproc_image_size": 4 * 560})
    assert sliced.patches(2560, 1440) == (40 * 40, 4 * 3 + 1)


def test_without_a_budget_nothing_is_on_the_device() -> None:
    plan = planner().plan(4784, 0)
    assert not plan.used
    assert (plan.scratch_bytes, plan.ring_bytes, plan.resident_bytes) == (0, 0, 0)
    assert vision_tiers(planner(), 0) == ([], 0, {})


@pytest.mark.parametrize("budget", [64 * MIB, 256 * MIB, 512 * MIB, 1024 * MIB, 4096 * MIB])
@pytest.mark.parametrize("patches", [2108, 4784, 10764, 16320])
def test_a_plan_fits_its_budget_and_is_never_slower_than_the_cpu(budget: int, patches: int) -> None:
    made = planner()
    plan, cpu = made.plan(patches, budget), made.plan(patches, 0)
    assert plan.scratch_bytes + plan.ring_bytes + plan.resident_bytes <= budget
    assert plan.total_ns <= cpu.total_ns
    assert plan.ring_bytes == 0 or STREAM in plan.modes


def test_more_memory_is_never_slower() -> None:
    made = planner()
    times = [made.plan(16320, mib * MIB).total_ns for mib in range(0, 2048, 64)]
    assert times == sorted(times, reverse=True)


def test_all_of_it_is_resident_where_it_fits_and_streamed_where_activations_leave_no_room() -> None:
    made = planner()
    assert set(made.plan(2108, 4096 * MIB).modes) == {RESIDENT}
    tight = scratch_bytes(made.tower, 16320, 64) + made.tower.small_bytes + 300 * MIB
    assert CPU not in made.plan(16320, tight).modes
    assert STREAM in made.plan(16320, tight).modes


def test_a_slow_link_leaves_feed_forward_parts_to_the_cpu() -> None:
    fast, slow = planner(link_bytes_s=1e11), planner(link_bytes_s=2e8)
    assert CPU not in fast.plan(512, 400 * MIB).modes
    plan = slow.plan(512, 400 * MIB)
    on_cpu = {unit.kind for unit, mode in zip(slow.tower.units, plan.modes, strict=True) if mode == CPU}
    assert "ffn" in on_cpu
    assert plan.total_ns < planner(link_bytes_s=2e8)._measured(512, frozenset(), 0, 1).total_ns


def test_tiers_cover_every_size_and_every_sublayer() -> None:
    tiers, ring, times = vision_tiers(planner(), 512 * MIB)
    assert [tier.max_tokens for tier in tiers] == [2108, 4784, 10764, ANY_PATCHES]
    assert {len(tier.placement) for tier in tiers} == {FIRST + 3 + 2 * LAYERS}
    assert all(not any(tier.placement[:FIRST]) for tier in tiers)
    assert 0 < ring <= 128 * MIB
    assert list(times.values()) == sorted(times.values())


def test_a_schedule_of_a_model_with_a_projector_has_a_vision_phase() -> None:
    language = dense()
    count = 1 + max(s.index for s in language.sublayers)
    seeing = type(language)(
        **{**{f: getattr(language, f) for f in language.__struct_fields__}, "projector": projector(first=count)}
    )
    schedule = ShardingPlanner().plan(seeing, DeviceFacts(kind="sim"), 512 * MIB, schedule_id=1)
    assert len(schedule.vision_tiers) == 4
    assert any(key.startswith("image_") for key in schedule.predicted)
    smaller = ShardingPlanner().shrink_plan(seeing, DeviceFacts(kind="sim"), schedule, 1 * MIB, schedule_id=2)
    assert all(not any(tier.placement) for tier in smaller.vision_tiers)
    assert ShardingPlanner().plan(language, DeviceFacts(kind="sim"), 512 * MIB, schedule_id=1).vision_tiers == []


def test_a_header_that_is_no_projector_is_one_error() -> None:
    with pytest.raises(ShapeError) as caught:
        tower_from_header("x.gguf", {"metadata": {"general.architecture": "llama"}, "tensors": []})
    assert caught.value.code == "shape_invalid"


def test_the_report_names_costs_and_the_least_memory() -> None:
    rows = image_rows(planner(), 512 * MIB)
    assert [row["image"] for row in rows] == list(RESOLUTIONS)
    assert all(row["encode_ms"] > 0 and row["least_device_bytes"] > row["patches"] for row in rows)
    text = "\n".join(image_lines(rows, explain=True))
    assert "1440p" in text
    assert "upload ms" in text
