"""Curves: a figure over the steps of a training, and over the sizes of draft trees."""

from __future__ import annotations

import math
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from orchestrator.compare.entries import figure_terms
from orchestrator.compare.model import BudgetCurve, BudgetPoint, StepCurve, StepPoint
from orchestrator.compare.resampling import columns, pooled
from orchestrator.compare.stats import MIN_CLUSTERS, chances_of_best

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from orchestrator.compare.columns import Terms
    from orchestrator.compare.entries import Context, Named
    from orchestrator.compare.model import Block, Entry
    from orchestrator.compare.stats import Bootstrap

__all__ = ["budget_curves", "step_curves"]


def step_curves(
    block: Block,
    named: Sequence[Named],
    wholes: Sequence[Terms],
    context: Context,
    bootstrap: Bootstrap,
) -> Iterable[StepCurve]:
    """Yields the curve of each training that has two steps or more in a block.

    Args:
        block: the block; its entries are in the order of `named`.
        named: its series.
        wholes: the figure of each series over its clusters.
        context: what figures are made with.
        bootstrap: the block's resamples.
    """
    trainings: dict[str, list[int]] = {}
    for place, entry in enumerate(block.entries):
        if entry.training is not None:
            trainings.setdefault(entry.training, []).append(place)
    baseline = next((entry for entry in block.entries if entry.is_baseline), None)
    for training, places in trainings.items():
        if len({block.entries[place].step for place in places}) < 2:
            continue
        places.sort(key=lambda place: block.entries[place].step or 0)
        terms = _common([named[place] for place in places], [wholes[place] for place in places], context)
        clusters = len(terms[0].num) if terms else 0
        chances = chances_of_best(terms, bootstrap) if clusters >= MIN_CLUSTERS else None
        entries = [block.entries[place] for place in places]
        figures = [_figure(own) for own in terms] or [entry.figure.value for entry in entries]
        best = max(
            (place for place, value in enumerate(figures) if math.isfinite(value)),
            key=figures.__getitem__,
            default=None,
        )
        yield _curve(block, training, entries, best, chances, clusters, baseline)


def _curve(
    block: Block,
    training: str,
    entries: Sequence[Entry],
    best: int | None,
    chances: Sequence[float] | None,
    clusters: int,
    baseline: Entry | None,
) -> StepCurve:
    return StepCurve(
        shape=block.shape,
        kind=block.kind,
        temperature=block.temperature,
        training=training,
        points=tuple(
            StepPoint(entry.step or 0, entry.name, entry.figure, chances[place] if chances else None)
            for place, entry in enumerate(entries)
        ),
        best=None if best is None else entries[best].name,
        probability=None if best is None or chances is None else chances[best],
        clusters=clusters,
        reference=baseline.figure if baseline and baseline not in entries else None,
    )


def _figure(terms: Terms) -> float:
    num, den = columns(terms)
    return float(pooled(num.sum(axis=1), den.sum(axis=1)))


def _common(named: Sequence[Named], wholes: Sequence[Terms], context: Context) -> list[Terms]:
    """The figure of each over the clusters of the units that all of them have; empty if there are none."""
    units = [one.series.named if context.pair_by_id else one.series.unit for one in named]
    clusters = [one.series.cluster for one in named]
    if all(np.array_equal(own[0], other) for own in (units, clusters) for other in own[1:]):
        return list(wholes)
    shared = reduce(np.intersect1d, units)
    if not len(shared):
        return []
    first = named[0].series.cluster[np.intersect1d(units[0], shared, return_indices=True)[1]]
    rows = [np.intersect1d(own, shared, return_indices=True)[1] for own in units]
    return [
        figure_terms(context.metric, one.series, own, first) for one, own in zip(named, rows, strict=True)
    ]


def budget_curves(blocks: Sequence[Block]) -> tuple[BudgetCurve, ...]:
    """Returns the curve of each drafter that has draft trees; ceilings are left out: nothing runs them."""
    found: dict[tuple[str, float | None], BudgetCurve] = {}
    for kind in ("chain", "tree"):
        for block in (block for block in blocks if block.kind == kind):
            for entry in block.entries:
                key = (entry.name, block.temperature)
                old = found.get(key) or BudgetCurve(
                    entry.name, entry.is_baseline, block.temperature, None, ()
                )
                point = BudgetPoint(block.shape, block.size, entry.figure)
                chain = entry.figure if kind == "chain" else old.chain
                points = old.points if kind == "chain" else (*old.points, point)
                found[key] = BudgetCurve(entry.name, entry.is_baseline, block.temperature, chain, points)
    return tuple(curve for curve in found.values() if curve.points)
