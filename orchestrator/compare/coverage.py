"""What 95 % intervals covered in simulations (`benchmarks/coverage.py` makes these figures).

The simulated prompts are skewed: difficulty and length are log-normal and correlated, and the second drafter's
gain varies from prompt to prompt. 4,000 repetitions: a figure here is known to about 0.4 %.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["COVERAGE", "ENOUGH", "Coverage", "coverage_of"]

ENOUGH = 50
"""Prompts from which intervals cover 93 to 97 %; with fewer a reader is told what they cover."""


class Coverage(NamedTuple):
    """Shares of the intervals that held the truth: of a figure, and of a paired change."""

    figure: float
    change: float


COVERAGE: dict[int, Coverage] = {
    6: Coverage(0.9270, 0.9297),
    8: Coverage(0.9330, 0.9400),
    12: Coverage(0.9335, 0.9455),
    20: Coverage(0.9373, 0.9447),
    32: Coverage(0.9427, 0.9447),
    50: Coverage(0.9475, 0.9483),
    60: Coverage(0.9420, 0.9530),
    120: Coverage(0.9510, 0.9520),
}
"""By number of prompts."""


def coverage_of(clusters: int) -> Coverage:
    """Returns the coverage at the nearest number of prompts that was simulated and is no larger."""
    return COVERAGE[max(size for size in COVERAGE if size <= max(clusters, min(COVERAGE)))]
