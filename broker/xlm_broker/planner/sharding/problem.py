"""What a plan is made for, what a plan is, and the rules both obey."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .costs import CPU, EVERYTHING, KV, NOTHING, STREAM, STREAM_KV, Costs, FloatArray
from .orders import TierOrders
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

    ``scratch_bytes`` [tier] ascending; ``fixed_bytes``: on the device whenever it is used at all. ``ring_bytes``: of a
    ring of just that size; None: it has what the resident copies leave.
    """

    costs: Costs
    weights: FloatArray
    scratch_bytes: IntArray
    fixed_bytes: int
    budget_bytes: int
    effort: int
    enough: Callable[[], bool] = field(default=lambda: False, compare=False)  # True: the search ends with what it has
    orders: TierOrders | None = field(default=None, compare=False, repr=False)  # of these costs, where they are known
    ring_bytes: int | None = None

    def room(self, reach: int) -> int:
        """Bytes for copies, and for a ring of any size, if the first ``reach`` tiers use the device."""
        return self.budget_bytes - self.fixed_bytes - int(self.scratch_bytes[reach - 1]) - (self.ring_bytes or 0)


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


def kept_bytes(costs: Costs, states: StateArray) -> IntArray:
    """Device bytes of what each state keeps: [..., unit] -> [...]."""
    kv = costs.kv_bytes * (states >= KV)
    return np.asarray((kv + costs.weight_bytes * (states == EVERYTHING)).sum(axis=-1))


def state_bytes(costs: Costs, state: StateArray) -> int:
    """Device bytes of what a state keeps."""
    return int(kept_bytes(costs, state))


def stream_mode(costs: Costs, state: StateArray, ring_bytes: IntArray | int) -> NDArray[np.uint8]:
    """[..., unit] STREAM or STREAM_KV where the unit could be streamed under this state and ring, else CPU."""
    ring = np.asarray(ring_bytes)[..., None]
    plain = (state == KV) | ((state == NOTHING) & ~costs.cached)
    plain &= (costs.plain_ring_bytes <= ring) & (ring > 0)
    mode = np.where(plain, np.uint8(STREAM), np.uint8(CPU))
    if costs.capabilities.kv_streaming:
        with_kv = (state == NOTHING) & costs.cached
        with_kv &= (costs.kv_ring_bytes <= ring) & (ring > 0)
        mode[with_kv] = STREAM_KV
    return mode


def rings_for(task: Task, states: StateArray, reach: int) -> IntArray:
    """All room the resident copies leave, up to the bytes that can be streamed at all: a longer ring never hurts."""
    costs, unkept = task.costs, states != EVERYTHING
    if task.ring_bytes is not None:
        return np.full(states.shape[:-1], task.ring_bytes, dtype=np.int64)
    streamable = ((costs.weight_bytes + costs.kv_bytes) * unkept).sum(axis=-1)
    largest = (costs.kv_ring_bytes * unkept).max(axis=-1, initial=0)  # the least that takes any of them
    left = task.room(reach) - kept_bytes(costs, states)
    return np.asarray(np.maximum(0, np.minimum(left, np.maximum(streamable, largest))), dtype=np.int64)


def ring_for(task: Task, state: StateArray, reach: int) -> int:
    """The same for one state."""
    return int(rings_for(task, state, reach))


def on_cpu(task: Task) -> Solution:
    """Nothing on the device."""
    costs = task.costs
    times = costs.compute[:, CPU].sum(axis=1) + costs.step
    objective = float(times @ task.weights)
    modes = np.zeros((costs.n_tiers, costs.n_units), dtype=np.uint8)
    return Solution(np.zeros(costs.n_units, dtype=np.int8), modes, 0, 0, times, objective, objective)


def simulate(costs: Costs, tier: IntArray, modes: ModeArray, ring_bytes: IntArray | int) -> FloatArray:
    """ns of a step for each row of modes."""
    return step_times(costs, tier, modes, np.broadcast_to(costs.ring_ns(ring_bytes), tier.shape))
