"""Student's distribution for whole degrees of freedom, in closed form (no library: importing one takes longer).

What always holds: the figures agree with scipy's to 1e-9 (a test holds them to it).
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

__all__ = ["normal_cdf", "student_quantile"]

_NORMAL = NormalDist()
_MANY = 5_000  # degrees of freedom from which an expansion about the normal distribution is as exact


def normal_cdf(value: float) -> float:
    """Returns the share of the standard normal distribution below a value."""
    return math.erfc(-value / math.sqrt(2)) / 2


@lru_cache(maxsize=256)
def student_quantile(share: float, freedom: int) -> float:
    """Returns the value below which a share (0 < share < 1) of Student's distribution lies."""
    if freedom >= _MANY:
        z = _NORMAL.inv_cdf(share)
        return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    if share > 0.5:
        return -student_quantile(1 - share, freedom)
    low, high = -1.0, 0.0
    while _cdf(low, freedom) > share:
        low, high = 2 * low, low
    while (middle := (low + high) / 2) not in (low, high):
        if _cdf(middle, freedom) > share:
            high = middle
        else:
            low = middle
    return middle


def _cdf(value: float, freedom: int) -> float:
    """The share below a value: the finite sums over powers of cos(theta), tan(theta) = value / sqrt(freedom)."""
    theta = math.atan2(value, math.sqrt(freedom))
    square = math.cos(theta) ** 2
    odd = freedom % 2
    term = math.cos(theta) if odd else 1.0
    total = 0.0 if freedom == 1 else term
    for power in range(2 + odd, freedom - 1, 2):
        term *= square * (power - 1) / power
        total += term
    inside = math.sin(theta) * total
    if odd:
        inside = 2 / math.pi * (theta + inside)
    return (1 + inside) / 2
