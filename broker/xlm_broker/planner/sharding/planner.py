"""The planner the state machine is given: plans as link.Schedule, hysteresis, and a shrink that is always at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from msgspec.structs import replace as struct_replace
from numpy.typing import NDArray

from xlm.protocol.link import CPU as PLACE_CPU
from xlm.protocol.link import ENGINE_CAPABILITIES, DeviceFacts, ExpertStats, ModelFacts, Schedule, Tier
from xlm.protocol.link import RESIDENT as PLACE_RESIDENT
from xlm.protocol.link import STREAM as PLACE_STREAM
from xlm.protocol.link import STREAM_KV as PLACE_STREAM_KV
from xlm_broker.planner.memory import minimum_device_bytes, unified_demand
from xlm_broker.planner.report import summarise

from .costs import CPU, EVERYTHING, KV, NOTHING, RESIDENT, RING_PIECES, STREAM, STREAM_KV, Capabilities
from .experts import PART_PADDING_BYTES, WINDOW_PARTS
from .facts import work_from_facts
from .kernels import Kernels
from .machine import NO_PROFILE, guessed_machine, profiled_machine
from .modelled import CardRates, Modelled, modelled_machine
from .pipeline import cache_places
from .plan import Plan, Planning, long_plan, make_plan, prepare, require_device, with_lending
from .problem import StateArray, search_efforts
from .profile import MachineProfile
from .shrink import shrunk_schedule
from .slots import ExpertPlans
from .tower import tower_from_facts
from .vision import VisionPlanner, vision_tiers
from .workload import Workload

_PLACEMENT = np.zeros(4, dtype=np.uint8)
_PLACEMENT[[CPU, STREAM, RESIDENT, STREAM_KV]] = PLACE_CPU, PLACE_STREAM, PLACE_RESIDENT, PLACE_STREAM_KV

WORTH_SENDING = 0.005  # a better plan is told if it saves so much of the objective
HORIZON_REQUESTS = 4.0  # a change must pay for its upload within so many requests of the expected kind


@dataclass
class ShardingPlanner:
    """``xlm_broker.state.ports.Planner``. Deterministic; caches the last model's costs, so one thread at a time.

    ``profile`` None: careful rates, and the schedule's summary says so. ``threads`` 0: the engine's.
    ``card``: the device's rates, for a virtual GPU or a card that is not here; without it the profile's.
    """

    profile: MachineProfile | None = None
    card: CardRates | None = None
    workload: Workload = field(default_factory=Workload)
    capabilities: Capabilities | None = None  # None: what the engine says of itself (DeviceFacts)
    threads: int = 0
    _prepared: tuple[ModelFacts, DeviceFacts, Planning] | None = field(default=None, repr=False)

    def plan(
        self,
        model: ModelFacts,
        device: DeviceFacts,
        budget_bytes: int,
        *,
        schedule_id: int,
        current: Schedule | None = None,
        routing: Sequence[ExpertStats] = (),
        require: bool = False,
    ) -> Schedule:
        """The schedule for a budget.

        ``current``: what is in force; its resident set stays where a better one is not worth the upload. ``routing``:
        of experts, as measured. ``require``: BudgetError budget_infeasible instead of a schedule without the device.
        """
        planning, budget = self.planning(model, device), max(0, budget_bytes)
        plan = self._found(planning, device, budget, current, self._experts(planning, model, device, routing))
        if require:
            require_device(planning, plan)
        return self._with_vision(to_schedule(plan, model, budget, schedule_id), model, device)

    def plans(
        self,
        model: ModelFacts,
        device: DeviceFacts,
        budget_bytes: int,
        *,
        current: Schedule | None = None,
        routing: Sequence[ExpertStats] = (),
        enough: Callable[[], bool] = lambda: False,
    ) -> Iterator[tuple[Schedule, bool]]:
        """Plans for a budget as they are found, and whether no better one will follow: first one within a frame's
        time, then the best of a longer search. ``enough``: asked now and then; True ends the search without a last."""
        planning, budget = self.planning(model, device), max(0, budget_bytes)
        efforts = search_efforts(planning.costs.n_units) if _usable(device) else search_efforts(0)[:1]
        experts = self._experts(planning, model, device, routing)
        best: Plan | None = None
        for effort in efforts:
            last = effort == efforts[-1]
            plan = self._found(planning, device, budget, current, experts, effort, enough, slots=last)
            if enough() and best is not None:
                return
            worse = best is not None and plan.solution.objective > best.solution.objective * (1 - WORTH_SENDING)
            best = best if worse and best is not None else plan
            yield self._with_vision(to_schedule(best, model, budget, 0), model, device), last

    def _experts(
        self, planning: Planning, model: ModelFacts, device: DeviceFacts, routing: Sequence[ExpertStats]
    ) -> ExpertPlans | None:
        """None where experts are streamed as a whole, or there are none."""
        if "expert_slots" not in device.capabilities:
            return None
        found = ExpertPlans(planning, model, routing)
        return found if found.layers else None

    def _found(
        self,
        planning: Planning,
        device: DeviceFacts,
        budget: int,
        current: Schedule | None,
        experts: ExpertPlans | None,
        effort: int | None = None,
        enough: Callable[[], bool] = lambda: False,
        *,
        slots: bool = True,
    ) -> Plan:
        if not _usable(device):
            return make_plan(planning, 0)
        planning = planning if experts is None else experts.planning
        brief = search_efforts(planning.costs.n_units)[0]
        if effort is None or effort == brief:
            plan = make_plan(planning, budget, effort=effort, enough=enough)
        else:
            plan = long_plan(planning, budget, effort, enough)
        plan = plan if current is None else keep_or_change(plan, held_state(planning, current), effort)
        if experts is not None:
            plan = experts.best(plan, budget, effort, enough) if slots else experts.finished(plan)
        return with_lending(plan, enough) if slots else plan

    def shrink_plan(
        self, model: ModelFacts, device: DeviceFacts, schedule: Schedule, budget_bytes: int, *, schedule_id: int
    ) -> Schedule:
        """What is left of ``schedule`` in a smaller budget: evicts, adds nothing, searches nothing. Never raises."""
        budget = max(0, budget_bytes) if _usable(device) else 0
        return self._with_vision(shrunk_schedule(model, schedule, budget, schedule_id=schedule_id), model, device)

    def _with_vision(self, schedule: Schedule, model: ModelFacts, device: DeviceFacts) -> Schedule:
        """Adds the vision phase of a model with a projector. Arithmetic over some dozens of sub-layers: no search."""
        count = len(schedule.tiers[0].placement) if schedule.tiers else 0
        tower = tower_from_facts(model.projector, count) if model.projector is not None else None
        if tower is None or not _usable(device):
            return schedule
        planning = self.planning(model, device)
        planner = VisionPlanner(tower, planning.machine, planning.kernels)
        tiers, ring, times = vision_tiers(planner, schedule.budget_bytes)
        predicted = {**schedule.predicted, **times}
        return struct_replace(schedule, vision_tiers=tiers, vision_ring_bytes=ring, predicted=predicted)

    def minimum_device_bytes(self, model: ModelFacts) -> int:
        return minimum_device_bytes(model, RING_PIECES)

    def unified_demand(self, model: ModelFacts) -> int:
        return unified_demand(model)

    def planning(self, model: ModelFacts, device: DeviceFacts) -> Planning:
        """Costs of this model on this device; computed once for as long as both stay the same."""
        if self._prepared is None or self._prepared[0] is not model or self._prepared[1] != device:
            self._prepared = (model, device, self._prepare(model, device))
        return self._prepared[2]

    def _prepare(self, model: ModelFacts, device: DeviceFacts) -> Planning:
        kernels: Kernels | None = None
        threads = self.threads or device.n_threads
        if self.card is not None:
            machine, kernels, notes = modelled_machine(self.card, self.profile, threads=threads)
        elif self.profile is None:
            machine, notes = guessed_machine(device, threads)
        else:
            machine, kernels, notes = profiled_machine(self.profile, device, threads)
        work = work_from_facts(model)
        work = replace(work, fallbacks=(*work.fallbacks, *notes))
        able = self.capabilities or engine_capabilities(device.capabilities)
        return prepare(work, machine, self.workload, kernels=kernels, capabilities=able)


RING_AHEAD_NS: Final = 8e6  # kRingAheadNs of the native part: what a reclaim may have to wait for


def engine_capabilities(names: Sequence[str] = ENGINE_CAPABILITIES) -> Capabilities:
    """What an engine said it can do; without a word of it, what this release's does."""
    said = set(names)
    return Capabilities(
        kv_streaming="kv_streaming" in said,
        expert_granular="expert_slots" in said,
        ring_across_steps="ring_across_steps" in said,
        ahead_ns=RING_AHEAD_NS,
    )


def _usable(device: DeviceFacts) -> bool:
    return device.kind != "none" and not device.degraded


# -- hysteresis ------------------------------------------------------------------------


def held_state(planning: Planning, schedule: Schedule) -> StateArray:
    """What a schedule keeps resident, as a state; nothing if it is of another model."""
    work = planning.work
    state = np.zeros(len(work.units), dtype=np.int8)
    tiers = [t for t in schedule.tiers if not t.reserve_bytes] or schedule.tiers  # what is lent is not kept
    rows = [np.frombuffer(t.placement, dtype=np.uint8) for t in tiers if len(t.placement) == work.n_sublayers]
    for i, unit in enumerate(work.units):
        places = {int(row[unit.index]) for row in rows}
        if PLACE_RESIDENT in places:
            state[i] = EVERYTHING
        elif PLACE_STREAM in places and unit.kv_bytes:
            state[i] = KV
    return state


def keep_or_change(plan: Plan, held: StateArray, effort: int | None = None) -> Plan:
    """The new plan, or the best one with the set that is there, where the gain would not pay for the upload."""
    if not plan.used or np.array_equal(held, plan.solution.state) or not held.any():
        return plan
    kept = make_plan(plan.planning, plan.task.budget_bytes, keep=held, effort=effort)
    if not kept.used:
        return plan
    gain_ns = (kept.solution.objective - plan.solution.objective) * HORIZON_REQUESTS
    upload_ns = upload_bytes(plan.planning, held, plan.solution.state) / plan.task.costs.link_bytes_ns
    return plan if gain_ns > upload_ns else kept


def upload_bytes(planning: Planning, old: StateArray, new: StateArray) -> int:
    """Bytes that a change of the resident set copies to the device."""
    costs = planning.costs
    weights = int(costs.weight_bytes[(new == EVERYTHING) & (old != EVERYTHING)].sum())
    return weights + int(costs.kv_bytes[(new != NOTHING) & (old == NOTHING)].sum())


# -- schedules -------------------------------------------------------------------------


def to_schedule(plan: Plan, model: ModelFacts, budget_bytes: int, schedule_id: int) -> Schedule:
    window = _window_bytes(plan)
    ring = plan.solution.ring_bytes
    bare = Schedule(
        schedule_id=schedule_id,
        budget_bytes=budget_bytes,
        tiers=_tiers(plan),
        priority=_priority(plan),
        ring_bytes=ring - window if window < ring else ring,
        reserve_bytes=plan.reserve_bytes,
        resident_bytes=plan.resident_bytes,
        predicted=plan.predicted(),
        experts=dict(plan.experts) if plan.used else {},
        expert_window_bytes=window,
    )
    summary = summarise(bare, model)
    if plan.used:
        where = " on the card that is modelled" if isinstance(plan.planning.kernels, Modelled) else ""
        guess = any(note.startswith(NO_PROFILE) for note in plan.planning.fallbacks)
        summary += f"; about {plan.decode_tps:.1f} tokens/s{where}" + guess * " (no profile: careful guess)"
    return struct_replace(bare, summary=summary)


def _window_bytes(plan: Plan) -> int:
    """Part of the ring for experts without a slot: all of it where nothing else is streamed; else half, or less where
    others need more, or caches the places that the plan counts on."""
    if not plan.used or not plan.experts:
        return 0
    part, costs = plan.largest_expert_bytes + PART_PADDING_BYTES, plan.task.costs
    streamed = ((plan.solution.modes == STREAM) | (plan.solution.modes == STREAM_KV)).any(axis=0)
    others = streamed & np.array([unit.index not in plan.experts for unit in plan.planning.work.units])
    ring = plan.solution.ring_bytes
    if not others.any():
        return ring
    with_kv = (plan.solution.modes == STREAM_KV).any(axis=0)
    need = RING_PIECES * costs.piece_bytes + np.where(with_kv, costs.kv_bytes, 0)
    least = WINDOW_PARTS * part
    places = int(cache_places(costs, plan.solution.modes, costs.ring_ns(np.full(len(plan.solution.modes), ring))).max())
    held = places * int(costs.kv_bytes[with_kv].max(initial=0)) + int(costs.beside_caches_bytes[others].max())
    room = ring - max(int(need[others].max()), held)
    return min(ring, max(WINDOW_PARTS // 2 * part, min(max(least, ring // 2), room)))


def _tiers(plan: Plan) -> list[Tier]:
    work, tiers = plan.planning.work, []
    index = np.array([unit.index for unit in work.units], dtype=np.int64)
    for t, tokens in enumerate(plan.planning.tiers):
        used = t < plan.solution.reach and bool(plan.solution.modes[t].any())
        placement = np.zeros(work.n_sublayers, dtype=np.uint8)
        placement[index] = _PLACEMENT[plan.solution.modes[t]]
        placement[list(work.small_indices)] = PLACE_RESIDENT if used else PLACE_CPU
        scratch, reserve = int(plan.task.scratch_bytes[t]) if used else 0, 0
        if used and plan.lent is not None and t < plan.lent.n_tiers:
            reserve = plan.solution.ring_bytes + plan.lent.scratch_bytes
        tiers.append(
            Tier(max_tokens=tokens, placement=placement.tobytes(), scratch_bytes=scratch, reserve_bytes=reserve)
        )
    return tiers


def _priority(plan: Plan) -> list[int]:
    """All sub-layers, those that save most per byte first: what a shrink evicts last."""
    work = plan.planning.work
    worth, state = saved_per_byte(plan), plan.solution.state
    lent = state if plan.lent is None else plan.lent.state
    order = sorted(range(len(work.units)), key=lambda i: (state[i] != EVERYTHING, lent[i] != EVERYTHING, -worth[i]))
    listed = [*work.small_indices, *(work.units[i].index for i in order)]
    return [*listed, *sorted(set(range(work.n_sublayers)) - set(listed))]


def saved_per_byte(plan: Plan) -> NDArray[np.float64]:
    """[unit] weighted ns that residence saves against the CPU, per byte."""
    costs, weights = plan.task.costs, plan.task.weights
    saved = ((costs.compute[:, CPU] - costs.compute[:, RESIDENT]) * weights[:, None]).sum(axis=0)
    return np.asarray(saved / np.maximum(costs.weight_bytes + costs.kv_bytes, 1), dtype=np.float64)
