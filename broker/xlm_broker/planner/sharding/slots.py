"""Plans for engines that keep experts one by one: the search with several shares of the memory given to slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from xlm.protocol.link import ExpertStats, ModelFacts

from .costs import EVERYTHING, STREAM, STREAM_KV, Costs
from .experts import Layer, Rates, layers, rates, shared_out, wait_ns, with_slots
from .plan import Plan, Planning, make_plan
from .problem import search_efforts

SHARES: Final = (0.25, 0.5, 0.75, 0.95)  # of the memory that is not scratch, for slots of all layers


class ExpertPlans:
    """For one model on one machine, with the routing measured so far; ``layers`` empty: nothing to be done here."""

    def __init__(self, planning: Planning, model: ModelFacts, routing: Sequence[ExpertStats]) -> None:
        self.layers = layers(model, planning.work, routing)
        self._plain = planning
        hop_ns = float(planning.costs.hop_up[0].max()) if planning.costs.hop_up.size else 0.0
        self._wait_ns = wait_ns(planning.machine)
        self._rates = [rates(layer, planning.kernels, planning.machine, hop_ns) for layer in self.layers]
        self.planning = self._with({})

    def _with(self, slots: dict[int, int]) -> Planning:
        if not self.layers:
            return self._plain
        return replace(self._plain, costs=self.costs_with(self._plain.costs, slots))

    def costs_with(self, costs: Costs, slots: dict[int, int]) -> Costs:
        """The same costs, with so many slots for each layer (by sub-layer index)."""
        return with_slots(costs, self.layers, slots, self._rates, self._wait_ns, self._plain.kernels)

    def best(self, plan: Plan, budget_bytes: int, effort: int | None, enough: Callable[[], bool]) -> Plan:
        """``plan`` (made without slots) or a better one with them: each share is looked at briefly, the best well."""
        best, best_share = self.finished(plan), None
        brief = search_efforts(self._plain.costs.n_units)[0]
        for share in SHARES if self.layers else ():
            found = None if enough() else self._share(share, budget_bytes, brief, enough)
            if found is not None and found.solution.objective < best.solution.objective:
                best, best_share = found, share
        if best_share is None or effort == brief or enough():
            return best
        found = self._share(best_share, budget_bytes, effort, enough)
        return found if found is not None and found.solution.objective < best.solution.objective else best

    def _share(self, share: float, budget_bytes: int, effort: int | None, enough: Callable[[], bool]) -> Plan | None:
        task = self._plain.task(budget_bytes)
        room = int(share * task.room(task.costs.n_tiers))
        if room <= 0:
            return None
        slots = shared_out(self.layers, self._rates, task.costs.points, task.weights, room, self._plain.kernels)
        size = _bytes(self.layers, slots)
        if not size:
            return None
        plan = make_plan(self._with(slots), budget_bytes - size, effort=effort, enough=enough)
        return self.finished(plan, slots)

    def finished(self, plan: Plan, slots: dict[int, int] | None = None) -> Plan:
        """With the policies of the layers that are streamed; slots of the others are given up."""
        streamed = [
            (layer, rate) for layer, rate in zip(self.layers, self._rates, strict=True) if _streams(plan, layer)
        ]
        kept = {layer.unit.index: (slots or {}).get(layer.unit.index, 0) for layer, _ in streamed}
        policies = {layer.unit.index: rate.policy(kept[layer.unit.index]) for layer, rate in streamed}
        largest = max((layer.facts.largest_expert_bytes for layer, _ in streamed), default=0)
        return replace(plan, slot_bytes=_bytes(self.layers, kept), experts=policies, largest_expert_bytes=largest)


def _streams(plan: Plan, layer: Layer) -> bool:
    modes = plan.solution.modes[:, layer.at]
    return bool(np.isin(modes, (STREAM, STREAM_KV)).any()) and plan.solution.state[layer.at] != EVERYTHING


def _bytes(found: Sequence[Layer], slots: dict[int, int]) -> int:
    return sum(layer.bytes_of(slots.get(layer.unit.index, 0)) for layer in found)


__all__ = ["SHARES", "ExpertPlans", "Rates"]
