"""Resident sets by counts: so many of one class of equal sub-layers, as many of another as fit, evenly spread.

Real models are a few classes repeated. Which class to stream and which to keep is a matter of counts; for a given
count an even spread lets the link work all the time with the smallest ring.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .costs import EVERYTHING, KV, NOTHING, Costs, FloatArray
from .pipeline import IntArray
from .problem import SMALL_UNITS, StateArray, state_bytes

FEW_COUNTS = 3  # of the first class, in large models, where each of the two is the first in turn
PHASES = (0.0, 0.5, 1.0)  # first, middle of each block; 1: from end to end


def counted_states(costs: Costs, rooms: Sequence[int], *, long: bool = False) -> list[tuple[int, StateArray]]:
    """Sets from counts of the two heaviest classes, in small models without the rest too: (place of the room, set).

    ``long``: there is time for more of them.
    """
    found = []
    for one, other in _pairs(costs, long):
        firsts = list(_firsts(costs, one, other))
        kept = [state_bytes(costs, state) for state, _ in firsts]
        found += [
            (place, _with_second(costs, other, *first, room - size))
            for place, room in enumerate(rooms)
            for first, size in zip(firsts, kept, strict=True)
            if size <= room
        ]
    return found


def _firsts(costs: Costs, one: IntArray, other: IntArray) -> Iterator[tuple[StateArray, float]]:
    """Caches, the rest and so many of the one class, and the phase of the spread."""
    rest = np.ones(costs.n_units, dtype=bool)
    rest[np.concatenate([one, other])] = False
    small = costs.n_units <= SMALL_UNITS
    for others, caches in _around(costs, small and bool(rest.any())):
        for count in _counts(len(one), len(one) + 1 if small else FEW_COUNTS):
            for phase in PHASES if small else PHASES[:1]:
                state = np.where(rest, others, np.where(costs.kv_bytes > 0, caches, NOTHING))
                state[_even(one, count, phase)] = EVERYTHING
                yield state.astype(np.int8), phase


def _around(costs: Costs, small: bool) -> list[tuple[int, int]]:
    """(the rest, caches): all kept; in small models caches alone; nothing, where caches can stream instead."""
    streamed = [(NOTHING, NOTHING)] if costs.capabilities.kv_streaming else []
    return [(EVERYTHING, KV), *([(NOTHING, KV)] if small else []), *streamed]


def _pairs(costs: Costs, long: bool) -> list[tuple[IntArray, IntArray]]:
    """The two heaviest classes. In small models every count of the one is tried, so that the other has its turn; in
    large ones, where there is time, those of several sub-layers too, with their caches."""
    first, second = _heaviest(costs, costs.weight_bytes.astype(np.float64))
    if costs.n_units <= SMALL_UNITS:
        return [(first, second)]
    if not long:
        return [(first, second), (second, first)]
    several = np.bincount(costs.alike)[costs.alike] > 1
    one, other = _heaviest(costs, np.where(several, costs.weight_bytes + costs.kv_bytes, 0.0))
    return [(first, second), (second, first), (one, other), (other, one)]


def _heaviest(costs: Costs, size: FloatArray) -> list[IntArray]:
    """Units of the two classes of most ``size``, the class of the smaller units first; the second may be empty."""
    total = np.bincount(costs.alike, weights=size)
    classes = [np.flatnonzero(costs.alike == k) for k in np.argsort(-total)[:2]]
    classes.sort(key=lambda members: int(costs.weight_bytes[members[0]]))
    return [*classes, np.zeros(0, dtype=np.int64)][:2]


def _counts(most: int, how_many: int) -> list[int]:
    return sorted({round(most * i / max(1, how_many - 1)) for i in range(how_many)})


def _with_second(costs: Costs, second: IntArray, first: StateArray, phase: float, left: int) -> StateArray:
    """The same and as many of the second class as fit in what is left."""
    if not len(second):
        return first
    at = second[0]
    state, each = first.copy(), int(costs.weight_bytes[at] + (costs.kv_bytes[at] if first[at] == NOTHING else 0))
    state[_even(second, min(len(second), left // max(1, each)), phase)] = EVERYTHING
    return state


def _even(members: IntArray, count: int, phase: float) -> IntArray:
    """``count`` of the members, one from each of as many equal blocks, or ends included."""
    at = (np.arange(count) + phase) * len(members) / max(1, count)
    if phase >= 1.0:
        at = np.linspace(0, len(members) - 1, count)
    return members[np.minimum(at.astype(np.int64), len(members) - 1)]
