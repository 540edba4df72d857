"""Our schedules: what the product's planner makes of a budget, and the pure kinds of plans to compare it with."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from msgspec.structs import replace as struct_replace

from xlm.protocol.link import DeviceFacts, ModelFacts, Schedule
from xlm_broker.bench.grid import DECODE_TOKENS, Work, depths_to_time, ttft_ns
from xlm_broker.bench.limit import step_limit_ns
from xlm_broker.bench.statics import Times
from xlm_broker.planner.sharding.costs import CPU, RESIDENT, STREAM, STREAM_KV, Costs
from xlm_broker.planner.sharding.modelled import CardRates
from xlm_broker.planner.sharding.plan import Planning, make_plan
from xlm_broker.planner.sharding.planner import ShardingPlanner, to_schedule
from xlm_broker.planner.sharding.predict import predicted_step
from xlm_broker.planner.sharding.problem import search_efforts
from xlm_broker.planner.sharding.profile import MachineProfile
from xlm_broker.planner.sharding.workload import Workload

KINDS: Final = ("gpu-only", "static", "dynamic")
_NEVER: Final = 1e15  # ns: a way that is forbidden


@dataclass
class Planned:
    """Plans for one model on one card in one kind of work."""

    facts: ModelFacts
    device: DeviceFacts
    work: Work
    profile: MachineProfile
    card: CardRates
    threads: int
    planner: ShardingPlanner = field(init=False)

    def __post_init__(self) -> None:
        workload = Workload(prompt_tokens=self.work.prompt, decode_tokens=DECODE_TOKENS, depth=self.work.before)
        self.planner = ShardingPlanner(profile=self.profile, card=self.card, workload=workload, threads=self.threads)

    @property
    def planning(self) -> Planning:
        return self.planner.planning(self.facts, self.device)

    def schedule(self, budget_bytes: int) -> Schedule:
        """What the broker ends with: the last of the plans its planning process finds."""
        *_, (schedule, _) = self.planner.plans(self.facts, self.device, budget_bytes)
        return struct_replace(schedule, schedule_id=1)

    def kind(self, name: str, budget_bytes: int) -> Schedule | None:
        """The best plan of a pure kind; None where there is none at this budget."""
        planning = replace(self.planning, costs=_restricted(self.planning.costs, name))
        plan = make_plan(planning, budget_bytes, effort=search_efforts(planning.costs.n_units)[-1])
        if not plan.used or max(plan.solution.times) >= _NEVER:
            return None
        return to_schedule(plan, self.facts, budget_bytes, 1)

    def limits(self, budget_bytes: int, n_ubatch: int) -> Times:
        """What no schedule beats."""
        return self._times(lambda tokens, depth: step_limit_ns(self.planning, tokens, depth, budget_bytes), n_ubatch)

    def predicted(self, schedule: Schedule, n_ubatch: int) -> Times:
        """What the timing model says of a schedule."""
        return self._times(
            lambda n, depth: predicted_step(self.planning, schedule, n, depth, self.facts).total, n_ubatch
        )

    def _times(self, step: Callable[[int, int], float], n_ubatch: int) -> Times:
        """From the very steps that are measured."""
        tokens = min(self.work.prompt, n_ubatch)
        ends = [step(tokens, depth + lead * tokens) for depth, lead in depths_to_time(self.work, n_ubatch)]
        return Times(ttft_ns(ends[0], ends[-1], self.work.ubatches(n_ubatch)), step(1, self.work.depth))


def _restricted(costs: Costs, kind: str) -> Costs:
    """The paper's kinds. gpu-only: nothing computes on the CPU. static: nothing is copied in a step. dynamic: no
    weights stay on the device between steps; each sub-layer is copied or computes on the CPU."""
    compute, busy, upload = costs.compute.copy(), costs.busy.copy(), costs.upload.copy()
    if kind == "gpu-only":
        compute[:, CPU] = busy[:, CPU] = _NEVER
    elif kind == "static":
        for mode in (STREAM, STREAM_KV):
            compute[:, mode] = busy[:, mode] = _NEVER
    else:
        compute[:, RESIDENT] = busy[:, RESIDENT] = _NEVER
    return replace(costs, compute=compute, busy=busy, upload=upload)


def fingerprint(schedule: Schedule) -> str:
    """Equal for schedules that do the same."""
    parts: Mapping[str, object] = {
        "tiers": [(t.max_tokens, t.placement, t.reserve_bytes) for t in schedule.tiers],
        "priority": schedule.priority,
        "memory": (schedule.budget_bytes, schedule.ring_bytes, schedule.reserve_bytes),
        "experts": (sorted(schedule.experts.items()), schedule.expert_window_bytes),
    }
    return hashlib.sha256(repr(sorted(parts.items())).encode()).hexdigest()[:16]


def placements(schedule: Schedule, tokens: int) -> dict[str, int]:
    """How many sub-layers are where in steps of so many tokens."""
    tier = next((t for t in schedule.tiers if tokens <= t.max_tokens), schedule.tiers[-1])
    places = np.frombuffer(tier.placement, dtype=np.uint8)
    return {name: int((places == value).sum()) for value, name in enumerate(("cpu", "stream", "resident", "stream_kv"))}
