"""One step as a pipeline: two computing resources in turn, a link beside them, a ring of finite size between.

Sub-layers depend on each other in a chain, so that CPU and device never compute at once within a step; what runs
beside them is the upload of weights that are needed later. State of the recurrence over sub-layers, in order:

    T   time at which the last sub-layer ended
    U   how much has been uploaded so far, in ns of the link at its idle rate (a fluid position in the want-list)

and for sub-layer i with compute time d, upload u and W = the sum of uploads up to and with i:

    first  = (W - u) + u * piece share - U      until its first piece is there
    dur    = max(max(first, 0) + d,  max(W - U, 0) + d * piece share)
    link   = min(dur * slowdown, room / share)  how long the link works beside it; room = min(W + R, total) - U
    T     += hop + dur + link * (1 - 1 / slowdown)
    U     += link * share

The ring R bounds how far the link may run ahead of the computation; ``slowdown`` is that of a CPU sub-layer under
DMA, ``share`` what is left of the link's rate meanwhile. Activations travel first: a hop stops the uploads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .costs import CPU, STREAM_KV, Costs, FloatArray

IntArray = NDArray[np.int64]
ModeArray = NDArray[np.uint8]

SAME_EVERY = 6  # sub-layers, after which a second step is compared with the first


def step_times(costs: Costs, tier: IntArray, modes: ModeArray, ring_ns: FloatArray) -> FloatArray:
    """ns of a step for each row: ``tier`` [row], ``modes`` [row, unit], ``ring_ns`` [row]."""
    rows = _Rows(costs, tier, modes, ring_ns)
    left_over = rows.run(np.zeros(len(tier)))
    if not costs.capabilities.ring_across_steps:
        return rows.times(np.zeros(len(tier)))
    if left_over.any():
        rows.run(left_over, np.cumsum(rows.gain, axis=0))
    # one of many equal steps: what one prefetches for the next, it has to upload itself in the long run
    return np.asarray(np.maximum(rows.times(left_over), rows.total + rows.fixed), dtype=np.float64)


class _Rows:
    """Arrays of the recurrence: [row, unit], and turned where the loop takes one unit of all rows at a time.

    What does not depend on the link's position is computed for all units at once, so that little is left for the loop:

        dur  = max(compute, need - U)                with need = max(first + U + compute, W + compute * piece share)
        gain = min(limit - U, dur * pace)            of the position; pace = slowdown * share
        T    = fixed + sum(dur) + sum(gain * cost)   cost = (1 - 1/slowdown) / share
    """

    def __init__(self, costs: Costs, tier: IntArray, modes: ModeArray, ring_ns: FloatArray) -> None:
        flat = (tier[:, None] * costs.compute.shape[1] + modes) * costs.n_units + np.arange(costs.n_units)
        turned = np.ascontiguousarray(flat.T)
        compute, upload, piece = (a.take(turned) for a in (costs.compute, costs.upload, costs.last_piece))
        until = np.cumsum(upload, axis=0)
        need = np.maximum(until - upload * (1.0 - piece) + compute, until + compute * piece)
        self.total = until[-1] if costs.n_units else np.zeros(len(tier))
        able = costs.capabilities.ring_across_steps
        ahead = np.minimum(ring_ns, _before_caches(costs, modes, upload, self.total)) if able else 0.0
        self.limit = np.minimum(until + ring_ns, self.total + ahead)
        self.fixed = costs.step + hop_times(costs, tier, modes)
        self.compute, self.pace, self.cost = compute, costs.pace.take(turned), costs.pace_cost.take(flat)
        self.alone = compute * self.pace  # of the position, where nothing is waited for
        # of a unit, in any row: whether the formulas' longer forms are needed
        uploads = np.asarray(upload.any(axis=1))
        self.uploads, self.paced = uploads.tolist(), (self.pace != 1.0).any(axis=1).tolist()
        self.need = np.where(uploads[:, None], need, -np.inf)
        self.gain = np.zeros_like(compute)

    def run(self, uploaded: FloatArray, known: FloatArray | None = None) -> FloatArray:
        """Fills ``gain`` for a step that begins with so much uploaded; what it leaves in the ring for the next.

        ``known``: positions after each unit in the run before; once they are reached in all rows, its gains hold.
        """
        if not any(self.uploads):
            return uploaded
        subtract, maximum, minimum, add = np.subtract, np.maximum, np.minimum, np.add
        done, wait, room = uploaded.copy(), np.empty(len(uploaded)), np.empty(len(uploaded))
        units = zip(self.uploads, self.paced, self.limit, self.need, self.compute, self.alone, self.gain, strict=True)
        for i, (uploads, paced, limit, need, compute, alone, gain) in enumerate(units):
            subtract(limit, done, room)
            if uploads:
                subtract(need, done, wait)
                alone = maximum(wait, compute, out=wait)
                if paced:
                    wait *= self.pace[i]
            minimum(room, alone, out=gain)
            add(done, gain, done)
            if known is not None and i % SAME_EVERY == 0 and (done == known[i]).all():
                break
        return np.maximum(done - self.total, 0.0)

    def times(self, uploaded: FloatArray) -> FloatArray:
        """[row] of the step last run, which began with so much uploaded."""
        before = np.cumsum(np.concatenate([uploaded[None], self.gain]), axis=0)[:-1]
        lasting = np.maximum(self.compute, self.need - before)
        gain = np.ascontiguousarray(self.gain.T)
        times = self.fixed + lasting.sum(axis=0) + (gain * self.cost).sum(axis=1)
        return np.asarray(times, dtype=np.float64)


def _before_caches(costs: Costs, modes: ModeArray, upload: FloatArray, total: FloatArray) -> FloatArray:
    """[row] what of the next step can be uploaded before it begins: all up to the first KV cache that is streamed."""
    if not costs.capabilities.kv_streaming:
        return total
    early = np.ascontiguousarray(upload.T)
    caches = modes == STREAM_KV
    if caches.any():
        early = np.where(np.logical_or.accumulate(caches, axis=1), 0.0, early)
    return np.asarray(early.sum(axis=1))


def hop_times(costs: Costs, tier: IntArray, modes: ModeArray) -> FloatArray:
    """Sum of activation hops of each row: a step begins and ends on the host."""
    device = modes != CPU
    changes = (device[:, 1:] != device[:, :-1]).sum(axis=1) + device[:, :1].sum(axis=1) + device[:, -1:].sum(axis=1)
    hops = changes // 2  # as many up as down
    return np.asarray(hops * costs.hop_up[tier] + hops * costs.hop_down[tier], dtype=np.float64)


# -- one step in detail --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Segment:
    """A sub-layer in a simulated step; times in ns from its start. ``wait``: for pieces, before and within."""

    unit: int
    mode: int
    start: float
    end: float
    hop: float
    wait: float
    slowed: float  # longer than alone, because the link was busy
    uploaded: float  # link position at its end


@dataclass(frozen=True)
class StepTrace:
    """``compute + wait + hops + slowed + step overhead = total``."""

    segments: tuple[Segment, ...]
    total: float
    compute_cpu: float
    compute_device: float
    wait: float
    hops: float
    slowed: float
    link: float  # the link's own work; hidden behind the rest as far as it is not ``wait``


def trace_step(costs: Costs, tier: int, modes: ModeArray, ring_ns: float) -> StepTrace:
    """The same recurrence for one step, unit by unit; the second of two equal ones where the ring outlives a step."""
    traced = _trace(costs, tier, modes, ring_ns, 0.0)
    if not (costs.capabilities.ring_across_steps and traced.segments):
        return traced
    traced = _trace(costs, tier, modes, ring_ns, max(0.0, traced.segments[-1].uploaded - traced.link))
    more = max(0.0, traced.link + costs.step + traced.hops - traced.total)  # as in step_times
    return replace(traced, total=traced.total + more, wait=traced.wait + more)


def _trace(costs: Costs, tier: int, modes: ModeArray, ring_ns: float, done: float) -> StepTrace:
    uploads = [float(costs.upload[tier, mode, i]) for i, mode in enumerate(modes)]
    total, segments, now, until, device = sum(uploads), [], costs.step, 0.0, False
    caches = np.flatnonzero(modes == STREAM_KV)
    early = sum(uploads[: caches[0]]) if len(caches) else total
    most = total + (min(ring_ns, early) if costs.capabilities.ring_across_steps else 0.0)
    for i, mode in enumerate(int(m) for m in modes):
        hop = 0.0 if (mode != CPU) == device else float((costs.hop_down if device else costs.hop_up)[tier])
        device, until = mode != CPU, until + uploads[i]
        segment = _segment(costs, tier, i, mode, now, hop, done, until, uploads[i], min(until + ring_ns, most))
        segments.append(segment)
        now, done = segment.end, segment.uploaded
    last_hop = float(costs.hop_down[tier]) if device else 0.0
    return _summed(costs, tier, segments, now + last_hop, last_hop, total)


def _segment(
    costs: Costs, tier: int, i: int, mode: int, now: float, hop: float, done: float, until: float, upload: float,
    limit: float,
) -> Segment:  # fmt: skip
    compute, share = float(costs.compute[tier, mode, i]), float(costs.link_share[tier, mode, i])
    piece = float(costs.piece_share[i]) if upload > 0 else 0.0
    first = max(0.0, until - upload * (1.0 - piece) - done)
    lasting = max(first + compute, max(0.0, until - done) + compute * piece)
    slowdown = max(1.0, float(costs.busy[tier, mode, i]) / max(compute, 1e-9))
    link = min(lasting * slowdown, (limit - done) / share)
    slowed = link * (1.0 - 1.0 / slowdown)
    end = now + hop + lasting + slowed
    return Segment(i, mode, now + hop, end, hop, lasting - compute, slowed, done + link * share)


def _summed(
    costs: Costs, tier: int, segments: list[Segment], total: float, last_hop: float, upload: float
) -> StepTrace:
    def compute(on_device: bool) -> float:
        chosen = [s for s in segments if (s.mode != CPU) == on_device]
        return sum(float(costs.compute[tier, s.mode, s.unit]) for s in chosen)

    return StepTrace(
        segments=tuple(segments),
        total=total,
        compute_cpu=compute(False),
        compute_device=compute(True),
        wait=sum(s.wait for s in segments),
        hops=sum(s.hop for s in segments) + last_hop,
        slowed=sum(s.slowed for s in segments),
        link=upload,
    )
