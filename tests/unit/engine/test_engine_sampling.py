"""Values of Sampling that llama.cpp's own arithmetic cannot bear."""

from __future__ import annotations

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
