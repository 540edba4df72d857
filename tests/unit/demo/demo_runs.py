"""A made-up run of the demo for the tests of summary, view and picture: every figure is known."""

from __future__ import annotations

from xlm_broker.demo.record import BudgetChange, Frame, Memory, Recorder, Turn
from xlm_broker.demo.story import Phase, cap_bytes, story

MIB = 1 << 20
DEVICE_BYTES, DEMAND_BYTES = 256 * MIB, 150 * MIB
ON_THE_WAY_MS = 1.0  # of an answer, between the broker's time and the game's own
ABOUT = {
    "machine": {"cpu": "a CPU", "cores": 2},
    "device": {"kind": "sim", "description": "virtual GPU (exact mode)"},
    "model": {"name": "SmolLM2"},
}


def change(phase: Phase, before_bytes: int, used_bytes: int, to_bytes: int, release_ms: float = 0.5) -> BudgetChange:
    left = min(used_bytes, to_bytes)
    return BudgetChange(
        phase=phase.key,
        asked_s=phase.start_s,
        answered_s=phase.start_s + (release_ms + ON_THE_WAY_MS) * 1e-3,
        from_bytes=before_bytes,
        to_bytes=to_bytes,
        used_before_bytes=used_bytes,
        used_bytes=left,
        device_used_bytes=left,
        release_ms=release_ms,
        deadline_ms=phase.deadline_ms,
        deadline_met=True,
        speaking=True,
    )


def memory(t_s: float, budget_bytes: int, used_bytes: int, streamed: int = 0) -> Memory:
    kv, scratch = used_bytes // 5, used_bytes // 10
    return Memory(t_s, budget_bytes, used_bytes, used_bytes - kv - scratch, kv, 0, scratch, streamed, 0, 0, used_bytes)


def turn(npc: str, index: int, asked_s: float, tokens: int, every_s: float = 0.1, ended: bool = True) -> Turn:
    """``tokens`` tokens, the first ``every_s`` after the question."""
    arrivals = [(asked_s + every_s * (n + 1), 1) for n in range(tokens)]
    ids = list(range(index * 100, index * 100 + tokens))
    end_s = arrivals[-1][0] if ended else None
    return Turn(npc, index, asked_s, "Hello?", "word " * tokens, ids, arrivals, end_s, "stop", 12.5)


def whole_run(seconds: float = 30.0) -> Recorder:
    record = Recorder(story(seconds), device_bytes=DEVICE_BYTES, demand_bytes=DEMAND_BYTES)
    record.baseline = [Frame(n / 60, 2.0, 1.8) for n in range(60)]
    record.frames = [Frame(n / 60, 20.0 if n == 300 else 3.0, 2.0) for n in range(int(60 * seconds))]
    budget = used = 0
    for phase in record.phases:
        cap = cap_bytes(phase, DEMAND_BYTES, DEVICE_BYTES)
        to_bytes = DEVICE_BYTES if cap is None else cap
        record.changes.append(change(phase, budget, used, to_bytes))
        budget, used = to_bytes, min(to_bytes, DEMAND_BYTES)
        record.memory.append(memory(phase.start_s + 0.1, budget, used, streamed=int(phase.start_s) * MIB))
        record.memory.append(memory(phase.end_s - 0.1, budget, used, streamed=int(phase.end_s) * MIB))
    starts = range(0, int(seconds) - 4, 4)
    record.turns = [turn("Greta", n, float(t), 20) for n, t in enumerate(starts)]
    record.turns += [turn("Odo", n, t + 1.0, 20) for n, t in enumerate(starts)]
    return record
