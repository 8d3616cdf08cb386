"""Figures along an axis: the steps of a training, the sizes of draft trees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.compare.stats import Estimate

__all__ = ["BudgetCurve", "BudgetPoint", "StepCurve", "StepPoint"]


@dataclass(frozen=True)
class StepPoint:
    """One step of a training. `best` is the probability that it is the best of them; None: not known."""

    step: int
    name: str
    figure: Estimate
    best: float | None


@dataclass(frozen=True)
class StepCurve:
    """The figure over the steps of one training under one shape, in the order of the steps.

    `best` names the step with the highest figure on the `clusters` prompts that all steps have (on its own, if there
    are none; None where it is undefined for all), `probability` is its probability of being the best.
    `reference` is the baseline's figure, if there is a baseline of another training.
    """

    shape: str
    kind: str
    temperature: float | None
    training: str
    points: tuple[StepPoint, ...]
    best: str | None
    probability: float | None
    clusters: int
    reference: Estimate | None


@dataclass(frozen=True)
class BudgetPoint:
    """A drafter's figure with a draft tree of `size` nodes."""

    shape: str
    size: int
    figure: Estimate


@dataclass(frozen=True)
class BudgetCurve:
    """A drafter's figure over the sizes of its draft trees; `chain` is its figure without a tree.

    Ceilings are never on it: no verifier runs them.
    """

    name: str
    is_baseline: bool
    temperature: float | None
    chain: Estimate | None
    points: tuple[BudgetPoint, ...]
