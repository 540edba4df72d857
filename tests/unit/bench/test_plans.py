"""Our plans in the benchmark: pure kinds are pure, limits are below predictions, equal schedules are one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from msgspec.structs import replace as changed

from tests.unit.planner.sharding.examples import MIB, SIM, facts
from xlm.protocol.link import CPU, RESIDENT, STREAM, ModelFacts, Schedule
from xlm_broker.bench.cards import Rates
from xlm_broker.bench.grid import Work
from xlm_broker.bench.plans import Planned, fingerprint, placements
from xlm_broker.planner.sharding.profile import MachineProfile, ProfileKey

CARD = Rates("card", link_bytes_s=8e9, flops_s=8e12, memory_bytes_s=120e9)
PROFILE = MachineProfile(ProfileKey("cpu", 4, "", "", "", ""))
UBATCH = 64
MODEL = facts()
WHOLE = sum(sub.device_bytes + sub.kv_bytes for sub in MODEL.sublayers)


def planned(model: ModelFacts = MODEL) -> Planned:
    return Planned(model, SIM, Work(64, 512), PROFILE, CARD.card, 4)


def places(schedule: Schedule, model: ModelFacts = MODEL) -> set[int]:
    """Where sub-layers that can be placed are, in the tiers that use the device."""
    chosen = [sub.index for sub in model.sublayers if sub.kind not in ("small", "lookup")]
    rows = [np.frombuffer(tier.placement, np.uint8)[chosen] for tier in schedule.tiers]
    return {int(place) for row in rows if row.any() for place in row}


@pytest.mark.parametrize(
    ("kind", "never"), [("gpu-only", CPU), ("static", STREAM), ("dynamic", RESIDENT)], ids=lambda value: str(value)
)
def test_a_pure_kind_does_without_what_it_does_without(kind: str, never: int) -> None:
    schedule = planned().kind(kind, WHOLE // 2)
    assert schedule is not None
    assert never not in places(schedule)


def test_a_kind_that_cannot_be_is_none() -> None:
    assert planned().kind("gpu-only", MIB) is None


@pytest.mark.parametrize("share", [0.1, 0.5, 1.1])
def test_nothing_is_predicted_below_the_limit(share: float) -> None:
    plans, budget = planned(), round(share * WHOLE)
    limit, said = plans.limits(budget, UBATCH), plans.predicted(plans.schedule(budget), UBATCH)
    assert 0 < limit.token_ns <= said.token_ns * (1 + 1e-6)
    assert 0 < limit.ttft_ns <= said.ttft_ns * (1 + 1e-6)


def test_a_larger_budget_lowers_the_limit() -> None:
    limits = [planned().limits(round(share * WHOLE), UBATCH).token_ns for share in (0.1, 0.3, 0.6, 1.2)]
    assert limits == sorted(limits, reverse=True)
    assert limits[-1] < limits[0]


def test_schedules_are_told_apart_by_what_they_do() -> None:
    plans = planned()
    one, again, other = plans.schedule(WHOLE // 2), plans.schedule(WHOLE // 2), plans.schedule(WHOLE // 4)
    assert fingerprint(one) == fingerprint(again) == fingerprint(changed(one, summary="", schedule_id=99))
    assert fingerprint(one) != fingerprint(other)


def test_placements_count_every_sublayer() -> None:
    schedule = planned().schedule(WHOLE // 2)
    for tokens in (1, 64, 10_000):
        assert sum(placements(schedule, tokens).values()) == len(MODEL.sublayers)


def test_another_card_gives_other_limits() -> None:
    slow = replace(CARD, link_bytes_s=CARD.link_bytes_s / 10)
    plans = Planned(MODEL, SIM, Work(64, 512), PROFILE, slow.card, 4)
    assert plans.limits(WHOLE // 3, UBATCH).token_ns >= planned().limits(WHOLE // 3, UBATCH).token_ns
