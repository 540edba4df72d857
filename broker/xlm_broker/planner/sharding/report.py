"""A plan for people and for programs: tables, reasons, and what more memory would buy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from xlm.errors import BudgetError
from xlm_broker.planner.report import size

from .costs import CPU, EVERYTHING, KV, RESIDENT, STREAM, STREAM_KV
from .machine import NO_PROFILE
from .modelled import MODELLED
from .pipeline import StepTrace
from .plan import NS_PER_MS, Plan, Planning, minimum_bytes, require_device, settled_plan
from .problem import simulate, stream_mode

_MODE_NAMES = {CPU: "cpu", STREAM: "stream", RESIDENT: "resident", STREAM_KV: "stream with KV"}
GIB = 1 << 30


@dataclass(frozen=True)
class TierReport:
    """Times in ms, ``depth`` positions being in the cache. ``link``: its own work, hidden behind the rest as far as it
    is not ``wait``."""

    max_tokens: int
    depth: float
    placement: dict[str, dict[str, int]]  # kind -> mode -> count
    step: float
    compute_cpu: float
    compute_device: float
    link: float
    wait: float
    hops: float
    slowed: float
    limit: str
    alternatives: dict[str, float]


def tier_reports(plan: Plan) -> list[TierReport]:
    return [_tier(plan, tier) for tier in range(len(plan.planning.tiers))]


def _tier(plan: Plan, tier: int) -> TierReport:
    trace = plan.trace(tier)
    return TierReport(
        max_tokens=plan.planning.tiers[tier],
        depth=plan.planning.costs.points[tier].depth,
        placement=_placement(plan, tier),
        step=trace.total / NS_PER_MS,
        compute_cpu=trace.compute_cpu / NS_PER_MS,
        compute_device=trace.compute_device / NS_PER_MS,
        link=trace.link / NS_PER_MS,
        wait=trace.wait / NS_PER_MS,
        hops=trace.hops / NS_PER_MS,
        slowed=trace.slowed / NS_PER_MS,
        limit=_limit(trace),
        alternatives={name: ns / NS_PER_MS for name, ns in _alternatives(plan, tier).items()},
    )


def _placement(plan: Plan, tier: int) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for unit, mode in zip(plan.planning.work.units, plan.solution.modes[tier].tolist(), strict=True):
        of_kind = counts.setdefault(unit.kind, {})
        of_kind[_MODE_NAMES[mode]] = of_kind.get(_MODE_NAMES[mode], 0) + 1
    return counts


def _limit(trace: StepTrace) -> str:
    """What a step is bound by: the link, or the larger of the two computing parts."""
    if trace.link > 0.95 * (trace.total - trace.hops):
        return "link"
    return "cpu" if trace.compute_cpu + trace.slowed > trace.compute_device else "device"


def _alternatives(plan: Plan, tier: int) -> dict[str, float]:
    """The pure kinds with the same memory: all on the CPU; resident or CPU; resident or streamed."""
    costs, solution = plan.task.costs, plan.solution
    resident = solution.state == EVERYTHING
    streamed = stream_mode(costs, solution.state, solution.ring_bytes)
    static = np.where(resident, RESIDENT, CPU).astype(np.uint8)
    rows = np.array([np.zeros_like(static), static, np.where(resident, RESIDENT, streamed).astype(np.uint8)])
    times = simulate(costs, np.full(3, tier), rows, solution.ring_bytes)
    return dict(zip(("cpu", "static", "streaming"), times.tolist(), strict=True))


# -- what a reader would not expect ------------------------------------------------------


@dataclass(frozen=True)
class Note:
    """``code`` does not change; ``text`` is for people."""

    code: str
    text: str


def notes(plan: Plan) -> list[Note]:
    """Where the question is about more than there is. It is answered as asked."""
    found, budget, work = [], plan.task.budget_bytes, plan.planning.work
    if 0 < plan.planning.machine.device_memory_bytes < budget:
        has = size(plan.planning.machine.device_memory_bytes)
        text = f"the budget of {size(budget)} is more than the card's {has}: planned as if it had that much"
        found.append(Note("budget_above_device", f"{text}; xlm-broker never uses more than the card has"))
    if 0 < work.n_ctx_train < work.n_ctx:
        text = f"the context of {work.n_ctx} is more than the {work.n_ctx_train} the model was trained for"
        found.append(Note("context_above_training", f"{text}: what it says may make no sense beyond"))
    return found


# -- budgets ---------------------------------------------------------------------------


@dataclass(frozen=True)
class CurvePoint:
    budget_bytes: int
    decode_tps: float
    ttft_ms: float
    resident_bytes: int
    gap: float


def curve(planning: Planning, budgets: Sequence[int]) -> list[CurvePoint]:
    """Predictions over budgets. A larger budget is never given the worse plan: the smaller's fits it too."""
    points: list[CurvePoint] = []
    best: Plan | None = None
    for budget in sorted(budgets):
        plan = settled_plan(planning, budget)
        best = plan if best is None or plan.solution.objective <= best.solution.objective else best
        points.append(CurvePoint(budget, best.decode_tps, best.ttft_ms, best.resident_bytes, best.solution.gap))
    return points


def demand_bytes(planning: Planning) -> int:
    """The budget with which everything is resident."""
    costs = planning.costs
    whole = int((costs.weight_bytes + costs.kv_bytes).sum())
    return whole + planning.work.small_bytes + max(planning.work.scratch_bytes.values())


def curve_budgets(planning: Planning, count: int = 12) -> list[int]:
    """Evenly up to a tenth above what holds everything; 0 first."""
    top = 1.1 * demand_bytes(planning)
    return [round(top * i / (count - 1)) for i in range(count)]


# -- as data -----------------------------------------------------------------------------


def as_json(plan: Plan, more: Plan | None = None, points: Sequence[CurvePoint] = ()) -> dict[str, Any]:
    """Everything a program may want; bytes and ms in the names."""
    result: dict[str, Any] = {
        "model": plan.planning.work.name,
        "machine": plan.planning.machine.name,
        "budget_bytes": plan.task.budget_bytes,
        "context": plan.planning.work.n_ctx,
        "ubatch": plan.planning.work.n_ubatch,
        "workload": asdict(plan.planning.workload),
        "decode_tps": plan.decode_tps,
        "ttft_ms": plan.ttft_ms,
        "objective_ms": plan.solution.objective / NS_PER_MS,
        "bound_ms": plan.solution.bound / NS_PER_MS,
        "gap": plan.solution.gap,
        "resident_bytes": plan.resident_bytes,
        "kv_bytes": plan.kv_bytes,
        "lent_bytes": plan.lent.lent_bytes if plan.lent is not None else 0,
        "ring_bytes": plan.solution.ring_bytes,
        "scratch_bytes": plan.scratch_bytes,
        "minimum_bytes": minimum_bytes(plan.planning),
        "cpu_threads": plan.planning.machine.cpu_threads,
        "uses_device": plan.used,
        "tiers": [asdict(tier) for tier in tier_reports(plan)],
        "fallbacks": list(plan.planning.fallbacks),
        "notes": [asdict(note) for note in notes(plan)],
    }
    if more is not None:
        result["one_more_gib"] = {"decode_tps": more.decode_tps, "ttft_ms": more.ttft_ms}
    if points:
        result["curve"] = [asdict(point) for point in points]
    return result


def sublayer_rows(plan: Plan) -> list[dict[str, Any]]:
    """One row a sub-layer: its modes by tier, and what it keeps on the device."""
    kept, state = {KV: "KV", EVERYTHING: "all"}, plan.solution.state
    lent = state if plan.lent is None else plan.lent.state
    return [
        {
            "index": unit.index, "layer": unit.layer, "kind": unit.kind, "bytes": unit.device_bytes,
            "kv_bytes": unit.kv_bytes, "keeps": kept.get(int(state[i]), "-") if state[i] == lent[i] else "lent",
            "modes": [_MODE_NAMES[int(mode)] for mode in plan.solution.modes[:, i]],
        }
        for i, unit in enumerate(plan.planning.work.units)
    ]  # fmt: skip


# -- as text -----------------------------------------------------------------------------


def as_text(plan: Plan, more: Plan | None = None, points: Sequence[CurvePoint] = ()) -> str:
    lines = [
        _headline(plan),
        *_basis(plan),
        _context(plan),
        *(f"note {note.code}: {note.text}" for note in notes(plan)),
        "",
        *_memory_lines(plan),
        *_without_device(plan),
        "",
        *_tier_lines(plan),
        "",
        *_reasons(plan),
    ]
    if more is not None and plan.planning.machine.has_device:
        lines.append(
            f"one more GiB: {more.decode_tps:.1f} tokens/s ({more.decode_tps - plan.decode_tps:+.1f}),"
            f" first token after {more.ttft_ms:.0f} ms ({more.ttft_ms - plan.ttft_ms:+.0f})"
        )
    if points:
        lines += ["", *_curve_lines(points)]
    assumed = [note for note in plan.planning.fallbacks if not note.startswith((MODELLED, NO_PROFILE))]
    if assumed:
        lines += ["", "assumed: " + "; ".join(assumed)]
    return "\n".join(lines)


def _headline(plan: Plan) -> str:
    work, load, machine = plan.planning.work, plan.planning.workload, plan.planning.machine
    where = f"{machine.name or 'this machine'}, budget {size(plan.task.budget_bytes)}"
    where = where if machine.has_device else f"the CPU of {machine.name or 'this machine'}"
    return (
        f"{work.name} on {where}, context {work.n_ctx}: {plan.decode_tps:.1f} tokens/s,"
        f" first token of {load.prompt_tokens} after {plan.ttft_ms:.0f} ms (predicted)"
    )


def _context(plan: Plan) -> str:
    work = plan.planning.work
    sessions = f"each of {work.n_sessions} conversations" if work.n_sessions > 1 else "one conversation"
    return f"a context of {work.n_ctx} tokens for {sessions} (--ctx, --sessions: as xlm-broker is told)"


def _basis(plan: Plan) -> list[str]:
    """What the figures above are not: measured here. Said first, and not among what was assumed."""
    return [f"not measured - {note}" for note in plan.planning.fallbacks if note.startswith((MODELLED, NO_PROFILE))]


def _memory_lines(plan: Plan) -> list[str]:
    if not plan.planning.machine.has_device:
        return []
    weights = plan.resident_bytes - plan.kv_bytes
    used = plan.resident_bytes + plan.reserve_bytes
    return [
        f"memory: weights {size(weights)} of {size(plan.planning.work.weight_bytes)}, KV {size(plan.kv_bytes)},"
        f" ring {size(plan.solution.ring_bytes)}, scratch {size(plan.scratch_bytes)};"
        f" {size(used)} of {size(plan.task.budget_bytes)}",
        *_lent_lines(plan),
    ]


def _lent_lines(plan: Plan) -> list[str]:
    if plan.lent is None:
        return []
    tokens = plan.planning.tiers[plan.lent.n_tiers - 1]
    return [
        f"lent: while steps of at most {tokens} tokens run, {size(plan.lent.lent_bytes)} of the scratch hold further"
        " copies; a longer step drops them"
    ]


def _without_device(plan: Plan) -> list[str]:
    """Why nothing runs on the device, if nothing does."""
    try:
        require_device(plan.planning, plan)
    except BudgetError as error:
        return [error.message]
    return []


def _tier_lines(plan: Plan) -> list[str]:
    reports = tier_reports(plan)
    kinds = list(reports[0].placement) if reports else []
    head = ["tokens", "depth", *kinds, "step ms", "cpu", "device", "link", "wait", "hops", "slowed", "bound by"]
    rows = [
        [f"<= {r.max_tokens}", f"{r.depth:.0f}", *(_cell(r.placement.get(k, {})) for k in kinds), *_times(r)]
        for r in reports
    ]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in [head, *rows]]
    legend = "(r resident, s streamed, k streamed with its KV cache, c on the CPU; the link works beside the rest)"
    return [
        *lines,
        legend,
        "(depth: positions in the cache before the step; the prompt's are less deep than the answer's)",
    ]


def _cell(counts: dict[str, int]) -> str:
    letters = (("resident", "r"), ("stream", "s"), ("stream with KV", "k"), ("cpu", "c"))
    return " ".join(f"{letter}{counts[name]}" for name, letter in letters if name in counts)


def _times(report: TierReport) -> list[str]:
    values = ("step", "compute_cpu", "compute_device", "link", "wait", "hops", "slowed")
    return [*(f"{getattr(report, name):.2f}" for name in values), report.limit]


def _reasons(plan: Plan) -> list[str]:
    lines = []
    for report in tier_reports(plan):
        others = ", ".join(f"{name} {ms:.2f}" for name, ms in report.alternatives.items())
        lines.append(f"why, {report.max_tokens} tokens: {report.step:.2f} ms; with the same memory: {others}")
    gap = f"{plan.solution.gap:.1%}"
    lines.append(f"no plan can be more than {gap} better than this one (relaxation bound)")
    return lines


def _curve_lines(points: Sequence[CurvePoint]) -> list[str]:
    head = f"{'budget':>10}  {'tokens/s':>9}  {'first token ms':>15}"
    rows = [f"{size(p.budget_bytes):>10}  {p.decode_tps:9.1f}  {p.ttft_ms:15.0f}" for p in points]
    return [head, *rows]
