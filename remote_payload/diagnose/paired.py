"""Two measurements of the same anchors, compared: differences within prompts, intervals over prompts.

The unit of variation is the prompt (a conversation with all its turns and samples). Estimates are ratios of sums;
their standard errors are the delete-one jackknife's over prompts, with Student's t for n - 1 degrees of freedom
(Efron and Tibshirani, An Introduction to the Bootstrap, 1993, ch. 11).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["Difference", "mean_difference", "ratio_difference", "student_cdf", "student_quantile"]


class Difference(NamedTuple):
    """A paired difference: estimate, 95 % interval, and its distance from 0 in standard errors."""

    delta: float
    low: float
    high: float
    score: float
    clusters: int


def ratio_difference(
    ours: tuple[Sequence[float], Sequence[float]],
    theirs: tuple[Sequence[float], Sequence[float]],
    *,
    relative: bool = False,
) -> Difference:
    """Returns the difference of two pooled ratios, theirs - ours (or theirs / ours - 1), paired by cluster.

    Args:
        ours, theirs: per cluster, numerators and denominators of either.
    """
    (a, b), (c, d) = (tuple(np.asarray(part, dtype=float) for part in pair) for pair in (ours, theirs))
    n = len(a)

    def estimate(drop: int | None) -> float:
        sums = [part.sum() - (0.0 if drop is None else part[drop]) for part in (a, b, c, d)]
        if not all(sums[i] for i in (1, 3)) or (relative and not sums[0]):
            return math.nan
        first, second = sums[0] / sums[1], sums[2] / sums[3]
        return float(second / first - 1 if relative else second - first)

    whole = estimate(None)
    if n < 2:
        return Difference(whole, -math.inf, math.inf, 0.0, n)
    left = np.array([estimate(i) for i in range(n)])
    error = math.sqrt((n - 1) / n * float(((left - left.mean()) ** 2).sum()))
    reach = student_quantile(n - 1) * error
    score = whole / error if error > 0 else math.copysign(math.inf, whole) if whole else 0.0
    return Difference(whole, whole - reach, whole + reach, score, n)


def mean_difference(values: Sequence[float]) -> Difference:
    """Returns the mean of one value per cluster, with Student's interval."""
    known = np.asarray(values, dtype=float)
    n = len(known)
    mean = float(known.mean()) if n else math.nan
    if n < 2:
        return Difference(mean, -math.inf, math.inf, 0.0, n)
    error = float(known.std(ddof=1)) / math.sqrt(n)
    reach = student_quantile(n - 1) * error
    score = mean / error if error > 0 else math.copysign(math.inf, mean) if mean else 0.0
    return Difference(mean, mean - reach, mean + reach, score, n)


def student_quantile(freedom: int, level: float = 0.975) -> float:
    """Returns Student's t quantile by bisection on its distribution function (no scipy on a GPU host)."""
    low, high = 0.0, 1.0
    while student_cdf(high, freedom) < level:
        high *= 2
    while high - low > 1e-9 * max(1.0, high):
        middle = (low + high) / 2
        low, high = (middle, high) if student_cdf(middle, freedom) < level else (low, middle)
    return (low + high) / 2


def student_cdf(t: float, freedom: int) -> float:
    """Student's distribution function, by the finite trigonometric series (Abramowitz and Stegun 26.7.3-4)."""
    if t < 0:
        return 1 - student_cdf(-t, freedom)
    if math.isinf(t):
        return 1.0
    theta = math.atan(t / math.sqrt(freedom))
    cos2 = math.cos(theta) ** 2
    if freedom % 2:
        term = total = math.cos(theta) if freedom > 1 else 0.0
        for k in range(3, freedom, 2):
            term *= cos2 * (k - 1) / k
            total += term
        area = 2 / math.pi * (theta + math.sin(theta) * total)
    else:
        term = total = 1.0
        for k in range(2, freedom, 2):
            term *= cos2 * (k - 1) / k
            total += term
        area = math.sin(theta) * total
    return 0.5 + area / 2
