"""Resident sets by counts: so many of one class of equal sub-layers, as many of another as fit, evenly spread.

Real models are a few classes repeated. Which class to stream and which to keep is a matter of counts; for a given
count an even spread lets the link work all the time with the smallest ring.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .costs import EVERYTHING, KV, Costs
from .pipeline import IntArray
from .problem import SMALL_UNITS, StateArray

FEW_COUNTS = 3  # of the first class, in large models
PHASES = (0.0, 0.5, 1.0)  # first, middle of each block; 1: from end to end


def counted_states(costs: Costs, room: int) -> Iterator[StateArray]:
    """Sets of at most ``room`` bytes from counts of the two heaviest classes; in small models without the rest too."""
    classes = _heaviest(costs)
    rest = np.setdiff1d(np.arange(costs.n_units), np.concatenate(classes))
    small = costs.n_units <= SMALL_UNITS
    for chosen in (rest, rest[:0]) if small and len(rest) else (rest,):
        for count in _counts(len(classes[0]), len(classes[0]) + 1 if small else FEW_COUNTS):
            for phase in PHASES if small else PHASES[:1]:
                state = _state(costs, classes, chosen, count, phase, room)
                if state is not None:
                    yield state


def _heaviest(costs: Costs) -> list[IntArray]:
    """Units of the two classes of most bytes, the class of the smaller units first; the second may be empty."""
    total = np.bincount(costs.alike, weights=costs.weight_bytes.astype(np.float64))
    classes = [np.flatnonzero(costs.alike == k) for k in np.argsort(-total)[:2]]
    classes.sort(key=lambda members: int(costs.weight_bytes[members[0]]))
    return [*classes, np.zeros(0, dtype=np.int64)][:2]


def _counts(most: int, how_many: int) -> list[int]:
    return sorted({round(most * i / max(1, how_many - 1)) for i in range(how_many)})


def _state(
    costs: Costs, classes: list[IntArray], rest: IntArray, count: int, phase: float, room: int
) -> StateArray | None:
    """None where even the caches and the first class do not fit."""
    state = np.zeros(costs.n_units, dtype=np.int8)
    state[rest] = EVERYTHING
    for members in classes:
        state[members[costs.kv_bytes[members] > 0]] = KV
    state[_even(classes[0], count, phase)] = EVERYTHING
    kept = costs.kv_bytes * (state >= KV) + costs.weight_bytes * (state == EVERYTHING)
    left = room - int(kept.sum())
    if left < 0:
        return None
    if len(classes[1]):
        each = int(costs.weight_bytes[classes[1][0]])
        state[_even(classes[1], min(len(classes[1]), left // max(1, each)), phase)] = EVERYTHING
    return state


def _even(members: IntArray, count: int, phase: float) -> IntArray:
    """``count`` of the members, one from each of as many equal blocks, or ends included."""
    at = (np.arange(count) + phase) * len(members) / max(1, count)
    if phase >= 1.0:
        at = np.linspace(0, len(members) - 1, count)
    return members[np.minimum(at.astype(np.int64), len(members) - 1)]
