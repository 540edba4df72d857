"""A schedule of the language model's sub-layers, made one of all. Pure."""

from __future__ import annotations

from xlm.protocol import link
from xlm_engine.vision.schedule import ANY_PATCHES, with_vision

LANGUAGE, TOWER = 1, 2


def sub(index: int, kind: link.Kind, model_id: int, piece: int = 1000) -> link.SubLayer:
    return link.SubLayer(
        index=index, layer=-1, kind=kind, device_bytes=piece, largest_piece_bytes=piece, model_id=model_id
    )


SUBS = [
    sub(0, "attention", LANGUAGE),
    sub(1, "ffn", LANGUAGE, 9000),
    sub(2, "small", TOWER, 10),
    sub(3, "ffn", TOWER, 3000),
    sub(4, "attention", TOWER),
    sub(5, "lookup", TOWER, 5000),
    sub(6, "projector", TOWER, 2000),
]


def schedule(budget_bytes: int, **changes: object) -> link.Schedule:
    tiers = [link.Tier(max_tokens=n, placement=bytes([2, 1])) for n in (1, 64)]
    return link.Schedule(schedule_id=7, budget_bytes=budget_bytes, tiers=tiers, priority=[1, 0], **changes)  # type: ignore[arg-type]


def test_steps_leave_the_tower_alone() -> None:
    made = with_vision(schedule(1 << 20), SUBS, TOWER)
    assert [tier.placement for tier in made.tiers] == [bytes([2, 1, 0, 0, 0, 0, 0])] * 2
    assert made.schedule_id == 7


def test_images_have_the_tower_and_nothing_else() -> None:
    (tier,) = with_vision(schedule(1 << 20), SUBS, TOWER).vision_tiers
    assert tier.placement == bytes([0, 0, 2, 2, 2, 0, 2])
    assert tier.max_tokens == ANY_PATCHES


def test_every_sublayer_has_a_priority_attention_first() -> None:
    assert with_vision(schedule(1 << 20), SUBS, TOWER).priority == [1, 0, 4, 3, 2, 5, 6]


def test_the_ring_holds_pieces_of_the_tower_and_leaves_room() -> None:
    assert with_vision(schedule(1 << 20), SUBS, TOWER).vision_ring_bytes == 2 * 5000
    assert with_vision(schedule(40_004), SUBS, TOWER).vision_ring_bytes == 10_000
    assert with_vision(schedule(30_000), SUBS, TOWER).vision_ring_bytes == 0  # not even two pieces


def test_no_budget_no_phase() -> None:
    assert with_vision(schedule(0), SUBS, TOWER).vision_tiers == []


def test_a_phase_of_another_tower_is_not_taken() -> None:
    other = [link.Tier(max_tokens=500, placement=bytes(9))]
    made = with_vision(schedule(1 << 20, vision_tiers=other, vision_ring_bytes=3), SUBS, TOWER)
    assert [tier.max_tokens for tier in made.vision_tiers] == [ANY_PATCHES]


def test_the_planners_own_phase_stays() -> None:
    own = [link.Tier(max_tokens=500, placement=bytes(7))]
    made = with_vision(schedule(1 << 20, vision_tiers=own, vision_ring_bytes=3), SUBS, TOWER)
    assert (made.vision_tiers, made.vision_ring_bytes) == (own, 3)
