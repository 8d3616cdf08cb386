"""A comparison as data: what every rendering of it shows (tables, CSV, JSON, Markdown, a page).

Nothing here computes. Undefined figures are NaN, missing ones None; an `Estimate` without an interval has
None for both ends. Texts that come from runs (labels, prompts, drafts, paths) are as they were: whoever shows
them makes them harmless (`orchestrator.text.printable`, HTML escaping).
"""

from __future__ import annotations

from orchestrator.compare.model.curves import BudgetCurve, BudgetPoint, StepCurve, StepPoint
from orchestrator.compare.model.figures import (
    Block,
    ContextFigures,
    DatasetFigures,
    Entry,
    PromptPair,
    Versus,
)
from orchestrator.compare.model.gate import Gate, GateVerdict
from orchestrator.compare.model.origin import (
    Diagnosis,
    DrafterProvenance,
    FieldDifference,
    Provenance,
    RunProvenance,
)
from orchestrator.compare.model.samples import Sample, SampleDraft
from orchestrator.compare.model.whole import Comparison

__all__ = [
    "Block",
    "BudgetCurve",
    "BudgetPoint",
    "Comparison",
    "ContextFigures",
    "DatasetFigures",
    "Diagnosis",
    "DrafterProvenance",
    "Entry",
    "FieldDifference",
    "Gate",
    "GateVerdict",
    "PromptPair",
    "Provenance",
    "RunProvenance",
    "Sample",
    "SampleDraft",
    "StepCurve",
    "StepPoint",
    "Versus",
]
