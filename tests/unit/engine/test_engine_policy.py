from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from xlm_engine.policy import Policy, Ready

READY = st.lists(
    st.builds(Ready, st.integers(0, 15), st.integers(1, 32), st.integers(0, 9), st.integers(-2, 2)),
    max_size=12,
    unique_by=lambda ready: ready.seq_id,
)


@given(READY)
def test_exact_steps_hold_one_sequence(ready: list[Ready]) -> None:
    assert len(Policy("exact").next_step(ready)) == min(1, len(ready))


@given(READY, st.integers(1, 8))
def test_throughput_steps_hold_one_prompt_or_neighbouring_decodes(ready: list[Ready], n_ubatch: int) -> None:
    step = Policy("throughput", n_ubatch).next_step(ready)
    assert bool(step) == bool(ready)
    if len(step) > 1:
        ids = [one.seq_id for one in step]
        assert ids == list(range(ids[0], ids[0] + len(ids)))
        assert all(one.n_tokens == 1 for one in step)
        assert len(step) <= n_ubatch


def test_everyone_gets_a_turn() -> None:
    policy, turns, served = Policy("exact"), [0, 0, 0], Counter[int]()
    for clock in range(1, 31):
        (one,) = policy.next_step([Ready(seq, 32 if seq == 0 else 1, turns[seq], priority=seq) for seq in range(3)])
        turns[one.seq_id] = clock
        served[one.seq_id] += 1
    assert set(served.values()) == {10}
