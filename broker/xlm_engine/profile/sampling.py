"""From repeated times to one robust number. Pure: whoever measures passes a function that returns nanoseconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

MAD_TO_SIGMA: Final = 1.4826  # of a normal distribution
OUTLIER_SIGMAS: Final = 3.0
STEADY: Final = 0.03  # relative spread at which more samples teach nothing
NOISY: Final = 0.10  # beyond it something else uses the machine
PATIENCE: Final = 2.0  # so many budgets for a point that is noisy: a quiet moment may come


@dataclass(frozen=True, slots=True)
class Effort:
    """How much one point may cost. ``budget_ns`` bounds the sum of its samples, but for ``at_least`` of them."""

    budget_ns: float
    at_least: int = 3
    at_most: int = 40


@dataclass(frozen=True, slots=True)
class Estimate:
    """``ns`` of one sample. ``spread``: half the interquartile range, relative. ``noisy``: of the quickest tenth."""

    ns: float
    spread: float
    n_samples: int
    noisy: bool


def estimate(samples: Sequence[float]) -> Estimate:
    """Median without outliers. Where samples disagree, the lower decile: others can only make a kernel slower."""
    kept = without_outliers(samples)
    spread = relative_spread(kept)
    noisy = spread > NOISY
    return Estimate(quantile(kept, 0.1) if noisy else median(kept), spread, len(samples), noisy)


def without_outliers(samples: Sequence[float]) -> list[float]:
    """Drops what lies more than three sigmas above the median, sigma from the median absolute deviation."""
    middle = median(samples)
    sigma = MAD_TO_SIGMA * median(abs(sample - middle) for sample in samples)
    # with most samples equal sigma is 0: a percent of the median keeps rounding from counting as an outlier
    limit = middle + OUTLIER_SIGMAS * max(sigma, 0.01 * middle)
    return [sample for sample in samples if sample <= limit]


def relative_spread(samples: Sequence[float]) -> float:
    if len(samples) < 2:
        return 0.0
    return (quantile(samples, 0.75) - quantile(samples, 0.25)) / (2 * max(1e-9, median(samples)))


def quantile(samples: Sequence[float], share: float) -> float:
    """Linear between the order statistics."""
    ordered = sorted(samples)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def sample(run: Callable[[int], float], effort: Effort) -> Estimate:
    """Calls ``run(index)`` until the times agree, or the budget or the number of samples is reached."""
    samples: list[float] = []
    while not _enough(samples, effort):
        samples.append(run(len(samples)))
    return estimate(samples)


def _enough(samples: Sequence[float], effort: Effort) -> bool:
    if not samples:
        return False
    spent = sum(samples)
    if len(samples) < effort.at_least:
        # a sample far beyond the budget is not repeated at all
        return spent >= 2 * effort.budget_ns
    if spent >= PATIENCE * effort.budget_ns or len(samples) >= effort.at_most:
        return True
    spread = relative_spread(without_outliers(samples))
    enough_of_them = len(samples) >= 2 * effort.at_least and spread < STEADY
    return enough_of_them or (spent >= effort.budget_ns and spread <= NOISY)
