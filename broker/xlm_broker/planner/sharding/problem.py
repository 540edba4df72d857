"""What a plan is made for, what a plan is, and the rules both obey."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .costs import CPU, EVERYTHING, KV, NOTHING, RING_PIECES, STREAM, STREAM_KV, Costs, FloatArray
from .pipeline import IntArray, ModeArray, step_times

StateArray = NDArray[np.int8]

SMALL_UNITS = 16  # up to so many sub-layers all single and paired changes are tried
EFFORT = 6_000  # sub-layers to simulate for one plan
LONG_EFFORT = 160_000  # the same where there is time
SMALL_EFFORT = 150_000  # in small models
QUICK_EFFORT = 2_000  # in small models, within a frame's time


def default_effort(n_units: int) -> int:
    return SMALL_EFFORT if n_units <= SMALL_UNITS else EFFORT


def search_efforts(n_units: int) -> list[int]:
    """Ascending: within a frame's time, then in the background."""
    return [QUICK_EFFORT, SMALL_EFFORT] if n_units <= SMALL_UNITS else [EFFORT, LONG_EFFORT]


@dataclass(frozen=True)
class Task:
    """What to plan. ``weights`` [tier]: how often a step of the tier occurs in the expected work.

    ``scratch_bytes`` [tier] ascending; ``fixed_bytes``: on the device whenever it is used at all.
    """

    costs: Costs
    weights: FloatArray
    scratch_bytes: IntArray
    fixed_bytes: int
    budget_bytes: int
    effort: int
    enough: Callable[[], bool] = field(default=lambda: False, compare=False)  # True: the search ends with what it has

    def room(self, reach: int) -> int:
        """Bytes for copies and ring if the first ``reach`` tiers use the device."""
        return self.budget_bytes - self.fixed_bytes - int(self.scratch_bytes[reach - 1])


@dataclass(frozen=True)
class Solution:
    """``state`` [unit] NOTHING | KV | EVERYTHING; ``modes`` [tier, unit]; ``reach``: tiers that use the device."""

    state: StateArray
    modes: ModeArray
    ring_bytes: int
    reach: int
    times: FloatArray
    objective: float
    bound: float

    @property
    def gap(self) -> float:
        """How far above the bound at most, as a share."""
        return self.objective / self.bound - 1.0 if self.bound > 0 else 0.0


def state_bytes(costs: Costs, state: StateArray) -> int:
    """Device bytes of what a state keeps."""
    kv = costs.kv_bytes * (state >= KV)
    return int((kv + costs.weight_bytes * (state == EVERYTHING)).sum())


def stream_mode(costs: Costs, state: StateArray, ring_bytes: int) -> NDArray[np.uint8]:
    """[unit] STREAM or STREAM_KV where the unit could be streamed under this state and ring, else CPU."""
    need = RING_PIECES * costs.piece_bytes
    plain = ((state == KV) | (costs.kv_bytes == 0)) & (need <= ring_bytes)
    with_kv = (state == NOTHING) & (costs.kv_bytes > 0) & (costs.kv_ring_bytes <= ring_bytes)
    with_kv &= costs.capabilities.kv_streaming
    unkept = (state != EVERYTHING) & (ring_bytes > 0)
    return np.where(unkept & plain, STREAM, np.where(unkept & with_kv, STREAM_KV, CPU)).astype(np.uint8)


def ring_for(task: Task, state: StateArray, reach: int) -> int:
    """All room the resident copies leave, up to the bytes that can be streamed at all: a longer ring never hurts."""
    costs = task.costs
    streamable = int((costs.weight_bytes + costs.kv_bytes)[state != EVERYTHING].sum())
    return max(0, min(task.room(reach) - state_bytes(costs, state), max(streamable, _largest_need(costs, state))))


def _largest_need(costs: Costs, state: StateArray) -> int:
    return int(costs.kv_ring_bytes[state != EVERYTHING].max(initial=0))


def on_cpu(task: Task) -> Solution:
    """Nothing on the device."""
    costs = task.costs
    times = costs.compute[:, CPU].sum(axis=1) + costs.step
    objective = float(times @ task.weights)
    modes = np.zeros((costs.n_tiers, costs.n_units), dtype=np.uint8)
    return Solution(np.zeros(costs.n_units, dtype=np.int8), modes, 0, 0, times, objective, objective)


def simulate(costs: Costs, tier: IntArray, modes: ModeArray, ring_bytes: IntArray | int) -> FloatArray:
    """ns of a step for each row of modes."""
    return step_times(costs, tier, modes, np.broadcast_to(ring_bytes / costs.link_bytes_ns, tier.shape))
