"""From work, machine and budget to a plan with its predictions. The one entry of this package's mathematics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from xlm.errors import BudgetError
from xlm.protocol.link import ExpertPolicy
from xlm_broker.planner.report import below_minimum, mib

from .costs import Capabilities, Costs, FloatArray, build_costs
from .hardware import Machine
from .kernels import Kernels, Roofline
from .lending import Lent, lending
from .orders import TierOrders
from .pipeline import StepTrace, trace_step
from .problem import SMALL_UNITS, Solution, StateArray, Task, default_effort, search_efforts, state_bytes
from .search import search
from .work import ModelWork
from .workload import Workload, decode_weights, prefill_weights, tier_points

NS_PER_MS = 1e6
SMALLER = (0.98, 0.96, 0.94, 0.92, 0.9)  # of a budget: where a long search looks too


@dataclass(frozen=True)
class Planning:
    """What stays the same for all budgets of a model on a machine."""

    work: ModelWork
    machine: Machine
    costs: Costs
    workload: Workload
    kernels: Kernels
    prefill: FloatArray  # [tier] steps of a request
    decode: FloatArray
    fallbacks: tuple[str, ...]

    @property
    def tiers(self) -> list[int]:
        return [point.tokens for point in self.costs.points]

    @cached_property
    def orders(self) -> TierOrders:
        return TierOrders.of(self.costs)

    def task(self, budget_bytes: int, effort: int | None = None, enough: Callable[[], bool] = lambda: False) -> Task:
        scratch = [self.work.scratch_bytes[tokens] for tokens in self.tiers]
        return Task(
            self.costs, self.prefill + self.decode, np.maximum.accumulate(np.array(scratch, dtype=np.int64)),
            self.work.small_bytes, max(0, budget_bytes), effort or default_effort(self.costs.n_units),
            enough, self.orders,
        )  # fmt: skip


@dataclass(frozen=True)
class Plan:
    planning: Planning
    task: Task
    solution: Solution
    # experts that are kept one by one: slots by sub-layer, their bytes (beyond the task's budget), the largest matrix
    experts: Mapping[int, ExpertPolicy] = field(default_factory=dict)
    slot_bytes: int = 0
    largest_expert_bytes: int = 0
    lent: Lent | None = None  # what small tiers keep beyond the solution's state

    @property
    def resident_bytes(self) -> int:
        """Weights and KV that stay on the device, small group included."""
        if not self.used:
            return 0
        return self.planning.work.small_bytes + state_bytes(self.task.costs, self.solution.state) + self.slot_bytes

    @property
    def used(self) -> bool:
        return self.solution.reach > 0

    @property
    def kv_bytes(self) -> int:
        return int(self.task.costs.kv_bytes[self.solution.state > 0].sum())

    @property
    def scratch_bytes(self) -> int:
        return int(self.task.scratch_bytes[self.solution.reach - 1]) if self.used else 0

    @property
    def reserve_bytes(self) -> int:
        return self.solution.ring_bytes + self.scratch_bytes

    @property
    def ttft_ms(self) -> float:
        return float(self.solution.times @ self.planning.prefill) / NS_PER_MS

    @property
    def decode_tps(self) -> float:
        steps_ns = float(self.solution.times @ self.planning.decode)
        return 1e9 * self.planning.workload.decode_tokens / steps_ns if steps_ns else 0.0

    def trace(self, tier: int) -> StepTrace:
        ring_ns = float(self.task.costs.ring_ns(self.solution.ring_bytes))
        return trace_step(self.task.costs, tier, self.solution.modes[tier], ring_ns)

    def predicted(self) -> dict[str, float]:
        """Numbers for link.Schedule: times in ms, ``gap`` as a share of the bound no plan can beat."""
        whole = self.planning.work.weight_bytes
        kept = self.resident_bytes - self.kv_bytes
        steps = {f"step_ms_{n}": t / NS_PER_MS for n, t in zip(self.planning.tiers, self.solution.times, strict=True)}
        return {
            "decode_tps": self.decode_tps,
            "ttft_ms": self.ttft_ms,
            "objective_ms": self.solution.objective / NS_PER_MS,
            "bound_ms": self.solution.bound / NS_PER_MS,
            "gap": self.solution.gap,
            "resident_share": kept / whole if whole else 0.0,
            "fallbacks": float(len(self.planning.fallbacks)),
            **{name: float(value) for name, value in steps.items()},
        }


def prepare(
    work: ModelWork,
    machine: Machine,
    workload: Workload | None = None,
    *,
    kernels: Kernels | None = None,
    capabilities: Capabilities | None = None,
) -> Planning:
    """Costs of a model on a machine: the slow part, done once for all budgets."""
    tiers = sorted(work.scratch_bytes)
    kernels, workload = kernels or Roofline(machine), workload or Workload()
    costs = build_costs(work, machine, kernels, tier_points(workload, tiers), capabilities or Capabilities())
    notes = (*work.fallbacks, *sorted(kernels.fallbacks()))
    planning = Planning(
        work,
        machine,
        costs,
        workload,
        kernels,
        prefill_weights(workload, tiers),
        decode_weights(workload, tiers),
        notes,
    )
    _ = planning.orders  # found here, not in the time of the first plan
    return planning


def make_plan(
    planning: Planning,
    budget_bytes: int,
    *,
    keep: StateArray | None = None,
    effort: int | None = None,
    enough: Callable[[], bool] = lambda: False,
) -> Plan:
    """The plan for a budget; everything on the CPU where nothing fits. Never above the budget."""
    task = planning.task(budget_bytes if planning.machine.has_device else 0, effort, enough)
    return Plan(planning, task, search(task, keep))


def long_plan(planning: Planning, budget_bytes: int, effort: int, enough: Callable[[], bool] = lambda: False) -> Plan:
    """The best of a long search, and of brief ones at somewhat smaller budgets: what fits those fits this one, and a
    search that fills its memory to the brim may pass by what leaves some of it."""
    best = make_plan(planning, budget_bytes, effort=effort, enough=enough)
    if planning.costs.n_units <= SMALL_UNITS:  # all changes are tried there
        return best
    brief, budgets = search_efforts(planning.costs.n_units)[0], [int(share * budget_bytes) for share in SMALLER]
    found = [make_plan(planning, budget, effort=brief, enough=enough) for budget in budgets if not enough()]
    smaller = min(found, key=lambda plan: plan.solution.objective, default=best)
    if smaller.solution.objective >= best.solution.objective:
        return best
    longer = make_plan(planning, smaller.task.budget_bytes, effort=effort, enough=enough)
    winner = min((smaller, longer), key=lambda plan: plan.solution.objective).solution
    return replace(best, solution=replace(winner, bound=min(best.solution.bound, winner.objective)))


def with_lending(plan: Plan, enough: Callable[[], bool] = lambda: False) -> Plan:
    """The same with what its small tiers do with the scratch of the others. Experts that have slots keep those."""
    slots = {index for index, policy in plan.experts.items() if policy.n_slots}
    barred = [i for i, unit in enumerate(plan.planning.work.units) if unit.index in slots]
    found = lending(plan.task, plan.solution, barred=barred, enough=enough) if plan.used else None
    return plan if found is None else replace(plan, solution=found[0], lent=found[1])


def settled_plan(planning: Planning, budget_bytes: int) -> Plan:
    """What a broker comes to: the best of its searches, the one within a frame's time and the longer one."""
    brief, long = search_efforts(planning.costs.n_units)
    plans = [make_plan(planning, budget_bytes, effort=brief), long_plan(planning, budget_bytes, long)]
    return with_lending(min(plans, key=lambda plan: plan.solution.objective))


def minimum_bytes(planning: Planning) -> int:
    """The smallest budget with which something runs on the device in steps of one token."""
    costs, work = planning.costs, planning.work
    if not costs.n_units:
        return 0
    resident = costs.weight_bytes + costs.kv_bytes
    streamed = costs.kv_ring_bytes
    least = int(np.minimum(resident, streamed).min())
    return work.small_bytes + work.scratch_bytes[planning.tiers[0]] + least


def require_device(planning: Planning, plan: Plan) -> Plan:
    """BudgetError budget_infeasible, with the minimum, for a plan that leaves the device unused."""
    if plan.used:
        return plan
    if not planning.machine.has_device:
        raise BudgetError(
            f"{planning.work.name} is computed on the CPU: there is no device, and no budget is used",
            code="budget_infeasible", hint="--device sim plans for the virtual GPU",
        )  # fmt: skip
    least, budget = minimum_bytes(planning), plan.task.budget_bytes
    if least <= budget:
        raise BudgetError(
            f"{planning.work.name} is predicted to be faster without the device at {mib(budget)}",
            code="budget_infeasible", hint="a larger budget may help",
        )  # fmt: skip
    error = BudgetError(
        f"nothing of {planning.work.name} can run on the device: {below_minimum(budget, least)}: scratch"
        f" {mib(work_scratch(planning))}, norms and router {mib(planning.work.small_bytes)}, the smallest sub-layer",
        code="budget_infeasible",
    )
    error.minimum_bytes = least
    raise error


def work_scratch(planning: Planning) -> int:
    return planning.work.scratch_bytes[planning.tiers[0]]


def check_host_memory(planning: Planning) -> None:
    """BudgetError where weights and a full cache exceed the host's memory: VRAM is a cache, the host holds it all."""
    costs, limit = planning.costs, planning.machine.host_memory_bytes
    needed = planning.work.weight_bytes + int(costs.kv_bytes.sum())
    if 0 < limit < needed:
        raise BudgetError(
            f"weights and a KV cache of {planning.work.n_ctx} positions take {needed / 2**30:.1f} GiB of host memory,"
            f" the machine has {limit / 2**30:.1f} GiB",
            code="budget_infeasible", hint="use a shorter context, a smaller model or a smaller quantisation",
        )  # fmt: skip
