"""What is measured: each metric as a ratio of sums over rows, so that one bootstrap serves them all.

A metric's name is what `--metric` takes: `tau` (under a dialect), `tau_dataset_mean`, `accept@K` (share of all
rounds that accepted at least K drafts) and `conditional@K` (share of the rounds that accepted K - 1 and went
on to accept the K-th).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from orchestrator.compare.columns import Terms
from orchestrator.errors import UsageError
from remote_payload.tau import DIALECTS

if TYPE_CHECKING:
    from orchestrator.compare.columns import Series

__all__ = ["METRICS", "Metric", "read_metric"]

METRICS = ("tau", "tau_dataset_mean", "accept@K", "conditional@K")
_AT = re.compile(r"(accept|conditional)@([1-9][0-9]{0,2})")


@dataclass(frozen=True)
class Metric:
    """A metric under a dialect. `position` is the K of `accept@K` and `conditional@K`, else 0."""

    name: str
    dialect: str
    words: str
    position: int = 0

    @property
    def by_dataset(self) -> bool:
        """Whether it is a mean over datasets of their figures."""
        return self.name == "tau_dataset_mean"

    def terms(self, series: Series) -> Terms:
        """Returns the metric of each row, as numerator and denominator."""
        if not self.position:
            return series.terms(self.dialect)
        passed = series.rounds_longer_than(self.position)
        came = (
            series.rounds if self.name.startswith("accept") else series.rounds_longer_than(self.position - 1)
        )
        return Terms(passed.astype(float), came.astype(float))

    def of_rounds(self, lengths: np.ndarray) -> Terms:
        """Returns the metric of single rounds; a dialect that speaks of whole outputs falls back to `tau`."""
        if not self.position:
            bonus = 1 if self.dialect == "no_bonus" else 0
            return Terms(lengths.astype(float) - bonus, np.ones(len(lengths)))
        came = lengths > (0 if self.name.startswith("accept") else self.position - 1)
        return Terms((lengths > self.position).astype(float), came.astype(float))


def read_metric(name: str, dialect: str) -> Metric:
    """Reads `--metric` and `--dialect`.

    Raises:
        UsageError: there is no such metric or dialect, or they do not go together.
    """
    if dialect not in DIALECTS:
        raise UsageError(f"--dialect {dialect}: no such dialect", f"the dialects are {', '.join(DIALECTS)}")
    if name == "tau":
        return Metric(name, dialect, DIALECTS[dialect][1])
    if dialect != "tau":
        raise UsageError(
            f"--metric {name} and --dialect {dialect} do not go together", "a dialect is a definition of tau"
        )
    if name == "tau_dataset_mean":
        return Metric(name, dialect, "mean over datasets of tau")
    match = _AT.fullmatch(name)
    if match is None:
        raise UsageError(f"--metric {name}: no such metric", f"the metrics are {', '.join(METRICS)}")
    position = int(match[2])
    words = {
        "accept": f"share of all rounds that accepted at least {position} drafts",
        "conditional": f"share of the rounds that accepted {position - 1} drafts and accepted one more",
    }[match[1]]
    return Metric(name, dialect, words, position)
