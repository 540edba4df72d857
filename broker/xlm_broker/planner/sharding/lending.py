"""What small steps do with the scratch of large ones: while only they run, it holds further copies.

A step of hundreds of tokens needs hundreds of times the activations of one token. Its scratch is kept free of copies
for as long as such steps may come; but an answer is a hundred steps of one token, and the memory lies idle meanwhile.
So the small tiers get a set of their own: everything the common set keeps, and what fits in the scratch that they do
not need. Nothing of the common set moves: a large step drops what was lent, small steps bring it back
(native/src/backend/lending.hpp). The extra set is found by the same search, in which what is kept takes no room.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from .costs import CPU, EVERYTHING, KV, RESIDENT, Costs
from .pipeline import ModeArray
from .problem import Solution, StateArray, Task, kept_bytes, simulate
from .relax import relax
from .search import search

MOST_TOKENS: Final = 16  # of a step that leaves its scratch to others
SCRATCH_MARGIN: Final = 2  # cuts between CPU and device may take more than a whole step


@dataclass(frozen=True)
class Lent:
    """``state`` [unit]: what the first ``n_tiers`` tiers keep, the common set included."""

    state: StateArray
    n_tiers: int
    scratch_bytes: int  # of those tiers
    lent_bytes: int


def lending(
    task: Task, solution: Solution, *, barred: Collection[int] = (), enough: Callable[[], bool] = lambda: False
) -> tuple[Solution, Lent] | None:
    """The solution with faster small tiers, or None where lending gains less than its uploads cost.

    ``barred``: units that are not lent to. One request drops the copies once, and brings them back once.
    """
    n_tiers = _small_tiers(task, solution)
    if not n_tiers:
        return None
    scratch = min(SCRATCH_MARGIN * int(task.scratch_bytes[n_tiers - 1]), int(task.scratch_bytes[solution.reach - 1]))
    found = search(_small_task(task, solution, n_tiers, scratch, list(barred), enough))
    if found.reach < n_tiers and not found.modes.any():
        return None
    state = np.maximum(found.state, solution.state)
    lent_bytes = int(kept_bytes(task.costs, state)) - int(kept_bytes(task.costs, solution.state))
    faster = _with_small(task, solution, state, found.modes)
    gain_ns = solution.objective - faster.objective
    if lent_bytes <= 0 or gain_ns <= lent_bytes / task.costs.link_bytes_ns:
        return None
    return faster, Lent(state, n_tiers, scratch, lent_bytes)


def _with_small(task: Task, solution: Solution, state: StateArray, small: ModeArray) -> Solution:
    """The solution with these modes in its first tiers where they are faster; a copy that is there is not streamed."""
    times, modes = solution.times.copy(), solution.modes.copy()
    tiers = np.arange(len(small))
    for candidate in (modes[: len(small)].copy(), small):
        placed = np.where((state == EVERYTHING) & (candidate != CPU), RESIDENT, candidate).astype(np.uint8)
        found = simulate(task.costs, tiers, placed, solution.ring_bytes)
        better = np.flatnonzero(found < times[: len(small)])
        times[better], modes[better] = found[better], placed[better]
    objective = float(times @ task.weights)
    return replace(
        solution, modes=modes, times=times, objective=objective, bound=min(_bound(task, len(small)), objective)
    )


def _bound(task: Task, n_tiers: int) -> float:
    """No plan of two sets is below it: as if the small tiers and the others each had all the memory that their own
    scratch leaves."""
    small = np.arange(task.costs.n_tiers) < n_tiers
    apart = (
        (np.where(small, task.weights, 0.0), task.room(1)),
        (np.where(small, 0.0, task.weights), task.room(n_tiers + 1)),
    )
    return sum(relax(task.costs, weights, room).bound_ns for weights, room in apart)


def _small_tiers(task: Task, solution: Solution) -> int:
    """How many tiers lend; 0 where none has weight, or no larger one uses the device."""
    small = sum(point.tokens <= MOST_TOKENS for point in task.costs.points)
    if small >= solution.reach or not (task.weights[:small] > 0).any():
        return 0
    return small


def _small_task(
    task: Task, solution: Solution, n_tiers: int, scratch: int, barred: list[int], enough: Callable[[], bool]
) -> Task:
    """Only the small tiers; what the solution keeps takes no room, and its ring stays."""
    costs = _first_tiers(task.costs, n_tiers)
    kept, cached = solution.state == EVERYTHING, solution.state >= KV
    weights = np.where(kept, 0, costs.weight_bytes)
    weights[barred] = np.where(kept[barred], 0, task.budget_bytes + 1)
    features = np.stack([costs.alike, kept, cached, np.isin(np.arange(len(kept)), barred)])
    alike = np.unique(features, axis=1, return_inverse=True)[1]
    costs = replace(
        costs, weight_bytes=weights, kv_bytes=np.where(cached, 0, costs.kv_bytes),
        alike=np.asarray(alike, dtype=np.int64).ravel(),
    )  # fmt: skip
    fixed = task.fixed_bytes + int(kept_bytes(task.costs, solution.state))
    return Task(
        costs, task.weights[:n_tiers], np.full(n_tiers, scratch, dtype=np.int64), fixed, task.budget_bytes,
        task.effort, enough, ring_bytes=solution.ring_bytes,
    )  # fmt: skip


def _first_tiers(costs: Costs, n: int) -> Costs:
    """Costs of the first ``n`` tiers."""
    of_tiers = ("points", "compute", "busy", "upload", "link_share", "hop_up", "hop_down", "home", "mask", "step")
    first = {name: getattr(costs, name)[:n] for name in of_tiers}
    read = costs.cache_read if isinstance(costs.cache_read, float) else costs.cache_read[:n]
    return replace(costs, cache_read=read, **first)
