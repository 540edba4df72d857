"""One step as a pipeline: two computing resources in turn, a link beside them, a ring of finite size between.

Sub-layers depend on each other in a chain, so that CPU and device never compute at once within a step; what runs
beside them is the upload of weights that are needed later. State of the recurrence over sub-layers, in order:

    T   time at which the last sub-layer ended
    U   how much has been uploaded so far, in ns of the link at its idle rate (a fluid position in the want-list)

and for sub-layer i with compute time d, upload u and W = the sum of uploads up to and with i:

    first  = (W - u) + u * piece share - U      until its first piece is there
    dur    = max(max(first, 0) + d,  max(W - U, 0) + d * piece share)
    link   = min(dur * slowdown, room / share)  how long the link works beside it; room = min(W + R, total) - U;
                                                beside the CPU no longer than what is queued when it begins lasts
    T     += hop + dur + link * (1 - 1 / slowdown)
    U     += link * share

The ring R bounds how far the link may run ahead of the computation; ``slowdown`` is that of a CPU sub-layer under
DMA, ``share`` what is left of the link's rate meanwhile. Activations travel first: a hop stops the uploads.

A streamed KV cache is one piece with a place of its own in the ring, of which there are none, one or two
(``cache_places``): no upload goes past the beginning of a cache whose place is not free, weights run ahead as far as
their part of the ring, and its unit needs all of it before attention. Without a place of its own a cache finds room
once everything before it is computed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .costs import CACHE_PLACES, CPU, RESIDENT, ROWS_AT_ONCE, STREAM_KV, Costs, FloatArray

IntArray = NDArray[np.int64]
ModeArray = NDArray[np.uint8]

BLOCK_UNITS = 8  # at most so many sub-layers are joined one after the other; blocks of them are joined by twos


def step_times(costs: Costs, tier: IntArray, modes: ModeArray, ring_ns: FloatArray) -> FloatArray:
    """ns of a step for each row: ``tier`` [row], ``modes`` [row, unit], ``ring_ns`` [row]."""
    rows = _Rows(costs, tier, modes, ring_ns)
    if not costs.capabilities.ring_across_steps:
        return rows.times(np.zeros(len(tier)))
    # one of many equal steps: what one prefetches for the next, it has to upload itself in the long run
    return np.asarray(np.maximum(rows.times(rows.left_over()), rows.total + rows.fixed), dtype=np.float64)


class _Rows:
    """Arrays of the recurrence, [unit, row]. A unit that is uploaded runs on the device, which the link does not slow:

        U' = min(limit, max(need, U + alone))    with need = max(first + U + compute, W + compute * piece share),
                                                 alone = compute * pace: the link's way where nothing is waited for
        T  = fixed + sum(max(compute, need - U)) + sum((U' - U) * cost)    cost = (1 - 1/slowdown) / share

    With S the sum of ``alone`` up to and with a unit, U - S is clamped between need - S and limit - S by each unit.
    Clamps in a row are one clamp again, so that a whole step is one, of which only the bounds have to be found.
    """

    def __init__(self, costs: Costs, tier: IntArray, modes: ModeArray, ring_ns: FloatArray) -> None:
        flat = np.ascontiguousarray(modes.T) + tier * costs.compute.shape[1]
        flat *= costs.n_units
        flat += np.arange(costs.n_units)[:, None]
        upload, alone = costs.upload.take(flat), costs.alone.take(flat)
        self.compute, self.cost = costs.compute.take(flat), costs.pace_cost.take(flat)
        until, self.moved = upload.cumsum(axis=0), alone.cumsum(axis=0)
        self.total: FloatArray = upload.sum(axis=0)
        self.fixed = costs.step[tier] + hop_times(costs, tier, modes)
        able = costs.capabilities.ring_across_steps
        ahead = np.minimum(ring_ns, _before_caches(costs, modes, until - upload, self.total)) if able else 0.0
        rows = np.flatnonzero((modes == STREAM_KV).any(axis=1)) if costs.capabilities.kv_streaming else np.arange(0)
        uploads = upload[:, rows]
        self.need = costs.lead.take(flat)
        self.need += until
        until += ring_ns
        limit = np.minimum(until, self.total + ahead, out=until)
        if len(rows):
            limit[:, rows] = np.minimum(limit[:, rows], _cache_limits(costs, modes[rows], ring_ns[rows], uploads))
        self.least, self.most = _clamps(self.need, limit, self.moved)

    def left_over(self) -> FloatArray:
        """[row] what a step that begins with an empty ring leaves in it for the next."""
        if not len(self.compute):
            return self.total
        last = np.minimum(np.maximum(self.least[-1], 0.0), self.most[-1]) + self.moved[-1]
        return np.asarray(np.maximum(last - self.total, 0.0))

    def times(self, uploaded: FloatArray) -> FloatArray:
        """[row] of a step that begins with so much uploaded."""
        after = np.minimum(np.maximum(uploaded, self.least), self.most) + self.moved
        before = np.concatenate([uploaded[None], after[:-1]])
        gain = after - before
        gain *= self.cost
        gain += np.maximum(self.compute, np.subtract(self.need, before, out=before), out=before)
        return np.asarray(self.fixed + gain.sum(axis=0), dtype=np.float64)


def _clamps(least: FloatArray, most: FloatArray, moved: FloatArray) -> FloatArray:
    """[2, unit, row] all clamps up to and with a unit as one, less ``moved``; of two at odds the later one holds."""
    n, rows = least.shape
    blocks = max(1, -(-n // BLOCK_UNITS))
    each = max(1, -(-n // blocks))
    bounds = np.empty((2, blocks * each, rows))
    np.subtract(least, moved, out=bounds[0, :n])
    np.subtract(most, moved, out=bounds[1, :n])
    bounds[0, n:], bounds[1, n:] = -np.inf, np.inf
    np.minimum(bounds[0], bounds[1], out=bounds[0])
    _join(bounds.reshape(2, blocks, each, rows))
    return bounds[:, :n]


def _join(clamps: FloatArray) -> None:
    """Each of [2, block, unit, row] with all before it: within blocks, the last of each, those with what follows."""
    for i in range(1, clamps.shape[2]):
        clamps[:, :, i] = _joined(clamps[:, :, i - 1], clamps[:, :, i])
    last, width = clamps[:, :, -1].copy(), 1
    while width < clamps.shape[1]:
        last[:, width:] = _joined(last[:, :-width], last[:, width:])
        width *= 2
    clamps[:, 1:] = _joined(last[:, :-1, None], clamps[:, 1:])


def _joined(first: FloatArray, second: FloatArray) -> FloatArray:
    """Bounds [2, ...] of one clamp after the other."""
    found = np.maximum(first, second[0])
    return np.asarray(np.minimum(found, second[1], out=found))


def _before_caches(costs: Costs, modes: ModeArray, before: FloatArray, total: FloatArray) -> FloatArray:
    """[row] what of the next step can be uploaded before it begins: all up to the first KV cache that is streamed.

    ``before`` [unit, row]: uploads of the units before.
    """
    if not (costs.capabilities.kv_streaming and costs.n_units):
        return total
    caches, row = modes == STREAM_KV, np.arange(len(modes))
    first = caches.argmax(axis=1)
    return np.where(caches[row, first], before[first, row], total)


def cache_places(costs: Costs, modes: ModeArray, ring_ns: FloatArray) -> IntArray:
    """[row] places for caches alone: as many as leave two of the largest pieces of weights, two at most."""
    caches = np.where(modes == STREAM_KV, costs.kv_bytes, 0).max(axis=1, initial=0)
    weights = np.where((modes != CPU) & (modes != RESIDENT), costs.beside_caches_bytes, 0).max(axis=1, initial=0)
    ring_bytes = np.rint(ring_ns * costs.link_bytes_ns).astype(np.int64)
    fitting = np.clip((ring_bytes - weights) // np.maximum(caches, 1), 0, CACHE_PLACES)
    return np.asarray(np.where(caches > 0, fitting, 0), dtype=np.int64)


def _cache_limits(costs: Costs, modes: ModeArray, ring_ns: FloatArray, upload: FloatArray) -> FloatArray:
    """[unit, row] how far uploads may be while a unit runs: weights as far as their part of the ring allows, and not
    past the first cache that has no place yet."""
    caches = np.ascontiguousarray((modes == STREAM_KV).T)
    rows, until = len(modes), upload.cumsum(axis=0)
    of_cache = np.where(caches, upload - (np.asarray(costs.cache_first) + costs.cache_last).reshape(-1, 1), 0.0)
    weights = until - of_cache.cumsum(axis=0)
    nth = caches.cumsum(axis=0) - caches
    unit, row = np.nonzero(caches)
    ahead = np.full((3, int(nth[-1].max()) + CACHE_PLACES + 2, rows), np.inf)  # of each cache, and behind the last
    at = (nth[unit, row], row)
    ahead[0][at], ahead[2][at] = (until - upload)[unit, row], of_cache[unit, row]
    ahead[1][at] = (weights - upload + of_cache)[unit, row]
    begin, before, size = ahead.reshape(3, -1)
    places = cache_places(costs, modes, ring_ns)
    room = ring_ns - places * np.where(caches.T, costs.kv_bytes, 0).max(axis=1) / costs.link_bytes_ns
    flat = nth * rows + np.arange(rows)
    following, limit = flat + caches * rows, until + room
    for place in range(CACHE_PLACES):
        index = following + place * rows
        fits = (before.take(index) - weights <= room) & (places > place)
        limit += np.where(fits, size.take(index), 0.0)
    most = begin.take(flat + np.maximum(places, caches) * rows)
    return np.asarray(np.minimum(limit, most), dtype=np.float64)


def hop_times(costs: Costs, tier: IntArray, modes: ModeArray) -> FloatArray:
    """[row] ns at the borders between CPU and device; a step begins and ends on the host."""
    if not costs.n_units:
        return np.zeros(len(tier))
    row, begin, end, left = _runs(costs, tier, modes)
    at = tier[row]
    hops = np.bincount(row, costs.hop_up[at, begin] + costs.hop_down[at, end] + left, len(tier))
    attends = ((modes != CPU) & costs.cached).any(axis=1)
    return np.asarray(hops + attends * costs.mask[tier], dtype=np.float64)


def _runs(costs: Costs, tier: IntArray, modes: ModeArray) -> tuple[IntArray, IntArray, IntArray, FloatArray]:
    """Of each run on the device its row, where it begins, what comes behind it, and ns for new rows of caches that are
    there still; at the end of a step those go home while the output matrix computes."""
    device = np.zeros((len(modes), costs.n_units + 2), dtype=np.bool_)
    np.not_equal(modes, CPU, out=device[:, 1:-1])
    row, at = np.divmod(np.flatnonzero(device[:, 1:] ^ device[:, :-1]), costs.n_units + 1)  # begins and ends in turn
    row, begin, end = row[::2], at[::2], at[1::2]
    if not costs.home.any():
        return row, begin, end, np.zeros(len(row))
    rows = np.zeros((len(modes), costs.n_units + 1), dtype=np.int32)
    np.cumsum(device[:, 1:-1] & costs.cached, axis=1, out=rows[:, 1:])
    left = costs.home[tier[row]] * ((rows[row, end] - rows[row, begin]) % ROWS_AT_ONCE)
    last = np.flatnonzero(end == costs.n_units)
    if not costs.cached[-1]:
        left[last] = np.maximum(left[last] - costs.compute[tier[row[last]], modes[row[last], -1], -1], 0.0)
    return row, begin, end, left


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
    more = max(0.0, traced.link + float(costs.step[tier]) + traced.hops - traced.total)  # as in step_times
    return replace(traced, total=traced.total + more, wait=traced.wait + more)


def _trace(costs: Costs, tier: int, modes: ModeArray, ring_ns: float, done: float) -> StepTrace:
    uploads = [float(costs.upload[tier, mode, i]) for i, mode in enumerate(modes)]
    total, segments, now, until = sum(uploads), [], float(costs.step[tier]), 0.0
    hops = _hops(costs, tier, modes)
    caches = np.flatnonzero(modes == STREAM_KV)
    early = sum(uploads[: caches[0]]) if len(caches) else total
    most = total + (min(ring_ns, early) if costs.capabilities.ring_across_steps else 0.0)
    limits = [most] * len(uploads)
    if costs.capabilities.kv_streaming and len(caches):
        found = _cache_limits(costs, modes[None], np.array([ring_ns]), np.array(uploads)[:, None])
        limits = np.minimum(found[:, 0], most).tolist()
    for i, mode in enumerate(int(m) for m in modes):
        until += uploads[i]
        segment = _segment(costs, tier, i, mode, now, hops[i], done, until, uploads[i], min(until + ring_ns, limits[i]))
        segments.append(segment)
        now, done = segment.end, segment.uploaded
    return _summed(costs, tier, segments, now + hops[-1], hops[-1], total)


def _hops(costs: Costs, tier: int, modes: ModeArray) -> list[float]:
    """``hop_times`` before each unit and behind the last."""
    found = np.zeros(costs.n_units + 1)
    if costs.n_units:
        _, begin, end, left = _runs(costs, np.array([tier]), modes[None])
        found[begin] += costs.hop_up[tier, begin]
        found[end] += costs.hop_down[tier, end] + left
    attends = np.flatnonzero((modes != CPU) & costs.cached)
    found[attends[:1]] += costs.mask[tier]
    return [float(ns) for ns in found]


def _segment(
    costs: Costs, tier: int, i: int, mode: int, now: float, hop: float, done: float, until: float, upload: float,
    limit: float,
) -> Segment:  # fmt: skip
    compute, share = float(costs.compute[tier, mode, i]), float(costs.link_share[tier, mode, i])
    lasting = max(compute, until + float(costs.lead[tier, mode, i]) - done)
    slowdown = max(1.0, float(costs.busy[tier, mode, i]) / max(compute, 1e-9))
    beside = min(lasting * slowdown, costs.capabilities.ahead_ns) if mode == CPU else lasting * slowdown
    link = min(beside, (limit - done) / share)
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
