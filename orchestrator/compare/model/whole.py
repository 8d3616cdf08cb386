"""A whole comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.compare.model.curves import BudgetCurve, StepCurve
    from orchestrator.compare.model.figures import Block
    from orchestrator.compare.model.gate import Gate
    from orchestrator.compare.model.origin import Diagnosis, FieldDifference, Provenance
    from orchestrator.compare.model.samples import Sample

__all__ = ["Comparison"]


@dataclass(frozen=True)
class Comparison:
    """A whole comparison. `allowed` describes the differences that it was told to overlook."""

    baseline: str | None
    metric: str
    metric_words: str
    dialect: str
    dialect_words: str
    blocks: tuple[Block, ...]
    curves: tuple[StepCurve, ...]
    budgets: tuple[BudgetCurve, ...]
    runs: tuple[str, ...]
    target: str
    suite: str
    filters: tuple[str, ...]
    allowed: tuple[str, ...]
    differences: tuple[FieldDifference, ...]
    footnotes: tuple[str, ...]
    warnings: tuple[str, ...]
    provenance: Provenance
    diagnoses: tuple[Diagnosis, ...] = ()
    samples: tuple[Sample, ...] = ()
    gate: Gate | None = None
