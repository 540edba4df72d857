"""Values of Sampling that llama.cpp's own arithmetic cannot bear."""

from __future__ import annotations

import numpy as np
import pytest

from xlm.errors import GenerationError
from xlm.protocol.messages import Sampling
from xlm_engine import sampling


@pytest.mark.parametrize(
    ("asked", "used"), [(0.0, 0.0), (1e-300, 0.0), (9e-7, 0.0), (float("nan"), 0.0), (1e-6, 1e-6), (0.8, 0.8)]
)
def test_a_temperature_too_small_to_divide_by_is_greedy(asked: float, used: float) -> None:
    assert sampling.effective_temperature(Sampling(temperature=asked)) == used


@pytest.mark.parametrize("penalty", [1e-300, 0.009, float("nan")])
def test_a_repeat_penalty_that_makes_logits_infinite_is_refused(penalty: float) -> None:
    with pytest.raises(GenerationError, match="repeat_penalty") as caught:
        sampling.check_penalty(Sampling(repeat_penalty=penalty))
    assert caught.value.code == "sampling_invalid"


@pytest.mark.parametrize("penalty", [0.01, 1.0, 1.3, 10.0])
def test_other_repeat_penalties_are_taken(penalty: float) -> None:
    sampling.check_penalty(Sampling(repeat_penalty=penalty))


@pytest.mark.parametrize("n_vocab", [8192, 49152, 151936])
@pytest.mark.parametrize("k", [1, 40, 256])
def test_a_few_likely_tokens_hold_the_largest_logits(n_vocab: int, k: int) -> None:
    rng = np.random.default_rng(n_vocab + k)
    for spread in (0.1, 4.0):
        logits = rng.normal(scale=spread, size=n_vocab).astype(np.float32)
        few = sampling.likely(logits, k)
        assert few is not None
        assert set(np.argsort(logits)[-k:]) <= set(few)
        assert len(few) <= n_vocab // 8
        assert list(few) == sorted(few)


def test_equals_of_the_last_of_them_are_likely_too() -> None:
    logits = np.zeros(49152, dtype=np.float32)
    logits[100:160] = 1.0
    few = sampling.likely(logits, 40)
    assert few is not None
    assert list(few) == list(range(100, 160))


@pytest.mark.parametrize("value", [0.0, -np.inf, np.nan])
def test_where_all_are_alike_all_are_looked_at(value: float) -> None:
    assert sampling.likely(np.full(49152, value, dtype=np.float32), 40) is None


@pytest.mark.parametrize(("n_vocab", "k"), [(8191, 40), (49152, 257), (100, 1)])
def test_small_vocabularies_and_large_top_k_are_looked_at_as_a_whole(n_vocab: int, k: int) -> None:
    assert sampling.likely(np.arange(n_vocab, dtype=np.float32), k) is None


@pytest.mark.parametrize("chosen", [{"top_p": 0.8}, {"min_p": 0.2}, {"top_k": 5, "top_p": 1.0, "min_p": 0.0}, {}])
def test_the_choice_is_that_among_all_tokens(chosen: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    vectors = [rng.normal(scale=2.0, size=49152).astype(np.float32) for _ in range(20)]
    few = [_choice(chosen, index, logits) for index, logits in enumerate(vectors)]
    monkeypatch.setattr(sampling, "likely", lambda logits, k: None)
    assert few == [_choice(chosen, index, logits) for index, logits in enumerate(vectors)]
    assert len(set(few)) > 5


def _choice(chosen: dict[str, float], seed: int, logits: sampling.Logits) -> int:
    wanted = Sampling(temperature=1.2, seed=seed, **chosen)  # type: ignore[arg-type]
    sampler = sampling.Sampler(None, sampling.Candidates(len(logits)), wanted)
    try:
        return sampler.choose(logits)
    finally:
        sampler.close()
