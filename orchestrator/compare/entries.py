"""One drafter's own figures under one shape."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from orchestrator.compare.bias import short_output_bias
from orchestrator.compare.columns import Ints, Series, Shape, Terms
from orchestrator.compare.model import DatasetFigures, Entry
from orchestrator.compare.stats import Estimate, estimate_ratios
from remote_payload.tau import DIALECTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Context", "Named", "make_entries", "sum_terms"]


class Named(NamedTuple):
    """A series with its drafter's name."""

    name: str
    aliases: tuple[str, ...]
    series: Series


class Context(NamedTuple):
    """What every figure of a comparison is made with."""

    dialect: str
    pair_by_id: bool
    datasets: tuple[str, ...]
    baseline: str | None


def make_entries(shape: Shape, named: Sequence[Named], context: Context) -> list[Entry]:
    """All entries of a block; every interval of the block comes from one call."""
    items: list[Terms] = []
    slices: list[list[int]] = []
    for _, _, series in named:
        terms = series.terms(context.dialect)
        everything = np.arange(len(series.unit))
        items.append(sum_terms(terms, everything, series.cluster))
        present = [number for number in range(len(context.datasets)) if (series.dataset == number).any()]
        slices.append(present)
        for number in present:
            rows = np.flatnonzero(series.dataset == number)
            items.append(sum_terms(terms, rows, series.cluster[rows]))
    estimates = iter(zip(items, estimate_ratios(items), strict=True))
    return [
        _entry(shape, one, present, estimates, context) for one, present in zip(named, slices, strict=True)
    ]


def _entry(
    shape: Shape,
    one: Named,
    present: Sequence[int],
    estimates: Iterator[tuple[Terms, Estimate]],
    context: Context,
) -> Entry:
    series = one.series
    whole, figure = next(estimates)
    datasets = []
    for number in present:
        part, estimate = next(estimates)
        rounds = int(series.rounds[series.dataset == number].sum())
        datasets.append(DatasetFigures(context.datasets[number], estimate, len(part.num), rounds))
    return Entry(
        name=one.name,
        aliases=one.aliases,
        drafter_hash=series.key.drafter_hash,
        is_baseline=one.name == context.baseline,
        engine=series.key.engine,
        block_size=series.key.block_size,
        convention=json.loads(series.key.convention),
        settings=series.key.settings._asdict(),
        runs=series.runs,
        figure=figure,
        dialects={name: _pooled(series.terms(name)) for name in DIALECTS},
        dataset_mean=_dataset_mean(series, present),
        short_output_bias=short_output_bias(series),
        clusters=len(whole.num),
        rows=len(series.unit),
        rounds=int(series.rounds.sum()),
        accepted=int(series.accepted.sum()),
        left_out=int((series.truncated_rounds == 0).sum()),
        bound=shape.bound(series.slots),
        survival=tuple(float(share) for share in series.survival),
        histogram=tuple(int(count) for count in series.histogram),
        datasets=tuple(datasets),
    )


def _pooled(terms: Terms) -> float:
    rounds = float(terms.den.sum())
    return float(terms.num.sum()) / rounds if rounds else float("nan")


def _dataset_mean(series: Series, present: Sequence[int]) -> float:
    """The mean of pooled tau over datasets."""
    terms = series.terms("tau")
    parts = [series.dataset == number for number in present]
    return float(np.mean([_pooled(Terms(terms.num[part], terms.den[part])) for part in parts]))


def sum_terms(terms: Terms, rows: Ints, clusters: Ints) -> Terms:
    """Sums over each cluster, in the order of the clusters' numbers."""
    members, inverse = np.unique(clusters, return_inverse=True)
    sums = np.zeros((2, len(members)))
    np.add.at(sums[0], inverse, terms.num[rows])
    np.add.at(sums[1], inverse, terms.den[rows])
    return Terms(sums[0], sums[1])
