"""In which order sub-layers are worth streaming, for each tier: by time saved for each uploaded byte."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .costs import CPU, RESIDENT, STREAM, STREAM_KV, Costs, FloatArray
from .pipeline import IntArray, ModeArray

_NEVER = 255  # mode of a pair that saves nothing


@dataclass(frozen=True)
class TierOrders:
    """Of each tier all (unit, mode) pairs that could be streamed, the most saving per byte first: [tier, pair]."""

    unit: IntArray
    mode: ModeArray
    first: IntArray  # of the pairs of equal worth
    last: IntArray
    even_unit: IntArray  # the same pairs, those of equal worth by unit
    even_mode: ModeArray
    gain: FloatArray
    upload: FloatArray
    resident_gain: FloatArray  # [tier, unit]
    cpu: FloatArray  # [tier, unit]
    chain: FloatArray  # [tier] everything on the CPU
    lost: FloatArray  # [tier] share of CPU time that a busy link costs

    @classmethod
    def of(cls, costs: Costs) -> TierOrders:
        compute = costs.compute
        cpu, busy = (np.ascontiguousarray(a[:, CPU]) for a in (compute, costs.busy))
        cached = np.flatnonzero(costs.kv_bytes > 0)
        unit = np.concatenate([np.arange(costs.n_units), cached])
        mode = np.repeat(np.array([STREAM, STREAM_KV], dtype=np.uint8), [costs.n_units, len(cached)])
        gain, upload = cpu[:, unit] - compute[:, mode, unit], costs.upload[:, mode, unit]
        ratio = gain / np.maximum(upload, 1.0)
        worth = np.round(ratio / np.maximum(1e-30, ratio.max(axis=1, initial=0.0, keepdims=True)), 9)
        order = np.argsort(-worth, axis=1, kind="stable")
        gain, upload, worth = (np.take_along_axis(a, order, 1) for a in (gain, upload, worth))
        unit, mode = unit[order], np.where(gain > 0, mode[order], _NEVER).astype(np.uint8)
        first, last = _equals(worth)
        even = np.lexsort((unit, first))
        slow = busy / np.maximum(cpu, 1e-9)
        mean = slow.mean(axis=1) if costs.n_units else np.ones(costs.n_tiers)
        return cls(
            unit, mode, first, last, np.take_along_axis(unit, even, 1), np.take_along_axis(mode, even, 1),
            gain, upload, cpu - compute[:, RESIDENT], cpu, cpu.sum(axis=1) + costs.step, 1 - 1 / np.maximum(mean, 1.0),
        )  # fmt: skip


def _equals(worth: FloatArray) -> tuple[IntArray, IntArray]:
    """[tier, pair] where the pairs of its worth begin and end; ``worth`` is sorted."""
    n = worth.shape[1]
    change, here = worth[:, 1:] != worth[:, :-1], np.broadcast_to(np.arange(n), worth.shape)
    edge = np.ones((len(worth), min(n, 1)), dtype=bool)
    first = np.where(np.concatenate([edge, change], axis=1), here, 0)
    last = np.where(np.concatenate([change, edge], axis=1), here, n - 1)
    return np.maximum.accumulate(first, axis=1), np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1]
